"""The command `acclimate serve` from its settings on: the setup of new streams, and the running service."""

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any

import numpy as np

from acclimate.classifier import Classifier
from acclimate.encoders import load_encoder
from acclimate.errors import InputError
from acclimate.prompts import LearnedPrompts
from acclimate.serve.app import create_app
from acclimate.serve.security import LOOPBACK_NAMES, TokenFile
from acclimate.serve.server import bind, serve
from acclimate.serve.settings import DEFAULT_STREAMS, ServeSettings
from acclimate.serve.streams import Streams, check_setup


def open_fitted(settings: ServeSettings, labels: Sequence[str] | None, templates: Any) -> Classifier:
    """Return the classifier of the fitted file in the settings; its adapter works on the host, as streams do."""
    chosen = settings.streams
    if chosen.method != DEFAULT_STREAMS.method or chosen.settings:
        raise InputError("a fitted file has the method and its settings; leave out --method and --set.")
    ready = Classifier(
        labels,
        settings.model,
        templates=None if chosen.templates == DEFAULT_STREAMS.templates else templates,
        fitted=chosen.fitted,
        device=settings.device,
        precision=settings.precision,
        compile=settings.compile,
    )
    ready.adapter.to(np.empty(0, np.float32))
    return ready


def setup_new_streams(
    settings: ServeSettings, labels: Sequence[str] | None, templates: Any, ready: Classifier | None
) -> dict[str, Any] | None:
    """Return the arguments of streams that are created by their first images, checked before anything is encoded.

    Args:
        settings: the settings of the service.
        labels: the labels; None if there are none, or if they are those of the fitted file.
        templates: the templates as they were read; see `acclimate.cli.arguments.read_templates`.
        ready: the classifier of the fitted file; None if there is none.
    """
    options = settings.streams.model_dump(exclude={"labels", "fitted"}) | {"templates": templates}
    adapter = None
    if ready is not None:
        labels = ready.labels
        adapter = ready.adapter
        options |= {"method": adapter.name, "settings": adapter.settings, "templates": ready.templates}
    elif labels is None:
        if settings.streams != DEFAULT_STREAMS:
            raise InputError("settings of new streams, in [streams], need --labels or --fitted.")
        return None
    if isinstance(templates, LearnedPrompts):
        options["templates"] = templates.name
    names, setup = check_setup(labels, options, settings.limits, adapter)
    return {"labels": names, "fitted": adapter, **setup.model_dump()}


def run_service(
    settings: ServeSettings, labels: Sequence[str] | None, templates: Any, announce: Callable[[str], None]
) -> None:
    """Serve until the process gets a signal to stop.

    Args:
        settings: the settings of the service.
        labels: the labels of new streams as they were read; None if there are none.
        templates: the templates of new streams as they were read.
        announce: called with a line of text when the address works.
    """
    if settings.data is None:
        raise InputError("there is no folder for the state of the streams; give one with --data.")
    with bind(settings.host, settings.port) as listening:
        address, port = listening.getsockname()[:2]
        local = ip_address(address).is_loopback
        if settings.token_file is None and not local:
            raise InputError(f"{address} can be reached from other machines; give --token-file, or use 127.0.0.1.")
        tokens = None if settings.token_file is None else TokenFile(settings.token_file)
        ready = None if settings.streams.fitted is None else open_fitted(settings, labels, templates)
        defaults = setup_new_streams(settings, labels, templates, ready)
        learned = templates if isinstance(templates, LearnedPrompts) else None
        if ready is None:
            encoder = load_encoder(settings.model, settings.device, settings.precision, settings.compile)
        else:
            encoder = ready.encoder
        if learned is not None and defaults is not None:
            learned.vectors(encoder, defaults["labels"])  # refuses prompts that new streams could not have
        streams = Streams(settings.data, encoder, settings.limits, defaults, learned)
        shown = f"[{address}]" if ":" in address else address
        allowed = (*LOOPBACK_NAMES, shown, *settings.allow_host)
        application = create_app(streams, tokens, frozenset(map(str.lower, allowed)) if local else None)
        listening.listen()  # the address must work before it is printed
        announce(f"serving on http://{shown}:{port} (API documentation at /docs); press Ctrl-C to stop.")
        serve(application, listening, settings.model)
