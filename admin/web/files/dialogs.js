/** Native dialogs, and what forms are made of. */

import { ApiError } from "./api.js";
import { openDialog } from "./app.js";
import { readNumber } from "./format.js";
import { Button } from "./parts.js";
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "./html.js";

const TTL_MINUTES = [
  ["", "for good"],
  ["15", "15 minutes"],
  ["60", "1 hour"],
  ["480", "8 hours"],
  ["1440", "24 hours"],
  ["other", "other…"],
];

const TEXT = { autocomplete: "off", spellcheck: "false" };

/** For `ref`: takes the focus when it appears. */
export function takeFocus(element) {
  element?.focus();
}

/**
 * A dialog that is open as long as it is drawn. `onclose` is told when it was closed, and then draws it no more.
 * `onescape` says whether Escape leaves it open. Whoever closes it from outside calls `close` of its `control`.
 */
export function Dialog({ title, onclose, drawer = false, isFixed = false, onescape, control = {}, children }) {
  const id = useId();
  const element = useRef();
  useLayoutEffect(() => {
    control.close = () => element.current?.close();
  });
  useLayoutEffect(() => {
    element.current.showModal();
    // What the browser leaves to itself would be the first button.
    const wanted = element.current.querySelector("[data-focus]");
    (wanted ?? element.current.querySelector("h2")).focus();
  }, []);
  const pressed = (event) => {
    // A second Escape would close it past any refusal of `cancel`.
    if (event.key === "Escape" && (isFixed || onescape?.())) event.preventDefault();
  };
  return html`<dialog
    ref=${element}
    class=${drawer ? "drawer" : "box"}
    aria-labelledby=${id}
    onKeyDown=${pressed}
    onClose=${onclose}
  >
    <div class="dialog-head">
      <h2 id=${id} tabindex="-1">${title}</h2>
      ${!isFixed && html`<${Button} manner="plain small" label="Close" onclick=${() => element.current.close()}>✕<//>`}
    </div>
    <div class="dialog-body">${children}</div>
  </dialog>`;
}

/** A form that only its button sends: Enter in a field does nothing, so that nothing is done by accident. */
export function CarefulForm({ onconfirm, children }) {
  const pressed = (event) => {
    if (event.key === "Enter" && !(event.target instanceof HTMLButtonElement)) event.preventDefault();
  };
  const sent = (event) => {
    event.preventDefault();
    onconfirm();
  };
  return html`<form novalidate onKeyDown=${pressed} onSubmit=${sent}>${children}</form>`;
}

/**
 * A labelled control: a box to tick if the value is a boolean, a choice if there are `options` (values and names),
 * else a line of text. `input`: further attributes of the control; `more` is shown below it.
 */
export function Field({ label, help = "", error = "", value, onvalue, options, input, more }) {
  const id = useId();
  const isCheck = typeof value === "boolean";
  const attributes = {
    id,
    "aria-describedby": `${id}-error ${id}-help`,
    "aria-invalid": error && !more ? "true" : null,
    ...input,
  };
  return html`<div class="field ${isCheck ? "check" : ""}">
    <label for=${id}>${label}</label>
    ${control(value, onvalue, options, attributes)} ${more}
    <p class="field-error" id="${id}-error">${error}</p>
    <p class="field-help" id="${id}-help">${help}</p>
  </div>`;
}

function control(value, onvalue, options, attributes) {
  if (typeof value === "boolean") {
    const ticked = (event) => onvalue(event.target.checked);
    return html`<input type="checkbox" checked=${value} onChange=${ticked} ...${attributes} />`;
  }
  const entered = (event) => onvalue(event.target.value);
  if (!options) {
    return html`<input type="text" ...${TEXT} value=${value} onInput=${entered} ...${attributes} />`;
  }
  return html`<select value=${value} onChange=${entered} ...${attributes}>
    ${options.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}
  </select>`;
}

export function ReasonField({ label = "Reason", input, ...how }) {
  return html`<${Field} label=${label} input=${{ maxlength: 500, ...input }} ...${how} />`;
}

/**
 * How long something is to hold: `value` is `{choice, minutes}`. `kept` says how long it holds anyway: what ends is let
 * end as it would, unless somebody chooses otherwise.
 */
export function TtlField({
  value,
  onvalue,
  kept,
  error,
  help = "Afterwards what held before holds again, by itself.",
}) {
  const entered = (event) => onvalue({ ...value, minutes: event.target.value });
  const invalid = error ? "true" : null;
  const minutes = html`<input
    type="text"
    inputmode="decimal"
    aria-label="Minutes"
    aria-invalid=${invalid}
    placeholder="minutes"
    ref=${takeFocus}
    value=${value.minutes}
    onInput=${entered}
    ...${TEXT}
  />`;
  const how = {
    label: "For how long",
    help,
    error,
    value: value.choice,
    onvalue: (choice) => onvalue({ choice, minutes: "" }),
    options: kept ? [["keep", kept], ...TTL_MINUTES] : TTL_MINUTES,
    more: value.choice === "other" && minutes,
  };
  return html`<${Field} ...${how} />`;
}

/** Seconds of what a TtlField holds: null is for good, undefined as it is, NaN no number; and what is wrong with it. */
export function readTtl({ choice, minutes }) {
  if (choice === "keep") return { seconds: undefined, problem: "" };
  if (!choice) return { seconds: null, problem: "" };
  const { value, problem } = readNumber(choice === "other" ? minutes : choice);
  return { seconds: value * 60, problem: problem || (value > 0 ? "" : "must be more than 0 minutes") };
}

/** What went wrong, at the top of a form, and read out. */
export function Problem({ text, children }) {
  return html`<div role="alert">${text && html`<p class="problem">${text}</p>`}${children}</div>`;
}

export function Actions({ label, manner = "primary", cancel, cancelLabel = "Cancel", button = {}, children }) {
  return html`<div class="actions">
    <button class="button ${manner}" type="submit" ...${button}>${label}</button>
    <button class="button" type="button" onClick=${cancel}>${cancelLabel}</button>
    ${children}
  </div>`;
}

/**
 * Does something when told so: `act(volatile)`. What the API says against it is `problem`; if only the disk is in the
 * way, `offer` is a button that does it until the restart.
 */
export function useAct(label, act, onrefused = () => {}) {
  const [state, setState] = useState({ isActing: false, problem: "", isVolatile: false });
  const run = async (volatile) => {
    setState({ isActing: true, problem: "", isVolatile: false });
    try {
      await act(volatile);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const further = error.errors.map((each) => each.detail).filter((detail) => detail !== error.message);
      setState({ isActing: false, problem: [error.message, ...further].join(" "), isVolatile: error.status === 507 });
      onrefused(error);
    }
  };
  const offer =
    state.isVolatile &&
    html`<button class="button" type="button" onClick=${() => run(1)}>${label} until the restart only</button>`;
  return { ...state, offer, run: () => run() };
}

/**
 * Ask for a reason and a last word, then act, and close. `words`: `{label, manner, reasonLabel, help}`;
 * `act(reason, volatile)`.
 */
export function askReason(title, content, words, act) {
  openDialog(
    (close) => html`<${ReasonDialog} title=${title} content=${content} words=${words} act=${act} onclose=${close} />`,
  );
}

function ReasonDialog({ title, content, words, act, onclose }) {
  const control = useRef({}).current;
  const [reason, setReason] = useState("");
  const acting = useAct(words.label, async (volatile) => {
    await act(reason.trim(), volatile);
    control.close();
  });
  return html`<${Dialog} title=${title} onclose=${onclose} control=${control}>
    <${Problem} text=${acting.problem}>${acting.offer}<//>
    ${content}
    <${CarefulForm} onconfirm=${acting.run}>
      <${ReasonField} label=${words.reasonLabel} value=${reason} onvalue=${setReason} input=${{ "data-focus": true }} />
      <${Actions} label=${words.label} manner=${words.manner} cancel=${() => control.close()} />
    <//>
  <//>`;
}

/** Focus the first control with an error after each try; folded ones are unfolded. */
export function useFocusOnError(form, errors) {
  useEffect(() => {
    const first = form.current?.querySelector("[aria-invalid=true]");
    const details = first?.closest("details");
    if (details) details.open = true;
    first?.focus();
  }, [errors]);
}
