"""What people call: the commands, `frustum-opt`, the API, the ONNX backend."""
