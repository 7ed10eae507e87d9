// Draws the charts in the colours of the theme, and again when that changes.
"use strict";
(() => {
  const palette = JSON.parse(document.getElementById("palette").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const items = [...document.querySelectorAll("script.chart-data")].map((each) => [
    each.dataset.chart,
    each.textContent,
  ]);
  let drawing = 0;

  // A printer lays the page out anew and does not wait for drawings; a picture is as wide as there is room.
  function onPaper(view) {
    const picture = new Image();
    picture.className = "paper";
    picture.alt = "";
    picture.src = view.export("png").canvas.toDataURL();
    return picture;
  }

  async function draw() {
    const mine = (drawing += 1);
    const style = getComputedStyle(document.documentElement);
    document.getElementById("no-charts")?.remove();
    for (const [id, written] of items) {
      let text = written;
      for (const [colour, name] of Object.entries(palette)) {
        text = text.replaceAll(colour, style.getPropertyValue(name).trim());
      }
      const place = document.getElementById(id);
      place.replaceChildren();
      const drawn = await Bokeh.embed.embed_item(JSON.parse(text), id);
      await new Promise(requestAnimationFrame);
      if (mine !== drawing) {
        return;
      }
      for (const view of drawn) {
        place.append(onPaper(view));
      }
      place.dataset.drawn = dark.matches ? "dark" : "light";
    }
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }

  Bokeh.set_log_level("error");
  dark.addEventListener("change", draw);
  draw();
})();
