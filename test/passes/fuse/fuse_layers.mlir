// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{policy=none}' --split-input-file | filecheck %s --check-prefix NONE
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{policy=greedy}' --split-input-file | filecheck %s --check-prefix GREEDY
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{policy=optimal}' --split-input-file | filecheck %s --check-prefix OPTIMAL

// A chain is one unit as far as the rules go; reshapes stay outside; weights go in; the rest of the module is left
// alone.
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

// GREEDY:      func.func @other(%a: i32) -> i32 {
// GREEDY-NEXT:   %s = arith.addi %a, %a : i32
// GREEDY:      fgraph.network @chain
// GREEDY-NEXT:   [[P:%.*]] = funit.unit "u0" ({{.*}} = %x : tensor<1x3x32x32xf32>) -> (tensor<1x8x16x16xf32>) {stopped_by = "reshape follows"} {
// GREEDY-NEXT:     fgraph.weight "w"
// GREEDY-NEXT:     fgraph.weight "b"
// GREEDY-NEXT:     [[C:%.*]] = fgraph.conv
// GREEDY-NEXT:     [[Y:%.*]] = fgraph.pool max [[C]]
// GREEDY-NEXT:     funit.yield [[Y]] : tensor<1x8x16x16xf32>
// GREEDY-NEXT:   }
// GREEDY-NEXT:   [[F:%.*]] = fgraph.reshape [[P]]
// GREEDY-NEXT:   funit.unit "u1" ({{.*}} = [[F]] : tensor<1x2048xf32>) -> (tensor<1x2048xf32>) {stopped_by = "softmax joins no other layer"} {

// -----

// A move is a unit of its own, an unused weight goes.
builtin.module {
  fgraph.network @branches (%x : tensor<1x4x16x16xf32>) inputs ["x"] outputs ["y"] {
    %w = fgraph.weight "unused" : tensor<8xf32>
    %r = fgraph.unary <relu> %x : tensor<1x4x16x16xf32>
    %s = fgraph.unary <sigmoid> %r : tensor<1x4x16x16xf32>
    %t = fgraph.transpose %s perm [0, 1, 3, 2] : (tensor<1x4x16x16xf32>) -> tensor<1x4x16x16xf32>
    %y = fgraph.binary add %r, %t : (tensor<1x4x16x16xf32>, tensor<1x4x16x16xf32>) -> tensor<1x4x16x16xf32>
    fgraph.output %y : tensor<1x4x16x16xf32>
  }
}
// GREEDY:      fgraph.network @branches
// GREEDY-NEXT:   [[R:%.*]] = funit.unit "u0" ({{.*}} = %x : {{.*}}) -> {{.*}} {stopped_by = "rule 4 single-output: 2 > 1 outputs with 'unary'"} {
// GREEDY-NEXT:     fgraph.unary <relu>
// GREEDY-NEXT:     funit.yield
// GREEDY-NEXT:   }
// GREEDY-NEXT:   [[S:%.*]] = funit.unit "u1" ({{.*}} = [[R]] : {{.*}}) -> {{.*}} {stopped_by = "transpose follows"} {
// GREEDY-NEXT:     fgraph.unary <sigmoid>
// GREEDY-NEXT:     funit.yield
// GREEDY-NEXT:   }
// GREEDY-NEXT:   [[T:%.*]] = funit.unit "u2" ([[B:%.*]] = [[S]] : {{.*}}) -> {{.*}} {stopped_by = "moves data only"} {
// GREEDY-NEXT:     fgraph.transpose [[B]]
// GREEDY-NEXT:     funit.yield
// GREEDY-NEXT:   }
// GREEDY-NEXT:   [[Y:%.*]] = funit.unit "u3" ({{.*}} = [[R]] : {{.*}}, {{.*}} = [[T]] : {{.*}}) -> {{.*}} {stopped_by = "output follows"} {
// GREEDY:        fgraph.output [[Y]]

// -----

// Operations of other dialects inside a network are left where they are, and nothing is fused across them.
builtin.module {
  fgraph.network @foreign (%x : tensor<1x4x16x16xf32>) inputs ["x"] outputs ["y"] {
    %r = fgraph.unary <relu> %x : tensor<1x4x16x16xf32>
    %s = "test.op"(%r) ({
      "test.termop"(%r) : (tensor<1x4x16x16xf32>) -> ()
    }) : (tensor<1x4x16x16xf32>) -> tensor<1x4x16x16xf32>
    %y = fgraph.unary <sigmoid> %s : tensor<1x4x16x16xf32>
    fgraph.output %y : tensor<1x4x16x16xf32>
  }
}
// GREEDY:      fgraph.network @foreign
// GREEDY-NEXT:   [[R:%.*]] = funit.unit "u0" {{.*}} {stopped_by = "test.op follows"} {
// GREEDY:        [[S:%.*]] = "test.op"([[R]]) ({
// GREEDY-NEXT:     "test.termop"([[R]]) : (tensor<1x4x16x16xf32>) -> ()
// GREEDY-NEXT:   }) : (tensor<1x4x16x16xf32>) -> tensor<1x4x16x16xf32>
// GREEDY-NEXT:   funit.unit "u1" ({{.*}} = [[S]] :

// OPTIMAL:      fgraph.network @foreign
// OPTIMAL-NEXT:   [[R:%.*]] = funit.unit "u0"
// OPTIMAL:        [[S:%.*]] = "test.op"([[R]])
// OPTIMAL:        funit.unit "u1" ({{.*}} = [[S]] :

// -----

// A layer moves up behind the last operation of another dialect that it depends on, so that it can be in one unit with
// those before an operation that only reads; what reads %p, and what gives %m, stays where it is.
builtin.module {
  fgraph.network @between (%x : tensor<1x4x16x16xf32>) inputs ["x"] outputs ["y"] {
    %p = fgraph.pool max %x kernel [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0] : (tensor<1x4x16x16xf32>) -> tensor<1x4x8x8xf32>
    "test.op"(%p) {first} : (tensor<1x4x8x8xf32>) -> ()
    %m = "test.op"(%p) {second} : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
    %r = fgraph.unary <relu> %p : tensor<1x4x8x8xf32>
    %s = fgraph.unary <sigmoid> %m : tensor<1x4x8x8xf32>
    %y = fgraph.binary add %r, %s : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
    fgraph.output %y : tensor<1x4x8x8xf32>
  }
}
// OPTIMAL:      fgraph.network @between
// OPTIMAL-NEXT:   [[P:%.*]], [[R:%.*]] = funit.unit "u0"
// OPTIMAL-NEXT:     fgraph.pool
// OPTIMAL-NEXT:     fgraph.unary <relu>
// OPTIMAL:        "test.op"([[P]]) {first}
// OPTIMAL-NEXT:   [[M:%.*]] = "test.op"([[P]]) {second}
// OPTIMAL-NEXT:   [[Y:%.*]] = funit.unit "u1" (
// OPTIMAL-SAME:     [[M]] : tensor
// OPTIMAL:        fgraph.output [[Y]]

// GREEDY:      fgraph.network @between
// GREEDY-NEXT:   [[P:%.*]] = funit.unit "u0"
// GREEDY:        [[R:%.*]] = funit.unit "u1" ({{.*}} {stopped_by = "operations of other dialects stand between"} {
// GREEDY:        "test.op"([[P]]) {first}
// GREEDY-NEXT:   [[M:%.*]] = "test.op"([[P]]) {second}
// GREEDY-NEXT:   [[Y:%.*]] = funit.unit "u2" ({{.*}} = [[M]] :

// NONE:      fgraph.network @between
// NONE:        "test.op"({{.*}}) {first}
// NONE-NEXT:   [[M:%.*]] = "test.op"({{.*}}) {second}
// NONE-NEXT:   funit.unit "u2" ({{.*}} = [[M]] :
