import { app, canWrite, go, pageOf, pageOfTarget, place, writing } from "./app.js";
import { ago, bytes, count, duration, exact, left, percent, rate, wait } from "./format.js";
import { html, useEffect, useRef } from "./html.js";

/** @type {Record<string, object[]>} The columns of each table. The server fills them in. */
export const COLUMNS = {};

const QUIET_MS = 150;
const STATES = {
  running: ["running", "", ""],
  throttled: ["throttled", "", "A limit is delaying its messages."],
  flow: ["in flow", "", "Stopped in the last few seconds because a later stage was full."],
  blocked: ["blocked", "bad", "Stopped by an alarm."],
};

export function Button({ manner = "", label, isWrite = false, innerRef, onclick, children, ...attributes }) {
  const more = { type: "button", ref: innerRef, onClick: onclick, ...attributes, ...(isWrite && writing()) };
  return html`<button class="button ${manner}" aria-label=${label} ...${more}>${children}</button>`;
}

export function Fold({ isOpen, onclick, children }) {
  const how = { type: "button", "aria-expanded": String(isOpen), onClick: onclick };
  return html`<button class="fold" ...${how}>${children}</button>`;
}

export function Choice({ label, value, options, onvalue, ...attributes }) {
  const changed = (event) => onvalue(event.target.value);
  return html`<select aria-label=${label} value=${value} onChange=${changed} ...${attributes}>
    ${options.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}
  </select>`;
}

const FORMATS = {
  text: String,
  name: (_, row) => html`<${Named} ...${row} />`,
  list: (values) => listed(values.map((text) => html`<${ResourceOf} text=${text} />`)),
  state: (state) => html`<${StateTag} state=${state} />`,
  flag: (value) => (value ? "yes" : "no"),
  rate,
  count,
  share: percent,
  bytes,
  seconds: duration,
  milliseconds: (value) => wait(value / 1000),
  age: (at) => html`<${Ago} at=${at} />`,
  time: exact,
};
const FIGURES = ["rate", "count", "share", "bytes", "seconds", "milliseconds"];

export function cell(content, attributes) {
  return { content, attributes };
}

/**
 * `columns` have the fields of `admin.common.columns.Column`. `cells(row)` returns custom cells by column name.
 * `action` is the heading of an optional last column, whose cells have the name `action`. `below(row)` returns content
 * to show below a row. A row that has a `heading` has no other cells. `empty` is shown if there are no rows.
 */
export function Table({ name, label, columns = COLUMNS[name], rows, sort, action, empty, ...how }) {
  if (!rows.length && empty !== undefined) return html`<p class="empty">${empty}</p>`;
  const { cells = () => ({}), below = () => null } = how;
  const isSaid = (column) => rows.some((row) => ![undefined, null, "", 0].includes(lengthOf(valueOf(column, row))));
  const shown = columns.filter((column) => column.page !== false && (!column.optional || isSaid(column)));
  const ends = html`<span class="visually-hidden">${action}</span>`;
  return html`<div class="sheet">
    <table class="${name} cards-on-phones" role="table" aria-label=${label}>
      <thead role="rowgroup">
        <tr role="row">
          ${shown.map((column) => html`<${Header} key=${column.name} column=${column} sort=${sort} />`)}
          ${action && html`<${Header} column=${{ title: ends }} />`}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${rows.map((row) => {
          if (row.heading) return html`<${Heading} key=${row.key} of=${row} />`;
          const [key, own, more] = [keyOf(row), cells(row), below(row)];
          return [
            html`<tr key=${key} class=${row.class} data-row=${row.key} role="row">
              ${shown.map((column, at) => html`<${Cell} key=${column.name} ...${{ column, row, own, at }} />`)}
              ${action && html`<td role="cell" class="edit-cell">${own.action}</td>`}
            </tr>`,
            more &&
              html`<tr key="${key} below" class="below" role="row"><td role="cell" colspan="99">${more}</td></tr>`,
          ];
        })}
      </tbody>
    </table>
  </div>`;
}

function valueOf({ field, name }, row) {
  const value = (field ?? name).split(".").reduce((of, key) => of?.[key], row);
  const isMapping = value && Object.getPrototypeOf(value) === Object.prototype;
  return isMapping ? Object.values(value).reduce((sum, each) => sum + each, 0) : value;
}

function lengthOf(value) {
  return Array.isArray(value) ? value.length : value;
}

function keyOf(row) {
  return row.key ?? row.id ?? `${row.kind}/${row.name}`;
}

function Heading({ of: { heading } }) {
  return html`<tr class="group" role="row"><th scope="rowgroup" role="rowheader" colspan="99">${heading}</th></tr>`;
}

function Cell({ column, row, own: cells, at }) {
  const { name, title, format = "text" } = column;
  const own = cells[name]?.attributes ? cells[name] : { content: cells[name] };
  const value = valueOf(column, row);
  const isEmpty =
    own.content === undefined &&
    [undefined, null, "", false].includes(lengthOf(value) === 0 && value !== 0 ? "" : value);
  const content = own.content ?? (isEmpty ? html`<span class="faint">–</span>` : FORMATS[format](value, row));
  const { class: more = "", ...attributes } = own.attributes ?? {};
  const words = [name, FIGURES.includes(format) && "number", isEmpty && "none", more].filter(Boolean).join(" ");
  if (!at) return html`<th scope="row" role="rowheader" class=${words} ...${attributes}>${content}</th>`;
  return html`<td role="cell" class=${words} data-label=${title} ...${attributes}>${content}</td>`;
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

/** Replaces the headers of a table on phones. */
export function SortChoice({ name, sort }) {
  const value = `${sort.sort} ${sort.order}`;
  const columns = COLUMNS[name].filter((each) => each.order);
  const options = columns
    .flatMap((each) => ["asc", "desc"].map((order) => [`${each.name} ${order}`, each, order]))
    .filter(([key, each, order]) => key === value || (each.page && each.order === order))
    .map(([key, { title }, order]) => [key, `Sort: ${title} ${order === "asc" ? "↑" : "↓"}`]);
  const chosen = (key) => {
    const [of, order] = key.split(" ");
    go({ sort: of, order, page: "" });
  };
  return html`<${Choice} class="narrow-only" label="Sort by" value=${value} options=${options} onvalue=${chosen} />`;
}

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

export function Search({ param = "search", label, placeholder = `${label} (press /)`, name = "" }) {
  const { view, params } = place();
  const value = params.get(param) ?? "";
  const input = useRef();
  const timer = useRef();
  useEffect(() => {
    if (document.activeElement !== input.current) input.current.value = value;
  }, [value]);
  const change = () =>
    place().view === view &&
    go({ search: place().params.get("search") ?? "", [param]: input.current.value.trim(), page: "" });
  const typed = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(change, QUIET_MS);
  };
  const how = { "aria-label": label, placeholder, autocomplete: "off", spellcheck: "false", onInput: typed };
  return html`<input ref=${input} type="search" class=${name} ...${how} />`;
}

export function KindChoice({ kinds }) {
  const options = [["", "All kinds"], ...kinds.map((kind) => [kind, kind])];
  const chosen = (kind) => go({ kind, page: "" });
  const value = place().params.get("kind") ?? "";
  return html`<${Choice} label="Kind" value=${value} options=${options} onvalue=${chosen} />`;
}

export function Panel({ title, facts, wide = false, children }) {
  return html`<section class="panel ${wide ? "wide" : ""}" aria-label=${title}>
    <h2>${title}</h2>
    ${facts && (facts.length ? html`<${Facts} facts=${facts} />` : html`<p class="faint">none</p>`)} ${children}
  </section>`;
}

export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

export function Details({ of }) {
  return html`<${Facts} facts=${of.map(({ name, text }) => [name, text])} />`;
}

export function Figures({ label, title, figures }) {
  return html`<dl class="figures" aria-label=${label} title=${title}>
    ${figures.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

export function Dot({ manner = "" }) {
  return html`<span class="dot ${manner}" aria-hidden="true"></span>`;
}

export function Tag({ manner = "", title, children }) {
  return html`<span class="tag ${manner}" title=${title || null}>${children}</span>`;
}

export function Bar({ share }) {
  return html`<span class="bar-track" aria-hidden="true">
    <span class="bar-fill" style=${{ width: `${Math.min(share, 1) * 100}%` }}></span>
  </span>`;
}

export function Lines({ texts }) {
  return html`<ul class="details">${texts.map((text) => html`<li>${text}</li>`)}</ul>`;
}

export function More({ of }) {
  return of > 0 && html`<p class="pager">and ${count(of)} more</p>`;
}

export function ResourceLink({ kind, name, children = name, ...attributes }) {
  const href = pageOf(kind, name);
  return href ? html`<a href=${href} ...${attributes}>${children}</a>` : children;
}

function Named({ kind, name }) {
  return html`<${Tag} manner="kind">${kind}<//><${ResourceLink} kind=${kind} name=${name} />`;
}

export function ResourceOf({ text }) {
  const [, before = "", kind = "", name = ""] = /^(resource )?([^: ]+):(.*)$/su.exec(text) ?? [];
  return name ? [before, html`<${ResourceLink} kind=${kind} name=${name}>${kind}:${name}<//>`] : text;
}

export function TargetLink({ target, children }) {
  const href = pageOfTarget(target);
  return href ? html`<a href=${href}>${children}</a>` : children;
}

export function listed(items) {
  return items.flatMap((each, index) => (index ? [", ", each] : [each]));
}

export function Ago({ at, more = "" }) {
  return html`<time datetime=${at} title=${exact(at) + more} class="nowrap">${ago(at)}</time>`;
}

export function EditedBy({ edit: { by, at, expires_at: end, fleet } }) {
  return html`<span title=${exact(at)}>by ${by}, ${ago(at)}</span>${end && ` · ${left(end)}`}
  ${fleet && html` <${Tag} title="On ${fleet.member}">for the fleet<//>`}`;
}

export function EditButton({ kind, name, onclick }) {
  const word = canWrite() ? "Edit" : "Show";
  const what = name === "*" ? `default of ${kind}` : `limit of ${kind} ${name}`;
  return html`<${Button} manner="small" label="${word} the ${what}" onclick=${onclick}>${word}<//>`;
}

export function StateTag({ state, more = "", running = "running" }) {
  if (!state || state === "running") return running && html`<span class="faint">${running}</span>`;
  const [text, manner, meaning] = STATES[state] ?? [state, "", ""];
  return html`<${Tag} manner=${manner} title="${meaning} ${more}">${text}<//>`;
}

export function brokerState({ reachable, error, backup, backups, passed_over: passedOver }) {
  if (reachable === false) return { manner: "bad", word: "unreachable", text: error || "unreachable" };
  const text = [`backup ${backup} of ${backups}`, ...(passedOver ?? [])].join("; ");
  if (backup) return { manner: "warn", word: "on a backup", text };
  const word = reachable === null ? "not tried yet" : "reachable";
  return { manner: reachable === null ? "" : "ok", word, text: word };
}

/** Returns a listener's name, or its actual address if the port in the name is 0. */
export function listenerText(name) {
  const listener = app.state?.listeners.find((each) => each.name === name);
  return listener && name.endsWith(":0") ? listener.listen : name;
}
