// Once Frustum is installed, every xDSL tool knows our dialects.
// RUN: xdsl-opt %s -p canonicalize | xdsl-opt | filecheck %s
// RUN: xdsl-opt %s --print-op-generic | frustum-opt | filecheck %s

// CHECK: %y = fgraph.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
func.func @among_other_dialects(%x : tensor<2x3xf32>) -> tensor<6xf32> {
  %y = fgraph.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
  func.return %y : tensor<6xf32>
}
