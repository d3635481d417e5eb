// RUN: frustum-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s --strict-whitespace
// RUN: not frustum-opt %s --split-input-file 2>&1 | filecheck %s --check-prefix=FAILS

func.func @of_a_verifier(%x : i32) {
  %y = "arith.addi"(%x, %x) : (i32, i32) -> i64
  func.return
}
// CHECK: errors.mlir:5:8: error: 'arith.addi' op: result 'result' at position 0 does not verify: attribute i32 expected
// CHECK-NEXT: {{^}}  %y = "arith.addi"(%x, %x) : (i32, i32) -> i64
// CHECK-NEXT: {{^}}       ^~~~~~~~~~~~{{$}}
// FAILS: errors.mlir:5:8: error: 'arith.addi' op: result

// -----

func.func @keeps_its_line_in_a_later_chunk(%x : i32) -> i64 {
	func.return %x : i32 loc("node_3")
}
// CHECK: errors.mlir:16:2: error: 'func.return' op ("node_3"): Expected arguments to have the same types
// CHECK-NEXT: {{^}}	func.return %x : i32 loc("node_3")
// CHECK-NEXT: {{^}}	^~~~~~~~~~~{{$}}
// FAILS: errors.mlir:16:2: error: 'func.return' op ("node_3"): Expected

// -----

func.func @of_the_parser(%x : i32) {
  %y = arith.add %x, %x : i32
}
// CHECK: errors.mlir:26:8: error: Operation arith.add is not registered; did you mean 'arith.addi'?
// CHECK-NEXT: {{^}}  %y = arith.add %x, %x : i32
// CHECK-NEXT: {{^}}       ^~~~~~~~~{{$}}
// FAILS: errors.mlir:26:8: error: Operation arith.add is not registered

// -----

// CHECK: func.func @a_good_chunk
// FAILS: func.func @a_good_chunk
func.func @a_good_chunk() {
  func.return
}
