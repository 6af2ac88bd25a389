"""What `acclimate classify` and `acclimate cluster classify` share: what is asked of images, and a run's last lines."""

import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from acclimate.cli import arguments
from acclimate.cli.console import say
from acclimate.errors import InputError, RunError

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.classify.summary import Summary


class Task(NamedTuple):
    """What is asked of the images, and how."""

    names: tuple[str, ...] | None  # labels; None if they are those of a fitted file
    settings: dict[str, Any]  # of the method
    templates: Any  # None if none are given


def read_task(
    *,
    labels: str | None,
    model: str,
    method: str | None,
    setting: Sequence[str] | None,
    fitted: Path | None,
    template: Sequence[str] | None,
    views: int,
    state: str | Path | None,
) -> Task:
    """Labels, settings and templates as the options give them, checked before anything is loaded."""
    from acclimate.methods import find_method, require

    names = None if labels is None else arguments.read_labels(labels)
    settings: dict[str, Any] = {}
    if fitted is None:
        require(find_method(method or arguments.DEFAULT_METHOD), views=views > 1, text=True)
        settings = arguments.parse_settings(method or arguments.DEFAULT_METHOD, setting)
        settings |= {} if state is None else {"origin": Path(state).stem}
    elif method or setting or state:
        raise InputError(
            "a fitted file has the method, its settings and its state; leave out --method, --set, --state."
        )
    templates = arguments.read_templates(template) if template else None
    arguments.note_language(names or (), model)
    return Task(names, settings, templates)


def set_up(classifier: "Classifier", origin: str | None, freeze: bool) -> None:
    """What --origin and --freeze say, after a state was loaded."""
    from acclimate.errors import LONGEST_TEXT

    if origin is not None:
        if len(origin) > LONGEST_TEXT:
            raise InputError(f"--origin must have {LONGEST_TEXT} characters at most.")
        classifier.adapter.origin = origin
    if freeze:
        classifier.freeze()


def count_answers(summary: "Summary") -> str:
    """How many images were classified, and how many answers changed."""
    from acclimate.classify.wording import count

    unreadable = f", {summary.unreadable} could not be read" if summary.unreadable else ""
    images = count(summary.answered, "image")
    answers = count(summary.changed, "answer")
    again = f" (the second pass changed {summary.changed_again} of the online ones)" if summary.passes == 2 else ""
    return f"{images} classified{unreadable}, {answers} changed by adapting{again}"


def say_findings(summary: "Summary", unsure: float, classifier: "Classifier") -> None:
    """Say what else a run has found.

    Raises:
        RunError: if no image could be read.
    """
    from acclimate.classify.wording import count
    from acclimate.predict import NONE

    if unsure:
        doubts = f"{summary.unsure:,} of {count(summary.answered, 'answer')}"
        say(f"{doubts} {'is' if summary.unsure == 1 else 'are'} unsure (score below {unsure:g}).", err=True)
    if none := summary.after[NONE]:
        say(f"{count(none, 'image')} {'is' if none == 1 else 'are'} none of these.", err=True)
    if accuracy := str(summary.accuracy):
        say(accuracy, err=True)
    if advice := classifier.adapter.advice():
        say(f"note: {advice}", err=True)
    if not summary.answered:
        name, why = summary.reasons[0]
        raise RunError(f"no image could be read. The first is {name}: {why}")


def with_options_of(
    command: Callable[..., None], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with further options, which are defined, explained and named by another one.

    Args:
        command: the other command; the options that both define are those of the command itself.
        without: options of the other command that this one does not have.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
        known = {each.name for each in own}.union(without)
        others = [each for each in inspect.signature(command).parameters.values() if each.name not in known]
        both = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *others)]
        function.__annotations__ = {each.name: each.annotation for each in both} | {"return": None}
        function.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        return function

    return decorate
