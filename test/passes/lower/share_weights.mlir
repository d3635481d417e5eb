// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-lower-share-weights' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=default},frustum-lower-share-weights,frustum-lower-share-weights' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-lower-share-weights' | filecheck %s --check-prefix ALONE

// Four clusters hold the eight pieces of "a" together: a raw block of 256 bytes and its header in a slot of 272, 80 bytes
// of each slot on each of the first three clusters, 32 on the last.  "b" is each cluster's own, "c" is one piece.
builtin.module attributes {frustum.weights = "compress_weights.safetensors"} {
  fisa.program @main {
    %a = fisa.external weight "a" bytes 2048 shape [32, 64, 1, 1] i8
    %b = fisa.external weight "b" bytes 2048 shape [64, 32, 1, 1] i8
    %c = fisa.external weight "c" bytes 256 shape [64] i32
    %held = fisa.alloc bytes 2048 : !fisa.buffer<sram>
    fisa.copy gdma %a <i8, 0, [64, 1, 1, 1]> -> %held <i8, 0, [64, 1, 2048, 2048]> box <0 : 32 in 32, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> multicast layer 1 : !fisa.buffer<dram> -> !fisa.buffer<sram>
    fisa.repeat 8 {
      "test.op"() : () -> ()
      %w = fisa.alloc bytes 256 depth 2 : !fisa.buffer<wram>
      fisa.copy bus %held <i8, 8*i0, [64, 1, 2048, 2048]> -> %w <i8, 0, [8, 1, 256, 256]> box <0 : 32 in 32, 8*i0 : 8 in 64, 0 : 1 in 1, 0 : 1 in 1> stage 1 layer 1 : !fisa.buffer<sram> -> !fisa.buffer<wram>
    }
    %part = fisa.alloc bytes 512 : !fisa.buffer<sram>
    fisa.copy gdma %b <i8, 512*cluster, [32, 1, 1, 1]> -> %part <i8, 0, [32, 1, 512, 512]> box <16*cluster : 16 in 64, 0 : 32 in 32, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<dram> -> !fisa.buffer<sram>
    fisa.repeat 4 {
      %w = fisa.alloc bytes 128 depth 2 : !fisa.buffer<wram>
      fisa.copy bus %part <i8, 128*i0, [32, 1, 512, 512]> -> %w <i8, 0, [32, 1, 128, 128]> box <4*i0 + 16*cluster : 4 in 64, 0 : 32 in 32, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<sram> -> !fisa.buffer<wram>
    }
    %few = fisa.alloc bytes 256 : !fisa.buffer<sram>
    fisa.copy gdma %c <i32, 0, [0, 4, 0, 0]> -> %few <i32, 0, [256, 4, 256, 256]> box <0 : 1 in 1, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> multicast : !fisa.buffer<dram> -> !fisa.buffer<sram>
    %v = fisa.alloc bytes 256 : !fisa.buffer<wram>
    fisa.copy bus %few <i32, 0, [256, 4, 256, 256]> -> %v <i32, 0, [0, 4, 0, 0]> box <0 : 1 in 1, 0 : 64 in 64, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<sram> -> !fisa.buffer<wram>
  }
}

// CHECK:      [[A:%.*]] = fisa.external weight "a:raw" bytes 2176 shape [32, 64, 1, 1] i8
// CHECK:      [[HELD:%.*]] = fisa.alloc bytes 640 : !fisa.buffer<sram>
// CHECK-NEXT: fisa.copy gdma [[A]] <i8, 80*cluster, [0, 0, 272, 1]> -> [[HELD]] <i8, 0, [0, 0, 80, 1]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8, 80*cluster : 80 in 272> layer 1 :
// CHECK-NEXT: fisa.repeat 8 {
// CHECK-NEXT: "test.op"() : () -> ()
// CHECK-NEXT: fisa.alloc bytes 256 depth 2 : !fisa.buffer<wram>
// CHECK-NEXT: [[COME:%.*]] = fisa.alloc bytes 272 depth 2 : !fisa.buffer<sram>
// CHECK-NEXT: fisa.copy cdma [[HELD]] <i8, 80*i0, [0, 0, 0, 1]> -> [[COME]] <i8, 80*cluster, [0, 272, 0, 1]> box <-3 + 1*cluster : 1 in 4, 0 : 1 in 1, 1*i0 : 1 in 8, 80*cluster : 80 in 272> peer <-3 + 1*cluster> stage 1 layer 1
// CHECK-NEXT: fisa.copy cdma {{.*}} peer <-2 + 1*cluster>
// CHECK-NEXT: fisa.copy cdma {{.*}} peer <-1 + 1*cluster>
// CHECK-NEXT: fisa.copy cdma {{.*}} peer <1*cluster>
// CHECK-NEXT: fisa.copy cdma {{.*}} peer <1 + 1*cluster>
// CHECK-NEXT: fisa.copy cdma {{.*}} peer <2 + 1*cluster>
// CHECK-NEXT: fisa.copy cdma {{.*}} peer <3 + 1*cluster>
// CHECK-NEXT: fisa.copy bus [[COME]] <i8, 0, [0, 0, 0, 0]> -> {{.*}} expand 272 stage 1 layer 1
// CHECK:      fisa.copy gdma {{.*}} <i8, 512*cluster, [32, 1, 1, 1]>
// CHECK:      fisa.copy bus {{.*}} <i8, 128*i0, [32, 1, 512, 512]>
// CHECK:      fisa.copy gdma {{.*}} <i32, 0, [0, 4, 0, 0]> {{.*}} multicast
// CHECK-NOT:  cdma

// ALONE-NOT:  cdma
