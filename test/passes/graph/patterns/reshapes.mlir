// RUN: frustum-opt %s -p frustum-graph-canonicalize --split-input-file | filecheck %s

// A reshape to and fro around an element by element layer is none.
builtin.module {
  fgraph.network @around (%x : tensor<1x8x6xf32>) inputs ["x"] outputs ["y"] {
    %a = fgraph.reshape %x : (tensor<1x8x6xf32>) -> tensor<1x8x2x3xf32>
    %b = fgraph.unary <exp> %a : tensor<1x8x2x3xf32>
    %c = fgraph.reshape %b : (tensor<1x8x2x3xf32>) -> tensor<1x8x6xf32>
    fgraph.output %c : tensor<1x8x6xf32>
  }
}
// CHECK-LABEL: @around
// CHECK-NEXT:    %b = fgraph.unary <exp> %x : tensor<1x8x6xf32>
// CHECK-NEXT:    fgraph.output %b

// -----

// What is added to a map of one row, as it is in the file, is seen as a map.
builtin.module {
  fgraph.network @line (%x : tensor<1x4x8xf32>) inputs ["x"] outputs ["y"] {
    %w = fgraph.weight "w" : tensor<4x4x1x3xf32>
    %a = fgraph.reshape %x : (tensor<1x4x8xf32>) -> tensor<1x4x1x8xf32>
    %c = fgraph.conv %a, %w strides [1, 1] pads [0, 1, 0, 1] dilations [1, 1] groups 1 : (tensor<1x4x1x8xf32>, tensor<4x4x1x3xf32>) -> tensor<1x4x1x8xf32>
    %d = fgraph.reshape %c : (tensor<1x4x1x8xf32>) -> tensor<1x4x8xf32>
    %e = fgraph.binary add %d, %x : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
    %f = fgraph.slice %e starts [0, 2, 0] steps [1, 1, 1] : (tensor<1x4x8xf32>) -> tensor<1x2x8xf32>
    fgraph.output %f : tensor<1x2x8xf32>
  }
}
// CHECK-LABEL: @line
// CHECK:         %a = fgraph.reshape %x
// CHECK:         %c = fgraph.conv
// CHECK-NEXT:    %e = fgraph.binary add %c, %a : {{.*}} -> tensor<1x4x1x8xf32>
// CHECK-NEXT:    %f = fgraph.slice %e starts [0, 2, 0, 0] steps [1, 1, 1, 1]
// CHECK-NEXT:    %f_1 = fgraph.reshape %f
// CHECK-NEXT:    fgraph.output %f_1

// -----

// Two maps of other shapes, neither of four dimensions: nothing is gained.
builtin.module {
  fgraph.network @apart (%x : tensor<8x6xf32>, %z : tensor<4x12xf32>) inputs ["x", "z"] outputs ["y"] {
    %a = fgraph.reshape %x : (tensor<8x6xf32>) -> tensor<48xf32>
    %b = fgraph.reshape %z : (tensor<4x12xf32>) -> tensor<48xf32>
    %c = fgraph.binary add %a, %b : (tensor<48xf32>, tensor<48xf32>) -> tensor<48xf32>
    fgraph.output %c : tensor<48xf32>
  }
}
// CHECK-LABEL: @apart
// CHECK:         fgraph.binary add {{.*}} -> tensor<48xf32>

// -----

// A constant that is spread over a map of one row is spread over the map of four dimensions.
builtin.module {
  fgraph.network @slopes (%x : tensor<1x4x1x8xf32>) inputs ["x"] outputs ["y"] {
    %s = fgraph.weight "s" : tensor<4x1xf32>
    %a = fgraph.reshape %x : (tensor<1x4x1x8xf32>) -> tensor<1x4x8xf32>
    %b = fgraph.binary prelu %a, %s : (tensor<1x4x8xf32>, tensor<4x1xf32>) -> tensor<1x4x8xf32>
    %c = fgraph.reshape %b : (tensor<1x4x8xf32>) -> tensor<1x4x1x8xf32>
    fgraph.output %c : tensor<1x4x1x8xf32>
  }
}
// CHECK-LABEL: @slopes
// CHECK:         %b = fgraph.reshape %s : (tensor<4x1xf32>) -> tensor<1x4x1x1xf32>
// CHECK-NEXT:    %{{.*}} = fgraph.binary prelu %x, %b : (tensor<1x4x1x8xf32>, tensor<1x4x1x1xf32>) -> tensor<1x4x1x8xf32>
// CHECK-NEXT:    fgraph.output

// -----

// The largest of each channel of a line is that of each plane of the map.
builtin.module {
  fgraph.network @largest (%x : tensor<1x4x1x8xf32>) inputs ["x"] outputs ["y"] {
    %a = fgraph.reshape %x : (tensor<1x4x1x8xf32>) -> tensor<1x4x8xf32>
    %b = fgraph.reduce max %a axes [2] : (tensor<1x4x8xf32>) -> tensor<1x4xf32>
    fgraph.output %b : tensor<1x4xf32>
  }
}
// CHECK-LABEL: @largest
// CHECK-NEXT:    %b = fgraph.reduce max %x axes [2, 3] keepdims : (tensor<1x4x1x8xf32>) -> tensor<1x4x1x1xf32>
// CHECK-NEXT:    %{{.*}} = fgraph.reshape %b : (tensor<1x4x1x1xf32>) -> tensor<1x4xf32>

// -----

// An activation behind a line is computed on the way out of the convolution: nobody else reads that.
builtin.module {
  fgraph.network @on_the_way_out (%x : tensor<1x4x1x8xf32>) inputs ["x"] outputs ["y"] {
    %w = fgraph.weight "w" : tensor<4x4x1x3xf32>
    %c = fgraph.conv %x, %w strides [1, 1] pads [0, 1, 0, 1] dilations [1, 1] groups 1 : (tensor<1x4x1x8xf32>, tensor<4x4x1x3xf32>) -> tensor<1x4x1x8xf32>
    %d = fgraph.reshape %c : (tensor<1x4x1x8xf32>) -> tensor<1x4x8xf32>
    %e = fgraph.unary <tanh> %d : tensor<1x4x8xf32>
    fgraph.output %e : tensor<1x4x8xf32>
  }
}
// CHECK-LABEL: @on_the_way_out
// CHECK:         %c = fgraph.conv {{.*}}act = #fgraph.act<tanh>
// CHECK-NEXT:    %{{.*}} = fgraph.reshape %c : (tensor<1x4x1x8xf32>) -> tensor<1x4x8xf32>
// CHECK-NEXT:    fgraph.output
