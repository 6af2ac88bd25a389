"""Generated images: from a folder, and from a pipeline of diffusers where it is installed."""

from importlib.util import find_spec

import numpy as np
import pytest

from acclimate.errors import ImageError, InputError, MissingExtraError
from acclimate.views.generated import GeneratedFolder, Generator, open_generator
from drawn_images import draw


@pytest.fixture
def folder(tmp_path):
    return GeneratedFolder(tmp_path / "generated")


def test_stored_images_are_read(folder):
    images = [draw("red", seed) for seed in range(12)]
    folder.store("photos/cats/7.jpg", images)
    found = folder.generate(None, "/elsewhere/cats/7.jpg", 12, seed=1)
    for image, expected in zip(found, images, strict=True):  # 10.png after 9.png
        np.testing.assert_array_equal(image, expected)
    assert len(folder.generate(None, "cats/7.jpg", 3, seed=0)) == 3
    assert isinstance(folder, Generator)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("7.jpg", "7.jpg"),
        ("../cats/7.jpg", "cats/7.jpg"),
        ("/7.jpg", "7.jpg"),
        ("a/b/c/d.png", "c/d.png"),
        ("../..", None),
    ],
)
def test_the_folder_is_the_end_of_the_name(folder, name, expected):
    if expected is None:
        with pytest.raises(ImageError, match="found by the image's name, and this image has none"):
            folder.folder_of(name)
    else:
        assert folder.folder_of(name) == folder.folder / expected


def test_other_files_and_formats(folder):
    folder.store("cats/7.jpg", [draw("red", 1)])
    place = folder.folder_of("cats/7.jpg")
    draw("blue", 2).save(place / "1.jpg", quality=95)
    (place / "notes.txt").write_text("not an image")
    assert [path.name for path in folder.files("cats/7.jpg")] == ["0.png", "1.jpg"]
    (place / "1.jpg").write_bytes(b"junk")
    with pytest.raises(ImageError, match=r"the generated image .*1\.jpg: not an image"):
        folder.generate(None, "cats/7.jpg", 2, seed=0)


def test_generators_by_name(folder, tmp_path):
    with pytest.raises(InputError, match=r"no folder of generated images at .*; make one with `acclimate generate`"):
        open_generator(tmp_path / "missing")
    folder.folder.mkdir()
    opened = open_generator(str(folder.folder))
    assert (opened.source, open_generator(folder)) == (folder.source, folder)


def test_a_missing_package_is_named():
    if find_spec("diffusers") is not None:
        pytest.skip("diffusers is installed")
    with pytest.raises(MissingExtraError, match=r"install .*\[diffusion\].; or generate them on a machine"):
        open_generator("diffusers:some/model")


def test_a_generator_needs_a_model():
    with pytest.raises(InputError, match="diffusers: needs a model"):
        open_generator("diffusers:")


def test_variations_by_a_tiny_pipeline(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch = pytest.importorskip("torch")
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=[32, 64],
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=4,
    )
    config = CLIPVisionConfig(
        hidden_size=32,
        projection_dim=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        image_size=32,
        patch_size=4,
    )
    diffusers.StableDiffusionImageVariationPipeline(
        vae=vae,
        image_encoder=CLIPVisionModelWithProjection(config),
        unet=unet,
        scheduler=diffusers.PNDMScheduler(skip_prk_steps=True),
        safety_checker=None,
        feature_extractor=CLIPImageProcessor(crop_size=32, size=32),
        requires_safety_checker=False,
    ).save_pretrained(tmp_path / "pipeline")
    generator = open_generator(f"diffusers:{tmp_path / 'pipeline'}", "cpu")
    generator.steps = 2
    image = draw("red", 1)
    many, few = (generator.generate(image, "a.png", count, seed=0) for count in (10, 3))
    other = generator.generate(image, "b.png", 3, seed=0)
    assert len(many) == 10
    for ours, theirs, foreign in zip(few, many[:3], other, strict=True):
        assert np.abs(np.asarray(ours, int) - np.asarray(theirs, int)).max() <= 2
        assert np.abs(np.asarray(ours, int) - np.asarray(foreign, int)).max() > 2
