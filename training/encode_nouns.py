"""Encode the nouns of "none of these" by the bundled model, and pack their vectors into a file that is shipped.

python training/encode_nouns.py src/acclimate/prompts/data/nouns.safetensors    # half a minute on two cores
"""

import argparse
from pathlib import Path

import numpy as np

from acclimate import build_head, load_encoder
from acclimate.files import snapshot_bytes, write_atomically
from acclimate.prompts import nouns, prompts_for
from acclimate.prompts.head import vectors_key
from acclimate.prompts.templates import DEFAULT_SET


def pack(vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Return vectors (M, d) as 8-bit numbers without trailing zeros, and the scale (M,) of each."""
    used = int(np.flatnonzero(vectors.any(axis=0))[-1]) + 1
    scale = np.abs(vectors).max(axis=1) / 127
    return {"vectors": np.rint(vectors[:, :used] / scale[:, None]).astype(np.int8), "scale": scale.astype(np.float32)}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("to", type=Path, help="the .safetensors file to write")
    options = parser.parse_args()
    encoder = load_encoder()
    head = build_head(encoder, nouns(), DEFAULT_SET, cache=False)
    about = {"dim": head.dim, "key": vectors_key(encoder, prompts_for(nouns(), DEFAULT_SET))}
    content = snapshot_bytes(pack(head.class_vectors), about)
    write_atomically(options.to, content)
    print(f"{len(head)} nouns, {len(content) / 1e6:.2f} MB -> {options.to}")


if __name__ == "__main__":
    main()
