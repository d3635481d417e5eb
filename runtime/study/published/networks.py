# Tests: test/runtime/study/published/test_cases.py
"""The convolutional networks of published figures, as ONNX models with seeded weights (batch normalisation folded).

vgg5: the first five convolutions and two pools of VGG-19; vgg19_maps: VGG-19 without its fully connected layers;
fsrcnn: super-resolution at 540 x 960, its last layer a sub-pixel convolution; fsrcnn_valid: the same without padding;
resnet18 and mobilenetv1 with ImageNet shapes; resnet8, mobilenetv1_96, ds_cnn and autoencoder: those of MLPerf Tiny.
Weights are random: neither bytes nor cycles depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from frustum.runtime.kernels import Array

OPSET, IR_VERSION = 17, 8
SCALE_OF_BIAS = 0.05
Pads = int | Sequence[int]
"""On every side, or top, left, bottom, right."""


class Builder:
    """A network that grows by one layer after another; values are names, `channels` says how many each has."""

    def __init__(self, name: str, channels: int, *extents: int) -> None:
        self.name = name
        self.shape: tuple[int, int, *tuple[int, ...]] = (1, channels, *extents)
        self.channels: dict[str, int] = {"input": channels}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random: np.random.Generator = np.random.default_rng(0)

    def conv(
        self, x: str, channels: int, kernel: int | tuple[int, int], stride: int = 1, groups: int = 1,
        *, pad: Pads | None = None, relu: bool = True,
    ) -> str:  # fmt: skip
        """Kernels of height and width; without `pad` half of the kernel's height on every side."""
        per_group = self.channels[x] // groups
        window = (kernel, kernel) if isinstance(kernel, int) else kernel
        spread = np.sqrt(2 / (per_group * window[0] * window[1]))
        weight = self._weight(self.random.normal(0, spread, (channels, per_group, *window)))
        bias = self._weight(self.random.normal(0, SCALE_OF_BIAS, channels))
        sides = window[0] // 2 if pad is None else pad
        pads = [sides] * 4 if isinstance(sides, int) else list(sides)
        y = self._node(
            "Conv", [x, weight, bias], channels,
            kernel_shape=list(window), strides=[stride] * 2, pads=pads, group=groups,
        )  # fmt: skip
        return self.relu(y) if relu else y

    def relu(self, x: str) -> str:
        return self._node("Relu", [x], self.channels[x])

    def pool(self, x: str, kernel: int, stride: int, pad: int = 0) -> str:
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self._node("MaxPool", [x], self.channels[x], **window)

    def add(self, a: str, b: str) -> str:
        return self._node("Add", [a, b], self.channels[a])

    def classes(self, x: str, count: int = 1000) -> str:
        channels = self.channels[x]
        return self.dense(self._node("Flatten", [self._node("GlobalAveragePool", [x], channels)], channels), count)

    def dense(self, x: str, count: int) -> str:
        channels = self.channels[x]
        weight = self._weight(self.random.normal(0, np.sqrt(1 / channels), (count, channels)))
        return self._node("Gemm", [x, weight, self._weight(np.zeros(count))], count, transB=1)

    def model(self, output: str) -> onnx.ModelProto:
        float32 = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("input", float32, self.shape)],
            [helper.make_tensor_value_info(output, float32, None)],
            self.weights,
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model)
        return model

    def _weight(self, values: Array) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def _node(self, kind: str, inputs: list[str], channels: int, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self.channels[name] = channels
        return name


def vgg5() -> onnx.ModelProto:
    net = Builder("vgg5", 3, 224, 224)
    x = net.pool(net.conv(net.conv("input", 64, 3), 64, 3), 2, 2)
    x = net.pool(net.conv(net.conv(x, 128, 3), 128, 3), 2, 2)
    return net.model(net.conv(x, 256, 3))


def fsrcnn() -> onnx.ModelProto:
    return _fsrcnn("fsrcnn", 540, 960, None)


def fsrcnn_valid() -> onnx.ModelProto:
    return _fsrcnn("fsrcnn_valid", 554, 974, 0)


def _fsrcnn(name: str, height: int, width: int, pad: int | None) -> onnx.ModelProto:
    net, x = Builder(name, 1, height, width), "input"
    for channels, kernel in ((56, 5), (12, 1), (12, 3), (12, 3), (12, 3), (12, 3), (56, 1)):
        x = net.conv(x, channels, kernel, pad=pad)
    return net.model(net.conv(x, 16, 3, pad=pad, relu=False))


def resnet18() -> onnx.ModelProto:
    net = Builder("resnet18", 3, 224, 224)
    x = net.pool(net.conv("input", 64, 7, 2), 3, 2, 1)
    for channels, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
            same = net.channels[x] == channels
            x = net.relu(net.add(y, x if same else net.conv(x, channels, 1, stride, relu=False)))
    return net.model(net.classes(x))


def mobilenetv1() -> onnx.ModelProto:
    return _mobilenetv1("mobilenetv1", 224, 32, 1000, 1)


def mobilenetv1_96() -> onnx.ModelProto:
    """A quarter of the channels, for two classes; padded below and to the right where the stride is 2."""
    return _mobilenetv1("mobilenetv1_96", 96, 8, 2, (0, 0, 1, 1))


def _mobilenetv1(name: str, size: int, channels: int, classes: int, pad: Pads) -> onnx.ModelProto:
    """`pad` where the stride is 2; all channels are multiples of those of the first layer."""
    net = Builder(name, 3, size, size)
    x = net.conv("input", channels, 3, 2, pad=pad)
    blocks = [(2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *[(16, 1)] * 5, (32, 2), (32, 1)]
    for times, stride in blocks:
        depthwise = net.conv(x, net.channels[x], 3, stride, net.channels[x], pad=pad if stride == 2 else 1)
        x = net.conv(depthwise, times * channels, 1)
    return net.model(net.classes(x, classes))


def vgg19_maps() -> onnx.ModelProto:
    net, x = Builder("vgg19_maps", 3, 224, 224), "input"
    for channels, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            x = net.conv(x, channels, 3)
        x = net.pool(x, 2, 2)
    return net.model(x)


def resnet8() -> onnx.ModelProto:
    """Image classification of MLPerf Tiny."""
    net = Builder("resnet8", 3, 32, 32)
    x = net.conv("input", 16, 3)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        pad = 1 if stride == 1 else (0, 0, 1, 1)
        y = net.conv(net.conv(x, channels, 3, stride, pad=pad), channels, 3, relu=False)
        x = net.relu(net.add(y, x if stride == 1 else net.conv(x, channels, 1, stride, relu=False)))
    return net.model(net.classes(x, 10))


def ds_cnn() -> onnx.ModelProto:
    """Keyword spotting of MLPerf Tiny."""
    net = Builder("ds_cnn", 1, 49, 10)
    x = net.conv("input", 64, (10, 4), 2, pad=(4, 1, 5, 1))
    for _ in range(4):
        x = net.conv(net.conv(x, 64, 3, groups=64), 64, 1)
    return net.model(net.classes(x, 12))


def autoencoder() -> onnx.ModelProto:
    """Anomaly detection of MLPerf Tiny."""
    net, x = Builder("autoencoder", 640), "input"
    for count in (*[128] * 4, 8, *[128] * 4):
        x = net.relu(net.dense(x, count))
    return net.model(net.dense(x, 640))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    build.__name__: build
    for build in (
        vgg5, vgg19_maps, fsrcnn, fsrcnn_valid, resnet18, mobilenetv1, mobilenetv1_96, resnet8, ds_cnn, autoencoder,
    )
}  # fmt: skip
