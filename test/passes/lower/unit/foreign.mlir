// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-fuse-layers{policy=none},frustum-tile-partition,frustum-tile-lower-units,frustum-lower-tiles' --allow-unregistered-dialect --split-input-file --verify-diagnostics | filecheck %s

// What is not ours keeps its order, behind the units that it stood behind; it reads tensors of the network as conversions
// of their buffers, inside regions too.
builtin.module {
  fgraph.network @between (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["y"] {
    %one = arith.constant 1 : i32
    %r = fgraph.unary <relu> %x : tensor<1x4x8x8xf32>
    "acme.look"(%x, %r) {first} : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> ()
    %f = fgraph.reshape %r : (tensor<1x4x8x8xf32>) -> tensor<1x256xf32>
    %two = arith.addi %one, %one : i32
    "acme.loop"() ({
      "acme.look"(%f) : (tensor<1x256xf32>) -> ()
    }) : () -> ()
    %y = fgraph.softmax %f axis 1 : tensor<1x256xf32>
    fgraph.output %y : tensor<1x256xf32>
  }
}
// CHECK:      fisa.program @between {
// CHECK-NEXT:   [[X:%.*]] = fisa.external input "x"
// CHECK-NEXT:   [[R:%.*]] = fisa.external intermediate "u0.0"
// CHECK-NEXT:   [[Y:%.*]] = fisa.external output "y"
// CHECK:        fisa.copy {{.*}} -> [[R]] <
// CHECK:        fisa.copy {{.*}} -> [[Y]] <
// CHECK-NEXT:   [[ONE:%.*]] = arith.constant 1 : i32
// CHECK-NEXT:   [[CX:%.*]] = builtin.unrealized_conversion_cast [[X]] : !fisa.buffer<dram> to tensor<1x4x8x8xf32>
// CHECK-NEXT:   [[CR:%.*]] = builtin.unrealized_conversion_cast [[R]] : !fisa.buffer<dram> to tensor<1x4x8x8xf32>
// CHECK-NEXT:   "acme.look"([[CX]], [[CR]]) {first}
// CHECK-NEXT:   arith.addi [[ONE]], [[ONE]] : i32
// CHECK-NEXT:   [[CF:%.*]] = builtin.unrealized_conversion_cast [[R]] : !fisa.buffer<dram> to tensor<1x256xf32>
// CHECK-NEXT:   "acme.loop"() ({
// CHECK-NEXT:     "acme.look"([[CF]]) : (tensor<1x256xf32>) -> ()
// CHECK-NEXT:   }) : () -> ()

// -----

// A program starts with all that it reads.
builtin.module {
  fgraph.network @back (%x : tensor<1x4x8x8xf32>) inputs ["x"] outputs ["y"] {
    %r = fgraph.unary <relu> %x : tensor<1x4x8x8xf32>
    %m = "acme.magic"(%r) : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
    %y = fgraph.unary <exp> %m : tensor<1x4x8x8xf32>
    fgraph.output %y : tensor<1x4x8x8xf32>
  }
}
// CHECK:      foreign.mlir:{{[0-9]+}}:10: error: pass 'frustum-lower-tiles': 'acme.magic': unit u1 reads its result, but a program reads only what is there when it starts: let the network end before it, and another one begin behind it (frustum-graph-outline)
// CHECK-NEXT:     %m = "acme.magic"(%r)
