/** Edit the labels of a stream, and delete it; both ask before anything is lost. */

import { at, call } from "./api.js";
import { ask } from "./dialogs.js";

const several = (labels) => (labels.length > 12 ? [...labels.slice(0, 10), `${labels.length - 10} more`] : labels).join(", ");

/** Edit the labels as text, one per line; removing some has to be confirmed. Resolves with the stream as it is then. */
export function editLabels(find, { name, labels }) {
  const [field, change, button] = [find("edit-labels"), find("labels-change"), find("labels-dialog").querySelector(".main")];
  let confirmed = false; // what was confirmed is exactly what is shown
  const read = () => {
    const wanted = new Set(field.value.split("\n").map((label) => label.trim()).filter(Boolean));
    return { add: [...wanted].filter((label) => !labels.includes(label)), remove: labels.filter((label) => !wanted.has(label)) };
  };
  const show = () => {
    const { add, remove } = read();
    confirmed = false;
    button.textContent = "Save";
    button.classList.remove("danger");
    change.textContent = [add.length && `Adds ${several(add)}.`, remove.length && `Removes ${several(remove)}.`].filter(Boolean).join(" ");
  };
  field.value = labels.join("\n");
  field.oninput = show;
  show();
  return ask(find("labels-dialog"), async () => {
    const { add, remove } = read();
    if (!add.length && !remove.length) return null;
    if (remove.length && !confirmed) {
      confirmed = true;
      change.textContent += ` What was learnt about ${remove.length === 1 ? "it" : "them"} is lost. Are you sure?`;
      button.textContent = remove.length === 1 ? "Remove the label" : `Remove ${remove.length} labels`;
      button.classList.add("danger");
      return undefined;
    }
    return call("PATCH", at(name, "/labels"), { add, remove });
  });
}

/** Delete a stream after its name was typed. Resolves with true if it is gone. */
export function deleteStream(find, { name }) {
  const [field, button] = [find("delete-name"), find("delete-dialog").querySelector(".main")];
  field.value = "";
  button.disabled = true;
  field.oninput = () => (button.disabled = field.value.trim() !== name);
  find("delete-stream-name").textContent = name;
  return ask(find("delete-dialog"), async () => {
    await call("DELETE", at(name));
    return true;
  });
}
