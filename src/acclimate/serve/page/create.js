/** The dialog that creates a stream. */

import { at, call } from "./api.js";
import { ask } from "./dialogs.js";
import { folderOf, streamName } from "./files.js";

export const RULE = "Use small letters, digits, . _ -";
const SWITCHES = ["skip_duplicates", "reject", "expand", "thumbnails"]; // fields of a new stream that are on or off

/**
 * Create a stream; resolves with its name. The folders of images that wait for it suggest its name and its labels.
 * `taken` are the names of the other streams, `defaults` the labels that the service was started with.
 * Without labels, the stream gets those, and what the form does not offer as the service was started with it.
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
    options.unsure = find("unsure").value ? Number(find("unsure").value) : null;
    for (const field of SWITCHES) if (!find(field).disabled) options[field] = find(field).checked;
    await call("PUT", at(name), labels.length ? { labels, ...options } : options);
    find("new-dialog").querySelector("form").reset();
    return name;
  });
}

const summary = (labels) => (labels.length > 6 ? [...labels.slice(0, 5), `and ${labels.length - 5} more`] : labels).join(", ");

/**
 * Offer what the service offers, from its API description: its methods, its switches, and their defaults.
 * `setup` are the settings that the service was started with; they are chosen at first.
 */
export async function listOptions(find, setup) {
  const { components } = await call("GET", "openapi.json");
  const fields = components.schemas.StreamRequest.properties;
  const { enum: methods } = fields.method;
  const chosen = setup.method ?? fields.method.default;
  find("method").replaceChildren(...methods.map((method) => new Option(method, method, method === chosen, method === chosen)));
  for (const field of SWITCHES) {
    find(field).disabled = find(field).parentElement.hidden = !(field in fields);
    find(field).checked = find(field).defaultChecked = Boolean(setup[field] ?? fields[field]?.default);
  }
  for (const field of ["views", "unsure"]) find(field).value = find(field).defaultValue = setup[field] ?? fields[field].default ?? "";
}
