"""Peak memory while an image is decoded to RGB, in bytes per pixel, for kinds of files and modes of 40 million pixels.

Each image is decoded in a process of its own. Beside it stands what `examine_image` says before decoding: pixels of 8
bytes, per pixel of the image.

    python benchmarks/image_memory.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (8000, 5000)
CHILD = """
import sys
from PIL import Image
from acclimate.images.opening import examine_image
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
Image.init()
examined = examine_image(open(sys.argv[1], "rb").read())
open("/proc/self/clear_refs", "w").write("5")
before = peak()
examined.decode()
print(1024 * (peak() - before), examined.pixels)
"""


def cases():
    """Name, image, kind of file and options of each case."""
    shades = np.random.default_rng(0).integers(0, 256, (125, 200, 3), dtype=np.uint8)
    photo = Image.fromarray(shades).resize(SIZE, Image.Resampling.BILINEAR)
    grey = np.asarray(photo.convert("L"))
    turned = Image.Exif()
    turned[0x0112] = 6
    yield "JPEG", photo, "JPEG", {}
    yield "JPEG, turned", photo, "JPEG", {"exif": turned}
    yield "JPEG, progressive", photo, "JPEG", {"progressive": True}
    yield "JPEG, progressive 4:4:4", photo, "JPEG", {"progressive": True, "subsampling": 0}
    yield "JPEG, CMYK", photo.convert("CMYK"), "JPEG", {}
    for mode in ("RGB", "RGBA", "L", "LA", "1"):
        yield f"PNG, {mode}", photo.convert(mode), "PNG", {"compress_level": 1}
    yield "PNG, P with transparency", photo.convert("P"), "PNG", {"compress_level": 1, "transparency": 3}
    yield "PNG, I;16", Image.fromarray(grey * np.uint16(257)), "PNG", {"compress_level": 1}
    yield "GIF", photo.convert("P"), "GIF", {}
    for dtype, mode in ((np.int32, "I"), (np.float32, "F")):
        yield f"TIFF, {mode}", Image.fromarray(grey.astype(dtype)), "TIFF", {}
    for mode in ("RGB", "CMYK", "YCbCr"):
        yield f"TIFF, {mode}", photo.convert(mode), "TIFF", {}
    yield "TIFF, deflated", photo, "TIFF", {"compression": "tiff_adobe_deflate"}
    yield "BMP", photo, "BMP", {}
    yield "PPM", photo, "PPM", {}
    yield "WebP", photo, "WEBP", {"method": 0}
    yield "WebP, lossless", photo.convert("RGBA"), "WEBP", {"method": 0, "lossless": True, "quality": 0}
    yield "JPEG 2000", photo.resize((4000, 2500)), "JPEG2000", {}
    yield "AVIF", photo.resize((4000, 2500)), "AVIF", {"speed": 10}


def main() -> None:
    """Print the table."""
    print("| file | bytes per pixel | counted, in pixels per pixel |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, image, kind, options in cases():
            path = Path(folder, "image")
            image.save(path, kind, **options)
            child = subprocess.run([sys.executable, "-c", CHILD, path], capture_output=True, text=True, check=True)
            taken, counted = (int(each) / (image.width * image.height) for each in child.stdout.split())
            print(f"| {name} | {taken:.1f} | {counted:.2f} |", flush=True)


if __name__ == "__main__":
    main()
