"""Einsum as products: what numpy says, of random equations too."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from xdsl.context import Context

from frustum import onnx_backend
from frustum.passes.errors import Unsupported
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def model_of(equation, arrays):
    names = [f"x{index}" for index in range(len(arrays))]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in zip(names, arrays, strict=True)]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, np.einsum(equation, *arrays).shape)]
    graph = helper.make_graph([node], "case", infos, ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agrees(equation, *shapes):
    rng = np.random.default_rng(len(equation))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    given = {f"x{index}": array for index, array in enumerate(arrays)}
    module = import_onnx(model_of(equation, arrays))
    Canonicalize().apply(Context(), module)
    (found,) = ReferenceExecutor(store_of(module)).run_graph(module, given).values()
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij->ji", [(3, 4)]),
        ("ij->i", [(3, 4)]),
        ("ij", [(3, 4)]),
        ("ji", [(3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("iii", [(4, 4, 4)]),
        ("i,i", [(5,), (5,)]),
        ("i,j", [(5,), (3,)]),
        ("bij, bjk -> bik", [(5, 2, 3), (5, 3, 4)]),
        ("bqhd,bkhd->bhqk", [(2, 5, 3, 4), (2, 6, 3, 4)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 5, 6), (2, 6, 3, 4)]),
        ("nchw,cd->ndhw", [(2, 3, 4, 5), (3, 6)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]),
        ("ab,bc,cd,da->", [(2, 3), (3, 4), (4, 5), (5, 2)]),
        ("a,b,ab->ab", [(2,), (3,), (2, 3)]),
        ("ab,ab->a", [(2, 3), (2, 1)]),
    ],
)
def test_equations(equation, shapes):
    agrees(equation, *shapes)


@pytest.mark.parametrize("seed", range(30))
def test_random_equations(seed):
    rng = np.random.default_rng(seed)
    extents = dict(zip("abcdef", rng.integers(1, 5, 6).tolist(), strict=True))
    terms = ["".join(rng.choice(list("abcdef"), rng.integers(0, 5))) for _ in range(rng.integers(1, 4))]
    known = sorted({label for term in terms for label in term})
    output = "".join(rng.permutation(known)[: rng.integers(0, 5)]) if known else ""
    agrees(f"{','.join(terms)}->{output}", *(tuple(extents[label] for label in term) for term in terms))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["edge", "default"])
def test_on_the_machine(target):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 3, 4), (2, 6, 3, 4))]
    equation = "bqhd,bkhd->bhqk"
    model = model_of(equation, arrays)
    (found,) = onnx_backend.prepare(model, target=target, host="never", checked=True).run(arrays)
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk->ik", "is not one of 1 operands"),
        ("ijk->ij", "'ijk' is not an operand of 2 dimensions"),
        ("i->i", "'i' is not an operand of 2 dimensions"),
        ("ii->i", "'i' is 3 and 4 elements"),
        ("ij->ii", "has an axis twice"),
        ("...j->j", "has no ellipsis, and an operand has"),
        ("ij->ijk", "asks for an axis that no operand has"),
    ],
)
def test_what_is_refused(equation, message):
    model = model_of("ij->ij", [np.zeros((3, 4), np.float32)])
    model.graph.node[0].attribute[0].s = equation.encode()
    with pytest.raises(Unsupported, match=message):
        import_onnx(model)
