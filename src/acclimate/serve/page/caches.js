/** The caches: a card a label, a slot an entry. An entry keeps its slot until a better one takes it. */

const FEW = 48; // with more labels than this, only those that hold something are shown

/** Names an entry for good: a rollback may give a number out again, but not with the same entropy. */
export const keyOf = (id, entropy) => `${id}:${Math.fround(entropy)}`;
export const nats = (entropy) => (entropy >= 0.001 ? entropy.toFixed(3) : "<0.001");

export class Caches {
  /** @param {(key: string) => {src: string, name: string} | undefined} pictureOf what this page knows of an entry. */
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
    Object.assign(this, { cards: new Map(), replaced: 0, all: false, fresh: true, labels: [], entries: [] });
  }

  /** Show these entries; `capacity` says how many slots {positive, negative} a label has. */
  update(labels, entries, capacity) {
    Object.assign(this, { labels, entries, capacity });
    const held = new Map(labels.map((label) => [label, { positive: [], negative: [] }]));
    for (const entry of entries) held.get(entry.label)?.[entry.cache]?.push(entry);
    const filled = labels.length <= FEW ? labels : labels.filter((label) => count(held.get(label)));
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
      for (const kind of ["positive", "negative"]) this.fill(card[kind], held.get(label)[kind], capacity[kind]);
    }
    this.fresh = false;
  }

  newCard(label) {
    const element = this.template.content.cloneNode(true).firstElementChild;
    element.querySelector("h3").textContent = label;
    const [positive, negative] = Array.from(element.querySelectorAll(".slots"), (list) => ({ list, slots: [] }));
    const card = { element, positive, negative };
    this.cards.set(label, card);
    return card;
  }

  /** Newcomers take the slots of those that left, then empty ones. */
  fill({ list, slots }, entries, capacity) {
    list.parentElement.hidden = !capacity && !entries.length;
    while (slots.length < Math.max(capacity, entries.length)) slots.push(newSlot(list));
    const staying = new Map(entries.map((entry) => [keyOf(entry.id, entry.entropy), entry]));
    const left = [];
    for (const slot of slots) {
      const entry = staying.get(slot.key);
      if (entry && slot.bare) this.paint(slot, entry); // its picture may have been made meanwhile
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
    slot.figure.title = `${name}, entropy ${nats(entry.entropy)}`;
    slot.figure.replaceChildren(face, caption);
  }

  /** Keys of all entries. */
  get keys() {
    return new Set(this.entries.map((entry) => keyOf(entry.id, entry.entropy)));
  }
}

const count = ({ positive, negative }) => positive.length + negative.length;

function newSlot(list) {
  const element = document.createElement("li");
  list.append(element);
  return { element, key: "" };
}

/** Take an old picture away once its animation is over: at once where motion is not wanted. */
async function leave(figure) {
  figure.className = "leaving";
  figure.setAttribute("aria-hidden", "true");
  await Promise.allSettled(figure.getAnimations().map((animation) => animation.finished));
  figure.remove();
}
