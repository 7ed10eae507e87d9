/** The audit trail: who changed what, when and why, and the way back. */

import { get } from "./api.js";
import { app, onAny, writing } from "./app.js";
import { debounced, fill, h } from "./dom.js";
import { ago, exact } from "./format.js";
import { differenceTable, furtherText, newText, oldText, targetText } from "./preview.js";
import { revertChange } from "./reverts.js";
import { navigate, targetLink } from "./router.js";
import { failed } from "./writes.js";

const PAGE = 50;
const QUIET_MS = 200;

export class AuditView {
  title = "Audit";

  mount(/** @type {Element} */ main, /** @type {URLSearchParams} */ params) {
    this.params = params;
    this.target = h("input", { type: "search", "aria-label": "What was changed", placeholder: "Target, e.g. limits/topic/orders", autocomplete: "off", spellcheck: "false" });
    this.by = h("input", { type: "search", "aria-label": "Who changed it", placeholder: "By", autocomplete: "off", spellcheck: "false" });
    const filter = debounced(() => navigate("audit", this.params, { target: this.target.value.trim(), by: this.by.value.trim(), search: "" }), QUIET_MS);
    for (const input of [this.target, this.by]) input.addEventListener("input", filter);
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", hidden: true }, "No change is recorded that matches.");
    this.more = h("div", { class: "pager" });
    fill(
      main,
      h("div", { class: "heading" }, h("h1", {}, "Audit"), h("p", { class: "muted" }, "Every change, the latest first.")),
      h("div", { class: "toolbar", role: "search" }, h("div", { class: "search" }, this.target), h("div", { class: "search short" }, this.by)),
      h(
        "div",
        { class: "sheet" },
        h(
          "table",
          { class: "audit cards-on-phones" },
          changeHead(),
          this.body,
        ),
        this.empty,
      ),
      this.more,
    );
    this.unmount = onAny(["change", "whoami"], () => this.load());
    this.update(params);
  }

  update(/** @type {URLSearchParams} */ params) {
    this.params = params;
    if (document.activeElement !== this.target) this.target.value = params.get("target") ?? "";
    if (document.activeElement !== this.by) this.by.value = params.get("by") ?? "";
    this.load();
  }

  async load(/** @type {number | undefined} */ before = undefined) {
    if (!app.whoami) return;
    try {
      const { body } = await get("audit", { before, target: this.params.get("target"), by: this.params.get("by"), limit: PAGE });
      const rows = body.changes.map(changeRow);
      if (before) this.body.append(...rows);
      else fill(this.body, rows);
      this.empty.hidden = this.body.childElementCount > 0;
      fill(this.more, body.next && h("button", { type: "button", class: "button small", onclick: () => this.load(body.next) }, "Earlier changes"));
    } catch (error) {
      failed(error);
    }
  }
}

/** @returns {any} the head of a table of changes. */
export function changeHead() {
  return h("thead", {}, h("tr", {}, ["#", "When", "Who", "What", "Old → new", "Why", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "visually-hidden" }, "Revert")))));
}

/** @returns {any} a row of it, with the way back. */
export function changeRow(/** @type {any} */ change) {
  const revertible = /^(limits|switches)\//.test(change.target) && change.action !== "reset";
  const words = { set: "", unset: "reverted to file", expire: "expired", revert: `undid ${change.reverts}`, reload: "reloaded", reset: "reset", purge: "purged" };
  return h(
    "tr",
    {},
    h("td", { class: "faint position", "data-label": "#" }, change.id),
    h("td", { "data-label": "When", class: "nowrap" }, h("time", { datetime: change.at, title: exact(change.at) }, ago(change.at))),
    h("td", { "data-label": "Who" }, h("span", { title: change.address || null }, change.by)),
    h("th", { scope: "row", class: "wrap" }, targetLink(change.target, targetText(change.target))),
    h("td", { "data-label": "Old → new" }, oldNew(change, words[/** @type {"set"} */ (change.action)] ?? change.action)),
    h("td", { "data-label": "Why", class: "wrap why" }, change.reason || h("span", { class: "faint" }, "–")),
    h("td", { class: "edit-cell" }, revertible && h("button", { type: "button", class: "button small", "data-key": `revert ${change.id}`, "aria-label": `Revert change ${change.id} of ${targetText(change.target)}`, onclick: () => revertChange(change), ...writing() }, "Revert…")),
  );
}

function oldNew(/** @type {any} */ change, /** @type {string} */ word) {
  const tags = [
    word && h("span", { class: "tag" }, word),
    change.expires_at && h("span", { class: "tag", title: exact(change.expires_at) }, "temporary"),
    change.durable === false && h("span", { class: "tag warn" }, "until restart"),
  ];
  if (change.details?.length) return [tags, h("ul", { class: "details" }, change.details.map((/** @type {string} */ line) => h("li", {}, line)))];
  const [before, after, further] = [oldText(change), newText(change), furtherText(change)];
  const moved = before !== after || !further;
  const summary = [moved && [h("del", {}, before), h("span", { class: "faint" }, " → ")], moved ? h("ins", {}, after) : after, further && [", ", h("span", { class: "further" }, further)], " ", tags];
  return h("details", {}, h("summary", {}, summary), differenceTable(change));
}
