// RUN: frustum-opt %s -p 'frustum-set-target{target=edge},frustum-lower-make-address-tables' | filecheck %s
// RUN: xdsl-opt %s -p 'frustum-set-target{target=edge},frustum-lower-make-address-tables' | filecheck %s

// Two convolutions of equal geometry, one of another: two tables, in a section of their own before the first use.

builtin.module attributes {frustum.dtype = "f32", frustum.layers = ["a"], frustum.units = ["u"]} {
  fisa.program @main {
    %x = fisa.alloc bytes 2048 : !fisa.buffer<nram>
    %w = fisa.alloc bytes 1024 : !fisa.buffer<wram>
    %y = fisa.alloc bytes 1024 : !fisa.buffer<nram>
    fisa.conv in %x <f32, 0, [0, 256, 32, 4]> weight %w <f32, 0, [72, 36, 12, 4]> out %y <f32, 0, [0, 144, 24, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 6 in 6, 0 : 6 in 6> channels <0 : 2 in 2> rows <0 : 8 in 8> cols <0 : 8 in 8> kernel [3, 3] strides [1, 1] dilations [1, 1]
    fisa.conv in %x <f32, 512, [0, 256, 32, 4]> weight %w <f32, 0, [72, 36, 12, 4]> out %y <f32, 0, [0, 144, 24, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 6 in 6, 0 : 6 in 6> channels <0 : 2 in 2> rows <0 : 8 in 8> cols <0 : 8 in 8> kernel [3, 3] strides [1, 1] dilations [1, 1]
    fisa.conv in %x <f32, 0, [0, 256, 32, 4]> weight %w <f32, 0, [72, 36, 12, 4]> out %y <f32, 0, [0, 144, 24, 4]> box <0 : 1 in 1, 0 : 4 in 4, 0 : 8 in 8, 0 : 8 in 8> channels <0 : 2 in 2> rows <0 : 8 in 8> cols <0 : 8 in 8> kernel [1, 1] strides [1, 1] dilations [1, 1]
  }
}

// CHECK:      %0 = fisa.external program "table:{{[0-9a-f]+}}" bytes 48 shape [48] i8
// CHECK-NEXT: %1 = fisa.external program "table:{{[0-9a-f]+}}" bytes 48 shape [48] i8
// CHECK-NEXT: fisa.table %1 <i8, 0, [0, 0, 0, 1]> bytes 48 entry 0
// CHECK-NEXT: fisa.table %0 <i8, 0, [0, 0, 0, 1]> bytes 48 entry 1
// CHECK-NEXT: fisa.barrier
// CHECK:      fisa.conv {{.*}} table 0
// CHECK:      fisa.conv {{.*}} table 0
// CHECK:      fisa.conv {{.*}} table 1
