/** What a change would do, or did: old and new beside each other. */

import { h } from "./dom.js";
import { FIELDS, matters } from "./fields.js";
import { differences, exact, fieldValue, left, limitText } from "./format.js";

/** What the short form of a limit says already. */
const SHORT = ["rate", "bytes_per_s", "action", "exempt", "limiting"];

/** @returns {string} a change in one line. */
export function changeLine(/** @type {any} */ change) {
  if (change.action === "purge") return `${targetText(change.target)}: ${change.details.join(", ")}`;
  const further = furtherText(change);
  return `${targetText(change.target)}: ${oldText(change)} → ${newText(change)}${further && `, ${further}`}`;
}

/** @returns {string} what was in force before a change; for a name without a rule of its own, by which rule. */
export function oldText(/** @type {any} */ change) {
  return change.old ? limitText(change.old) : ruleText(change.old_rule);
}

/** @returns {string} what is in force since a change, likewise. */
export function newText(/** @type {any} */ change) {
  return change.new ? limitText(change.new) : ruleText(change.new_rule);
}

function ruleText(/** @type {any} */ rule) {
  return rule ? `${rule.limit_text} by ${rule.rule}` : limitText(null);
}

/** @returns {string} what a change did besides what limits say in short: `burst_s 2 → 1, break_s 1 → 0`. */
export function furtherText(/** @type {any} */ change) {
  if (!change.old || !change.new) return "";
  return differing(change.old, change.new)
    .filter(({ field }) => !SHORT.includes(field))
    .map(({ field, before, after }) => `${field} ${fieldValue(before)} → ${fieldValue(after)}`)
    .join(", ");
}

/** The differences that matter: not those of a field that says nothing on either side. */
function differing(/** @type {any} */ before, /** @type {any} */ after) {
  return differences(before, after).filter(({ field }) => {
    const kind = FIELDS.find((each) => each.key === field);
    return !kind || matters(kind, before ?? {}) || matters(kind, after ?? {});
  });
}

/** @returns {string} what a change is about, for people. */
export function targetText(/** @type {string} */ target) {
  return target.replace(/^(limits|switches)\//, "").replace(/^spool\//, "spool of ");
}

/** A table of the fields that differ. */
export function differenceTable(/** @type {any} */ change) {
  // Of a limit that is new only what it says is worth a line.
  const rows = differing(change.old, change.new).filter((row) => change.old || row.after !== false);
  if (!rows.length) return h("p", { class: "muted" }, "Nothing differs from what is in force now.");
  return h(
    "table",
    { class: "differences" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Field"), h("th", { scope: "col" }, "Now"), h("th", { scope: "col" }, "Then"))),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", class: "mono" }, row.field),
          h("td", {}, fieldValue(row.before)),
          h("td", { class: "then" }, fieldValue(row.after)),
        ),
      ),
    ),
  );
}

/**
 * The preview of one change.
 *
 * @param {any} change
 * @param {any} [entry] the limit before it; a name without a rule of its own shows what holds for it so far
 */
export function preview(change, entry = null) {
  const inherits = Boolean(entry && !change.old && change.new);
  const old = inherits && entry.rule ? entry.limit : change.old;
  return [
    h(
      "p",
      { class: "old-new" },
      h("span", { class: "visually-hidden" }, "now "),
      h("del", {}, inherits ? (entry.rule ? limitText(old) : "unlimited") : oldText(change)),
      inherits && entry.rule && h("span", { class: "by" }, ` by ${entry.rule}`),
      h("span", { class: "faint", "aria-hidden": "true" }, " → "),
      h("span", { class: "visually-hidden" }, ", then "),
      h("ins", {}, newText(change)),
    ),
    inherits && entry.rule && h("p", { class: "muted" }, `A limit of its own; ${entry.rule} stays as it is for all others.`),
    change.new ? differenceTable({ ...change, old }) : h("p", { class: "muted" }, "Then the most specific pattern that matches holds, or the default."),
    change.expires_at && h("p", { class: "muted" }, `Until ${exact(change.expires_at)} (${left(change.expires_at)}).`),
    change.action === "set" && !change.expires_at && change.before?.expires_at && h("p", { class: "muted" }, `For good: the edit before it would have ended ${exact(change.before.expires_at)}.`),
    change.durable === false && h("p", { class: "muted" }, "Only until Sluice is restarted: it is not written down."),
  ];
}
