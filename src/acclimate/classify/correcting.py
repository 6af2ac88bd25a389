"""Corrections of results: a state is taught the right labels, and all other images are answered again from it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from acclimate.arrays import HostArray
from acclimate.classify.outputs import FeatureFile, ResultFile
from acclimate.errors import InputError, count
from acclimate.methods import Adapter
from acclimate.predict import Predictions, second_answers

ANSWER = ("label", "score", "predictions", "group", "group_score", "unsure", "changed")  # columns of an answer


class Effect(NamedTuple):
    """The effect of corrections on the images that were not corrected."""

    others: int  # these images
    changed: int  # other answers than before
    known: int  # images whose true label is known
    right_before: int
    right: int

    def __str__(self) -> str:
        """Return one or two lines.

        Examples:
            >>> print(Effect(others=480, changed=9, known=480, right_before=440, right=444))
            Answered again: 9 of the 480 other images have another answer.
            Accuracy on these 480 images: 91.7 % before, 92.5 % now (+0.8 points).
        """
        lines = [f"Answered again: {self.changed:,} of the {count(self.others, 'other image')} have another answer."]
        if self.known:
            before, now = (100 * right / self.known for right in (self.right_before, self.right))
            which = "these" if self.known == self.others else "the"
            those = "" if self.known == self.others else " of them whose true label is known"
            lines.append(
                f"Accuracy on {which} {count(self.known, 'image')}{those}: {before:.1f} % before, {now:.1f} % now "
                f"({now - before:+.1f} points)."
            )
        return "\n".join(lines)


def readable_records(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of images that could be read, in the order of the run: a spreadsheet may have sorted them."""
    return sorted((record for record in records if not record["error"]), key=lambda record: int(record["index"]))


def feature_file(results: Path, adapter: Adapter, views: int) -> FeatureFile:
    """Return the file for the features of the images of results."""
    return FeatureFile(ResultFile(results, 1).features, (*((views,) if views > 1 else ()), adapter.head.dim))


def answer_again(
    records: Sequence[dict[str, Any]],
    features: HostArray,
    adapter: Adapter,
    unsure: float = 0.0,
    parents: Mapping[str, str] | None = None,
) -> Effect:
    """Answer n images again from everything that an adapter has learnt, but those that were corrected.

    Args:
        records: n records of results, which get the new answers.
        features: (n, d), or (n, V, d) for V views per image.
        adapter: the adapter with its corrections.
        unsure: answers with a lower score are marked.
        parents: group of each label.
    """
    try:
        answers = Predictions.from_records(records, adapter.head.class_names)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"the results have answers that the state cannot give ({error}); name the --state of their run."
        ) from error
    top_k = max(len(record["predictions"]) for record in records)
    scored = len(adapter.head) + 1 if parents else top_k
    answers = answers.refined(second_answers(adapter, features, scored), scored, unsure)
    answers = answers.grouped(parents, top_k) if parents else answers
    others = [pair for pair in zip(records, answers, strict=True) if not pair[0]["correct_label"]]
    judged = [(record, answer) for record, answer in others if record["true_label"]]
    effect = Effect(
        len(others),
        sum(record["label"] != answer.label for record, answer in others),
        len(judged),
        sum(record["label"] == record["true_label"] for record, _ in judged),
        sum(answer.label == record["true_label"] for record, answer in judged),
    )
    for record, answer in others:
        new = answer.to_record()
        record.update({name: new[name] for name in ANSWER if name in record})
    return effect
