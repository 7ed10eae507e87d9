/** Every resource with its limit and its figures, live; only what is on screen travels. */

import { announce, app, canWrite, go, openDialog, pageOf, place, redraw, writing } from "./app.js";
import { revertAll } from "./changes.js";
import { Spark } from "./chart.js";
import { Actions, Dialog, Field } from "./dialogs.js";
import { Editor } from "./editor.js";
import { ago, count, duration, exact, left, limitText, percent, rate, shortLimit, wait } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Button, KindChoice, Pager, Search, SortChoice, StateTag, Table, Tag, cell, pageNumber } from "./parts.js";

const PAGE = 50;
/** The bar's full width stands for this share, so that one above the limit shows by how much. */
const BAR_SHARE = 1.5;
/** What all figures of a row are of, as the API says. */
export const WINDOW = "the last 10 s";
/** In the address, for people, and for the API; the last one is shown only when there are any. */
const FILTERS = [
  { key: "limited", title: "Limited", name: "limited" },
  { key: "near", title: "Near limit", name: "near" },
  { key: "edited", title: "Edited", name: "overridden" },
  { key: "shadowed", title: "Would refuse", name: "shadowed", isRare: true },
];
const NOTHING_MATCHES = "Nothing matches. Take away a filter, or make a new limit for this name.";
const NOTHING_YET = "Nothing has been asked for yet, and there is no limit.";
/** A finger leaves `:hover` behind where it last touched. */
const pointing = matchMedia("(hover: hover)");

/** What to ask the stream for. */
export function limitsQuery(params) {
  return {
    search: params.get("search"),
    kind: params.get("kind"),
    filter: FILTERS.find(({ key }) => key === params.get("filter"))?.name ?? null,
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
  const text = total
    ? `${count(query.offset + 1)}–${count(Math.min(total, query.offset + PAGE))} of ${count(total)}`
    : "";
  const table = { rows, sort: query, cells: cellsOf };
  const nothing = isFiltered ? NOTHING_MATCHES : NOTHING_YET;
  const newLimit = () => openDialog((close) => html`<${NewLimit} kinds=${kinds} onclose=${close} />`);
  return html`
    <div class="heading">
      <h1>Limits</h1>
      <p class="muted">${totals && `${count(totals.rows)} in all, figures of ${WINDOW}`}</p>
    </div>
    <div class="toolbar" role="search">
      <${Search} label="Search names" />
      <${KindChoice} kinds=${kinds} />
      <${SortChoice} name="limits" sort=${query} />
      <div class="chips" role="group" aria-label="Show only">
        ${FILTERS.map((each) => html`<${Chip} of=${each} amount=${totals?.[each.name]} is=${params.get("filter")} />`)}
      </div>
      <span class="spacer"></span>
      ${
        totals?.overridden > 0 &&
        html`<button type="button" class="button" onClick=${revertAll} ...${writing()}>Revert all edits…</button>`
      }
      <button type="button" class="button" onClick=${newLimit} ...${writing()}>New limit…</button>
    </div>
    <div ref=${body} onKeyDown=${moveByArrows} onPointerLeave=${redraw}>
      <${Table} name="limits" label="Limits" ...${table} action="Edit" empty=${isKnown && nothing} />
    </div>
    <${Pager} page=${pageNumber(params)} size=${PAGE} total=${total} text=${text} />
    <${EditedLimit} target=${params.get("edit")} />
  `;
}

/** The keys of the rows in their order; those under the pointer or the focus are not moved away from it. */
function useOrder(body) {
  const shown = useRef({ order: [], address: "" }).current;
  const { order } = app.rows;
  const address = location.hash;
  const isSame = order.length === shown.order.length && order.every((key) => shown.order.includes(key));
  const isHeld =
    isSame &&
    address === shown.address &&
    ((pointing.matches && body.current?.querySelector("tbody:hover")) ||
      body.current?.querySelector("tbody")?.contains(document.activeElement));
  if (!isHeld) Object.assign(shown, { order, address });
  return shown.order;
}

/** Up and down go from name to name. */
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

/** The editor of the limit that the address names. */
function EditedLimit({ target }) {
  if (!target) return null;
  const slash = target.indexOf("/");
  // A link in it leads elsewhere.
  const close = () => place().view === "limits" && go({ edit: "" });
  const of = { kind: target.slice(0, slash), name: target.slice(slash + 1) };
  return html`<${Editor} key=${target} ...${of} onclose=${close} />`;
}

function NewLimit({ kinds, onclose }) {
  const offered = kinds.filter((kind) => kind !== "total");
  const [kind, setKind] = useState(offered[0]);
  const [name, setName] = useState("");
  const [isShared, setShared] = useState(false);
  const control = useRef({}).current;
  const sent = (event) => {
    event.preventDefault();
    control.close();
    const of = isShared ? ["total", `${kind}:${name}`] : [kind, name];
    openDialog((close) => html`<${Editor} kind=${of[0]} name=${of[1]} onclose=${close} />`);
  };
  const help = "An exact name, or a pattern with * ? []; of clients an address, a network or *.";
  return html`<${Dialog} title="New limit" onclose=${onclose} control=${control}>
    <form onSubmit=${sent}>
      <${Field} label="Kind" value=${kind} onvalue=${setKind} options=${offered.map((each) => [each, each])} />
      <${Field}
        label="Name or pattern"
        help=${help}
        value=${name}
        onvalue=${setName}
        input=${{ required: true, "data-focus": true }}
      />
      <${Field}
        label="One limit for all that match together, besides that of each"
        value=${isShared}
        onvalue=${setShared}
      />
      <${Actions} label="Set its limit…" cancel=${() => control.close()} />
    </form>
  <//>`;
}

// --- rows

function cellsOf(row) {
  const { live, edit, configured, history } = row;
  const inFile = edit && configured ? `the file says ${limitText(configured.limit)}` : null;
  return {
    name: html`<${Name} row=${row} />`,
    limit: cell(shortLimit(row), { title: inFile }),
    passed: cell(undefined, { class: live?.passed_per_s ? "" : "faint" }),
    refused: cell(undefined, { class: live?.refused_per_s > 0 ? "refusing" : "faint" }),
    shadowed: cell(undefined, { class: live?.shadowed_per_s > 0 ? "would" : "faint" }),
    used: usedCell(row),
    history: history ? html`<${History} of=${history} live=${live} />` : undefined,
    last_refused: html`<${LastLimited} live=${live} />`,
    rule: html`<${Rule} row=${row} />`,
    action: html`<${EditButton} row=${row} />`,
  };
}

function Name({ row }) {
  const { live, kind, name } = row;
  const [words, manner, meaning] = stateOf(row);
  const href = row.exact ? pageOf(kind, name) : null;
  return html`
    <${Tag} manner="kind">${kind}<//>
    ${
      href
        ? html`<a class="name-button" href=${href}>${name}</a>`
        : html`<button type="button" class="name-button" onClick=${() => go({ edit: row.key })}>${name}</button>`
    }
    ${words && html`<${Tag} manner="flag ${manner}" title=${meaning}>${words}<//>`}
    <${WouldRefuse} row=${row} />
    <span class="stage"><${Waiting} live=${live} /></span>
    ${words && live.limited && live.refused_by && html`<span class="by">refused by ${live.refused_by}</span>`}
  `;
}

export function WouldRefuse({ row }) {
  if (!row.live?.would_refuse || isOff(row)) return null;
  const meaning = "A limit in shadow would refuse some of it now; all of it passes.";
  return html`<${Tag} manner="would" title=${meaning}>would refuse<//>`;
}

const OLDEST = "For how long the oldest message of it waits, held in memory or in the spool.";

/** How long its oldest message waits; nothing if none does. */
export function OldestWaiting({ live, before = "" }) {
  if ((live?.oldest_wait_s ?? null) === null) return null;
  return html`<span title=${OLDEST}>${before}${duration(live.oldest_wait_s)}</span>`;
}

function Waiting({ live }) {
  if (!live) return null;
  return html`
    <${StateTag} state=${live.state} running="" />
    ${live.oldest_wait_s !== null && html`<${Tag}><${OldestWaiting} live=${live} before="oldest waits " /><//>`}
    ${live.spooled > 0 && html`<${Tag} title="Messages of it in the spool.">${count(live.spooled)} spooled<//>`}
  `;
}

function usedCell(row) {
  const share = row.live?.used_ratio ?? null;
  const width = `${(Math.min(share ?? 0, BAR_SHARE) / BAR_SHARE) * 100}%`;
  const manner = [share > 1.005 && "over", row.live?.near && "near", row.limit?.action === "shadow" && "in-shadow"];
  const bar = html`<span class="bar-track" aria-hidden="true">
    <span class="bar-fill" style=${{ width }}></span><span class="bar-full"></span>
  </span>`;
  const text = html`<span class="used-text">${percent(share)}</span>`;
  const content = html`<div class="bar-box">${share !== null && bar}${text}</div>`;
  return cell(content, { class: manner.filter(Boolean).join(" ") });
}

function History({ of: { passed, refused }, live }) {
  const most = (figures) => rate(Math.max(0, ...figures));
  const now = `now ${rate(live?.passed_per_s)} passed and ${rate(live?.refused_per_s)} refused per second`;
  const label = `last 5 minutes: ${now}, at most ${most(passed)} and ${most(refused)}`;
  return html`<${Spark} passed=${passed} refused=${refused} label=${label} />`;
}

function LastLimited({ live }) {
  const at = live?.last_limited_at;
  if (!at) return html`<time title="not since Sluice was started">–</time>`;
  const isStated = at === live.last_refused_at && live.last_wait_s;
  const stated = isStated ? `; it was told to wait ${wait(live.last_wait_s * 1e6)}` : "";
  return html`<time datetime=${at} title=${exact(at) + stated}>${ago(at)}</time>`;
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

function EditButton({ row }) {
  const word = canWrite() ? "Edit" : "Show";
  const label = `${word} the limit of ${row.kind} ${row.name}`;
  return html`<${Button} manner="small" label=${label} onclick=${() => go({ edit: row.key })}>${word}<//>`;
}

/** Whether nothing limits a row since limiting is switched off, of everything or of what would limit it. */
export function isOff(row) {
  const off = app.state?.off ?? [];
  return off.includes("all") || (off.includes(row.kind) && !row.live?.refused_by);
}

/** A row's state in the window, how it looks, and what it means. */
export function stateOf(row) {
  const { live } = row;
  // What was refused before is in the figures for a while yet.
  if (!live || isOff(row)) return ["", "", ""];
  if (!live.limited) {
    if (!live.near || live.would_refuse) return ["", "", ""];
    return ["near limit", "warn", `At least 80 % of the limit were used in ${WINDOW}.`];
  }
  const refused = live.refused_per_s;
  if (live.holding && !refused) {
    const now = live.wait_s ? `; one that came now would wait ${wait(live.wait_s * 1e6)}` : "";
    return ["holding", "warn", `Requests had to wait in ${WINDOW}${now}.`];
  }
  // Of totals and scopes it is not known what passes.
  if (refused && live.passed_per_s === 0) {
    return ["refusing all", "bad", `Nothing passed in ${WINDOW}.`];
  }
  return ["refusing", "bad", `Some of it was refused in ${WINDOW}.`];
}
