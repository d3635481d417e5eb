"""The words of what the vector unit computes, each declared once: functions, reductions, poolings, resizing.

The graph level's attributes, the instructions' encoding (a word is its place here), durations and the kernels
(`runtime/kernels`, by word) all read this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from xdsl.utils.str_enum import StrEnum  # which xDSL's attributes of words want
else:
    from enum import StrEnum  # a program is read and run without xDSL


class Elementwise(StrEnum):
    """A function of elements, with how many elementary and transcendental operations it is made of, and how many
    parameters (alpha, beta) it takes."""

    elementary: int
    transcendental: int
    parameters: int

    def __new__(cls, word: str, elementary: int = 0, transcendental: int = 0, parameters: int = 0) -> Self:
        made = str.__new__(cls, word)
        made._value_ = word
        made.elementary, made.transcendental, made.parameters = elementary, transcendental, parameters
        return made


class Function(Elementwise):
    """An element-wise function of one operand."""

    IDENTITY = "identity", 1
    RELU = "relu", 1
    LEAKY_RELU = "leaky_relu", 2, 0, 1  # multiply, select
    CLIP = "clip", 2, 0, 2
    SIGMOID = "sigmoid", 0, 1
    HARD_SIGMOID = "hard_sigmoid", 3, 0, 2  # scale and shift, clip
    HARD_SWISH = "hard_swish", 4  # hard sigmoid, multiply
    TANH = "tanh", 0, 1
    ELU = "elu", 2, 1, 1  # exponential, scale and shift, select
    GELU = "gelu", 3, 1  # scale, erf, scale and shift, multiply
    GELU_TANH = "gelu_tanh", 5, 1  # square, scale and shift, multiply, tanh, scale and shift, multiply
    EXP = "exp", 0, 1
    LOG = "log", 0, 1
    SQRT = "sqrt", 0, 1
    RECIPROCAL = "reciprocal", 0, 1
    NEG = "neg", 1
    ABS = "abs", 1
    FLOOR = "floor", 1
    CEIL = "ceil", 1
    ROUND = "round", 1
    ERF = "erf", 0, 1
    SOFTPLUS = "softplus", 1, 2  # exponential, add, logarithm
    AFFINE = "affine", 1, 0, 2  # scale and shift
    SIGN = "sign", 1  # select
    SILU = "silu", 1, 1  # sigmoid, multiply
    SIN = "sin", 0, 1
    COS = "cos", 0, 1
    ROUND_F16 = "round_f16", 1  # to the nearest number of f16, infinity beyond its largest
    ROUND_BF16 = "round_bf16", 1


class Arithmetic(Elementwise):
    """An element-wise function of two operands; of prelu the second is the slope.

    The second operand of mask, keep and drop says which elements of the first are taken: of mask and keep those where
    it is not 0, of drop those where it is 0.  The others are 0 of mask, and -0.0 of keep and drop: what has no part in
    a sum, not even the sign of a 0.  Comparisons give 1 or 0, and 0 where an operand is no number.
    """

    ADD = "add", 1
    SUB = "sub", 1
    MUL = "mul", 1
    DIV = "div", 0, 1
    MAX = "max", 1
    MIN = "min", 1
    POW = "pow", 1, 2  # exp(b * log a)
    PRELU = "prelu", 2  # multiply, select
    MASK = "mask", 1  # select
    KEEP = "keep", 1
    DROP = "drop", 1
    EQUAL = "equal", 1
    LESS = "less", 1
    LESS_EQUAL = "less_equal", 1


class Pooling(StrEnum):
    MAX = "max"
    AVG = "avg"


class Reduction(StrEnum):
    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    VARIANCE = "variance"

    @property
    def is_of_parts(self) -> bool:
        """Whether that of a whole is that of its parts' results."""
        return self is not Reduction.VARIANCE


class Interpolation(StrEnum):
    NEAREST = "nearest"
    LINEAR = "linear"


class Rounding(StrEnum):
    """How `resize nearest` makes a position an index."""

    FLOOR = "floor"
    CEIL = "ceil"
    ROUND_PREFER_FLOOR = "round_prefer_floor"
    ROUND_PREFER_CEIL = "round_prefer_ceil"


class Border(StrEnum):
    """Which elements of a map stand before and behind it, by the names that ONNX's Pad gives them."""

    REFLECT = "reflect"
    EDGE = "edge"
    WRAP = "wrap"


def words(kinds: type[StrEnum]) -> tuple[str, ...]:
    """The words of one of these enumerations, as plain text."""
    return tuple(str(kind) for kind in kinds)


ELEMENTWISE: dict[str, Elementwise] = {str(kind): kind for enum in (Function, Arithmetic) for kind in enum}
"""Every element-wise function by its word."""
