/** The page's questions. Each resolves when it is answered: with null or false if it was cancelled. */

import { at, call } from "./api.js";
import { folderOf } from "./files.js";

/** Show a dialog until `submit` succeeds (its result is given) or it is cancelled (null). */
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
  if (refused) find("token-text").textContent = "The service does not know this token. Was all of it copied?";
  return ask(find("token-dialog"), async () => find("token").value.trim());
}

/** Create a stream; gives its name. The folders of images that wait for it suggest the labels. */
export function newStream(find, images) {
  const folders = new Set(images.map(({ path }) => folderOf(path)).filter(Boolean));
  if (folders.size) find("new-labels").value = [...folders].join("\n");
  find("new-labels").required = !images.length;
  find("labels-none").hidden = !images.length;
  return ask(find("new-dialog"), async () => {
    const labels = find("new-labels").value.split(/[\n,]/).map((label) => label.trim()).filter(Boolean);
    const name = find("name").value;
    if (labels.length) await call("POST", "v1/streams", { name, labels, thumbnails: find("thumbnails").checked });
    else await createByImage(name, images[0].file);
    find("new-dialog").querySelector("form").reset();
    return name;
  });
}

/** A service with labels of its own creates a stream when its first image comes; nothing is learnt from this one yet. */
async function createByImage(name, file) {
  const form = new FormData();
  form.append("image", file, "image");
  try {
    await call("POST", at(name, "/classify?adapt=false"), form);
  } catch (error) {
    if (error.status !== 422) throw error; // if the image cannot be read, the stream is there all the same
  }
}

/** Roll back to a snapshot of the user's choice. */
export async function chooseSnapshot(find, stream) {
  const { snapshots } = await call("GET", at(stream, "/snapshots"));
  const choices = snapshots.map(choice); // the newest first
  find("snapshots").replaceChildren(find("snapshots").firstElementChild, ...choices);
  find("rollback-text").textContent = snapshots.length
    ? "What was learnt after the snapshot is forgotten."
    : "There is no snapshot yet. The service takes one now and then, and you can take one yourself.";
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
