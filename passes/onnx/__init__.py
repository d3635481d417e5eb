"""Reading ONNX: the parts of `frustum.passes.import_onnx`, one concern each."""
