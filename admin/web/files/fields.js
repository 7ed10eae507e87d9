/** The fields of a limit: what they are called, how they are entered, and what they are if nothing is said. */

import { readNumber } from "./format.js";

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

/** Whether a field says anything beside the others of a limit. */
export function matters(kind, limit) {
  if (kind.onlyWith && limit[kind.onlyWith[0]] !== kind.onlyWith[1]) return false;
  return !kind.beside?.length || kind.beside.some((key) => (limit[key] ?? null) !== null);
}

/** The fields that a limit may have, each with the options that it may have; what it has stays. */
export function fieldsOf(kind, name, limit) {
  const of = kind === "total" ? name.split(":")[0] : kind;
  const isOffered = (field) => {
    if (field.named && (name === "*" || kind === "total")) return false;
    return !field.notOf?.includes(of) || ![null, undefined, field.otherwise].includes(limit[field.key]);
  };
  const optionsOf = (field) =>
    field.options?.filter(([word]) => !field.wordsNotOf?.[word]?.includes(of) || limit[field.key] === word);
  return FIELDS.filter(isOffered).map((field) => ({ ...field, options: optionsOf(field) }));
}

/** What the API says of fields, in the words of the form: it writes them as the file does. */
export function inWords(text) {
  const fieldOf = (key) => FIELDS.find((each) => each.key === key);
  const said = text.replace(/\b([a-z_]+) = "?([\w.]+)"?/g, (whole, key, value) => {
    const option = fieldOf(key)?.options?.find(([word]) => word === value);
    return fieldOf(key)?.label ? `“${fieldOf(key).label}” set to “${option?.[1] ?? value}”` : whole;
  });
  return said.replace(/\b[a-z]+(_[a-z]+)+\b/g, (key) => (fieldOf(key)?.label ? `“${fieldOf(key).label}”` : key));
}

/** What the control of a field shows of a limit: text, or a boolean for a check. */
export function shownValue(field, limit) {
  const value = limit[field.key] ?? field.otherwise;
  if (field.input === "check") return Boolean(value);
  return Array.isArray(value) ? value.join(", ") : String(value ?? "");
}

/** What a control says: undefined for what need not be written, NaN for what is no number. */
export function readValue(field, shown) {
  if (field.input === "check") return shown || undefined;
  const text = shown.trim();
  if (!text) return undefined;
  if (field.input === "days") return text.split(/[\s,]+/);
  if (field.input === "boolean") return text === "true";
  const value = field.input === "number" ? readNumber(text, field.key).value : text;
  return value === field.otherwise ? undefined : value;
}
