// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1"}' | filecheck %s --check-prefix WITHOUT

// Rule 4, single-output: the unit has one output: its last layer's.
builtin.module {
  fgraph.network @block_of_three (%0 : tensor<1x4x16x16xf32>) inputs ["x0"] outputs ["y0"] {
    %1 = fgraph.unary <relu> %0 : tensor<1x4x16x16xf32>
    %2 = fgraph.weight "w" : tensor<4x4x3x3xf32>
    %3 = fgraph.weight "w.1" : tensor<4xf32>
    %4 = fgraph.conv %1, %2, %3 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %5 = fgraph.weight "w.2" : tensor<4x4x3x3xf32>
    %6 = fgraph.weight "w.3" : tensor<4xf32>
    %7 = fgraph.conv %4, %5, %6 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %8 = fgraph.weight "w.4" : tensor<4x4x3x3xf32>
    %9 = fgraph.weight "w.5" : tensor<4xf32>
    %10 = fgraph.conv %7, %8, %9 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %11 = fgraph.binary add %10, %1 : (tensor<1x4x16x16xf32>, tensor<1x4x16x16xf32>) -> tensor<1x4x16x16xf32>
    fgraph.output %11 : tensor<1x4x16x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITH: fgraph.unary
// WITH: fgraph.conv
// WITH: fgraph.conv
// WITH: fgraph.conv
// WITH: fgraph.binary
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "one output is all that the tile level gives: 2 > 1 outputs with '{{[a-z]+}}'"}{{.*}}
// WITHOUT: fgraph.unary
// WITHOUT: funit.yield
// WITHOUT: funit.unit "u1" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.binary
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
