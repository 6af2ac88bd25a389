/** Images from a file chooser or a drop, sorted by path, the names of other files, and small pictures. */

const SUFFIX = /\.(jpe?g|jpe|jfif|png|webp|bmp|dib|gif|tiff?|avif|jp2|p[pgbn]m|tga)$/i;
const natural = new Intl.Collator("en", { numeric: true, sensitivity: "base" }); // img2 before img10
const PIXELS = 192;

/** The chosen images as `{file, path}`, sorted, and the paths of what is no image: {images, others}. */
export function fromChooser(list) {
  return sorted(Array.from(list, (file) => ({ file, path: file.webkitRelativePath || file.name })));
}

/** The same of what was dropped, including files in folders. */
export async function fromDrop(transfer) {
  const roots = Array.from(transfer.items, (item) => item.webkitGetAsEntry()).filter(Boolean); // before any await
  const found = [];
  for (const root of roots) await walk(root, found);
  return sorted(found);
}

async function walk(entry, found) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    found.push({ file, path: entry.fullPath.replace(/^\//, "") });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // 100 at a time
    if (!some.length) return;
    for (const below of some) await walk(below, found);
  }
}

function sorted(found) {
  const seen = found.filter(({ path }) => !path.split("/").some((part) => part.startsWith("."))); // others are hidden
  const isImage = ({ file, path }) => SUFFIX.test(path) || file.type.startsWith("image/");
  const images = seen.filter(isImage).sort((a, b) => natural.compare(a.path, b.path));
  return { images, others: seen.filter((each) => !isImage(each)).map(({ path }) => path).sort(natural.compare) };
}

/** Name of the folder that an image is in; "" for a single file. */
export const folderOf = (path) => path.split("/").at(-2) ?? "";

/** Name of a file without its folders. */
export const nameOf = (path) => path.split("/").at(-1);

/** A name for a stream, after the folder that all images are in; "" for single files. */
export function streamName(images, taken) {
  const [folder, ...others] = new Set(images.map(({ path }) => (path.includes("/") ? path.split("/")[0] : "")));
  if (!folder || others.length) return "";
  const plain = folder.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase(); // Über becomes uber
  const name = plain.replace(/[^a-z0-9._]+/g, "-").replace(/^[-._]+/, "").slice(0, 60).replace(/[-._]+$/, "");
  for (let i = 1; name; i++) {
    const numbered = i === 1 ? name : `${name}-${i}`;
    if (!taken.includes(numbered)) return numbered;
  }
  return "";
}

/** The content of an image's file, as base64. */
export function base64({ file, path }) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${nameOf(path)} cannot be read any more: was it moved or changed?`));
    reader.readAsDataURL(file);
  });
}

export function shuffle(items) {
  for (let i = items.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [items[i], items[j]] = [items[j], items[i]];
  }
}

/** URL of a small picture for this page only; "" if the browser cannot read the file. */
export async function smallPicture(file) {
  try {
    const bitmap = await createImageBitmap(file, { resizeHeight: PIXELS, resizeQuality: "medium" });
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    return URL.createObjectURL(await canvas.convertToBlob({ type: "image/webp", quality: 0.8 }));
  } catch {
    return "";
  }
}
