// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-allocate,frustum-schedule' | filecheck %s

// A map of 24 rows of 8 numbers, two rows a pass into a ring of 6; windows of 4 rows, of which the last two are new, go
// out again by every core, a column each.  With a slack of 2 a load waits for the windows of two passes before.
builtin.module attributes {frustum.dtype = "f32", frustum.layers = ["window"], frustum.units = ["u0"]} {
  fisa.program @main {
    %x = fisa.external input "x" bytes 768 shape [24, 8] f32
    %y = fisa.external output "y" bytes 1536 shape [12, 4, 8] f32
    fisa.repeat 12 {
      %ring = fisa.alloc bytes 192 rolling 2 : !fisa.buffer<sram>
      %tile = fisa.alloc bytes 32 depth 2 : !fisa.buffer<nram>
      fisa.copy gdma %x <f32, 64*i0, [0, 0, 32, 4]> -> %ring <f32, 0, [0, 0, 32, 4], wrap 2 mod 6> box <0 : 1 in 1, 0 : 1 in 1, 2*i0 : 2 in 24, 0 : 8 in 8> : !fisa.buffer<dram> -> !fisa.buffer<sram>
      fisa.copy mvdma %ring <f32, 8*core, [0, 0, 32, 4], wrap 2 mod 6> -> %tile <f32, 0, [0, 0, 8, 4]> box <0 : 1 in 1, 0 : 1 in 1, -2 + 2*i0 : 4 in 24, 2*core : 2 in 8> fill <0.0> stage 1 : !fisa.buffer<sram> -> !fisa.buffer<nram>
      fisa.copy iodma %tile <f32, 0, [0, 0, 8, 4]> -> %y <f32, 128*i0 + 8*core, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 4 in 4, 2*core : 2 in 8> stage 2 : !fisa.buffer<nram> -> !fisa.buffer<dram>
    }
  }
}

// CHECK: frustum.peak = {dram = array<i64: 2304>, sram = array<i64: 192>, nram = array<i64: 64>, wram = array<i64: 0>}
// CHECK: fisa.alloc bytes 192 rolling 2 address 0 : !fisa.buffer<sram>
// CHECK: fisa.alloc bytes 32 depth 2 address 0 : !fisa.buffer<nram>
// CHECK: fisa.copy gdma {{.*}}wrap 2 mod 6{{.*}} waits <cores [[#]] at -1 + 1*i0> signal
// CHECK: fisa.copy mvdma {{.*}} stage 1 waits <cluster [[#]] at 1 + 1*i0
