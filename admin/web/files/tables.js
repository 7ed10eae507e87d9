/** What the tables have in common: headers that sort, a choice of orders where headers have no room, and pages. */

import { fill, h, setAttribute } from "./dom.js";
import { select } from "./dialog.js";

/** @typedef {(changes: Record<string, string>) => void} Go changes the address */

/** @returns {number} the page that the address names, from 1. */
export function pageOf(/** @type {URLSearchParams} */ params) {
  return Math.max(1, Number(params.get("page")) || 1);
}

/**
 * Show which page there is, and the way to the others.
 *
 * @param {Element} place
 * @param {string} text
 * @param {{page: number, size: number, total: number}} rows
 * @param {Go} go
 */
export function showPager(place, text, { page, size, total }, go) {
  const step = (/** @type {string} */ label, /** @type {number} */ to, /** @type {boolean} */ possible) =>
    h("button", { type: "button", class: "button small", disabled: !possible, onclick: () => go({ page: to > 1 ? String(to) : "" }) }, label);
  fill(place, h("span", {}, text), total > size && [step("‹ Previous", page - 1, page > 1), step("Next ›", page + 1, page * size < total)]);
}

/** @typedef {{label: string, key: string, ascends?: boolean, attributes: Record<string, any>}} Column without a key, it does not sort */

/**
 * The headers of a table that is sorted by its columns, and the choice for narrow windows.
 *
 * @param {Column[]} columns
 * @param {() => {sort: string, order: string}} query
 * @param {Go} go
 */
export function sorting(columns, query, go) {
  const sortable = columns.filter((each) => each.key);
  const first = (/** @type {Column} */ column) => (column.ascends ? "asc" : "desc");
  const toggle = (/** @type {Column} */ column) => {
    const { sort, order } = query();
    go({ sort: column.key, order: sort !== column.key ? first(column) : order === "asc" ? "desc" : "asc", page: "" });
  };
  const headers = columns.map((column) =>
    h("th", { scope: "col", "data-sort": column.key || null, ...column.attributes }, column.key ? h("button", { type: "button", class: "sort", onclick: () => toggle(column) }, column.label) : column.label),
  );
  const value = (/** @type {string} */ sort, /** @type {string} */ order) => `${sort} ${order}`;
  const text = (/** @type {string} */ label, /** @type {string} */ order) => `Sort: ${label} ${order === "asc" ? "↑" : "↓"}`;
  const choice = select(sortable.map((each) => [value(each.key, first(each)), text(each.label, first(each))]), "", { class: "narrow-only", "aria-label": "Sort by" });
  choice.addEventListener("change", () => {
    const [sort, order] = choice.value.split(" ");
    go({ sort, order, page: "" });
  });
  return {
    headers,
    choice,
    /** Show which order there is, one that is not offered as well. */
    show() {
      const { sort, order } = query();
      for (const header of headers) setAttribute(header, "aria-sort", header.dataset.sort === sort ? (order === "asc" ? "ascending" : "descending") : null);
      choice.querySelector("[data-other]")?.remove();
      const column = sortable.find((each) => each.key === sort);
      if (!column || first(column) !== order) choice.append(h("option", { value: value(sort, order), "data-other": true }, text(column?.label ?? sort, order)));
      choice.value = value(sort, order);
    },
  };
}
