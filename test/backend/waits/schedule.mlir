// RUN: frustum-opt %s -p 'frustum-allocate{copies=2}' | filecheck %s --check-prefix PLACES
// RUN: frustum-opt %s -p 'frustum-allocate{copies=2},frustum-schedule' | filecheck %s --check-prefix EVENTS
// RUN: frustum-opt %s -p 'frustum-allocate{copies=2},frustum-schedule' | frustum-opt -p frustum-schedule | filecheck %s --check-prefix EVENTS
// RUN: not frustum-opt %s -p frustum-schedule 2>&1 | filecheck %s --check-prefix EARLY

// EARLY: 'fisa.external': no address; run frustum-allocate before frustum-schedule

// A weight that stays, tiles that pass through: loaded, moved, convolved and stored in three stages.
builtin.module attributes {frustum.target = {name = "edge", modelled_on = "a small embedded NPU", clock_hz = 500000000 : i64, chips = 1 : i64, host_link_bytes_per_cycle = 4 : i64, alignment_bytes = 16 : i64, transfers = {chunk_bytes = 4096 : i64, in_flight = 4 : i64}, chip = {clusters = 1 : i64, dram = {capacity_bytes = 1073741824 : i64, port_bytes_per_cycle = 8 : i64, latency_cycles = 100 : i64, energy_pj_per_byte = 1.600000e+02 : f64, minimum_run_bytes = 64 : i64}, cluster = {cores = 4 : i64, instruction_memory_bytes = 32768 : i64, event_slots = 64 : i64, sram = {capacity_bytes = 524288 : i64, port_bytes_per_cycle = 64 : i64, latency_cycles = 10 : i64, energy_pj_per_byte = 5.000000e+00 : f64, minimum_run_bytes = 16 : i64}, gdma = {bytes_per_cycle = 8 : i64}, bus = {bytes_per_cycle = 16 : i64}, core = {nram = {capacity_bytes = 65536 : i64, port_bytes_per_cycle = 64 : i64, latency_cycles = 2 : i64, energy_pj_per_byte = 1.000000e+00 : f64, minimum_run_bytes = 16 : i64}, wram = {capacity_bytes = 65536 : i64, port_bytes_per_cycle = 64 : i64, latency_cycles = 2 : i64, energy_pj_per_byte = 1.000000e+00 : f64, minimum_run_bytes = 16 : i64}, iodma = {bytes_per_cycle = 4 : i64}, mvdma = {bytes_per_cycle = 16 : i64}, matrix = {channels = 16 : i64, line_buffer = {lines = 16 : i64, block_bytes = 32 : i64}, cycles_per_step = {int8 = 1 : i64, sixteen_bit = 2 : i64, f32 = 8 : i64}, energy_pj_per_mac = {int8 = 2.000000e-01 : f64, sixteen_bit = 8.000000e-01 : f64, f32 = 3.000000e+00 : f64}}, vector = {lanes = 16 : i64, cycles_per_element = {int8 = 1 : i64, sixteen_bit = 1 : i64, f32 = 2 : i64}, passes = {elementary = 1 : i64, transcendental = 4 : i64, pool_per_kernel_element = 1 : i64, lrn_per_window_element = 1 : i64, reduction = 1 : i64, resize_nearest = 1 : i64, resize_linear = 4 : i64}}, address_cache_bytes = 4096 : i64}}}, options = {}}} {
  fisa.program @main {
    %0 = fisa.external input "x" bytes 4096 shape [1024] f32
    %1 = fisa.external output "y" bytes 4096 shape [1024] f32
    %2 = fisa.external weight "w" bytes 1000 shape [250] f32
    %3 = fisa.alloc bytes 1008 : !fisa.buffer<sram>
    %4 = fisa.alloc bytes 1008 : !fisa.buffer<wram>
    fisa.copy gdma %2 <f32, 0, [4, 4, 4, 4]> -> %3 <f32, 0, [4, 4, 4, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<dram> -> !fisa.buffer<sram>
    fisa.copy bus %3 <f32, 0, [4, 4, 4, 4]> -> %4 <f32, 0, [4, 4, 4, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<sram> -> !fisa.buffer<wram>
    fisa.repeat 8 {
      %5 = fisa.alloc bytes 512 depth 2 : !fisa.buffer<sram>
      %6 = fisa.alloc bytes 512 depth 2 : !fisa.buffer<nram>
      %7 = fisa.alloc bytes 512 depth 2 : !fisa.buffer<nram>
      fisa.copy gdma %0 <f32, 0, [4, 4, 4, 4]> -> %5 <f32, 0, [4, 4, 4, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1> : !fisa.buffer<dram> -> !fisa.buffer<sram>
      fisa.copy mvdma %5 <f32, 0, [4, 4, 4, 4]> -> %6 <f32, 0, [4, 4, 4, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1> stage 1 : !fisa.buffer<sram> -> !fisa.buffer<nram>
      fisa.conv in %6 <f32, 0, [4, 4, 4, 4]> weight %4 <f32, 0, [4, 4, 4, 4]> out %7 <f32, 0, [4, 4, 4, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1> channels <0 : 1 in 1> rows <0 : 1 in 1> cols <0 : 1 in 1> kernel [1, 1] strides [1, 1] dilations [1, 1] stage 1
      fisa.copy iodma %7 <f32, 0, [4, 4, 4, 4]> -> %1 <f32, 0, [4, 4, 4, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1> stage 2 : !fisa.buffer<nram> -> !fisa.buffer<dram>
    }
  }
}

// PLACES: frustum.peak = {dram = array<i64: 9216>, sram = array<i64: 2032>, nram = array<i64: 2048>, wram = array<i64: 1008>}
// PLACES: fisa.external input "x" {{.*}} address 1024
// PLACES: fisa.external output "y" {{.*}} address 5120
// PLACES: fisa.external weight "w" {{.*}} address 0
// PLACES: fisa.alloc bytes 1008 address 0 : !fisa.buffer<sram>
// PLACES: fisa.alloc bytes 1008 address 0 : !fisa.buffer<wram>
// PLACES: fisa.alloc bytes 512 depth 2 address 1008 : !fisa.buffer<sram>
// PLACES: fisa.alloc bytes 512 depth 2 address 0 : !fisa.buffer<nram>
// PLACES: fisa.alloc bytes 512 depth 2 address 1024 : !fisa.buffer<nram>

// EVENTS: fisa.copy gdma {{.*}}> signal 0 :
// EVENTS: fisa.copy bus {{.*}} waits <own 0 at 1> signal 1 :
// EVENTS: fisa.copy gdma {{.*}} waits <cores 0 at -1 + 1*i0> signal 2 :
// EVENTS: fisa.copy mvdma {{.*}} stage 1 waits <cluster 2 at 1 + 1*i0, own 1 at -1 + 1*i0> signal 0 :
// EVENTS: fisa.conv {{.*}} stage 1 waits <own 0 at 1 + 1*i0, cluster 1 at 1, own 2 at -1 + 1*i0> signal 1
// EVENTS: fisa.copy iodma {{.*}} stage 2 waits <own 1 at 1 + 1*i0> signal 2 :
