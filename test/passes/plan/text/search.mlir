// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-plan-search' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-plan-search{optimise=bytes carry=f32 cuts="a"}' | filecheck %s --check-prefix=CUT
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-plan-search{cuts="a,c"}' 2>&1 | filecheck %s --check-prefix=NONE

// The plan stands behind its network, in place of the one that was there; units end after the layers that are named.
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @net for "default" compute a, b
}

// CHECK:     fplan.plan @net for "edge"
// CHECK:     compute a, b
// CHECK-NOT: fplan.plan

// CUT:     fplan.plan @net for "edge"
// CUT:     compute a{{$}}
// CUT:     compute b{{$}}
// CUT-NOT: fplan.plan

// NONE: cuts: no layer is called 'c'
