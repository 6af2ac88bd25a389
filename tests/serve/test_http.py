"""The API, over real sockets."""

import base64
import re
from pathlib import Path

import pytest
from huggingface_hub import InferenceClient

import acclimate
from acclimate import Classifier
from acclimate.serve import schemas
from acclimate.serve.logs import HEADERS

LABELS = ["red circle", "green square", "blue stripes"]
ONE = "/v1/streams/one"


def form(images):
    return [("image", ("x.png", image, "image/png")) for image in images]


def encoded(image):
    return base64.b64encode(image).decode()


def classify(client, images, stream="one", **parameters):
    answer = client.post(f"/v1/streams/{stream}/classify", files=form(images), params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_answers_are_those_of_classify(client, encoder, pictures):
    local = list(Classifier(LABELS, encoder, method="tda").stream(pictures, 3))
    remote = [classify(client, [pictures[0]], top_k=3)[0], *classify(client, pictures[1:], top_k=3)]
    for mine, theirs in zip(local, remote, strict=True):
        assert [answer["label"] for answer in theirs["predictions"]] == [answer.label for answer in mine.top]
        assert [answer["score"] for answer in theirs["predictions"]] == pytest.approx(
            [a.score for a in mine.top], abs=1e-4
        )
        assert theirs["zero_shot"]["label"] == mine.zero_shot.label
        assert theirs["changed"] == mine.changed
    assert [each["id"] for each in remote] == list(range(12))
    assert client.get(ONE).json()["samples_seen"] == 12


def test_json_and_form_are_the_same(client, pictures):
    by_form = classify(client, pictures, "one", top_k=2)
    body = {"images": [encoded(image) for image in pictures], "top_k": 2}
    by_json = client.post("/v1/streams/two/classify", json=body, params={"top_k": 5}).json()
    assert by_json == {"stream": "two", "results": by_form}


def test_a_description_is_all_that_the_stream_says_of_itself(client):
    assert set(schemas.DescriptionResponse.model_fields) == set(client.streams.describe()[0])


def test_state_goes_out_and_in(client, pictures, tmp_path):
    classify(client, pictures)
    state = client.get(f"{ONE}/state")
    assert state.headers["content-disposition"] == 'attachment; filename="one.safetensors"'
    (tmp_path / "one.safetensors").write_bytes(state.content)
    assert acclimate.load_state(tmp_path / "one.safetensors").samples_seen == 12
    described = client.put("/v1/streams/two/state", content=state.content).json()
    assert described["samples_seen"] == 12
    assert client.get("/v1/streams/two/caches").json()["entries"]
    client.patch("/v1/streams/two/labels", json={"add": ["yellow dots"]})
    unfit = client.put("/v1/streams/two/state", content=state.content)
    assert unfit.status_code == 422
    assert "does not match" in unfit.json()["error"]["message"]
    assert str(client.folder) not in unfit.text


def test_the_hugging_face_client_works(client, pictures, encoder):
    remote = InferenceClient(model=f"{client.base_url}/classify")
    found = remote.zero_shot_image_classification(pictures[0], candidate_labels=LABELS)
    template = "This is a photo of {}."
    mine = Classifier(LABELS, encoder, method="zero-shot", templates=template)(pictures[0])
    assert [each.label for each in found] == [each["label"] for each in mine]
    assert [each.score for each in found] == pytest.approx([each["score"] for each in mine], abs=1e-4)
    other = remote.zero_shot_image_classification(pictures[0], candidate_labels=LABELS, hypothesis_template="a {}")
    assert [each.score for each in other] != [each.score for each in found]


def test_page_and_documents_need_no_other_host(client):
    page = client.get("/")
    documents = client.get("/docs")
    assert page.headers["content-type"] == documents.headers["content-type"] == "text/html; charset=utf-8"
    for text in (page.text, documents.text):
        assert not re.search(r"""(src|href)=["'](https?:)?//""", text)
        for address in re.findall(r"""(?:src|href)=["']([^"'#]+)""", text):
            assert client.get(f"/{address}").status_code == 200, address
    guide = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method in operations:
            assert f"`{method.upper()} {path}`" in guide


@pytest.mark.parametrize("path", ["/", "/docs", "/metrics", "/nowhere", "/v1/streams/none", "/page/style.css"])
def test_every_answer_has_the_security_headers(client, path):
    answer = client.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers


def test_request_ids_come_back(client):
    assert client.get("/health/live", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    forged = client.get("/nowhere", headers={"X-Request-ID": 'a"},{'})
    assert re.fullmatch("[0-9a-f]{32}", forged.headers["x-request-id"])
    assert forged.json()["error"] == {
        "code": "not_found",
        "message": "there is no GET '/nowhere'; /docs lists all routes.",
        "request_id": forged.headers["x-request-id"],
    }


def test_other_names_for_this_machine_are_refused(client):
    """A page elsewhere may point its own name at 127.0.0.1; its requests carry that name."""
    assert client.get("/v1/streams", headers={"Host": "evil.example"}).status_code == 400
    for name in ("localhost", "LOCALHOST:8000", "[::1]:1", "127.0.0.1"):
        assert client.get("/v1/streams", headers={"Host": name}).status_code == 200


def test_other_sites_cannot_send_anything(client, pictures):
    for origin in ("http://evil.example", "null", "http://[", f"http://{client.base_url.host}"):
        refused = client.post(f"{ONE}/classify", files=form(pictures[:1]), headers={"Origin": origin})
        assert refused.status_code == 403
    own = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post(f"{ONE}/classify", files=form(pictures[:1]), headers=own).status_code == 200
    assert client.get(ONE).json()["samples_seen"] == 1
