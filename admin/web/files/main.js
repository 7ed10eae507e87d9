/** Starts the page: who is asking, the stream of figures, and the view that the address names. */

import { ApiError, Stream, get, onSignInNeeded } from "./api.js";
import { announce, app, closeToast, hurry, link, nameOf, pageOf, place, redraw, startDrawing, toast } from "./app.js";
import { AuditView } from "./audit.js";
import { changeLine } from "./changes.js";
import { ConnectionsView } from "./connections.js";
import { FlowView } from "./flow.js";
import { setServerTime } from "./format.js";
import { Header, startTheme } from "./header.js";
import { html, render, useEffect } from "./html.js";
import { LimitsView, limitsQuery } from "./limits.js";
import { OVERVIEW_QUERY, OverviewView } from "./overview.js";
import { Button } from "./parts.js";
import { ResourceView, resourceQuery } from "./resource.js";
import { RulesView } from "./rules.js";
import { signIn } from "./signin.js";
import { StateView } from "./state.js";

const TOLD_AFTER_MS = 1500;
const AGAIN_AFTER_MS = 3000;
/** Views without rows still want the state and the changes; one row is the least that the API sends. */
const STATE_ONLY = { limit: 1, history: 0 };
const VIEWS = {
  overview: { title: "Overview", view: OverviewView, query: () => OVERVIEW_QUERY },
  limits: { title: "Limits", view: LimitsView, query: limitsQuery },
  rules: { title: "Rules", view: RulesView },
  audit: { title: "Audit", view: AuditView },
  connections: { title: "Connections", view: ConnectionsView },
  flow: { title: "Flow", view: FlowView },
  state: { title: "State", view: StateView },
  resource: { title: "Resource", view: ResourceView, query: resourceQuery },
};

let followed = "";
let isWhole = true;

const stream = new Stream({
  begin() {
    isWhole = true;
  },
  status(status) {
    if (status === "live") app.figuresAt = Date.now();
    app.status = status;
    redraw();
  },
  event(name, data) {
    if (name === "limits") takeRows(data);
    else if (name === "state") app.state = data;
    else if (name === "change") {
      app.changes += 1;
      // The answer to one's own change may come after this; only then is it known whose it was.
      setTimeout(() => {
        if (!app.ownChanges.has(data.id)) toast(`${data.by}: ${changeLine(data)}`, offerOf(data));
      }, TOLD_AFTER_MS);
    }
    redraw();
  },
});

/** Take rows of the stream: all of them, or those that have changed. */
function takeRows(data) {
  const { rows } = app;
  setServerTime(data.sampled_at);
  rows.sampledS = Date.parse(data.sampled_at) / 1000;
  if (isWhole) rows.byKey.clear();
  for (const row of data.rows) rows.byKey.set(row.key, { ...rows.byKey.get(row.key), ...row });
  const order = isWhole ? data.rows.map((row) => row.key) : data.order;
  if (order) {
    rows.order = order;
    for (const key of rows.byKey.keys()) if (!order.includes(key)) rows.byKey.delete(key);
  }
  rows.total = data.total ?? rows.total;
  rows.totals = data.totals ?? rows.totals;
  rows.kinds = data.kinds ?? rows.kinds;
  rows.isKnown = true;
  isWhole = false;
}

/** The way to what somebody else has changed. */
function offerOf(change) {
  const [, kind, pattern = ""] = /^limits\/([^/]+)\/(.*)$/su.exec(change.target) ?? [];
  const name = nameOf(pattern);
  return pageOf(kind, name) && { label: "Show", action: () => (location.hash = link("resource", { kind, name })) };
}

/** What the address names: its view, and the name that the view is drawn anew for. */
function shown() {
  const { view, params } = place();
  const name = view in VIEWS ? view : "overview";
  const isResource = name === "resource" && params.get("name");
  const title = isResource ? `${params.get("kind")} ${params.get("name")}` : VIEWS[name].title;
  return { ...VIEWS[name], name, params, title };
}

function follow() {
  if (!app.whoami) return;
  const { query = () => STATE_ONLY, params } = shown();
  const wanted = query(params);
  const text = JSON.stringify(wanted);
  if (text === followed) return;
  followed = text;
  stream.open(wanted);
}

let lastName = "";

function route() {
  const { name, title } = shown();
  if (lastName && name !== lastName) {
    app.rows.isKnown = false;
    app.rows.byKey.clear();
    app.rows.order = [];
    announce(title);
    scrollTo(0, 0);
    document.getElementById("main").focus({ preventScroll: true });
  }
  lastName = name;
  follow();
  redraw();
}

function Page() {
  const { name, view: View, params, title } = shown();
  const off = app.state?.off.length ? "⚠ LIMITING OFF · " : "";
  const isStale = ["offline", "reconnecting"].includes(app.status);
  useEffect(() => {
    document.title = `${off}${title} · Sluice`;
    document.documentElement.classList.toggle("stale", isStale);
  });
  const skip = () => document.getElementById("main").focus();
  return html`
    <button type="button" class="skip" id="skip" onClick=${skip}>Skip to the content</button>
    <${Header} view=${name} />
    <p class="visually-hidden" role="status">${app.announcement}</p>
    <main id="main" tabindex="-1">
      ${app.whoami ? html`<${View} key=${name} params=${params} />` : html`<p class="empty">Loading…</p>`}
    </main>
    ${app.dialogs.map(({ id, content: Content }) => html`<${Content} key=${id} />`)}
    <div class="toasts" role="region" aria-label="Messages">
      ${app.toasts.map((each) => html`<${Toast} key=${each.id} of=${each} />`)}
    </div>
  `;
}

function Toast({ of }) {
  const read = () => hurry(of, true);
  const leave = () => hurry(of);
  const act = () => {
    closeToast(of);
    of.offer.action();
  };
  return html`<div
    class="toast ${of.manner}"
    role=${of.manner === "error" ? "alert" : "status"}
    onPointerEnter=${read}
    onFocusIn=${read}
    onPointerLeave=${leave}
    onFocusOut=${leave}
  >
    <p>${of.text}</p>
    ${of.offer && html`<${Button} manner="small" onclick=${act}>${of.offer.label}<//>`}
    <${Button} manner="small plain" label="Close this message" onclick=${() => closeToast(of)}>✕<//>
  </div>`;
}

/** Find out who is asking, and begin; or ask for a token. */
async function begin() {
  try {
    app.whoami = await get("whoami");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) return;
    app.status = "offline";
    redraw();
    setTimeout(begin, AGAIN_AFTER_MS);
    return;
  }
  followed = "";
  route();
}

/** `/` leads to the search. */
function searchByKey(event) {
  const isTyping = event.target instanceof HTMLElement && event.target.closest("input, select, textarea, dialog");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("main input[type=search]");
  if (!search) return;
  search.focus();
  event.preventDefault();
}

document.addEventListener("keydown", searchByKey);
addEventListener("hashchange", route);
onSignInNeeded(() => signIn(begin));
startDrawing(() => render(html`<${Page} />`, document.getElementById("page")));
// What is said of moments goes on by itself.
setInterval(redraw, 1000);
startTheme();
begin();
