"""An encoder that looks features up: a picture is the number of a row, so that streams can be shown any features."""

import io

import numpy as np
from PIL import Image


def picture(row):
    """Return a PNG file whose only pixel is the number of a row."""
    content = io.BytesIO()
    Image.new("RGB", (1, 1), (row % 256, row // 256 % 256, row // 65536)).save(content, "PNG")
    return content.getvalue()


def row_of(image):
    """Return the number in a picture."""
    red, green, blue = image.getpixel((0, 0))
    return red + 256 * green + 65536 * blue


class TableEncoder:
    """Features (n, d) by row, and the class vectors of a head by class name; use it with the template "{}"."""

    fingerprint = "table"
    prepare = staticmethod(row_of)

    def __init__(self, features, head):
        self.features = np.asarray(features, np.float32)
        self.dim = head.dim
        self.logit_scale = float(head.logit_scale)
        self.logit_bias = float(head.logit_bias)
        self.vectors = dict(zip(head.class_names, np.asarray(head.class_vectors, np.float32), strict=True))

    def encode_images(self, images):
        return self.features[list(images)]

    def encode_text(self, texts):
        return np.stack([self.vectors[text] for text in texts])
