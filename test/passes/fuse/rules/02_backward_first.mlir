// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S2,2,4,19"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S2,4,19"}' | filecheck %s --check-prefix WITHOUT

// Rule 2, backward-first: first take in the layers before the start layer, nearest first, then grow forward.
builtin.module {
  fgraph.network @five_rows_more (%0 : tensor<1x4x16x16xf32>) inputs ["x0"] outputs ["y0"] {
    %1 = fgraph.unary <relu> %0 : tensor<1x4x16x16xf32>
    %2 = fgraph.weight "w" : tensor<4x4x3x3xf32>
    %3 = fgraph.weight "w.1" : tensor<4xf32>
    %4 = fgraph.conv %1, %2, %3 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %5 = fgraph.weight "w.2" : tensor<4x4x5x5xf32>
    %6 = fgraph.weight "w.3" : tensor<4xf32>
    %7 = fgraph.conv %4, %5, %6 strides [1, 1] pads [2, 2, 2, 2] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x5x5xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    fgraph.output %7 : tensor<1x4x16x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "rule 19 stride-redundancy: 6 > 4 rows or columns of borders with '{{[a-z]+}}'"}{{.*}}
// WITH: fgraph.unary
// WITH: fgraph.conv
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "rule S2: no convolution or pooling is left to start from"}{{.*}}
// WITHOUT: fgraph.unary
// WITHOUT: funit.yield
// WITHOUT: funit.unit "u1" {{.*}} {stopped_by = "rule 19 stride-redundancy: 6 > 4 rows or columns of borders with '{{[a-z]+}}'"}{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT: funit.unit "u2" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
