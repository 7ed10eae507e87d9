/** The rules in the order in which they are tried, and the default of each kind. */

import { get } from "./api.js";
import { app, on, writing } from "./app.js";
import { editLimit } from "./editor.js";
import { fill, h } from "./dom.js";
import { select } from "./dialog.js";
import { ago, count, exact, left, limitText, shortLimit } from "./format.js";
import { revertAll } from "./reverts.js";
import { navigate } from "./router.js";
import { failed } from "./writes.js";

const PAGE = 100;

export class RulesView {
  title = "Rules & defaults";

  mount(/** @type {Element} */ main, /** @type {URLSearchParams} */ params) {
    this.defaults = h("ul", { class: "cards" });
    this.kind = select([["", "All kinds"]], "", { "aria-label": "Kind" });
    this.kind.addEventListener("change", () => navigate("rules", this.params, { kind: this.kind.value, page: "" }));
    this.body = h("tbody");
    this.summary = h("p", { class: "muted" });
    this.pages = h("div", { class: "pager" });
    fill(
      main,
      h("div", { class: "heading" }, h("h1", {}, "Defaults"), h("p", { class: "muted" }, "What holds for each name that no other rule matches.")),
      this.defaults,
      h("div", { class: "heading second" }, h("h1", {}, "Rules"), this.summary, h("span", { class: "spacer" }), this.kind, h("button", { type: "button", class: "button", onclick: revertAll, ...writing() }, "Revert all edits…")),
      h(
        "div",
        { class: "sheet" },
        h(
          "table",
          { class: "rules cards-on-phones" },
          h("thead", {}, h("tr", {}, ["#", "Rule", "Limit", "Above it", "Hours", "Written", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "visually-hidden" }, "Edit"))))),
          this.body,
        ),
      ),
      this.pages,
    );
    this.params = params;
    const offs = [on("change", () => this.load()), on("whoami", () => this.load())];
    this.unmount = () => offs.forEach((off) => off());
    this.update(params);
  }

  update(/** @type {URLSearchParams} */ params) {
    this.params = params;
    this.load();
  }

  async load() {
    if (!app.whoami) return;
    const page = Math.max(1, Number(this.params.get("page")) || 1);
    const offset = (page - 1) * PAGE;
    try {
      const [defaults, rules] = await Promise.all([get("defaults"), get("rules", { offset, limit: PAGE, kind: this.params.get("kind") })]);
      this.showDefaults(defaults.body.defaults);
      this.showRules(rules.body, page);
    } catch (error) {
      failed(error);
    }
  }

  showDefaults(/** @type {any[]} */ defaults) {
    const kinds = defaults.map((each) => each.kind);
    fill(this.kind, h("option", { value: "" }, "All kinds"), [...kinds, "total"].map((kind) => h("option", { value: kind }, kind)));
    this.kind.value = this.params.get("kind") ?? "";
    fill(
      this.defaults,
      defaults.map((each) =>
        h(
          "li",
          { class: "card" },
          h("h2", {}, each.kind),
          h("p", { class: "big" }, each.rule ? shortLimit(each) : "unlimited"),
          h("p", { class: "muted" }, each.edit ? edited(each) : place(each.source || "no rule")),
          h("button", { type: "button", class: "button small", "data-key": `default ${each.kind}`, "aria-label": `${app.canWrite() ? "Edit" : "Show"} the default of ${each.kind}`, onclick: () => editLimit(each.kind, "*") }, app.canWrite() ? "Edit" : "Show"),
        ),
      ),
    );
  }

  showRules(/** @type {any} */ body, /** @type {number} */ page) {
    fill(this.summary, `${count(body.total)}, in the order in which they are tried: the most specific name first`);
    fill(
      this.body,
      body.rows.map((/** @type {any} */ row) => {
        const [kind, name] = row.shared ? ["total", `${row.kind}:${row.pattern}`] : [row.kind, row.pattern];
        return h(
          "tr",
          {},
          h("td", { class: "faint position", "data-label": "#" }, row.position + 1),
          h("th", { scope: "row", class: "rule" }, h("span", { class: "tag kind" }, kind), h("span", { class: "wrap" }, name), !row.holds && h("span", { class: "tag" }, "not now")),
          h("td", { "data-label": "Limit" }, shortLimit(row)),
          h("td", { "data-label": "Above it" }, row.action),
          h("td", { class: row.hours ? "" : "faint", "data-label": "Hours" }, row.hours ?? "always"),
          h("td", { class: "muted wrap", "data-label": "Written" }, place(row.source)),
          h("td", { class: "edit-cell" }, h("button", { type: "button", class: "button small", "data-key": `rule ${kind}/${name}`, "aria-label": `${app.canWrite() ? "Edit" : "Show"} the limit of ${kind} ${name}`, onclick: () => editLimit(kind, name) }, app.canWrite() ? "Edit" : "Show")),
        );
      }),
    );
    const step = (/** @type {string} */ label, /** @type {number} */ to, /** @type {boolean} */ possible) =>
      h("button", { type: "button", class: "button small", disabled: !possible, onclick: () => navigate("rules", this.params, { page: to > 1 ? String(to) : "" }) }, label);
    fill(this.pages, body.total > PAGE && [h("span", {}, `page ${page} of ${Math.ceil(body.total / PAGE)}`), step("‹ Previous", page - 1, page > 1), step("Next ›", page + 1, page * PAGE < body.total)]);
  }
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
