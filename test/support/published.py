"""Published models, which lie beside the clone where there are any: tests that want them skip and say so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MODELS = Path(os.environ.get("FRUSTUM_MODELS", Path(__file__).parents[3] / "shared" / "models"))


def published(*names: str):
    """The files of these models as parameters of a test, or of all that are there; each that is missing is skipped."""
    found = sorted(MODELS.glob("*.onnx")) if not names else [MODELS / f"{name}.onnx" for name in names]
    if not found:
        found = [MODELS / "published models.onnx"]
    return [pytest.param(path, marks=_missing(path), id=path.stem) for path in found]


def _missing(path: Path):
    wanted = [path, path.with_suffix(".io.npz")]
    missing = [str(each) for each in wanted if not each.is_file()]
    reason = f"not there: {', '.join(missing)}; FRUSTUM_MODELS says where published models and their outputs are"
    return pytest.mark.skipif(bool(missing), reason=reason)
