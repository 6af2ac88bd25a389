from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
from PIL import Image

from acclimate import DEFAULT_METHOD, Accord, Classifier, create, list_methods
from acclimate.arrays import softmax_and_entropy
from acclimate.encoders import load_encoder
from acclimate.errors import ImageError, InputError, StateError
from drawn_images import draw

LABELS = ["red circle", "green square", "blue_stripes", "cat", "dog"]


@pytest.fixture(scope="module")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}")


@pytest.fixture
def classifier(encoder, tmp_path):
    return Classifier(LABELS, encoder, cache=tmp_path / "cache")


@pytest.fixture
def paths(photos):
    return sorted(photos.rglob("*.png"))


def test_one_image_many_images(classifier, paths):
    answer = classifier(paths[0])
    assert sorted(each["label"] for each in answer) == sorted(LABELS)
    scores = [each["score"] for each in answer]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-5)
    picture = Image.open(paths[1])
    many = classifier([str(paths[0]), picture, np.asarray(picture), paths[1].read_bytes()], top_k=2, adapt=False)
    assert [len(each) for each in many] == [2, 2, 2, 2]
    for each in many[2:]:  # the same image at other places of a batch
        assert [found["label"] for found in each] == [found["label"] for found in many[1]]
        assert [found["score"] for found in each] == pytest.approx([found["score"] for found in many[1]], abs=1e-5)


def test_folders_patterns_lists_and_tensors(classifier, photos, paths, tmp_path, monkeypatch):
    monkeypatch.chdir(photos)
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{path}\n" for path in paths[:2]))
    red = sorted(photos.glob("red/*.png"))
    for given, count in (
        (photos, 40),
        ("red/", len(red)),
        ("red/*.png", len(red)),
        ([photos / "red", str(paths[0])], len(red) + 1),
        (listed, 2),
        ([], 0),
    ):
        assert len(classifier(given, adapt=False)) == count
    assert [each.name for each in classifier.stream("red")] == [each.name for each in classifier.classify(["red"])]
    (tmp_path / "a[1].png").write_bytes(paths[0].read_bytes())
    assert isinstance(classifier(tmp_path / "a[1].png", adapt=False)[0], dict), "a file, not a pattern"
    torch = pytest.importorskip("torch")
    batch = torch.rand(3, 3, 20, 24)
    assert len(classifier(batch, adapt=False)) == 3
    assert isinstance(classifier(batch[0], adapt=False)[0], dict)


def test_errors_name_the_file(classifier, tmp_path):
    with pytest.raises(ImageError, match=r"gone\.jpg cannot be read: No such file"):
        classifier(tmp_path / "gone.jpg")
    with pytest.raises(InputError, match="no images"):
        classifier(tmp_path)


def test_it_says_what_it_is(classifier, paths):
    assert repr(classifier) == (
        "Classifier(5 labels: 'red circle', 'green square', 'blue_stripes', 'cat', 'dog'; model='OnnxEncoder', "
        "method='accord', images seen: 0, learns)"
    )
    classifier(paths[:2])
    classifier.add_labels(["fox"])
    classifier.freeze()
    assert "'dog', ...; " in repr(classifier)
    assert "images seen: 2, frozen)" in repr(classifier)


def test_answers_are_the_adapters_on_the_encoders_features(classifier, encoder, paths):
    predictions = list(classifier.stream(paths))
    features = encoder.encode_images([encoder.prepare(Image.open(path).convert("RGB")) for path in paths])
    adapter = create(DEFAULT_METHOD, classifier.head)
    probs, _ = softmax_and_entropy(adapter.step(features))
    assert [LABELS[i] for i in probs.argmax(axis=1)] == [each.label for each in predictions]
    np.testing.assert_allclose([each.score for each in predictions], probs.max(axis=1), atol=1e-4)
    assert [each.index for each in predictions] == list(range(40))
    assert [each.name for each in predictions] == [str(path) for path in paths]
    assert all(each.changed == (each.label != each.zero_shot.label) for each in predictions)


@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_batches_and_threads_do_not_change_answers(encoder, paths, tmp_path, batch_size):
    def answers(**options):
        classifier = Classifier(LABELS, encoder, cache=tmp_path, **options)
        return [(each.label, round(each.score, 4)) for each in classifier.stream(paths)]

    assert answers(batch_size=batch_size, workers=4) == answers(batch_size=16, workers=1)


def test_unreadable_images_raise_or_are_skipped(classifier, paths, tmp_path):
    (tmp_path / "empty.jpg").touch()
    images = [paths[0], tmp_path / "empty.jpg", tmp_path / "nowhere.png", paths[1]]
    with pytest.raises(ImageError, match=r"empty\.jpg cannot be read: the file is empty"):
        list(classifier.stream(images))
    assert classifier.adapter.samples_seen == 0
    predictions = list(classifier.stream(images, on_error="skip"))
    assert [each.error for each in predictions] == [None, "the file is empty", "No such file or directory", None]
    assert [bool(each.label) for each in predictions] == [True, False, False, True]
    assert (predictions[1].score, predictions[1].changed) == (0.0, False)
    assert classifier.adapter.samples_seen == 2


def test_a_finite_collection_is_answered_from_everything_seen(classifier, encoder, paths, tmp_path):
    other = Classifier(LABELS, encoder, cache=tmp_path / "cache")
    online = list(other.stream(paths))
    found = classifier.classify(iter(paths))
    assert [each.online for each in found] == [each.online for each in online] == [each.top[0] for each in online]
    features = encoder.encode_images([encoder.prepare(Image.open(path).convert("RGB")) for path in paths])
    probs, _ = softmax_and_entropy(other.adapter.second_pass(features))
    assert [each.label for each in found] == [LABELS[i] for i in probs.argmax(axis=1)]
    np.testing.assert_allclose([each.score for each in found], probs.max(axis=1), atol=2e-3)  # half precision
    for one, two in zip(found, online, strict=True):
        assert replace(one, top=two.top) == two
    backwards = Classifier(LABELS, encoder, cache=tmp_path / "cache").classify(paths[::-1])
    assert np.mean([a.label == b.label for a, b in zip(backwards[::-1], found, strict=True)]) >= 0.95


def test_collections_with_little_in_them(classifier, paths, tmp_path):
    (tmp_path / "empty.jpg").touch()
    assert classifier.classify([]) == []
    (only,) = classifier.classify(paths[:1], top_k=2)
    assert (only.index, len(only.top)) == (0, 2)
    bad, good, worse = classifier.classify([tmp_path / "empty.jpg", paths[0], tmp_path / "none.png"], on_error="skip")
    assert (bad.error, worse.error) == ("the file is empty", "No such file or directory")
    assert good.label in LABELS
    with pytest.raises(ImageError, match="the file is empty"):
        classifier.classify([tmp_path / "empty.jpg"])


def test_without_learning_there_is_one_answer(classifier, encoder, paths, tmp_path):
    for one in (classifier, Classifier(LABELS, encoder, method="zero-shot", cache=tmp_path / "cache")):
        one.freeze()
        assert not one.learns
        assert one.classify(paths) == list(one.stream(paths))


def test_a_collection_of_views(encoder, paths, tmp_path):
    classifier = Classifier(LABELS, encoder, views=4, cache=tmp_path / "cache")
    found = classifier.classify(paths[:6])
    assert [each.index for each in found] == list(range(6))


def test_leaving_a_stream_early_leaves_no_threads(classifier, paths):
    import threading

    stream = classifier.stream(paths * 10)
    next(stream)
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("acclimate-read")]


def test_freeze_reset_save_load(classifier, encoder, paths, tmp_path):
    classifier(paths[:20])
    classifier.save(tmp_path / "site.safetensors")
    classifier.freeze()
    frozen = classifier(paths[20:])
    assert classifier(paths[20:]) == frozen
    other = Classifier(LABELS, encoder, cache=tmp_path)
    other.continue_from(tmp_path / "site.safetensors")
    other.freeze()
    assert other(paths[20:]) == frozen
    other.unfreeze()
    other.reset()
    assert other.adapter.samples_seen == 0


def test_a_new_start_remembers_no_duplicates(encoder, paths, tmp_path):
    classifier = Classifier(LABELS, encoder, skip_duplicates=True, cache=tmp_path)
    classifier.save(tmp_path / "new.safetensors")
    for forget in (classifier.reset, lambda: classifier.continue_from(tmp_path / "new.safetensors")):
        assert [each.refused is None for each in classifier.stream(paths[:1] * 2)] == [True, False]
        forget()


def test_the_answer_for_images_without_a_label_is_no_label(tmp_path):
    labels = ["cat", "None_of these"]
    assert Classifier(labels, cache=tmp_path).labels == tuple(labels)
    with pytest.raises(InputError, match="'None_of these' is the answer for images that belong to no label"):
        Classifier(labels, reject=True, cache=tmp_path)
    classifier = Classifier(["cat", "dog"], reject=True, cache=tmp_path)
    with pytest.raises(InputError, match="leave this label out"):
        classifier.add_labels(["fox", "none of these"])
    assert classifier.labels == ("cat", "dog")


def test_a_state_of_another_model_or_other_prompts_is_refused(classifier, encoder, paths, tmp_path):
    classifier(paths[:5])
    classifier.save(tmp_path / "s.safetensors")
    with pytest.raises(StateError, match="5 classes against 2"):
        Classifier(["fox", "owl"], encoder, cache=tmp_path).continue_from(tmp_path / "s.safetensors")
    with pytest.raises(StateError, match=r"the class vectors differ \(another model or other prompts\)"):
        Classifier(LABELS, encoder, templates="the large {}", cache=tmp_path).continue_from(tmp_path / "s.safetensors")
    with pytest.raises(StateError, match="rounds 2 against 1"):
        Classifier(LABELS[::-1], encoder, cache=tmp_path, rounds=1).continue_from(tmp_path / "s.safetensors")


def test_a_state_follows_labels_that_changed(classifier, encoder, paths, tmp_path):
    classifier(paths[:30])
    classifier.correct(paths[0], "cat")
    classifier.correct(paths[1], "dog")
    classifier.save(tmp_path / "s.safetensors")
    other = Classifier(["fox", *LABELS[3::-1]], encoder, cache=tmp_path)
    with pytest.warns(UserWarning, match=r"the labels have changed since .*; new: fox; gone: dog\. What was learnt"):
        other.continue_from(tmp_path / "s.safetensors")
    assert other.labels == ("fox", *LABELS[3::-1])
    assert np.array_equal(
        other.adapter.class_statistics()["samples"], [0.0, *classifier.adapter.class_statistics()["samples"][3::-1]]
    )
    assert [each.label for each in other.corrections] == ["cat"]
    assert other(paths[0])[0]["label"] == "cat"
    shuffled = Classifier(LABELS[::-1], encoder, cache=tmp_path)
    with pytest.warns(UserWarning, match="their order is another"):
        shuffled.continue_from(tmp_path / "s.safetensors")
    assert shuffled(paths[2], adapt=False) == classifier(paths[2], adapt=False)


def test_labels_come_and_go(classifier, paths):
    classifier(paths[:30])
    before = classifier.adapter.class_statistics()["samples"]
    classifier.add_labels(["fox"])
    assert classifier.labels == (*LABELS, "fox")
    assert np.array_equal(classifier.adapter.class_statistics()["samples"], [*before, 0.0])
    classifier.remove_labels(["fox", "cat"])
    assert len(classifier(paths[0])) == 4
    with pytest.raises(InputError, match="dog"):
        classifier.add_labels(["dog"])


def test_shaped_like_scikit_learn(encoder, paths, tmp_path):
    one, other = (Classifier(LABELS, encoder, cache=tmp_path) for _ in range(2))
    probs = one.predict_proba(paths)
    assert probs.shape == (40, 5)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
    assert list(one.classes_[probs.argmax(axis=1)]) == list(other.predict(paths))


@pytest.mark.parametrize("method", ["tda", "zero", "mta", "dota", "prior", "zero-shot"])
def test_views_work_with_every_method(encoder, paths, tmp_path, method):
    def answers(**options):
        classifier = Classifier(LABELS, encoder, method=method, views=8, cache=tmp_path, **options)
        return [(each.label, round(each.score, 3)) for each in classifier.stream(paths[:12])]

    assert answers(batch_size=8) == answers(batch_size=64, workers=1)


def test_answers_without_learning_change_nothing(classifier, paths):
    classifier(paths[:20])
    before = classifier.adapter.dump()
    classifier(paths[20:], adapt=False)
    assert classifier.adapter.samples_seen == 20
    assert all(np.array_equal(values, before[name]) for name, values in classifier.adapter.dump().items())
    (batch,) = classifier.batches(paths[:3])
    assert [each.id for each in batch] == [20, 21, 22]


def test_text_is_encoded_once_and_kept(encoder, tiny_onnx, tmp_path):
    class Counting:
        calls = 0

        def __getattr__(self, name):
            return getattr(encoder, name)

        def encode_text(self, texts):
            Counting.calls += 1
            return encoder.encode_text(texts)

    for _ in range(2):
        Classifier(LABELS, Counting(), cache=tmp_path / "texts")
    assert Counting.calls == 1


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([], {}, "label"),
        (["cat"], {}, r"one label \('cat'\) leaves nothing to choose; .* --none-of-these"),
        ("cat, dog", {}, r"write \['cat', 'dog'\]"),
        (["cat", "cat"], {}, "cat"),
        (["cat", "dog"], {"batch_size": 0}, "batch_size and views must be at least 1"),
        (["cat", "dog"], {"templates": "a photo"}, "a photo"),
        (["cat", "dog"], {"views": 0}, "batch_size and views must be at least 1"),
        (["cat", "dog"], {"method": "zero"}, "the method 'zero' needs several views per image"),
        (["cat", "dog"], {"method": "tad"}, "did you mean 'tda'"),
        (["cat", "dog"], {"round": 1}, "did you mean 'rounds'"),
    ],
)
def test_invalid_arguments_are_refused(encoder, labels, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        Classifier(labels, encoder, cache=tmp_path, **options)


def test_the_bundled_model_warns_of_labels_that_are_not_english(encoder, tmp_path):
    with pytest.warns(UserWarning, match="'chat' and 'chien' look French; the bundled model reads English") as caught:
        Classifier(["chat", "chien"])
    assert caught[0].filename == __file__
    Classifier(["chat", "chien"], encoder, cache=tmp_path)  # warnings are errors here


def test_repr_names_what_is_set(encoder, tmp_path):
    shown = repr(Classifier(["cat"], encoder, cache=tmp_path, reject=True, unsure=0.6))
    assert shown.startswith("Classifier(1 label: 'cat'; ")
    assert shown.endswith("learns, reject=True, unsure=0.6)")


@pytest.mark.parametrize(
    "method",
    [name for name, each in list_methods().items() if not {"text", "views"} & each.needs and each.kind != "few-shot"],
)
@pytest.mark.filterwarnings("error")
def test_one_label_asks_which_images_show_it(encoder, paths, tmp_path, method):
    classifier = Classifier(["cat"], encoder, method=method, cache=tmp_path, reject=True)
    for prediction in classifier.classify(paths):
        assert prediction.label == ("none of these" if prediction.none >= 0.5 else "cat")
        assert sum(answer.score for answer in prediction.top) == pytest.approx(1)
    assert classifier.predict_proba(paths).shape == (len(paths), 1)
    classifier.add_labels(["dog"])
    assert len(classifier(paths[0])) == 3


def test_objects_that_are_no_encoders_are_refused():
    with pytest.raises(InputError, match="object is not an encoder: it lacks dim, logit_scale"):
        Classifier(["cat", "dog"], object())


def test_open_clip_shaped_objects(tiny_clip, tmp_path):
    """Take the (model, preprocess, tokenizer) that a program already has; here a tiny model of that shape."""
    torch = pytest.importorskip("torch")
    inner = load_encoder(f"local:{tiny_clip}", "cpu")

    class OpenClipShaped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner.model
            self.logit_scale = inner.model.logit_scale

        def encode_image(self, pixels):
            return torch.from_numpy(inner.encode_images(list(pixels.numpy())))

        def encode_text(self, ids):
            return torch.from_numpy(inner.encode_text(["".join(map(chr, row)).strip() for row in ids.tolist()]))

    def tokenizer(texts):
        return torch.tensor([[ord(letter) for letter in text.ljust(60)] for text in texts])

    wrapped = Classifier(
        LABELS, (OpenClipShaped(), lambda image: torch.from_numpy(inner.prepare(image)), tokenizer), cache=tmp_path
    )
    plain = Classifier(LABELS, inner, cache=tmp_path)
    images = [draw("red", 1), draw("blue", 2)]
    for ours, theirs in zip(wrapped(images), plain(images), strict=True):
        assert [each["label"] for each in ours] == [each["label"] for each in theirs]
        assert ours[0]["score"] == pytest.approx(theirs[0]["score"], abs=1e-4)


COLOURS = ["blue", "green", "red"]


@pytest.fixture
def fitted(encoder, paths, tmp_path):
    """Return a file of a classifier that was fitted to six photos."""
    classifier = Classifier(COLOURS, encoder, method="tip-adapter", cache=tmp_path, alpha=2.0)
    classifier.fit(paths[::7], [path.parent.name for path in paths[::7]])
    classifier.save(tmp_path / "fitted.safetensors")
    return tmp_path / "fitted.safetensors"


def test_fit_is_the_adapters_fit_on_the_encoders_features(encoder, paths, tmp_path):
    images = paths[::2]
    labels = [path.parent.name for path in paths[::2]]
    others = paths[1::2], [path.parent.name for path in paths[1::2]]
    classifier = Classifier(COLOURS, encoder, method="tip-adapter", cache=tmp_path)
    stages = []
    done = classifier.fit(images, labels, validation=others, progress=lambda *stage: stages.append(stage))
    assert (done.samples, done.skipped) == (20, [])
    assert sum(count for stage, count, total in stages if stage == "encoding") == 40
    assert {total for stage, _, total in stages if stage == "encoding"} == {40}
    assert [stage for stage in stages if stage[0] == "fitting"] == [("fitting", 1, 2)] * 2  # the search, and the end

    features = encoder.encode_images([encoder.prepare(Image.open(path).convert("RGB")) for path in paths])
    truth = np.array([COLOURS.index(path.parent.name) for path in paths])
    adapter = create("tip-adapter", classifier.head)
    adapter.fit(features[::2], truth[::2], validation=(features[1::2], truth[1::2]))
    assert classifier.adapter.chosen() == pytest.approx(adapter.chosen())
    answers = {"zero-shot": classifier.head.observe(features[1::2]).logits, "tip-adapter": adapter.step(features[1::2])}
    right = {name: (logits.argmax(axis=1) == truth[1::2]).mean() for name, logits in answers.items()}
    assert done.accuracy == pytest.approx(right)
    assert done.accuracy["tip-adapter"] > done.accuracy["zero-shot"]
    assert classifier.predict(others[0]).tolist() == [COLOURS[i] for i in answers["tip-adapter"].argmax(axis=1)]


def test_settings_of_methods_are_not_taken_for_arguments():
    """`Classifier(labels, method=..., **settings)` and `acclimate fit --set` could not set them."""
    arguments = set(signature(Classifier).parameters)
    assert not {name for method in list_methods().values() for name in method.default_settings() if name in arguments}


def test_fit_to_many_versions_and_answer_with_one(encoder, paths, tmp_path):
    labels = [path.parent.name for path in paths[::7]]
    one, many = (Classifier(COLOURS, encoder, method="tip-adapter", cache=tmp_path) for _ in range(2))
    one.fit(paths[::7], labels)
    many.fit(paths[::7], labels, views=4)
    assert many.adapter.samples_seen == one.adapter.samples_seen == len(labels)
    assert np.abs(many.adapter.shots.keys - one.adapter.shots.keys).max() > 1e-3
    assert len(many(paths[0])) == 3


def test_a_fitted_classifier_from_its_file(encoder, paths, fitted):
    classifier = Classifier(encoder=encoder, fitted=fitted)
    assert classifier.labels == tuple(COLOURS)
    assert classifier.adapter.settings["alpha"] == 2.0
    assert classifier.about_fit["shots"] >= 1
    assert Classifier(COLOURS[::-1], encoder, fitted=fitted)(paths[0]) == classifier(paths[0])
    assert not classifier.learns
    prediction = next(classifier.stream(paths[:1]))
    assert prediction.id is None
    before = classifier.adapter.samples_seen
    classifier(paths[:5])
    assert classifier.adapter.samples_seen == before
    classifier.add_labels(["violet"])
    assert len(classifier(paths[0])) == 4


def test_invalid_fits_are_refused(encoder, classifier, paths, fitted, tmp_path):
    with pytest.raises(InputError, match="'accord' learns without labels"):
        classifier.fit(paths[:2], ["cat", "dog"])
    few_shot = Classifier(COLOURS, encoder, method="tip-adapter", cache=tmp_path)
    with pytest.raises(InputError, match="needs to be fitted"):
        few_shot(paths[0])
    with pytest.raises(InputError, match="2 images and 1 labels"):
        few_shot.fit(paths[:2], ["red"])
    with pytest.raises(InputError, match="no class is named 'rod'; did you mean 'red'"):
        few_shot.fit(paths[:1], ["rod"])
    for label in ("", 0):
        with pytest.raises(InputError, match=f"no class is named {label!r}"):
            few_shot.fit(paths[:1], [label])
    with pytest.raises(ImageError, match=r"nothing\.png cannot be read"):
        few_shot.fit([tmp_path / "nothing.png"] * 3, COLOURS)
    with pytest.raises(InputError, match="no labelled sample of 'green', 'red'"):
        few_shot.fit([tmp_path / "nothing.png"], ["blue"])  # refused before it is read
    for wrong in ({"method": "tip-adapter"}, {"alpha": 1.0}, {"templates": "a {}."}):
        with pytest.raises(InputError, match="come from the fitted file"):
            Classifier(encoder=encoder, fitted=fitted, **wrong)
    with pytest.raises(InputError, match="cannot answer for others"):
        Classifier(["cat", "dog"], encoder, fitted=fitted)
    with pytest.raises(InputError, match="needs labels, or a fitted file"):
        Classifier(encoder=encoder)


def test_a_fitted_file_with_prompts_that_are_functions(encoder, paths, tmp_path):
    classifier = Classifier(COLOURS, encoder, method="tip-adapter", templates=lambda name: f"my {name}")
    classifier.fit(paths[::7], [path.parent.name for path in paths[::7]])
    classifier.save(tmp_path / "f.safetensors")
    assert "templates" not in Classifier(encoder=encoder, fitted=tmp_path / "f.safetensors").about_fit


def test_corrections_by_image_and_by_id(classifier, encoder, paths, tmp_path):
    predictions = classifier.classify(paths)
    first = predictions[0]
    other = next(label for label in LABELS if label != predictions[0].label)
    assert classifier.correct(first.id, other) == first.id
    assert classifier(paths[0], adapt=False)[0] == {"label": other, "score": pytest.approx(1, abs=1e-3)}
    by_image = classifier.correct(Image.open(paths[1]), "cat")
    assert {(each.id, each.label) for each in classifier.corrections} == {(first.id, other), (by_image, "cat")}
    assert classifier.corrections[0].name == str(paths[0])
    seen = classifier.adapter.samples_seen
    again = classifier.classify(paths[:3])
    assert [each.label for each in again[:2]] == [other, "cat"]
    assert [each.refused for each in again] == ["its label was corrected"] * 2 + [None]
    assert [each.id for each in again] == [None, None, seen]
    classifier.save(tmp_path / "state.safetensors")
    restarted = Classifier(LABELS, encoder, cache=tmp_path / "cache")
    restarted.continue_from(tmp_path / "state.safetensors")
    assert restarted.corrections == classifier.corrections
    with pytest.raises(InputError, match="pass the image instead"):
        restarted.correct(first.id, other)
    restarted.undo(first.id)
    restarted.undo(by_image)
    assert restarted.corrections == []


def test_a_corrected_image_is_known_at_any_position_with_any_views(encoder, paths, tmp_path):
    def labels_of(path, views):
        classifier = Classifier(LABELS, encoder, views=views, cache=tmp_path)
        classifier.continue_from(path)
        return classifier.predict(paths[:6], adapt=False)[[2, 5]].tolist()

    for views in (1, 8):
        classifier = Classifier(LABELS, encoder, views=views, cache=tmp_path)
        ids = [each.id for each in classifier.stream(paths[:4])]
        classifier.correct(ids[2], "cat")
        classifier.correct(paths[5], "dog")
        classifier.save(tmp_path / "state.safetensors")
        assert classifier(paths[5])[0]["label"] == "dog"
        assert [labels_of(tmp_path / "state.safetensors", each) for each in (1, 8)] == [["cat", "dog"]] * 2


def test_invalid_corrections_are_refused(classifier, paths):
    with pytest.raises(InputError, match="did you mean 'red circle'"):
        classifier.correct(paths[0], "red cirle")
    with pytest.raises(InputError, match="no image with the id 0 was learnt from recently; pass the image instead"):
        classifier.correct(0, "cat")
    with pytest.raises(ImageError, match="No such file"):
        classifier.correct("nowhere.png", "cat")
    with pytest.raises(InputError, match="no correction has the id 5"):
        classifier.undo(5)


def test_only_the_last_images_can_be_corrected_by_id(classifier, paths, monkeypatch):
    monkeypatch.setattr("acclimate.classifier.RECENT_IMAGES", 3)
    ids = [each.id for each in classifier.stream(paths[:8])]
    classifier.correct(ids[-3], "cat")
    with pytest.raises(InputError, match="pass the image instead"):
        classifier.correct(ids[-4], "cat")
    classifier.reset()
    with pytest.raises(InputError, match="pass the image instead"):
        classifier.correct(ids[-1], "cat")


def test_a_second_pass_by_default_runs_once(photos, monkeypatch):
    answered = []

    def counted(second_pass):
        def run(adapter, features):
            for logits in second_pass(adapter, features):
                answered.append(len(logits))
                yield logits

        return run

    for way in (
        "second_pass_blocks",
        "frozen_logits",
    ):  # one may be made of the other: each image counts in one of them
        monkeypatch.setattr(Accord, way, counted(getattr(Accord, way)))
    found = Classifier(["animal", "guitar"]).classify(photos)
    assert sum(answered) == len(found)
