import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: { globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "no-implicit-globals": "error",
      "no-unreachable-loop": "error",
      "no-useless-return": "error",
      // Prettier leaves templates and comments as they are.
      "max-len": ["error", { code: 120 }],
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];
