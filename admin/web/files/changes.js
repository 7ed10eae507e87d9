import { ApiError, call, get } from "./api.js";
import { app, attempt, toast, useAnswer } from "./app.js";
import { askReason } from "./dialogs.js";
import { FIELDS, matters } from "./fields.js";
import { count, exact, fieldValue, left, limitText } from "./format.js";
import { html, useState } from "./html.js";
import { Button, Lines, Search, Table, Tag, TargetLink } from "./parts.js";

const PAGE = 500;
const AUDIT_PAGE = 50;
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

export function changeLine(change) {
  const { from, to, further } = textsOf(change);
  const what = change.action === "purge" ? change.details : [from === to ? to : `${from} → ${to}`, ...further];
  return `${targetText(change.target)}: ${what.join(", ")}${change.member ? ", on all members of the fleet" : ""}`;
}

function targetText(target) {
  return target.replace(/^(limits|switches)\//, "").replace(/^spool\//, "spool of ");
}

function textsOf({ old, old_rule: oldRule, new: then, new_rule: newRule }) {
  const side = (limit, rule) => limitText(limit) + (rule && ` by ${rule}`);
  const isComparable = old && then && !oldRule && !newRule;
  const further = isComparable ? differences(old, then).filter(({ field }) => !SHORT.includes(field)) : [];
  const lines = further.map(({ field, before, after }) => `${field} ${fieldValue(before)} → ${fieldValue(after)}`);
  return { from: side(old, oldRule), to: side(then, newRule), further: lines };
}

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

function DifferenceTable({ change }) {
  // A new limit shows only the fields that it sets.
  const rows = differences(change.old, change.new)
    .filter(({ after }) => change.old || after !== false)
    .map(({ field, before, after }) => ({ key: field, field, now: fieldValue(before), then: fieldValue(after) }));
  const empty = "Nothing differs from the active limit.";
  return html`<${Table} name="differences" columns=${DIFFERENCES} rows=${rows} empty=${empty} />`;
}

export function Preview({ change }) {
  const { old, new: then, old_rule: oldRule, new_rule: newRule } = change;
  const before = change.action === "set" && !change.expires_at && change.before?.expires_at;
  const notes = [
    oldRule && !newRule && `This name gets its own limit. ${oldRule} still applies to all other names.`,
    newRule && !oldRule && "This name will no longer have its own limit.",
    change.expires_at && `Until ${exact(change.expires_at)} (${left(change.expires_at)}).`,
    before && `No expiry. The previous edit would have expired at ${exact(before)}.`,
    change.durable === false && "Not saved: the change is lost on restart.",
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
    change.member && html` <${Tag} title="On ${change.member}">for the fleet<//>`,
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
  const empty = newest ? "No changes match." : "Loading…";
  return html`
    <div class="heading">
      <h1>Audit</h1>
      <p class="muted">All changes, newest first.</p>
    </div>
    <div class="toolbar" role="search">
      <${Search} param="target" label="What was changed" placeholder="Target, e.g. limits/topic/orders" />
      <${Search} param="by" label="Who changed it" placeholder="By" name="short" />
    </div>
    <${ChangeTable} changes=${pages.flatMap((page) => page.changes)} empty=${empty} />
    ${before && html`<div class="pager"><${Button} manner="small" onclick=${more}>Older changes<//></div>`}
  `;
}

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
    // There is a later change, so ask the operator before undoing this one.
    if (!isOvertaken(error)) throw error;
    await revertChange(change);
  }
}

function isOvertaken(error) {
  return error instanceof ApiError && error.status === 409;
}

/** `later` describes a later change that the user must confirm to overwrite. */
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
        `${id ? `Change ${id}` : "A later change"} has since changed ${target}. Revert anyway?`,
      );
    }
  };
  await orAsk(async () => {
    const would = await call("POST", path, { query: { dry_run: 1 }, body: { force } });
    const content = html`${force && html`<p class="problem warned">${later}</p>`}
      <section class="preview"><${Preview} change=${would} /></section>`;
    const words = force ? { label: "Revert anyway", manner: "danger" } : { label: "Revert" };
    askReason(`Revert change ${change.id} of ${target}`, content, words, (reason) =>
      orAsk(async () => done(await call("POST", path, { body: { reason, force } }))),
    );
  });
}

export function revertAll() {
  return attempt(async () => {
    const edits = await activeEdits();
    if (!edits.length) return toast("There are no live edits.");
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
