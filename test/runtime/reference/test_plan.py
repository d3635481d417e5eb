"""Plans on values: equal to every operation on whole arrays; and what is wrong with a plan, or a rule, is noticed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import plan_nets
import pytest
import random_plans
from hypothesis import HealthCheck, given, seed, settings
from onnx import numpy_helper
from plan_values import check_outputs, check_values, run_of

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_to_plan
from frustum.dialects import graph as g
from frustum.dialects.plan import ranges
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.plan.tree.search import searched
from frustum.passes.plan.tree.trace import plan_of
from frustum.runtime.reference.plan import AbsentElement
from frustum.runtime.reference.plan_layers import KINDS

BLOCKS = Path("/work/shared/bench/blocks")


def random_cases(number, count, most=random_plans.MOST_LAYERS):
    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_plans.planned(most))
    def run(case):
        check_values(case)

    run()


@pytest.mark.parametrize("number", range(5))
def test_random_plans(number):
    random_cases(number, 20, most=3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_a_thousand_random_plans(number):
    random_cases(100 + number, 100)


# ------------------------------------------------------------ trees of the search


@pytest.mark.parametrize("build", [plan_nets.mlp, plan_nets.residual])
def test_trees_that_the_search_finds(build):
    check_found(build, 12 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [2, 5, 12])
@pytest.mark.parametrize("build", plan_nets.KINDS)
def test_trees_that_the_search_finds_in_little_memory(build, kilobytes):
    check_found(build, kilobytes << 10)


def check_found(build, capacity):
    case = plan_nets.case(build)
    case.plan = plan_of(searched(case.axes, capacity))
    check_values(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wavenet_tcn_400", "conv3d_r3d_stem"])
def test_blocks_have_the_values_of_onnxruntime(name):
    file = BLOCKS / f"{name}.onnx"
    if not file.exists():
        pytest.skip(f"no {file}")
    ort = pytest.importorskip("onnxruntime")
    model, inputs = filled(onnx.load(file))
    case = plan_nets.Case(import_onnx(model, network="net"), inputs)
    networks_to_plan(case.module, targets.load("edge"))
    case = plan_nets.Case(case.module, inputs)
    case.plan = plan_of(searched(case.axes, 512 << 10))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    check_outputs(case, session.run(None, inputs))


def filled(model):
    """With weights, which the file has not, and inputs."""
    rng = np.random.default_rng(3)
    for each in model.graph.initializer:
        if not each.raw_data and each.data_type == onnx.TensorProto.FLOAT and not each.float_data:
            scale = 1 / np.sqrt(np.prod(each.dims[1:] if len(each.dims) > 2 else each.dims[:1]))
            array = (rng.standard_normal(each.dims) * scale).astype(np.float32)
            each.CopyFrom(numpy_helper.from_array(array, each.name))
    known = {each.name for each in model.graph.initializer}
    shapes = {
        each.name: [d.dim_value for d in each.type.tensor_type.shape.dim]
        for each in model.graph.input if each.name not in known
    }  # fmt: skip
    return model, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


# ------------------------------------------------------------ what is wrong is noticed


def planned(build, text):
    case = plan_nets.case(build)
    case.plan = read_plan(f'plan @net for "edge" {text}', lambda _: extents_of(case.axes), "plan").node
    return case


ROLLING = """{ resident w, w.1, w.2, w.3, w.4, w.5
  for pool_4.y step 3 of 10 rolling {
    resident conv_1 compute conv_1 resident conv_2 compute conv_2 compute conv_3, pool_4 } }"""
SUMS = "{ resident x0, matmul_3 for matmul_2.c step 10 of 48 { compute matmul_1, matmul_2, matmul_3 } }"


def test_rows_roll_and_sums_wait():
    check_values(planned(plan_nets.conv_stack, ROLLING))
    check_values(planned(plan_nets.mlp, SUMS))


COPIES = """{ recompute conv_1 as conv_9
  for pool_2.y step 2 of 8 { compute conv_1, pool_2 }
  compute conv_3
  for conv_6.y step 5 of 16 rolling { compute conv_9, resize_4, conv_6 } }"""


def test_copies_of_layers_have_their_values():
    check_values(planned(plan_nets.unet, COPIES))


def test_rows_that_do_not_stay_are_missed(monkeypatch):
    real = ranges._rolls
    monkeypatch.setattr(ranges, "_rolls", lambda has, read: ((new, (0, 0)) for new, _ in real(has, read)))
    lost = r"conv_2 reads conv_1 at .*conv_1.y 6, .*which is not there \(pass: pool_4.y"
    with pytest.raises(AbsentElement, match=lost):
        run_of(planned(plan_nets.conv_stack, ROLLING))


def test_a_halo_that_is_not_loaded_is_missed(monkeypatch):
    real = ranges.Ranged.new_box

    def smaller(self, tensor, *rest):
        box = real(self, tensor, *rest)
        return box and {axis: (low, max(low + 1, high - (tensor.name == "x0"))) for axis, (low, high) in box.items()}

    monkeypatch.setattr(ranges.Ranged, "new_box", smaller)
    plan = "for pool_4.y step 5 of 10 recomputed { resident x0 compute conv_1, conv_2, conv_3, pool_4 }"
    with pytest.raises(AbsentElement, match="conv_1 reads x0 at"):
        run_of(planned(plan_nets.conv_stack, plan))


@pytest.mark.parametrize("always, problem", [(True, "have not begun to sum"), (False, "is not whole")])
def test_sums_that_begin_where_they_go_on_are_noticed(monkeypatch, always, problem):
    monkeypatch.setattr(ranges.Ranged, "continues", lambda self, layer, span: always)
    with pytest.raises(AbsentElement, match=problem):
        run_of(planned(plan_nets.mlp, SUMS))


def test_an_order_that_is_wrong_is_refused_and_noticed():
    case = planned(plan_nets.mlp, "compute matmul_1, matmul_3, matmul_2")
    with pytest.raises(PlanError, match="move its maker before it"):
        run_of(case)
    with pytest.raises(AbsentElement, match=r"matmul_3 reads matmul_2 at .*, which is not there \(pass: no loop\)"):
        run_of(case, is_checked=False)


AGAIN = """{ resident x0, normalise_1.sums
  compute normalise_1.sums
  for matmul_2.c step 20 of 40 { resident normalise_1 at x0 compute normalise_1, matmul_2 }
  compute matmul_3 }"""


def test_a_resident_whose_storage_is_taken_too_early_is_refused_and_noticed():
    """x0 is read again in the second pass, where the norm lies in its storage."""
    case = planned(plan_nets.norm_alone, AGAIN)
    with pytest.raises(PlanError, match="normalise_1 reads x0 where an earlier pass has put normalise_1"):
        count(case.axes, case.plan)
    with pytest.raises(AbsentElement, match="normalise_1 reads x0 at"):
        run_of(case, is_checked=False)


def test_a_sum_takes_the_rows_of_its_residual_one_by_one():
    """The other rows are there yet, though the columns of the two tensors are axes of their own."""

    def build(net):
        x = net.input(6, 8)
        return net.layer(g.MatmulOp(x, net.weight(8, 4), residual=net.unary("relu", net.input(6, 4))))

    text = """{ resident unary_1 until matmul_2 compute unary_1 resident matmul_2 at unary_1
      for x0.0 step 2 of 6 { compute matmul_2 } }"""
    check_values(planned(build, text))


def test_a_layer_that_nothing_computes_by_parts_is_named():
    case = planned(plan_nets.mlp, "compute matmul_1, matmul_2, matmul_3")
    case.axes.layers[1] = replace(case.axes.layers[1], role="third")
    with pytest.raises(PlanError, match=r"matmul_2: no reference computes 'third' of fgraph.matmul by parts"):
        run_of(case)


def test_every_operation_with_axes_has_a_function():
    """Moves are views, loops are their bodies; what needs all is computed whole."""
    import frustum.dialects.graph.axes as axes

    moves = {"views", "recurrences"}
    layers = {op for op, read in axes.OPERATIONS.items() if read.__module__.rpartition(".")[2] not in moves}
    assert layers == {op for op, _ in KINDS}
