// RUN: frustum-opt %s -p 'frustum-set-target{target=line64},frustum-lower-choose-line-buffer' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=line64},frustum-lower-choose-line-buffer,frustum-lower-choose-line-buffer' | filecheck %s
// RUN: frustum-opt %s -p 'frustum-set-target{target=line64},frustum-lower-choose-line-buffer{mode=split}' | filecheck %s --check-prefix SPLIT
// RUN: frustum-opt %s -p 'frustum-set-target{target=line64},frustum-lower-choose-line-buffer{mode=continuous}' | filecheck %s --check-prefix LONG
// RUN: not frustum-opt %s -p frustum-lower-choose-line-buffer 2>&1 | filecheck %s --check-prefix NO-TARGET

// NO-TARGET: the module has no attribute 'frustum.target': run frustum-set-target

// A 3x3 convolution of a 7x7 map (rows without border in NRAM), and a wide one in a loop, among foreign operations;
// then one of a map with its channels inside, which has no set-up.
builtin.module {
  func.func @other(%a : i32) -> i32 {
    func.return %a : i32
  }
  fisa.program @main {
    %x = fisa.alloc bytes 4096 : !fisa.buffer<nram>
    %w = fisa.alloc bytes 4096 : !fisa.buffer<wram>
    "test.op"() : () -> ()
    fisa.conv in %x <f16, 0, [0, 98, 14, 2]> weight %w <f16, 0, [144, 18, 6, 2]> out %x <f16, 0, [0, 98, 14, 2]> box <0 : 1 in 1, 0 : 8 in 8, 0 : 7 in 7, 0 : 7 in 7> channels <0 : 8 in 8> rows <-1 : 9 in 7> cols <-1 : 9 in 7> kernel [3, 3] strides [1, 1] dilations [1, 1] layer 4
    fisa.repeat 2 {
      fisa.conv in %x <f16, 0, [0, 800, 80, 2]> weight %w <f16, 0, [144, 18, 6, 2]> out %x <f16, 0, [0, 608, 76, 2]> box <0 : 1 in 1, 0 : 8 in 8, 0 : 4 in 4, 20*i0 : 20 in 38> channels <0 : 8 in 8> rows <0 : 6 in 6> cols <20*i0 : 22 in 40> kernel [3, 3] strides [1, 1] dilations [1, 1] stage 1
    }
    fisa.conv in %x <f16, 0, [0, 2, 112, 16]> weight %w <f16, 0, [16, 2, 2, 2]> out %x <f16, 0, [0, 98, 14, 2]> box <0 : 1 in 1, 0 : 8 in 8, 0 : 7 in 7, 0 : 7 in 7> channels <0 : 8 in 8> rows <0 : 7 in 7> cols <0 : 7 in 7> kernel [1, 1] strides [1, 1] dilations [1, 1] layer 5
  }
}

// CHECK:      func.func @other
// CHECK:      "test.op"() : () -> ()
// CHECK-NEXT: fisa.line_buffer continuous in blocks 5 lines 61 shift 1 then 1 at 9 padding [1, 1, 1, 1] discard [7, 9, 2] layer 4
// CHECK-NEXT: fisa.conv {{.*}} line_mode "continuous" layer 4
// CHECK-NEXT: fisa.repeat 2 {
// CHECK-NEXT: fisa.line_buffer split in blocks 2 lines 20 shift 1 then 1 at 40 stage 1
// CHECK-NEXT: fisa.conv {{.*}} dilations [1, 1] stage 1
// CHECK-NEXT: }
// CHECK-NEXT: fisa.conv {{.*}} line_mode "channels_last" layer 5

// SPLIT:      fisa.line_buffer split in blocks 1 lines 7 shift 1 then 1 at 9 padding [1, 1, 1, 1] layer 4
// SPLIT-NEXT: fisa.conv {{.*}} dilations [1, 1] layer 4
// SPLIT:      }
// SPLIT-NEXT: fisa.conv {{.*}} line_mode "channels_last" layer 5

// LONG:      fisa.repeat 2 {
// LONG-NEXT: fisa.line_buffer continuous in blocks 5 lines 64 shift 1 then 1 at 40 discard [20, 40, 20] stage 1
// LONG-NEXT: fisa.conv {{.*}} line_mode "continuous" stage 1
// LONG-NEXT: }
// LONG-NEXT: fisa.conv {{.*}} line_mode "channels_last" layer 5
