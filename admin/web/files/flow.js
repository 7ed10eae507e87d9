/** What waits for what: the bottleneck in words, who waits, alarms, and what is put aside in the spool. */

import { call, get } from "./api.js";
import { app, listenerText, on, writing } from "./app.js";
import { askReason } from "./dialog.js";
import { fill, h, svg } from "./dom.js";
import { bytes, count, duration, exact, percent, rate } from "./format.js";
import { resourceLink, resourceOf } from "./router.js";
import { toast } from "./toast.js";
import { failed } from "./writes.js";

const EVERY_MS = 2000;
const MOST = 50;
/** What is said of each state, and how it looks. */
const STATES = /** @type {Record<string, [string, string, string]>} */ ({
  running: ["running", "", "Nothing stops it."],
  throttled: ["throttled", "", "A limit makes its messages wait."],
  flow: ["in flow", "", "It was stopped within the last seconds, since a later stage takes no more."],
  blocked: ["blocked", "bad", "An alarm stops it."],
});
/** Kinds of stages in the order in which messages go through them. */
const STAGES = /** @type {[string, string][]} */ ([
  ["connection", "Connections"],
  ["channel", "Channels"],
  ["resource", "Resources"],
  ["writer", "To the broker"],
]);
const RESOURCES = /** @type {[string, string][]} */ ([
  ["Resource", ""],
  ["Messages", "number"],
  ["Content", "number"],
  ["In memory", "number"],
  ["On disk", "number"],
  ["In/s", "number"],
  ["Out/s", "number"],
  ["Queues", "number"],
]);

const CONFIRMS = /** @type {[string, string][]} */ ([
  ["Destination", ""],
  ["Confirmed by", ""],
  ["Waiting", "number"],
  ["Oldest", "number"],
  ["Window", "number"],
  ["By consumers", "number"],
  ["By the broker", "number"],
  ["Published again", "number"],
  ["Refused", "number"],
]);
/** Why the broker confirms what consumers are to confirm. */
const REASONS = /** @type {Record<string, string>} */ ({
  no_consumer: "no consumer of it is connected through Sluice",
  auto_ack: "a consumer of it acknowledges nothing",
  behind: "its consumers do not keep up",
  falls_back: "messages fell back just now",
  no_gain: "the broker confirms nearly as soon",
  memory: "what waits takes all the memory that it may",
});

/** @returns {any} a state as a tag; nothing for one that is running. */
export function stateTag(/** @type {string | undefined} */ state, /** @type {string} */ more = "") {
  const [text, manner, meaning] = STATES[state ?? "running"] ?? [state, "", ""];
  if (!state || state === "running") return null;
  return h("span", { class: `tag ${manner}`, title: [meaning, more].filter(Boolean).join(" ") }, text);
}

export class FlowView {
  title = "Flow";

  mount(/** @type {Element} */ main) {
    this.findings = h("ul", { class: "findings" });
    this.stages = h("div", { class: "panels" });
    this.waiting = h("tbody");
    this.nobody = h("p", { class: "empty", hidden: true }, "No connection waits.");
    this.more = h("p", { class: "pager" });
    this.spool = h("div", {});
    this.resources = h("tbody");
    this.confirms = h("tbody");
    this.moreConfirms = h("p", { class: "pager" });
    this.confirmed = h(
      "section",
      { class: "panel wide", "aria-label": "Confirms", hidden: true },
      h("h2", {}, "Confirmed after consume"),
      h("div", { class: "sheet" }, h("table", { class: "confirms cards-on-phones" }, h("thead", {}, h("tr", {}, CONFIRMS.map(([label, name]) => h("th", { scope: "col", class: name || null }, label)))), this.confirms)),
      this.moreConfirms,
    );
    this.table = h(
      "div",
      { class: "sheet", hidden: true },
      h("table", { class: "spooled cards-on-phones" }, h("thead", {}, h("tr", {}, RESOURCES.map(([label, name]) => h("th", { scope: "col", class: name || null }, label)), h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Purge")))), this.resources),
    );
    fill(
      main,
      h("div", { class: "heading" }, h("h1", {}, "Flow")),
      h("section", { class: "panel wide", "aria-label": "Bottleneck" }, h("h2", {}, "Bottleneck"), this.findings),
      this.stages,
      h("section", { class: "panel wide" }, h("h2", {}, "Connections that wait"), h("div", { class: "sheet" }, h("table", { class: "waiting cards-on-phones" }, h("thead", {}, h("tr", {}, ["Stage", "State", "How often, how long", "Waits for"].map((text) => h("th", { scope: "col" }, text)))), this.waiting), this.nobody), this.more),
      this.confirmed,
      h("section", { class: "panel wide", "aria-label": "Spool" }, h("h2", {}, "Spool: what is put aside"), this.spool, this.table),
    );
    const timer = setInterval(() => !document.hidden && app.status === "live" && this.load(), EVERY_MS);
    const off = on("whoami", () => this.load());
    this.unmount = () => {
      clearInterval(timer);
      off();
    };
    this.load();
  }

  update() {}

  async load() {
    if (!app.whoami) return;
    try {
      const [flow, spool] = await Promise.all([get("flow", { limit: MOST }), get("spool", { limit: MOST })]);
      this.showFlow(flow.body);
      this.showSpool(spool.body);
    } catch (error) {
      failed(error);
    }
  }

  showFlow(/** @type {any} */ flow) {
    fill(this.findings, flow.findings.length ? flow.findings.map((/** @type {any} */ each) => h("li", {}, each.text)) : h("li", { class: "muted" }, flow.connections.length ? "None: connections waited only for moments." : "Nobody waits."));
    const states = STAGES.map(([kind, label]) => [label, flow.counts.filter((/** @type {any} */ each) => each.kind === kind && each.stages)]).filter(([, found]) => found.length);
    fill(
      this.stages,
      panel("States", [
        ...states.map(([label, found]) => [label, found.map((/** @type {any} */ each, /** @type {number} */ index) => [index ? ", " : "", `${count(each.stages)} ${STATES[each.state]?.[0] ?? each.state}`])]),
        ...(flow.store ? [["Spool's disk", [STATES[flow.store.state]?.[0] ?? flow.store.state, often(flow.store) && `; ${often(flow.store)}`]]] : []),
        ["Busy", `${percent(flow.busy_ratio)} of the last second`],
      ]),
      panel("Alarms", flow.alarms.map((/** @type {any} */ each) => [each.scarce, alarm(each)])),
    );
    fill(this.waiting, flow.connections.map(connectionRows));
    this.nobody.hidden = flow.connections.length > 0;
    fill(this.more, flow.more_connections > 0 && `and ${count(flow.more_connections)} more`);
    this.confirmed.hidden = !flow.confirms.length;
    fill(this.confirms, flow.confirms.map(confirmRow));
    fill(this.moreConfirms, flow.more_confirms > 0 && `and ${count(flow.more_confirms)} more`);
  }

  showSpool(/** @type {any} */ body) {
    const { holds, folder } = body;
    // A row whose button has the focus is not taken away from under it.
    const focused = this.resources.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
    this.table.hidden = !holds?.resources.length;
    if (!holds) {
      fill(this.spool, h("p", { class: "muted" }, folder.error ? `There is no spool: ${folder.error}.` : "There is no spool; what waits is held in memory."));
      fill(this.resources);
      return;
    }
    const messages = total(holds.messages);
    const counted = [
      [holds.lost_total, "lost on disk"],
      [holds.expired_total, "expired"],
      [holds.too_old_total, "too old"],
    ].filter(([amount]) => amount);
    fill(
      this.spool,
      holds.alarm && h("p", { class: "problem" }, `The disk takes no more: ${holds.alarm}. What comes is held in memory until it does.`),
      holds.stopped && h("p", { class: "problem warned" }, "Memory is full: clients whose messages would be put aside are not read until some is free."),
      picture(holds),
      h(
        "dl",
        { class: "facts" },
        [
          ["Messages", `${count(messages)} of ${bytes(total(holds.content_bytes))} in ${count(holds.queues)} queues`],
          ["Memory", gauge(holds.memory_bytes, holds.memory_limit_bytes)],
          ["Disk", gauge(holds.disk_bytes, holds.disk_limit_bytes)],
          ["Folder", folder.directory ?? "–"],
          ...(counted.length ? [["Since the start", counted.map(([amount, word]) => `${count(Number(amount))} ${word}`).join(", ")]] : []),
        ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
    );
    fill(
      this.resources,
      holds.resources.map((/** @type {any} */ each) => this.resourceRow(each)),
      holds.more_resources > 0 && h("tr", {}, h("td", { colspan: RESOURCES.length + 1, class: "faint" }, `and ${count(holds.more_resources)} more`)),
    );
    if (focused) this.resources.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  resourceRow(/** @type {any} */ each) {
    const { messages } = each;
    const cells = [count(total(messages)), bytes(total(each.content_bytes)), count((messages.alpha ?? 0) + (messages.beta ?? 0)), count((messages.gamma ?? 0) + (messages.delta ?? 0)), rate(each.in_per_s), rate(each.out_per_s), count(each.queues)];
    return h(
      "tr",
      {},
      h("th", { scope: "row", class: "wrap" }, h("span", { class: "tag kind" }, each.kind), resourceLink(each.kind, each.name), each.recovered > 0 && h("div", { class: "faint" }, `${count(each.recovered)} left by an earlier process`)),
      cells.map((text, index) => h("td", { "data-label": RESOURCES[index + 1][0], class: "number" }, text)),
      h("td", { class: "edit-cell" }, h("button", { type: "button", class: "button small danger-quiet", "data-key": `purge ${each.kind}/${each.name}`, "aria-label": `Purge what is put aside of ${each.kind} ${each.name}`, onclick: () => this.askPurge(each), ...writing() }, "Purge…")),
    );
  }

  askPurge(/** @type {any} */ each) {
    const what = `${count(total(each.messages))} messages are refused where their senders wait for an answer, and dropped where none do. This cannot be undone.`;
    askReason(`Purge what is put aside of ${each.kind} ${each.name}`, h("p", {}, what), { label: "Purge", manner: "danger" }, async (reason, dialog) => {
      const { body } = await call("DELETE", `spool/${encodeURIComponent(each.kind)}/${encodeURIComponent(each.name)}`, { query: { reason } });
      app.ownChanges.add(body.change);
      dialog.close();
      toast(`${each.kind} ${each.name}: ${count(body.refused)} refused, ${count(body.dropped)} dropped.`);
      this.load();
    });
  }
}

/** The rows of a connection: itself, then what of it waits. */
function connectionRows(/** @type {any} */ each) {
  return [each.connection, ...each.others].map((stage, index) =>
    h(
      "tr",
      { class: index ? "of-connection" : null },
      h("th", { scope: "row", class: "wrap" }, index ? resourceOf(`${stage.kind} ${stage.name}`) : [`connection ${stage.name || each.id}`, h("div", { class: "faint" }, listenerText(each.listener))]),
      h("td", { "data-label": "State" }, stateTag(stage.state) ?? "running"),
      h("td", { "data-label": "How often, how long" }, often(stage) || h("span", { class: "faint" }, "–")),
      h("td", { "data-label": "Waits for", class: "wrap" }, (stage.waits_for.length > 0 && stage.waits_for.map((/** @type {string} */ text, /** @type {number} */ at) => [at > 0 && ", ", resourceOf(text)])) || h("span", { class: "faint" }, "–")),
    ),
  );
}

/** What confirms messages for one destination. */
function confirmRow(/** @type {any} */ each) {
  const consumers = each.mode === "after_consume";
  const seconds = each.oldest_ms / 1000;
  const oldest = !each.pending ? "–" : seconds < 1 ? `${each.oldest_ms} ms` : seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds);
  const figures = [count(each.pending), oldest, count(each.window), count(each.after_consume_total), count(each.broker_total), count(each.persisted_total), count(each.nacked_total)];
  return h(
    "tr",
    {},
    h("th", { scope: "row", class: "wrap" }, h("span", { class: "tag kind" }, each.kind), resourceLink(each.kind, each.name)),
    h("td", { "data-label": CONFIRMS[1][0], class: "wrap" }, consumers ? "consumers" : [h("span", { class: "tag warn" }, "the broker"), ` ${REASONS[each.reason] ?? each.reason}`]),
    figures.map((text, index) => h("td", { "data-label": CONFIRMS[index + 2][0], class: "number" }, text)),
  );
}

/** @returns {string} how often a stage was stopped, and for how long. */
export function often(/** @type {any} */ stage) {
  const texts = [];
  for (const [word, times, seconds] of [["in flow", stage.flow_total, stage.flow_s], ["throttled", stage.throttled_total, stage.throttled_s], ["blocked", stage.blocked_total, stage.blocked_s]]) {
    if (times) texts.push(`${word} ${count(times)} ${times === 1 ? "time" : "times"}, ${seconds < 60 ? `${Math.round(seconds * 10) / 10} s` : duration(seconds)}`);
  }
  return texts.join("; ");
}

function alarm(/** @type {any} */ each) {
  const figures = each.bytes_now === null || each.bytes_limit === null ? "" : each.scarce === "memory" ? `${bytes(each.bytes_now)} used, alarm above ${bytes(each.bytes_limit)}` : `${bytes(each.bytes_now)} free, alarm below ${bytes(each.bytes_limit)}`;
  const before = each.total ? `; stood ${count(each.total)} ${each.total === 1 ? "time" : "times"}, ${duration(each.stood_s)}` : "";
  if (!each.stands) return `none${figures && `: ${figures}`}${before}`;
  return [h("span", { class: "tag bad", title: each.since ? `since ${exact(each.since)}` : null }, "stands"), ` ${each.text}`];
}

function panel(/** @type {string} */ title, /** @type {any[][]} */ facts) {
  return h("section", { class: "panel" }, h("h2", {}, title), h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

/** How full something is, as a bar and in figures. */
function gauge(/** @type {number} */ amount, /** @type {number} */ most) {
  const share = most ? Math.min(amount / most, 1) : 0;
  const fillOf = h("span", { class: "bar-fill" });
  fillOf.style.setProperty("width", `${share * 100}%`);
  return h("span", { class: `gauge ${share > 0.8 ? "near" : ""}` }, h("span", { class: "bar-track", "aria-hidden": "true" }, fillOf), `${bytes(amount)} of ${bytes(most)}`);
}

/** @returns {number} of all places together. */
function total(/** @type {Record<string, number>} */ byPlace) {
  return Object.values(byPlace).reduce((sum, each) => sum + each, 0);
}

/** Where the boxes of the picture are: left, top, the Greek letter, and what is where. */
const BOXES = /** @type {Record<string, [number, number, string, string]>} */ ({
  alpha: [112, 10, "α", "all in memory"],
  delta: [432, 10, "δ", "all on disk"],
  beta: [112, 172, "β", "only its index in memory"],
  gamma: [432, 172, "γ", "index in memory and on disk"],
});
const BOX = { width: 196, height: 96 };

/** The four places of the spool's messages, and how they go from one to another. */
function picture(/** @type {any} */ holds) {
  const resources = holds.resources;
  const sum = (/** @type {string} */ key) => resources.reduce((/** @type {number} */ all, /** @type {any} */ each) => all + each[key], 0);
  const inPerS = rate(sum("in_per_s"));
  const outPerS = rate(sum("out_per_s"));
  const boxes = Object.entries(BOXES).map(([place, [x, y, letter, where]]) => {
    const [messages, size] = [holds.messages[place] ?? 0, holds.content_bytes[place] ?? 0];
    return svg(
      "g",
      { class: `place ${messages ? "" : "none"}`, "data-place": place },
      svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6 }),
      svg("text", { x: x + 12, y: y + 27, class: "letter" }, letter),
      svg("text", { x: x + 34, y: y + 25, class: "faint" }, place),
      svg("text", { x: x + 12, y: y + 54, class: "amount" }, `${count(messages)} messages`),
      svg("text", { x: x + 12, y: y + 71 }, bytes(size)),
      svg("text", { x: x + 12, y: y + 87, class: "faint" }, where),
    );
  });
  const arrow = (/** @type {string} */ path, /** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ label, /** @type {string} */ anchor = "middle") => [
    svg("path", { d: path, class: "way", "marker-end": "url(#way-head)" }),
    svg("text", { x, y, "text-anchor": anchor, class: "way-text" }, label),
  ];
  const said = Object.keys(BOXES).map((place) => `${place} ${count(holds.messages[place] ?? 0)}`);
  return h(
    "div",
    { class: "scroll" },
    svg(
      "svg",
      { class: "places", viewBox: "0 0 644 284", role: "img", "aria-label": `messages by place: ${said.join(", ")}` },
      svg("defs", {}, svg("marker", { id: "way-head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { d: "M0 0L8 4L0 8z", class: "way-head" }))),
      arrow("M4 36H110", 56, 28, `in ${inPerS}/s`),
      arrow("M112 80H6", 56, 96, `out ${outPerS}/s`),
      arrow("M308 36H430", 368, 28, `written ${count(holds.written_total)}`),
      arrow("M432 80H310", 368, 96, `read ${count(holds.read_total)}`),
      // What is large is asked about by its index; its content is read when it may go.
      svg("rect", { x: 100, y: 160, width: 540, height: 120, rx: 10, class: "large" }),
      svg("text", { x: 370, y: 224, "text-anchor": "middle", class: "way-text" }, "large, next to go"),
      arrow("M530 106V158", 540, 137, "index", "start"),
      arrow("M210 160V108", 220, 137, "content", "start"),
      boxes,
    ),
  );
}
