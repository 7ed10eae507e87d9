/** The header: the figures of the whole sidecar, the connection to it, and the emergency switch. */

import { setToken, token } from "./api.js";
import { app, backupText, listenerText, on } from "./app.js";
import { byId, fill, h, setAttribute, setText } from "./dom.js";
import { count, duration, rate, serverNow, timeOfDay } from "./format.js";
import { reached } from "./steps.js";
import { switchAll } from "./switches.js";

const WORDS = { connecting: "connecting…", live: "live", reconnecting: "reconnecting", offline: "offline" };
const DOTS = { connecting: "", live: "ok", reconnecting: "warn", offline: "bad" };

const narrow = matchMedia("(max-width: 1060px)");
/** @type {Record<string, any>} */
const parts = {};
/** It stays once it was there, so that the header does not jump. */
let wouldSeen = false;

function part(/** @type {string} */ key, /** @type {string} */ label, /** @type {string} */ title = "") {
  parts[key] = h("span", {});
  parts[`${key}Dot`] = h("span", { class: "dot", hidden: true, "aria-hidden": "true" });
  parts[`${key}Box`] = h("div", { class: `part-${key}`, title: title || null }, h("dt", {}, label), h("dd", {}, parts[`${key}Dot`], parts[key]));
  return parts[`${key}Box`];
}

export function startHeader() {
  fill(
    byId("strip"),
    part("health", "Health"),
    part("passed", "Passed", "messages per second, all resources, mean of the last 10 s"),
    part("refused", "Refused", "messages per second, all resources, mean of the last 10 s"),
    part("would", "Would refuse", "messages per second that pass, though a limit in shadow would refuse them, mean of the last 10 s"),
    part("connections", "Connections"),
    part("broker", "Broker"),
    part("uptime", "Up"),
  );
  parts.route = h("span", { class: "route" });
  parts.broker.before(parts.route);
  parts.dot = h("span", { class: "dot", "aria-hidden": "true" });
  parts.word = h("span", {});
  parts.age = h("span", { class: "faint", "aria-live": "off" });
  fill(byId("connection"), parts.dot, parts.word, parts.age);
  byId("switch-off").addEventListener("click", switchAll);
  narrow.addEventListener("change", placeTabs);
  placeTabs();
  byId("sign-out").addEventListener("click", () => {
    setToken("");
    location.reload();
  });
  on("state", showState);
  on("whoami", () => {
    byId("sign-out").hidden = !token();
    setText(byId("sign-out"), app.whoami ? `Sign out ${app.whoami.name}` : "Sign out");
    showSwitch();
  });
  showConnection();
}

/** What is to be had by the emergency switch: off while limiting is on, and on while all of it is off. */
function showSwitch() {
  const button = byId("switch-off");
  const isOff = Boolean(app.state?.off.includes("all"));
  setText(button, isOff ? "Switch on…" : "Switch off…");
  button.classList.toggle("danger-quiet", !isOff);
  setAttribute(button, "disabled", app.canWrite() ? null : "");
  setAttribute(button, "title", app.canWrite() ? (isOff ? "Switch limiting back on" : "Switch limiting off, of all or of one kind") : "Your token may only read.");
}

/** Where the tabs have a line of their own they come last in it, for the keyboard as well. */
function placeTabs() {
  const tabs = byId("tabs");
  if (narrow.matches) tabs.parentElement.append(tabs);
  else tabs.parentElement.querySelector(".brand").after(tabs);
}

function showState(/** @type {any} */ state) {
  showSwitch();
  setText(byId("version"), state.version);
  const unreachable = state.listeners.filter((/** @type {any} */ each) => each.reachable === false);
  const [health, manner] = healthOf(state, unreachable.length > 0);
  dotted("health", health, manner);
  setText(parts.passed, `${rate(reached(state.rates.messages_per_s))}/s`);
  setText(parts.refused, `${rate(state.rates.messages_per_s.refused)}/s`);
  parts.refused.classList.toggle("refusing", state.rates.messages_per_s.refused > 0);
  const would = state.rates.messages_per_s.shadowed;
  setText(parts.would, `${rate(would)}/s`);
  parts.wouldBox.hidden = !would && !wouldSeen;
  wouldSeen ||= would > 0;
  parts.would.classList.toggle("would", would > 0);
  setText(parts.connections, count(state.totals.connections_open));
  const brokers = [...new Set(state.listeners.map((/** @type {any} */ each) => each.broker))];
  const onBackup = state.listeners.find((/** @type {any} */ each) => each.backup);
  const shown = unreachable[0] ?? onBackup ?? state.listeners[0];
  if (!shown) dotted("broker", "none", "warn");
  else {
    const more = brokers.length > 1 ? ` and ${brokers.length - 1} more` : "";
    const word = unreachable.length ? "unreachable" : onBackup ? "a backup" : shown.reachable === null ? "not tried yet" : "reachable";
    setText(parts.route, `${shown.listen} → ${shown.broker}${more},`);
    dotted("broker", word, unreachable.length ? "bad" : onBackup ? "warn" : shown.reachable === null ? "" : "ok");
  }
  const lines = state.listeners.map((/** @type {any} */ each) => `${listenerText(each.name)}: ${each.listen} → ${each.broker}, ${each.error ?? (backupText(each) || "reachable")}`);
  setAttribute(parts.brokerBox, "title", lines.join("\n"));
}

/** @returns {[string, string]} how it is, in words, and how its dot looks; green is for what limits as it should. */
function healthOf(/** @type {any} */ state, /** @type {boolean} */ unreachable) {
  if (state.draining) return ["draining", "warn"];
  if (unreachable) return ["not ready", "bad"];
  if (state.off.includes("all")) return ["ready, limiting off", "bad"];
  if (state.off.length) return [`ready, ${state.off.join(", ")} off`, "bad"];
  return state.bypassed.per_s_last_60s > 0 ? ["ready, bypassing", "warn"] : ["ready", "ok"];
}

function dotted(/** @type {string} */ key, /** @type {string} */ text, /** @type {string} */ manner) {
  setText(parts[key], text);
  parts[`${key}Dot`].hidden = false;
  parts[`${key}Dot`].className = `dot ${manner}`;
}

/** Say whether the figures are live, and if not, of when they are. */
export function showConnection() {
  if (!parts.word) return;
  if (app.state && app.status === "live") setText(parts.uptime, duration((serverNow() - Date.parse(app.state.started_at)) / 1000));
  setText(parts.word, WORDS[app.status]);
  parts.dot.className = `dot ${DOTS[app.status]}`;
  const stale = app.status === "offline" || app.status === "reconnecting";
  const age = stale && app.figuresAt ? `figures of ${timeOfDay(app.figuresAt)}, ${duration((Date.now() - app.figuresAt) / 1000)} ago` : "";
  setText(parts.age, age);
}
