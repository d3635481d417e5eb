// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-lower-plan' | filecheck %s

// Rows of %a roll: five passes instead of four, of which the first makes those that the first step reads beside its own.
builtin.module attributes {frustum.dtype = "f16"} {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @net for "edge" {
    resident v, w
    for b.y step 3 of 12 rolling {
      resident x
      compute a, b
    }
  }
}

// CHECK:      fisa.program @net {
// CHECK:        %[[X:.*]] = fisa.external input "x"
// CHECK-NEXT:   %[[Y:.*]] = fisa.external output "y"
// CHECK-NEXT:   %[[V:.*]] = fisa.external weight "v"
// CHECK-NEXT:   %[[W:.*]] = fisa.external weight "w"
// CHECK:        fisa.fetch 0
// CHECK-NEXT:   fisa.fetch 1
// CHECK-NEXT:   fisa.barrier
// CHECK:        fisa.copy gdma %[[V]]
// CHECK:        fisa.copy gdma %[[W]]
// CHECK:        fisa.repeat 5 {
// CHECK-NEXT:     %[[ROWS:.*]] = fisa.alloc bytes 480 rolling 2 : !fisa.buffer<sram>
// CHECK-NEXT:     fisa.copy gdma %[[X]] {{.*}} -> %[[ROWS]] {{.*}}wrap 2 mod 8> box <0 : 1 in 1, 0 : 3 in 3, -1 + 3*i0 : 3 in 12, 0 : 10 in 10>
// CHECK-NEXT:     %[[A:.*]] = fisa.alloc bytes 400 rolling 1 : !fisa.buffer<sram>
// CHECK:          fisa.conv {{.*}} box <0 : 1 in 1, 0 : 4 in 4, -2 + 3*i0 : 3 in 12
// CHECK:          -> %[[A]] {{.*}}wrap 2 mod 5>
// CHECK:          fisa.conv {{.*}} box <0 : 1 in 1, 0 : 2 in 2, -3 + 3*i0 : 3 in 12
// CHECK:          fisa.copy gdma {{.*}} -> %[[Y]]

