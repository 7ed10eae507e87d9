/** The emergency switch: limiting off, of everything or of one kind, and back on. */

import { ApiError, call, get } from "./api.js";
import { askReason, confirmForm, field, openDialog, reasonInput, select, showProblem, ttlField } from "./dialog.js";
import { fill, h, setText } from "./dom.js";
import { count, duration, exact, rate, serverNow, timeOfDay } from "./format.js";
import { done, failed, quoted } from "./writes.js";

const SHOWN = 3;

/** Switch off while everything is on, and back on while everything is off. */
export async function switchAll() {
  const entries = await switches();
  const all = entries?.find((each) => each.kind === "all");
  if (!all) return;
  if (all.limiting) await switchOff();
  else switchOn(all);
}

/** @returns {Promise<any[] | null>} all switches, or null if they cannot be had, which was said then. */
async function switches() {
  try {
    return (await get("switches")).body.switches;
  } catch (error) {
    failed(error);
    return null;
  }
}

/** Ask what to switch off, why and for how long, say what that does, and do it. */
export async function switchOff(preset = "all") {
  const on = (await switches())?.filter((each) => each.limiting);
  if (!on?.length) return;
  const dialog = openDialog("Switch limiting off");
  const kind = select(on.map((each) => [each.kind, each.kind === "all" ? "everything" : `only ${each.kind}`]), preset);
  const reason = reasonInput();
  const ttl = ttlField("60", "An hour unless you choose otherwise: then it is on again by itself. For good is until somebody switches it on.");
  const problem = h("div", { role: "alert" });
  const will = h("section", { class: "preview", "aria-live": "polite", "aria-label": "What will happen" });
  const button = h("button", { class: "button danger", type: "submit" });
  const foresee = async () => {
    const chosen = kind.value;
    setText(button, chosen === "all" ? "Switch off everything" : `Switch off ${chosen}`);
    const limited = await refusing(chosen);
    if (kind.value === chosen) fill(will, h("p", {}, willStop(chosen, ttl.seconds())), limited && h("p", {}, limited));
  };
  kind.addEventListener("change", foresee);
  ttl.element.addEventListener("input", foresee);
  fill(
    dialog.body,
    problem,
    confirmForm(
      async () => {
        const entry = on.find((each) => each.kind === kind.value);
        /** @type {Record<string, any>} */
        const body = { limiting: false, reason: reason.value.trim() };
        if (!ttl.check()) return;
        const seconds = ttl.seconds();
        if (seconds !== null) body.ttl_s = seconds;
        await write(dialog, problem, "PUT", entry, { body });
      },
      field("What", kind),
      field("Reason", reason, "Tell whoever finds it off."),
      ttl.element,
      will,
      h("div", { class: "actions" }, button, h("button", { class: "button", type: "button", onclick: dialog.close }, "Cancel")),
    ),
  );
  reason.focus();
  await foresee();
}

/** @returns {string} what is no longer done, and until when. */
function willStop(/** @type {string} */ kind, /** @type {number | null} */ seconds) {
  const what = kind === "all" ? "All limits stop" : `All limits of ${kind} stop`;
  const until =
    seconds === null ? "until somebody switches them on" : seconds > 0 ? `for ${duration(seconds)}, until ${moment(serverNow() + seconds * 1000)}, and then hold again by themselves` : "for as long as you say";
  return `${what} at once, ${until}. Nothing is refused or held by them; what passes is counted all the same. Everybody who opens this page sees it.`;
}

function moment(/** @type {number} */ at) {
  return at - serverNow() < 43_200_000 ? timeOfDay(at) : exact(new Date(at).toISOString());
}

/** @returns {Promise<string>} what is refused so far, and would go on to the broker. */
async function refusing(/** @type {string} */ kind) {
  try {
    const { body } = await get("limits", { kind: kind === "all" ? null : kind, filter: "limited", sort: "refused", order: "desc", limit: SHOWN, history: 0 });
    if (!body.total) return "Nothing was refused or held in the last 10 s.";
    const names = body.rows.map((/** @type {any} */ row) => {
      const refused = (row.live?.messages_per_s ?? row.live?.rule_messages_per_s)?.refused;
      return refused ? `${row.name} (${rate(refused)}/s refused)` : row.name;
    });
    const more = body.total - names.length;
    return `What they keep back now goes to the broker: ${names.join(", ")}${more > 0 ? ` and ${count(more)} more` : ""}.`;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // It can be switched off all the same.
    return "";
  }
}

/** Ask for the reason, and switch back on. */
export function switchOn(/** @type {any} */ entry) {
  const what = entry.kind === "all" ? "All limits hold again at once." : `All limits of ${entry.kind} hold again at once.`;
  const words = { label: "Switch on", reasonLabel: "Reason, if there is something to say" };
  // As the configuration has it, if that is on; otherwise against the configuration.
  const byRevert = entry.edit && entry.configured;
  askReason("Switch limiting back on", h("p", {}, what), words, (reason, dialog, problem) =>
    byRevert ? write(dialog, problem, "DELETE", entry, { query: { reason } }) : write(dialog, problem, "PUT", entry, { body: { limiting: true, reason } }),
  );
}

async function write(/** @type {any} */ dialog, /** @type {any} */ problem, /** @type {string} */ method, /** @type {any} */ entry, /** @type {any} */ how) {
  try {
    const { body } = await call(method, `switches/${encodeURIComponent(entry.kind)}`, { ...how, etag: quoted(entry.etag) });
    dialog.close();
    done(body);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) {
      dialog.close();
      return;
    }
    fill(problem);
    showProblem(problem, [error.message, ...error.errors.map((each) => each.detail).filter((detail) => detail !== error.message)].join(" "));
    if (error.status === 507) {
      const query = { ...how.query, volatile: 1 };
      problem.append(h("button", { class: "button", type: "button", onclick: () => write(dialog, problem, method, entry, { ...how, query }) }, "Do it until the restart only"));
    }
  }
}
