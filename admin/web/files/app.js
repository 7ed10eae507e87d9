import { ApiError, get } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

const NO_RESOURCES = ["client", "producer_group", "certificate", "user", "vhost", "listener", "total"];
const TOAST_MS = 12_000;

export const app = {
  /** @type {{name: string, role: "read" | "write"} | null} */
  whoami: null,
  state: null,
  /** @type {"connecting" | "live" | "reconnecting" | "offline"} */
  status: "connecting",
  /** Time of the last figures, in milliseconds since 1970. */
  figuresAt: 0,
  rows: { byKey: new Map(), order: [], total: 0, totals: null, kinds: [], isKnown: false },
  /** Views request their data again when this number changes. */
  changes: 0,
  /** Ids of the changes made in this tab. */
  ownChanges: new Set(),
  toasts: [],
  dialogs: [],
  announcement: "",
};

let draw = () => {};
let isDue = false;

export function startDrawing(render) {
  draw = render;
}

export function redraw() {
  if (isDue) return;
  isDue = true;
  queueMicrotask(() => {
    isDue = false;
    draw();
  });
}

export function announce(text) {
  app.announcement = text;
  redraw();
}

export function canWrite() {
  return app.whoami?.role === "write";
}

export function writing() {
  return canWrite() ? {} : { disabled: true, title: "Your token is read-only." };
}

export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || "overview", params: new URLSearchParams(query) };
}

export function link(view, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "")).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Change parameters in the address. An empty value removes a parameter. */
export function go(changes) {
  const { view, params } = place();
  const next = link(view, { ...Object.fromEntries(params), ...changes });
  if (next === location.hash) return;
  // Replace the entry in the browser's history, so that a search does not add an entry for each letter.
  if ("search" in changes) {
    history.replaceState(null, "", next);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = next;
}

export function globOf(name) {
  return name.replace(/[*?[]/g, "[$&]");
}

/** Returns the name that a pattern matches, or an empty string if it may match more than one. */
export function nameOf(pattern) {
  const isPattern = /[*?[]/.test(pattern.replace(/\[[*?[]\]/g, ""));
  return isPattern ? "" : pattern.replace(/\[([*?[])\]/g, "$1");
}

export function pageOf(kind, name) {
  return name && !NO_RESOURCES.includes(kind) ? link("resource", { kind, name }) : null;
}

export function pageOfTarget(target) {
  const [, what, kind, rest = ""] = /^(limits|spool)\/([^/]+)\/(.*)$/su.exec(target) ?? [];
  return pageOf(kind, what === "limits" ? nameOf(rest) : rest);
}

/** Call `act`. If the API returns an error, show it and return undefined. */
export async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // The sign-in form handles a missing token.
    if (error.status !== 401) toast(error.message, null, "error");
    return undefined;
  }
}

/**
 * Request data now, whenever one of `keys` changes, after each change of limits, and every `everyMs`.
 *
 * Returns the latest response, which is null at first, and a function that repeats the request.
 */
export function useAnswer(load, keys, everyMs = 0) {
  const [answer, setAnswer] = useState(null);
  const newest = useRef();
  newest.current = load;
  const ask = useRef();
  useEffect(() => {
    let isWanted = true;
    ask.current = async () => {
      const found = await attempt(newest.current);
      if (isWanted && found !== undefined) setAnswer(found);
    };
    ask.current();
    const timer = everyMs && setInterval(() => !document.hidden && app.status === "live" && ask.current(), everyMs);
    return () => {
      isWanted = false;
      clearInterval(timer);
    };
  }, [...keys, app.changes, app.whoami?.name]);
  return [answer, () => ask.current()];
}

export function useMedia(query) {
  const [media] = useState(() => matchMedia(query));
  useEffect(() => {
    media.addEventListener("change", redraw);
    return () => media.removeEventListener("change", redraw);
  }, []);
  return media.matches;
}

export async function switches() {
  return (await get("switches")).switches;
}

let ids = 0;

/** Show a message. `offer` is `{label, action}` for a button. */
export function toast(text, offer = null, manner = "info") {
  const shown = { id: (ids += 1), text, offer, manner };
  app.toasts = [...app.toasts, shown];
  hurry(shown);
  redraw();
}

export function closeToast(shown) {
  clearTimeout(shown.timer);
  app.toasts = app.toasts.filter((each) => each !== shown);
  redraw();
}

export function hurry(shown, isRead = false) {
  clearTimeout(shown.timer);
  if (!isRead && shown.manner !== "error") shown.timer = setTimeout(() => closeToast(shown), TOAST_MS);
}

export function openDialog(component, props = {}) {
  const shown = { id: (ids += 1), component, props };
  shown.close = () => {
    app.dialogs = app.dialogs.filter((each) => each !== shown);
    redraw();
  };
  app.dialogs = [...app.dialogs, shown];
  redraw();
}
