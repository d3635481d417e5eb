// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-plan-check' --split-input-file 2>&1 | filecheck %s
// RUN: not frustum-opt %s -p 'frustum-plan-check' --split-input-file 2>&1 | filecheck %s --check-prefix=BARE

// BARE: the module has no attribute 'frustum.target'

// CHECK: b reads a, which is made after it: move its maker before it
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @net for "edge" compute b, a
}

// -----
// CHECK: @net is planned for default, the module is for edge; set that target, or plan for this one
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @net for "default" compute a, b
}

// -----
// CHECK: no network is called @nut; did you mean 'net'?
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @nut for "edge" compute a, b
}

// -----
// CHECK: no plan here; run frustum-plan-apply{file=FILE} first
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
}

// -----
// CHECK: plan @net: what is resident and streamed at a time does not fit: needed 758400 B, available 524288 B of SRAM
builtin.module {
  fgraph.network @net (%x : tensor<600x600xf16>) inputs ["x"] outputs ["y"] {
    %y = fgraph.unary <relu> %x : tensor<600x600xf16> loc("a")
    fgraph.output %y : tensor<600x600xf16>
  }
  fplan.plan @net for "edge" {
    resident x
    compute a
  }
}

// -----
// CHECK: for b.y over clusters: 3 ranges, edge has 1 cluster: take a larger step, or plan for another target
builtin.module {
  fgraph.network @net (%x : tensor<1x3x12x10xf16>) inputs ["x"] outputs ["y"] {
    %v = fgraph.weight "v" : tensor<4x3x3x3xf16>
    %w = fgraph.weight "w" : tensor<2x4x3x3xf16>
    %a = fgraph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x3x12x10xf16>, tensor<4x3x3x3xf16>) -> tensor<1x4x12x10xf16> loc("a")
    %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x4x12x10xf16>, tensor<2x4x3x3xf16>) -> tensor<1x2x12x10xf16> loc("b")
    fgraph.output %b : tensor<1x2x12x10xf16>
  }
  fplan.plan @net for "edge" for b.y step 4 of 12 over clusters { compute a, b }
}
