/**
 * The page of one resource: what becomes of its messages, who sends them and who was refused, the rule in force and
 * why, what a report recommends, and every change of its limit.
 */

import { call, get, pathOf } from "./api.js";
import { app, canWrite, failed, globOf, go, link, openDialog, useAnswer } from "./app.js";
import { ChangeTable, done } from "./changes.js";
import { Chart } from "./chart.js";
import { productOf } from "./connections.js";
import { askReason } from "./dialogs.js";
import { Editor, resetText } from "./editor.js";
import { bytes, count, exact, number, percent, rate, serverNow, shortLimit, timeOfDay, wait } from "./format.js";
import { html, useState } from "./html.js";
import { OldestWaiting, WINDOW, WouldRefuse, isOff, stateOf } from "./limits.js";
import { Ago, Button, Facts, More, Panel, StateTag, Table, Tag, cell } from "./parts.js";
import { allSteps, sumOf } from "./steps.js";

const HOUR_S = 3600;
/** The log is read in steps of a second up to here. */
const FINE_S = 900;
const LOG_EVERY_MS = 30_000;
const LIVE_EVERY_MS = 5000;
const SHOWN = 20;
/** Seconds of a row of the table that says the same as the graph, by the minutes shown. */
const STEP_S = { 1: 5, 5: 30, 15: 60, 60: 300 };
const USUAL_MINUTES = 15;
/** A report that is older says little about today. */
const OLD_S = 8 * 86_400;
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

/** What to ask the stream for. */
export function resourceQuery(params) {
  return { kind: params.get("kind"), name: params.get("name"), limit: 1 };
}

export function ResourceView({ params }) {
  const [kind, name] = [params.get("kind"), params.get("name")];
  if (kind && name) return html`<${Resource} key="${kind}/${name}" kind=${kind} name=${name} params=${params} />`;
  return html`<p class="empty">Which resource? <a href=${link("limits")}>The table of limits</a> has all of them.</p>`;
}

function Resource({ kind, name, params }) {
  const asked = Number(params.get("minutes"));
  const minutes = asked in STEP_S ? asked : USUAL_MINUTES;
  const past = usePast(kind, name, minutes);
  const [why] = useAnswer(() => get("explain", { kind, name }), [], LIVE_EVERY_MS);
  const senders = { resource: `${kind}:${name}`, sort: "requests", order: "desc", limit: SHOWN };
  const [connections] = useAnswer(() => get("connections", senders), [], LIVE_EVERY_MS);
  const path = pathOf("limits", kind, globOf(name));
  const [entry] = useAnswer(() => get(path), []);
  const [advice, askAdvice] = useAnswer(() => get(pathOf("advice", kind, name)), []);
  const targets = [`limits/${kind}/${globOf(name)}`, entry && ruleTarget(entry.rule)].filter(Boolean);
  const [changes] = useAnswer(() => (entry ? changesOf(targets) : null), [targets.join("\n")]);
  const row = app.rows.byKey.get(`${kind}/${name}`) ?? null;
  const of = { kind, name, row, entry, past, changes };

  const edit = () => openDialog((close) => html`<${Editor} kind=${kind} name=${globOf(name)} onclose=${close} />`);
  const reset = () =>
    askReason(`Reset ${kind} ${name}`, resetText, { label: "Reset" }, async (reason) =>
      done(await call("POST", `${path}:reset`, { query: { reason } })),
    );
  return html`
    <p class="back"><a href=${link("limits")}>‹ Limits</a></p>
    <div class="heading second">
      <h1 class="wrap"><${Tag} manner="kind">${kind}<//>${name}</h1>
      <span class="flags"><${Flags} kind=${kind} row=${row} /></span>
      <span class="spacer"></span>
      <div class="actions">
        <${Button} manner="primary" onclick=${edit}>${canWrite() ? "Edit the limit…" : "Show the limit"}<//>
        <${Button} isWrite onclick=${reset}>Reset…<//>
      </div>
    </div>
    ${(row ?? entry) && html`<${Figures} of=${of} />`}
    <${Graph} of=${of} minutes=${minutes} />
    <${Panel} wide title="Who was refused in the last hour" label="Who was refused">
      ${past.hour && html`<${RefusedClients} own="${kind}:${name}" hour=${past.hour} />`}
    <//>
    <div class="panels halves">
      <${Panel} title="Rule in force, and why" label="Rule in force">${why && html`<${Explanation} of=${why} />`}<//>
      <${Panel} title="What a report advises" label="Advice">
        ${advice && html`<${Advice} found=${advice} path=${path} etag=${entry?.etag} again=${askAdvice} />`}
      <//>
    </div>
    <${Panel} wide title="Who is connected and sends or receives it" label="Who is connected">
      ${connections && html`<${Senders} of=${connections} resource="${kind}:${name}" />`}
    <//>
    <${Panel} wide title="Changes of its limit" label="Changes">
      ${changes?.length > 0 && html`<${ChangeTable} changes=${changes} />`}
      ${
        !changes?.length &&
        html`<p class="muted">${changes ? "Nobody has changed it, nor the rule that holds for it." : "Loading…"}</p>`
      }
    <//>
  `;
}

/** What the log knows of the last hour, and finer of the last minutes. */
function usePast(kind, name, minutes) {
  const path = pathOf("history", kind, name);
  const isFine = minutes * 60 <= FINE_S;
  const ask = () => Promise.all([get(path, { seconds: HOUR_S }), isFine ? get(path, { seconds: FINE_S }) : null]);
  const [answer] = useAnswer(ask, [isFine], LOG_EVERY_MS);
  const [hour, fine] = answer ?? [null, null];
  return { hour, steps: isFine ? (fine ?? hour) : hour };
}

/** What the audit trail calls the rule of that name. */
function ruleTarget(rule) {
  const [, kind, pattern] = /^([^:]+):(.*)$/su.exec(rule) ?? [];
  return kind && `limits/${kind}/${pattern}`;
}

/** The changes of some targets, the latest first. */
async function changesOf(targets) {
  const wanted = [...new Set(targets)];
  const pages = await Promise.all(wanted.map((target) => get("audit", { target, limit: 100 })));
  const found = pages.flatMap((page, index) => page.changes.filter((change) => change.target === wanted[index]));
  return found.sort((one, other) => other.id - one.id).slice(0, SHOWN);
}

// --- now

function Flags({ kind, row }) {
  const off = isOff(row ?? { kind });
  const [words, manner, meaning] = row ? stateOf(row) : [];
  const aboutOff = "Limiting is switched off: nothing of it is refused or held.";
  return html`
    ${off && html`<${Tag} manner="bad" title=${aboutOff}>limiting off<//>`}
    ${words && html`<${Tag} manner=${manner} title=${meaning}>${words}<//>`}
    ${row && html`<${WouldRefuse} row=${row} />`}
    <${StateTag} state=${row?.live?.state} running="" />
  `;
}

function Figures({ of }) {
  const { row, entry } = of;
  const { limit, edit } = row ?? entry;
  const live = row?.live ?? {};
  const refused = live.refused_per_s ?? 0;
  const dropped = live.messages_per_s?.dropped;
  const action = limit?.action;
  const aboutDropped = "Their clients left before they were decided.";
  const shown = [
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
    live.wait_s > 0 && ["Would wait", wait(live.wait_s * 1e6)],
    (live.oldest_wait_s ?? null) !== null && ["Oldest waiting", html`<${OldestWaiting} live=${live} />`],
    live.spooled > 0 && ["In the spool", html`<a href=${link("flow")}>${count(live.spooled)}</a>`],
  ].filter(Boolean);
  return html`<dl class="figures" aria-label="Now" title="Rates and share: means of ${WINDOW}.">
    ${shown.map(([title, value]) => html`<div><dt>${title}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** When something of it was last refused or held, by the counters or, before this start, by the log. */
function LastLimited({ of: { row, past } }) {
  const live = row?.live;
  const clients = (past.hour?.clients ?? []).filter((each) => each.messages_refused || each.messages_held);
  const logged =
    clients
      .map((each) => each.last_at)
      .sort()
      .at(-1) ?? "";
  const counted = live?.last_limited_at ?? "";
  if (!counted && !logged) {
    const from = past.hour?.known_from;
    return from && from < app.state?.started_at ? "not in the last hour" : "not since the start";
  }
  const by = counted >= logged && counted === live?.last_refused_at && live.refused_by;
  return html`<${Ago} at=${counted > logged ? counted : logged} />${by && html`<span class="muted"> by ${by}</span>`}`;
}

// --- over time

function Graph({ of, minutes }) {
  const nowS = serverNow() / 1000;
  const fromS = nowS - minutes * 60;
  const isKnown = of.past.hour || of.row;
  const steps = isKnown ? stepsSince(of, fromS) : [];
  const drawn = steps.filter((each) => each.drawn);
  const perS = (end) => drawn.map((each) => each[end] / lasted(each));
  const held = drawn.map((each) => each.held);
  const data = [drawn.map(middle), perS("passed"), perS("refused"), held, drawn.map((each) => each.limit)];
  const text = isKnown ? summary(steps, drawn, minutes, nowS) : "Loading…";
  const ranges = Object.keys(STEP_S).map((each) => {
    const press = () => go({ minutes: Number(each) === USUAL_MINUTES ? "" : each });
    const text = each === "60" ? "1 h" : `${each} min`;
    const state = { "data-minutes": each, "aria-pressed": String(Number(each) === minutes) };
    return html`<${Button} manner="small chip" ...${state} onclick=${press}>${text}<//>`;
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

/** The limit now, in messages per second; null if there is none. */
function rateNow({ kind, row, entry }) {
  const { limit } = row ?? entry ?? {};
  if (!limit || limit.exempt || limit.action === "off" || limit.count === "requests") return null;
  const isSwitchedOff = app.state?.off.some((each) => ["all", kind].includes(each));
  return typeof limit.rate === "number" && !isSwitchedOff ? limit.rate : null;
}

function stepsSince(of, fromS) {
  const limit = rateNow(of);
  const startedS = Date.parse(app.state?.started_at ?? "") / 1000;
  const steps = allSteps(of.past.steps, of.row, { startedS, sampledS: app.rows.sampledS, fromS, limit });
  // Without traffic nothing tells the limit, but if nobody changed it, it was this one.
  const isUnchanged = of.changes?.every((change) => Date.parse(change.at) / 1000 <= fromS);
  if (isUnchanged && steps.every((each) => each.limit === null)) steps.forEach((each) => (each.limit = limit));
  return steps;
}

/** What is to be seen, in a sentence. */
function summary(steps, drawn, minutes, nowS) {
  const words = { 1: "minute", 60: "hour" }[minutes] ?? `${minutes} minutes`;
  if (!steps.length) return `Nothing is known of the last ${words} yet.`;
  const [passed, refused, dropped] = sumOf(steps);
  const share = refused ? ` (${percent(refused / (passed + refused + dropped))} of what was asked for)` : "";
  const left = dropped ? `, and ${count(dropped)} were dropped as their clients left` : "";
  const stepS = STEP_S[minutes];
  const sinceS = steps[0].fromS;
  const startedS = Date.parse(app.state?.started_at ?? "") / 1000;
  const isAll = sinceS - (nowS - minutes * 60) < stepS || sinceS <= startedS + stepS;
  const begin = isAll ? `In the last ${words}` : `Since ${timeOfDay(sinceS * 1000)}`;
  const askedPerS = drawn.map((each) => (each.passed + each.refused + each.dropped) / lasted(each));
  const peak = askedPerS.indexOf(Math.max(...askedPerS));
  const at = drawn.length && timeOfDay(middle(drawn[peak]) * 1000);
  const most = drawn.length ? `; at most ${rate(askedPerS[peak])}/s were asked for, at ${at}` : "";
  return `${begin} ${count(passed)} messages passed and ${count(refused)} were refused${share}${left}${most}.`;
}

/** What must be known to read the graph. */
function notesOf(of, data) {
  const { hour } = of.past;
  const { limit } = of.row ?? of.entry ?? {};
  const notes = [];
  if (hour?.problem) notes.push(`The past cannot be read: ${hour.problem}.`);
  if (hour?.cut) {
    const from = hour.known_from ? timeOfDay(Date.parse(hour.known_from)) : "now";
    notes.push(`The log is too large to be read whole: nothing older than ${from} is shown here.`);
  }
  if (hour?.others_together) {
    notes.push("There were more resources than are recorded one by one: some of its traffic may be missing.");
  }
  if (limit?.count === "requests" && typeof limit.rate === "number") {
    notes.push(`Its limit is of requests, ${number(limit.rate)}/s, and not drawn.`);
  }
  if (limit?.bytes_per_s) notes.push(`Its limit of ${bytes(limit.bytes_per_s)}/s is not drawn.`);
  const top = Math.max(0, ...data.slice(1, 4).flat());
  const limitNow = rateNow(of);
  if (limitNow !== null && top && limitNow > 4 * top) {
    notes.push(`The limit, ${number(limitNow)}/s, is far above the graph.`);
  }
  return notes;
}

/** Figures added up in longer steps, the latest first. */
function stepRows(steps, stepS) {
  const rows = new Map();
  for (const each of steps) {
    const key = lasted(each) > 2 * stepS ? each.fromS : Math.floor(middle(each) / stepS) * stepS;
    const row = rows.get(key) ?? {
      key,
      from: timeOfDay(key * 1000),
      passed: 0,
      refused: 0,
      dropped: 0,
      held: 0,
      limit: null,
    };
    for (const end of ["passed", "refused", "dropped"]) row[end] += each[end];
    row.held += (each.held ?? 0) * lasted(each);
    row.limit = each.limit ?? row.limit;
    rows.set(key, row);
  }
  return [...rows.values()].reverse();
}

function stepCells({ limit }) {
  return { limit: limit === null ? undefined : `${number(limit)}/s` };
}

function lasted(step) {
  return Math.max(step.untilS - step.fromS, 0.001);
}

function middle(step) {
  return (step.fromS + step.untilS) / 2;
}

// --- who, and why

function RefusedClients({ own, hour }) {
  if (!hour.clients.length) {
    const since = hour.known_from && `Nobody, since ${timeOfDay(Date.parse(hour.known_from))}.`;
    const unknown = hour.problem ? `Not known: ${hour.problem}.` : "Not known: nothing is recorded of the last hour.";
    return html`<p class="muted">${hour.problem ? unknown : since || unknown}</p>`;
  }
  const rows = hour.clients.slice(0, SHOWN).map((each, key) => {
    const rules = each.rules.join() === own ? [] : each.rules;
    return { ...each, key, rules };
  });
  const cells = ({ client, rules }) => ({
    client: html`<a href=${link("connections", { search: client })}>${client}</a>`,
    rules: rules.join(", ") || undefined,
  });
  return html`<${Table} name="refused_clients" rows=${rows} cells=${cells} />
    <${More} of=${hour.clients.length - rows.length + hour.more_clients} />`;
}

function Senders({ of, resource }) {
  if (!of.rows.length) return html`<p class="muted">No open connection has asked for it.</p>`;
  const rows = of.rows.map((row) => ({ ...row, client: { ...row.client, product: productOf(row.client) } }));
  const cells = ({ client, peer, exempt, stage, refused_per_s: refused }) => ({
    client: html`<a href=${link("connections", { search: peer })}>${client.id || peer}</a>
      ${client.id && html`<div class="faint">${peer}</div>`}`,
    refused: cell(undefined, { class: refused > 0 ? "refusing" : "" }),
    state: html`${exempt && html`<${Tag}>exempt<//> `}
      <${StateTag} state=${stage.state} more=${stage.text} running=${exempt ? "" : "running"} />`,
  });
  const more = of.total - of.rows.length;
  const all = link("connections", { search: resource });
  return html`<${Table} name="senders" rows=${rows} cells=${cells} />
    ${more > 0 && html`<p class="pager"><a href=${all}>and ${count(more)} more</a></p>`}
    <p class="faint">Frames and refusals are of the whole connection.</p>`;
}

function Explanation({ of: { sentences, limits, confirm, unapplied } }) {
  const facts = (details) => html`<${Facts} facts=${details.map(({ name, text }) => [name, text])} />`;
  return html`
    ${sentences.map((text) => html`<p class="muted">${text}</p>`)}
    <ol class="explanation">
      ${limits.map(
        ({ kind, name, text, details }) => html`<li><p><b>${kind} ${name}</b>: ${text}</p>${facts(details)}</li>`,
      )}
    </ol>
    ${confirm?.text && html`<p>${confirm.text}</p>${facts(confirm.details)}`}
    ${unapplied.map(({ text }) => html`<p class="muted">${text}</p>`)}
  `;
}

// --- what a report advises

function Advice({ found, path, etag, again }) {
  const { recommendation: advised } = found;
  if (!advised) {
    const text = found.problem ? `${found.problem}.` : "The newest report has nothing about it.";
    return html`<p class="muted">${text}</p><${Report} of=${found} />`;
  }
  const { current, recommended, others_current: othersCurrent, others } = advised.backtest;
  const apart = { lower: "lowers a limit that is far above all demand", raise: "raises a limit that was not near" };
  const compared = (what, one, other) =>
    one && other && html`<p>${what} ${refusedOf(one)} would be refused now, and ${refusedOf(other)} then.</p>`;
  return html`
    <div class="advised">
      <${Advised} advised=${advised} />
      <p>
        <${Tag}>confidence: ${advised.confidence}<//>${" "}
        ${apart[advised.only_with] && html`<${Tag} manner="warn">${apart[advised.only_with]}<//>`}
      </p>
    </div>
    <p>${advised.evidence}</p>
    ${compared("Of the recorded demand", current, recommended)}
    ${compared("Of what all others asked for", othersCurrent, others)}
    ${
      found.edit
        ? html`<${PutInForce} advised=${advised} edit=${found.edit} ...${{ path, etag, again }} />`
        : html`<p class="note">Nothing to put in force: ${found.why_not}.</p>`
    }
    ${advised.what_if.length > 0 && html`<${WhatIf} limits=${advised.what_if} />`}
    <${Report} of=${found} />
  `;
}

/** The limit in force and the advised one. */
function Advised({ advised }) {
  if (["keep", "unused"].includes(advised.action)) return html`<p class="old-new">${advised.action}</p>`;
  return html`<p class="old-new">
    <del>${limitOf(advised.count, advised.rate_per_s, advised.bytes_per_s)}</del>
    <span class="faint" aria-hidden="true"> → </span><span class="visually-hidden">, advised </span>
    <ins>${advisedText(advised)}</ins>
  </p>`;
}

/** What is shown says what will happen, and a message offers to undo it: it is done at once. */
function PutInForce({ advised, edit, path, etag, again }) {
  const [isActing, setActing] = useState(false);
  const put = async () => {
    setActing(true);
    try {
      done(await call("PATCH", path, { body: edit, etag }));
    } catch (error) {
      failed(error);
      again();
    } finally {
      setActing(false);
    }
  };
  return html`<p class="actions">
    <${Button} isWrite manner="primary" disabled=${isActing} onclick=${put}>Put ${advisedText(advised)} in force<//>
  </p>`;
}

function Report({ of }) {
  if (!of.made_at) return null;
  return html`<p class="muted">
    Report made <${Ago} at=${of.made_at} />${of.until_at && `, of ${exact(of.from_at)} to ${exact(of.until_at)}`}
    ${of.age_s > OLD_S && html` <${Tag} manner="warn">old<//>`}
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
    <summary>What other limits would have refused</summary>
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

/** A share to a tenth of a per cent, as one limit differs from the next. */
function tenths(share) {
  return share > 0 && share < 0.0005 ? "<0.1 %" : `${number(Math.round(share * 1000) / 10)} %`;
}
