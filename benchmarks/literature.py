"""The networks of the literature cases, as ONNX models with seeded weights (batch normalisation folded).

vgg5: the first five convolutions and two pools of VGG-19; fsrcnn: super-resolution at 540 x 960, its last layer as a
sub-pixel convolution; fsrcnn_valid: the same without padding; resnet18 and mobilenetv1 with ImageNet shapes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET, IR_VERSION = 17, 8
SCALE_OF_BIAS = 0.05


class Builder:
    """A network that grows by one layer after another; values are names, `channels` says how many each has."""

    def __init__(self, name: str, channels: int, height: int, width: int) -> None:
        self.name, self.shape = name, (1, channels, height, width)
        self.channels = {"input": channels}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def conv(
        self, x: str, channels: int, kernel: int, stride: int = 1, groups: int = 1,
        *, pad: int | None = None, relu: bool = True,
    ) -> str:  # fmt: skip
        per_group = self.channels[x] // groups
        spread = np.sqrt(2 / (per_group * kernel * kernel))
        weight = self._weight(self.random.normal(0, spread, (channels, per_group, kernel, kernel)))
        bias = self._weight(self.random.normal(0, SCALE_OF_BIAS, channels))
        pads = [kernel // 2 if pad is None else pad] * 4
        y = self._node(
            "Conv", [x, weight, bias], channels,
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=groups,
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
        flat = self._node("Flatten", [self._node("GlobalAveragePool", [x], channels)], channels)
        weight = self._weight(self.random.normal(0, np.sqrt(1 / channels), (count, channels)))
        return self._node("Gemm", [flat, weight, self._weight(np.zeros(count))], count, transB=1)

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

    def _weight(self, values: np.ndarray) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def _node(self, kind: str, inputs: list[str], channels: int, **attributes: object) -> str:
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
    net = Builder("mobilenetv1", 3, 224, 224)
    x = net.conv("input", 32, 3, 2)
    blocks = [
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *[(512, 1)] * 5,
        (1024, 2),
        (1024, 1),
    ]
    for channels, stride in blocks:
        x = net.conv(net.conv(x, net.channels[x], 3, stride, net.channels[x]), channels, 1)
    return net.model(net.classes(x))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    build.__name__: build for build in (vgg5, fsrcnn, fsrcnn_valid, resnet18, mobilenetv1)
}
