/** A small chart of shares over the images, drawn as in the report. */

const NAMESPACE = "http://www.w3.org/2000/svg";
const POINTS = 200; // longer lines are thinned out
const TOPS = [0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1];

export const percent = (part, whole) => {
  const share = whole ? (100 * part) / whole : 0;
  return `${share > 0 && share < 100 ? Number(share.toPrecision(3)) : share.toFixed(0)}\u202f%`;
};

/** Draw lines of shares: `{className: [share after 1 image, after 2, ...]}`; the last line has an area below it. */
export function draw(figure, lines) {
  const all = Object.values(lines);
  const top = TOPS.find((each) => Math.max(...all.map((line) => line.reduce((a, b) => Math.max(a, b)))) <= each);
  const svg = figure.querySelector("svg");
  const marks = [0, 50, 100].map((y) => shape("line", { class: "grid", x2: 200, y1: y, y2: y }));
  for (const [name, line] of Object.entries(lines)) {
    const step = Math.max(1, Math.ceil(line.length / POINTS));
    const kept = line.filter((_, i) => (line.length - 1 - i) % step === 0); // the newest point is always kept
    const x = (i) => (kept.length > 1 ? (200 * i) / (kept.length - 1) : 200);
    const points = kept.map((share, i) => `${x(i).toFixed(1)},${(100 - (100 * share) / top).toFixed(1)}`).join(" ");
    if (line === all.at(-1)) marks.push(shape("polygon", { class: "area", points: `${x(0)},100 ${points} 200,100` }));
    marks.push(shape("polyline", { class: `line ${name}`, points }));
  }
  svg.replaceChildren(...marks);
  const said = Object.entries(lines).map(([name, line]) => `${name} ${percent(line.at(-1), 1)}`);
  svg.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}: ${said.join(", ")}`);
  const ticks = [1, 0.5, 0].map((part) => {
    const tick = document.createElement("span");
    tick.textContent = percent(part * top, 1);
    return tick;
  });
  figure.querySelector(".y").replaceChildren(...ticks);
}

function shape(kind, attributes) {
  const element = document.createElementNS(NAMESPACE, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
