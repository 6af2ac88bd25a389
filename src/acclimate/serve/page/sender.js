/** Send images to a stream one after the other, so that it learns them in order. */

import { call, ServiceError } from "./api.js";
import { nameOf, smallPicture } from "./files.js";

const UNREADABLE = [400, 413, 415, 422]; // the image cannot be used: show why and continue with the next
const BUSY = 429; // the queue is full: wait as long as the service asks for, and try again
const BEST = 5; // labels per answer

export const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
export const many = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

export class Sender {
  /** @param {{path: () => string, answered: Function, failed: Function, done: Function}} client where to send, and what to do then. */
  constructor(find, client) {
    Object.assign(this, { find, client, queue: [], total: 0, sending: false, paused: false });
  }

  /** Put images, {file, path, truth}, behind those that wait. */
  add(images) {
    if (!this.queue.length) this.total = 0;
    this.queue.push(...images);
    this.total += images.length;
  }

  /** Send what waits; after an error, the next call goes on with the image that has no answer yet. */
  async send() {
    this.paused = false;
    if (this.sending) return;
    this.sending = true;
    try {
      while (this.queue.length && !this.paused) {
        this.show();
        const item = this.queue[0];
        const answer = await this.classify(item);
        const failed = answer instanceof ServiceError;
        const src = failed ? "" : await smallPicture(item.file);
        if (this.queue[0] !== item) continue; // stopped in the meantime
        this.queue.shift();
        if (failed) this.client.failed(item, nameIn(answer.message, item));
        else this.client.answered(item, answer, src);
      }
    } catch (error) {
      this.paused = true;
      throw error;
    } finally {
      this.sending = false;
      this.show();
    }
    if (!this.queue.length) await this.client.done();
  }

  /** The answer of the service, or the error if the image cannot be read. */
  async classify(item) {
    const form = new FormData();
    form.append("image", item.file, item.path);
    for (;;) {
      try {
        return (await call("POST", `${this.client.path()}?top_k=${BEST}`, form)).results[0];
      } catch (error) {
        if (UNREADABLE.includes(error.status)) return error;
        if (error.status !== BUSY) throw error;
        await pause(Math.min(Math.max(error.wait, 1), 30));
        if (this.queue[0] !== item) return error;
      }
    }
  }

  toggle() {
    if (this.paused) return this.send();
    this.paused = true;
    return this.show();
  }

  stop() {
    Object.assign(this, { queue: [], paused: false });
    this.show();
  }

  show() {
    const { find, queue, total, paused } = this;
    find("progress").hidden = !queue.length;
    find("sent").max = Math.max(total, 1);
    find("sent").value = total - queue.length;
    find("sending").textContent = `${(total - queue.length).toLocaleString("en")} of ${many(total, "image")}${paused ? ", paused" : ""}`;
    find("pause").textContent = paused ? "Resume" : "Pause";
  }
}

/** A message of the service names an image by its position and the end of its path; here its name is enough. */
function nameIn(message, { path }) {
  for (let i = 0; i < path.length; i++) {
    const named = `image 0 (${path.slice(i)})`;
    if (message.startsWith(named)) return nameOf(path) + message.slice(named.length);
  }
  return message.replace(/^image 0( \(.*?\))?/, () => nameOf(path));
}
