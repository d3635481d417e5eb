// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4,12"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target="%S/../../../support/tiny.yaml"},frustum-fuse-layers{rules="S1,1,4"}' | filecheck %s --check-prefix WITHOUT

// Rule 12, in-out-fit: in + out < S, or max(in, out) < S where the output may overwrite the input: of the unit map that is wanted.
builtin.module {
  fgraph.network @net (%0 : tensor<2x400x1x2xf32>) inputs ["x0"] outputs ["y0"]  {
    %1 = fgraph.weight "w" : tensor<16x400x1x1xf32>
    %2 = fgraph.weight "w.1" : tensor<16xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] groups 1 : (tensor<2x400x1x2xf32>, tensor<16x400x1x1xf32>, tensor<16xf32>) -> tensor<2x16x1x2xf32>
    %4 = fgraph.weight "w.2" : tensor<128x16x3x3xf32>
    %5 = fgraph.weight "w.3" : tensor<128xf32>
    %6 = fgraph.conv %3, %4, %5 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<2x16x1x2xf32>, tensor<128x16x3x3xf32>, tensor<128xf32>) -> tensor<2x128x1x2xf32>
    fgraph.output %6 : tensor<2x128x1x2xf32>
  }
}
// WITH: funit.unit "u0" {{.*}}stopped_by = "rule 12 in-out-fit: 10624 >= 6144 bytes of SRAM for input and output with '{{[a-z]+}}'"{{.*}}
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
