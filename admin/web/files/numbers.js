/**
 * Reads the numbers that people type. What could be meant in two ways is refused, with what to write instead: a comma
 * separates thousands here and decimals there, and a limit that is a thousand times too low stops everybody.
 */

const PLAIN = /^-?(\d+(\.\d+)?|\.\d+)$/;
const GROUPED = /^\d{1,3}([,_\s'’]\d{3})+(\.\d+)?$/;

/**
 * Read a number of digits and at most one point; `/s` may follow what is per second.
 *
 * @param {string} text
 * @param {string} [key] of the field: `rate`, `bytes_per_s`, …
 * @returns {{value: number, problem: string}} NaN with what to do about it, if it is none
 */
export function readNumber(text, key = "") {
  const perSecond = ["rate", "bytes_per_s"].includes(key);
  const bare = perSecond ? text.trim().replace(/\s*\/\s*s$/i, "") : text.trim();
  if (PLAIN.test(bare)) return { value: Number(bare), problem: "" };
  return { value: NaN, problem: problem(bare) };
}

function problem(/** @type {string} */ text) {
  const meant = meantBy(text);
  return meant ? `write ${meant}: digits and at most one point, nothing between them` : "must be a number, written like 1000 or 2.5";
}

/** @returns {string} how what was most likely meant is written; empty if that is anybody's guess. */
function meantBy(/** @type {string} */ text) {
  if (GROUPED.test(text)) return text.replaceAll(/[^\d.]/g, "");
  if (/^\d+,\d+$/.test(text)) return text.replace(",", ".");
  if (/^\d+(\.\d+)?e\+?\d+$/i.test(text) && Number(text) < 1e15) return String(Number(text));
  return /^(\d+(?:\.\d+)?)\s*(s|min)$/i.exec(text)?.[1] ?? "";
}
