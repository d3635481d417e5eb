# Tests: test/runtime/tools/test_cli.py
"""What the user asks, and the module that it is asked of: MODEL read, its options held against it, its target, element
type and policy set.

Where an option has no effect, and what is one of a few words, is declared in `options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.backend import targets
from frustum.backend.graph_passes import FLOATS
from frustum.backend.pipeline import STOPS, Choices, Edit, stop_of
from frustum.backend.refuse import parse_refusal
from frustum.backend.split_compile import Splitting
from frustum.dialects.choices import TREE, When
from frustum.dialects.foreign import is_foreign
from frustum.dialects.graph import NetworkOp
from frustum.dialects.isa.sync import ExternalOp, ProgramOp
from frustum.dialects.module import CHAIN_INPUTS, CHAIN_OUTPUTS, DTYPE, MODEL, POLICY, TARGET, text_of
from frustum.dialects.target import Target, to_attribute
from frustum.passes.analysis.module import check_dram, target_of
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.fuse.policy import CUTS, OPTIMAL, PolicyError, chosen, parse_policy, problems_of
from frustum.passes.graph.outline import OutlineNetworks, layers_outside
from frustum.passes.graph.split_outputs import joined
from frustum.passes.onnx.import_onnx import INT8
from frustum.passes.plan.text.apply import ApplyPlan
from frustum.passes.plan.text.search import SearchPlan
from frustum.passes.tile.orders import parse_order
from frustum.passes.weights import WeightStore, attach, store_of
from frustum.runtime.diagnostics import SourceText, node_name
from frustum.runtime.failures import UsageError, say
from frustum.runtime.host.inputs import dtype_of, network_inputs
from frustum.runtime.kernels import Array
from frustum.runtime.model.chain import Interface
from frustum.runtime.model.options import Request, refuse_beside_pipeline, refuse_imported, refuse_late
from frustum.runtime.model.pipeline_edits import check_anchors, is_edit, parse_edits
from frustum.runtime.model.sources import Origin, kind_of, read_stage, read_zoo
from frustum.runtime.pipeline_text import AVAILABLE, parse_passes

if TYPE_CHECKING:
    from onnx import ModelProto

    from frustum.passes.onnx.loading import LoadedModel
    from frustum.passes.onnx.place_host import Placement

DEFAULT_TARGET = "default"
AUTO = "auto"
"""Of `--compress-weights`: where it is better."""
INTEGERS = frozenset({"i8", "i16"})
NOT_OF_TREES: dict[str, tuple[str | None, str]] = {
    "order": (None, f"in policy '{TREE}' the loops of the plan say in which order parts are made"),
    "borders": (None, f"in policy '{TREE}' the loops of the plan say what happens at borders of parts"),
    "weights": ("replicated", f"policy '{TREE}' has what all clusters need in each"),
}
"""Options that have no effect on a plan as a tree: the value that says what happens anyway, and why none other does."""
OUTLINED = "frustum-graph-outline makes networks of such layers"


# --- before the model is read ------------------------------------------------------------------------------


def given_target(request: Request) -> Target | None:
    """The target asked for, read from its file; None where none is said."""
    name = request.target
    return name if name is None or isinstance(name, Target) else targets.load(name, problems_of)


def target_file(request: Request) -> str | None:
    """The file of the machine, as it was named; None where it is a shipped one, or given as it is."""
    name = request.target
    return str(name) if isinstance(name, str | Path) and targets.is_file(str(name)) else None


def passes_of(request: Request) -> Sequence[ModulePass] | None:
    """The passes of `--pipeline`; None for the default ones, edited or not."""
    if request.pipeline is None or is_edit(request.pipeline):
        return None
    refuse_beside_pipeline(request)
    return parse_passes(AVAILABLE, request.pipeline)


def edits_of(request: Request) -> tuple[Edit, ...]:
    """What `--pipeline` changes in the default pipeline."""
    text = request.pipeline
    return () if text is None or not is_edit(text) else parse_edits(AVAILABLE, text)


def splitting_of(request: Request, target: Target | None) -> Splitting:
    """Where networks are cut, how their pieces are fused again, and for how many chips; UsageError where `--refuse` or
    `--order` is none, or asks for owners with borders that none hands over."""
    word = "--order"
    try:
        if request.order is not None and parse_order(request.order).owners and request.borders != "exchange":
            raise ValueError(f"'{request.order}': owners are asked for with --borders exchange")
        word = "--refuse"
        refusal = parse_refusal(request.refuse) if request.refuse is not None else None
    except ValueError as error:
        raise UsageError(f"error: {word} {error}") from error
    spreads = request.streams and request.placement == "each" and request.refuse is None
    chips = (target or targets.load(DEFAULT_TARGET)).chips if spreads else 1
    when: When = "auto" if request.plan is None else "never"  # a plan is of the network as it was
    return Splitting(request.split or when, refusal, chips)


# --- the model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """A module at some stop, or a model in pieces; where it came from, its text if it came from MLIR text, and what was
    assumed of it, as lines for the user."""

    module: ModuleOp | None = None
    placement: Placement | None = None
    origin: Origin | None = None
    original: ModelProto | Path | None = None
    text: SourceText | None = None
    assumed: tuple[str, ...] = ()
    bound: Mapping[str, Array] = field(default_factory=dict)
    """Inputs that the request made constants."""


def load(request: Request, target: Target | None = None, refused: Mapping[str, str] | None = None) -> Loaded:
    """The module of a model, at the stop it is at, or its pieces; `refused` nodes are on the host."""
    model = request.model
    if isinstance(model, ModuleOp):
        refuse_imported(request, "a module")
        return Loaded(_own(model.clone(), store_of(model)))
    if not isinstance(model, str | Path):
        return _import(Loaded(original=model), request, target, refused)
    text = str(model)
    kind = kind_of(text)
    if kind != "zoo" and request.weights_seed is not None:
        raise UsageError("error: --weights-seed is for zoo: models")
    if kind in ("folder", "executable"):
        raise UsageError(f"{text}: error: is compiled already")
    if kind == "stage":
        refuse_imported(request, text)
        module, source = read_stage(text)
        return Loaded(_own(module, store_of(module)), text=source)
    origin = Origin.of(text, request.weights_seed or 0)
    original = read_zoo(text, origin.weights_seed) if kind == "zoo" else Path(text)
    return _import(Loaded(origin=origin, original=original), request, target, refused)


def _import(
    found: Loaded, request: Request, target: Target | None, refused: Mapping[str, str] | None
) -> Loaded:
    """The original as a module where all of it is for the device, else as pieces."""
    from frustum.passes.onnx.binding import bound_scalars, with_dims
    from frustum.passes.onnx.loading import load_model
    from frustum.passes.onnx.place_host import Placement, import_or_place

    assert found.original is not None
    name = None if isinstance(found.original, Path) or found.origin is None else found.origin.model
    model = load_model(found.original)
    model.file = name or model.file
    model = with_dims(model, request.dims, request.batch, request.shapes)
    found = replace(found, bound=bound_scalars(model, request.bind))
    result = import_or_place(
        model,
        target or targets.load(DEFAULT_TARGET),
        request.host or "auto",
        batch=request.batch,
        shapes=dict(request.shapes) or None,
        constants={**request.constants, **found.bound},
        refused=refused or {},
        exact=request.dtype in (None, "model"),
    )
    found = replace(found, placement=result) if isinstance(result, Placement) else replace(found, module=result)
    return replace(found, assumed=_assumed(model, request, interface_of(found) or ()))


def _assumed(model: LoadedModel, request: Request, interface: Sequence[Interface]) -> tuple[str, ...]:
    """Lines that say which nodes stood out of order, in which type casts to a wider one are computed, and which inputs
    have 1 for an open leading dimension."""
    from frustum.passes.onnx.binding import open_batches
    from frustum.passes.onnx.loading import casts_computed_in, network_type

    said = [f"nodes out of topological order: {model.moved}; sorted"] if model.moved else []
    graph = model.proto.graph
    element = network_type(graph.input, graph.initializer, graph.node)
    casts = casts_computed_in(element, graph.node) if request.dtype in (None, "model") else 0
    if casts:
        said.append(
            f"element type: {element}, that of most weights; nodes that Cast to FLOAT: {casts}, computed in {element};"
            " --dtype f32 computes all in f32"
        )
    bound = {each.name for each in interface if each.shape is not None}  # what runs on the host may stay open
    inputs = [value for value in model.proto.graph.input if value.name in bound]
    ones = open_batches(inputs, request.batch, request.shapes)
    if not ones:
        return tuple(said)
    names = ", ".join(f"'{name}'" + (f" ({dim})" if dim else "") for name, dim in ones.items())
    return (*said, f"batch: 1, as the first dimension of {names} is open; --batch N says another",)


def constants_of_run(
    request: Request, model: ModelProto, arrays: Mapping[str, Array]
) -> Mapping[str, Array]:
    """The request's constants, and those of a run's inputs that have to be some for more of the model's nodes to
    run on the device."""
    from frustum.passes.onnx.place_host import constant_inputs

    if request.host == "only":
        return request.constants
    return constant_inputs(model, arrays, bound=request.constants, exact=request.dtype in (None, "model"))


def may_fall_back(loaded: Loaded, request: Request) -> bool:
    """Whether nodes may move to the host: those of an ONNX model, in mode auto."""
    return loaded.original is not None and request.host in (None, "auto")


def interface_of(loaded: Loaded) -> tuple[Interface, ...] | None:
    """The inputs of the whole; None where a module has lost them."""
    if loaded.placement is not None:
        return tuple(Interface(each.name, each.dtype, each.shape) for each in loaded.placement.inputs)
    assert loaded.module is not None
    module = loaded.module
    if CHAIN_INPUTS in module.attributes:
        module = ModuleOp([joined(module)[0]])
    found = network_inputs(module)
    return None if found is None else tuple(Interface(e.name, dtype_of(e).name, e.shape) for e in found)


def name_of(loaded: Loaded, request: Request) -> str:
    if isinstance(request.model, str | Path):
        return str(request.model)
    return words_of(loaded.module).get(MODEL, "module") if loaded.module is not None else "model.onnx"


def words_of(module: ModuleOp) -> dict[str, str]:
    """The module's attributes that are text."""
    return {name: a.data for name, a in module.attributes.items() if isinstance(a, StringAttr)}


def _own(module: ModuleOp, store: WeightStore) -> ModuleOp:
    """The module with its store in memory, where copies of the module find what passes add to it."""
    attach(module, store)
    return module


def refuse_of_trees(request: Request) -> None:
    """UsageError for what has no effect on a plan as a tree."""
    for name, (none, why) in NOT_OF_TREES.items():
        value = getattr(request, name)
        if value not in (None, none):
            raise UsageError(f"error: --{name.replace('_', '-')} {value}: {why}")


def cuts_of(request: Request, placement: Placement, number: int) -> str | None:
    """Of the layers behind which units end those of one piece, and names that no piece has; UsageError for layers of
    the host."""
    if request.cuts is None:
        return None
    words = [word.strip() for word in request.cuts.split(",") if word.strip()]
    hosted = {each.name: each for part in placement.parts for each in part.fallbacks}
    for word in words:
        if word in hosted:
            layer = hosted[word]
            raise UsageError(f"error: --cuts: layer '{word}' ({layer.op}) runs on the host: {layer.reason}")
    names = [{each.name or each.output[0] for each in part.model.proto.graph.node} for part in placement.parts]
    others = set().union(*names) - names[number]
    return ",".join(word for word in words if word not in others)


def check_unused(request: Request, placement: Placement, target: Target) -> None:
    """UsageError for what is said of the device's layers and is wrong, where there are none to find that out."""
    policy_of(request, target)
    edits_of(request)
    if request.cuts is not None and (unknown := cuts_of(request, placement, 0)):
        word = unknown.split(",")[0]
        raise UsageError(f"error: --cuts: no layer is called '{word}': all of the model runs on the host")


# --- the module ----------------------------------------------------------------------------------------------


def with_own_types(request: Request, loaded: Loaded, module: ModuleOp) -> Request:
    """The request for this module: the element type of the target's options acts on floating-point ONNX models alone;
    integers and stages have their types."""
    is_open = loaded.original is not None and words_of(module).get(DTYPE) != INT8
    return request if is_open or not request.dtype_is_stored else replace(request, dtype=None)


def choices_for(
    loaded: Loaded,
    module: ModuleOp,
    request: Request,
    target: Target | None,
    passes: Sequence[ModulePass] | None,
) -> Choices:
    """Give the module its target and policy; UsageError where it is past the stop that an option is for."""
    name = name_of(loaded, request)
    stop = _stop_of_network(loaded, module, passes, name)
    is_fused = STOPS.index(stop) >= STOPS.index("fused")
    _set_target(module, target, name, stop if is_fused else None)
    if not is_fused:
        for network in module.walk():
            if isinstance(network, NetworkOp):
                check_dram(network, target_of(module))
    noted = words_of(module)
    _check_types(request, noted[DTYPE], name)
    policy: tuple[str | None, str | None, str | None] = (noted.get(POLICY), None, None)
    is_free = passes is None and not is_fused and (noted.get(POLICY), request.policy, request.rules) == (None,) * 3
    if is_fused:
        own = {"dtype": noted[DTYPE], "policy": noted.get(POLICY)}
        refuse_late(request, name, STOPS[: STOPS.index(stop) + 1], own)
    else:
        is_free = is_free and chosen(None, None, None, target_of(module).options)[0] == OPTIMAL
        policy = _set_policy(module, request, noted.get(POLICY), passes)
    compression = request.compress_weights or AUTO
    if policy[0] == TREE:
        refuse_of_trees(request)
    if compression == AUTO and policy[0] == "none":
        compression = "none"  # the reference to beat has everything as it is
    alike = {each.name: getattr(request, each.name, None) for each in fields(Choices)}
    choices = replace(
        Choices(**{name: value for name, value in alike.items() if value is not None}),
        dtype=noted[DTYPE] if request.dtype in (None, "model") else request.dtype,
        policy=policy[0],
        is_free=is_free,
        rules=policy[1],
        thresholds=policy[2],
        compression=compression,
        if_better=compression == AUTO,
        may_compress=request.compress_weights != "none",
    )
    if edits := edits_of(request):
        check_anchors(edits, choices, stop)
    return replace(choices, edits=edits)


def _stop_of_network(
    loaded: Loaded, module: ModuleOp, passes: Sequence[ModulePass] | None, name: str
) -> str:
    """The stop of a module that says its element type; UsageError unless it has one network, or is as it was cut."""
    is_cut = CHAIN_INPUTS in module.attributes and CHAIN_OUTPUTS in module.attributes
    if not any(isinstance(each, OutlineNetworks) for each in passes or ()):
        outside = _warn_of_layers_outside(loaded, module, name)
        if not is_cut and sum(isinstance(op, NetworkOp | ProgramOp) for op in module.walk()) != 1:
            hint = f" ({outside} layers stand in none: {OUTLINED})" if outside else ""
            raise UsageError(f"{name}: error: there is not exactly one network in it{hint}")
    _note_dtype(module, name)
    stop = stop_of(module)
    if is_cut and stop != STOPS[0]:
        raise UsageError(f"{name}: error: several networks are continued as they were cut, not at stop '{stop}'")
    return stop


def _warn_of_layers_outside(loaded: Loaded, module: ModuleOp, name: str) -> int:
    """Say of each layer that is in no network, and so is not compiled, where it stands; how many they are."""
    outside = [] if loaded.original is not None else list(layers_outside(module))
    for op in outside:
        node = node_name(op.location)
        what = f"'{op.name}' op" + (f' ("{node}")' if node else "")
        place = loaded.text.place_of(op) if loaded.text is not None else name
        say(f"{place}: warning: {what} stands in no network and is not compiled: {OUTLINED}")
    return len(outside)


def _note_dtype(module: ModuleOp, name: str) -> None:
    """Give a module that does not say it its element type on the device, that of its tensors (biases may be f32)."""
    if text_of(module, DTYPE) is not None:
        return
    found = {element for op in module.walk() for element in _elements_of(op)}
    floats = sorted(found & FLOATS.keys() - {"f32"})
    if found & INTEGERS:
        own = INT8
    elif len(floats) < 2 and found & FLOATS.keys():
        (own,) = floats or ["f32"]
    else:
        kinds = " and ".join(floats) or "no floating-point type"
        raise UsageError(
            f"{name}: error: the module has no {DTYPE}, and its tensors, of {kinds}, do not tell it: allowed are "
            f"{', '.join((*FLOATS, INT8))}"
        )
    module.attributes[DTYPE] = StringAttr(own)


def _elements_of(op: Operation) -> set[str]:
    """The element types of what an operation of ours gives, as they are called on the device."""
    if isinstance(op, ExternalOp):
        return {op.element.data}
    if is_foreign(op):
        return set()
    arguments = op.body.block.args if isinstance(op, NetworkOp) else ()
    types = [value.type for value in (*arguments, *op.results)]
    return {str(kind.element_type) for kind in types if isinstance(kind, TensorType)}


def _check_types(request: Request, own: str, name: str) -> None:
    if own == INT8 and request.dtype not in (None, "model", INT8):
        raise UsageError(f"{name}: error: --dtype {request.dtype}: it is a model of integers, which have their types")
    if request.calibrate is not None and (request.dtype != INT8 or own == INT8):
        raise UsageError(f"{name}: error: --calibrate needs --dtype int8 and a floating-point model")


def _set_target(module: ModuleOp, target: Target | None, name: str, fused_at: str | None) -> None:
    own = module.attributes.get(TARGET)
    if target is None and own is None:
        target = targets.load(DEFAULT_TARGET)
    if target is None:
        return
    given = to_attribute(target)
    if fused_at is not None and own != given:
        made_for = target_of(module).name if own is not None else "another target"
        raise UsageError(
            f"{name}: error: at stop '{fused_at}' it is made for {made_for}: --target {target.name} comes too late"
        )
    module.attributes[TARGET] = given


def _set_policy(
    module: ModuleOp, request: Request, noted: str | None, passes: Sequence[ModulePass] | None
) -> tuple[str, str | None, str | None]:
    """The policy with its rules and thresholds: what is asked for, or else what the target's options say."""
    policy = policy_of(request, target_of(module), noted, passes)
    module.attributes[POLICY] = StringAttr(policy[0])
    return policy


def policy_of(
    request: Request, own: Target, noted: str | None = None, passes: Sequence[ModulePass] | None = None
) -> tuple[str, str | None, str | None]:
    """The same for this machine; UsageError where it is none."""
    rules, thresholds = request.rules, request.thresholds
    asked = [flag for flag in ("cuts", "rules", "policy", "thresholds") if getattr(request, flag) is not None]
    name = request.policy or (None if rules else noted)
    if request.plan is not None:
        said = [flag for flag in (*asked, "optimise", "carry") if getattr(request, flag) not in (None, TREE)]
        if said:
            raise UsageError(f"error: --plan and --{said[0]}: a plan that is given is as it is")
        name = TREE
    together = request.policy == OPTIMAL or chosen(name, rules, None, own.options)[0] == TREE
    if request.cuts is not None and not together:
        if len(asked) > 1:
            raise UsageError(f"error: --cuts and --{asked[1]}: one of them says where units end")
        name = CUTS
    fuse = next((each for each in passes or () if isinstance(each, FuseLayers)), None)
    if fuse is not None:
        name, rules, thresholds = CUTS if fuse.cuts and not fuse.policy else fuse.policy, fuse.rules, fuse.thresholds
    if any(isinstance(each, SearchPlan | ApplyPlan) for each in passes or ()):
        name = TREE
    stored = chosen(None, None, None, own.options)
    policy = chosen(name, rules, thresholds, own.options)
    if rules is None and thresholds is None and name == stored[0]:  # a dumped stage notes the name alone
        policy = stored
    try:
        parse_policy(*policy)
    except PolicyError as error:
        where = f"error: --{asked[0]}" if asked else f"target {own.name}: error: options"
        raise UsageError(f"{where}: {error}") from error
    return policy
