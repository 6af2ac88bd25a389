"""Labels, and the prompts in which a text encoder reads them.

A template is a string with `{}` or `{c}` in place of the class name, or a function from the name to a prompt. Complete
prompts for each class, such as a language model writes, are given as a dict. Named sets are in `data/templates.json`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Any

from acclimate.errors import InputError, as_words, check_text, same_words
from acclimate.prompts.learned import PREFIX, LearnedPrompts

Template = str | Callable[[str], str]
Templates = Template | Sequence[Template] | Mapping[str, str | Sequence[str]]

DEFAULT_SET = "single"
_PLACEHOLDER = re.compile(r"\{c?\}")
_OTHER_FIELD = re.compile(r"\{(?!c?\})[^{}]*\}")
_WORDNET_ID = re.compile(r"n\d{8}\b")


def clean_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Strip and validate labels.

    Raises:
        InputError: there are no labels, or one is empty, not a string, a WordNet id, or the same as another but for
            case and spaces; or one has control characters.
    """
    if isinstance(labels, str):
        named = [label.strip() for label in labels.split(",") if label.strip()]
        raise InputError(f"labels must be a list of class names, got the string {labels!r}; write {named}.")
    seen: dict[str, str] = {}
    for position, label in enumerate(labels, start=1):
        if not isinstance(label, str):
            raise InputError(f"label {position} must be a string, got {label!r} of type {type(label).__name__}.")
        stripped = check_text(label.strip(), f"label {position}")
        words = same_words(label)
        if not words:
            raise InputError(f"label {position} is empty; write a class name or remove it.")
        if _WORDNET_ID.match(words):
            raise InputError(
                f"label {stripped!r} looks like a WordNet id; replace ids by words (n01440764 by 'tench')."
            )
        if words in seen:
            raise InputError(f"labels {seen[words]!r} and {stripped!r} are the same class; remove one, or rename it.")
        seen[words] = stripped
    if not seen:
        raise InputError("there are no labels; pass at least two class names.")
    return tuple(seen.values())


@cache
def template_sets() -> Mapping[str, tuple[str, ...]]:
    """Return the named sets of templates."""
    described = json.loads((files("acclimate.prompts") / "data" / "templates.json").read_text(encoding="utf-8"))
    return MappingProxyType(
        {name: tuple(described[about.get("same_as", name)]["templates"]) for name, about in described.items()}
    )


def prompts_for(labels: Sequence[str], templates: Templates) -> list[list[str]]:
    """Fill in the templates for each label.

    Args:
        labels: K class names.
        templates: a template, the name of a set, a list of these, or a dict from class name to complete prompts.

    Returns:
        K lists of prompts, in the order of the labels.

    Raises:
        InputError: a template has no placeholder for the class name, or a label has no prompts.

    Examples:
        >>> from acclimate.prompts import prompts_for
        >>> prompts_for(["cat", "sea_lion"], ["a photo of a {}.", "a drawing of a {}."])
        [['a photo of a cat.', 'a drawing of a cat.'], ['a photo of a sea lion.', 'a drawing of a sea lion.']]
    """
    if isinstance(templates, Mapping):
        return _prompts_per_class(labels, templates)
    many = templates if isinstance(templates, Sequence) and not isinstance(templates, str) else [templates]
    resolved = list(chain.from_iterable(map(resolve, many)))
    if not resolved:
        raise InputError("there are no templates; pass at least one, such as 'a photo of a {}.'.")
    return [[_fill(template, label) for template in resolved] for label in labels]


def example_prompts(labels: Sequence[str], templates: Templates | LearnedPrompts, count: int = 3) -> list[str]:
    """Return at most `count` distinct prompts from as many classes as possible, to show what the encoder reads.

    If there are more, one more text says how many.
    """
    if isinstance(templates, LearnedPrompts):
        return [templates.example(label) for label in labels[:1]]
    if isinstance(templates, str) and templates.startswith(PREFIX):  # only their name is known
        return ["learned prompts"]
    by_template = chain.from_iterable(zip_longest(*prompts_for(labels, templates)))
    prompts = list(dict.fromkeys(prompt for prompt in by_template if prompt is not None))
    more = len(prompts) - count
    return prompts[:count] + ([f"..., {more:,} more"] if more > 0 else [])


def resolve(template: Any) -> Sequence[Template]:
    """Return the templates that one value stands for: itself, or those of a named set."""
    if callable(template):
        return (template,)
    if not isinstance(template, str):
        raise InputError(f"a template must be a string or a function, got {template!r}.")
    check_text(" ".join(template.split()), "a template")
    if _PLACEHOLDER.search(template):
        if other := _OTHER_FIELD.search(template):
            raise InputError(f"the template {template!r} has {other[0]}; only {{}} or {{c}} stands for the class name.")
        return (template,)
    if template in template_sets():
        return template_sets()[template]
    if template.startswith(PREFIX):
        raise InputError("the prompts were learned, and only their name is known here; load their file again for this.")
    raise InputError(
        f"the template {template!r} has no {{}} for the class name; write one such as 'a photo of a {{}}.', "
        f"or name a set: {', '.join(template_sets())}."
    )


def _fill(template: Template, label: str) -> str:
    if isinstance(template, str):
        return _PLACEHOLDER.sub(lambda _: as_words(label), template)
    prompt = template(as_words(label))
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(f"a template function must return a prompt, got {prompt!r} for the label {label!r}.")
    return prompt


class PromptFile(dict[str, list[str]]):
    """Complete prompts per class that were read from a file, which errors name."""

    def __init__(self, per_class: Mapping[Any, Any], source: str) -> None:
        super().__init__(check_prompts(per_class, source))
        self.source = source


def _prompts_per_class(labels: Sequence[str], per_class: Mapping[str, str | Sequence[str]]) -> list[list[str]]:
    source = getattr(per_class, "source", "the dict of prompts")
    by_words = {as_words(name): prompts for name, prompts in check_prompts(per_class, source).items()}
    if missing := [label for label in labels if as_words(label) not in by_words]:
        spoken = set(map(as_words, labels))
        others = [name for name in per_class if as_words(name) not in spoken]
        unused = f" (it has {_listed(others)}, not among the labels)" if others else ""
        raise InputError(f"{source} has no prompts for {_listed(missing)}{unused}; add prompts for every label.")
    return [[_fill(prompt, label) for prompt in by_words[as_words(label)]] for label in labels]


def _listed(names: Sequence[str]) -> str:
    """Return the first of the names, and how many more there are."""
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def check_prompts(per_class: Mapping[Any, Any], what: str) -> dict[str, list[str]]:
    """Return complete prompts per class with every value as a list; `what` names them in errors."""
    checked = {}
    for name, given in per_class.items():
        prompts = [given] if isinstance(given, str) else given
        usable = isinstance(name, str) and isinstance(prompts, Sequence) and len(prompts) > 0
        if not usable or not all(isinstance(prompt, str) and prompt.strip() for prompt in prompts):
            raise InputError(f"{what} must map each class to a list of prompts; {name!r} has {str(given)[:80]!r}.")
        checked[name] = list(prompts)
        check_text(" ".join(chain.from_iterable(prompt.split() for prompt in prompts)), f"a prompt of {name!r}")
    return checked
