import { get } from "./api.js";
import { attempt, nameOf, openDialog, useAnswer } from "./app.js";
import { revertAll } from "./changes.js";
import { Editor } from "./editor.js";
import { count, limitText, shortLimit } from "./format.js";
import { html, useState } from "./html.js";
import {
  Button,
  EditButton,
  EditedBy,
  Fold,
  KindChoice,
  Pager,
  ResourceLink,
  Table,
  Tag,
  cell,
  pageNumber,
} from "./parts.js";

const PAGE = 100;
/** Values of `source` for built-in rules, and for a kind that has no default. */
const BUILT_IN = "built-in";
const UNWRITTEN = "default";
const COLUMNS = [
  { name: "rule", title: "Rule" },
  { name: "limit", title: "Limit" },
  { name: "above", title: "Above the limit" },
  { name: "hours", title: "Hours" },
  { name: "written", title: "Source" },
];

export function RulesView({ params }) {
  const [isUnfolded, setUnfolded] = useState(false);
  const kind = params.get("kind") ?? "";
  const page = pageNumber(params);
  const query = { offset: (page - 1) * PAGE, limit: PAGE, kind };
  const [answer] = useAnswer(() => Promise.all([get("defaults"), get("rules", query)]), [JSON.stringify(query)]);
  const [{ defaults }, rules] = answer ?? [{ defaults: [] }, { rows: [], total: 0 }];
  const { own, standard, builtIn } = grouped(rules, defaults, kind, page);
  const press = () => setUnfolded(!isUnfolded);
  const fold = html`<${Fold} isOpen=${isUnfolded} onclick=${press}>Built-in rules (${count(builtIn.length)})<//>`;
  const heading = (key, content, rows) => (rows.length ? [{ key, heading: content }] : []);
  const rows = [
    ...own,
    ...heading("defaults", "Defaults for names that match no other rule", standard),
    ...standard,
    ...heading("built-in", fold, builtIn),
    ...(isUnfolded ? builtIn : []),
  ];
  const words = `${count(rules.total)} ${rules.total === 1 ? "rule" : "rules"}.`;
  return html`
    <div class="heading second">
      <h1>Rules</h1>
      <p class="muted">
        ${words} For each name, the most specific matching rule and all matching shared rules apply.
      </p>
      <span class="spacer"></span>
      <${KindChoice} kinds=${[...defaults.map((each) => each.kind), "total"]} />
      <${Button} onclick=${exportLimits}>Export<//>
      <${Button} isWrite onclick=${revertAll}>Revert all edits…<//>
    </div>
    <${Table} name="rules" columns=${COLUMNS} rows=${rows} cells=${cellsOf} action="Edit" />
    <${Pager} page=${page} size=${PAGE} total=${rules.total} />
  `;
}

function grouped({ rows, total }, defaults, kind, page) {
  const isDefault = (row) => row.pattern === "*" && !row.shared && !row.hours;
  const isLast = page * PAGE >= total;
  const unwritten = isLast ? defaults.filter((each) => each.source === UNWRITTEN && (!kind || each.kind === kind)) : [];
  const entryOf = (row) => defaults.find((each) => each.kind === row.kind);
  const others = rows.filter((row) => !isDefault(row));
  const none = { pattern: "*", limit_text: "unlimited", action: "–", hours: null, holds: true, source: "no rule" };
  return {
    own: others.filter((row) => row.source !== BUILT_IN).map((row) => ruleRow(row)),
    standard: [
      ...rows.filter(isDefault).map((row) => ruleRow(row, entryOf(row))),
      ...unwritten.map((entry) => ruleRow({ ...none, kind: entry.kind, limit: entry.limit }, entry)),
    ],
    builtIn: others.filter((row) => row.source === BUILT_IN).map((row) => ruleRow(row)),
  };
}

function ruleRow(row, entry = null) {
  const [kind, name] = row.shared ? ["total", `${row.kind}:${row.pattern}`] : [row.kind, row.pattern];
  return { ...row, kind, name, entry, key: `${kind}/${name}/${row.hours ?? ""}` };
}

function cellsOf({ kind, name, holds, action, hours, entry, source, ...row }) {
  const { limit } = row;
  const aboutConfirms = "Messages are confirmed to their publishers once consumers acknowledge them.";
  const confirmed = html`<${Tag} title=${aboutConfirms}>confirmed by consumers<//>`;
  const edit = () => openDialog(Editor, { kind, name });
  const file = html`<span title=${source}>${source.slice(source.lastIndexOf("/") + 1)}</span>`;
  return {
    rule: html`<${Tag} manner="kind">${kind}<//><${ResourceLink} kind=${kind} name=${nameOf(name)}>${name}<//>
      ${!holds && html`<${Tag}>not active now<//>`}`,
    limit: html`${shortLimit(row)} ${limit?.confirm === "after_consume" && confirmed}`,
    above: limit?.exempt ? "–" : action,
    hours: cell(hours ?? "always", { class: hours ? "" : "faint" }),
    written: cell(entry?.edit ? html`<${Edited} entry=${entry} />` : file, { class: "muted wrap" }),
    action: html`<${EditButton} kind=${kind} name=${name} onclick=${edit} />`,
  };
}

function Edited({ entry: { edit, configured } }) {
  return html`
    <${Tag} manner="edited">edited<//> <${EditedBy} edit=${edit} />
    ${configured && ` · configured: ${limitText(configured.limit)}`}
  `;
}

function exportLimits() {
  return attempt(async () => {
    const { text } = await get("export");
    const href = URL.createObjectURL(new Blob([text], { type: "application/toml" }));
    Object.assign(document.createElement("a"), { href, download: "limits.toml" }).click();
    URL.revokeObjectURL(href);
  });
}
