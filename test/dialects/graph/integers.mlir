// RUN: frustum-opt %s | filecheck %s
// RUN: frustum-opt %s | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-op-generic | frustum-opt | filecheck %s

builtin.module attributes {frustum.weights = "a.safetensors"} {
  fgraph.network @net (%x : tensor<1x4x8x8xf32>, %r : tensor<1x4x8x8xi8>) inputs ["x", "r"] outputs ["y", "z"] {
    %w = fgraph.weight "w" : tensor<4x4x3x3xi8>
    %b = fgraph.weight "b" : tensor<4xi32>
    %wz = fgraph.weight "wz" : tensor<4xi8>
    %m = fgraph.weight "m" : tensor<4xf32>
    %wide = fgraph.weight "wide" : tensor<8xi8>
    %q = fgraph.quantize %x {to = #fgraph.scale<0.0078125, 3>} : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xi8>
    %whole = fgraph.conv %q, %w, %b w_zero %wz multiplier %m strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 {zeros = array<i64: 3, -128>, act = #fgraph.act<clip, -128.0, 100.0>} : (tensor<1x4x8x8xi8>, tensor<4x4x3x3xi8>, tensor<4xi32>, tensor<4xi8>, tensor<4xf32>) -> tensor<1x4x8x8xi8>
    %scaled = fgraph.conv %q, %w multiplier %m strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 {zeros = array<i64: 3, 0>} : (tensor<1x4x8x8xi8>, tensor<4x4x3x3xi8>, tensor<4xf32>) -> tensor<1x4x8x8xi8>
    %sums = fgraph.matmul %q, %q w_zero %wide trans_b {zeros = array<i64: 3, 0>} : (tensor<1x4x8x8xi8>, tensor<1x4x8x8xi8>, tensor<8xi8>) -> tensor<1x4x8x8xi32>
    %add = fgraph.binary add %whole, %r {act = #fgraph.act<relu>, scales = [#fgraph.scale<0.5, -128>, #fgraph.scale<1.0e-05, 0>, #fgraph.scale<0.25, 7>]} : (tensor<1x4x8x8xi8>, tensor<1x4x8x8xi8>) -> tensor<1x4x8x8xi8>
    %again = fgraph.unary <identity> %add {scales = [#fgraph.scale<0.25, 7>, #fgraph.scale<0.5, 0>]} : tensor<1x4x8x8xi8>
    %mean = fgraph.reduce mean %again axes [2, 3] keepdims {scales = [#fgraph.scale<0.5, 0>, #fgraph.scale<0.5, 0>]} : (tensor<1x4x8x8xi8>) -> tensor<1x4x1x1xi8>
    %max = fgraph.pool max %scaled kernel [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x4x8x8xi8>) -> tensor<1x4x4x4xi8>
    %border = fgraph.pad %max low [0, 0, 1, 1] high [0, 0, 1, 1] value -128.0 : (tensor<1x4x4x4xi8>) -> tensor<1x4x6x6xi8>
    %y = fgraph.dequantize %sums {from = #fgraph.scale<1.5, 0>} : (tensor<1x4x8x8xi32>) -> tensor<1x4x8x8xf32>
    fgraph.output %y, %border : tensor<1x4x8x8xf32>, tensor<1x4x6x6xi8>
  }
}

// CHECK:      fgraph.quantize %x {to = #fgraph.scale<0.0078125, 3>} :
// CHECK-NEXT: fgraph.conv %q, %w, %b w_zero %wz multiplier %m strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 {zeros = array<i64: 3, -128>, act = #fgraph.act<clip, -128.0, 100.0>} : (tensor<1x4x8x8xi8>, tensor<4x4x3x3xi8>, tensor<4xi32>, tensor<4xi8>, tensor<4xf32>) -> tensor<1x4x8x8xi8>
// CHECK-NEXT: fgraph.conv %q, %w multiplier %m strides
// CHECK-NEXT: fgraph.matmul %q, %q w_zero %wide trans_b {zeros = array<i64: 3, 0>} :
// CHECK:      fgraph.binary add %whole, %r {act = #fgraph.act<relu>, scales = [#fgraph.scale<0.5, -128>, #fgraph.scale<1.0e-05, 0>, #fgraph.scale<0.25, 7>]} :
// CHECK-NEXT: fgraph.unary <identity> %add {scales = [#fgraph.scale<0.25, 7>, #fgraph.scale<0.5, 0>]} :
// CHECK-NEXT: fgraph.reduce mean %again axes [2, 3] keepdims {scales =
// CHECK-NEXT: fgraph.pool max %scaled
// CHECK-NEXT: fgraph.pad %max low [0, 0, 1, 1] high [0, 0, 1, 1] value -128.0 :
// CHECK-NEXT: fgraph.dequantize %sums {from = #fgraph.scale<1.5, 0>} :
