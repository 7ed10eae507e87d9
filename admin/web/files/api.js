const BASE = "/api/v1/";
const TOKEN_KEY = "sluice.token";
const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 15_000;
/** The server sends at least a comment every ten seconds. */
const MAX_SILENCE_MS = 25_000;

/** `status` is 0 if there was no response. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    /** @type {{field: string, detail: string}[]} */
    this.errors = problem.errors ?? [];
  }
}

let signInNeeded = () => {};

export function onSignInNeeded(listener) {
  signInNeeded = listener;
}

/** Returns the token, which is stored for this tab only. */
export function token() {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(TOKEN_KEY, value);
  else sessionStorage.removeItem(TOKEN_KEY);
}

export function pathOf(...names) {
  return names.map(encodeURIComponent).join("/");
}

function request(path, query = {}, { headers, ...options } = {}) {
  const given = Object.entries(query).filter(([, value]) => (value ?? "") !== "");
  const text = new URLSearchParams(given).toString();
  const credentials = token() ? { Authorization: `Bearer ${token()}` } : {};
  const how = { cache: "no-store", headers: { ...credentials, ...headers }, ...options };
  return fetch(BASE + path + (text ? `?${text}` : ""), how);
}

/** Returns the decoded response. Throws ApiError. */
export async function call(method, path, { query, body, etag } = {}) {
  const headers = { Accept: "application/json" };
  if (etag) headers["If-Match"] = /^("|W\/)/.test(etag) ? etag : `"${etag}"`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await request(path, query, { method, headers, body: JSON.stringify(body) });
  } catch {
    throw new ApiError(0, { detail: "Sluice did not respond. A change may not have been applied." });
  }
  const text = await response.text();
  let answer;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, { detail: `The response is not JSON (status ${response.status})` });
  }
  if (response.status === 401) signInNeeded();
  if (!response.ok) throw new ApiError(response.status, answer ?? {});
  return answer;
}

export function get(path, query) {
  return call("GET", path, { query });
}

/**
 * Returns a function that opens the event stream for a query, and reconnects with increasing delays.
 *
 * Calls `begin()` before each connection, `event(name, data)` for each event, and `status("live" | "reconnecting" |
 * "offline")` for each change of state. Uses fetch, because EventSource cannot send a token.
 */
export function openStream({ begin, event, status }) {
  let query = {};
  let running = null;
  let failures = 0;
  let timer;
  const open = (wanted = query) => {
    query = wanted;
    clearTimeout(timer);
    running?.abort();
    const own = (running = new AbortController());
    begin();
    const ended = () => own === running && lost();
    read(own).then(ended, ended);
  };
  const lost = () => {
    running = null;
    failures += 1;
    status(failures > 2 ? "offline" : "reconnecting");
    const pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (failures - 1));
    timer = setTimeout(open, pauseMs * (0.75 + Math.random() / 2));
  };
  const read = async (own) => {
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => own.abort(), MAX_SILENCE_MS);
    };
    alive();
    try {
      const response = await request("events", query, {
        headers: { Accept: "text/event-stream" },
        signal: own.signal,
      });
      if (response.status === 401) {
        running = null;
        signInNeeded();
      }
      if (!response.ok || !response.body) return;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        alive();
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const text of events) if (own === running) take(text);
      }
    } finally {
      clearTimeout(silence);
    }
  };
  const take = (text) => {
    const lines = text.split(/\r?\n/);
    const valueOf = (name) =>
      lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length).trim());
    const data = valueOf("data:").join("\n");
    failures = 0;
    status("live");
    if (data) event(valueOf("event:").at(-1), JSON.parse(data));
  };
  window.addEventListener("online", () => open());
  document.addEventListener("visibilitychange", () => document.hidden || running || open());
  return open;
}
