// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4,10,12,13,14,15,16,17"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4,10,12,13,14,15,16"}' | filecheck %s --check-prefix WITHOUT

// Rule 17, sub-map-fits-nram: The bytes of a sub-map that is wanted <= NR.
builtin.module {
  fgraph.network @net (%0 : tensor<1x64x8x1xf32>) inputs ["x0"] outputs ["y0"]  {
    %1 = fgraph.pool max %0 kernel [3, 3] strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x64x8x1xf32>) -> tensor<1x64x8x1xf32>
    %2 = fgraph.pool max %1 kernel [3, 3] strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x64x8x1xf32>) -> tensor<1x64x8x1xf32>
    fgraph.output %2 : tensor<1x64x8x1xf32>
  }
}
// WITH: funit.unit "u0" {{.*}}stopped_by = "rule 17 sub-map-fits-nram: 2560 > 2048 bytes of NRAM with '{{[a-z]+}}'"{{.*}}
// WITH: fgraph.pool
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}}stopped_by = "output follows"{{.*}}
// WITH: fgraph.pool
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}}stopped_by = "output follows"{{.*}}
// WITHOUT: fgraph.pool
// WITHOUT: fgraph.pool
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
