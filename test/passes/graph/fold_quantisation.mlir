// RUN: frustum-opt %s -p frustum-graph-fold-quantisation | filecheck %s

// What only chooses elements, and what computes, between dequantize and quantize works on integers.

builtin.module {
  fgraph.network @net (%q : tensor<1x4x8x8xi8>, %r : tensor<1x4x4x4xi8>) inputs ["q", "r"] outputs ["y", "z"] {
    %x = fgraph.dequantize %q {from = #fgraph.scale<0.5, 3>} : (tensor<1x4x8x8xi8>) -> tensor<1x4x8x8xf32>
    %max = fgraph.pool max %x kernel [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x4x8x8xf32>) -> tensor<1x4x4x4xf32>
    %s = fgraph.dequantize %r {from = #fgraph.scale<0.25, -7>} : (tensor<1x4x4x4xi8>) -> tensor<1x4x4x4xf32>
    %sum = fgraph.binary add %max, %s {act = #fgraph.act<relu>} : (tensor<1x4x4x4xf32>, tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32>
    %sumq = fgraph.quantize %sum {to = #fgraph.scale<0.75, -128>} : (tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xi8>
    %cat = fgraph.concat %max, %s axis 1 : (tensor<1x4x4x4xf32>, tensor<1x4x4x4xf32>) -> tensor<1x8x4x4xf32>
    %flat = fgraph.reshape %cat : (tensor<1x8x4x4xf32>) -> tensor<1x128xf32>
    %flatq = fgraph.quantize %flat {to = #fgraph.scale<0.5, 3>} : (tensor<1x128xf32>) -> tensor<1x128xi8>
    fgraph.output %sumq, %flatq : tensor<1x4x4x4xi8>, tensor<1x128xi8>
  }
}

// CHECK:      fgraph.network @net
// CHECK-NEXT: [[MAX:%.*]] = fgraph.pool max %q
// CHECK-SAME: -> tensor<1x4x4x4xi8>
// CHECK-NEXT: [[SUM:%.*]] = fgraph.binary add [[MAX]], %r {act = #fgraph.act<relu>, scales = [#fgraph.scale<0.5, 3>, #fgraph.scale<0.25, -7>, #fgraph.scale<0.75, -128>]}
// CHECK-NEXT: [[SAME:%.*]] = fgraph.unary <identity> %r {scales = [#fgraph.scale<0.25, -7>, #fgraph.scale<0.5, 3>]}
// CHECK-NEXT: [[CAT:%.*]] = fgraph.concat [[MAX]], [[SAME]] axis 1
// CHECK-NEXT: [[FLAT:%.*]] = fgraph.reshape [[CAT]]
// CHECK-NEXT: fgraph.output [[SUM]], [[FLAT]]
