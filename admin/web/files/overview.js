import { AdaptiveLimits } from "./adaptive.js";
import { get } from "./api.js";
import { app, link, useAnswer } from "./app.js";
import { ChangeTable } from "./changes.js";
import { Chart, middles } from "./chart.js";
import { Fleet } from "./fleet.js";
import { count, rate, reached, shortLimit } from "./format.js";
import { alarms } from "./header.js";
import { html } from "./html.js";
import { FILTERS, Flags } from "./limits.js";
import { COLUMNS, Dot, Figures, Panel, ResourceLink, Table, Tag, cell } from "./parts.js";

const SHOWN_S = 300;
const SHOWN = 5;
const SERIES = [
  { label: "passed", name: "passed", filled: true },
  { label: "refused", name: "refused", filled: true },
];
const SHOWN_COLUMNS = ["name", "limit", "passed", "refused"];

export const OVERVIEW_QUERY = { filter: "limited", sort: "refused", order: "desc", limit: SHOWN, history: 0 };

export function OverviewView() {
  const { state } = app;
  const [audit] = useAnswer(() => get("audit", { limit: SHOWN }), []);
  return html`
    <div class="heading"><h1>Overview</h1></div>
    ${state && html`<${Totals} state=${state} />`}
    <${AdaptiveLimits} />
    <${Fleet} />
    <div class="panels halves">
      <${Panel} title="Most refused, last 10 s"><${MostRefused} /><//>
      ${state && html`<${Panel} title="Current alarms"><${AlarmList} state=${state} /><//>`}
    </div>
    <${Panel} wide title="Last changes">
      ${audit && html`<${ChangeTable} changes=${audit.changes} empty="No changes yet." />`}
      <p><a href=${link("audit")}>All changes</a></p>
    <//>
  `;
}

function Totals({ state: { totals, rates, history } }) {
  const perS = rates.messages_per_s;
  const figure = (title, value, now, manner = "") => [
    title,
    html`<span class=${now > 0 ? manner : ""}>${rate(now)}/s</span><span class="muted">${count(value)} in total</span>`,
  ];
  const found = app.rows.totals;
  const filters = FILTERS.filter(({ isRare, key }) => found && (!isRare || found[key] > 0));
  const figures = [
    figure("Passed", reached(totals.messages), reached(perS)),
    figure("Refused", totals.messages.refused, perS.refused, "refusing"),
    totals.messages.shadowed > 0 && figure("Would be refused", totals.messages.shadowed, perS.shadowed, "would"),
    ...filters.map(({ key, title }) => [
      title,
      html`<a href=${link("limits", { filter: key })}>${count(found[key])}</a>`,
    ]),
  ];
  const untilS = Date.parse(history.until) / 1000;
  return html`<${Panel} wide title="Messages per second, last 5 minutes">
    <${Figures} label="Now" figures=${figures} />
    <${Chart}
      label="Messages per second"
      series=${SERIES}
      data=${[middles(history), history.passed, history.refused]}
      fromS=${untilS - SHOWN_S}
      untilS=${untilS}
      text="now ${rate(reached(perS))} passed and ${rate(perS.refused)} refused"
    />
  <//>`;
}

function MostRefused() {
  const { order, byKey, isKnown } = app.rows;
  const rows = order.map((key) => byKey.get(key)).filter((row) => row?.live?.refused_per_s > 0);
  const columns = COLUMNS.limits.filter(({ name }) => SHOWN_COLUMNS.includes(name));
  const empty = isKnown ? "Nothing is being refused." : "Loading…";
  return html`<${Table} name="most-refused" columns=${columns} rows=${rows} cells=${cellsOf} empty=${empty} />
    ${rows.length > 0 && html`<p><a href=${link("limits", { filter: "limited" })}>All limited resources</a></p>`}`;
}

function cellsOf(row) {
  return {
    name: html`<${Tag} manner="kind">${row.kind}<//>
      <${ResourceLink} kind=${row.kind} name=${row.exact ? row.name : ""}>${row.name}<//>
      <${Flags} row=${row} />`,
    limit: shortLimit(row),
    refused: cell(undefined, { class: "refusing" }),
  };
}

function AlarmList({ state }) {
  const off = state.off.map((kind) => `Limiting ${kind === "all" ? "" : `of ${kind} `}is switched off.`);
  const lines = [
    ...off.map((text) => ["bad", text]),
    ...alarms().map(({ manner, title, text }) => [manner ?? "warn", `${title} ${text}`]),
  ];
  if (!lines.length) lines.push(["ok", "None. The broker is reachable, and limiting is on."]);
  return html`<ul class="findings">
    ${lines.map(([manner, text]) => html`<li><${Dot} manner=${manner} /><span>${text}</span></li>`)}
  </ul>`;
}
