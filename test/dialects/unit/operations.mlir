// RUN: frustum-opt %s | filecheck %s
// RUN: frustum-opt %s | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-op-generic | frustum-opt | filecheck %s

builtin.module {
  func.func @units(%x : tensor<1x4x8x8xf32>, %y : tensor<1x4x8x8xf32>) {
    %a = funit.unit "u0" (%p = %x : tensor<1x4x8x8xf32>, %q = %y : tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>) {partition = #funit.partition<tile [1, 4, 2, 8], clusters 2, depth 2>, mode = "large", stopped_by = "output follows"} attributes {note = 1 : i64} {
      %s = fgraph.binary add %p, %q {frustum.map = #ftile.map<extent [1, 1, 2, 8], cores 1, channels 0, outer space, weights unit>} : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
      funit.yield %s : tensor<1x4x8x8xf32>
    }
    %b, %c = funit.unit "two results" (%p = %a : tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) {} {
      %s = fgraph.unary <relu> %p : tensor<1x4x8x8xf32>
      funit.yield %s, %p : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
    }
    %d = funit.unit "shared" (%p = %a : tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>) {partition = #funit.partition<tile [1, 4, 2, 8], clusters 2, depth 1, shared, inside>} {
      %s = fgraph.unary <relu> %p : tensor<1x4x8x8xf32>
      funit.yield %s : tensor<1x4x8x8xf32>
    }
    func.return
  }
}

// CHECK:      %a = funit.unit "u0" (%p = %x : tensor<1x4x8x8xf32>, %q = %y : tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>) {partition = #funit.partition<tile [1, 4, 2, 8], clusters 2, depth 2>, mode = "large", stopped_by = "output follows"} attributes {note = 1 : i64} {
// CHECK-NEXT:   %s = fgraph.binary add %p, %q {frustum.map = #ftile.map<extent [1, 1, 2, 8], cores 1, channels 0, outer space, weights unit>} :
// CHECK-NEXT:   funit.yield %s : tensor<1x4x8x8xf32>
// CHECK-NEXT: }
// CHECK-NEXT: %b, %c = funit.unit "two results" ({{.*}} = %a : tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) {} {
// CHECK:        funit.yield {{.*}}, {{.*}} : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
// CHECK:      %d = funit.unit "shared" ({{.*}} = %a : tensor<1x4x8x8xf32>) -> (tensor<1x4x8x8xf32>) {partition = #funit.partition<tile [1, 4, 2, 8], clusters 2, depth 1, shared, inside>} {
