/** Changes of limits and switches: texts, previews, the audit trail, and reverting. */

import { ApiError, call, get } from "./api.js";
import { app, attempt, toast, useAnswer } from "./app.js";
import { askReason } from "./dialogs.js";
import { FIELDS, matters } from "./fields.js";
import { count, exact, fieldValue, left, limitText } from "./format.js";
import { html, useState } from "./html.js";
import { Button, Lines, Search, Table, Tag, TargetLink } from "./parts.js";

const PAGE = 500;
const AUDIT_PAGE = 50;
/** The fields that the short form of a limit shows. */
const SHORT = [
  ...["rate", "bytes_per_s", "count", "action", "fair_by", "exempt", "limiting"],
  ...["adaptive", "floor", "ceiling", "fleet"],
];
const ACTIONS = { set: "", unset: "reverted to file", expire: "expired", reload: "reloaded", purge: "purged" };
const COLUMNS = [
  { name: "id", title: "#" },
  { name: "at", title: "When", format: "age" },
  { name: "by", title: "Who" },
  { name: "target", title: "What" },
  { name: "change", title: "Old → new" },
  { name: "reason", title: "Why" },
];
const DIFFERENCES = [
  { name: "field", title: "Field" },
  { name: "now", title: "Now" },
  { name: "then", title: "Then" },
];
const FALLS = [{ name: "limit", title: "Limit" }, ...DIFFERENCES.slice(1)];

// --- in words

/** Format a change in one line. */
export function changeLine(change) {
  const { from, to, further } = textsOf(change);
  const what = change.action === "purge" ? change.details : [from === to ? to : `${from} → ${to}`, ...further];
  return `${targetText(change.target)}: ${what.join(", ")}${change.member ? ", at all members of the fleet" : ""}`;
}

function targetText(target) {
  return target.replace(/^(limits|switches)\//, "").replace(/^spool\//, "spool of ");
}

/** The limits before and after a change, in short, and the other fields that differ: `burst_s 2 → 1`. */
function textsOf({ old, old_rule: oldRule, new: then, new_rule: newRule }) {
  const side = (limit, rule) => limitText(limit) + (rule && ` by ${rule}`);
  const isComparable = old && then && !oldRule && !newRule;
  const further = isComparable ? differences(old, then).filter(({ field }) => !SHORT.includes(field)) : [];
  const lines = further.map(({ field, before, after }) => `${field} ${fieldValue(before)} → ${fieldValue(after)}`);
  return { from: side(old, oldRule), to: side(then, newRule), further: lines };
}

/** Changed fields, without those that have no effect on either side. */
function differences(before, after) {
  const fields = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const isSaid = (field) => {
    const kind = FIELDS.find((each) => each.key === field);
    return !kind || matters(kind, before ?? {}) || matters(kind, after ?? {});
  };
  return fields
    .map((field) => ({ field, before: before?.[field] ?? null, after: after?.[field] ?? null }))
    .filter((each) => isSaid(each.field) && JSON.stringify(each.before) !== JSON.stringify(each.after));
}

// --- as tables

function DifferenceTable({ change }) {
  // A new limit shows only the fields that it sets.
  const rows = differences(change.old, change.new)
    .filter(({ after }) => change.old || after !== false)
    .map(({ field, before, after }) => ({ key: field, field, now: fieldValue(before), then: fieldValue(after) }));
  const empty = "Nothing differs from the limit in force.";
  return html`<${Table} name="differences" columns=${DIFFERENCES} rows=${rows} empty=${empty} />`;
}

/** The preview of a change. */
export function Preview({ change }) {
  const { old, new: then, old_rule: oldRule, new_rule: newRule } = change;
  const before = change.action === "set" && !change.expires_at && change.before?.expires_at;
  const notes = [
    oldRule && !newRule && `A limit of its own. ${oldRule} still applies to all other names.`,
    newRule && !oldRule && "Then it has no limit of its own.",
    change.expires_at && `Until ${exact(change.expires_at)} (${left(change.expires_at)}).`,
    before && `Without an end: the edit before it would have expired at ${exact(before)}.`,
    change.durable === false && "Only until Sluice restarts: it is not saved.",
  ].filter(Boolean);
  return html`
    <p class="old-new">
      <span class="visually-hidden">now </span>
      <del>${limitText(old)}</del>
      ${oldRule && html`<span class="by"> by ${oldRule}</span>`}
      <span class="faint" aria-hidden="true"> → </span>
      <span class="visually-hidden">, then </span>
      <ins>${limitText(then) + (newRule && ` by ${newRule}`)}</ins>
    </p>
    ${then && html`<${DifferenceTable} change=${change} />`}
    ${notes.map((note) => html`<p class="muted">${note}</p>`)}
  `;
}

/** The audit trail, with buttons to revert changes. */
export function ChangeTable({ changes, empty }) {
  const table = { name: "audit", columns: COLUMNS, rows: changes, cells: changeCells, action: "Revert", empty };
  return html`<${Table} ...${table} />`;
}

function changeCells(change) {
  const { id, action, target, by, address, member } = change;
  const text = targetText(target);
  const isRevertible = /^(limits|switches)\//.test(target) && action !== "reset";
  const label = `Revert change ${id} of ${text}`;
  const revert = () => attempt(() => revertChange(change));
  return {
    by: html`<span title=${[address, member].filter(Boolean).join(" at ") || null}>${by}</span>`,
    target: html`<${TargetLink} target=${target}>${text}<//>`,
    change: html`<${OldNew} change=${change} />`,
    action: isRevertible && html`<${Button} isWrite manner="small" label=${label} onclick=${revert}>Revert…<//>`,
  };
}

function OldNew({ change }) {
  const word = change.action === "revert" ? `undid ${change.reverts}` : (ACTIONS[change.action] ?? change.action);
  const tags = [
    word && html` <${Tag}>${word}<//>`,
    change.expires_at && html` <${Tag} title=${exact(change.expires_at)}>temporary<//>`,
    change.durable === false && html` <${Tag} manner="warn">until restart<//>`,
    change.member && html` <${Tag} title="At ${change.member}">for the fleet<//>`,
  ];
  const details = change.details?.length > 0 && html`<${Lines} texts=${change.details} />`;
  if (details && !change.member) return [tags, details];
  const { from, to, further } = textsOf(change);
  const isMoved = from !== to || !further.length;
  const moved = isMoved && html`<del>${from}</del><span class="faint"> → </span><ins>${to}</ins>`;
  return html`<details>
    <summary>${moved || to}${further.map((each) => `, ${each}`)}${tags}</summary>
    <${DifferenceTable} change=${change} />
    ${details}
  </details>`;
}

export function AuditView({ params }) {
  const [earlier, setEarlier] = useState([]);
  const query = { target: params.get("target"), by: params.get("by"), limit: AUDIT_PAGE };
  const [newest] = useAnswer(async () => {
    const page = await get("audit", query);
    setEarlier([]);
    return page;
  }, [query.target, query.by]);
  const pages = newest ? [newest, ...earlier] : [];
  const before = pages.at(-1)?.next;
  const more = () => attempt(async () => setEarlier([...earlier, await get("audit", { ...query, before })]));
  const empty = newest ? "No change matches." : "Loading…";
  return html`
    <div class="heading">
      <h1>Audit</h1>
      <p class="muted">Every change, the latest first.</p>
    </div>
    <div class="toolbar" role="search">
      <${Search} param="target" label="What was changed" placeholder="Target, e.g. limits/topic/orders" />
      <${Search} param="by" label="Who changed it" placeholder="By" name="short" />
    </div>
    <${ChangeTable} changes=${pages.flatMap((page) => page.changes)} empty=${empty} />
    ${before && html`<div class="pager"><${Button} manner="small" onclick=${more}>Earlier changes<//></div>`}
  `;
}

// --- after a write

/** Show a change made on this page, with a button to undo it. */
export function done(change) {
  app.ownChanges.add(change.id);
  if (change.action === "reset") toast(`${targetText(change.target)}: ${change.details.join(", ")}`);
  else toast(changeLine(change), { label: "Undo", action: () => attempt(() => undo(change)) });
}

async function undo(change) {
  try {
    const body = await call("POST", `audit/${change.id}/revert`, { body: { reason: `undo of change ${change.id}` } });
    app.ownChanges.add(body.id);
    toast(`Undone. ${changeLine(body)}`);
  } catch (error) {
    // The operator must see a later change first.
    if (!isOvertaken(error)) throw error;
    await revertChange(change);
  }
}

function isOvertaken(error) {
  return error instanceof ApiError && error.status === 409;
}

/** Revert one change after a preview. `later`: text about a conflicting later change, for a second confirmation. */
async function revertChange(change, later = "") {
  const path = `audit/${change.id}/revert`;
  const force = later !== "";
  const target = targetText(change.target);
  const orAsk = async (act) => {
    try {
      await act();
    } catch (error) {
      if (force || !isOvertaken(error)) throw error;
      const id = /change (\d+)/.exec(error.message)?.[1];
      await revertChange(
        change,
        `${id ? `Change ${id}` : "A later change"} changed ${target} since. Revert all the same?`,
      );
    }
  };
  await orAsk(async () => {
    const would = await call("POST", path, { query: { dry_run: 1 }, body: { force } });
    const content = html`${force && html`<p class="problem warned">${later}</p>`}
      <section class="preview"><${Preview} change=${would} /></section>`;
    const words = force ? { label: "Revert all the same", manner: "danger" } : { label: "Revert" };
    askReason(`Revert change ${change.id} of ${target}`, content, words, (reason) =>
      orAsk(async () => done(await call("POST", path, { body: { reason, force } }))),
    );
  });
}

/** Revert all live edits to the configuration, after a preview. */
export function revertAll() {
  return attempt(async () => {
    const edits = await activeEdits();
    if (!edits.length) return toast("Nothing is edited.");
    const { changes } = await call("POST", "limits:batch", { query: { dry_run: 1 }, body: { edits } });
    const rows = changes.map((change, key) => {
      const { from, to } = textsOf(change);
      return { key, limit: targetText(change.target), now: from, then: to };
    });
    const falls = html`<div class="scroll" tabindex="0" role="region" aria-label="Limits after the revert">
      <${Table} name="falls" columns=${FALLS} rows=${rows} />
    </div>`;
    return askReason(`Revert all ${count(edits.length)} edits`, falls, { label: "Revert all" }, async (reason) => {
      const body = await call("POST", "limits:batch", { body: { edits, reason } });
      for (const change of body.changes) app.ownChanges.add(change.id);
      toast(`${count(body.changes.length)} edits reverted.`);
    });
  });
}

/** The batch that reverts all edits. */
async function activeEdits() {
  const edits = [];
  for (let offset = 0; ; offset += PAGE) {
    const body = await get("diff", { offset, limit: PAGE });
    for (const { kind, name, etag } of body.limits) edits.push({ type: "unset_limit", kind, name, if_match: etag });
    const offs = offset ? [] : body.switches;
    for (const { kind, etag } of offs) edits.push({ type: "unset_switch", kind, if_match: etag });
    if (offset + PAGE >= body.total) return edits;
  }
}
