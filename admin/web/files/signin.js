/** Asks for a token when the API wants one. It is kept for this tab only. */

import { ApiError, get, setToken, token } from "./api.js";
import { field, openDialog, setError } from "./dialog.js";
import { fill, h } from "./dom.js";

let open = false;

/** Ask until there is a token that the API takes. */
export function signIn(/** @type {() => void} */ then) {
  if (open) return;
  open = true;
  const dialog = openDialog("Sign in", { dismissable: false });
  const input = h("input", { type: "password", autocomplete: "current-password", required: true });
  const refused = token() !== "";
  fill(
    dialog.body,
    h("p", {}, "This address wants a token. Whoever set Sluice up has it; a read token shows everything, a write token changes limits."),
    h(
      "form",
      {
        onsubmit: async (/** @type {Event} */ event) => {
          event.preventDefault();
          setToken(input.value.trim());
          try {
            await get("whoami");
          } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            setError(input, error.status === 401 ? "Sluice does not know this token." : error.message);
            input.select();
            input.focus();
            return;
          }
          open = false;
          dialog.close();
          then();
        },
      },
      field("Token", input, "Kept in this tab until it is closed."),
      h("div", { class: "actions" }, h("button", { class: "button primary", type: "submit" }, "Sign in")),
    ),
  );
  if (refused) setError(input, "The token that this tab had is not taken any more.");
  input.focus();
}
