"""`frustum run --check=layers`: planted errors are named by their layer, instruction and pass; right networks pass."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from frustum.backend import compile as compiling
from frustum.backend.memory.allocation import Allocate
from frustum.backend.waits.schedule import Schedule
from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.isa import operations as isa
from frustum.dialects.isa import program as p
from frustum.dialects.isa.sync import AllocOp
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.graph.fuse_residual import FuseResidual
from frustum.passes.lower import weight_runs
from frustum.passes.lower.lower_tiles import LowerTiles
from frustum.passes.tile.lower_units import LowerUnits
from frustum.runtime import kernels
from frustum.runtime.device import products
from frustum.runtime.tools import cli


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """conv1 with relu1, pool1, conv2 with add2."""
    return write_model(tmp_path_factory.mktemp("model") / "small.onnx")


def write_model(path: Path, zeros: float = 0.0) -> Path:
    """`zeros`: of the weights, the share that are 0."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 2, 3, 3), "b1": (4,), "w2": (4, 4, 3, 3), "b2": (4,)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    for array in arrays.values():
        array[rng.random(array.shape) < zeros] = 0
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], name="pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "p1"], ["y"], name="add2"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 2, 8, 8]), ("y", [1, 4, 4, 4]))
    ]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def checked(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The exit code, what was said on stderr, and the report."""

    def run(*words: object) -> tuple[int, str, dict]:
        report = tmp_path / "report.json"
        options = ["--check=layers", "--mode", "functional", "--report", report, *(words or ("--target", "edge"))]
        code = cli.main([str(word) for word in ("run", model, *options)])
        return code, capsys.readouterr().err, json.loads(report.read_text())["check"]

    return run


def after(monkeypatch: pytest.MonkeyPatch, step: type, change) -> None:
    """Let a pass be followed by a change of its module, as if it had made it."""
    apply = step.apply

    def faulty(self, ctx, op) -> None:
        apply(self, ctx, op)
        change(op)

    monkeypatch.setattr(step, "apply", faulty)


def first(module, kind, where=lambda op: True):
    return next(op for op in module.walk() if isinstance(op, kind) and where(op))


# --- all is well -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--target", "edge"), ("--target", "default", "--dtype", "f16")])
def test_a_right_network(checked, options: tuple[str, ...]) -> None:
    code, err, check = checked(*options)
    assert (code, err, check["faults"]) == (0, "", [])
    compared = [(each["layer"], each["value"]) for each in check["layers"]]
    assert compared == [("conv1", "r1"), ("pool1", "p1"), ("conv2", "y")]
    assert all(each["isolated"] <= check["max_rel_error"] + 2e-2 for each in check["layers"])


# --- planted errors ----------------------------------------------------------------------------------------


def corner_of_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that the reference executor has too adds 1 in a corner."""
    pool = kernels.max_pool

    def faulty(*words, **named):
        found = pool(*words, **named)
        found[..., 0, 0] += 1
        return found

    monkeypatch.setattr(kernels, "max_pool", faulty)


def products_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's products are a tenth too large."""
    multiply = products._Piece._multiply

    def faulty(*words, **named):
        found = multiply(*words, **named)
        found *= 1.1
        return found

    monkeypatch.setattr(products._Piece, "_multiply", faulty)


def columns_alike(module) -> None:
    """A tile is loaded from the first column alone."""
    load = first(module, t.LoadOp)
    view = load.view.data
    load.properties["view"] = type(load.view)(replace(view, strides=(*view.strides[:3], 0)))


def rows_swapped(module) -> None:
    """A result is stored with rows and columns exchanged."""
    store = first(module, t.StoreOp)
    n, c, h, w = store.view.data.strides
    store.properties["view"] = type(store.view)(replace(store.view.data, strides=(n, c, w, h)))


def copy_off_by_one(module) -> None:
    """A core loads its part of a tile from the next column."""
    copy = first(module, isa.CopyOp, lambda op: op.engine.data == "mvdma" and op.dst.type.memory == "nram")
    view = copy.src_view.data
    copy.properties["src_view"] = type(copy.src_view)(replace(view, offset=view.offset + 4))


def kernel_of_a_pool(module) -> None:
    """Windows are a row further apart than they are."""
    pool = first(module, isa.PoolOp)
    pool.properties["kind"] = type(pool.kind)("avg")


def buffers_overlap(module) -> None:
    """The last two buffers in a core's NRAM begin at one address."""
    allocs = [op for op in module.walk() if isinstance(op, AllocOp) and op.memory == "nram"]
    for op in allocs:
        op.properties["address"] = allocs[0].address


def weights_overlap(module) -> None:
    """The weights of all layers begin at one address of WRAM."""
    allocs = [op for op in module.walk() if isinstance(op, AllocOp) and op.memory == "wram"]
    for op in allocs:
        op.properties["address"] = allocs[0].address


def wait_dropped(module) -> None:
    """The first instruction of a core that waits for its operands does not."""
    conv = first(module, isa.ConvOp)
    conv.properties.pop("waits")


def activation_lost(module) -> None:
    conv = first(module, g.ConvOp, lambda op: op.act is not None)
    conv.properties.pop("act")


PASSES = [
    (FuseResidual, activation_lost, "typed", "pool1"),
    (FuseLayers, activation_lost, "fused", "conv1"),
    (LowerUnits, columns_alike, "placed", "conv1"),
    (LowerUnits, rows_swapped, "placed", ""),
    (LowerTiles, copy_off_by_one, "lowered", "conv1"),
    (LowerTiles, kernel_of_a_pool, "lowered", "pool1"),
    (Allocate, buffers_overlap, "fixed", ""),
    (Allocate, weights_overlap, "fixed", ""),
    (Schedule, wait_dropped, "fixed", "conv1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "change", "stop", "layer"), PASSES, ids=[change.__name__ for _, change, *_ in PASSES])
def test_a_wrong_pass_is_named(step, change, stop, layer, checked, monkeypatch: pytest.MonkeyPatch) -> None:
    after(monkeypatch, step, change)
    code, err, check = checked("--target", "edge", "--policy", "optimal")
    assert code == 3, err
    (fault,) = check["faults"]
    assert f"by {step.name} (stop '{stop}')" in fault
    if layer:
        assert f"layer '{layer}'" in fault
    assert "cluster" in fault and "loops" in fault  # the tile and the core


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "kernel", "layer"),
    [(corner_of_pools, "pool", "pool1"), (products_of_the_machine, "conv", "conv1")],
)
def test_a_wrong_kernel_is_named(plant, kernel, layer, checked, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    code, _, check = checked()
    assert code == 3
    (fault,) = check["faults"]
    assert f"by the kernel of '{kernel}' in the emulator" in fault
    assert f"layer '{layer}'" in fault and "cluster" in fault


@pytest.mark.slow
def test_a_wrong_encoder_is_named(checked, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = compiling.encode

    def faulty(program: p.Program, room: int | None = None):
        def narrowed(node: p.Node) -> p.Node:
            if isinstance(node, p.Repeat):
                return replace(node, body=tuple(map(narrowed, node.body)))
            return replace(node, kernel=(1, node.kernel[1])) if isinstance(node, p.Pool) else node

        return encode(replace(program, body=tuple(map(narrowed, program.body))), room)

    monkeypatch.setattr(compiling, "encode", faulty)
    code, _, check = checked()
    assert code == 3
    (fault,) = check["faults"]
    assert "by encoder (stop 'encoded')" in fault
    assert "(pool of layer 'pool1'): kernel is (2, 2), its bytes say (1, 2)" in fault


# --- the machine stops ---------------------------------------------------------------------------------------


def test_damaged_weights_stop_the_machine_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass that compresses weights makes blocks of the second convolution that nobody can expand."""
    path, blocks = write_model(tmp_path / "sparse.onnx", zeros=0.9), weight_runs.Blocks.blocks

    def faulty(self, slots):
        found = blocks(self, slots)
        return (~found[0], *found[1:]) if "w2" in slots.flow.external.external_name.data else found

    monkeypatch.setattr(weight_runs.Blocks, "blocks", faulty)
    words = ["run", path, "--target", "edge", "--mode", "functional"]
    assert cli.main([*map(str, words)]) == 2  # as without a check
    assert "damaged weights" in capsys.readouterr().err
    assert cli.main([*map(str, words), "--check=layers"]) == 3
    said = capsys.readouterr()
    assert re.search(r"machine stops: damaged weights: .*, in copy \d+ \(layer 'conv2'\) by \w+ at loops \[", said.err)
    assert re.search(r"on cluster \d+, core \d+; by frustum-lower-compress-weights \(stop 'lowered'\)", said.err)
    compared = re.findall(r"^  (\w+)  +[\d.e-]+  +[\d.e-]+  +\w+$", said.out, re.MULTILINE)
    assert compared == ["conv1", "pool1"]  # those before it, which are right


@pytest.mark.slow
def test_an_address_outside_stops_the_machine_and_is_named(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outside(module) -> None:
        alloc = [op for op in module.walk() if isinstance(op, AllocOp) and op.memory == "nram"][-1]
        alloc.properties["address"] = type(alloc.address)(1 << 28, alloc.address.type)

    after(monkeypatch, Allocate, outside)
    words = ["run", str(model), "--target", "edge", "--mode", "functional", "--check=layers"]
    assert cli.main(words) == 3
    err = capsys.readouterr().err
    assert re.search(r"machine does not start: \w+ \d+ \(layer 'conv2'\).* at loops \[.*on cluster \d+, core \d+", err)
    assert f"by {Allocate.name} (stop 'fixed')" in err


# --- what is written ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_test_that_is_written_shows_the_error(checked, monkeypatch: pytest.MonkeyPatch) -> None:
    after(monkeypatch, LowerTiles, copy_off_by_one)
    _, err, _ = checked()
    (path,) = map(Path, re.findall(r"\((\S+test\.mlir) shows it\)", err))
    run = next(line for line in path.read_text().splitlines() if line.startswith("// RUN: frustum run"))
    words = shlex.split(run.removeprefix("// RUN: frustum ").replace("%s", str(path)).replace("%S", str(path.parent)))
    assert cli.main([*words, "--mode", "functional"]) == 3
    monkeypatch.undo()
    assert cli.main([*words, "--mode", "functional"]) == 0
