"""Streams that are created from a fitted file."""

import numpy as np
import pytest

from acclimate import Classifier
from acclimate.encoders import load_encoder
from acclimate.errors import InputError
from acclimate.methods import load_fitted
from acclimate.prompts import LearnedPrompts

COLOURS = ["blue", "green", "red"]


@pytest.fixture(scope="module")
def fitted(encoder, photos, tmp_path_factory):
    paths = sorted(photos.rglob("*.png"))[::4]
    classifier = Classifier(COLOURS, encoder, method="tip-adapter", cache=False)
    classifier.fit(paths, [path.parent.name for path in paths])
    path = tmp_path_factory.mktemp("fitted") / "fitted.safetensors"
    classifier.save(path)
    return path


@pytest.fixture(scope="module")
def defaults(fitted, encoder):
    adapter, _ = load_fitted(fitted, encoder)
    return {"labels": COLOURS, "method": "tip-adapter", "settings": adapter.settings, "fitted": adapter}


def post(client, name, image):
    answer = client.post(f"/v1/streams/{name}/classify", files={"image": image})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def test_answers_are_those_of_the_classifier_and_nothing_is_learnt(serve, defaults, encoder, fitted, pictures):
    classifier = Classifier(encoder=encoder, fitted=fitted)
    with serve(defaults=defaults) as client:
        for image in pictures:
            result = post(client, "shop", image)
            expected = next(classifier.stream([image]))
            assert result["predictions"][0]["label"] == expected.label
            assert result["predictions"][0]["score"] == pytest.approx(expected.score, abs=1e-5)
            assert result["id"] is None
        described = client.get("/v1/streams/shop").json()
        assert described["method"] == "tip-adapter"
        assert described["samples_seen"] == classifier.adapter.samples_seen
        assert described["entries"] == {"shots": classifier.adapter.samples_seen}
        assert client.get("/v1/streams/shop/learnt").json()["columns"]["shots"]


def test_its_method_is_offered_with_those_of_all_services(serve, defaults):
    def offered(client):
        return client.get("/openapi.json").json()["components"]["schemas"]["StreamRequest"]["properties"]["method"]

    with serve() as client:
        others = offered(client)["enum"]
    with serve(defaults=defaults) as client:
        assert offered(client)["enum"] == sorted([*others, "tip-adapter"])
        assert client.put("/v1/streams/new", json={"method": "tip-adapter"}).status_code == 201


def test_learned_prompts_survive_a_restart(start, after_a_kill, tiny_clip, photos, pictures, tmp_path):
    clip = load_encoder(f"local:{tiny_clip}", "cpu")
    classifier = Classifier(COLOURS, clip, method="coop", cache=False, epochs=1, context_tokens=2)
    paths = [next((photos / colour).iterdir()) for colour in COLOURS]
    classifier.fit(paths, COLOURS)
    fields = {"method": "coop", "settings": classifier.adapter.settings, "fitted": classifier.adapter}
    stream = start(model=clip).create("shop", COLOURS, **fields)
    (first,) = stream.classify(pictures[:1])
    assert first.score == pytest.approx(next(classifier.stream(pictures[:1])).score, abs=1e-5)
    (answer,) = after_a_kill(model=clip).get("shop").classify(pictures[:1])
    assert answer.top == first.top


def test_any_method_runs_on_learned_prompts(start, after_a_kill, tiny_clip, photos, pictures, tmp_path):
    clip = load_encoder(f"local:{tiny_clip}", "cpu")
    learner = Classifier(COLOURS, clip, method="coop", cache=False, epochs=1, context_tokens=2)
    learner.fit([next((photos / colour).iterdir()) for colour in COLOURS], COLOURS)
    learner.save(tmp_path / "coop")
    prompts = LearnedPrompts.load(tmp_path / "coop")
    classifier = Classifier(COLOURS, clip, method="tda", templates=prompts)
    stream = start(model=clip, learned=prompts).create("shop", COLOURS, method="tda", templates=prompts.name)
    for image in pictures[:3]:
        (answer,) = stream.classify([image])
        assert answer.score == pytest.approx(next(classifier.stream([image])).score, abs=1e-5)
    for given, message in ((None, "which this service was not started with"), (prompts, None)):
        again = after_a_kill(model=clip, learned=given).get("shop")
        (answer,) = again.classify(pictures[3:4], adapt=False)  # answers need no prompts
        assert answer.score == pytest.approx(classifier(pictures[3], adapt=False)[0]["score"], abs=1e-5)
        if message is None:
            again.change_labels(["violet"])
            assert again.describe()["labels"] == [*COLOURS, "violet"]
        else:
            with pytest.raises(InputError, match=message):
                again.change_labels(["violet"])


def test_clients_cannot_create_or_reset_fitted_streams(serve, defaults, pictures):
    with serve(defaults=defaults) as client:
        body = {"name": "mine", "labels": COLOURS, "method": "tip-adapter"}
        refused = client.post("/v1/streams", json=body)
        assert refused.status_code == 422
        assert "needs to be fitted to labelled samples first" in refused.json()["error"]["message"]
        refused = client.post("/v1/streams", json=body | {"fitted": "/etc/passwd"})
        assert refused.status_code == 422
        assert "unknown field 'fitted'" in refused.json()["error"]["message"]
        refused = client.put("/v1/streams/mine", json={"method": "tda"})
        assert "were fitted with 'tip-adapter'" in refused.json()["error"]["message"]
        assert client.put("/v1/streams/mine", json={"unsure": 0.5}).json()["method"] == "tip-adapter"
        before = post(client, "shop", pictures[0])
        refused = client.post("/v1/streams/shop/reset")
        assert refused.status_code == 422
        assert "nothing to reset" in refused.json()["error"]["message"]
        assert post(client, "shop", pictures[0]) == before


def test_labels_states_and_snapshots_of_a_fitted_stream(serve, defaults, pictures):
    with serve(defaults=defaults) as client:
        post(client, "shop", pictures[0])
        changed = client.patch("/v1/streams/shop/labels", json={"add": ["violet"], "remove": ["green"]}).json()
        assert changed["labels"] == ["blue", "red", "violet"]
        assert {each["label"] for each in post(client, "shop", pictures[0])["predictions"]} == {"blue", "red", "violet"}
        assert client.post("/v1/streams/shop/rollback").status_code == 200
        state = client.get("/v1/streams/shop/state").content
        assert client.put("/v1/streams/shop/state", content=state).json()["labels"] == COLOURS
        post(client, "other", pictures[1])
        scores = [each["score"] for each in post(client, "shop", pictures[2])["predictions"]]
        assert np.isfinite(scores).all()
