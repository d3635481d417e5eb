"""docs/conformance.md from the outcomes of `conformance.py`."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance import Outcome

DEVICE_OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool", "GlobalAveragePool",
    "GlobalMaxPool", "Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh",
    "Elu", "Gelu", "Softmax", "LRN", "BatchNormalization", "Add", "Sub", "Mul", "Div", "Sum", "Max", "Min",
    "Concat", "Split", "Slice", "Pad", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Upsample",
    "Resize", "ReduceMean", "DepthToSpace", "Sign", "Where", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual",
    "And", "Or", "Xor", "Not", "Gather", "Einsum", "ArgMax", "ArgMin", "TopK", "LSTM", "GRU", "RNN", "Attention",
)  # fmt: skip
"""Operators that run on the device; of Resize and Upsample the nearest and linear modes."""
MOST_REASONS = 4
EXACT = "float32"


def table(outcomes: Sequence[Outcome], target: str) -> str:
    """The page."""
    return "\n".join([*_head(outcomes, target), *_device(outcomes), *_failing(outcomes), *_operators(outcomes), ""])


def device_cases(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Cases of one node, of an operator of the device, on inputs of f32 (and integers that say shapes and axes).

    Not the ones whose operator is written out in others.
    """
    return [
        each
        for each in outcomes
        if _only(each) in DEVICE_OPERATORS
        and "expanded" not in each.name
        and EXACT in each.types
        and not {"float64", "float16", "bfloat16"} & set(each.types)
    ]


def runs_on_device(outcome: Outcome) -> bool:
    return outcome.verdict == "passed" and _only(outcome) in outcome.on_device


def _only(outcome: Outcome) -> str:
    names = [name for name in outcome.operators if name != "Constant"]
    return names[0] if len(names) == 1 else ""


def _head(outcomes: Sequence[Outcome], target: str) -> list[str]:
    passed = sum(each.verdict == "passed" for each in outcomes)
    kinds = defaultdict(list)
    for each in outcomes:
        kinds[each.kind].append(each)
    share = f"{passed} of {len(outcomes)} cases pass ({passed / len(outcomes):.2%})"
    crashed, hanging = (sum(each.verdict == verdict for each in outcomes) for verdict in ("crashed", "hangs"))
    lines = [
        "# ONNX backend suite",
        "",
        f"Written by `make conformance` (`benchmarks/conformance.py`) for target `{target}`, mode `--host auto`;",
        "how nodes get to the host is described in [host.md](host.md).  Every case goes through",
        "`frustum.onnx_backend.prepare(...).run(...)` and is compared with the outputs that the suite stores, with its",
        "tolerances (rtol 1e-3, atol 1e-7 unless the case has its own).  Inputs that have to be constants for a node",
        "to run on the device (weights, shapes, axes, indices) are bound by the backend from the run's values.",
        "",
        f"**{share}**; {crashed} crash, {hanging} hang.",
        "",
        "| kind | cases | pass | some node on the device |",
        "|---|---|---|---|",
    ]
    for kind, members in kinds.items():
        good = sum(each.verdict == "passed" for each in members)
        device = sum(bool(each.on_device) for each in members)
        lines.append(f"| {kind} | {len(members)} | {good} | {device} |")
    return lines


def _device(outcomes: Sequence[Outcome]) -> list[str]:
    cases = device_cases(outcomes)
    good = [each for each in cases if runs_on_device(each)]
    share = len(good) / len(cases) if cases else 0.0
    lines = [
        "",
        "## Operators of the device, in f32",
        "",
        *textwrap.wrap(", ".join(DEVICE_OPERATORS) + ":", 110),
        f"of {len(cases)} cases of one such node on f32 inputs, **{len(good)} ({share:.1%}) pass with the operator",
        "on the device**; cases whose operator is written out in others are not among these.  The rest:",
        "",
        "| case | operator | verdict | why not on the device |",
        "|---|---|---|---|",
    ]
    rest = (each for each in cases if not runs_on_device(each))
    for each in rest:
        why = each.on_host.get(_only(each), "") or each.reason
        lines.append(f"| {each.name} | {_only(each)} | {each.verdict} | {_cell(why)} |")
    return lines


def _failing(outcomes: Sequence[Outcome]) -> list[str]:
    bad = [each for each in outcomes if each.verdict != "passed"]
    lines = ["", "## Cases that do not pass", "", "| case | verdict | why |", "|---|---|---|"]
    for each in bad:
        lines.append(f"| {each.name} | {each.verdict} | {_cell(_explanation(each))} |")
    return lines


EXPLANATIONS = (
    (r"bernoulli", "its stored output is one draw of random numbers, which nobody can repeat"),
    (r"image_decoder", "the evaluator of ONNX decodes images with the package Pillow, which is not installed"),
    (r"gradient_of", "no evaluator computes `Gradient`, which was dropped from ONNX's releases"),
    (
        r"test_(bvlc_alexnet|zfnet512|squeezenet|vgg19|inception_v[12]|resnet50|shufflenet|densenet121)$",
        "all weights are 0.02, so all 1000 logits are the same large sum (4e12 in AlexNet, where f32 has steps of"
        " 262144): tiles of another width round it otherwise, and the softmax of that is all or nothing (the zoo:"
        " networks have other weights, and agree to 1e-5)",
    ),
)
"""By name: what stands behind a message about numbers."""


def _explanation(outcome: Outcome) -> str:
    for pattern, text in EXPLANATIONS:
        if re.search(pattern, outcome.name):
            return text
    return outcome.reason


def _operators(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        "",
        "## By operator",
        "",
        "A case counts for every operator in its graph: for the device if all nodes of the operator run there or are",
        "computed when compiling, else for the host.",
        "",
        "| operator | cases | on device | on host | failing | why on the host (cases) |",
        "|---|---|---|---|---|---|",
    ]
    found: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        for operator in each.operators:
            found[operator].append(each)
    for operator, cases in sorted(found.items()):
        bad = sum(each.verdict != "passed" for each in cases)
        device = sum(operator in each.on_device for each in cases)
        host = sum(operator in each.on_host for each in cases)
        reasons = Counter(_general(each.on_host[operator]) for each in cases if operator in each.on_host)
        named = [f"{_cell(reason)} ({count})" for reason, count in reasons.most_common(MOST_REASONS)]
        more = [f"and {len(reasons) - MOST_REASONS} others"] if len(reasons) > MOST_REASONS else []
        lines.append(f"| {operator} | {len(cases)} | {device} | {host} | {bad} | {'; '.join([*named, *more])} |")
    return lines


def _general(reason: str) -> str:
    """The reason without the names, sizes and times of one case."""
    reason = re.sub(r" \(node '[^']*' gives it on the host\)", "", reason)
    reason = re.sub(r"^'[^']*'", "an operand", reason)
    if reason.startswith("on the device it would move"):
        return "moving its data would cost more than the device saves"
    reason = re.sub(r"is \d+(x\d+)*, which", "is empty or has too many dimensions, which", reason)
    return re.sub(r"\(\d[\d, ]*\)", "(..)", reason)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:300]
