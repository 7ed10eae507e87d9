// Draws the charts on one time axis, all zoomed together.
/* global uPlot */
"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const { whole, curves } = JSON.parse(document.getElementById("figures").textContent);
  const SHORTEST_S = 10;
  const SCALE_PX = 52;
  const charts = [];
  let range = whole;

  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;

  // A canvas takes no variables.
  function colour(name) {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  }

  const theme = () => (dark.matches && !root.classList.contains("paper") ? "dark" : "light");
  const format = (value, how) => new Intl.NumberFormat("en", how).format(value);
  const tick = (value) => format(value, { notation: "compact", maximumSignificantDigits: 3 });

  function rate(perS) {
    const how = perS < 1 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: perS < 100 ? 1 : 0 };
    return perS === null ? "unlimited" : `${format(perS, how)}/s`;
  }

  const moment = (atS) => new Date(atS * 1000).toISOString().slice(0, 19).replace("T", " ");

  // The last row that begins at or before a time.
  function rowAt(times, atS) {
    let [low, high] = [0, times.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      [low, high] = times[middle] <= atS ? [middle + 1, high] : [low, middle];
    }
    return low - 1;
  }

  function show(fromS, untilS) {
    const span = Math.min(Math.max(untilS - fromS, SHORTEST_S), whole[1] - whole[0]);
    const start = Math.min(Math.max((fromS + untilS - span) / 2, whole[0]), whole[1] - span);
    range = [start, start + span];
    for (const chart of charts) {
      chart.setScale("x", { min: range[0], max: range[1] });
    }
    for (const each of document.querySelectorAll(".timeline svg")) {
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

  // A selection is synchronised to all charts; only the first one sets the range.
  function chosen(chart) {
    const { left, width } = chart.select;
    if (width > 0 && !choosing) {
      choosing = true;
      queueMicrotask(() => (choosing = false));
      show(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
    }
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  function drawn(chart) {
    chart.root.parentElement.dataset.drawn = root.dataset.drawn = theme();
  }

  const AXIS = {
    font: "11px system-ui, sans-serif",
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { stroke: () => colour("--line"), width: 1, size: 4 },
  };
  // Smallest increment, format, and what is added where the year or day changes: see uPlot's axes.
  const TIME_AXIS = {
    ...AXIS,
    space: 64,
    values: [
      [86400, "{MMM} {D}", "\n{YYYY}", null, null, null, null, null, 1],
      [60, "{HH}:{mm}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
      [1, "{HH}:{mm}:{ss}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
    ],
  };

  function make(place, heightPx, more) {
    const chart = new uPlot(
      {
        width: place.clientWidth,
        height: heightPx,
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
        ...more,
        scales: { x: { range: () => range }, ...more.scales },
        hooks: { setSelect: [chosen], draw: [...(more.draw ?? []), drawn], setCursor: [more.pointed] },
      },
      more.data,
      place,
    );
    charts.push(chart);
    new ResizeObserver(() => {
      if (place.clientWidth && place.clientWidth !== chart.width && !root.classList.contains("paper")) {
        chart.setSize({ width: place.clientWidth, height: heightPx });
      }
    }).observe(place);
  }

  function pointedAt(chart) {
    const { left } = chart.cursor;
    const atS = left >= 0 ? chart.posToVal(left, "x") : null;
    document.getElementById("at").textContent = atS === null ? "" : moment(atS);
    return atS;
  }

  function makeCurve(place, curve) {
    const { at, peak, asked, admitted, plain, limit } = curve;
    const columns = { admitted, peak, limit };
    const values = [...place.parentElement.querySelectorAll("[data-value]")];
    const area = (name) => ({
      fill: () => colour(name),
      width: 0,
      points: { show: false },
      paths: uPlot.paths.stepped({ align: 1 }),
    });

    function pointed(chart) {
      const atS = pointedAt(chart);
      const row = atS === null ? -1 : rowAt(at, atS);
      for (const value of values) {
        const name = value.dataset.value;
        const [from, less] = { refused: [asked, admitted], shadowed: [admitted, plain] }[name] ?? [columns[name]];
        value.textContent = row < 0 || row === at.length - 1 ? "" : rate(less ? from[row] - less[row] : from[row]);
      }
    }

    // A limit far above the demand would flatten it. The legend shows such a limit.
    function highest() {
      const [from, until] = [Math.max(0, rowAt(at, range[0])), rowAt(at, range[1])];
      let top = 0;
      for (let row = from; row <= until; row += 1) {
        top = Math.max(top, peak[row]);
      }
      for (let row = from, most = top * 2; row <= until; row += 1) {
        top = Math.max(top, limit[row] !== null && limit[row] <= most ? limit[row] : 0);
      }
      return [0, (top || 1) * 1.12];
    }

    make(place, 220, {
      data: [at, peak, asked, admitted, plain, limit],
      scales: { y: { range: highest } },
      axes: [TIME_AXIS, { ...AXIS, size: SCALE_PX, values: (_, ticks) => ticks.map(tick) }],
      series: [
        {},
        area("--ghost"),
        area("--refuse"),
        area("--shadow"),
        area("--pass"),
        { ...area("--limit"), fill: undefined, stroke: () => colour("--limit"), width: 2 },
      ],
      pointed,
    });
  }

  function redraw() {
    charts.forEach((each) => each.redraw(false, true));
  }

  document.getElementById("no-charts").remove();
  curves.forEach((curve, at) => makeCurve(document.getElementById(`curve-${at}`), curve));
  show(...whole);
  root.dataset.drawn = theme();
  document.querySelector(".times").hidden = !charts.length;
  for (const each of document.querySelectorAll("[data-range], [data-move]")) {
    each.disabled = false;
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-range], [data-move]");
    if (!button) {
      return;
    }
    if (button.dataset.range) {
      show(...button.dataset.range.split(",").map(Number));
      document.getElementById(button.dataset.see)?.scrollIntoView({ block: "center" });
    } else {
      const [move, zoom] = button.dataset.move.split(",").map(Number);
      const [middle, half] = [(range[0] + range[1]) / 2, (range[1] - range[0]) / 2];
      show(middle + 2 * half * move - half * zoom, middle + 2 * half * move + half * zoom);
    }
  });
  dark.addEventListener("change", redraw);
  // Paper is light, whatever the screen is.
  for (const [when, onPaper] of [
    ["beforeprint", true],
    ["afterprint", false],
  ]) {
    window.addEventListener(when, () => {
      root.classList.toggle("paper", onPaper);
      redraw();
    });
  }
})();
