/** All rules in one table: an operator's, then the default of each kind, and folded what is Sluice's own. */

import { get } from "./api.js";
import { app, onAny, writing } from "./app.js";
import { editLimit } from "./editor.js";
import { fill, h } from "./dom.js";
import { select } from "./dialog.js";
import { FIELDS } from "./fields.js";
import { ago, count, exact, left, limitText, shortLimit } from "./format.js";
import { revertAll } from "./reverts.js";
import { nameOf, navigate, resourceLink } from "./router.js";
import { pageOf, showPager } from "./tables.js";
import { failed } from "./writes.js";

const PAGE = 100;
/** Rows of an answer at most. */
const MOST = 500;
/** What the API calls the source of rules that nobody wrote. */
const BUILT_IN = "built-in";
/** And where the default of a kind comes from that has none. */
const UNWRITTEN = "default";
const COLUMNS = ["Rule", "Limit", "Above it", "Hours", "Written", ""];

export class RulesView {
  title = "Rules";

  mount(/** @type {Element} */ main, /** @type {URLSearchParams} */ params) {
    this.kind = select([["", "All kinds"]], "", { "aria-label": "Kind" });
    this.kind.addEventListener("change", () => navigate("rules", this.params, { kind: this.kind.value, page: "" }));
    this.table = h("table", { class: "rules cards-on-phones" });
    this.summary = h("p", { class: "muted" });
    this.pages = h("div", { class: "pager" });
    this.unfolded = false;
    fill(
      main,
      h("div", { class: "heading second" }, h("h1", {}, "Rules"), this.summary, h("span", { class: "spacer" }), this.kind, h("button", { type: "button", class: "button", onclick: exportLimits }, "Export"), h("button", { type: "button", class: "button", onclick: revertAll, ...writing() }, "Revert all edits…")),
      h("div", { class: "sheet" }, this.table),
      this.pages,
    );
    this.params = params;
    this.unmount = onAny(["change", "whoami"], () => this.load());
    this.update(params);
  }

  update(/** @type {URLSearchParams} */ params) {
    this.params = params;
    this.load();
  }

  async load() {
    if (!app.whoami) return;
    const page = pageOf(this.params);
    const offset = (page - 1) * PAGE;
    try {
      const [defaults, rules] = await Promise.all([get("defaults"), get("rules", { offset, limit: PAGE, kind: this.params.get("kind") })]);
      this.showKinds(defaults.body.defaults);
      this.showRules(rules.body, defaults.body.defaults, page);
    } catch (error) {
      failed(error);
    }
  }

  showKinds(/** @type {any[]} */ defaults) {
    const kinds = defaults.map((each) => each.kind);
    fill(this.kind, h("option", { value: "" }, "All kinds"), [...kinds, "total"].map((kind) => h("option", { value: kind }, kind)));
    this.kind.value = this.params.get("kind") ?? "";
  }

  showRules(/** @type {any} */ body, /** @type {any[]} */ defaults, /** @type {number} */ page) {
    const shown = this.params.get("kind") ?? "";
    const isDefault = (/** @type {any} */ row) => row.pattern === "*" && !row.shared && !row.hours;
    const entries = new Map(defaults.map((each) => [each.kind, each]));
    const standard = body.rows.filter(isDefault);
    const own = body.rows.filter((/** @type {any} */ row) => !isDefault(row) && row.source !== BUILT_IN);
    const builtIn = body.rows.filter((/** @type {any} */ row) => !isDefault(row) && row.source === BUILT_IN);
    const isLast = page * PAGE >= body.total;
    const without = isLast ? defaults.filter((each) => each.source === UNWRITTEN && (!shown || each.kind === shown)) : [];
    fill(this.summary, `${count(body.total)} ${body.total === 1 ? "rule" : "rules"}. The most specific one that matches a name applies, and shared ones as well.`);
    const fold = h("button", { type: "button", class: "fold", "aria-expanded": String(this.unfolded), "data-key": "fold" }, `Sluice's own (${count(builtIn.length)})`);
    const folded = h("tbody", { hidden: !this.unfolded }, builtIn.map((/** @type {any} */ row) => ruleRow(row)));
    fold.addEventListener("click", () => {
      this.unfolded = !this.unfolded;
      folded.hidden = !this.unfolded;
      fold.setAttribute("aria-expanded", String(this.unfolded));
    });
    const focused = this.table.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
    fill(
      this.table,
      h("thead", {}, h("tr", {}, COLUMNS.map((text) => h("th", { scope: "col" }, text || h("span", { class: "visually-hidden" }, "Edit"))))),
      h("tbody", {}, own.map((/** @type {any} */ row) => ruleRow(row))),
      standard.length + without.length > 0 && [
        group("Defaults, for each name that no other rule matches"),
        h("tbody", {}, standard.map((/** @type {any} */ row) => ruleRow(row, entries.get(row.kind))), without.map((entry) => ruleRow(unlimited(entry), entry))),
      ],
      builtIn.length > 0 && [group(fold), folded],
    );
    if (focused) this.table.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    const text = body.total > PAGE ? `page ${page} of ${Math.ceil(body.total / PAGE)}` : "";
    showPager(this.pages, text, { page, size: PAGE, total: body.total }, (changes) => navigate("rules", this.params, changes));
  }
}

/** A line that says what comes below it. */
function group(/** @type {any} */ heading) {
  return h("tbody", { class: "group" }, h("tr", {}, h("th", { scope: "rowgroup", colspan: COLUMNS.length }, heading)));
}

/** The row of a kind that nobody wrote a default for. */
function unlimited(/** @type {any} */ entry) {
  return { kind: entry.kind, pattern: "*", limit: entry.limit, limit_text: "unlimited", action: "–", hours: null, holds: true, source: "no rule" };
}

function ruleRow(/** @type {any} */ row, /** @type {any} */ entry = null) {
  const [kind, name] = row.shared ? ["total", `${row.kind}:${row.pattern}`] : [row.kind, row.pattern];
  return h(
    "tr",
    {},
    h("th", { scope: "row", class: "rule" }, h("span", { class: "tag kind" }, kind), h("span", { class: "wrap" }, resourceLink(kind, nameOf(name), name)), !row.holds && h("span", { class: "tag" }, "not now")),
    h("td", { "data-label": "Limit" }, shortLimit(row), row.limit?.confirm === "after_consume" && [" ", h("span", { class: "tag", title: "The acks of consumers confirm what is published." }, "confirmed by consumers")]),
    h("td", { "data-label": "Above it" }, row.limit?.exempt ? "–" : row.action),
    h("td", { class: row.hours ? "" : "faint", "data-label": "Hours" }, row.hours ?? "always"),
    h("td", { class: "muted wrap", "data-label": "Written" }, entry?.edit ? edited(entry) : place(row.source)),
    h("td", { class: "edit-cell" }, h("button", { type: "button", class: "button small", "data-key": `rule ${kind}/${name}`, "aria-label": `${app.canWrite() ? "Edit" : "Show"} ${name === "*" ? `the default of ${kind}` : `the limit of ${kind} ${name}`}`, onclick: () => editLimit(kind, name) }, app.canWrite() ? "Edit" : "Show")),
  );
}

/** Save the limits in force as a configuration file, as `sluice limits export` prints them. */
async function exportLimits() {
  /** @type {any[]} */
  const rules = [];
  try {
    for (let total = 1; rules.length < total; ) {
      const { body } = await get("rules", { offset: rules.length, limit: MOST });
      rules.push(...body.rows);
      total = body.rows.length ? body.total : 0;
    }
  } catch (error) {
    failed(error);
    return;
  }
  const off = app.state?.off ?? [];
  const lines = [`# Limits in force at ${location.host}.`, ...off.filter((/** @type {string} */ kind) => kind !== "all").map((/** @type {string} */ kind) => `# Switched off, which a file cannot say: ${kind}`)];
  if (off.includes("all")) lines.push("limiting = false");
  // What is built in comes by itself, apart from the rates of the kinds.
  const written = rules.filter((each) => each.source !== UNWRITTEN && (!each.source.startsWith(BUILT_IN) || each.pattern === "*"));
  for (const rule of written) {
    const table = { kind: rule.kind, name: rule.pattern, ...(rule.shared && { shared: true }), ...fieldsIn(rule.limit) };
    lines.push("", "[[limits]]", ...Object.entries(table).map(([key, value]) => `${key} = ${JSON.stringify(value)}`));
  }
  const url = URL.createObjectURL(new Blob([lines.join("\n"), "\n"], { type: "application/toml" }));
  h("a", { href: url, download: "limits.toml" }).click();
  URL.revokeObjectURL(url);
}

/** @returns {Record<string, any>} the fields of a limit that a file has to say. */
function fieldsIn(/** @type {Record<string, any>} */ limit) {
  const said = FIELDS.filter((each) => (limit[each.key] ?? null) !== null && limit[each.key] !== each.otherwise && (!each.onlyWith || limit[each.onlyWith[0]] === each.onlyWith[1]));
  const fields = Object.fromEntries(said.map((each) => [each.key, limit[each.key]]));
  const needs = !fields.bytes_per_s && !fields.exempt && fields.action !== "off";
  const rate = limit.rate ?? (needs ? "unlimited" : null);
  return rate === null ? fields : { rate, ...fields };
}

/** Where a rule is written: the file's name, the whole path on hover. */
function place(/** @type {string} */ source) {
  return h("span", { title: source }, source.slice(source.lastIndexOf("/") + 1));
}

function edited(/** @type {any} */ entry) {
  const { edit, configured } = entry;
  return [
    h("span", { class: "tag edited" }, "edited"),
    h("span", { title: exact(edit.at) }, ` by ${edit.by}, ${ago(edit.at)}`),
    edit.expires_at && ` · ${left(edit.expires_at)}`,
    configured && ` · file: ${limitText(configured.limit)}`,
  ];
}
