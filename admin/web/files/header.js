import { setToken, token } from "./api.js";
import { app, redraw, switches, useAnswer, useMedia } from "./app.js";
import { ago, count, duration, exact, left, rate, reached, sentence, serverNow, timeOfDay } from "./format.js";
import { html, useRef } from "./html.js";
import { Button, Dot, brokerState, listenerText } from "./parts.js";
import { switchAll, switchOn } from "./switches.js";

const THEME_KEY = "sluice.theme";
const STATUS = {
  connecting: ["connecting…", ""],
  live: ["live", "ok"],
  reconnecting: ["reconnecting", "warn", "The connection to Sluice was lost."],
  offline: ["offline", "bad", "No connection to Sluice."],
};
const VIEWS = ["overview", "limits", "rules", "audit", "connections", "flow", "state"];
const SHOWN_PROBLEMS = 3;
const SUN =
  "M8 4.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 0 0 0-7M8 .8v1.6M8 13.6v1.6M.8 8h1.6M13.6 8h1.6M2.9 2.9l1.1 1.1M12 12l1.1 1.1" +
  "M2.9 13.1L4 12M12 4l1.1-1.1";
const MOON = "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z";
const GATE = "M4 3v18M20 3v18M4 8h16";
const WATER = "M6.5 14c1.8-1.8 3.7-1.8 5.5 0s3.7 1.8 5.5 0M6.5 18.5c1.8-1.8 3.7-1.8 5.5 0s3.7 1.8 5.5 0";

export function Header({ view }) {
  const isNarrow = useMedia("(max-width: 1060px)");
  const { state, whoami } = app;
  const isOff = Boolean(state?.off.includes("all"));
  const title = isOff ? "Switch limiting back on" : "Switch limiting off, for everything or for one kind";
  const switchWrite = { isWrite: true, id: "switch-off", manner: isOff ? "" : "danger-quiet", title };
  const tabs = html`<nav class="tabs" aria-label="Views">
    ${VIEWS.map(
      (name) => html`<a key=${name} href="#/${name}" aria-current=${name === view ? "page" : null}>
        ${name[0].toUpperCase() + name.slice(1)}
      </a>`,
    )}
  </nav>`;
  return html`
    <div class="head">
      <div class="banners" id="banners" role="region" aria-label="Alarms">
        ${state && html`<${Off} state=${state} />`}
        ${alarms().map((each) => html`<${Banner} key=${each.title} of=${each} />`)}
      </div>
      <header class="top">
        <div class="bar">
          <a class="brand" href="#/overview" aria-label="Sluice, overview">
            <svg class="mark" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
              <path class="mark-gate" d=${GATE} />
              <path class="mark-water" d=${WATER} />
            </svg>
            <span>Sluice</span>
            <span class="version">${state?.version}</span>
          </a>
          ${!isNarrow && tabs}
          <div class="controls">
            <${Connection} />
            <${Button} ...${switchWrite} onclick=${switchAll}>${isOff ? "Switch on…" : "Switch off…"}<//>
            ${token() && html`<${Button} manner="icon" onclick=${signOut}>Sign out ${whoami?.name}<//>`}
            <${ThemeButton} />
          </div>
          ${isNarrow && tabs}
        </div>
        <${Strip} />
      </header>
    </div>
    <div class="banners" id="notices" role="region" aria-label="Warnings">
      ${[...warnings(state?.persistence)].map((each) => html`<${Banner} key=${each.title} of=${each} />`)}
    </div>
  `;
}

function signOut() {
  setToken("");
  location.reload();
}

function Connection() {
  const [word, manner, isStale] = STATUS[app.status];
  const ageS = (Date.now() - app.figuresAt) / 1000;
  const age = isStale && app.figuresAt && `figures from ${timeOfDay(app.figuresAt)}, ${duration(ageS)} ago`;
  return html`<span class="connection" id="connection" role="status">
    <${Dot} manner=${manner} /><span>${word}</span>${age && html`<span class="faint" aria-live="off">${age}</span>`}
  </span>`;
}

const light = matchMedia("(prefers-color-scheme: light)");

function theme() {
  return localStorage.getItem(THEME_KEY) ?? (light.matches ? "light" : "dark");
}

function showTheme() {
  document.documentElement.dataset.theme = theme();
  redraw();
}

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

function Strip() {
  const isWouldSeen = useRef(false);
  const { state } = app;
  if (!state) return html`<dl class="strip" id="strip"></dl>`;
  const { refused, shadowed } = state.rates.messages_per_s;
  // Keep this figure once it has been shown, so that the header's height does not change.
  isWouldSeen.current ||= shadowed > 0;
  const help = "messages per second for all resources, averaged over the last 10 s";
  const sinceS = (serverNow() - Date.parse(state.started_at)) / 1000;
  const part = (name, title, value, how = {}) =>
    html`<div key=${name} class="part-${name}" title=${how.help}>
      <dt>${title}</dt>
      <dd class=${how.manner || null}>${value}</dd>
    </div>`;
  const would = () => part("would", "Would refuse", `${rate(shadowed)}/s`, { help, manner: shadowed && "would" });
  return html`<dl class="strip" id="strip" aria-label="Now">
    ${part("health", "Health", dotted(...healthOf(state)))}
    ${part("passed", "Passed", `${rate(reached(state.rates.messages_per_s))}/s`, { help })}
    ${part("refused", "Refused", `${rate(refused)}/s`, { help, manner: refused && "refusing" })}
    ${isWouldSeen.current && would()} ${part("connections", "Connections", count(state.totals.connections_open))}
    ${part("broker", "Broker", brokerOf(state.listeners), { help: state.listeners.map(brokerLine).join("\n") })}
    ${part("uptime", "Up", duration(app.status === "live" ? sinceS : state.uptime_s))}
  </dl>`;
}

function dotted(text, manner) {
  return html`<${Dot} manner=${manner} /><span>${text}</span>`;
}

function healthOf({ draining, listeners, off, bypassed }) {
  if (draining) return ["draining", "warn"];
  if (listeners.some((each) => each.reachable === false)) return ["not ready", "bad"];
  if (off.length) return [`ready, ${off.includes("all") ? "limiting" : off.join(", ")} off`, "bad"];
  return bypassed.per_s_last_60s > 0 ? ["ready, bypassing", "warn"] : ["ready", "ok"];
}

function brokerOf(listeners) {
  const shown =
    listeners.find((each) => each.reachable === false) ?? listeners.find((each) => each.backup) ?? listeners[0];
  if (!shown) return dotted("none", "warn");
  const others = new Set(listeners.map((each) => each.broker)).size - 1;
  const route = `${shown.listen} → ${shown.broker}${others ? ` and ${others} more` : ""},`;
  const { manner, word } = brokerState(shown);
  return html`<${Dot} manner=${manner} /><span class="route">${route}</span><span>${word}</span>`;
}

function brokerLine(listener) {
  return `${listenerText(listener.name)}: ${listener.listen} → ${listener.broker}, ${brokerState(listener).text}`;
}

function Banner({ of: { manner = "warn", title, text } }) {
  // The figures change constantly, so screen readers must not announce them.
  return html`<div class="banner ${manner}" role="status">
    <p><strong>${title}</strong> <span aria-live="off">${text}</span></p>
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
  if (!edit) return "Switched off in the configuration.";
  const { by, at, reason, expires_at: end } = edit;
  const why = reason ? `: ${reason.replace(/[.\s]+$/, "")}.` : ".";
  const until = end ? `Switches back on automatically: ${left(end)}.` : "Off until an operator switches it on.";
  return html`By ${by}<span title=${exact(at)} aria-live="off">, ${ago(at)}</span>${why}
    <span title=${exact(end)} aria-live="off"> ${until}</span>`;
}

/** Returns all alarms as `{manner, title, text}`, except for limiting being switched off. */
export function alarms() {
  const { state, status } = app;
  const title = STATUS[status][2];
  const text = "The figures are stale. Traffic is not affected. The page reconnects automatically.";
  return [...(title ? [{ manner: "bad", title, text }] : []), ...(state ? stateAlarms(state) : [])];
}

function* stateAlarms(state) {
  const {
    listeners,
    alarms: scarce,
    failed_reload: reload,
    bypassed,
    draining,
    fleet,
    persistence,
    rejection_log: log,
  } = state;
  const down = listeners.filter(({ reachable }) => reachable === false);
  for (const broker of new Set(down.map((each) => each.broker))) {
    const own = down.filter((each) => each.broker === broker);
    const names = own.map((each) => listenerText(each.name)).join(", ");
    const why = sentence(own[0].error || "unreachable");
    const text = `${why} ${names} accepts no new clients until the broker is reachable.`;
    yield { manner: "bad", title: `The broker ${broker} is unreachable:`, text };
  }
  for (const each of scarce.filter(({ stands }) => stands)) {
    const since = each.since ? ` Since ${exact(each.since)}.` : "";
    yield {
      manner: "bad",
      title: `Alarm: low on ${each.scarce}. Publishers are stopped.`,
      text: `${each.text}. Consumers are not affected.${since}`,
    };
  }
  if (fleet && fleet.away_s !== null) {
    yield { manner: "bad", title: `The fleet ${fleet.name} cannot reach Redis:`, text: sentence(fleet.text) };
  }
  if (reload) {
    const hidden = reload.problems.length - SHOWN_PROBLEMS;
    const shown = [...reload.problems.slice(0, SHOWN_PROBLEMS), ...(hidden > 0 ? [`and ${hidden} more`] : [])];
    yield {
      manner: "bad",
      title: "The configuration is invalid. The previous one still applies.",
      text: `${shown.join(" · ")} (read at ${exact(reload.at)} by ${reload.by})`,
    };
  }
  if (bypassed.per_s_last_60s > 0) {
    const reasons = bypassed.by.map((each) => `${each.handler} ${each.reason} ${count(each.total)}`).join(", ");
    const perS = `${rate(bypassed.per_s_last_60s)} per second over the last minute`;
    yield {
      title: "Requests are bypassing the limiter:",
      text: `${perS}, ${count(bypassed.total)} since start (${reasons}).`,
    };
  }
  const ends = "No new connections are accepted. Sluice stops once all requests are answered.";
  if (draining) yield { title: "Draining.", text: ends };
  if (persistence.error) yield { manner: "bad", title: "Edits are not saved:", text: persistence.error };
  if (log.error) yield { title: "Refusals are not recorded:", text: log.error };
}

function* warnings(persistence) {
  const { error, directory, set_aside: aside } = persistence ?? { error: "unknown" };
  if (error) return;
  if (!directory) {
    yield { title: "Edits are lost on restart:", text: "there is no state directory to save them in." };
  }
  if (aside.length) {
    const text = `${aside.join(", ")}. Their edits are not active. The configured limits apply.`;
    yield { title: "Damaged files were quarantined at startup:", text };
  }
}
