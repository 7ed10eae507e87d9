/** Views by the address's hash, `#/audit?target=…`, so that each can be linked to; and links to the page of a resource. */

import { h } from "./dom.js";

/** Kinds of limits that are of no resource: of who asks, and of all that match a rule together. */
const NO_RESOURCES = ["client", "producer_group", "certificate", "user", "vhost", "listener", "total"];

/** @returns {{view: string, params: URLSearchParams}} what the address says. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || "limits", params: new URLSearchParams(query) };
}

/** @returns {string} the address of a view. */
export function link(/** @type {string} */ view, /** @type {Record<string, string>} */ params = {}) {
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

/** @returns {string} a name as the pattern that stands for it alone, as limits are called. */
export function globOf(/** @type {string} */ name) {
  return name.replace(/[*?[]/g, "[$&]");
}

/** @returns {string} the one name that a pattern stands for; empty if that may be several. */
export function nameOf(/** @type {string} */ pattern) {
  const name = pattern.replace(/\[([*?[])\]/g, "\u0000$1");
  return /(^|[^\u0000])[*?[]/.test(name) ? "" : name.replaceAll("\u0000", "");
}

/** @returns {boolean} whether what is called so has a page of its own. */
export function hasPage(/** @type {string} */ kind, /** @type {string} */ name) {
  return Boolean(name) && !NO_RESOURCES.includes(kind);
}

/** @returns {any} a name that leads to the page of its resource; what has none is only written. */
export function resourceLink(/** @type {string} */ kind, /** @type {string} */ name, /** @type {string} */ text = name, /** @type {Record<string, any>} */ properties = {}) {
  return hasPage(kind, name) ? h("a", { href: link("resource", { kind, name }), ...properties }, text) : text;
}

/** @returns {any} the same for `KIND:NAME`, as connections and stages call resources. */
export function resourceOf(/** @type {string} */ text) {
  const [, before = "", kind = "", name = ""] = /^(resource )?([^: ]+):(.*)$/su.exec(text) ?? [];
  return name ? [before, resourceLink(kind, name, `${kind}:${name}`)] : text;
}

/** @returns {any} the same for the target of a change. */
export function targetLink(/** @type {string} */ target, /** @type {string} */ text) {
  const [, what = "", kind = "", rest = ""] = /^(limits|spool)\/([^/]+)\/(.*)$/su.exec(target) ?? [];
  return resourceLink(kind, what === "limits" ? nameOf(rest) : rest, text);
}
