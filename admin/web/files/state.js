/** The sidecar's own state: listeners, totals, lanes, switches, where edits are kept; and the reload. */

import { ApiError, call, get } from "./api.js";
import { app, backupText, listenerText, on, writing } from "./app.js";
import { Chart } from "./chart.js";
import { openDialog, showProblem } from "./dialog.js";
import { fill, h } from "./dom.js";
import { ago, bytes, count, duration, exact, left, rate } from "./format.js";
import { targetLink } from "./router.js";
import { reached, stepsOf } from "./steps.js";
import { switchOff, switchOn } from "./switches.js";
import { toast } from "./toast.js";
import { failed } from "./writes.js";

const SHOWN_S = 300;

export class StateView {
  title = "State";

  mount(/** @type {Element} */ main) {
    this.chart = new Chart("Messages per second", [
      { label: "passed", name: "passed", filled: true },
      { label: "refused", name: "refused", filled: true },
    ]);
    this.facts = h("div", { class: "panels" });
    this.switches = h("tbody");
    fill(
      main,
      h("div", { class: "heading" }, h("h1", {}, "State"), h("span", { class: "spacer" }), h("button", { type: "button", class: "button", onclick: reload, ...writing() }, "Reload the configuration…")),
      h("section", { class: "panel wide", "aria-label": "Messages per second, last 5 minutes" }, h("h2", {}, "Messages per second, last 5 minutes"), this.chart.element),
      this.facts,
      h("section", { class: "panel wide" }, h("h2", {}, "Switches"), h("div", { class: "sheet" }, h("table", { class: "switches cards-on-phones" }, h("thead", {}, h("tr", {}, ["Kind", "Limiting", "File", "Changed", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "visually-hidden" }, "Switch"))))), this.switches))),
    );
    const offs = [on("state", () => this.show()), on("change", () => this.load()), on("whoami", () => this.load())];
    this.unmount = () => {
      offs.forEach((off) => off());
      this.chart?.close();
    };
    this.show();
    this.load();
  }

  update() {}

  async load() {
    if (!app.whoami) return;
    try {
      const { body } = await get("switches");
      fill(this.switches, body.switches.map(switchRow));
    } catch (error) {
      failed(error);
    }
  }

  show() {
    const { state } = app;
    if (!state) return;
    const { totals, rates, limiters, held, persistence, edits } = state;
    const perS = rates.messages_per_s;
    const { history } = state;
    const untilS = Date.parse(history.until) / 1000;
    const times = stepsOf(history).map((step) => (step.fromS + step.untilS) / 2);
    this.chart?.show([times, history.passed, history.refused], untilS - SHOWN_S, untilS, `now ${rate(reached(perS))} passed and ${rate(perS.refused)} refused`);
    fill(
      this.facts,
      panel("Listeners", state.listeners.map((/** @type {any} */ each) => [
        [each.listen, listenerText(each.name)].filter((text, index) => !index || text !== each.listen).join(", "),
        [h("span", { class: `dot ${each.reachable === false ? "bad" : each.backup ? "warn" : each.reachable ? "ok" : ""}`, "aria-hidden": "true" }), ` ${each.broker} ${each.reachable === false ? each.error || "unreachable" : each.reachable ? backupText(each) || "reachable" : "not tried yet"}, ${count(each.connections)} connections`],
      ])),
      panel("Messages since the start", [
        ...Object.entries(totals.messages).map(([verdict, amount]) => [verdict, `${count(Number(amount))} · ${rate(perS[verdict])}/s`]),
        // What was never read is of no resource, and counted in bytes.
        ...(totals.lost_bytes ? [["lost", `${count(totals.lost_messages)}, and with what was never read ${bytes(totals.lost_bytes)}`]] : []),
      ]),
      panel("Data path", [
        ["Open connections", count(totals.connections_open)],
        ["Accepted", count(totals.connections)],
        ["Read from clients", `${bytes(totals.bytes.client ?? 0)} · ${bytes(rates.bytes_per_s.client ?? 0)}/s`],
        ["Read from the broker", `${bytes(totals.bytes.broker ?? 0)} · ${bytes(rates.bytes_per_s.broker ?? 0)}/s`],
        ["Held now", `${count(held.requests)} requests, ${bytes(held.bytes)}`],
        ["Live limiters", `${count(limiters.live)}${limiters.overflowed_total ? `, ${count(limiters.overflowed_total)} decisions shared past the bound` : ""}`],
        ...state.lanes.map((/** @type {any} */ lane) => [`Lane of ${lane.handler}`, `${count(lane.queued)} of ${count(lane.capacity)} waiting${lane.late_lanes ? `, ${lane.late_lanes} late` : ""}`]),
        ["Bypassed", `${count(state.bypassed.total)}${state.bypassed.by.map((/** @type {any} */ each) => `, ${each.reason} ${count(each.total)}`).join("")}`],
      ]),
      panel("Connections ended", Object.entries(totals.closed).map(([reason, amount]) => [reason, count(Number(amount))])),
      panel("Edits", [
        ["Standing", count(edits.standing)],
        ["Next to expire", edits.expiring_next ? [targetLink(edits.expiring_next.target, edits.expiring_next.target), `, ${left(edits.expiring_next.expires_at)}`] : "none"],
        ["Kept in", persistence.directory ?? "memory, until the restart"],
        ...(persistence.error ? [["Problem", persistence.error]] : []),
        ...(persistence.set_aside.length ? [["Set aside", persistence.set_aside.join(", ")]] : []),
        ["Spool", state.spool.directory ?? state.spool.error ?? "off"],
        ["Rule set", `version ${state.rule_set_version}`],
      ]),
      panel("Process", [
        ["Version", state.version],
        ["Started", h("time", { datetime: state.started_at }, exact(state.started_at))],
        ["Up", duration(state.uptime_s)],
        ["You are", app.whoami ? `${app.whoami.name}, ${app.whoami.role === "write" ? "may read and write" : "may only read"}` : "–"],
        ...state.warnings.map((/** @type {string} */ line) => ["Warning", line]),
      ]),
    );
  }
}

function panel(/** @type {string} */ title, /** @type {any[][]} */ facts) {
  return h("section", { class: "panel" }, h("h2", {}, title), facts.length ? h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])) : h("p", { class: "faint" }, "none"));
}

function switchRow(/** @type {any} */ entry) {
  const { edit } = entry;
  const action = entry.limiting
    ? h("button", { type: "button", class: "button small danger-quiet", "aria-label": `Switch limiting of ${entry.kind} off`, onclick: () => switchOff(entry.kind), ...writing() }, "Switch off…")
    : h("button", { type: "button", class: "button small", "aria-label": `Switch limiting of ${entry.kind} back on`, onclick: () => switchOn(entry), ...writing() }, "Switch on…");
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, entry.kind === "all" ? "everything" : entry.kind),
    h("td", { "data-label": "Limiting" }, entry.limiting ? "on" : h("span", { class: "tag bad" }, "off")),
    h("td", { "data-label": "File", class: `muted file ${entry.configured === entry.limiting ? "same" : ""}` }, h("span", { class: "narrow-only" }, "in the file: "), entry.configured ? "on" : "off"),
    h("td", { "data-label": "Changed", class: `wrap ${edit ? "" : "same"}` }, edit ? [h("span", { title: exact(edit.at) }, `${edit.by}, ${ago(edit.at)}`), edit.expires_at && ` · ${left(edit.expires_at)}`, edit.reason && ` · ${edit.reason}`] : h("span", { class: "faint" }, "–")),
    h("td", { class: "edit-cell" }, action),
  );
}

/** Say what a reload would change, and do it when told so. */
async function reload() {
  let report;
  try {
    report = (await call("POST", "reload", { query: { dry_run: 1 } })).body;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const dialog = openDialog("The configuration is wrong");
    fill(dialog.body, h("p", {}, "Nothing was changed."), lines(error.errors.length ? error.errors.map((each) => each.detail) : [error.message]));
    return;
  }
  const dialog = openDialog("Reload the configuration");
  const problem = h("div", { role: "alert" });
  const act = async () => {
    try {
      await call("POST", "reload");
      dialog.close();
      toast("The configuration was reloaded.");
    } catch (error) {
      showProblem(problem, error instanceof Error ? error.message : "");
    }
  };
  const apply = h("button", { type: "button", class: "button primary", disabled: !report.changed.length, onclick: act }, "Reload");
  fill(
    dialog.body,
    problem,
    report.changed.length ? [h("h3", {}, "Will hold at once"), lines(report.changed)] : h("p", {}, "Nothing would change."),
    report.hidden.length > 0 && [h("h3", {}, "Changed, but an edit stands over it"), lines(report.hidden)],
    report.needs_restart.length > 0 && [h("h3", {}, "Needs a restart"), lines(report.needs_restart)],
    report.warnings.length > 0 && [h("h3", {}, "Warnings"), lines(report.warnings)],
    h("div", { class: "actions" }, apply, h("button", { type: "button", class: "button", onclick: dialog.close }, "Cancel")),
  );
}

function lines(/** @type {string[]} */ texts) {
  return h("ul", { class: "details" }, texts.map((text) => h("li", {}, text)));
}
