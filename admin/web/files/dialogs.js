/** Native dialogs, and the parts of forms. */

import { ApiError } from "./api.js";
import { openDialog } from "./app.js";
import { readNumber } from "./format.js";
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "./html.js";
import { Button, Choice } from "./parts.js";

const TTL_MINUTES = [
  ["", "until it is changed"],
  ["15", "15 minutes"],
  ["60", "1 hour"],
  ["480", "8 hours"],
  ["1440", "24 hours"],
  ["other", "other…"],
];
const TEXT = { type: "text", autocomplete: "off", spellcheck: "false" };
/** Attributes of the input that gets the focus when a dialog opens. */
export const FOCUS = { "data-focus": true };

/** For `ref`: focuses the element when it appears. */
export function takeFocus(element) {
  element?.focus();
}

/** A dialog that is open while it is drawn. `close` is called when the user closes it, unless it `isFixed`. */
export function Dialog({ title, close, drawer = false, isFixed = false, onescape, children }) {
  const id = useId();
  const element = useRef();
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    // The browser itself would choose the first button.
    (dialog.querySelector("[data-focus]") ?? dialog.querySelector("h2")).focus();
    // This returns the focus to where it was.
    return () => dialog.close();
  }, []);
  const pressed = (event) => {
    // A second Escape would close it whatever a handler of `cancel` does.
    if (event.key === "Escape" && (isFixed || onescape?.())) event.preventDefault();
  };
  return html`<dialog
    ref=${element}
    class=${drawer ? "drawer" : "box"}
    aria-labelledby=${id}
    onKeyDown=${pressed}
    onClose=${close}
  >
    <div class="dialog-head">
      <h2 id=${id} tabindex="-1">${title}</h2>
      ${!isFixed && html`<${Button} manner="plain small" label="Close" onclick=${close}>✕<//>`}
    </div>
    <div class="dialog-body">${children}</div>
  </dialog>`;
}

/** A form. `isCareful`: Enter in a field does not submit it. */
export function Form({ onsend, isCareful = false, formRef, children, ...attributes }) {
  const pressed = (event) => {
    if (isCareful && event.key === "Enter" && !(event.target instanceof HTMLButtonElement)) event.preventDefault();
  };
  const sent = (event) => {
    event.preventDefault();
    onsend();
  };
  return html`<form ref=${formRef} onKeyDown=${pressed} onSubmit=${sent} ...${attributes}>${children}</form>`;
}

/**
 * A labelled control: a checkbox if the value is a boolean, a choice if there are `options` (values and names), else a
 * line of text. `input`: further attributes of the control. `more` is shown below it.
 */
export function Field({ label, help = "", error = "", value, onvalue, options, input, more }) {
  const id = useId();
  const isCheck = typeof value === "boolean";
  const how = {
    id,
    "aria-describedby": `${id}-error ${id}-help`,
    "aria-invalid": error && !more ? "true" : null,
    ...input,
  };
  const ticked = (event) => onvalue(event.target.checked);
  const entered = (event) => onvalue(event.target.value);
  let control = html`<input ...${TEXT} value=${value} onInput=${entered} ...${how} />`;
  if (isCheck) control = html`<input type="checkbox" checked=${value} onChange=${ticked} ...${how} />`;
  else if (options) control = html`<${Choice} value=${value} options=${options} onvalue=${onvalue} ...${how} />`;
  return html`<div class="field ${isCheck ? "check" : ""}">
    <label for=${id}>${label}</label>
    ${control} ${more}
    <p class="field-error" id="${id}-error">${error}</p>
    <p class="field-help" id="${id}-help">${help}</p>
  </div>`;
}

export function ReasonField({ label = "Reason", input, ...how }) {
  return html`<${Field} label=${label} input=${{ maxlength: 500, ...input }} ...${how} />`;
}

/** How long a limit or a switch applies. `value` is `{choice, minutes}`. `kept` describes the choice of no change. */
export function TtlField({ value, onvalue, kept, error, help = "Then the previous limit applies again." }) {
  const minutes = html`<input
    ...${TEXT}
    inputmode="decimal"
    aria-label="Minutes"
    aria-invalid=${error ? "true" : null}
    placeholder="minutes"
    ref=${takeFocus}
    value=${value.minutes}
    onInput=${(event) => onvalue({ ...value, minutes: event.target.value })}
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

/**
 * The seconds of a TtlField (null without an end, undefined for no change, NaN for a wrong number), and the problem.
 */
export function readTtl({ choice, minutes }) {
  if (choice === "keep") return { seconds: undefined, problem: "" };
  if (!choice) return { seconds: null, problem: "" };
  const { value, problem } = readNumber(choice === "other" ? minutes : choice);
  return { seconds: value * 60, problem: problem || (value > 0 ? "" : "must be more than 0 minutes") };
}

/** A problem at the top of a form, which is read out. */
export function Problem({ text, children }) {
  return html`<div role="alert">${text && html`<p class="problem">${text}</p>`}${children}</div>`;
}

export function Actions({ label, manner = "primary", cancel, cancelLabel = "Cancel", children, ...button }) {
  return html`<div class="actions">
    <${Button} type="submit" manner=${manner} ...${button}>${label}<//>
    ${cancel && html`<${Button} onclick=${cancel}>${cancelLabel}<//>`} ${children}
  </div>`;
}

/**
 * A write: `act(volatile)`. `problem` is the API's rejection. If it cannot be saved, `offer` is a button that does it
 * until the restart.
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
  const offer = state.isVolatile && html`<${Button} onclick=${() => run(1)}>${label} until the restart only<//>`;
  return { ...state, offer, run: () => run() };
}

/** Ask for a reason, then act, and close. `words`: `{label, manner, reasonLabel}`. `act(reason, volatile)` does it. */
export function askReason(title, content, words, act) {
  openDialog(ReasonDialog, { title, content, words, act });
}

function ReasonDialog({ title, content, words, act, close }) {
  const [reason, setReason] = useState("");
  const acting = useAct(words.label, async (volatile) => {
    await act(reason.trim(), volatile);
    close();
  });
  return html`<${Dialog} title=${title} close=${close}>
    <${Problem} text=${acting.problem}>${acting.offer}<//>
    ${content}
    <${Form} isCareful onsend=${acting.run}>
      <${ReasonField} label=${words.reasonLabel} value=${reason} onvalue=${setReason} input=${FOCUS} />
      <${Actions} label=${words.label} manner=${words.manner} cancel=${close} />
    <//>
  <//>`;
}

/** Focus the first control with an error after each try, and unfold it. */
export function useFocusOnError(form, errors) {
  useEffect(() => {
    const first = form.current?.querySelector("[aria-invalid=true]");
    const details = first?.closest("details");
    if (details) details.open = true;
    first?.focus();
  }, [errors]);
}
