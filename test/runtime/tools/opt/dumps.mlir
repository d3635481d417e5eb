// RUN: frustum-opt %s -p canonicalize,cse --print-ir-after-all 2>&1 | filecheck %s --check-prefix=AFTER
// RUN: frustum-opt %s -p canonicalize --mlir-print-ir-before-all --mlir-print-ir-after-all 2>&1 | filecheck %s --check-prefix=BOTH
// RUN: frustum-opt %s -p canonicalize,cse --print-ir-after-all | filecheck %s --check-prefix=STDOUT
// RUN: frustum-opt %s --print-debuginfo | filecheck %s --check-prefix=LOC

func.func @f(%x : i32) -> i32 {
  %y = arith.addi %x, %x : i32
  %z = arith.addi %x, %x : i32 loc("Conv_0")
  "test.op"(%y, %z) : (i32, i32) -> ()
  func.return %y : i32
}

// AFTER: // -----// IR Dump After CanonicalizePass (canonicalize) //----- //
// AFTER-NEXT: builtin.module {
// AFTER: %z = arith.addi
// AFTER: // -----// IR Dump After CommonSubexpressionElimination (cse) //----- //
// AFTER-NOT: %z = arith.addi

// BOTH: // -----// IR Dump Before CanonicalizePass (canonicalize) //----- //
// BOTH: // -----// IR Dump After CanonicalizePass (canonicalize) //----- //

// STDOUT-NOT: Dump
// STDOUT: func.func @f
// STDOUT-NOT: Dump

// LOC: %y = arith.addi %x, %x : i32 loc("{{.*}}dumps.mlir":7:8)
// LOC: %z = arith.addi %x, %x : i32 loc("Conv_0")
