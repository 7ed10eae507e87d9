/** The open connections: who they are, what they send to, how much; and the way to close one. */

import { call, get } from "./api.js";
import { toast, useAnswer } from "./app.js";
import { askReason } from "./dialogs.js";
import { count, exact } from "./format.js";
import { html, useState } from "./html.js";
import {
  Button,
  Pager,
  ResourceOf,
  Search,
  SortChoice,
  StateTag,
  Table,
  Tag,
  cell,
  listed,
  listenerText,
  pageNumber,
} from "./parts.js";

const PAGE = 100;
const EVERY_MS = 5000;
const MOST_RESOURCES = 4;
const MOST_CHANNELS = 2;
const SEARCHED = "Peer, client, listener, resource or link";

export function ConnectionsView({ params }) {
  const [unfolded, setUnfolded] = useState(new Set());
  const sort = { sort: params.get("sort") ?? "requests", order: params.get("order") ?? "desc" };
  const page = pageNumber(params);
  const query = { search: params.get("search"), ...sort, offset: (page - 1) * PAGE, limit: PAGE };
  const [answer, again] = useAnswer(() => get("connections", query), [JSON.stringify(query)], EVERY_MS);
  const toggle = (id) => {
    const next = new Set(unfolded);
    if (!next.delete(id)) next.add(id);
    setUnfolded(next);
  };
  const cells = (row) => cellsOf(row, { isUnfolded: unfolded.has(row.id), toggle: () => toggle(row.id) }, again);
  const below = (row) => unfolded.has(row.id) && html`<${Links} of=${row} />`;
  const table = { name: "connections", rows: answer?.rows ?? [], sort, cells, below, action: "Close" };
  return html`
    <div class="heading">
      <h1>Connections</h1>
      <p class="muted">${answer && `${count(answer.total)} open`}</p>
    </div>
    <div class="toolbar" role="search">
      <${Search} label="Search peers, clients, listeners, resources and links" placeholder=${SEARCHED} />
      <${SortChoice} name="connections" sort=${sort} />
    </div>
    <${Table} ...${table} empty=${answer && "No connection matches."} />
    <${Pager} page=${page} size=${PAGE} total=${answer?.total ?? 0} />
  `;
}

function cellsOf(row, fold, again) {
  const { peer, exempt, listener, tls, broker, stage, channels, resources } = row;
  const inAll = (total, perS) => ({ title: `${count(total)} in all`, class: perS > 0 ? "refusing" : "" });
  const waiting = channels.slice(0, MOST_CHANNELS);
  return {
    peer: html`<span class="nowrap">${peer}</span> ${exempt && html`<${Tag}>exempt<//>`}
      <div class="faint">${listenerText(listener)}${tls && ` (${tls})`}${broker && ` → ${broker}`}</div>`,
    client: html`<${Client} of=${row} />`,
    resources: cell(html`<${Resources} of=${row} fold=${fold} />`, { title: resources.join("\n") || null }),
    requests: cell(undefined, inAll(row.requests_total)),
    refused: cell(undefined, inAll(row.refused_total, row.refused_per_s)),
    state: html`<${StateTag} state=${stage.state} more=${stage.text} />
      ${waiting.map(({ kind, name, state }) => html`<div class="faint">${kind} ${name}: ${state}</div>`)}`,
    age: cell(undefined, { title: `since ${exact(row.opened_at)}` }),
    action: html`<${Button}
      isWrite
      manner="small"
      label="Close the connection of ${peer}"
      onclick=${() => askClose(row, again)}
    >
      Close…
    <//>`,
  };
}

/** What a client says it is. */
export function productOf({ product, language, version }) {
  return [product || language, version].filter(Boolean).join(" ");
}

function Client({ of: { client, certificate } }) {
  const user = client.user && `user ${client.user}`;
  const about = [user, certificate && `certificate ${certificate}`, productOf(client)].filter(Boolean).join(", ");
  const name = client.id || html`<span class="faint">unknown</span>`;
  return html`${name} ${about && html`<div class="faint">${about}</div>`}`;
}

function Resources({ of: row, fold }) {
  const shown = row.resources.slice(0, MOST_RESOURCES);
  const more = row.resources.length - shown.length + row.more_resources;
  return html`
    ${shown.length ? listed(shown.map((text) => html`<${ResourceOf} text=${text} />`)) : "–"}
    ${more > 0 && html`<span class="faint"> and ${count(more)} more</span>`}
    <${Fold} of=${row} ...${fold} />
  `;
}

/** The button that shows the links of a connection that has any. */
function Fold({ of: { links, more_links: more }, isUnfolded, toggle }) {
  const attached = links.length + more;
  if (!attached) return null;
  const waiting = links.filter((each) => each.waits_ms).length;
  const text = `${count(attached)} ${attached === 1 ? "link" : "links"}${waiting ? `, ${count(waiting)} waiting` : ""}`;
  return html`<div>
    <button type="button" class="fold" aria-expanded=${String(isUnfolded)} onClick=${toggle}>${text}</button>
  </div>`;
}

function askClose({ id, peer, client, in_flight: inFlight }, again) {
  const who = client.id || "The client";
  const what = `${who} loses what is in flight (${count(inFlight)}), and will most likely connect again.`;
  const words = { label: "Close it", manner: "danger" };
  askReason(`Close the connection of ${peer}`, html`<p>${what}</p>`, words, async (reason) => {
    await call("DELETE", `connections/${id}`, { query: { reason } });
    toast(`The connection of ${peer} was closed.`);
    again();
  });
}

/** The links of one connection. */
function Links({ of }) {
  const rows = of.links.map((each, index) => ({ ...each, key: index }));
  const cells = ({ name, sends, address, resource, refused }) => {
    const sendsTo = address ? `client sends to ${address}` : "client sends, each message says where";
    const about = sends ? sendsTo : `client receives${address && ` from ${address}`}`;
    return {
      name: html`${name || "–"}<div class="faint">${about}</div>`,
      resource: resource ? html`<${ResourceOf} text=${resource} />` : undefined,
      refused: cell(undefined, { class: refused ? "refusing" : "" }),
    };
  };
  return html`<${Table} name="links" label="Links of ${of.peer}" rows=${rows} cells=${cells} />
    ${of.more_links > 0 && html`<p class="faint">and ${count(of.more_links)} more</p>`}`;
}
