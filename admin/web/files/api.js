/** Talks to the API: the token, conditional writes, problems as errors, and the stream of events. */

const BASE = "/api/v1/";
const TOKEN_KEY = "sluice.token";
const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 15_000;
/** Something comes every ten seconds, if only a comment. */
const MAX_SILENCE_MS = 25_000;

/** The API's answer to something that it did not do; `status` 0: there was no answer. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    /** @type {{field: string, detail: string}[]} */
    this.errors = problem.errors ?? [];
  }
}

let signInNeeded = () => {};

/** Be told when the API wants a token, or another one. */
export function onSignInNeeded(listener) {
  signInNeeded = listener;
}

/** The token is kept for this tab only. */
export function token() {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(TOKEN_KEY, value);
  else sessionStorage.removeItem(TOKEN_KEY);
}

function credentials() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

/** The path below /api/v1/ of something that is called by names, which may hold any characters. */
export function pathOf(...names) {
  return names.map(encodeURIComponent).join("/");
}

function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => (value ?? "") !== "");
  const text = new URLSearchParams(given).toString();
  return BASE + path + (text ? `?${text}` : "");
}

/** Ask the API to do something, and return the body of its answer. Throws ApiError. */
export async function call(method, path, { query, body, etag } = {}) {
  const headers = { Accept: "application/json", ...credentials() };
  if (etag) headers["If-Match"] = /^("|W\/)/.test(etag) ? etag : `"${etag}"`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path, query), { method, headers, body: JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new ApiError(0, { detail: "Sluice did not answer. Nothing is known to have changed." });
  }
  const text = await response.text();
  let answer;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, { detail: `An answer that is not JSON, status ${response.status}` });
  }
  if (response.status === 401) signInNeeded();
  if (!response.ok) throw new ApiError(response.status, answer ?? {});
  return answer;
}

export function get(path, query) {
  return call("GET", path, { query });
}

/**
 * Server-sent events by fetch, which unlike EventSource can send a token. Comes back after a broken connection: at once
 * first, then with growing pauses.
 */
export class Stream {
  /** `begin()`: what comes next is whole; `event(name, data)`; `status("live" | "reconnecting" | "offline")`. */
  constructor(listener) {
    this.listener = listener;
    this.query = {};
    this.running = null;
    this.failures = 0;
    window.addEventListener("online", () => this.reopen());
    document.addEventListener("visibilitychange", () => document.hidden || this.running || this.reopen());
  }

  /** Follow what this query selects from now on. */
  open(query) {
    this.query = query;
    this.reopen();
  }

  reopen() {
    this.stop();
    const running = (this.running = new AbortController());
    this.listener.begin();
    const lost = () => this.lost(running);
    this.follow(running).then(lost, lost);
  }

  stop() {
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
  }

  async follow(running) {
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => running.abort(), MAX_SILENCE_MS);
    };
    alive();
    try {
      const headers = { Accept: "text/event-stream", ...credentials() };
      const response = await fetch(address("events", this.query), {
        headers,
        signal: running.signal,
        cache: "no-store",
      });
      if (response.status === 401) {
        this.stop();
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
        for (const text of events) this.take(running, text);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  take(running, text) {
    if (running !== this.running) return;
    const lines = text.split(/\r?\n/);
    const valuesOf = (name) =>
      lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length).trim());
    const data = valuesOf("data:").join("\n");
    // A comment says as much as an event: what is shown is what there is now.
    this.failures = 0;
    this.listener.status("live");
    if (data) this.listener.event(valuesOf("event:").at(-1), JSON.parse(data));
  }

  lost(running) {
    if (running !== this.running) return;
    this.running = null;
    this.failures += 1;
    this.listener.status(this.failures > 2 ? "offline" : "reconnecting");
    const pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (this.failures - 1));
    this.timer = setTimeout(() => this.reopen(), pauseMs * (0.75 + Math.random() / 2));
  }
}
