"""What an older package cannot express: tests that need more skip there, and say so."""

import onnx
import pytest

OPSET_28 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 28, reason=f"onnx {onnx.__version__} has no opset 28"
)
