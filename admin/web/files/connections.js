import { call, get } from "./api.js";
import { toast, useAnswer } from "./app.js";
import { askReason } from "./dialogs.js";
import { count, exact } from "./format.js";
import { html, useState } from "./html.js";
import {
  Button,
  Fold,
  More,
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
const SHOWN_RESOURCES = 4;
const SHOWN_CHANNELS = 2;

export function ConnectionsView({ params }) {
  const [unfolded, setUnfolded] = useState([]);
  const sort = { sort: params.get("sort") ?? "requests", order: params.get("order") ?? "desc" };
  const page = pageNumber(params);
  const query = { search: params.get("search"), ...sort, offset: (page - 1) * PAGE, limit: PAGE };
  const [answer, again] = useAnswer(() => get("connections", query), [JSON.stringify(query)], EVERY_MS);
  const foldOf = ({ id }) => {
    const isOpen = unfolded.includes(id);
    const others = unfolded.filter((each) => each !== id);
    return { isOpen, onclick: () => setUnfolded(isOpen ? others : [...others, id]) };
  };
  const cells = (row) => cellsOf(row, foldOf(row), again);
  const below = (row) => foldOf(row).isOpen && html`<${Links} of=${row} />`;
  const table = { name: "connections", rows: answer?.rows ?? [], sort, cells, below, action: "Close" };
  return html`
    <div class="heading">
      <h1>Connections</h1>
      <p class="muted">${answer && `${count(answer.total)} open`}</p>
    </div>
    <div class="toolbar" role="search">
      <${Search}
        label="Search peers, clients, listeners, resources and links"
        placeholder="Peer, client, listener, resource or link"
      />
      <${SortChoice} name="connections" sort=${sort} />
    </div>
    <${Table} ...${table} empty=${answer ? "No connections match." : "Loading…"} />
    <${Pager} page=${page} size=${PAGE} total=${answer?.total ?? 0} />
  `;
}

function cellsOf(row, fold, again) {
  const { peer, exempt, listener, tls, broker, stage, channels } = row;
  const inAll = (total, perS) => ({ title: `${count(total)} in total`, class: perS > 0 ? "refusing" : "" });
  const waiting = channels.slice(0, SHOWN_CHANNELS);
  const label = `Close the connection of ${peer}`;
  const close = () => askClose(row, again);
  return {
    peer: html`<span class="nowrap">${peer}</span> ${exempt && html`<${Tag}>exempt<//>`}
      <div class="faint">${listenerText(listener)}${tls && ` (${tls})`}${broker && ` → ${broker}`}</div>`,
    client: html`<${Client} of=${row} />`,
    resources: cell(html`<${Resources} of=${row} fold=${fold} />`, { title: row.resources.join("\n") || null }),
    requests: cell(undefined, inAll(row.requests_total)),
    refused: cell(undefined, inAll(row.refused_total, row.refused_per_s)),
    state: html`<${StateTag} state=${stage.state} more=${stage.text} />
      ${waiting.map(({ kind, name, state }) => html`<div class="faint">${kind} ${name}: ${state}</div>`)}`,
    age: cell(undefined, { title: `since ${exact(row.opened_at)}` }),
    action: html`<${Button} isWrite manner="small" label=${label} onclick=${close}>Close…<//>`,
  };
}

export function productOf({ product, language, version }) {
  return [product || language, version].filter(Boolean).join(" ");
}

function Client({ of: { client, certificate } }) {
  const user = client.user && `user ${client.user}`;
  const about = [user, certificate && `certificate ${certificate}`, productOf(client)].filter(Boolean).join(", ");
  return html`${client.id || html`<span class="faint">unknown</span>`}
  ${about && html`<div class="faint">${about}</div>`}`;
}

function Resources({ of: { resources, more_resources: further, links, more_links: moreLinks }, fold }) {
  const shown = resources.slice(0, SHOWN_RESOURCES);
  const more = resources.length - shown.length + further;
  const attached = links.length + moreLinks;
  const waiting = links.filter((each) => each.waits_ms).length;
  const text = `${count(attached)} ${attached === 1 ? "link" : "links"}${waiting ? `, ${count(waiting)} waiting` : ""}`;
  return html`
    ${shown.length ? listed(shown.map((each) => html`<${ResourceOf} text=${each} />`)) : "–"}
    ${more > 0 && html`<span class="faint"> and ${count(more)} more</span>`}
    ${attached > 0 && html`<div><${Fold} ...${fold}>${text}<//></div>`}
  `;
}

function askClose({ id, peer, client, in_flight: inFlight }, again) {
  const what = `${client.id || "The client"} will lose ${count(inFlight)} requests in flight and probably reconnect.`;
  const words = { label: "Close connection", manner: "danger" };
  askReason(`Close the connection of ${peer}`, html`<p>${what}</p>`, words, async (reason) => {
    await call("DELETE", `connections/${id}`, { query: { reason } });
    toast(`The connection of ${peer} was closed.`);
    again();
  });
}

function Links({ of }) {
  const rows = of.links.map((each, index) => ({ ...each, key: index }));
  const cells = ({ name, sends, address, resource, refused }) => {
    const sendsTo = address ? `client sends to ${address}` : "client sends, to the address in each message";
    const about = sends ? sendsTo : `client receives${address && ` from ${address}`}`;
    return {
      name: html`${name || "–"}<div class="faint">${about}</div>`,
      resource: resource ? html`<${ResourceOf} text=${resource} />` : undefined,
      refused: cell(undefined, { class: refused ? "refusing" : "" }),
    };
  };
  return html`<${Table} name="links" label="Links of ${of.peer}" rows=${rows} cells=${cells} />
    <${More} of=${of.more_links} />`;
}
