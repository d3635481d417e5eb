// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-tile-partition' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-partition{sram=0.02}' | filecheck %s --check-prefix SMALL
// RUN: not frustum-opt %s -p 'frustum-set-target{target=edge},frustum-tile-partition{sram=0.0001}' 2>&1 | filecheck %s --check-prefix NONE
// RUN: not frustum-opt %s -p frustum-tile-partition 2>&1 | filecheck %s --check-prefix AIMLESS

// Rows are dealt to the clusters of `default`, channels to their cores; `edge` with little memory takes several tiles, two
// copies of each.  Units of moves have no partition.
builtin.module {
  func.func @other(%a : i32) -> i32 {
    %s = arith.addi %a, %a : i32
    func.return %s : i32
  }
  fgraph.network @net (%x : tensor<1x4x64x64xf32>) inputs ["x"] outputs ["y"] {
    %r = funit.unit "u0" (%a = %x : tensor<1x4x64x64xf32>) -> (tensor<1x4x64x64xf32>) {stopped_by = "policy none"} {
      %b = fgraph.unary <relu> %a : tensor<1x4x64x64xf32>
      funit.yield %b : tensor<1x4x64x64xf32>
    }
    %y = funit.unit "u1" (%a = %r : tensor<1x4x64x64xf32>) -> (tensor<1x64x4x64xf32>) {stopped_by = "moves data only"} {
      %b = fgraph.transpose %a perm [0, 2, 1, 3] : (tensor<1x4x64x64xf32>) -> tensor<1x64x4x64xf32>
      funit.yield %b : tensor<1x64x4x64xf32>
    }
    fgraph.output %y : tensor<1x64x4x64xf32>
  }
}
// CHECK:      func.func @other(%a: i32) -> i32 {
// CHECK-NEXT:   %s = arith.addi %a, %a : i32
// CHECK:      funit.unit "u0" {{.*}} {partition = #funit.partition<tile [1, 4, 16, 64], clusters 2, depth 1>, mode = "large", stopped_by = "policy none"} attributes {frustum.cost_parts = [{{.*}}]} {
// CHECK-NEXT:   fgraph.unary <relu> {{.*}} {frustum.map = #ftile.map<extent [1, 1, 16, 32], cores 1, channels 0, outer space, weights unit>} :
// CHECK:      funit.unit "u1" {{.*}} {stopped_by = "moves data only"} {

// SMALL: funit.unit "u0" {{.*}} {partition = #funit.partition<tile [1, 4, 2, 64], clusters 2, depth 2>, mode = "large"

// NONE: unit u0
// NONE-SAME: (fgraph.unary): its smallest piece does not fit: needed {{.*}}, available 52 B of SRAM
// AIMLESS: the module has no attribute 'frustum.target': run frustum-set-target{target=NAME} first
