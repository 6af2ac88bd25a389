/** The page: choose a stream, send it images one by one, and watch what it answers and learns. */

import { Answers } from "./answers.js";
import { at, call, forgetToken, hasToken, ServiceError, whenTokenNeeded } from "./api.js";
import { Caches, keyOf } from "./caches.js";
import { askForToken, chooseSnapshot, confirmReset, newStream } from "./dialogs.js";
import { folderOf, fromChooser, fromDrop, shuffle, smallPicture } from "./files.js";

const WATCH = 3; // seconds between two looks at a stream that others may feed
const UNREADABLE = [400, 413, 415, 422]; // the image's fault: say so and go on with the next
const BUSY = 429; // the queue is full: wait as long as the service says, and try again
const $ = (id) => document.getElementById(id);
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const many = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

const pictures = new Map(); // by key of the entry: {src, name} of the images this page has sent
const answers = new Answers($);
const caches = new Caches($("labels"), $("label-card"), $("all-labels"), (key) => pictures.get(key));
let stream = null; // as the service describes it
let ready = null; // settled once the stream that was asked for is open
let queue = []; // {file, path, truth} still to be sent
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
  $("stream").value = name;
  history.replaceState(null, "", `#${name}`);
  describe(await call("GET", at(name)));
  for (const id of ["actions", "figures", "panels", "learnt"]) $(id).hidden = false;
  await showCaches();
}

async function create(images = []) {
  const name = await newStream($, images);
  if (name === null) return false;
  await listStreams();
  await open(name);
  say(`Stream ${name} is ready.`);
  return true;
}

function describe(described) {
  stream = described;
  const { name, labels, method, frozen, samples_seen: seen, entries } = stream;
  document.title = `${name} · acclimate`;
  $("title").textContent = name;
  $("lead").textContent = `${frozen ? "Frozen: it answers but learns nothing" : "Learning"} · ${labels.length} labels · ${method}`;
  $("lead").classList.toggle("frozen", frozen);
  $("freeze").textContent = frozen ? "Unfreeze" : "Freeze";
  $("freeze").classList.toggle("on", frozen);
  $("seen").textContent = seen.toLocaleString("en");
  $("kept").textContent = Object.values(entries).reduce((a, b) => a + b, 0).toLocaleString("en");
  const condition = stream.broken ?? stream.degraded;
  $("condition").hidden = !condition;
  $("condition").textContent = condition ?? "";
}

// What it has learnt

let looking = null;
let lookAgain = false;

/** Look at the stream and its caches; calls while one is under way end in one more. */
async function look() {
  if (looking) {
    lookAgain = true;
    return looking;
  }
  looking = (async () => {
    do {
      lookAgain = false;
      const began = performance.now();
      const described = await call("GET", at(stream.name));
      if (described.name !== stream?.name) return; // another one was chosen meanwhile
      describe(described);
      await showCaches();
      if (lookAgain) await pause((4 * (performance.now() - began)) / 1000); // images first, large caches now and then
    } while (lookAgain && stream);
  })().finally(() => (looking = null));
  return looking;
}

async function showCaches() {
  const { name, labels, settings, thumbnails } = stream;
  let entries;
  try {
    ({ entries } = await call("GET", at(name, "/caches")));
  } catch (error) {
    if (error.status !== 403) throw error;
    for (const id of ["actions", "learnt"]) $(id).hidden = true; // this token is for classifying only
    return;
  }
  const known = new Set([...pictures.keys(), ...caches.keys]);
  const unknown = entries.some((entry) => !known.has(keyOf(entry.id, entry.entropy)));
  if (thumbnails && unknown) ({ entries } = await call("GET", at(name, "/caches?thumbnails=true")));
  if (stream?.name !== name) return;
  const slots = (kind) => (settings[kind] ? settings[`${kind}_capacity`] : 0); // a cache can be switched off
  const capacity = { positive: slots("positive"), negative: slots("negative") };
  $("learnt").hidden = !(capacity.positive || capacity.negative); // and a method may have none
  caches.update(labels, entries, capacity);
  $("replaced").textContent = caches.replaced ? `${caches.replaced.toLocaleString("en")} replaced` : "";
  const needed = new Set([...caches.keys, ...answers.keys]);
  for (const [key, { src }] of pictures) {
    if (needed.has(key)) continue;
    URL.revokeObjectURL(src);
    pictures.delete(key);
  }
}

/** Others may feed the stream, too: look now and then while nothing is sent from here. */
async function watch() {
  for (;;) {
    await pause(WATCH);
    if (!stream || sending || document.hidden || !$("notice").hidden || document.querySelector("dialog[open]")) continue;
    await attempt(look);
  }
}

// Images

async function take(images) {
  if (!images.length) return say("There is no image among these.");
  await ready.catch(() => {}); // what went wrong has been said already
  if (!stream && !(await create(images))) return;
  const spelt = (text) => text.toLowerCase().replaceAll("_", " ");
  const labels = new Map(stream.labels.map((label) => [spelt(label), label]));
  const items = images.map(({ file, path }) => ({ file, path, truth: labels.get(spelt(folderOf(path))) ?? null }));
  if ($("shuffle").checked) shuffle(items);
  if (!queue.length) total = 0;
  queue.push(...items);
  total += items.length;
  say(`${many(items.length, "image")} to classify.`);
  await attempt(send);
}

/** One image after the other, so that the stream learns in their order. */
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
      if (queue[0] !== item) continue; // stopped meanwhile
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
    await look();
    say(`Done: ${many(answers.count, "image")} classified, ${many(answers.changed, "answer")} changed.`);
  }
}

/** What the service says of an image: the answer, or the error if the image cannot be read. */
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
  if (result.admitted.length) look().catch(() => {}); // if the service is gone, the next image says so
}

function progress() {
  $("progress").hidden = !queue.length;
  $("sent").max = Math.max(total, 1);
  $("sent").value = total - queue.length;
  $("sending").textContent = `${(total - queue.length).toLocaleString("en")} of ${many(total, "image")}${paused ? ", paused" : ""}`;
  $("pause").textContent = paused ? "Go on" : "Pause";
}

function stopSending() {
  queue = [];
  paused = false;
  progress();
}

// Words

function say(text) {
  $("status").textContent = text;
}

/** Do something; if it fails, say why and offer to try again. */
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
  say(stream.frozen ? "Frozen: it answers but learns nothing." : "Learning again.");
});
act("snapshot", async () => {
  await call("POST", at(stream.name, "/snapshot"));
  await look();
  say("Snapshot taken.");
});
act("rollback", async () => {
  if (!(await chooseSnapshot($, stream.name))) return;
  caches.clear(); // nothing is replaced by this
  await look();
  say("Rolled back.");
});
act("reset", async () => {
  if (!(await confirmReset($, stream.name))) return;
  caches.clear();
  await look();
  say("Everything learnt is forgotten.");
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
    $(input).value = ""; // so that the same folder can be chosen again
    attempt(() => take(images));
  });
}

// The whole page takes a drop: a near miss would otherwise make the browser leave it.
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
