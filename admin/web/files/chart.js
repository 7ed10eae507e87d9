/**
 * A chart with a time axis and a value axis, drawn by uPlot in the colours of the theme, as wide as there is room.
 * Beside it are a legend, with the figures under the pointer or the last ones, and a sentence for those who do not see it.
 *
 * @typedef {object} Series
 * @property {string} label
 * @property {string} name class of its key, which has its colour
 * @property {number[]} [dash] lengths of strokes and gaps; a line without any is whole
 * @property {boolean} [filled] the area below it
 * @property {boolean} [stepped] it stays as it is until the next figure
 */

import { fill, h, setAttribute, setText } from "./dom.js";
import { rate, timeOfDay } from "./format.js";

const HEIGHT = 220;
const HEIGHT_ON_PHONES = 180;
const narrow = matchMedia("(max-width: 720px)");
const minutes = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
/** What is so much higher than all else is written, not drawn: it would press all else flat. */
const MUCH_HIGHER = 4;

export class Chart {
  /**
   * @param {string} label what it shows
   * @param {Series[]} series in the order in which they are drawn
   */
  constructor(label, series) {
    this.series = series;
    /** @type {any} */
    this.plot = null;
    /** @type {(number | null)[][]} */
    this.data = [[], ...series.map(() => [])];
    this.range = [0, 1];
    this.canvas = h("div", { class: "chart", role: "img", "aria-label": label });
    this.label = label;
    this.values = series.map(() => h("span", { class: "value" }));
    this.at = h("span", { class: "faint at" });
    this.legend = h(
      "p",
      { class: "legend", "aria-hidden": "true" },
      series.map((each, index) => h("span", { class: "entry" }, (each.key = h("span", { class: `key ${each.name}` })), each.label, " ", this.values[index])),
      this.at,
    );
    this.element = h("div", {}, this.canvas, this.legend);
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.canvas);
    this.themed = new MutationObserver(() => this.draw());
    this.themed.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  /**
   * Show figures.
   *
   * @param {(number | null)[][]} data seconds since 1970, ascending, then per second for each series; null is unknown
   * @param {number} fromS where the time axis begins
   * @param {number} untilS and ends
   * @param {string} text what is to be seen, for those who do not see it
   */
  show(data, fromS, untilS, text) {
    this.data = data;
    this.range = [fromS, untilS];
    setAttribute(this.canvas, "aria-label", `${this.label}: ${text}`);
    if (this.plot) this.plot.setData(data);
    else this.draw();
    this.showValues();
  }

  close() {
    this.resized.disconnect();
    this.themed.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  /** Make it anew, in the colours that there are now. */
  draw() {
    if (!this.canvas.isConnected || !this.data[0].length) return;
    this.plot?.destroy();
    const style = getComputedStyle(this.canvas);
    const axis = { stroke: style.color, font: `11.5px ${style.fontFamily}`, grid: { stroke: style.borderTopColor, width: 1 }, ticks: { show: false } };
    const { uPlot } = /** @type {any} */ (window);
    const options = {
      width: this.canvas.clientWidth,
      height: narrow.matches ? HEIGHT_ON_PHONES : HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, points: { size: 6 } },
      scales: { x: { time: true, range: () => this.range }, y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, this.top(most)] } },
      axes: [
        { ...axis, space: 80, size: 28, gap: 4, values: (/** @type {any} */ _, /** @type {number[]} */ ticks, /** @type {number} */ __, /** @type {number} */ ___, /** @type {number} */ step) => ticks.map((tick) => (step < 60 ? timeOfDay(tick * 1000) : minutes.format(tick * 1000))) },
        { ...axis, size: 52, gap: 4, space: 34, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(rate) },
      ],
      series: [{}, ...this.series.map((each) => this.line(each, uPlot))],
      hooks: { setCursor: [() => this.showValues()] },
    };
    this.plot = new uPlot(options, this.data, this.canvas);
  }

  line(/** @type {any} */ { key, dash, filled, stepped }, /** @type {any} */ uPlot) {
    const colour = getComputedStyle(key).color;
    return {
      stroke: colour,
      width: 1.5,
      dash,
      fill: filled ? colour.replace(/^rgb\((.*)\)$/, "rgba($1, 0.16)") : undefined,
      paths: stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: false },
    };
  }

  /** @returns {number} the top of the value axis: all lines have room below it, but not a limit far above all else. */
  top(/** @type {number} */ most) {
    const traffic = Math.max(0, ...this.data.slice(1).flatMap((values, index) => (this.series[index].stepped ? [] : values.map((value) => value ?? 0))));
    return 1.08 * (traffic && most > MUCH_HIGHER * traffic ? traffic : most || 1);
  }

  resize() {
    if (!this.plot) this.draw();
    else if (this.canvas.clientWidth && this.canvas.clientWidth !== this.plot.width) this.plot.setSize({ width: this.canvas.clientWidth, height: this.plot.height });
  }

  /** Say the figures under the pointer, or the last ones that are known. */
  showValues() {
    const pointed = this.plot?.cursor.idx ?? null;
    this.values.forEach((element, index) => {
      const values = this.data[index + 1];
      const at = pointed ?? values.findLastIndex((value) => value !== null);
      setText(element, rate(values[at]));
    });
    fill(this.at, pointed === null ? "" : timeOfDay((this.data[0][pointed] ?? 0) * 1000));
  }
}
