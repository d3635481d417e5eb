// RUN: frustum-opt %s -p frustum-graph-convert-at-host | filecheck %s

// A calibrated network takes and gives integers; an input that a layer also reads in f32 stays as it is.

builtin.module {
  fgraph.network @net (%x : tensor<1x4xf32>, %y : tensor<1x4xf32>) inputs ["x", "y"] outputs ["a", "b", "c"] attributes {frustum.input_ranges = [], frustum.model_dtypes = ["float32", "float32", "float32", "float16", "float32"]} {
    %xq = fgraph.quantize %x {to = #fgraph.scale<0.5, 3>} : (tensor<1x4xf32>) -> tensor<1x4xi8>
    %again = fgraph.quantize %x {to = #fgraph.scale<0.5, 3>} : (tensor<1x4xf32>) -> tensor<1x4xi8>
    %yq = fgraph.quantize %y {to = #fgraph.scale<0.25, 0>} : (tensor<1x4xf32>) -> tensor<1x4xi8>
    %sum = fgraph.binary add %xq, %again {scales = [#fgraph.scale<0.5, 3>, #fgraph.scale<0.5, 3>, #fgraph.scale<1.0, 1>]} : (tensor<1x4xi8>, tensor<1x4xi8>) -> tensor<1x4xi8>
    %a = fgraph.dequantize %sum {from = #fgraph.scale<1.0, 1>} : (tensor<1x4xi8>) -> tensor<1x4xf32>
    %b = fgraph.dequantize %yq {from = #fgraph.scale<0.25, 0>} : (tensor<1x4xi8>) -> tensor<1x4xf32>
    %c = fgraph.unary <relu> %y : tensor<1x4xf32>
    fgraph.output %a, %b, %c : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>
  }
}

// CHECK:      fgraph.network @net (%x : tensor<1x4xi8>, %y : tensor<1x4xf32>)
// CHECK-SAME: frustum.model_dtypes = ["float32<0.5, 3>", "float32", "float32<1.0, 1>", "float16<0.25, 0>", "float32"]
// CHECK-NEXT: [[YQ:%.*]] = fgraph.quantize %y
// CHECK-NEXT: [[SUM:%.*]] = fgraph.binary add %x, %x
// CHECK-NEXT: [[C:%.*]] = fgraph.unary <relu> %y
// CHECK-NEXT: fgraph.output [[SUM]], [[YQ]], [[C]]
