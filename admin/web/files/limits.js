/** The main view: every resource with its limit and its figures, live; only what is on screen travels. */

import { app, announce, on, writing } from "./app.js";
import { debounced, fill, h, setAttribute, setText } from "./dom.js";
import { select } from "./dialog.js";
import { addLimit, editLimit } from "./editor.js";
import { count } from "./format.js";
import { revertAll } from "./reverts.js";
import { navigate, place } from "./router.js";
import { COLUMNS, WINDOW, rowView } from "./rows.js";
import { pageOf, showPager, sorting } from "./tables.js";

const PAGE = 50;
const QUIET_MS = 150;
/** A finger leaves `:hover` behind where it last touched. */
const pointing = matchMedia("(hover: hover)");
const DEFAULTS = { sort: "refused", order: "desc" };
/** In the address, for people, and for the API; the last ones are shown only when there are any. */
const FILTERS = /** @type {[string, string, string, boolean][]} */ ([
  ["limited", "Limited", "limited", true],
  ["near", "Near limit", "near", true],
  ["edited", "Edited", "overridden", true],
  ["shadowed", "Would refuse", "shadowed", false],
]);

export class LimitsView {
  title = "Limits";

  constructor() {
    /** @type {Map<string, any>} */
    this.rows = new Map();
    /** @type {Map<string, import("./rows.js").RowView>} */
    this.views = new Map();
    /** @type {string[]} */
    this.order = [];
    /** @type {string[]} */
    this.kinds = [];
    this.total = 0;
    this.params = new URLSearchParams();
    /** @type {any} */
    this.editor = null;
  }

  mount(/** @type {Element} */ main, /** @type {URLSearchParams} */ params) {
    this.search = h("input", { type: "search", "aria-label": "Search names", placeholder: "Search names", autocomplete: "off", spellcheck: "false" });
    this.search.addEventListener("input", debounced(() => this.go({ search: this.search.value, page: "" }), QUIET_MS));
    this.kind = select([["", "All kinds"]], "", { "aria-label": "Kind" });
    this.kind.addEventListener("change", () => this.go({ kind: this.kind.value, page: "" }));
    this.chips = FILTERS.map(([key, label, , always]) =>
      h("button", { hidden: !always, type: "button", class: "button chip", "aria-pressed": "false", "data-filter": key, onclick: () => this.go({ filter: this.params.get("filter") === key ? "" : key, page: "" }) }, h("span", {}, label), " ", h("span", { class: "faint" })),
    );
    this.newLimit = h("button", { type: "button", class: "button", onclick: () => addLimit(this.kinds.filter((kind) => kind !== "total")) }, "New limit…");
    this.revert = h("button", { type: "button", class: "button", onclick: revertAll }, "Revert all edits…");
    this.sorting = sorting(
      COLUMNS.map(([label, key, name, meaning]) => ({ label, key, ascends: ["name", "rule"].includes(key), attributes: { role: "columnheader", class: name, title: meaning || null } })),
      () => this.query(),
      (changes) => this.go(changes),
    );
    this.bodyElement = h("tbody", { role: "rowgroup" });
    this.empty = h("p", { class: "empty", hidden: true });
    this.summary = h("p", { class: "muted" });
    this.pages = h("div", { class: "pager" });
    this.table = h(
      "table",
      { class: "limits cards-on-phones", role: "table", "aria-label": "Limits" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.sorting.headers, h("th", { scope: "col", role: "columnheader" }, h("span", { class: "visually-hidden" }, "Edit")))),
      this.bodyElement,
    );
    this.bodyElement.addEventListener("pointerleave", () => this.arrange());
    this.bodyElement.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.move(event));
    fill(
      main,
      h("div", { class: "heading" }, h("h1", {}, "Limits"), this.summary),
      h("div", { class: "toolbar", role: "search" }, h("div", { class: "search" }, this.search, h("kbd", { "aria-hidden": "true" }, "/")), this.kind, this.sorting.choice, h("div", { class: "chips", role: "group", "aria-label": "Show only" }, this.chips), h("span", { class: "spacer" }), this.revert, this.newLimit),
      h("div", { class: "sheet" }, this.table, this.empty),
      this.pages,
    );
    this.timer = setInterval(() => this.views.forEach((view) => view.tick()), 1000);
    this.off = on("whoami", () => this.rights());
    this.rights();
    this.update(params);
  }

  unmount() {
    clearInterval(this.timer);
    this.off?.();
    this.rows.clear();
    this.views.clear();
  }

  rights() {
    for (const button of [this.newLimit, this.revert]) {
      setAttribute(button, "disabled", writing().disabled ? "" : null);
      setAttribute(button, "title", writing().title ?? null);
    }
    this.views.clear();
    this.bodyElement.replaceChildren();
    this.arrange(true);
  }

  /** Show what the address says. */
  update(/** @type {URLSearchParams} */ params) {
    this.params = params;
    if (document.activeElement !== this.search) this.search.value = params.get("search") ?? "";
    this.kind.value = params.get("kind") ?? "";
    this.sorting?.show();
    for (const chip of this.chips ?? []) setAttribute(chip, "aria-pressed", String(chip.dataset.filter === params.get("filter")));
    const wanted = params.get("edit");
    if (!wanted) this.editor?.dialog.close();
    else if (!this.editor) {
      const slash = wanted.indexOf("/");
      this.editor = editLimit(wanted.slice(0, slash), wanted.slice(slash + 1), () => {
        this.editor = null;
        // A link in it leads elsewhere.
        if (this.params.has("edit") && place().view === "limits") this.go({ edit: "" });
      });
    }
  }

  /** @returns {Record<string, any>} what to ask the API for. */
  query() {
    const { params } = this;
    return {
      search: params.get("search"),
      kind: params.get("kind"),
      filter: FILTERS.find(([key]) => key === params.get("filter"))?.[2] ?? null,
      sort: params.get("sort") ?? DEFAULTS.sort,
      order: params.get("order") ?? DEFAULTS.order,
      offset: (pageOf(params) - 1) * PAGE,
      limit: PAGE,
    };
  }

  go(/** @type {Record<string, string>} */ changes) {
    navigate("limits", this.params, changes);
  }

  /** Take an event of the stream. */
  take(/** @type {any} */ data, /** @type {boolean} */ whole) {
    performance.mark("limits-start");
    if (whole) this.rows.clear();
    for (const row of data.rows) {
      const known = this.rows.get(row.key);
      this.rows.set(row.key, known ? Object.assign(known, row) : row);
      if (known) this.views.get(row.key)?.update(known);
    }
    if (whole) this.order = data.rows.map((/** @type {any} */ row) => row.key);
    else if (data.order) this.order = data.order;
    if (data.total !== undefined) this.total = data.total;
    if (data.totals) this.totals(data.totals);
    if (data.kinds) this.showKinds(data.kinds);
    this.arrange(whole);
    performance.measure("limits", "limits-start");
  }

  totals(/** @type {any} */ totals) {
    setText(this.summary, `${count(totals.rows)} in all, figures of ${WINDOW}`);
    (this.chips ?? []).forEach((chip, index) => {
      const [key, , name, always] = FILTERS[index];
      setText(chip.lastElementChild, count(totals[name]));
      chip.hidden = !always && !totals[name] && this.params.get("filter") !== key;
    });
    this.revert.hidden = !totals.overridden;
  }

  showKinds(/** @type {string[]} */ kinds) {
    if (kinds.join() === this.kinds.join()) return;
    this.kinds = kinds;
    fill(this.kind, h("option", { value: "" }, "All kinds"), kinds.map((kind) => h("option", { value: kind }, kind)));
    this.kind.value = this.params.get("kind") ?? "";
  }

  /** Bring the rows into order; those under the pointer or the focus are not moved away from it. */
  arrange(whole = true) {
    if (!this.bodyElement) return;
    const before = [...this.bodyElement.children].map((/** @type {any} */ row) => row.dataset.row);
    const held = !whole && ((pointing.matches && this.bodyElement.matches(":hover")) || this.bodyElement.contains(document.activeElement));
    const wanted = new Set(this.order);
    const stays = held && before.length === wanted.size && before.every((key) => wanted.has(key));
    if (!stays) {
      for (const [key, view] of this.views) {
        if (wanted.has(key)) continue;
        view.element.remove();
        this.views.delete(key);
        this.rows.delete(key);
      }
      this.order.forEach((key, index) => {
        const row = this.rows.get(key);
        if (!row) return;
        let view = this.views.get(key);
        if (!view) this.views.set(key, (view = rowView(row, (/** @type {any} */ chosen) => this.go({ edit: chosen.key }))));
        else if (whole) view.update(row);
        if (this.bodyElement.children[index] !== view.element) this.bodyElement.insertBefore(view.element, this.bodyElement.children[index] ?? null);
      });
    }
    this.footer();
  }

  footer() {
    const { offset } = this.query();
    const filtered = this.params.get("search") || this.params.get("filter") || this.params.get("kind");
    this.empty.hidden = this.order.length > 0 || app.status === "connecting";
    setText(this.empty, filtered ? "Nothing matches. Take away a filter, or make a new limit for this name." : "Nothing has been asked for yet, and there is no limit.");
    const to = Math.min(this.total, offset + PAGE);
    const text = this.total ? `${count(offset + 1)}–${count(to)} of ${count(this.total)}` : "";
    if (this.shownText === text && this.pages.childElementCount) return;
    if (this.shownText !== text && filtered) announce(`${count(this.total)} found`);
    this.shownText = text;
    showPager(this.pages, text, { page: offset / PAGE + 1, size: PAGE, total: this.total }, (changes) => this.go(changes));
  }

  /** Up and down go from name to name. */
  move(/** @type {KeyboardEvent} */ event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !(event.target instanceof HTMLElement)) return;
    const names = [...this.bodyElement.querySelectorAll(".name-button")];
    const at = names.findIndex((each) => each.closest("tr") === /** @type {HTMLElement} */ (event.target).closest("tr"));
    const next = names[at + step];
    if (next) {
      next.focus();
      event.preventDefault();
    }
  }
}
