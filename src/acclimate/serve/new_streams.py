"""The options of `acclimate serve` for streams that are created by their first images."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from acclimate.classifier import Classifier
from acclimate.encoders import Encoder
from acclimate.errors import InputError
from acclimate.prompts import LearnedPrompts
from acclimate.serve.limits import Limits
from acclimate.serve.service import check_setup

GUARD_RULES = {"share": "guard_share", "burst": "guard_burst", "window_s": "guard_window", "age": "guard_age"}
STREAM_OPTIONS = ("setting", "template", "thumbnails", "views_kind", "method", "none_of_these", "unsure")


class NewStreams(NamedTuple):
    """The arguments of new streams, and what had to be loaded to find them."""

    defaults: dict[str, Any] | None  # None if no stream is created by its first images
    learned: LearnedPrompts | None
    encoder: Encoder | None


def check_new_streams(options: Mapping[str, Any]) -> None:
    """Refuse options for new streams that contradict each other; `options` are those of `acclimate serve` by name."""
    rules = any(options[option] is not None for option in GUARD_RULES.values())
    if rules and not options["guard"]:
        raise InputError("--no-guard leaves nothing to set; leave out --guard-share, -burst, -window and -age.")
    chosen = any(options[name] for name in STREAM_OPTIONS) or rules or not options["guard"]
    chosen = chosen or options["views"] != 1 or not options["skip_duplicates"]
    if options["labels"] is None and options["fitted"] is None and chosen:
        raise InputError("options for new streams need --labels or --fitted.")
    if options["fitted"] is not None and (options["method"] or options["setting"]):
        raise InputError("a fitted file has the method and its settings; leave out --method and --set.")


def open_new_streams(
    options: Mapping[str, Any],
    names: Sequence[str] | None,
    templates: Any,
    method: dict[str, Any],
    limits: Limits,
) -> NewStreams:
    """Return the arguments of new streams, checked before anything is encoded.

    Args:
        options: the options of `acclimate serve` by name.
        names: the labels; None if there are none, or if they are those of the fitted file.
        templates: prompts, by default those of the set "single".
        method: the name and the settings of the method, without a fitted file.
        limits: the limits that new streams must keep.
    """
    learned = templates if isinstance(templates, LearnedPrompts) else None
    rules = {name: options[option] for name, option in GUARD_RULES.items() if options[option] is not None}
    setup: dict[str, Any] = {
        **method,
        "views": options["views"],
        "views_kind": options["views_kind"],
        "thumbnails": options["thumbnails"],
        "skip_duplicates": options["skip_duplicates"],
        "unsure": options["unsure"],
        "templates": learned.name if learned else templates,
        "reject": options["none_of_these"],
        "guard": rules if options["guard"] else None,
    }
    adapter = None
    encoder = None
    if options["fitted"] is not None:
        ready = Classifier(
            names,
            options["model"],
            templates=options["template"] and templates,
            fitted=options["fitted"],
            device=options["device"],
            precision=options["precision"],
            compile=options["compile"],
        )
        adapter = ready.adapter
        adapter.to(np.empty(0, np.float32))  # streams adapt on the host
        encoder = ready.encoder
        names = ready.labels
        setup |= {"method": adapter.name, "settings": adapter.settings}
        setup["templates"] = learned.name if learned else ready.templates
    if names is None:
        return NewStreams(None, learned, encoder)
    names, checked = check_setup(names, setup, limits, adapter)
    return NewStreams({"labels": names, "fitted": adapter, **checked.model_dump()}, learned, encoder)
