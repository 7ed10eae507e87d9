/**
 * Edits one limit: the fields, then what would change, then the change. A drawer beside the table, so that the figures
 * stay in sight.
 */

import { ApiError, call, get, limitPath } from "./api.js";
import { app, writing } from "./app.js";
import { field, openDialog, reasonInput, select, setError, showProblem, ttlField } from "./dialog.js";
import { fill, h } from "./dom.js";
import { FIELDS, control, fieldElement, fieldsOf, inWords, read } from "./fields.js";
import { ago, exact, left, limitText } from "./format.js";
import { readNumber } from "./numbers.js";
import { preview } from "./preview.js";
import { nameOf, resourceLink } from "./router.js";
import { done, quoted } from "./writes.js";

/** Open the editor of a limit. */
export function editLimit(/** @type {string} */ kind, /** @type {string} */ name, /** @type {() => void} */ onclose = () => {}) {
  return new Editor(kind, name, onclose);
}

/** Open the editor of a limit that is still to be named. */
export function addLimit(/** @type {string[]} */ kinds, /** @type {string} */ name = "") {
  const dialog = openDialog("New limit");
  const kind = select(kinds.map((each) => [each, each]));
  const text = h("input", { type: "text", required: true, value: name, autocomplete: "off", spellcheck: "false" });
  const shared = h("input", { type: "checkbox" });
  const sharedField = fieldElement(
    { key: "shared", label: "One limit for all that match together, besides that of each", input: "check", otherwise: false, help: "" },
    shared,
  );
  fill(
    dialog.body,
    h(
      "form",
      {
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          dialog.close();
          if (shared.checked) editLimit("total", `${kind.value}:${text.value}`);
          else editLimit(kind.value, text.value);
        },
      },
      field("Kind", kind),
      field("Name or pattern", text, "An exact name, or a pattern with * ? []; of clients an address, a network or *."),
      sharedField,
      h("div", { class: "actions" }, h("button", { class: "button primary", type: "submit" }, "Set its limit…")),
    ),
  );
  text.focus();
}

class Editor {
  constructor(/** @type {string} */ kind, /** @type {string} */ name, /** @type {() => void} */ onclose) {
    this.kind = kind;
    this.name = name;
    /** @type {any} */
    this.entry = null;
    this.dialog = openDialog(name === "*" ? `Default of ${kind}` : `${kind} ${name}`, { drawer: true, onclose, onescape: () => this.leavesPreview() });
    /** @type {(() => void) | null} the way back to the form, while a preview is shown */
    this.back = null;
    this.notice = h("div", { role: "alert" });
    this.content = h("div", {}, h("p", { class: "muted" }, "Loading…"));
    fill(this.dialog.body, this.notice, this.content);
    this.load();
  }

  get path() {
    return limitPath(this.kind, this.name);
  }

  async load() {
    try {
      const { body } = await get(this.path);
      this.entry = body;
      this.showForm(body.limit);
    } catch (error) {
      this.problem(error);
      fill(this.content);
    }
  }

  /** Show the fields, with these values. */
  showForm(/** @type {Record<string, any>} */ limit, /** @type {string} */ reason = "") {
    const write = writing();
    this.reason = reasonInput({ value: reason, placeholder: "for the audit trail" });
    this.rate = h("input", {
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      value: limit.rate === "unlimited" || limit.rate === null || limit.rate === undefined ? "" : String(limit.rate),
    });
    this.unlimited = h("input", { type: "checkbox", checked: limit.rate === "unlimited" });
    // A rate that is typed is meant, and so is a tick.
    this.rate.addEventListener("input", () => {
      this.unlimited.checked = false;
    });
    this.unlimited.addEventListener("change", () => {
      if (this.unlimited.checked) this.rate.value = "";
    });
    const ends = this.entry.edit?.expires_at;
    this.ttl = ttlField("", undefined, ends && `as it is: ${left(ends)}`);
    /** @type {Map<string, any>} */
    this.controls = new Map();
    const shown = fieldsOf(this.kind, this.name, limit);
    for (const each of shown) this.controls.set(each.key, control(each, limit));
    const further = shown.some((each) => each.telling && read(each, this.controls.get(each.key)) !== undefined) || !["reject", null, undefined].includes(limit.action);
    const form = h(
      "form",
      {
        class: "editor",
        novalidate: true,
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          this.ask();
        },
      },
      this.standing(),
      app.canWrite() && this.ownText(),
      h(
        "fieldset",
        { disabled: write.disabled },
        h("legend", { class: "visually-hidden" }, "Limit"),
        h(
          "div",
          { class: "rate-row" },
          field("Rate, per second", this.rate, "0 refuses all."),
          fieldElement({ key: "unlimited", label: "unlimited", input: "check", otherwise: false, help: "" }, this.unlimited),
        ),
        h(
          "details",
          { open: further },
          h("summary", {}, "More"),
          this.further(shown),
        ),
        field("Reason", this.reason),
        this.ttl.element,
      ),
      h(
        "div",
        { class: "actions" },
        h("button", { class: "button primary", type: "submit", ...write }, "Preview"),
        h("button", { class: "button", type: "button", onclick: () => this.dialog.close() }, "Cancel"),
        h("span", { class: "spacer" }),
        h("button", { class: "button", type: "button", onclick: () => this.askReset(), ...write }, "Reset…"),
        this.entry.edit && h("button", { class: "button", type: "button", onclick: () => this.askRevert(), ...write }, "Revert to file…"),
      ),
      !app.canWrite() && h("p", { class: "muted" }, "Your token may only read: sign in with another one to change this."),
      h("p", {}, resourceLink(this.kind, this.entry.exact ? nameOf(this.name) : "", "What limits it and why, its figures, and who sends it", { onclick: () => this.dialog.close() })),
    );
    fill(this.content, form);
    this.back = null;
    (write.disabled ? this.dialog.element.querySelector("h2") : this.rate)?.focus();
    if (!write.disabled) this.rate.select();
  }

  /** All fields but the rate; those that go with one value of another field are there while that has it. */
  further(/** @type {any[]} */ shown) {
    const elements = shown.map((each) => /** @type {const} */ ([each, fieldElement(each, this.controls?.get(each.key))]));
    const show = () => {
      for (const [{ onlyWith }, element] of elements) {
        const other = onlyWith && this.controls?.get(onlyWith[0])?.value;
        // An empty one is the default of the kind, whichever that is.
        element.hidden = Boolean(other && other !== onlyWith[1]);
      }
    };
    show();
    return h("div", { class: "fields", onchange: show }, elements.map(([, element]) => element));
  }

  /** What is in force, where it comes from, and what the file says. */
  standing() {
    const { edit, configured, limit_text: text, rule, source } = this.entry;
    return h(
      "dl",
      { class: "facts" },
      h("dt", {}, "In force"),
      h("dd", {}, h("b", {}, text), rule && h("span", { class: "muted" }, ` by ${rule}`)),
      edit && [
        h("dt", {}, "Edited"),
        h(
          "dd",
          {},
          h("span", { title: exact(edit.at) }, `by ${edit.by}, ${ago(edit.at)}`),
          edit.expires_at && ` · ${left(edit.expires_at)}`,
          edit.reason && h("q", {}, edit.reason),
        ),
      ],
      (edit || source) && [
        h("dt", {}, edit ? "File" : "Written"),
        h("dd", {}, edit ? (configured ? `${limitText(configured.limit)} (${configured.source})` : "nothing for this very name") : source),
      ],
    );
  }

  /** What a limit of its own means, for a name that has none. */
  ownText() {
    const { edit, configured, rule } = this.entry;
    if (edit || configured) return null;
    const what = this.name === "*" ? `a default of ${this.kind}` : "a limit of its own";
    return h("p", { class: "note" }, `This makes ${what}. `, rule ? [h("b", {}, rule), " stays as it is for all others."] : "No limit holds for it so far.");
  }

  /** @returns {Record<string, any>} the body of a PATCH: all fields that are shown, null for what is not set. */
  body() {
    /** @type {Record<string, any>} */
    const body = { rate: null };
    const rate = this.rate.value.trim();
    if (this.unlimited.checked) body.rate = "unlimited";
    else if (rate) body.rate = /^unlimited$/i.test(rate) ? "unlimited" : readNumber(rate, "rate").value;
    for (const each of FIELDS) {
      const element = this.controls?.get(each.key);
      const value = element && read(each, element);
      if (element) body[each.key] = value ?? null;
    }
    // The longest delay is another one by default if all is put aside: one that nobody has touched goes with that.
    const was = this.entry.limit;
    const changed = (/** @type {string} */ key) => body[key] !== undefined && body[key] !== (was[key] ?? null);
    if (changed("spool") && !changed("max_delay_s")) body.max_delay_s = null;
    // It is shown as it is in force, but belongs to the limit only beside one value of another field.
    for (const { key, onlyWith } of FIELDS) {
      const [other, wanted] = onlyWith ?? [];
      const is = other && (body[other] ?? FIELDS.find((each) => each.key === other)?.otherwise);
      if (is && is !== wanted) body[key] = null;
    }
    if (this.reason.value.trim()) body.reason = this.reason.value.trim();
    const seconds = this.ttl?.seconds();
    if (seconds !== undefined) body.ttl_s = seconds;
    return body;
  }

  /** Say at each field that wants a number what is wrong with it. */
  numbersAreRight() {
    /** @type {[string, any][]} */
    const numbers = FIELDS.filter((each) => each.input === "number").map((each) => [each.key, this.controls?.get(each.key)]);
    let first = null;
    const unlimited = this.unlimited.checked || this.rate.value.trim() || this.controls?.get("bytes_per_s")?.value.trim();
    const [action, confirm, exempt] = ["action", "confirm", "exempt"].map((key) => this.controls?.get(key));
    if (!unlimited && !exempt?.checked && action?.value !== "off" && confirm?.value !== "after_consume") {
      setError(this.rate, "Enter a rate, tick unlimited, or limit the bytes per second.");
      first = this.rate;
    }
    for (const [key, element] of [["rate", this.rate], ...numbers]) {
      const text = element?.value.trim();
      if (!text || (key === "rate" && /^unlimited$/i.test(text))) continue;
      const { problem } = readNumber(text, key);
      if (!problem) continue;
      setError(element, problem);
      element.closest("details")?.setAttribute("open", "");
      first ??= element;
    }
    first?.focus();
    return !first && Boolean(this.ttl?.check());
  }

  /** Ask what would change, and show it. */
  async ask() {
    this.clear();
    if (!this.numbersAreRight()) return;
    await this.foresee("Apply", "PATCH", { body: this.body() });
  }

  async askRevert() {
    this.clear();
    await this.foresee("Revert", "DELETE", { query: { reason: this.reason.value.trim() } });
  }

  /** Ask what a write would change, show that, and do it when told so. */
  async foresee(/** @type {string} */ label, /** @type {string} */ method, /** @type {{body?: any, query?: Record<string, any>}} */ how) {
    const write = (/** @type {Record<string, any>} */ query) => call(method, this.path, { ...how, query: { ...how.query, ...query }, etag: quoted(this.entry.etag) });
    try {
      const { body: change } = await write({ dry_run: 1 });
      this.confirm("What would change", preview(change, this.entry), label, (volatile) => write({ volatile }));
    } catch (error) {
      this.problem(error);
    }
  }

  /** Ask whether the buckets shall begin anew. */
  askReset() {
    this.clear();
    const query = { reason: this.reason.value.trim() };
    this.confirm(
      "What a reset clears",
      h("p", {}, "What is owed, open breakers and fair shares: the buckets are full again. The limit stays as it is."),
      "Reset",
      () => call("POST", `${this.path}:reset`, { query }),
    );
  }

  /** Ask for a last word; the form waits behind it. */
  confirm(/** @type {string} */ heading, /** @type {any} */ what, /** @type {string} */ label, /** @type {(volatile?: number) => Promise<any>} */ act) {
    const form = this.content.firstElementChild;
    const back = () => {
      this.back = null;
      this.clear();
      fill(this.content, form);
      this.rate.focus();
    };
    this.back = back;
    const commit = async (/** @type {number | undefined} */ volatile) => {
      apply.disabled = true;
      try {
        const { body } = await act(volatile);
        this.dialog.close();
        done(body);
      } catch (error) {
        apply.disabled = false;
        if (error instanceof ApiError && (error.status === 400 || error.status === 422)) back();
        this.problem(error);
        if (error instanceof ApiError && error.status === 507) {
          this.notice.append(h("button", { class: "button", type: "button", onclick: () => commit(1) }, `${label} until the restart only`));
        }
      }
    };
    const apply = h("button", { class: "button primary", type: "button", onclick: () => commit(undefined) }, label);
    fill(
      this.content,
      h(
        "section",
        { class: "preview", "aria-label": heading },
        what,
        h("div", { class: "actions" }, apply, h("button", { class: "button", type: "button", onclick: back }, "Back")),
      ),
    );
    apply.focus();
  }

  /** @returns {boolean} whether Escape has led from a preview to its form, so that no edits are lost at once. */
  leavesPreview() {
    const { back } = this;
    back?.();
    return Boolean(back);
  }

  clear() {
    showProblem(this.notice, "");
    for (const element of [this.rate, this.reason, this.ttl?.control, ...(this.controls?.values() ?? [])]) {
      if (element) setError(element, "");
    }
  }

  /** Put what is wrong where it belongs. */
  async problem(/** @type {unknown} */ error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) {
      this.dialog.close();
      return;
    }
    if (error.status === 412) {
      await this.load();
      showProblem(this.notice, `${error.message} Nothing was changed. What is shown now is in force.`);
      return;
    }
    const elsewhere = [];
    let first = null;
    for (const { field: key, detail } of error.errors) {
      const element = this.controlOf(key);
      if (element?.isConnected) {
        setError(element, inWords(detail));
        element.closest("details")?.setAttribute("open", "");
        first ??= element;
      } else elsewhere.push(key ? `${key}: ${detail}` : detail);
    }
    if (elsewhere.length || !first) showProblem(this.notice, inWords(elsewhere.join("; ") || error.message));
    first?.focus();
  }

  /** @returns {any} */
  controlOf(/** @type {string} */ key) {
    const last = key.split(".").pop() ?? "";
    /** @type {Record<string, any>} */
    const fixed = { rate: this.rate, reason: this.reason, ttl_s: this.ttl?.control };
    return fixed[last] ?? this.controls?.get(last);
  }
}
