"""Comparisons, logic, choices and places of the largest elements: exact on the device, of random shapes and types."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from frustum import onnx_backend
from frustum.passes.errors import Unsupported

OPSET = 21
SPECIAL = np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 2.5, 1e30, -1e30])


def run(op, arrays, *, target="edge", constants=(), dtype=None, outputs=1, **attributes):
    """What the device gives for one node, and what ONNX says."""
    names = [f"x{index}" for index in range(len(arrays))]
    given = dict(zip(names, arrays, strict=True))
    node = helper.make_node(op, names, [f"y{index}" for index in range(outputs)], **attributes)
    bound = {f"x{index}": arrays[index] for index in constants}
    inputs = {name: array for name, array in given.items() if name not in bound}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    model = model_of([node], infos, [(name, _type(op, arrays, place)) for place, name in enumerate(node.output)])
    expected = ReferenceEvaluator(model).run(None, given)
    options = {"dtype": dtype} if dtype else {}
    prepared = prepare(model, expected, target=target, bind_inputs=bound, **options)
    return prepared.run(list(inputs.values())), expected


def model_of(nodes, infos, ends, constants=()):
    outputs = [helper.make_tensor_value_info(name, type_, None) for name, type_ in ends]
    graph = helper.make_graph(nodes, "case", infos, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def prepare(model, expected, **options):
    """For the device alone, checked; the outputs have the shapes of what is expected."""
    for value, array in zip(model.graph.output, expected, strict=True):
        value.type.CopyFrom(helper.make_tensor_type_proto(value.type.tensor_type.elem_type, array.shape))
    return onnx_backend.prepare(model, host="never", checked=True, **options)


def _type(op, arrays, place):
    if op in ("ArgMax", "ArgMin") or (op == "TopK" and place):
        return TensorProto.INT64
    numbers = {"Where": 1, "Sign": 0, "TopK": 0}.get(op)
    return TensorProto.BOOL if numbers is None else helper.np_dtype_to_tensor_dtype(arrays[numbers].dtype)


def shapes(rng, count=2):
    """Shapes that broadcast together, of 1 to 5 dimensions."""
    whole = tuple(rng.integers(1, 7, rng.integers(1, 6)).tolist())
    found = [whole]
    for _ in range(count - 1):
        own = [extent if rng.random() < 0.7 else 1 for extent in whole]
        found.append(tuple(own[rng.integers(0, len(own)) if rng.random() < 0.3 else 0 :]))
    return [found[index] for index in rng.permutation(count)]


def numbers(rng, shape, dtype=np.float32):
    return rng.choice(SPECIAL, shape).astype(dtype) if rng.random() < 0.5 else rng.integers(-3, 4, shape).astype(dtype)


def same(found, expected):
    for own, wanted in zip(found, expected, strict=True):
        assert own.dtype == wanted.dtype
        np.testing.assert_array_equal(own, wanted)
        if wanted.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(own)[own == 0], np.signbit(wanted)[own == 0])


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_comparisons(op, dtype):
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        arrays = [numbers(rng, shape, dtype) for shape in shapes(rng)]
    same(*run(op, arrays))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_comparisons_of_short_integers(dtype):
    rng = np.random.default_rng(2)
    ends = np.iinfo(dtype)
    arrays = [rng.choice(np.asarray([ends.min, ends.max, 3, 4], dtype), (3, 5)) for _ in range(2)]
    same(*run("GreaterOrEqual", arrays))
    same(*run("Equal", arrays))


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op):
    rng = np.random.default_rng(3)
    same(*run(op, [rng.random(shape) < 0.5 for shape in shapes(rng)]))


def test_signs_and_what_is_no_number():
    same(*run("Sign", [SPECIAL.reshape(2, 5)]))
    same(*run("IsNaN", [SPECIAL]))
    same(*run("IsInf", [SPECIAL]))
    same(*run("IsInf", [SPECIAL], detect_positive=0))
    same(*run("Not", [SPECIAL > 0]))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_choices_are_exact(seed, dtype):
    """With a condition that is known only when running; sometimes an operand is constant, or 0."""
    rng = np.random.default_rng(seed)
    condition, a, b = shapes(rng, 3)
    with np.errstate(over="ignore"):
        arrays = [rng.random(condition) < 0.5, numbers(rng, a, dtype), numbers(rng, b, dtype)]
    if seed == 1:
        arrays[2] = np.zeros((), dtype)
    if seed == 2:
        arrays[1] = np.zeros(condition, dtype)
    same(*run("Where", arrays, constants={1: (2,), 2: (1,), 3: ()}.get(seed, (0,))))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", range(6))
def test_places_of_the_largest(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, rng.integers(1, 5)).tolist())
    x = rng.integers(-2, 3, shape).astype(np.float32)
    x[rng.random(shape) < 0.2] = -np.inf
    axis = int(rng.integers(-len(shape), len(shape)))
    settings = {"axis": axis, "keepdims": int(rng.random() < 0.5), "select_last_index": int(rng.random() < 0.5)}
    same(*run(("ArgMax", "ArgMin")[seed % 2], [x], target=("edge", "default")[seed // 3], **settings))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("dtype", "most"), [("f32", 3000), ("f16", 2048), ("bf16", 256)])
def test_places_are_exact_in_all_types(dtype, most):
    """The last one too; of longer axes the node is refused by name."""
    x = np.arange(2 * most, dtype=np.float32).reshape(2, most) % 200
    x[0, 0] = x[1, -1] = 250
    same(*run("ArgMax", [x], axis=1, dtype=dtype))
    if dtype != "f32":
        with pytest.raises(Unsupported, match=f"it needs integers up to {most + 1}, and {dtype} has all up to {most}"):
            run("ArgMax", [np.zeros((2, most + 1), np.float32)], axis=1, dtype=dtype)


def test_places_that_a_type_does_not_have_are_found_on_the_host():
    x = np.random.default_rng(0).permutation(600).astype(np.float32).reshape(2, 300) % 250
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("ArgMax", ["r"], ["y"], axis=1)]
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    model = model_of(nodes, [info], [("y", TensorProto.INT64)])
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.INT64, (2, 1)))
    prepared = onnx_backend.prepare(model, dtype="bf16", target="edge")
    (found,) = prepared.run([x])
    np.testing.assert_array_equal(found, x.argmax(1)[:, None])
    assert [(each["name"], each.get("where")) for each in prepared.report["layers"] if each.get("where") == "host"]


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("seed", range(6))
def test_the_largest_in_order(seed):
    """Equal elements in the order of their places, infinities among them."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 9, rng.integers(1, 5)).tolist())
    x = rng.integers(-2, 3, shape).astype(np.float32)
    x[rng.random(shape) < 0.2] = np.inf
    axis = int(rng.integers(-len(shape), len(shape)))
    k = np.int64([rng.integers(1, shape[axis] + 1)])
    is_largest = int(rng.random() < 0.5)
    (values, places), (wanted, _) = run("TopK", [x, k], constants=(1,), outputs=2, axis=axis, largest=is_largest)
    order = np.argsort(-x if is_largest else x, axis=axis, kind="stable")
    np.testing.assert_array_equal(places, np.take(order, range(int(k[0])), axis))
    np.testing.assert_array_equal(values, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("is_largest", [0, 1])
def test_the_largest_of_a_long_axis_in_order(is_largest):
    """Equal elements and infinities, also those that stand for what is taken out."""
    x = np.random.default_rng(is_largest).integers(-2, 3, (3, 70)).astype(np.float32)
    x[0] = (np.inf, -np.inf)[is_largest]
    x[1, 5:] = (np.inf, -np.inf)[is_largest]
    (values, places), (wanted, _) = run("TopK", [x, np.int64([3])], constants=(1,), outputs=2, largest=is_largest)
    order = np.argsort(-x if is_largest else x, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, wanted)
    with pytest.raises(Unsupported, match="17 of an axis of 70 elements are not supported: at most 16 of more than 64"):
        run("TopK", [x, np.int64([17])], constants=(1,), outputs=2)


@pytest.mark.slow
def test_truth_values_are_numbers_after_a_cast():
    """Through a reshape and a choice, and back."""
    x = np.float32([[-1, 0, np.nan], [2, 0, -0.0]])
    nodes = [
        helper.make_node("Cast", ["x"], ["truth"], to=TensorProto.BOOL),
        helper.make_node("Transpose", ["truth"], ["turned"]),
        helper.make_node("Cast", ["turned"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["turned"], ["z"], to=TensorProto.INT64),
        helper.make_node("Where", ["turned", "z", "many"], ["w"]),
    ]
    ends = [("y", TensorProto.FLOAT), ("z", TensorProto.INT64), ("w", TensorProto.INT64), ("turned", TensorProto.BOOL)]
    many = helper.make_tensor("many", TensorProto.INT64, (1,), [2**20])
    model = model_of(nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)], ends, [many])
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    same(prepare(model, expected).run([x]), expected)


def test_integers_that_the_type_does_not_have_are_refused():
    x = np.zeros((2, 2), np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Less", ["whole", "limit"], ["y"]),
    ]
    limit = helper.make_tensor("limit", TensorProto.INT64, (), [2**24 + 1])
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    model = model_of(nodes, infos, [("y", TensorProto.BOOL)], [limit])
    with pytest.raises(Unsupported, match="integers that f32 does not"):
        prepare(model, [x]).run([x])
