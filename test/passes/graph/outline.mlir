// RUN: frustum-opt %s -p frustum-graph-outline --allow-unregistered-dialect --split-input-file | filecheck %s

// Three networks among operations of others: what only reads splits none; constants go with their readers; a layer moves
// up behind what it depends on.
builtin.module {
  func.func @three(%image : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> {
    %w = fgraph.weight "w" : tensor<4x4x1x1xf32>
    %unused = fgraph.weight "unused" : tensor<4xf32>
    %c = fgraph.conv %image, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x4x8x8xf32>, tensor<4x4x1x1xf32>) -> tensor<1x4x8x8xf32>
    "acme.look"(%c) : (tensor<1x4x8x8xf32>) -> ()
    %r = fgraph.unary <relu> %c : tensor<1x4x8x8xf32>
    %m, %n = "acme.magic"(%r) : (tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>)
    %e = fgraph.unary <exp> %r : tensor<1x4x8x8xf32> loc("late")
    %a = fgraph.binary add %m, %n : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
    %d = fgraph.conv %a, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x4x8x8xf32>, tensor<4x4x1x1xf32>) -> tensor<1x4x8x8xf32>
    %f = "acme.magic"(%d) : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
    %s = fgraph.binary add %f, %e : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
    func.return %s : tensor<1x4x8x8xf32>
  }
}
// CHECK:      fgraph.network @three_0 (%image : tensor<1x4x8x8xf32>) inputs ["image"] outputs ["c", "r", "late"] {
// CHECK-NEXT:   %w = fgraph.weight "w"
// CHECK-NEXT:   %c = fgraph.conv %image, %w
// CHECK-NEXT:   %r = fgraph.unary <relu> %c
// CHECK-NEXT:   %e = fgraph.unary <exp> %r
// CHECK-NEXT:   fgraph.output %c, %r, %e
// CHECK:      fgraph.network @three_1 (%m : {{.*}}, %n : {{.*}}) inputs ["m", "n"] outputs ["d"] {
// CHECK-NEXT:   %a = fgraph.binary add %m, %n
// CHECK-NEXT:   %w = fgraph.weight "w"
// CHECK-NEXT:   %d = fgraph.conv %a, %w
// CHECK:      fgraph.network @three_2 (%f : {{.*}}, %e : {{.*}}) inputs ["f", "e"] outputs ["s"] {
// CHECK:      func.func @three(%image: tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> {
// CHECK-NEXT:   %c, %r, %e = fgraph.call @three_0(%image) : (tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>)
// CHECK-NEXT:   "acme.look"(%c)
// CHECK-NEXT:   %m, %n = "acme.magic"(%r)
// CHECK-NEXT:   %d = fgraph.call @three_1(%m, %n)
// CHECK-NEXT:   %f = "acme.magic"(%d)
// CHECK-NEXT:   %s = fgraph.call @three_2(%f, %e)
// CHECK-NEXT:   func.return %s

// -----

// Blocks inside other operations; a name that is taken; what is in a network already, and what is not ours, stays; a
// constant that others read stays.
builtin.module {
  fgraph.network @inside_0 (%x : tensor<4xf32>) inputs ["x"] outputs ["y"] {
    %y = fgraph.unary <relu> %x : tensor<4xf32>
    fgraph.output %y : tensor<4xf32>
  }
  func.func @inside(%go : i1, %x : tensor<4xf32>) -> tensor<4xf32> {
    %w = fgraph.weight "w" : tensor<4xf32>
    "acme.look"(%w) : (tensor<4xf32>) -> ()
    %found = "scf.if"(%go) ({
      %a = fgraph.binary mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      scf.yield %a : tensor<4xf32>
    }, {
      scf.yield %x : tensor<4xf32>
    }) : (i1) -> tensor<4xf32>
    func.return %found : tensor<4xf32>
  }
  func.func @other(%a : i32) -> i32 {
    %b = arith.addi %a, %a : i32
    func.return %b : i32
  }
}
// CHECK:      fgraph.network @inside_0 (%x : tensor<4xf32>) inputs ["x"] outputs ["y"] {
// CHECK:      fgraph.network @inside_1 (%x : tensor<4xf32>) inputs ["x"] outputs ["a"] {
// CHECK-NEXT:   %w = fgraph.weight "w"
// CHECK-NEXT:   %a = fgraph.binary mul %x, %w
// CHECK-NEXT:   fgraph.output %a
// CHECK:      func.func @inside(
// CHECK-NEXT:   %w = fgraph.weight "w"
// CHECK-NEXT:   "acme.look"(%w)
// CHECK:          %a = fgraph.call @inside_1(%x)
// CHECK-NEXT:     scf.yield %a
// CHECK:      func.func @other(%a: i32) -> i32 {
// CHECK-NEXT:   %b = arith.addi %a, %a

// -----

// A recurrence, which reads values from around it, is unrolled first.
builtin.module {
  func.func @loop(%x : tensor<4x3xf32>, %k : tensor<2x3xf32>) -> tensor<2x3xf32> {
    %h = fgraph.recurrence steps 2 dim 0 slices (%a : tensor<2x3xf32> in %x : tensor<4x3xf32>) states (%b : tensor<2x3xf32> from %k) -> (tensor<2x3xf32>) {
      %n = fgraph.binary max %b, %a : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      %m = fgraph.binary add %n, %k : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      fgraph.yield states %m : tensor<2x3xf32>
    }
    func.return %h : tensor<2x3xf32>
  }
}
// CHECK:      fgraph.network @loop_0
// CHECK-NOT:  fgraph.recurrence
// CHECK:      fgraph.binary max
// CHECK-NEXT: fgraph.binary add
// CHECK-NEXT: fgraph.slice
// CHECK-NEXT: fgraph.binary max
// CHECK-NEXT: fgraph.binary add
// CHECK-NEXT: fgraph.output
