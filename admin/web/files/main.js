/** Starts the page: who is asking, the stream of figures, and the view that the address names. */

import { ApiError, get, onSignInNeeded } from "./api.js";
import { app, announce, emit, on } from "./app.js";
import { AuditView } from "./audit.js";
import { showBanners } from "./banners.js";
import { ConnectionsView } from "./connections.js";
import { byId, h, fill, setAttribute } from "./dom.js";
import { FlowView } from "./flow.js";
import { serverNow, setServerTime } from "./format.js";
import { showConnection, startHeader } from "./header.js";
import { LimitsView } from "./limits.js";
import { changeLine } from "./preview.js";
import { revertChange } from "./reverts.js";
import { nameOf, hasPage, link, place } from "./router.js";
import { ResourceView } from "./resource.js";
import { RulesView } from "./rules.js";
import { signIn } from "./signin.js";
import { StateView } from "./state.js";
import { Stream } from "./stream.js";
import { startTheme } from "./theme.js";
import { toast } from "./toast.js";

/** @type {Record<string, new () => any>} */
const VIEWS = { limits: LimitsView, rules: RulesView, audit: AuditView, connections: ConnectionsView, flow: FlowView, state: StateView, resource: ResourceView };
/** Views that want rows of the table. */
const FOLLOWING = ["limits", "resource"];
/** Views without the table still want the state and the changes; one row is the least that the API sends. */
const STATE_ONLY = { limit: 1, history: 0 };

/** @type {any} */
let view = null;
let viewName = "";
let followed = "";
let wholeNext = true;

const stream = new Stream({
  begin() {
    wholeNext = true;
  },
  status(status) {
    if (status === "live") app.figuresAt = Date.now();
    if (status === app.status) return;
    app.status = status;
    emit("status", status);
  },
  event(name, data) {
    app.figuresAt = Date.now();
    if (name === "limits") {
      setServerTime(data.sampled_at);
      if (FOLLOWING.includes(viewName)) view.take(data, wholeNext);
      wholeNext = false;
    } else if (name === "state") {
      app.state = data;
      emit("state", data);
    } else if (name === "change") {
      emit("change", data);
      // The answer to one's own change may come after this; only then is it known whose it was.
      setTimeout(() => {
        if (!app.ownChanges.has(data.id)) toast(`${data.by}: ${changeLine(data)}`, offerOf(data));
      }, 1500);
    } else if (name === "bye") emit("bye", data);
  },
});

/** The way to what somebody else has changed. */
function offerOf(/** @type {any} */ change) {
  const [, kind = "", pattern = ""] = /^limits\/([^/]+)\/(.*)$/su.exec(change.target) ?? [];
  const name = nameOf(pattern);
  if (!hasPage(kind, name)) return null;
  return { label: "Show", action: () => (location.hash = link("resource", { kind, name })) };
}

function follow() {
  const query = FOLLOWING.includes(viewName) ? view.query() : STATE_ONLY;
  const wanted = JSON.stringify(query);
  if (wanted === followed) return;
  followed = wanted;
  stream.open(query);
}

function route() {
  if (!app.whoami) return;
  const { view: wanted, params } = place();
  const name = wanted in VIEWS ? wanted : "limits";
  const main = byId("main");
  if (name === viewName) view.update(params);
  else {
    const first = !viewName;
    view?.unmount?.();
    viewName = name;
    view = new VIEWS[name]();
    for (const tab of byId("tabs").children) setAttribute(tab, "aria-current", tab.dataset.view === name ? "page" : null);
    view.mount(main, params);
    if (!first) {
      scrollTo(0, 0);
      main.focus({ preventScroll: true });
      announce(`${view.title}`);
    }
  }
  title();
  follow();
}

function title() {
  const off = app.state?.off?.length ? "⚠ LIMITING OFF · " : "";
  const text = `${off}${view ? `${view.title} · ` : ""}Sluice`;
  if (document.title !== text) document.title = text;
}

/** Find out who is asking, and begin; or ask for a token. */
async function begin() {
  const before = app.whoami;
  try {
    app.whoami = (await get("whoami")).body;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) return;
    app.status = "offline";
    emit("status", "offline");
    setTimeout(begin, 3000);
    return;
  }
  // What may be pressed is settled when a view is made.
  if (before && before.role !== app.whoami?.role) location.reload();
  emit("whoami", app.whoami);
  followed = "";
  route();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLElement && event.target.closest("input, select, textarea, dialog");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("main input[type=search]");
  if (search instanceof HTMLElement) {
    search.focus();
    event.preventDefault();
  }
});
byId("skip").addEventListener("click", () => byId("main").focus());
addEventListener("hashchange", route);
on("state", title);
on("status", (status) => {
  document.documentElement.classList.toggle("stale", status === "offline" || status === "reconnecting");
  showConnection();
});
on("overtaken", (change) => revertChange(change));
onSignInNeeded(() => signIn(begin));
setInterval(showConnection, 1000);

startTheme();
startHeader();
showBanners();
fill(byId("main"), h("p", { class: "empty" }, "Loading…"));
begin();
// For the tests and the curious: how old the figures are.
Object.defineProperty(window, "sluice", { value: Object.freeze({ status: () => app.status, serverNow }) });
