/** The dialogs. Each resolves when it is closed: with null or false if it was cancelled. */

import { at, call } from "./api.js";
import { folderOf } from "./files.js";

/** Show a dialog until `submit` succeeds (resolves with its result) or it is cancelled (null). */
function ask(dialog, submit) {
  const form = dialog.querySelector("form");
  const problem = dialog.querySelector(".error");
  return new Promise((resolve) => {
    const settle = (result) => {
      form.onsubmit = dialog.oncancel = dialog.querySelector(".cancel").onclick = null;
      dialog.close();
      resolve(result);
    };
    dialog.oncancel = () => settle(null);
    dialog.querySelector(".cancel").onclick = () => settle(null);
    form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        settle(await submit());
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    };
    if (problem) problem.hidden = true;
    dialog.showModal();
  });
}

export function askForToken(find, refused) {
  find("token").value = "";
  if (refused) find("token-text").textContent = "The service does not know this token. Check that it was copied completely.";
  return ask(find("token-dialog"), async () => find("token").value.trim());
}

/** Create a stream; resolves with its name. The folders of images that wait for it suggest its labels. */
export function newStream(find, images) {
  const folders = new Set(images.map(({ path }) => folderOf(path)).filter(Boolean));
  if (folders.size) find("new-labels").value = [...folders].join("\n");
  find("new-labels").required = !images.length;
  find("labels-none").hidden = !images.length;
  return ask(find("new-dialog"), async () => {
    const labels = find("new-labels").value.split(/[\n,]/).map((label) => label.trim()).filter(Boolean);
    const name = find("name").value;
    const options = { method: find("method").value, views: Number(find("views").value), thumbnails: find("thumbnails").checked };
    if (labels.length) await call("POST", "v1/streams", { name, labels, ...options });
    else await createByImage(name, images[0].file);
    find("new-dialog").querySelector("form").reset();
    return name;
  });
}

/** The methods that the service offers, from its API description. */
export async function listMethods(select) {
  const { components } = await call("GET", "openapi.json");
  const { enum: methods, default: chosen } = components.schemas.StreamRequest.properties.method;
  select.replaceChildren(...methods.map((method) => new Option(method, method, method === chosen, method === chosen)));
}

/** A service with default labels creates a stream on its first image; nothing is learnt from this one yet. */
async function createByImage(name, file) {
  const form = new FormData();
  form.append("image", file, "image");
  try {
    await call("POST", at(name, "/classify?adapt=false"), form);
  } catch (error) {
    if (error.status !== 422) throw error; // the stream exists even if the image cannot be read
  }
}

/** Roll back to a snapshot that the user chooses. */
export async function chooseSnapshot(find, stream) {
  const { snapshots } = await call("GET", at(stream, "/snapshots"));
  const choices = snapshots.map(choice); // newest first
  find("snapshots").replaceChildren(find("snapshots").firstElementChild, ...choices);
  find("rollback-text").textContent = snapshots.length
    ? "What was learnt after the snapshot is discarded."
    : "There is no snapshot yet. The service takes them regularly, and you can take one yourself.";
  find("rollback-dialog").querySelector(".main").hidden = !snapshots.length;
  return ask(find("rollback-dialog"), async () => {
    const snapshot = Number(find("snapshots").querySelector("input:checked").value);
    await call("POST", at(stream, "/rollback"), { snapshot });
    return true;
  });
}

function choice(snapshot, position) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "snapshot", value: snapshot.id, checked: position === 0 });
  const words = document.createElement("span");
  const what = document.createElement("span");
  words.textContent = new Date(1000 * snapshot.time).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
  what.textContent = `after ${snapshot.samples_seen.toLocaleString("en")} images (${snapshot.reason})`;
  what.className = "hint";
  words.append(what);
  label.className = "check";
  label.append(input, words);
  return label;
}

export function confirmReset(find, stream) {
  return ask(find("reset-dialog"), async () => {
    await call("POST", at(stream, "/reset"));
    return true;
  });
}
