"""Operators of com.microsoft that are sums of those of ONNX: numbers are those of onnxruntime."""

import numpy as np
import pytest
from judged_models import MICROSOFT, Judged, node, normal
from onnx import helper, numpy_helper

import frustum
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx

X = normal(1, 4, 7, 6)


def contributed(op, names, **attributes):
    return node(op, names, ["y"], domain=MICROSOFT, **attributes)


@pytest.mark.parametrize(
    ("op", "attributes"), [("Gelu", {}), ("QuickGelu", {}), ("QuickGelu", {"alpha": 1.0}), ("FastGelu", {})]
)
def test_functions(op, attributes):
    Judged([contributed(op, ["x"], **attributes)], {"x": 3 * X}).agrees()


def test_on_the_device():
    nodes = [
        node("FusedConv", ["x", "w", "b", "z"], ["c"], domain=MICROSOFT, pads=[1] * 4, activation="HardSigmoid",
             activation_params=[0.3, 0.4]),
        node("QuickGelu", ["c"], ["q"], domain=MICROSOFT),
        node("FusedMatMul", ["q", "v"], ["y"], domain=MICROSOFT, transA=1, alpha=0.25),
    ]  # fmt: skip
    constants = {"w": normal(8, 4, 3, 3), "b": normal(8), "v": normal(7, 5)}
    Judged(nodes, {"x": X, "z": normal(1, 8, 7, 6)}, constants).runs()


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.75]),
        ("HardSigmoid", [0.3, 0.4]), (None, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_sum", [False, True])
def test_a_convolution_with_what_is_fused_to_it(activation, parameters, has_sum):
    own = {"activation": activation} if activation else {}
    own |= {"activation_params": parameters} if parameters else {}
    names, inputs = ["x", "w", "b"], {"x": X}
    if has_sum:
        names, inputs = [*names, "z"], {"x": X, "z": normal(1, 8, 4, 3)}
    fused = contributed("FusedConv", names, pads=[1] * 4, strides=[2, 2], group=2, **own)
    Judged([fused], inputs, {"w": normal(8, 2, 3, 3), "b": normal(8)}).agrees()


def test_a_fused_function_that_is_not_known():
    with pytest.raises(Unsupported, match=r"the activation Elu with the parameters \(1.0,\) is not supported: Relu, "):
        import_onnx(unjudged(contributed("FusedConv", ["x", "w"], activation="Elu", activation_params=[1.0]),
                             {"x": X}, {"w": normal(8, 4, 3, 3)}))  # fmt: skip


@pytest.mark.parametrize("a_is_constant", [False, True])
@pytest.mark.parametrize("flips", range(16))
def test_a_product_of_operands_that_are_turned(flips, a_is_constant):
    """Every pair of flags: the last two axes, and that of the rows before the batch."""
    trans_a, trans_b, batch_a, batch_b = (flips >> bit & 1 for bit in range(4))
    sizes = {"a": [2, 3, 4, 5], "b": [2, 3, 5, 6]}
    a = turned(normal(*sizes["a"]), trans_a, batch_a)
    b = turned(normal(*sizes["b"], seed=1), trans_b, batch_b)
    attributes = {"transA": trans_a, "transB": trans_b, "transBatchA": batch_a, "transBatchB": batch_b}
    fused = contributed("FusedMatMul", ["a", "b"], alpha=-1.5, **attributes)
    constants, inputs = ({"a": a}, {"b": b}) if a_is_constant else ({}, {"a": a, "b": b})
    Judged([fused], inputs, constants).agrees()


def turned(x, swaps, batch):
    """What the flags undo."""
    x = x.swapaxes(-1, -2) if swaps else x
    return np.ascontiguousarray(np.moveaxis(x, -2, 0) if batch else x)


def test_products_with_vectors():
    for a, b in (((5,), (5, 6)), ((2, 4, 5), (5,))):
        Judged([contributed("FusedMatMul", ["a", "b"], alpha=0.5)], {"a": normal(*a), "b": normal(*b)}).agrees()


@pytest.mark.parametrize("scale", [(96,), (6, 96)])
def test_root_mean_squares_by_their_old_name(scale):
    x = normal(1, 5, 6, 96)
    norm = node("SimplifiedLayerNormalization", ["x", "s"], ["y", "i"], axis=-len(scale), epsilon=1e-3)
    judged = Judged([norm], {"x": x}, {"s": normal(*scale)}, outputs=("y", "i"), opset=17)
    judged.agrees()
    if len(scale) == 1:
        judged.runs()


# --- weights of a few bits ---------------------------------------------------------------------------------


def n_bits(bits, block, k, n, *, zeros=True, bias=False, dtype=np.float32, rows=3, **more):
    """A product, and its operands as onnxruntime packs them."""
    rng = np.random.default_rng((bits, block, k, n))
    blocks = -(-k // block)
    constants = {
        "w": rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.1, n * blocks).astype(dtype),
        "z": rng.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8),
        "b": rng.standard_normal(n).astype(dtype),
    }
    names = ["a", "w", "s", "z" if zeros else "", "", "b" if bias else ""]
    product = contributed("MatMulNBits", names, K=k, N=n, bits=bits, block_size=block, **more)
    inputs = {"a": rng.standard_normal((1, rows, k)).astype(dtype)}
    return [product], inputs, constants


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("block", "k", "n", "bias"), [(16, 64, 8, False), (32, 96, 5, True), (64, 100, 7, False), (256, 300, 3, True)]
)
def test_weights_in_blocks(bits, block, k, n, bias, zeros):
    """Also where blocks do not divide the input channels, and zero points do not fill their last byte."""
    Judged(*n_bits(bits, block, k, n, zeros=zeros, bias=bias)).agrees()


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_blocks_on_the_device(bits):
    Judged(*n_bits(bits, 32, 96, 40, bias=True)).runs()


def test_weights_in_blocks_in_f16():
    Judged(*n_bits(4, 32, 96, 40, dtype=np.float16)).runs(rtol=2e-3)


def test_the_judge_does_not_round_what_comes_in():
    """`accuracy_level` lets onnxruntime round activations to bytes, which moves results by 1 %."""
    nodes, inputs, constants = n_bits(4, 32, 96, 40, accuracy_level=4)
    rounded = Judged(nodes, inputs, constants)
    exact = Judged(*n_bits(4, 32, 96, 40))
    assert np.abs(rounded.wanted[0] - exact.wanted[0]).max() > 1e-3 * np.abs(exact.wanted[0]).max()
    made = frustum.compile(rounded.proto, target="edge", host="never")
    frustum.run(made, inputs, check=True, mode="functional")


def test_what_of_blocks_is_refused():
    nodes, inputs, constants = n_bits(4, 32, 64, 8)
    nodes[0].input[4] = "g"
    with pytest.raises(Unsupported, match=r"g_idx \(an order of the input channels\) is not supported"):
        import_onnx(unjudged(nodes[0], inputs, constants | {"g": np.zeros(64, np.int32)}))
    nodes, inputs, constants = n_bits(2, 32, 64, 8)
    with pytest.raises(Unsupported, match="weights of 2 bits are not supported: of 4 and 8 bits are"):
        import_onnx(unjudged(nodes[0], inputs, constants))
    nodes, inputs, constants = n_bits(4, 32, 64, 8)
    with pytest.raises(Unsupported, match="zero points of float32 are not supported"):
        import_onnx(unjudged(nodes[0], inputs, constants | {"z": np.zeros(16, np.float32)}))


def unjudged(own, inputs, constants):
    """A model of one node that onnxruntime need not take."""
    infos = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in
             inputs.items()]  # fmt: skip
    tensors = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph([own], "case", infos, [helper.make_tensor_value_info("y", 1, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)],
                             ir_version=8)  # fmt: skip
