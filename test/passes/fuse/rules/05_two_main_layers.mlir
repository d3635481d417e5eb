// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,5"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 5, two-main-layers: the unit has at least two main layers.
builtin.module {
  fgraph.network @one_convolution (%0 : tensor<1x4x16x16xf32>) inputs ["x0"] outputs ["y0"] {
    %1 = fgraph.weight "w" : tensor<4x4x3x3xf32>
    %2 = fgraph.weight "w.1" : tensor<4xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x16x16xf32>, tensor<4x4x3x3xf32>, tensor<4xf32>) -> tensor<1x4x16x16xf32>
    %4 = fgraph.lrn %3 size 3 alpha 0.1 beta 0.75 bias 1.0 : tensor<1x4x16x16xf32>
    fgraph.output %4 : tensor<1x4x16x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "rule 5 two-main-layers: 1 < 2 main layers: dissolved"}{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITH: fgraph.lrn
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.lrn
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
