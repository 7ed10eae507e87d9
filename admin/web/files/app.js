/** What all views share: who is asking, the newest figures, the address as the place in the page, and messages. */

import { ApiError, get } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

/** Kinds of limits that are of no resource: of who asks, and of all that match a rule together. */
const NO_RESOURCES = ["client", "producer_group", "certificate", "user", "vhost", "listener", "total"];
const TOAST_MS = 12_000;

export const app = {
  /** @type {{name: string, role: "read" | "write"} | null} */
  whoami: null,
  /** The body of `GET state`. */
  state: null,
  /** @type {"connecting" | "live" | "reconnecting" | "offline"} */
  status: "connecting",
  /** Milliseconds since 1970 at which figures last came. */
  figuresAt: 0,
  /** Rows that the view has asked the stream for: by key, their order, and what the answer says besides. */
  rows: { byKey: new Map(), order: [], total: 0, totals: null, kinds: [], sampledS: 0, isKnown: false },
  /** How many changes of limits and switches were heard of. */
  changes: 0,
  /** Ids of the changes that were made here. */
  ownChanges: new Set(),
  toasts: [],
  /** Dialogs that are open: `{id, content}`. */
  dialogs: [],
  /** Said to those who do not see the page change. */
  announcement: "",
};

let draw = () => {};
let isDue = false;

/** Draw by this function from now on. */
export function startDrawing(render) {
  draw = render;
}

/** Draw the page anew, once for all that happens in one go. */
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

/** Attributes of a control that changes something: disabled, with the reason, for tokens that only read. */
export function writing() {
  return canWrite() ? {} : { disabled: true, title: "Your token may only read." };
}

// --- places

/** What the address says: `#/audit?target=…`. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || "overview", params: new URLSearchParams(query) };
}

export function link(view, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "")).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Change some parameters of the view that is shown; an empty one is taken away. */
export function go(changes) {
  const { view, params } = place();
  const next = link(view, { ...Object.fromEntries(params), ...changes });
  if (next === location.hash) return;
  // Typing a search is one step of the history, not one for each letter.
  if ("search" in changes) {
    history.replaceState(null, "", next);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = next;
}

/** A name as the pattern that stands for it alone, as limits are called. */
export function globOf(name) {
  return name.replace(/[*?[]/g, "[$&]");
}

/** The one name that a pattern stands for; empty if that may be several. */
export function nameOf(pattern) {
  const isPattern = /[*?[]/.test(pattern.replace(/\[[*?[]\]/g, ""));
  return isPattern ? "" : pattern.replace(/\[([*?[])\]/g, "$1");
}

/** The address of a resource's page; null if it has none. */
export function pageOf(kind, name) {
  return name && !NO_RESOURCES.includes(kind) ? link("resource", { kind, name }) : null;
}

/** The same for the target of a change. */
export function pageOfTarget(target) {
  const [, what, kind, rest = ""] = /^(limits|spool)\/([^/]+)\/(.*)$/su.exec(target) ?? [];
  return pageOf(kind, what === "limits" ? nameOf(rest) : rest);
}

// --- asking

/**
 * Ask for something when a component begins, when a key changes, after each change of limits, and every so often.
 * Returns the newest answer (null at first) and a function that asks again.
 */
export function useAnswer(load, keys, everyMs = 0) {
  const [answer, setAnswer] = useState(null);
  const newest = useRef();
  newest.current = load;
  const ask = useRef();
  useEffect(() => {
    let isWanted = true;
    ask.current = async () => {
      try {
        const found = await newest.current();
        if (isWanted) setAnswer(found);
      } catch (error) {
        if (isWanted) failed(error);
      }
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

/** All switches, as the API lists them. */
export async function switches() {
  return (await get("switches")).switches;
}

// --- messages

let ids = 0;

/** Show a message at the page's corner; an error stays until it is closed. `offer`: `{label, action}`. */
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

/** Let a message leave after a while; whoever reads it has all the time. */
export function hurry(shown, isRead = false) {
  clearTimeout(shown.timer);
  if (!isRead && shown.manner !== "error") shown.timer = setTimeout(() => closeToast(shown), TOAST_MS);
}

/** Tell of something that was not done. */
export function failed(error) {
  if (!(error instanceof ApiError)) throw error;
  // The sign-in form says all there is to say about a missing token.
  if (error.status !== 401) toast(error.message, null, "error");
}

/** Open a dialog: `content(close)` makes it. */
export function openDialog(content) {
  const shown = { id: (ids += 1), content: null };
  const close = () => {
    app.dialogs = app.dialogs.filter((each) => each !== shown);
    redraw();
  };
  shown.content = () => content(close);
  app.dialogs = [...app.dialogs, shown];
  redraw();
}
