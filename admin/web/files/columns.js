/** The columns of the tables of limits, connections, links, senders, refused_clients, stages, confirms and spooled. */

/**
 * @typedef {object} Column
 * @property {string} name the API's `sort` word if it has an order
 * @property {string} title
 * @property {string} field path of the row's field, with dots; a mapping is shown as the sum of its values
 * @property {string} format one of `FORMATS` of parts.js, or `client`, `links` and `history`, which views make
 * @property {string} unit
 * @property {"asc" | "desc" | null} order of the first click; null does not sort
 * @property {string} help
 * @property {boolean} optional shown only if a row has a value that is neither empty nor 0
 * @property {boolean} page false: the page shows the value within another column, or not at all
 */

/** @type {Record<string, Column[]>} The server puts them in, from ``admin.common.columns``. */
export const COLUMNS = {};
