// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S2,1,4"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S2,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 1, forward-only: grow from the start layer in the direction of inference; what stands before it is left alone.
builtin.module {
  fgraph.network @behind_a_unary (%0 : tensor<1x4x16x16xf32>) inputs ["x0"] outputs ["y0"] {
    %1 = fgraph.unary <relu> %0 : tensor<1x4x16x16xf32>
    %2 = fgraph.weight "w" : tensor<4x4x3x3xf32>
    %3 = fgraph.weight "w.1" : tensor<4xf32>
    %4 = fgraph.conv %1, %2, %3 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    fgraph.output %4 : tensor<1x4x16x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "rule S2: no convolution or pooling is left to start from"}{{.*}}
// WITH: fgraph.unary
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITHOUT: fgraph.unary
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
