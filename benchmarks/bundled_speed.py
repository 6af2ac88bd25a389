"""How fast is the bundled model? Images per second, and the ratio to its bare matrix products in float32.

    python benchmarks/bundled_speed.py

The floor is the tower's linear layers as NumPy products on weights of 32 bits: no attention, no norms, no unpacking of
4-bit weights. Preparing an image (decode, resize) and encoding it are timed apart; `classify` does them side by side.
"""

from importlib.resources import files
from io import BytesIO
from time import perf_counter
from zipfile import ZipFile

import numpy as np

from acclimate.encoders import load_encoder
from acclimate.images import open_image

BATCH, ROUNDS = 32, 5
LAYERS, TOKENS = 12, 65
SHAPES = ((768, 2304), (768, 768), (768, 1536), (1536, 768))


def main() -> None:
    """Print a table."""
    encoder = load_encoder(device="cpu")
    photos = []
    with ZipFile(BytesIO((files("acclimate.cli") / "pictures.zip").read_bytes())) as archive:
        for name in archive.namelist()[:BATCH]:
            buffer = BytesIO()
            open_image(archive.read(name)).resize((640, 480)).save(buffer, "JPEG")
            photos.append(buffer.getvalue())
    prepared = [encoder.prepare(open_image(each)) for each in photos]
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape, np.float32) for shape in SHAPES]
    inputs = {width: rng.standard_normal((BATCH * TOKENS, width), np.float32) for width in (768, 1536)}

    def products() -> None:
        for _ in range(LAYERS):
            for weight in weights:
                inputs[len(weight)] @ weight

    work = {
        "preparing (one thread)": lambda: [encoder.prepare(open_image(each)) for each in photos],
        "encoding": lambda: encoder.encode_images(prepared),
        "floor: matrix products": products,
    }
    seconds = {name: float("inf") for name in work}
    for _ in range(ROUNDS):  # in turns, so that a busy moment of the machine hits all of them
        for name, do in work.items():
            began = perf_counter()
            do()
            seconds[name] = min(seconds[name], perf_counter() - began)
    for name, best in seconds.items():
        print(f"{name:24} {BATCH / best:7.1f} images/s")
    print(f"encoding takes {seconds['encoding'] / seconds['floor: matrix products']:.2f} times its floor")


if __name__ == "__main__":
    main()
