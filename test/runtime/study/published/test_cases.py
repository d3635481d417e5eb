"""Published figures are whole and can be counted: shapes against what is published of the networks, and known cases."""

import pytest

import frustum
from frustum.backend import targets
from frustum.dialects.target import read_target
from frustum.passes.zoo import ZOO
from frustum.runtime.failures import UsageError
from frustum.runtime.model.options import Keywords, options_of
from frustum.runtime.study.published import cases as published
from frustum.runtime.study.published.attention import LAYERS, transformer_layer, transformer_step
from frustum.runtime.study.published.cases import FIGURES, ComparedFigure, cases, cells, figure_text, named
from frustum.runtime.study.published.networks import NETWORKS
from frustum.runtime.tools.compare import count

CASES = list(cases().values())


@pytest.mark.slow
def test_every_case_names_a_model_a_machine_options_figures_and_sources():
    allowed = {each.name: said.choices for each, said in options_of(Keywords)}
    assert len(CASES) == len({case.name for case in CASES}) >= 12
    for case in CASES:
        name = case.model if isinstance(case.model, str) else next(iter(case.model))
        assert name in NETWORKS or name in LAYERS or name.removeprefix("zoo:") in ZOO, case
        assert case.machine(targets.load).chips == 1
        assert all(value in (allowed[key] or [value]) for key, value in case.options.items()), case
        assert case.published and case.published.keys() <= FIGURES.keys(), case
        assert all(each.source and each.theirs >= 0 and each.ours is None for each in case.figures())
        assert len(case.name) <= 24, "names are a column of a table"


def test_every_source_and_machine_is_used():
    data = published._data()
    assert {each.source for case in CASES for each in case.figures()} == {s["what"] for s in data["sources"].values()}
    assert data["machines"].keys() <= {case.target for case in CASES}


def test_sram_of_a_case_is_all_that_it_changes():
    small, df = cases()["vgg5-256k"].machine(targets.load), targets.load("df")
    assert small.cluster.sram.capacity_bytes == 256 << 10
    text = targets.path("df").read_text().replace("capacity_bytes: 2 MiB      # [T]", "capacity_bytes: 256 KiB")
    assert read_target(text, "df.yaml") == small != df


def macs(model) -> int:
    """Products of convolutions and matrix products by the shapes that ONNX infers: a second count of them."""
    import onnx
    from onnx import numpy_helper

    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {each.name: tuple(numpy_helper.to_array(each).shape) for each in inferred.initializer}
    for each in (*inferred.value_info, *inferred.input, *inferred.output):
        shapes[each.name] = tuple(d.dim_value for d in each.type.tensor_type.shape.dim)
    total = 0
    for node in inferred.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            a, b = (shapes[name] for name in node.input[:2])
            inner = {"Conv": b[1:], "Gemm": a[1:], "MatMul": a[-1:]}[node.op_type]
            sizes = (*shapes[node.output[0]], *inner)
            product = 1
            for size in sizes:
                product *= size
            total += product
    return total


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("name", "count"),
    [
        # bench figures of the papers, and of Vela, which counts products of average pools too
        ("vgg5", 5.636e9), ("fsrcnn", 8.290e9), ("resnet18", 1.814e9), ("mobilenetv1", 0.569e9),
        ("fsrcnn_valid", 8.363e9), ("resnet8", 12_505_748), ("mobilenetv1_96", 7_491_972), ("ds_cnn", 2_664_792),
        ("autoencoder", 264_192),
    ],
)  # fmt: skip
def test_networks_have_the_products_that_are_published(name, count):
    assert macs(NETWORKS[name]()) == pytest.approx(count, rel=4e-3)


def test_layers_have_the_products_that_are_published():
    assert macs(transformer_layer(512, 768, 12, 3072)) == pytest.approx(4.03e9, rel=4e-3)
    weights, cache = 4 * 768 * 768 + 2 * 768 * 3072, 2 * 512 * 768
    assert macs(transformer_step(511, 768, 12, 3072)) == weights + cache


@pytest.mark.slow
def test_five_layers_of_vgg_in_two_bands_in_half_a_mebibyte():
    """Feature-map bytes to the byte, reuse storage and multiplications again at most as published."""
    found = {each.figure: each for each in frustum.compare("vgg5-bands")}
    assert found["dram.maps"].ours == found["dram.maps"].theirs
    assert 0 < found["kept.bytes"].ours <= found["kept.bytes"].theirs
    assert 0 < found["macs.again"].ours <= found["macs.again"].theirs


@pytest.mark.slow
def test_ours_is_what_the_run_counted_and_no_less_than_the_bound():
    case = cases()["tiny-keyword"]
    counted = count(case)
    dram, cycles = counted.report["dram"], counted.report["cycles"]
    bytes_, time = published.beside(case, counted)
    assert bytes_.ours == dram["total_bytes"] - dram["other_bytes"] >= bytes_.bound == dram["bound_bytes"]
    assert time.ours == cycles["total"] >= time.bound == cycles["bound"] >= cycles["roofline"]
    assert (time.bound_by, bytes_.theirs, time.theirs) == (cycles["bound_by"], 55424, 54311)
    assert counted.ends_bytes == 49 * 10 + 12
    assert counted.report["macs"]["useful"] == macs(NETWORKS["ds_cnn"]())


@pytest.mark.slow
def test_attention_is_below_the_textbook_by_what_stays():
    """All four once is the least; textbook flash reads k and v in two passes whole."""
    (found,) = frustum.compare("attention-1024x64-256k")
    least = 2 * (2 * 1024 * 64 + 2 * 1024 * 64)
    assert found.bound == least <= found.ours < found.theirs


def test_without_names_nothing_is_counted():
    found = frustum.compare()
    assert {each.case for each in found} == set(cases())
    assert all(each.ours is each.bound is each.ratio is None for each in found)


def test_names_are_taken_once_and_wrong_ones_refused():
    assert [case.name for case in named(["vgg5-1m", "tiny-image", "vgg5-1m"])] == ["vgg5-1m", "tiny-image"]
    with pytest.raises(UsageError, match=r"no published case 'tiny-imag', 'x' .* did you mean 'tiny-image'"):
        named(["tiny-image", "tiny-imag", "x"])
    with pytest.raises(frustum.Error, match="no published case 'x'"):
        frustum.compare("x")


def test_figures_as_text():
    texts = {("dram.bytes", 25_855_000): "25.855 MB", ("dram.bytes", 55424): "55,424 B", ("cycles", None): "-"}
    texts |= {("seconds", 3.14159): "3.1 s", ("macs.again", 0.0452): "4.5 %", ("cycles", 1.93e6): "1,930,000"}
    assert {key: figure_text(*key) for key in texts} == texts
    row = ComparedFigure("a", "cycles", 10, "x", "y", 5, 4, "roofline")
    assert cells(row) == ("a", "cycles", "5", "10", "0.500", "4", "x")
    assert cells(ComparedFigure("a", "macs.again", 0, "x", "y", 0.0, 0.0))[2:6] == ("0.0 %", "0.0 %", "-", "0.0 %")
