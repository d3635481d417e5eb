// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-lower-tiles' | filecheck %s

// Tiles of 4 rows: the loop over them loads (stage 0), computes and stores (stage 1) with two copies of what moves;
// weights stay outside of it, and in WRAM once the first tile has brought them.  Inside, columns in pieces of 8, stored as all cores have them; every core has one row of output.
builtin.module attributes {frustum.dtype = "f32"} {
  func.func @other(%a : i32) -> i32 {
    %s = arith.addi %a, %a : i32
    func.return %s : i32
  }
  fgraph.network @net (%x : tensor<1x2x8x16xf32>) inputs ["x"] outputs ["y"] {
    %u = ftile.unit "u0" (%p = %x : tensor<1x2x8x16xf32>) -> (tensor<1x4x8x16xf32>) counts [1, 1, 2, 1] clusters 2 depth 2 {mode = "large", stopped_by = "policy none"} {
      %w = fgraph.weight "w" : tensor<4x2x3x3xf32>
      %t = ftile.load %p view <0, [256, 128, 16, 1]> region <0 : 1 in 1, 0 : 2 in 2, -1 + 4*i2 : 6 in 8, 0 : 16 in 16> : tensor<1x2x8x16xf32> -> !ftile.tile<f32, [1, 2, 6, 16], [0, 1, 2, 3]>
      %c = ftile.compute "conv"(%t, %w) region <0 : 1 in 1, 0 : 4 in 4, 4*i2 : 4 in 8, 0 : 16 in 16> access [#ftile.access<same, all 2, [1, 1, -1, 2], [1, 1, -1, 2]>] map <extent [1, 4, 1, 8], cores 2, channels 2, outer space, weights unit> params {kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, channels = 2 : i64, weight_strides = array<i64: 18, 9, 3, 1>, weight_batch = 0 : i64, act = "relu", act_params = array<f64: 0.0, 0.0>} {frustum.macs = 9216 : i64} : (!ftile.tile<f32, [1, 2, 6, 16], [0, 1, 2, 3]>, tensor<4x2x3x3xf32>) -> !ftile.tile<f32, [1, 4, 4, 16], [0, 1, 2, 3]> loc("Conv_0")
      ftile.store %c to 0 : i64 view <0, [512, 128, 16, 1]> region <0 : 1 in 1, 0 : 4 in 4, 4*i2 : 4 in 8, 0 : 16 in 16> : !ftile.tile<f32, [1, 4, 4, 16], [0, 1, 2, 3]>
      ftile.yield
    }
    %f = fgraph.reshape %u : (tensor<1x4x8x16xf32>) -> tensor<4x128xf32>
    fgraph.output %f : tensor<4x128xf32>
  }
}
// CHECK:      frustum.layers = ["Conv_0"], frustum.layer_kinds = ["conv"], frustum.layer_nodes = ["[]"], frustum.useful_macs = [9216 : i64], frustum.layer_units = [0 : i64], frustum.units = ["u0"], frustum.unit_modes = ["large"], frustum.unit_stopped_by = ["policy none"], frustum.unit_tiles = [2 : i64], frustum.unit_kept_bytes = [0 : i64], frustum.unit_owners = ["clusters"]
// CHECK-NEXT: func.func @other(%a: i32) -> i32 {
// CHECK-NEXT:   %s = arith.addi %a, %a : i32
// CHECK:      fisa.program @net {
// CHECK-NEXT:   [[X:%.*]] = fisa.external input "x" bytes 1024 shape [1, 2, 8, 16] f32
// CHECK-NEXT:   [[W:%.*]] = fisa.external weight "w" bytes 288 shape [4, 2, 3, 3] f32
// CHECK-NEXT:   [[Y:%.*]] = fisa.external output "y" bytes 2048 shape [4, 128] f32
// CHECK-NEXT:   fisa.fetch 0
// CHECK-NEXT:   fisa.fetch 1
// CHECK-NEXT:   fisa.barrier
// CHECK-NEXT:   [[HELD:%.*]] = fisa.alloc bytes 288 : !fisa.buffer<sram>
// CHECK-NEXT:   fisa.copy gdma [[W]] <f32, 0, [72, 36, 12, 4]> -> [[HELD]] <f32, 0, [72, 36, 12, 4]> box <0 : 4 in 4, 0 : 2 in 2, 0 : 3 in 3, 0 : 3 in 3> :
// CHECK-NEXT:   [[WRAM:%.*]] = fisa.alloc bytes 288 : !fisa.buffer<wram>
// CHECK-NEXT:   fisa.repeat 2 {
// CHECK-NEXT:     [[IN:%.*]] = fisa.alloc bytes 768 depth 2 : !fisa.buffer<sram>
// CHECK-NEXT:     fisa.copy gdma [[X]] <f32, -64 + 256*i0, [1024, 512, 64, 4]> -> [[IN]] <f32, 0, [768, 384, 64, 4]> box <0 : 1 in 1, 0 : 2 in 2, -1 + 4*i0 : 6 in 8, 0 : 16 in 16> :
// CHECK-NEXT:     [[OUT:%.*]] = fisa.alloc bytes 1024 depth 2 : !fisa.buffer<sram>
// CHECK-NEXT:     fisa.copy bus [[HELD]] {{.*}} -> [[WRAM]] {{.*}} box <0 : 4 in 4 to 4 - 16*i0, {{.*}} stage 1 :
// CHECK-NEXT:     fisa.repeat 2 stage 1 {
// CHECK-NEXT:       [[PIECE:%.*]] = fisa.alloc bytes 240 depth 2 : !fisa.buffer<nram>
// CHECK-NEXT:       fisa.copy mvdma [[IN]] <f32, {{.*}}, [768, 384, 64, 4]> -> [[PIECE]] <f32, 0, [240, 120, 40, 4]> box <0 : 1 in 1, 0 : 2 in 2, -1 + 4*i0 + 1*core : 3 in 8 to 5 + 4*i0, -1 + 8*i1 : 10 in 16> :
// CHECK-NEXT:       [[SUM:%.*]] = fisa.alloc bytes 128 depth 2 : !fisa.buffer<nram>
// CHECK-NEXT:       fisa.conv in [[PIECE]] {{.*}} weight [[WRAM]] {{.*}} out [[SUM]] <f32, 0, [128, 32, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 4*i0 + 1*core : 1 in 8, 8*i1 : 8 in 16> channels <0 : 2 in 2> rows <-1 + 4*i0 + 1*core : 3 in 8> cols <-1 + 8*i1 : 10 in 16> kernel [3, 3] strides [1, 1] dilations [1, 1] act <relu> {{.*}}stage 1
// CHECK-NEXT:       fisa.copy mvdma [[SUM]] {{.*}} -> [[OUT]] {{.*}} stage 1 :
// CHECK-NEXT:       fisa.copy gdma [[OUT]] <f32, 32*i1, [1024, 256, 64, 4]> -> [[Y]] <f32, 256*i0 + 32*i1, [2048, 512, 64, 4]> box <0 : 1 in 1, 0 : 4 in 4, 4*i0 : 4 in 8, 8*i1 : 8 in 16> stage 1 :
// CHECK-NEXT:     }
// CHECK-NEXT:   }
// CHECK-NEXT: }
