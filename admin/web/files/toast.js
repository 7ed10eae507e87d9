/** Short messages at the page's corner that leave by themselves, with something to do about them. */

import { byId, h } from "./dom.js";

const SHOWN_MS = 12_000;

/**
 * Show a message.
 *
 * @param {string} text
 * @param {{label: string, action: () => void} | null} [offer]
 * @param {"info" | "error"} [manner] an error stays until it is closed
 */
export function toast(text, offer = null, manner = "info") {
  /** @type {any} */
  let timer;
  const close = () => {
    clearTimeout(timer);
    element.remove();
  };
  const wait = () => {
    clearTimeout(timer);
    if (manner !== "error") timer = setTimeout(close, SHOWN_MS);
  };
  const element = h(
    "div",
    { class: `toast ${manner}`, role: manner === "error" ? "alert" : "status" },
    h("p", {}, text),
    offer &&
      h("button", { type: "button", class: "button small", onclick: () => { close(); offer.action(); } }, offer.label),
    h("button", { type: "button", class: "button small plain", "aria-label": "Close this message", onclick: close }, "✕"),
  );
  // Whoever reads it, or is about to press its button, is not hurried.
  for (const event of ["pointerenter", "focusin"]) element.addEventListener(event, () => clearTimeout(timer));
  for (const event of ["pointerleave", "focusout"]) element.addEventListener(event, wait);
  byId("toasts").append(element);
  wait();
}
