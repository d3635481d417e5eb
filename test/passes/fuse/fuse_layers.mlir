// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{policy=none}' --split-input-file | filecheck %s --check-prefix NONE
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers' --split-input-file | filecheck %s --check-prefix FORWARD

// A chain is one unit as long as it saves DRAM bytes; reshapes stay outside; weights go in; the rest of the module is
// left alone.
builtin.module {
  func.func @other(%a : i32) -> i32 {
    %s = arith.addi %a, %a : i32
    func.return %s : i32
  }
  fgraph.network @chain (%x : tensor<1x3x32x32xf32>) inputs ["x"] outputs ["y"] {
    %w = fgraph.weight "w" : tensor<8x3x3x3xf32>
    %b = fgraph.weight "b" : tensor<8xf32>
    %c = fgraph.conv %x, %w, %b strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] groups 1 {act = #fgraph.act<relu>} : (tensor<1x3x32x32xf32>, tensor<8x3x3x3xf32>, tensor<8xf32>) -> tensor<1x8x32x32xf32>
    %p = fgraph.pool max %c kernel [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x8x32x32xf32>) -> tensor<1x8x16x16xf32>
    %f = fgraph.reshape %p : (tensor<1x8x16x16xf32>) -> tensor<1x2048xf32>
    %s = fgraph.softmax %f axis 1 : tensor<1x2048xf32>
    fgraph.output %s : tensor<1x2048xf32>
  }
}
// NONE:      func.func @other(%a: i32) -> i32 {
// NONE-NEXT:   %s = arith.addi %a, %a : i32
// NONE-NEXT:   func.return %s : i32
// NONE-NEXT: }
// NONE-NEXT: fgraph.network @chain (%x :
// NONE-NEXT:   [[C:%.*]] = funit.unit "u0" ([[X:%.*]] = %x : tensor<1x3x32x32xf32>) -> (tensor<1x8x32x32xf32>) {stopped_by = "policy none"} {
// NONE-NEXT:     [[W:%.*]] = fgraph.weight "w" : tensor<8x3x3x3xf32>
// NONE-NEXT:     [[B:%.*]] = fgraph.weight "b" : tensor<8xf32>
// NONE-NEXT:     [[Y:%.*]] = fgraph.conv [[X]], [[W]], [[B]] {{.*}} {act = #fgraph.act<relu>} :
// NONE-NEXT:     funit.yield [[Y]] : tensor<1x8x32x32xf32>
// NONE-NEXT:   }
// NONE-NEXT:   [[P:%.*]] = funit.unit "u1" ([[Q:%.*]] = [[C]] : tensor<1x8x32x32xf32>) -> (tensor<1x8x16x16xf32>) {stopped_by = "policy none"} {
// NONE-NEXT:     fgraph.pool max [[Q]]
// NONE-NEXT:     funit.yield
// NONE-NEXT:   }
// NONE-NEXT:   [[F:%.*]] = fgraph.reshape [[P]] : (tensor<1x8x16x16xf32>) -> tensor<1x2048xf32>
// NONE-NEXT:   funit.unit "u2" ({{.*}} = [[F]] : tensor<1x2048xf32>)
// NONE-NEXT:     fgraph.softmax
// NONE:        fgraph.output

// FORWARD:      func.func @other(%a: i32) -> i32 {
// FORWARD-NEXT:   %s = arith.addi %a, %a : i32
// FORWARD:      fgraph.network @chain
// FORWARD-NEXT:   [[P:%.*]] = funit.unit "u0" ({{.*}} = %x : tensor<1x3x32x32xf32>) -> (tensor<1x8x16x16xf32>) {stopped_by = "reshape follows"} {
// FORWARD-NEXT:     fgraph.weight "w"
// FORWARD-NEXT:     fgraph.weight "b"
// FORWARD-NEXT:     [[C:%.*]] = fgraph.conv
// FORWARD-NEXT:     [[Y:%.*]] = fgraph.pool max [[C]]
// FORWARD-NEXT:     funit.yield [[Y]] : tensor<1x8x16x16xf32>
// FORWARD-NEXT:   }
// FORWARD-NEXT:   [[F:%.*]] = fgraph.reshape [[P]]
// FORWARD-NEXT:   funit.unit "u1" ({{.*}} = [[F]] : tensor<1x2048xf32>) -> (tensor<1x2048xf32>) {stopped_by = "output follows"} {

// -----

// A map with two readers ends a unit, a move is a unit of its own, an unused weight goes.
builtin.module {
  fgraph.network @branches (%x : tensor<1x4x16x16xf32>) inputs ["x"] outputs ["y"] {
    %w = fgraph.weight "unused" : tensor<8xf32>
    %r = fgraph.unary <relu> %x : tensor<1x4x16x16xf32>
    %s = fgraph.unary <sigmoid> %r : tensor<1x4x16x16xf32>
    %y = fgraph.concat %r, %s axis 1 : (tensor<1x4x16x16xf32>, tensor<1x4x16x16xf32>) -> tensor<1x8x16x16xf32>
    fgraph.output %y : tensor<1x8x16x16xf32>
  }
}
// FORWARD:      fgraph.network @branches
// FORWARD-NEXT:   [[R:%.*]] = funit.unit "u0" ({{.*}} = %x : {{.*}}) -> {{.*}} {stopped_by = "its result has 2 users"} {
// FORWARD-NEXT:     fgraph.unary <relu>
// FORWARD-NEXT:     funit.yield
// FORWARD-NEXT:   }
// FORWARD-NEXT:   [[S:%.*]] = funit.unit "u1" ({{.*}} = [[R]] : {{.*}}) -> {{.*}} {stopped_by = "concat follows"} {
// FORWARD-NEXT:     fgraph.unary <sigmoid>
// FORWARD-NEXT:     funit.yield
// FORWARD-NEXT:   }
// FORWARD-NEXT:   [[Y:%.*]] = funit.unit "u2" ([[A:%.*]] = [[R]] : {{.*}}, [[B:%.*]] = [[S]] : {{.*}}) -> {{.*}} {stopped_by = "moves data only"} {
// FORWARD-NEXT:     fgraph.concat [[A]], [[B]] axis 1
// FORWARD-NEXT:     funit.yield
// FORWARD-NEXT:   }
// FORWARD-NEXT:   fgraph.output [[Y]]
