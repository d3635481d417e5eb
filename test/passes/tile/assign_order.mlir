// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=row-major}' | filecheck %s --check-prefixes GRID,ROWS
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=column-major}' | filecheck %s --check-prefixes GRID,COLUMNS
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=bands bands=2 direction=right-left}' | filecheck %s --check-prefixes GRID,BANDS
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=serpentine}' | filecheck %s --check-prefixes GRID,SERPENTINE
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=z-order}' | filecheck %s --check-prefixes GRID,MORTON
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=quadrants}' | filecheck %s --check-prefixes GRID,QUADRANTS
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=checkerboard}' | filecheck %s --check-prefixes GRID,CHECKERBOARD
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=mirrored}' | filecheck %s --check-prefixes GRID,MIRRORED
// RUN: not frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=spiral}' 2>&1 | filecheck %s --check-prefix SPIRAL
// RUN: not frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=bands direction=up}' 2>&1 | filecheck %s --check-prefix UP
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-assign-order{order=mirrored}' | frustum-opt | filecheck %s --check-prefix MIRRORED

// A grid of 4 x 4 tiles on four clusters: the rows were dealt to them, regions are in indices of the grid now.
builtin.module {
  fgraph.network @net (%0 : tensor<1x2x8x8xf32>) inputs ["x"] outputs ["y"] {
    %1 = ftile.unit "u0" (%2 = %0 : tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>) counts [1, 1, 1, 4] clusters 2 depth 2 {} {
      %3 = ftile.load %2 view <0, [128, 64, 8, 1]> region <0 : 1 in 1, 0 : 2 in 2, -1 + 2*cluster : 4 in 8, -1 + 2*i3 : 4 in 8> : tensor<1x2x8x8xf32> -> !ftile.tile<f32, [1, 2, 4, 4], [0, 1, 2, 3]>
      %4 = ftile.compute "pool"(%3) region <0 : 1 in 1, 0 : 2 in 2, 2*cluster : 2 in 8, 2*i3 : 2 in 8> access [#ftile.access<same, same, [1, 1, -1, 2], [1, 1, -1, 2]>] map <extent [1, 1, 2, 2], cores 1, channels 0, outer space, weights unit> params {kind = "max", kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, include_pad = 0 : i64, pad_low = array<i64: 1, 1>, pad_high = array<i64: 1, 1>} {frustum.macs = 0 : i64} : (!ftile.tile<f32, [1, 2, 4, 4], [0, 1, 2, 3]>) -> !ftile.tile<f32, [1, 2, 2, 2], [0, 1, 2, 3]>
      ftile.store %4 to 0 : i64 view <0, [128, 64, 8, 1]> region <0 : 1 in 1, 0 : 2 in 2, 2*cluster : 2 in 8, 2*i3 : 2 in 8> : !ftile.tile<f32, [1, 2, 2, 2], [0, 1, 2, 3]>
      ftile.yield
    }
    fgraph.output %1 : tensor<1x2x8x8xf32>
  }
}
// ROWS: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<[4] at [1*i0, 1*cluster]>
// COLUMNS: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<[4] at [1*cluster, 1*i0]>
// BANDS: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<[4, 2] at [1*i1 + 5*cluster, 3 - 1*i0 + 5*cluster], [4, 2] at [-3 + 1*i1 + 5*cluster, -2 - 1*i0 + 5*cluster]>
// SERPENTINE: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<[4] at [1*i0, 1*cluster]>
// MORTON: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<[2, 2] at [1*i0 + 5*cluster, 1*i1 + 5*cluster], [2, 2] at [-5 + 1*i0 + 5*cluster, -3 + 1*i1 + 5*cluster], [2, 2] at [-8 + 1*i0 + 5*cluster, -10 + 1*i1 + 5*cluster], [2, 2] at [-13 + 1*i0 + 5*cluster, -13 + 1*i1 + 5*cluster]>
// QUADRANTS: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<[2, 2] at [1*i0 + 5*cluster, 1*i1 + 5*cluster], [2, 2] at [-5 + 1*i0 + 5*cluster, -3 + 1*i1 + 5*cluster]
// CHECKERBOARD: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<
// MIRRORED: ftile.unit {{.*}} counts [1, 1, 4, 4] clusters 2 depth 2 {sweeps = #ftile.sweeps<[2, 2] at [3*i0 + 5*cluster, 3*i1 + 5*cluster], [2, 2] at [-5 + 3*i0 + 5*cluster, -4 + 1*i1 + 5*cluster], [2, 2] at [-9 + 1*i0 + 5*cluster, -10 + 3*i1 + 5*cluster], [2, 2] at [-14 + 1*i0 + 5*cluster, -14 + 1*i1 + 5*cluster]>
// GRID-NEXT: ftile.load {{.*}} region <0 : 1 in 1, 0 : 2 in 2, -1 + 2*i2 : 4 in 8, -1 + 2*i3 : 4 in 8>
// SPIRAL: order is one of row-major, column-major, bands, serpentine, z-order, quadrants, checkerboard, mirrored, found 'spiral'
// UP: direction is one of left-right, right-left, top-down, bottom-up, found 'up'
