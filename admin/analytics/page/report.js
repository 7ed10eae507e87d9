// Draws the charts on a common time axis.
/* global uPlot */
"use strict";
(() => {
  const { whole, curves } = JSON.parse(document.getElementById("figures").textContent);
  const SHORTEST_S = 10;
  const HEIGHT_PX = 220;
  const charts = [];
  let range = whole;

  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;

  // A canvas does not support CSS variables.
  const colour = (name) => () => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const format = (value, how) => new Intl.NumberFormat("en", how).format(value);
  const moment = (atS) => new Date(atS * 1000).toISOString().slice(0, 19).replace("T", " ");

  function rate(perS) {
    const how = perS < 1 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: perS < 100 ? 1 : 0 };
    return perS === null ? "unlimited" : `${format(perS, how)}/s`;
  }

  function show(fromS, untilS) {
    const span = Math.min(Math.max(untilS - fromS, SHORTEST_S), whole[1] - whole[0]);
    const start = Math.min(Math.max((fromS + untilS - span) / 2, whole[0]), whole[1] - span);
    range = [start, start + span];
    for (const chart of charts) {
      chart.setScale("x", { min: range[0], max: range[1] });
    }
    for (const each of document.querySelectorAll(".timeline > div > svg")) {
      each.setAttribute("viewBox", `${start - whole[0]} 0 ${span} 10`);
    }
    document.querySelectorAll(".ticks span").forEach((each, at) => {
      each.textContent = moment(start + (span * at) / 4).slice(...(span > 3600 ? [5, 16] : [11, 19]));
    });
    document.getElementById("range").textContent = `${moment(range[0])} to ${moment(range[1])}`;
    for (const each of document.querySelectorAll(".times [data-range]")) {
      each.setAttribute("aria-pressed", String(each.dataset.range === range.join()));
    }
  }

  let choosing = false;

  // Selections are synchronized to all charts, so only the first event sets the range.
  function chosen(chart) {
    const { left, width } = chart.select;
    if (width > 0 && !choosing) {
      choosing = true;
      queueMicrotask(() => (choosing = false));
      show(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
    }
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  const AXIS = {
    font: "11px system-ui, sans-serif",
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 4 },
  };
  // Each entry has a smallest increment, a format, and what to add where the year or day changes. See uPlot's docs.
  const TIMES = [
    [86400, "{MMM} {D}", "\n{YYYY}", null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
  ];
  const tick = (value) => format(value, { notation: "compact", maximumSignificantDigits: 3 });

  function draw(place, { at, peak, asked, admitted, plain, limit }) {
    const line = { points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) };
    const area = (name) => ({ ...line, fill: colour(name), width: 0 });
    const values = {
      admitted: (row) => admitted[row],
      refused: (row) => asked[row] - admitted[row],
      shadowed: (row) => admitted[row] - plain[row],
      peak: (row) => peak[row],
      limit: (row) => limit[row],
    };

    function pointed(chart) {
      const atS = chart.cursor.left >= 0 ? chart.posToVal(chart.cursor.left, "x") : null;
      document.getElementById("at").textContent = atS === null ? "" : moment(atS);
      const row = atS === null ? -1 : at.findLastIndex((each) => each <= atS);
      for (const value of place.parentElement.querySelectorAll("[data-value]")) {
        value.textContent = row < 0 || row === at.length - 1 ? "" : rate(values[value.dataset.value](row));
      }
    }

    // A limit far above the demand would flatten the curve, so it is only shown in the legend.
    const height = (_, __, most) => {
      const drawn = limit.filter((each) => each <= 2 * most);
      place.parentElement.querySelector("[data-above]").hidden = drawn.length > 0;
      return [0, Math.max(most, ...drawn) * 1.12 || 1];
    };
    const chart = new uPlot(
      {
        width: place.clientWidth,
        height: HEIGHT_PX,
        padding: [8, 24, 0, 0],
        legend: { show: false },
        tzDate: (atS) => uPlot.tzDate(new Date(atS * 1000), "Etc/UTC"),
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false, dist: 5 },
          sync: { key: "time", scales: ["x", null] },
          bind: { dblclick: () => () => show(...whole) },
        },
        scales: { x: { range: () => range }, y: { range: height } },
        axes: [
          { ...AXIS, space: 64, values: TIMES },
          { ...AXIS, size: 52, values: (_, ticks) => ticks.map(tick) },
        ],
        series: [
          {},
          area("--ghost"),
          area("--refuse"),
          area("--would"),
          area("--pass"),
          { ...line, stroke: colour("--limit"), width: 2, auto: false },
        ],
        hooks: { setSelect: [chosen], setCursor: [pointed] },
      },
      [at, peak, asked, admitted, plain, limit],
      place,
    );
    charts.push(chart);
    new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height: HEIGHT_PX })).observe(place);
  }

  // Printed pages are always light.
  function redraw() {
    const isDark = matchMedia("screen and (prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.drawn = isDark ? "dark" : "light";
    charts.forEach((each) => each.redraw(false, true));
  }

  document.getElementById("no-charts").remove();
  curves.forEach((curve, at) => draw(document.getElementById(`curve-${at}`), curve));
  show(...whole);
  redraw();
  document.querySelector(".times").hidden = !charts.length;
  for (const each of document.querySelectorAll("[data-range]")) {
    each.disabled = false;
  }
  document.addEventListener("click", (event) => {
    const { range: wanted, see, move } = event.target.closest("[data-range], [data-move]")?.dataset ?? {};
    if (wanted) {
      show(...wanted.split(",").map(Number));
      document.getElementById(see)?.scrollIntoView({ block: "center" });
    } else if (move) {
      const [shift, zoom] = move.split(",").map(Number);
      const [middle, half] = [(range[0] + range[1]) / 2, (range[1] - range[0]) / 2];
      show(middle + 2 * half * shift - half * zoom, middle + 2 * half * shift + half * zoom);
    }
  });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", redraw);
  }
})();
