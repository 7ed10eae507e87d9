/** All rules in one table: an operator's, then the default of each kind, and folded what is Sluice's own. */

import { get } from "./api.js";
import { canWrite, failed, nameOf, openDialog, useAnswer } from "./app.js";
import { revertAll } from "./changes.js";
import { Editor } from "./editor.js";
import { ago, count, exact, left, limitText, shortLimit } from "./format.js";
import { html, useState } from "./html.js";
import { Button, KindChoice, Pager, ResourceLink, Rows, Table, Tag, cell, pageNumber } from "./parts.js";

const PAGE = 100;
/** What the API calls the source of rules that nobody wrote. */
const BUILT_IN = "built-in";
/** And where the default of a kind comes from that has none. */
const UNWRITTEN = "default";
const COLUMNS = [
  { name: "rule", title: "Rule" },
  { name: "limit", title: "Limit" },
  { name: "above", title: "Above it" },
  { name: "hours", title: "Hours" },
  { name: "written", title: "Written" },
];

export function RulesView({ params }) {
  const [isUnfolded, setUnfolded] = useState(false);
  const kind = params.get("kind") ?? "";
  const page = pageNumber(params);
  const query = { offset: (page - 1) * PAGE, limit: PAGE, kind };
  const [answer] = useAnswer(() => Promise.all([get("defaults"), get("rules", query)]), [JSON.stringify(query)]);
  const [{ defaults }, rules] = answer ?? [{ defaults: [] }, { rows: [], total: 0 }];
  const { own, standard, builtIn } = grouped(rules, defaults, kind, page);
  const fold = html`<button
    type="button"
    class="fold"
    aria-expanded=${String(isUnfolded)}
    onClick=${() => setUnfolded(!isUnfolded)}
  >
    Sluice's own (${count(builtIn.length)})
  </button>`;
  const words = `${count(rules.total)} ${rules.total === 1 ? "rule" : "rules"}.`;
  const rows = (of) => html`<${Rows} columns=${COLUMNS} rows=${of} cells=${cellsOf} action="Edit" />`;
  return html`
    <div class="heading second">
      <h1>Rules</h1>
      <p class="muted">${words} The most specific one that matches a name applies, and shared ones as well.</p>
      <span class="spacer"></span>
      <${KindChoice} kinds=${[...defaults.map((each) => each.kind), "total"]} />
      <${Button} onclick=${exportLimits}>Export<//>
      <${Button} isWrite onclick=${revertAll}>Revert all edits…<//>
    </div>
    <${Table} name="rules" columns=${COLUMNS} action="Edit">
      ${rows(own)}
      ${standard.length > 0 && [group("Defaults, for each name that no other rule matches"), rows(standard)]}
      ${builtIn.length > 0 && [group(fold), isUnfolded && rows(builtIn)]}
    <//>
    <${Pager} page=${page} size=${PAGE} total=${rules.total} />
  `;
}

/** A line that says what comes below it. */
function group(heading) {
  return html`<tbody class="group" role="rowgroup">
    <tr role="row"><th scope="rowgroup" role="rowheader" colspan=${COLUMNS.length + 1}>${heading}</th></tr>
  </tbody>`;
}

/** An operator's rules, the defaults of all kinds, and what is Sluice's own. */
function grouped({ rows, total }, defaults, kind, page) {
  const isDefault = (row) => row.pattern === "*" && !row.shared && !row.hours;
  const isLast = page * PAGE >= total;
  const unwritten = isLast ? defaults.filter((each) => each.source === UNWRITTEN && (!kind || each.kind === kind)) : [];
  const entryOf = (row) => defaults.find((each) => each.kind === row.kind);
  const others = rows.filter((row) => !isDefault(row));
  return {
    own: others.filter((row) => row.source !== BUILT_IN).map((row) => ruleRow(row)),
    standard: [
      ...rows.filter(isDefault).map((row) => ruleRow(row, entryOf(row))),
      ...unwritten.map((entry) => ruleRow(unlimited(entry), entry)),
    ],
    builtIn: others.filter((row) => row.source === BUILT_IN).map((row) => ruleRow(row)),
  };
}

/** The row of a kind that nobody wrote a default for. */
function unlimited({ kind, limit }) {
  return {
    kind,
    pattern: "*",
    limit,
    limit_text: "unlimited",
    action: "–",
    hours: null,
    holds: true,
    source: "no rule",
  };
}

/** A rule as the row of a limit. */
function ruleRow(row, entry = null) {
  const [kind, name] = row.shared ? ["total", `${row.kind}:${row.pattern}`] : [row.kind, row.pattern];
  return { ...row, kind, name, entry, key: `${kind}/${name}/${row.hours ?? ""}` };
}

function cellsOf(row) {
  const { kind, name, holds, limit, action, hours, entry, source } = row;
  return {
    rule: html`<${Tag} manner="kind">${kind}<//><${ResourceLink} kind=${kind} name=${nameOf(name)}>${name}<//>
      ${!holds && html`<${Tag}>not now<//>`}`,
    limit: html`${shortLimit(row)} ${limit?.confirm === "after_consume" && html`<${ConfirmedByConsumers} />`}`,
    above: limit?.exempt ? "–" : action,
    hours: cell(hours ?? "always", { class: hours ? "" : "faint" }),
    written: cell(entry?.edit ? html`<${Edited} entry=${entry} />` : written(source), { class: "muted wrap" }),
    action: html`<${EditButton} kind=${kind} name=${name} />`,
  };
}

function ConfirmedByConsumers() {
  return html`<${Tag} title="The acks of consumers confirm what is published.">confirmed by consumers<//>`;
}

function EditButton({ kind, name }) {
  const word = canWrite() ? "Edit" : "Show";
  const what = name === "*" ? `the default of ${kind}` : `the limit of ${kind} ${name}`;
  const edit = () => openDialog((close) => html`<${Editor} kind=${kind} name=${name} onclose=${close} />`);
  return html`<${Button} manner="small" label="${word} ${what}" onclick=${edit}>${word}<//>`;
}

/** Where a rule is written: the file's name, the whole path on hover. */
function written(source) {
  return html`<span title=${source}>${source.slice(source.lastIndexOf("/") + 1)}</span>`;
}

function Edited({ entry: { edit, configured } }) {
  return html`
    <${Tag} manner="edited">edited<//> <span title=${exact(edit.at)}>by ${edit.by}, ${ago(edit.at)}</span>
    ${edit.expires_at && ` · ${left(edit.expires_at)}`} ${configured && ` · file: ${limitText(configured.limit)}`}
  `;
}

/** Save the limits in force as a configuration file, as `sluice limits export` prints them. */
async function exportLimits() {
  try {
    const { text } = await get("export");
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(new Blob([text], { type: "application/toml" }));
    anchor.download = "limits.toml";
    anchor.click();
    URL.revokeObjectURL(anchor.href);
  } catch (error) {
    failed(error);
  }
}
