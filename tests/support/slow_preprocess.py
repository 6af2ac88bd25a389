"""Preprocessing that takes its time, in a module that the processes of a service can import."""

import time
from dataclasses import dataclass

import numpy as np

from acclimate.encoders.preprocess import Preprocess

SIZES = {"sleep": (64, 50), "work": (64, 51), "memory": (64, 52), "crash": (64, 53), "fail": (64, 54)}


@dataclass(frozen=True)
class Trouble(Preprocess):
    """The preprocessing of a model, which makes trouble with images of some sizes."""

    def pixels(self, image):
        if image.size == SIZES["sleep"]:
            time.sleep(60)
        while image.size == SIZES["work"]:
            pass
        if image.size == SIZES["memory"]:
            np.ones(2**28)
        if image.size == SIZES["crash"]:
            import os

            os._exit(3)
        if image.size == SIZES["fail"]:
            raise RuntimeError("no processor")
        return super().pixels(image)
