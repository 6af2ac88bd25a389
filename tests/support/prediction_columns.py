"""Predictions of a test as the columns in which a run holds them."""

import numpy as np

from acclimate.predict import NONE, Predictions


def columns_of(predictions):
    """Return predictions, given one by one, as one block; their positions must follow each other."""
    answers = [(each.zero_shot, each.online, *each.top) for each in predictions if each.error is None]
    labels = [answer.label for answered in answers for answer in answered]
    labels += [each.truth for each in predictions if each.truth]
    labels = (*(label for label in dict.fromkeys(labels) if label not in ("", NONE)), NONE)
    classes = {label: row for row, label in enumerate(labels)} | {"": -1}
    width = max((len(each.top) for each in predictions), default=0)
    tops = [[*((classes[answer.label], answer.score) for answer in each.top)] for each in predictions]
    tops = [[*top, *[(-1, 0.0)] * (width - len(top))] for top in tops]
    return Predictions(
        labels,
        classes=np.array([[best for best, _ in top] for top in tops], int).reshape(len(tops), width),
        scores=np.array([[score for _, score in top] for top in tops], float).reshape(len(tops), width),
        zero_shot_classes=np.array([classes[each.zero_shot.label] for each in predictions], int),
        zero_shot_scores=np.array([each.zero_shot.score for each in predictions], float),
        online_classes=np.array([classes[each.online.label] for each in predictions], int),
        online_scores=np.array([each.online.score for each in predictions], float),
        entropy=np.array([each.entropy for each in predictions], float),
        ids=np.array([-1 if each.id is None else each.id for each in predictions], int),
        none=np.array([np.nan if each.none is None else each.none for each in predictions], float),
        unsure=np.array([each.unsure for each in predictions], bool),
        admitted=[each.admitted for each in predictions],
        refused=[each.refused for each in predictions],
        names=[each.name for each in predictions],
        errors=[each.error for each in predictions],
        truths=[each.truth for each in predictions],
        taken=[each.taken for each in predictions],
        groups=[each.group for each in predictions],
        corrected=[each.correct_label for each in predictions],
        start=predictions[0].index if predictions else 0,
    )
