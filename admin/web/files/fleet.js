import { get } from "./api.js";
import { app, useAnswer } from "./app.js";
import { sentence } from "./format.js";
import { html } from "./html.js";
import { Dot, Panel, Table, Tag, cell } from "./parts.js";

const EVERY_MS = 2000;

export function Fleet() {
  return app.state?.fleet && html`<${FleetPanel} />`;
}

function FleetPanel() {
  const [answer] = useAnswer(() => get("fleet"), [], EVERY_MS);
  const fleet = answer?.fleet;
  if (!fleet) return null;
  const { name, url, member, members, limits, disagreements, when_away: whenAway } = fleet;
  const isAway = fleet.away_s !== null;
  return html`<${Panel} wide title="Fleet ${name}">
    <ul class="findings">
      <li><${Dot} manner=${isAway ? "bad" : "ok"} /><span>${sentence(fleet.text)}</span></li>
      ${disagreements.map((each) => html`<li><${Dot} manner="warn" /><span>${sentence(each)}</span></li>`)}
    </ul>
    <p class="muted">Redis ${url}, this member ${member}, when_away ${whenAway}</p>
    <${Table} name="fleet-limits" rows=${limits} cells=${limitCells} empty="No limit has fleet = true." />
    <${Table} name="fleet-members" rows=${members} cells=${memberCells} empty="No members seen yet." />
  <//>`;
}

function limitCells({ asks_per_s: asks, may_per_s: may, text }) {
  return {
    may: cell(may === null ? "everything" : undefined, { title: text }),
    asks: cell(undefined, { class: may !== null && asks > may ? "refusing" : "" }),
  };
}

function memberCells({ member, seen_s_ago: seen, is_this: isThis }) {
  return { member: [member, isThis && html` <${Tag}>this one<//>`], seen: `${seen.toFixed(1)} s ago` };
}
