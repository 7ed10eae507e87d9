/** The sidecar's own state: listeners, totals, lanes, switches, where edits are kept; and the reload. */

import { ApiError, call } from "./api.js";
import { app, canWrite, failed, openDialog, switches, toast, useAnswer } from "./app.js";
import { Lines } from "./changes.js";
import { Dialog, Problem, useAct } from "./dialogs.js";
import { ago, bytes, count, duration, exact, left, rate } from "./format.js";
import { html, useRef } from "./html.js";
import { Button, Dot, Panel, Table, Tag, TargetLink, brokerState, cell, listenerText } from "./parts.js";
import { switchOff, switchOn } from "./switches.js";

const SWITCHES = [
  { name: "kind", title: "Kind" },
  { name: "limiting", title: "Limiting" },
  { name: "file", title: "File" },
  { name: "changed", title: "Changed" },
];

export function StateView() {
  const [entries] = useAnswer(switches, []);
  const table = { name: "switches", columns: SWITCHES, rows: entries ?? [], cells: switchCells, action: "Switch" };
  const { state } = app;
  return html`
    <div class="heading second">
      <h1>State</h1>
      <span class="spacer"></span>
      <${Button} isWrite onclick=${askReload}>Reload the configuration…<//>
    </div>
    <div class="panels">${state && html`<${Panels} state=${state} />`}</div>
    <${Panel} wide title="Switches">
      <${Table} ...${table} />
    <//>
  `;
}

function Panels({ state }) {
  return html`
    <${Panel} title="Listeners" facts=${state.listeners.map(listenerFact)} />
    <${Panel} title="Messages since the start" facts=${messageFacts(state)} />
    <${Panel} title="Data path" facts=${dataPathFacts(state)} />
    <${Panel} title="Connections ended" facts=${closedFacts(state.totals.closed)} />
    <${Panel} title="Edits" facts=${editFacts(state)} />
    <${Panel} title="Process" facts=${processFacts(state)} />
  `;
}

function listenerFact(listener) {
  const { listen, broker, connections } = listener;
  const name = listenerText(listener.name);
  const { manner, text } = brokerState(listener);
  return [
    name === listen ? listen : `${listen}, ${name}`,
    html`<${Dot} manner=${manner} /> ${broker} ${text}, ${count(connections)} connections`,
  ];
}

function closedFacts(closed) {
  return Object.entries(closed).map(([reason, amount]) => [reason.replaceAll("_", " "), count(amount)]);
}

function messageFacts({ totals, rates }) {
  const perS = rates.messages_per_s;
  const facts = Object.entries(totals.messages).map(([end, amount]) => [
    end,
    `${count(amount)} · ${rate(perS[end])}/s`,
  ]);
  // What was never read is of no resource, and counted in bytes.
  const lost = `${count(totals.lost_messages)}, and with what was never read ${bytes(totals.lost_bytes)}`;
  return totals.lost_bytes ? [...facts, ["lost", lost]] : facts;
}

function dataPathFacts({ totals, rates, held, limiters, lanes, bypassed }) {
  const readFrom = (who) => `${bytes(totals.bytes[who] ?? 0)} · ${bytes(rates.bytes_per_s[who] ?? 0)}/s`;
  const { live, overflowed_total: overflowed } = limiters;
  const laneText = ({ queued, capacity, late_lanes: late }) =>
    `${count(queued)} of ${count(capacity)} waiting${late ? `, ${late} late` : ""}`;
  return [
    ["Open connections", count(totals.connections_open)],
    ["Accepted", count(totals.connections)],
    ["Read from clients", readFrom("client")],
    ["Read from the broker", readFrom("broker")],
    ["Held now", `${count(held.requests)} requests, ${bytes(held.bytes)}`],
    ["Live limiters", `${count(live)}${overflowed ? `, ${count(overflowed)} decisions shared past the bound` : ""}`],
    ...lanes.map((lane) => [`Lane of ${lane.handler}`, laneText(lane)]),
    [
      "Bypassed",
      [count(bypassed.total), ...bypassed.by.map((each) => `${each.reason} ${count(each.total)}`)].join(", "),
    ],
  ];
}

function editFacts({ edits, persistence, spool, rule_set_version: version }) {
  const next = edits.expiring_next;
  const { directory, error, set_aside: aside } = persistence;
  return [
    ["Standing", count(edits.standing)],
    [
      "Next to expire",
      next ? html`<${TargetLink} target=${next.target}>${next.target}<//>, ${left(next.expires_at)}` : "none",
    ],
    ["Kept in", directory ?? "memory, until the restart"],
    ...(error ? [["Problem", error]] : []),
    ...(aside.length ? [["Set aside", aside.join(", ")]] : []),
    ["Spool", spool.directory ?? spool.error ?? "off"],
    ["Rule set", `version ${version}`],
  ];
}

function processFacts({ version, started_at: startedAt, uptime_s: uptimeS, warnings }) {
  const rights = canWrite() ? "may read and write" : "may only read";
  return [
    ["Version", version],
    ["Started", html`<time datetime=${startedAt}>${exact(startedAt)}</time>`],
    ["Up", duration(uptimeS)],
    ["You are", `${app.whoami.name}, ${rights}`],
    ...warnings.map((line) => ["Warning", line]),
  ];
}

function switchCells(entry) {
  const { kind, edit, limiting, configured } = entry;
  const [word, act] = limiting ? ["off", () => switchOff(kind)] : ["on", () => switchOn(entry)];
  const end = edit?.expires_at ? ` · ${left(edit.expires_at)}` : "";
  const changed =
    edit &&
    html`<span title=${exact(edit.at)}>${edit.by}, ${ago(edit.at)}</span>${end}${edit.reason && ` · ${edit.reason}`}`;
  const file = html`<span class="narrow-only">in the file: </span>${configured ? "on" : "off"}`;
  const label = `Switch limiting of ${kind} ${limiting ? "off" : "back on"}`;
  return {
    kind: kind === "all" ? "everything" : kind,
    limiting: limiting ? "on" : html`<${Tag} manner="bad">off<//>`,
    file: cell(file, { class: configured === limiting ? "muted same" : "muted" }),
    changed: cell(changed ?? undefined, { class: edit ? "wrap" : "wrap same" }),
    action: html`<${Button} isWrite manner="small ${limiting ? "danger-quiet" : ""}" label=${label} onclick=${act}>
      Switch ${word}…
    <//>`,
  };
}

/** Say what a reload would change, and do it when told so. */
async function askReload() {
  try {
    const report = await call("POST", "reload", { query: { dry_run: 1 } });
    openDialog((close) => html`<${Reload} report=${report} onclose=${close} />`);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) return failed(error);
    const texts = error.errors.length ? error.errors.map((each) => each.detail) : [error.message];
    openDialog(
      (close) => html`<${Dialog} title="The configuration is wrong" onclose=${close}>
        <p>Nothing was changed.</p>
        <${Lines} texts=${texts} />
      <//>`,
    );
  }
}

function Reload({ report, onclose }) {
  const control = useRef({}).current;
  const acting = useAct("Reload", async () => {
    await call("POST", "reload");
    control.close();
    toast("The configuration was reloaded.");
  });
  const section = (title, texts) => texts.length > 0 && html`<h3>${title}</h3><${Lines} texts=${texts} />`;
  const isIdle = !report.changed.length;
  return html`<${Dialog} title="Reload the configuration" onclose=${onclose} control=${control}>
    <${Problem} text=${acting.problem} />
    ${isIdle ? html`<p>Nothing would change.</p>` : section("Will hold at once", report.changed)}
    ${section("Changed, but an edit stands over it", report.hidden)} ${section("Needs a restart", report.needs_restart)}
    ${section("Warnings", report.warnings)}
    <div class="actions">
      <${Button} manner="primary" disabled=${isIdle || acting.isActing} onclick=${acting.run}>Reload<//>
      <${Button} onclick=${() => control.close()}>Cancel<//>
    </div>
  <//>`;
}
