import { ApiError, call, get, pathOf } from "./api.js";
import { app, canWrite, nameOf } from "./app.js";
import { Preview, done } from "./changes.js";
import {
  Actions,
  Dialog,
  Field,
  Form,
  Problem,
  ReasonField,
  TtlField,
  readTtl,
  takeFocus,
  useAct,
  useFocusOnError,
} from "./dialogs.js";
import { FIELDS, fieldsOf, inWords, readValue, shownValue } from "./fields.js";
import { left, limitText, readNumber } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Button, EditedBy, Facts, ResourceLink } from "./parts.js";

export const resetText = html`<p>
  Refills the buckets, clears debts and fair shares, and closes open breakers. The limit itself does not change.
</p>`;

export function Editor({ kind, name, close }) {
  const [entry, setEntry] = useState(null);
  const [draft, setDraft] = useState(null);
  const [problem, setProblem] = useState("");
  const [errors, setErrors] = useState({});
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
    if (error.status === 401) return close();
    if (error.status === 412) {
      await load();
      return setProblem(`${error.message} Nothing was changed. The form now shows the active limit.`);
    }
    if ([400, 422].includes(error.status)) setAsked(null);
    const found = error.errors.map((each) => [each.field.split(".").pop(), each]);
    const isShown = ([key]) => key && draft && key in draft;
    setErrors(Object.fromEntries(found.filter(isShown).map(([key, { detail }]) => [key, inWords(detail)])));
    const elsewhere = found.filter((each) => !isShown(each));
    const texts = elsewhere.map(([, { field, detail }]) => (field ? `${field}: ${detail}` : detail));
    return setProblem(elsewhere.length || !found.length ? inWords(texts.join("; ") || error.message) : "");
  };

  const foresee = async (label, method, { body, query = {} }) => {
    const fleet = app.state?.fleet && draft.atAll ? 1 : undefined;
    const write = (how) => call(method, path, { body, query: { ...query, fleet, ...how }, etag: entry.etag });
    try {
      const content = html`<${Preview} change=${await write({ dry_run: 1 })} />
        ${fleet && html`<p class="muted">On all members of the fleet.</p>`}`;
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
    close,
  };
  const act = async (volatile) => {
    const change = await asked.act(volatile);
    close();
    done(change);
  };
  const acting = useAct(asked?.label, act, refused);
  const last = { label: asked?.label, innerRef: takeFocus, disabled: acting.isActing };
  const onescape = () => asked && (back(), true);
  const title = name === "*" ? `Default of ${kind}` : `${kind} ${name}`;
  return html`<${Dialog} drawer title=${title} close=${close} onescape=${onescape}>
    <${Problem} text=${problem}>${asked && acting.offer}<//>
    ${
      asked &&
      html`<section class="preview" aria-label=${asked.heading}>
      ${asked.content}
      <${Form} onsend=${acting.run}>
        <${Actions} ...${last} cancel=${back} cancelLabel="Back" />
      <//>
    </section>`
    }
    ${!asked && draft && html`<${LimitForm} ...${{ kind, name, entry, draft, setDraft, errors, steps }} />`}
    ${!draft && !problem && html`<p class="muted">Loading…</p>`}
  <//>`;
}

function LimitForm({ kind, name, entry, draft, setDraft, errors, steps }) {
  const form = useRef();
  useFocusOnError(form, errors);
  const fields = fieldsOf(kind, name, entry.limit);
  const [isOpen] = useState(() => fields.some((field) => isTelling(field, draft)));
  const of = (key) => ({
    error: errors[key],
    value: draft[key],
    onvalue: (value) => setDraft({ ...draft, [key]: value }),
  });
  const setRate = (rate, unlimited) => setDraft({ ...draft, rate, unlimited });
  const ends = entry.edit?.expires_at;
  return html`<${Form} class="editor" novalidate formRef=${form} onsend=${steps.preview}>
    <${Current} entry=${entry} />
    ${canWrite() && html`<${FirstOfItsOwn} kind=${kind} name=${name} entry=${entry} />`}
    <fieldset disabled=${!canWrite()}>
      <legend class="visually-hidden">Limit</legend>
      ${
        !draft.adaptive &&
        html`<div class="rate-row">
        <${Field}
          label="Rate, per second"
          help="0 refuses everything."
          ...${of("rate")}
          onvalue=${(rate) => setRate(rate, false)}
          input=${{ inputmode: "decimal", ref: canWrite() ? focusAndSelect : null }}
        />
        <${Field}
          label="unlimited"
          value=${draft.unlimited}
          onvalue=${(unlimited) => setRate(unlimited ? "" : draft.rate, unlimited)}
        />
      </div>`
      }
      <details open=${isOpen}>
        <summary>More</summary>
        <div class="fields">
          ${fields
            .filter((field) => isAsked(field, draft))
            .map(
              ({ key, label, help, input, options }) => html`<${Field}
                key=${key}
                label=${label}
                help=${inWords(help)}
                ...${of(key)}
                options=${["choice", "boolean"].includes(input) ? (options ?? []) : null}
                input=${input === "number" ? { inputmode: "decimal" } : null}
              />`,
            )}
        </div>
      </details>
      ${app.state?.fleet && html`<${Field} label="On all members of the fleet" ...${of("atAll")} />`}
      <${ReasonField} ...${of("reason")} input=${{ placeholder: "for the audit trail" }} />
      <${TtlField} ...${of("ttl_s")} kept=${ends && `no change: ${left(ends)}`} />
    </fieldset>
    <${Actions} label="Preview" isWrite cancel=${steps.close}>
      <span class="spacer"></span>
      <${Button} isWrite onclick=${steps.reset}>Reset…<//>
      ${entry.edit && html`<${Button} isWrite onclick=${steps.revert}>Revert to file…<//>`}
    <//>
    ${!canWrite() && html`<p class="muted">Your token is read-only. Sign in with a write token to edit.</p>`}
    <p>
      <${ResourceLink} kind=${kind} name=${entry.exact ? nameOf(name) : ""} onClick=${steps.close}>
        Open the resource's page: applied limits, figures and senders
      <//>
    </p>
  <//>`;
}

function focusAndSelect(element) {
  element?.focus();
  element?.select();
}

function Current({ entry: { edit, configured, limit_text: text, rule, source } }) {
  const facts = [["Active", html`<b>${text}</b>${rule && html`<span class="muted"> by ${rule}</span>`}`]];
  if (edit) {
    const file = configured ? `${limitText(configured.limit)} (${configured.source})` : "no limit of its own";
    facts.push(
      ["Edited", html`<${EditedBy} edit=${edit} />${edit.reason && html`<q>${edit.reason}</q>`}`],
      ["Configured", file],
    );
  } else if (source) facts.push(["Source", source]);
  return html`<${Facts} facts=${facts} />`;
}

function FirstOfItsOwn({ kind, name, entry: { edit, configured, rule } }) {
  if (edit || configured) return null;
  return html`<p class="note">
    This creates ${name === "*" ? `a default for ${kind}` : "a separate limit for this name"}.${" "}
    ${rule ? html`<b>${rule}</b> still applies to all other names.` : "No limit applies yet."}
  </p>`;
}

function draftOf(kind, name, { limit, edit }) {
  const shown = fieldsOf(kind, name, limit).map((field) => [field.key, shownValue(field, limit)]);
  return {
    ...Object.fromEntries(shown),
    rate: limit.rate === "unlimited" ? "" : String(limit.rate ?? ""),
    unlimited: limit.rate === "unlimited",
    reason: "",
    ttl_s: { choice: edit?.expires_at ? "keep" : "", minutes: "" },
    // By default, a fleet limit is changed on all members.
    atAll: Boolean(edit ? edit.fleet : limit.fleet),
  };
}

function isTelling({ key, telling, ...field }, draft) {
  if (key === "action") return !["reject", ""].includes(draft.action);
  return telling && readValue({ key, ...field }, draft[key]) !== undefined;
}

/** Returns whether to show a field. An empty choice stands for the kind's default, which is not known here. */
function isAsked({ onlyWith, notWith }, draft) {
  if (notWith && draft[notWith]) return false;
  const other = onlyWith && draft[onlyWith[0]];
  return [undefined, null, "", onlyWith?.[1]].includes(other);
}

function faultsOf(draft) {
  const faults = {};
  const rate = draft.rate.trim();
  const isLimit = draft.unlimited || rate || draft.bytes_per_s?.trim() || draft.adaptive || Number(draft.weight) > 1;
  if (!isLimit && !draft.exempt && draft.action !== "off" && draft.confirm !== "after_consume") {
    faults.rate = "Enter a rate, select unlimited, or limit the bytes per second.";
  }
  for (const key of ["rate", ...FIELDS.filter((each) => each.input === "number").map((each) => each.key)]) {
    const text = draft[key]?.trim();
    if (!text || (key === "rate" && /^unlimited$/i.test(text))) continue;
    const { problem } = readNumber(text, key);
    if (problem) faults[key] = problem;
  }
  const { problem } = readTtl(draft.ttl_s);
  return problem ? { ...faults, ttl_s: problem } : faults;
}

function bodyOf(draft, was) {
  const body = { rate: null };
  const rate = draft.adaptive ? "" : draft.rate.trim();
  if ((draft.unlimited && !draft.adaptive) || /^unlimited$/i.test(rate)) body.rate = "unlimited";
  else if (rate) body.rate = readNumber(rate, "rate").value;
  for (const field of FIELDS) {
    if (field.key in draft) body[field.key] = readValue(field, draft[field.key]) ?? null;
  }
  // Its default depends on the spool, and only the server knows whether the value is a default.
  if (body.action && body.max_delay_s === (was.max_delay_s ?? null)) delete body.max_delay_s;
  // Reset fields that another field's value makes useless or invalid.
  for (const { key, onlyWith, notWith } of FIELDS) {
    if (key in body && notWith && body[notWith]) body[key] = null;
    const [other, wanted] = onlyWith ?? [];
    const is = other && (body[other] ?? FIELDS.find((each) => each.key === other)?.otherwise);
    if (key in body && ![undefined, null, "", wanted].includes(is)) body[key] = null;
  }
  if (draft.reason.trim()) body.reason = draft.reason.trim();
  const { seconds } = readTtl(draft.ttl_s);
  if (seconds !== undefined) body.ttl_s = seconds;
  return body;
}
