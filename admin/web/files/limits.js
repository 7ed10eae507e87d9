/** The view of all resources, with their limits and live figures. The stream sends only the rows that are shown. */

import { announce, app, go, openDialog, pageOf, place, redraw } from "./app.js";
import { revertAll } from "./changes.js";
import { Spark } from "./chart.js";
import { Actions, Dialog, FOCUS, Field, Form } from "./dialogs.js";
import { Editor } from "./editor.js";
import {
  Ago,
  Bar,
  Button,
  EditButton,
  KindChoice,
  Pager,
  Search,
  SortChoice,
  StateTag,
  Table,
  Tag,
  cell,
  pageNumber,
} from "./parts.js";
import { count, duration, exact, left, limitText, percent, rate, shortLimit, wait } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

const PAGE = 50;
/** The usage at which the bar is full. It is above 1, so that usage above the limit is visible. */
const BAR_SHARE = 1.5;
export const WINDOW = "the last 10 s";
export const FILTERS = [
  { key: "limited", title: "Limited" },
  { key: "near", title: "Near limit" },
  { key: "edited", title: "Edited" },
  { key: "shadowed", title: "Would refuse", isRare: true },
];
const NOTHING_MATCHES = "Nothing matches. Remove a filter, or create a limit for this name.";
const NOTHING_YET = "No requests and no limits yet.";
/** On a touch screen, `:hover` still matches the element that was last touched. */
const pointing = matchMedia("(hover: hover)");

export function limitsQuery(params) {
  return {
    search: params.get("search"),
    kind: params.get("kind"),
    filter: FILTERS.find(({ key }) => key === params.get("filter"))?.key ?? null,
    sort: params.get("sort") ?? "refused",
    order: params.get("order") ?? "desc",
    offset: (pageNumber(params) - 1) * PAGE,
    limit: PAGE,
  };
}

export function LimitsView({ params }) {
  const { total, totals, kinds, isKnown } = app.rows;
  const query = limitsQuery(params);
  const isFiltered = params.get("search") || params.get("filter") || params.get("kind");
  useEffect(() => {
    if (isKnown && isFiltered) announce(`${count(total)} found`);
  }, [isFiltered, total]);
  const body = useRef();
  const keys = useOrder(body);
  const found = keys.map((key) => app.rows.byKey.get(key)).filter(Boolean);
  const rows = found.map((row) => ({ ...row, class: row.live ? null : "idle" }));
  const last = Math.min(total, query.offset + PAGE);
  const text = total ? `${count(query.offset + 1)}–${count(last)} of ${count(total)}` : "";
  const nothing = isFiltered ? NOTHING_MATCHES : NOTHING_YET;
  const table = { name: "limits", label: "Limits", rows, sort: query, cells: cellsOf, action: "Edit" };
  return html`
    <div class="heading">
      <h1>Limits</h1>
      <p class="muted">${totals && `${count(totals.rows)} in total, figures for ${WINDOW}`}</p>
    </div>
    <div class="toolbar" role="search">
      <${Search} label="Search names" />
      <${KindChoice} kinds=${kinds} />
      <${SortChoice} name="limits" sort=${query} />
      <div class="chips" role="group" aria-label="Show only">
        ${FILTERS.map((each) => html`<${Chip} of=${each} amount=${totals?.[each.key]} is=${params.get("filter")} />`)}
      </div>
      <span class="spacer"></span>
      ${totals?.edited > 0 && html`<${Button} isWrite onclick=${revertAll}>Revert all edits…<//>`}
      <${Button} isWrite onclick=${() => openDialog(NewLimit, { kinds })}>New limit…<//>
    </div>
    <div ref=${body} onKeyDown=${moveByArrows} onPointerLeave=${redraw}>
      <${Table} ...${table} empty=${isKnown ? nothing : "Loading…"} />
    </div>
    <${Pager} page=${pageNumber(params)} size=${PAGE} total=${total} text=${text} />
    <${EditedLimit} target=${params.get("edit")} />
  `;
}

/** Returns the row keys. Their order does not change while the pointer or the focus is in the table. */
function useOrder(body) {
  const shown = useRef({ order: [], address: "" }).current;
  const { order } = app.rows;
  const address = location.hash;
  const isSame = order.length === shown.order.length && order.every((key) => shown.order.includes(key));
  const rows = body.current?.querySelector("tbody");
  const isUsed = (pointing.matches && rows?.matches(":hover")) || rows?.contains(document.activeElement);
  if (!isSame || address !== shown.address || !isUsed) Object.assign(shown, { order, address });
  return shown.order;
}

function moveByArrows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = event.target.closest("tr");
  if (!step || !row) return;
  const names = [...event.currentTarget.querySelectorAll(".name-button")];
  const next = names[names.findIndex((each) => row.contains(each)) + step];
  if (!next) return;
  next.focus();
  event.preventDefault();
}

function Chip({ of: { key, title, isRare }, amount, is }) {
  if (isRare && !amount && is !== key) return null;
  const press = () => go({ filter: is === key ? "" : key, page: "" });
  const words = html`<span>${title}</span> <span class="faint">${amount === undefined ? "" : count(amount)}</span>`;
  return html`<${Button} manner="chip" aria-pressed=${String(is === key)} onclick=${press}>${words}<//>`;
}

function EditedLimit({ target }) {
  if (!target) return null;
  const slash = target.indexOf("/");
  // A link in the editor may already have changed the view.
  const close = () => place().view === "limits" && go({ edit: "" });
  const of = { kind: target.slice(0, slash), name: target.slice(slash + 1) };
  return html`<${Editor} key=${target} ...${of} close=${close} />`;
}

function NewLimit({ kinds, close }) {
  const offered = kinds.filter((kind) => kind !== "total");
  const [kind, setKind] = useState(offered[0]);
  const [name, setName] = useState("");
  const [isShared, setShared] = useState(false);
  const send = () => {
    close();
    openDialog(Editor, isShared ? { kind: "total", name: `${kind}:${name}` } : { kind, name });
  };
  const help = "An exact name, or a pattern with * ? []. For clients: an address, a network or *.";
  const options = offered.map((each) => [each, each]);
  const input = { required: true, ...FOCUS };
  return html`<${Dialog} title="New limit" close=${close}>
    <${Form} onsend=${send}>
      <${Field} label="Kind" value=${kind} onvalue=${setKind} options=${options} />
      <${Field} label="Name or pattern" help=${help} value=${name} onvalue=${setName} input=${input} />
      <${Field}
        label="One limit that all matching names share, in addition to their own limits"
        value=${isShared}
        onvalue=${setShared}
      />
      <${Actions} label="Set the limit…" cancel=${close} />
    <//>
  <//>`;
}

function cellsOf(row) {
  const { live, edit, configured, history } = row;
  const inFile = edit && configured ? `configured: ${limitText(configured.limit)}` : null;
  const shade = (value, manner) => cell(undefined, { class: value > 0 ? manner : "faint" });
  return {
    name: html`<${Name} row=${row} />`,
    limit: cell(shortLimit(row), { title: inFile }),
    passed: shade(live?.passed_per_s, ""),
    refused: shade(live?.refused_per_s, "refusing"),
    shadowed: shade(live?.shadowed_per_s, "would"),
    used: usedCell(row),
    history: history ? html`<${History} of=${history} live=${live} />` : undefined,
    last_refused: live?.last_limited_at ? html`<${LastLimited} live=${live} />` : undefined,
    rule: html`<${Rule} row=${row} />`,
    action: html`<${EditButton} kind=${row.kind} name=${row.name} onclick=${() => go({ edit: row.key })} />`,
  };
}

function Name({ row }) {
  const { live, kind, name } = row;
  const href = row.exact ? pageOf(kind, name) : null;
  const edit = () => go({ edit: row.key });
  return html`
    <${Tag} manner="kind">${kind}<//>
    ${
      href
        ? html`<a class="name-button" href=${href}>${name}</a>`
        : html`<button type="button" class="name-button" onClick=${edit}>${name}</button>`
    }
    <${Flags} row=${row} />
    <span class="stage">${live && html`<${Waiting} live=${live} />`}</span>
    ${live?.limited && live.refused_by && !isOff(row) && html`<span class="by">refused by ${live.refused_by}</span>`}
  `;
}

export function Flags({ row }) {
  if (!row.live || isOff(row)) return null;
  const [words, manner, meaning] = stateOf(row);
  const wouldRefuse = "A shadow limit would have refused some messages. They passed.";
  return html`
    ${words && html`<${Tag} manner="flag ${manner}" title=${meaning}>${words}<//>`}
    ${row.live.would_refuse && html`<${Tag} manner="would" title=${wouldRefuse}>would refuse<//>`}
  `;
}

export function OldestWaiting({ live, before = "" }) {
  if ((live.oldest_wait_s ?? null) === null) return null;
  const help = "How long the oldest message has been waiting in memory or in the spool.";
  return html`<span title=${help}>${before}${duration(live.oldest_wait_s)}</span>`;
}

function Waiting({ live }) {
  return html`
    <${StateTag} state=${live.state} running="" />
    ${live.oldest_wait_s !== null && html`<${Tag}><${OldestWaiting} live=${live} before="oldest waiting " /><//>`}
    ${live.spooled > 0 && html`<${Tag} title="Messages in the spool.">${count(live.spooled)} spooled<//>`}
  `;
}

function usedCell(row) {
  const share = row.live?.used_ratio ?? null;
  const manner = [share > 1.005 && "over", row.live?.near && "near", row.limit?.action === "shadow" && "in-shadow"];
  const content = html`<div class="bar-box">
    ${share !== null && html`<${Bar} share=${share / BAR_SHARE} />`}<span class="used-text">${percent(share)}</span>
  </div>`;
  return cell(content, { class: manner.filter(Boolean).join(" ") });
}

function History({ of: { passed, refused }, live }) {
  const most = (figures) => rate(Math.max(0, ...figures));
  const now = `now ${rate(live?.passed_per_s)} passed and ${rate(live?.refused_per_s)} refused per second`;
  const label = `last 5 minutes: ${now}, at most ${most(passed)} and ${most(refused)}`;
  return html`<${Spark} passed=${passed} refused=${refused} label=${label} />`;
}

function LastLimited({ live: { last_limited_at: at, last_refused_at: refusedAt, last_wait_s: waitS } }) {
  return html`<${Ago} at=${at} more=${at === refusedAt && waitS ? `; told to wait ${wait(waitS)}` : ""} />`;
}

function Rule({ row: { edit, limit, rule, source } }) {
  const action = limit?.action;
  const about = edit && `by ${edit.by}, ${exact(edit.at)}${edit.reason ? `: ${edit.reason}` : ""}`;
  const end = edit?.expires_at;
  return html`<div class="rule-box">
    ${edit && html`<${Tag} manner="edited" title=${about}>edited<//>`}
    ${end && html`<span class="remaining" title="until ${exact(end)}">${left(end)}</span>`}
    ${action && action !== "reject" && html`<${Tag}>${action}<//>`}
    ${!edit && html`<span class="rule-name" title=${source || null}>${rule || "no rule"}</span>`}
  </div>`;
}

export function isOff(row) {
  const off = app.state?.off ?? [];
  return off.includes("all") || (off.includes(row.kind) && !row.live?.refused_by);
}

function stateOf({ live }) {
  const { limited, near, would_refuse: wouldRefuse, holding, wait_s: waitS, refused_per_s: refused } = live;
  if (!limited) {
    return near && !wouldRefuse ? ["near limit", "warn", `At least 80 % of the limit was used in ${WINDOW}.`] : [];
  }
  if (holding && !refused) {
    const now = waitS ? ` A new request would wait ${wait(waitS)}.` : "";
    return ["holding", "warn", `Requests had to wait in ${WINDOW}.${now}`];
  }
  // For totals and scopes, this is null, because passed messages are not counted.
  if (refused && live.passed_per_s === 0) return ["refusing all", "bad", `Nothing passed in ${WINDOW}.`];
  return ["refusing", "bad", `Some messages were refused in ${WINDOW}.`];
}
