"""`frustum plan --certificate`, and `frustum.check_plan`, which recounts what it claims."""

import copy
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import mixed_models
import onnx
import planned_models
import pytest

from frustum.backend import targets
from frustum.backend.network_to_plan import networks_of_model, networks_to_plan
from frustum.dialects.plan import check
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import parse_plan
from frustum.dialects.plan.tree import Node, Sequence, layers_in
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.place_host import import_or_place
from frustum.passes.zoo import zoo_model
from frustum.runtime.model import check_plan
from frustum.runtime.tools import cli

PLANS = {"residual": (planned_models.residual, 16), "perceptron": (planned_models.perceptron, 16)}
"""Models, each with KiB of SRAM: loops that roll; loops around each other, and sums that wait."""
SLOW_MACHINE = 2
"""How many times longer than on an idle one it may take where other tests run too."""
BY_HAND = """plan @perceptron for "tight32" {
  resident x, first at x
  compute first
  resident down
  for up.c step 64 of 256 { compute up, down }
  resident y at down
  compute y.sums, y
}"""
"""Of the second one, with residents in the storage of others."""


class Case:
    """A model, its machine, and a certificate of the plan that was found or is given."""

    def __init__(self, folder: Path, name: str, given: str = "", kib: int = 0) -> None:
        build, own = PLANS[name]
        self.folder, self.model = folder, planned_models.save(folder, name, build())
        self.target, self.file = planned_models.machine(folder, kib or own), folder / f"{name}.json"
        words = ["plan", self.model, "--target", self.target, "--dtype", "f16", "--certificate", str(self.file)]
        if given:
            plan = folder / "given.plan"
            plan.write_text(given)
            words += ["--plan", str(plan)]
        assert cli.main(words) == 0
        self.claims = json.loads(self.file.read_text())
        self.machine = targets.load(self.target)
        (self.network,) = networks_to_plan(import_onnx(self.model), self.machine, "f16")

    def check(self, claims: object = None) -> int:
        file = self.folder / "changed.json"
        file.write_text(claims if isinstance(claims, str) else json.dumps(claims or self.claims))
        return check_plan.main([self.model, self.target, str(file)])

    def holds(self, claims: dict) -> bool:
        """Whether all is as claimed, known from the network and the text of the plan alone."""
        told = {"model", "target", "format", "options"}
        if any(claims[name] != self.claims[name] for name in told) or len(claims["plans"]) != 1:
            return False
        (plan,) = claims["plans"]
        try:
            name, target, tree = parse_plan("\n".join(plan["plan"]), self.network)
            counted = count(self.network, tree)
        except PlanError:
            return False
        (own,) = self.claims["plans"]
        if (name, target, plan["network"]) != (own["network"], self.machine.name, own["network"]):
            return False
        claimed = (plan["read_bytes"], plan["write_bytes"], plan["link_bytes"], plan["sram_bytes"])
        children = getattr(tree, "children", (tree,))
        nodes = [(counted.moved[id(each)], counted.received[id(each)], counted.held[id(each)]) for each in children]
        return (
            claimed == (counted.read_bytes, counted.write_bytes, counted.link_bytes, counted.sram_bytes)
            and nodes == [(each["dram_bytes"], each["link_bytes"], each["sram_bytes"]) for each in plan["nodes"]]
            and [each["title"] for each in plan["nodes"]] == [title(each) for each in children]
        )


def title(node: Node) -> str:
    return f"{{ {next(layers_in(node))}" if isinstance(node, Sequence) else check.title(node)


@pytest.fixture(scope="module", params=["residual", "by hand", pytest.param("perceptron", marks=pytest.mark.slow)])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("certificates")
    return Case(folder, "perceptron", BY_HAND, 32) if request.param == "by hand" else Case(folder, request.param)


@pytest.fixture
def simple(tmp_path: Path) -> Case:
    return Case(tmp_path, "perceptron", BY_HAND, 32)


# --- what holds ---------------------------------------------------------------------------------------------


def test_a_certificate_checks(case, capsys):
    assert case.holds(case.claims)
    assert case.check() == 0
    (plan,) = case.claims["plans"]
    read, written, sram = (plan[name] for name in ("read_bytes", "write_bytes", "sram_bytes"))
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        f"@{plan['network']} on {case.machine.name}: {read:,} B read and {written:,} B written, "
        f"at most {sram:,} B of SRAM\n"
    )


def test_nodes_add_up(case):
    (plan,) = case.claims["plans"]
    tree = parse_plan("\n".join(plan["plan"]), case.network)[2]
    counted = count(case.network, tree)
    outside = sum(counted.moved[id(each)] for each in getattr(tree, "residents", ()))
    assert sum(node["dram_bytes"] for node in plan["nodes"]) + outside == plan["read_bytes"] + plan["write_bytes"]
    assert max(node["sram_bytes"] for node in plan["nodes"]) <= plan["sram_bytes"]


def test_parts_of_a_model_are_all_certified(tmp_path, capsys):
    model, file = tmp_path / "mixed.onnx", tmp_path / "mixed.json"
    onnx.save(mixed_models.sandwich(8, 12), model)
    assert cli.main(["plan", str(model), "--target", "edge", "--certificate", str(file)]) == 0
    assert check_plan.main([str(model), "edge", str(file)]) == 0
    assert capsys.readouterr().out.count(" on edge: ") == 2
    claims = json.loads(file.read_text())
    del claims["plans"][1]
    file.write_text(json.dumps(claims))
    assert check_plan.main([str(model), "edge", str(file)]) == 3
    assert capsys.readouterr().err == f"{file}: error: networks: claimed mixed_0, found mixed_0, mixed_2\n"


OVER_CLUSTERS = """plan @perceptron for "TARGET" {
  resident x, first
  compute first
  resident down sharded x.0
  for up.c step 64 of 256 over clusters { compute up, down }
  compute y.sums, y
}"""


def test_a_plan_over_clusters_is_certified(tmp_path, capsys):
    """Four clusters add their sums of 48 x 64 elements, then each receives three quarters of the rows."""
    model, file = planned_models.save(tmp_path, "perceptron", planned_models.perceptron()), tmp_path / "p.json"
    given = tmp_path / "given.plan"
    words = ["plan", model, "--dtype", "f16", "--plan", str(given)]
    given.write_text(OVER_CLUSTERS.replace("TARGET", "default"))
    assert cli.main([*words, "--target", "default"]) == 0
    result, shown = 2 * 48 * 64, capsys.readouterr().out
    assert re.search(f"over clusters {{ +// .*{3 * result:,} B received over links, ", shown)
    assert re.search(f"compute y.sums, y +// .*{6 * result:,} B received over links, ", shown)
    assert f"{9 * result:,} B received over links" in shown.splitlines()[0]
    assert cli.main([*words, "--target", "default", "--certificate", str(file)]) == 0
    assert check_plan.main([model, "default", str(file)]) == 0
    assert f"written, {9 * result:,} B received over links, at most " in capsys.readouterr().out
    claims = json.loads(file.read_text())
    claims["plans"][0]["nodes"][2]["link_bytes"] -= 2
    file.write_text(json.dumps(claims))
    assert check_plan.main([model, "default", str(file)]) == 3
    assert f"link_bytes: claimed {6 * result - 2}, found {6 * result}" in capsys.readouterr().err
    given.write_text(OVER_CLUSTERS.replace("TARGET", "edge"))
    assert cli.main([*words, "--target", "edge"]) == 2
    assert "given.plan:5:3: error: for up.c over clusters: 4 ranges, edge has 1 cluster" in capsys.readouterr().err


@pytest.mark.slow
def test_it_is_a_command_of_the_package_that_loads_no_planner(simple):
    code = (
        "import runpy, sys\n"
        "try:\n    runpy.run_module('frustum.check_plan', run_name='__main__')\n"
        "finally:\n    print(*sorted(name for name in sys.modules if name.startswith('frustum.')))"
    )
    command = [sys.executable, "-c", code, simple.model, simple.target, str(simple.file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    claim, modules = done.stdout.splitlines()
    assert claim.startswith("@perceptron on tight32: ")
    known = {name.rpartition(".")[0] for name in modules.split()} | set(modules.split())
    assert "frustum.passes.onnx" in known
    other = ("frustum.passes.plan", "frustum.passes.fuse", "frustum.passes.tile", "frustum.passes.lower")
    assert not known & {*other, "frustum.runtime.study", "frustum.backend.pipeline", "frustum.passes.plan.tree"}


@pytest.mark.slow
def test_resnet50_is_checked_in_two_seconds(tmp_path, capsys):
    """Each layer with rows has a loop over them: more passes than a plan that fuses layers."""
    machine = targets.load("edge")
    (network,) = networks_of_model(import_or_place(zoo_model("resnet50", 0), machine, "auto"), machine, "f16")
    lines = []
    for layer in network.layers:
        compute = f'compute "{layer.name}"'
        rows = [axis for axis in layer.result.axes[1:2] if axis.extent > 1]
        lines += [f'for "{axis.name}" step 1 of {axis.extent} {{ {compute} }}' for axis in rows] or [compute]
    plan, file = tmp_path / "rows.plan", tmp_path / "rows.json"
    plan.write_text("\n".join(['plan @zoo_resnet50 for "edge" {', *lines, "}"]))
    words = ["zoo:resnet50", "--target", "edge", "--dtype", "f16", "--plan", str(plan), "--certificate", str(file)]
    assert cli.main(["plan", *words]) == 0
    start = time.process_time()
    assert check_plan.main(["zoo:resnet50", "edge", str(file)]) == 0
    assert time.process_time() - start < 2 * SLOW_MACHINE
    assert capsys.readouterr().out.startswith("@zoo_resnet50 on edge: ")


def test_the_checker_is_small():
    lines = Path(check_plan.__file__).read_text().splitlines()
    assert len(lines) <= 300


# --- what is no certificate -----------------------------------------------------------------------------------


MALFORMED = {
    "": r"is no certificate: Expecting value",
    "[" * 100_000: "is no certificate: ",
    "[]": "error: certificate: expected an object with format, model, target, options, plans",
    '{"format": 1, "format": 1}': "is no certificate: a key stands twice among format, format",
    '{"format": "frustum plan certificate 2"}': "format: expected one of frustum plan certificate 1",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_file_that_is_no_certificate(text, simple, capsys):
    file = simple.folder / "changed.json"
    file.write_text(text)
    assert check_plan.main([simple.model, simple.target, str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"{file}: error: ") and re.search(MALFORMED[text], err) and len(err.splitlines()) == 1


KEYS = {
    ("plans", 0, "read_bytes"): (True, -1, 1.5, "1", None),
    ("plans", 0, "plan"): ("plan", [1], {}),
    ("plans", 0, "nodes", 0, "title"): (1, None),
    ("options", "dtype"): ("int8", "f8", 3),
    ("options", "batch"): (0, "2", True),
    ("options", "shapes"): ({"x": [0]}, {"x": "1x2"}, []),
    ("options", "dims"): ({"n": "7"},),
    ("options", "bind"): ({"n": "7"}, {"n": None}),
    ("options", "policy"): ("optimal",),
    ("model",): ("sha", None),
    ("target", "sha256"): (3,),
    ("extra",): (1,),
}


@pytest.mark.parametrize("path", KEYS, ids=lambda path: ".".join(map(str, path)))
def test_what_is_of_no_kind_is_named(path, simple, capsys):
    for value in KEYS[path]:
        claims = copy.deepcopy(simple.claims)
        at = claims
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        assert simple.check(claims) == 2, value
        err = capsys.readouterr().err
        assert f"{path[-1]}" in err and len(err.splitlines()) == 1


def test_missing_keys_are_named(simple, capsys):
    for path in (("format",), ("plans",), ("plans", 0, "sram_bytes"), ("plans", 0, "nodes", 0, "dram_bytes")):
        claims = copy.deepcopy(simple.claims)
        at = claims
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
        assert simple.check(claims) == 2
        assert f"{path[-1]} is missing\n" in capsys.readouterr().err


def test_other_files_than_were_certified(simple, tmp_path, capsys):
    other = planned_models.save(tmp_path, "other", planned_models.perceptron(rows=40))
    assert check_plan.main([other, simple.target, str(simple.file)]) == 3
    said = r"error: SHA-256 of .*other.onnx: claimed [0-9a-f]{64}, found [0-9a-f]{64}\n"
    assert re.search(said, capsys.readouterr().err)
    assert check_plan.main([simple.model, "edge", str(simple.file)]) == 3
    assert "error: target: claimed tight32, found edge\n" in capsys.readouterr().err
    text = Path(simple.target).read_text()
    Path(simple.target).write_text(text.replace("32 KiB", "31 KiB"))
    assert check_plan.main([simple.model, simple.target, str(simple.file)]) == 3
    assert "error: SHA-256 of target tight32: claimed " in capsys.readouterr().err
    for words in ([str(tmp_path / "no.onnx"), "edge"], [simple.model, "no-target"]):
        assert check_plan.main([*words, str(simple.file)]) in (2, 3)
        assert "Traceback" not in capsys.readouterr().err
    assert check_plan.main([simple.model, simple.target, str(tmp_path / "no.json")]) == 2
    assert capsys.readouterr().err.endswith("no.json: error: cannot be read: No such file or directory\n")


def test_sram_that_the_target_does_not_have(simple, capsys):
    """A certificate that says truly how much it takes, of a machine with less."""
    small = planned_models.machine(simple.folder, 4)
    claims = copy.deepcopy(simple.claims)
    machine = targets.load(small)
    claims["target"] = {"name": machine.name, "sha256": check_plan.digest(machine)}
    (plan,) = claims["plans"]
    plan["plan"][0] = plan["plan"][0].replace("tight32", "tight4")
    simple.target = small
    assert simple.check(claims) == 4
    assert "does not fit: needed " in capsys.readouterr().err


# --- what does not hold ---------------------------------------------------------------------------------------


def numbers(claims: dict, rng: random.Random) -> None:
    """Bytes or occupancy that are others."""
    (plan,) = claims["plans"]
    at, key = rng.choice([(plan, name) for name in check_plan.COUNTS] + [
        (node, name) for node in plan["nodes"] for name in ("dram_bytes", "link_bytes", "sram_bytes")
    ])
    at[key] = max(0, at[key] + rng.choice([-1, 1, -16, 64, -at[key] // 2, at[key]]))


def lines_that(plan: list[str], pattern: str) -> list[int]:
    return [k for k, line in enumerate(plan) if re.search(pattern, line)]


def order(claims: dict, rng: random.Random) -> None:
    """Two layers of a compute, or two lines, change places."""
    plan = claims["plans"][0]["plan"]
    several = lines_that(plan, r"compute .*,")
    if several and rng.random() < 0.7:
        k = rng.choice(several)
        head, names = plan[k].split("compute ")
        listed = names.split(", ")
        one, other = rng.sample(range(len(listed)), 2)
        listed[one], listed[other] = listed[other], listed[one]
        plan[k] = f"{head}compute {', '.join(listed)}"
        return
    one, other = rng.sample(lines_that(plan, "compute|resident"), 2)
    plan[one], plan[other] = plan[other], plan[one]


def resident(claims: dict, rng: random.Random) -> None:
    """A resident is gone, comes again, or is of another tensor."""
    plan = claims["plans"][0]["plan"]
    k = rng.choice(lines_that(plan, "resident"))
    head, names = plan[k].split("resident ")
    listed = names.split(", ")
    gone = rng.randrange(len(listed))
    if rng.random() < 0.3:
        listed[gone] = rng.choice(["x", "y", "a0", "b0", "first", "up", "act"])
    else:
        del listed[gone]
    plan[k] = f"{head}resident {', '.join(listed)}" if listed else ""


def step(claims: dict, rng: random.Random) -> None:
    """A loop's step is another."""
    plan = claims["plans"][0]["plan"]
    k = rng.choice(lines_that(plan, r"step \d+"))
    old = int(re.search(r"step (\d+)", plan[k])[1])
    new = rng.choice([each for each in (1, 2, 3, old - 1, old + 1, 2 * old) if each != old and each > 0])
    plan[k] = plan[k].replace(f"step {old} ", f"step {new} ")


def halo(claims: dict, rng: random.Random) -> None:
    """A loop's halos are another kind's; or its axis is another."""
    plan = claims["plans"][0]["plan"]
    k = rng.choice(lines_that(plan, r"for "))
    way = rng.choice([("rolling ", ""), ("rolling", "recomputed"), (" {", " recomputed {"), ("for ", "for x")])
    plan[k] = plan[k].replace(*way)


def storage(claims: dict, rng: random.Random) -> None:
    """A resident takes the storage of another one, or of one more."""
    plan = claims["plans"][0]["plan"]
    k = rng.choice(lines_that(plan, "resident"))
    names = rng.sample(["x", "y", "a0", "b0", "first", "up", "down", '"up.w:f16"', '"a0.w:f16"'], 2)
    if " at " in plan[k] and rng.random() < 0.6:
        plan[k] = re.sub(r" at \S+?(?=,| |$)", "" if rng.random() < 0.3 else f" at {names[0]}", plan[k], count=1)
    else:
        plan[k] += f", {names[0]} at {names[1]}"


def dtype(claims: dict, rng: random.Random) -> None:
    """Another element type, or other options that fix shapes."""
    others = {"dtype": "f32"}, {"dtype": "model"}, {"batch": 2}, {"dims": {"n": 3}}, {"shapes": {"x": [2]}}
    claims["options"].update(rng.choice(others))


def told(claims: dict, rng: random.Random) -> None:
    """Another network, target, model or node."""
    (plan,) = claims["plans"]
    ways = [
        lambda: plan.update(network="other"),
        lambda: claims["target"].update(name="edge"),
        lambda: claims["target"].update(sha256="0" * 64),
        lambda: claims["model"].update(sha256="0" * 64),
        lambda: plan["plan"].__setitem__(0, plan["plan"][0].replace("tight", "loose")),
        lambda: plan["plan"].__setitem__(0, plan["plan"][0].replace("plan @", "plan @no")),
        lambda: plan["nodes"].pop(),
        lambda: plan["nodes"].append(plan["nodes"][0]),
        lambda: plan["nodes"][0].update(title="compute y"),
        lambda: claims["plans"].append(plan),
    ]
    rng.choice(ways)()


CHANGES = (numbers, order, resident, step, halo, storage, dtype, told)


def check_changes(case: Case, seeds: range, capsys: pytest.CaptureFixture[str]) -> Counter:
    """Each change is refused in one message, or known to leave all claims true; how many of each."""
    found = Counter()
    for seed in seeds:
        rng, claims = random.Random(seed), copy.deepcopy(case.claims)
        change = CHANGES[seed % len(CHANGES)]
        change(claims, rng)
        is_true = case.holds(claims)
        code = case.check(claims)
        out, err = capsys.readouterr()
        where = f"{change.__name__}, seed {seed}: {err or out}"
        assert (code == 0) == is_true, where
        assert bool(out) == is_true and bool(err) != is_true, where
        if not is_true:
            assert code in (2, 3, 4) and err.count("error:") + err.count("does not fit: needed") == 1, where
            assert "Traceback" not in err, where
        found[change.__name__, is_true] += 1
    return found


def test_wrong_certificates_are_refused(simple, capsys):
    found = check_changes(simple, range(24), capsys)
    assert all(found[change.__name__, False] for change in CHANGES)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["residual", "by hand"], indirect=True)
def test_200_wrong_certificates_are_refused(case, capsys):
    found = check_changes(case, range(1000, 1128), capsys)
    assert sum(number for (_, is_true), number in found.items() if not is_true) >= 100
    assert all(found[change.__name__, False] for change in CHANGES)
