// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4,13"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 13, weights-and-buffers: Small-map mode: W_i + IN1 + IN2 <= S.
builtin.module {
  fgraph.network @net (%0 : tensor<4x8x1x2xf32>) inputs ["x0"] outputs ["y0"]  {
    %1 = fgraph.weight "w" : tensor<128x8x3x3xf32>
    %2 = fgraph.weight "w.1" : tensor<128xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<4x8x1x2xf32>, tensor<128x8x3x3xf32>, tensor<128xf32>) -> tensor<4x128x1x2xf32>
    %4 = fgraph.unary <relu> %3 : tensor<4x128x1x2xf32>
    fgraph.output %4 : tensor<4x128x1x2xf32>
  }
}
// WITH: funit.unit "u0" {{.*}}stopped_by = "rule 13 weights-and-buffers: 20864 > 6144 bytes of SRAM for weights, maps and buffers with '{{[a-z]+}}'"{{.*}}
// WITH: fgraph.conv
// WITH: funit.yield
// WITH: funit.unit "u1" {{.*}}stopped_by = "output follows"{{.*}}
// WITH: fgraph.unary
// WITH: funit.yield
// WITH-NOT: funit.unit
// WITHOUT: funit.unit "u0" {{.*}}stopped_by = "output follows"{{.*}}
// WITHOUT: fgraph.conv
// WITHOUT: fgraph.unary
// WITHOUT: funit.yield
// WITHOUT-NOT: funit.unit
