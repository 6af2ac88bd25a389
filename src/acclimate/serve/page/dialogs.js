/** The dialogs. Each resolves when it is closed, with null if it was cancelled. The focus returns to where it was. */

import { at, call } from "./api.js";

/** Show a dialog until `submit` succeeds (resolves with its result) or it is cancelled (null). */
export function ask(dialog, submit) {
  const form = dialog.querySelector("form");
  const problem = dialog.querySelector(".error");
  let busy = false; // a second click does not submit twice
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
      if (busy) return;
      busy = true;
      try {
        const result = await submit();
        if (result !== undefined) settle(result); // otherwise it asks for more
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      } finally {
        busy = false;
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
