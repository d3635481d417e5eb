"""A program as text for people: one line per instruction, fields as `dialects/isa/format.py` declares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from frustum.dialects.isa import program as p
from frustum.dialects.isa.format import FORMAT_OF_TYPE

INDENT = "  "


def disassemble(program: p.Program) -> str:
    """The whole program, page by page; instructions end with their layer and unit."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: p.Program) -> Iterator[str]:
    yield f"program {program.name} {program.dtype}"
    for external in program.externals:
        shape = "x".join(map(str, external.shape)) or "scalar"
        yield (
            f"external {external.class_} '{external.name}' {shape} {external.element}"
            f" at dram[{external.address}], {external.bytes} bytes"
        )
    page = 0
    yield f"page {page}"
    for node in program.body:
        yield from _node(program, node, INDENT)
        if isinstance(node, p.Barrier):
            page += 1
            yield f"page {page}"


def _node(program: p.Program, node: p.Node, indent: str) -> Iterator[str]:
    if not isinstance(node, p.Repeat):
        yield indent + instruction_text(node) + _origin(program, node)
        return
    yield f"{indent}repeat {node.count}{_stage(node.stage)}"
    for child in node.body:
        yield from _node(program, child, indent + INDENT)


def instruction_text(node: p.Instruction) -> str:
    """`copy.gdma stage 1 waits own 3 at 1 src_view=... signal 2`: what is absent or false is left out."""
    form = FORMAT_OF_TYPE[type(node)]
    name = form.name if node.engine is None else f"{form.name}.{node.engine}"
    waits = f" waits {', '.join(map(str, node.waits))}" if node.waits else ""
    values = [(field.name, getattr(node, field.name, None)) for field in form.body]
    fields = "".join(f" {name}={_text(v)}" for name, v in values if v is not None and v is not False and v != ())
    signal = f" signal {node.signal}" if node.signal is not None else ""
    return name + _stage(node.stage) + waits + fields + signal


def _stage(stage: int) -> str:
    return f" stage {stage}" if stage else ""


def _origin(program: p.Program, node: p.Instruction) -> str:
    names = [_name(program.layers, node.layer), _name(program.units, node.unit)]
    return f"  ; {' of '.join(name for name in names if name)}" if any(names) else ""


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else ""


def _text(value: Any) -> str:
    if isinstance(value, p.View):
        ring = value.ring
        copies = f" ring({ring.depth} of {ring.bytes} at level {ring.level})" if ring else ""
        strides = ",".join(map(str, value.strides))
        around = f" wrap({value.wrap})" if value.wrap else ""
        return f"{value.memory}[{value.offset}]:{value.element}({strides}){copies}{around}"
    if isinstance(value, p.Span | p.Box | p.Affine):
        return f"<{value}>"
    if isinstance(value, p.Act):
        return f"{value.kind}({value.alpha}, {value.beta})"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value)
