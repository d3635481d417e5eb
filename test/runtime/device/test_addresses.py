"""Convolutions by their address tables against the sum written out: layouts, strides, dilations, groups, walks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.dialects.isa import program as p
from frustum.dialects.isa.tables import address_table as at
from frustum.dialects.isa.tables.stored_table import write_table
from frustum.runtime.device.expand import expand
from frustum.runtime.device.functional import PRODUCTS, ExecutionPlan
from frustum.runtime.device.matrix import convolve_by_address
from frustum.runtime.device.memory import DTYPES, AccessError, Memories
from frustum.runtime.device.tables import check_reach, with_tables

A = p.Affine
OUT, BYTES = 8192, 1 << 14
BLOCK = 4


def layout_of(name, n, c, h, w):
    if name == "blocked":
        return at.nchwc(c, h, w, BLOCK)
    return {"nchw": at.nchw(c, h, w), "nhwc": at.nhwc(c, h, w), "cnhw": at.cnhw(n, h, w)}[name]


class Case:
    """One convolution on one core, its map `[n, c, h, w]` in memory without a border, or with one that is padding."""

    def __init__(self, rng, layout, kernel, strides, dilations, groups, channels, *, element="f32", pads=(0, 0),
                 images=2, outputs=2):
        self.images, self.groups, self.channels, self.outputs = images, groups, channels, outputs
        self.kernel, self.strides, self.dilations, self.pads, self.element = kernel, strides, dilations, pads, element
        span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        self.out = 3, 4
        self.size = tuple((o - 1) * s + n for o, s, n in zip(self.out, strides, span, strict=True))  # border included
        dtype = DTYPES[element]
        shape = images, groups * channels, *self.size
        self.map = rng.integers(-4, 5, shape).astype(dtype)
        for axis, pad in enumerate(pads):
            inside = np.zeros(shape, bool)
            np.moveaxis(inside, 2 + axis, 0)[pad : self.size[axis] - pad] = True
            self.map = np.where(inside, self.map, dtype.type(0))
        self.weights = rng.integers(-4, 5, (groups * outputs, channels, *kernel)).astype(dtype)
        self.layout = layout_of(layout, *shape)

    def conv(self):
        size, (h, w), (ph, pw) = p.ELEMENT_BYTES[self.element], self.size, self.pads
        outs, channels = self.groups * self.outputs, self.groups * self.channels
        plain = self.layout if not self.layout.block else at.nchw(channels, h, w)
        accumulators = "i32" if self.element == "i8" else "f32"
        view = lambda element, base, memory, *s: p.View(element, A(base), tuple(s), memory)  # noqa: E731
        taps = self.kernel[0] * self.kernel[1]
        return p.Conv(
            in_view=view(self.element, 64, "nram", *(size * s for s in (plain.n, plain.c, plain.h, plain.w))),
            weight_view=view(self.element, 0, "wram", *(size * s for s in
                                                       (self.channels * taps, taps, self.kernel[1], 1))),
            out_view=view(accumulators, OUT, "nram", *(4 * s for s in (outs * 12, 12, 4, 1))),
            box=p.Box.of(*(p.Span(A(), n, n) for n in (self.images, outs, *self.out))),
            channels=p.Span(A(), self.channels, self.channels),
            rows=p.Span(A(-ph), h, h - 2 * ph), cols=p.Span(A(-pw), w, w - 2 * pw), kernel=self.kernel,
            strides=self.strides, dilations=self.dilations, groups=self.groups, table=0,
        )  # fmt: skip

    def geometry(self):
        steps = self.kernel, self.strides, self.dilations
        return at.Geometry(self.images, *self.out, self.channels, *steps, self.layout)

    def expanded(self, data):
        load = p.TableLoad(src_view=p.View("i8", A(), (0, 0, 0, 1), "dram"), bytes=len(data), entry=0)
        external = p.External("t", "program", 0, len(data), (len(data),), "i8")
        program = p.Program((load, p.Barrier(), self.conv()), (external,))
        return with_tables(expand(program, 1, 1), [(0, data)])

    def run(self, data, effect=None):
        """The outputs, and whether the fast loops made them."""
        expanded = self.expanded(data)
        check_reach(expanded)
        memories = Memories((1, 1, 1, 1), (BYTES,) * 4)
        memories.poison()
        dtype = DTYPES[self.element]
        place = np.zeros(self.map.shape, np.int64)
        for n, c, y, x in np.ndindex(self.map.shape):
            place[n, c, y, x] = n * self.layout.n + self.layout.channel(c) + y * self.layout.h + x * self.layout.w
        ph, pw = self.pads
        inside = np.s_[:, :, ph : self.size[0] - ph, pw : self.size[1] - pw]  # nobody writes the border
        memories.bytes[2][64:OUT].view(dtype)[place[inside]] = self.map[inside]
        memories.bytes[3][: self.weights.nbytes].view(dtype)[:] = self.weights.ravel()
        plan = ExecutionPlan(expanded, memories.capacities)
        is_fast = any(kind == PRODUCTS for kind, _, _ in plan.steps)
        (plan if effect is None else plan.with_effect(p.Conv, effect)).run(memories)
        shape = self.images, self.groups * self.outputs, *self.out
        accumulators = np.int32 if self.element == "i8" else np.float32
        count = int(np.prod(shape))
        return memories.bytes[2][OUT : OUT + 4 * count].view(accumulators).reshape(shape).copy(), is_fast

    def direct(self):
        result = np.zeros((self.images, self.groups * self.outputs, *self.out))
        (sv, su), (dv, du) = self.strides, self.dilations
        taps = itertools.product(range(self.channels), range(self.kernel[0]), range(self.kernel[1]))
        for (c, v, u), o in itertools.product(taps, range(self.groups * self.outputs)):
            channel = self.map[:, o // self.outputs * self.channels + c].astype(float)
            rows = channel[:, v * dv : v * dv + 2 * sv + 1 : sv]
            result[:, o] += rows[:, :, u * du : u * du + 3 * su + 1 : su] * float(self.weights[o, c, v, u])
        return result


PAIR = st.tuples(st.integers(1, 2), st.integers(1, 2))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["nchw", "nhwc", "cnhw", "blocked"]), st.tuples(*[st.integers(1, 3)] * 2), PAIR, PAIR,
       st.integers(1, 3), st.sampled_from(["f32", "f16", "i8"]), st.integers(0, 9), st.sampled_from(at.ORDERS),
       st.integers(0, 99))
def test_the_table_path_equals_the_direct_convolution(layout, kernel, strides, dilations, groups, element, which, order,
                                                      seed):
    channels = BLOCK if layout == "blocked" else 3
    case = Case(np.random.default_rng(seed), layout, kernel, strides, dilations, groups, channels, element=element)
    whole = case.geometry()
    parts = list(at.parts_of(whole)) if layout != "blocked" else [whole]
    part = parts[which % len(parts)]
    if groups > 1 and which == 9:
        part = replace(whole, groups=groups)
    data = write_table(part, order, p.ELEMENT_BYTES[element], at.walk_of(part, whole, channels if groups > 1 else None))
    for effect in (None, convolve_by_address):
        found, is_fast = case.run(data, effect)
        np.testing.assert_array_equal(found, case.direct())
        assert is_fast == (element != "i8" and (layout != "blocked" or whole.columns == 1))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_padding_is_found_by_its_place_in_the_buffer(layout, groups):
    case = Case(np.random.default_rng(1), layout, (3, 3), (1, 2), (1, 1), groups, 2, pads=(1, 1))
    whole = case.geometry()
    data = write_table(whole, "tap-major", 4, at.walk_of(whole, whole, 2 if groups > 1 else None))
    for effect in (None, convolve_by_address):
        np.testing.assert_array_equal(case.run(data, effect)[0], case.direct())


def table(case, **changes):
    whole = case.geometry()
    return write_table(replace(whole, **changes), "channel-major", 4)


def plain_case():
    return Case(np.random.default_rng(2), "nchw", (3, 3), (1, 1), (1, 1), 1, 2)


def test_another_layout_is_another_table_and_no_other_kernel():
    """The table of a transposed map makes the machine read a transposed map."""
    case = plain_case()
    h, w = case.size
    turned = at.Layout(2 * h * w, h * w, 1, h)
    case.layout = turned  # where the map is put; the instruction says nothing of it
    conv = case.conv()
    case.conv = lambda: replace(conv, in_view=p.View("f32", A(64), (8 * h * w, 4 * h * w, 4 * w, 4), "nram"))
    found, is_fast = case.run(table(case))
    np.testing.assert_array_equal(found, case.direct())
    assert not is_fast


def test_an_address_outside_the_buffer_is_stopped_by_name():
    case = plain_case()
    h, w = case.size
    far = at.Layout(2 * h * w, h * w + 1, w, 1)
    end = 64 + 4 * 4 * h * w
    with pytest.raises(AccessError, match=r"^conv 2 at loops \[\] on cluster 0, core 0: its address table leads to"
                                          rf" address {end} of nram of cluster 0, core 0, outside its buffer"
                                          rf" \[64, {end}\)$"):
        case.run(table(case, layout=far))


@pytest.mark.parametrize(("changes", "message"), [
    ({"kernel": (3, 2)}, r"it is for a kernel of 3 x 2, the convolution has 3 x 3"),
    ({"rows": 4}, r"it describes 4 rows, the convolution has 3"),
    ({"channels": 3}, r"it describes 3 channels, the convolution has 2"),
    ({"columns": 2}, r"it describes 2 columns and no step, the convolution has 4"),
    ({"groups": 2}, r"it describes 2 groups, the convolution has 1"),
])  # fmt: skip
def test_a_table_that_is_not_the_instructions_is_refused(changes, message):
    with pytest.raises(AccessError, match=rf"conv 2: its address table: {message}$"):
        plain_case().expanded(table(plain_case(), **changes))


def test_a_table_for_other_elements_is_refused():
    case = plain_case()
    with pytest.raises(AccessError, match="it is for elements of 2 bytes, the convolution has 4"):
        case.expanded(write_table(case.geometry(), "channel-major", 2))


def test_an_entry_that_holds_nothing_is_named():
    case = plain_case()
    program = p.Program((case.conv(),))
    with pytest.raises(AccessError, match=r"^address cache: conv 0 uses entry 0, which holds no table$"):
        with_tables(expand(program, 1, 1), [])
