/** Preact with htm, which needs no build step. Data from the server is inserted as text, never as markup. */

import { useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { h, options, render } from "./vendor/preact.js";

export { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
export { render };

export const html = htm.bind(h);

// Clients choose names, so characters that are invisible or reverse the text are escaped.
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

options.vnode = (node) => {
  if (node.type === null && typeof node.props === "string") node.props = node.props.replace(UNPRINTABLE, escaped);
};

function escaped(character) {
  if (character === "\n" || character === "\t") return character;
  const code = character.codePointAt(0);
  return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

let ids = 0;

/** Replaces Preact's `useId`, whose ids start again each time the page is drawn. */
export function useId() {
  const [id] = useState(() => `n${(ids += 1)}`);
  return id;
}
