"""The image tower of the bundled model as an ONNX graph for onnxruntime.

The weights of linear layers have 4 bits and small arrays 16; onnxruntime converts the latter once, when it loads the
file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tower_model import EPSILON, HEADS, PATCH, Arrays

# accuracy_level of MatMulNBits. Rounding the activations to 8 bits as well is 10 % faster on some machines, but the
# results depend on the machine: good enough for statistics, but not for a model that should be the same everywhere.
FLOAT32, ROUNDED = 1, 4


class Graph:
    """Builds an ONNX graph of nodes and stored arrays; values are referred to by name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """Add a node ("Domain:Kind" for operators of onnxruntime) and return the name or names of its outputs."""
        domain, _, kind = kind.rpartition(":")
        names = [name or f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def array(self, name: str, value: Any) -> str:
        """Store an array once."""
        self.arrays.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def half(self, name: str, value: np.ndarray) -> str:
        """Store an array as 16-bit floats and cast it to 32-bit."""
        return self.op("Cast", self.array(name, value.astype(np.float16)), to=TensorProto.FLOAT)

    def save(self, path: Path, size: int, outputs: Mapping[str, int]) -> None:
        """Check and write the model; `outputs` maps the names of its outputs to their lengths."""
        pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, size, size])
        given = [
            helper.make_tensor_value_info(each, TensorProto.FLOAT, ["batch", dim]) for each, dim in outputs.items()
        ]
        graph = helper.make_graph(self.nodes, "image", [pixels], given, list(self.arrays.values()))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="acclimate")
        onnx.checker.check_model(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)


def write_graph(path: Path, tower: Arrays, keys: Arrays | None, level: int) -> None:
    """Write a packed tower as ONNX.

    Args:
        path: the file to write.
        tower: arrays of the packed file.
        keys: arrays written by `fit_keys.py`. Without them the graph returns `features` (n, 512) that are compared with
            texts and the `summary` (n, 1536) that keys are computed from; with them, only `features` (n, 512 + length
            of a key).
        level: `FLOAT32` or `ROUNDED`.
    """
    graph = Graph()
    size, layers, bits, group = map(int, tower["meta"])
    width = tower["cls"].shape[-1]

    def linear(x: str, key: str) -> str:
        """A 4-bit layer; onnxruntime and the packed file both use the layout (outputs, groups, bytes)."""
        n, k = map(int, tower[f"{key}.shape"])
        weight = graph.array(f"{key}.q", tower[f"{key}.q"].reshape(n, k // group, group * bits // 8))
        scale, zero = graph.half(f"{key}.s", tower[f"{key}.s"].ravel()), graph.array(f"{key}.z", tower[f"{key}.z"])
        inputs = (x, weight, scale, zero, "", graph.half(f"{key}.b", tower[f"{key}.b"]))
        sizes = {"K": k, "N": n, "bits": bits, "block_size": group, "accuracy_level": level}
        return graph.op("com.microsoft:MatMulNBits", *inputs, **sizes)

    def rows(key: str, shape: tuple[int, ...]) -> str:
        """An 8-bit weight with one scale per row."""
        weight = graph.array(f"{key}.q", tower[f"{key}.q"].reshape(shape))
        return graph.op("DequantizeLinear", weight, graph.array(f"{key}.s", tower[f"{key}.s"].ravel()), axis=0)

    def norm(x: str, key: str) -> str:
        weight, bias = graph.half(f"{key}.w", tower[f"{key}.w"]), graph.half(f"{key}.b", tower[f"{key}.b"])
        return graph.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=EPSILON)

    def tokens(x: str, start: int, end: int) -> str:
        """A range of the tokens, (n, end - start, width); the first is the class token."""
        return graph.op("Slice", x, *(graph.array(f"int{value}", np.array([value])) for value in (start, end, 1)))

    def unit(x: str, name: str = "") -> str:
        return graph.op("LpNormalization", x, axis=-1, p=2, name=name)

    patches = graph.op("Conv", "pixels", rows("patch", (width, 3, PATCH, PATCH)), strides=[PATCH, PATCH])
    patches = graph.op("Reshape", patches, graph.array("flat", np.array([0, 0, (size // PATCH) ** 2])))
    patches = graph.op("Transpose", patches, perm=[0, 2, 1])
    shape = graph.op("Concat", graph.op("Shape", patches, end=1), graph.array("one", np.array([1, width])), axis=0)
    x = graph.op("Concat", graph.op("Expand", graph.half("cls", tower["cls"]), shape), patches, axis=1)
    x = norm(graph.op("Add", x, graph.half("pos", tower["pos"])), "pre")
    for i in range(layers):
        mixed = linear(norm(x, f"blocks.{i}.n1"), f"blocks.{i}.qkv")
        query, key, value = graph.op("Split", mixed, outputs=3, axis=-1, num_outputs=3)
        if i == layers - 1:  # the other tokens are not used after this
            patch_mean = graph.op("ReduceMean", tokens(x, 1, 10**6), graph.array("axis", np.array([1])), keepdims=0)
            x, query = tokens(x, 0, 1), tokens(query, 0, 1)
        mixed = graph.op("com.microsoft:MultiHeadAttention", query, key, value, num_heads=HEADS)
        x = graph.op("Add", x, linear(mixed, f"blocks.{i}.o"))
        hidden = linear(norm(x, f"blocks.{i}.n2"), f"blocks.{i}.f1")
        hidden = graph.op("com.microsoft:QuickGelu", hidden, alpha=1.0)
        x = graph.op("Add", x, linear(hidden, f"blocks.{i}.f2"))
    token = graph.op("Reshape", norm(x, "post"), graph.array("row", np.array([-1, width])))
    summary = graph.op("Concat", token, patch_mean, axis=1, name="summary")
    features = unit(graph.op("Gemm", token, rows("proj", (-1, width)), transB=1))
    features = graph.op("Sub", features, graph.array("mu", tower["mu"].astype(np.float32)))
    dim = len(tower["mu"])
    if keys is None:
        unit(features, name="features")
        graph.save(path, size, {"features": dim, "summary": 2 * width})
        return
    key = graph.op("Gemm", summary, graph.half("keys.w", keys["w"]), graph.half("keys.b", keys["b"]), transB=1)
    share = float(keys["share"])
    parts = [
        graph.op("Mul", unit(values), graph.array(f"length{i}", np.float32(length)))
        for i, (values, length) in enumerate([(features, (1 - share) ** 0.5), (key, share**0.5)])
    ]
    graph.op("Concat", *parts, axis=1, name="features")
    graph.save(path, size, {"features": dim + len(keys["b"])})
