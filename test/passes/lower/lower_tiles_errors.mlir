// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-lower-tiles' --split-input-file 2>&1 | filecheck %s

builtin.module {
  fgraph.network @net (%x : tensor<4x4xf32>) inputs ["x"] outputs ["y"] {
    %r = fgraph.unary <relu> %x : tensor<4x4xf32>
    %y = ftile.unit "u0" (%p = %r : tensor<4x4xf32>) -> (tensor<4x4xf32>) counts [1, 1, 1, 1] clusters 0 depth 1 {} {
      ftile.move %p to 0 : i64 dims [1, 1, 4, 4] from <0, [0, 0, 4, 1]> into <0, [0, 0, 4, 1]> low [0, 0, 0, 0] bound [1, 1, 4, 4] partition <tile [1, 1, 4, 4], clusters 2, depth 2> : tensor<4x4xf32>
      ftile.yield
    }
    fgraph.output %y : tensor<4x4xf32>
  }
}
// CHECK: fgraph.unary is in no unit: run frustum-tile-lower-units first

// -----

builtin.module {
  fgraph.network @net (%x : tensor<4x4xf32>) inputs ["x"] outputs ["same"] {
    fgraph.output %x : tensor<4x4xf32>
  }
}
// CHECK: output 'same' has no buffer of its own: run frustum-graph-own-outputs
