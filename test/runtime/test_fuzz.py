"""Damaged inputs of every kind: each works, or is refused in words, within bounds of time and memory."""

from pathlib import Path

import mutations
import pytest

pytestmark = pytest.mark.slow

SEEDS = {"target_text": 25, "arrays": 60}
USUAL = 40
"""Inputs of a kind; `test/soak/soak_fuzz.py` has more of them, and others each time."""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", mutations.KINDS)
def test_a_damaged_input_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    assert faults(kind, range(SEEDS.get(kind, USUAL)), tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("onnx_fields", 17), ("onnx_fields", 183), ("onnx_fields", 348), ("onnx_fields", 548), ("stage_text", 81),
        ("stage_text", 89), ("stage_text", 126), ("stage_text", 389), ("sealed", 8), ("sealed", 104),
        ("sealed", 149), ("sealed", 441), ("sealed", 456), ("sealed", 1033), ("sealed", 1501),
        ("arrays", 50), ("arrays", 113),
    ],
)  # fmt: skip
def test_what_was_found_once(kind: str, seed: int, tmp_path: Path) -> None:
    assert faults(kind, [seed], tmp_path) == []


def test_the_guard_sees_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug, a request for memory and a hang are faults."""
    import numpy as np

    def bug(rng: object, folder: Path) -> mutations.Use:
        return lambda: {}["key"]

    def memory(rng: object, folder: Path) -> mutations.Use:
        return lambda: np.ones(1 << 29)

    def hang(rng: object, folder: Path) -> mutations.Use:
        return lambda: sum(1 for _ in iter(int, 1))

    monkeypatch.setattr(mutations, "SECONDS", 0.2)
    monkeypatch.setitem(mutations.KINDS, "bug", bug)
    monkeypatch.setitem(mutations.KINDS, "memory", memory)
    monkeypatch.setitem(mutations.KINDS, "hang", hang)
    found = [mutations.fault_of(kind, 0, tmp_path) for kind in ("bug", "memory", "hang")]
    kinds = (KeyError, MemoryError, mutations.TooLong)
    assert [isinstance(each.error, kind) for each, kind in zip(found, kinds, strict=True) if each] == [True] * 3


def faults(kind: str, seeds: "range | list[int]", folder: Path) -> list[str]:
    found = []
    for seed in seeds:
        place = folder / f"{kind}{seed}"
        place.mkdir()
        fault = mutations.fault_of(kind, seed, place)
        if fault is not None:
            found.append(str(fault))
    return found
