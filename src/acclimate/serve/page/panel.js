/** The learnt state of a stream: its caches, its statistics, and its corrections. */

import { at, call } from "./api.js";
import { Caches, keyOf } from "./caches.js";
import { CorrectionList, readCorrections } from "./corrections.js";
import { Learnt } from "./learnt.js";
import { many } from "./sender.js";

const CACHES = "The images that the model was most certain about count for their label; some that it was uncertain about count against the labels it considered. The number says how unsure the model was: 0 is certain.";
const STATISTICS = "The table shows running statistics of each label; they hold no images.";
const NOTHING = "This method does not learn: it answers every image independently.";
const BARE = "without a picture: not sent from this page since it was loaded, and";
const NOT_KEPT = "this stream stores no small pictures. To see pictures after a reload, create a stream that does.";
const LOST = "the service has no small picture of it. Uploaded states have none.";

export class Panel {
  /** @param {Answers} answers know the pictures of the images sent from this page; @param {Function} undo a correction by id. */
  constructor(find, answers, undo) {
    Object.assign(this, { find, answers });
    this.caches = new Caches(find("labels"), find("label-card"), find("all-labels"), (key) => answers.picture(key));
    this.statistics = new Learnt(find("columns"), find("all-rows"));
    this.corrections = new CorrectionList(find, (id) => answers.records.find((each) => each.correction?.id === id), undo);
  }

  clear() {
    for (const each of [this.caches, this.statistics, this.corrections]) each.clear();
  }

  /** Show what a stream holds now; `isOpen` tells whether it is still the one to show. False if the token may not look. */
  async show(stream, isOpen) {
    const { find, caches } = this;
    const { name, capacity } = stream;
    const cached = Object.keys(capacity).length > 0;
    let found, corrections;
    let entries = [];
    try {
      [found, corrections] = await Promise.all([call("GET", at(name, "/learnt")), readCorrections(name)]);
      if (cached) ({ entries } = await call("GET", at(name, "/caches")));
      const known = new Set([...this.answers.byKey.keys(), ...caches.keys]);
      const unknown = entries.some((entry) => !known.has(keyOf(entry.id, entry.entropy)));
      if (stream.thumbnails && unknown) ({ entries } = await call("GET", at(name, "/caches?thumbnails=true")));
    } catch (error) {
      if (error.status !== 403) throw error;
      this.answers.mark(null);
      return false; // this token may only classify
    }
    if (!isOpen(name)) return true;
    const columns = Object.entries(found.columns).filter(([column]) => !(column in capacity));
    find("learnt-text").textContent = [cached && CACHES, columns.length && STATISTICS].filter(Boolean).join(" ") || NOTHING;
    find("labels").hidden = !cached;
    find("columns").hidden = !columns.length;
    if (columns.length) this.statistics.update({ labels: found.labels, columns: Object.fromEntries(columns) });
    this.showClients(found.clients);
    this.answers.mark(corrections);
    this.corrections.update(corrections ?? []);
    if (cached) caches.update(stream.labels, entries, capacity);
    find("replaced").textContent = caches.replaced ? `${caches.replaced.toLocaleString("en")} replaced by better ones` : "";
    find("bare").hidden = !caches.bare;
    find("bare").textContent = `${many(caches.bare, "tile")} ${BARE} ${stream.thumbnails ? LOST : NOT_KEPT}`;
    this.answers.release(caches.keys);
    return true;
  }

  /** Show who has taught the stream, the largest contribution first. */
  showClients(counts) {
    const known = Object.entries(counts).filter(([client]) => client).sort(([, a], [, b]) => b - a);
    const named = known.slice(0, 5).map(([client, count]) => `${client} (${count.toLocaleString("en")})`);
    this.find("clients").hidden = !known.length;
    this.find("clients").textContent = `Learnt from ${named.join(", ")}${known.length > 5 ? ` and ${known.length - 5} more` : ""}`;
  }
}
