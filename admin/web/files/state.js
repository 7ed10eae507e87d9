import { ApiError, call } from "./api.js";
import { app, attempt, canWrite, openDialog, switches, toast, useAnswer } from "./app.js";
import { Actions, Dialog, Form, Problem, useAct } from "./dialogs.js";
import { bytes, count, duration, exact, left, rate } from "./format.js";
import { html } from "./html.js";
import {
  Button,
  Dot,
  EditedBy,
  Lines,
  Panel,
  Table,
  Tag,
  TargetLink,
  brokerState,
  cell,
  listenerText,
} from "./parts.js";
import { switchOff, switchOn } from "./switches.js";

const SWITCHES = [
  { name: "kind", title: "Kind" },
  { name: "limiting", title: "Limiting" },
  { name: "file", title: "Configured" },
  { name: "changed", title: "Changed" },
];

export function StateView() {
  const [entries] = useAnswer(switches, []);
  const { state } = app;
  const table = { name: "switches", columns: SWITCHES, rows: entries ?? [], cells: switchCells, action: "Switch" };
  return html`
    <div class="heading second">
      <h1>State</h1>
      <span class="spacer"></span>
      <${Button} isWrite onclick=${askReload}>Reload the configuration…<//>
    </div>
    <div class="panels">
      ${
        state && [
          html`<${Panel} title="Listeners" facts=${state.listeners.map(listenerFact)} />`,
          html`<${Panel} title="Messages since start" facts=${messageFacts(state)} />`,
          html`<${Panel} title="Data path" facts=${dataPathFacts(state)} />`,
          html`<${Panel} title="Closed connections" facts=${closedFacts(state.totals.closed)} />`,
          html`<${Panel} title="Edits and files" facts=${editFacts(state)} />`,
          html`<${Panel} title="Process" facts=${processFacts(state)} />`,
        ]
      }
    </div>
    <${Panel} wide title="Switches"><${Table} ...${table} /><//>
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

function messageFacts({ totals, rates: { messages_per_s: perS } }) {
  const facts = Object.entries(totals.messages).map(([end, amount]) => [
    end,
    `${count(amount)} · ${rate(perS[end])}/s`,
  ]);
  // Unread data is counted only in bytes, because the number of messages is unknown.
  const lost = `${count(totals.lost_messages)}; ${bytes(totals.lost_bytes)} including unread data`;
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
    ["Live limiters", `${count(live)}${overflowed ? `, ${count(overflowed)} decisions by shared limiters` : ""}`],
    ...lanes.map((lane) => [`Lane of ${lane.handler}`, laneText(lane)]),
    [
      "Bypassed",
      [count(bypassed.total), ...bypassed.by.map((each) => `${each.reason} ${count(each.total)}`)].join(", "),
    ],
  ];
}

function editFacts({ edits, persistence, spool, rejection_log: log, rule_set_version: version }) {
  const { directory, error, set_aside: aside } = persistence;
  const next = edits.expiring_next;
  return [
    ["Live edits", count(edits.standing)],
    next && ["Expires next", html`<${TargetLink} target=${next.target}>${next.target}<//>, ${left(next.expires_at)}`],
    ["Saved in", directory ?? "memory, lost on restart"],
    error && ["Problem", error],
    aside.length > 0 && ["Quarantined", aside.join(", ")],
    ["Spool", spool.directory ?? spool.error ?? "off"],
    ["Rejection log", log.error ?? log.directory ?? "off"],
    ["Rule set", `version ${version}`],
  ].filter(Boolean);
}

function processFacts({ version, compiled_extension: compiled, started_at: startedAt, uptime_s: uptimeS, warnings }) {
  const rights = canWrite() ? "read and write" : "read-only";
  return [
    ["Version", version],
    ["Compiled extension", compiled],
    ["Started", html`<time datetime=${startedAt}>${exact(startedAt)}</time>`],
    ["Uptime", duration(uptimeS)],
    ["You are", `${app.whoami.name}, ${rights}`],
    ...warnings.map((line) => ["Warning", line]),
  ];
}

function switchCells(entry) {
  const { kind, edit, limiting, configured } = entry;
  const [word, manner, act] = limiting
    ? ["off", "small danger-quiet", () => switchOff(kind)]
    : ["on", "small", () => switchOn(entry)];
  const file = html`<span class="narrow-only">configured: </span>${configured ? "on" : "off"}`;
  const label = `Switch limiting of ${kind} ${limiting ? "off" : "back on"}`;
  return {
    kind: kind === "all" ? "everything" : kind,
    limiting: limiting ? "on" : html`<${Tag} manner="bad">off<//>`,
    file: cell(file, { class: configured === limiting ? "muted same" : "muted" }),
    changed: cell(edit ? [html`<${EditedBy} edit=${edit} />`, edit.reason && ` · ${edit.reason}`] : undefined, {
      class: edit ? "wrap" : "same",
    }),
    action: html`<${Button} isWrite manner=${manner} label=${label} onclick=${act}>Switch ${word}…<//>`,
  };
}

function askReload() {
  return attempt(async () => {
    try {
      openDialog(Reload, { report: await call("POST", "reload", { query: { dry_run: 1 } }) });
    } catch (error) {
      if (!(error instanceof ApiError) || !error.errors.length) throw error;
      openDialog(WrongConfiguration, { texts: error.errors.map((each) => each.detail) });
    }
  });
}

function WrongConfiguration({ texts, close }) {
  return html`<${Dialog} title="The configuration is invalid" close=${close}>
    <p>Nothing was changed.</p>
    <${Lines} texts=${texts} />
  <//>`;
}

function Reload({ report, close }) {
  const acting = useAct("Reload", async () => {
    await call("POST", "reload");
    close();
    toast("The configuration was reloaded.");
  });
  const section = (title, texts) => texts.length > 0 && html`<h3>${title}</h3><${Lines} texts=${texts} />`;
  const isIdle = !report.changed.length;
  return html`<${Dialog} title="Reload the configuration" close=${close}>
    <${Problem} text=${acting.problem} />
    ${isIdle ? html`<p>Nothing would change.</p>` : section("Takes effect immediately", report.changed)}
    ${section("Changed, but overridden by an edit", report.hidden)} ${section("Needs a restart", report.needs_restart)}
    ${section("Warnings", report.warnings)}
    <${Form} onsend=${acting.run}>
      <${Actions} label="Reload" disabled=${isIdle || acting.isActing} cancel=${close} />
    <//>
  <//>`;
}
