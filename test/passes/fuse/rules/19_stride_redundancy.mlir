// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,19"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 19, stride-redundancy: kernels reach at most `threshold` beyond their strides, summed; layers of whole blocks do not count.
builtin.module {
  fgraph.network @three_convolutions (%0 : tensor<1x4x16x16xf32>) inputs ["x0"] outputs ["y0"] {
    %1 = fgraph.weight "w" : tensor<4x4x3x3xf32>
    %2 = fgraph.weight "w.1" : tensor<4xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %4 = fgraph.weight "w.2" : tensor<4x4x3x3xf32>
    %5 = fgraph.weight "w.3" : tensor<4xf32>
    %6 = fgraph.conv %3, %4, %5 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %7 = fgraph.weight "w.4" : tensor<4x4x3x3xf32>
    %8 = fgraph.weight "w.5" : tensor<4xf32>
    %9 = fgraph.conv %6, %7, %8 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    fgraph.output %9 : tensor<1x4x16x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "rule 19 stride-redundancy: 6 > 4 rows or columns of borders with '{{[a-z]+}}'"}{{.*}}
// WITH: fgraph.conv
// WITH: fgraph.conv
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
