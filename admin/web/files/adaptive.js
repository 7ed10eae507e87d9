import { get } from "./api.js";
import { useAnswer } from "./app.js";
import { Chart } from "./chart.js";
import { rate, sentence, wait } from "./format.js";
import { html } from "./html.js";
import { Figures, Panel, ResourceOf, Table, Tag, cell } from "./parts.js";

const EVERY_MS = 2000;
const SHOWN_S = 600;
const SHOWN = 10;
const messages = (isShadow) => [
  { label: isShadow ? "would pass" : "passed", name: "passed", filled: true },
  { label: isShadow ? "would be refused" : "refused", name: "refused", filled: true },
  { label: "limit", name: "limit", dash: [7, 4], stepped: true },
];
const MESSAGES = { reject: messages(false), shadow: messages(true) };
const LATENCY = [
  { label: "p90", name: "passed", filled: true },
  { label: "usual", name: "limit", dash: [7, 4] },
];
const columns = (isShadow) => [
  { name: "name", title: "Name" },
  {
    name: "asks",
    title: "Demand",
    field: "asks_per_s",
    format: "rate",
    help: "Messages per second that clients send.",
  },
  {
    name: "passes",
    title: isShadow ? "Would pass" : "Passes",
    field: "passes_per_s",
    format: "rate",
    help: "Messages per second.",
  },
  {
    name: "may",
    title: "May use",
    field: "may_per_s",
    format: "rate",
    help: "The name's current share, in messages per second.",
  },
];
const COLUMNS = { reject: columns(false), shadow: columns(true) };

export function AdaptiveLimits() {
  const [answer] = useAnswer(() => get("adaptive"), [], EVERY_MS);
  return answer?.limits.map((each) => html`<${Adaptive} key=${each.listener} of=${each} />`);
}

function Adaptive({ of }) {
  const { listener, limit_per_s: limit, latency_s: latency, usual_latency_s: usual, names, history } = of;
  const range = [`at least ${rate(of.floor_per_s)}/s`, of.ceiling_per_s && `at most ${rate(of.ceiling_per_s)}/s`];
  const now = limit === null ? "no limit" : `${rate(limit)}/s`;
  const figures = [
    ["Limit", html`${now}<span class="muted">${range.filter(Boolean).join(", ")}</span>`],
    ["Broker’s p90", html`${wait(latency)}<span class="muted">usually ${wait(usual)}</span>`],
    of.action === "shadow" && [
      "Action",
      html`<${Tag} title="Refuses nothing. Only counts the messages it would refuse.">shadow<//>`,
    ],
  ];
  const times = history.map((each) => each.unix_ms / 1000);
  const untilS = times.at(-1) ?? Date.now() / 1000;
  const span = { fromS: untilS - SHOWN_S, untilS };
  const column = (key, scale = 1) => history.map((each) => (each[key] === null ? null : each[key] * scale));
  const usually = history.map(() => (usual === null ? null : usual * 1000));
  return html`<${Panel} wide title="Adaptive limit of ${listener}, last 10 minutes">
    <${Figures} label="Now" figures=${figures} />
    ${of.reason && html`<p class="muted">${sentence(of.reason)}</p>`}
    <h3>Messages per second</h3>
    <${Chart}
      label="Messages per second"
      series=${MESSAGES[of.action]}
      data=${[times, column("passed_per_s"), column("refused_per_s"), column("limit_per_s")]}
      ...${span}
      text=${of.text}
    />
    <h3>Broker latency (message to response), milliseconds</h3>
    <${Chart}
      label="Broker latency"
      series=${LATENCY}
      data=${[times, column("latency_s", 1000), usually]}
      ...${span}
      text=${of.text}
    />
    <${Table}
      name="adaptive-names"
      columns=${COLUMNS[of.action]}
      rows=${names.slice(0, SHOWN)}
      cells=${cellsOf}
      empty="No messages were sent."
    />
  <//>`;
}

function cellsOf({ name, asks_per_s: asks, may_per_s: may, weight }) {
  const shares = weight > 1 && html` <${Tag} title="This name gets as many equal shares.">weight ${weight}<//>`;
  return {
    name: html`<${ResourceOf} text=${name} />${shares}`,
    asks: cell(undefined, { class: may !== null && asks > may ? "refusing" : "" }),
  };
}
