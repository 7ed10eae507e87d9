/** Sparklines: what passed, as an area, with what was refused stacked upon it. */

import { setAttribute, svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 26;

/** @returns {SVGElement} an empty sparkline. */
export function sparkline() {
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "no figures yet" },
    svg("path", { class: "spark-refused" }),
    svg("path", { class: "spark-passed" }),
    svg("path", { class: "spark-line" }),
  );
}

/**
 * Draw a history.
 *
 * @param {Element} element from `sparkline`
 * @param {number[]} passed per second, oldest first
 * @param {number[]} refused as many
 * @param {number} slots how many figures the full width holds
 * @param {string} label what it shows, for those who do not see it
 */
export function draw(element, passed, refused, slots, label) {
  const [refusedArea, passedArea, line] = element.children;
  setAttribute(element, "aria-label", label);
  const from = Math.max(0, passed.length - slots);
  const shown = passed.slice(from);
  const totals = shown.map((value, index) => value + (refused[from + index] ?? 0));
  const most = Math.max(...totals, 1e-9);
  if (shown.length < 2) {
    for (const path of [refusedArea, passedArea, line]) setAttribute(path, "d", "");
    return;
  }
  const x = (/** @type {number} */ index) => (WIDTH * (index + slots - shown.length)) / (slots - 1);
  const y = (/** @type {number} */ value) => HEIGHT - 1 - (value / most) * (HEIGHT - 3);
  const points = (/** @type {number[]} */ values) => values.map((value, index) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`);
  const bottom = points(shown);
  const top = points(totals);
  setAttribute(passedArea, "d", `M${x(0).toFixed(1)} ${HEIGHT}L${bottom.join("L")}L${WIDTH} ${HEIGHT}Z`);
  setAttribute(line, "d", `M${bottom.join("L")}`);
  const anyRefused = totals.some((total, index) => total > shown[index]);
  setAttribute(refusedArea, "d", anyRefused ? `M${bottom.join("L")}L${top.reverse().join("L")}Z` : "");
}
