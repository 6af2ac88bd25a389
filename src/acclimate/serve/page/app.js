/** The page: choose a stream, send images one by one, watch what it answers and learns, and correct it. */

import { Answers } from "./answers.js";
import { at, call, forgetToken, hasToken, whenTokenNeeded } from "./api.js";
import { chooseLabel } from "./choose.js";
import { correctImage, undoCorrection } from "./corrections.js";
import { listOptions, newStream } from "./create.js";
import { askForToken, chooseSnapshot, confirmReset } from "./dialogs.js";
import { folderOf, fromChooser, fromDrop, nameOf, shuffle } from "./files.js";
import { describeStream } from "./header.js";
import { deleteStream, editLabels } from "./manage.js";
import { Panel } from "./panel.js";
import { download, toCsv, toLines } from "./results.js";
import { many, pause, Sender } from "./sender.js";
import { Tally } from "./tally.js";

const NAMED = 8; // left out files that are named
const WATCH_S = 3; // interval between updates of a stream that other clients may use
const TITLE = document.title;
const $ = (id) => document.getElementById(id);

const tally = new Tally();
const answers = new Answers($, tally, {
  correct: (record) => attempt(() => correct(record)),
  undo: (record) => attempt(() => undo(record.correction.id)),
});
const panel = new Panel($, answers, (id) => attempt(() => undo(id)));
const sender = new Sender($, { path: () => at(stream.name, "/classify"), answered: show, failed: (item, why) => answers.fail(item, why), done });
let stream = null; // as the service describes it
let folders = new Map(); // its labels, by the names of folders that mean them
let ready = null; // settled when the requested stream is open
let names = []; // names of all streams
let defaults = []; // labels that the service was started with
let setup = {}; // settings of streams with these labels
let remembered = 0; // images that the stream had answered when its answers were read
let options = null; // settled when the form of new streams offers what the service does
let retry = null; // what the button of the notice does

// Streams

async function listStreams() {
  const listed = await call("GET", "v1/streams");
  names = listed.streams.map((each) => each.name);
  defaults = listed.labels;
  setup = listed.setup;
  $("stream").replaceChildren(...names.map((name) => new Option(name)));
  $("stream").disabled = !names.length;
  $("forget").hidden = !hasToken();
}

async function start() {
  await listStreams();
  options = listOptions($, setup).catch(() => {}); // without the list, streams are created as the form stands
  const asked = location.hash.slice(1);
  if (names.length) await open(names.includes(asked) ? asked : names[0]);
}

function open(name) {
  return (ready = load(name));
}

function close() {
  stream = null;
  sender.stop();
  for (const id of ["actions", "setup", "figures", "notes", "panels"]) $(id).hidden = true;
  panel.clear();
}

async function load(name) {
  close();
  tally.open(name);
  answers.clear();
  $("stream").value = name;
  history.replaceState(null, "", `#${name}`);
  describe(await call("GET", at(name)));
  answers.clear(stream.unsure);
  await remember();
  for (const id of ["actions", "setup", "figures", "notes", "panels", "learnt"]) $(id).hidden = false;
  await showLearnt();
}

async function create(images = []) {
  await options;
  const name = await newStream($, images, names, defaults);
  if (name === null) return false;
  await listStreams();
  say(`Created stream ${name}.`); // shown before its buttons can be clicked, which show messages of their own
  await open(name);
  return true;
}

function describe(described) {
  if (stream?.name === described.name && described.samples_seen < stream.samples_seen) answers.forgetIds();
  stream = described;
  answers.labels = stream.labels;
  folders = new Map(stream.labels.map((label) => [plain(label), label]));
  describeStream($, stream, tally.count);
}

// The answers that the service keeps

const MOST = 10_000; // answers that are listed
const FEW_ANSWERS = 2000; // with small pictures, and answered again after each correction

/** Read the answers that are not here yet. */
async function remember() {
  const { name, thumbnails, answered } = stream;
  const query = { after: answers.lastId, newest: true, thumbnails };
  const again = answers.lastId < 0 && (tally.again || stream.corrections > 0);
  const listed = await readAnswers({ ...query, again, limit: thumbnails || again ? FEW_ANSWERS : MOST });
  if (stream?.name !== name) return;
  remembered = answered;
  answers.remember(listed, truthOf);
  describe(stream); // its text depends on the counts
}

async function readAnswers(query) {
  try {
    return (await call("GET", at(stream.name, `/answers?${new URLSearchParams(query)}`))).answers;
  } catch (error) {
    if (error.status !== 403) throw error;
    return []; // this token may only classify
  }
}

/** Answer the newest images again from everything learnt, a second pass; returns a sentence about it. */
async function answerAgain() {
  const { name } = stream;
  const listed = await readAnswers({ newest: true, limit: FEW_ANSWERS, again: true });
  if (stream?.name !== name) return "";
  tally.again = true;
  const others = answers.renew(listed);
  await showLearnt();
  const { of, now, before } = answers.score;
  const right = of ? ` By their folders, ${now} of ${of.toLocaleString("en")} are right now; ${before} were when they came.` : "";
  return `${many(listed.length, "image")} answered again from everything learnt: ${many(others, "answer")} changed.${right}`;
}

const plain = (text) => text.toLowerCase().replaceAll("_", " ");

/** The label that the folder of an image is named after, or null. */
const truthOf = (path) => folders.get(plain(folderOf(path))) ?? null;

// What it has learnt

let updating = null;
let updateAgain = false;

/** Show the current state of the stream; calls during an update lead to one more update. */
async function update() {
  if (updating) {
    updateAgain = true;
    return updating;
  }
  updating = (async () => {
    do {
      updateAgain = false;
      const began = performance.now();
      const described = await call("GET", at(stream.name));
      if (described.name !== stream?.name) return; // another stream was chosen in the meantime
      describe(described);
      await showLearnt();
      if (updateAgain) await pause((4 * (performance.now() - began)) / 1000); // images first, large caches less often
    } while (updateAgain && stream);
  })().finally(() => (updating = null));
  return updating;
}

async function showLearnt() {
  const allowed = await panel.show(stream, (name) => stream?.name === name);
  if (!allowed) for (const id of ["actions", "learnt"]) $(id).hidden = true;
  const earlier = tally.count + tally.unread - answers.records.length;
  const corrected = answers.records.some(({ correction, truth, answer, result }) => truth !== null && (correction || answer !== result?.predictions[0]));
  $("earlier").textContent = earlier > 0 ? `${earlier.toLocaleString("en")} of these images are counted, but not listed any more.` : "";
  $("uncorrected").textContent = corrected ? "The first two shares of correct answers count the answers when the images came, not the corrections; the third leaves out the corrected images." : "";
}

/** Other clients may use the stream, too: update regularly while nothing is sent from this page. */
async function watch() {
  for (;;) {
    await pause(WATCH_S);
    if (!stream || sender.sending || document.hidden || !$("notice").hidden || document.querySelector("dialog[open]")) continue;
    await attempt(update);
    if (stream && stream.answered !== remembered && !sender.queue.length) await attempt(remember);
  }
}

// Images

async function take({ images, others }) {
  $("left-out").hidden = !others.length;
  $("left-out").textContent = `Left out, as not an image: ${[...others.slice(0, NAMED), ...(others.length > NAMED ? [`and ${others.length - NAMED} more`] : [])].join(", ")}`;
  if (!images.length) return say("There are no images among these files.");
  await ready.catch(() => {}); // the error is already shown
  if (!stream && !(await create(images))) return;
  const items = images.map(({ file, path }) => ({ file, path, truth: truthOf(path) }));
  if ($("shuffle").checked) shuffle(items);
  say(`${many(items.length, "image")} to classify.`);
  sender.add(items);
  await attempt(() => sender.send());
}

function show(item, result, src) {
  answers.add(item, result, src);
  const learned = result.admitted.length || (result.id !== null && !Object.keys(stream.capacity).length);
  if (learned) update().catch(() => {}); // if the service is gone, the next image reports it
}

async function done() {
  if (!stream) return;
  await update();
  remembered = stream.answered;
  say(`Done: ${many(tally.count, "image")} classified, ${many(tally.changed, "answer")} changed.`);
}

// Corrections

async function correct(record) {
  const label = await chooseLabel($, stream.labels, record, async (chosen) => {
    record.correction = await correctImage(stream.name, record, chosen);
    return chosen;
  });
  if (label === null) return;
  await update();
  say(`Corrected: ${nameOf(record.path)} is ${label}. ${await answerFewAgain()}`);
}

async function undo(id) {
  await undoCorrection(stream.name, id);
  await update();
  say(`The correction was undone. ${await answerFewAgain()}`);
}

/** Answer all images again, unless these are so many that it takes long. */
function answerFewAgain() {
  return answers.records.length > FEW_ANSWERS ? "Answer again, to let it count for the others." : answerAgain();
}

// Messages

function say(text) {
  $("status").textContent = text;
}

/** Run an action; if it fails, show why and offer to try again. */
async function attempt(action) {
  $("notice").hidden = true;
  try {
    await action();
  } catch (error) {
    retry = action;
    $("notice-text").textContent = error.message;
    $("notice").hidden = false;
  }
}

// Buttons

const act = (id, action) => $(id).addEventListener("click", () => attempt(action));

act("new", () => create());
act("freeze", async () => {
  describe(await call("POST", at(stream.name, stream.frozen ? "/unfreeze" : "/freeze")));
  say(stream.frozen ? "Frozen: the stream answers without learning." : "Learning again.");
});
act("snapshot", async () => {
  await call("POST", at(stream.name, "/snapshot"));
  await update();
  say("Snapshot taken.");
});
act("rollback", async () => {
  if (!(await chooseSnapshot($, stream.name))) return;
  await restart("Rolled back.");
});
act("reset", async () => {
  if (!(await confirmReset($, stream.name))) return;
  await restart("The stream was reset.");
});
act("edit", async () => {
  const described = await editLabels($, stream);
  if (described === null) return;
  describe(described);
  await update();
  say(`The stream has ${many(stream.labels.length, "label")} now.`);
});
act("delete", async () => {
  const { name } = stream;
  if (!(await deleteStream($, stream))) return;
  close();
  tally.forget(name);
  tally.open(null);
  answers.clear();
  Object.assign(document, { title: TITLE });
  $("title").textContent = TITLE;
  $("lead").textContent = "Choose a stream, or create one.";
  await listStreams();
  if (names.length) await open(names[0]);
  else history.replaceState(null, "", location.pathname);
  $("new").focus(); // the button that was clicked may be gone
  say(`Deleted stream ${name}.`);
});
act("forget", () => {
  forgetToken();
  location.reload();
});
act("again-all", async () => say(await answerAgain()));
act("pause", () => sender.toggle());
act("stop", () => sender.stop());
act("save-csv", () => download(`${stream.name}.csv`, toCsv(answers), "text/csv"));
act("save-jsonl", () => download(`${stream.name}.jsonl`, toLines(answers), "application/jsonl"));
$("again").addEventListener("click", () => attempt(retry));
$("stream").addEventListener("change", () => attempt(() => open($("stream").value)));

/** The stream has gone back: ids may be assigned again, and what left the caches was not replaced. */
async function restart(message) {
  answers.forgetIds();
  panel.caches.clear();
  await update();
  say(message);
}

for (const [button, input] of [["choose-images", "images"], ["choose-folder", "folder"]]) {
  $(button).addEventListener("click", () => $(input).click());
  $(input).addEventListener("change", () => {
    const chosen = fromChooser($(input).files);
    $(input).value = ""; // allows the same folder to be chosen again
    attempt(() => take(chosen));
  });
}

// The whole page accepts a drop: otherwise the browser would open a file that misses the drop area.
let inside = 0;
const over = (change) => {
  inside = Math.max(0, inside + change);
  $("drop").classList.toggle("over", inside > 0);
};
addEventListener("dragenter", () => over(1));
addEventListener("dragleave", () => over(-1));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  over(-inside);
  const dropped = fromDrop(event.dataTransfer);
  attempt(async () => take(await dropped));
});

whenTokenNeeded((refused) => askForToken($, refused));
ready = attempt(start);
await ready;
watch();
