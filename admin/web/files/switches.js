/** The emergency switch: limiting off, of everything or of one kind, and back on. */

import { ApiError, call, get, pathOf } from "./api.js";
import { failed, openDialog, switches } from "./app.js";
import { done } from "./changes.js";
import {
  Actions,
  CarefulForm,
  Dialog,
  Field,
  Problem,
  ReasonField,
  TtlField,
  askReason,
  readTtl,
  useAct,
} from "./dialogs.js";
import { count, duration, exact, rate, serverNow, timeOfDay } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

const SHOWN = 3;
const HALF_A_DAY_MS = 43_200_000;

/** Switch off while everything is on, and back on while everything is off. */
export async function switchAll() {
  try {
    const entries = await switches();
    const all = entries.find((each) => each.kind === "all");
    if (all.limiting) showSwitchOff(entries, "all");
    else switchOn(all);
  } catch (error) {
    failed(error);
  }
}

/** Ask what to switch off, why and for how long, say what that does, and do it. */
export async function switchOff(kind) {
  try {
    showSwitchOff(await switches(), kind);
  } catch (error) {
    failed(error);
  }
}

function showSwitchOff(entries, kind) {
  const on = entries.filter((each) => each.limiting);
  openDialog((close) => html`<${SwitchOff} entries=${on} preset=${kind} onclose=${close} />`);
}

function SwitchOff({ entries, preset, onclose }) {
  const control = useRef({}).current;
  const [kind, setKind] = useState(preset);
  const [reason, setReason] = useState("");
  const [ttl, setTtl] = useState({ choice: "60", minutes: "" });
  const [fault, setFault] = useState("");
  const [keptBack, setKeptBack] = useState({ kind: "", text: "" });
  useEffect(() => {
    keptBackText(kind).then((text) => setKeptBack({ kind, text }));
  }, [kind]);
  const { seconds, problem } = readTtl(ttl);
  const label = kind === "all" ? "Switch off everything" : `Switch off ${kind}`;
  const acting = useAct(label, async (volatile) => {
    const body = { limiting: false, reason: reason.trim(), ...(seconds !== null && { ttl_s: seconds }) };
    const entry = entries.find((each) => each.kind === kind);
    done(await write("PUT", entry, { body, query: { volatile } }));
    control.close();
  });
  const confirmed = () => {
    setFault(problem);
    if (!problem) acting.run();
  };
  const options = entries.map((each) => [each.kind, each.kind === "all" ? "everything" : `only ${each.kind}`]);
  const help =
    "An hour unless you choose otherwise: then it is on again by itself. For good is until somebody switches it on.";
  return html`<${Dialog} title="Switch limiting off" onclose=${onclose} control=${control}>
    <${Problem} text=${acting.problem}>${acting.offer}<//>
    <${CarefulForm} onconfirm=${confirmed}>
      <${Field} label="What" value=${kind} onvalue=${setKind} options=${options} />
      <${ReasonField}
        help="Tell whoever finds it off."
        value=${reason}
        onvalue=${setReason}
        input=${{ "data-focus": true }}
      />
      <${TtlField} value=${ttl} onvalue=${setTtl} help=${help} error=${fault} />
      <section class="preview" aria-live="polite" aria-label="What will happen">
        <p>${willStop(kind, seconds)}</p>
        ${keptBack.kind === kind && keptBack.text && html`<p>${keptBack.text}</p>`}
      </section>
      <${Actions} label=${label} manner="danger" cancel=${() => control.close()} />
    <//>
  <//>`;
}

function willStop(kind, seconds) {
  const what = kind === "all" ? "All limits stop" : `All limits of ${kind} stop`;
  let until = "for as long as you say";
  if (seconds === null) until = "until somebody switches them on";
  else if (seconds > 0) until = `for ${duration(seconds)}, until ${moment(seconds)}, and then hold again by themselves`;
  const rest = "Nothing is refused or held by them; what passes is counted all the same.";
  return `${what} at once, ${until}. ${rest} Everybody who opens this page sees it.`;
}

function moment(seconds) {
  const at = serverNow() + seconds * 1000;
  return seconds * 1000 < HALF_A_DAY_MS ? timeOfDay(at) : exact(new Date(at).toISOString());
}

/** What is refused so far, and would go on to the broker. */
async function keptBackText(kind) {
  const query = { kind: kind === "all" ? null : kind, filter: "limited", sort: "refused", order: "desc", limit: SHOWN };
  try {
    const { rows, total } = await get("limits", query);
    if (!total) return "Nothing was refused or held in the last 10 s.";
    const nameOf = ({ name, live }) => (live?.refused_per_s ? `${name} (${rate(live.refused_per_s)}/s refused)` : name);
    const more = total > rows.length ? ` and ${count(total - rows.length)} more` : "";
    return `What they keep back now goes to the broker: ${rows.map(nameOf).join(", ")}${more}.`;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // It can be switched off all the same.
    return "";
  }
}

/** Ask for the reason, and switch back on. */
export function switchOn(entry) {
  const what =
    entry.kind === "all" ? "All limits hold again at once." : `All limits of ${entry.kind} hold again at once.`;
  const words = { label: "Switch on", reasonLabel: "Reason, if there is something to say" };
  // As the configuration has it, if that is on; otherwise against the configuration.
  const isRevert = entry.edit && entry.configured;
  askReason("Switch limiting back on", html`<p>${what}</p>`, words, async (reason, volatile) => {
    if (isRevert) done(await write("DELETE", entry, { query: { reason, volatile } }));
    else done(await write("PUT", entry, { body: { limiting: true, reason }, query: { volatile } }));
  });
}

function write(method, entry, how) {
  return call(method, pathOf("switches", entry.kind), { ...how, etag: entry.etag });
}
