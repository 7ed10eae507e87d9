/**
 * Talks to the API: the token, conditional writes, and problems as errors. Keeps nothing but the token, and that only
 * for this tab's session.
 */

const BASE = "/api/v1/";
const TOKEN_KEY = "sluice.token";

/** The API's answer to something that it did not do. */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status; 0 if there was no answer.
   * @param {{detail?: string, title?: string, errors?: {field: string, detail: string, edit?: number}[]}} problem
   */
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.errors = problem.errors ?? [];
  }
}

/** @type {Set<() => void>} */
const signInListeners = new Set();

/** Be told when the API wants a token, or another one. */
export function onSignInNeeded(/** @type {() => void} */ listener) {
  signInListeners.add(listener);
}

export function token() {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function setToken(/** @type {string} */ value) {
  if (value) sessionStorage.setItem(TOKEN_KEY, value);
  else sessionStorage.removeItem(TOKEN_KEY);
}

/** @returns {Record<string, string>} */
export function credentials() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

/** Say that the API did not take the token. */
export function signInNeeded() {
  for (const listener of signInListeners) listener();
}

/** @returns {string} the API's path of a limit; a name may hold any characters. */
export function limitPath(/** @type {string} */ kind, /** @type {string} */ name) {
  return `limits/${encodeURIComponent(kind)}/${encodeURIComponent(name)}`;
}

/** @returns {string} the address of something of the API. */
export function address(/** @type {string} */ path, /** @type {Record<string, any>} */ query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return BASE + path + (text ? `?${text}` : "");
}

/**
 * Ask the API for something, or to do something.
 *
 * @param {string} method
 * @param {string} path below /api/v1/
 * @param {{query?: Record<string, any>, body?: any, etag?: string | null, signal?: AbortSignal}} [how]
 * @returns {Promise<{body: any, etag: string | null}>}
 * @throws {ApiError}
 */
export async function call(method, path, how = {}) {
  const headers = { Accept: "application/json", ...credentials() };
  if (how.etag) headers["If-Match"] = how.etag;
  if (how.body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path, how.query), {
      method,
      headers,
      body: how.body === undefined ? undefined : JSON.stringify(how.body),
      signal: how.signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "Sluice did not answer. Nothing is known to have changed." });
  }
  const text = await response.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, { detail: `An answer that is not JSON, status ${response.status}` });
  }
  if (response.status === 401) signInNeeded();
  if (!response.ok) throw new ApiError(response.status, body ?? {});
  return { body, etag: response.headers.get("ETag") };
}

export const get = (/** @type {string} */ path, /** @type {Record<string, any>} */ query = {}, /** @type {AbortSignal | undefined} */ signal = undefined) =>
  call("GET", path, { query, signal });
