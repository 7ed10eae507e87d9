/** What must not be overlooked: alarms, limiting switched off, bypassed or unsaved, a wrong configuration, and no connection to the sidecar. */

import { app, on, writing } from "./app.js";
import { byId, fill, h, setText } from "./dom.js";
import { ago, count, exact, left, rate } from "./format.js";
import { get } from "./api.js";
import { failed } from "./writes.js";
import { switchOn } from "./switches.js";

/** @type {any[]} the switches that are off, with who did it */
let switchedOff = [];
let asked = "";
let shown = "";

export function showBanners() {
  on("state", (state) => {
    const signature = `${state.off.join()} ${state.rule_set_version} ${state.etag ?? ""}`;
    if (state.off.length && signature !== asked) {
      asked = signature;
      askSwitches();
    } else if (!state.off.length) switchedOff = [];
    show();
  });
  on("status", show);
  on("whoami", () => {
    shown = "";
    show();
  });
  setInterval(tick, 1000);
}

async function askSwitches() {
  try {
    const { body } = await get("switches");
    switchedOff = body.switches.filter((/** @type {any} */ each) => !each.limiting);
  } catch (error) {
    failed(error);
  }
  show();
}

/** @typedef {{key: string, element: () => any}} Wanted */

/** @returns {Wanted[]} what stays in sight, however far the page is scrolled. */
function alarms() {
  const { state, status } = app;
  /** @type {Wanted[]} */
  const list = [];
  const add = (/** @type {string} */ key, /** @type {() => any} */ element) => list.push({ key, element });
  if (status === "offline" || status === "reconnecting") {
    add(status, () => banner("bad", status === "offline" ? "No connection to Sluice." : "The connection to Sluice broke.", "What is shown is old. Traffic does not depend on this page; it tries again by itself."));
  }
  if (!state) return list;
  for (const kind of state.off) {
    const entry = switchedOff.find((each) => each.kind === kind);
    add(`off ${kind} ${entry?.etag}`, () => off(kind, entry));
  }
  const { bypassed, failed_reload: reload, persistence } = state;
  for (const each of state.alarms ?? []) {
    if (!each.stands) continue;
    // Its figures change all the time, which nobody wants to have read out.
    const text = h("span", { class: "alarm-text", "data-scarce": each.scarce, "aria-live": "off" }, alarmText(each));
    add(`alarm ${each.scarce} ${each.since}`, () => banner("bad", `Alarm: ${each.scarce} runs short, and publishers are stopped.`, text));
  }
  if (reload) {
    const lines = reload.problems.slice(0, 3).join(" · ") + (reload.problems.length > 3 ? ` · and ${reload.problems.length - 3} more` : "");
    add(`reload ${reload.at}`, () => banner("bad", "The configuration is wrong; what was in force still is.", `${lines} (read again at ${exact(reload.at)} by ${reload.by})`));
  }
  if (bypassed.per_s_last_60s > 0) {
    const reasons = bypassed.by.map((/** @type {any} */ each) => `${each.handler} ${each.reason} ${count(each.total)}`).join(", ");
    add(`bypass ${reasons} ${rate(bypassed.per_s_last_60s)}`, () =>
      banner("warn", "Requests bypass the limiter:", `${rate(bypassed.per_s_last_60s)} per second over the last minute, ${count(bypassed.total)} since the start (${reasons}).`),
    );
  }
  if (state.draining) add("draining", () => banner("warn", "Draining.", "No new connections are accepted; Sluice ends once what is in flight has its answers."));
  if (persistence.error) add(`error ${persistence.error}`, () => banner("bad", "Edits are not saved:", persistence.error));
  return list;
}

/** @returns {Wanted[]} what is good to know, and may be scrolled away. */
function notices() {
  /** @type {Wanted[]} */
  const list = [];
  if (!app.state) return list;
  const { persistence } = app.state;
  const add = (/** @type {string} */ key, /** @type {() => any} */ element) => list.push({ key, element });
  if (persistence.error) return list;
  if (!persistence.directory) add("volatile", () => banner("warn", "Edits last until the restart only:", "there is no state directory to keep them in."));
  if (persistence.set_aside.length) {
    add(`aside ${persistence.set_aside.join()}`, () => banner("warn", "Damaged files were set aside at the start:", `${persistence.set_aside.join(", ")}. The edits in them are not in force; the configured limits are.`));
  }
  return list;
}

function show() {
  const [pinned, others] = [alarms(), notices()];
  const signature = [...pinned, ...others].map((each) => each.key).join("\n") + String(app.canWrite());
  if (signature === shown) {
    for (const each of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".banner .alarm-text"))) {
      const alarm = app.state?.alarms.find((/** @type {any} */ one) => one.scarce === each.dataset.scarce);
      if (alarm?.stands) setText(each, alarmText(alarm));
    }
    return;
  }
  shown = signature;
  fill(byId("banners"), pinned.map((each) => each.element()));
  fill(byId("notices"), others.map((each) => each.element()));
  tick();
}

function off(/** @type {string} */ kind, /** @type {any} */ entry) {
  const what = kind === "all" ? "LIMITING IS SWITCHED OFF." : `LIMITING OF ${kind.toUpperCase()} IS SWITCHED OFF.`;
  const edit = entry?.edit;
  return h(
    "div",
    { class: "banner off", role: "alert" },
    h(
      "p",
      {},
      h("strong", {}, what),
      " ",
      edit ? `By ${edit.by}` : entry ? "By the configuration" : "",
      edit && h("span", { class: "since", "data-at": edit.at, title: exact(edit.at) }),
      edit?.reason ? `: ${edit.reason.replace(/[.\s]+$/, "")}.` : ".",
      edit?.expires_at ? h("span", { class: "until", "data-until": edit.expires_at, title: exact(edit.expires_at) }) : edit && " Until somebody switches it on.",
    ),
    entry && h("button", { type: "button", class: "button", onclick: () => switchOn(entry), ...writing() }, "Switch back on…"),
  );
}

function alarmText(/** @type {any} */ alarm) {
  return `${alarm.text}. Consumers go on.${alarm.since ? ` Since ${exact(alarm.since)}.` : ""}`;
}

function banner(/** @type {string} */ manner, /** @type {string} */ title, /** @type {any} */ text) {
  return h("div", { class: `banner ${manner}`, role: "status" }, h("p", {}, h("strong", {}, title), " ", text));
}

function tick() {
  for (const each of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".banner .since"))) setText(each, `, ${ago(each.dataset.at)}`);
  for (const each of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".banner .until"))) setText(each, ` On again by itself: ${left(each.dataset.until ?? "")}.`);
}
