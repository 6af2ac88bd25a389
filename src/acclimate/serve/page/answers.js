/** The answers of a stream: which of them are shown, in which order, and statistics over all. */

import { makeCard, showState } from "./card.js";
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
  changed: (record) => isChanged(record),
  corrected: ({ correction }) => correction,
};
const NO_IMAGES = "No images yet. Drop some, and their answers appear here.";
const NO_MORE = "The answers before are counted, but not listed: this token may only classify, or they were too long ago.";
const NO_MATCH = "No answer is like this so far.";

/** Whether adapting changes the answer to an image. */
export const isChanged = ({ answer, result }) => Boolean(answer) && answer.label !== result.zero_shot.label;
const labelOf = ({ correction, answer }) => correction?.label ?? answer?.label;
const imageOf = ({ entropy, zero_shot: alone }) => `${entropy}:${alone.score}`; // the same for the same image

export class Answers {
  /**
   * @param {(id: string) => HTMLElement} find elements of the page by id.
   * @param {Tally} tally counts all answers, also those before a reload.
   * @param {{correct: Function, undo: Function}} actions of a card, called with its record.
   */
  constructor(find, tally, actions) {
    Object.assign(this, { find, tally, actions, records: [], labels: [], correctable: false });
    find("more").addEventListener("click", () => {
      this.limit += MORE;
      this.show();
    });
    for (const id of ["filters", "label-filter", "order"]) {
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
    this.find("label-filter").replaceChildren(this.find("label-filter").firstElementChild);
    this.find("threshold").value = threshold ?? UNSURE;
    this.show();
    this.figures();
  }

  /** Add an answer of the service; `truth` is the label that the image's folder is named after, or null. */
  add(item, result, src) {
    this.tally.add(result, item.truth);
    this.keep(this.recordOf(item, result, src));
  }

  recordOf({ file, path, truth }, result, src) {
    const record = { file, path, truth, result, answer: result.predictions[0], src, id: result.id, correction: null };
    record.key = keyOf(result.id, result.entropy);
    this.byKey.set(record.key, record);
    return record;
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

  /**
   * Add the answers that the service lists and that are not here yet; `truthOf` finds the right label of a path.
   * They are counted, unless more were counted in this tab than the service still has.
   */
  remember(listed, truthOf) {
    const known = new Set(this.byKey.keys());
    const first = !this.records.length;
    const counted = !first || listed.length >= this.tally.count;
    if (first && counted) this.tally.restart();
    for (const { file, thumbnail, now, ...result } of listed) {
      if (known.has(keyOf(result.id, result.entropy))) continue;
      const path = file || (result.id === null ? "an image that was not learnt" : `image ${result.id + 1} of the stream`);
      const record = this.recordOf({ path, truth: truthOf(path) }, result, thumbnail ?? "");
      if (counted) this.tally.add(result, record.truth);
      this.records.push(record);
    }
    this.renew(listed);
  }

  /** The largest id of an image here; -1 for none. */
  get lastId() {
    return this.records.reduce((last, { id }) => Math.max(last, id ?? -1), -1);
  }

  /** Take the new answers of a second pass, `now`, where there are some; returns how many of the labels are others. */
  renew(listed) {
    const found = new Map(listed.filter(({ now }) => now).map((each) => [imageOf(each), each.now]));
    let others = 0;
    for (const record of this.records) {
      const now = record.result && found.get(imageOf(record.result));
      if (!now) continue;
      others += now.label !== record.answer.label;
      record.answer = now;
    }
    this.show();
    this.figures();
    return others;
  }

  /** How many answers are right: {of, now, before}, where folders tell, without those that were corrected. */
  get score() {
    const known = this.records.filter(({ answer, truth, correction }) => answer && truth !== null && !correction);
    const right = (label) => known.filter((record) => label(record) === record.truth).length;
    return { of: known.length, now: right(({ answer }) => answer.label), before: right(({ result }) => result.predictions[0].label) };
  }

  /** The picture and the name of an image that is listed here. */
  picture(key) {
    const record = this.byKey.get(key);
    return record && { src: record.src || undefined, name: record.path };
  }

  /** Release the pictures of old images, except those with these keys. */
  release(needed) {
    for (const record of this.records.slice(0, -KEPT)) {
      if (!record.src || !record.file || needed.has(record.key)) continue;
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
    const label = find("label-filter").querySelector(":checked")?.value ?? "";
    const labelled = label ? records.filter((record) => labelOf(record) === label) : records;
    for (const input of find("filters").querySelectorAll("input")) {
      const count = labelled.filter((record) => FILTERS[input.value](record, threshold)).length;
      input.parentElement.querySelector(".count").textContent = count.toLocaleString("en");
      const useful = { wrong: this.tally.checked, corrected: records.some(({ correction }) => correction) }[input.value] ?? 1;
      input.parentElement.hidden = !useful && chosen !== input.value;
    }
    find("tools").hidden = !records.length;
    find("threshold-row").hidden = chosen !== "unsure";
    find("threshold-value").textContent = threshold.toFixed(2);
    this.countLabels(records.filter((record) => FILTERS[chosen](record, threshold)), label);
    const wanted = labelled.filter((record) => FILTERS[chosen](record, threshold)).reverse();
    if (find("order").value === "unsure") wanted.sort((a, b) => (a.answer?.score ?? 2) - (b.answer?.score ?? 2));
    const shown = wanted.slice(0, this.limit);
    this.place(shown);
    find("more").hidden = shown.length === wanted.length;
    find("answers-empty").hidden = shown.length > 0;
    find("answers-empty").textContent = records.length ? NO_MATCH : this.tally.count ? NO_MORE : NO_IMAGES;
  }

  /** Show how many of these records have each label, in the order of the stream's labels; the chosen one stays. */
  countLabels(records, chosen) {
    const counts = new Map([["", records.length]]);
    for (const record of records) if (record.answer) counts.set(labelOf(record), (counts.get(labelOf(record)) ?? 0) + 1);
    const order = new Set(["", ...this.labels, NONE, ...counts.keys(), chosen]);
    const place = this.find("label-filter");
    const pills = new Map([...place.querySelectorAll("label")].map((each) => [each.querySelector("input").value, each]));
    let last = place.firstElementChild;
    for (const label of order) {
      const count = counts.get(label) ?? 0;
      const pill = pills.get(label) ?? (count || label === chosen || !label ? newPill(label) : null);
      if (!pill) continue;
      pill.hidden = !count && label !== chosen && label !== "";
      pill.querySelector(".count").textContent = count.toLocaleString("en");
      if (last.nextSibling !== pill) last.after(pill);
      last = pill;
    }
    if (!place.querySelector(":checked")) place.querySelector("input").checked = true;
  }

  /** Put the cards of these records into the list; those that are already there stay, so that nothing flickers. */
  place(shown) {
    const { find, actions } = this;
    const wanted = new Set(shown.map((record) => (record.card ??= makeCard(find("card"), record, actions))));
    for (const card of [...find("feed").children]) if (!wanted.has(card)) card.remove();
    let next = find("feed").firstChild;
    for (const record of shown) {
      showState(record, this.correctable);
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
    const { of, now } = this.score;
    find("again-figure").hidden = !of || !this.records.some(({ answer, result }) => answer !== result?.predictions[0]);
    find("right-again").textContent = percent(now, of);
    find("course").hidden = tally.count < 2;
    if (tally.count < 2) return;
    const { changed, right, before } = tally.lines;
    draw(find("changed-chart"), [{ name: "", style: "adapted", points: changed }], true);
    if (!tally.checked) return;
    const alone = { name: "model alone", style: "alone", points: before };
    draw(find("right-chart"), [alone, { name: "adapted", style: "adapted", points: right }]);
  }
}

function newPill(label) {
  const pill = document.createElement("label");
  const input = document.createElement("input");
  const name = document.createElement("span");
  const count = document.createElement("span");
  Object.assign(input, { type: "radio", name: "label", value: label });
  Object.assign(name, { className: "name", textContent: label || "All labels" });
  count.className = "count";
  pill.append(input, name, " ", count);
  return pill;
}
