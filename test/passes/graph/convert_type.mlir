// RUN: frustum-opt %s -p 'frustum-graph-convert-type{to=f16}' | filecheck %s

// All tensors change, biases do not: a constant that is also a bias becomes two.
builtin.module attributes {frustum.dtype = "f32"} {
  fgraph.network @net (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["y"] {
    %w = fgraph.weight "w" : tensor<8x4x1x1xf32>
    %b = fgraph.weight "b" : tensor<8xf32>
    %c = fgraph.conv %x, %w, %b strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x4x8x8xf32>, tensor<8x4x1x1xf32>, tensor<8xf32>) -> tensor<1x8x8x8xf32>
    %y = fgraph.binary add %c, %b : (tensor<1x8x8x8xf32>, tensor<8xf32>) -> tensor<1x8x8x8xf32>
    fgraph.output %y : tensor<1x8x8x8xf32>
  }
}
// CHECK:      frustum.dtype = "f16"
// CHECK-NEXT: @net (%x : tensor<1x4x8x8xf16>)
// CHECK-NEXT:   %w = fgraph.weight "w:f16" : tensor<8x4x1x1xf16>
// CHECK-NEXT:   %b = fgraph.weight "b:f16" : tensor<8xf16>
// CHECK-NEXT:   %{{.*}} = fgraph.weight "b" : tensor<8xf32>
// CHECK-NEXT:   fgraph.conv {{.*}} : (tensor<1x4x8x8xf16>, tensor<8x4x1x1xf16>, tensor<8xf32>) -> tensor<1x8x8x8xf16>
// CHECK-NEXT:   fgraph.binary add {{.*}} : (tensor<1x8x8x8xf16>, tensor<8xf16>) -> tensor<1x8x8x8xf16>
// CHECK-NEXT:   fgraph.output %y : tensor<1x8x8x8xf16>
