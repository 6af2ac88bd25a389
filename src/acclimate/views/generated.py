"""Generated images of an image, for diffusion views: from a folder where they were stored, or from a generator."""

import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from PIL import Image

from acclimate.errors import ImageError, InputError
from acclimate.files import write_atomically
from acclimate.images.opening import open_image

DIFFUSERS_PREFIX = "diffusers:"


@runtime_checkable
class Generator(Protocol):
    """A maker of new images of what an image shows. Any object with these members can be used.

    Attributes:
        source: identifies where its images come from.
    """

    source: str

    def generate(self, image: Image.Image, name: str, count: int, seed: int) -> list[Image.Image]:
        """Return `count` RGB images; fewer are the first of more. Called from several threads.

        Args:
            image: RGB.
            name: name of the image in its source; "" if it has none.
            count: number of images to return, all of them or an ImageError.
            seed: seed of the random choices.
        """


class GeneratedFolder:
    """Images that were generated earlier, in one folder per image.

    Those of the image `photos/cats/7.jpg` are `FOLDER/cats/7.jpg/0.png`, `1.png` and so on, in any format that Pillow
    reads: the folder is named by the last two parts of the image's name, so that a dataset can be moved.

    Args:
        folder: the folder of all of them.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from acclimate.views.generated import GeneratedFolder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stored = GeneratedFolder(folder)
        ...     stored.store("photos/cats/7.jpg", [Image.new("RGB", (8, 8), shade) for shade in ("red", "blue")])
        ...     [image.getpixel((0, 0)) for image in stored.generate(None, "elsewhere/cats/7.jpg", 2, seed=0)]
        [(255, 0, 0), (0, 0, 255)]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.source = self.folder.resolve().as_posix()

    def folder_of(self, name: str) -> Path:
        """Return the folder of the images generated of the image with this name."""
        parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..")][-2:]
        if not parts:
            raise ImageError("generated images are found by the image's name, and this image has none")
        return self.folder.joinpath(*parts)

    def stamp(self, names: Iterable[str]) -> str:
        """Return a digest that changes whenever images are generated for one of these names."""
        digest = hashlib.sha256()
        for folder in map(self.folder_of, names):
            digest.update(f"{folder.stat().st_mtime_ns if folder.is_dir() else 0}\n".encode())
        return digest.hexdigest()[:16]

    def files(self, name: str) -> list[Path]:
        """Return the images generated of the image with this name, in order."""
        folder = self.folder_of(name)
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted((path for path in found if path.stem.isdecimal()), key=lambda path: int(path.stem))

    def generate(self, image: Image.Image | None, name: str, count: int, seed: int) -> list[Image.Image]:
        """Read the first `count` images generated of the image with this name."""
        files = self.files(name)
        if len(files) < count:
            raise ImageError(
                f"{self.folder_of(name)} has {len(files)} generated images, {count} are needed; "
                f"make them with `acclimate generate --count {count}`"
            )
        images = []
        for path in files[:count]:
            try:
                images.append(open_image(path))
            except ImageError as error:
                raise ImageError(f"the generated image {path}: {error}") from error
        return images

    def store(self, name: str, images: Sequence[Image.Image]) -> None:
        """Write the images generated of the image with this name, each completely or not at all."""
        folder = self.folder_of(name)
        folder.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            content = io.BytesIO()
            image.save(content, "PNG")
            write_atomically(folder / f"{number}.png", content.getvalue())


def open_generator(source: str | os.PathLike[str] | Generator, device: str = "auto") -> Generator:
    """Return the generator that a text names: a folder of generated images, or `diffusers:MODEL[@REVISION]`.

    Raises:
        InputError: there is no such folder.
        MissingExtraError: the generator needs a package that is not installed.
    """
    if isinstance(source, Generator):
        return source
    text = os.fspath(source)
    if text.startswith(DIFFUSERS_PREFIX):
        from acclimate.views.diffusers import ImageVariations

        return ImageVariations(text.removeprefix(DIFFUSERS_PREFIX), device)
    if not Path(text).is_dir():
        raise InputError(
            f"no folder of generated images at {text}; make one with `acclimate generate`, or write diffusers:MODEL."
        )
    return GeneratedFolder(text)
