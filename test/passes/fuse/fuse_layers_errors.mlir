// RUN: not frustum-opt %s -p 'frustum-fuse-layers{rules="S2,1,2"}' 2>&1 | filecheck %s --check-prefix BOTH
// RUN: not frustum-opt %s -p 'frustum-fuse-layers{rules="S1,21"}' 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: not frustum-opt %s -p 'frustum-fuse-layers{policy=pyramid thresholds="11=60"}' 2>&1 | filecheck %s --check-prefix THRESHOLD
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{cuts="Conv_2"}' 2>&1 | filecheck %s --check-prefix CUTS
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{cuts="second"}' | filecheck %s --check-prefix CUT

builtin.module {
  fgraph.network @chain (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["y"] {
    %a = fgraph.unary <relu> %x : tensor<1x4x8x8xf32> loc("first")
    %b = fgraph.unary <tanh> %a : tensor<1x4x8x8xf32> loc("second")
    %c = fgraph.unary <relu> %b : tensor<1x4x8x8xf32> loc("third")
    fgraph.output %c : tensor<1x4x8x8xf32>
  }
}
// BOTH: rule 1 forward-only and rule 2 backward-first exclude each other
// UNKNOWN: unknown rule '21' (rules are S1, S2 and 1 to 19, or their names)
// THRESHOLD: threshold 60 of rule 11 redundancy is not allowed: 50, 75, 100, 125, 150
// CUTS: cuts: no layer is called 'Conv_2' (there are 3 layers with names)

// CUT:      funit.unit "u0" {{.*}} {stopped_by = "cut behind 'second'"} {
// CUT-NEXT:   fgraph.unary <relu>
// CUT-NEXT:   fgraph.unary <tanh>
// CUT:      funit.unit "u1" {{.*}} {stopped_by = "end of the network"} {
