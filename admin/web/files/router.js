/** Views by the address's hash, `#/audit?target=…`, so that each can be linked to. */

/** @returns {{view: string, params: URLSearchParams}} what the address says. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || "limits", params: new URLSearchParams(query) };
}

/** @returns {string} the address of a view. */
function link(/** @type {string} */ view, /** @type {Record<string, string>} */ params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Go to a view with some of its parameters changed; an empty one is taken away. */
export function navigate(/** @type {string} */ view, /** @type {URLSearchParams} */ params, /** @type {Record<string, string>} */ changes) {
  const next = link(view, { ...Object.fromEntries(params), ...changes });
  if (next === location.hash) return;
  // Typing a search is one step of the history, not one for each letter.
  if ("search" in changes) {
    history.replaceState(null, "", next);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = next;
}
