"""Everything on a CUDA GPU gives what it gives on a CPU."""

import io
import warnings

import numpy as np
import pytest

from acclimate import Classifier, create, load_encoder
from acclimate.checks.synthetic import shifted_stream
from drawn_images import draw

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
LABELS = ["red circle", "green square", "blue stripes"]
EXACT = {"precision": "float32", "decoder": "pillow", "cache": False}


def both(tiny_clip, **options):
    """Return the same classifier on a CPU and on the GPU."""
    return [Classifier(LABELS, f"local:{tiny_clip}", device=device, **EXACT, **options) for device in ("cpu", "cuda")]


@pytest.mark.parametrize("method", ["zero-shot", "tda", "accord", "dota", "dmn", "oga", "bca", "free-tta", "sca"])
def test_streams_are_answered_alike(tiny_clip, photos, method):
    one, other = both(tiny_clip, method=method, reject=method == "tda", skip_duplicates=method == "tda")
    assert other.head.class_vectors.device.type == "cuda"
    found, expected = (each.classify(str(photos)) for each in (other, one))
    assert [each.name for each in found] == [each.name for each in expected]
    same = [a.label == b.label and a.zero_shot.label == b.zero_shot.label for a, b in zip(found, expected, strict=True)]
    assert np.mean(same) >= 0.95
    np.testing.assert_allclose([a.score for a in found], [b.score for b in expected], atol=0.05)


def test_views_few_shots_corrections_and_states(tiny_clip, photos, tmp_path):
    pictures = [draw(("red", "green", "blue")[i % 3], i) for i in range(12)]
    for one, other in (both(tiny_clip, views=5), both(tiny_clip, method="tip-adapter")):
        if other.adapter.kind == "few-shot":
            for each in (one, other):
                each.fit(pictures[:6], LABELS * 2, views=3)
        found, expected = (each.predict_proba(pictures) for each in (other, one))
        np.testing.assert_allclose(found, expected, atol=0.05)
        for each in (one, other):
            each.correct(pictures[3], LABELS[1])
            each.save(tmp_path / "state.safetensors")
            each.continue_from(tmp_path / "state.safetensors")
        assert other.head.class_vectors.device.type == "cuda"
        one.continue_from(tmp_path / "state.safetensors")  # the state of the GPU
        found, expected = (each.predict_proba(pictures[:4], adapt=False) for each in (other, one))
        np.testing.assert_allclose(found, expected, atol=0.05)
        assert found[3].argmax() == 1


def test_the_service_encodes_on_the_gpu(tiny_clip):
    from acclimate.reading.batcher import Batcher

    def png(image):
        content = io.BytesIO()
        image.save(content, "PNG")
        return content.getvalue()

    pictures = [png(draw("red", i)) for i in range(5)]
    rows = []
    for device in ("cpu", "cuda"):
        batcher = Batcher(load_encoder(f"local:{tiny_clip}", device, "float32"))
        try:
            rows.append([batcher.submit(pictures, views=views).result(60).features for views in (1, 3)])
        finally:
            batcher.close()
    for one, other in zip(*rows, strict=True):
        assert isinstance(other, np.ndarray)
        unit = [each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (one, other)]
        assert np.sum(unit[0] * unit[1], axis=-1).min() > 0.98


@pytest.mark.parametrize("method", ["zero-shot", "tda"])
def test_a_step_waits_for_the_gpu_a_few_times_however_long_the_batch(method):
    stream = shifted_stream(samples=3000, classes=50, dim=64)
    there = torch.asarray(stream.features, device="cuda")
    adapter = create(method, stream.head.to(there))
    adapter.step(there[:2000])
    for size in (1, 64, 256):
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                adapter.step(there[2000 : 2000 + size])
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert len(waits) <= 8, [str(each.message) for each in waits]
