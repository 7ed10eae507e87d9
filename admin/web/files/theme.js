/** Dark and light: the system's choice until the button was pressed, then what was chosen last. */

import { byId, h, fill, svg } from "./dom.js";

const KEY = "sluice.theme";
const light = matchMedia("(prefers-color-scheme: light)");

function current() {
  return localStorage.getItem(KEY) ?? (light.matches ? "light" : "dark");
}

function show() {
  const theme = current();
  document.documentElement.dataset.theme = theme;
  const other = theme === "dark" ? "light" : "dark";
  const picture =
    other === "light"
      ? svg("path", { d: "M8 4.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 0 0 0-7M8 .8v1.6M8 13.6v1.6M.8 8h1.6M13.6 8h1.6M2.9 2.9l1.1 1.1M12 12l1.1 1.1M2.9 13.1L4 12M12 4l1.1-1.1" })
      : svg("path", { d: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z" });
  fill(byId("theme"), svg("svg", { class: "glyph", viewBox: "0 0 16 16", "aria-hidden": "true" }, picture), h("span", { class: "visually-hidden" }, `Use the ${other} theme`));
  byId("theme").title = `Use the ${other} theme`;
}

export function startTheme() {
  show();
  light.addEventListener("change", show);
  byId("theme").addEventListener("click", () => {
    localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
    show();
  });
}
