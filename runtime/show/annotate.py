"""A model with what its nodes cost, for those who look at graphs: a copy for Netron, or a graph for Model Explorer.

A layer belongs to the node that has its name (or whose first result has it), or else to the node with the longest name
that its own begins with, before a `/`: what one operator becomes several layers for.  A node without a layer was folded
into others, or is no work.
Sources: `metadata_props` of onnx.proto (IR version 10); Model Explorer's graph_builder.py (GraphCollection, Graph,
GraphNode, IncomingEdge, KeyValue, MetadataItem).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from frustum.runtime.failures import UsageError
from frustum.runtime.files import check_writable_file, write_file

PREFIX = "frustum."
NETRON, EXPLORER = ".onnx", ".json"
SEPARATOR = "/"
OF_MODEL = ("target", "dtype", "policy")
"""Of the report, as properties of the whole model."""


def refuse_annotation(path: Path, model: Path | None, dashes: str = "") -> None:
    """UsageError where no such copy can be written: found before anything runs.  `model`: the file, if it is one."""
    if path.suffix not in (NETRON, EXPLORER):
        raise UsageError(
            f"error: {dashes}annotate {path}: a name that ends in {NETRON} is for Netron, one in {EXPLORER} for Model"
            " Explorer"
        )
    check_writable_file(path)
    if model is None or path.suffix == EXPLORER:
        return
    if path.exists() and path.samefile(model):
        raise UsageError(f"error: {dashes}annotate {path}: is the model itself, which stays as it is")
    if path.resolve().parent != model.resolve().parent and (away := _files_beside(_read(model))):
        raise UsageError(
            f"error: {dashes}annotate {path}: weights of {model.name} lie in files beside it ({away[0]}), where the"
            f" copy has to find them: write it into {model.resolve().parent}"
        )


def write_annotated(path: Path, model: onnx.ModelProto | Path, report: Mapping[str, Any]) -> None:
    """Write the copy, or by its suffix the graph; weights in files of their own stay there.  UsageError as
    `refuse_annotation` has it, and where a model is too large for one file."""
    refuse_annotation(path, model if isinstance(model, Path) else None)
    proto = _read(model) if isinstance(model, Path) else model
    if path.suffix == EXPLORER:
        text = json.dumps(explorer_graph(proto, report), indent=1) + "\n"
        write_file(path, lambda part: part.write_text(text, encoding="utf-8"))
        return
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    annotate(made, report)
    try:
        data = made.SerializeToString()
    except ValueError as error:
        raise UsageError(
            f"{path}: error: the model has more than 2 GiB with its weights: save it with weights in files of their own"
        ) from error
    write_file(path, lambda part: part.write_bytes(data))


def annotate(model: onnx.ModelProto, report: Mapping[str, Any]) -> None:
    """Write into each node the unit, the place, the DRAM bytes and the cycles of its layers, into the model what the
    run took in all; what an earlier run wrote goes."""
    owners = _owners(model.graph.node, report["layers"])
    for number, node in enumerate(model.graph.node):
        _set(node.metadata_props, _properties(owners.get(number, ())))
    _set(model.metadata_props, _totals(report))


def explorer_graph(model: onnx.ModelProto, report: Mapping[str, Any]) -> dict[str, Any]:
    """The graph as Model Explorer reads it from a file; units are its groups."""
    owners = _owners(model.graph.node, report["layers"])
    shapes = _shapes(model.graph)
    weights = {each.name for each in model.graph.initializer}
    inputs = [each.name for each in model.graph.input if each.name not in weights]
    made = {name: (f"input {name}", "0") for name in inputs}
    for number, node in enumerate(model.graph.node):
        made |= {name: (str(number), str(place)) for place, name in enumerate(node.output) if name}
    nodes = [
        _explorer_node(f"input {name}", "Input", "", {"name": name}, [], _outputs([name], shapes)) for name in inputs
    ]
    for number, node in enumerate(model.graph.node):
        properties = _properties(owners.get(number, ()))
        edges = [
            {"sourceNodeId": made[name][0], "sourceNodeOutputId": made[name][1], "targetNodeInputId": str(place)}
            for place, name in enumerate(node.input)
            if name in made
        ]
        unit = properties.get(f"{PREFIX}unit", "").replace(SEPARATOR, "_")
        facts = {"name": _name(node), **properties}
        nodes.append(_explorer_node(str(number), node.op_type, unit, facts, edges, _outputs(node.output, shapes)))
    attributes = _totals(report)
    graph = {"id": model.graph.name or "main", "nodes": nodes, "groupNodeAttributes": {"": attributes}}
    return {"label": str(report["model"]), "graphs": [graph]}


# --- whose layers are whose --------------------------------------------------------------------------------


def _owners(nodes: Sequence[onnx.NodeProto], layers: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """The layers of each node, by its number."""
    numbers = {_name(node): number for number, node in reversed(list(enumerate(nodes)))}
    found: dict[int, list[Mapping[str, Any]]] = {}
    for layer in layers:
        name = layer["name"]
        while name and name not in numbers:
            name = name.rpartition(SEPARATOR)[0]
        if name:
            found.setdefault(numbers[name], []).append(layer)
    return found


def _name(node: onnx.NodeProto) -> str:
    return node.name or next(filter(None, node.output), "")


def _properties(layers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of a node; of several layers the sums, and the units in their order."""
    if not layers:
        return {}
    units = dict.fromkeys(each["unit"] for each in layers if each["unit"])
    cycles = [each["cycles"] for each in layers if each["cycles"] is not None]
    found = {
        "unit": ", ".join(units),
        "where": ", ".join(dict.fromkeys(each["where"] for each in layers)),
        "dram_bytes": str(sum(each["dram_bytes"] for each in layers)),
        "cycles": str(sum(cycles)) if cycles else "",
    }
    return {f"{PREFIX}{key}": value for key, value in found.items() if value}


def _totals(report: Mapping[str, Any]) -> dict[str, str]:
    found = {key: str(report[key]) for key in OF_MODEL} | {"dram_bytes": str(report["dram"]["total_bytes"])}
    if report["cycles"]:
        found["cycles"] = str(report["cycles"]["total"])
    return {f"{PREFIX}{key}": value for key, value in found.items()}


def _set(properties: Any, wanted: Mapping[str, str]) -> None:
    """Instead of what stands there of ours."""
    others = [(each.key, each.value) for each in properties if not each.key.startswith(PREFIX)]
    del properties[:]
    for key, value in (*others, *wanted.items()):
        properties.add(key=key, value=value)


# --- files and shapes --------------------------------------------------------------------------------------


def _read(path: Path) -> onnx.ModelProto:
    """Without the weights that lie in other files."""
    return onnx.load(path, load_external_data=False)


def _files_beside(model: onnx.ModelProto) -> list[str]:
    """That hold weights."""
    of_nodes = [each.t for node in model.graph.node for each in node.attribute if each.HasField("t")]
    tensors = [each for each in (*model.graph.initializer, *of_nodes) if uses_external_data(each)]
    return sorted({ExternalDataInfo(each).location for each in tensors})


def _shapes(graph: onnx.GraphProto) -> dict[str, str]:
    """`1x64x56x56`, as far as the file says shapes; open extents by name."""
    found = {}
    for each in (*graph.input, *graph.value_info, *graph.output):
        extents = each.type.tensor_type.shape.dim
        found[each.name] = "x".join(dim.dim_param or str(dim.dim_value) for dim in extents)
    return found


def _outputs(names: Sequence[str], shapes: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for place, name in enumerate(names):
        facts = {"tensor_name": name, "tensor_shape": shapes.get(name, "")}
        yield {"id": str(place), "attrs": _pairs(facts)}


def _explorer_node(
    number: str, label: str, namespace: str, facts: Mapping[str, str], edges: list[dict[str, str]],
    outputs: Iterator[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    return {
        "id": number, "label": label, "namespace": namespace, "attrs": _pairs(facts), "incomingEdges": edges,
        "outputsMetadata": list(outputs),
    }  # fmt: skip


def _pairs(facts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in facts.items() if value]
