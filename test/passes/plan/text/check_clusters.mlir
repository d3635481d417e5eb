// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-plan-check' | filecheck %s

// Weights, image and result once (216 + 144 + 720 + 480 bytes). The cluster in the middle receives two rows of the image
// (60 bytes each) and two of a (80 bytes each), the others one of each. In SRAM: the weights (360), six rows of a (480),
// a box of the image (360).
// CHECK: fplan.plan @net for "default" attributes {frustum.dram_bytes = 1560 : i64, frustum.link_bytes = 560 : i64, frustum.sram_bytes = 1200 : i64} {
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @net for "default" {
    resident v, w
    for b.y step 4 of 12 over clusters exchanged {
      compute a, b
    }
  }
}
