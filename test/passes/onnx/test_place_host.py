"""Which nodes run on the host, why, and the pieces that this makes."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from mixed_models import controlled, model, node, sandwich
from onnx import TensorProto, helper, numpy_helper

import frustum
import frustum.onnx_backend
from frustum.backend import targets
from frustum.passes.errors import ModelError, Unsupported
from frustum.passes.onnx.host_work import HostWork
from frustum.passes.onnx.loading import load_model
from frustum.passes.onnx.place_host import (
    Island,
    Placement,
    constant_inputs,
    device_cycles,
    host_is_cheaper,
    import_or_place,
    place,
    whole_on_host,
)
from frustum.runtime.host.agreement import agreement

DEFAULT, EDGE = targets.load("default"), targets.load("edge")


def placed(proto: onnx.ModelProto, target=DEFAULT, **options) -> Placement:
    return place(load_model(proto), target, **options)


def operators(placement: Placement) -> list[tuple[str, list[str]]]:
    return [(part.kind, [n.op_type for n in part.model.proto.graph.node]) for part in placement.parts]


def reasons(placement: Placement) -> dict[str, str]:
    return {each.name: each.reason for part in placement.parts for each in part.fallbacks}


def test_pieces_are_as_few_as_can_be() -> None:
    found = placed(sandwich())
    assert operators(found) == [("device", ["Conv", "Relu"]), ("host", ["Hardmax"]), ("device", ["Conv", "Add"])]
    first, second, third = found.parts
    assert (first.inputs, first.outputs) == (["x"], ["r1"])
    assert (second.inputs, second.outputs) == (["r1"], ["h"])
    assert (sorted(third.inputs), third.outputs) == (["h", "x"], ["y"])
    assert [(each.name, each.dtype, each.shape) for each in found.inputs] == [("x", "float32", (1, 32, 32, 32))]
    assert found.outputs == ("y", "r1")
    assert reasons(found) == {"h": "this operator is not supported"}


def test_a_small_island_is_not_worth_its_moves() -> None:
    nodes = [
        node("Hardmax", ["x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Hardmax", ["b"], ["c"]),
    ]
    found = placed(model(nodes, {"x": (1, 1000)}, ["c"]))
    assert operators(found) == [("host", ["Hardmax", "Relu", "Hardmax"])]
    # default: a link of 16 B/cycle there and back, a latency of 200 cycles; the host reads and writes 10 B/cycle
    why = "between nodes of the host it takes 800 cycles there, and 1,100 here, with 8,000 bytes moved"
    assert reasons(found)["b"] == why


def test_an_island_that_the_host_gives_to_alone_stays() -> None:
    """However small: moving it would save no way there and back."""
    for operators_, outputs in ((["Hardmax", "Relu"], "b"), (["Relu", "Hardmax"], "b")):
        nodes = [node(op, [i], [o]) for op, i, o in zip(operators_, "xa", "ab", strict=True)]
        found = placed(model(nodes, {"x": (1, 10)}, [outputs]))
        assert sorted(operators(found)) == [("device", ["Relu"]), ("host", ["Hardmax"])]


def convs(*links, outputs):
    """Convolutions of 32 channels, `(from, to)`, between nodes that only the host has, `(from, to, operator)`."""
    weight = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32) / 17
    nodes = [
        node(link[2], [link[0]], [link[1]]) if len(link) > 2 else node("Conv", [link[0], "w"], [link[1]], pads=[1] * 4)
        for link in links
    ]
    return model(nodes, {"x": (1, 32, 32, 32)}, outputs, {"w": weight})


def test_what_the_device_does_not_need_of_the_host_runs_at_the_end() -> None:
    """One piece of the device, though three nodes in the middle of it feed the host."""
    found = placed(
        convs(
            ("x", "a"), ("a", "h1", "Hardmax"), ("a", "b"), ("b", "h2", "Hardmax"), ("b", "c"), ("h2", "h3", "Hardmax"),
            outputs=["h1", "h3", "c"],
        )
    )  # fmt: skip
    assert operators(found) == [("device", ["Conv"] * 3), ("host", ["Hardmax"] * 3)]
    assert sorted(found.parts[0].outputs) == ["a", "b", "c"] and sorted(found.parts[1].outputs) == ["h1", "h3"]


def test_independent_islands_of_the_host_end_one_piece_of_the_device() -> None:
    """Two results of the host are needed, of different depth; the one that is not needed does not come before them."""
    found = placed(
        convs(
            ("x", "a"), ("a", "idle", "Hardmax"), ("a", "h1", "Hardmax"), ("a", "b"), ("b", "h2", "Hardmax"),
            ("h1", "c"), ("h2", "d"), ("b", "e"),
            outputs=["idle", "c", "d", "e"],
        )
    )  # fmt: skip
    assert [(kind, len(names)) for kind, names in operators(found)] == [
        ("device", 3), ("host", 2), ("device", 2), ("host", 1),
    ]  # fmt: skip
    assert found.parts[1].outputs == ["h1", "h2"] and found.parts[3].outputs == ["idle"]


def test_without_a_node_on_the_host_there_is_nothing_to_weigh() -> None:
    found = placed(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]))
    assert operators(found) == [("device", ["Relu"])]


def test_the_cost_of_an_island_by_hand() -> None:
    island = Island((0,), 4000, 4000, weight_bytes=1600, macs=64_000, work=HostWork(64_000, 51_000))
    # edge: link 4 B/cycle, DRAM 8 B/cycle after 100 cycles, 4 cores of 256 / 8 = 32 MAC/cycle
    assert device_cycles(island, EDGE) == 300 + 8000 / 4 + 64_000 / 128
    # the host: 20 MAC/cycle, 20 B/cycle
    why = "between nodes of the host it takes 3,200 cycles there, and 2,800 here, with 8,000 bytes moved"
    assert host_is_cheaper(island, EDGE) == ""
    assert host_is_cheaper(replace(island, work=HostWork(50_401, 0)), EDGE) == ""
    assert host_is_cheaper(replace(island, work=HostWork(50_400, 0)), EDGE) == why.replace("3,200", "2,520")
    assert host_is_cheaper(replace(island, work=HostWork(0, 50_400)), EDGE) == why.replace("3,200", "2,520")
    assert host_is_cheaper(replace(island, work=HostWork(0, 0), to_host_bytes=0), EDGE) == ""


def test_shapes_known_at_run_time_only_are_for_the_host() -> None:
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        node("Sigmoid", ["floats"], ["y"]),
    ]
    why = reasons(placed(model(nodes, {"x": (4, 4)}, ["y"])))
    assert why["places"] == "this operator is not supported"
    lacks = "'places' has a shape that is known at run time only (node 'places' gives it on the host)"
    assert why["floats"] == lacks
    assert why["y"] == "'floats' has a shape that is known at run time only (node 'floats' gives it on the host)"


def test_shapes_of_host_values_are_constants() -> None:
    """Shape of an INT64 input is known, and so is what a Reshape makes of it."""
    nodes = [node("Shape", ["ids"], ["s"]), node("Reshape", ["x", "s"], ["r"]), node("Hardmax", ["r"], ["h"])]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, (64, 64)),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (4096,)),
    ]
    found = placed(model(nodes, inputs, ["h"]))
    assert "ids" not in found.parts[0].inputs


def test_control_flow_is_for_the_host() -> None:
    found = placed(controlled())
    assert operators(found) == [("device", ["Relu"]), ("host", ["Loop"])]
    assert found.parts[1].inputs == ["n", "r"]
    assert "must be constant" in reasons(found)["loop"]


@pytest.mark.slow
def test_the_branch_that_is_taken_is_placed_node_by_node() -> None:
    """Also one inside of it; its constants and what is around it are read as before."""
    rng = np.random.default_rng(0)
    kernel = numpy_helper.from_array(rng.standard_normal((32, 32, 3, 3), np.float32), "k")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("b", "z", "e", "f")]
    inside = helper.make_graph([node("Relu", ["a"], ["b"])], "inside", [], ends[:1])
    other = helper.make_graph([node("Neg", ["x"], ["b"])], "other", [], ends[:1])
    then = helper.make_graph(
        [
            node("Conv", ["x", "k"], ["a"], pads=[1] * 4),
            node("If", ["c"], ["d"], then_branch=inside, else_branch=other),
            node("Hardmax", ["d"], ["e"]), node("Conv", ["e", "k"], ["z"], pads=[1] * 4),
        ],
        "then", [], [ends[1], ends[2]], [kernel],
    )  # fmt: skip
    plain = [node("Neg", ["x"], ["z"]), node("Abs", ["x"], ["f"])]
    otherwise = helper.make_graph(plain, "else", [], [ends[1], ends[3]])
    for c, expected in (
        (True, [("device", ["Conv", "Relu"]), ("host", ["Hardmax"]), ("device", ["Conv", "Add"])]),
        (False, [("device", ["Neg", "Abs", "Add"])]),
    ):
        choice = node("If", ["c"], ["p", "q"], then_branch=then, else_branch=otherwise)
        proto = model([choice, node("Add", ["p", "q"], ["y"])], {"x": (1, 32, 32, 32)}, ["y"], {"c": np.array(c)})
        found = placed(proto)
        assert [(kind, [each for each in ops if each != "Constant"]) for kind, ops in operators(found)] == expected
        x = rng.standard_normal((1, 32, 32, 32), np.float32)
        outputs = frustum.run(frustum.compile(proto), {"x": x}, mode="functional").outputs
        _, agrees = agreement(proto, {"x": x}, outputs, "f32")
        assert agrees.good


def test_doubles_stay_exact() -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, (2, 3))]
    proto = model([node("Exp", ["x"], ["y"])], inputs, ["y"])
    found = import_or_place(proto, DEFAULT, "auto")
    assert isinstance(found, Placement)
    why = "'x' has elements of DOUBLE, which the device would round to f32 (--dtype f32 allows it)"
    assert reasons(found) == {"y": why}
    assert not isinstance(import_or_place(proto, DEFAULT, "auto", exact=False), Placement)
    assert not isinstance(import_or_place(proto, DEFAULT, "never", exact=False), Placement)
    with pytest.raises(Unsupported, match=r"\(Exp\): error: 'x' has elements of DOUBLE, which the device would round"):
        import_or_place(proto, DEFAULT, "never")


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("op", "constant", "is_exact"),
    [("Mul", 0.25, True), ("Mul", 0.1, False), ("Div", 3.0, True), ("Pow", 2.0, False), ("Max", 0.5, True)],
)
def test_doubles_that_f32_has_are_computed_on_the_device(op, constant, is_exact) -> None:
    """As exporters write it: to DOUBLE, a constant, and back."""
    nodes = [
        node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        node("Transpose", ["wide"], ["turned"], perm=[1, 0]),
        node(op, ["turned", "c"], ["z"]),
        node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = model(nodes, {"x": (64, 64)}, ["y"], {"c": np.float64(constant)})
    assert ("z" in reasons(placed(proto))) != is_exact
    if is_exact:
        assert not isinstance(import_or_place(proto, DEFAULT, "never"), Placement)
        proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (64, 64)))
        x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
        wide = x.T.astype(np.float64)
        wanted = {"Mul": wide * constant, "Div": wide / constant, "Max": np.maximum(wide, constant)}[op]
        (y,) = frustum.onnx_backend.prepare(proto).run([x])
        np.testing.assert_array_equal(y, wanted.astype(np.float32))


def test_a_double_that_is_rounded_twice_stays_exact() -> None:
    nodes = [
        node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        node("Mul", ["wide", "wide"], ["square"]),
        node("Add", ["square", "wide"], ["z"]),
        node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
    ]
    found = reasons(placed(model(nodes, {"x": (64, 64)}, ["y"])))
    assert "has elements of DOUBLE, which the device would round to f32" in found["square"]


def test_a_node_that_cannot_be_converted_costs_no_other_its_place() -> None:
    """Scan had another first input and an axis of batches in opset 8."""
    shapes = {"i": (1, 2), "n": (1, 3, 2)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    state = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,)) for name in "seoz"]
    body = helper.make_graph(
        [node("Add", ["s", "e"], ["o"]), node("Identity", ["o"], ["z"])], "body", state[:2], state[2:]
    )
    proto = convs(("x", "c"), ("c", "d"), outputs=["d", "f", "q"])
    proto.graph.input.extend(inputs)
    proto.graph.node.append(node("Scan", ["", "i", "n"], ["f", "q"], body=body, num_scan_inputs=1))
    proto.opset_import[0].version = 8
    found = placed(proto)
    assert operators(found) == [("device", ["Conv", "Conv"]), ("host", ["Scan"])]
    assert reasons(found) == {"f": "it cannot be converted from opset 8 to 13: its inputs would change"}


def test_what_depends_on_constants_only_comes_along() -> None:
    """Dequantised weights are in both pieces that use them, and cross nowhere."""
    rng = np.random.default_rng(1)
    constants = {
        "q": rng.integers(-9, 9, (64, 64)).astype(np.int8),
        "s": np.float32(0.1),
        "z": np.int8(0),
    }
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"]),
        node("MatMul", ["x", "w"], ["m"]),
        node("Hardmax", ["m"], ["h"]),
        node("Mod", ["h", "w"], ["e"], fmod=1),
    ]
    found = placed(model(nodes, {"x": (64, 64, 64)}, ["e"], constants))
    assert [part.inputs for part in found.parts] == [["x"], ["m"]]
    assert operators(found)[1] == ("host", ["Hardmax", "DequantizeLinear", "Mod"])


def test_constant_outputs_come_from_the_host() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Relu", ["x"], ["y"]), node("Hardmax", ["y"], ["h"])]
    found = placed(model(nodes, {"x": (4, 6)}, ["s", "y", "h"]))
    last = found.parts[-1]
    assert (last.kind, last.inputs, last.outputs) == ("host", [], ["s"])
    assert [n.op_type for n in last.model.proto.graph.node] == ["Identity"]


def test_nodes_refused_later_are_placed_again() -> None:
    found = placed(model([node("Exp", ["x"], ["y"])], {"x": (4,)}, ["y"]), refused={"y": "no engine"})
    assert reasons(found) == {"y": "no engine"}


def test_never_is_the_import_alone_and_only_is_none_of_it() -> None:
    with pytest.raises(Unsupported, match=r"node 'h' \(Hardmax\): error: this operator is not supported"):
        import_or_place(sandwich(), DEFAULT, "never")
    whole = import_or_place(sandwich(), DEFAULT, "only")
    assert isinstance(whole, Placement)
    assert operators(whole) == [("host", ["Conv", "Relu", "Hardmax", "Conv", "Add"])]
    assert set(reasons(whole).values()) == {"the host was asked for"}


def test_a_model_on_the_host_as_a_whole_keeps_its_batch() -> None:
    proto = model([node("Hardmax", ["x"], ["h"])], {"x": (1, 8)}, ["h"])
    words = r"--batch \(or --shape\) cannot change the batch of 1 of what runs on the host as a whole, because asked"
    with pytest.raises(Unsupported, match=words):
        whole_on_host(load_model(proto), "asked", batch=3)


def test_operators_that_nobody_knows() -> None:
    proto = model([helper.make_node("Frob", ["x"], ["y"], "f", domain="com.example")], {"x": (2,)}, ["y"])
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(Unsupported, match=r"node 'f' \(com.example.Frob\).*neither the device nor the host knows it"):
        import_or_place(proto, DEFAULT, "auto")


def test_constants_are_found_where_a_layer_needs_them() -> None:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (400, 6)),
        helper.make_tensor_value_info("i", TensorProto.INT64, (2,)),
        helper.make_tensor_value_info("to", TensorProto.INT64, (2,)),
    ]
    nodes = [node("Gather", ["x", "i"], ["g"], axis=0), node("Reshape", ["g", "to"], ["y"])]
    arrays = {"x": np.zeros((400, 6), np.float32), "i": np.array([3, 1]), "to": np.array([3, 4])}
    assert constant_inputs(model(nodes, inputs, ["y"]), arrays).keys() == {"i", "to"}
    # nothing but indices: to bind them would leave no layer
    nodes = [node("Add", ["i", "to"], ["y"])]
    assert constant_inputs(model(nodes, inputs, ["y"]), arrays) == {}


def test_values_that_nothing_makes_are_named() -> None:
    proto = model([node("Hardmax", ["gone"], ["h"])], {"x": (2, 3)}, ["h", "lost"])
    with pytest.raises(Unsupported) as error:
        import_or_place(proto, DEFAULT, "auto")
    assert str(error.value).splitlines() == [
        "model.onnx: node 'h' (Hardmax): error: it uses 'gone', which nothing before it produces",
        "model.onnx: error: no node produces the output 'lost'",
    ]


def test_damaged_models_are_refused_in_words() -> None:
    """Whatever bytes are changed: an error that speaks to the user, or a model that can be placed."""
    rng = np.random.default_rng(0)
    whole = sandwich(2, 4).SerializeToString(), controlled().SerializeToString()
    refused = 0
    for number in range(300):
        content = bytearray(whole[number % 2])
        for place_ in rng.integers(0, len(content), 1 + number % 3):
            content[place_] = rng.integers(0, 256)
        try:
            proto = onnx.ModelProto.FromString(bytes(content))
        except Exception:  # not ONNX any more, which is another error's subject
            continue
        try:
            import_or_place(proto, EDGE, "auto")
        except ModelError as error:
            refused += 1
            assert "error: " in str(error)
    assert refused > 20


def removed(opset: int = 9) -> onnx.ModelProto:
    """Two convolutions with an operator between that ONNX has no more, and one whose axes are attributes yet."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Affine", ["a"], ["b"], alpha=2.0, beta=0.5),
        node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Squeeze", ["c"], ["y"], axes=[0]),
    ]
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3), np.float32) / 12
    return model(nodes, {"x": (1, 16, 32, 32)}, ["y"], {"w": weights}, opset)


@pytest.mark.slow
def test_a_removed_operator_costs_that_node_only() -> None:
    proto = removed()
    found = placed(proto, EDGE)
    assert operators(found) == [("device", ["Conv"]), ("host", ["Affine"]), ("device", ["Conv", "Squeeze"])]
    assert reasons(found) == {"b": "it is of opset 9, and no operator of ONNX any more"}
    assert [part.model.proto.opset_import[0].version for part in found.parts] == [13, 9, 13]
    x = np.random.default_rng(1).standard_normal((1, 16, 32, 32), np.float32)
    ran = frustum.run(frustum.compile(proto, EDGE), {"x": x})
    assert agreement(proto, {"x": x}, ran.outputs, "f32")[1].good
    with pytest.raises(Unsupported, match=r"node 'b' \(Affine\): error: it is of opset 9, and no operator of ONNX any"):
        import_or_place(proto, EDGE, "never")


def test_constants_that_the_device_has_no_integers_for_are_numbers() -> None:
    """Blocks of scales, and 4 bits: what is computed of constants is a constant."""
    q = numpy_helper.from_array(np.arange(-8, 8, dtype=np.int8).reshape(4, 4), "q")
    nodes = [node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=2), node("MatMul", ["x", "w"], ["y"])]
    scales = np.array([[1, 2, 3, 4], [0.5, 1, 2, 4]], np.float32)
    proto = model(nodes, {"x": (3, 4)}, ["y"], {"q": numpy_helper.to_array(q), "s": scales}, 21)
    assert not isinstance(import_or_place(proto, EDGE, "auto"), Placement)
    x = np.random.default_rng(1).standard_normal((3, 4), np.float32)
    ran = frustum.run(frustum.compile(proto, EDGE), {"x": x})
    expected = x @ (np.arange(-8, 8).reshape(4, 4) * np.repeat(scales, 2, 0))
    np.testing.assert_allclose(ran.outputs["y"], expected, rtol=1e-5, atol=1e-5)
