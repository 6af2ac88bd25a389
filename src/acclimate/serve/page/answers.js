/** The answers to the images sent from this page: which of them are shown, in which order, and statistics over all. */

import { makeCard, showCorrection } from "./card.js";
import { draw, percent } from "./chart.js";
import { keyOf } from "./caches.js";

export const NONE = "none of these"; // the label of an image that belongs to none
const FEW = 12; // cards shown at first
const MORE = 48; // cards that "Show more" adds
const KEPT = 2000; // pictures of the newest images; older ones are made again when they are shown
const UNSURE = 0.6; // unless the stream has a threshold of its own
const FILTERS = {
  all: () => true,
  wrong: ({ answer, truth }) => answer && truth !== null && answer.label !== truth,
  unsure: ({ answer }, threshold) => answer && (answer.label === NONE || answer.score < threshold),
  changed: ({ result }) => result?.changed,
  corrected: ({ correction }) => correction,
};
const NO_IMAGES = "No images yet. Drop some, and their answers appear here.";
const NO_MORE = "No images since this page was loaded: the answers before are counted, but not listed.";
const NO_MATCH = "No answer is like this so far.";

export class Answers {
  /**
   * @param {(id: string) => HTMLElement} find elements of the page by id.
   * @param {Tally} tally counts all answers, also those before a reload.
   * @param {{correct: Function, undo: Function}} actions of a card, called with its record.
   */
  constructor(find, tally, actions) {
    Object.assign(this, { find, tally, actions, records: [], correctable: false });
    find("more").addEventListener("click", () => {
      this.limit += MORE;
      this.show();
    });
    for (const id of ["filters", "order"]) {
      find(id).addEventListener("change", () => {
        this.limit = FEW;
        this.show();
      });
    }
    find("threshold").addEventListener("input", () => this.show());
    this.clear();
  }

  /** Start with the answers of another stream; `threshold` is the score below which it calls an answer unsure. */
  clear(threshold) {
    for (const { src } of this.records) if (src) URL.revokeObjectURL(src);
    Object.assign(this, { records: [], byKey: new Map(), limit: FEW });
    this.find("filters").querySelector("[value=all]").checked = true;
    this.find("threshold").value = threshold ?? UNSURE;
    this.show();
    this.figures();
  }

  /** Add an answer of the service; `truth` is the label that the image's folder is named after, or null. */
  add({ file, path, truth }, result, src) {
    const record = { file, path, truth, result, answer: result.predictions[0], src, id: result.id, correction: null };
    record.key = keyOf(result.id, result.entropy);
    this.byKey.set(record.key, record);
    this.tally.add(result, truth);
    this.keep(record);
  }

  /** Add an image that could not be classified, and why. */
  fail({ path, truth }, error) {
    this.tally.unread += 1;
    this.keep({ path, truth, error });
  }

  keep(record) {
    this.records.push(record);
    this.show();
    this.figures();
  }

  /** The picture and the name of an image that was sent from this page. */
  picture(key) {
    const record = this.byKey.get(key);
    return record && { src: record.src || undefined, name: record.path };
  }

  /** Release the pictures of old images, except those with these keys. */
  release(needed) {
    for (const record of this.records.slice(0, -KEPT)) {
      if (!record.src || needed.has(record.key)) continue;
      URL.revokeObjectURL(record.src);
      record.src = "";
    }
  }

  /** The stream went back, and may assign the ids of these images again: they do not identify the images any more. */
  forgetIds() {
    for (const record of this.records) record.id = null;
  }

  /** Show which answers are corrected: `corrections` are those that the service holds, null if this token may not correct. */
  mark(corrections) {
    const held = new Map(corrections?.map((each) => [each.id, each]));
    this.correctable = corrections !== null;
    for (const record of this.records) record.correction = held.get(record.correction?.id ?? record.id) ?? null;
    this.show();
  }

  get threshold() {
    return Number(this.find("threshold").value);
  }

  isUnsure(record) {
    return Boolean(FILTERS.unsure(record, this.threshold));
  }

  show() {
    const { find, records, threshold } = this;
    const chosen = find("filters").querySelector(":checked").value;
    for (const input of find("filters").querySelectorAll("input")) {
      const count = records.filter((record) => FILTERS[input.value](record, threshold)).length;
      input.parentElement.querySelector(".count").textContent = count.toLocaleString("en");
      const useful = { wrong: this.tally.checked, corrected: count }[input.value] ?? 1;
      input.parentElement.hidden = !useful && chosen !== input.value;
    }
    find("tools").hidden = !records.length;
    find("threshold-row").hidden = chosen !== "unsure";
    find("threshold-value").textContent = threshold.toFixed(2);
    const wanted = records.filter((record) => FILTERS[chosen](record, threshold)).reverse();
    if (find("order").value === "unsure") wanted.sort((a, b) => (a.answer?.score ?? 2) - (b.answer?.score ?? 2));
    const shown = wanted.slice(0, this.limit);
    this.place(shown);
    find("more").hidden = shown.length === wanted.length;
    find("answers-empty").hidden = shown.length > 0;
    find("answers-empty").textContent = records.length ? NO_MATCH : this.tally.count ? NO_MORE : NO_IMAGES;
  }

  /** Put the cards of these records into the list; those that are already there stay, so that nothing flickers. */
  place(shown) {
    const { find, actions } = this;
    const wanted = new Set(shown.map((record) => (record.card ??= makeCard(find("card"), record, actions))));
    for (const card of [...find("feed").children]) if (!wanted.has(card)) card.remove();
    let next = find("feed").firstChild;
    for (const record of shown) {
      showCorrection(record, this.correctable);
      if (record.card === next) next = next.nextSibling;
      else find("feed").insertBefore(record.card, next);
    }
  }

  figures() {
    const { find, tally } = this;
    find("share").textContent = percent(tally.changed, tally.count);
    find("counted").textContent = tally.count.toLocaleString("en");
    find("counted-word").textContent = tally.unread ? `images classified, ${tally.unread} unreadable` : "images classified";
    find("right").textContent = percent(tally.right, tally.checked);
    find("right-before").textContent = percent(tally.before, tally.checked);
    for (const id of ["right-figure", "right-before-figure", "right-chart"]) find(id).hidden = !tally.checked;
    find("course").hidden = tally.count < 2;
    if (tally.count < 2) return;
    const { changed, right, before } = tally.lines;
    draw(find("changed-chart"), [{ name: "", style: "adapted", points: changed }], true);
    if (!tally.checked) return;
    const alone = { name: "model alone", style: "alone", points: before };
    draw(find("right-chart"), [alone, { name: "adapted", style: "adapted", points: right }]);
  }
}
