import { ApiError, get, setToken, token } from "./api.js";
import { app, openDialog } from "./app.js";
import { Actions, Dialog, FOCUS, Field, Form } from "./dialogs.js";
import { html, useState } from "./html.js";

let isOpen = false;

export function signIn(then) {
  if (isOpen) return;
  isOpen = true;
  app.dialogs = [];
  openDialog(SignIn, {
    then() {
      isOpen = false;
      then();
    },
  });
}

function SignIn({ then, close }) {
  const [value, setValue] = useState("");
  const [error, setError] = useState(() => (token() ? "This tab's token is no longer valid." : ""));
  const send = async () => {
    setToken(value.trim());
    try {
      await get("whoami");
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      setError(problem.status === 401 ? "Unknown token." : problem.message);
      document.activeElement?.form?.querySelector("input").select();
      return;
    }
    close();
    then();
  };
  const input = { type: "password", autocomplete: "current-password", required: true, ...FOCUS };
  return html`<${Dialog} isFixed title="Sign in" close=${close}>
    <p>
      This address requires a token. Ask the operator of Sluice for one. A read token shows everything, and a write
      token can also change limits.
    </p>
    <${Form} onsend=${send}>
      <${Field}
        label="Token"
        help="Kept until this tab is closed."
        error=${error}
        value=${value}
        onvalue=${setValue}
        input=${input}
      />
      <${Actions} label="Sign in" />
    <//>
  <//>`;
}
