// RUN: frustum-opt %s | filecheck %s
// RUN: frustum-opt %s | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-op-generic | frustum-opt | filecheck %s

builtin.module {
  func.func @tiles(%x : tensor<1x4x8x8xf16>) {
    %y = ftile.unit "u0" (%p = %x : tensor<1x4x8x8xf16>) -> (tensor<1x4x8x8xf16>) counts [1, 2, 1, 4] clusters 2 depth 2 {mode = "large", stopped_by = "output follows"} attributes {note = 1 : i64} {
      %w = fgraph.weight "w" : tensor<4x4x3x3xf16>
      %t = ftile.load %p view <-8, [256, 64, -8, 1]> region <0 : 1 in 1, 0 : 4 in 4, -1 + 2*cluster : 4 in 8, -1 + 2*i3 : 4 in 8> fill -1.500000e+00 : f64 : tensor<1x4x8x8xf16> -> !ftile.tile<f16, [1, 4, 4, 4], [0, 2, 3, 1]>
      %c = ftile.compute "conv"(%t, %w) region <0 : 1 in 1, 2*i1 : 2 in 4, 2*cluster : 2 in 8, 2*i3 : 2 in 8> access [#ftile.access<same, all 4, [1, 1, -1, 2], [3, 2, -1, 2]>] map <extent [1, 1, 2, 2], cores 1, channels 2, outer channels, weights stream> params {kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, channels = 4 : i64, weight_strides = array<i64: 36, 9, 3, 1>, weight_batch = 0 : i64, act = "leaky_relu", act_params = array<f64: 1.500000e+00, 0.000000e+00>} {frustum.macs = 5 : i64} : (!ftile.tile<f16, [1, 4, 4, 4], [0, 2, 3, 1]>, tensor<4x4x3x3xf16>) -> !ftile.tile<f16, [1, 2, 2, 2], [0, 1, 2, 3]>
      ftile.store %c to 0 : i64 view <0, [256, 64, 8, 1]> region <0 : 1 in 1, 2*i1 : 2 in 4, 2*cluster : 2 in 8, 2*i3 : 2 in 8> : !ftile.tile<f16, [1, 2, 2, 2], [0, 1, 2, 3]>
      ftile.yield
    }
    %z = ftile.unit "u1" (%p = %y : tensor<1x4x8x8xf16>) -> (tensor<1x4x10x8xf16>) counts [1, 1, 1, 1] clusters 0 depth 1 {} {
      ftile.move %p to 0 : i64 dims [1, 4, 10, 8] from <0, [256, 64, 8, 1]> into <0, [320, 80, 8, 1]> low [0, 0, -2, 0] bound [1, 4, 8, 8] fill 0.000000e+00 : f64 partition <tile [1, 4, 5, 8], clusters 2, depth 2> : tensor<1x4x8x8xf16>
      ftile.yield
    }
    func.return
  }
}

// CHECK:      %y = ftile.unit "u0" (%p = %x : tensor<1x4x8x8xf16>) -> (tensor<1x4x8x8xf16>) counts [1, 2, 1, 4] clusters 2 depth 2 {mode = "large", stopped_by = "output follows"} attributes {note = 1 : i64} {
// CHECK-NEXT:   %w = fgraph.weight "w"
// CHECK-NEXT:   %t = ftile.load %p view <-8, [256, 64, -8, 1]> region <0 : 1 in 1, 0 : 4 in 4, -1 + 2*cluster : 4 in 8, -1 + 2*i3 : 4 in 8> fill -1.500000e+00 : f64 : tensor<1x4x8x8xf16> -> !ftile.tile<f16, [1, 4, 4, 4], [0, 2, 3, 1]>
// CHECK-NEXT:   %c = ftile.compute "conv"(%t, %w) region <0 : 1 in 1, 2*i1 : 2 in 4, 2*cluster : 2 in 8, 2*i3 : 2 in 8> access [#ftile.access<same, all 4, [1, 1, -1, 2], [3, 2, -1, 2]>] map <extent [1, 1, 2, 2], cores 1, channels 2, outer channels, weights stream> params {kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, channels = 4 : i64, weight_strides = array<i64: 36, 9, 3, 1>, weight_batch = 0 : i64, act = "leaky_relu", act_params = array<f64: 1.500000e+00, 0.000000e+00>} {frustum.macs = 5 : i64} : (!ftile.tile<f16, [1, 4, 4, 4], [0, 2, 3, 1]>, tensor<4x4x3x3xf16>) -> !ftile.tile<f16, [1, 2, 2, 2], [0, 1, 2, 3]>
// CHECK-NEXT:   ftile.store %c to 0 : i64 view <0, [256, 64, 8, 1]> region <0 : 1 in 1, 2*i1 : 2 in 4, 2*cluster : 2 in 8, 2*i3 : 2 in 8> : !ftile.tile<f16, [1, 2, 2, 2], [0, 1, 2, 3]>
// CHECK-NEXT:   ftile.yield
// CHECK:      %z = ftile.unit "u1" ({{.*}} = %y : tensor<1x4x8x8xf16>) -> (tensor<1x4x10x8xf16>) counts [1, 1, 1, 1] clusters 0 depth 1 {} {
// CHECK-NEXT:   ftile.move {{.*}} to 0 : i64 dims [1, 4, 10, 8] from <0, [256, 64, 8, 1]> into <0, [320, 80, 8, 1]> low [0, 0, -2, 0] bound [1, 4, 8, 8] fill 0.000000e+00 : f64 partition <tile [1, 4, 5, 8], clusters 2, depth 2> : tensor<1x4x8x8xf16>
