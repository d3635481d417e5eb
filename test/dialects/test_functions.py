"""The words of the vector unit: declared once, and known to everybody who computes or counts them."""

import pytest

from frustum.backend import targets
from frustum.dialects import functions
from frustum.dialects.isa import program as p
from frustum.dialects.target.durations import vector_passes
from frustum.runtime import kernels
from frustum.runtime.kernels import maps

TABLES = {
    "UNARY in runtime/kernels/elementwise.py": (functions.Function, kernels.UNARY),
    "BINARY in runtime/kernels/elementwise.py": (functions.Arithmetic, kernels.BINARY),
    "REDUCTIONS in runtime/kernels/maps.py": (functions.Reduction, maps.REDUCTIONS),
    "ROUNDING in runtime/kernels/maps.py": (functions.Rounding, maps.ROUNDING),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_word_has_its_kernel(table):
    declared, kernels_by_word = TABLES[table]
    missing, unknown = set(declared) - set(kernels_by_word), set(kernels_by_word) - set(declared)
    assert not missing, f"{table} has no kernel for {sorted(missing)} of dialects/functions.py"
    assert not unknown, f"dialects/functions.py does not declare {sorted(unknown)} of {table}"


def test_every_function_has_operations_and_passes():
    unit = targets.load("default").core.vector
    for word, function in functions.ELEMENTWISE.items():
        assert function.elementary + function.transcendental > 0, word
        assert 0 <= function.parameters <= 2, word
        assert vector_passes(unit, word) > 0, word


def test_the_encoding_of_words():
    """A word is encoded as its place: a new one goes to the end."""
    unary = (
        "identity relu leaky_relu clip sigmoid hard_sigmoid hard_swish tanh elu gelu gelu_tanh exp log sqrt reciprocal "
        "neg abs floor ceil round erf softplus affine sign silu sin cos round_f16 round_bf16"
    )
    for found, words in (
        (p.UNARY_KINDS, unary),
        (p.BINARY_KINDS, "add sub mul div max min pow prelu mask"),
        (p.REDUCE_KINDS, "mean sum max min"),
        (p.POOL_KINDS, "max avg"),
        (p.RESIZE_MODES, "nearest linear"),
        (p.ROUNDINGS, "floor ceil round_prefer_floor round_prefer_ceil"),
    ):
        assert " ".join(found).startswith(words)
