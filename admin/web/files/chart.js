import { useMedia } from "./app.js";
import { rate, timeOfDay } from "./format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";

const HEIGHT = 220;
const HEIGHT_ON_PHONES = 180;
/** A limit above this many times the traffic is not drawn, because it would flatten the graph. */
export const MUCH_HIGHER = 4;
/** The lowest maximum of the axis. With a lower one, its labels would need more digits. */
const LOWEST_TOP = 2;
const minutes = new Intl.DateTimeFormat(undefined, { timeStyle: "short", hourCycle: "h23" });

/** Returns the middle of each step, in seconds since 1970. */
export function middles({ until, seconds }) {
  let atS = Date.parse(until) / 1000 - seconds.reduce((sum, each) => sum + each, 0);
  return seconds.map((lasted) => (atS += lasted) - lasted / 2);
}

/**
 * `series` are `{label, name, dash, filled, stepped}`. The CSS class `name` defines the colour. `data` contains the
 * times in seconds since 1970, then the values of each series, which are null if unknown. `text` describes the chart.
 */
export function Chart({ label, series, data, fromS, untilS, text }) {
  const canvas = useRef();
  const keys = useRef([]);
  const newest = useRef();
  const plot = useRef(null);
  const [pointed, setPointed] = useState(null);
  const isNarrow = useMedia("(max-width: 720px)");
  const { theme } = document.documentElement.dataset;
  newest.current = { series, data, fromS, untilS };

  useLayoutEffect(() => {
    const colours = keys.current.map((key) => getComputedStyle(key).color);
    const height = isNarrow ? HEIGHT_ON_PHONES : HEIGHT;
    const drawn = makePlot(canvas.current, height, newest, colours, setPointed);
    const resized = new ResizeObserver(() => drawn.setSize({ width: canvas.current.clientWidth, height }));
    plot.current = drawn;
    resized.observe(canvas.current);
    return () => {
      resized.disconnect();
      drawn.destroy();
    };
  }, [theme, isNarrow]);
  useEffect(() => plot.current.setData(data));

  const shown = (values) => values[pointed ?? values.findLastIndex((value) => value !== null)];
  return html`<div>
    <div class="chart" ref=${canvas} role="img" aria-label="${label}: ${text}"></div>
    <p class="legend" aria-hidden="true">
      ${series.map(
        (each, index) => html`<span class="entry">
          <span class="key ${each.name}" ref=${(key) => (keys.current[index] = key ?? keys.current[index])}></span>
          ${each.label} <span class="value">${rate(shown(data[index + 1]))}</span>
        </span>`,
      )}
      <span class="faint">${pointed === null ? "" : timeOfDay((data[0][pointed] ?? 0) * 1000)}</span>
    </p>
  </div>`;
}

function makePlot(canvas, height, newest, colours, setPointed) {
  const style = getComputedStyle(canvas);
  const axis = {
    stroke: style.color,
    font: `11.5px ${style.fontFamily}`,
    grid: { stroke: style.borderTopColor, width: 1 },
    ticks: { show: false },
    gap: 4,
  };
  const timeOf = (stepS) => (stepS < 60 ? (tick) => timeOfDay(tick * 1000) : (tick) => minutes.format(tick * 1000));
  const line = ({ dash, filled, stepped }, index) => ({
    stroke: colours[index],
    width: 1.5,
    dash,
    fill: filled ? colours[index].replace(/^rgb\((.*)\)$/, "rgba($1, 0.16)") : undefined,
    paths: stepped ? window.uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: false },
  });
  const options = {
    width: canvas.clientWidth,
    height,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, y: false, points: { size: 6 } },
    scales: {
      x: { time: true, range: () => [newest.current.fromS, newest.current.untilS] },
      y: { range: (_, __, most) => [0, top(newest.current, most)] },
    },
    axes: [
      { ...axis, space: 80, size: 28, values: (_, ticks, __, ___, stepS) => ticks.map(timeOf(stepS)) },
      { ...axis, space: 34, size: 52, values: (_, ticks) => ticks.map(rate) },
    ],
    series: [{}, ...newest.current.series.map(line)],
    hooks: { setCursor: [(plot) => setPointed(plot.cursor.idx ?? null)] },
  };
  return new window.uPlot(options, newest.current.data, canvas);
}

function top({ series, data }, most) {
  const traffic = Math.max(0, ...data.slice(1).flatMap((values, index) => (series[index].stepped ? [] : values)));
  return 1.08 * (traffic && most > MUCH_HIGHER * traffic ? traffic : Math.max(most, LOWEST_TOP));
}

const SPARK = { width: 120, height: 26, slots: 60 };

export function Spark({ passed, refused, label }) {
  const { width, height, slots } = SPARK;
  const from = Math.max(0, passed.length - slots);
  const shown = passed.slice(from);
  const totals = shown.map((value, index) => value + (refused[from + index] ?? 0));
  const most = Math.max(...totals, 1e-9);
  const x = (index) => ((width * (index + slots - shown.length)) / (slots - 1)).toFixed(1);
  const y = (value) => (height - 1 - (value / most) * (height - 3)).toFixed(1);
  const points = (values) => values.map((value, index) => `${x(index)} ${y(value)}`);
  const bottom = points(shown);
  const isKnown = shown.length > 1;
  const isRefused = isKnown && totals.some((total, index) => total > shown[index]);
  const refusedArea = isRefused ? `M${bottom.join("L")}L${points(totals).reverse().join("L")}Z` : "";
  const box = `0 0 ${width} ${height}`;
  return html`<svg class="spark" viewBox=${box} preserveAspectRatio="none" role="img" aria-label=${label}>
    <path class="spark-refused" d=${refusedArea} />
    <path class="spark-passed" d=${isKnown ? `M${x(0)} ${height}L${bottom.join("L")}L${width} ${height}Z` : ""} />
    <path class="spark-line" d=${isKnown ? `M${bottom.join("L")}` : ""} />
  </svg>`;
}
