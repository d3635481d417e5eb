// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-lower-units' | filecheck %s

// Two fused layers in tiles of 2 output rows, dealt to the four clusters: the pool needs 4 rows of the convolution's
// map, that needs 6 rows of the input.  A move keeps its own loops; reshapes and foreign operations stay.
builtin.module {
  func.func @other(%a : i32) -> i32 {
    %s = arith.addi %a, %a : i32
    func.return %s : i32
  }
  fgraph.network @net (%x : tensor<1x3x32x16xf32>) inputs ["x"] outputs ["y"] {
    %p = funit.unit "u0" (%a = %x : tensor<1x3x32x16xf32>) -> (tensor<1x8x16x8xf32>) {partition = #funit.partition<tile [1, 8, 2, 8], clusters 2, depth 2>, mode = "large", stopped_by = "reshape follows"} {
      %w = fgraph.weight "w" : tensor<8x3x3x3xf32>
      %b = fgraph.weight "b" : tensor<8xf32>
      %c = fgraph.conv %a, %w, %b strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 {act = #fgraph.act<relu>, frustum.map = #ftile.map<extent [1, 8, 4, 4], cores 3, channels 3, outer space, weights unit>} : (tensor<1x3x32x16xf32>, tensor<8x3x3x3xf32>, tensor<8xf32>) -> tensor<1x8x32x16xf32> loc("Conv_0")
      %q = fgraph.pool max %c kernel [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] {frustum.map = #ftile.map<extent [1, 2, 2, 8], cores 1, channels 0, outer space, weights unit>} : (tensor<1x8x32x16xf32>) -> tensor<1x8x16x8xf32>
      funit.yield %q : tensor<1x8x16x8xf32>
    }
    %f = fgraph.reshape %p : (tensor<1x8x16x8xf32>) -> tensor<1x8x128xf32>
    %y = funit.unit "u1" (%a = %f : tensor<1x8x128xf32>) -> (tensor<1x128x8xf32>) {stopped_by = "moves data only"} {
      %t = fgraph.transpose %a perm [0, 2, 1] : (tensor<1x8x128xf32>) -> tensor<1x128x8xf32>
      funit.yield %t : tensor<1x128x8xf32>
    }
    fgraph.output %y : tensor<1x128x8xf32>
  }
}
// CHECK:      func.func @other(%a: i32) -> i32 {
// CHECK-NEXT:   %s = arith.addi %a, %a : i32
// CHECK:      [[P:%.*]] = ftile.unit "u0" ([[A:%.*]] = %x : tensor<1x3x32x16xf32>) -> (tensor<1x8x16x8xf32>) counts [1, 1, 2, 1] clusters 2 depth 2 {mode = "large", stopped_by = "reshape follows"} {
// CHECK-NEXT:   [[I:%.*]] = ftile.load [[A]] view <0, [1536, 512, 16, 1]> region <0 : 1 in 1, 0 : 3 in 3, -1 + 16*i2 + 4*cluster : 6 in 32, 0 : 16 in 16> : tensor<1x3x32x16xf32> -> !ftile.tile<f32, [1, 3, 6, 16], [0, 1, 2, 3]>
// CHECK-NEXT:   [[W:%.*]] = fgraph.weight "w"
// CHECK-NEXT:   [[B:%.*]] = fgraph.weight "b"
// CHECK-NEXT:   [[C:%.*]] = ftile.compute "conv"([[I]], [[W]], [[B]]) region <0 : 1 in 1, 0 : 8 in 8, 16*i2 + 4*cluster : 4 in 32, 0 : 16 in 16> access [#ftile.access<same, all 3, [1, 1, -1, 2], [1, 1, -1, 2]>] map <extent [1, 8, 4, 4], cores 3, channels 3, outer space, weights unit> params {
// CHECK-SAME:   weight_strides = array<i64: 27, 9, 3, 1>, weight_batch = 0 : i64, act = "relu"
// CHECK-SAME:   {frustum.macs = 110592 : i64}
// CHECK-SAME:   -> !ftile.tile<f32, [1, 8, 4, 16], [0, 1, 2, 3]>
// CHECK-NEXT:   [[Q:%.*]] = ftile.compute "pool"([[C]]) region <0 : 1 in 1, 0 : 8 in 8, 8*i2 + 2*cluster : 2 in 16, 0 : 8 in 8> access [#ftile.access<same, same, [2, 1, 0, 1], [2, 1, 0, 1]>] map <extent [1, 2, 2, 8], cores 1, {{.*}} params {kind = "max",
// CHECK-NEXT:   ftile.store [[Q]] to 0 : i64 view <0, [1024, 128, 8, 1]> region <0 : 1 in 1, 0 : 8 in 8, 8*i2 + 2*cluster : 2 in 16, 0 : 8 in 8> : !ftile.tile<f32, [1, 8, 2, 8], [0, 1, 2, 3]>
// CHECK-NEXT:   ftile.yield
// CHECK-NEXT: }
// CHECK-NEXT: [[F:%.*]] = fgraph.reshape [[P]]
// CHECK-NEXT: [[Y:%.*]] = ftile.unit "u1" ([[T:%.*]] = [[F]] : tensor<1x8x128xf32>) -> (tensor<1x128x8xf32>) counts [1, 1, 1, 1] clusters 0 depth 1 {stopped_by = "moves data only"} attributes {frustum.own_cycles = 482 : i64} {
// CHECK-NEXT:   ftile.move [[T]] to 0 : i64 dims [1, 1, 128, 8] from <0, [0, 0, 1, 128]> into <0, [0, 0, 8, 1]> low [0, 0, 0, 0] bound [1, 1, 128, 8] partition <tile [1, 1, 32, 8], clusters 2, depth 2> : tensor<1x8x128xf32>
// CHECK-NEXT:   ftile.yield
// CHECK-NEXT: }
// CHECK-NEXT: fgraph.output [[Y]]
