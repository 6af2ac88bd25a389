/** The caches: a card per label, a slot per entry. An entry keeps its slot until a better one replaces it. */

const FEW = 48; // with more labels than this, only those with entries are shown
const TITLES = { positive: "For", negative: "Against" };

/** Identifies an entry: a rollback may assign an id again, but not with the same entropy. */
export const keyOf = (id, entropy) => `${id}:${Math.fround(entropy)}`;
export const nats = (entropy) => (entropy >= 0.001 ? entropy.toFixed(3) : "<0.001");

export class Caches {
  /** @param {(key: string) => {src: string, name: string} | undefined} pictureOf the picture that this page has of an entry. */
  constructor(list, template, allButton, pictureOf) {
    Object.assign(this, { list, template, allButton, pictureOf });
    allButton.addEventListener("click", () => {
      this.all = true;
      this.update(this.labels, this.entries, this.capacity);
    });
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    Object.assign(this, { cards: new Map(), replaced: 0, all: false, fresh: true, labels: [], entries: [], capacity: {} });
  }

  /** Show these entries; `capacity` is the number of slots per label of each cache. */
  update(labels, entries, capacity) {
    Object.assign(this, { labels, entries, capacity });
    const caches = Object.keys(capacity);
    const held = new Map(labels.map((label) => [label, Object.fromEntries(caches.map((cache) => [cache, []]))]));
    for (const entry of entries) held.get(entry.label)?.[entry.cache]?.push(entry);
    const filled = labels.length <= FEW ? labels : labels.filter((label) => caches.some((each) => held.get(label)[each].length));
    const shown = this.all ? filled : filled.slice(0, FEW);
    this.allButton.hidden = shown.length === filled.length;
    this.allButton.textContent = `Show all ${filled.length.toLocaleString("en")} labels`;
    const wanted = new Set(shown);
    for (const [label, card] of this.cards) {
      if (!wanted.has(label)) {
        card.element.remove();
        this.cards.delete(label);
      }
    }
    let before = null;
    for (const label of shown) {
      const card = this.cards.get(label) ?? this.newCard(label);
      const next = before ? before.nextSibling : this.list.firstChild;
      if (next !== card.element) this.list.insertBefore(card.element, next);
      before = card.element;
      for (const cache of caches) this.fill(card[cache], held.get(label)[cache], capacity[cache]);
    }
    this.fresh = false;
  }

  newCard(label) {
    const element = this.template.content.cloneNode(true).firstElementChild;
    element.querySelector("h3").textContent = label;
    const card = { element };
    for (const cache of Object.keys(this.capacity)) {
      const kind = document.createElement("div");
      const title = document.createElement("h4");
      const list = document.createElement("ul");
      kind.className = cache;
      title.textContent = TITLES[cache] ?? cache;
      list.className = "slots";
      kind.append(title, list);
      element.querySelector(".kinds").append(kind);
      card[cache] = { list, slots: [] };
    }
    this.cards.set(label, card);
    return card;
  }

  /** New entries take the slots of those that were replaced, then empty ones. */
  fill({ list, slots }, entries, capacity) {
    while (slots.length < Math.max(capacity, entries.length)) slots.push(newSlot(list));
    const staying = new Map(entries.map((entry) => [keyOf(entry.id, entry.entropy), entry]));
    const left = [];
    for (const slot of slots) {
      const entry = staying.get(slot.key);
      if (entry && slot.bare) this.paint(slot, entry); // its picture may be available now
      if (slot.key && !entry) left.push(slot);
      staying.delete(slot.key);
    }
    const empty = slots.filter((slot) => !slot.key);
    const newcomers = [...staying].sort(([, a], [, b]) => a.entropy - b.entropy);
    for (const [key, entry] of newcomers) {
      if (left.length) this.replaced += 1;
      this.put(left.shift() ?? empty.shift(), key, entry);
    }
    for (const slot of left) this.put(slot, "", null);
  }

  put(slot, key, entry) {
    for (const old of slot.element.querySelectorAll("figure:not(.leaving)")) leave(old);
    Object.assign(slot, { key, figure: null });
    if (!entry) return;
    slot.figure = document.createElement("figure");
    if (!this.fresh) slot.figure.className = "arriving";
    slot.element.append(slot.figure);
    this.paint(slot, entry);
  }

  paint(slot, entry) {
    const { src = entry.thumbnail, name = `image ${entry.id + 1} of the stream` } = this.pictureOf(slot.key) ?? {};
    slot.bare = !src;
    const face = document.createElement(src ? "img" : "div");
    face.className = "face";
    if (src) Object.assign(face, { src, alt: name });
    else face.textContent = `#${entry.id + 1}`;
    const caption = document.createElement("figcaption");
    caption.textContent = nats(entry.entropy);
    slot.figure.title = `${name}, unsure by ${nats(entry.entropy)}${src ? "" : "; there is no picture of it here"}`;
    slot.figure.replaceChildren(face, caption);
  }

  /** Number of tiles without a picture. */
  get bare() {
    const slots = [...this.cards.values()].flatMap((card) => Object.keys(this.capacity).flatMap((cache) => card[cache].slots));
    return slots.filter((slot) => slot.key && slot.bare).length;
  }

  /** Keys of all entries. */
  get keys() {
    return new Set(this.entries.map((entry) => keyOf(entry.id, entry.entropy)));
  }
}

function newSlot(list) {
  const element = document.createElement("li");
  list.append(element);
  return { element, key: "" };
}

/** Remove an old picture when its animation is over: at once if reduced motion is preferred. */
async function leave(figure) {
  figure.className = "leaving";
  figure.setAttribute("aria-hidden", "true");
  await Promise.allSettled(figure.getAnimations().map((animation) => animation.finished));
  figure.remove();
}
