// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,8"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 8, weights-are-constants: a convolution whose weights are computed leaves the unit.
builtin.module {
  fgraph.network @computed (%0 : tensor<1x4x16x16xf32>, %1 : tensor<4x4x1x1xf32>) inputs ["x0", "x1"] outputs ["y0"] {
    %2 = fgraph.weight "w" : tensor<4x4x3x3xf32>
    %3 = fgraph.weight "w.1" : tensor<4xf32>
    %4 = fgraph.conv %0, %2, %3 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %5 = fgraph.conv %4, %1 strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x1x1xf32>) -> tensor<1x4x16x16xf32>
    fgraph.output %5 : tensor<1x4x16x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "rule 8 weights-are-constants: 1 > 0 convolutions with computed weights with '{{[a-z]+}}'"}{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
