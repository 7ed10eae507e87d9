/** What waits for what: the bottleneck in words, who waits, alarms, and the spool. */

import { call, get, pathOf } from "./api.js";
import { app, toast, useAnswer } from "./app.js";
import { askReason } from "./dialogs.js";
import { bytes, count, exact, rate } from "./format.js";
import { html } from "./html.js";
import { Button, Facts, Gauge, More, Panel, ResourceOf, Table, Tag, listenerText } from "./parts.js";

const EVERY_MS = 2000;
const MOST = 50;
export function FlowView() {
  const ask = () => Promise.all([get("flow", { limit: MOST }), get("spool", { limit: MOST })]);
  const [answer, again] = useAnswer(ask, [], EVERY_MS);
  if (!answer) return html`<div class="heading"><h1>Flow</h1></div>`;
  const [flow, spool] = answer;
  const waiting = flow.connections.flatMap(waitingRows);
  return html`
    <div class="heading"><h1>Flow</h1></div>
    <${Panel} wide title="Bottleneck">
      <ul class="findings">${flow.sentences.map((text) => html`<li>${text}</li>`)}</ul>
    <//>
    <div class="panels halves">
      <${Panel} title="States" facts=${flow.details.map(({ name, text }) => [name, text])} />
      <${Panel} title="Alarms" facts=${flow.alarms.map((each) => [each.scarce, html`<${Alarm} of=${each} />`])} />
    </div>
    <${Panel} wide title="Connections that wait">
      ${waiting.length > 0 && html`<${Table} name="stages" rows=${waiting} cells=${waitingCells} />`}
      ${!waiting.length && html`<p class="muted">No connection waits.</p>`}
      <${More} of=${flow.more_connections} />
    <//>
    ${
      flow.confirms.length > 0 &&
      html`<${Panel} wide title="Confirmed after consume" label="Confirms">
      <${Table} name="confirms" rows=${flow.confirms} cells=${confirmCells} />
      <${More} of=${flow.more_confirms} />
    <//>`
    }
    <${Panel} wide title="Spool" label="Spool"><${Spool} spool=${spool} again=${again} /><//>
  `;
}

function Alarm({ of: { stands, since, status } }) {
  return html`<span class=${stands ? "refusing" : ""} title=${since ? `since ${exact(since)}` : null}>${status}</span>`;
}

/** The rows of a connection: itself, then what of it waits. */
function waitingRows({ id, listener, connection, others }) {
  return [connection, ...others].map((stage, index) => ({
    ...stage,
    key: `${id} ${index}`,
    listener: index ? null : listener,
    class: index ? "of-connection" : null,
  }));
}

function waitingCells({ listener, kind, name }) {
  const own = html`connection ${name}<div class="faint">${listenerText(listener)}</div>`;
  return { name: listener === null ? html`<${ResourceOf} text="${kind} ${name}" />` : own };
}

/** That the broker confirms in place of the consumers is to be seen. */
function confirmCells({ mode, by }) {
  return { by: mode === "after_consume" ? by : html`<${Tag} manner="warn wide">${by}<//>` };
}

// --- the spool

function Spool({ spool: { holds, sentences, details }, again }) {
  const texts = sentences.map((text) => html`<p class=${holds?.alarm ? "problem" : "muted"}>${text}</p>`);
  if (!holds) return texts;
  const gauges = {
    memory: html`<${Gauge} amount=${holds.memory_bytes} most=${holds.memory_limit_bytes} />`,
    disk: html`<${Gauge} amount=${holds.disk_bytes} most=${holds.disk_limit_bytes} />`,
  };
  const cells = (row) => ({
    action: html`<${Button}
      isWrite
      manner="small danger-quiet"
      label="Purge the spooled messages of ${row.kind} ${row.name}"
      onclick=${() => askPurge(row, again)}
    >
      Purge…
    <//>`,
  });
  const table = html`<${Table} name="spooled" rows=${holds.resources} cells=${cells} action="Purge" />`;
  return html`
    ${texts}
    <${Picture} holds=${holds} />
    <${Facts} facts=${details.map(({ name, text }) => [name, gauges[name] ?? text])} />
    ${holds.resources.length > 0 && table}
    <${More} of=${holds.more_resources} />
  `;
}

function askPurge({ kind, name, messages }, again) {
  const all = `${count(sumOf(messages))} messages are refused where their senders wait for an answer`;
  const content = html`<p>${all}, and dropped where none do. This cannot be undone.</p>`;
  const words = { label: "Purge", manner: "danger" };
  askReason(`Purge the spooled messages of ${kind} ${name}`, content, words, async (reason) => {
    const body = await call("DELETE", pathOf("spool", kind, name), { query: { reason } });
    app.ownChanges.add(body.change);
    toast(`${kind} ${name}: ${count(body.refused)} refused, ${count(body.dropped)} dropped.`);
    again();
  });
}

/** Of all places together. */
function sumOf(byPlace) {
  return Object.values(byPlace).reduce((sum, each) => sum + each, 0);
}

/** Where the boxes of the picture are, and what is where. */
const BOXES = {
  alpha: { x: 112, y: 10, letter: "α", about: "all in memory" },
  delta: { x: 432, y: 10, letter: "δ", about: "all on disk" },
  beta: { x: 112, y: 172, letter: "β", about: "only its index in memory" },
  gamma: { x: 432, y: 172, letter: "γ", about: "index in memory and on disk" },
};

/** The four places of the spool's messages, and how they go from one to another. */
function Picture({ holds }) {
  const perS = (key) => rate(holds.resources.reduce((sum, each) => sum + each[key], 0));
  const said = Object.keys(BOXES).map((place) => `${place} ${count(holds.messages[place] ?? 0)}`);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Messages by place">
    <svg class="places" viewBox="0 0 644 284" role="img" aria-label="messages by place: ${said.join(", ")}">
      <defs>
        <marker id="way-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
          <path d="M0 0L8 4L0 8z" class="way-head" />
        </marker>
      </defs>
      <${Way} path="M4 36H110" x="56" y="28">in ${perS("in_per_s")}/s<//>
      <${Way} path="M112 80H6" x="56" y="96">out ${perS("out_per_s")}/s<//>
      <${Way} path="M308 36H430" x="368" y="28">written ${count(holds.written_total)}<//>
      <${Way} path="M432 80H310" x="368" y="96">read ${count(holds.read_total)}<//>
      <rect x="100" y="160" width="540" height="120" rx="10" class="large" />
      <text x="370" y="224" text-anchor="middle" class="way-text">large, next to go</text>
      <${Way} path="M530 106V158" x="540" y="137" anchor="start">index<//>
      <${Way} path="M210 160V108" x="220" y="137" anchor="start">content<//>
      ${Object.keys(BOXES).map((place) => html`<${Box} place=${place} holds=${holds} />`)}
    </svg>
  </div>`;
}

function Way({ path, x, y, anchor = "middle", children }) {
  return html`<path d=${path} class="way" marker-end="url(#way-head)" />
    <text x=${x} y=${y} text-anchor=${anchor} class="way-text">${children}</text>`;
}

function Box({ place, holds }) {
  const { x, y, letter, about } = BOXES[place];
  const messages = holds.messages[place] ?? 0;
  return html`<g class="place ${messages ? "" : "none"}" data-place=${place}>
    <rect x=${x} y=${y} width="196" height="96" rx="6" />
    <text x=${x + 12} y=${y + 27} class="letter">${letter}</text>
    <text x=${x + 34} y=${y + 25} class="faint">${place}</text>
    <text x=${x + 12} y=${y + 54} class="amount">${count(messages)} messages</text>
    <text x=${x + 12} y=${y + 71}>${bytes(holds.content_bytes[place] ?? 0)}</text>
    <text x=${x + 12} y=${y + 87} class="faint">${about}</text>
  </g>`;
}
