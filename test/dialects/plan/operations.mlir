// RUN: frustum-opt %s | filecheck %s
// RUN: frustum-opt %s | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-op-generic | frustum-opt | filecheck %s

// Every word of the text form, and a part that comes again. The plan and the network share their name.
builtin.module {
  fgraph.network @net (%x : tensor<4xf16>) inputs ["x"] outputs ["y"] {
    %y = fgraph.unary <relu> %x : tensor<4xf16>
    fgraph.output %y : tensor<4xf16>
  }
  fplan.plan @net for "edge" attributes {note = 1 : i64} {
    recompute up as up2  // a comment
    resident w, "a b" [c 0:12] in nram at x until down sharded c
    for rows step 4 of 10 rolling map zorder 2x2 pipelined { resident u compute up, gelu sum up as f32, "in" as bf16 on matrix }
    for heads ranges [0, 3, 8] over clusters subsets cores [2, 1] { compute down { compute up2 } }
    { for l0.c step 2 of 12 exchanged { compute l0.q, l0.k } for l0.r step 1 of 1 recomputed { compute l0.v } }
    again l0.q at l1.q, l2.q (l0.r as rest)
    compute "/last/Add#2"
  }
  fplan.plan @other for "default" compute a, b
}

// CHECK:      fplan.plan @net for "edge" attributes {note = 1 : i64} {
// CHECK-NEXT:   recompute up as up2
// CHECK-NEXT:   resident w, "a b" [c 0:12] in nram at x until up2 sharded c
// CHECK-NEXT:   for rows step 4 of 10 rolling map zorder 2x2 pipelined {
// CHECK-NEXT:     resident u
// CHECK-NEXT:     compute up, gelu sum up as f32, "in" as bf16 on matrix
// CHECK-NEXT:   }
// CHECK-NEXT:   for heads ranges [0, 3, 8] over clusters subsets cores [2, 1] {
// CHECK-NEXT:     compute down
// CHECK-NEXT:     {
// CHECK-NEXT:       compute up2
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT:   {
// CHECK-NEXT:     for l0.c step 2 of 12 exchanged {
// CHECK-NEXT:       compute l0.q, l0.k
// CHECK-NEXT:     }
// CHECK-NEXT:     for l0.r step 1 of 1 recomputed {
// CHECK-NEXT:       compute l0.v
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT:   again l0.q at l1.q, l2.q (l0.r as rest)
// CHECK-NEXT:   compute "/last/Add#2"
// CHECK-NEXT: }
// CHECK-NEXT: fplan.plan @other for "default" compute a, b
