/** The answers to the images sent from this page: cards, newest first, and statistics over all of them. */

import { draw, percent } from "./chart.js";

const FIRST = 12; // cards shown until "Show more"
const KEPT = 240; // cards kept; the statistics count every image

export class Answers {
  /** @param {(id: string) => HTMLElement} find elements of the page by id. */
  constructor(find) {
    this.find = find;
    find("more").addEventListener("click", () => {
      this.limit = KEPT;
      this.show();
    });
    find("only-changed").addEventListener("change", () => this.show());
    this.clear();
  }

  clear() {
    Object.assign(this, { records: [], limit: FIRST, count: 0, unread: 0, changed: 0, checked: 0, right: 0, before: 0 });
    Object.assign(this, { changedLine: [], rightLine: [], beforeLine: [] });
    this.find("feed").replaceChildren();
    this.show();
    this.figures();
  }

  /** Add an answer of the service; `truth` is the label that the image's folder is named after, or null. */
  add({ path, truth }, result, src, key) {
    const [adapted] = result.predictions;
    const card = this.card(path, src);
    card.classList.toggle("changed", result.changed);
    fill(card.querySelector(".old"), result.zero_shot, truth);
    fill(card.querySelector(".new"), adapted, truth);
    if (result.admitted.length) card.querySelector(".why").textContent = `entered the ${result.admitted.join(" and the ")} cache`;
    if (result.refused) card.querySelector(".why").textContent = `not learnt: ${result.refused}`;
    this.count += 1;
    this.changed += result.changed;
    this.changedLine.push(this.changed / this.count);
    if (truth !== null) {
      this.checked += 1;
      this.right += adapted.label === truth;
      this.before += result.zero_shot.label === truth;
      this.rightLine.push(this.right / this.checked);
      this.beforeLine.push(this.before / this.checked);
    }
    this.keep({ card, changed: result.changed, key });
  }

  /** Add an image that could not be classified, and why. */
  fail({ path }, message) {
    const card = this.card(path, "");
    card.classList.add("failed");
    card.querySelector(".two").remove();
    card.querySelector(".why").textContent = message;
    this.unread += 1;
    this.keep({ card, changed: false, key: "" });
  }

  card(path, src) {
    const card = this.find("card").content.cloneNode(true).firstElementChild;
    card.querySelector(".file bdi").textContent = path;
    card.querySelector(".file").title = path;
    if (src) {
      const picture = document.createElement("img");
      Object.assign(picture, { className: "thumb", src, alt: "" }); // the file name is next to it
      card.querySelector(".thumb").replaceWith(picture);
    }
    return card;
  }

  keep(record) {
    this.records.unshift(record);
    this.find("feed").prepend(record.card);
    for (const { card } of this.records.splice(KEPT)) card.remove();
    this.show();
    this.figures();
  }

  /** Keys of the entries whose pictures are on cards. */
  get keys() {
    return new Set(this.records.map((record) => record.key));
  }

  show() {
    const only = this.find("only-changed").checked;
    const wanted = this.records.filter((record) => !only || record.changed);
    const shown = new Set(wanted.slice(0, this.limit));
    for (const record of this.records) record.card.hidden = !shown.has(record);
    this.find("more").hidden = shown.size === wanted.length;
    this.find("answers-empty").hidden = shown.size > 0;
    this.find("answers-empty").textContent = this.records.length
      ? "No answer was changed so far."
      : "No images yet. Drop some, and their answers appear here, newest first.";
  }

  figures() {
    const { find } = this;
    find("share").textContent = percent(this.changed, this.count);
    find("counted").textContent = this.count.toLocaleString("en");
    find("counted-word").textContent = this.unread ? `images classified, ${this.unread} unreadable` : "images classified";
    find("right").textContent = percent(this.right, this.checked);
    find("right-before").textContent = percent(this.before, this.checked);
    for (const id of ["right-figure", "right-before-figure", "right-chart"]) find(id).hidden = !this.checked;
    find("course").hidden = this.count < 2;
    if (this.count) draw(find("changed-chart"), { changed: this.changedLine });
    if (this.checked) draw(find("right-chart"), { "model alone": this.beforeLine, adapted: this.rightLine });
  }
}

function fill(cell, answer, truth) {
  cell.querySelector(".label").textContent = answer.label;
  cell.querySelector(".score").textContent = answer.score.toFixed(2);
  if (truth === null) return;
  const right = answer.label === truth;
  const mark = document.createElement("span");
  mark.className = right ? "mark right" : "mark wrong";
  mark.setAttribute("role", "img");
  mark.setAttribute("aria-label", right ? "correct" : "wrong");
  mark.textContent = right ? "\u2713" : "\u2717";
  cell.querySelector(".label").append("\u00a0", mark);
}
