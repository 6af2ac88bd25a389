/** Counts of the answers of a stream, and how they developed. A reload of the tab keeps them. */

const MAX_POINTS = 400; // points kept; beyond it, every second one is dropped
const NOTHING = { count: 0, unread: 0, changed: 0, checked: 0, right: 0, before: 0, stride: 1, again: false };
const keyOf = (stream) => `acclimate-counts:${stream}`; // in the session storage of this tab; no names

export class Tally {
  constructor() {
    this.open(null);
    addEventListener("pagehide", () => this.save());
  }

  /** Continue with the counts of a stream; those of the stream before are kept. */
  open(stream) {
    this.save();
    const kept = stream === null ? null : JSON.parse(sessionStorage.getItem(keyOf(stream)));
    Object.assign(this, NOTHING, { points: [], ...kept, stream });
  }

  save() {
    const { stream, points } = this;
    if (!stream || !(this.count || this.unread)) return;
    const counts = Object.fromEntries(Object.keys(NOTHING).map((name) => [name, this[name]]));
    sessionStorage.setItem(keyOf(stream), JSON.stringify({ ...counts, points }));
  }

  /** The stream was deleted: one that gets the same name starts from zero. */
  forget(stream) {
    sessionStorage.removeItem(keyOf(stream));
    if (this.stream === stream) this.stream = null;
  }

  /** Count the answers from the first one on; images that could not be read stay counted. */
  restart() {
    Object.assign(this, NOTHING, { points: [], unread: this.unread, again: this.again });
  }

  /** Count an answer of the service; `truth` is the correct label, or null if it is not known. */
  add({ predictions: [adapted], zero_shot: alone, changed }, truth) {
    this.count += 1;
    this.changed += changed;
    if (truth !== null) {
      this.checked += 1;
      this.right += adapted.label === truth;
      this.before += alone.label === truth;
    }
    if (this.count % this.stride === 0) this.points.push(this.now);
    if (this.points.length > MAX_POINTS) {
      this.stride *= 2;
      this.points = this.points.filter(([count]) => count % this.stride === 0);
    }
  }

  get now() {
    return [this.count, this.changed, this.checked, this.right, this.before];
  }

  /** Lines for the chart: [number of images, share] after each of the kept points. */
  get lines() {
    const points = [...this.points.filter(([count]) => count < this.count), this.now];
    const known = points.filter(([, , checked]) => checked);
    return {
      changed: points.map(([count, changed]) => [count, changed / count]),
      right: known.map(([, , checked, right]) => [checked, right / checked]),
      before: known.map(([, , checked, , before]) => [checked, before / checked]),
    };
  }
}
