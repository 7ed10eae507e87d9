import { call, get, pathOf } from "./api.js";
import { attempt, openDialog, switches } from "./app.js";
import { done } from "./changes.js";
import {
  Actions,
  Dialog,
  FOCUS,
  Field,
  Form,
  Problem,
  ReasonField,
  TtlField,
  askReason,
  readTtl,
  useAct,
} from "./dialogs.js";
import { count, duration, exact, rate, serverNow, timeOfDay } from "./format.js";
import { html, useEffect, useState } from "./html.js";

const SHOWN = 3;
const HALF_A_DAY_S = 43_200;

export function switchAll() {
  return attempt(async () => {
    const entries = await switches();
    const all = entries.find((each) => each.kind === "all");
    if (all.limiting) openDialog(SwitchOff, { entries, preset: "all" });
    else switchOn(all);
  });
}

export function switchOff(kind) {
  return attempt(async () => openDialog(SwitchOff, { entries: await switches(), preset: kind }));
}

function SwitchOff({ entries, preset, close }) {
  const [kind, setKind] = useState(preset);
  const [reason, setReason] = useState("");
  const [ttl, setTtl] = useState({ choice: "60", minutes: "" });
  const [fault, setFault] = useState("");
  const [limited, setLimited] = useState({ kind: "", text: "" });
  useEffect(() => {
    attempt(() => limitedText(kind)).then((text) => setLimited({ kind, text }));
  }, [kind]);
  const { seconds, problem } = readTtl(ttl);
  const label = kind === "all" ? "Switch off everything" : `Switch off ${kind}`;
  const acting = useAct(label, async (volatile) => {
    const body = { limiting: false, reason: reason.trim(), ...(seconds !== null && { ttl_s: seconds }) };
    const entry = entries.find((each) => each.kind === kind);
    done(await write("PUT", entry, { body, query: { volatile } }));
    close();
  });
  const send = () => {
    setFault(problem);
    if (!problem) acting.run();
  };
  const options = entries
    .filter((each) => each.limiting)
    .map((each) => [each.kind, each.kind === "all" ? "everything" : `only ${each.kind}`]);
  const help = "Afterwards, limiting is switched back on automatically.";
  return html`<${Dialog} title="Switch limiting off" close=${close}>
    <${Problem} text=${acting.problem}>${acting.offer}<//>
    <${Form} isCareful onsend=${send}>
      <${Field} label="What" value=${kind} onvalue=${setKind} options=${options} />
      <${ReasonField}
        help="Shown to all users while limiting is off."
        value=${reason}
        onvalue=${setReason}
        input=${FOCUS}
      />
      <${TtlField} value=${ttl} onvalue=${setTtl} help=${help} error=${fault} />
      <section class="preview" aria-live="polite" aria-label="What will happen">
        <p>${willStop(kind, seconds)}</p>
        ${limited.kind === kind && limited.text && html`<p>${limited.text}</p>`}
      </section>
      <${Actions} label=${label} manner="danger" cancel=${close} />
    <//>
  <//>`;
}

function willStop(kind, seconds) {
  const what = kind === "all" ? "All limits stop" : `All limits of ${kind} stop`;
  let until = "for the chosen time";
  if (seconds === null) until = "until an operator switches them on";
  else if (seconds > 0)
    until = `for ${duration(seconds)}, until ${moment(seconds)}, and then apply again automatically`;
  const rest = "Nothing is refused or held, but messages are still counted.";
  return `${what} immediately, ${until}. ${rest} All users of this page will see it.`;
}

function moment(seconds) {
  const at = serverNow() + seconds * 1000;
  return seconds < HALF_A_DAY_S ? timeOfDay(at) : exact(new Date(at).toISOString());
}

async function limitedText(kind) {
  const query = { kind: kind === "all" ? null : kind, filter: "limited", sort: "refused", order: "desc", limit: SHOWN };
  const { rows, total } = await get("limits", query);
  if (!total) return "Nothing was refused or held in the last 10 s.";
  const nameOf = ({ name, live }) => (live?.refused_per_s ? `${name} (${rate(live.refused_per_s)}/s refused)` : name);
  const more = total > rows.length ? ` and ${count(total - rows.length)} more` : "";
  return `Messages that are now refused or held will go to the broker: ${rows.map(nameOf).join(", ")}${more}.`;
}

export function switchOn(entry) {
  const what = entry.kind === "all" ? "All limits" : `All limits of ${entry.kind}`;
  const words = { label: "Switch on", reasonLabel: "Reason (optional)" };
  // If limiting is on in the configuration, revert the edit. Otherwise, override the configuration.
  const isRevert = entry.edit && entry.configured;
  askReason(
    "Switch limiting back on",
    html`<p>${what} apply again immediately.</p>`,
    words,
    async (reason, volatile) => {
      if (isRevert) done(await write("DELETE", entry, { query: { reason, volatile } }));
      else done(await write("PUT", entry, { body: { limiting: true, reason }, query: { volatile } }));
    },
  );
}

function write(method, entry, how) {
  return call(method, pathOf("switches", entry.kind), { ...how, etag: entry.etag });
}
