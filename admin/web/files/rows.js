/**
 * The rows of the table of limits: made once, then changed where their figures changed. With one update a second and
 * dozens of rows, that is what keeps the page quick.
 */

import { app, writing } from "./app.js";
import { fill, h, setAttribute, setText } from "./dom.js";
import { stateTag } from "./flow.js";
import { ago, count, duration, exact, left, limitText, percent, rate, shortLimit, wait } from "./format.js";
import { hasPage, link } from "./router.js";
import { draw, sparkline } from "./spark.js";
import { reached } from "./steps.js";

const SLOTS = 60;
/** The bar's full width stands for this share, so that one above the limit shows by how much. */
const BAR_SHARE = 1.5;

/** @typedef {{element: HTMLTableRowElement, update: (row: any) => void, tick: () => void}} RowView */

/** What all figures of a row are of, as the API says. */
export const WINDOW = "the last 10 s";
const BURST = "What a limit stored in a pause passes at once, a second's worth unless it says otherwise: 110 % of a limit in 10 s, and 220/s at 200/s, are right.";

/** Label, sort key, class and meaning of each column. */
export const COLUMNS = /** @type {[string, string, string, string][]} */ ([
  ["Resource", "name", "name", ""],
  ["Limit", "limit", "number limit", ""],
  ["Passed/s", "passed", "number", `Messages per second that passed, the mean of ${WINDOW}. ${BURST}`],
  ["Refused/s", "refused", "number", `Messages per second that were refused, the mean of ${WINDOW}.`],
  ["Used", "used", "used", `Share of the limit that was used in ${WINDOW}, of messages or of bytes, whichever is more. ${BURST}`],
  ["Last 5 min", "", "history", "Passed, and refused upon it: means of 5 s each."],
  ["Last limited", "last_refused", "last", ""],
  ["Rule", "rule", "rule", ""],
]);

/**
 * Make a row.
 *
 * @param {any} first
 * @param {(row: any) => void} edit
 * @returns {RowView}
 */
export function rowView(first, edit) {
  let row = first;
  const own = row.exact && hasPage(row.kind, row.name);
  const name = own ? h("a", { class: "name-button", href: link("resource", { kind: row.kind, name: row.name }) }, row.name) : h("button", { type: "button", class: "name-button", onclick: () => edit(row) }, row.name);
  const flag = h("span", { class: "flag" });
  const would = h("span", { class: "flag tag would", title: "A limit in shadow would refuse some of it now; all of it passes." }, "would refuse");
  const by = h("span", { class: "by" });
  const stage = h("span", { class: "stage" });
  const wouldRate = h("div", { class: "would" });
  const refusedText = h("span", {});
  const bar = h("span", { class: "bar-fill" });
  const track = h("span", { class: "bar-track", "aria-hidden": "true" }, bar, h("span", { class: "bar-full" }));
  const usedText = h("span", { class: "used-text" });
  const spark = sparkline();
  const last = h("time", {});
  const rule = h("div", { class: "rule-box" });
  const cells = {
    limit: cell("number limit", "Limit"),
    passed: cell("number", "Passed/s"),
    refused: cell("number", "Refused/s", [refusedText, wouldRate]),
    used: cell("used", "Used", h("div", { class: "bar-box" }, track, usedText)),
    history: cell("history", "Last 5 min", spark),
    last: cell("last", "Last limited", last),
    rule: cell("rule", "Rule", rule),
  };
  const button = h(
    "button",
    { type: "button", class: "button small row-edit", "data-key": row.key, "aria-label": `${writing().disabled ? "Show" : "Edit"} the limit of ${row.kind} ${row.name}`, onclick: () => edit(row) },
    writing().disabled ? "Show" : "Edit",
  );
  const element = h(
    "tr",
    { "data-row": row.key, role: "row" },
    h("th", { scope: "row", role: "rowheader", class: "name" }, h("span", { class: "tag kind" }, row.kind), name, flag, would, stage, by),
    ...Object.values(cells),
    h("td", { role: "cell", class: "edit-cell" }, button),
  );

  function tick() {
    const at = lastLimited(row.live);
    setText(last, at ? ago(at) : "–");
    setAttribute(last, "datetime", at);
    const stated = at && at === row.live.last_refused_at && row.live.last_wait_s ? `; it was told to wait ${wait(row.live.last_wait_s * 1e6)}` : "";
    setAttribute(last, "title", at ? `${exact(at)}${stated}` : "not since Sluice was started");
    const remaining = element.querySelector(".remaining");
    if (remaining && row.edit?.expires_at) setText(remaining, left(row.edit.expires_at));
  }

  function showFlag() {
    const { live } = row;
    const [words, manner, meaning] = stateOf(row);
    setText(flag, words);
    flag.className = `flag tag ${manner}`;
    flag.hidden = !words;
    setAttribute(flag, "title", meaning || null);
    element.classList.toggle("idle", !live);
    would.hidden = !live?.would_refuse || isOff(row);
    const spooled = live?.spooled ? `${count(live.spooled)} spooled` : "";
    const waits = stateTag(live?.state);
    const oldest = (live?.oldest_wait_s ?? null) === null ? "" : `oldest waits ${duration(live.oldest_wait_s)}`;
    if (stage.textContent !== (waits?.textContent ?? "") + oldest + spooled) {
      fill(stage, waits, oldest && h("span", { class: "tag", title: "For how long the oldest message of it waits, held in memory or in the spool." }, oldest), spooled && h("span", { class: "tag", title: "Messages of it that are put aside in the spool." }, spooled));
    }
    setText(by, words && live?.limited && live.refused_by ? `refused by ${live.refused_by}` : "");
  }

  function update(/** @type {any} */ next) {
    row = next;
    const { live } = row;
    // Of totals and scopes it is known what they refuse; what passes them is counted with the resource.
    const perS = live?.messages_per_s ?? live?.rule_messages_per_s;
    const passed = live?.messages_per_s ? reached(live.messages_per_s) : null;
    const refused = perS?.refused ?? null;
    const shadowed = perS?.shadowed ?? 0;
    setText(cells.limit, shortLimit(row));
    setAttribute(cells.limit, "title", row.edit && row.configured ? `the file says ${limitText(row.configured.limit)}` : null);
    setText(cells.passed, rate(passed));
    setText(refusedText, rate(refused));
    cells.refused.classList.toggle("refusing", refused > 0);
    refusedText.classList.toggle("faint", !refused);
    cells.passed.classList.toggle("faint", !passed);
    setText(wouldRate, shadowed > 0 ? `${rate(shadowed)} would be` : "");
    wouldRate.hidden = !(shadowed > 0);
    showFlag();

    const share = live?.used_ratio ?? null;
    setText(usedText, percent(share));
    bar.style.setProperty("width", `${(Math.min(share ?? 0, BAR_SHARE) / BAR_SHARE) * 100}%`);
    track.hidden = share === null;
    cells.used.classList.toggle("over", share > 1.005);
    cells.used.classList.toggle("near", Boolean(live?.near));
    cells.used.classList.toggle("in-shadow", row.limit?.action === "shadow");

    const action = row.limit?.action;
    fill(
      rule,
      row.edit && h("span", { class: "tag edited", title: `by ${row.edit.by}, ${exact(row.edit.at)}${row.edit.reason ? `: ${row.edit.reason}` : ""}` }, "edited"),
      row.edit?.expires_at && h("span", { class: "remaining", title: `until ${exact(row.edit.expires_at)}` }),
      action && action !== "reject" && h("span", { class: "tag" }, action),
      !row.edit && h("span", { class: "rule-name", title: row.source || null }, row.rule || "no rule"),
    );
    spark.toggleAttribute("hidden", !row.history);
    if (row.history) {
      const label = `last 5 minutes: now ${rate(passed)} passed and ${rate(refused)} refused per second, at most ${rate(Math.max(0, ...row.history.passed))} and ${rate(Math.max(0, ...row.history.refused))}`;
      draw(spark, row.history.passed, row.history.refused, SLOTS, label);
    }
    tick();
  }

  update(row);
  return { element, update, tick };
}

/** @returns {boolean} whether nothing limits a row since limiting is switched off, of everything or of what would limit it. */
export function isOff(/** @type {any} */ row) {
  const off = app.state?.off ?? [];
  return off.includes("all") || (off.includes(row?.kind) && !row.live?.refused_by);
}

/** @returns {string | null} when something of a row was last refused or held, since Sluice was started. */
export function lastLimited(/** @type {any} */ live) {
  const [refused, held] = [live?.last_refused_at ?? "", live?.last_held_at ?? ""];
  return (refused > held ? refused : held) || null;
}

/** @returns {[string, string, string]} a row's state in the window, how it looks, and what it means. */
export function stateOf(/** @type {any} */ row) {
  const live = row?.live;
  // What was refused before is in the figures for a while yet.
  if (!live || isOff(row)) return ["", "", ""];
  if (!live.limited) return live.near && !live.would_refuse ? ["near limit", "warn", `At least 80 % of the limit were used in ${WINDOW}.`] : ["", "", ""];
  const refused = (live.messages_per_s ?? live.rule_messages_per_s)?.refused ?? 0;
  if (live.holding && !refused) return ["holding", "warn", `Requests had to wait in ${WINDOW}${live.wait_s ? `; one that came now would wait ${wait(live.wait_s * 1e6)}` : ""}.`];
  // Of totals and scopes it is not known what passes.
  if (refused && live.messages_per_s && !reached(live.messages_per_s)) return ["refusing all", "bad", `Nothing passed in ${WINDOW}.`];
  return ["refusing", "bad", `Some of it was refused in ${WINDOW}.`];
}

function cell(/** @type {string} */ name, /** @type {string} */ label, /** @type {any} */ content = null) {
  return h("td", { class: name, role: "cell", "data-label": label }, content);
}
