// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4,15"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 15, store-stage: Small-map mode: SubOUT_i + W_i+1 + IN2 <= S.
builtin.module {
  fgraph.network @net (%0 : tensor<1x2x2x2xf32>) inputs ["x0"] outputs ["y0"]  {
    %1 = fgraph.weight "w" : tensor<32x2x1x1xf32>
    %2 = fgraph.weight "w.1" : tensor<32xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<1x2x2x2xf32>, tensor<32x2x1x1xf32>, tensor<32xf32>) -> tensor<1x32x2x2xf32>
    %4 = fgraph.weight "w.2" : tensor<128x32x3x3xf32>
    %5 = fgraph.weight "w.3" : tensor<128xf32>
    %6 = fgraph.conv %3, %4, %5 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x32x2x2xf32>, tensor<128x32x3x3xf32>, tensor<128xf32>) -> tensor<1x128x2x2xf32>
    fgraph.output %6 : tensor<1x128x2x2xf32>
  }
}
// WITH: funit.unit "u0" {{.*}}stopped_by = "rule 15 store-stage: 74944 > 6144 bytes of SRAM while a sub-map is stored with '{{[a-z]+}}'"{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}}stopped_by = "output follows"{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}}stopped_by = "output follows"{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.conv
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
