/** A small chart of shares over the images. The axes show the range of the data, and say so. */

const NAMESPACE = "http://www.w3.org/2000/svg";
const STEPS = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25]; // possible distances of two ticks
const MIN_SPAN = 0.02; // the smallest range: a difference below it is not enlarged
const SETTLED = 20; // images; before them, a share jumps with every answer

export const percent = (part, whole) => {
  const share = whole ? (100 * part) / whole : 0;
  return `${Number(share.toFixed(1))}\u202f%`;
};

/**
 * Draw lines: `[{name, style, points: [[images, share], ...]}]`, all with the same numbers of images.
 * With `fromZero`, the axis starts at zero and the last line has an area below it.
 */
export function draw(figure, lines, fromZero = false) {
  const last = lines[0].points.at(-1)[0];
  const from = Math.max(last / 10, Math.min(SETTLED, last / 2)); // the first images are too few to count
  const shown = lines.map((line) => ({ ...line, points: line.points.filter(([images]) => images >= from) }));
  const first = shown[0].points[0][0];
  const ticks = axis(shown.flatMap(({ points }) => points.map(([, share]) => share)), fromZero);
  const [low, high] = [ticks[0], ticks.at(-1)];
  const x = (images) => (last > first ? (200 * (images - first)) / (last - first) : 200).toFixed(1);
  const y = (share) => (100 - (100 * (share - low)) / (high - low)).toFixed(1);
  const marks = ticks.map((tick) => shape("line", { class: tick === low ? "base" : "grid", x2: 200, y1: y(tick), y2: y(tick) }));
  for (const { style, points } of shown) {
    const corners = points.map(([images, share]) => `${x(images)},${y(share)}`).join(" ");
    if (fromZero) marks.push(shape("polygon", { class: "area", points: `${x(points[0][0])},100 ${corners} 200,100` }));
    marks.push(shape("polyline", { class: `line ${style}`, points: corners }));
  }
  const svg = figure.querySelector("svg");
  const named = lines.map(({ name, points }) => `${name} ${percent(points.at(-1)[1], 1)}`.trim());
  const range = `axis runs from ${percent(low, 1)} to ${percent(high, 1)}`;
  svg.replaceChildren(...marks);
  svg.setAttribute("aria-label", `${figure.querySelector("strong").textContent}: ${named.join(", ")}; ${range}`);
  figure.querySelector(".y").replaceChildren(...[...ticks].reverse().map((tick) => text(percent(tick, 1))));
  figure.querySelector(".x").replaceChildren(text(first.toLocaleString("en")), text(`${last.toLocaleString("en")} images`));
  figure.querySelector(".keys").replaceChildren(...lines.map(({ style }, i) => text(named[i], style)));
  figure.querySelector(".range").textContent = low > 0 ? `The ${range}, not from zero.` : "";
}

/** Even ticks around the values, at most five. */
function axis(values, fromZero) {
  let [low, high] = [fromZero ? 0 : Math.min(...values), Math.max(...values)];
  const missing = Math.max(0, MIN_SPAN - (high - low));
  [low, high] = [Math.max(0, low - (fromZero ? 0 : missing / 2)), Math.min(1, high + missing / 2)];
  const end = (step) => [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  const step = STEPS.find((each) => end(each)[1] - end(each)[0] <= 4) ?? 0.25;
  const [bottom, top] = end(step);
  return Array.from({ length: top - bottom + 1 }, (_, i) => (bottom + i) * step);
}

function text(words, className = "") {
  const element = document.createElement("span");
  element.textContent = words;
  if (className) element.className = className;
  return element;
}

function shape(kind, attributes) {
  const element = document.createElementNS(NAMESPACE, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
