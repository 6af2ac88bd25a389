/** Choose a label from a list with a search field, by mouse or keyboard: a combobox as ARIA describes it. */

import { ask } from "./dialogs.js";

const MAX_OPTIONS = 100; // options shown; with more labels, typing finds the others

/** Ask for the right label of an image; `submit` is called with it, and the dialog stays open if that fails. */
export function chooseLabel(find, labels, record, submit) {
  const [search, list] = [find("label-search"), find("label-options")];
  const likely = [record.truth, record.answer.label, ...record.result.predictions.map(({ label }) => label)].filter((label) => labels.includes(label));
  const ordered = [...new Set([...likely, ...labels])]; // the likely ones first
  let active = 0;

  const activate = (position) => {
    const options = list.querySelectorAll("[role=option]");
    active = Math.min(Math.max(position, 0), options.length - 1);
    options.forEach((option, i) => option.setAttribute("aria-selected", String(i === active)));
    options[active]?.scrollIntoView({ block: "nearest" });
    if (options[active]) search.setAttribute("aria-activedescendant", options[active].id);
    else search.removeAttribute("aria-activedescendant");
  };
  const narrow = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = ordered.filter((label) => words.every((word) => label.toLowerCase().includes(word)));
    list.replaceChildren(...found.slice(0, MAX_OPTIONS).map((label, i) => option(label, i, noteOn(label, record))));
    find("label-found").textContent = found.length > MAX_OPTIONS ? `The first ${MAX_OPTIONS} of ${found.length}; type to find others.` : "";
    if (!found.length) find("label-found").textContent = "No label is like this. New labels are added with Edit labels.";
    activate(0);
  };
  search.value = "";
  search.oninput = narrow;
  search.onkeydown = (event) => {
    const move = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + 8, PageUp: active - 8 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    activate(move);
  };
  list.onclick = (event) => {
    const chosen = event.target.closest("[role=option]");
    if (!chosen) return;
    activate([...list.children].indexOf(chosen));
    find("correct-dialog").querySelector("form").requestSubmit();
  };
  find("correct-file").textContent = record.path;
  find("correct-picture").hidden = !record.src;
  if (record.src) find("correct-picture").src = record.src;
  const asked = ask(find("correct-dialog"), async () => {
    const label = list.querySelector("[aria-selected=true]")?.dataset.label;
    if (label === undefined) throw new Error("Choose one of the labels.");
    return submit(label);
  });
  narrow(); // after the dialog is shown, so that the first option can be scrolled to
  return asked;
}

function noteOn(label, { answer, truth, correction }) {
  if (label === correction?.label) return "corrected to this";
  return [label === answer.label && "the answer", label === truth && "its folder"].filter(Boolean).join(", ");
}

function option(label, position, note) {
  const element = document.createElement("li");
  const name = document.createElement("span");
  const said = document.createElement("span");
  Object.assign(name, { className: "name", textContent: label });
  Object.assign(said, { className: "hint", textContent: note });
  Object.assign(element, { id: `label-option-${position}`, role: "option" });
  element.dataset.label = label;
  element.append(name, said);
  return element;
}
