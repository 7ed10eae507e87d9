import { readNumber } from "./format.js";

/**
 * The fields of a limit in display order, which the server fills in from ``admin.config.limit_fields``.
 *
 * `input` is `number`, `choice`, `boolean` (which may be unset), `check`, `text` or `days`. `otherwise` is the default.
 */
export const FIELDS = [];

export function matters({ onlyWith, notWith, beside }, limit) {
  if (notWith && limit[notWith]) return false;
  if (onlyWith && limit[onlyWith[0]] !== onlyWith[1]) return false;
  return !beside?.length || beside.some((key) => (limit[key] ?? null) !== null);
}

/** Returns the form's fields. A value that the limit already has is kept, even if it is not offered for this kind. */
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

export function inWords(text) {
  const fieldOf = (key) => FIELDS.find((each) => each.key === key && each.label);
  const said = text.replace(/\b([a-z_]+) = "?([\w.]+)"?/g, (whole, key, value) => {
    const option = fieldOf(key)?.options?.find(([word]) => word === value);
    return fieldOf(key) ? `“${fieldOf(key).label}” set to “${option?.[1] ?? value}”` : whole;
  });
  return said.replace(/\b[a-z]+(_[a-z]+)+\b/g, (key) => (fieldOf(key) ? `“${fieldOf(key).label}”` : key));
}

export function shownValue({ key, otherwise, input }, limit) {
  const value = limit[key] ?? otherwise;
  if (input === "check") return Boolean(value);
  return Array.isArray(value) ? value.join(", ") : String(value ?? "");
}

/** Returns undefined for the default value, and NaN for an invalid number. */
export function readValue({ key, input, otherwise }, shown) {
  if (input === "check") return shown || undefined;
  const text = shown.trim();
  if (!text) return undefined;
  if (input === "days") return text.split(/[\s,]+/);
  if (input === "boolean") return text === "true";
  const value = input === "number" ? readNumber(text, key).value : text;
  return value === otherwise ? undefined : value;
}
