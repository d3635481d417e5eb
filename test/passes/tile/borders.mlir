// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-force-partition{tile=1,0,4,16 borders=overlap},frustum-tile-lower-units' | filecheck %s --check-prefix OVERLAP
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-force-partition{tile=1,0,4,16 borders=exchange},frustum-tile-lower-units' | filecheck %s --check-prefix EXCHANGE
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-force-partition{tile=1,0,4,16 borders=raster},frustum-tile-lower-units' | filecheck %s --check-prefix RASTER
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-force-partition{tile=1,0,4,16 borders=mirror}' 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-force-partition{tile=1,0,4,16 borders=auto}' 2>&1 | filecheck %s --check-prefix SEARCHED
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-force-partition{only=u0}' 2>&1 | filecheck %s --check-prefix WITHOUT
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-partition{bands=4}' 2>&1 | filecheck %s --check-prefix NOT-FORCED
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-partition{borders=raster}' 2>&1 | filecheck %s --check-prefix RASTERED

// Two 3x3 convolutions in tiles of 4 rows and 16 columns.  What a tile reads of the input: with `overlap` its own 4 + 4
// rows and 16 + 4 columns; with `exchange` 4 rows, the other 4 are in a ring of 10, and 20 columns; with `raster` 4
// rows and 16 columns, each element once.
builtin.module {
  fgraph.network @net (%x : tensor<1x8x64x64xf32>) inputs ["x"] outputs ["y"] {
    %y = funit.unit "u0" (%a = %x : tensor<1x8x64x64xf32>) -> (tensor<1x8x64x64xf32>) {stopped_by = "policy none"} {
      %w = fgraph.weight "w" : tensor<8x8x3x3xf32>
      %v = fgraph.weight "v" : tensor<8x8x3x3xf32>
      %b = fgraph.conv %a, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x8x64x64xf32>, tensor<8x8x3x3xf32>) -> tensor<1x8x64x64xf32>
      %c = fgraph.conv %b, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 : (tensor<1x8x64x64xf32>, tensor<8x8x3x3xf32>) -> tensor<1x8x64x64xf32>
      funit.yield %c : tensor<1x8x64x64xf32>
    }
    fgraph.output %y : tensor<1x8x64x64xf32>
  }
}
// OVERLAP:       ftile.unit "u0" {{.*}} counts [1, 1, 16, 4]
// OVERLAP:       ftile.load {{.*}} -2 + 4*i2 : 8 in 64, -2 + 16*i3 : 20 in 64> : {{.*}} -> !ftile.tile<f32, [1, 8, 8, 20], [0, 1, 2, 3]>
// OVERLAP:       ftile.compute "conv"{{.*}} -1 + 4*i2 : 6 in 64, -1 + 16*i3 : 18 in 64>
// OVERLAP:       ftile.compute "conv"{{.*}} 4*i2 : 4 in 64, 16*i3 : 16 in 64>

// EXCHANGE:      ftile.unit "u0" {{.*}} counts [1, 1, 17, 4] {{.*}}loops = array<i64: 1, 0, 3, 2>
// EXCHANGE:      ftile.load {{.*}} -2 + 4*i2 : 4 in 64, -2 + 16*i3 : 20 in 64> : {{.*}} -> !ftile.tile<f32, [1, 8, 10, 20], [0, 1, 2, 3], origin [0, 0, 0, -2 + 16*i3], ring>
// EXCHANGE:      ftile.compute "conv"{{.*}} -3 + 4*i2 : 4 in 64, -1 + 16*i3 : 18 in 64>
// EXCHANGE:      ftile.compute "conv"{{.*}} -4 + 4*i2 : 4 in 64, 16*i3 : 16 in 64>

// RASTER:        ftile.unit "u0" {{.*}} counts [1, 1, 17, 5]
// RASTER:        ftile.load {{.*}} -2 + 4*i2 : 4 in 64, -14 + 16*i3 : 16 in 64> : {{.*}} raster [2, 1, 98, 64]>
// RASTER:        ftile.compute "conv"{{.*}} -3 + 4*i2 : 4 in 64, -15 + 16*i3 : 16 in 64>
// RASTER:        ftile.compute "conv"{{.*}} -4 + 4*i2 : 4 in 64, -16 + 16*i3 : 16 in 64>

// UNKNOWN: error: option 'borders' of pass 'frustum-tile-force-partition' is {{.*}}'overlap', 'exchange', 'raster'{{.*}}, not mirror
// SEARCHED: error: option 'borders' of pass 'frustum-tile-force-partition' is {{.*}}'overlap', 'exchange', 'raster'{{.*}}, not auto
// WITHOUT: error: pass 'frustum-tile-force-partition' needs option 'tile'
// NOT-FORCED: error: pass 'frustum-tile-partition' has no option 'bands' (it has sram, search, borders)
// RASTERED: error: option 'borders' of pass 'frustum-tile-partition' is {{.*}}'overlap', 'exchange', 'auto'{{.*}}, not raster
