// RUN: frustum-opt %s | filecheck %s
// RUN: frustum-opt %s | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-op-generic | frustum-opt | filecheck %s
// RUN: frustum-opt %s -p frustum-graph-unroll-recurrences | filecheck %s --check-prefix UNROLLED

builtin.module {
  fgraph.network @net (%x : tensor<6x4xf32>, %h0 : tensor<2x4xf32>) inputs ["x", "h0"] outputs ["y", "h", "c"] {
    %k = fgraph.unary <relu> %h0 : tensor<2x4xf32>
    %y, %h, %c = fgraph.recurrence reverse steps 3 dim 0 slices (%a : tensor<2x4xf32> in %x : tensor<6x4xf32>) states (%b : tensor<2x4xf32> from %h0, %d : tensor<2x4xf32>) -> (tensor<6x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) {
      %e = fgraph.binary add %a, %b : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
      %f = fgraph.binary mul %d, %k : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
      %g = fgraph.binary add %e, %f : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
      fgraph.yield states %e, %g : tensor<2x4xf32>, tensor<2x4xf32> outputs %g : tensor<2x4xf32>
    }
    %z, %l = fgraph.recurrence steps 2 dim 1 slices () states (%s : tensor<2x4xf32> from %h) -> (tensor<4x4xf32>, tensor<2x4xf32>) attributes {"note"} {
      %t = fgraph.unary <tanh> %s : tensor<2x4xf32>
      %u = fgraph.reshape %t : (tensor<2x4xf32>) -> tensor<4x2xf32>
      fgraph.yield states %t : tensor<2x4xf32> outputs %u : tensor<4x2xf32>
    }
    %v = fgraph.recurrence steps 2 dim 1 slices (%w : tensor<4x2xf32> in %z : tensor<4x4xf32>) states () -> (tensor<4x4xf32>) {
      fgraph.yield outputs %w : tensor<4x2xf32>
    }
    fgraph.output %y, %l, %v : tensor<6x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>
  }
}

// CHECK:      %y, %h, %c = fgraph.recurrence reverse steps 3 dim 0 slices (%a : tensor<2x4xf32> in %x : tensor<6x4xf32>) states (%b : tensor<2x4xf32> from %h0, %d : tensor<2x4xf32>) -> (tensor<6x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) {
// CHECK-NEXT:   %e = fgraph.binary add %a, %b :
// CHECK-NEXT:   %f = fgraph.binary mul %d, %k :
// CHECK-NEXT:   %g = fgraph.binary add %e, %f :
// CHECK-NEXT:   fgraph.yield states %e, %g : tensor<2x4xf32>, tensor<2x4xf32> outputs %g : tensor<2x4xf32>
// CHECK-NEXT: }
// CHECK:      %z, %l = fgraph.recurrence steps 2 dim 1 slices () states (%s : tensor<2x4xf32> from %h) -> (tensor<4x4xf32>, tensor<2x4xf32>) attributes {note} {
// CHECK:      %v = fgraph.recurrence steps 2 dim 1 slices (%w : tensor<4x2xf32> in %z : tensor<4x4xf32>) states () -> (tensor<4x4xf32>) {
// CHECK-NEXT:   fgraph.yield outputs %w : tensor<4x2xf32>
// CHECK-NEXT: }

// The last slice is first; a product with the state that begins as 0 is not there.
// UNROLLED:      [[K:%.*]] = fgraph.unary <relu> %h0
// UNROLLED-NEXT: [[A:%.*]] = fgraph.slice %x starts [4, 0]
// UNROLLED-NEXT: [[E:%.*]] = fgraph.binary add [[A]], %h0
// UNROLLED-NEXT: [[B:%.*]] = fgraph.slice %x starts [2, 0]
// UNROLLED-NEXT: [[F:%.*]] = fgraph.binary add [[B]], [[E]]
// UNROLLED-NEXT: [[M:%.*]] = fgraph.binary mul [[E]], [[K]]
// UNROLLED-NEXT: [[G:%.*]] = fgraph.binary add [[F]], [[M]]
// UNROLLED-NOT:  fgraph.recurrence
