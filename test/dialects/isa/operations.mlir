// RUN: frustum-opt %s | filecheck %s
// RUN: frustum-opt %s | frustum-opt | filecheck %s
// RUN: frustum-opt %s --print-op-generic | frustum-opt | filecheck %s
// RUN: frustum-opt %s -p canonicalize | filecheck %s

builtin.module attributes {frustum.dtype = "f32", frustum.layers = ["conv1"], frustum.units = ["u0"]} {
  fisa.program @main {
    %in = fisa.external input "data" bytes 1024 shape [1, 4, 8, 8] f32 model_dtype "float64" address 4096
    %k = fisa.external weight "conv1_w" bytes 576 shape [4, 4, 3, 3] f32
    %s = fisa.alloc bytes 512 depth 2 : !fisa.buffer<sram>
    %s2 = fisa.alloc bytes 512 : !fisa.buffer<sram>
    %w = fisa.alloc bytes 576 : !fisa.buffer<wram>
    %acc = fisa.alloc bytes 1024 : !fisa.buffer<nram>
    fisa.repeat 4 {
      %x = fisa.alloc bytes 512 depth 3 address 64 : !fisa.buffer<nram>
      fisa.copy gdma %in <f32, 64*i0, [0, 256, 32, 4]> -> %s <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 2*i0 : 2 in 8, 0 : 8 in 8> multicast signal 0 : !fisa.buffer<dram> -> !fisa.buffer<sram>
      fisa.copy mvdma %s <f32, 16 + 4*i0 - 8*i2 + 512*core + 3*cluster, [0, 256, 32, 4]> -> %x <f32, 0, [0, 256, 40, 4]> box <0 : 1 in 1, 0 : 4 in 4, -1 + 2*i0 : 4 in 8 to 6, -1 : 10 in 8> fill <-inf> stage 1 waits <cluster 0 at 1 + 1*i0> signal 1 : !fisa.buffer<sram> -> !fisa.buffer<nram>
      fisa.copy cdma %s <f32, 0, [0, 0, 0, 4]> -> %s2 <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> peer <1 + 1*cluster> waits <cores 1 at 1, all_cores 1 at 2, all_clusters 0 at 1*i0> : !fisa.buffer<sram> -> !fisa.buffer<sram>
      fisa.copy gdma %in <f32, 0, [0, 256, 32, 4]> -> %s2 <f32, 0, [0, 0, 32, 4], wrap 2 + 3*i0 mod 4> box <0 : 1 in 1, 0 : 1 in 4, 2*i0 : 4 in 8, 0 : 8 in 8> : !fisa.buffer<dram> -> !fisa.buffer<sram>
      fisa.copy bus %s <f32, 0, [144, 36, 12, 4]> -> %w <f32, 0, [144, 36, 12, 4]> box <0 : 4 in 4, 0 : 4 in 4, 0 : 3 in 3, 0 : 3 in 3> : !fisa.buffer<sram> -> !fisa.buffer<wram>
      fisa.copy bus %s <f32, 48*i0, [0, 0, 0, 0]> -> %w <f32, 0, [144, 36, 12, 4]> box <0 : 4 in 4, 0 : 4 in 4, 0 : 3 in 3, 0 : 3 in 3> expand 48 : !fisa.buffer<sram> -> !fisa.buffer<wram>
      fisa.conv in %x <f32, 0, [0, 256, 40, 4]> weight %w <f32, 0, [144, 36, 12, 4]> out %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 2*i0 : 2 in 8, 0 : 8 in 8> channels <0 : 4 in 4> rows <-1 + 2*i0 : 4 in 8> cols <-1 : 10 in 8> kernel [3, 3] strides [1, 1] dilations [1, 1] act <relu> stage 2 waits <own 1 at 1*i0> signal 2 layer 1
      fisa.line_buffer continuous in blocks 2 lines 16 shift 2 then 1 at 9 padding [1, 1, 0, 1] discard [4, 6, 2] stage 1
      fisa.line_buffer split in blocks 1 lines 8 shift 1 then 1 at 10
      fisa.conv in %x <f32, 0, [0, 256, 40, 4]> weight %w <f32, 0, [144, 36, 12, 4]> bias %w : !fisa.buffer<wram> <f32, 0, [0, 4, 0, 0]> acc %acc <f32, 0, [0, 256, 32, 4]> out %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> channels <0 : 2 in 2> rows <-1 : 4 in 8> cols <-1 : 10 in 8> kernel [3, 3] strides [2, 1] dilations [1, 2] groups 2 accumulate 0 act <clip, 0.0, 6.0> line_mode "continuous" table 3
      fisa.pool avg %x <f32, 0, [0, 256, 40, 4]> -> %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> rows <0 : 4 in 8> cols <0 : 10 in 8> kernel [2, 2] strides [1, 1] dilations [1, 1] include_pad pad_low [1, 0] pad_high [0, 1] act <leaky_relu, 0.1, 0.0> unit 1
      fisa.unary clip %x <f32, 0, [0, 0, 0, 4]> -> %x <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> alpha <-inf> beta <1.0e-07>
      fisa.binary add %x <f32, 0, [0, 0, 0, 4]>, %acc <f32, 0, [0, 0, 0, 0]> -> %x <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> act <sigmoid>
      fisa.softmax %x <f32, 0, [0, 0, 0, 4]> -> %x <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> axis 3
      fisa.hide %x <f32, 0, [0, 4, 0, 32]> -> %x <f32, 0, [0, 4, 0, 32]> box <0 : 1 in 1, 0 : 8 in 8, 0 : 1 in 1, 0 : 4 in 4> ahead -2
      fisa.reduce mean %x <f32, 0, [0, 256, 32, 4]> -> %acc <f32, 0, [0, 4, 0, 0]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> axes [2, 3] scale <0.0625> accumulate 0
      fisa.lrn %x <f32, 0, [0, 256, 32, 4]> -> %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> channels <-2 : 8 in 4> size 5 alpha 0.0001 beta 0.75 bias 1.0
      fisa.resize linear floor %x <f32, 0, [0, 256, 32, 4]> -> %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> rows <0 : 2 in 4> cols <0 : 4 in 4> scale <0.5, 0.5> offset <-0.25, -0.25>
      fisa.wait matrix waits <cluster 0 at 4> signal 3
    }
    fisa.table %k <i8, 64, [0, 0, 0, 1]> bytes 48 entry 3 evicts [0, 5] signal 1
    fisa.fetch 1 signal 1
    fisa.barrier
  }
}

// CHECK:      builtin.module attributes {frustum.dtype = "f32", frustum.layers = ["conv1"], frustum.units = ["u0"]} {
// CHECK-NEXT: fisa.program @main {
// CHECK-NEXT: %in = fisa.external input "data" bytes 1024 shape [1, 4, 8, 8] f32 model_dtype "float64" address 4096
// CHECK-NEXT: %k = fisa.external weight "conv1_w" bytes 576 shape [4, 4, 3, 3] f32
// CHECK-NEXT: %s = fisa.alloc bytes 512 depth 2 : !fisa.buffer<sram>
// CHECK-NEXT: %s2 = fisa.alloc bytes 512 : !fisa.buffer<sram>
// CHECK-NEXT: %w = fisa.alloc bytes 576 : !fisa.buffer<wram>
// CHECK-NEXT: %acc = fisa.alloc bytes 1024 : !fisa.buffer<nram>
// CHECK-NEXT: fisa.repeat 4 {
// CHECK-NEXT: %x = fisa.alloc bytes 512 depth 3 address 64 : !fisa.buffer<nram>
// CHECK-NEXT: fisa.copy gdma %in <f32, 64*i0, [0, 256, 32, 4]> -> %s <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 2*i0 : 2 in 8, 0 : 8 in 8> multicast signal 0 : !fisa.buffer<dram> -> !fisa.buffer<sram>
// CHECK-NEXT: fisa.copy mvdma %s <f32, 16 + 4*i0 - 8*i2 + 512*core + 3*cluster, [0, 256, 32, 4]> -> %x <f32, 0, [0, 256, 40, 4]> box <0 : 1 in 1, 0 : 4 in 4, -1 + 2*i0 : 4 in 8 to 6, -1 : 10 in 8> fill <-inf> stage 1 waits <cluster 0 at 1 + 1*i0> signal 1 : !fisa.buffer<sram> -> !fisa.buffer<nram>
// CHECK-NEXT: fisa.copy cdma %s <f32, 0, [0, 0, 0, 4]> -> %s2 <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> peer <1 + 1*cluster> waits <cores 1 at 1, all_cores 1 at 2, all_clusters 0 at 1*i0> : !fisa.buffer<sram> -> !fisa.buffer<sram>
// CHECK-NEXT: fisa.copy gdma %in <f32, 0, [0, 256, 32, 4]> -> %s2 <f32, 0, [0, 0, 32, 4], wrap 2 + 3*i0 mod 4> box <0 : 1 in 1, 0 : 1 in 4, 2*i0 : 4 in 8, 0 : 8 in 8> : !fisa.buffer<dram> -> !fisa.buffer<sram>
// CHECK-NEXT: fisa.copy bus %s <f32, 0, [144, 36, 12, 4]> -> %w <f32, 0, [144, 36, 12, 4]> box <0 : 4 in 4, 0 : 4 in 4, 0 : 3 in 3, 0 : 3 in 3> : !fisa.buffer<sram> -> !fisa.buffer<wram>
// CHECK-NEXT: fisa.copy bus %s <f32, 48*i0, [0, 0, 0, 0]> -> %w <f32, 0, [144, 36, 12, 4]> box <0 : 4 in 4, 0 : 4 in 4, 0 : 3 in 3, 0 : 3 in 3> expand 48 : !fisa.buffer<sram> -> !fisa.buffer<wram>
// CHECK-NEXT: fisa.conv in %x <f32, 0, [0, 256, 40, 4]> weight %w <f32, 0, [144, 36, 12, 4]> out %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 2*i0 : 2 in 8, 0 : 8 in 8> channels <0 : 4 in 4> rows <-1 + 2*i0 : 4 in 8> cols <-1 : 10 in 8> kernel [3, 3] strides [1, 1] dilations [1, 1] act <relu> stage 2 waits <own 1 at 1*i0> signal 2 layer 1
// CHECK-NEXT: fisa.line_buffer continuous in blocks 2 lines 16 shift 2 then 1 at 9 padding [1, 1, 0, 1] discard [4, 6, 2] stage 1
// CHECK-NEXT: fisa.line_buffer split in blocks 1 lines 8 shift 1 then 1 at 10
// CHECK-NEXT: fisa.conv in %x <f32, 0, [0, 256, 40, 4]> weight %w <f32, 0, [144, 36, 12, 4]> bias %w : !fisa.buffer<wram> <f32, 0, [0, 4, 0, 0]> acc %acc <f32, 0, [0, 256, 32, 4]> out %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> channels <0 : 2 in 2> rows <-1 : 4 in 8> cols <-1 : 10 in 8> kernel [3, 3] strides [2, 1] dilations [1, 2] groups 2 accumulate 0 act <clip, 0.0, 6.0> line_mode "continuous" table 3
// CHECK-NEXT: fisa.pool avg %x <f32, 0, [0, 256, 40, 4]> -> %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> rows <0 : 4 in 8> cols <0 : 10 in 8> kernel [2, 2] strides [1, 1] dilations [1, 1] include_pad pad_low [1, 0] pad_high [0, 1] act <leaky_relu, 0.1, 0.0> unit 1
// CHECK-NEXT: fisa.unary clip %x <f32, 0, [0, 0, 0, 4]> -> %x <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> alpha <-inf> beta <1.0e-07>
// CHECK-NEXT: fisa.binary add %x <f32, 0, [0, 0, 0, 4]>, %acc <f32, 0, [0, 0, 0, 0]> -> %x <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> act <sigmoid>
// CHECK-NEXT: fisa.softmax %x <f32, 0, [0, 0, 0, 4]> -> %x <f32, 0, [0, 0, 0, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> axis 3
// CHECK-NEXT: fisa.hide %x <f32, 0, [0, 4, 0, 32]> -> %x <f32, 0, [0, 4, 0, 32]> box <0 : 1 in 1, 0 : 8 in 8, 0 : 1 in 1, 0 : 4 in 4> ahead -2
// CHECK-NEXT: fisa.reduce mean %x <f32, 0, [0, 256, 32, 4]> -> %acc <f32, 0, [0, 4, 0, 0]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> axes [2, 3] scale <0.0625> accumulate 0
// CHECK-NEXT: fisa.lrn %x <f32, 0, [0, 256, 32, 4]> -> %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> channels <-2 : 8 in 4> size 5 alpha 0.0001 beta 0.75 bias 1.0
// CHECK-NEXT: fisa.resize linear floor %x <f32, 0, [0, 256, 32, 4]> -> %acc <f32, 0, [0, 256, 32, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 2 in 8, 0 : 8 in 8> rows <0 : 2 in 4> cols <0 : 4 in 4> scale <0.5, 0.5> offset <-0.25, -0.25>
// CHECK-NEXT: fisa.wait matrix waits <cluster 0 at 4> signal 3
// CHECK-NEXT: }
// CHECK-NEXT: fisa.table %k <i8, 64, [0, 0, 0, 1]> bytes 48 entry 3 evicts [0, 5] signal 1
// CHECK-NEXT: fisa.fetch 1 signal 1
// CHECK-NEXT: fisa.barrier
// CHECK-NEXT: }
// CHECK-NEXT: }
