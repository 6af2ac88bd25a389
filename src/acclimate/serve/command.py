"""The command `acclimate serve`, from its options on: defaults of new streams, and the running service."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from acclimate.classifier import Classifier
from acclimate.encoders import Encoder, load_encoder
from acclimate.errors import InputError
from acclimate.prompts import LearnedPrompts
from acclimate.serve.app import bind, create_app, is_loopback, serve
from acclimate.serve.limits import Limits
from acclimate.serve.security import LOOPBACK_NAMES, TokenFile
from acclimate.serve.service import check_setup
from acclimate.serve.streams import Streams

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


def run_service(
    options: Mapping[str, Any],
    limits: Limits,
    new_streams: Callable[[], NewStreams],
    announce: Callable[[str], None],
) -> None:
    """Serve until the process gets a signal to stop.

    Args:
        options: the options of `acclimate serve` by name.
        limits: the limits that they give.
        new_streams: returns the arguments of new streams; called when the address and the tokens were checked.
        announce: called with the address when it works.
    """
    host = options["host"]
    tokens = None if options["token_file"] is None else TokenFile(options["token_file"])
    local = is_loopback(host)
    if tokens is None and not local:
        raise InputError(f"{host} can be reached from other machines; give --token-file, or listen on 127.0.0.1.")
    new = new_streams()
    with bind(host, options["port"]) as listening:
        loading = (options["model"], options["device"], options["precision"], options["compile"])
        encoder = new.encoder or load_encoder(*loading)
        if new.learned is not None and new.defaults is not None:
            new.learned.vectors(encoder, new.defaults["labels"])  # refuses prompts that new streams could not have
        streams = Streams(options["data"], encoder, limits, new.defaults, new.learned)
        address, bound = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        allowed = (*LOOPBACK_NAMES, shown, *(options["allow_host"] or []))
        application = create_app(streams, tokens, frozenset(map(str.lower, allowed)) if local else None)
        listening.listen()  # the address must work before it is printed
        announce(f"http://{shown}:{bound}")
        serve(application, listening, options["model"])
