"""Half precision against float32 on real images, for `gpu.py`: a trained tower, and labels of seven datasets."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

from acclimate import Head, load_encoder
from acclimate.arrays import to_host
from acclimate.encoders.open_clip import OpenClipEncoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.prompts import build_head
from acclimate.views.augment import ModelInput
from images import MEAN, STD, read_pack
from tower_model import Tower


class Trained(torch.nn.Module):
    """The image tower of a packed file and the texts of the bundled model.

    Args:
        packed: the file; `training/tower_model.py` describes it.
        device: where it runs.
    """

    def __init__(self, packed: Path, device: str) -> None:
        super().__init__()
        with np.load(packed) as arrays:
            self._tower = Tower(arrays)
        self.size = self._tower.size
        self.texts = load_encoder()
        weights = {name.replace(".", "-"): values for name, values in self._tower.weights.items()}
        self.visual = torch.nn.ParameterDict(weights).requires_grad_(False).to(device)
        self.logit_scale = torch.nn.Parameter(torch.tensor(self.texts.logit_scale).log().to(device))

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return features (n, 512) of pixels (n, 3, h, w)."""
        self._tower.weights = {name.replace("-", "."): values for name, values in self.visual.items()}
        return self._tower(pixels)[0]

    def encode_text(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return zeros: the class vectors come from the bundled model."""
        return torch.zeros(len(numbers), 512, device=numbers.device)


def labels_by_precision(pack: Path, packed: Path, device: str, precisions: Sequence[str]) -> list[np.ndarray]:
    """Return the zero-shot label of each image of a pack, among those of its dataset, in each precision."""
    found = []
    for precision in precisions:
        model = Trained(packed, device)
        size = model.size
        pixels, rows = read_pack(pack, size)
        prepare = Preprocess(size, size, size, "bicubic", MEAN, STD)
        encoder = OpenClipEncoder(model, prepare, lambda texts: torch.zeros(len(texts), 1), precision=precision)
        target = ModelInput.of(prepare)
        gain, offset = (torch.from_numpy(each[:, None, None]) for each in (target.gain, target.offset))
        blocks = (torch.from_numpy(pixels[start : start + 256]) for start in range(0, len(pixels), 256))
        parts = (block * gain + offset for block in blocks)
        features = np.concatenate([to_host(encoder.encode_images(part)) for part in parts])
        datasets, names = (np.array([row[key] for row in rows]) for key in ("dataset", "class_name"))
        labels = np.full(len(rows), "", dtype=object)
        for dataset in np.unique(datasets):
            own = datasets == dataset
            whole = build_head(model.texts, sorted(set(names[own].tolist())))
            head = Head(whole.class_vectors[:, :512], whole.logit_scale, class_names=whole.class_names)
            best = head.observe(features[own]).logits.argmax(axis=1)
            labels[own] = np.array(head.class_names, dtype=object)[best]
        found.append(labels)
    return found
