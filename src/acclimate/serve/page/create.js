/** The dialog that creates a stream. */

import { at, call } from "./api.js";
import { ask } from "./dialogs.js";
import { folderOf, streamName } from "./files.js";

export const RULE = "Use small letters, digits, . _ -";
const SWITCHES = ["skip_duplicates", "reject", "thumbnails"]; // fields of a new stream that are on or off

/**
 * Create a stream; resolves with its name. The folders of images that wait for it suggest its name and its labels.
 * `taken` are the names of the other streams, `defaults` the labels that the service was started with.
 */
export function newStream(find, images, taken, defaults) {
  const folders = new Set(images.map(({ path }) => folderOf(path)).filter(Boolean));
  if (folders.size) find("new-labels").value = [...folders].join("\n");
  if (images.length) find("name").value = streamName(images, taken);
  find("new-labels").required = !defaults.length;
  find("labels-none").hidden = !defaults.length;
  find("labels-default").textContent = summary(defaults);
  const explain = () => find("name").setCustomValidity(find("name").validity.patternMismatch ? `${RULE}, for example pets-2024` : "");
  find("name").oninput = explain;
  explain();
  return ask(find("new-dialog"), async () => {
    const labels = find("new-labels").value.split(/[\n,]/).map((label) => label.trim()).filter(Boolean);
    const name = find("name").value;
    const options = { method: find("method").value, views: Number(find("views").value) };
    if (find("unsure").value) options.unsure = Number(find("unsure").value);
    for (const field of SWITCHES) if (!find(field).disabled) options[field] = find(field).checked;
    if (labels.length) await call("PUT", at(name), { labels, ...options });
    else await createByImage(name);
    find("new-dialog").querySelector("form").reset();
    return name;
  });
}

const summary = (labels) => (labels.length > 6 ? [...labels.slice(0, 5), `and ${labels.length - 5} more`] : labels).join(", ");

/** Offer what the service offers, from its API description: its methods, its switches, and their defaults. */
export async function listOptions(find) {
  const { components } = await call("GET", "openapi.json");
  const fields = components.schemas.StreamRequest.properties;
  const { enum: methods, default: chosen } = fields.method;
  find("method").replaceChildren(...methods.map((method) => new Option(method, method, method === chosen, method === chosen)));
  for (const field of SWITCHES) {
    find(field).disabled = find(field).parentElement.hidden = !(field in fields);
    find(field).checked = find(field).defaultChecked = Boolean(fields[field]?.default);
  }
}

/** A service with default labels creates a stream on its first image; nothing is learnt from this one. */
async function createByImage(name) {
  const [form, empty] = [new FormData(), new OffscreenCanvas(8, 8)];
  empty.getContext("2d");
  form.append("image", await empty.convertToBlob(), "image");
  await call("POST", at(name, "/classify?adapt=false"), form);
}
