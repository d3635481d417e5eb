// RUN: frustum-opt %s | filecheck %s
// RUN: frustum-opt %s | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-op-generic | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-debuginfo | frustum-opt --print-debuginfo | filecheck %s --check-prefix LOC

builtin.module attributes {frustum.weights = "a.safetensors"} {
  fgraph.network @net (%x : tensor<1x4x8x8xf32>, %m : tensor<2x3x5xf32>) inputs ["data/0", "m"] outputs ["y", "z"] {
    %w = fgraph.weight "w" : tensor<4x2x3x3xf32>
    %b = fgraph.weight "b" : tensor<4xf32>
    %k = fgraph.weight "k" : tensor<6x5xf32>
    %conv = fgraph.conv %x, %w, %b strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 2 {act = #fgraph.act<clip, 0.0, inf>} : (tensor<1x4x8x8xf32>, tensor<4x2x3x3xf32>, tensor<4xf32>) -> tensor<1x4x8x8xf32> loc("Conv_0")
    %bare = fgraph.conv %x, %w strides [2, 1] pads [0, -1, 0, 0] dilations [1, 2] groups 2 : (tensor<1x4x8x8xf32>, tensor<4x2x3x3xf32>) -> tensor<1x4x3x3xf32>
    %mm = fgraph.matmul %m, %k trans_b : (tensor<2x3x5xf32>, tensor<6x5xf32>) -> tensor<2x3x6xf32>
    %max = fgraph.pool max %conv kernel [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [1, 1] : (tensor<1x4x8x8xf32>) -> tensor<1x4x4x4xf32>
    %avg = fgraph.pool avg %conv kernel [2, 2] strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] ceil_pads [0, 0] count_include_pad {act = #fgraph.act<relu>} : (tensor<1x4x8x8xf32>) -> tensor<1x4x5x5xf32>
    %mean = fgraph.reduce mean %conv axes [2, 3] keepdims : (tensor<1x4x8x8xf32>) -> tensor<1x4x1x1xf32>
    %sum = fgraph.reduce sum %conv axes [2, 3] : (tensor<1x4x8x8xf32>) -> tensor<1x4xf32>
    %leaky = fgraph.unary <leaky_relu, 0.1> %conv : tensor<1x4x8x8xf32>
    %relu = fgraph.unary <relu> %leaky : tensor<1x4x8x8xf32>
    %add = fgraph.binary add %relu, %mean {act = #fgraph.act<relu>} : (tensor<1x4x8x8xf32>, tensor<1x4x1x1xf32>) -> tensor<1x4x8x8xf32>
    %soft = fgraph.softmax %sum axis 1 : tensor<1x4xf32>
    %lrn = fgraph.lrn %x size 5 alpha 1.0e-05 beta 0.75 bias 1.0 : tensor<1x4x8x8xf32>
    %cat = fgraph.concat %x, %lrn axis 1 : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x8x8x8xf32>
    %cut = fgraph.slice %cat starts [0, 1, 7, 0] steps [1, 2, -1, 1] : (tensor<1x8x8x8xf32>) -> tensor<1x4x8x8xf32>
    %pad = fgraph.pad %cut low [0, 0, 1, -1] high [0, 0, 0, 2] value -inf : (tensor<1x4x8x8xf32>) -> tensor<1x4x9x9xf32>
    %flat = fgraph.reshape %pad : (tensor<1x4x9x9xf32>) -> tensor<4x81xf32>
    %part = fgraph.part %m start 1 count 1 : (tensor<2x3x5xf32>) -> tensor<1x3x5xf32>
    %turned = fgraph.transpose %flat perm [1, 0] : (tensor<4x81xf32>) -> tensor<81x4xf32>
    %wide = fgraph.resize linear %avg rounding floor scale [0.5, 0.33333333333333331] offset [-0.25, 0.0] : (tensor<1x4x5x5xf32>) -> tensor<1x4x10x15xf32>
    %woven = fgraph.interleave %max, %max factor [2, 1] : (tensor<1x4x4x4xf32>, tensor<1x4x4x4xf32>) -> tensor<1x4x8x4xf32>
    fgraph.output %woven, %turned : tensor<1x4x8x4xf32>, tensor<81x4xf32>
  }
}

// CHECK:      builtin.module attributes {frustum.weights = "a.safetensors"} {
// CHECK-NEXT: fgraph.network @net (%x : tensor<1x4x8x8xf32>, %m : tensor<2x3x5xf32>) inputs ["data/0", "m"] outputs ["y", "z"] {
// CHECK-NEXT: %w = fgraph.weight "w" : tensor<4x2x3x3xf32>
// CHECK:      fgraph.conv %x, %w, %b strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 2 {act = #fgraph.act<clip, 0.0, inf>} :
// CHECK-NEXT: fgraph.conv %x, %w strides [2, 1] pads [0, -1, 0, 0] dilations [1, 2] groups 2 :
// CHECK-NEXT: fgraph.matmul %m, %k trans_b :
// CHECK-NEXT: fgraph.pool max %conv kernel [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [1, 1] :
// CHECK-NEXT: fgraph.pool avg %conv kernel [2, 2] strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] ceil_pads [0, 0] count_include_pad {act = #fgraph.act<relu>} :
// CHECK-NEXT: fgraph.reduce mean %conv axes [2, 3] keepdims :
// CHECK-NEXT: fgraph.reduce sum %conv axes [2, 3] :
// CHECK-NEXT: fgraph.unary <leaky_relu, 0.1> %conv : tensor<1x4x8x8xf32>
// CHECK-NEXT: fgraph.unary <relu> %leaky : tensor<1x4x8x8xf32>
// CHECK-NEXT: fgraph.binary add %relu, %mean {act = #fgraph.act<relu>} :
// CHECK-NEXT: fgraph.softmax %sum axis 1 : tensor<1x4xf32>
// CHECK-NEXT: fgraph.lrn %x size 5 alpha 1.0e-05 beta 0.75 bias 1.0 : tensor<1x4x8x8xf32>
// CHECK-NEXT: fgraph.concat %x, %lrn axis 1 :
// CHECK-NEXT: fgraph.slice %cat starts [0, 1, 7, 0] steps [1, 2, -1, 1] :
// CHECK-NEXT: fgraph.pad %cut low [0, 0, 1, -1] high [0, 0, 0, 2] value -inf :
// CHECK-NEXT: fgraph.reshape %pad : (tensor<1x4x9x9xf32>) -> tensor<4x81xf32>
// CHECK-NEXT: fgraph.part %m start 1 count 1 : (tensor<2x3x5xf32>) -> tensor<1x3x5xf32>
// CHECK-NEXT: fgraph.transpose %flat perm [1, 0] :
// CHECK-NEXT: fgraph.resize linear %avg rounding floor scale [5.000000e-01, 0.33333333333333331] offset [-2.500000e-01, 0.000000e+00] :
// CHECK-NEXT: fgraph.interleave %max, %max factor [2, 1] :
// CHECK-NEXT: fgraph.output %woven, %turned :
// LOC: groups 2 {act = #fgraph.act<clip, 0.0, inf>} : {{.*}} loc("Conv_0")
