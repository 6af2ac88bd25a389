"""Labels, and the prompts in which a text encoder reads them: written in templates, or learned.

A template is a string with `{}` or `{c}` in place of the class name, or a function from the name to a prompt. Complete
prompts for each class, such as a language model writes, are given as a dict. Named sets are in `data/templates.json`.
"""

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.errors import InputError, ModelError, StateError, as_words, check_text, same_words
from acclimate.evidence import Head
from acclimate.files import read_snapshot

Template = str | Callable[[str], str]
Templates = Template | Sequence[Template] | Mapping[str, str | Sequence[str]]

DEFAULT_SET = "single"
DATA = files("acclimate.prompts") / "data"
MAX_CONTEXT_VALUE = 1e6  # far beyond the values that make sense in a learned context
LEARNED_PREFIX = "learned:"  # stands before the path of a file on the command line, and before a name
# Shares of the labels that must look foreign: English has words such as 'café' and 'chat', too.
FOREIGN_SHARE = 0.1
ACCENTED_SHARE = 1 / 3
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


def foreign_labels(labels: Sequence[str]) -> str:
    """Return why labels do not look English, in words; "" if they do.

    One label in a script other than Latin is enough. Otherwise at least two labels must be frequent words of the same
    language, one of them unknown to English, or a third of the labels, two at least, must have accents.

    Examples:
        >>> foreign_labels(["chat", "chien", "oiseau"])
        "'chat', 'chien' and 'oiseau' look French"
        >>> foreign_labels(["cat", "jalapeño", "chat"])
        ''
    """
    if other := [label for label in labels if any(c.isalpha() and not _is_latin(c) for c in label)]:
        return f"{_enumerated(other)} {'has' if len(other) == 1 else 'have'} letters that are not Latin"
    for language, (own, shared) in _frequent_words().items():
        sure = [label for label in labels if _tokens(label) & own]
        likely = [label for label in labels if _tokens(label) & (own | shared)]
        if sure and len(likely) >= max(2, FOREIGN_SHARE * len(labels)):
            return f"{_enumerated(likely)} look {language}"
    accented = [
        label for label in labels if any(not c.isascii() and unicodedata.name(c, "").startswith("LATIN") for c in label)
    ]
    if len(accented) >= max(2, ACCENTED_SHARE * len(labels)):
        return f"{_enumerated(accented)} have accents"
    return ""


def language_note(labels: Sequence[str]) -> str:
    """Return a note for users of a model that reads English only, if their labels do not look English; else ""."""
    why = foreign_labels(labels)
    return why and (
        f"{why}; the bundled model reads English only, and guesses at other words. "
        "Write the labels in English, or choose a model for your language."
    )


@cache
def _frequent_words() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Return by language the frequent words that are not English, and those that English has as well."""
    described = json.loads((DATA / "foreign_words.json").read_text(encoding="utf-8"))
    return {
        language: (frozenset(words["own"].split()), frozenset(words["shared"].split()))
        for language, words in described.items()
    }


def _tokens(label: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", label.casefold()))


def _is_latin(letter: str) -> bool:
    return letter.isascii() or unicodedata.name(letter, "LATIN").startswith(("LATIN", "FEMININE", "MASCULINE", "MICRO"))


def _enumerated(labels: Sequence[str]) -> str:
    *first, last = [repr(label) for label in labels[:3]]
    return f"{', '.join(first)} and {last}" if first else last


@cache
def template_sets() -> Mapping[str, tuple[str, ...]]:
    """Return the named sets of templates."""
    described = json.loads((DATA / "templates.json").read_text(encoding="utf-8"))
    return MappingProxyType(
        {name: tuple(described[about.get("same_as", name)]["templates"]) for name, about in described.items()}
    )


@dataclass(frozen=True, eq=False)
class LearnedPrompts:
    """The prompts of any labels with a learned context; they take the place of templates.

    Attributes:
        context: (M, width) vectors before every name, or (K, M, width) for the K classes they were learned for.
        class_names: these K classes.
        encoder: fingerprint of the model they were learned with; "" if unknown.
        source: where they come from, for messages.

    Examples:
        >>> LearnedPrompts.load("nowhere.safetensors")
        Traceback (most recent call last):
        acclimate.errors.StateError: no state file at nowhere.safetensors.
    """

    context: HostArray
    class_names: tuple[str, ...]
    encoder: str
    source: str

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LearnedPrompts":
        """Read the prompts of a state file whose method has learned some; of `cocoop`, those of its mean image."""
        arrays, description = read_snapshot(path)
        context = arrays.get("exports.context")
        encoder = description.get("encoder", "")
        if context is None or not description.get("seen"):
            raise StateError(f"{path} holds no learned prompts; make some with `acclimate fit --method coop`.")
        head = Head.from_file(arrays, description.get("head"), path)
        fits = context.ndim == 2 or (context.ndim == 3 and len(context) == len(head))
        usable = isinstance(encoder, str) and context.dtype.kind == "f" and 0 not in context.shape and fits
        if not usable or not np.abs(context).max() <= MAX_CONTEXT_VALUE:
            raise StateError(f"{path} holds learned prompts that break a rule; it was damaged or edited.")
        return cls(context, head.class_names, encoder, os.fspath(path))

    @property
    def name(self) -> str:
        """The text that stands for them where templates are text: equal for equal content."""
        names = self.class_names if self.context.ndim == 3 else ()
        return (
            LEARNED_PREFIX
            + hashlib.sha256(repr((self.context.shape, names)).encode() + self.context.tobytes()).hexdigest()
        )

    def vectors(self, encoder: Any, labels: Sequence[str]) -> HostArray:
        """Return unit class vectors (K, d) of labels.

        Raises:
            ModelError: the prompts were learned with another model, or the model cannot take embeddings.
            InputError: a label has no context of its own, where contexts were learned per class.
        """
        if not hasattr(encoder, "text_tower"):
            raise ModelError(
                f"learned prompts need a text tower that takes embeddings, which {type(encoder).__name__} does not "
                "have; use a CLIP model of hf:, local: or open_clip:."
            )
        tower = encoder.text_tower()
        known = self.encoder and encoder.fingerprint
        if (known and self.encoder != encoder.fingerprint) or self.context.shape[-1] != tower.width:
            raise ModelError(f"the prompts of {self.source} were learned with another model; use that, or fit again.")
        context = self.context
        if context.ndim == 3:
            index = {name: i for i, name in enumerate(self.class_names)}
            if missing := [label for label in labels if label not in index]:
                raise InputError(
                    f"{self.source} has a context for each class it was fitted to, and none for {missing[0]!r}; "
                    "fit again with it, or without class_specific."
                )
            context = context[[index[label] for label in labels]]
        import torch

        with torch.no_grad():
            placed = torch.as_tensor(np.asarray(context, np.float32), device=tower.device)
            return to_host(tower.prompts(labels, context.shape[-2]).vectors(placed))


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
        return [f"{templates.context.shape[-2]} learned vectors, then {label!r}" for label in labels[:1]]
    if isinstance(templates, str) and templates.startswith(LEARNED_PREFIX):  # only their name is known
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
    if template.startswith(LEARNED_PREFIX):
        raise InputError("the prompts were learned, and only their name is known here; load their file again for this.")
    raise InputError(
        f"the template {template!r} has no {{}} for the class name; write one such as 'a photo of a {{}}.', "
        f"or name a set: {', '.join(template_sets())}."
    )


def check_size(labels: Sequence[str], templates: Any, prompts: int, chars: int) -> None:
    """Refuse templates that make more prompts with these labels, or longer ones, before any is made.

    Examples:
        >>> check_size(["cat", "dog"], ["a photo of a {}.", "a drawing of a {}."], prompts=3, chars=100)
        Traceback (most recent call last):
        acclimate.errors.InputError: 2 labels and these templates make more than 3 prompts; use fewer...
    """
    if isinstance(templates, Mapping):
        texts: Iterable[Any] = chain.from_iterable(check_prompts(templates, "templates").values())
        per_text = 1
    else:
        texts = chain.from_iterable(map(resolve, [templates] if isinstance(templates, str) else templates))
        per_text = len(labels)
    longest = max(map(len, labels))
    for number, text in enumerate(texts, start=1):
        if number * per_text > prompts:
            made = f"{len(labels)} labels and these templates make more than {prompts} prompts"
            raise InputError(f"{made}; use fewer templates or labels, or a larger limit.")
        if len(text) + text.count("{") * longest > chars:
            raise InputError(
                f"the template {text[:20]!r}... makes prompts of more than {chars} characters; shorten it."
            )
    prompts_for(labels, templates)  # refuses what makes no prompt


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
