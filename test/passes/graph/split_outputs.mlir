// RUN: frustum-opt %s -p frustum-graph-split-outputs | frustum-opt | filecheck %s

// Layer 2 is an output and read by layer 3; layer 1 skips over the cut; the constant goes where it is used.

// CHECK: builtin.module attributes {{{.*}}frustum.chain_inputs = ["a", "b"], frustum.chain_outputs = ["y", "z", "a_again"]
// CHECK: fgraph.network @net_0 (%[[A:.*]] : tensor<1x4xf32>) inputs ["a"] outputs ["y", "a_again", "One"] {
// CHECK-NEXT: %[[ONE:.*]] = fgraph.unary <relu{{.*}}> %[[A]]
// CHECK-NEXT: %[[TWO:.*]] = fgraph.unary <tanh{{.*}}> %[[ONE]]
// CHECK-NEXT: %[[COPY:.*]] = fgraph.unary <identity{{.*}}> %[[A]]
// CHECK-NEXT: fgraph.output %[[TWO]], %[[COPY]], %[[ONE]]
// CHECK: fgraph.network @net_1 (%[[B:.*]] : tensor<1x4xf32>, %[[Y:.*]] : tensor<1x4xf32>, %[[SKIP:.*]] : tensor<1x4xf32>) inputs ["b", "y", "One"] outputs ["z"] {
// CHECK: fgraph.binary add %[[Y]], %[[SKIP]]
// CHECK: fgraph.weight "w"

builtin.module attributes {frustum.weights = "none.safetensors"} {
  fgraph.network @net (%a : tensor<1x4xf32>, %b : tensor<1x4xf32>) inputs ["a", "b"] outputs ["y", "z", "a_again"] {
    %w = fgraph.weight "w" : tensor<1x4xf32>
    %1 = fgraph.unary <relu> %a : tensor<1x4xf32> loc("One")
    %2 = fgraph.unary <tanh> %1 : tensor<1x4xf32> loc("Two")
    %3 = fgraph.binary add %2, %1 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32> loc("Three")
    %4 = fgraph.binary mul %3, %w : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32> loc("Four")
    %5 = fgraph.binary sub %4, %b : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32> loc("Five")
    fgraph.output %2, %5, %a : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>
  }
}
