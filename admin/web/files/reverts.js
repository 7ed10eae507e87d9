/** Reverts every live edit to the configuration, after a look at what falls back to what. */

import { ApiError, call, get } from "./api.js";
import { app } from "./app.js";
import { askReason } from "./dialog.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { newText, oldText, preview, targetText } from "./preview.js";
import { toast } from "./toast.js";
import { done, failed } from "./writes.js";

const PAGE = 500;

/** @returns {Promise<{edits: any[], etag: string}>} what takes all edits back. */
async function undoing() {
  const edits = [];
  for (let offset = 0; ; offset += PAGE) {
    const { body } = await get("diff", { offset, limit: PAGE });
    for (const each of body.limits) edits.push({ type: "unset_limit", kind: each.kind, name: each.name, if_match: each.etag });
    if (offset === 0) for (const each of body.switches) edits.push({ type: "unset_switch", kind: each.kind, if_match: each.etag });
    if (offset + PAGE >= body.total) return { edits, etag: body.etag };
  }
}

/** Show what would fall back, and do it when told so. */
export async function revertAll() {
  let edits;
  let changes;
  try {
    ({ edits } = await undoing());
    if (!edits.length) {
      toast("Nothing is edited.");
      return;
    }
    changes = (await call("POST", "limits:batch", { query: { dry_run: 1 }, body: { edits } })).body.changes;
  } catch (error) {
    failed(error);
    return;
  }
  const falls = h(
    "div",
    { class: "sheet scroll", tabindex: "0", role: "region", "aria-label": "What falls back" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ["Limit", "Now", "Then"].map((text) => h("th", { scope: "col" }, text)))),
      h(
        "tbody",
        {},
        changes.map((/** @type {any} */ change) =>
          h("tr", {}, h("th", { scope: "row" }, targetText(change.target)), h("td", {}, oldText(change)), h("td", { class: "then" }, newText(change))),
        ),
      ),
    ),
  );
  askReason(`Revert all ${count(edits.length)} edits`, falls, { label: "Revert all" }, async (reason, dialog) => {
    const { body } = await call("POST", "limits:batch", { body: { edits, reason } });
    for (const change of body.changes) app.ownChanges.add(change.id);
    dialog.close();
    toast(`${count(body.changes.length)} edits reverted.`);
  });
}

/** Undo one change of the audit trail, after a look at what that means; past later changes only if that is confirmed. */
export async function revertChange(/** @type {any} */ change, /** @type {string} */ since = "") {
  const force = since !== "";
  let would;
  try {
    would = (await call("POST", `audit/${change.id}/revert`, { query: { dry_run: 1 }, body: { force } })).body;
  } catch (error) {
    if (overtaken(error) && !force) await revertChange(change, sinceText(error, change));
    else failed(error);
    return;
  }

  const content = [force && h("p", { class: "problem warned" }, since), h("section", { class: "preview" }, preview(would))];
  const words = force ? { label: "Revert all the same", manner: "danger" } : { label: "Revert" };
  askReason(`Revert change ${change.id} of ${targetText(change.target)}`, content, words, async (reason, dialog) => {
    try {
      const { body } = await call("POST", `audit/${change.id}/revert`, { body: { reason, force } });
      dialog.close();
      done(body);
    } catch (error) {
      if (!overtaken(error)) throw error;
      dialog.close();
      await revertChange(change, sinceText(error, change));
    }
  });
}

function overtaken(/** @type {unknown} */ error) {
  return error instanceof ApiError && error.status === 409;
}

/** @returns {string} which change came since, and what to decide. */
function sinceText(/** @type {any} */ error, /** @type {any} */ change) {
  const later = /change (\d+)/.exec(error.message)?.[1];
  return `${later ? `Change ${later}` : "A later change"} changed ${targetText(change.target)} since. Revert all the same?`;
}
