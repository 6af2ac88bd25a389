"""The image tower of the bundled model as an ONNX graph for onnxruntime.

Linear layers that have scales for their inputs (`k.xs`) multiply 8-bit integers. Their weights are not in the graph: a
file beside it keeps them in 4 bits, and `acclimate.encoders.onnx` unpacks them when the model is loaded. Other linear
layers multiply float32 inputs with 4-bit weights. Small arrays have 16 bits; onnxruntime converts them once.
"""

import re
from collections.abc import Mapping
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save

from tower_model import EPSILON, HEADS, PATCH, Arrays, floats, pack, round_rows, unpack, unpack_weight

# accuracy_level of MatMulNBits. Rounding the activations to 8 bits as well is 10 % faster on some machines, but the
# results depend on the machine: good enough for statistics, but not for a model that should be the same everywhere.
FLOAT32 = 1
ROUNDED = 4
PART = 128  # inputs of a float32 layer that are multiplied at once: onnxruntime never cuts a product that is this short


class Graph:
    """An ONNX graph of nodes and stored arrays; values are referred to by name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, onnx.TensorProto] = {}
        self.given: list[str] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """Add a node ("Domain:Kind" for operators of onnxruntime) and return the name or names of its outputs."""
        domain, _, kind = kind.rpartition(":")
        names = [name or f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def array(self, name: str, value: Any, given: bool = False) -> str:
        """Store an array once; a given one is left out of the file and is passed to onnxruntime by the loader."""
        self.arrays.setdefault(name, numpy_helper.from_array(np.asarray(value, order="C"), name))
        if given:
            self.given.append(name)
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
        for array in model.graph.initializer:
            if array.name in self.given:
                array.ClearField("raw_data")
                array.data_location = TensorProto.EXTERNAL
                array.external_data.add(key="location", value="given by the loader")  # no such file
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)


def write_graph(path: Path, tower: Arrays, keys: Arrays | None, level: int = FLOAT32) -> None:
    """Write a packed tower as ONNX, and the weights of its 8-bit layers beside it, with the suffix .safetensors.

    Args:
        path: the file to write.
        tower: arrays of the packed file.
        keys: arrays written by `fit_keys.py`. Without them the graph returns `features` (n, 512) that are compared with
            texts and the `summary` (n, 1536) that keys are computed from; with them, only `features` (n, 512 + length
            of a key).
        level: `FLOAT32` or `ROUNDED`, for layers that are not 8-bit.
    """
    graph = Graph()
    packed = {}
    size, layers, bits, group = map(int, tower["meta"])
    width = tower["cls"].shape[-1]

    def linear(x: str, key: str) -> str:
        return product(codes(x, key), key, key) if f"{key}.xs" in tower else linear4(x, key)

    def linear4(x: str, key: str) -> str:
        """Return a 4-bit layer; onnxruntime and the packed file both use the layout (outputs, groups, bytes)."""
        n, k = map(int, tower[f"{key}.shape"])
        weight = graph.array(f"{key}.q", tower[f"{key}.q"].reshape(n, k // group, group * bits // 8))
        scale = graph.half(f"{key}.s", tower[f"{key}.s"].ravel())
        zero = graph.array(f"{key}.z", tower[f"{key}.z"])
        inputs = (x, weight, scale, zero, "", graph.half(f"{key}.b", tower[f"{key}.b"]))
        sizes = {"K": k, "N": n, "bits": bits, "block_size": group, "accuracy_level": level}
        return graph.op("com.microsoft:MatMulNBits", *inputs, **sizes)

    def codes(x: str, key: str) -> str:
        """Return the inputs of an 8-bit layer as bytes."""
        scale, zero = (graph.array(f"{key}.{part}", tower[f"{key}.{part}"]) for part in ("xs", "xz"))
        return graph.op("QuantizeLinear", x, scale, zero)

    def product(x: str, key: str, name: str, rows: slice = slice(None)) -> str:
        """Return the outputs of an 8-bit layer, or some rows of them under a name of their own."""
        weight, scale = (
            part[rows].numpy() for part in round_rows(unpack_weight(tower, key) * floats(tower[f"{key}.m"]))
        )
        packed.update({f"{name}.{part}": values for part, values in transposed(tower, key, rows).items()})
        packed[f"{name}.ws"] = np.ascontiguousarray(scale[:, 0])
        weight = graph.array(f"{name}.w", weight.T.astype(np.int8), given=True)
        scale = graph.array(f"{name}.ws", scale[:, 0])
        bias = graph.half(f"{name}.b", tower[f"{key}.b"][rows])
        inputs = (x, weight, f"{key}.xs", scale, f"{key}.xz", "", bias)
        return graph.op("com.microsoft:MatMulIntegerToFloat", *inputs)

    def heads(x: str, key: str, last: bool) -> list[str]:
        """Return queries, keys, values (tokens, n, heads, -1); in the last block, only the query of the class token."""
        if f"{key}.xs" in tower:  # three products are faster than one that is then split
            x = codes(x, key)
            third = [slice(i * width, (i + 1) * width) for i in range(3)]
            mixed = [product(tokens(x, 0, 1) if last and i == 0 else x, key, f"{key}.{i}", third[i]) for i in range(3)]
        else:
            mixed = graph.op("Split", linear4(x, key), outputs=3, axis=-1, num_outputs=3)
            mixed[0] = tokens(mixed[0], 0, 1) if last else mixed[0]
        return [graph.op("Reshape", each, graph.array("heads", np.array([0, 0, HEADS, -1]))) for each in mixed]

    def attention(query: str, key: str, value: str) -> str:
        """Return the values, mixed (n, heads, tokens, -1).

        The softmax is written out because onnxruntime's own adds in another order on other CPUs. One rounding error
        before a product of integers changes some of them, which the layers after it amplify.
        """
        scale = (width // HEADS) ** -0.5
        axis = graph.array("last", np.array([-1]))
        tokens_first = {"transBatchA": 1, "transBatchB": 1}
        scores = graph.op("com.microsoft:FusedMatMul", query, key, alpha=scale, transB=1, **tokens_first)
        powers = graph.op("Exp", graph.op("Sub", scores, graph.op("ReduceMax", scores, axis)))
        mixed = graph.op("com.microsoft:FusedMatMul", powers, value, transBatchB=1)
        return graph.op("Div", mixed, graph.op("ReduceSum", powers, axis))

    def joined(mixed: str, key: str) -> str:
        """Return the outputs (tokens, n, width) of a layer for heads (n, heads, tokens, -1)."""
        eight = f"{key}.xs" in tower
        mixed = graph.op("Transpose", codes(mixed, key) if eight else mixed, perm=[2, 0, 1, 3])
        mixed = graph.op("Reshape", mixed, graph.array("joined", np.array([0, 0, width])))
        return product(mixed, key, key) if eight else linear4(mixed, key)

    def rows(key: str, shape: tuple[int, ...]) -> str:
        """Return an 8-bit weight with one scale per row."""
        weight = graph.array(f"{key}.q", tower[f"{key}.q"].reshape(shape))
        return graph.op("DequantizeLinear", weight, graph.array(f"{key}.s", tower[f"{key}.s"].ravel()), axis=0)

    def in_parts(x: str, weight: str, inputs: int) -> str:
        """Return the product of (n, inputs) and a float32 weight (outputs, inputs), summed over parts of PART inputs.

        onnxruntime adds up long products in parts whose length depends on the number of threads.
        """
        part = gcd(inputs, PART)
        split = graph.array(f"parts{inputs}", np.array([-1, inputs // part, part]))
        x = graph.op("Transpose", graph.op("Reshape", x, split), perm=[1, 0, 2])
        weight = graph.op("Transpose", graph.op("Reshape", weight, split), perm=[1, 2, 0])
        return graph.op("ReduceSum", graph.op("MatMul", x, weight), graph.array("parts", np.array([0])), keepdims=0)

    def norm(x: str, key: str) -> str:
        weight = graph.half(f"{key}.w", tower[f"{key}.w"])
        bias = graph.half(f"{key}.b", tower[f"{key}.b"])
        return graph.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=EPSILON)

    def tokens(x: str, start: int, end: int) -> str:
        """Return a range of the tokens, (end - start, n, width); the first is the class token."""
        return graph.op("Slice", x, *(graph.array(f"int{value}", np.array([value])) for value in (start, end, 0)))

    def unit(x: str, name: str = "") -> str:
        return graph.op("LpNormalization", x, axis=-1, p=2, name=name)

    patches = graph.op("Conv", "pixels", rows("patch", (width, 3, PATCH, PATCH)), strides=[PATCH, PATCH])
    patches = graph.op("Reshape", patches, graph.array("flat", np.array([0, 0, (size // PATCH) ** 2])))
    patches = graph.op("Transpose", patches, perm=[2, 0, 1])
    one = graph.array("one", np.array([1]))
    shape = graph.op("Concat", one, graph.op("Shape", "pixels", end=1), graph.array("wide", np.array([width])), axis=0)
    x = graph.op("Concat", graph.op("Expand", graph.half("cls", tower["cls"]), shape), patches, axis=0)
    x = norm(graph.op("Add", x, graph.half("pos", tower["pos"][:, None])), "pre")
    for i in range(layers):
        block = f"blocks.{i}"
        last = i == layers - 1
        mixed = attention(*heads(norm(x, f"{block}.n1"), f"{block}.qkv", last))
        if last:  # the other tokens are not used after this
            patch_mean = graph.op("ReduceMean", tokens(x, 1, 10**6), graph.array("first", np.array([0])), keepdims=0)
            x = tokens(x, 0, 1)
        x = graph.op("Add", x, joined(mixed, f"{block}.o"))
        hidden = graph.op("com.microsoft:QuickGelu", linear(norm(x, f"{block}.n2"), f"{block}.f1"), alpha=1.0)
        factors = tower.get(f"{block}.f2.m", np.ones(1)).astype(np.float32)
        if (factors != 1).any():  # no layer before can divide by them
            hidden = graph.op("Mul", hidden, graph.array(f"{block}.f2.d", 1 / factors))
        x = graph.op("Add", x, linear(hidden, f"{block}.f2"))
    token = graph.op("Reshape", norm(x, "post"), graph.array("row", np.array([-1, width])))
    summary = graph.op("Concat", token, patch_mean, axis=1, name="summary")
    features = unit(in_parts(token, rows("proj", (-1, width)), width))
    features = graph.op("Sub", features, graph.array("mu", tower["mu"].astype(np.float32)))
    outputs = {"features": len(tower["mu"]), "summary": 2 * width}
    if keys is None:
        unit(features, name="features")
    else:
        key = in_parts(summary, graph.half("keys.w", keys["w"]), 2 * width)
        key = graph.op("Add", key, graph.half("keys.b", keys["b"]))
        share = float(keys["share"])
        parts = [
            graph.op("Mul", unit(values), graph.array(f"length{i}", np.float32(length)))
            for i, (values, length) in enumerate([(features, (1 - share) ** 0.5), (key, share**0.5)])
        ]
        graph.op("Concat", *parts, axis=1, name="features")
        outputs = {"features": outputs["features"] + len(keys["b"])}
    graph.save(path, size, outputs)
    if packed:
        path.with_suffix(".safetensors").write_bytes(save(packed))


def transposed(tower: Arrays, key: str, rows: slice) -> dict[str, np.ndarray]:
    """Return some rows of a 4-bit layer in the layout that `acclimate.encoders.onnx.unpack_weights` reads."""
    outputs = int(tower[f"{key}.shape"][0])
    codes, zeros = (unpack(tower[f"{key}.{part}"]).reshape(outputs, -1)[rows].T for part in "qz")
    low, high = np.split(codes, 2, axis=1)
    scales = tower[f"{key}.s"].reshape(outputs, -1)[rows].T
    parts = {"q": low | high << 4, "z": zeros, "s": scales, "m": tower[f"{key}.m"]}
    return {part: np.ascontiguousarray(values) for part, values in parts.items()}


def read_graph(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the packed tower and the keys that `write_graph` made a graph and the file beside it from."""
    model = onnx.load(path, load_external_data=False).graph
    stored = {a.name: numpy_helper.to_array(a) for a in model.initializer if a.data_location != TensorProto.EXTERNAL}
    packed = load_file(path.with_suffix(".safetensors"))
    own = re.compile(r"cls|mu|(pre|post|blocks\.\d+\.\w+)\.(w|b|q|s|z|xs|xz)")
    tower = {name: values for name, values in stored.items() if own.fullmatch(name)} | {"pos": stored["pos"][:, 0]}
    for key in ("patch", "proj"):
        tower[f"{key}.q"] = stored[f"{key}.q"].reshape(len(stored[f"{key}.q"]), -1)
        tower[f"{key}.s"] = stored[f"{key}.s"][:, None]
    for key in [name.removesuffix(".z") for name in tower if name.endswith(".z")]:  # 4-bit layers
        outputs, groups, size = tower[f"{key}.q"].shape
        tower[f"{key}.shape"], tower[f"{key}.q"] = np.array([outputs, 2 * groups * size]), tower[f"{key}.q"].ravel()
        tower[f"{key}.s"] = tower[f"{key}.s"].reshape(outputs, groups)
    parts: dict[str, list[str]] = {}
    for name in sorted(name[:-2] for name in packed if name.endswith(".q")):
        parts.setdefault(re.sub(r"\.[0-2]$", "", name), []).append(name)
    for key, names in parts.items():  # 8-bit layers
        codes = [np.concatenate([q & 15, q >> 4], axis=1).T for q in (packed[f"{name}.q"] for name in names)]
        zeros, scales = (np.concatenate([packed[f"{name}.{part}"].T for name in names]) for part in "zs")
        tower[f"{key}.shape"] = np.array([len(scales), codes[0].shape[1]])
        tower[f"{key}.q"] = pack(np.concatenate(codes))
        tower[f"{key}.z"] = pack(zeros)
        tower[f"{key}.s"] = scales
        tower[f"{key}.b"] = np.concatenate([stored[f"{name}.b"] for name in names])
        tower[f"{key}.m"] = packed[f"{names[0]}.m"]
    group = codes[0].shape[1] // scales.shape[1]
    side = int(np.sqrt(len(tower["pos"]) - 1))
    layers = sum(name.endswith("n1.w") for name in tower)
    tower["meta"] = np.array([side * PATCH, layers, 4, group])
    return tower, {"w": stored["keys.w"], "b": stored["keys.b"], "share": stored["length1"] ** 2}


def float_tower(tower: Arrays) -> dict[str, np.ndarray]:
    """Return the same tower with float32 products: earlier layers no longer divide by the factors of 8-bit layers."""
    made = {name: np.copy(values) for name, values in tower.items() if not name.endswith((".m", ".xs", ".xz"))}
    for name, factors in tower.items():
        if name.endswith(".o.m"):  # the values that attention mixes
            before = name.replace(".o.m", ".qkv")
            made[f"{before}.s"][-len(factors) :] *= factors[:, None]
            made[f"{before}.b"][-len(factors) :] *= factors
        elif name.endswith((".qkv.m", ".f1.m")):
            before = name.replace(".qkv.m", ".n1").replace(".f1.m", ".n2")
            for part in "wb":
                made[f"{before}.{part}"] *= factors
    return made
