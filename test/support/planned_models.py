"""A model and a machine with too little SRAM for its maps: their plans have loops, residents and storage of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from mixed_models import model, node

CHANNELS, SIZE = 8, 24
TARGET = "extends: edge\nname: {name}\nchip: {{cluster: {{sram: {{capacity_bytes: {kib} KiB}}}}}}\n"


def residual(blocks: int = 1) -> onnx.ModelProto:
    """Blocks of two convolutions of 3x3 and what they read added, then a pool; `x` to `y`."""
    rng, nodes, constants, last = np.random.default_rng(0), [], {}, "x"
    for k in range(blocks):
        for name in (f"a{k}", f"b{k}"):
            constants[f"{name}.w"] = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 10
        nodes += [
            node("Conv", [last, f"a{k}.w"], [f"a{k}"], pads=[1, 1, 1, 1]),
            node("Relu", [f"a{k}"], [f"r{k}"]),
            node("Conv", [f"r{k}", f"b{k}.w"], [f"b{k}"], pads=[1, 1, 1, 1]),
            node("Add", [f"b{k}", last], [f"s{k}"]),
            node("Relu", [f"s{k}"], [f"o{k}"]),
        ]
        last = f"o{k}"
    nodes.append(node("MaxPool", [last], ["y"], kernel_shape=[2, 2], strides=[2, 2]))
    return model(nodes, {"x": (1, CHANNELS, SIZE, SIZE)}, ["y"], constants)


def perceptron(rows: int = 48, width: int = 64, hidden: int = 256) -> onnx.ModelProto:
    """Two products with an activation between them, and a softmax of what they make added to what they read."""
    rng = np.random.default_rng(0)
    constants = {
        "up.w": rng.standard_normal((width, hidden)).astype(np.float32) / 10,
        "down.w": rng.standard_normal((hidden, width)).astype(np.float32) / 10,
    }
    nodes = [
        node("Relu", ["x"], ["first"]),
        node("MatMul", ["first", "up.w"], ["up"]),
        node("Relu", ["up"], ["act"]),
        node("MatMul", ["act", "down.w"], ["down"]),
        node("Add", ["down", "first"], ["sum"]),
        node("Softmax", ["sum"], ["y"]),
    ]
    return model(nodes, {"x": (rows, width)}, ["y"], constants)


def save(folder: Path, name: str, proto: onnx.ModelProto) -> str:
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    return str(path)


def machine(folder: Path, kib: int) -> str:
    """The file of a machine with so much SRAM, called `tight` and that."""
    path = folder / f"tight{kib}.yaml"
    path.write_text(TARGET.format(name=f"tight{kib}", kib=kib))
    return str(path)
