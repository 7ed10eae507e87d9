/** The page's writes, with what follows each of them: a message, and the offer to undo it. */

import { ApiError, call } from "./api.js";
import { app, emit } from "./app.js";
import { changeLine, targetText } from "./preview.js";
import { toast } from "./toast.js";

/** @returns {string | null} an ETag as If-Match has it. */
export function quoted(/** @type {string | null | undefined} */ etag) {
  if (!etag) return null;
  return etag.startsWith('"') || etag.startsWith("W/") ? etag : `"${etag}"`;
}

/** Remember that a change was made here, tell of it, and offer to undo it. */
export function done(/** @type {any} */ change) {
  app.ownChanges.add(change.id);
  if (change.action === "reset") toast(`${targetText(change.target)}: ${change.details.join(", ")}`);
  else toast(changeLine(change), { label: "Undo", action: () => undo(change) });
}

async function undo(/** @type {any} */ change) {
  try {
    const { body } = await call("POST", `audit/${change.id}/revert`, { body: { reason: `undo of change ${change.id}` } });
    app.ownChanges.add(body.id);
    toast(`Undone. ${changeLine(body)}`);
  } catch (error) {
    // What came since is for somebody to look at, not to be undone in passing.
    if (error instanceof ApiError && error.status === 409) emit("overtaken", change);
    else failed(error);
  }
}

/** Tell of something that was not done. */
export function failed(/** @type {unknown} */ error) {
  if (!(error instanceof ApiError)) throw error;
  // The sign-in form says all there is to say about a missing token.
  if (error.status !== 401) toast(error.message, null, "error");
}
