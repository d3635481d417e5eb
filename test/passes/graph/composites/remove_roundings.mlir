// RUN: frustum-opt %s -p 'frustum-graph-remove-roundings{to=f16}' | filecheck %s

// Roundings to the type that all tensors will have are gone; those to another stay.
builtin.module attributes {frustum.dtype = "f32"} {
  fgraph.network @net (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["y"] {
    %a = fgraph.unary <round_f16> %x : tensor<1x4x8x8xf32>
    %b = fgraph.unary <round_bf16> %a : tensor<1x4x8x8xf32>
    %y = fgraph.unary <round_f16> %b : tensor<1x4x8x8xf32>
    fgraph.output %y : tensor<1x4x8x8xf32>
  }
}
// CHECK:      @net (%x : tensor<1x4x8x8xf32>)
// CHECK-NEXT:   %b = fgraph.unary <round_bf16> %x : tensor<1x4x8x8xf32>
// CHECK-NEXT:   fgraph.output %b : tensor<1x4x8x8xf32>
