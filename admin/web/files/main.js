import { ApiError, get, onSignInNeeded, openStream } from "./api.js";
import { announce, app, closeToast, hurry, link, nameOf, pageOf, place, redraw, startDrawing, toast } from "./app.js";
import { AuditView, changeLine } from "./changes.js";
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
/** The query for views that show no rows. */
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
let lastName = "";

const follow = openStream({
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
      // Wait, because the response to the user's own change may arrive after this event.
      setTimeout(() => {
        if (!app.ownChanges.has(data.id)) toast(`${data.by}: ${changeLine(data)}`, offerOf(data));
      }, TOLD_AFTER_MS);
    }
    redraw();
  },
});

/** The first event of a connection contains all rows, and later ones only those that changed. */
function takeRows(data) {
  const { rows } = app;
  setServerTime(data.sampled_at);
  if (isWhole) rows.byKey.clear();
  for (const row of data.rows) rows.byKey.set(row.key, { ...rows.byKey.get(row.key), ...row });
  const order = isWhole ? data.rows.map((row) => row.key) : data.order;
  if (order) {
    rows.order = order;
    for (const key of rows.byKey.keys()) if (!order.includes(key)) rows.byKey.delete(key);
  }
  for (const name of ["total", "totals", "kinds"]) rows[name] = data[name] ?? rows[name];
  rows.isKnown = true;
  isWhole = false;
}

function offerOf(change) {
  const [, kind, pattern = ""] = /^limits\/([^/]+)\/(.*)$/su.exec(change.target) ?? [];
  const name = nameOf(pattern);
  return pageOf(kind, name) && { label: "Show", action: () => (location.hash = link("resource", { kind, name })) };
}

function shown() {
  const { view, params } = place();
  const name = view in VIEWS ? view : "overview";
  const isResource = name === "resource" && params.get("name");
  const title = isResource ? `${params.get("kind")} ${params.get("name")}` : VIEWS[name].title;
  return { query: () => STATE_ONLY, ...VIEWS[name], name, params, title };
}

function route() {
  const { name, title, query, params } = shown();
  if (lastName && name !== lastName) {
    Object.assign(app.rows, { isKnown: false, order: [] });
    app.rows.byKey.clear();
    announce(title);
    scrollTo(0, 0);
    document.getElementById("main").focus({ preventScroll: true });
  }
  lastName = name;
  const wanted = query(params);
  if (app.whoami && JSON.stringify(wanted) !== followed) {
    followed = JSON.stringify(wanted);
    follow(wanted);
  }
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
    <${Button} manner="skip" id="skip" onclick=${skip}>Skip to the content<//>
    <${Header} view=${name} />
    <p class="visually-hidden" role="status">${app.announcement}</p>
    <main id="main" tabindex="-1">
      ${app.whoami ? html`<${View} key=${name} params=${params} />` : html`<p class="empty">Loading…</p>`}
    </main>
    ${app.dialogs.map(({ id, component, props, close }) => html`<${component} key=${id} ...${props} close=${close} />`)}
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
  const role = of.manner === "error" ? "alert" : "status";
  const reading = { onPointerEnter: read, onFocusIn: read, onPointerLeave: leave, onFocusOut: leave };
  return html`<div class="toast ${of.manner}" role=${role} ...${reading}>
    <p>${of.text}</p>
    ${of.offer && html`<${Button} manner="small" onclick=${act}>${of.offer.label}<//>`}
    <${Button} manner="small plain" label="Close this message" onclick=${() => closeToast(of)}>✕<//>
  </div>`;
}

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
// Redraw the page even without events, because it shows relative times.
setInterval(redraw, 1000);
startTheme();
begin();
