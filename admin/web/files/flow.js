import { call, get, pathOf } from "./api.js";
import { app, toast, useAnswer } from "./app.js";
import { askReason } from "./dialogs.js";
import { bytes, count, exact } from "./format.js";
import { html } from "./html.js";
import { Bar, Button, Details, Facts, More, Panel, ResourceOf, Table, Tag, listenerText } from "./parts.js";

const EVERY_MS = 2000;
const SHOWN = 50;
const NEAR = 0.8;
/** The spool's storage locations, in the order in which they are filled. */
const PLACES = [
  { name: "alpha", about: "all in memory" },
  { name: "beta", about: "index in memory, content on disk" },
  { name: "gamma", about: "index in memory and on disk, content on disk" },
  { name: "delta", about: "all on disk" },
];
const PLACE_COLUMNS = [
  { name: "name", title: "Place" },
  { name: "about", title: "Where" },
  { name: "messages", title: "Messages", format: "count" },
  { name: "content", title: "Content", format: "bytes" },
];

export function FlowView() {
  const ask = () => Promise.all([get("flow", { limit: SHOWN }), get("spool", { limit: SHOWN })]);
  const [answer, again] = useAnswer(ask, [], EVERY_MS);
  if (!answer) return html`<div class="heading"><h1>Flow</h1></div>`;
  const [flow, spool] = answer;
  const waiting = flow.connections.flatMap(waitingRows);
  return html`
    <div class="heading"><h1>Flow</h1></div>
    <${Panel} wide title="Bottleneck">
      <ul class="findings">
        ${flow.sentences.map((text) => html`<li>${text}</li>`)}
      </ul>
    <//>
    <div class="panels halves">
      <${Panel} title="States"><${Details} of=${flow.details} /><//>
      <${Panel} title="Alarms" facts=${flow.alarms.map((each) => [each.scarce, html`<${Alarm} of=${each} />`])} />
    </div>
    <${Panel} wide title="Waiting connections">
      <${Table} name="stages" rows=${waiting} cells=${waitingCells} empty="No connections are waiting." />
      <${More} of=${flow.more_connections} />
    <//>
    ${
      flow.confirms.length > 0 &&
      html`<${Panel} wide title="Confirmed by consumers">
      <${Table} name="confirms" rows=${flow.confirms} cells=${confirmCells} />
      <${More} of=${flow.more_confirms} />
    <//>`
    }
    <${Panel} wide title="Spool"><${Spool} spool=${spool} again=${again} /><//>
  `;
}

function Alarm({ of: { stands, since, status } }) {
  return html`<span class=${stands ? "refusing" : ""} title=${since ? `since ${exact(since)}` : null}>${status}</span>`;
}

function waitingRows({ id, listener, connection, others }) {
  return [connection, ...others].map((stage, index) => ({
    ...stage,
    key: `${id} ${index}`,
    listener: index ? null : listener,
    class: index ? "of-connection" : null,
  }));
}

function waitingCells({ listener, kind, name }) {
  const own = html`connection ${name}
    <div class="faint">${listenerText(listener)}</div>`;
  return { name: listener === null ? html`<${ResourceOf} text="${kind} ${name}" />` : own };
}

function confirmCells({ mode, by }) {
  return { by: mode === "after_consume" ? by : html`<${Tag} manner="warn wide">${by}<//>` };
}

function Spool({ spool: { holds, sentences, details }, again }) {
  const texts = sentences.map((text) => html`<p class=${holds?.alarm ? "problem" : "muted"}>${text}</p>`);
  if (!holds) return texts;
  const gauges = {
    memory: html`<${Gauge} amount=${holds.memory_bytes} most=${holds.memory_limit_bytes} />`,
    disk: html`<${Gauge} amount=${holds.disk_bytes} most=${holds.disk_limit_bytes} />`,
  };
  const places = PLACES.map((place) => ({
    ...place,
    key: place.name,
    messages: holds.messages[place.name] ?? 0,
    content: holds.content_bytes[place.name] ?? 0,
  }));
  const cells = (row) => {
    const label = `Purge the spooled messages of ${row.kind} ${row.name}`;
    const how = { isWrite: true, manner: "small danger-quiet", label, onclick: () => askPurge(row, again) };
    return { action: html`<${Button} ...${how}>Purge…<//>` };
  };
  return html`
    ${texts}
    <${Facts} facts=${details.map(({ name, text }) => [name, gauges[name] ?? text])} />
    ${
      holds.resources.length > 0 &&
      html`<${Table} name="places" columns=${PLACE_COLUMNS} rows=${places} />
        <${Table} name="spooled" rows=${holds.resources} cells=${cells} action="Purge" />`
    }
    <${More} of=${holds.more_resources} />
  `;
}

function Gauge({ amount, most }) {
  const share = most ? amount / most : 0;
  return html`<span class="gauge ${share > NEAR ? "near" : ""}">
    <${Bar} share=${share} /> ${bytes(amount)} of ${bytes(most)}
  </span>`;
}

function askPurge({ kind, name, messages }, again) {
  const amount = Object.values(messages).reduce((sum, each) => sum + each, 0);
  const all = `${count(amount)} messages will be refused if their senders await a response, and dropped otherwise.`;
  const content = html`<p>${all} This cannot be undone.</p>`;
  const words = { label: "Purge", manner: "danger" };
  askReason(`Purge the spooled messages of ${kind} ${name}`, content, words, async (reason) => {
    const body = await call("DELETE", pathOf("spool", kind, name), { query: { reason } });
    app.ownChanges.add(body.change);
    toast(`${kind} ${name}: ${count(body.refused)} refused, ${count(body.dropped)} dropped.`);
    again();
  });
}
