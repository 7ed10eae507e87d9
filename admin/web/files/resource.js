/**
 * The page of one resource: what becomes of its messages, who sends them and who was refused, the rule in force and
 * why, what a report recommends, and every change of its limit.
 */

import { call, get, limitPath } from "./api.js";
import { app, on, writing } from "./app.js";
import { changeHead, changeRow } from "./audit.js";
import { Chart } from "./chart.js";
import { askReason } from "./dialog.js";
import { fill, h, setAttribute, setText } from "./dom.js";
import { editLimit } from "./editor.js";
import { often, stateTag } from "./flow.js";
import { ago, bytes, count, duration, exact, number, percent, rate, serverNow, shortLimit, timeOfDay, wait } from "./format.js";
import { globOf, link, navigate } from "./router.js";
import { WINDOW, isOff, lastLimited, stateOf } from "./rows.js";
import { allSteps, reached, sumOf } from "./steps.js";
import { done, failed, quoted } from "./writes.js";

const HOUR_S = 3600;
/** The log is read in steps of a second up to here. */
const FINE_S = 900;
const LOG_EVERY_MS = 30_000;
const LIVE_EVERY_MS = 5000;
const SHOWN = 20;
/** Minutes, and seconds of a row of the table that says the same as the graph. */
const RANGES = /** @type {[number, number][]} */ ([
  [1, 5],
  [5, 30],
  [15, 60],
  [60, 300],
]);
const USUAL_RANGE = 15;
/** A report that is older says little about today. */
const OLD_S = 8 * 86_400;
const SERIES = [
  { label: "passed", name: "passed", filled: true },
  { label: "refused", name: "refused", filled: true },
  { label: "held", name: "held", dash: [2, 3] },
  { label: "limit", name: "limit", dash: [7, 4], stepped: true },
];
const REFUSED = /** @type {[string, string][]} */ ([
  ["Client", ""],
  ["User", ""],
  ["Product", ""],
  ["Producer group", ""],
  ["Refused", "number"],
  ["Share", "number"],
  ["Would be", "number"],
  ["Held", "number"],
  ["By", ""],
  ["Last", "nowrap"],
]);
const SENDERS = /** @type {[string, string][]} */ ([
  ["Client", ""],
  ["User", ""],
  ["Product", ""],
  ["Frames/s", "number"],
  ["Refused/s", "number"],
  ["State", "nowrap"],
  ["Connected for", "number"],
]);

export class ResourceView {
  title = "Resource";

  mount(/** @type {Element} */ main, /** @type {URLSearchParams} */ params) {
    this.main = main;
    this.offs = [on("change", () => this.load()), on("whoami", () => this.make())];
    const timers = [setInterval(() => this.idle() || this.loadLog(), LOG_EVERY_MS), setInterval(() => this.idle() || this.loadNow(), LIVE_EVERY_MS), setInterval(() => this.tick(), 1000)];
    this.unmount = () => {
      timers.forEach(clearInterval);
      this.offs?.forEach((off) => off());
      this.chart?.close();
      this.kind = this.name = "";
    };
    this.update(params);
  }

  update(/** @type {URLSearchParams} */ params) {
    this.params = params;
    const [kind, name] = [params.get("kind") ?? "", params.get("name") ?? ""];
    this.range = RANGES.some(([minutes]) => minutes === Number(params.get("minutes"))) ? Number(params.get("minutes")) : USUAL_RANGE;
    if (kind !== this.kind || name !== this.name) {
      [this.kind, this.name] = [kind, name];
      this.title = `${kind} ${name}`;
      this.make();
    } else {
      this.showRange();
      this.loadLog();
    }
  }

  /** @returns {Record<string, any>} which row of the table the stream brings. */
  query() {
    return { kind: this.kind, name: this.name, limit: 1 };
  }

  get path() {
    return limitPath(this.kind ?? "", globOf(this.name ?? ""));
  }

  idle() {
    return document.hidden || app.status !== "live";
  }

  /** Make all of it for another resource. */
  make() {
    this.chart?.close();
    /** @type {any} of the table */
    this.row = null;
    /** @type {any} the limit in force */
    this.entry = null;
    /** @type {any} of the last hour, and finer of the last minutes */
    this.hour = this.fine = null;
    /** @type {any[]} */
    this.changes = [];
    if (!this.kind || !this.name) {
      fill(/** @type {Element} */ (this.main), h("p", { class: "empty" }, "Which resource? ", h("a", { href: link("limits") }, "The table of limits"), " has all of them."));
      return;
    }
    this.flags = h("span", { class: "flags" });
    this.figures = h("dl", { class: "figures", "aria-label": "Now" });
    this.chart = new Chart("Messages per second", SERIES);
    this.sum = h("p", { class: "sum" });
    this.notes = h("p", { class: "muted" });
    this.minutes = h("tbody");
    this.ranges = RANGES.map(([minutes]) => h("button", { type: "button", class: "button small chip", "data-minutes": minutes, onclick: () => navigate("resource", /** @type {any} */ (this.params), { minutes: minutes === USUAL_RANGE ? "" : String(minutes) }) }, minutes === 60 ? "1 h" : `${minutes} min`));
    this.refused = h("div");
    this.rule = h("div");
    this.advice = h("div");
    this.senders = h("div");
    this.audit = h("tbody");
    this.changed = h("div", { class: "sheet", hidden: true }, h("table", { class: "audit cards-on-phones" }, changeHead(), this.audit));
    this.unchanged = h("p", { class: "muted" }, "Loading…");
    const write = writing();
    fill(
      /** @type {Element} */ (this.main),
      h("p", { class: "back" }, h("a", { href: link("limits") }, "‹ Limits")),
      h(
        "div",
        { class: "heading second" },
        h("h1", { class: "wrap" }, h("span", { class: "tag kind" }, this.kind), this.name),
        this.flags,
        h("span", { class: "spacer" }),
        h(
          "div",
          { class: "actions" },
          h("button", { type: "button", class: "button primary", "data-key": "edit", onclick: () => this.edit() }, write.disabled ? "Show the limit" : "Edit the limit…"),
          h("button", { type: "button", class: "button", "data-key": "reset", onclick: () => this.askReset(), ...write }, "Reset…"),
        ),
      ),
      this.figures,
      h(
        "section",
        { class: "panel wide", "aria-label": "Messages per second" },
        h("div", { class: "heading second" }, h("h2", {}, "Messages per second"), h("span", { class: "spacer" }), h("div", { class: "chips", role: "group", "aria-label": "Time range" }, this.ranges)),
        this.chart.element,
        this.sum,
        this.notes,
        h("details", { class: "as-table" }, h("summary", {}, "As a table"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Messages as a table" }, h("table", {}, h("thead", {}, h("tr", {}, ["From", "Passed", "Refused", "Dropped", "Held", "Limit"].map((text, index) => h("th", { scope: "col", class: index ? "number" : null }, text)))), this.minutes))),
      ),
      h("section", { class: "panel wide", "aria-label": "Who was refused" }, h("h2", {}, "Who was refused in the last hour"), this.refused),
      h("div", { class: "panels halves" }, h("section", { class: "panel", "aria-label": "Rule in force" }, h("h2", {}, "Rule in force, and why"), this.rule), h("section", { class: "panel", "aria-label": "Advice" }, h("h2", {}, "What a report advises"), this.advice)),
      h("section", { class: "panel wide", "aria-label": "Who is connected" }, h("h2", {}, "Who is connected and sends or receives it"), this.senders),
      h("section", { class: "panel wide", "aria-label": "Changes" }, h("h2", {}, "Changes of its limit"), this.changed, this.unchanged),
    );
    this.showRange();
    this.showFigures();
    this.load();
  }

  /** Whether an answer is still of what is shown. */
  is(/** @type {string | undefined} */ kind, /** @type {string | undefined} */ name) {
    return Boolean(kind) && kind === this.kind && name === this.name;
  }

  load() {
    if (!app.whoami || !this.kind || !this.name) return;
    this.loadLog();
    this.loadNow();
    this.loadLimit();
  }

  /** Ask, and show the answer unless another resource is shown by then. */
  async ask(/** @type {Promise<any>} */ answers, /** @type {(bodies: any) => void} */ show) {
    const { kind, name } = this;
    try {
      const bodies = await answers;
      if (this.is(kind, name)) show(bodies);
    } catch (error) {
      if (this.is(kind, name)) failed(error);
    }
  }

  loadLog() {
    const path = `history/${encodeURIComponent(this.kind ?? "")}/${encodeURIComponent(this.name ?? "")}`;
    const fine = (this.range ?? 0) * 60 <= FINE_S;
    this.ask(Promise.all([get(path, { seconds: HOUR_S }), fine ? get(path, { seconds: FINE_S }) : null]), ([hour, minutes]) => {
      this.hour = hour.body;
      this.fine = minutes?.body ?? null;
      this.showRefused();
      this.showFigures();
      this.showGraph();
    });
  }

  loadNow() {
    const { kind, name } = this;
    this.ask(Promise.all([get("explain", { kind, name }), get("connections", { resource: `${kind}:${name}`, sort: "requests", order: "desc", limit: SHOWN })]), ([why, connections]) => {
      this.showRule(why.body);
      this.showSenders(connections.body);
    });
  }

  loadLimit() {
    const { kind, name } = this;
    const advice = `advice/${encodeURIComponent(kind ?? "")}/${encodeURIComponent(name ?? "")}`;
    this.ask(Promise.all([get(this.path), get(advice)]), async ([limit, found]) => {
      this.entry = limit.body;
      this.showFigures();
      this.showAdvice(found.body);
      this.ask(this.changesOf([`limits/${kind}/${globOf(name ?? "")}`, ruleTarget(limit.body.rule)]), (changes) => this.showChanges(changes));
    });
  }

  /** @returns {Promise<any[]>} the changes of some targets, the latest first. */
  async changesOf(/** @type {string[]} */ targets) {
    const wanted = [...new Set(targets.filter(Boolean))];
    const pages = await Promise.all(wanted.map((target) => get("audit", { target, limit: 100 })));
    const found = pages.flatMap((page, index) => page.body.changes.filter((/** @type {any} */ change) => change.target === wanted[index]));
    return found.sort((one, other) => other.id - one.id).slice(0, SHOWN);
  }

  /** Take an event of the stream. */
  take(/** @type {any} */ data, /** @type {boolean} */ whole) {
    const key = `${this.kind}/${this.name}`;
    // Without a rule of its own, and never asked for, it has no row.
    if (whole || data.order?.includes(key) === false) this.row = null;
    for (const row of data.rows) {
      if (row.key === key) this.row = Object.assign(this.row ?? {}, row);
    }
    this.sampledS = Date.parse(data.sampled_at) / 1000;
    this.showFigures();
    this.showGraph();
  }

  tick() {
    for (const each of /** @type {NodeListOf<HTMLTimeElement>} */ (this.main?.querySelectorAll("time[data-ago]") ?? [])) setText(each, ago(each.dateTime));
  }

  edit() {
    editLimit(this.kind ?? "", globOf(this.name ?? ""));
  }

  askReset() {
    const what = h("p", {}, "What is owed, open breakers and fair shares are cleared: the buckets are full again. The limit stays as it is.");
    askReason(`Reset ${this.kind} ${this.name}`, what, { label: "Reset" }, async (reason, dialog) => {
      const { body } = await call("POST", `${this.path}:reset`, { query: { reason } });
      dialog.close();
      done(body);
    });
  }

  // --- what is shown

  showFigures() {
    const { row, entry } = this;
    const live = row?.live;
    const of = row ?? entry;
    if (!this.figures || !of) return;
    const perS = live?.messages_per_s;
    const action = of.limit?.action;
    const off = isOff(row ?? { kind: this.kind });
    const [words, manner, meaning] = stateOf(row);
    fill(
      /** @type {Element} */ (this.flags),
      off && h("span", { class: "tag bad", title: "Limiting is switched off: nothing of it is refused or held." }, "limiting off"),
      words && h("span", { class: `tag ${manner}`, title: meaning }, words),
      live?.would_refuse && !off && h("span", { class: "tag would", title: "A limit in shadow would refuse some of it now; all of it passes." }, "would refuse"),
      stateTag(live?.state),
    );
    const shown = [
      ["Limit", [shortLimit(of), action && action !== "reject" && h("span", { class: "tag" }, action), of.edit && h("span", { class: "tag edited" }, "edited")]],
      ["Passed", `${rate(perS ? reached(perS) : 0)}/s`],
      ["Refused", h("span", { class: perS?.refused ? "refusing" : "" }, `${rate(perS?.refused ?? 0)}/s`)],
      perS?.dropped > 0 && ["Dropped", h("span", { title: "Their clients left before they were decided." }, `${rate(perS.dropped)}/s`)],
      perS?.shadowed > 0 && ["Would refuse", h("span", { class: "would" }, `${rate(perS.shadowed)}/s`)],
      ["Used", percent(live?.used_ratio)],
      ["Last limited", this.lastLimited()],
      live?.wait_s > 0 && ["Would wait", wait(live.wait_s * 1e6)],
      (live?.oldest_wait_s ?? null) !== null && ["Oldest waiting", h("span", { title: "For how long the oldest message of it waits, held in memory or in the spool." }, duration(live.oldest_wait_s))],
      live?.spooled > 0 && ["In the spool", h("a", { href: link("flow") }, count(live.spooled))],
    ].filter(Boolean);
    fill(this.figures, shown.map((/** @type {any} */ [name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    setAttribute(this.figures, "title", `Rates and share: means of ${WINDOW}.`);
  }

  /** When something of it was last refused or held, by the counters or, before this start, by the log. */
  lastLimited() {
    const live = this.row?.live;
    const clients = (this.hour?.clients ?? []).filter((/** @type {any} */ each) => each.messages_refused || each.messages_held);
    const logged = clients.map((/** @type {any} */ each) => each.last_at).sort().at(-1) ?? "";
    const counted = lastLimited(live) ?? "";
    if (!counted && !logged) return this.hour?.known_from && this.hour.known_from < app.state?.started_at ? "not in the last hour" : "not since the start";
    const by = counted >= logged && counted === live?.last_refused_at && live.refused_by;
    return [moment(counted > logged ? counted : logged), by && h("span", { class: "muted" }, ` by ${by}`)];
  }

  showRange() {
    for (const button of this.ranges ?? []) setAttribute(button, "aria-pressed", String(Number(button.dataset.minutes) === this.range));
  }

  /** @returns {import("./steps.js").Step[]} what is known from a moment on. */
  steps(/** @type {number} */ fromS) {
    const past = this.fine ?? this.hour;
    const now = { startedS: Date.parse(app.state?.started_at ?? "") / 1000, sampledS: this.sampledS ?? 0, fromS, limit: this.rateNow() };
    const steps = allSteps(past, this.row, now);
    // Without traffic nothing tells the limit, but if nobody changed it, it was this one.
    const changed = this.changes?.some((change) => Date.parse(change.at) / 1000 > fromS) ?? true;
    if (!changed && steps.every((each) => each.limit === null)) steps.forEach((each) => (each.limit = now.limit));
    return steps;
  }

  /** @returns {number | null} the limit now, in messages per second. */
  rateNow() {
    const { limit } = this.row ?? this.entry ?? {};
    const limits = limit && !limit.exempt && limit.action !== "off" && limit.count !== "requests" && typeof limit.rate === "number";
    return limits && !app.state?.off.some((/** @type {string} */ kind) => ["all", this.kind].includes(kind)) ? limit.rate : null;
  }

  showGraph() {
    if (!this.chart || (!this.hour && !this.row)) return;
    const nowS = serverNow() / 1000;
    const [minutes, stepS] = /** @type {[number, number]} */ (RANGES.find(([each]) => each === this.range));
    const fromS = nowS - minutes * 60;
    const steps = this.steps(fromS);
    const drawn = steps.filter((each) => each.drawn);
    const asked = drawn.map((each) => (each.passed + each.refused + each.dropped) / lasted(each));
    const data = [drawn.map(middle), ...["passed", "refused"].map((end) => drawn.map((each) => /** @type {any} */ (each)[end] / lasted(each))), drawn.map((each) => each.held), drawn.map((each) => each.limit)];
    const [passed, refused, dropped] = sumOf(steps);
    const peak = asked.indexOf(Math.max(...asked));
    const refusedOf = refused ? ` (${percent(refused / (passed + refused + dropped))} of what was asked for)` : "";
    const droppedOf = dropped ? `, and ${count(dropped)} were dropped as their clients left` : "";
    const words = minutes === 60 ? "hour" : minutes === 1 ? "minute" : `${minutes} minutes`;
    const sinceS = steps[0]?.fromS ?? nowS;
    const isAll = sinceS - fromS < stepS || sinceS <= Date.parse(app.state?.started_at ?? "") / 1000 + stepS;
    const begin = isAll ? `In the last ${words}` : `Since ${timeOfDay(sinceS * 1000)}`;
    const most = drawn.length ? `; at most ${rate(asked[peak])}/s were asked for, at ${timeOfDay(data[0][peak] * 1000)}` : "";
    const text = steps.length ? `${begin} ${count(passed)} messages passed and ${count(refused)} were refused${refusedOf}${droppedOf}${most}.` : `Nothing is known of the last ${words} yet.`;
    setText(/** @type {Element} */ (this.sum), text);
    this.chart.show(data, fromS, nowS, text);
    setText(/** @type {Element} */ (this.notes), this.noted(data).join(" "));
    fill(
      /** @type {Element} */ (this.minutes),
      inSteps(steps, stepS).reverse().map(([atS, ok, no, gone, held, limit]) => h("tr", {}, h("th", { scope: "row" }, timeOfDay(/** @type {number} */ (atS) * 1000)), [count(ok), count(no), count(gone), count(held), limit === null ? "–" : `${number(limit)}/s`].map((value) => h("td", { class: "number" }, value)))),
    );
  }

  /** @returns {string[]} what must be known to read the graph. */
  noted(/** @type {(number | null)[][]} */ data) {
    const { hour } = this;
    const { limit } = this.row ?? this.entry ?? {};
    const notes = [];
    if (hour?.problem) notes.push(`The past cannot be read: ${hour.problem}.`);
    if (hour?.cut) notes.push(`The log is too large to be read whole: nothing older than ${hour.known_from ? timeOfDay(Date.parse(hour.known_from)) : "now"} is shown here.`);
    if (hour?.others_together) notes.push("There were more resources than are recorded one by one: some of its traffic may be missing.");
    if (limit?.count === "requests" && typeof limit.rate === "number") notes.push(`Its limit is of requests, ${number(limit.rate)}/s, and not drawn.`);
    if (limit?.bytes_per_s) notes.push(`Its limit of ${bytes(limit.bytes_per_s)}/s is not drawn.`);
    const top = Math.max(0, ...data.slice(1, 4).flatMap((values) => values.map((value) => value ?? 0)));
    const rateNow = this.rateNow();
    if (rateNow !== null && top && rateNow > 4 * top) notes.push(`The limit, ${number(rateNow)}/s, is far above the graph.`);
    return notes;
  }

  showRefused() {
    const { hour } = this;
    const place = /** @type {Element} */ (this.refused);
    if (!hour.clients.length) {
      fill(place, h("p", { class: "muted" }, hour.problem ? `Not known: ${hour.problem}.` : hour.known_from ? `Nobody, since ${timeOfDay(Date.parse(hour.known_from))}.` : "Not known: nothing is recorded of the last hour."));
      return;
    }
    const own = `${this.kind}:${this.name}`;
    const rows = hour.clients.slice(0, SHOWN).map((/** @type {any} */ each) => [
      h("a", { href: link("connections", { search: each.client }) }, each.client),
      each.user,
      each.product,
      each.producer_group,
      each.messages_refused ? count(each.messages_refused) : "",
      each.messages_refused ? percent(each.messages_refused / hour.messages_refused) : "",
      each.messages_shadowed ? count(each.messages_shadowed) : "",
      each.messages_held ? count(each.messages_held) : "",
      each.rules.length === 1 && each.rules[0] === own ? "" : each.rules.join(", "),
      moment(each.last_at),
    ]);
    const more = hour.clients.length - rows.length + hour.more_clients;
    fill(place, table("refused-clients", REFUSED, rows), more > 0 && h("p", { class: "pager" }, `and ${count(more)} more`));
  }

  showSenders(/** @type {any} */ body) {
    const place = /** @type {Element} */ (this.senders);
    if (!body.rows.length) {
      fill(place, h("p", { class: "muted" }, "No open connection has asked for it."));
      return;
    }
    const rows = body.rows.map((/** @type {any} */ each) => {
      const { client } = each;
      const stage = stateTag(each.stage.state, often(each.stage));
      return [
        [h("a", { href: link("connections", { search: each.peer }) }, client.id || each.peer), client.id && h("div", { class: "faint" }, each.peer)],
        client.user,
        [client.product || client.language, client.version].filter(Boolean).join(" "),
        rate(each.requests_per_s),
        each.refused_per_s > 0 ? h("span", { class: "refusing" }, rate(each.refused_per_s)) : rate(each.refused_per_s),
        [each.exempt && h("span", { class: "tag" }, "exempt"), stage ?? (each.exempt ? "" : "running")],
        duration(each.age_s),
      ];
    });
    const more = body.total - body.rows.length;
    const focused = place.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
    fill(place, table("senders", SENDERS, rows), more > 0 && h("p", { class: "pager" }, h("a", { href: link("connections", { search: `${this.kind}:${this.name}` }) }, `and ${count(more)} more`)), h("p", { class: "faint" }, "Frames and refusals are of the whole connection."));
    if (focused) place.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  }

  showRule(/** @type {any} */ answer) {
    fill(
      /** @type {Element} */ (this.rule),
      !answer.limiting && h("p", { class: "problem" }, "Limiting is switched off: nothing here limits."),
      answer.limits.length ? h("ol", { class: "explanation" }, answer.limits.map((/** @type {any} */ each) => explained(each, answer.by_credit))) : h("p", { class: "muted" }, "Nothing limits it."),
      answer.unapplied.map((/** @type {any} */ each) => h("p", { class: "muted" }, `${each.rule.name} does not apply: ${each.why}`)),
    );
  }

  showAdvice(/** @type {any} */ found) {
    const { recommendation: advised } = found;
    const report = found.made_at && h("p", { class: "muted" }, "Report made ", moment(found.made_at), found.until_at && `, of ${exact(found.from_at)} to ${exact(found.until_at)}`, found.age_s > OLD_S && [" ", h("span", { class: "tag warn" }, "old")]);
    if (!advised) {
      fill(/** @type {Element} */ (this.advice), h("p", { class: "muted" }, found.problem ? `${found.problem}.` : "The newest report has nothing about it."), report);
      return;
    }
    const { backtest } = advised;
    const apart = { lower: "lowers a limit that is far above all demand", raise: "raises a limit that was not near" }[/** @type {"lower"} */ (advised.only_with)];
    const put = found.edit && h("button", { type: "button", class: "button primary", "data-key": "advised", onclick: (/** @type {any} */ event) => this.putAdvised(found.edit, event.target), ...writing() }, `Put ${advisedText(advised)} in force`);
    const shown = advised.action === "keep" || advised.action === "unused" ? h("p", { class: "old-new" }, advised.action) : h("p", { class: "old-new" }, h("del", {}, limitOf(advised.count, advised.rate_per_s, advised.bytes_per_s)), h("span", { class: "faint", "aria-hidden": "true" }, " → "), h("span", { class: "visually-hidden" }, ", advised "), h("ins", {}, advisedText(advised)));
    fill(
      /** @type {Element} */ (this.advice),
      h("div", { class: "advised" }, shown, h("p", {}, h("span", { class: "tag" }, `confidence: ${advised.confidence}`), apart && [" ", h("span", { class: "tag warn" }, apart)])),
      h("p", {}, advised.evidence),
      backtest.current && backtest.recommended && h("p", {}, `Of the recorded demand ${refusedOf(backtest.current)} would be refused now, and ${refusedOf(backtest.recommended)} then.`),
      backtest.others_current && backtest.others && h("p", {}, `Of what all others asked for ${refusedOf(backtest.others_current)} would be refused now, and ${refusedOf(backtest.others)} then.`),
      put ? h("p", { class: "actions" }, put) : h("p", { class: "note" }, `Nothing to put in force: ${found.why_not}.`),
      advised.what_if.length > 0 &&
        h("details", {}, h("summary", {}, "What other limits would have refused"), h("table", {}, h("thead", {}, h("tr", {}, ["Limit", "Refused", "With retries"].map((text) => h("th", { scope: "col", class: "number" }, text)))), h("tbody", {}, advised.what_if.map((/** @type {any} */ each) => h("tr", {}, h("th", { scope: "row", class: "number" }, `${number(each.rate_per_s)}/s`), [each.refused_share, each.refused_share_uncorrected].map((value) => h("td", { class: "number" }, tenths(value)))))))),
      report,
    );
  }

  /** What is shown says what will happen, and a message offers to undo it: it is done at once. */
  async putAdvised(/** @type {any} */ edit, /** @type {HTMLButtonElement} */ button) {
    button.disabled = true;
    try {
      const { body } = await call("PATCH", this.path, { body: edit, etag: quoted(this.entry?.etag) });
      done(body);
    } catch (error) {
      failed(error);
      this.loadLimit();
    }
  }

  showChanges(/** @type {any[]} */ changes) {
    this.changes = changes;
    const body = /** @type {Element} */ (this.audit);
    const focused = body.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
    fill(body, changes.map(changeRow));
    if (focused) /** @type {any} */ (body.querySelector(`[data-key="${CSS.escape(focused)}"]`))?.focus();
    const [table, none] = /** @type {HTMLElement[]} */ ([this.changed, this.unchanged]);
    setText(none, "Nobody has changed it, nor the rule that holds for it.");
    table.hidden = !changes.length;
    none.hidden = changes.length > 0;
    this.showGraph();
  }
}

/** @returns {any} how long ago a moment was, kept up by `tick`. */
function moment(/** @type {string} */ at) {
  return h("time", { datetime: at, title: exact(at), "data-ago": true, class: "nowrap" }, ago(at));
}

/** @returns {string} what the audit trail calls the rule of that name. */
function ruleTarget(/** @type {string} */ rule) {
  const colon = rule.indexOf(":");
  return colon < 0 ? "" : `limits/${rule.slice(0, colon)}/${rule.slice(colon + 1)}`;
}

/** A table without the columns in which nobody has anything. */
function table(/** @type {string} */ name, /** @type {[string, string][]} */ columns, /** @type {any[][]} */ rows) {
  const shown = columns.map((_, index) => index).filter((index) => rows.some((row) => row[index] !== "" && row[index] !== null));
  return h(
    "div",
    { class: "sheet" },
    h(
      "table",
      { class: `${name} who cards-on-phones` },
      h("thead", {}, h("tr", {}, shown.map((index) => h("th", { scope: "col", class: columns[index][1] || null }, columns[index][0])))),
      h("tbody", {}, rows.map((row) => h("tr", {}, shown.map((index) => (index ? h("td", { "data-label": columns[index][0], class: `${columns[index][1]}${row[index] ? "" : " none"}` }, row[index] || h("span", { class: "faint" }, "–")) : h("th", { scope: "row", class: "wrap" }, row[0])))))),
    ),
  );
}

/**
 * Add up figures in longer steps.
 *
 * @returns {any[][]} begin, messages passed, refused, dropped and held, and the last limit, of each step in which something is known
 */
function inSteps(/** @type {import("./steps.js").Step[]} */ steps, /** @type {number} */ stepS) {
  /** @type {Map<number, any[]>} */
  const rows = new Map();
  for (const each of steps) {
    const begin = lasted(each) > 2 * stepS ? each.fromS : Math.floor(middle(each) / stepS) * stepS;
    const row = rows.get(begin) ?? [begin, 0, 0, 0, 0, null];
    [each.passed, each.refused, each.dropped, (each.held ?? 0) * lasted(each)].forEach((amount, index) => (row[index + 1] += amount));
    row[5] = each.limit ?? row[5];
    rows.set(begin, row);
  }
  return [...rows.values()];
}

function lasted(/** @type {import("./steps.js").Step} */ step) {
  return Math.max(step.untilS - step.fromS, 0.001);
}

function middle(/** @type {import("./steps.js").Step} */ step) {
  return (step.fromS + step.untilS) / 2;
}

/** One limit that its requests meet, with what it is and how it stands. */
function explained(/** @type {any} */ each, /** @type {boolean} */ byCredit) {
  const { state, usage } = each;
  const shadow = each.rule.action === "shadow";
  const facts = [];
  if (state) {
    const stored = Math.floor(state.stored_permits);
    facts.push(stored < 0 ? `${number(-stored)} permits owed` : `${number(stored)} permits in store`);
    if (state.open) facts.push(shadow ? "would refuse everything" : "breaker open");
    if (state.wait_s) facts.push(`${shadow ? "for" : "wait"} ${number(Math.round(state.wait_s * 1000) / 1000)} s`);
    if (state.last_refused_s !== null) {
      facts.push(`${shadow ? "would last have refused" : "last refused"} ${duration(state.last_refused_s)} ago`);
    }
    if (state.shares?.length) facts.push(`${count(state.shares.length)} fair shares`);
  }
  if (each.held) facts.push(byCredit ? `${each.held} waiting for credit` : `${each.held} held`);
  if (usage) facts.push(`used ${percent(usage.last_10s)} over 10 s, ${percent(usage.last_60s)} over a minute`);
  return h(
    "li",
    {},
    h("b", {}, `${each.kind} ${each.name}`),
    `: ${each.rule.limit}, ${each.rule.action}`,
    h("p", { class: "muted" }, `${each.rule.name} (${each.rule.source}): ${each.why}`),
    facts.length > 0 && h("p", {}, facts.join(" · ")),
  );
}

function limitOf(/** @type {string} */ counted, /** @type {number | null} */ perSecond, /** @type {number | null} */ size) {
  const parts = [];
  if (perSecond !== null) parts.push(`${number(perSecond)}${counted === "requests" ? " requests" : ""}/s`);
  if (size !== null) parts.push(`${bytes(size)}/s`);
  return parts.join(" + ") || "unlimited";
}

function advisedText(/** @type {any} */ advised) {
  const limit = limitOf(advised.count, advised.recommended_rate_per_s ?? advised.rate_per_s, advised.recommended_bytes_per_s ?? advised.bytes_per_s);
  return advised.fair_by ? `${limit}, shared by ${advised.fair_by.replace("_", " ")}` : limit;
}

function refusedOf(/** @type {any} */ replay) {
  return `${tenths(replay.refused_share)} (${count(replay.refused_messages)})`;
}

/** A share to a tenth of a per cent, as one limit differs from the next. */
function tenths(/** @type {number} */ of) {
  return of > 0 && of < 0.0005 ? "<0.1 %" : `${number(Math.round(of * 1000) / 10)} %`;
}
