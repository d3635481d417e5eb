// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,10,12,13,14,15,16,17"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,12,13,14,15,16,17"}' | filecheck %s --check-prefix WITHOUT

// Rule 10, weights-fit-wram: Each layer's weights <= W, or W / n by Cout over the cores, or pieces of Cout over time, each <= W / 2.
builtin.module {
  fgraph.network @net (%0 : tensor<1x1024x16x16xf32>) inputs ["x0"] outputs ["y0"]  {
    %1 = fgraph.unary <relu> %0 : tensor<1x1024x16x16xf32>
    %2 = fgraph.weight "w" : tensor<8x1024x3x3xf32>
    %3 = fgraph.weight "w.1" : tensor<8xf32>
    %4 = fgraph.conv %1, %2, %3 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x1024x16x16xf32>, tensor<8x1024x3x3xf32>, tensor<8xf32>) -> tensor<1x8x16x16xf32>
    fgraph.output %4 : tensor<1x8x16x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}}stopped_by = "rule 10 weights-fit-wram: 36868 > 32768 bytes of half the WRAM for one output channel with '{{[a-z]+}}'"{{.*}}
// WITH: fgraph.unary
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}}stopped_by = "output follows"{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}}stopped_by = "output follows"{{.*}}
// WITHOUT: fgraph.unary
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
