/**
 * Reads server-sent events by fetch, which unlike EventSource can send a token, and comes back after a broken
 * connection: at once first, then with growing pauses.
 */

import { address, credentials, signInNeeded } from "./api.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
/** Something comes every ten seconds, if only a comment; a connection that is silent for longer is dead. */
const SILENCE_MS = 25_000;

/**
 * @typedef {"connecting" | "live" | "reconnecting" | "offline"} Status
 * @typedef {{begin: () => void, event: (name: string, data: any) => void, status: (status: Status) => void}} Listener
 */

export class Stream {
  /** @param {Listener} listener */
  constructor(listener) {
    this.listener = listener;
    /** @type {Record<string, any>} */
    this.query = {};
    /** @type {AbortController | null} */
    this.running = null;
    this.failures = 0;
    /** @type {any} */
    this.timer = null;
    window.addEventListener("online", () => this.reopen());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && !this.running) this.reopen();
    });
  }

  /** Follow what this query selects from now on. */
  open(/** @type {Record<string, any>} */ query) {
    this.query = query;
    this.reopen();
  }

  /** Connect anew, at once. */
  reopen() {
    clearTimeout(this.timer);
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.listener.begin();
    this.follow(running).then(
      () => this.lost(running),
      () => this.lost(running),
    );
  }

  /** End it, until the next `open`. */
  close() {
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
  }

  async follow(/** @type {AbortController} */ running) {
    let silence = setTimeout(() => running.abort(), SILENCE_MS);
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => running.abort(), SILENCE_MS);
    };
    try {
      const response = await fetch(address("events", this.query), {
        headers: { Accept: "text/event-stream", ...credentials() },
        signal: running.signal,
        cache: "no-store",
      });
      if (response.status === 401) {
        this.close();
        signInNeeded();
        return;
      }
      if (!response.ok || !response.body) return;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        alive();
        const events = (rest + value).split("\n\n");
        rest = events.pop() ?? "";
        for (const text of events) this.take(running, text);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  take(/** @type {AbortController} */ running, /** @type {string} */ text) {
    if (running !== this.running) return;
    let name = "message";
    const data = [];
    for (const line of text.split(/\r?\n/)) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    }
    // A comment says as much as an event: what is shown is what there is now.
    this.failures = 0;
    this.listener.status("live");
    if (data.length) this.listener.event(name, JSON.parse(data.join("\n")));
  }

  lost(/** @type {AbortController} */ running) {
    if (running !== this.running) return;
    this.running = null;
    this.failures += 1;
    this.listener.status(this.failures > 2 ? "offline" : "reconnecting");
    const pauseMs = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (this.failures - 1));
    this.timer = setTimeout(() => this.reopen(), pauseMs * (0.75 + Math.random() / 2));
  }
}
