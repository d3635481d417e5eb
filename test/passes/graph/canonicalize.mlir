// RUN: frustum-opt %s -p frustum-graph-canonicalize --split-input-file | filecheck %s

// An activation goes into the layer before it, unless somebody else uses the layer's result.
builtin.module {
  fgraph.network @fuse (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["y", "z"] {
    %w = fgraph.weight "w" : tensor<4x4x1x1xf32>
    %c = fgraph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x4x8x8xf32>, tensor<4x4x1x1xf32>) -> tensor<1x4x8x8xf32>
    %r = fgraph.unary <relu> %c : tensor<1x4x8x8xf32>
    %s = fgraph.unary <sigmoid> %r : tensor<1x4x8x8xf32>
    %m = fgraph.binary mul %s, %r : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
    %t = fgraph.unary <clip, 0.0, 6.0> %m : tensor<1x4x8x8xf32>
    fgraph.output %t, %s : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
  }
}
// CHECK-LABEL: @fuse
// CHECK:         %c = fgraph.conv %x, %w {{.*}} {act = #fgraph.act<relu>}
// CHECK-NEXT:    %s = fgraph.unary <sigmoid> %c
// CHECK-NEXT:    %m = fgraph.binary mul %s, %c {act = #fgraph.act<clip, 0.0, 6.0>}
// CHECK-NEXT:    fgraph.output %m, %s

// -----

// Zeros go into a convolution, minus infinity into a max-pool; zeros before a max-pool stay.
builtin.module {
  fgraph.network @pad (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["a", "b", "c"] {
    %w = fgraph.weight "w" : tensor<4x4x3x3xf32>
    %p = fgraph.pad %x low [0, 0, 1, 0] high [0, 0, 2, 1] value 0.0 : (tensor<1x4x8x8xf32>) -> tensor<1x4x11x9xf32>
    %a = fgraph.conv %p, %w strides [1, 1] pads [0, 1, 0, 0] dilations [1, 1] groups 1 : (tensor<1x4x11x9xf32>, tensor<4x4x3x3xf32>) -> tensor<1x4x9x8xf32>
    %q = fgraph.pad %x low [0, 0, 1, 1] high [0, 0, 1, 1] value -inf : (tensor<1x4x8x8xf32>) -> tensor<1x4x10x10xf32>
    %b = fgraph.pool max %q kernel [3, 3] strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x4x10x10xf32>) -> tensor<1x4x8x8xf32>
    %o = fgraph.pad %x low [0, 0, 1, 1] high [0, 0, 1, 1] value 0.0 : (tensor<1x4x8x8xf32>) -> tensor<1x4x10x10xf32>
    %c = fgraph.pool max %o kernel [3, 3] strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x4x10x10xf32>) -> tensor<1x4x8x8xf32>
    fgraph.output %a, %b, %c : tensor<1x4x9x8xf32>, tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
  }
}
// CHECK-LABEL: @pad
// CHECK:         fgraph.conv %x, %w strides [1, 1] pads [1, 1, 2, 1]
// CHECK-NEXT:    fgraph.pool max %x kernel [3, 3] strides [1, 1] pads [1, 1, 1, 1]
// CHECK-NEXT:    %o = fgraph.pad %x
// CHECK-NEXT:    fgraph.pool max %o kernel [3, 3] strides [1, 1] pads [0, 0, 0, 0]

// -----

// Identities vanish, moves of moves become one, what nobody uses goes.
builtin.module {
  fgraph.network @moves (%x : tensor<2x3x4xf32>) inputs ["x"] outputs ["a", "b", "c"] {
    %dead = fgraph.unary <exp> %x : tensor<2x3x4xf32>
    %i = fgraph.unary <identity> %x : tensor<2x3x4xf32>
    %r0 = fgraph.reshape %i : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
    %r1 = fgraph.reshape %r0 : (tensor<6x4xf32>) -> tensor<24xf32>
    %t0 = fgraph.transpose %x perm [1, 2, 0] : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
    %t1 = fgraph.transpose %t0 perm [2, 0, 1] : (tensor<3x4x2xf32>) -> tensor<2x3x4xf32>
    %u = fgraph.unary <abs> %t1 : tensor<2x3x4xf32>
    %f = fgraph.reshape %x : (tensor<2x3x4xf32>) -> tensor<24x1xf32>
    %g = fgraph.transpose %f perm [1, 0] : (tensor<24x1xf32>) -> tensor<1x24xf32>
    fgraph.output %r1, %u, %g : tensor<24xf32>, tensor<2x3x4xf32>, tensor<1x24xf32>
  }
}
// CHECK-LABEL: @moves
// CHECK-NEXT:    %r1 = fgraph.reshape %x : (tensor<2x3x4xf32>) -> tensor<24xf32>
// CHECK-NEXT:    %u = fgraph.unary <abs> %x
// CHECK-NEXT:    %g = fgraph.reshape %x : (tensor<2x3x4xf32>) -> tensor<1x24xf32>
// CHECK-NEXT:    fgraph.output %r1, %u, %g

// -----

// An activation goes through an interleaving into its parts.
builtin.module {
  fgraph.network @parts (%x : tensor<1x2x3x3xf32>) inputs ["x"] outputs ["y"] {
    %w = fgraph.weight "w" : tensor<2x2x1x1xf32>
    %a = fgraph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x2x3x3xf32>, tensor<2x2x1x1xf32>) -> tensor<1x2x3x3xf32>
    %b = fgraph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x2x3x3xf32>, tensor<2x2x1x1xf32>) -> tensor<1x2x3x3xf32>
    %i = fgraph.interleave %a, %b factor [2, 1] : (tensor<1x2x3x3xf32>, tensor<1x2x3x3xf32>) -> tensor<1x2x6x3xf32>
    %y = fgraph.unary <relu> %i : tensor<1x2x6x3xf32>
    fgraph.output %y : tensor<1x2x6x3xf32>
  }
}
// CHECK-LABEL: @parts
// CHECK:         fgraph.conv {{.*}} {act = #fgraph.act<relu>}
// CHECK-NEXT:    fgraph.conv {{.*}} {act = #fgraph.act<relu>}
// CHECK-NEXT:    %i = fgraph.interleave
// CHECK-NEXT:    fgraph.output %i

// -----

// Other dialects' operations stay, unused ones too.
builtin.module {
  func.func @other(%x : tensor<2x2xf32>) -> tensor<2x2xf32> {
    %unused = arith.constant 1 : i32
    %i = fgraph.unary <identity> %x : tensor<2x2xf32>
    %y = "test.op"(%i) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %z = fgraph.unary <relu> %y : tensor<2x2xf32>
    func.return %z : tensor<2x2xf32>
  }
}
// CHECK-LABEL: @other
// CHECK-NEXT:    %unused = arith.constant 1 : i32
// CHECK-NEXT:    %y = "test.op"(%x)
// CHECK-NEXT:    %z = fgraph.unary <relu> %y

// -----

// Bodies of recurrences are simplified as the network is; one of a single step is its body.
builtin.module {
  fgraph.network @loops (%x : tensor<4x3xf32>, %w : tensor<3x3xf32>, %s : tensor<2x3xf32>) inputs ["x", "w", "s"] outputs ["y", "z"] {
    %y, %h = fgraph.recurrence steps 2 dim 0 slices (%a : tensor<2x3xf32> in %x : tensor<4x3xf32>) states (%b : tensor<2x3xf32>) -> (tensor<4x3xf32>, tensor<2x3xf32>) {
      %p = fgraph.matmul %b, %w : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32>
      %r = fgraph.unary <relu> %p : tensor<2x3xf32>
      %i = fgraph.unary <identity> %r : tensor<2x3xf32>
      %n = fgraph.binary add %i, %a : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      fgraph.yield states %n : tensor<2x3xf32> outputs %i : tensor<2x3xf32>
    }
    %z, %l = fgraph.recurrence steps 1 dim 0 slices (%c : tensor<2x3xf32> in %h : tensor<2x3xf32>) states (%d : tensor<2x3xf32> from %s) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
      %e = fgraph.binary mul %c, %d : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      fgraph.yield states %e : tensor<2x3xf32> outputs %e : tensor<2x3xf32>
    }
    fgraph.output %y, %z : tensor<4x3xf32>, tensor<2x3xf32>
  }
}
// CHECK-LABEL: @loops
// CHECK-NEXT:    %y, %h = fgraph.recurrence steps 2
// CHECK-NEXT:      %p = fgraph.matmul %b, %w {act = #fgraph.act<relu>}
// CHECK-NEXT:      %n = fgraph.binary add %p, %a
// CHECK-NEXT:      fgraph.yield states %n : tensor<2x3xf32> outputs %p : tensor<2x3xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    %e = fgraph.binary mul %h, %s
// CHECK-NEXT:    fgraph.output %y, %e
