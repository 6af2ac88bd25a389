/** The statistics of a method without caches: a table with a row per label and a bar in every cell. */

import { percent } from "./chart.js";

const FEW = 48; // rows shown until all are asked for

export class Learnt {
  constructor(table, allButton) {
    Object.assign(this, { table, allButton, all: false, found: null });
    allButton.addEventListener("click", () => {
      this.all = true;
      if (this.found) this.update(this.found);
    });
  }

  clear() {
    Object.assign(this, { all: false, found: null });
    this.table.tHead.replaceChildren();
    this.table.tBodies[0].replaceChildren();
  }

  /** Show `columns`, {name: [value per label]}; of many labels those with the largest values in the first column. */
  update(found) {
    this.found = found;
    const { labels, columns } = found;
    const names = Object.keys(columns);
    const order = labels.map((_, i) => i);
    if (labels.length > FEW) order.sort((a, b) => columns[names[0]][b] - columns[names[0]][a] || a - b);
    const shown = this.all ? order : order.slice(0, FEW);
    this.allButton.hidden = shown.length === labels.length;
    this.allButton.textContent = `Show all ${labels.length.toLocaleString("en")} labels`;
    this.table.tHead.replaceChildren(row("th", ["label", ...names]));
    const body = this.table.tBodies[0];
    const top = Object.fromEntries(names.map((name) => [name, Math.max(...columns[name].map(Math.abs)) || 1]));
    while (body.rows.length > shown.length) body.rows[body.rows.length - 1].remove();
    shown.forEach((label, i) => {
      const cells = body.rows[i] ?? body.appendChild(emptyRow(names.length));
      cells.cells[0].textContent = labels[label];
      names.forEach((name, j) => fill(cells.cells[j + 1], name, columns[name][label], top[name]));
    });
  }
}

function row(kind, texts) {
  const element = document.createElement("tr");
  for (const text of texts) {
    const cell = element.appendChild(document.createElement(kind));
    cell.scope = "col";
    cell.textContent = text;
  }
  return element;
}

function emptyRow(columns) {
  const element = document.createElement("tr");
  const label = element.appendChild(document.createElement("th"));
  Object.assign(label, { scope: "row", className: "name" });
  for (let i = 0; i < columns; i++) {
    const cell = element.appendChild(document.createElement("td"));
    cell.append(document.createElement("span"), document.createElement("div"));
  }
  return element;
}

/** A number, and a bar as long as its share of the column's largest value; the bar grows where motion is wanted. */
function fill(cell, name, value, top) {
  cell.firstChild.textContent = name === "share" ? percent(value, 1) : number(value);
  cell.lastChild.style.width = `${(100 * Math.abs(value)) / top}%`;
}

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0 });
