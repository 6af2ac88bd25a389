/** Corrections: give an image its right label, list the corrections of a stream, and undo them. */

import { at, call } from "./api.js";
import { base64 } from "./files.js";

const GONE = 404; // the stream does not remember the image of this id any more
const SENT = 2 ** 48; // ids from here on are of images that were sent to be corrected
const FEW = 12; // corrections shown until all are asked for

/** Correct the label of an answered image; resolves with the correction: {id, label}. */
export async function correctImage(stream, record, label) {
  const path = at(stream, "/corrections");
  const known = record.correction?.id ?? record.id;
  if (known !== null) {
    try {
      return await call("POST", path, { id: known, label });
    } catch (error) {
      if (error.status !== GONE) throw error;
    }
  }
  if (!record.file) throw new Error("The stream has not learnt this image, and this page does not have its file any more: send it again, then change its label.");
  return call("POST", path, { image: await base64(record), label });
}

export const undoCorrection = (stream, id) => call("DELETE", at(stream, `/corrections/${id}`));

/** The corrections of a stream, newest first; null if this token may not correct. */
export async function readCorrections(stream) {
  try {
    return (await call("GET", at(stream, "/corrections"))).corrections.reverse();
  } catch (error) {
    if (error.status !== 403) throw error;
    return null;
  }
}

/** The list of corrections. */
export class CorrectionList {
  /**
   * @param {(id: number) => {src: string, path: string} | undefined} recordOf the image with this correction, if it was sent
   *   from this page.
   * @param {(id: number) => Promise} undo
   */
  constructor(find, recordOf, undo) {
    Object.assign(this, { find, recordOf, undo });
    find("all-corrections").addEventListener("click", () => {
      this.all = true;
      this.render();
    });
    this.clear();
  }

  clear() {
    Object.assign(this, { all: false, corrections: [] });
    this.render();
  }

  /** Show these corrections; if they are those already shown, the buttons stay as they are. */
  update(corrections) {
    if (JSON.stringify(corrections) === JSON.stringify(this.corrections)) return;
    this.corrections = corrections;
    this.render();
  }

  render() {
    const { find, corrections } = this;
    const shown = this.all ? corrections : corrections.slice(0, FEW);
    find("corrections").hidden = !corrections.length;
    find("corrections-count").textContent = corrections.length.toLocaleString("en");
    find("corrections-list").replaceChildren(...shown.map((each) => this.row(each)));
    find("all-corrections").hidden = shown.length === corrections.length;
  }

  row({ id, label, thumbnail }) {
    const record = this.recordOf(id);
    const name = record?.path ?? (id < SENT ? `image ${id + 1} of the stream` : "an image that was sent again");
    const row = this.find("correction").content.cloneNode(true).firstElementChild;
    row.querySelector(".file bdi").textContent = name;
    row.querySelector(".label").textContent = label;
    const src = record?.src || thumbnail;
    row.querySelector(".thumb").textContent = id < SENT ? `#${id + 1}` : "";
    if (src) {
      const picture = document.createElement("img");
      Object.assign(picture, { className: "thumb", src, alt: "" });
      row.querySelector(".thumb").replaceWith(picture);
    }
    const button = row.querySelector("button");
    button.setAttribute("aria-label", `Undo the correction of ${name} to ${label}`);
    button.addEventListener("click", async () => {
      await this.undo(id);
      const left = this.find("corrections-list").querySelector("button");
      (left ?? this.find("learnt-title")).focus(); // the button that was clicked is gone
    });
    return row;
  }
}
