import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from acclimate import FeatureStream, Head, create, read_stream, write_stream
from acclimate.errors import AcclimateError, InputError


@pytest.fixture
def content(stream):
    return {
        "features": stream.features,
        "class_vectors": stream.head.class_vectors,
        "labels": stream.targets,
        "order": np.arange(400)[::-1].copy(),
    }


def check_same(read, stream):
    np.testing.assert_allclose(read.features, stream.features, atol=1e-6)
    np.testing.assert_allclose(read.head.class_vectors, stream.head.class_vectors, atol=1e-6)
    assert np.array_equal(read.targets, stream.targets)
    assert (read.head.logit_scale, read.head.class_names) == (10.0, stream.head.class_names)
    assert len(read) == 400


def test_a_stream_is_shown_by_its_shapes(stream):
    shown = repr(FeatureStream(stream.features, stream.head, stream.targets, encoder="bundled"))
    assert shown == "FeatureStream(features (400, 32), 8 classes, 400 targets, encoder='bundled')"
    assert "array(" not in repr(stream.head)


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_streams_go_round(stream, tmp_path, suffix):
    full = FeatureStream(
        stream.features,
        Head(stream.head.class_vectors, 10.0, -1.5, stream.head.class_names),
        stream.targets,
        order=np.arange(400)[::-1],
        domains=("photo", "sketch") * 200,
        files=tuple(f"{i}-\u732b \udce9.jpg" for i in range(400)),
        encoder="bundled",
        prompts="openai-7",
        views_kind="crop",
        skipped=3,
        encode_s=1.25,
        notes={"note": "x", "file": "a note may have any name"},
    )
    path = tmp_path / f"s.{suffix}"
    write_stream(full, path)
    read = read_stream(path)
    check_same(read, stream)
    assert np.array_equal(read.order, full.order)
    for name in ("domains", "files", "encoder", "prompts", "skipped", "encode_s", "notes"):
        assert getattr(read, name) == getattr(full, name), name
    assert read.head.logit_bias == -1.5
    content = path.read_bytes()
    write_stream(full, path)
    assert path.read_bytes() == content


def test_an_npz_is_one_that_numpy_reads(stream, tmp_path):
    write_stream(stream, tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz", allow_pickle=False) as arrays:
        assert (arrays["features"].shape, float(arrays["logit_scale"])) == ((400, 32), 10.0)
        assert arrays["class_names"].tolist() == list(stream.head.class_names)


def test_streams_with_views_go_round_and_run(stream, tmp_path):
    views = np.stack([stream.features, stream.features[::-1]], axis=1).astype(np.float16)
    write_stream(FeatureStream(views, stream.head, stream.targets), tmp_path / "v.safetensors")
    read = read_stream(tmp_path / "v.safetensors")
    assert (read.views, stream.views) == (2, 1)
    np.testing.assert_allclose(read.features, views, atol=1e-3)
    for method in ("tda", "zero", "mta"):
        assert create(method, read.head).step(read.features).shape == (400, 8)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("s.npy", "a .npy file holds features alone"),
        ("s.pt", "end in .safetensors or .npz"),
        ("s", "feature files end"),
    ],
)
def test_names_that_streams_are_not_written_to(stream, tmp_path, name, why):
    with pytest.raises(InputError, match=f"cannot write .*{name}: .*{why}"):
        write_stream(stream, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_npz(content, stream, tmp_path):
    np.savez(tmp_path / "s.npz", logit_scale=10.0, class_names=np.array(stream.head.class_names), **content)
    check_same(read_stream(tmp_path / "s.npz"), stream)


def test_npy_with_the_rest_beside_it(content, stream, tmp_path):
    for name, values in content.items():
        np.save(tmp_path / f"{name}.npy", values)
    for labels in (tmp_path / "labels.npy", str(tmp_path / "labels.npy"), stream.targets, stream.targets.tolist()):
        read = read_stream(
            tmp_path / "features.npy",
            targets=labels,
            class_vectors=tmp_path / "class_vectors.npy",
            class_names=stream.head.class_names,
            logit_scale=10.0,
        )
        check_same(read, stream)


def test_pt_as_a_dict_and_as_a_bare_tensor(content, stream, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.asarray(values) for name, values in content.items()}
    torch.save(tensors | {"logit_scale": 10.0, "class_names": list(stream.head.class_names)}, tmp_path / "s.pt")
    check_same(read_stream(tmp_path / "s.pt"), stream)
    torch.save(tensors["features"].bfloat16(), tmp_path / "f.pt")
    torch.save(tensors["labels"], tmp_path / "l.pt")
    beside = {"targets": tmp_path / "l.pt", "class_vectors": tensors["class_vectors"], "logit_scale": 10.0}
    read = read_stream(tmp_path / "f.pt", **beside)
    assert np.array_equal(read.targets, stream.targets)
    assert read.head.class_names == tuple(str(i) for i in range(8))


def test_a_pt_that_wants_to_run_code_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"features": print}, tmp_path / "evil.pt")
    with pytest.raises(InputError, match="holds more than tensors and will not be unpickled"):
        read_stream(tmp_path / "evil.pt")


def test_rows_of_any_length_and_precision_become_unit_rows(content, tmp_path):
    content["features"] = (50 * content["features"]).astype(np.float16)
    save_file(content, tmp_path / "s.safetensors", {"logit_scale": "10"})
    read = read_stream(tmp_path / "s.safetensors")
    assert read.features.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(read.features, axis=1), 1.0, atol=1e-6)


def bad(name, value):
    return lambda tensors, metadata: tensors.update({name: value})


def meta(**changes):
    return lambda tensors, metadata: metadata.update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: t.pop("features"), "holds no features"),
        (lambda t, m: t.pop("class_vectors"), "holds no class_vectors; add it to the file, or pass class_vectors"),
        (lambda t, m: m.pop("logit_scale"), r"holds no logit_scale; .* pass logit_scale \(100 for OpenAI's CLIP\)"),
        (bad("features", np.ones((400, 31), np.float32)), "features have dim 31, the class vectors 32"),
        (
            bad("features", np.ones((0, 32), np.float32)),
            r"no samples: features have shape \(0, 32\)",
        ),
        (bad("features", np.ones(32, np.float32)), r"must be \(samples, dim\)"),
        (bad("features", np.zeros((400, 32), np.float32)), r"features: row 0 is all zeros \(400 of 400 rows\)"),
        (bad("features", np.full((400, 32), np.nan, np.float32)), "holds NaN or infinity"),
        (bad("features", np.ones((400, 32), np.int64)), "must be floating point"),
        (
            bad("class_vectors", np.ones((0, 32), np.float32)),
            "class vectors must be .classes, dim. with at least one class",
        ),
        (bad("labels", np.zeros(399, np.int64)), "labels must be 400 whole numbers"),
        (bad("labels", np.zeros(400, np.float32)), "labels must be 400 whole numbers, got float32"),
        (bad("labels", np.full(400, 8)), "labels must be from -1 to 7, got 8 to 8"),
        (bad("labels", np.full(400, -2)), "labels must be from -1 to 7, got -2 to -2"),
        (bad("order", np.zeros(400, np.int64)), "order must hold every position from 0 to 399 once"),
        (meta(domains=json.dumps(["a"])), "domains must name every sample: 1 names for 400 samples"),
        (meta(class_names=json.dumps(["a"])), "1 class names for 8 class vectors"),
        (meta(class_names="[broken"), "cannot be read"),
        (meta(logit_scale="much"), "logit_scale must be a number, got 'much'"),
    ],
)
def test_files_whose_parts_do_not_fit(stream_file, change, message):
    tensors = load_file(stream_file)
    metadata = {"logit_scale": "10", "class_names": json.dumps(list("abcdefgh"))}
    change(tensors, metadata)
    save_file(tensors, stream_file, metadata)
    with pytest.raises(InputError, match=message):
        read_stream(stream_file)


def test_files_that_are_not_feature_files(stream_file, tmp_path):
    with pytest.raises(InputError, match=r"feature files end in .safetensors, .npz, .npy, .pt"):
        read_stream(tmp_path / "features.csv")
    with pytest.raises(InputError, match="no run or feature file at"):
        read_stream(tmp_path / "features.npy")
    content = stream_file.read_bytes()
    for suffix in (".safetensors", ".npz", ".npy", ".pt"):
        for garbage in (b"", b"garbage" * 100, content[: len(content) // 2]):
            path = tmp_path / f"broken{suffix}"
            path.write_bytes(garbage)
            with pytest.raises(AcclimateError, match="broken"):
                read_stream(path)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(InputError, match="cannot be read"):
        read_stream(tmp_path / "objects.npy")
    np.savez(tmp_path / "labels.npz", labels=np.zeros(3))
    with pytest.raises(InputError, match="must hold one bare array"):
        read_stream(stream_file, targets=tmp_path / "labels.npz")


def test_a_stream_that_cannot_be_written_says_so(stream, tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        write_stream(stream, tmp_path / "no" / "folder.safetensors")
