/** The fields of a limit: what they are called, how they are entered, and what they are if nothing is said. */

import { h } from "./dom.js";
import { field, select } from "./dialog.js";
import { readNumber } from "./numbers.js";

/**
 * @typedef {object} FieldKind
 * @property {string} key as in the file
 * @property {string} label
 * @property {"number" | "choice" | "check" | "text" | "days"} input
 * @property {any} otherwise what it is when it is left out
 * @property {string} help
 * @property {[string, string][]} [options]
 * @property {boolean} [named] not for defaults
 * @property {boolean} [telling] a limit that has it is shown with all its fields unfolded
 */

/** @type {FieldKind[]} */
export const FIELDS = [
  {
    key: "action",
    label: "Above the limit",
    input: "choice",
    otherwise: null,
    help: "Shadow decides and counts, and lets everything pass.",
    options: [["", "as is usual for the kind"], ["reject", "reject"], ["delay", "delay, then reject"], ["shadow", "shadow"], ["off", "off: the limit is only kept"]],
  },
  { key: "burst_s", label: "Burst, seconds", input: "number", otherwise: 1, help: "Seconds of the rate admitted at once after a pause." },
  { key: "break_s", label: "Break, seconds", input: "number", otherwise: null, help: "Refuse all for so long once the limit was hit; 0 for a plain bucket. Empty: the kind's own." },
  { key: "max_delay_s", label: "Longest delay, seconds", input: "number", otherwise: null, help: "With delay. Empty: the kind's own." },
  { key: "bytes_per_s", telling: true, label: "Bytes per second", input: "number", otherwise: null, help: "Limited as well as messages. Empty: not limited." },
  { key: "bytes_burst_s", label: "Burst of bytes, seconds", input: "number", otherwise: 1, help: "" },
  { key: "count", label: "The rate counts", input: "choice", otherwise: "messages", help: "", options: [["messages", "messages"], ["requests", "requests, of any number of messages"]] },
  { key: "fair_by", telling: true, label: "Fair shares", input: "choice", otherwise: null, help: "Over the limit, each active one is sure of an equal share.", options: [["", "none"], ["producer_group", "by producer group"], ["client", "by client address"]] },
  { key: "max_fair_keys", label: "Shares told apart", input: "number", otherwise: 32, help: "With fair shares; the rest have one share." },
  { key: "warm_up_s", label: "Warm-up, seconds", input: "number", otherwise: 0, help: "The rate rises to the full one after idleness." },
  { key: "busy_code", label: "Number of the refusal", input: "number", otherwise: null, help: "Empty: the protocol's own." },
  { key: "between", telling: true, label: "Hours", input: "text", otherwise: null, help: "HH:MM-HH:MM. Empty: always.", named: true },
  { key: "days", telling: true, label: "Days", input: "days", otherwise: null, help: "mon, tue, … Empty: every day.", named: true },
  { key: "time_zone", label: "Time zone", input: "text", otherwise: "UTC", help: "Whose clocks hours and days go by.", named: true },
  { key: "allow_under_limit", label: "Allow a break longer than the burst, which admits less than the rate", input: "check", otherwise: false, help: "" },
  { key: "exempt", telling: true, label: "Exempt: never limited by anything, in place of a rate", input: "check", otherwise: false, help: "", named: true },
];

/** @returns {any} the control of a field, showing its value in a limit. */
export function control(/** @type {FieldKind} */ kind, /** @type {Record<string, any>} */ limit) {
  const value = limit[kind.key] ?? kind.otherwise;
  if (kind.input === "check") return h("input", { type: "checkbox", checked: Boolean(value) });
  if (kind.input === "choice") return select(kind.options ?? [], value ?? "");
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
  const value = kind.input === "number" ? readNumber(text, kind.key).value : text;
  return value === kind.otherwise ? undefined : value;
}

