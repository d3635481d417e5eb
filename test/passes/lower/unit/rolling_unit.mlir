// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-lower-tiles' | filecheck %s

// A rolling unit of two images: steps of 2 rows, in which every layer is as far ahead as its consumers reach. Rows lie in
// rings that go on from image to image (phase: 5 steps of 2 rows an image). The two parts of the concatenation are
// computed into one ring, the second behind the channels of the first. The input's ring has room for one step more than
// is in use, so that its load runs ahead; the others have not. The last layer's tile is no ring: it is stored.
builtin.module attributes {frustum.dtype = "f32"} {
  fgraph.network @net (%0 : tensor<2x2x8x6xf32>) inputs ["x"] outputs ["y"] {
    %1 = ftile.unit "u0" (%2 = %0 : tensor<2x2x8x6xf32>) -> (tensor<2x4x8x6xf32>) counts [2, 1, 5, 1] clusters 0 depth 2 {loops = array<i64: 1, 0, 3, 2>} {
      %3 = ftile.load %2 view <0, [96, 48, 6, 1]> region <1*i0 : 1 in 2, 0 : 2 in 2, 2*i2 : 2 in 8, 0 : 6 in 6> : tensor<2x2x8x6xf32> -> !ftile.tile<f32, [1, 2, 6, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>
      %4 = fgraph.weight "w" : tensor<2x2x1x1xf32>
      %5 = ftile.compute "conv"(%3, %4) region <1*i0 : 1 in 2, 0 : 2 in 2, -1 + 2*i2 : 2 in 8, 0 : 6 in 6> access [#ftile.access<same, all 2, same, same>] map <extent [1, 2, 2, 2], cores 3, channels 2, outer space, weights unit> params {kernel = array<i64: 1, 1>, strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, channels = 2 : i64, weight_strides = array<i64: 2, 1, 1, 1>, weight_batch = 0 : i64} {frustum.macs = 384 : i64} : (!ftile.tile<f32, [1, 2, 6, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>, tensor<2x2x1x1xf32>) -> !ftile.tile<f32, [1, 2, 4, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>
      %6 = fgraph.weight "w.1" : tensor<3x2x3x3xf32>
      %7 = ftile.compute "conv"(%3, %6) region <1*i0 : 1 in 2, 0 : 3 in 3, -1 + 2*i2 : 2 in 8, 0 : 6 in 6> access [#ftile.access<same, all 2, [1, 1, -1, 2], [1, 1, -1, 2]>] map <extent [1, 1, 2, 6], cores 1, channels 2, outer space, weights unit> params {kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, channels = 2 : i64, weight_strides = array<i64: 18, 9, 3, 1>, weight_batch = 0 : i64} {frustum.macs = 5184 : i64} : (!ftile.tile<f32, [1, 2, 6, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>, tensor<3x2x3x3xf32>) -> !ftile.tile<f32, [1, 3, 4, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>
      %8 = ftile.concat %5, %7 : (!ftile.tile<f32, [1, 2, 4, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>, !ftile.tile<f32, [1, 3, 4, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>) -> !ftile.tile<f32, [1, 5, 4, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>
      %9 = fgraph.weight "w.2" : tensor<4x5x3x3xf32>
      %10 = ftile.compute "conv"(%8, %9) region <1*i0 : 1 in 2, 0 : 4 in 4, -2 + 2*i2 : 2 in 8, 0 : 6 in 6> access [#ftile.access<same, all 5, [1, 1, -1, 2], [1, 1, -1, 2]>] map <extent [1, 1, 2, 6], cores 1, channels 5, outer space, weights unit> params {kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, channels = 5 : i64, weight_strides = array<i64: 45, 9, 3, 1>, weight_batch = 0 : i64} {frustum.macs = 17280 : i64} : (!ftile.tile<f32, [1, 5, 4, 6], [0, 1, 2, 3], origin [1*i0, 0, 0, 0], ring>, tensor<4x5x3x3xf32>) -> !ftile.tile<f32, [1, 4, 2, 6], [0, 1, 2, 3]>
      ftile.store %10 to 0 : i64 view <0, [192, 48, 6, 1]> region <1*i0 : 1 in 2, 0 : 4 in 4, -2 + 2*i2 : 2 in 8, 0 : 6 in 6> : !ftile.tile<f32, [1, 4, 2, 6], [0, 1, 2, 3]>
      ftile.yield
    }
    fgraph.output %1 : tensor<2x4x8x6xf32>
  }
}
// CHECK:      fisa.repeat 2 {
// CHECK-NEXT:   fisa.repeat 5 {
// CHECK-NEXT:     [[IN:%.*]] = fisa.alloc bytes 288 rolling 2 : !fisa.buffer<sram>
// CHECK-NEXT:     fisa.copy gdma {{%.*}} <f32, 384*i0 + 48*i1, [384, 192, 24, 4]> -> [[IN]] <f32, 0, [288, 144, 24, 4], wrap 2 + 4*i0 mod 6> box <1*i0 : 1 in 2, 0 : 2 in 2, 2*i1 : 2 in 8, 0 : 6 in 6> :
// CHECK-NEXT:     [[BOTH:%.*]] = fisa.alloc bytes 480 rolling 1 : !fisa.buffer<sram>
// CHECK-NEXT:     [[OUT:%.*]] = fisa.alloc bytes 192 depth 2 : !fisa.buffer<sram>
// CHECK:          fisa.copy mvdma [[IN]] <f32, {{.*}}, [288, 144, 24, 4], wrap 2 + 4*i0 mod 6> -> {{.*}} box <1*i0 : 1 in 2 to 1 + 1*i0, 0 : 2 in 2, -1 + 2*i1 : 2 in 8 to 2 + 2*i1, {{.*}}> stage 1 :
// CHECK:          fisa.copy mvdma {{.*}} -> [[BOTH]] <f32, {{.*}}, [480, 96, 24, 4], wrap 2 + 2*i0 mod 4> box <1*i0 : 1 in 2, 0 : 2 in 2, -1 + 2*i1 : 2 in 8, {{.*}}> stage 1 :
// CHECK:          fisa.copy bus [[IN]] {{.*}} box <1*i0 : 1 in 2 to 1 + 1*i0, 0 : 2 in 2, -2 + 2*i1 : 4 in 8 to 2 + 2*i1, {{.*}}> stage 1 layer 1 :
// CHECK:          fisa.copy mvdma {{.*}} -> [[BOTH]] <f32, 192{{.*}}, [480, 96, 24, 4], wrap 2 + 2*i0 mod 4> box <1*i0 : 1 in 2, 1*core : 1 in 3, -1 + 2*i1 : 2 in 8, 0 : 6 in 6> stage 1 layer 1 :
// CHECK:          fisa.copy bus [[BOTH]] {{.*}} box <1*i0 : 1 in 2 to 1 + 1*i0, 0 : 5 in 5, -3 + 2*i1 : 4 in 8 to 1 + 2*i1, {{.*}}> stage 1 layer 2 :
// CHECK:          fisa.copy mvdma {{.*}} -> [[OUT]]
// CHECK-NEXT:     fisa.copy gdma [[OUT]] <f32, 0, [192, 48, 24, 4]> -> {{%.*}} <f32, -48 + 768*i0 + 48*i1, [768, 192, 24, 4]> box <1*i0 : 1 in 2, 0 : 4 in 4, -2 + 2*i1 : 2 in 8, 0 : 6 in 6> stage 1 layer 2 :
// CHECK-NEXT:   }
// CHECK-NEXT: }
