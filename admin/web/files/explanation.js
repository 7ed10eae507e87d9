/** Which limits a request would meet, asked of the API when it is unfolded. */

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { duration, number, percent } from "./format.js";

/** @returns {any} a section that asks once it is opened. */
export function explanation(/** @type {string} */ kind, /** @type {string} */ name) {
  const content = h("div", { class: "explanation" }, "Loading…");
  return h(
    "details",
    {
      class: "explain",
      ontoggle: async (/** @type {any} */ event) => {
        if (!event.target.open) return;
        try {
          show(content, (await get("explain", { kind, name })).body);
        } catch (error) {
          fill(content, error instanceof Error ? error.message : "no answer");
        }
      },
    },
    h("summary", {}, "Which limits it meets now"),
    content,
  );
}

function show(/** @type {Element} */ content, /** @type {any} */ answer) {
  fill(
    content,
    !answer.limiting && h("p", {}, "Limiting is switched off: nothing here limits."),
    answer.limits.length ? h("ol", {}, answer.limits.map((/** @type {any} */ each) => limit(each, answer.by_credit))) : h("p", { class: "muted" }, "Nothing limits it."),
    answer.unapplied.map((/** @type {any} */ each) => h("p", { class: "muted" }, `${each.rule.name} does not hold: ${each.why}`)),
  );
}

function limit(/** @type {any} */ each, /** @type {boolean} */ byCredit) {
  const { state, usage } = each;
  const shadow = each.rule.action === "shadow";
  const facts = [];
  if (state) {
    facts.push(`${number(Math.floor(state.stored_permits))} permits in store`);
    if (state.open) facts.push(shadow ? "would refuse everything" : "breaker open");
    if (state.wait_s) facts.push(`${shadow ? "for" : "wait"} ${number(Math.round(state.wait_s * 1000) / 1000)} s`);
    if (state.last_refused_s !== null) {
      facts.push(`${shadow ? "would last have refused" : "last refused"} ${duration(state.last_refused_s)} ago`);
    }
  }
  if (each.held) facts.push(byCredit ? `${each.held} waiting for credit` : `${each.held} held`);
  if (usage) facts.push(`used ${percent(usage.last_10s)} over 10 s, ${percent(usage.last_60s)} over a minute`);
  return h(
    "li",
    {},
    h("b", {}, `${each.kind} ${each.name}`),
    `: ${each.rule.limit}, ${each.rule.action}`,
    h("p", { class: "muted" }, `${each.rule.name} (${each.rule.source}): ${each.why}`),
    facts.length > 0 && h("p", {}, facts.join(" · ")),
  );
}
