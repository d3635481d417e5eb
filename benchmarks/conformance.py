"""The ONNX backend suite through `frustum.onnx_backend`: every case, compared with its stored outputs.

    python benchmarks/conformance.py                 all cases, and the table in docs/conformance.md
    python benchmarks/conformance.py relu conv       the cases whose names hold one of these words

1884 node cases are generated in memory, 149 are stored in the package `onnx` (simple, pytorch-operator,
pytorch-converted, real: the nine classic networks).  Worker processes run one case after the other; one that takes
longer than its limit is ended and counts as hanging, one that ends its process counts as crashed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")
LIMIT_SECONDS = 60.0
REAL_LIMIT_SECONDS = 300.0
DOCS = Path(__file__).resolve().parents[1] / "docs" / "conformance.md"


@dataclass
class Outcome:
    """What became of one case."""

    name: str
    kind: str
    verdict: str = "crashed"
    """passed, failed, hangs, crashed"""
    reason: str = ""
    operators: list[str] = field(default_factory=list)
    """Of the nodes of its graph, each once, in order."""
    on_device: list[str] = field(default_factory=list)
    """Operators with at least one node on the device."""
    on_host: dict[str, str] = field(default_factory=dict)
    """Operators with at least one node on the host, and why."""
    types: list[str] = field(default_factory=list)
    """Element types of the inputs."""
    seconds: float = 0.0


def main() -> int:
    options = _options()
    outcomes = run_cases(options.words, options.target, options.host, options.kinds)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")
    counts = Counter(each.verdict for each in outcomes)
    sys.stdout.write(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + "\n")
    for each in outcomes:
        if each.verdict != "passed":
            sys.stdout.write(f"{each.kind} {each.name}: {each.verdict}: {each.reason}\n")
    if options.docs:
        from conformance_table import table

        DOCS.write_text(table(outcomes, options.target), encoding="utf-8")
    return 0 if counts["passed"] >= 0.99 * len(outcomes) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="run the cases whose names hold one of these")
    parser.add_argument("--target", default="edge")
    parser.add_argument("--host", default="auto", choices=("never", "auto", "only"))
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--json", help="write the outcomes to this file")
    parser.add_argument("--docs", action="store_true", help="write docs/conformance.md")
    return parser.parse_args()


def run_cases(
    words: Sequence[str] = (), target: str = "edge", host: str = "auto", kinds: Sequence[str] = KINDS
) -> list[Outcome]:
    """Every case in a worker process, which is replaced when it hangs or dies."""
    names = [name for name in case_names(kinds) if not words or any(word in name[1] for word in words)]
    found: list[Outcome] = []
    while len(found) < len(names):
        found += _worker_run(names[len(found) :], target, host)
    return found


def _worker_run(names: Sequence[tuple[str, str]], target: str, host: str) -> list[Outcome]:
    """Outcomes of the first cases, up to one that hangs or kills the worker, that one included."""
    context = multiprocessing.get_context("fork")  # the cases are loaded once, before
    ours, theirs = context.Pipe()
    worker = context.Process(target=_serve, args=(theirs, names, target, host))
    worker.start()
    theirs.close()
    found: list[Outcome] = []
    try:
        for kind, name in names:
            limit = REAL_LIMIT_SECONDS if kind == "real" else LIMIT_SECONDS
            try:
                if not ours.poll(limit):
                    found.append(Outcome(name, kind, "hangs", f"no answer after {limit:g} s"))
                    return found
                found.append(Outcome(**ours.recv()))
            except EOFError:
                worker.join()
                found.append(Outcome(name, kind, "crashed", f"the process ended with code {worker.exitcode}"))
                return found
        return found
    finally:
        worker.kill()
        worker.join()


def _serve(pipe: Any, names: Iterable[tuple[str, str]], target: str, host: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    for kind, name in names:
        pipe.send(asdict(run_case(kind, name, target, host)))


# --- one case ----------------------------------------------------------------------------------------------


def case_names(kinds: Sequence[str] = KINDS) -> list[tuple[str, str]]:
    """Kind and name of every case."""
    return [(kind, name) for kind in kinds for name in cases(kind)]


_CASES: dict[str, dict[str, Any]] = {}


def cases(kind: str) -> dict[str, Any]:
    """The suite's cases of a kind by name."""
    if kind not in _CASES:
        from onnx.backend.test.loader import load_model_tests

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _CASES[kind] = {case.name: case for case in load_model_tests(kind=kind)}
    return _CASES[kind]


def run_case(kind: str, name: str, target: str = "edge", host: str = "auto") -> Outcome:
    """Prepare, run, compare with the stored outputs in the way of the suite's own runner."""
    from onnx.backend.test.runner import _normalize_tensor

    from frustum import onnx_backend

    case = cases(kind)[name]
    outcome = Outcome(name, kind, "failed")
    started = time.perf_counter()
    try:
        model, data_sets = _data_of(case)
        outcome.operators = list(dict.fromkeys(_operator(node) for node in model.graph.node))
        prepared = onnx_backend.prepare(model, target=target, host=host)
        for inputs, expected in data_sets:
            given = [_normalize_tensor(each) for each in inputs]
            outcome.types = sorted({each.dtype.name for each in given if hasattr(each, "dtype")})
            outputs = prepared.run(given)
            _note_places(outcome, prepared)
            wanted = [_normalize_tensor(each) for each in expected]
            compare(outputs, wanted, case.rtol, case.atol)
        outcome.verdict = "passed"
    except Exception as error:
        outcome.reason = _reason(error)
        if os.environ.get("FRUSTUM_DEBUG"):
            traceback.print_exc()
    outcome.seconds = round(time.perf_counter() - started, 3)
    return outcome


def compare(found: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float, where: str = "output") -> None:
    """AssertionError unless types, shapes and numbers agree, as the suite's own runner has it: integers and text to
    the element, bfloat16 to two units in the last place, other numbers within the case's tolerances."""
    import numpy as np

    assert len(found) == len(expected), f"{len(found)} values for {where}, {len(expected)} expected"
    for number, (own, wanted) in enumerate(zip(found, expected, strict=True)):
        place = f"{where} {number}"
        if isinstance(wanted, list | tuple):
            assert isinstance(own, list | tuple), f"{place} is no sequence"
            compare(own, wanted, rtol, atol, place)
            continue
        if wanted is None:
            assert own is None, f"{place} is something, nothing is expected"
            continue
        own, wanted = np.asarray(own), np.asarray(wanted)
        assert own.shape == wanted.shape, f"{place} is {own.shape}, expected {wanted.shape}"
        if wanted.dtype.kind in "OUS":
            np.testing.assert_array_equal(own, wanted)
            continue
        assert own.dtype == wanted.dtype, f"{place} has {own.dtype}, expected {wanted.dtype}"
        tolerance = max(rtol, 2**-6) if wanted.dtype.name == "bfloat16" else rtol
        if wanted.dtype.name == "bfloat16":
            own, wanted = own.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(own, wanted, rtol=tolerance, atol=atol, err_msg=place)


def _note_places(outcome: Outcome, prepared: Any) -> None:
    """Which operators ran where: what is not on the host and is not a constant ran on the device."""
    assert prepared.chain is not None
    outcome.on_host = {each.op: each.reason for each in prepared.chain.fallbacks}
    if prepared.chain.executables:
        outcome.on_device = [each for each in outcome.operators if each not in outcome.on_host]


def _data_of(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model of a case, and its inputs and outputs."""
    import onnx

    if case.model is not None:
        return case.model, case.data_sets
    if case.url is not None and "/light/" in case.url:
        return _light(case)
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    return model, [_stored(model, data) for data in sorted(folder.glob("test_data_set_*"))]


def _light(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """A classic network: its input counts from 0 to 1, its output is stored."""
    import onnx
    from onnx.backend.test.runner import Runner

    path = Path(onnx.__file__).parent / case.url.removeprefix("onnx/")
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(value) for value in model.graph.input if value.name not in constants]
    tensor = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    return model, [(inputs, [onnx.numpy_helper.to_array(tensor)])]


def _stored(model: Any, folder: Path) -> tuple[list[Any], list[Any]]:
    constants = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in constants]
    inputs = [_read(folder / f"input_{number}.pb", value.type) for number, value in enumerate(values)]
    outputs = [_read(folder / f"output_{n}.pb", value.type) for n, value in enumerate(model.graph.output)]
    return inputs, outputs


def _read(path: Path, type_: Any) -> Any:
    import onnx
    from onnx import numpy_helper

    content = path.read_bytes()
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def _operator(node: Any) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = f" from {type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ else ""
    return f"{type(error).__name__}: {'; '.join(lines[:6])}{cause}"[:400]


if __name__ == "__main__":
    sys.exit(main())
