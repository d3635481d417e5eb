"""Options against the module they are for: its target, types and policy, and what comes too late for its stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.backend import targets
from frustum.backend.pipeline import FLOATS, STOPS, Choices, stop_of
from frustum.dialects.foreign import is_foreign
from frustum.dialects.graph import NetworkOp
from frustum.dialects.isa.sync import ExternalOp, ProgramOp
from frustum.dialects.module import CHAIN_INPUTS, CHAIN_OUTPUTS, DTYPE, POLICY, TARGET
from frustum.dialects.target import Target, from_attribute, to_attribute
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.fuse.policy import CUTS, PolicyError, chosen, parse_policy
from frustum.passes.graph.map_sizes import check_dram
from frustum.passes.graph.outline import OutlineNetworks, layers_outside
from frustum.passes.onnx.import_onnx import INT8
from frustum.runtime.diagnostics import node_name
from frustum.runtime.failures import UsageError, say
from frustum.runtime.model.request import Request
from frustum.runtime.model.source_module import DEFAULT_TARGET, Loaded, name_of, words_of

AUTO = "auto"
"""Of `--compress-weights`: where it is better."""
INTEGERS = frozenset({"i8", "i16"})
OUTLINED = "frustum-graph-outline makes networks of such layers"


def settle(
    loaded: Loaded,
    module: ModuleOp,
    request: Request,
    target: Target | None,
    passes: Sequence[ModulePass] | None,
) -> Choices:
    """Give the module its target and policy; UsageError where it is past the stop that an option is for."""
    name = name_of(loaded, request)
    is_cut = CHAIN_INPUTS in module.attributes and CHAIN_OUTPUTS in module.attributes
    if not any(isinstance(each, OutlineNetworks) for each in passes or ()):
        outside = warn_of_layers_outside(loaded, module, name)
        if not is_cut and sum(isinstance(op, NetworkOp | ProgramOp) for op in module.walk()) != 1:
            hint = f" ({outside} layers stand in none: {OUTLINED})" if outside else ""
            raise UsageError(f"{name}: error: there is not exactly one network in it{hint}")
    note_dtype(module, name)
    stop = stop_of(module)
    if is_cut and stop != STOPS[0]:
        raise UsageError(f"{name}: error: several networks are continued as they were cut, not at stop '{stop}'")
    is_fused = STOPS.index(stop) >= STOPS.index("fused")
    _set_target(module, target, name, stop if is_fused else None)
    if not is_fused:
        _check_dram(module)
    dtype = None if request.dtype == "model" else request.dtype
    _refuse_types(module, request, name)
    noted = words_of(module)
    if is_fused:
        own_choices = ("--dtype", dtype, noted.get(DTYPE)), ("--policy", request.policy, noted.get(POLICY))
        for option, value, own in own_choices:
            if value is not None and value != own:
                raise UsageError(f"{name}: error: {option} {value} has no effect at stop '{stop}'")
    fuse = next((each for each in passes or () if isinstance(each, FuseLayers)), None)
    if is_fused:
        return Choices(dtype or noted.get(DTYPE), noted.get(POLICY))
    if fuse:
        policy = _fusion(module, CUTS if fuse.cuts else fuse.policy, fuse.rules, fuse.thresholds)
    else:
        policy = _fusion(module, request.policy or noted.get(POLICY), None, None)
    module.attributes[POLICY] = StringAttr(policy[0])
    return Choices(dtype or noted.get(DTYPE), *policy)


def _check_dram(module: ModuleOp) -> None:
    own = from_attribute(module.attributes[TARGET])  # type: ignore[arg-type]
    for network in module.walk():
        if isinstance(network, NetworkOp):
            check_dram(network, own)


def warn_of_layers_outside(loaded: Loaded, module: ModuleOp, name: str) -> int:
    """Say of each layer that is in no network, and so is not compiled, where it stands; how many they are."""
    outside = [] if loaded.original is not None else list(layers_outside(module))
    for op in outside:
        node = node_name(op.location)
        what = f"'{op.name}' op" + (f' ("{node}")' if node else "")
        place = loaded.text.place_of(op) if loaded.text is not None else name
        say(f"{place}: warning: {what} stands in no network and is not compiled: {OUTLINED}")
    return len(outside)


def note_dtype(module: ModuleOp, name: str) -> None:
    """Give a module that does not say it its element type on the device, that of its tensors (biases may be f32)."""
    if isinstance(module.attributes.get(DTYPE), StringAttr):
        return
    found = {element for op in module.walk() for element in elements_of(op)}
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


def elements_of(op: Operation) -> set[str]:
    """The element types of what an operation of ours gives, as they are called on the device."""
    if isinstance(op, ExternalOp):
        return {op.element.data}
    if is_foreign(op):
        return set()
    arguments = op.body.block.args if isinstance(op, NetworkOp) else ()
    types = [value.type for value in (*arguments, *op.results)]
    return {str(kind.element_type) for kind in types if isinstance(kind, TensorType)}


def with_own_types(request: Request, loaded: Loaded, module: ModuleOp) -> Request:
    """The request for this module: the element type of the target's options acts on floating-point ONNX models alone;
    integers and stages have their types."""
    is_open = loaded.original is not None and words_of(module).get(DTYPE) != INT8
    return request if is_open or not request.dtype_is_stored else replace(request, dtype=None)


def with_weights(choices: Choices, loaded: Loaded, module: ModuleOp, request: Request) -> Choices:
    """The choices with how weights are held and tiles are ordered; UsageError where the module is past that."""
    stop = stop_of(module)
    for option, value in (("--compress-weights", request.compress_weights), ("--weights", request.weights)):
        if value is not None and STOPS.index(stop) >= STOPS.index("lowered"):
            raise UsageError(f"{name_of(loaded, request)}: error: {option} {value} has no effect at stop '{stop}'")
    for option, value in (("--order", request.order), ("--borders", request.borders)):
        if value is not None and STOPS.index(stop) >= STOPS.index("tiled"):
            raise UsageError(f"{name_of(loaded, request)}: error: {option} {value} has no effect at stop '{stop}'")
    compression = request.compress_weights or AUTO
    if compression == AUTO and choices.policy == "none":
        compression = "none"  # the reference to beat has everything as it is
    return replace(
        choices, compression=compression, if_better=compression == AUTO, weights=request.weights or "replicated",
        order=request.order, borders=request.borders,
    )  # fmt: skip


def _fusion(
    module: ModuleOp, name: str | None, rules: str | None, thresholds: str | None
) -> tuple[str, str | None, str | None]:
    """The policy with its rules and thresholds: what is asked for, or else what the target's options say."""
    own = from_attribute(module.attributes[TARGET])  # type: ignore[arg-type]
    stored = chosen(None, None, None, own.options)
    policy = chosen(name, rules, thresholds, own.options)
    if rules is None and thresholds is None and name == stored[0]:  # a dumped stage notes the name alone
        policy = stored
    try:
        parse_policy(*policy)
    except PolicyError as error:
        raise UsageError(f"target {own.name}: error: options: {error}") from error
    return policy


def _refuse_types(module: ModuleOp, request: Request, name: str) -> None:
    own = words_of(module).get(DTYPE)
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
        made_for = from_attribute(own).name if own is not None else "another target"  # type: ignore[arg-type]
        raise UsageError(
            f"{name}: error: at stop '{fused_at}' it is made for {made_for}: --target {target.name} comes too late"
        )
    module.attributes[TARGET] = given
