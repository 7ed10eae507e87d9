/** Asks for a token when the API wants one. */

import { ApiError, get, setToken, token } from "./api.js";
import { app, openDialog } from "./app.js";
import { Dialog, Field } from "./dialogs.js";
import { html, useRef, useState } from "./html.js";

const ABOUT =
  "This address wants a token. Whoever set Sluice up has it; a read token shows everything, " +
  "a write token changes limits.";
let isOpen = false;

/** Ask until there is a token that the API takes. */
export function signIn(then) {
  if (isOpen) return;
  isOpen = true;
  app.dialogs = [];
  openDialog((close) => {
    const onclose = () => {
      isOpen = false;
      close();
      then();
    };
    return html`<${SignIn} onclose=${onclose} />`;
  });
}

function SignIn({ onclose }) {
  const control = useRef({}).current;
  const [value, setValue] = useState("");
  const [error, setError] = useState(() => (token() ? "The token that this tab had is not taken any more." : ""));
  const form = useRef();
  const sent = async (event) => {
    event.preventDefault();
    setToken(value.trim());
    try {
      await get("whoami");
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      setError(problem.status === 401 ? "Sluice does not know this token." : problem.message);
      form.current.querySelector("input").select();
      return;
    }
    control.close();
  };
  return html`<${Dialog} isFixed title="Sign in" onclose=${onclose} control=${control}>
    <p>${ABOUT}</p>
    <form ref=${form} onSubmit=${sent}>
      <${Field}
        label="Token"
        help="Kept in this tab until it is closed."
        error=${error}
        value=${value}
        onvalue=${setValue}
        input=${{ type: "password", autocomplete: "current-password", required: true, "data-focus": true }}
      />
      <div class="actions"><button class="button primary" type="submit">Sign in</button></div>
    </form>
  <//>`;
}
