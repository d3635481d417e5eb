"""Models of a few nodes, and what onnxruntime or the reference evaluator of `onnx` makes of them."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import frustum
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor

MICROSOFT = "com.microsoft"
node = helper.make_node


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


class Judged:
    """Nodes that read `inputs` and `constants`, arrays by name, and what their outputs are."""

    def __init__(self, nodes, inputs, constants=None, outputs=("y",), opset=20, judge="onnxruntime"):
        infos = [helper.make_tensor_value_info(k, _element(v), v.shape) for k, v in inputs.items()]
        tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
        is_half = any(v.dtype == np.float16 for v in inputs.values())
        element = TensorProto.FLOAT16 if is_half else TensorProto.FLOAT
        ends = [helper.make_tensor_value_info(name, element, None) for name in outputs]
        graph = helper.make_graph(nodes, "case", infos, ends, tensors)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        self.proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        self.inputs = inputs
        if judge == "onnxruntime":
            self.wanted = _onnxruntime(self.proto.SerializeToString(), inputs)
        else:
            self.wanted = ReferenceEvaluator(self.proto).run(None, inputs)
        for value, wanted in zip(self.proto.graph.output, self.wanted, strict=True):
            value.CopyFrom(helper.make_tensor_value_info(value.name, _element(wanted), wanted.shape))

    def agrees(self, rtol=2e-6):
        """All of it is a network of the graph level, which gives this."""
        module = import_onnx(self.proto)
        found = ReferenceExecutor(store_of(module)).run_graph(module, self.inputs)
        self._same(found.values(), rtol)

    def runs(self, rtol=2e-6, **options):
        """The device alone, checked, gives this."""
        made = frustum.compile(self.proto, **({"target": "edge", "host": "never"} | options))
        self._same(frustum.run(made, self.inputs, mode="functional", checked=True).outputs.values(), rtol)
        return made

    def _same(self, found, rtol):
        for own, wanted in zip(found, self.wanted, strict=True):
            scale = np.abs(wanted[np.isfinite(wanted)], dtype=np.float64).max(initial=1e-30)
            np.testing.assert_allclose(np.float64(own), np.float64(wanted), rtol=0, atol=rtol * scale)


def _element(array):
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)


def _onnxruntime(data, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options).run(None, inputs)
