// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,10,12,13,14,15,16,17"}' | filecheck %s --check-prefix WITH
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{rules="S1,1,4,10,12,13,14,15,17"}' | filecheck %s --check-prefix WITHOUT

// Rule 16, adjacent-weights: Small-map mode: W_i + W_i+1 <= W: the weights of two neighbouring sub-maps are in WRAM together.
builtin.module {
  fgraph.network @net (%0 : tensor<1x8x4x4xf32>) inputs ["x0"] outputs ["y0"]  {
    %1 = fgraph.weight "w" : tensor<1024x8x3x3xf32>
    %2 = fgraph.weight "w.1" : tensor<1024xf32>
    %3 = fgraph.conv %0, %1, %2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x8x4x4xf32>, tensor<1024x8x3x3xf32>, tensor<1024xf32>) -> tensor<1x1024x4x4xf32>
    %4 = fgraph.weight "w.2" : tensor<4x1024x3x3xf32>
    %5 = fgraph.weight "w.3" : tensor<4xf32>
    %6 = fgraph.conv %3, %4, %5 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x1024x4x4xf32>, tensor<4x1024x3x3xf32>, tensor<4xf32>) -> tensor<1x4x4x4xf32>
    fgraph.output %6 : tensor<1x4x4x4xf32>
  }
}
// WITH: funit.unit "u0" {{.*}}stopped_by = "rule 16 adjacent-weights: 69572 > 65536 bytes of WRAM for two sub-maps with '{{[a-z]+}}'"{{.*}}
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
