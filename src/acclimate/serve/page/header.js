/** The header of a stream: its state, its settings, its counts and its problems. */

import { percent } from "./chart.js";
import { many } from "./sender.js";

const SETUP = {
  method: "Method",
  settings: "Settings of the method",
  templates: "Prompts",
  views: "Views per image",
  views_kind: "Kind of views",
  thumbnails: "Small pictures stored",
  skip_duplicates: "Near-duplicates",
  reject: "None of these",
  expand: "Broad labels",
  unsure: "Unsure below",
  snapshots: "Snapshots",
};
const ON = { skip_duplicates: "answered, not learnt", reject: "recognised", expand: "answered through nouns below them" };
const OFF = { skip_duplicates: "learnt", reject: "not recognised", expand: "taken as they are", unsure: "no threshold" };

/** Show a stream as the service describes it; `counted` is the number of its answers that the page counts itself. */
export function describeStream(find, stream, counted) {
  const { name, labels, method, views, frozen, samples_seen: seen, entries, answered, changed } = stream;
  document.title = `${name} · acclimate`;
  find("title").textContent = name;
  const parts = [frozen ? "Frozen: answers without learning" : "Learning", many(labels.length, "label"), `method ${method}`];
  find("lead").textContent = [...parts, ...(views > 1 ? [`${views} views`] : [])].join(" · ");
  find("lead").classList.toggle("frozen", frozen);
  find("freeze").textContent = frozen ? "Unfreeze" : "Freeze";
  find("freeze").classList.toggle("on", frozen);
  find("seen").textContent = seen.toLocaleString("en");
  find("kept-figure").hidden = !Object.keys(entries).length;
  find("kept").textContent = Object.values(entries).reduce((a, b) => a + b, 0).toLocaleString("en");
  find("since").textContent = answered && answered !== counted
    ? `This stream has answered ${many(answered, "image")} from all clients; adapting changed ${percent(changed, answered)} of the answers.`
    : "";
  const condition = stream.broken ?? stream.degraded;
  find("condition").hidden = !condition;
  find("condition").textContent = condition ?? "";
  find("advice").hidden = !stream.advice;
  find("advice").textContent = stream.advice && `Note: ${stream.advice}`;
  const rows = Object.keys(SETUP).filter((field) => field in stream);
  const cells = rows.flatMap((field) => [cell("dt", SETUP[field]), cell("dd", inWords(field, stream[field]))]);
  if (find("setup-list").textContent !== cells.map((each) => each.textContent).join("")) find("setup-list").replaceChildren(...cells);
}

function cell(kind, text) {
  const element = document.createElement(kind);
  element.textContent = text;
  return element;
}

function inWords(field, value) {
  if (value === true) return ON[field] ?? "yes";
  if (value === false || value === null) return OFF[field] ?? "no";
  if (Array.isArray(value)) return value.join("; ");
  if (typeof value !== "object") return String(value);
  if (field === "templates") return `for each of ${many(Object.keys(value).length, "label")}`;
  return Object.entries(value).map(([name, each]) => `${name.replaceAll("_", " ")}: ${inWords("", each)}`).join(", ") || "none";
}
