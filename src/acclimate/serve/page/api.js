/** Requests to the service: the token, and errors with the service's message. */

const KEY = "acclimate-token"; // in the session storage of this tab

export class ServiceError extends Error {
  /** @param {number} status HTTP status, 0 if there was no response; @param {number} wait seconds before the next attempt. */
  constructor(status, message, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

let askForToken; // (whether one was refused) -> Promise of a token, or of null
let asking = null; // simultaneous requests ask only once

export function whenTokenNeeded(ask) {
  askForToken = ask;
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** Send a request; `body` is FormData or sent as JSON. Resolves with the JSON of the response. */
export async function call(method, path, body) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
    const plain = body !== undefined && !(body instanceof FormData);
    if (plain) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method, headers, body: plain ? JSON.stringify(body) : body, cache: "no-store" });
    } catch {
      throw new ServiceError(0, "The service does not respond. Is it still running?");
    }
    if (response.ok) return response.status === 204 ? null : response.json();
    if (response.status !== 401) throw await problem(response);
    if (sessionStorage.getItem(KEY) !== token) continue; // another request has already asked
    asking ??= askForToken(token !== null).finally(() => (asking = null));
    const given = await asking;
    if (given === null) throw new ServiceError(401, "This service needs a token.");
    sessionStorage.setItem(KEY, given);
  }
}

async function problem(response) {
  let message = `The service answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // a proxy may respond with a page of its own
  }
  return new ServiceError(response.status, message, Number(response.headers.get("Retry-After")) || 0);
}

/** Path of a stream, or of a route below it. */
export const at = (stream, below = "") => `v1/streams/${encodeURIComponent(stream)}${below}`;
