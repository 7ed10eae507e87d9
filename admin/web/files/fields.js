/** The fields of a limit: what they are called, how they are entered, and what they are if nothing is said. */

import { h } from "./dom.js";
import { field, select } from "./dialog.js";
import { readNumber } from "./numbers.js";

/**
 * @typedef {object} FieldKind
 * @property {string} key as in the file
 * @property {string} label
 * @property {"number" | "choice" | "boolean" | "check" | "text" | "days"} input a boolean may be none of both
 * @property {any} otherwise what it is when it is left out
 * @property {string} help
 * @property {[string, string][]} [options]
 * @property {boolean} [named] not for defaults
 * @property {boolean} [telling] a limit that has it is shown with all its fields unfolded
 * @property {string[]} [beside] it says nothing unless one of these is set
 * @property {[string, string] | null} [onlyWith] another field, and the one value with which it says anything
 * @property {string[]} [notOf] kinds that cannot have it
 * @property {Record<string, string[]>} [wordsNotOf] kinds that cannot have one of its options
 */

/** @type {FieldKind[]} In order; whoever serves this file puts them in, from ``admin.config.limit_fields``. */
export const FIELDS = [];

/** @returns {boolean} whether a field says anything beside the others of a limit. */
export function matters(/** @type {FieldKind} */ kind, /** @type {Record<string, any>} */ limit) {
  if (kind.onlyWith && limit[kind.onlyWith[0]] !== kind.onlyWith[1]) return false;
  return !kind.beside?.length || kind.beside.some((key) => (limit[key] ?? null) !== null);
}

/** @returns {FieldKind[]} the fields that a limit may have, each with the options that it may have; what it has stays. */
export function fieldsOf(/** @type {string} */ kind, /** @type {string} */ name, /** @type {Record<string, any>} */ limit) {
  const of = kind === "total" ? name.split(":")[0] : kind;
  return FIELDS.filter((each) => {
    const is = limit[each.key] ?? null;
    return (!each.named || (name !== "*" && kind !== "total")) && (!each.notOf?.includes(of) || (is !== null && is !== each.otherwise));
  }).map((each) => ({ ...each, options: each.options?.filter(([word]) => !each.wordsNotOf?.[word]?.includes(of) || limit[each.key] === word) }));
}

/** @returns {string} what the API says of fields, in the words of the form: it writes them as the file does. */
export function inWords(/** @type {string} */ text) {
  const label = (/** @type {string} */ key) => FIELDS.find((each) => each.key === key)?.label;
  const said = text.replace(/\b([a-z_]+) = "?([\w.]+)"?/g, (whole, key, value) => {
    const option = FIELDS.find((each) => each.key === key)?.options?.find(([word]) => word === value);
    return label(key) ? `“${label(key)}” set to “${option?.[1] ?? value}”` : whole;
  });
  return said.replace(/\b[a-z]+(_[a-z]+)+\b/g, (key) => (label(key) ? `“${label(key)}”` : key));
}

/** @returns {any} the control of a field, showing its value in a limit. */
export function control(/** @type {FieldKind} */ kind, /** @type {Record<string, any>} */ limit) {
  const value = limit[kind.key] ?? kind.otherwise;
  if (kind.input === "check") return h("input", { type: "checkbox", checked: Boolean(value) });
  if (kind.input === "choice" || kind.input === "boolean") return select(kind.options ?? [], String(value ?? ""));
  const text = value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value);
  return h("input", { type: "text", value: text, inputmode: kind.input === "number" ? "decimal" : null, autocomplete: "off", spellcheck: "false" });
}

/** @returns {any} the field around its control. */
export function fieldElement(/** @type {FieldKind} */ kind, /** @type {any} */ element) {
  if (kind.input !== "check") return field(kind.label, element, kind.help);
  const box = field("", element, kind.help);
  box.classList.add("check");
  const label = box.querySelector("label");
  label.textContent = kind.label;
  return box;
}

/**
 * Read a control.
 *
 * @returns {any} the value, or undefined for what need not be written; NaN for what is no number.
 */
export function read(/** @type {FieldKind} */ kind, /** @type {any} */ element) {
  if (kind.input === "check") return element.checked || undefined;
  const text = element.value.trim();
  if (!text) return undefined;
  if (kind.input === "days") return text.split(/[\s,]+/);
  if (kind.input === "boolean") return text === "true";
  const value = kind.input === "number" ? readNumber(text, kind.key).value : text;
  return value === kind.otherwise ? undefined : value;
}

