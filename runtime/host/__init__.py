"""What runs on the host: operators by onnxruntime, the oracle, inputs and how outputs compare."""
