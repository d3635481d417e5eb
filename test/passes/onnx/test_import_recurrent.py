"""RNN, GRU and LSTM as loops, and unrolled: what onnxruntime computes, with all their attributes."""

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper
from recurrent_models import GATES, model_of
from xdsl.context import Context

from frustum import onnx_backend
from frustum.dialects.graph import BinaryOp, MatmulOp, RecurrenceOp
from frustum.passes.errors import Unsupported
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.unroll_recurrences import UnrollRecurrences
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def looped(model, x):
    """What the graph computes, simplified."""
    module = import_onnx(model)
    Canonicalize().apply(Context(), module)
    module.verify()
    return list(ReferenceExecutor(store_of(module)).run_graph(module, {"x": x}).values())


def unrolled(model, x):
    """What its steps compute one after the other."""
    module = import_onnx(model)
    UnrollRecurrences().apply(Context(), module)
    Canonicalize().apply(Context(), module)
    module.verify()
    assert not any(isinstance(op, RecurrenceOp) for op in module.walk())
    return list(ReferenceExecutor(store_of(module)).run_graph(module, {"x": x}).values())


def agrees(model, x, *runs):
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for run in runs or (looped, unrolled):
        for own, wanted in zip(run(model, x), expected, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "target"), [("GRU", "default"), ("LSTM", "edge")])
def test_on_the_machine(op, target):
    def machine(model, x):
        return onnx_backend.prepare(model, target=target, host="never", checked=True).run([x])

    agrees(*model_of(op, steps=2, given=["B", "h"]), machine)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions_with_biases_and_first_states(op, direction):
    given = ["B", "h", "c"] if op == "LSTM" else ["B", "h"]
    agrees(*model_of(op, direction=direction, given=given))


@pytest.mark.parametrize("op", GATES)
def test_without_anything_that_may_be_left_out(op):
    agrees(*model_of(op, steps=1, batch=1))
    agrees(*model_of(op, steps=3, batch=1))


@pytest.mark.parametrize("op", GATES)
def test_sequences_that_end_before_others(op):
    agrees(*model_of(op, direction="bidirectional", batch=3, lengths=[3, 1, 2], given=["B"]))


def test_what_only_some_have():
    agrees(*model_of("LSTM", given=["B", "h", "c", "P"]))
    agrees(*model_of("LSTM", given=["B", "P"], input_forget=1, clip=0.6))
    agrees(*model_of("GRU", given=["B", "h"], linear_before_reset=1, clip=0.5))


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["Relu", "LeakyRelu"], {"activation_alpha": [0.3]}),
        (["HardSigmoid", "ScaledTanh"], {"activation_alpha": [0.3, 1.5], "activation_beta": [0.4, 0.5]}),
        (["Affine", "Elu"], {"activation_alpha": [0.5, 0.7], "activation_beta": [0.1]}),
        (["Softsign", "ThresholdedRelu"], {"activation_alpha": [0.2]}),
        (["Sigmoid", "Softplus"], {}),
    ],
)
def test_activations_and_their_parameters(names, settings):
    agrees(*model_of("GRU", steps=3, activations=names, **settings))


def test_the_batch_in_front():
    """onnxruntime has no layout 1: the same numbers as with the steps in front."""
    model, x = model_of("LSTM", layout=1, given=["B", "h", "c"])
    found = looped(model, x)
    other, _ = model_of("LSTM", given=["B", "h", "c"])
    for tensor in other.graph.initializer:
        if tensor.name in "hc":
            same = next(each for each in model.graph.initializer if each.name == tensor.name)
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(same).swapaxes(0, 1), tensor.name))
    wanted = looped(other, np.ascontiguousarray(x.swapaxes(0, 1)))
    np.testing.assert_allclose(found[0], wanted[0].transpose(2, 0, 1, 3), rtol=1e-5)
    for own, its in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(own, its.swapaxes(0, 1), rtol=1e-5)


def test_a_loop_is_one_operation_for_each_direction():
    """However many steps it has; the products of the inputs are outside."""
    for steps in (2, 200):
        module = import_onnx(model_of("LSTM", steps=steps, direction="bidirectional", given=["B"])[0])
        loops = [op for op in module.walk() if isinstance(op, RecurrenceOp)]
        assert [(op.steps, op.is_reverse) for op in loops] == [(steps, False), (steps, True)]
        assert sum(isinstance(op, MatmulOp) for op in module.walk()) == 2 * (4 + 4)


@pytest.mark.parametrize("op", GATES)
def test_long_sequences(op):
    """Behind 80 steps the numbers of onnxruntime are no more exact than ours."""
    agrees(*model_of(op, steps=80, direction="bidirectional", given=["B"]), looped)


def test_sequences_of_which_all_go_on_have_no_masks():
    module = import_onnx(model_of("GRU", lengths=[3, 3])[0])
    assert not any(isinstance(op, BinaryOp) and op.kind in ("mask", "keep", "drop") for op in module.walk())


def test_what_is_refused():
    for settings, message in (
        ({"steps": 65}, "65 steps are not supported: at most 64"),
        ({"steps": 33, "direction": "bidirectional"}, "66 steps are not supported"),
    ):
        model, x = model_of("GRU", **settings)
        with pytest.raises(Unsupported, match=message) as raised:
            unrolled(model, x)
        (problem,) = raised.value.problems
        assert (problem.operator, problem.node) == ("GRU", "y")
    for settings, message in (
        ({"activations": ["Tanh", "Cos"]}, "the activation 'Cos' is not supported"),
        ({"activations": ["Tanh"]}, "1 activations for 1 directions"),
    ):
        model, x = model_of("GRU", **settings)
        with pytest.raises(Unsupported, match=message):
            import_onnx(model)


def test_what_has_too_many_steps_for_the_other_planner_is_on_the_host():
    model, x = model_of("LSTM", steps=33, direction="bidirectional", batch=1)
    prepared = onnx_backend.prepare(model, policy="optimal")
    assert [piece.kind for piece in prepared.chain.pieces] == ["host"]
    (layer,) = prepared.chain.pieces[0].fallbacks
    assert layer.reason == "66 steps are not supported: at most 64"
    agrees(model, x, lambda model, x: prepared.run([x]))
    with pytest.raises(Unsupported, match="node 'y' \\(LSTM\\): error: 66 steps are not supported: at most 64"):
        onnx_backend.prepare(model, host="never", policy="optimal")


@pytest.mark.parametrize("op", GATES)
def test_a_batch_that_is_changed(op):
    """One step keeps images apart; of several the rows of all images lie step by step."""
    model, _ = model_of(op, steps=1, batch=1, layout=1, given=["B"])
    module = import_onnx(model, batch=3)
    whole, _ = model_of(op, steps=1, batch=3, layout=1, given=["B"])
    x = np.random.default_rng(0).standard_normal((3, 1, 3)).astype(np.float32)
    found = ReferenceExecutor(store_of(module)).run_graph(module, {"x": x}).values()
    for own, wanted in zip(found, looped(whole, x), strict=True):
        np.testing.assert_array_equal(own, wanted)
    with pytest.raises(Unsupported, match="--batch 3"):
        import_onnx(model_of(op, steps=2, batch=1, layout=1)[0], batch=3)
