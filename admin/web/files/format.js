/** Figures, times and limits as people read them. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
/** Without separators, so that what is shown is what may be typed; limits are in millionths. */
const exactNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 6, useGrouping: false });
const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

/** How far this machine's clock is behind the server's, in milliseconds. */
let behindMs = 0;

/** Go by the server's clock: relative times are about its moments. */
export function setServerTime(/** @type {string | undefined} */ iso) {
  const at = Date.parse(iso ?? "");
  if (!Number.isNaN(at)) behindMs = at - Date.now();
}

/** @returns {number} milliseconds since 1970, by the server's clock. */
export function serverNow() {
  return Date.now() + behindMs;
}

/** A rate in a table: enough digits to compare, no more. */
export function rate(/** @type {number | null | undefined} */ perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.05) return "<0.1";
  return perSecond < 10 ? tenths.format(perSecond) : whole.format(perSecond);
}

/** A whole figure, with separators. */
export function count(/** @type {number} */ number) {
  return whole.format(number);
}

/** A number as it was given. */
export function number(/** @type {number} */ value) {
  return exactNumber.format(value);
}

/** A share of one as per cent. */
export function percent(/** @type {number | null | undefined} */ share) {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  if (value > 0 && value < 1) return "<1 %";
  return `${whole.format(value)} %`;
}

/** Bytes, in the unit that keeps them short. */
export function bytes(/** @type {number} */ amount) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = amount;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit > 0 ? tenths.format(value) : whole.format(value)} ${units[unit]}`;
}

/** A wait, in the unit that keeps it short. */
export function wait(/** @type {number} */ microseconds) {
  if (!microseconds) return "–";
  if (microseconds < 1000) return `${whole.format(microseconds)} µs`;
  if (microseconds < 1_000_000) return `${whole.format(microseconds / 1000)} ms`;
  return `${tenths.format(microseconds / 1_000_000)} s`;
}

/** A length of time in its two largest units. */
export function duration(/** @type {number} */ seconds) {
  const total = Math.max(0, Math.round(seconds));
  const parts = [
    [Math.floor(total / 86_400), "d"],
    [Math.floor(total / 3600) % 24, "h"],
    [Math.floor(total / 60) % 60, "min"],
    [total % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => Number(amount) > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => Number(amount) > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

/** How long ago something was, in one unit. */
export function ago(/** @type {string | null | undefined} */ iso) {
  if (!iso) return "–";
  const seconds = Math.max(0, (serverNow() - Date.parse(iso)) / 1000);
  if (seconds < 2) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** How long it is until something happens. */
export function left(/** @type {string} */ iso) {
  const seconds = (Date.parse(iso) - serverNow()) / 1000;
  return seconds <= 0 ? "ending" : `${duration(seconds)} left`;
}

/** A moment in full. */
export function exact(/** @type {string | null | undefined} */ iso) {
  return iso ? when.format(new Date(iso)) : "";
}

/** The time of day of a moment. */
export function timeOfDay(/** @type {number} */ milliseconds) {
  return clock.format(new Date(milliseconds));
}

/** The value of a limit's field. */
export function fieldValue(/** @type {any} */ value) {
  if (value === null || value === undefined) return "not set";
  if (typeof value === "number") return number(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/** A limit, or a switch, in short. */
export function limitText(/** @type {Record<string, any> | null | undefined} */ limit) {
  if (!limit) return "no rule of its own";
  if ("limiting" in limit) return limit.limiting ? "limiting on" : "limiting off";
  if (limit.exempt) return "exempt";
  const parts = [];
  if (limit.rate === "unlimited") parts.push("unlimited");
  else if (limit.rate !== null && limit.rate !== undefined) parts.push(`${number(limit.rate)}/s`);
  if (limit.bytes_per_s !== null && limit.bytes_per_s !== undefined) parts.push(`${bytes(limit.bytes_per_s)}/s`);
  if (limit.action && limit.action !== "reject") parts.push(limit.action);
  return parts.join(" · ") || "unlimited";
}

/** The limit of a row or an entry: in words for bytes, which nobody reads in ones. */
export function shortLimit(/** @type {any} */ entry) {
  const { limit } = entry;
  if (!limit?.bytes_per_s) return entry.limit_text || "–";
  return limitText({ rate: limit.rate, bytes_per_s: limit.bytes_per_s });
}

/**
 * What differs between two limits, field by field.
 *
 * @param {Record<string, any> | null | undefined} before
 * @param {Record<string, any> | null | undefined} after
 * @returns {{field: string, before: any, after: any}[]}
 */
export function differences(before, after) {
  const fields = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
  return [...fields]
    .map((field) => ({ field, before: before?.[field] ?? null, after: after?.[field] ?? null }))
    .filter((each) => JSON.stringify(each.before) !== JSON.stringify(each.after));
}
