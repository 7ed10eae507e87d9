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
export function setServerTime(iso) {
  const at = Date.parse(iso ?? "");
  if (!Number.isNaN(at)) behindMs = at - Date.now();
}

/** Milliseconds since 1970, by the server's clock. */
export function serverNow() {
  return Date.now() + behindMs;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.05) return "<0.1";
  return perSecond < 10 ? tenths.format(perSecond) : whole.format(perSecond);
}

export function count(number) {
  return whole.format(number);
}

export function number(value) {
  return exactNumber.format(value);
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  if (value > 0 && value < 1) return "<1 %";
  return `${whole.format(value)} %`;
}

export function bytes(amount) {
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
export function wait(microseconds) {
  if (!microseconds) return "–";
  if (microseconds < 1000) return `${whole.format(microseconds)} µs`;
  if (microseconds < 1_000_000) return `${whole.format(microseconds / 1000)} ms`;
  return `${tenths.format(microseconds / 1_000_000)} s`;
}

/** A length of time in its two largest units. */
export function duration(seconds) {
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

export function ago(iso) {
  if (!iso) return "–";
  const seconds = Math.max(0, (serverNow() - Date.parse(iso)) / 1000);
  if (seconds < 2) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

export function left(iso) {
  const seconds = (Date.parse(iso) - serverNow()) / 1000;
  return seconds <= 0 ? "ending" : `${duration(seconds)} left`;
}

export function exact(iso) {
  return iso ? when.format(new Date(iso)) : "";
}

export function timeOfDay(milliseconds) {
  return clock.format(new Date(milliseconds));
}

export function fieldValue(value) {
  if (value === null || value === undefined) return "not set";
  if (typeof value === "number") return number(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return Array.isArray(value) ? value.join(", ") : String(value);
}

export function limitText(limit) {
  if (!limit) return "unlimited";
  if ("limiting" in limit) return limit.limiting ? "limiting on" : "limiting off";
  if (limit.exempt) return "exempt";
  const parts = [];
  if (limit.rate === "unlimited") parts.push("unlimited");
  else if (limit.rate !== null && limit.rate !== undefined) parts.push(`${number(limit.rate)}/s`);
  if (limit.bytes_per_s !== null && limit.bytes_per_s !== undefined) parts.push(`${bytes(limit.bytes_per_s)}/s`);
  if (limit.action && limit.action !== "reject") parts.push(limit.action);
  return parts.join(" · ") || "unlimited";
}

/** The limit of a row or an entry; bytes in a unit that people read. */
export function shortLimit(entry) {
  const { limit } = entry;
  if (!limit?.bytes_per_s) return entry.limit_text || "–";
  return limitText({ rate: limit.rate, bytes_per_s: limit.bytes_per_s });
}

const PLAIN = /^-?(\d+(\.\d+)?|\.\d+)$/;
const GROUPED = /^\d{1,3}([,_\s'’]\d{3})+(\.\d+)?$/;

/**
 * Read a number that somebody typed. What could be meant in two ways is refused, with what to write instead: a comma
 * separates thousands here and decimals there. Returns `{value, problem}`, of which value is NaN if there is a problem.
 */
export function readNumber(text, key = "") {
  const isPerSecond = ["rate", "bytes_per_s"].includes(key);
  const bare = isPerSecond ? text.trim().replace(/\s*\/\s*s$/i, "") : text.trim();
  if (PLAIN.test(bare)) return { value: Number(bare), problem: "" };
  const meant = meantBy(bare);
  const problem = meant
    ? `write ${meant}: digits and at most one point, nothing between them`
    : "must be a number, written like 1000 or 2.5";
  return { value: NaN, problem };
}

function meantBy(text) {
  if (GROUPED.test(text)) return text.replaceAll(/[^\d.]/g, "");
  if (/^\d+,\d+$/.test(text)) return text.replace(",", ".");
  if (/^\d+(\.\d+)?e\+?\d+$/i.test(text) && Number(text) < 1e15) return String(Number(text));
  return /^(\d+(?:\.\d+)?)\s*(s|min)$/i.exec(text)?.[1] ?? "";
}

/** What reached the broker, of counts or rates by outcome. */
export function reached(verdicts) {
  return verdicts.passed + verdicts.bypassed + verdicts.exempt;
}
