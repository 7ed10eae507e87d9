import { call, get, pathOf } from "./api.js";
import { app, attempt, canWrite, globOf, go, link, openDialog, useAnswer } from "./app.js";
import { ChangeTable, done } from "./changes.js";
import { Chart, MUCH_HIGHER, middles } from "./chart.js";
import { productOf } from "./connections.js";
import { askReason } from "./dialogs.js";
import { Editor, resetText } from "./editor.js";
import {
  bytes,
  count,
  exact,
  number,
  percent,
  rate,
  sentence,
  serverNow,
  shortLimit,
  timeOfDay,
  wait,
} from "./format.js";
import { html, useState } from "./html.js";
import { Flags, OldestWaiting, WINDOW, isOff } from "./limits.js";
import { Ago, Button, Details, Figures, More, Panel, StateTag, Table, Tag, cell } from "./parts.js";

const HOUR_S = 3600;
const FINE_S = 900;
const LOG_EVERY_MS = 30_000;
const LIVE_EVERY_MS = 5000;
const SHOWN = 20;
/** Length of a table row in seconds, by the number of minutes shown. */
const STEP_S = { 1: 5, 5: 30, 15: 60, 60: 300 };
const USUAL_MINUTES = 15;
/** Two steps of the counters. The text does not mention a gap at the start that is shorter than this. */
const SHORT_S = 10;
const OLD_S = 8 * 86_400;
const ABOUT_OFF = "Limiting is switched off: nothing is refused or held.";
const ENDS = ["passed", "refused", "dropped"];
const SERIES = [
  { label: "passed", name: "passed", filled: true },
  { label: "refused", name: "refused", filled: true },
  { label: "held", name: "held", dash: [2, 3] },
  { label: "limit", name: "limit", dash: [7, 4], stepped: true },
];
const STEPS = [
  { name: "from", title: "From" },
  { name: "passed", title: "Passed", format: "count" },
  { name: "refused", title: "Refused", format: "count" },
  { name: "dropped", title: "Dropped", format: "count" },
  { name: "held", title: "Held", format: "count" },
  { name: "limit", title: "Limit", format: "rate" },
];
const WHAT_IF = [
  { name: "rate_per_s", title: "Limit" },
  { name: "refused_share", title: "Refused" },
  { name: "refused_share_uncorrected", title: "With retries" },
];

export function resourceQuery(params) {
  return { kind: params.get("kind"), name: params.get("name"), limit: 1 };
}

export function ResourceView({ params }) {
  const [kind, name] = [params.get("kind"), params.get("name")];
  if (kind && name) return html`<${Resource} key="${kind}/${name}" kind=${kind} name=${name} params=${params} />`;
  return html`<p class="empty">No resource is selected. Choose one in <a href=${link("limits")}>Limits</a>.</p>`;
}

function Resource({ kind, name, params }) {
  const asked = Number(params.get("minutes"));
  const minutes = asked in STEP_S ? asked : USUAL_MINUTES;
  const own = `${kind}:${name}`;
  const past = usePast(kind, name, minutes);
  const [why] = useAnswer(() => get("explain", { kind, name }), [], LIVE_EVERY_MS);
  const senders = { resource: own, sort: "requests", order: "desc", limit: SHOWN };
  const [connections] = useAnswer(() => get("connections", senders), [], LIVE_EVERY_MS);
  const path = pathOf("limits", kind, globOf(name));
  const [entry] = useAnswer(() => get(path), []);
  const [advice, askAdvice] = useAnswer(() => get(pathOf("advice", kind, name)), []);
  const targets = [`limits/${kind}/${globOf(name)}`, entry && ruleTarget(entry.rule)].filter(Boolean);
  const [changes] = useAnswer(() => (entry ? changesOf(targets) : null), [targets.join("\n")]);
  const row = app.rows.byKey.get(`${kind}/${name}`) ?? null;
  const of = { kind, name, row, entry, past };

  const edit = () => openDialog(Editor, { kind, name: globOf(name) });
  const reset = () =>
    askReason(`Reset ${kind} ${name}`, resetText, { label: "Reset" }, async (reason) =>
      done(await call("POST", `${path}:reset`, { query: { reason } })),
    );
  const unchanged = changes ? "There are no changes to its limit or to the rule that applies to it." : "Loading…";
  return html`
    <p class="back"><a href=${link("limits")}>‹ Limits</a></p>
    <div class="heading second">
      <h1 class="wrap"><${Tag} manner="kind">${kind}<//>${name}</h1>
      <span class="flags">
        ${isOff(row ?? { kind }) && html`<${Tag} manner="bad" title=${ABOUT_OFF}>limiting off<//>`}
        ${row && html`<${Flags} row=${row} />`} <${StateTag} state=${row?.live?.state} running="" />
      </span>
      <span class="spacer"></span>
      <div class="actions">
        <${Button} manner="primary" onclick=${edit}>${canWrite() ? "Edit the limit…" : "Show the limit"}<//>
        <${Button} isWrite onclick=${reset}>Reset…<//>
      </div>
    </div>
    ${(row ?? entry) && html`<${Now} of=${of} />`}
    <${Graph} of=${of} minutes=${minutes} />
    <${Panel} wide title="Refused clients, last hour">
      ${past.hour && html`<${RefusedClients} own=${own} hour=${past.hour} />`}
    <//>
    <div class="panels halves">
      <${Panel} title="Applied limits">${why && html`<${Explanation} of=${why} />`}<//>
      <${Panel} title="Recommendation">
        ${advice && html`<${Advice} found=${advice} path=${path} entry=${entry} again=${askAdvice} />`}
      <//>
    </div>
    <${Panel} wide title="Connected clients">
      ${connections && html`<${Senders} of=${connections} resource=${own} />`}
    <//>
    <${Panel} wide title="Changes"><${ChangeTable} changes=${changes ?? []} empty=${unchanged} /><//>
  `;
}

function usePast(kind, name, minutes) {
  const path = pathOf("history", kind, name);
  const isFine = minutes * 60 <= FINE_S;
  const ask = () => Promise.all([get(path, { seconds: HOUR_S }), isFine ? get(path, { seconds: FINE_S }) : null]);
  const [answer] = useAnswer(ask, [isFine], LOG_EVERY_MS);
  const [hour, fine] = answer ?? [null, null];
  return { hour, steps: isFine ? (fine ?? hour) : hour };
}

function ruleTarget(rule) {
  const [, kind, pattern] = /^([^:]+):(.*)$/su.exec(rule) ?? [];
  return kind && `limits/${kind}/${pattern}`;
}

async function changesOf(targets) {
  const wanted = [...new Set(targets)];
  const pages = await Promise.all(wanted.map((target) => get("audit", { target, limit: 100 })));
  const found = pages.flatMap((page, index) => page.changes.filter((change) => change.target === wanted[index]));
  return found.sort((one, other) => other.id - one.id).slice(0, SHOWN);
}

function Now({ of }) {
  const { row, entry } = of;
  const { limit, edit } = row ?? entry;
  const live = row?.live ?? {};
  const refused = live.refused_per_s ?? 0;
  const dropped = live.messages_per_s?.dropped;
  const action = limit?.action;
  const aboutDropped = "Their clients disconnected before a decision was made.";
  const figures = [
    [
      "Limit",
      html`${shortLimit(row ?? entry)} ${action && action !== "reject" && html`<${Tag}>${action}<//>`}
      ${edit && html`<${Tag} manner="edited">edited<//>`}`,
    ],
    ["Passed", `${rate(live.passed_per_s ?? 0)}/s`],
    ["Refused", html`<span class=${refused ? "refusing" : ""}>${rate(refused)}/s</span>`],
    dropped > 0 && ["Dropped", html`<span title=${aboutDropped}>${rate(dropped)}/s</span>`],
    live.shadowed_per_s > 0 && ["Would refuse", html`<span class="would">${rate(live.shadowed_per_s)}/s</span>`],
    ["Used", percent(live.used_ratio)],
    ["Last limited", html`<${LastLimited} of=${of} />`],
    live.wait_s > 0 && ["Would wait", wait(live.wait_s)],
    (live.oldest_wait_s ?? null) !== null && ["Oldest waiting", html`<${OldestWaiting} live=${live} />`],
    live.spooled > 0 && ["In the spool", html`<a href=${link("flow")}>${count(live.spooled)}</a>`],
  ];
  return html`<${Figures} label="Now" title="Rates and usage are averages over ${WINDOW}." figures=${figures} />`;
}

/** Uses the live counters, or the log for times before the last restart. */
function LastLimited({ of: { row, past } }) {
  const live = row?.live;
  const clients = (past.hour?.clients ?? []).filter((each) => each.messages_refused || each.messages_held);
  const times = clients.map((each) => each.last_at).sort();
  const logged = times.at(-1) ?? "";
  const counted = live?.last_limited_at ?? "";
  if (!counted && !logged) {
    const from = past.hour?.known_from;
    return from && from < app.state?.started_at ? "not in the last hour" : "not since startup";
  }
  const by = counted >= logged && counted === live?.last_refused_at && live.refused_by;
  return html`<${Ago} at=${counted > logged ? counted : logged} />${by && html`<span class="muted"> by ${by}</span>`}`;
}

function Graph({ of, minutes }) {
  const nowS = serverNow() / 1000;
  const fromS = nowS - minutes * 60;
  const isKnown = of.past.hour || of.row;
  const steps = stepsOf(of.past.steps, of.row?.history).filter((each) => each.middleS >= fromS);
  const perS = (end) => steps.map((each) => each[end] / each.lastedS);
  const ofEach = (name) => steps.map((each) => each[name]);
  const data = [ofEach("middleS"), perS("passed"), perS("refused"), ofEach("held"), ofEach("limit")];
  const text = isKnown ? summary(steps, minutes, nowS) : "Loading…";
  const ranges = Object.keys(STEP_S).map((each) => {
    const press = () => go({ minutes: Number(each) === USUAL_MINUTES ? "" : each });
    const how = { "data-minutes": each, "aria-pressed": String(Number(each) === minutes), onclick: press };
    return html`<${Button} manner="small chip" ...${how}>${each === "60" ? "1 h" : `${each} min`}<//>`;
  });
  return html`<section class="panel wide" aria-label="Messages per second">
    <div class="heading second">
      <h2>Messages per second</h2>
      <span class="spacer"></span>
      <div class="chips" role="group" aria-label="Time range">${ranges}</div>
    </div>
    <${Chart} label="Messages per second" series=${SERIES} data=${data} fromS=${fromS} untilS=${nowS} text=${text} />
    <p class="sum">${text}</p>
    <p class="muted">${isKnown && notesOf(of, data).join(" ")}</p>
    <details class="as-table">
      <summary>As a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="Messages as a table">
        <${Table} name="steps" columns=${STEPS} rows=${stepRows(steps, STEP_S[minutes])} cells=${stepCells} />
      </div>
    </details>
  </section>`;
}

function stepsOf(log, history) {
  const past = log ? loggedSteps(log) : [];
  const endS = past.at(-1)?.untilS ?? 0;
  const counted = (history ? middles(history) : []).map((middleS, index) => {
    const lastedS = history.seconds[index];
    const fromS = middleS - lastedS / 2;
    // Subtract messages that are in the log, because it may end in the middle of this step.
    const inLog = past.filter((each) => each.middleS > fromS);
    const countOf = (end) => Math.max(0, Math.round(history[end][index] * lastedS) - totalOf(inLog, end));
    return step(Math.max(fromS, endS), fromS + lastedS, countOf, null, history.limit[index] ?? null);
  });
  return [...past, ...counted.filter((each) => each.untilS > endS)];
}

function loggedSteps(log) {
  const beginS = Date.parse(log.begin_at) / 1000;
  const knownS = log.known_from ? Date.parse(log.known_from) / 1000 : beginS;
  return log.passed.flatMap((passed, index) => {
    if (passed === null) return [];
    const lastedS = log.seconds[index] ?? log.step_s;
    // The log may begin in the middle of the first step.
    const fromS = Math.max(beginS + index * log.step_s, knownS);
    const countOf = (end) => Math.round((log[end][index] ?? 0) * lastedS);
    const limit = log.limit_count === "messages" ? log.limit[index] : null;
    return [step(fromS, fromS + lastedS, countOf, log.held[index], limit)];
  });
}

function step(fromS, untilS, countOf, held, limit) {
  const counts = Object.fromEntries(ENDS.map((end) => [end, countOf(end)]));
  const lastedS = Math.max(untilS - fromS, 0.001);
  return { fromS, untilS, middleS: (fromS + untilS) / 2, lastedS, held, limit, ...counts };
}

function totalOf(steps, end) {
  return steps.reduce((sum, each) => sum + each[end], 0);
}

function summary(steps, minutes, nowS) {
  const words = { 1: "minute", 60: "hour" }[minutes] ?? `${minutes} minutes`;
  if (!steps.length) return `No data for the last ${words} yet.`;
  const [passed, refused, dropped] = ENDS.map((end) => totalOf(steps, end));
  const share = refused ? ` (${percent(refused / (passed + refused + dropped))} of all)` : "";
  const left = dropped ? `, and ${count(dropped)} were dropped because their clients disconnected` : "";
  const sinceS = steps[0].fromS;
  const startedS = Date.parse(app.state?.started_at ?? "") / 1000;
  const isAll = sinceS - Math.max(nowS - minutes * 60, startedS) < SHORT_S;
  const begin = isAll ? `In the last ${words}` : `Since ${timeOfDay(sinceS * 1000)}`;
  const allPerS = (each) => (each.passed + each.refused + each.dropped) / each.lastedS;
  const peak = steps.reduce((most, each) => (allPerS(each) > allPerS(most) ? each : most));
  const most = `The peak was ${rate(allPerS(peak))}/s at ${timeOfDay(peak.middleS * 1000)}.`;
  return `${begin}, ${count(passed)} messages passed and ${count(refused)} were refused${share}${left}. ${most}`;
}

function notesOf({ past: { hour }, row, entry }, data) {
  const { limit } = row ?? entry ?? {};
  const perS = typeof limit?.rate === "number" ? limit.rate : null;
  const top = Math.max(0, ...data.slice(1, 4).flat());
  const from = hour?.known_from ? timeOfDay(Date.parse(hour.known_from)) : "now";
  const isFarAbove = perS !== null && limit.count !== "requests" && top && perS > MUCH_HIGHER * top;
  return [
    hour?.problem && `Cannot read the history: ${hour.problem}.`,
    hour?.cut && `The log is too large to read completely. Nothing before ${from} is shown.`,
    hour?.others_together && "There were too many resources to record each separately, so some traffic may be missing.",
    perS !== null && limit.count === "requests" && `The limit of ${number(perS)} requests/s is not drawn.`,
    limit?.bytes_per_s && `The limit of ${bytes(limit.bytes_per_s)}/s is not drawn.`,
    isFarAbove && `The limit of ${number(perS)}/s is far above the graph.`,
  ].filter(Boolean);
}

function stepRows(steps, stepS) {
  const rows = new Map();
  for (const each of steps) {
    const key = Math.floor(each.middleS / stepS) * stepS;
    const row = rows.get(key) ?? { key, from: timeOfDay(key * 1000), passed: 0, refused: 0, dropped: 0, held: 0 };
    for (const end of ENDS) row[end] += each[end];
    row.held += (each.held ?? 0) * each.lastedS;
    row.limit = each.limit ?? row.limit;
    rows.set(key, row);
  }
  return [...rows.values()].reverse();
}

function stepCells({ limit }) {
  return { limit: (limit ?? null) === null ? undefined : `${number(limit)}/s` };
}

function RefusedClients({ own, hour }) {
  const since = hour.known_from && `None since ${timeOfDay(Date.parse(hour.known_from))}.`;
  const unknown = `Unknown: ${hour.problem ?? "the log has no records for the last hour"}.`;
  const rows = hour.clients.slice(0, SHOWN).map((each, key) => {
    const rules = each.rules.join() === own ? [] : each.rules;
    return { ...each, key, rules };
  });
  const cells = ({ client, rules }) => ({
    client: html`<a href=${link("connections", { search: client })}>${client}</a>`,
    rules: rules.join(", ") || undefined,
  });
  const empty = hour.problem ? unknown : since || unknown;
  return html`<${Table} name="refused_clients" rows=${rows} cells=${cells} empty=${empty} />
    <${More} of=${hour.clients.length - rows.length + hour.more_clients} />`;
}

function Senders({ of, resource }) {
  const rows = of.rows.map((row) => ({ ...row, client: { ...row.client, product: productOf(row.client) } }));
  const cells = ({ client, peer, exempt, stage, refused_per_s: refused }) => ({
    client: html`<a href=${link("connections", { search: peer })}>${client.id || peer}</a>
      ${client.id && html`<div class="faint">${peer}</div>`}`,
    refused: cell(undefined, { class: refused > 0 ? "refusing" : "" }),
    state: html`${exempt && html`<${Tag}>exempt<//> `}
      <${StateTag} state=${stage.state} more=${stage.text} running=${exempt ? "" : "running"} />`,
  });
  const more = of.total - rows.length;
  const all = link("connections", { search: resource });
  return html`<${Table} name="senders" rows=${rows} cells=${cells} empty="No open connection has used this resource." />
    ${more > 0 && html`<p class="pager"><a href=${all}>and ${count(more)} more</a></p>`}
    ${rows.length > 0 && html`<p class="faint">Frames/s and Refused/s cover all resources of the connection.</p>`}`;
}

function Explanation({ of: { sentences, limits, confirm, unapplied } }) {
  return html`
    ${sentences.map((text) => html`<p class="muted">${text}</p>`)}
    <ol class="explanation">
      ${limits.map(
        ({ kind, name, text, details }) => html`<li>
          <p><b>${kind} ${name}</b>: ${text}</p>
          <${Details} of=${details} />
        </li>`,
      )}
    </ol>
    ${
      confirm?.text &&
      html`<p>${confirm.text}</p>
      <${Details} of=${confirm.details} />`
    }
    ${unapplied.map(({ text }) => html`<p class="muted">${text}</p>`)}
  `;
}

function Advice({ found, path, entry, again }) {
  const { recommendation: advised } = found;
  if (!advised) {
    const text = sentence(found.problem ?? "The latest report does not mention this resource.");
    return html`<p class="muted">${text}</p><${Report} of=${found} />`;
  }
  const { current, recommended, others_current: othersCurrent, others } = advised.backtest;
  const apart = { lower: "lowers a limit far above all demand", raise: "optional: see the reason" };
  const compared = (what, one, other, most = "") =>
    one &&
    other &&
    html`<p>
      ${what} ${refusedOf(one)} would be refused by the current limit, and ${most}${refusedOf(other)} by the new one.
    </p>`;
  const change = html`<del>${limitOf(advised.count, advised.rate_per_s, advised.bytes_per_s)}</del>
    <span class="faint" aria-hidden="true"> → </span><span class="visually-hidden">, recommended </span>
    <ins>${advisedText(advised)}</ins>`;
  return html`
    <p class="old-new">${["keep", "unused"].includes(advised.action) ? advised.action : change}</p>
    <p>
      <${Tag}>confidence: ${advised.confidence}<//>${" "}
      ${apart[advised.only_with] && html`<${Tag} manner="warn">${apart[advised.only_with]}<//>`}
    </p>
    <p>${advised.evidence}</p>
    ${compared("Of the recorded demand,", current, recommended)}
    ${compared("Of the demand from all callers except the largest,", othersCurrent, others, "at most ")}
    ${
      found.edit
        ? html`<${PutInForce} advised=${advised} edit=${found.edit} ...${{ path, entry, again }} />`
        : html`<p class="note">Nothing to apply: ${found.why_not}.</p>`
    }
    ${advised.what_if.length > 0 && html`<${WhatIf} limits=${advised.what_if} />`}
    <${Report} of=${found} />
  `;
}

/** There is no preview, because the recommendation already shows the change. */
function PutInForce({ advised, edit, path, entry, again }) {
  const [isActing, setActing] = useState(false);
  const put = async () => {
    setActing(true);
    const fleet = app.state?.fleet && entry?.limit.fleet ? 1 : undefined;
    const change = await attempt(() => call("PATCH", path, { body: edit, query: { fleet }, etag: entry?.etag }));
    setActing(false);
    if (change) done(change);
    else again();
  };
  return html`<p class="actions">
    <${Button} isWrite manner="primary" disabled=${isActing} onclick=${put}>Apply ${advisedText(advised)}<//>
  </p>`;
}

function Report({ of }) {
  if (!of.made_at) return null;
  return html`<p class="muted">
    Report made <${Ago} at=${of.made_at} />${of.until_at && `, covering ${exact(of.from_at)} to ${exact(of.until_at)}`}
    ${of.age_s > OLD_S && html` <${Tag} manner="warn">outdated<//>`}
  </p>`;
}

function WhatIf({ limits }) {
  const rows = limits.map((each, key) => ({ ...each, key }));
  const cells = ({ rate_per_s: perS, refused_share: share, refused_share_uncorrected: withRetries }) => ({
    rate_per_s: `${number(perS)}/s`,
    refused_share: tenths(share),
    refused_share_uncorrected: tenths(withRetries),
  });
  return html`<details>
    <summary>Refusals with other limits</summary>
    <${Table} name="what-if" columns=${WHAT_IF} rows=${rows} cells=${cells} />
  </details>`;
}

function limitOf(counted, perS, size) {
  const parts = [];
  if (perS !== null) parts.push(`${number(perS)}${counted === "requests" ? " requests" : ""}/s`);
  if (size !== null) parts.push(`${bytes(size)}/s`);
  return parts.join(" + ") || "unlimited";
}

function advisedText(advised) {
  const perS = advised.recommended_rate_per_s ?? advised.rate_per_s;
  const limit = limitOf(advised.count, perS, advised.recommended_bytes_per_s ?? advised.bytes_per_s);
  return advised.fair_by ? `${limit}, shared by ${advised.fair_by.replace("_", " ")}` : limit;
}

function refusedOf(replay) {
  return `${tenths(replay.refused_share)} (${count(replay.refused_messages)})`;
}

function tenths(share) {
  return share > 0 && share < 0.0005 ? "<0.1 %" : `${number(Math.round(share * 1000) / 10)} %`;
}
