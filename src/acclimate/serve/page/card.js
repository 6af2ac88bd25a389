/** The card of one image: its picture, both answers, and the correction if there is one. */

import { isChanged } from "./answers.js";
import { smallPicture } from "./files.js";

/** Make a card; `correct` and `undo` are called with the record of the image. */
export function makeCard(template, record, { correct, undo }) {
  const { path, truth, result } = record;
  const card = template.content.cloneNode(true).firstElementChild;
  const part = (name) => card.querySelector(name);
  part(".file bdi").textContent = path;
  part(".file").title = path;
  if (record.error) {
    card.classList.add("failed");
    for (const name of [".two", ".undo", ".fix"]) part(name).remove();
    part(".why").textContent = record.error;
    return card;
  }
  showPicture(part(".thumb"), record);
  fill(part(".old"), result.zero_shot, truth);
  part(".fix").setAttribute("aria-label", `Change the label of ${path}`);
  part(".undo").setAttribute("aria-label", `Undo the correction of ${path}`);
  part(".undo").addEventListener("click", (event) => {
    event.stopPropagation();
    part(".fix").focus(); // this button goes away
    undo(record);
  });
  card.addEventListener("click", () => {
    if (part(".fix").hidden || String(getSelection())) return; // words are being copied
    part(".fix").focus(); // where the focus returns to
    correct(record);
  });
  return card;
}

/** Show the answer as it is now, whether it was corrected, and the buttons if this token may correct it. */
export function showState(record, allowed) {
  const { card, correction, error, answer, result, truth } = record;
  if (error) return;
  if (record.shown !== answer) fill(card.querySelector(".new"), answer, truth);
  record.shown = answer;
  const [first] = result.predictions;
  const was = answer.label === first.label ? "" : `when the image came: ${first.label}`;
  card.querySelector(".why").textContent = [whyOf(result), was].filter(Boolean).join("; ");
  card.classList.toggle("changed", isChanged(record));
  const mark = card.querySelector(".corrected");
  card.classList.toggle("correctable", allowed);
  card.querySelector(".fix").hidden = !allowed;
  card.classList.toggle("fixed", Boolean(correction));
  mark.textContent = correction ? `corrected: ${correction.label}` : "";
  card.querySelector(".undo").hidden = !correction || !allowed;
}

const KEPT = { positive: "kept as an example of its label", negative: "kept as an example of what the model is unsure about" };

function whyOf({ admitted, refused }) {
  if (refused) return `not learnt: ${refused}`;
  return admitted.map((cache) => KEPT[cache] ?? "kept as an example").join(", ");
}

async function showPicture(place, record) {
  if (!record.src && record.file) record.src = await smallPicture(record.file); // those of the oldest are made again
  if (!record.src) return;
  const picture = document.createElement("img");
  Object.assign(picture, { className: "thumb", src: record.src, alt: "" }); // the file name is next to it
  place.replaceWith(picture);
}

function fill(cell, answer, truth) {
  cell.querySelector(".label").textContent = answer.label; // removes the mark of the answer before
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
