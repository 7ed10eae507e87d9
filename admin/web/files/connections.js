/** The open connections: who they are, what they send to, how much; and the way to close one. */

import { call, get } from "./api.js";
import { app, listenerText, on, writing } from "./app.js";
import { debounced, fill, h } from "./dom.js";
import { askReason } from "./dialog.js";
import { often, stateTag } from "./flow.js";
import { bytes, count, duration, exact, rate, wait } from "./format.js";
import { navigate, resourceOf } from "./router.js";
import { pageOf, showPager, sorting } from "./tables.js";
import { toast } from "./toast.js";
import { failed } from "./writes.js";

const PAGE = 100;
const EVERY_MS = 5000;
const QUIET_MS = 200;
/** Label and class of each column of a connection's links. */
const LINK_COLUMNS = /** @type {[string, string][]} */ ([
  ["Link", ""],
  ["Resource", ""],
  ["Credit", "number"],
  ["Withheld", "number"],
  ["Used", "number"],
  ["Refused", "number"],
  ["Waits", "number"],
]);
/** Label, sort key and class of each column. */
const COLUMNS = /** @type {[string, string, string][]} */ ([
  ["Peer", "peer", ""],
  ["Client", "client", ""],
  ["Resources", "", ""],
  ["Frames/s", "requests", "number"],
  ["Refused/s", "refused", "number"],
  ["Bytes/s", "bytes", "number"],
  ["In flight", "in_flight", "number"],
  ["State", "state", ""],
  ["Spooled", "spooled", "number"],
  ["Age", "age", "number"],
]);

export class ConnectionsView {
  title = "Connections";

  mount(/** @type {Element} */ main, /** @type {URLSearchParams} */ params) {
    this.params = params;
    /** @type {Set<number>} the connections whose links are shown */
    this.unfolded = new Set();
    this.search = h("input", { type: "search", "aria-label": "Search peers, clients, listeners, resources and links", placeholder: "Peer, client, listener, resource or link", autocomplete: "off", spellcheck: "false" });
    this.search.addEventListener("input", debounced(() => navigate("connections", this.params, { search: this.search.value, page: "" }), QUIET_MS));
    this.sorting = sorting(
      COLUMNS.map(([label, key, name]) => ({ label, key, ascends: ["peer", "client"].includes(key), attributes: { class: name } })),
      () => this.query(),
      (changes) => navigate("connections", this.params, changes),
    );
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", hidden: true }, "No connection matches.");
    this.summary = h("p", { class: "muted" });
    this.pages = h("div", { class: "pager" });
    fill(
      main,
      h("div", { class: "heading" }, h("h1", {}, "Connections"), this.summary),
      h("div", { class: "toolbar", role: "search" }, h("div", { class: "search" }, this.search, h("kbd", { "aria-hidden": "true" }, "/")), this.sorting.choice),
      h("div", { class: "sheet" }, h("table", { class: "connections cards-on-phones" }, h("thead", {}, h("tr", {}, this.sorting.headers, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Close")))), this.body), this.empty),
      this.pages,
    );
    const timer = setInterval(() => !document.hidden && app.status === "live" && this.load(), EVERY_MS);
    const off = on("whoami", () => this.load());
    this.unmount = () => {
      clearInterval(timer);
      off();
    };
    this.update(params);
  }

  query() {
    return { search: this.params.get("search"), sort: this.params.get("sort") ?? "requests", order: this.params.get("order") ?? "desc", offset: (pageOf(this.params) - 1) * PAGE, limit: PAGE };
  }

  update(/** @type {URLSearchParams} */ params) {
    this.params = params;
    if (document.activeElement !== this.search) this.search.value = params.get("search") ?? "";
    this.sorting?.show();
    this.load();
  }

  async load() {
    if (!app.whoami) return;
    try {
      const { body } = await get("connections", this.query());
      this.show(body);
    } catch (error) {
      failed(error);
    }
  }

  show(/** @type {any} */ body) {
    // A row whose button has the focus is not taken away from under it.
    const focused = this.body.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
    fill(this.summary, `${count(body.total)} open`);
    this.shown = body;
    fill(this.body, body.rows.map((/** @type {any} */ each) => [this.row(each), this.unfolded.has(each.id) && linksRow(each)]));
    if (focused) this.body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    this.empty.hidden = body.rows.length > 0;
    const page = body.offset / PAGE + 1;
    const text = body.total > PAGE ? `page ${page} of ${Math.ceil(body.total / PAGE)}` : "";
    showPager(this.pages, text, { page, size: PAGE, total: body.total }, (changes) => navigate("connections", this.params, changes));
  }

  row(/** @type {any} */ each) {
    const { client } = each;
    const product = [client.product || client.language, client.version].filter(Boolean).join(" ");
    const about = [client.user && `user ${client.user}`, each.certificate && `certificate ${each.certificate}`, product].filter(Boolean).join(", ");
    const resources = each.resources.slice(0, 4);
    const more = each.resources.length - resources.length + each.more_resources;
    const perSecond = each.bytes_per_s ? each.bytes_per_s.client + each.bytes_per_s.broker : null;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("span", { class: "nowrap" }, each.peer), each.exempt && h("span", { class: "tag" }, "exempt"), h("div", { class: "faint" }, listenerText(each.listener), each.tls && ` (${each.tls})`, each.broker && ` → ${each.broker}`)),
      h("td", { "data-label": "Client", class: "wrap" }, client.id || h("span", { class: "faint" }, "unknown"), about && h("div", { class: "faint" }, about)),
      h("td", { "data-label": "Resources", class: "wrap", title: each.resources.join("\n") || null }, resources.length ? resources.map((/** @type {string} */ text, /** @type {number} */ index) => [index > 0 && ", ", resourceOf(text)]) : h("span", { class: "faint" }, "–"), more > 0 && h("span", { class: "faint" }, ` and ${count(more)} more`), this.fold(each)),
      h("td", { "data-label": "Frames/s", class: "number", title: `${count(each.requests_total)} in all` }, rate(each.requests_per_s)),
      h("td", { "data-label": "Refused/s", class: `number ${each.refused_per_s > 0 ? "refusing" : ""}`, title: `${count(each.refused_total)} in all` }, rate(each.refused_per_s)),
      h("td", { "data-label": "Bytes/s", class: "number" }, perSecond === null ? "–" : bytes(perSecond)),
      h("td", { "data-label": "In flight", class: "number" }, count(each.in_flight)),
      h("td", { "data-label": "State" }, stateTag(each.stage.state, often(each.stage)) ?? h("span", { class: "faint" }, "running"), each.channels.slice(0, 2).map((/** @type {any} */ stage) => h("div", { class: "faint" }, `${stage.kind} ${stage.name}: ${stage.state}`))),
      h("td", { "data-label": "Spooled", class: "number" }, each.spooled ? count(each.spooled) : h("span", { class: "faint" }, "0")),
      h("td", { "data-label": "Age", class: "number", title: `since ${exact(each.opened_at)}` }, duration(each.age_s)),
      h("td", { class: "edit-cell" }, h("button", { type: "button", class: "button small", "data-key": `close ${each.id}`, "aria-label": `Close the connection of ${each.peer}`, onclick: () => this.askClose(each), ...writing() }, "Close…")),
    );
  }

  /** The button that shows the links of a connection that has any. */
  fold(/** @type {any} */ each) {
    const attached = each.links.length + each.more_links;
    if (!attached) return null;
    const waiting = each.links.filter((/** @type {any} */ link) => link.waits_ms).length;
    const text = `${count(attached)} ${attached === 1 ? "link" : "links"}${waiting ? `, ${count(waiting)} waiting` : ""}`;
    const toggle = () => {
      if (!this.unfolded.delete(each.id)) this.unfolded.add(each.id);
      this.show(this.shown);
    };
    return h("div", {}, h("button", { type: "button", class: "fold", "aria-expanded": String(this.unfolded.has(each.id)), "data-key": `links ${each.id}`, onclick: toggle }, text));
  }

  askClose(/** @type {any} */ each) {
    const what = each.client.id ? `${each.client.id} loses what is in flight (${count(each.in_flight)}), and will most likely connect again.` : "The client loses what is in flight, and will most likely connect again.";
    askReason(`Close the connection of ${each.peer}`, h("p", {}, what), { label: "Close it", manner: "danger" }, async (reason, dialog) => {
      await call("DELETE", `connections/${each.id}`, { query: { reason } });
      dialog.close();
      toast(`The connection of ${each.peer} was closed.`);
      this.load();
    });
  }
}

/** The links of one connection, below it. */
function linksRow(/** @type {any} */ each) {
  const nobody = () => h("span", { class: "faint" }, "–");
  const row = (/** @type {any} */ link) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "wrap" }, link.name || nobody(), h("div", { class: "faint" }, link.sends ? (link.address ? `client sends to ${link.address}` : "client sends, each message says where") : `client receives${link.address && ` from ${link.address}`}`)),
      h("td", { "data-label": "Resource", class: "wrap" }, link.resource ? resourceOf(link.resource) : nobody()),
      h("td", { "data-label": "Credit", class: "number" }, count(link.credit)),
      h("td", { "data-label": "Withheld", class: "number" }, count(link.withheld)),
      h("td", { "data-label": "Used", class: "number" }, count(link.used)),
      h("td", { "data-label": "Refused", class: `number ${link.refused ? "refusing" : ""}` }, count(link.refused)),
      h("td", { "data-label": "Waits", class: "number" }, link.waits_ms ? wait(link.waits_ms * 1000) : nobody()),
    );
  const head = LINK_COLUMNS.map(([label, name]) => h("th", { scope: "col", class: name }, label));
  return h(
    "tr",
    { class: "links-row" },
    h(
      "td",
      { colspan: COLUMNS.length + 1 },
      h("table", { class: "links", "aria-label": `Links of ${each.peer}` }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, each.links.map(row))),
      each.more_links > 0 && h("p", { class: "faint" }, `and ${count(each.more_links)} more`),
    ),
  );
}
