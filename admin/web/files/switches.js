/** The emergency switch: limiting off, of everything or of one kind, and back on. */

import { ApiError, call, get } from "./api.js";
import { field, openDialog, select, showProblem, ttlField } from "./dialog.js";
import { fill, h } from "./dom.js";
import { done, failed, quoted } from "./writes.js";

/** Ask what to switch off, why and for how long, and do it. */
export async function switchOff(preset = "all") {
  let entries;
  try {
    entries = (await get("switches")).body.switches;
  } catch (error) {
    failed(error);
    return;
  }
  const dialog = openDialog("Switch limiting off");
  const on = entries.filter((/** @type {any} */ each) => each.limiting);
  const kind = select(on.map((/** @type {any} */ each) => [each.kind, each.kind === "all" ? "everything" : `only ${each.kind}`]), preset);
  const reason = h("input", { type: "text", autocomplete: "off", maxlength: 500 });
  const ttl = ttlField("60", "An hour unless you choose otherwise: then it is on again by itself. For good is until somebody switches it on.");
  const problem = h("div", { role: "alert" });
  fill(
    dialog.body,
    problem,
    h("p", {}, "What is switched off passes, and is counted. Everybody who opens this page sees it."),
    h(
      "form",
      {
        novalidate: true,
        onsubmit: async (/** @type {Event} */ event) => {
          event.preventDefault();
          const entry = on.find((/** @type {any} */ each) => each.kind === kind.value);
          /** @type {Record<string, any>} */
          const body = { limiting: false, reason: reason.value.trim() };
          if (!ttl.check()) return;
          const seconds = ttl.seconds();
          if (seconds !== null) body.ttl_s = seconds;
          await write(dialog, problem, "PUT", entry, { body });
        },
      },
      field("Of what", kind),
      field("Reason", reason, "Better given: whoever finds it off will want to know."),
      ttl.element,
      h(
        "div",
        { class: "actions" },
        h("button", { class: "button danger", type: "submit", disabled: !on.length }, "Switch off"),
        h("button", { class: "button", type: "button", onclick: dialog.close }, "Cancel"),
      ),
    ),
  );
  reason.focus();
}

/** Ask for the reason, and switch back on. */
export function switchOn(/** @type {any} */ entry) {
  const dialog = openDialog("Switch limiting back on");
  const reason = h("input", { type: "text", autocomplete: "off", maxlength: 500 });
  const problem = h("div", { role: "alert" });
  // As the configuration has it, if that is on; otherwise against the configuration.
  const byRevert = entry.edit && entry.configured;
  fill(
    dialog.body,
    problem,
    h("p", {}, entry.kind === "all" ? "All limits hold again at once." : `All limits of ${entry.kind} hold again at once.`),
    h(
      "form",
      {
        onsubmit: async (/** @type {Event} */ event) => {
          event.preventDefault();
          const why = reason.value.trim();
          await (byRevert ? write(dialog, problem, "DELETE", entry, { query: { reason: why } }) : write(dialog, problem, "PUT", entry, { body: { limiting: true, reason: why } }));
        },
      },
      field("Reason, if there is something to say", reason),
      h(
        "div",
        { class: "actions" },
        h("button", { class: "button primary", type: "submit" }, "Switch on"),
        h("button", { class: "button", type: "button", onclick: dialog.close }, "Cancel"),
      ),
    ),
  );
  reason.focus();
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
