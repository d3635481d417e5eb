# Tests: test/runtime/tools/test_cli.py
"""`frustum inspect`: what is in an executable, a compiled folder, a model, a dumped stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frustum.backend import targets
from frustum.backend.file.executable import Executable
from frustum.backend.file.listing import disassemble
from frustum.dialects.isa.program import ENGINES, instructions
from frustum.runtime.failures import GOOD, UsageError
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.compiled_folder import MANIFEST, open_compiled, read_manifest
from frustum.runtime.model.execution import layers_of, units_of
from frustum.runtime.model.options import InspectOptions
from frustum.runtime.model.sources import kind_of, read_stage, read_zoo
from frustum.runtime.report.terminal import bytes_text, show, table

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto
    from xdsl.dialects.builtin import ModuleOp

    from frustum.dialects.target import Target


def main(options: InspectOptions) -> int:
    show("\n".join(lines_of(options.path, options.disassemble, options.target, options.bind)) + "\n")
    return GOOD


def lines_of(
    name: str, is_disassembled: bool, target: str | Path | Target | None = None,
    bind: Mapping[str, bool | int | float] | None = None,
) -> list[str]:  # fmt: skip
    """What is in the file, the folder, the network of the zoo; or its instructions; of a model also what a target runs
    of it, with inputs bound."""
    path, kind = Path(name), kind_of(name)
    if bind and target is None:
        raise UsageError(f"{path}: error: --bind needs --target: it says what that runs of the model")
    if target is not None and (is_disassembled or kind not in ("onnx", "zoo") or path.name == MANIFEST):
        raise UsageError(f"{path}: error: --target is for models that are not compiled yet")
    if kind == "onnx" and path.name == MANIFEST and not is_disassembled:
        return about_manifest(path, read_manifest(path.parent))
    if kind in ("folder", "executable"):
        chain, _ = open_compiled(path)
        return listing(chain) if is_disassembled else about_chain(chain)
    if is_disassembled:
        raise UsageError(f"{path}: error: there are no instructions in it: compile it first")
    if kind == "stage":
        return about_stage(name)
    lines = about_model(name, read_zoo(name, 0) if kind == "zoo" else _read_onnx(path))
    return lines if target is None else lines + about_coverage(name, target, bind or {})


# --- executables -------------------------------------------------------------------------------------------


def listing(chain: Chain) -> list[str]:
    """The instructions of all executables, one after the other."""
    return [disassemble(executable.program).rstrip() for executable in chain.executables]


def about_chain(chain: Chain) -> list[str]:
    """The only executable, or the pieces and each of them."""
    if chain.single is not None:
        return about(chain.single)
    rows = [(p.name, p.kind, ", ".join(p.inputs), "->", ", ".join(p.outputs)) for p in chain.pieces]
    lines = [f"{chain.model} for {chain.target.name}, {chain.dtype}, policy {chain.policy}, host {chain.host}"]
    lines += _section("Pieces, in the order in which they run", rows)
    lines += _section("Bound inputs", ((name, str(value.item())) for name, value in chain.bound.items()))
    lines += _section("On the host", ((f.name, f.op, f.reason) for f in chain.fallbacks))
    for executable in chain.executables:
        lines += ["", *about(executable)]
    return lines


def about(executable: Executable) -> list[str]:
    """Sizes, interface, instructions by engine, units, layers."""
    manifest, program = executable.manifest, executable.program
    policy = manifest["options"].get("policy", "unknown")
    return [
        f"{program.name} for {manifest['target']['name']}, {program.dtype}, policy {policy}",
        *_sizes(executable),
        *_interface(executable),
        *_instructions(executable),
        *_units(executable),
        *_layers(executable),
    ]


def _sizes(executable: Executable) -> list[str]:
    peaks = [(f"peak {name.upper()}", size) for name, size in executable.program.peak_bytes.items()]
    code, image = len(executable.code.bytes), sum(len(data) for _, data in executable.weights)
    rows = [("file", executable.file_bytes), (f"code, {len(executable.code.page_bytes)} pages", code)]
    return _section("Sizes", ((n, bytes_text(s), f"{s:,} B") for n, s in [*rows, ("weights", image), *peaks]))


def _interface(executable: Executable) -> list[str]:
    rows = [
        (f"{each.class_} '{each.name}'", each.model_dtype or each.element, _shape(each.shape))
        for each in executable.program.externals_of("input", "output")
    ]
    return _section("Inputs and outputs", rows)


def _instructions(executable: Executable) -> list[str]:
    found = list(instructions(executable.program.body))
    counts: Counter[str] = Counter(each.engine or "barrier" for each in found)
    rows = [(name, str(counts[name])) for name in (*ENGINES, "barrier") if counts[name]]
    return _section("Instructions, loops not unrolled", [*rows, ("total", str(len(found)))])


def _units(executable: Executable) -> list[str]:
    units = units_of(executable.manifest)
    rows = [
        (
            u.name, u.mode, f"{u.tiles} tiles", f"{u.kept_bytes:,} B kept", f"{len(u.layers)} layers",
            u.stopped_by or "",
        )
        for u in units
    ]
    return _section("Units, and what ended the growth of each", rows)


def _layers(executable: Executable) -> list[str]:
    macs = executable.program.useful_macs
    layers = layers_of(executable.manifest)
    pairs = zip(layers, macs, strict=False)
    return _section("Layers", ((each.name, each.op, each.unit or "", f"{n:,} MACs") for each, n in pairs))


def about_manifest(path: Path, manifest: Mapping[str, Any]) -> list[str]:
    """What a compiled folder says of itself: every key, the machine and the pieces on lines of their own."""
    origin = manifest["origin"] or {"model": "unknown"}
    rows = [(key, str(manifest[key])) for key in ("schema", "model", "dtype", "policy", "host", "target")]
    rows += [("target file", str(manifest.get("target_file") or "shipped, or not known"))]
    rows += [("target sha256", str(manifest.get("target_sha256", "not known")))]
    rows += [("origin", str(origin["model"]))]
    values = [
        (f"{kind} '{each['name']}'", str(each["dtype"]), "open" if each["shape"] is None else _shape(each["shape"]))
        for kind in ("input", "output")
        for each in manifest[f"{kind}s"]
    ]
    pieces = [
        (p["name"], p["kind"], p["file"], f"{p['bytes']:,} B", f"chip {p['chip']}" if "chip" in p else "")
        for p in manifest["pieces"]
    ]
    return [
        f"{path}: the manifest of a compiled folder",
        *_section("What was compiled", ((f"{name:<15}{value}",) for name, value in rows)),
        *_section("Inputs and outputs", values),
        *_section("Pieces, in the order in which they run", pieces),
        *_section("Log", ((line,) for line in manifest["log"])),
    ]


# --- models ------------------------------------------------------------------------------------------------


def about_model(name: str, model: ModelProto) -> list[str]:
    """Interface, operators, weights; of any ONNX file, whether or not it can be compiled."""
    from math import prod

    graph = model.graph
    tensors = {tensor.name for tensor in graph.initializer}
    opsets = (f"{opset.domain or 'ai.onnx'} {opset.version}" for opset in model.opset_import)
    numbers = sum(prod(tensor.dims) for tensor in graph.initializer)
    inputs = [("input", value) for value in graph.input if value.name not in tensors]
    values = [*inputs, *(("output", value) for value in graph.output)]
    operators = Counter(f"{n.domain}:{n.op_type}" if n.domain else n.op_type for n in graph.node)
    return [
        f"{name}: {len(graph.node)} nodes, opset {', '.join(opsets)}",
        *_section("Inputs and outputs", ((f"{kind} '{v.name}'", *_type(v)) for kind, v in values)),
        *_section("Weights", [("tensors", f"{len(tensors):,}"), ("numbers", f"{numbers:,}")]),
        *_section("Operators", ((operator, str(count)) for operator, count in operators.most_common())),
    ]


def about_coverage(
    name: str, target: str | Path | Target, bind: Mapping[str, bool | int | float]
) -> list[str]:
    """What a machine runs of a model, and what the host does and why."""
    from frustum.passes.fuse.policy import problems_of
    from frustum.runtime.tools.coverage import coverage_of

    machine = targets.load(target, problems_of) if isinstance(target, str | Path) else target
    found = coverage_of(name, machine, bind)
    host = f"{len(found.on_host)} nodes go to the host" if found.on_host else "nothing goes to the host"
    layers = [
        (each.name, each.op, _shape(each.shape), f"{each.macs:,} MACs" if each.macs else "") for each in found.layers
    ]
    return [
        "",
        f"On {machine.name}: {len(layers)} layers with {found.macs:,} MACs run on the device, {host}",
        *_section("On the host, and why", ((each.name, each.op, each.reason) for each in found.on_host)),
        *_section("Layers of the device, when the network is simplified", layers),
    ]


def _read_onnx(path: Path) -> ModelProto:
    from frustum.passes.onnx.loading import load_model

    return load_model(path).proto


def _type(value: ValueInfoProto) -> tuple[str, str]:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    extents = [str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "?" for dim in tensor.shape.dim]
    return TensorProto.DataType.Name(tensor.elem_type), _shape(extents)


def about_stage(path: str) -> list[str]:
    """Its stop, its units with their layers, and its operations by name."""
    from frustum.backend.pipeline import stop_of

    module, _ = read_stage(path)
    counts = Counter(op.name for op in module.walk())
    rows = ((name, str(count)) for name, count in counts.most_common())
    return [
        f"{path}: a module at stop '{stop_of(module)}'",
        *_section("Units: their partition, layers, and what ended their growth", _units_in(module)),
        *_section("Operations", rows),
    ]


def _units_in(module: ModuleOp) -> Iterator[tuple[str, ...]]:
    """Of every unit of layers its name, partition, layers and end, as far as they are known at its stop."""
    from frustum.dialects.unit import UnitOp
    from frustum.passes.analysis.layer import is_work
    from frustum.passes.analysis.module import kind_name, node_name

    for unit in module.walk():
        if isinstance(unit, UnitOp):
            layers = [node_name(op) or kind_name(op) for op in unit.body.walk() if is_work(op)]
            partition = "not cut yet" if unit.partition is None else str(unit.partition).partition("<")[2][:-1]
            ends = "" if unit.stopped_by is None else unit.stopped_by.data
            yield unit.unit_name.data, partition, ", ".join(layers), ends


# --- text --------------------------------------------------------------------------------------------------


def _section(title: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    return ["", title, *table(rows)] if rows else []


def _shape(extents: Iterable[object]) -> str:
    return "x".join(map(str, extents)) or "scalar"
