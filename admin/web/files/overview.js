/** The first view: what passes and is refused in all, what is refused most, alarms, and what was changed last. */

import { get } from "./api.js";
import { app, link, useAnswer } from "./app.js";
import { ChangeTable } from "./changes.js";
import { COLUMNS as LIMITS } from "./columns.js";
import { Chart } from "./chart.js";
import { count, rate, reached, shortLimit } from "./format.js";
import { alarmsOf } from "./header.js";
import { html } from "./html.js";
import { stateOf } from "./limits.js";
import { Dot, Panel, ResourceLink, Table, Tag, brokerState, cell } from "./parts.js";
import { stepsOf } from "./steps.js";

const SHOWN_S = 300;
const SHOWN = 5;
const SERIES = [
  { label: "passed", name: "passed", filled: true },
  { label: "refused", name: "refused", filled: true },
];
const COLUMNS = LIMITS.limits.filter(({ name }) => ["name", "limit", "passed", "refused"].includes(name));

/** What to ask the stream for. */
export const OVERVIEW_QUERY = { filter: "limited", sort: "refused", order: "desc", limit: SHOWN, history: 0 };

export function OverviewView() {
  const { state } = app;
  const [audit] = useAnswer(() => get("audit", { limit: SHOWN }), []);
  return html`
    <div class="heading"><h1>Overview</h1></div>
    ${state && html`<${Totals} state=${state} />`}
    <div class="panels halves">
      <${Panel} title="Refused most, last 10 s"><${MostRefused} /><//>
      ${state && html`<${Panel} title="Alarms" label="Alarms now"><${AlarmList} state=${state} /><//>`}
    </div>
    <${Panel} wide title="Last changes">
      ${audit?.changes.length > 0 && html`<${ChangeTable} changes=${audit.changes} />`}
      ${audit && !audit.changes.length && html`<p class="muted">Nobody has changed anything yet.</p>`}
      <p><a href=${link("audit")}>All changes</a></p>
    <//>
  `;
}

function Totals({ state }) {
  const { totals, rates } = state;
  const figure = (title, value, perS, manner = "") =>
    html`<div>
      <dt>${title}</dt>
      <dd class=${manner}>${rate(perS)}/s <span class="muted">${count(value)} in all</span></dd>
    </div>`;
  const refused = rates.messages_per_s.refused;
  return html`<${Panel} wide title="Messages per second, last 5 minutes">
    <dl class="figures">
      ${figure("Passed", reached(totals.messages), reached(rates.messages_per_s))}
      ${figure("Refused", totals.messages.refused, refused, refused > 0 ? "refusing" : "")}
      ${
        totals.messages.shadowed > 0 &&
        figure("Would be refused", totals.messages.shadowed, rates.messages_per_s.shadowed, "would")
      }
    </dl>
    <${TotalChart} state=${state} />
  <//>`;
}

/** Passed and refused in the last minutes, of all resources. */
function TotalChart({ state: { history, rates } }) {
  const untilS = Date.parse(history.until) / 1000;
  const times = stepsOf(history).map((step) => (step.fromS + step.untilS) / 2);
  const perS = rates.messages_per_s;
  return html`<${Chart}
    label="Messages per second"
    series=${SERIES}
    data=${[times, history.passed, history.refused]}
    fromS=${untilS - SHOWN_S}
    untilS=${untilS}
    text="now ${rate(reached(perS))} passed and ${rate(perS.refused)} refused"
  />`;
}

function MostRefused() {
  const { order, byKey, isKnown } = app.rows;
  const rows = order.map((key) => byKey.get(key)).filter((row) => row?.live?.refused_per_s > 0);
  if (!rows.length) return html`<p class="muted">${isKnown ? "Nothing is refused." : "Loading…"}</p>`;
  return html`<${Table} name="most-refused" columns=${COLUMNS} rows=${rows} cells=${cellsOf} />
    <p><a href=${link("limits", { filter: "limited" })}>All that is limited</a></p>`;
}

function cellsOf(row) {
  const [words, manner, meaning] = stateOf(row);
  return {
    name: html`<${Tag} manner="kind">${row.kind}<//>
      <${ResourceLink} kind=${row.kind} name=${row.exact ? row.name : ""}>${row.name}<//>
      ${words && html`<${Tag} manner=${manner} title=${meaning}>${words}<//>`}`,
    limit: shortLimit(row),
    refused: cell(undefined, { class: "refusing" }),
  };
}

function AlarmList({ state }) {
  const off = state.off.map((kind) => `Limiting ${kind === "all" ? "" : `of ${kind} `}is switched off.`);
  const unreachable = state.listeners.filter((each) => each.reachable === false);
  const lines = [
    ...off.map((text) => ["bad", text]),
    ...unreachable.map((each) => ["bad", `The broker ${each.broker} is not reachable: ${brokerState(each).text}.`]),
    ...alarmsOf(state).map(({ manner, title, text }) => [manner ?? "warn", `${title} ${text}`]),
  ];
  if (!lines.length) lines.push(["ok", "None. The broker is reachable, and every limit is on."]);
  return html`<ul class="findings">
    ${lines.map(([manner, text]) => html`<li><${Dot} manner=${manner} /> ${text}</li>`)}
  </ul>`;
}
