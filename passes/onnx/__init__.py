"""Reading ONNX: the parts of `frustum.passes.onnx.import_onnx`, one concern each."""
