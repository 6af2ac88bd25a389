"""The fuzz targets: each makes a case from a random generator, and runs one; errors it may raise are expected."""

import copy
import json
import random
from base64 import b64encode

import numpy as np
from PIL import Image

from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import AcclimateError, ImageError
from attacks import files
from fuzz.mutate import damage_bytes, damage_json, to_json

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # those of the service


class Images:
    """Image files through every check, the decoder and the model's preparation."""

    expected = (ImageError,)  # the only error after which reading a folder goes on

    def __init__(self, corpus, model):
        self.prepare = Preprocess(224, 224, 224, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        noise = files.noise(40, 30)
        ramp = Image.linear_gradient("L").resize((64, 48))
        made = [files.encoded(noise, kind) for kind in FORMATS]
        made += [files.encoded(ramp.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA", "I;16")]
        made += [files.encoded(ramp.convert(mode), "TIFF") for mode in ("L", "CMYK", "F", "I", "I;16", "YCbCr")]
        made += [files.encoded(noise, "TIFF", compression=each) for each in ("tiff_lzw", "tiff_deflate", "packbits")]
        made += [files.encoded(noise, "JPEG", progressive=True), files.encoded(noise, "WEBP", lossless=True)]
        frames = [files.noise(30, 20, seed).quantize() for seed in range(3)]
        made += [files.encoded(frames[0], kind, save_all=True, append_images=frames[1:]) for kind in ("GIF", "PNG")]
        made += [files.tiff_with_tile(64), files.png(2000, 1, b"\0" + bytes(6000)), files.jpeg_with_scans(9, (64, 64))]
        self.seeds = [*made, *corpus]

    def make(self, rng):
        """Return a damaged file."""
        return damage_bytes(rng.choice(self.seeds), rng, self.seeds)

    def run(self, content):
        """Open and prepare it as the service and as the command line would."""
        from acclimate.images.opening import open_image

        for formats, most in ((FORMATS, 40_000_000), (None, None)):
            try:
                pixels = np.asarray(self.prepare(open_image(content, most, formats)))
            except self.expected:
                continue
            assert np.isfinite(pixels).all()


class States:
    """State files of every method, with a checksum that fits."""

    expected = (AcclimateError,)

    def __init__(self, corpus, model):
        from acclimate.checks.synthetic import shifted_stream
        from acclimate.methods import create, list_methods, state_to_bytes

        stream = shifted_stream(samples=40, classes=5, dim=16, seed=1)
        self.seeds = []
        for method in list_methods():
            try:
                adapter = create(method, stream.head)
                adapter.step(stream.features)
            except AcclimateError:  # it needs views, a text tower or labelled samples
                continue
            self.seeds.append(state_to_bytes(adapter))
        assert len(self.seeds) > 5
        self.corpus = corpus

    def make(self, rng):
        """Return a state with damaged arrays or description, or with damaged bytes."""
        from acclimate.files import parse_snapshot, snapshot_bytes

        content = rng.choice(self.seeds)
        if rng.random() < 0.2:
            return damage_bytes(content, rng, self.seeds)
        tensors, description = parse_snapshot(content)
        if rng.random() < 0.4:
            description = damage_json(description, rng)
        for _ in range(rng.randint(0, 2)):
            name = rng.choice(sorted(tensors))
            tensors[name] = self._damaged(tensors[name].copy(), rng)
        if rng.random() < 0.1:
            tensors.pop(rng.choice(sorted(tensors)))
        return snapshot_bytes(tensors, description)

    def _damaged(self, values, rng):
        kind = rng.randrange(8)
        flat = values.reshape(-1)
        if kind == 0 and flat.size:
            odd = (
                (0, 1, -1, 2**31 - 1, -(2**31)) if values.dtype.kind in "iub" else (0, -1, 1e30, np.nan, np.inf, -1e-30)
            )
            with np.errstate(all="ignore"):
                flat[rng.randrange(flat.size)] = np.array(rng.choice(odd)).astype(values.dtype)
        elif kind == 1:
            values = values[: rng.randrange(len(values) + 1)] if values.ndim else values
        elif kind == 2:
            values = np.zeros((0, 2 ** rng.randrange(40)), values.dtype)
        elif kind == 3:
            with np.errstate(all="ignore"):
                values = values.astype(rng.choice(("f2", "f4", "f8", "i4", "i8", "u1", "bool")))
        elif kind == 4:
            values = np.concatenate([values, values]) if values.ndim else values
        elif kind == 5:
            values = np.ascontiguousarray(values.T)
        elif kind == 6:
            values = values[None]
        elif kind == 7:
            with np.errstate(all="ignore"):
                values = (values * np.float64(rng.choice((-1, 0, 100)))).astype(values.dtype)
        return values

    def run(self, content):
        """Load it; an accepted state must dump as it was read and give answers, of which some may be NaN."""
        from acclimate.methods import state_from_bytes, state_to_bytes

        adapter = state_from_bytes(content)
        assert state_to_bytes(state_from_bytes(state_to_bytes(adapter))) == state_to_bytes(adapter)
        rows = np.random.default_rng(0).normal(size=(4, adapter.head.dim)).astype(np.float32)
        with np.errstate(all="ignore"):
            assert adapter.step(rows).shape == (4, len(adapter.head))


class Bodies:
    """Requests to every route of a real application: JSON, forms, raw bodies and query strings."""

    expected = ()

    def __init__(self, corpus, model):
        import tempfile
        from pathlib import Path

        from starlette.testclient import TestClient

        from acclimate.encoders import load_encoder
        from acclimate.serve.app import create_app
        from acclimate.serve.streams import Streams

        self.folder = tempfile.TemporaryDirectory()
        streams = Streams(Path(self.folder.name), load_encoder(f"onnx:{model}", "cpu"))
        self.client = TestClient(create_app(streams)).__enter__()
        self.client.put("/v1/streams/one", json={"labels": ["cat", "dog", "bird"]}).raise_for_status()
        picture = b64encode(files.photo(size=(64, 48))).decode()
        stream = {
            "name": "two", "labels": ["cat", "dog"], "templates": ["a {}."], "settings": {"alpha": 1.0}, "views": 1,
            "unsure": 0.5, "reject": False, "method": "tda",
        }  # fmt: skip
        self.seeds = [
            ("POST", "/v1/streams", stream),
            ("POST", "/v1/streams/one/classify", {"images": [picture], "adapt": True, "top_k": 2, "unsure": 0.1}),
            ("POST", "/classify", {"inputs": picture, "parameters": {"candidate_labels": ["a", "b"]}}),
            ("POST", "/v1/streams/one/corrections", {"id": 0, "label": "cat"}),
            ("POST", "/v1/streams/one/corrections", {"image": picture, "label": "cat"}),
            ("PATCH", "/v1/streams/one/labels", {"add": ["cow"], "remove": ["bird"]}),
            ("POST", "/v1/streams/one/rollback", {"snapshot": 1}),
            ("PUT", "/v1/streams/one/state", {"a": 1}),
            ("GET", "/v1/streams/one/caches", {}),
        ]
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
        self.form = part + files.photo() + b"\r\n--x--\r\n"

    def make(self, rng):
        """Return a request as JSON: method, path, content type, body in base64."""
        method, path, value = copy.deepcopy(rng.choice(self.seeds))
        kind = "application/json"
        body = b""
        choice = rng.random()
        if choice < 0.6:
            for _ in range(rng.randint(1, 3)):
                value = damage_json(value, rng)
            body = to_json(value)
        elif choice < 0.8:
            body = damage_bytes(to_json(value), rng)
        else:
            path = "/v1/streams/one/classify"
            kind = "multipart/form-data; boundary=x"
            body = damage_bytes(self.form, rng)
        if rng.random() < 0.2:
            path += (
                "?"
                + rng.choice(("top_k=", "adapt=", "unsure=", "candidate_labels=", "x="))
                + rng.choice(("", "-1", "%00", "9" * 400, "%ed%a0%80"))
            )
        return json.dumps([method, path, kind, b64encode(body).decode()]).encode()

    def run(self, content):
        """Send the request; every status must be below 500, and a refusal must give a reason."""
        from base64 import b64decode

        method, path, kind, body = json.loads(content)
        answer = self.client.request(method, path, content=b64decode(body), headers={"content-type": kind})
        assert answer.status_code < 500, (answer.status_code, answer.text[:300])
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["message"]
            assert len(answer.text) < 2_000, len(answer.text)
        health = self.client.get("/v1/streams/one")
        assert health.status_code == 200, health.text


TARGETS = {"images": Images, "states": States, "bodies": Bodies}


def case_of(target, seed):
    """Return the case of a seed."""
    return target.make(random.Random(seed))
