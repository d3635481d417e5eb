# Tests: test/runtime/kernels/test_kernels.py
"""What convolutions need beside the matrix product, compiled by numba: windows as columns, the way out, floats of
16 bits.

Importing this module imports numba.  (As in `copy_loop.py` all constants are here.)
`memory` and `halves` are the flat memory as f32 and as 16-bit elements, `call` is a row of the table of calls,
`cells` the rows of its units.  All addresses and strides count elements of the operand's own type, addresses from
the start of the flat memory.
"""

import numpy as np

from frustum.dialects.loops import compiled, entry
from frustum.runtime.kernels.copy_loop import move_run

# Types of elements.
F32, F16, BF16 = range(3)

# Columns of a row of the table of calls, one for each group of equal units.
IMAGES, OUTPUTS, ROWS, COLUMNS, CHANNELS, GROUPS = range(6)
"""Of the output; input channels of a group."""
KERNEL, STRIDES, DILATIONS = 6, 8, 10
GROUP_STRIDE = 12
"""Of the input, from group to group."""
IN_STRIDES, ACC_STRIDES, OUT_STRIDES, RESIDUAL_STRIDES = 13, 17, 21, 25  # n, c, h, w
WEIGHT_STRIDES = 29  # co, ci, kh, kw
BIAS_STRIDE = 33
IN_TYPE, WEIGHT_TYPE, BIAS_TYPE, RESIDUAL_TYPE, OUT_TYPE = range(34, 39)
IS_FIRST, IS_LAST, HAS_BIAS, HAS_RESIDUAL = range(39, 43)
ACT = 43
"""What happens last; numbers of `ACTS`."""
PER_GROUP = 44
"""Outputs of a group."""
ACC_TYPE = 45
"""f32, or the element type, where sums wait outside of the core."""
CALLS = 46

# Columns of a row of `cells`: one for each unit of a group.
IN_AT, WEIGHT_AT, BIAS_AT, ACC_AT, OUT_AT, RESIDUAL_AT = range(6)
READ, LOW = 6, 8
"""Rows and columns of the input that exist, and how many of padding come before them."""
CELLS = 10

NO_ACT, RELU, CLIP, LEAKY_RELU, OTHER_ACT = range(5)
ACTS: dict[str | None, int] = {None: NO_ACT, "relu": RELU, "clip": CLIP, "leaky_relu": LEAKY_RELU}
"""Kinds of activation that `finish` knows; all others are `OTHER_ACT`."""

START, STOP = range(2)


@entry("void(float32[::1], int64[::1], int64[:, ::1], float32[::1], int64, int64)")
def gather(source, call, cells, columns, first_row, rows):
    """Windows of every cell as columns `[cells, groups, channels * kernel, images * rows * columns]`."""
    high, wide = call[KERNEL], call[KERNEL + 1]
    width = call[COLUMNS]
    across, down = np.empty((wide, 2), np.int64), np.empty((high, 2), np.int64)
    back_n, back_c, back_h, back_w = call[IN_STRIDES], call[IN_STRIDES + 1], call[IN_STRIDES + 2], call[IN_STRIDES + 3]
    step_h, step_w = call[STRIDES] * back_h, call[STRIDES + 1] * back_w
    to = 0
    for cell in cells:
        inside(across, width, 0, call[STRIDES + 1], call[DILATIONS + 1], cell[LOW + 1], cell[READ + 1])
        inside(down, rows, first_row, call[STRIDES], call[DILATIONS], cell[LOW], cell[READ])
        for group in range(call[GROUPS]):
            for channel in range(call[CHANNELS]):
                plane = cell[IN_AT] + group * call[GROUP_STRIDE] + channel * back_c
                for i in range(high):
                    y = first_row * call[STRIDES] + i * call[DILATIONS] - cell[LOW]
                    top, bottom = down[i, START], down[i, STOP]
                    for j in range(wide):
                        x = j * call[DILATIONS + 1] - cell[LOW + 1]
                        left, right = across[j, START], across[j, STOP]
                        for image in range(call[IMAGES]):
                            start = plane + image * back_n + y * back_h + x * back_w
                            one_tap(
                                source, start, step_h, step_w, columns, to, rows, width, top, bottom, left, right
                            )
                            to += rows * width


@compiled
def inside(ends, count, first, stride, dilation, low, read):
    """For each tap of an axis the range of outputs `[start, stop)` whose position there exists."""
    for tap in range(ends.shape[0]):
        before = low - tap * dilation - first * stride
        start = max(0, -(-before // stride))
        stop = min(count, (before + read - 1) // stride + 1)
        ends[tap, START], ends[tap, STOP] = (start, stop) if start < stop else (count, count)


@compiled
def one_tap(source, start, step_h, step_w, columns, to, rows, width, top, bottom, left, right):
    """What one tap sees of a channel, 0 outside `[top, bottom)` and `[left, right)`."""
    if left == right or top == bottom:
        columns[to : to + rows * width] = 0
        return
    columns[to : to + top * width] = 0
    columns[to + bottom * width : to + rows * width] = 0
    if step_w == 1 and step_h == width:  # rows follow each other as they do in the columns
        first = to + top * width + left
        move_run(columns, first, source, start + top * step_h + left, (bottom - top - 1) * width + right - left)
    elif step_w == 1:
        for y in range(top, bottom):
            move_run(columns, to + y * width + left, source, start + y * step_h + left, right - left)
    else:
        for y in range(top, bottom):
            here = start + y * step_h + left * step_w
            collect_run(columns, to + y * width + left, source, here, step_w, right - left)
    for y in range(top, bottom):
        clear(columns, to + y * width, left)
        clear(columns, to + y * width + right, width - right)


@compiled
def collect_run(columns, to, source, start, step, count):
    """Elements that lie `step` apart, one behind the other."""
    if step == 2:  # with a step that the compiler knows, several at once
        here, there = np.uint64(start), np.uint64(to)
        for i in range(np.uint64(count)):
            columns[there + i] = source[here + np.uint64(2) * i]
    else:
        for i in range(count):
            columns[to + i] = source[start + i * step]


@compiled
def clear(columns, start, count):
    for i in range(count):
        columns[start + i] = 0


@entry("void(float32[::1], float32[::1], int64[::1], int64[:, ::1], float32[::1], int64, int64)")
def depthwise(source, weights, call, cells, result, first_row, rows):
    """Products of groups of one channel: `result` `[cells, outputs, images * rows * columns]`."""
    high, wide = call[KERNEL], call[KERNEL + 1]
    width = call[COLUMNS]
    across, down = np.empty((wide, 2), np.int64), np.empty((high, 2), np.int64)
    back_h, back_w = call[IN_STRIDES + 2], call[IN_STRIDES + 3]
    step_h, step_w = call[STRIDES] * back_h, call[STRIDES + 1] * back_w
    result[:] = 0
    to = 0
    for cell in cells:
        inside(across, width, 0, call[STRIDES + 1], call[DILATIONS + 1], cell[LOW + 1], cell[READ + 1])
        inside(down, rows, first_row, call[STRIDES], call[DILATIONS], cell[LOW], cell[READ])
        for output in range(call[OUTPUTS]):
            group = output // call[PER_GROUP]
            for image in range(call[IMAGES]):
                plane = cell[IN_AT] + group * call[GROUP_STRIDE] + image * call[IN_STRIDES]
                for i in range(high):
                    y = first_row * call[STRIDES] + i * call[DILATIONS] - cell[LOW]
                    for j in range(wide):
                        x = j * call[DILATIONS + 1] - cell[LOW + 1]
                        at = cell[WEIGHT_AT] + output * call[WEIGHT_STRIDES]
                        weight = weights[at + i * call[WEIGHT_STRIDES + 2] + j * call[WEIGHT_STRIDES + 3]]
                        start = plane + y * back_h + x * back_w
                        for row in range(down[i, START], down[i, STOP]):
                            left, right = across[j, START], across[j, STOP]
                            add_run(
                                result, to + row * width + left, source, start + row * step_h + left * step_w,
                                step_w, weight, right - left,
                            )  # fmt: skip
                to += rows * width


@compiled
def add_run(result, to, source, start, step, weight, count):
    if step == 1:
        here, there = np.uint64(start), np.uint64(to)
        for i in range(np.uint64(count)):
            result[there + i] += weight * source[here + i]
    else:
        for i in range(count):
            result[to + i] += weight * source[start + i * step]


@entry("void(uint16[::1], int64[::1], int64[:, ::1], float32[::1], int64, int64)")
def widen_inputs(halves, call, cells, numbers, high, wide):
    """What exists of every cell's input as f32 `[cells, groups, channels, images, high, wide]`, rows and columns
    that a cell lacks left as they are."""
    brain = call[IN_TYPE] == BF16
    to = 0
    for cell in cells:
        for group in range(call[GROUPS]):
            for channel in range(call[CHANNELS]):
                plane = cell[IN_AT] + group * call[GROUP_STRIDE] + channel * call[IN_STRIDES + 1]
                for image in range(call[IMAGES]):
                    start = plane + image * call[IN_STRIDES]
                    widen_box(
                        halves, start, call[IN_STRIDES + 2], call[IN_STRIDES + 3], brain, numbers, to, cell[READ],
                        cell[READ + 1], wide,
                    )  # fmt: skip
                    to += high * wide


@entry("void(uint16[::1], int64[::1], int64[:, ::1], float32[::1])")
def widen_weights(halves, call, cells, numbers):
    """The weights of every cell as f32 `[cells, outputs, channels, kernel]`."""
    brain = call[WEIGHT_TYPE] == BF16
    high, wide = call[KERNEL], call[KERNEL + 1]
    step_o, step_i = call[WEIGHT_STRIDES], call[WEIGHT_STRIDES + 1]
    step_h, step_w = call[WEIGHT_STRIDES + 2], call[WEIGHT_STRIDES + 3]
    dense = step_i == high * wide and (step_w == 1 or wide == 1) and (step_h == wide or high == 1)
    to = 0
    for cell in cells:
        for output in range(call[OUTPUTS]):
            start = cell[WEIGHT_AT] + output * step_o
            if dense:
                widen_run(halves, start, 1, brain, numbers, to, call[CHANNELS] * high * wide)
                to += call[CHANNELS] * high * wide
                continue
            for channel in range(call[CHANNELS]):
                widen_box(halves, start + channel * step_i, step_h, step_w, brain, numbers, to, high, wide, wide)
                to += high * wide


@compiled
def widen_box(halves, start, step_h, step_w, brain, numbers, to, high, wide, pitch):
    if step_w == 1 and step_h == wide and pitch == wide:
        widen_run(halves, start, 1, brain, numbers, to, high * wide)
    else:
        for y in range(high):
            widen_run(halves, start + y * step_h, step_w, brain, numbers, to + y * pitch, wide)


@compiled
def widen_run(halves, start, step, brain, numbers, to, count):
    if step != 1:
        for i in range(count):
            bits = halves[start + i * step]
            numbers[to + i] = from_brain(bits) if brain else from_half(bits)
        return
    here, there = np.uint64(start), np.uint64(to)
    if brain:
        for i in range(np.uint64(count)):
            numbers[there + i] = from_brain(halves[here + i])
    else:
        for i in range(np.uint64(count)):
            numbers[there + i] = from_half(halves[here + i])


@entry(
    "void(float32[::1], uint16[::1], int64[::1], int64[:, ::1], float32[::1], float32, float32, int64, int64,"
    " boolean, boolean)",
)
def finish(memory, halves, call, cells, result, alpha, beta, first_row, rows, add, put):
    """Take `result` `[cells, outputs, images * rows * columns]` out: `add` accumulators, bias and residual and apply
    the activation, if it is one of those known here; `put` it to accumulators or to the output, rounded to its type.
    """
    count = rows * call[COLUMNS]
    last = call[IS_LAST]
    strides, at, kind = (OUT_STRIDES, OUT_AT, call[OUT_TYPE]) if last else (ACC_STRIDES, ACC_AT, call[ACC_TYPE])
    has_bias, has_residual = last and call[HAS_BIAS], last and call[HAS_RESIDUAL]
    to = 0
    for cell in cells:
        for output in range(call[OUTPUTS]):
            bias = np.float32(0)
            if has_bias:
                bias = one(memory, halves, call[BIAS_TYPE], cell[BIAS_AT] + output * call[BIAS_STRIDE])
            for image in range(call[IMAGES]):
                if add and not call[IS_FIRST]:
                    start = place(cell[ACC_AT], call, ACC_STRIDES, image, output, first_row)
                    add_box(memory, halves, call[ACC_TYPE], start, call, ACC_STRIDES, result, to, rows)
                if add and has_bias:
                    add_number(result, to, count, bias)
                if add and has_residual:
                    start = place(cell[RESIDUAL_AT], call, RESIDUAL_STRIDES, image, output, first_row)
                    add_box(memory, halves, call[RESIDUAL_TYPE], start, call, RESIDUAL_STRIDES, result, to, rows)
                if add and last:
                    act(call[ACT], alpha, beta, result, to, count)
                if put:
                    start = place(cell[at], call, strides, image, output, first_row)
                    put_box(memory, halves, kind, start, call, strides, result, to, rows)
                to += count


@compiled
def place(start, call, strides, image, output, row):
    return start + image * call[strides] + output * call[strides + 1] + row * call[strides + 2]


@compiled
def one(memory, halves, kind, at):
    """One number of a type."""
    if kind == F32:
        return memory[at]
    return from_half(halves[at]) if kind == F16 else from_brain(halves[at])


@compiled
def add_number(result, to, count, number):
    there = np.uint64(to)
    for i in range(np.uint64(count)):
        result[there + i] += number


@compiled
def add_box(memory, halves, kind, start, call, strides, result, to, rows):
    """Add numbers of a type that lie by these strides of `call`."""
    step_h, step_w, width = call[strides + 2], call[strides + 3], call[COLUMNS]
    if step_w == 1 and step_h == width:
        rows, width = 1, rows * width
    for y in range(rows):
        here, there = np.uint64(start + y * step_h), np.uint64(to + y * width)
        if kind == F32 and step_w == 1:
            for i in range(np.uint64(width)):
                result[there + i] += memory[here + i]
        elif kind == F16 and step_w == 1:
            for i in range(np.uint64(width)):
                result[there + i] += from_half(halves[here + i])
        else:
            for i in range(width):
                result[to + y * width + i] += one(memory, halves, kind, start + y * step_h + i * step_w)


@compiled
def act(kind, alpha, beta, result, to, count):
    """What `elementwise.UNARY` says; what is no number stays so."""
    there = np.uint64(to)
    if kind == RELU:
        for i in range(np.uint64(count)):
            number = result[there + i]
            result[there + i] = np.float32(0) if number < 0 else number
    elif kind == CLIP:
        for i in range(np.uint64(count)):
            number = result[there + i]
            number = alpha if number < alpha else number
            result[there + i] = beta if number > beta else number
    elif kind == LEAKY_RELU:
        for i in range(np.uint64(count)):
            number = result[there + i]
            result[there + i] = number * alpha if number < 0 else number


@compiled
def put_box(memory, halves, kind, to, call, strides, result, start, rows):
    """Write numbers, rounded to a type, where they lie by these strides of `call`."""
    step_h, step_w, width = call[strides + 2], call[strides + 3], call[COLUMNS]
    if step_w == 1 and step_h == width:
        rows, width = 1, rows * width
    for y in range(rows):
        here, there = start + y * width, to + y * step_h
        if kind == F32 and step_w == 1:
            move_run(memory, there, result, here, width)
        elif kind == F32:
            for i in range(width):
                memory[there + i * step_w] = result[here + i]
        elif kind == F16 and step_w == 1:
            one_here, one_there = np.uint64(here), np.uint64(there)
            for i in range(np.uint64(width)):
                halves[one_there + i] = to_half(result[one_here + i])
        else:
            for i in range(width):
                number = result[here + i]
                halves[there + i * step_w] = to_half(number) if kind == F16 else to_brain(number)


# --- floats of 16 bits -----------------------------------------------------------------------------------
# What is no number keeps what numpy, and of bfloat16 ml_dtypes, leave of it.  Source of the two for f16: F. Giesen,
# "Half to float done quick" (`half_to_float_fast5`, `float_to_half_fast3_rtne`).

U16, U32 = np.uint16, np.uint32
SIGN, REST = U32(0x8000), U32(0x7FFF)
EXPONENT = U32(0x7C00 << 13)
"""Of a half, shifted to where f32 has its own."""
REBIAS = U32((127 - 15) << 23)
ONE, BEYOND = U32(1 << 23), U32((128 - 16) << 23)
LEAST_NORMAL = U32(113 << 23)
LEAST_NORMAL_NUMBER = np.float32(2**-14)
INFINITE = U32(0xFF << 23)
OVERFLOWS = U32((127 + 16) << 23)
SUBNORMAL = U32((127 - 15 + 23 - 10 + 1) << 23)
SUBNORMAL_NUMBER = np.float32(0.5)
"""A number whose unit in the last place is that of subnormal halves, and its bits."""
MANTISSA = U32(0x7FFFFF)
HALF_INFINITE, BRAIN_NAN = U32(0x7C00), U32(0x7FC0)
TO_ODD_HALF, TO_ODD_BRAIN = U32(0xFFF), U32(0x7FFF)


@compiled
def from_half(bits):
    """The f32 number that 16 bits stand for as f16."""
    wide = U32((U32(bits) & REST) << U32(13))
    exponent = U32(wide & EXPONENT)
    wide = U32(wide + REBIAS)
    if exponent == EXPONENT:
        wide = U32(wide + BEYOND)
    elif exponent == 0:
        wide = np.float32(U32(wide + ONE).view(np.float32) - LEAST_NORMAL_NUMBER).view(U32)
    return U32(wide | (U32(bits) & SIGN) << U32(16)).view(np.float32)


@compiled
def to_half(number):
    """The 16 bits of the f16 nearest to an f32 number, of two the even one; beyond the range infinity."""
    bits = np.float32(number).view(U32)
    sign = U32(bits >> U32(16) & SIGN)
    bits = U32(bits & (MANTISSA | INFINITE))
    if bits >= OVERFLOWS:
        payload = U32(max(U32((bits & MANTISSA) >> U32(13)), U32(1))) if bits > INFINITE else U32(0)
        half = U32(HALF_INFINITE + payload)
    elif bits < LEAST_NORMAL:
        half = U32(np.float32(bits.view(np.float32) + SUBNORMAL_NUMBER).view(U32) - SUBNORMAL)
    else:
        odd = U32(bits >> U32(13) & U32(1))
        half = U32(U32(bits - REBIAS + TO_ODD_HALF + odd) >> U32(13))
    return U16(half | sign)


@compiled
def from_brain(bits):
    """The f32 number that 16 bits stand for as bfloat16."""
    return U32(U32(bits) << U32(16)).view(np.float32)


@compiled
def to_brain(number):
    """The 16 bits of the bfloat16 nearest to an f32 number, of two the even one."""
    bits = np.float32(number).view(U32)
    if U32(bits & (MANTISSA | INFINITE)) > INFINITE:
        return U16(bits >> U32(16) & SIGN | BRAIN_NAN)
    return U16(bits + TO_ODD_BRAIN + (bits >> U32(16) & U32(1)) >> U32(16))


@entry("void(uint16[::1], boolean, float32[::1])")
def widen(bits, brain, numbers):
    """All of `bits` into `numbers`, both without gaps; `brain`: as bfloat16."""
    widen_run(bits, 0, 1, brain, numbers, 0, bits.size)


@entry("void(float32[::1], boolean, uint16[::1])")
def narrow(numbers, brain, bits):
    """All of `numbers` into `bits`, both without gaps; `brain`: as bfloat16."""
    if brain:
        for i in range(bits.size):
            bits[i] = to_brain(numbers[i])
    else:
        for i in range(bits.size):
            bits[i] = to_half(numbers[i])
