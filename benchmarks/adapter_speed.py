"""Speed of TDA and accord: against the zero-shot product (the floor) and TDA's published way (the reference).

All sides are timed in turn within one run, on the same features, with full caches, and the median is taken. The second
pass of accord is timed against its first, over the same stream. Ratios are what counts; milliseconds depend on the
machine.

    python benchmarks/adapter_speed.py                  # NumPy
    python benchmarks/adapter_speed.py --device cuda    # PyTorch on a GPU
"""

import argparse
import warnings
from collections.abc import Callable
from math import log2
from time import perf_counter

import numpy as np

from acclimate import TDA, Accord, Adapter, Head
from acclimate.arrays import device as device_of
from acclimate.arrays import namespace, softmax_and_entropy, to_host

SCALE = 100.0


class PublishedWay:
    """TDA as it is published: dicts of Python lists, concatenated again for every sample (batch size 1).

    Written from the paper's description as the side to compare with; answers equal those of `acclimate.TDA`.
    """

    def __init__(self, class_vectors) -> None:
        self.W = class_vectors
        self.K = class_vectors.shape[0]
        self.positive: dict[int, list] = {}
        self.negative: dict[int, list] = {}

    def step(self, f):
        """Return the adapted logits (1, K) of one sample (1, d)."""
        xp = namespace(f)
        z = SCALE * f @ self.W.T
        p, _ = softmax_and_entropy(z)
        H = float(-xp.sum(p * xp.log(p + 1e-30)))
        y = int(xp.argmax(z))
        self._update(self.positive, y, (H, f, None), 3)
        if 0.2 < H / log2(self.K) < 0.5:
            self._update(self.negative, y, (H, f, p), 2)
        answer = z + self._read(f, self.positive, 2.0, 5.0, masks=False)
        return answer - self._read(f, self.negative, 0.117, 1.0, masks=True)

    @staticmethod
    def _update(cache, y, item, capacity) -> None:
        entries = cache.setdefault(y, [])
        if len(entries) < capacity:
            entries.append(item)
        elif item[0] < entries[-1][0]:
            entries[-1] = item
        entries.sort(key=lambda entry: entry[0])

    def _read(self, f, cache, alpha, beta, masks):
        xp = namespace(f)
        keys = []
        values = []
        for label in sorted(cache):
            for _, feature, p in cache[label]:
                keys.append(feature)
                values.append(p if masks else label)
        if not keys:
            return 0.0
        keys = xp.concat(keys, axis=0)
        if masks:
            values = xp.concat(values, axis=0)
            values = xp.astype((values > 0.03) & (values < 1.0), f.dtype)
        else:
            one_hot = xp.zeros((len(values), self.K), dtype=f.dtype, device=device_of(f))
            one_hot[xp.arange(len(values)), xp.asarray(values)] = 1.0
            values = one_hot
        return alpha * (xp.exp(beta * (f @ keys.T - 1.0)) @ values)


def make_features(rng, class_vectors, repeat: int, sharp: bool):
    """Return features (repeat * K, d), float32: sharp ones are nearly certain, the others lie in the entropy gate."""
    K, d = class_vectors.shape
    noise = rng.standard_normal((repeat * K, d), dtype=np.float32) / np.float32(np.sqrt(d))
    pull = 1.0 if sharp else 0.14
    rows = pull * np.repeat(class_vectors, repeat, axis=0) + noise
    rows = rows[rng.permutation(len(rows))]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def unit_class_vectors(rng, K: int, d: int):
    """Return random unit rows (K, d)."""
    W = rng.standard_normal((K, d), dtype=np.float32)
    return W / np.linalg.norm(W, axis=1, keepdims=True)


def fresh_features(rng, W, to_device):
    """Return features (2K, d) for a filled adapter: half nearly certain, half in the entropy gate."""
    rows = np.concatenate([make_features(rng, W, 1, sharp=True), make_features(rng, W, 1, sharp=False)])
    return to_device(rows[rng.permutation(len(rows))])


def adapted(K: int, d: int, to_device):
    """Return an adapter that filled its caches from a stream, the stream, and fresh features."""
    rng = np.random.default_rng(0)
    W = unit_class_vectors(rng, K, d)
    adapter = TDA(Head(to_device(W), logit_scale=SCALE))
    stream = np.concatenate([make_features(rng, W, 6, sharp=True), make_features(rng, W, 40, sharp=False)])
    stream = to_device(stream)
    adapter.step(stream)
    return adapter, stream, fresh_features(rng, W, to_device)


def whole_stream(adapters: dict[str, Adapter], stream, finish: Callable[[], None]) -> dict[str, float]:
    """Return the seconds each adapter takes for the whole stream, from nothing, in batches of 256 that take turns."""
    seconds = dict.fromkeys(adapters, 0.0)
    for start in range(0, stream.shape[0], 256):
        for name, adapter in adapters.items():
            began = perf_counter()
            adapter.step(stream[start : start + 256])
            finish()
            seconds[name] += perf_counter() - began
    return seconds


def time_second_pass(adapter: Adapter, stream, finish: Callable[[], None]) -> float:
    """Return the seconds of the second pass over a stream that the adapter has seen."""
    began = perf_counter()
    adapter.second_pass(stream)
    finish()
    return perf_counter() - began


def filled(K: int, d: int, to_device):
    """Return an adapter with caches filled by hand, as streams of 20,000 classes take long, and fresh features."""
    rng = np.random.default_rng(0)
    W = unit_class_vectors(rng, K, d)
    adapter = TDA(Head(to_device(W), logit_scale=SCALE))
    entries = {}
    for kind, capacity in (("positive", 3), ("negative", 2)):
        classes = np.tile(np.arange(K, dtype=np.int32), capacity)
        others = rng.integers(0, K, (len(classes), 5), dtype=np.int32)
        own = classes[:, None]
        entries |= {
            f"{kind}.keys": make_features(rng, W, capacity, sharp=kind == "positive"),
            f"{kind}.classes": classes,
            f"{kind}.entropies": rng.uniform(0, 0.1 if kind == "positive" else 3.0, len(classes)),
            f"{kind}.ids": np.arange(len(classes)),
            f"{kind}.targets": own if kind == "positive" else np.concatenate([own, others], axis=1),
        }
    adapter.restore(entries)
    return adapter, fresh_features(rng, W, to_device)


def time_in_turn(sides: dict[str, Callable[[], object]], repeats: int, finish: Callable[[], None]) -> dict[str, float]:
    """Return the median seconds of each side.

    Sides take turns, so that noise strikes all alike; a turn is five calls of which the first is not counted, so that
    no side pays for the memory another one pushed out of the CPU's cache.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            for call in range(5):
                began = perf_counter()
                side()
                finish()
                if call:
                    times[name].append(perf_counter() - began)
    return {name: float(np.median(values)) for name, values in times.items()}


def count_waits(side: Callable[[], object], device: str) -> str:
    """Return how often the host waits for a GPU in one call; "" where there is none."""
    if not device.startswith("cuda"):
        return ""
    import torch

    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            side()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return str(len(waits))


def batches(features, size: int):
    """Yield the features in batches, endlessly."""
    start = 0
    while True:
        if start + size > features.shape[0]:
            start = 0
        yield features[start : start + size]
        start += size


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="numpy", help="numpy, or a PyTorch device such as cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="skip the growth tables")
    options = parser.parse_args()
    to_device = np.asarray

    def finish():
        return None

    if options.device != "numpy":
        import torch

        def to_device(rows):
            return torch.asarray(rows, device=options.device)

        def finish() -> None:
            if options.device.startswith("cuda"):
                torch.cuda.synchronize()

    K = 1000
    d = 512
    B = 256
    adapter, stream, fresh = adapted(K, d, to_device)
    W = adapter.head.class_vectors
    accord = Accord(adapter.head)
    order = namespace(stream).asarray(np.random.default_rng(2).permutation(stream.shape[0]), device=device_of(stream))
    shuffled = stream[order]
    whole = whole_stream({"TDA": TDA(adapter.head), "accord": accord}, shuffled, finish)
    second_pass = time_second_pass(accord, shuffled, finish)
    sizes = {name: len(entries) for name, entries in adapter.entries().items()}
    print(f"K={K}, d={d}, device={options.device}, entries: {sizes['positive']} positive, {sizes['negative']} negative")

    published = PublishedWay(W)
    fill_published(published, adapter)
    walk, single, long_walk = (batches(fresh, size) for size in (B, 1, 1024))
    sides = {
        B: {
            "zero-shot product": lambda: SCALE * (next(walk) @ W.T),
            "zero-shot evidence": lambda: adapter.head.observe(next(walk)),
            "TDA": lambda: adapter.step(next(walk)),
            "accord": lambda: accord.step(next(walk)),
        },
        1024: {"TDA": lambda: adapter.step(next(long_walk)), "accord": lambda: accord.step(next(long_walk))},
        1: {
            "TDA": lambda: adapter.step(next(single)),
            "accord": lambda: accord.step(next(single)),
            "published way": lambda: published.step(next(single)),
        },
    }
    times = {}
    waits = {}
    for batch, repeats in ((B, 30), (1024, 8), (1, 15)):
        found = time_in_turn(sides[batch], repeats, finish)
        times |= {(name, batch): seconds for name, seconds in found.items()}
        waits |= {(name, batch): count_waits(side, options.device) for name, side in sides[batch].items()}
    floor = times["zero-shot product", B]
    reference = times["published way", 1]
    print(
        f"\n{'':20}{'batch':>6}{'ms':>9}{'us/sample':>11}{'waits':>7}{'x zero-shot':>13}{'x faster than published':>25}"
    )
    for (name, batch), seconds in times.items():
        against = f"{seconds / floor:.2f}" if batch == B else ""
        each = seconds / batch
        row = f"{name:20}{batch:6}{1e3 * seconds:9.3f}{1e6 * each:11.2f}{waits[name, batch]:>7}"
        print(f"{row}{against:>13}{reference / each:25.1f}")
    print("arithmetic floor of a TDA step: 6 zero-shot products (1, and 3 positive and 2 negative entries per class)")
    ratio = times["accord", B] / times["TDA", B]
    print(
        f"accord: {ratio:.2f} x TDA per step, {whole['accord'] / whole['TDA']:.2f} x over {stream.shape[0]} samples; "
        f"second pass: {second_pass / whole['accord']:.2f} x the first"
    )
    sizes = f"state: TDA {state_mb(adapter):.1f} MB, accord {state_mb(accord):.1f} MB"
    print(f"{sizes}; class vectors: {W.shape[0] * W.shape[1] * 4 / 1e6:.1f} MB")
    check_same_answers(adapter, published, fresh)
    if not options.quick:
        growth(to_device, finish)


def state_mb(adapter: Adapter) -> float:
    """Return the size of the state in megabytes."""
    return sum(values.nbytes for values in adapter.dump().values()) / 1e6


def fill_published(published: PublishedWay, adapter: TDA) -> None:
    """Give the published way the adapter's entries."""
    dump = adapter.dump()
    W = adapter.head.class_vectors
    for kind, target in (("positive", published.positive), ("negative", published.negative)):
        keys = dump[f"{kind}.keys"]
        for i, label in enumerate(dump[f"{kind}.classes"].tolist()):
            key = namespace(W).asarray(keys[i : i + 1], device=device_of(W))
            p, _ = softmax_and_entropy(SCALE * key @ W.T)
            target.setdefault(label, []).append((float(dump[f"{kind}.entropies"][i]), key, p))
        for entries in target.values():
            entries.sort(key=lambda entry: entry[0])


def check_same_answers(adapter: TDA, published: PublishedWay, fresh) -> None:
    """Check that the published way gives our answers; else the comparison means nothing."""
    adapter.reset()
    published.positive = {}
    published.negative = {}
    ours = to_host(adapter.step(fresh[:300]))
    theirs = np.concatenate([to_host(published.step(fresh[i : i + 1])) for i in range(300)])
    gap = np.abs(ours - theirs).max()
    print(f"largest gap between the two ways' logits over 300 samples: {gap:.1e}")
    assert gap < 1e-2, "the two ways disagree"


def growth(to_device, finish) -> None:
    """Print how the cost of a step grows with classes, channels and the length of the stream."""
    print(f"\n{'classes':>9}{'dim':>6}{'TDA ms/256':>12}{'x zero-shot':>13}{'state MB':>10}")
    for K, d in ((100, 512), (1000, 512), (5000, 512), (20000, 512), (20000, 768), (1000, 256), (1000, 1024)):
        adapter, fresh = filled(K, d, to_device)
        times = time_step(adapter, fresh, finish)
        print(f"{K:9}{d:6}{1e3 * times['tda']:12.2f}{times['tda'] / times['zero-shot']:13.2f}{state_mb(adapter):10.1f}")

    print(f"\n{'samples seen':>14}{'TDA ms/256':>12}{'x zero-shot':>13}{'entries':>9}")
    adapter, stream, fresh = adapted(1000, 512, to_device)
    rng = np.random.default_rng(1)
    for _ in range(4):
        times = time_step(adapter, fresh, finish)
        entries = sum(map(len, adapter.entries().values()))
        ratio = times["tda"] / times["zero-shot"]
        print(f"{adapter.samples_seen:14}{1e3 * times['tda']:12.2f}{ratio:13.2f}{entries:9}")
        adapter.step(stream[namespace(stream).asarray(rng.permutation(stream.shape[0]), device=device_of(stream))])


def time_step(adapter: TDA, fresh, finish) -> dict[str, float]:
    """Return the median seconds of a zero-shot product and a TDA step on 256 samples."""
    walk = batches(fresh, 256)
    W = adapter.head.class_vectors
    sides = {"zero-shot": lambda: SCALE * (next(walk) @ W.T), "tda": lambda: adapter.step(next(walk))}
    return time_in_turn(sides, repeats=6, finish=finish)


if __name__ == "__main__":
    main()
