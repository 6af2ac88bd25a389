"""Many streams: made, found, listed, deleted."""

import asyncio

import numpy as np
import pytest

from acclimate import Classifier
from acclimate.errors import ImageError, InputError
from acclimate.serve.errors import BusyError, ExistsError, NotFoundError, TooManyError, UnusableError
from acclimate.serve.streams import Streams

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


def test_streams_are_made_found_listed_and_deleted(start, images, tmp_path):
    streams = start()
    shop, lab = streams.create("shop", LABELS), streams.create("lab.2_b-c", LABELS[:2], thumbnails=True)
    assert streams.names() == ["lab.2_b-c", "shop"]
    assert streams.get("shop") is shop
    assert [each["name"] for each in streams.describe()] == streams.names()
    shop.classify(images[:5]).result(60)
    lab.classify(images[:5]).result(60)
    assert streams.entries()["positive"] == shop.history.entries()["positive"] + lab.history.entries()["positive"] > 2
    with pytest.raises(ExistsError, match="already is a stream 'shop'"):
        streams.create("shop", LABELS, skip_duplicates=False)
    streams.delete("shop")
    assert sorted(path.name for path in (tmp_path / "state" / "streams").iterdir()) == ["lab.2_b-c"]
    for action in (streams.get, streams.delete):
        with pytest.raises(NotFoundError, match="no stream 'shop'"):
            action("shop")
    for action in (shop.reset, shop.snapshot, lambda: shop.classify(images[:1])):
        with pytest.raises(NotFoundError, match="stream 'shop' does not exist any more"):
            action()
    assert streams.create("shop", LABELS, skip_duplicates=False).describe()["samples_seen"] == 0


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "A", "-a", ".a", "a" * 65, "a\n", "a\0", "ä", "a b", "%2e", "con:"]
)
def test_names_that_could_be_paths_are_refused(start, name, tmp_path):
    streams = start()
    with pytest.raises(InputError, match="for instance pets-2024"):
        streams.create(name, LABELS, skip_duplicates=False)
    with pytest.raises(NotFoundError):
        streams.get(name)
    with pytest.raises(NotFoundError):
        streams.delete(name)
    assert list((tmp_path / "state" / "streams").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ["one"]}, "2 to 9 labels, got 1"),
        ({"labels": [str(i) for i in range(10)]}, "2 to 9 labels, got 10"),
        ({"labels": ["cat", "Katze " * 50]}, "longer than 200 characters"),
        ({"labels": ["cat", "cat "]}, "the same class"),
        (
            {"templates": ["{} {}".format(i, "{}") for i in range(5)]},
            "make more than 20 prompts",
        ),
        ({"templates": "no place"}, "has no {} for the class name"),
        ({"templates": 3}, "templates.str: Input should be a valid string"),
        ({"method": "magic"}, "unknown method 'magic'"),
        ({"method": "tda", "settings": {"positive_capacity": 0}}, "at least 1"),
        ({"method": "tda", "settings": {"negative_capacity": 65}}, "settings keep 68 samples per label, at most 64"),
        ({"method": "zero"}, "'zero' needs several views"),
        ({"method": "zero", "views": 65}, "views must be from 1 to 64, got 65"),
        ({"views": 0}, "views: Input should be greater than or equal to 1"),
        ({"guard": {"share": 0.0}}, "guard.share: Input should be greater than 0"),
        ({"settings": {"capacity": 1}}, "no setting 'capacity'"),
    ],
)
def test_bad_setups_are_refused_and_leave_nothing(start, arguments, message, tmp_path):
    streams = start(labels=9, prompts=20)
    with pytest.raises(InputError, match=message):
        streams.create("shop", **{"labels": LABELS, **arguments})
    assert streams.names() == list((tmp_path / "state" / "streams").iterdir()) == []


def test_there_is_a_most_of_streams(start):
    streams = start(streams=2)
    streams.create("a", LABELS, skip_duplicates=False)
    streams.create("b", LABELS, skip_duplicates=False)
    with pytest.raises(TooManyError, match="the maximum of 2 streams is reached"):
        streams.create("c", LABELS, skip_duplicates=False)
    streams.delete("a")
    streams.create("c", LABELS, skip_duplicates=False)


def test_a_folder_is_for_one_service(start, encoder, tmp_path):
    start()
    with pytest.raises(InputError, match="another service uses"):
        Streams(tmp_path / "state", encoder)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot store streams in"):
        Streams(tmp_path / "file", encoder)


def test_a_stream_of_another_model_is_refused(start, after_a_kill, encoder, monkeypatch):
    start().create("shop", LABELS, skip_duplicates=False)
    monkeypatch.setattr(encoder, "fingerprint", "another")
    with pytest.raises(UnusableError, match="made with another model; start the service with that model"):
        after_a_kill().get("shop")


def test_zero_shot_is_the_models_own_answer(start, images, encoder, tmp_path):
    streams = start()
    classifier = Classifier(["cat", "dog"], encoder, method="zero-shot", templates="the {}", cache=tmp_path)
    for image, other in zip(images[:5], classifier.stream(images[:5]), strict=True):
        mine = asyncio.run(streams.zero_shot(image, ["cat", "dog"], "the {}"))
        assert mine.label == other.label
        np.testing.assert_allclose(mine.score, other.score, atol=1e-4)
        assert len(mine.top) == 2
    with pytest.raises(ImageError):
        asyncio.run(streams.zero_shot(b"no", ["cat", "dog"], "{}"))
    with pytest.raises(InputError):
        asyncio.run(streams.zero_shot(images[0], ["cat"], "{}"))
    assert list((tmp_path / "state").glob("texts/*")) == []
    streams.batcher.close()
    with pytest.raises(BusyError):
        asyncio.run(streams.zero_shot(images[0], ["cat", "dog"], "{}"))
