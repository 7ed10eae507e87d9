/** What views are made of: tables with their headers, choices and pages, panels, links, times and states. */

import { app, go, pageOf, pageOfTarget, place, writing } from "./app.js";
import { COLUMNS } from "./columns.js";
import { ago, bytes, count, duration, exact, percent, rate, wait } from "./format.js";
import { html, useEffect, useRef } from "./html.js";

const QUIET_MS = 150;
/** What is said of each state, how it looks and what it means. */
const STATES = {
  running: ["running", "", "Nothing stops it."],
  throttled: ["throttled", "", "A limit makes its messages wait."],
  flow: ["in flow", "", "It was stopped within the last seconds, since a later stage takes no more."],
  blocked: ["blocked", "bad", "An alarm stops it."],
};

/** A button; `isWrite`: for those who may change something. */
export function Button({ manner = "", label, isWrite = false, onclick, children, ...attributes }) {
  const more = { ...attributes, ...(isWrite && writing()) };
  return html`<button type="button" class="button ${manner}" aria-label=${label} onClick=${onclick} ...${more}>
    ${children}
  </button>`;
}

// --- tables

/** How the value of a column is shown, by the column's format. */
const FORMATS = {
  text: (value) => String(value),
  name: (_, row) => html`<${Named} kind=${row.kind} name=${row.name} />`,
  list: (values) => listed(values.map((text) => html`<${ResourceOf} text=${text} />`)),
  state: (state) => html`<${StateTag} state=${state} />`,
  flag: (value) => (value ? "yes" : "no"),
  rate,
  count,
  share: percent,
  bytes,
  seconds: duration,
  milliseconds: (value) => wait(value * 1000),
  age: (at) => html`<${Ago} at=${at} />`,
  time: exact,
};
const FIGURES = ["rate", "count", "share", "bytes", "seconds", "milliseconds"];

/** What a cell shows in place of its column's value, with attributes of its own. */
export function cell(content, attributes) {
  return { content, attributes };
}

/**
 * A table; on phones a card for each row. `columns` are those of columns.js, or have their fields. `cells(row)` is what
 * a row shows in place of its values, and its cell `action` the buttons of a last column, which `action` names. `empty`
 * is said if there are no rows.
 */
export function Table({ name, label, columns = COLUMNS[name], sort, children, empty, ...body }) {
  const { rows = [], action } = body;
  const shown = shownColumns(columns, rows);
  return html`<div class="sheet">
    <table class="${name} cards-on-phones" role="table" aria-label=${label}>
      <thead role="rowgroup">
        <tr role="row">
          ${shown.map((column) => html`<${Header} key=${column.name} column=${column} sort=${sort} />`)}
          ${action && html`<${Header} column=${{ title: hidden(action) }} />`}
        </tr>
      </thead>
      ${children ?? html`<${Rows} columns=${shown} ...${body} />`}
    </table>
    ${empty && !rows.length && html`<p class="empty">${empty}</p>`}
  </div>`;
}

function hidden(text) {
  return html`<span class="visually-hidden">${text}</span>`;
}

function shownColumns(columns, rows) {
  const isSaid = (column) =>
    rows.some((row) => ![undefined, null, "", 0].includes(valueOf(column, row)?.length ?? valueOf(column, row)));
  return columns.filter((column) => column.page !== false && (!column.optional || isSaid(column)));
}

function valueOf({ field, name }, row) {
  const value = (field ?? name).split(".").reduce((of, key) => of?.[key], row);
  const isMapping = value && Object.getPrototypeOf(value) === Object.prototype;
  return isMapping ? Object.values(value).reduce((sum, each) => sum + each, 0) : value;
}

function keyOf(row) {
  return row.key ?? row.id ?? `${row.kind}/${row.name}`;
}

/** The body of a table; `below(row)` makes a row below it. */
export function Rows({ columns, rows, cells = () => ({}), below = () => null, action }) {
  return html`<tbody role="rowgroup">
    ${rows.map((row) => {
      const own = cells(row);
      const more = below(row);
      return [
        html`<tr key=${keyOf(row)} class=${row.class} data-row=${row.key} role="row">
          ${columns.map((column, at) => html`<${Cell} key=${column.name} ...${{ column, row, own, isFirst: !at }} />`)}
          ${action && html`<td role="cell" class="edit-cell">${own.action}</td>`}
        </tr>`,
        more &&
          html`<tr key="${keyOf(row)} below" class="below" role="row"><td role="cell" colspan="99">${more}</td></tr>`,
      ];
    })}
  </tbody>`;
}

function Cell({ column, row, own: cells, isFirst }) {
  const { name, title, format = "text" } = column;
  const own = cells[name]?.attributes ? cells[name] : { content: cells[name] };
  const value = valueOf(column, row);
  const isEmpty = own.content === undefined && [undefined, null, "", false].includes(value?.length === 0 ? "" : value);
  const content = own.content ?? (isEmpty ? html`<span class="faint">–</span>` : FORMATS[format](value, row));
  const { class: more = "", ...attributes } = own.attributes ?? {};
  const words = [name, FIGURES.includes(format) && "number", isEmpty && "none", more].filter(Boolean);
  if (isFirst) return html`<th scope="row" role="rowheader" class=${words.join(" ")} ...${attributes}>${content}</th>`;
  return html`<td role="cell" class=${words.join(" ")} data-label=${title} ...${attributes}>${content}</td>`;
}

function Header({ column: { name, title, help, order, format }, sort }) {
  const isSorted = Boolean(sort) && sort.sort === name;
  const other = sort?.order === "asc" ? "desc" : "asc";
  const press = () => go({ sort: name, order: isSorted ? other : order, page: "" });
  const sorted = isSorted ? `${sort.order}ending` : null;
  const words = `${name} ${FIGURES.includes(format) ? "number" : ""}`;
  return html`<th scope="col" role="columnheader" class=${words} title=${help || null} aria-sort=${sorted}>
    ${sort && order ? html`<button type="button" class="sort" onClick=${press}>${title}</button>` : title}
  </th>`;
}

/** The order of rows where headers have no room. */
export function SortChoice({ name, sort }) {
  const columns = COLUMNS[name].filter((each) => each.page && each.order);
  const choices = columns.map((each) => ({ name: each.name, order: each.order, title: each.title }));
  if (!choices.some((each) => each.name === sort.sort && each.order === sort.order)) {
    const title = columns.find((each) => each.name === sort.sort)?.title ?? sort.sort;
    choices.push({ name: sort.sort, order: sort.order, title });
  }
  const changed = (event) => {
    const [of, order] = event.target.value.split(" ");
    go({ sort: of, order, page: "" });
  };
  const option = ({ name: of, order, title }) =>
    html`<option value="${of} ${order}">Sort: ${title} ${order === "asc" ? "↑" : "↓"}</option>`;
  return html`<select class="narrow-only" aria-label="Sort by" value="${sort.sort} ${sort.order}" onChange=${changed}>
    ${choices.map(option)}
  </select>`;
}

/** The page that the address names, from 1. */
export function pageNumber(params) {
  return Math.max(1, Number(params.get("page")) || 1);
}

export function Pager({ page, size, total, text = total > size ? `page ${page} of ${Math.ceil(total / size)}` : "" }) {
  const step = (label, to, isPossible) =>
    html`<${Button} manner="small" disabled=${!isPossible} onclick=${() => go({ page: to > 1 ? to : "" })}>
      ${label}
    <//>`;
  return html`<div class="pager">
    <span>${text}</span>
    ${total > size && [step("‹ Previous", page - 1, page > 1), step("Next ›", page + 1, page * size < total)]}
  </div>`;
}

/** An input that changes a parameter of the address once nobody types. */
export function Search({ param = "search", label, placeholder = label, name = "" }) {
  const value = place().params.get(param) ?? "";
  const input = useRef();
  const timer = useRef();
  const { view } = place();
  useEffect(() => {
    if (document.activeElement !== input.current) input.current.value = value;
  }, [value]);
  const typed = () => {
    clearTimeout(timer.current);
    const change = () =>
      place().view === view &&
      go({ search: place().params.get("search") ?? "", [param]: input.current.value.trim(), page: "" });
    timer.current = setTimeout(change, QUIET_MS);
  };
  return html`<div class="search ${name}">
    <input
      ref=${input}
      type="search"
      aria-label=${label}
      placeholder=${placeholder}
      autocomplete="off"
      spellcheck="false"
      onInput=${typed}
    />
    <kbd aria-hidden="true">/</kbd>
  </div>`;
}

export function KindChoice({ kinds }) {
  const value = place().params.get("kind") ?? "";
  const changed = (event) => go({ kind: event.target.value, page: "" });
  return html`<select aria-label="Kind" value=${value} onChange=${changed}>
    <option value="">All kinds</option>
    ${kinds.map((kind) => html`<option key=${kind} value=${kind}>${kind}</option>`)}
  </select>`;
}

// --- panels

/** A box with a heading. `facts`: names and values. */
export function Panel({ title, facts, label = title, wide = false, children }) {
  return html`<section class="panel ${wide ? "wide" : ""}" aria-label=${label}>
    <h2>${title}</h2>
    ${facts && (facts.length ? html`<${Facts} facts=${facts} />` : html`<p class="faint">none</p>`)} ${children}
  </section>`;
}

export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

export function Dot({ manner = "" }) {
  return html`<span class="dot ${manner}" aria-hidden="true"></span>`;
}

export function Tag({ manner = "", title, children }) {
  return html`<span class="tag ${manner}" title=${title || null}>${children}</span>`;
}

/** Bytes of something, as a bar and in figures. */
export function Gauge({ amount, most }) {
  const share = most ? Math.min(amount / most, 1) : 0;
  const filled = html`<span class="bar-fill" style=${{ width: `${share * 100}%` }}></span>`;
  return html`<span class="gauge ${share > 0.8 ? "near" : ""}">
    <span class="bar-track" aria-hidden="true">${filled}</span>
    ${bytes(amount)} of ${bytes(most)}
  </span>`;
}

/** How many more there are than are shown. */
export function More({ of }) {
  return of > 0 && html`<p class="pager">and ${count(of)} more</p>`;
}

// --- names, times, states

/** A name that leads to the page of its resource; what has none is only written. */
export function ResourceLink({ kind, name, children = name, ...attributes }) {
  const href = pageOf(kind, name);
  return href ? html`<a href=${href} ...${attributes}>${children}</a>` : children;
}

function Named({ kind, name }) {
  return html`<${Tag} manner="kind">${kind}<//><${ResourceLink} kind=${kind} name=${name} />`;
}

/** The same for `KIND:NAME`, as connections and stages call resources. */
export function ResourceOf({ text }) {
  const [, before = "", kind = "", name = ""] = /^(resource )?([^: ]+):(.*)$/su.exec(text) ?? [];
  return name ? [before, html`<${ResourceLink} kind=${kind} name=${name}>${kind}:${name}<//>`] : text;
}

export function TargetLink({ target, children }) {
  const href = pageOfTarget(target);
  return href ? html`<a href=${href}>${children}</a>` : children;
}

/** Things with commas between them. */
export function listed(items) {
  return items.flatMap((each, index) => (index ? [", ", each] : [each]));
}

/** How long ago a moment was. */
export function Ago({ at }) {
  return html`<time datetime=${at} title=${exact(at)} class="nowrap">${ago(at)}</time>`;
}

/** A state as a tag; `running` is what is said of one that nothing stops. */
export function StateTag({ state, more = "", running = "running" }) {
  if (!state || state === "running") return running && html`<span class="faint">${running}</span>`;
  const [text, manner, meaning] = STATES[state] ?? [state, "", ""];
  return html`<${Tag} manner=${manner} title="${meaning} ${more}">${text}<//>`;
}

/** How a listener's broker is: `{manner, word, text}`, of which `text` says why. */
export function brokerState({ reachable, error, backup, backups, passed_over: passedOver }) {
  if (reachable === false) return { manner: "bad", word: "unreachable", text: error || "unreachable" };
  const text = [`backup ${backup} of ${backups}`, ...(passedOver ?? [])].join("; ");
  if (backup) return { manner: "warn", word: "a backup", text };
  if (reachable === null) return { manner: "", word: "not tried yet", text: "not tried yet" };
  return { manner: "ok", word: "reachable", text: "reachable" };
}

/** A listener by its name, or by the address that was bound where it has no other. */
export function listenerText(name) {
  const listener = app.state?.listeners.find((each) => each.name === name);
  // Without a name of its own it is called as the address to bind was written, of which 0 is any free port.
  return listener && name.endsWith(":0") ? listener.listen : name;
}
