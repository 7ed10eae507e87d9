/** The fields of a limit: their names, inputs and defaults. */

import { readNumber } from "./format.js";

/**
 * In order. Filled in from ``admin.config.limit_fields``. `input` is number, choice, boolean (which may be unset),
 * check, text or days. `otherwise` is the value if it is left out. `onlyWith`, `notWith`, `beside`, `notOf`, `onlyOf`,
 * `wordsNotOf`, `named` and `telling` are those of `LimitField`.
 */
export const FIELDS = [];

/** Whether a field has an effect, given the others of a limit. */
export function matters({ onlyWith, notWith, beside }, limit) {
  if (notWith && limit[notWith]) return false;
  if (onlyWith && limit[onlyWith[0]] !== onlyWith[1]) return false;
  return !beside?.length || beside.some((key) => (limit[key] ?? null) !== null);
}

/** The fields that a limit of this kind and name may have. Existing values stay. */
export function fieldsOf(kind, name, limit) {
  const of = kind === "total" ? name.split(":")[0] : kind;
  const isOffered = (field) => {
    if (field.named && (name === "*" || kind === "total")) return false;
    if (field.onlyOf?.length && !field.onlyOf.includes(kind)) return false;
    return !field.notOf?.includes(of) || ![null, undefined, field.otherwise].includes(limit[field.key]);
  };
  const optionsOf = ({ key, options, wordsNotOf }) =>
    options?.filter(([word]) => !wordsNotOf?.[word]?.includes(of) || limit[key] === word);
  return FIELDS.filter(isOffered).map((field) => ({ ...field, options: optionsOf(field) }));
}

/** A text of the API, with field keys replaced by the labels of the form. */
export function inWords(text) {
  const fieldOf = (key) => FIELDS.find((each) => each.key === key && each.label);
  const said = text.replace(/\b([a-z_]+) = "?([\w.]+)"?/g, (whole, key, value) => {
    const option = fieldOf(key)?.options?.find(([word]) => word === value);
    return fieldOf(key) ? `“${fieldOf(key).label}” set to “${option?.[1] ?? value}”` : whole;
  });
  return said.replace(/\b[a-z]+(_[a-z]+)+\b/g, (key) => (fieldOf(key) ? `“${fieldOf(key).label}”` : key));
}

/** The value of a field's control: text, or a boolean for a check. */
export function shownValue({ key, otherwise, input }, limit) {
  const value = limit[key] ?? otherwise;
  if (input === "check") return Boolean(value);
  return Array.isArray(value) ? value.join(", ") : String(value ?? "");
}

/** The value of a control: undefined for the default, NaN if it is not a number. */
export function readValue({ key, input, otherwise }, shown) {
  if (input === "check") return shown || undefined;
  const text = shown.trim();
  if (!text) return undefined;
  if (input === "days") return text.split(/[\s,]+/);
  if (input === "boolean") return text === "true";
  const value = input === "number" ? readNumber(text, key).value : text;
  return value === otherwise ? undefined : value;
}
