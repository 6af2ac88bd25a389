"""`acclimate generate`: generated images of every image, for diffusion views."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import arguments
from acclimate.cli.console import progress_bar, say
from acclimate.errors import ImageError, InputError, RunError, reason
from acclimate.errors import count as counted


def generate(
    source: arguments.Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for generated images.")],
    generator: Annotated[
        str, typer.Option(help="diffusers:MODEL or diffusers:MODEL@REVISION, on Hugging Face (downloaded) or a folder.")
    ],
    count: Annotated[int, typer.Option(help="Images to generate per image; DiffTPT's 128 views need 63.", min=1)] = 63,
    seed: Annotated[int, typer.Option(help="Of the generator.", min=0)] = 0,
    upright: Annotated[
        bool, typer.Option(help="Turn images as their EXIF orientation says; datasets of the paper are not turned.")
    ] = True,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    device: arguments.Device = "auto",
) -> None:
    """Generate variations of every image with a diffusion model, and store them for `--encode generated=`.

    The same command continues an interrupted run: images that have enough generated ones are skipped.
    """
    from acclimate.files import writing
    from acclimate.images.opening import open_image
    from acclimate.views.generated import GeneratedFolder, open_generator

    samples = arguments.list_images(source)
    stored = GeneratedFolder(out)
    maker = open_generator(generator, device)
    folders: dict[Path, str] = {}
    for sample in samples:
        if (other := folders.setdefault(stored.folder_of(sample.name), sample.name)) != sample.name:
            raise InputError(f"{other} and {sample.name} would share a folder below {out}; generate them separately.")
    made = failed = 0
    with progress_bar(len(samples), "generating", "images") as advance:
        for sample in samples:
            if len(stored.files(sample.name)) < count:
                try:
                    image = open_image(sample.read(), upright=upright)
                except (ImageError, OSError) as error:
                    say(f"skipped {sample.name}: {reason(error)}", err=True)
                    failed += 1
                else:
                    with writing(out):
                        stored.store(sample.name, maker.generate(image, sample.name, count, seed))
                    made += 1
            advance(1)
    if failed == len(samples):
        raise RunError("no image could be read.")
    say(
        f"{out}: {counted(made, 'image')} done, {len(samples) - made - failed} were there already, "
        f"{failed} could not be read.",
        err=True,
    )
