// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4,11"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 11, redundancy: Large-map mode: bytes loaded from DRAM more than once are at most `threshold` % of those loaded once.
builtin.module {
  fgraph.network @net (%0 : tensor<1x16x12x12xf32>) inputs ["x0"] outputs ["y0"]  {
    %1 = fgraph.weight "w" : tensor<16x16x3x3xf32>
    %2 = fgraph.weight "w.1" : tensor<16xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x16x12x12xf32>, tensor<16x16x3x3xf32>, tensor<16xf32>) -> tensor<1x16x12x12xf32>
    %4 = fgraph.weight "w.2" : tensor<16x16x3x3xf32>
    %5 = fgraph.weight "w.3" : tensor<16xf32>
    %6 = fgraph.conv %3, %4, %5 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x16x12x12xf32>, tensor<16x16x3x3xf32>, tensor<16xf32>) -> tensor<1x16x12x12xf32>
    fgraph.output %6 : tensor<1x16x12x12xf32>
  }
}
// WITH: funit.unit "u0" {{.*}}stopped_by = "rule 11 redundancy: 255.3 > 100 % loaded again with '{{[a-z]+}}'"{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}}stopped_by = "output follows"{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}}stopped_by = "run 1 of 2: output follows"{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT: funit.unit "u1" {{.*}}stopped_by = "run 2 of 2: output follows"{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
