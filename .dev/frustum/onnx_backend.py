"""Frustum as a backend of ONNX: see `frustum.runtime.tools.onnx_backend`."""

from frustum.runtime.tools.onnx_backend import (
    FrustumBackend,
    Prepared,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supports_device,
)

__all__ = ["FrustumBackend", "Prepared", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]
