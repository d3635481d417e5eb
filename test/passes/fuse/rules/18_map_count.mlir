// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,18"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 18, map-count: small-map mode: the unit map holds at most `threshold` images of the batch.
builtin.module {
  fgraph.network @many_images (%0 : tensor<32x4x4x4xf32>) inputs ["x0"] outputs ["y0"] {
    %1 = fgraph.weight "w" : tensor<4x4x1x1xf32>
    %2 = fgraph.weight "w.1" : tensor<4xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<32x4x4x4xf32>, tensor<4x4x1x1xf32>, tensor<4xf32>) -> tensor<32x4x4x4xf32>
    %4 = fgraph.unary <relu> %3 : tensor<32x4x4x4xf32>
    fgraph.output %4 : tensor<32x4x4x4xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}frustum.maps = 16 : i64{{.*}}
// WITH: fgraph.conv
// WITH: fgraph.unary
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}frustum.maps = 32 : i64{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.unary
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
