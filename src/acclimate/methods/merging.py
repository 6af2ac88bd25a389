"""Merging of what several adapters have learnt: a few at once, or hundreds of state files in a tree."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from acclimate.errors import InputError, StateError
from acclimate.methods.adapter import Adapter
from acclimate.methods.persist import MAX_ORIGINS, compare_states, duplicate, load_state

FAN_IN = 8  # states that a tree merges at once; fewer take less memory and more time, as more merges follow each other


def merge_states(adapters: Iterable[Adapter], start: Adapter | None = None) -> Adapter:
    """Combine what several adapters of one kind learnt into a new one; the order of adapters never matters.

    Merging the shards of a stream (stepped with `ids`, the samples' positions) gives the state of the whole stream.
    Without, every shard counts its samples from 0, and entries of a merged cache may share an id. They are
    distinguished by their keys, all stay, and samples that follow get ids above all of them.

    States that merge by union may be merged in any grouping, and again, to the same bits. Those that add up may be
    merged in any grouping up to rounding, each once.

    Args:
        adapters: the adapters to merge; they stay as they are.
        start: the adapter that all of them continued from, each on samples of its own, if there is one: what it has
            seen then counts once, and not once per adapter. A single adapter that continued from it is taken as it is.

    Raises:
        InputError: they differ in method, settings or head, the method cannot merge, states that add up share an
            origin, so that samples would count twice, or an adapter has seen less than `start`.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head, merge_states
        >>> head = Head(np.eye(3), logit_scale=10.0)
        >>> shards = [TDA(head, origin="camera 1"), TDA(head, origin="camera 2")]
        >>> for shard in shards:
        ...     _ = shard.step(np.eye(3))
        >>> merge_states(shards).samples_seen
        6

        The two continue from the merged state, see two samples each, and are merged again:

        >>> from acclimate.methods import duplicate
        >>> start = merge_states(shards)
        >>> shards = [duplicate(start), duplicate(start)]
        >>> for shard in shards:
        ...     _ = shard.step(np.eye(3)[:2])
        >>> merge_states(shards, start).samples_seen
        10
    """
    adapters = list(adapters)
    if not adapters:
        raise InputError("nothing to merge; give at least one adapter.")
    first = adapters[0] if start is None else start
    for other in adapters:
        if differences := compare_states(other.name, other.settings, other.head, first):
            which = "these adapters cannot be merged" if start is None else "an adapter did not continue from `start`"
            raise InputError(f"{which}: {'; '.join(differences)}.")
    seen = _seen(adapters, start)
    if start is not None and len(adapters) == 1:
        return duplicate(adapters[0])
    merged = duplicate(first)
    dumps = {name: [adapter.parts[name].dump() for adapter in adapters] for name in merged.parts}
    for name, part in merged.parts.items():
        part.restore(part.merged(dumps[name], *(() if start is None else (start.parts[name].dump(),))))
    merged.flush()
    merged.seen = seen
    merged.frozen = all(adapter.frozen for adapter in adapters)
    return merged


class MergeTree:
    """A merge of any number of adapters that come one after another, which holds fewer than `FAN_IN` of them per level.

    The tree has a depth of log n. States that add up have a rounding error that grows with the depth and not with
    their number, so the result is that of `merge_states` up to rounding, and to the bit for states that merge by union.

    Args:
        start: see `merge_states`.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head
        >>> tree = MergeTree()
        >>> for name in range(100):
        ...     adapter = TDA(Head(np.eye(3), logit_scale=10.0), origin=f"camera {name}")
        ...     _ = adapter.step(np.eye(3))
        ...     tree.add(adapter)
        >>> tree.merged().samples_seen
        300
    """

    def __init__(self, start: Adapter | None = None) -> None:
        self.start = start
        self._levels: list[list[Adapter]] = []

    def add(self, adapter: Adapter) -> None:
        """Take one more adapter; it must not change any more."""
        for level in self._levels:
            level.append(adapter)
            if len(level) < FAN_IN:
                return
            adapter = merge_states(level, self.start)
            level.clear()
        self._levels.append([adapter])

    def merged(self) -> Adapter:
        """Return what all of them have learnt."""
        return merge_states([adapter for level in self._levels for adapter in level], self.start)


def merge_files(
    paths: Iterable[str | os.PathLike[str]],
    start: Adapter | None = None,
    *,
    skipped: Callable[[str], None] | None = None,
    progress: Callable[[int], None] = lambda files: None,
) -> Adapter:
    """Merge state files, of which only a few are in memory at a time; see `MergeTree`.

    Args:
        paths: the state files.
        start: the adapter that all of them continued from, if any; see `merge_states`. Every origin may then have more
            samples in one file only.
        skipped: called with the reason for every file that cannot be used; without it, the first such file is an error.
        progress: called with 1 for every file that is done.

    Raises:
        InputError: a file cannot be merged with the first one or with `start`, or holds samples that another holds and
            that would count twice; no file can be used, or more files differ from the first than match it.
        StateError: a file is damaged, or not a state.

    Examples:
        >>> merge_files(["nowhere.safetensors"], skipped=print)
        Traceback (most recent call last):
        acclimate.errors.InputError: nothing to merge: none of the files can be used.
    """
    tree = MergeTree(start)
    first = start
    first_path = "the state that they are said to continue from"
    holders: dict[str, str] = {}  # the file that has samples of each origin
    used = 0
    different = 0
    for path in (os.fspath(each) for each in paths):
        try:
            adapter = load_state(path)
            if differences := compare_states(adapter.name, adapter.settings, adapter.head, first or adapter):
                different += 1
                raise InputError(f"{path} cannot be merged with {first_path}: {'; '.join(differences)}.")
            origins = _new_origins(adapter, path, start, holders)
        except (InputError, StateError) as error:
            named = error if path in str(error) else InputError(f"{path}: {error}")
            if skipped is None:
                raise named from error
            skipped(str(named))
        else:
            holders |= dict.fromkeys(origins, path)
            if first is None:
                first = adapter
                first_path = path
            used += 1
            tree.add(adapter)
        progress(1)
    if not used:
        raise InputError("nothing to merge: none of the files can be used.")
    if different > used:
        raise InputError(
            f"{different} files are of another kind than {first_path}, and {used} of the same; "
            "leave that one out, or merge each kind of state by itself."
        )
    return tree.merged()


def _new_origins(adapter: Adapter, path: str, start: Adapter | None, holders: Mapping[str, str]) -> list[str]:
    """Return the origins of samples that an adapter adds to `start`; refuse those that another file holds."""
    before = {} if start is None else start.seen
    origins = [origin for origin, count in _seen([adapter], start).items() if count > before.get(origin, 0)]
    shared = [origin for origin in origins if origin in holders]
    if shared and (adapter.merges == "sum" or start is not None):
        raise InputError(
            f"{path} and {holders[shared[0]]} both hold samples of the origin {shared[0]!r}, which would count twice; "
            "merge each origin once, and give every stream its own origin."
        )
    if len(holders.keys() | origins) > MAX_ORIGINS:
        raise InputError(f"with {path}, these are samples of more than {MAX_ORIGINS} streams; merge fewer.")
    return origins


def _seen(adapters: Sequence[Adapter], start: Adapter | None) -> dict[str, int]:
    """Return the samples by origin that adapters have seen in all, those of `start` once; none may count twice."""
    first = adapters[0]
    if first.merges is None and (start is None or len(adapters) > 1):
        why = (
            "fit one adapter to all labelled samples instead"
            if first.kind == "few-shot"
            else "what it learns depends on the order of the samples"
        )
        raise InputError(f"states of {first.name!r} cannot be merged: {why}.")
    if start is None:
        origins = Counter(origin for adapter in adapters for origin, count in adapter.seen.items() if count)
        if first.merges == "sum" and (shared := [origin for origin, count in origins.items() if count > 1]):
            raise InputError(
                f"states of {first.name!r} add up, and {origins[shared[0]]} of these hold samples of the origin "
                f"{shared[0]!r}, which would count twice; merge each origin once, and give every stream its own "
                "`origin`."
            )
        return {origin: max(adapter.seen.get(origin, 0) for adapter in adapters) for origin in sorted(origins)}
    seen = Counter(start.seen)
    for adapter in adapters:
        for origin in start.seen.keys() | adapter.seen.keys():
            more = adapter.seen.get(origin, 0) - start.seen.get(origin, 0)
            if more < 0:
                raise InputError(
                    f"an adapter has seen {-more} samples of the origin {origin!r} fewer than `start`, so it did not "
                    "continue from it; give the state that all of them continued from, or none."
                )
            seen[origin] += more
    return {origin: count for origin, count in sorted(seen.items()) if count}
