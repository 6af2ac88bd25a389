/** The answers as a file, with the columns of `acclimate classify`; `acclimate correct` reads `correct_label`. */

import { isChanged } from "./answers.js";

const COLUMNS = ["taken", "folder", "group", "group_score", "unsure", "true_label", "correct_label", "none_score", "online_label", "online_score"];
const LAST = ["zero_shot_label", "zero_shot_score", "changed", "entropy", "index", "error", "sorted_to"];
const rounded = (number) => Number(number.toFixed(6));

/** The result of one image by column; null where there is no value. */
function toRecord(record, index, unsure) {
  const { path: file, truth, result, answer, correction, error = null } = record;
  const [online] = result?.predictions ?? [];
  const fields = Object.fromEntries(["file", "label", "score", ...COLUMNS, ...LAST].map((name) => [name, null]));
  Object.assign(fields, { file, folder: file.split("/").slice(0, -1).join("/") || ".", true_label: truth, index, error });
  if (!result) return { ...fields, predictions: [] };
  const found = answer === online ? result.predictions : [answer]; // a second pass gives the best label alone
  const predictions = found.map(({ label, score }) => ({ label, score: rounded(score) }));
  const [score, alone] = [rounded(answer.score), rounded(result.zero_shot.score)];
  Object.assign(fields, { label: answer.label, score, unsure, online_label: online.label, online_score: rounded(online.score) });
  Object.assign(fields, { none_score: result.none ?? null, zero_shot_label: result.zero_shot.label, zero_shot_score: alone });
  Object.assign(fields, { changed: isChanged(record), entropy: rounded(result.entropy), correct_label: correction?.label ?? null });
  return { ...fields, predictions };
}

/** One line of JSON per image. */
export function toLines(answers) {
  return rows(answers).map((row) => `${JSON.stringify(row)}\n`).join("");
}

/** A table with a row per image; label_2, score_2 and so on are the next best labels. */
export function toCsv(answers) {
  const found = rows(answers);
  const most = Math.max(1, ...found.map(({ predictions }) => predictions.length));
  const ranks = Array.from({ length: most - 1 }, (_, i) => [`label_${i + 2}`, `score_${i + 2}`]).flat();
  const columns = ["file", "label", "score", ...ranks, ...COLUMNS, ...LAST];
  const lines = found.map(({ predictions, ...row }) => {
    predictions.forEach(({ label, score }, i) => Object.assign(row, i && { [`label_${i + 1}`]: label, [`score_${i + 1}`]: score }));
    return columns.map((column) => cell(row[column] ?? null, column)).join(",");
  });
  return [columns.join(","), ...lines, ""].join("\n");
}

const rows = (answers) => answers.records.map((record, i) => toRecord(record, i, answers.isUnsure(record)));

function cell(value, column) {
  if (value === null) return "";
  const text = typeof value === "number" && column !== "index" ? value.toFixed(6) : safe(String(value), column);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const FORMULA = /^(?:'|\.\/)*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])/;
const NUMBER = /^(?:'|\.\/)*\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*$/;

/** Text that no spreadsheet takes for a formula, as in csv of the command line. */
const safe = (text, column) => (FORMULA.test(text) && !NUMBER.test(text) ? (["file", "folder"].includes(column) ? "./" : "'") + text : text);

/** Save a text under a name, as the browser saves files. */
export function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser reads it after the click
}
