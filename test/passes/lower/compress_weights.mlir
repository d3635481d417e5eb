// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-lower-compress-weights{codec=zero}' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-lower-compress-weights{codec=zero},frustum-lower-compress-weights{codec=zero}' | filecheck %s --check-prefix TWICE
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-lower-compress-weights' | filecheck %s --check-prefix AUTO
// RUN: not frustum-opt %s -p frustum-lower-compress-weights 2>&1 | filecheck %s --check-prefix NO-TARGET

// NO-TARGET: the module has no attribute 'frustum.target': run frustum-set-target

// "a" (a weight of 16 is not 0) is held in SRAM and filled into WRAM in two parts of its input channels; "b" (one of
// 11) is streamed, each cluster its quarter of the output channels and each core a quarter of that; "c" cannot be made
// smaller; the other way of "a", with a reader that fills in what is not there, stays raw.
builtin.module attributes {frustum.weights = "compress_weights.safetensors"} {
  func.func @other(%a : i32) -> i32 {
    func.return %a : i32
  }
  fisa.program @main {
    %a = fisa.external weight "a" bytes 2048 shape [32, 64, 1, 1] i8
    %b = fisa.external weight "b" bytes 2048 shape [64, 32, 1, 1] i8
    %c = fisa.external weight "c" bytes 256 shape [64] i32
    %held = fisa.alloc bytes 2048 : !fisa.buffer<sram>
    fisa.copy gdma %a <i8, 0, [64, 1, 1, 1]> -> %held <i8, 0, [64, 1, 2048, 2048]> box <0 : 32 in 32, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> multicast layer 1 : !fisa.buffer<dram> -> !fisa.buffer<sram>
    fisa.repeat 2 {
      "test.op"() : () -> ()
      %w = fisa.alloc bytes 1024 depth 2 : !fisa.buffer<wram>
      fisa.copy bus %held <i8, 32*i0, [64, 1, 2048, 2048]> -> %w <i8, 0, [32, 1, 1024, 1024]> box <0 : 32 in 32, 32*i0 : 32 in 64, 0 : 1 in 1, 0 : 1 in 1> layer 1 : !fisa.buffer<sram> -> !fisa.buffer<wram>
    }
    fisa.repeat 2 {
      %part = fisa.alloc bytes 256 depth 2 : !fisa.buffer<sram>
      fisa.copy gdma %b <i8, 16*i0 + 512*cluster, [32, 1, 1, 1]> -> %part <i8, 0, [16, 1, 256, 256]> box <16*cluster : 16 in 64, 16*i0 : 16 in 32, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<dram> -> !fisa.buffer<sram>
      %w = fisa.alloc bytes 64 depth 2 : !fisa.buffer<wram>
      fisa.copy mvdma %part <i8, 64*core, [16, 1, 256, 256]> -> %w <i8, 0, [16, 1, 64, 64]> box <4*core + 16*cluster : 4 in 64, 16*i0 : 16 in 32, 0 : 1 in 1, 0 : 1 in 1> stage 1 : !fisa.buffer<sram> -> !fisa.buffer<wram>
    }
    %few = fisa.alloc bytes 256 : !fisa.buffer<sram>
    fisa.copy gdma %c <i32, 0, [0, 4, 0, 0]> -> %few <i32, 0, [256, 4, 256, 256]> box <0 : 1 in 1, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> multicast : !fisa.buffer<dram> -> !fisa.buffer<sram>
    %v = fisa.alloc bytes 256 : !fisa.buffer<wram>
    fisa.copy bus %few <i32, 0, [256, 4, 256, 256]> -> %v <i32, 0, [0, 4, 0, 0]> box <0 : 1 in 1, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<sram> -> !fisa.buffer<wram>
    %again = fisa.alloc bytes 2048 : !fisa.buffer<sram>
    fisa.copy gdma %a <i8, 0, [64, 1, 1, 1]> -> %again <i8, 0, [64, 1, 2048, 2048]> box <0 : 32 in 32, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> multicast layer 1 : !fisa.buffer<dram> -> !fisa.buffer<sram>
    %x = fisa.alloc bytes 2048 : !fisa.buffer<wram>
    fisa.copy bus %again <i8, 0, [64, 1, 2048, 2048]> -> %x <i8, 0, [64, 1, 2048, 2048]> box <0 : 32 in 32, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<sram> -> !fisa.buffer<wram>
    fisa.copy bus %again <i8, 0, [64, 1, 2048, 2048]> -> %x <i8, 0, [64, 1, 2048, 2048]> box <0 : 32 in 32, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> fill <0.0> : !fisa.buffer<sram> -> !fisa.buffer<wram>
  }
}

// CHECK:      frustum.compression = "{\22codec\22: \22zero\22, \22raw_bytes\22: 4352, \22stored_bytes\22: 3616, \22compressed_tensors\22: 1, \22packed_tensors\22: 0, \22raw_loads\22: {\22goes another way\22: 1, \22is not smaller\22: 1}, \22expanded_loads\22: {}}"
// CHECK:      func.func @other
// CHECK:      fisa.external weight "a" bytes 2048 shape [32, 64, 1, 1] i8
// CHECK-NEXT: [[A:%.*]] = fisa.external weight "a:zero" bytes 288 shape [0] i8
// CHECK-NEXT: [[B:%.*]] = fisa.external weight "b:zero" bytes 1024 shape [64, 32, 1, 1] i8
// CHECK-NEXT: fisa.external weight "c" bytes 256 shape [64] i32
// CHECK-NEXT: [[HELD:%.*]] = fisa.alloc bytes 288 : !fisa.buffer<sram>
// CHECK-NEXT: fisa.copy gdma [[A]] <i8, 0, [0, 0, 0, 1]> -> [[HELD]] <i8, 0, [0, 0, 0, 1]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 288 in 288> multicast layer 1
// CHECK-NEXT: fisa.repeat 2 {
// CHECK-NEXT: "test.op"() : () -> ()
// CHECK-NEXT: fisa.alloc bytes 1024 depth 2 : !fisa.buffer<wram>
// CHECK-NEXT: fisa.copy bus [[HELD]] <i8, 144*i0, [0, 0, 0, 0]> -> {{.*}} <i8, 0, [32, 1, 1024, 1024]> box <0 : 32 in 32, 32*i0 : 32 in 64, 0 : 1 in 1, 0 : 1 in 1> expand 144 layer 1
// CHECK:      [[PART:%.*]] = fisa.alloc bytes 128 depth 2 : !fisa.buffer<sram>
// CHECK-NEXT: fisa.copy gdma [[B]] <i8, 128*i0 + 256*cluster, [0, 0, 0, 1]> -> [[PART]] <i8, 0, [0, 0, 0, 1]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 128*i0 + 256*cluster : 128 in 1024>
// CHECK:      fisa.copy mvdma [[PART]] <i8, 32*core, [0, 0, 0, 0]> -> {{.*}} <i8, 0, [16, 1, 64, 64]> box <4*core + 16*cluster : 4 in 64, 16*i0 : 16 in 32, 0 : 1 in 1, 0 : 1 in 1> expand 32 stage 1
// CHECK:      fisa.copy gdma %c <i32, 0, [0, 4, 0, 0]>
// CHECK:      [[AGAIN:%.*]] = fisa.alloc bytes 2048 : !fisa.buffer<sram>
// CHECK:      fisa.copy bus [[AGAIN]] <i8, 0, [64, 1, 2048, 2048]>
// CHECK-NOT:  expand

// TWICE:      frustum.compression = "{\22codec\22: \22zero\22, \22raw_bytes\22: 4352, \22stored_bytes\22: 3616, \22compressed_tensors\22: 1, \22packed_tensors\22: 0, \22raw_loads\22: {\22goes another way\22: 1, \22is not smaller\22: 1}, \22expanded_loads\22: {}}"
// TWICE-COUNT-2: expand
// TWICE-NOT:  expand

// AUTO:       \22codec\22: \22auto\22, \22raw_bytes\22: 4352, \22stored_bytes\22: 3424
// AUTO:       fisa.external weight "b:auto"
