"""Networks live by the bytes of their address tables: a changed entry changes what they compute or stops them, a
changed head is refused, and every way through the matrix unit goes where the entries lead."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from images import weights_address, weights_image
from integer_networks import IntegerNet
from networks import Net
from stops import executable, modules_at_stops
from xdsl.context import Context
from xdsl.dialects.builtin import StringAttr

from frustum.backend.file.container import ENTRY, HEADER, ExecutableError
from frustum.backend.file.executable import open_executable, write_executable
from frustum.backend.pipeline import Choices
from frustum.dialects.isa.program import Conv, Depthwise, instructions
from frustum.dialects.isa.tables.stored_table import CHECKSUM, HEAD, RUNNING, read_table
from frustum.dialects.module import DTYPE
from frustum.passes.lower.make_address_tables import MakeAddressTables
from frustum.runtime.device.memory import AccessError
from frustum.runtime.machine import Machine

pytestmark = pytest.mark.slow

ELEMENTS = ("f32", "f16", "int8")
WAYS = {"default": {}, "line buffer": {"detailed": True}, "gathered": {"detailed_tables": True}}


def floats(element):
    """Padding, strides, dilations, groups of two and of one channel, a point; nothing is cut off at 0."""
    net = Net()
    x = net.input(2, 4, 6, 5)
    x = net.conv(x, 4, 3)
    x = net.conv(x, 6, 3, strides=(2, 1), pads=(0, 1, 0, 1), groups=2)
    x = net.conv(x, 6, 2, pads=(1, 0, 1, 0), dilations=(1, 2), groups=6)
    module, inputs = net.module(net.conv(x, 3, 1))
    module.attributes[DTYPE] = StringAttr(element)
    return module, inputs


def integers():
    """The same of int8."""
    net = IntegerNet(3)
    x = net.integer_input(2, 4, 6, 5)
    x = net.product(x, 4, 3)
    x = net.product(x, 6, 3, strides=(2, 1), pads=(0, 1, 0, 1), groups=2)
    x = net.product(x, 6, 2, pads=(1, 0, 1, 0), dilations=(1, 2), groups=6)
    return net.module(net.product(x, 3, 1))


@functools.cache
def small(element, most_bytes=0):
    """A network as an executable, and its input."""
    module, inputs = integers() if element == "int8" else floats(element)
    low = modules_at_stops(module, "tiny", Choices(policy="none"))["lowered"]
    MakeAddressTables(most_bytes=most_bytes).apply(Context(), low)
    return executable(low), inputs


def tables_of(program):
    """Where in the image of the weights each table is."""
    tables = [each for each in program.externals if each.class_ == "program"]
    start = min(each.address for each in program.externals if each.class_ in ("program", "weight"))
    return [slice(each.address - start, each.address - start + each.bytes) for each in tables]


def changed(made, place, bits):
    """The executable with some bits of one byte of its weights turned over."""
    image = weights_image(made).copy()
    image[place] ^= bits
    return replace(made, weights=((weights_address(made), image),))


def entries(table):
    """Where the entries of a table begin and end."""
    head = table[: HEAD.size]
    begin = HEAD.size + CHECKSUM.size + int(head[18]).bit_count() * int(head[19])
    stored = read_table(table)
    return begin, begin + len(stored.base) * int(head[15] % RUNNING) + len(stored.rel) * int(head[16] % RUNNING)


def is_noticed(made, inputs, expected, way):
    try:
        found = Machine(made).run(inputs, "functional", **WAYS[way]).outputs
    except AccessError as error:
        assert re.search(r"^conv \d+ .*, core \d+: its address table leads to address \d+ of nram", str(error))
        return True
    return any((found[name] != array).any() for name, array in expected.items())


@pytest.mark.soak(but=3)
@pytest.mark.parametrize("most_bytes", [0, 56])
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_entry_byte_that_changes_is_noticed(element, most_bytes):
    made, inputs = small(element, most_bytes)
    expected = Machine(made).run(inputs, "functional").outputs
    image, count = weights_image(made), 0
    for table in tables_of(made.program):
        begin, end = entries(image[table])
        for byte in range(begin, end):
            bad = changed(made, table.start + byte, 1 << byte % 8)
            assert is_noticed(bad, inputs, expected, "default"), f"byte {byte} of {table}"
            count += 1
    assert count > 40


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_all_ways_through_the_matrix_unit_live_by_the_entries(element, way):
    made, inputs = small(element)
    expected = Machine(made).run(inputs, "functional", **WAYS[way]).outputs
    image = weights_image(made)
    for table in tables_of(made.program):
        begin, end = entries(image[table])
        for byte in (begin, (begin + end) // 2, end - 1):
            assert is_noticed(changed(made, table.start + byte, 1), inputs, expected, way)


@pytest.mark.parametrize("most_bytes", [0, 56])
@pytest.mark.parametrize("element", ELEMENTS)
def test_all_ways_through_the_matrix_unit_agree(element, most_bytes):
    made, inputs = small(element, most_bytes)
    expected = Machine(small(element)[0]).run(inputs, "functional", checked=True).outputs
    tolerance = {"f32": 1e-5, "f16": 2e-3, "int8": 0}[element]
    for way in WAYS.values():
        for name, array in Machine(made).run(inputs, "functional", **way).outputs.items():
            np.testing.assert_allclose(array, expected[name], rtol=tolerance, atol=tolerance)


def test_every_convolution_of_these_networks_has_a_table_and_small_ones_are_walked():
    for element in ELEMENTS:
        for most_bytes in (0, 56):
            made, _ = small(element, most_bytes)
            convs = [each for each in instructions(made.program.body) if isinstance(each, Conv)]
            walked = [each for each in instructions(made.program.body) if isinstance(each, Depthwise)]
            assert len(convs) + len(walked) == 4 and len(walked) <= 1
            assert all(each.table is not None for each in convs)
            walks = [read_table(weights_image(made)[table]).walk for table in tables_of(made.program)]
            assert any(step is not None for walk in walks for step in walk) or not most_bytes


def resealed(path, place, bits):
    """Turn over bits of a byte of the weights in a file, its checksums mended."""
    data = bytearray(path.read_bytes())
    _, _, count, _, _ = HEADER.unpack_from(data)
    at = HEADER.size + ENTRY.size * (count - 1)
    name, offset, length, _ = ENTRY.unpack_from(data, at)
    assert name.rstrip(b"\0") == b"weights"
    data[offset + place] ^= bits
    digest = hashlib.sha256(data[offset : offset + length]).digest()
    data[at : at + ENTRY.size] = ENTRY.pack(name, offset, length, digest)
    magic, version, count, length, _ = HEADER.unpack_from(data)
    start = HEADER.pack(magic, version, count, length, bytes(32))
    table = bytes(data[HEADER.size : HEADER.size + ENTRY.size * count])
    data[: HEADER.size] = HEADER.pack(magic, version, count, length, hashlib.sha256(start + table).digest())
    path.write_bytes(data)


def test_every_byte_of_a_head_and_of_the_filling_that_changes_is_refused(tmp_path):
    made, _ = small("f32", 56)
    path = tmp_path / "net.fru"
    write_executable(made, path)
    image = weights_image(made)
    tables = tables_of(made.program)
    filling = 0
    for table in tables:
        begin, end = entries(image[table])
        for byte in [*range(begin), *range(end, table.stop - table.start)]:
            resealed(path, table.start + byte, 1 << byte % 8)
            with pytest.raises(ExecutableError, match=r"net.fru: damaged: address table at \d+: "
                                                      r"(the checksum of its head|its filling is not 0)"):
                open_executable(path)
            resealed(path, table.start + byte, 1 << byte % 8)
            filling += byte >= end
    assert filling and len(tables) > 2
    open_executable(path)


def test_an_entry_that_changes_in_a_file_is_no_damage_but_other_numbers(tmp_path):
    made, inputs = small("f32")
    path = tmp_path / "net.fru"
    write_executable(made, path)
    table = tables_of(made.program)[0]
    begin, _ = entries(weights_image(made)[table])
    resealed(path, table.start + begin, 1)
    expected = Machine(made).run(inputs, "functional").outputs
    assert is_noticed(open_executable(path), inputs, expected, "default")
