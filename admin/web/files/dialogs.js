import { ApiError } from "./api.js";
import { openDialog } from "./app.js";
import { readNumber } from "./format.js";
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "./html.js";
import { Button, Choice } from "./parts.js";

const TTL_MINUTES = [
  ["", "until changed"],
  ["15", "15 minutes"],
  ["60", "1 hour"],
  ["480", "8 hours"],
  ["1440", "24 hours"],
  ["other", "other…"],
];
const TEXT = { type: "text", autocomplete: "off", spellcheck: "false" };
export const FOCUS = { "data-focus": true };

export function takeFocus(element) {
  element?.focus();
}

/** An `isFixed` dialog cannot be closed by the user. */
export function Dialog({ title, close, drawer = false, isFixed = false, onescape, children }) {
  const id = useId();
  const element = useRef();
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    // Otherwise the browser would focus the first button.
    (dialog.querySelector("[data-focus]") ?? dialog.querySelector("h2")).focus();
    // Closing the dialog also restores the focus.
    return () => dialog.close();
  }, []);
  const pressed = (event) => {
    // A `cancel` handler could not keep the dialog open, because a second Escape would close it anyway.
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

/** `value` is `{choice, minutes}`. `kept` is the label of the choice that keeps the current expiry. */
export function TtlField({ value, onvalue, kept, error, help = "The previous limit applies again afterwards." }) {
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

/** Returns `{seconds, problem}`. `seconds` is null for no expiry, undefined to keep it, and NaN if invalid. */
export function readTtl({ choice, minutes }) {
  if (choice === "keep") return { seconds: undefined, problem: "" };
  if (!choice) return { seconds: null, problem: "" };
  const { value, problem } = readNumber(choice === "other" ? minutes : choice);
  return { seconds: value * 60, problem: problem || (value > 0 ? "" : "must be more than 0 minutes") };
}

export function Problem({ text, children }) {
  return html`<div role="alert">${text && html`<p class="problem">${text}</p>`}${children}</div>`;
}

export function Actions({ label, manner = "primary", cancel, cancelLabel = "Cancel", children, ...button }) {
  return html`<div class="actions">
    <${Button} type="submit" manner=${manner} ...${button}>${label}<//>
    ${cancel && html`<${Button} onclick=${cancel}>${cancelLabel}<//>`} ${children}
  </div>`;
}

/** Makes a change with `act(volatile)`. If saving fails, `offer` is a button that applies it until the restart. */
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
  const offer = state.isVolatile && html`<${Button} onclick=${() => run(1)}>${label} until restart only<//>`;
  return { ...state, offer, run: () => run() };
}

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

export function useFocusOnError(form, errors) {
  useEffect(() => {
    const first = form.current?.querySelector("[aria-invalid=true]");
    const details = first?.closest("details");
    if (details) details.open = true;
    first?.focus();
  }, [errors]);
}
