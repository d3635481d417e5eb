// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4,11"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 11, redundancy: large-map mode: bytes loaded from DRAM more than once are at most `threshold` % of those loaded once.
builtin.module {
  fgraph.network @wide_borders (%0 : tensor<1x2x60x16xf32>) inputs ["x0"] outputs ["y0"] {
    %1 = fgraph.pool max %0 kernel [5, 5] strides [1, 1] pads [2, 2, 2, 2] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x2x60x16xf32>) -> tensor<1x2x60x16xf32>
    %2 = fgraph.pool max %1 kernel [5, 5] strides [1, 1] pads [2, 2, 2, 2] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x2x60x16xf32>) -> tensor<1x2x60x16xf32>
    fgraph.output %2 : tensor<1x2x60x16xf32>
  }
}
// WITH: funit.unit "u0" {{.*}} {stopped_by = "rule 11 redundancy: 193.3 > 100 % loaded again with '{{[a-z]+}}'"}{{.*}}
// WITH: fgraph.pool
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITH: fgraph.pool
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}} {stopped_by = "output follows"}{{.*}}
// WITHOUT: fgraph.pool
// WITHOUT: fgraph.pool
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
