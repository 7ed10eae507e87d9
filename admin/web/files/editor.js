/** Edits one limit in a drawer, so that the figures stay in sight: the fields, what would change, then the change. */

import { ApiError, call, get, pathOf } from "./api.js";
import { canWrite, nameOf, writing } from "./app.js";
import { Preview, done } from "./changes.js";
import {
  Dialog,
  Field,
  Problem,
  ReasonField,
  TtlField,
  readTtl,
  takeFocus,
  useAct,
  useFocusOnError,
} from "./dialogs.js";
import { FIELDS, fieldsOf, inWords, readValue, shownValue } from "./fields.js";
import { ago, exact, left, limitText, readNumber } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Button, Facts, ResourceLink } from "./parts.js";

const NUMBERS = () => ["rate", ...FIELDS.filter((each) => each.input === "number").map((each) => each.key)];
const WHAT_A_RESET_CLEARS =
  "What is owed, open breakers and fair shares are cleared: the buckets are full again. The limit stays as it is.";
export const resetText = html`<p>${WHAT_A_RESET_CLEARS}</p>`;

export function Editor({ kind, name, onclose }) {
  const control = useRef({}).current;
  const [entry, setEntry] = useState(null);
  const [draft, setDraft] = useState(null);
  const [problem, setProblem] = useState("");
  const [errors, setErrors] = useState({});
  /** What is asked for a last word: `{heading, content, label, act}`; the form waits behind it. */
  const [asked, setAsked] = useState(null);
  const path = pathOf("limits", kind, name);

  const load = async () => {
    try {
      const found = await get(path);
      setEntry(found);
      setDraft(draftOf(kind, name, found));
      setAsked(null);
    } catch (error) {
      refused(error);
    }
  };
  useEffect(() => {
    load();
  }, []);

  const back = () => {
    setAsked(null);
    setProblem("");
    setErrors({});
  };
  const refused = async (error) => {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) return control.close();
    if (error.status === 412) {
      await load();
      return setProblem(`${error.message} Nothing was changed. What is shown now is in force.`);
    }
    if ([400, 422].includes(error.status)) setAsked(null);
    const found = error.errors.map((each) => [each.field.split(".").pop(), each]);
    const isShown = ([key]) => key && draft && key in draft;
    setErrors(Object.fromEntries(found.filter(isShown).map(([key, { detail }]) => [key, inWords(detail)])));
    const elsewhere = found.filter((each) => !isShown(each));
    const texts = elsewhere.map(([, { field, detail }]) => (field ? `${field}: ${detail}` : detail));
    setProblem(elsewhere.length || !found.length ? inWords(texts.join("; ") || error.message) : "");
  };

  /** Ask what a write would change, and show it. */
  const foresee = async (label, method, { body, query = {} }) => {
    const write = (how) => call(method, path, { body, query: { ...query, ...how }, etag: entry.etag });
    try {
      const content = html`<${Preview} change=${await write({ dry_run: 1 })} />`;
      setAsked({ heading: "What would change", content, label, act: (volatile) => write({ volatile }) });
    } catch (error) {
      await refused(error);
    }
  };
  const query = { reason: draft?.reason.trim() };
  const steps = {
    preview() {
      const faults = faultsOf(draft);
      setProblem("");
      setErrors(faults);
      if (!Object.keys(faults).length) foresee("Apply", "PATCH", { body: bodyOf(draft, entry.limit) });
    },
    revert: () => foresee("Revert", "DELETE", { query }),
    reset() {
      const act = () => call("POST", `${path}:reset`, { query });
      setAsked({ heading: "What a reset clears", content: resetText, label: "Reset", act });
    },
    cancel: () => control.close(),
  };
  const acting = useAct(
    asked?.label,
    async (volatile) => {
      const change = await asked.act(volatile);
      control.close();
      done(change);
    },
    refused,
  );
  const onescape = () => asked && (back(), true);
  const title = name === "*" ? `Default of ${kind}` : `${kind} ${name}`;
  return html`<${Dialog} drawer title=${title} onclose=${onclose} onescape=${onescape} control=${control}>
    <${Problem} text=${problem}>${asked && acting.offer}<//>
    ${asked && html`<${LastWord} asked=${asked} acting=${acting} back=${back} />`}
    ${!asked && draft && html`<${Form} ...${{ kind, name, entry, draft, setDraft, errors, steps }} />`}
    ${!draft && !problem && html`<p class="muted">Loading…</p>`}
  <//>`;
}

function LastWord({ asked, acting, back }) {
  return html`<section class="preview" aria-label=${asked.heading}>
    ${asked.content}
    <div class="actions">
      <button class="button primary" type="button" ref=${takeFocus} disabled=${acting.isActing} onClick=${acting.run}>
        ${asked.label}
      </button>
      <${Button} onclick=${back}>Back<//>
    </div>
  </section>`;
}

function Form({ kind, name, entry, draft, setDraft, errors, steps }) {
  const form = useRef();
  useFocusOnError(form, errors);
  const [isOpen] = useState(() => isTelling(kind, name, draft));
  const set = (changes) => setDraft({ ...draft, ...changes });
  const write = writing();
  const sent = (event) => {
    event.preventDefault();
    steps.preview();
  };
  const asked = fieldsOf(kind, name, entry.limit).filter((field) => isAsked(field, draft));
  const ends = entry.edit?.expires_at;
  const isNamed = entry.exact ? nameOf(name) : "";
  return html`<form class="editor" novalidate ref=${form} onSubmit=${sent}>
    <${Standing} entry=${entry} />
    ${canWrite() && html`<${FirstOfItsOwn} kind=${kind} name=${name} entry=${entry} />`}
    <fieldset disabled=${write.disabled}>
      <legend class="visually-hidden">Limit</legend>
      <div class="rate-row">
        <${Field}
          label="Rate, per second"
          help="0 refuses all."
          error=${errors.rate}
          value=${draft.rate}
          onvalue=${(rate) => set({ rate, unlimited: false })}
          input=${{ inputmode: "decimal", ref: write.disabled ? null : focusAndSelect }}
        />
        <${Field}
          label="unlimited"
          value=${draft.unlimited}
          onvalue=${(unlimited) => set({ unlimited, rate: unlimited ? "" : draft.rate })}
        />
      </div>
      <details open=${isOpen}>
        <summary>More</summary>
        <div class="fields">
          ${asked.map(
            ({ key, label, help, input, options }) => html`<${Field}
              key=${key}
              label=${label}
              help=${help}
              error=${errors[key]}
              value=${draft[key]}
              onvalue=${(value) => set({ [key]: value })}
              options=${["choice", "boolean"].includes(input) ? (options ?? []) : null}
              input=${input === "number" ? { inputmode: "decimal" } : null}
            />`,
          )}
        </div>
      </details>
      <${ReasonField}
        error=${errors.reason}
        value=${draft.reason}
        onvalue=${(reason) => set({ reason })}
        input=${{ placeholder: "for the audit trail" }}
      />
      <${TtlField}
        value=${draft.ttl_s}
        onvalue=${(ttl) => set({ ttl_s: ttl })}
        kept=${ends && `as it is: ${left(ends)}`}
        error=${errors.ttl_s}
      />
    </fieldset>
    <div class="actions">
      <button class="button primary" type="submit" ...${write}>Preview</button>
      <${Button} onclick=${steps.cancel}>Cancel<//>
      <span class="spacer"></span>
      <${Button} isWrite onclick=${steps.reset}>Reset…<//>
      ${entry.edit && html`<${Button} isWrite onclick=${steps.revert}>Revert to file…<//>`}
    </div>
    ${!canWrite() && html`<p class="muted">Your token may only read: sign in with another one to change this.</p>`}
    <p>
      <${ResourceLink} kind=${kind} name=${isNamed} onClick=${steps.cancel}>
        What limits it and why, its figures, and who sends it
      <//>
    </p>
  </form>`;
}

function focusAndSelect(element) {
  element?.focus();
  element?.select();
}

/** What is in force, where it comes from, and what the file says. */
function Standing({ entry }) {
  const { edit, configured, limit_text: text, rule, source } = entry;
  const facts = [["In force", html`<b>${text}</b>${rule && html`<span class="muted"> by ${rule}</span>`}`]];
  if (edit) {
    const end = edit.expires_at && ` · ${left(edit.expires_at)}`;
    const by = html`<span title=${exact(edit.at)}>by ${edit.by}, ${ago(edit.at)}</span>`;
    facts.push(["Edited", [by, end, edit.reason && html`<q>${edit.reason}</q>`]]);
    const file = configured ? `${limitText(configured.limit)} (${configured.source})` : "nothing for this very name";
    facts.push(["File", file]);
  } else if (source) facts.push(["Written", source]);
  return html`<${Facts} facts=${facts} />`;
}

/** What a limit of its own means, for a name that has none. */
function FirstOfItsOwn({ kind, name, entry: { edit, configured, rule } }) {
  if (edit || configured) return null;
  return html`<p class="note">
    This makes ${name === "*" ? `a default of ${kind}` : "a limit of its own"}.${" "}
    ${rule ? html`<b>${rule}</b> stays as it is for all others.` : "No limit holds for it so far."}
  </p>`;
}

// --- what is entered

/** What the controls show of a limit, by field. */
function draftOf(kind, name, { limit, edit }) {
  const shown = fieldsOf(kind, name, limit).map((field) => [field.key, shownValue(field, limit)]);
  return {
    ...Object.fromEntries(shown),
    rate: limit.rate === "unlimited" ? "" : String(limit.rate ?? ""),
    unlimited: limit.rate === "unlimited",
    reason: "",
    ttl_s: { choice: edit?.expires_at ? "keep" : "", minutes: "" },
  };
}

/** Whether a limit says more than its rate. */
function isTelling(kind, name, draft) {
  const says = (field) => field.telling && field.key in draft && readValue(field, draft[field.key]) !== undefined;
  return FIELDS.some(says) || !["reject", "", undefined].includes(draft.action);
}

/** Whether a field says anything beside what is entered. An empty choice is the default of the kind. */
function isAsked({ onlyWith }, draft) {
  const other = onlyWith && draft[onlyWith[0]];
  return !other || other === onlyWith[1];
}

/** What is wrong, by field. */
function faultsOf(draft) {
  const faults = {};
  const rate = draft.rate.trim();
  const isLimit = draft.unlimited || rate || draft.bytes_per_s?.trim();
  if (!isLimit && !draft.exempt && draft.action !== "off" && draft.confirm !== "after_consume") {
    faults.rate = "Enter a rate, tick unlimited, or limit the bytes per second.";
  }
  for (const key of NUMBERS()) {
    const text = draft[key]?.trim();
    if (!text || (key === "rate" && /^unlimited$/i.test(text))) continue;
    const { problem } = readNumber(text, key);
    if (problem) faults[key] = problem;
  }
  const { problem } = readTtl(draft.ttl_s);
  if (problem) faults.ttl_s = problem;
  return faults;
}

/** The body of a PATCH: all fields that are shown, null for what is not set. `was`: the limit before. */
function bodyOf(draft, was) {
  const body = { rate: null };
  const rate = draft.rate.trim();
  if (draft.unlimited || /^unlimited$/i.test(rate)) body.rate = "unlimited";
  else if (rate) body.rate = readNumber(rate, "rate").value;
  for (const field of FIELDS) {
    if (field.key in draft) body[field.key] = readValue(field, draft[field.key]) ?? null;
  }
  // The longest delay is another one by default if everything is spooled: one that nobody has touched follows that.
  const isChanged = (key) => body[key] !== undefined && body[key] !== (was[key] ?? null);
  if (isChanged("spool") && !isChanged("max_delay_s")) body.max_delay_s = null;
  // It is shown as it is in force, but belongs to the limit only beside one value of another field.
  for (const { key, onlyWith } of FIELDS) {
    const [other, wanted] = onlyWith ?? [];
    const is = other && (body[other] ?? FIELDS.find((each) => each.key === other)?.otherwise);
    if (is && is !== wanted) body[key] = null;
  }
  if (draft.reason.trim()) body.reason = draft.reason.trim();
  const { seconds } = readTtl(draft.ttl_s);
  if (seconds !== undefined) body.ttl_s = seconds;
  return body;
}
