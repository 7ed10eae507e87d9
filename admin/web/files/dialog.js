/** Native dialogs: a heading, a body, and Escape or a button to leave; focus goes back to where it was. */

import { ApiError } from "./api.js";
import { fill, freshId, h } from "./dom.js";
import { readNumber } from "./numbers.js";

/**
 * @typedef {object} Dialog
 * @property {HTMLDialogElement} element
 * @property {HTMLElement} body
 * @property {() => void} close
 */

/**
 * Open a dialog.
 *
 * @param {string} title
 * @param {{drawer?: boolean, onclose?: () => void, dismissable?: boolean, onescape?: () => boolean}} [how] `onescape` says
 *   whether Escape leaves it open
 * @returns {Dialog}
 */
export function openDialog(title, how = {}) {
  const id = freshId();
  const { dismissable = true } = how;
  const opener = document.activeElement;
  const body = h("div", { class: "dialog-body" });
  const close = () => element.close();
  const element = h(
    "dialog",
    { class: how.drawer ? "drawer" : "box", "aria-labelledby": id },
    h(
      "div",
      { class: "dialog-head" },
      h("h2", { id, tabindex: "-1" }, title),
      dismissable && h("button", { type: "button", class: "button plain small", "aria-label": "Close", onclick: close }, "✕"),
    ),
    body,
  );
  // A second Escape would close it past any refusal of `cancel`.
  element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && (!dismissable || how.onescape?.())) event.preventDefault();
  });
  element.addEventListener("close", () => {
    element.remove();
    how.onclose?.();
    // What opened it may have been drawn anew since; then its like takes the focus.
    const key = opener instanceof HTMLElement ? opener.dataset.key : undefined;
    const again = opener?.isConnected ? opener : key && document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (again instanceof HTMLElement) again.focus();
  });
  document.body.append(element);
  element.showModal();
  return { element, body, close };
}

/** A form that only its button sends: Enter in a field does nothing, so that nothing is done by accident. */
export function confirmForm(/** @type {() => void} */ onconfirm, /** @type {any[]} */ ...children) {
  const form = h("form", { novalidate: true }, ...children);
  form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !(event.target instanceof HTMLButtonElement)) event.preventDefault();
  });
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    onconfirm();
  });
  return form;
}

/** The buttons at the end of a form: one that sends it, and one that leaves. */
export function actions(/** @type {string} */ manner, /** @type {string} */ label, /** @type {() => void} */ cancel) {
  return h(
    "div",
    { class: "actions" },
    h("button", { class: `button ${manner}`, type: "submit" }, label),
    h("button", { class: "button", type: "button", onclick: cancel }, "Cancel"),
  );
}

/** @returns {any} the input of why something is done. */
export function reasonInput(/** @type {Record<string, any>} */ properties = {}) {
  return h("input", { type: "text", autocomplete: "off", maxlength: 500, ...properties });
}

/**
 * Ask for a reason and a last word, then act; what the API says against it is shown.
 *
 * @param {string} title
 * @param {any} content what will happen
 * @param {{label: string, manner?: string, reasonLabel?: string}} words
 * @param {(reason: string, dialog: Dialog, problem: Element) => Promise<void>} act
 */
export function askReason(title, content, { label, manner = "primary", reasonLabel = "Reason" }, act) {
  const dialog = openDialog(title);
  const reason = reasonInput();
  const problem = h("div", { role: "alert" });
  const confirmed = async () => {
    try {
      await act(reason.value.trim(), dialog, problem);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      showProblem(problem, error.message);
    }
  };
  fill(dialog.body, problem, content, confirmForm(confirmed, field(reasonLabel, reason), actions(manner, label, dialog.close)));
  reason.focus();
}

/** Show what went wrong at the top of a form, and read it out. */
export function showProblem(/** @type {Element} */ place, /** @type {string} */ text) {
  fill(place, text ? h("p", { class: "problem" }, text) : null);
}

/** @returns {any} a labelled control; the place for its error is what describes it. */
export function field(/** @type {string} */ label, /** @type {any} */ control, /** @type {string} */ help = "") {
  const id = freshId();
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-error ${id}-help`);
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    control,
    h("p", { class: "field-error", id: `${id}-error` }),
    h("p", { class: "field-help", id: `${id}-help` }, help),
  );
}

/** Put an error at a control, or take it away. */
export function setError(/** @type {HTMLElement} */ control, /** @type {string} */ text) {
  const place = document.getElementById(`${control.id}-error`);
  if (place) place.textContent = text;
  if (text) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

/** @returns {any} a choice; the first option is chosen if there is no other. */
export function select(/** @type {[string, string][]} */ options, /** @type {string} */ value = "", /** @type {Record<string, any>} */ properties = {}) {
  const element = h("select", properties, options.map(([key, text]) => h("option", { value: key }, text)));
  element.value = value;
  if (element.selectedIndex < 0) element.selectedIndex = 0;
  return element;
}

const MINUTES = /** @type {[string, string][]} */ ([
  ["", "for good"],
  ["15", "15 minutes"],
  ["60", "1 hour"],
  ["480", "8 hours"],
  ["1440", "24 hours"],
  ["other", "other…"],
]);

/** How long something is to hold: presets, or any number of minutes. */
export function ttlField(/** @type {string} */ preset = "", help = "Afterwards what held before holds again, by itself.", kept = "") {
  // What ends already is let end as it would, unless somebody chooses otherwise.
  const choice = kept ? select([["keep", kept], ...MINUTES], "keep") : select(MINUTES, preset);
  const minutes = h("input", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": "Minutes", placeholder: "minutes", hidden: true });
  choice.addEventListener("change", () => {
    minutes.hidden = choice.value !== "other";
    if (!minutes.hidden) minutes.focus();
  });
  const element = field("For how long", choice, help);
  const read = () => readNumber(choice.value === "other" ? minutes.value : choice.value);
  choice.after(minutes);
  minutes.setAttribute("aria-describedby", `${choice.id}-error`);
  return {
    element,
    control: choice,
    /** @returns {number | null | undefined} seconds; NaN if it is no number; null is for good, undefined as it is */
    seconds: () => (choice.value === "keep" ? undefined : choice.value ? read().value * 60 : null),
    /** Say at the field what is wrong with it, if anything is. */
    check() {
      const { value, problem } = choice.value && choice.value !== "keep" ? read() : { value: 1, problem: "" };
      const text = problem || (value > 0 ? "" : "must be more than 0 minutes");
      setError(choice, text);
      choice.removeAttribute("aria-invalid");
      if (text) {
        minutes.setAttribute("aria-invalid", "true");
        minutes.focus();
      } else minutes.removeAttribute("aria-invalid");
      return !text;
    },
  };
}
