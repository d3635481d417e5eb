// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-split-breadth-first{depth=breadth-first}' | filecheck %s --check-prefix BREADTH
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-split-breadth-first{borders=exchange order=z-order}' | filecheck %s --check-prefix ZORDER
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-split-breadth-first{borders=exchange order=column-major}' | filecheck %s --check-prefix COLUMNS
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-split-breadth-first{borders=overlap order=z-order}' | filecheck %s --check-prefix NONE

// u0 rolls in strips, which is column-major alone; the tiles of u1 overlap, those of u2 do not.
builtin.module {
  fgraph.network @net (%x : tensor<1x4x32x32xf32>) inputs ["x"] outputs ["y"] {
    %r = funit.unit "u0" (%a = %x : tensor<1x4x32x32xf32>) -> (tensor<1x4x32x32xf32>) {partition = #funit.partition<tile [1, 4, 4, 4], clusters 3, depth 2, borders exchange>} {
      %b = fgraph.unary <relu> %a {frustum.map = #ftile.map<extent [1, 1, 4, 4], cores 1, channels 0, outer space, weights unit>} : tensor<1x4x32x32xf32>
      %c = fgraph.unary <exp> %b {frustum.map = #ftile.map<extent [1, 1, 4, 4], cores 1, channels 0, outer space, weights unit>} : tensor<1x4x32x32xf32>
      funit.yield %c : tensor<1x4x32x32xf32>
    }
    %y = funit.unit "u1" (%a = %r : tensor<1x4x32x32xf32>) -> (tensor<1x4x32x32xf32>) {partition = #funit.partition<tile [1, 4, 4, 4], clusters 3, depth 2>} {
      %b = fgraph.unary <relu> %a {frustum.map = #ftile.map<extent [1, 1, 4, 4], cores 1, channels 0, outer space, weights unit>} : tensor<1x4x32x32xf32>
      %c = fgraph.pool max %b kernel [3, 3] strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] ceil_pads [0, 0] {frustum.map = #ftile.map<extent [1, 1, 4, 4], cores 1, channels 0, outer space, weights unit>} : (tensor<1x4x32x32xf32>) -> tensor<1x4x32x32xf32>
      funit.yield %c : tensor<1x4x32x32xf32>
    }
    %z = funit.unit "u2" (%a = %y : tensor<1x4x32x32xf32>) -> (tensor<1x4x32x32xf32>) {partition = #funit.partition<tile [1, 4, 4, 4], clusters 3, depth 2>} {
      %b = fgraph.unary <relu> %a {frustum.map = #ftile.map<extent [1, 1, 4, 4], cores 1, channels 0, outer space, weights unit>} : tensor<1x4x32x32xf32>
      %c = fgraph.unary <exp> %b {frustum.map = #ftile.map<extent [1, 1, 4, 4], cores 1, channels 0, outer space, weights unit>} : tensor<1x4x32x32xf32>
      funit.yield %c : tensor<1x4x32x32xf32>
    }
    fgraph.output %z : tensor<1x4x32x32xf32>
  }
}
// BREADTH:      [[A:%.*]] = funit.unit "u0.0" {{.*}} {partition = #funit.partition<tile [1, 4, 8, 32], clusters 2, depth 1{{[^>]*}}>, keeps = array<i64: 0>, {{.*}}stopped_by = "layer by layer"} {
// BREADTH:      funit.unit "u0.1" ({{.*}} = [[A]] : tensor<1x4x32x32xf32>) {{.*}} {partition = #funit.partition<tile [1, 4, 8, 32], clusters 2, depth 1{{[^>]*}}>, mode
// BREADTH:      funit.unit "u1.0"
// BREADTH:      funit.unit "u1.1"
// BREADTH:      funit.unit "u2.1"
// ZORDER:       funit.unit "u0.0"
// ZORDER:       funit.unit "u1.1"
// ZORDER:       funit.unit "u2"
// COLUMNS-NOT:  "u0.0"
// COLUMNS:      funit.unit "u0"
// COLUMNS:      funit.unit "u1.0"
// COLUMNS:      funit.unit "u2"
// NONE-NOT:     "u0.0"
// NONE:         funit.unit "u1"
