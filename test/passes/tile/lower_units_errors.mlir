// RUN: not frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-lower-units' --split-input-file 2>&1 | filecheck %s

builtin.module {
  fgraph.network @net (%x : tensor<1x4x4x4xf32>) inputs ["x"] outputs ["y"] {
    %y = funit.unit "early" (%a = %x : tensor<1x4x4x4xf32>) -> (tensor<1x4x4x4xf32>) {stopped_by = "policy none"} {
      %b = fgraph.unary <relu> %a : tensor<1x4x4x4xf32>
      funit.yield %b : tensor<1x4x4x4xf32>
    }
    fgraph.output %y : tensor<1x4x4x4xf32>
  }
}
// CHECK: unit early has no partition: run frustum-tile-partition first

// -----

builtin.module {
  fgraph.network @net (%x : tensor<1x4x4x4xf32>) inputs ["x"] outputs ["y"] {
    %y = funit.unit "u0" (%a = %x : tensor<1x4x4x4xf32>) -> (tensor<1x4x4x4xf32>) {partition = #funit.partition<tile [1, 4, 1, 4], clusters 2, depth 1>} {
      %b = fgraph.unary <relu> %a : tensor<1x4x4x4xf32>
      funit.yield %b : tensor<1x4x4x4xf32>
    }
    fgraph.output %y : tensor<1x4x4x4xf32>
  }
}
// CHECK: fgraph.unary has no frustum.map: run frustum-tile-partition first
