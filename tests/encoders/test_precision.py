"""Precision, compiling, and batches that do not fit into memory."""

import sys
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from acclimate.encoders import as_encoder, load_encoder, loading
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import InputError, ModelError
from drawn_images import draw

torch = pytest.importorskip("torch")

from acclimate.encoders.tower import fold_quick_gelu  # noqa: E402 (it needs torch)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
PREPROCESS = Preprocess(32, 24, 28, "bicubic", (0.48, 0.46, 0.41), (0.27, 0.26, 0.28), "round")


def pictures(count=12):
    return [draw(colour, i) for i, colour in zip(range(count), ["red", "green", "blue"] * count, strict=False)]


def cosines(one, other):
    one, other = (np.asarray(torch.as_tensor(each).cpu(), np.float64) for each in (one, other))
    return np.sum(one * other, axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


def test_the_image_tower_is_converted_and_the_text_tower_is_not(tiny_model):
    exact = load_encoder(f"local:{tiny_model}", "cpu")
    assert exact.precision == "float32"
    assert exact.model.config._attn_implementation == "sdpa"
    half = load_encoder(f"local:{tiny_model}", "cpu", precision="bfloat16")
    assert half.precision == "bfloat16"
    prepared = [exact.prepare(image) for image in pictures()]
    features = half.encode_images(prepared)
    assert features.dtype == np.float32
    assert cosines(features, exact.encode_images(prepared)).min() > 0.99
    np.testing.assert_array_equal(half.encode_text(["a cat", "dog"]), exact.encode_text(["a cat", "dog"]))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_form_of_images_gives_the_same_features(tiny_clip, precision):
    encoder = load_encoder(f"local:{tiny_clip}", "cpu", precision=precision)
    floats = [encoder.prepare(image) for image in pictures(5)]
    expected = encoder.encode_images(floats)
    tensors = [torch.as_tensor(image) for image in floats]
    for same in (tensors, torch.stack(tensors), np.stack(floats), tuple(floats)):
        np.testing.assert_array_equal(encoder.encode_images(same), expected)


def test_prompts_are_learned_in_single_precision_whatever_the_image_tower_has(tiny_clip):
    towers = [load_encoder(f"local:{tiny_clip}", "cpu", precision=each).text_tower() for each in ("auto", "bfloat16")]
    contexts = [tower.words("a photo of a").requires_grad_() for tower in towers]
    vectors = [tower.prompts(["cat", "dog"], 4).vectors(each) for tower, each in zip(towers, contexts, strict=True)]
    torch.testing.assert_close(*vectors, rtol=0, atol=0)
    for each in vectors:
        each[0, :5].sum().backward()
    torch.testing.assert_close(*(context.grad for context in contexts), rtol=0, atol=0)


class Overflowing(torch.nn.Module):
    """A model whose image tower has large values within; the features are small."""

    def __init__(self, largest):
        super().__init__()
        self.visual = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 24, 8, bias=False))
        self.visual[1].weight.data.normal_(generator=torch.Generator().manual_seed(0)).mul_(largest)
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.0))
        self.largest = largest

    def encode_image(self, pixels):
        return self.visual(pixels) / self.largest

    def encode_text(self, ids):
        return torch.ones(len(ids), 8)


def test_a_model_that_overflows_in_float16_is_run_in_bfloat16():
    def encoder(largest, precision):
        return as_encoder((Overflowing(largest), PREPROCESS, lambda texts: torch.zeros(len(texts), 1)), "", precision)

    assert encoder(1.0, "float16").precision == "float16"
    given = Overflowing(1.0)
    given.visual.bfloat16()
    assert as_encoder((given, PREPROCESS, lambda texts: torch.zeros(len(texts), 1)), "").precision == "bfloat16"
    found = encoder(1e4, "float16")
    exact = encoder(1e4, "auto")
    assert (found.precision, exact.precision) == ("bfloat16", "float32")
    weights = [each.model.visual[1].weight for each in (found, exact)]
    torch.testing.assert_close(weights[0], weights[1].bfloat16(), rtol=0, atol=0)
    prepared = [PREPROCESS(image) for image in pictures()]
    assert cosines(found.encode_images(prepared), exact.encode_images(prepared)).min() > 0.999


def test_quick_gelu_is_folded_into_the_layers_around_it(tiny_clip):
    encoder = load_encoder(f"local:{tiny_clip}", "cpu")
    prepared = [encoder.prepare(image) for image in pictures()]
    expected = encoder.encode_images(prepared)
    fold_quick_gelu(encoder.model.vision_model)
    kinds = [type(module).__name__ for module in encoder.model.vision_model.modules()]
    assert kinds.count("SiLU") == 2
    assert "QuickGELUActivation" not in kinds
    np.testing.assert_allclose(encoder.encode_images(prepared), expected, rtol=1e-3, atol=1e-4)

    class QuickGELU(torch.nn.Module):
        def forward(self, values):
            return values * torch.sigmoid(1.702 * values)

    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(8, 16), QuickGELU(), torch.nn.Linear(16, 8, bias=False))
    values = torch.randn(5, 8)
    before = block(values)
    fold_quick_gelu(block)
    assert isinstance(block[1], torch.nn.SiLU)
    torch.testing.assert_close(block(values), before)


def test_batch_normalisation_stays_in_single_precision():
    model = Overflowing(1.0)
    layers = torch.nn.Conv2d(3, 8, 5, 4), torch.nn.BatchNorm2d(8), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    model.visual = torch.nn.Sequential(*layers)
    normal = layers[1]
    normal.running_var.uniform_(0.1, 3.0, generator=torch.Generator().manual_seed(0))
    variances = normal.running_var.clone()

    def tokenize(texts):
        return torch.zeros(len(texts), 1)

    prepared = [PREPROCESS(image) for image in pictures()]
    exact = as_encoder((model, PREPROCESS, tokenize), "cpu").encode_images(prepared)
    encoder = as_encoder((model, PREPROCESS, tokenize), "cpu", "bfloat16")
    assert (layers[0].weight.dtype, normal.weight.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(normal.running_var, variances, rtol=0, atol=0)
    assert cosines(encoder.encode_images(prepared), exact).min() > 0.999


def test_a_model_whose_image_tower_is_not_known_is_converted_as_a_whole():
    model = Overflowing(1.0)
    model.eye = model._modules.pop("visual")
    model.encode_image = lambda pixels: model.eye(pixels)
    encoder = as_encoder((model, PREPROCESS, lambda texts: torch.zeros(len(texts), 1)), "cpu", "bfloat16")
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    assert encoder.encode_images([PREPROCESS(image) for image in pictures(2)]).dtype == np.float32
    assert encoder.encode_text(["cat"]).dtype == np.float32


def test_models_that_cannot_run_or_compile_say_why(tiny_clip, tiny_onnx, monkeypatch):
    with pytest.raises(InputError, match="unknown precision 'float8'; choose from auto, float32, float16, bfloat16"):
        load_encoder(f"local:{tiny_clip}", "cpu", precision="float8")
    with pytest.raises(InputError, match="unknown precision 'half'"):
        as_encoder((Overflowing(1.0), PREPROCESS, lambda texts: torch.zeros(len(texts), 1)), "cpu", "half")
    for choice in ({"precision": "float16"}, {"compile": True}):
        with pytest.raises(ModelError, match="ONNX models run as they are"):
            load_encoder(f"onnx:{tiny_onnx}", "cpu", **choice)
    load_encoder(f"onnx:{tiny_onnx}", "cpu", precision="float32")

    def fail(pixels):
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", lambda function: fail)
    with pytest.raises(ModelError, match=r"the image tower cannot be compiled on cpu: no compiler here$"):
        load_encoder(f"local:{tiny_clip}", "cpu", compile=True)


def test_a_compiled_tower_is_compiled_once_when_it_is_loaded(tiny_clip, monkeypatch):
    seen = []
    compiled = []

    def watch(function):
        compiled.append(function)
        return lambda pixels: seen.append(len(pixels)) or function(pixels)

    monkeypatch.setattr(torch, "compile", watch)
    encoder = load_encoder(f"local:{tiny_clip}", "cpu", compile=True)
    assert len(compiled) == len(seen) == 1
    prepared = [encoder.prepare(image) for image in pictures(5)]
    exact = load_encoder(f"local:{tiny_clip}", "cpu")
    np.testing.assert_array_equal(encoder.encode_images(prepared), exact.encode_images(prepared))
    assert seen[1:] == [5]


def part(name, **values):
    return type(name, (), {"__module__": "torchvision.transforms.transforms", **values})()


def transform(*steps):
    return SimpleNamespace(transforms=steps)


def _convert_to_rgb(image):
    return image.convert("RGB")


BICUBIC = SimpleNamespace(value="bicubic")
NORMALIZE = part("Normalize", mean=PREPROCESS.mean, std=list(PREPROCESS.std))
TO_TENSOR = part("ToTensor")


def test_the_transforms_of_open_clip_are_recognised():
    one = part("Resize", size=28, interpolation=BICUBIC, max_size=None)
    both = part("Resize", size=[32, 24], interpolation=BICUBIC, max_size=None)
    crop = part("CenterCrop", size=(32, 24))
    known = Preprocess.from_torchvision
    assert known(transform(one, crop, _convert_to_rgb, TO_TENSOR, NORMALIZE)) == PREPROCESS
    squashed = Preprocess(32, 24, None, "bicubic", PREPROCESS.mean, PREPROCESS.std, "round")
    for steps in ((both,), (both, crop), (_convert_to_rgb, both)):
        assert known(transform(*steps, TO_TENSOR, NORMALIZE)) == squashed
    longest = part("Resize", size=28, interpolation=BICUBIC, max_size=40)
    other = part("CenterCrop", size=(20, 20))
    for steps in ((one,), (longest, crop), (both, other), (crop, one), (one, crop, lambda image: image)):
        assert known(transform(*steps, TO_TENSOR, NORMALIZE)) is None
    assert known(transform(one, crop, NORMALIZE)) is None
    assert known(lambda image: image) is None
    model = Overflowing(1.0)
    given = transform(one, crop, _convert_to_rgb, TO_TENSOR, NORMALIZE)
    encoder = as_encoder((model, given, lambda texts: torch.zeros(len(texts), 1)), "cpu")
    assert encoder.prepare == PREPROCESS


def test_recognised_transforms_give_the_same_pixels():
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    bicubic = transforms.InterpolationMode.BICUBIC
    normalize = transforms.Normalize(PREPROCESS.mean, PREPROCESS.std)
    end = [_convert_to_rgb, transforms.ToTensor(), normalize]
    for begin in (
        [transforms.Resize(28, interpolation=bicubic), transforms.CenterCrop((32, 24))],
        [transforms.Resize(32, interpolation=bicubic), transforms.CenterCrop(32)],
        [transforms.Resize((32, 24), interpolation=bicubic)],
    ):
        given = transforms.Compose([*begin, *end])
        found = Preprocess.from_torchvision(given)
        for width, height in ((40, 33), (33, 61), (200, 99), (30, 30)):
            image = Image.fromarray(np.random.default_rng(width).integers(256, size=(height, width, 3), dtype=np.uint8))
            np.testing.assert_array_equal(found(image), given(image).numpy())


def test_a_batch_that_does_not_fit_is_halved_and_stays_so(tiny_clip):
    encoder = load_encoder(f"local:{tiny_clip}", "cpu")
    prepared = [encoder.prepare(image) for image in pictures(30)]
    expected = encoder.encode_images(prepared)
    tower = encoder._image_tower
    run = tower._features
    sizes = []

    def small(pixels):
        sizes.append(len(pixels))
        if len(pixels) > room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.\nand more")
        return run(pixels)

    room = 30
    tower._features = small
    np.testing.assert_array_equal(encoder.encode_images(prepared), expected)
    assert tower.max_batch is None
    room = 10
    with pytest.warns(UserWarning, match="^the GPU ran out of memory; it is given 8 images at once now.$") as said:
        found = encoder.encode_images(prepared)
    assert len(said) == 1
    assert sizes[1:] == [30, 15, 8, 8, 8, 6]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    again = encoder.encode_images(torch.as_tensor(np.stack(prepared[:20])))
    np.testing.assert_allclose(again, expected[:20], atol=1e-5)
    assert sizes[7:] == [8, 8, 4]
    room = 0
    with pytest.raises(ModelError, match=r"too little memory for a single image \(CUDA out of memory.*use the device"):
        encoder.encode_images(prepared)


def test_a_gpu_that_cannot_be_used(monkeypatch, tmp_path):
    def available():
        loading.warnings.warn("CUDA initialization: the driver is too old\nupdate it", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", available)
    with pytest.warns(
        UserWarning, match="cannot be used, so the model runs on the CPU: CUDA init.* is too old.$"
    ) as said:
        assert loading.torch_device("auto") == "cpu"
    assert len(said) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loading.torch_device("auto") == loading.torch_device("cpu") == "cpu"
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(loading, "NVIDIA_DRIVER", tmp_path)
    with pytest.warns(UserWarning, match="this PyTorch was built without CUDA"):
        assert loading.torch_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(loading, "_cannot_compute", lambda device: "" if device == "cpu" else "no kernel image")
    with pytest.warns(UserWarning, match="runs on the CPU: no kernel image"):
        assert loading.torch_device("auto") == "cpu"
    with pytest.raises(ModelError, match="cannot use device 'cuda': no kernel image; choose from auto, cpu, cuda"):
        loading.torch_device("cuda")


@needs_cuda
@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16"])
def test_on_a_gpu_features_stay_there_and_agree_with_the_cpu(tiny_model, precision):
    exact = load_encoder(f"local:{tiny_model}", "cpu")
    encoder = load_encoder(f"local:{tiny_model}", "cuda", precision)
    assert encoder.precision == ("float16" if precision == "auto" else precision)
    prepared = [encoder.prepare(image) for image in pictures()]
    expected = exact.encode_images([exact.prepare(image) for image in pictures()])
    on_device = torch.as_tensor(np.stack(prepared)).cuda()
    for images in (prepared, on_device, list(on_device), [exact.prepare(image) for image in pictures()]):
        features = encoder.encode_images(images)
        assert features.device.type == "cuda"
        assert features.dtype == torch.float32
        assert not features.is_inference()
        assert cosines(features, expected).min() > (0.99999 if precision == "float32" else 0.99)
    texts = ["a photo of a cat.", "dog"]
    np.testing.assert_allclose(encoder.encode_text(texts), exact.encode_text(texts), rtol=1e-3, atol=1e-3)


@needs_cuda
def test_an_encoder_works_in_a_thread_with_a_stream_of_its_own(tiny_clip):
    encoder = load_encoder(f"local:{tiny_clip}", "cuda")
    found = []
    prepared = [encoder.prepare(image) for image in pictures()]
    expected = encoder.encode_images(prepared)

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            features = encoder.encode_images(prepared)
            torch.cuda.current_stream().synchronize()
            found.append(features)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], expected)


@needs_cuda
def test_half_precision_gives_the_labels_of_single_precision(tiny_clip):
    classes = ["red square", "green circle", "blue triangle"]
    images = pictures(300)
    labels = []
    for precision in ("float32", "float16"):
        encoder = load_encoder(f"local:{tiny_clip}", "cuda", precision)
        vectors = torch.nn.functional.normalize(torch.as_tensor(encoder.encode_text(classes)), dim=-1).cuda()
        features = encoder.encode_images([encoder.prepare(image) for image in images])
        labels.append((torch.nn.functional.normalize(features, dim=-1) @ vectors.T).argmax(dim=1))
    assert (labels[0] == labels[1]).float().mean() >= 0.99


@needs_cuda
def test_convolutional_towers_run_channels_last(tiny_clip):
    class Convolutions(Overflowing):
        def __init__(self):
            super().__init__(1.0)
            layers = [torch.nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1) for i in range(9)]
            self.visual = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

        def encode_image(self, pixels):
            assert pixels.is_contiguous(memory_format=torch.channels_last)
            return super().encode_image(pixels)

        def encode_text(self, ids):
            return torch.ones(len(ids), 4)

    torch.manual_seed(0)
    model = Convolutions()
    tokenize = lambda texts: torch.zeros(len(texts), 1)  # noqa: E731
    encoder = as_encoder((model.cuda(), PREPROCESS, tokenize), "cuda", "float16")
    assert model.visual[3].weight.is_contiguous(memory_format=torch.channels_last)
    assert encoder.encode_images([encoder.prepare(image) for image in pictures(3)]).isfinite().all()


def test_torch_is_imported_when_it_is_needed():
    code = "import acclimate.encoders.open_clip, acclimate.reading.walk, sys; sys.exit('torch' in sys.modules)"
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
