from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acclimate.classify.summary import summarise
from acclimate.predict import Answer, Prediction, Predictions
from prediction_columns import columns_of

LABELS = ("a", "b", "c", "d")
probabilities = st.floats(0, 1, width=32)
labels = st.sampled_from(LABELS)
answers = st.tuples(labels, probabilities, labels, probabilities, labels, st.none() | labels)


def answered(index, label, score, zero_shot_label, zero_shot_score, online_label=None, truth=None):
    online = Answer(online_label or label, score)
    zero_shot = Answer(zero_shot_label, zero_shot_score)
    top = (Answer(label, score),)
    name = f"{index}.jpg"
    unsure = score < 0.6
    return Prediction(index, top, zero_shot, 0.1, name=name, online=online, truth=truth, unsure=unsure)


def unreadable(index):
    return Prediction(index, name=f"{index}.jpg", error="bad", truth="a")


def indices(records):
    return [record["index"] for record in records]


def summarised(found):
    """Return the summary of predictions that come in three blocks."""
    whole = columns_of(found)
    cuts = [0, len(found) // 3, len(found) // 2, len(found)]
    return summarise([part_of(whole, first, last) for first, last in pairwise(cuts) if last > first], passes=2)


def part_of(whole, first, last):
    columns = {name: value[first:last] for name, value in vars(whole).items() if name not in ("labels", "start")}
    return Predictions(whole.labels, start=first, **columns)


@given(st.lists(st.none() | answers, max_size=700))
def test_summary_counts_as_a_naive_count_does(drawn):
    found = [unreadable(i) if one is None else answered(i, *one) for i, one in enumerate(drawn)]
    summary = summarised(found)
    good = [each for each in found if each.error is None]
    changed = [each for each in good if each.changed]
    assert (summary.images, summary.answered, summary.changed) == (len(found), len(good), len(changed))
    assert summary.unsure == sum(each.unsure for each in good)
    assert summary.changed_online == sum(each.online.label != each.zero_shot.label for each in good)
    assert summary.changed_again == sum(each.online.label != each.label for each in good)
    assert summary.reasons == [(each.name, "bad") for each in found if each.error][:20]
    assert summary.before == Counter(each.zero_shot.label for each in good)
    assert summary.after == Counter(each.label for each in good)
    edges = np.linspace(0, 1, 21)
    assert summary.after_bins == np.histogram([each.score for each in good], edges)[0].tolist()
    assert summary.pairs == Counter((each.zero_shot.label, each.label) for each in changed)
    by_rise = sorted(changed, key=lambda each: (-(each.score + each.zero_shot.score - 1.0), each.index))
    assert indices(summary.most_changed) == [each.index for each in by_rise][:24]
    by_score = sorted(good, key=lambda each: (each.score, each.index))
    assert indices(summary.least_sure) == [each.index for each in by_score][:24]
    bins = [good[start : start + summary.bin_width] for start in range(0, len(good), summary.bin_width)]
    assert summary.stream == [sum(each.changed for each in part) for part in bins]
    online = [sum(each.online.label != each.zero_shot.label for each in part) for part in bins]
    assert summary.stream_online == online
    for label, examples in summary.examples.items():
        of_label = {each.index: each for each in good if each.label == label}
        shown = {each.position: each.right for each in examples}
        assert len(shown) == min(6, len(of_label))
        assert all(right == (of_label[index].truth in (None, label)) for index, right in shown.items())


@given(st.lists(st.none() | answers, max_size=200))
def test_right_answers_are_counted_where_the_truth_is_known(drawn):
    found = [unreadable(i) if one is None else answered(i, *one) for i, one in enumerate(drawn)]
    summary = summarised(found)
    known = [each for each in found if each.error is None and each.truth is not None]
    right = [each.label == each.truth for each in known]
    before = [each.zero_shot.label == each.truth for each in known]
    accuracy = summary.accuracy
    assert (accuracy.known, accuracy.right, accuracy.right_before) == (len(known), sum(right), sum(before))
    assert accuracy.gained == sum(new and not old for new, old in zip(right, before, strict=True))
    assert accuracy.lost == sum(old and not new for new, old in zip(right, before, strict=True))
    assert summary.truths == Counter(each.truth for each in known)
    assert summary.judged == Counter(each.label for each in known)
    wrong = [each for each in known if each.label != each.truth]
    assert summary.confusions == Counter((each.truth, each.label) for each in wrong)
    by_score = sorted(wrong, key=lambda each: (-each.score, each.index))
    assert indices(summary.wrong) == [each.index for each in by_score][:48]
    edges = np.linspace(0, 1, 21)
    assert summary.judged_bins == np.histogram([each.score for each in known], edges)[0].tolist()
    scores = [each.score for each, hit in zip(known, right, strict=True) if hit]
    assert summary.right_bins == np.histogram(scores, edges)[0].tolist()
