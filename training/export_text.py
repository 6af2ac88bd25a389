"""Write the distilled text tower as ONNX with 8-bit weights, together with its tokenizer.

python training/export_text.py STUDENT/ --keys keys.npz --to MODEL/
"""

import argparse
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

from text_model import TextModel, load_text_model

SMALL = 10_000  # arrays with fewer numbers are not quantised


def quantise(model: onnx.ModelProto) -> None:
    """Store every large weight matrix as bytes with one scale per row; onnxruntime restores it when loading."""
    graph = model.graph
    restored = []
    for tensor in list(graph.initializer):
        weights = numpy_helper.to_array(tensor)
        if weights.ndim != 2 or weights.size < SMALL or weights.dtype != np.float32:
            continue
        scale = np.maximum(np.abs(weights).max(axis=1), 1e-8).astype(np.float32) / 127
        codes = np.clip(np.round(weights / scale[:, None]), -127, 127).astype(np.int8)
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(codes, f"{tensor.name}.codes"))
        graph.initializer.append(numpy_helper.from_array(scale, f"{tensor.name}.scale"))
        inputs = [f"{tensor.name}.codes", f"{tensor.name}.scale"]
        restored.append(helper.make_node("DequantizeLinear", inputs, [tensor.name], axis=0))
    nodes = [*restored, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


class Padded(torch.nn.Module):
    """A text model with zeros in the part of a feature that only images use."""

    def __init__(self, text: TextModel, keys: int) -> None:
        super().__init__()
        self.text = text
        self.keys = keys

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map ids (n, t) to features (n, dim + keys)."""
        return F.pad(self.text(ids), (0, self.keys))


def main() -> None:
    """Export, quantise, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("student", type=Path, help="folder written by distil_text.py")
    parser.add_argument("--keys", type=Path, required=True, help="file written by fit_keys.py")
    parser.add_argument("--to", type=Path, required=True, help="the model's folder")
    options = parser.parse_args()
    model = Padded(load_text_model(options.student), len(np.load(options.keys)["b"])).eval()
    size = model.text.size
    ids = torch.randint(1, size.vocabulary, (3, size.context))
    ids[1, 5:] = size.pad
    ids[2, 20:] = size.pad
    options.to.mkdir(parents=True, exist_ok=True)
    path = options.to / "text.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (ids,),
            path,
            input_names=["ids"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    graph = onnx.load(path)
    quantise(graph)
    for node in graph.graph.node:  # the exporter records local file names in every node
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.checker.check_model(graph)
    onnx.save(graph, path)
    shutil.copyfile(options.student / "tokenizer.json", options.to / "tokenizer.json")
    features = onnxruntime.InferenceSession(path).run(None, {"ids": ids.numpy()})[0]
    with torch.inference_mode():
        cosine = (features * model(ids).numpy()).sum(axis=1).min()
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, cosine to the float model at least {cosine:.5f}")
    assert cosine > 0.999


if __name__ == "__main__":
    main()
