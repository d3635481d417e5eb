"""Operators of com.microsoft around attention give what onnxruntime gives, on the device alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from attention_models import MICROSOFT, TRANSFORMER, Case, normal

from frustum.passes.errors import Unsupported
from frustum.runtime.tools.cli import main


@pytest.mark.slow
@pytest.mark.soak(but=6)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("operator", TRANSFORMER)
def test_random_options(operator, seed):
    TRANSFORMER[operator](np.random.default_rng(seed)).check()


@pytest.mark.parametrize("parts", [2, 3])
def test_packed_operands_are_tensors_beside_each_other(parts):
    """onnxruntime has them on other machines only: the same attention with the tensors apart."""
    rng = np.random.default_rng(parts)
    packed = normal(rng, 2, 5, 3, parts, 4)
    rest = [packed[:, :, :, part].reshape(2, 5, 12) for part in range(parts)]
    queries = [normal(rng, 2, 5, 12)] if parts == 2 else []
    attributes = {"num_heads": 3}
    expected = Case("MultiHeadAttention", [*queries, *rest], attributes, domain=MICROSOFT).expected()
    Case("MultiHeadAttention", [*queries, packed], attributes, domain=MICROSOFT).check(expected)


def of_cache(held, start, rows):
    """New rows in a cache that has room for more, or for just them: what stands in it otherwise stays."""
    rng = np.random.default_rng(held)
    caches = [normal(rng, 1, 2, held, 8) for _ in range(2)]
    operands = [normal(rng, 1, rows, 32), normal(rng, 1, rows, 16), normal(rng, 1, rows, 16), *caches]
    lengths = np.full(1, start + rows - 1, np.int32), np.array(start + rows, np.int32)
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    return Case("GroupQueryAttention", [*operands, *lengths], attributes, (True,) * 3, (5, 6), MICROSOFT)


@pytest.mark.slow
@pytest.mark.parametrize(("held", "start", "rows"), [(3, 3, 1), (8, 3, 1), (8, 2, 3)])
def test_caches_with_room(held, start, rows):
    case = of_cache(held, start, rows)
    expected = case.expected()
    if held > start:  # onnxruntime leaves what is behind the new rows to chance where it has another buffer
        for cache, past in zip(expected[1:], case.operands[3:5], strict=True):
            cache[:, :, start + rows :] = past[:, :, start + rows :]
    case.check(expected)


def heads(rng, size=8):
    return [normal(rng, 1, 4, size) for _ in range(3)]


REFUSED = [
    ("MultiHeadAttention", {"num_heads": 2}, {8: np.array([1], np.int32)}, "past_sequence_length is not supported"),
    ("MultiHeadAttention", {}, {}, "num_heads is 0"),
    ("MultiHeadAttention", {"num_heads": 2}, {4: np.ones(5, np.int32)}, r"a mask of keys of shape \(5,\) is not"),
    ("MultiHeadAttention", {"num_heads": 3}, {}, r"3 heads do not divide \(1, 4, 8\)"),
    ("GroupQueryAttention", {"num_heads": 1, "kv_num_heads": 1, "smooth_softmax": 1}, {}, "smooth_softmax is 1"),
    ("GroupQueryAttention", {"num_heads": 1, "kv_num_heads": 1, "qk_output": 2}, {}, "qk_output is 2: only 0"),
    ("GroupQueryAttention", {"num_heads": 1, "kv_num_heads": 1}, {11: np.ones(1, np.float32)}, "head_sink is not"),
    ("GroupQueryAttention", {"num_heads": 1, "kv_num_heads": 1},
     {5: np.array([2], np.int32), 6: np.array(4, np.int32)}, r"seqlens_k is \[2\]: only images of 4 keys"),
    ("Attention", {"num_heads": 2, "do_rotary": 1}, {1: np.ones((8, 24), np.float32), 2: None}, "do_rotary is 1"),
    ("RotaryEmbedding", {"scale": 2.0}, {1: np.zeros(1, np.int64)}, "scale is 2.0: only 1.0 is supported"),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "attributes", "others", "reason"), REFUSED)
def test_options_that_are_not_built_are_named(operator, attributes, others, reason, tmp_path, capsys):
    operands = [*heads(np.random.default_rng(0)), *[None] * 12]
    for index, value in others.items():
        operands[index] = value
    constants = tuple(index for index, value in others.items() if value is not None)
    if operator == "RotaryEmbedding":
        operands[2] = operands[3] = normal(np.random.default_rng(1), 6, 4)
        del operands[4:]
    case = Case(operator, operands, attributes, constants=constants, domain=MICROSOFT)
    with pytest.raises(Unsupported, match=reason):
        case.found([np.zeros((1, 4, 8), np.float32)])
    onnx.save(case.model(), tmp_path / "case.onnx")
    assert main(["compile", str(tmp_path / "case.onnx"), "--host", "never", "-o", str(tmp_path / "out")]) == 2
    assert f"com.microsoft.{operator}" in capsys.readouterr().err
