/**
 * Makes and updates DOM nodes. Whatever comes from the server goes in as text or as an attribute's value, never as
 * markup: nothing in this page writes HTML.
 *
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, any>} Properties
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element.
 *
 * @param {string} tag
 * @param {Properties} [properties] attributes; `on…` functions become listeners, true is an empty attribute, and
 *   false, null and undefined are left out.
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same in SVG's namespace. */
export function svg(/** @type {string} */ tag, /** @type {Properties} */ properties = {}, /** @type {any[]} */ ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(/** @type {Element} */ element, /** @type {Properties} */ properties, /** @type {any[]} */ children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/** @returns {(Node | string)[]} */
function nodes(/** @type {any[]} */ children) {
  return children
    .flat(3)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : printable(String(child))));
}

/** Names come from clients: what shows nothing, or turns the rest around, is written as an escape, as in the terminal. */
function printable(/** @type {string} */ text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (each) => {
    if (each === "\n" || each === "\t") return each;
    const code = each.codePointAt(0) ?? 0;
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Put children in place of those that an element has. */
export function fill(/** @type {Element} */ element, /** @type {any[]} */ ...children) {
  element.replaceChildren(...nodes(children));
}

/** Set an element's text if it is another one: an unchanged text costs no layout, and no announcement. */
export function setText(/** @type {Element} */ element, /** @type {string} */ text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set or remove an attribute if it is not so already. */
export function setAttribute(/** @type {Element} */ element, /** @type {string} */ name, /** @type {string | null} */ value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** @returns {any} the element with that id, which the page has. */
export function byId(/** @type {string} */ id) {
  return document.getElementById(id);
}

let ids = 0;

/** @returns {string} an id that no other element has. */
export function freshId() {
  ids += 1;
  return `n${ids}`;
}

/** Let a function run once things have been quiet for a while. */
export function debounced(/** @type {() => void} */ action, /** @type {number} */ quietMs) {
  /** @type {any} */
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, quietMs);
  };
}
