/**
 * What the parts of the page share: who is asking, the sidecar's state, the connection, and who wants to hear of them.
 *
 * @typedef {{name: string, role: "read" | "write", address: string}} Whoami
 */

import { byId, setText } from "./dom.js";

/** @type {Map<string, Set<(data: any) => void>>} */
const listeners = new Map();

export const app = {
  /** @type {Whoami | null} */
  whoami: null,
  /** @type {any} the last body of `GET state` */
  state: null,
  /** @type {import("./stream.js").Status} */
  status: "connecting",
  /** Milliseconds since 1970 at which figures last came. */
  figuresAt: 0,
  /** Ids of the changes that this page made. */
  ownChanges: new Set(),

  /** @returns {boolean} whether this token may change anything */
  canWrite() {
    return this.whoami?.role === "write";
  },
};

/** Hear of `state`, `status`, `whoami`, `change`, and `overtaken`: a change that cannot be undone in passing. */
export function on(/** @type {string} */ event, /** @type {(data: any) => void} */ listener) {
  if (!listeners.has(event)) listeners.set(event, new Set());
  listeners.get(event)?.add(listener);
  return () => listeners.get(event)?.delete(listener);
}

/** Hear of several events by one listener, which is not told what they carry. */
export function onAny(/** @type {string[]} */ events, /** @type {() => void} */ listener) {
  const offs = events.map((event) => on(event, () => listener()));
  return () => offs.forEach((off) => off());
}

export function emit(/** @type {string} */ event, /** @type {any} */ data = undefined) {
  for (const listener of listeners.get(event) ?? []) listener(data);
}

/** @returns {string} that clients are connected to a backup, and why; empty if they are not. */
export function backupText(/** @type {any} */ listener) {
  return listener.backup ? [`backup ${listener.backup} of ${listener.backups}`, ...listener.passed_over].join("; ") : "";
}

/** @returns {string} a listener as people know it: by its name, or the address that was bound where it has no other. */
export function listenerText(/** @type {string} */ name) {
  const listener = app.state?.listeners.find((/** @type {any} */ each) => each.name === name);
  if (!listener) return name;
  // Without a name of its own it is called as the address to bind was written, of which 0 is any free port.
  return /:0$/.test(name) ? listener.listen : name;
}

/** Say something to those who do not see the page change. */
export function announce(/** @type {string} */ text) {
  setText(byId("announcer"), text);
}

/** Attributes of a control that changes something: disabled, with the reason, for tokens that only read. */
export function writing() {
  return app.canWrite() ? {} : { disabled: true, title: "Your token may only read." };
}
