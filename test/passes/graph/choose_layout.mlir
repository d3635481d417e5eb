// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-graph-choose-layout{layout=nhwc}' | filecheck %s
// RUN: xdsl-opt %s -p 'frustum-set-target{target=edge},frustum-graph-choose-layout{layout=nhwc}' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-graph-choose-layout{layout=nchwc},frustum-tile-lower-units' | filecheck %s --check-prefix BLOCKS
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-graph-choose-layout{layout=nchw}' | filecheck %s --check-prefix NONE

// Two maps lie between units, of 16 and of 8 channels; the input and the output stay as the file says.

builtin.module attributes {frustum.dtype = "f32"} {
  fgraph.network @net (%0 : tensor<1x3x8x8xf32>) inputs ["x0"] outputs ["y0"] attributes {frustum.model_dtypes = ["float32", "float32"]} {
    %1 = funit.unit "u0" (%2 = %0 : tensor<1x3x8x8xf32>) -> (tensor<1x16x8x8xf32>) {partition = #funit.partition<tile [1, 16, 8, 8], clusters 2, depth 1>, mode = "small", stopped_by = "policy none"} {
      %3 = fgraph.weight "w" : tensor<16x3x3x3xf32>
      %4 = fgraph.conv %2, %3 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 {frustum.map = #ftile.map<extent [1, 16, 2, 8], cores 2, channels 3, outer space, weights unit>} : (tensor<1x3x8x8xf32>, tensor<16x3x3x3xf32>) -> tensor<1x16x8x8xf32>
      funit.yield %4 : tensor<1x16x8x8xf32>
    }
    %5 = funit.unit "u1" (%6 = %1 : tensor<1x16x8x8xf32>) -> (tensor<1x8x8x8xf32>) {partition = #funit.partition<tile [1, 8, 8, 8], clusters 2, depth 1>, mode = "small", stopped_by = "policy none"} {
      %7 = fgraph.weight "w.1" : tensor<8x16x1x1xf32>
      %8 = fgraph.conv %6, %7 strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 {frustum.map = #ftile.map<extent [1, 8, 2, 8], cores 2, channels 16, outer space, weights unit>} : (tensor<1x16x8x8xf32>, tensor<8x16x1x1xf32>) -> tensor<1x8x8x8xf32>
      funit.yield %8 : tensor<1x8x8x8xf32>
    }
    %9 = funit.unit "u2" (%10 = %5 : tensor<1x8x8x8xf32>) -> (tensor<1x8x4x4xf32>) {partition = #funit.partition<tile [1, 8, 4, 4], clusters 2, depth 1>, mode = "small", stopped_by = "policy none"} {
      %11 = fgraph.pool max %10 kernel [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] {frustum.map = #ftile.map<extent [1, 2, 4, 4], cores 1, channels 0, outer space, weights unit>} : (tensor<1x8x8x8xf32>) -> tensor<1x8x4x4xf32>
      funit.yield %11 : tensor<1x8x4x4xf32>
    }
    fgraph.output %9 : tensor<1x8x4x4xf32>
  }
}

// CHECK:      funit.unit "u0"
// CHECK:      frustum.layout = "nhwc"
// CHECK:      funit.unit "u1"
// CHECK:      frustum.layout = "nhwc"
// CHECK:      funit.unit "u2"
// CHECK-NOT:  frustum.layout

// BLOCKS:     ftile.store {{.*}} view <0, [1024, 1024, 128, 16], block 16>
// BLOCKS:     ftile.load {{.*}} view <0, [1024, 1024, 128, 16], block 16>
// BLOCKS:     ftile.store {{.*}} view <0, [512, 64, 8, 1]>

// NONE-NOT:   frustum.layout
