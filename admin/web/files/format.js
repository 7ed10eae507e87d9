const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
/** Formats numbers so that they can be typed as shown. Limits have a resolution of one millionth. */
const exactNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 6, useGrouping: false });
const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hourCycle: "h23" });

/** How far this machine's clock is behind the server's. */
let behindMs = 0;

export function setServerTime(iso) {
  const at = Date.parse(iso ?? "");
  if (!Number.isNaN(at)) behindMs = at - Date.now();
}

export function serverNow() {
  return Date.now() + behindMs;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.05) return "<0.1";
  return perSecond < 10 ? tenths.format(perSecond) : whole.format(perSecond);
}

export function count(amount) {
  return whole.format(amount);
}

export function number(value) {
  return exactNumber.format(value);
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  return share > 0 && share < 0.01 ? "<1 %" : `${whole.format(share * 100)} %`;
}

export function bytes(amount) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.floor(Math.log2(Math.max(amount, 1)) / 10), units.length - 1);
  const value = amount / 1024 ** power;
  return `${value < 10 && power > 0 ? tenths.format(value) : whole.format(value)} ${units[power]}`;
}

export function wait(seconds) {
  if (!seconds) return "–";
  if (seconds < 0.001) return `${whole.format(seconds * 1e6)} µs`;
  return seconds < 1 ? `${whole.format(seconds * 1000)} ms` : `${tenths.format(seconds)} s`;
}

/** Shows only the two largest units. */
export function duration(seconds) {
  const total = Math.max(0, Math.round(seconds));
  const parts = [
    [Math.floor(total / 86_400), "d"],
    [Math.floor(total / 3600) % 24, "h"],
    [Math.floor(total / 60) % 60, "min"],
    [total % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  const shown = parts.slice(first, first + 2).filter(([amount]) => amount > 0);
  return first < 0 ? "0 s" : shown.map((part) => part.join(" ")).join(" ");
}

export function ago(iso) {
  if (!iso) return "–";
  const seconds = Math.max(0, (serverNow() - Date.parse(iso)) / 1000);
  return seconds < 2 ? "now" : `${duration(seconds).split(" ", 2).join(" ")} ago`;
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

export function sentence(text) {
  return `${text[0]?.toUpperCase() ?? ""}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
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
  const { rate: perSecond, bytes_per_s: bytesPerSecond, action } = limit;
  const { adaptive, floor, ceiling } = limit;
  const parts = [
    adaptive && `adaptive, at least ${number(floor)}/s${ceiling ? `, at most ${number(ceiling)}/s` : ""}`,
    perSecond === "unlimited" && "unlimited",
    typeof perSecond === "number" && `${number(perSecond)}${limit.count === "requests" ? " requests" : ""}/s`,
    (bytesPerSecond ?? null) !== null && `${bytes(bytesPerSecond)}/s`,
    action !== "reject" && action,
    limit.fleet && "for the fleet",
    limit.fair_by && `shared by ${limit.fair_by.replace("_", " ")}`,
  ];
  return parts.filter(Boolean).join(" · ") || "unlimited";
}

/** Leaves out the action, which is shown separately. */
export function shortLimit({ limit, limit_text: text }) {
  return limit ? limitText({ ...limit, action: null }) : text || "–";
}

/** Returns `{value, problem}`. If there is a problem, `value` is NaN. */
export function readNumber(text, key = "") {
  const isPerSecond = ["rate", "bytes_per_s"].includes(key);
  const bare = isPerSecond ? text.trim().replace(/\s*\/\s*s$/i, "") : text.trim();
  // A comma is ambiguous: it separates thousands in some countries and decimals in others.
  if (/^-?(\d+(\.\d+)?|\.\d+)$/.test(bare)) return { value: Number(bare), problem: "" };
  return { value: NaN, problem: "must be a number such as 1000 or 2.5" };
}

export function reached(verdicts) {
  return verdicts.passed + verdicts.bypassed + verdicts.exempt;
}
