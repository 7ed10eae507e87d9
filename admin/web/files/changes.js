/** Changes of limits and switches: in words, as a preview, in the table of the audit trail, and the way back. */

import { ApiError, call, get } from "./api.js";
import { app, failed, toast } from "./app.js";
import { askReason } from "./dialogs.js";
import { FIELDS, matters } from "./fields.js";
import { count, exact, fieldValue, left, limitText } from "./format.js";
import { html } from "./html.js";
import { Button, Table, Tag, TargetLink } from "./parts.js";

const PAGE = 500;
/** What the short form of a limit says already. */
const SHORT = ["rate", "bytes_per_s", "action", "exempt", "limiting"];
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

/** A change in one line. */
export function changeLine(change) {
  if (change.action === "purge") return `${targetText(change.target)}: ${change.details.join(", ")}`;
  const further = furtherText(change);
  return `${targetText(change.target)}: ${oldText(change)} → ${newText(change)}${further && `, ${further}`}`;
}

function targetText(target) {
  return target.replace(/^(limits|switches)\//, "").replace(/^spool\//, "spool of ");
}

function oldText(change) {
  return limitText(change.old) + (change.old_rule && ` by ${change.old_rule}`);
}

function newText(change) {
  return limitText(change.new) + (change.new_rule && ` by ${change.new_rule}`);
}

/** What a change did besides what limits say in short: `burst_s 2 → 1, break_s 1 → 0`. */
function furtherText(change) {
  if (!change.old || !change.new || change.old_rule || change.new_rule) return "";
  return differences(change.old, change.new)
    .filter(({ field }) => !SHORT.includes(field))
    .map(({ field, before, after }) => `${field} ${fieldValue(before)} → ${fieldValue(after)}`)
    .join(", ");
}

/** The fields that differ, without those that say nothing on either side. */
function differences(before, after) {
  const fields = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
  return [...fields]
    .map((field) => ({ field, before: before?.[field] ?? null, after: after?.[field] ?? null }))
    .filter(({ field, before: one, after: other }) => {
      const kind = FIELDS.find((each) => each.key === field);
      const isSaid = !kind || matters(kind, before ?? {}) || matters(kind, after ?? {});
      return isSaid && JSON.stringify(one) !== JSON.stringify(other);
    });
}

// --- as tables

function DifferenceTable({ change }) {
  // Of a limit that is new only what it says is worth a line.
  const rows = differences(change.old, change.new).filter((row) => change.old || row.after !== false);
  if (!rows.length) return html`<p class="muted">Nothing differs from what is in force now.</p>`;
  const shown = rows.map(({ field, before, after }) => ({
    key: field,
    field,
    now: fieldValue(before),
    then: fieldValue(after),
  }));
  return html`<${Table} name="differences" columns=${DIFFERENCES} rows=${shown} />`;
}

/** What a change would do. */
export function Preview({ change }) {
  const before = change.action === "set" && !change.expires_at && change.before?.expires_at;
  const notes = [
    change.old_rule && !change.new_rule && `A limit of its own; ${change.old_rule} stays as it is for all others.`,
    change.new_rule && !change.old_rule && "Then it has no rule of its own.",
    change.expires_at && `Until ${exact(change.expires_at)} (${left(change.expires_at)}).`,
    before && `For good: the edit before it would have ended ${exact(before)}.`,
    change.durable === false && "Only until Sluice is restarted: it is not written down.",
  ].filter(Boolean);
  return html`
    <p class="old-new">
      <span class="visually-hidden">now </span>
      <del>${limitText(change.old)}</del>
      ${change.old_rule && html`<span class="by"> by ${change.old_rule}</span>`}
      <span class="faint" aria-hidden="true"> → </span>
      <span class="visually-hidden">, then </span>
      <ins>${newText(change)}</ins>
    </p>
    ${change.new && html`<${DifferenceTable} change=${change} />`}
    ${notes.map((note) => html`<p class="muted">${note}</p>`)}
  `;
}

/** Changes of the audit trail, with the way back. */
export function ChangeTable({ changes, empty }) {
  const table = { name: "audit", columns: COLUMNS, rows: changes, cells: changeCells, action: "Revert", empty };
  return html`<${Table} ...${table} />`;
}

function changeCells(change) {
  const { id, action, target, by, address } = change;
  const text = targetText(target);
  const isRevertible = /^(limits|switches)\//.test(target) && action !== "reset";
  const label = `Revert change ${id} of ${text}`;
  return {
    by: html`<span title=${address || null}>${by}</span>`,
    target: html`<${TargetLink} target=${target}>${text}<//>`,
    change: html`<${OldNew} change=${change} />`,
    action:
      isRevertible &&
      html`<${Button} isWrite manner="small" label=${label} onclick=${() => revertChange(change)}>Revert…<//>`,
  };
}

function OldNew({ change }) {
  const word = change.action === "revert" ? `undid ${change.reverts}` : (ACTIONS[change.action] ?? change.action);
  const tags = [
    word && html` <${Tag}>${word}<//>`,
    change.expires_at && html` <${Tag} title=${exact(change.expires_at)}>temporary<//>`,
    change.durable === false && html` <${Tag} manner="warn">until restart<//>`,
  ];
  if (change.details?.length) return [tags, html`<${Lines} texts=${change.details} />`];
  const [before, after, further] = [oldText(change), newText(change), furtherText(change)];
  const isMoved = before !== after || !further;
  const moved = isMoved && html`<del>${before}</del><span class="faint"> → </span><ins>${after}</ins>`;
  return html`<details>
    <summary>${moved || after}${further && `, ${further}`}${tags}</summary>
    <${DifferenceTable} change=${change} />
  </details>`;
}

export function Lines({ texts }) {
  return html`<ul class="details">${texts.map((text) => html`<li>${text}</li>`)}</ul>`;
}

// --- what follows a write

/** Tell of a change that was made here, and offer to undo it. */
export function done(change) {
  app.ownChanges.add(change.id);
  if (change.action === "reset") toast(`${targetText(change.target)}: ${change.details.join(", ")}`);
  else toast(changeLine(change), { label: "Undo", action: () => undo(change) });
}

async function undo(change) {
  try {
    const body = await call("POST", `audit/${change.id}/revert`, { body: { reason: `undo of change ${change.id}` } });
    app.ownChanges.add(body.id);
    toast(`Undone. ${changeLine(body)}`);
  } catch (error) {
    // What came since is for somebody to look at, not to be undone in passing.
    if (isOvertaken(error)) await revertChange(change);
    else failed(error);
  }
}

function isOvertaken(error) {
  return error instanceof ApiError && error.status === 409;
}

/** Undo one change, after a look at what that means; past later changes only if that is confirmed. */
async function revertChange(change, later = "") {
  const path = `audit/${change.id}/revert`;
  const force = later !== "";
  const overtaken = (error) => {
    if (!isOvertaken(error)) throw error;
    const id = /change (\d+)/.exec(error.message)?.[1];
    const by = id ? `Change ${id}` : "A later change";
    return revertChange(change, `${by} changed ${targetText(change.target)} since. Revert all the same?`);
  };
  let would;
  try {
    would = await call("POST", path, { query: { dry_run: 1 }, body: { force } });
  } catch (error) {
    if (force || !isOvertaken(error)) failed(error);
    else await overtaken(error);
    return;
  }
  const content = html`${force && html`<p class="problem warned">${later}</p>`}
    <section class="preview"><${Preview} change=${would} /></section>`;
  const words = force ? { label: "Revert all the same", manner: "danger" } : { label: "Revert" };
  askReason(`Revert change ${change.id} of ${targetText(change.target)}`, content, words, async (reason) => {
    try {
      done(await call("POST", path, { body: { reason, force } }));
    } catch (error) {
      await overtaken(error);
    }
  });
}

/** Revert every live edit to the configuration, after a look at what falls back to what. */
export async function revertAll() {
  let edits;
  let changes;
  try {
    edits = await standingEdits();
    if (!edits.length) {
      toast("Nothing is edited.");
      return;
    }
    ({ changes } = await call("POST", "limits:batch", { query: { dry_run: 1 }, body: { edits } }));
  } catch (error) {
    failed(error);
    return;
  }
  const rows = changes.map((change, key) => ({
    key,
    limit: targetText(change.target),
    now: oldText(change),
    then: newText(change),
  }));
  const falls = html`<div class="scroll" tabindex="0" role="region" aria-label="What falls back">
    <${Table} name="falls" columns=${FALLS} rows=${rows} />
  </div>`;
  askReason(`Revert all ${count(edits.length)} edits`, falls, { label: "Revert all" }, async (reason) => {
    const body = await call("POST", "limits:batch", { body: { edits, reason } });
    for (const change of body.changes) app.ownChanges.add(change.id);
    toast(`${count(body.changes.length)} edits reverted.`);
  });
}

/** What takes all edits back. */
async function standingEdits() {
  const edits = [];
  for (let offset = 0; ; offset += PAGE) {
    const body = await get("diff", { offset, limit: PAGE });
    for (const { kind, name, etag } of body.limits) edits.push({ type: "unset_limit", kind, name, if_match: etag });
    const offs = offset ? [] : body.switches;
    for (const { kind, etag } of offs) edits.push({ type: "unset_switch", kind, if_match: etag });
    if (offset + PAGE >= body.total) return edits;
  }
}
