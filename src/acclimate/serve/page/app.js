/** The page: choose a stream, send images one by one, and watch what it answers and learns. */

import { Answers } from "./answers.js";
import { at, call, forgetToken, hasToken, ServiceError, whenTokenNeeded } from "./api.js";
import { Caches, keyOf } from "./caches.js";
import { askForToken, chooseSnapshot, confirmReset, listMethods, newStream } from "./dialogs.js";
import { folderOf, fromChooser, fromDrop, shuffle, smallPicture } from "./files.js";
import { Learnt } from "./learnt.js";

const WATCH = 3; // seconds between two updates of a stream that other clients may use
const UNREADABLE = [400, 413, 415, 422]; // the image cannot be used: show why and continue with the next
const BUSY = 429; // the queue is full: wait as long as the service asks for, and try again
const CACHES = "The images that the model was most certain about count for their label; some that it was uncertain about count against the labels it considered. The number is the entropy in nats: 0 is certain.";
const STATISTICS = "The table shows running statistics of each label; they hold no images.";
const NOTHING = "This method does not learn: it answers every image independently.";
const $ = (id) => document.getElementById(id);
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const many = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

const pictures = new Map(); // by key of the entry: {src, name} of the images sent from this page
const answers = new Answers($);
const caches = new Caches($("labels"), $("label-card"), $("all-labels"), (key) => pictures.get(key));
const learnt = new Learnt($("columns"), $("all-rows"));
let stream = null; // as the service describes it
let ready = null; // settled when the requested stream is open
let queue = []; // {file, path, truth} that wait to be sent
let total = 0;
let sending = false;
let paused = false;
let retry = null; // what the button of the notice does

// Streams

async function listStreams() {
  const { streams } = await call("GET", "v1/streams");
  const names = streams.map((each) => each.name);
  $("stream").replaceChildren(...names.map((name) => new Option(name)));
  $("stream").disabled = !names.length;
  $("forget").hidden = !hasToken();
  return names;
}

async function start() {
  listMethods($("method")).catch(() => {}); // without the list, streams are created with the default method
  const names = await listStreams();
  const asked = location.hash.slice(1);
  if (names.length) await open(names.includes(asked) ? asked : names[0]);
}

function open(name) {
  return (ready = load(name));
}

async function load(name) {
  stream = null;
  stopSending();
  for (const id of ["actions", "figures", "panels"]) $(id).hidden = true;
  for (const { src } of pictures.values()) URL.revokeObjectURL(src);
  pictures.clear();
  answers.clear();
  caches.clear();
  learnt.clear();
  $("stream").value = name;
  history.replaceState(null, "", `#${name}`);
  describe(await call("GET", at(name)));
  for (const id of ["actions", "figures", "panels", "learnt"]) $(id).hidden = false;
  await showLearnt();
}

async function create(images = []) {
  const name = await newStream($, images);
  if (name === null) return false;
  await listStreams();
  await open(name);
  say(`Created stream ${name}.`);
  return true;
}

function describe(described) {
  stream = described;
  const { name, labels, method, views, frozen, samples_seen: seen, entries } = stream;
  document.title = `${name} · acclimate`;
  $("title").textContent = name;
  const parts = [frozen ? "Frozen: answers without learning" : "Learning", many(labels.length, "label"), method];
  $("lead").textContent = [...parts, ...(views > 1 ? [`${views} views`] : [])].join(" · ");
  $("lead").classList.toggle("frozen", frozen);
  $("freeze").textContent = frozen ? "Unfreeze" : "Freeze";
  $("freeze").classList.toggle("on", frozen);
  $("seen").textContent = seen.toLocaleString("en");
  $("kept-figure").hidden = !Object.keys(entries).length;
  $("kept").textContent = Object.values(entries).reduce((a, b) => a + b, 0).toLocaleString("en");
  const condition = stream.broken ?? stream.degraded;
  $("condition").hidden = !condition;
  $("condition").textContent = condition ?? "";
  $("advice").hidden = !stream.advice;
  $("advice").textContent = stream.advice && `Note: ${stream.advice}`;
}

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
  const { name, capacity } = stream;
  const cached = Object.keys(capacity).length > 0;
  let found;
  let entries = [];
  try {
    found = await call("GET", at(name, "/learnt"));
    if (cached) ({ entries } = await call("GET", at(name, "/caches")));
  } catch (error) {
    if (error.status !== 403) throw error;
    for (const id of ["actions", "learnt"]) $(id).hidden = true; // this token may only classify
    return;
  }
  if (stream?.name !== name) return;
  const columns = Object.entries(found.columns).filter(([column]) => !(column in capacity));
  $("learnt-text").textContent = [cached && CACHES, columns.length && STATISTICS].filter(Boolean).join(" ") || NOTHING;
  $("labels").hidden = !cached;
  $("columns").hidden = !columns.length;
  if (columns.length) learnt.update({ labels: found.labels, columns: Object.fromEntries(columns) });
  showClients(found.clients);
  if (cached) await showCaches(entries);
}

/** Show who has taught the stream, the largest contribution first. */
function showClients(counts) {
  const known = Object.entries(counts).filter(([client]) => client).sort(([, a], [, b]) => b - a);
  const named = known.slice(0, 5).map(([client, count]) => `${client} (${count.toLocaleString("en")})`);
  $("clients").hidden = !known.length;
  $("clients").textContent = `Learnt from ${named.join(", ")}${known.length > 5 ? ` and ${known.length - 5} more` : ""}`;
}

async function showCaches(entries) {
  const { name, labels, capacity, thumbnails } = stream;
  const known = new Set([...pictures.keys(), ...caches.keys]);
  const unknown = entries.some((entry) => !known.has(keyOf(entry.id, entry.entropy)));
  if (thumbnails && unknown) ({ entries } = await call("GET", at(name, "/caches?thumbnails=true")));
  if (stream?.name !== name) return;
  caches.update(labels, entries, capacity);
  $("replaced").textContent = caches.replaced ? `${caches.replaced.toLocaleString("en")} replaced` : "";
  const needed = new Set([...caches.keys, ...answers.keys]);
  for (const [key, { src }] of pictures) {
    if (needed.has(key)) continue;
    URL.revokeObjectURL(src);
    pictures.delete(key);
  }
}

/** Other clients may use the stream, too: update regularly while nothing is sent from this page. */
async function watch() {
  for (;;) {
    await pause(WATCH);
    if (!stream || sending || document.hidden || !$("notice").hidden || document.querySelector("dialog[open]")) continue;
    await attempt(update);
  }
}

// Images

async function take(images) {
  if (!images.length) return say("There are no images among these files.");
  await ready.catch(() => {}); // the error is already shown
  if (!stream && !(await create(images))) return;
  const plain = (text) => text.toLowerCase().replaceAll("_", " ");
  const labels = new Map(stream.labels.map((label) => [plain(label), label]));
  const items = images.map(({ file, path }) => ({ file, path, truth: labels.get(plain(folderOf(path))) ?? null }));
  if ($("shuffle").checked) shuffle(items);
  if (!queue.length) total = 0;
  queue.push(...items);
  total += items.length;
  say(`${many(items.length, "image")} to classify.`);
  await attempt(send);
}

/** Send one image after the other, so that the stream learns them in order. */
async function send() {
  paused = false;
  if (sending) return;
  sending = true;
  try {
    while (queue.length && !paused) {
      progress();
      const item = queue[0];
      const answer = await classify(item);
      const failed = answer instanceof ServiceError;
      const src = failed ? "" : await smallPicture(item.file);
      if (queue[0] !== item) continue; // stopped in the meantime
      queue.shift();
      if (failed) answers.fail(item, answer.message);
      else show(item, answer, src);
    }
  } catch (error) {
    paused = true;
    throw error;
  } finally {
    sending = false;
    progress();
  }
  if (!queue.length && stream) {
    await update();
    say(`Done: ${many(answers.count, "image")} classified, ${many(answers.changed, "answer")} changed.`);
  }
}

/** The answer of the service, or the error if the image cannot be read. */
async function classify(item) {
  const form = new FormData();
  form.append("image", item.file, "image");
  const path = at(stream.name, "/classify?top_k=1");
  for (;;) {
    try {
      return (await call("POST", path, form)).results[0];
    } catch (error) {
      if (UNREADABLE.includes(error.status)) return error;
      if (error.status !== BUSY) throw error;
      await pause(Math.min(Math.max(error.wait, 1), 30));
      if (queue[0] !== item) return error;
    }
  }
}

function show(item, result, src) {
  const key = keyOf(result.id, result.entropy);
  if (src) pictures.set(key, { src, name: item.path });
  answers.add(item, result, src, key);
  const learned = result.admitted.length || (result.id !== null && !Object.keys(stream.capacity).length);
  if (learned) update().catch(() => {}); // if the service is gone, the next image reports it
}

function progress() {
  $("progress").hidden = !queue.length;
  $("sent").max = Math.max(total, 1);
  $("sent").value = total - queue.length;
  $("sending").textContent = `${(total - queue.length).toLocaleString("en")} of ${many(total, "image")}${paused ? ", paused" : ""}`;
  $("pause").textContent = paused ? "Resume" : "Pause";
}

function stopSending() {
  queue = [];
  paused = false;
  progress();
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
  caches.clear(); // a rollback does not count as replacing entries
  await update();
  say("Rolled back.");
});
act("reset", async () => {
  if (!(await confirmReset($, stream.name))) return;
  caches.clear();
  await update();
  say("The stream was reset.");
});
act("forget", () => {
  forgetToken();
  location.reload();
});
act("pause", () => {
  if (paused) return send();
  paused = true;
  return progress();
});
act("stop", stopSending);
$("again").addEventListener("click", () => attempt(retry));
$("stream").addEventListener("change", () => attempt(() => open($("stream").value)));

for (const [button, input] of [["choose-images", "images"], ["choose-folder", "folder"]]) {
  $(button).addEventListener("click", () => $(input).click());
  $(input).addEventListener("change", () => {
    const images = fromChooser($(input).files);
    $(input).value = ""; // allows the same folder to be chosen again
    attempt(() => take(images));
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
  const images = fromDrop(event.dataTransfer);
  attempt(async () => take(await images));
});

whenTokenNeeded((refused) => askForToken($, refused));
ready = attempt(start);
await ready;
watch();
