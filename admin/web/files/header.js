/** What is above every view: alarms, the views, the figures of the whole sidecar, and the emergency switch. */

import { setToken, token } from "./api.js";
import { app, redraw, switches, useAnswer, useMedia } from "./app.js";
import { ago, count, duration, exact, left, rate, reached, serverNow, timeOfDay } from "./format.js";
import { html, useRef } from "./html.js";
import { Button, Dot, brokerState, listenerText } from "./parts.js";
import { switchAll, switchOn } from "./switches.js";

const THEME_KEY = "sluice.theme";
const STATUS = {
  connecting: ["connecting…", ""],
  live: ["live", "ok"],
  reconnecting: ["reconnecting", "warn"],
  offline: ["offline", "bad"],
};
const STALE = { reconnecting: "The connection to Sluice broke.", offline: "No connection to Sluice." };
const VIEWS = ["overview", "limits", "rules", "audit", "connections", "flow", "state"];
const SUN =
  "M8 4.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 0 0 0-7M8 .8v1.6M8 13.6v1.6M.8 8h1.6M13.6 8h1.6M2.9 2.9l1.1 1.1M12 12l1.1 1.1" +
  "M2.9 13.1L4 12M12 4l1.1-1.1";
const MOON = "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z";
const GATE = "M4 3v18M20 3v18M4 8h16";
const WATER = "M6.5 14c1.8-1.8 3.7-1.8 5.5 0s3.7 1.8 5.5 0M6.5 18.5c1.8-1.8 3.7-1.8 5.5 0s3.7 1.8 5.5 0";

export function Header({ view }) {
  const isNarrow = useMedia("(max-width: 1060px)");
  const tabs = html`<nav class="tabs" aria-label="Views">
    ${VIEWS.map(
      (name) => html`<a key=${name} href="#/${name}" aria-current=${name === view ? "page" : null}>
        ${name[0].toUpperCase() + name.slice(1)}
      </a>`,
    )}
  </nav>`;
  const out = token() && html`<${Button} manner="icon" onclick=${signOut}>Sign out ${app.whoami?.name}<//>`;
  return html`
    <div class="head">
      <${Alarms} />
      <header class="top">
        <div class="bar">
          <a class="brand" href="#/overview" aria-label="Sluice, overview">
            <svg class="mark" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
              <path class="mark-gate" d=${GATE} />
              <path class="mark-water" d=${WATER} />
            </svg>
            <span>Sluice</span>
            <span class="version">${app.state?.version}</span>
          </a>
          ${!isNarrow && tabs}
          <div class="controls"><${Connection} /><${SwitchButton} />${out}<${ThemeButton} /></div>
          ${isNarrow && tabs}
        </div>
        <${Strip} />
      </header>
    </div>
    <${Warnings} />
  `;
}

function signOut() {
  setToken("");
  location.reload();
}

function SwitchButton() {
  const isOff = Boolean(app.state?.off.includes("all"));
  const title = isOff ? "Switch limiting back on" : "Switch limiting off, of all or of one kind";
  const manner = isOff ? "" : "danger-quiet";
  return html`<${Button} isWrite id="switch-off" manner=${manner} title=${title} onclick=${switchAll}>
    ${isOff ? "Switch on…" : "Switch off…"}
  <//>`;
}

/** Whether the figures are live, and if not, of when they are. */
function Connection() {
  const [word, manner] = STATUS[app.status];
  const isStale = STALE[app.status] && app.figuresAt;
  const age = isStale && `figures of ${timeOfDay(app.figuresAt)}, ${duration((Date.now() - app.figuresAt) / 1000)} ago`;
  return html`<span class="connection" id="connection" role="status">
    <${Dot} manner=${manner} /><span>${word}</span>${age && html`<span class="faint" aria-live="off">${age}</span>`}
  </span>`;
}

// --- theme

const light = matchMedia("(prefers-color-scheme: light)");

function theme() {
  return localStorage.getItem(THEME_KEY) ?? (light.matches ? "light" : "dark");
}

function showTheme() {
  document.documentElement.dataset.theme = theme();
  redraw();
}

/** The system's choice until the button was pressed, then what was chosen last. */
export function startTheme() {
  showTheme();
  light.addEventListener("change", showTheme);
}

function ThemeButton() {
  const other = theme() === "dark" ? "light" : "dark";
  const press = () => {
    localStorage.setItem(THEME_KEY, other);
    showTheme();
  };
  const title = `Use the ${other} theme`;
  return html`<${Button} manner="icon" title=${title} label=${title} onclick=${press}>
    <svg class="glyph" viewBox="0 0 16 16" aria-hidden="true"><path d=${other === "light" ? SUN : MOON} /></svg>
  <//>`;
}

// --- figures of the whole sidecar

function Strip() {
  const isWouldSeen = useRef(false);
  const { state } = app;
  if (!state) return html`<dl class="strip" id="strip"></dl>`;
  const { refused, shadowed } = state.rates.messages_per_s;
  // It stays once it was there, so that the header does not jump.
  isWouldSeen.current ||= shadowed > 0;
  const help = "messages per second, all resources, mean of the last 10 s";
  const sinceS = (serverNow() - Date.parse(state.started_at)) / 1000;
  const parts = [
    { name: "health", title: "Health", value: dotted(healthOf(state)) },
    { name: "passed", title: "Passed", value: `${rate(reached(state.rates.messages_per_s))}/s`, help },
    { name: "refused", title: "Refused", value: `${rate(refused)}/s`, help, manner: refused && "refusing" },
    { name: "would", title: "Would refuse", value: `${rate(shadowed)}/s`, help, manner: shadowed && "would" },
    { name: "connections", title: "Connections", value: count(state.totals.connections_open) },
    { name: "broker", title: "Broker", value: brokerOf(state.listeners), help: brokerHelp(state.listeners) },
    { name: "uptime", title: "Up", value: duration(app.status === "live" ? sinceS : state.uptime_s) },
  ].filter(({ name }) => name !== "would" || isWouldSeen.current);
  return html`<dl class="strip" id="strip" aria-label="Now">
    ${parts.map(
      (each) => html`<div key=${each.name} class="part-${each.name}" title=${each.help}>
        <dt>${each.title}</dt>
        <dd class=${each.manner || null}>${each.value}</dd>
      </div>`,
    )}
  </dl>`;
}

function dotted([text, manner]) {
  return html`<${Dot} manner=${manner} /><span>${text}</span>`;
}

/** How it is, and how its dot looks; green is for what limits as it should. */
function healthOf(state) {
  if (state.draining) return ["draining", "warn"];
  if (state.listeners.some((each) => each.reachable === false)) return ["not ready", "bad"];
  if (state.off.includes("all")) return ["ready, limiting off", "bad"];
  if (state.off.length) return [`ready, ${state.off.join(", ")} off`, "bad"];
  return state.bypassed.per_s_last_60s > 0 ? ["ready, bypassing", "warn"] : ["ready", "ok"];
}

function brokerOf(listeners) {
  const shown =
    listeners.find((each) => each.reachable === false) ?? listeners.find((each) => each.backup) ?? listeners[0];
  if (!shown) return dotted(["none", "warn"]);
  const others = new Set(listeners.map((each) => each.broker)).size - 1;
  const route = `${shown.listen} → ${shown.broker}${others ? ` and ${others} more` : ""},`;
  const { manner, word } = brokerState(shown);
  return html`<${Dot} manner=${manner} /><span class="route">${route}</span><span>${word}</span>`;
}

function brokerHelp(listeners) {
  const lineOf = (each) => `${listenerText(each.name)}: ${each.listen} → ${each.broker}, ${brokerState(each).text}`;
  return listeners.map(lineOf).join("\n");
}

// --- banners

function Banner({ of: { manner = "warn", title, text } }) {
  // Its figures change all the time, which nobody wants to have read out.
  return html`<div class="banner ${manner}" role="status">
    <p><strong>${title}</strong> <span aria-live="off">${text}</span></p>
  </div>`;
}

/** What must not be overlooked. */
function Alarms() {
  const { state, status } = app;
  const text = "What is shown is old. Traffic does not depend on this page; it tries again by itself.";
  const stale = STALE[status] ? [{ manner: "bad", title: STALE[status], text }] : [];
  const alarms = [...stale, ...(state ? alarmsOf(state) : [])];
  return html`<div class="banners" id="banners" role="region" aria-label="Alarms">
    ${state && html`<${Off} state=${state} />`}
    ${alarms.map((each) => html`<${Banner} key=${each.title} of=${each} />`)}
  </div>`;
}

function Off({ state: { off, rule_set_version: version, etag } }) {
  const [entries] = useAnswer(() => (off.length ? switches() : []), [off.join(), version, etag]);
  const kinds = off.includes("all") ? ["all"] : off;
  return kinds.map((kind) => {
    const entry = entries?.find((each) => each.kind === kind && !each.limiting);
    const what = kind === "all" ? "LIMITING IS SWITCHED OFF." : `LIMITING OF ${kind.toUpperCase()} IS SWITCHED OFF.`;
    return html`<div key=${kind} class="banner off" role="alert">
      <p><strong>${what}</strong> ${entry && html`<${OffBy} edit=${entry.edit} />`}</p>
      ${entry && html`<${Button} isWrite onclick=${() => switchOn(entry)}>Switch back on…<//>`}
    </div>`;
  });
}

function OffBy({ edit }) {
  if (!edit) return "By the configuration.";
  const { by, at, reason, expires_at: end } = edit;
  const why = reason ? `: ${reason.replace(/[.\s]+$/, "")}.` : ".";
  const until = end ? `On again by itself: ${left(end)}.` : "Until somebody switches it on.";
  return html`By ${by}<span title=${exact(at)} aria-live="off">, ${ago(at)}</span>${why}${" "}
    <span title=${exact(end)} aria-live="off">${until}</span>`;
}

/** What is wrong with the sidecar: `{manner, title, text}`. */
export function alarmsOf({ alarms, failed_reload: reload, bypassed, draining, persistence }) {
  const found = alarms
    .filter((each) => each.stands)
    .map((each) => ({
      manner: "bad",
      title: `Alarm: ${each.scarce} runs short, and publishers are stopped.`,
      text: `${each.text}. Consumers go on.${each.since ? ` Since ${exact(each.since)}.` : ""}`,
    }));
  if (reload) {
    const more = reload.problems.length > 3 ? ` · and ${reload.problems.length - 3} more` : "";
    const problems = reload.problems.slice(0, 3).join(" · ");
    const text = `${problems}${more} (read again at ${exact(reload.at)} by ${reload.by})`;
    found.push({ manner: "bad", title: "The configuration is wrong; what was in force still is.", text });
  }
  if (bypassed.per_s_last_60s > 0) {
    const reasons = bypassed.by.map((each) => `${each.handler} ${each.reason} ${count(each.total)}`).join(", ");
    const lately = `${rate(bypassed.per_s_last_60s)} per second over the last minute`;
    const text = `${lately}, ${count(bypassed.total)} since the start (${reasons}).`;
    found.push({ title: "Requests bypass the limiter:", text });
  }
  const ends = "No new connections are accepted; Sluice ends once what is in flight has its answers.";
  if (draining) found.push({ title: "Draining.", text: ends });
  if (persistence.error) found.push({ manner: "bad", title: "Edits are not saved:", text: persistence.error });
  return found;
}

/** What is good to know, and may be scrolled away. */
function Warnings() {
  const { error, directory, set_aside: aside } = app.state?.persistence ?? { error: "unknown" };
  const found = [];
  if (!error && !directory) {
    const text = "there is no state directory to keep them in.";
    found.push({ title: "Edits last until the restart only:", text });
  }
  if (!error && aside.length) {
    const text = `${aside.join(", ")}. The edits in them are not in force; the configured limits are.`;
    found.push({ title: "Damaged files were set aside at the start:", text });
  }
  return html`<div class="banners" id="notices" role="region" aria-label="Warnings">
    ${found.map((each) => html`<${Banner} key=${each.title} of=${each} />`)}
  </div>`;
}
