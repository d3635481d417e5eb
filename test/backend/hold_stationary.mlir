// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-hold-stationary' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-hold-stationary,frustum-allocate,frustum-schedule'

// Five steps: each adds two pieces of 8 numbers that no step moves to one of its own.
builtin.module attributes {frustum.dtype = "f32", frustum.layers = ["sum"], frustum.units = ["u0"]} {
  fisa.program @main {
    %x = fisa.external input "x" bytes 160 shape [5, 8] f32
    %w = fisa.external input "w" bytes 64 shape [2, 8] f32
    %y = fisa.external output "y" bytes 320 shape [5, 2, 8] f32
    %steps = fisa.alloc bytes 160 : !fisa.buffer<sram>
    fisa.copy gdma %x <f32, 0, [0, 0, 32, 4]> -> %steps <f32, 0, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 5 in 5, 0 : 8 in 8> : !fisa.buffer<dram> -> !fisa.buffer<sram>
    %all = fisa.alloc bytes 64 : !fisa.buffer<sram>
    fisa.copy gdma %w <f32, 0, [0, 0, 32, 4]> -> %all <f32, 0, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 2 in 2, 0 : 8 in 8> : !fisa.buffer<dram> -> !fisa.buffer<sram>
    fisa.repeat 5 {
      %own = fisa.alloc bytes 32 depth 2 : !fisa.buffer<nram>
      fisa.copy mvdma %steps <f32, 32*i0, [0, 0, 32, 4]> -> %own <f32, 0, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> : !fisa.buffer<sram> -> !fisa.buffer<nram>
      fisa.repeat 2 stage 1 {
        %piece = fisa.alloc bytes 32 depth 2 : !fisa.buffer<nram>
        %sum = fisa.alloc bytes 32 depth 2 : !fisa.buffer<nram>
        fisa.copy mvdma %all <f32, 32*i1, [0, 0, 32, 4]> -> %piece <f32, 0, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 1*i1 : 1 in 2, 0 : 8 in 8> : !fisa.buffer<sram> -> !fisa.buffer<nram>
        fisa.binary add %own <f32, 0, [0, 0, 32, 4]>, %piece <f32, 0, [0, 0, 32, 4]> -> %sum <f32, 0, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> stage 1
        fisa.copy iodma %sum <f32, 0, [0, 0, 32, 4]> -> %y <f32, 64*i0 + 32*i1, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 2*core : 2 in 8> stage 2 : !fisa.buffer<nram> -> !fisa.buffer<dram>
      }
    }
  }
}

// CHECK: %[[HELD:.*]] = fisa.alloc bytes 64 : !fisa.buffer<nram>
// CHECK-NEXT: fisa.repeat 2 {
// CHECK-NEXT: fisa.copy mvdma {{.*}} <f32, 32*i0, [0, 0, 32, 4]> -> %[[HELD]] <f32, 32*i0, [0, 0, 32, 4]> box <{{.*}} 1*i0 : 1 in 2, 0 : 8 in 8>
// CHECK: fisa.repeat 5 {
// CHECK: fisa.copy mvdma {{.*}} <f32, 32*i0,
// CHECK: fisa.repeat 2 stage 1 {
// CHECK-NOT: fisa.copy mvdma
// CHECK: fisa.binary add {{.*}}, %[[HELD]] <f32, 32*i1,
