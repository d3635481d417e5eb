// RUN: frustum-opt %s -p 'frustum-plan-apply{file="%S/two_convs.plan"}' | filecheck %s
// RUN: not frustum-opt %s -p 'frustum-plan-apply{file="%S/misspelt.plan"}' 2>&1 | filecheck %s --check-prefix=WORD
// RUN: not frustum-opt %s -p 'frustum-plan-apply{file="%S/other.plan"}' 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not frustum-opt %s -p 'frustum-plan-apply{file="%S/none.plan"}' 2>&1 | filecheck %s --check-prefix=FILE

// The plan in the file stands behind its network, in place of the one that was there; that of another network stays.
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @net for "default" compute a, b
  fplan.plan @elsewhere for "default" compute a, b
}

// CHECK:      fgraph.output
// CHECK-NEXT: }
// CHECK-NEXT: fplan.plan @net for "edge" {
// CHECK-NEXT:   resident v, w
// CHECK-NEXT:   for b.y step 4 of 12 rolling {
// CHECK-NEXT:     compute a, b
// CHECK-NEXT:   }
// CHECK-NEXT: }
// CHECK-NEXT: fplan.plan @elsewhere for "default" compute a, b
// CHECK-NOT:  fplan.plan

// WORD: misspelt.plan:2:15: error: resident ww: no tensor is called ww; did you mean 'w'?
// WORD:   resident v, ww
// NAME: no network is called @nett; did you mean 'net'? (networks here: net)
// FILE: none.plan: error: cannot be read: No such file or directory
