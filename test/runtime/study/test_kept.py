"""Plans and curves that were found before are found again, whatever parts are called, checked, and never another's."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time

import mixed_models
import numpy as np
import onnx
import plan_nets
import planned_models
import pytest

import frustum
from frustum.backend import targets
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import read_plan
from frustum.dialects.plan.tree import Compute, Sequence
from frustum.passes.plan.tree import good_plans, search
from frustum.passes.plan.tree.wishes import GivenCuts, Wishes
from frustum.runtime.model import cache
from frustum.runtime.model.compiled_folder import MANIFEST, sealed
from frustum.runtime.study import kept
from frustum.runtime.study.kept import CURVE, PLAN, KeptSearch
from frustum.runtime.study.planned import curve_of, planned
from frustum.runtime.tools.cli import main

EDGE = targets.load("edge")
COPIES = """plan @net for "edge" { recompute conv_1 as conv_1.again
  for pool_2.y step 2 of 8 { resident x0 compute conv_1, pool_2 }
  compute conv_3
  for conv_6.y step 5 of 16 rolling { resident conv_1.again compute conv_1.again compute resize_4, conv_6 } }"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FRUSTUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


KNOWN = {}


@pytest.fixture(autouse=True)
def searches(monkeypatch):
    """How often plans and curves were searched; what one test has found the next one does not wait for."""
    found = []

    def once(where, name):
        real = getattr(where, name)

        def known(network, *args, **keywords):
            found.append(name)
            key = name, tuple(layer.name for layer in network.layers), str(args)
            if key not in KNOWN:
                result = real(network, *args, **keywords)
                KNOWN[key] = list(result) if isinstance(result, Iterator) else result
            return KNOWN[key]

        monkeypatch.setattr(where, name, known)

    once(good_plans, "fitting_plan")
    once(search, "searches")
    return found


def mlp() -> AxisNetwork:
    """Two products, of which neither the weights nor the rows between them fit in 1 KiB."""

    def build(net):
        return plan_nets.product(net, plan_nets.product(net, net.input(40, 12), 48, "gelu"), 8)

    return plan_nets.case(build).axes


def rename(network):
    """Other names for all that a plan may name, in place; the network itself."""
    axes = {axis: None for each in (*network.layers, *network.tensors) for axis in each.axes}
    for number, each in enumerate((*axes, *network.tensors, *network.layers)):
        each.name = f"for {number}"
    return network


def machine(kib=512, clusters=1):
    cluster = replace(EDGE.chip.cluster, sram=replace(EDGE.cluster.sram, capacity_bytes=kib * 1024))
    return replace(EDGE, chip=replace(EDGE.chip, cluster=cluster, clusters=clusters))


def test_the_second_time_nothing_is_searched(folder, searches):
    first = planned(mlp(), machine(4), cache=True)
    assert not first.cached and "fitting_plan" in searches
    searches.clear()
    second = planned(mlp(), machine(4), cache=True)
    assert second.cached and searches == []
    assert second.text() == first.text() and "B moved" in first.text() and second.tree == first.tree
    recounted = count(second.network, second.tree)
    for name in ("read_bytes", "write_bytes", "link_bytes", "sram_bytes", "points"):
        assert getattr(second.counted, name) == getattr(first.counted, name) == getattr(recounted, name)
    for name in ("cycles", "energy_pj"):
        assert getattr(second.counted, name) == getattr(first.counted, name) > 0
    assert second.counted.taken[id(second.tree)] == first.counted.taken[id(first.tree)] > 0
    assert second.counted.held[id(second.tree)] == first.counted.held[id(first.tree)]


def test_an_equal_network_of_other_names_finds_it_with_its_own(folder, searches):
    first = planned(mlp(), machine(4), cache=True)
    searches.clear()
    network = rename(mlp())
    second = planned(network, machine(4), cache=True)
    assert second.cached and searches == [] and len(list(folder.iterdir())) == 1
    assert count(network, second.tree).dram_bytes == first.counted.dram_bytes
    assert second.text() == planned(network, machine(4)).text() != first.text()


def test_a_plan_with_copies_comes_back(folder):
    """Its copies are called as the search calls them."""
    network = plan_nets.case(plan_nets.unet).axes
    tree = read_plan(COPIES, lambda _: {axis.name: axis.extent for each in network.layers for axis in each.axes}).node
    place = KeptSearch.of(network, EDGE, PLAN)
    counted = count(network, tree)
    place.keep_plan(tree, counted)
    found, claims = place.plan()
    assert found == tree and claims.points == counted.points
    other = rename(plan_nets.case(plan_nets.unet).axes)
    found, claims = KeptSearch.of(other, EDGE, PLAN).plan()
    assert "conv_1" not in str(found) and count(other, found).points == claims.points


def test_it_is_found_in_little_time(folder):
    """In 0.05 s of processor time; the least of some, for other programs take their share of caches."""
    network = plan_nets.case(plan_nets.attention).axes
    tree = Sequence(tuple(Compute((layer.name,)) for layer in network.layers))
    KeptSearch.of(network, EDGE, PLAN).keep_plan(tree, count(network, tree))
    seconds = []
    for _ in range(5):
        started = process_time()
        assert planned(network, EDGE, cache=True).cached
        seconds.append(process_time() - started)
    assert min(seconds) <= 0.05


def keys(network, target, what=PLAN, wishes=None):
    return KeptSearch.of(network, target, what, wishes).entry.path.name


def test_everything_that_decides_is_in_the_key(folder, monkeypatch):
    found = [keys(mlp(), machine())]
    assert keys(rename(mlp()), replace(machine(), name="other")) == found[0]
    wider = mlp()
    wider.layers[0].macs += 1
    found += [keys(mlp(), machine(), CURVE), keys(mlp(), machine(256)), keys(mlp(), machine(clusters=2))]
    found += [keys(wider, machine()), keys(plan_nets.case(plan_nets.attention).axes, machine())]
    monkeypatch.setattr(kept, "PACKAGES", ("onnx",))
    found.append(keys(mlp(), machine()))
    monkeypatch.setattr(kept, "states_of", lambda rooms: ["passes/plan/tree/search.py 1 2"])
    found.append(keys(mlp(), machine()))
    assert len(set(found)) == len(found)


def slower(target):
    return replace(target, chip=replace(target.chip, dram=replace(target.chip.dram, port_bytes_per_cycle=1)))


def test_of_the_machine_a_curve_of_bytes_is_of_sram_and_clusters(folder):
    """A plan says cycles."""
    assert keys(mlp(), machine(), CURVE) == keys(mlp(), slower(machine()), CURVE)
    time = Wishes("time", machine())
    assert keys(mlp(), machine(), CURVE, time) != keys(mlp(), slower(machine()), CURVE, time)
    assert keys(mlp(), machine()) != keys(mlp(), slower(machine()))


def test_what_is_asked_is_in_the_key(folder):
    net = mlp()
    names = [layer.name for layer in net.layers]
    one = GivenCuts(frozenset(names[:1]))
    wishes = [
        None, Wishes("time", machine()), Wishes("energy", machine()), Wishes(carry="f32"), Wishes(carry="element"),
        Wishes(cuts=one), Wishes(cuts=replace(one, is_crossed=False)), Wishes(cuts=GivenCuts(frozenset(names))),
        Wishes(cuts=GivenCuts(frozenset())),
    ]  # fmt: skip
    found = [keys(mlp(), machine(), what, each) for what in (PLAN, CURVE) for each in wishes]
    assert len(set(found)) == len(found)
    assert keys(mlp(), machine(), PLAN, Wishes("bytes", machine())) == found[0]
    other = rename(net)
    renamed = Wishes(cuts=GivenCuts(frozenset({other.layers[0].name})))
    assert keys(other, machine(), PLAN, renamed) == found[5]


def test_another_wish_finds_another_plan(folder, searches):
    net = mlp()
    apart = Wishes(cuts=GivenCuts(frozenset(layer.name for layer in net.layers), is_crossed=False))
    first, second = planned(mlp(), machine(4), cache=True), planned(mlp(), machine(4), wishes=apart, cache=True)
    assert len(list(folder.iterdir())) == 2 and first.counted.dram_bytes < second.counted.dram_bytes
    searches.clear()
    again = planned(mlp(), machine(4), wishes=apart, cache=True)
    assert again.cached and again.text() == second.text() and searches == []


def test_the_rooms_have_all_that_the_search_imports():
    root = Path(frustum.__path__[0])
    rooms = tuple(f"frustum.{room.replace('/', '.')}" for room in kept.ROOMS)
    for room in kept.ROOMS:
        for file in (root / room).rglob("*.py"):
            used = re.findall(r"^\s*(?:from|import) (frustum\.[\w.]+)", file.read_text(), re.MULTILINE)
            assert all(each.startswith(rooms) for each in used), file


def damaged(entry: Path, change) -> None:
    text = (entry / MANIFEST).read_bytes()
    (entry / MANIFEST).write_bytes(change(text))


def resealed(change):
    """As a writer that is wrong would leave it: its checksum is good."""

    def changed(text):
        data = json.loads(text)
        del data["sha256"]
        change(data)
        return sealed(data)

    return changed


def replaced(old, new):
    return resealed(lambda data: data.update(plan=[line.replace(old, new) for line in data["plan"]]))


DAMAGE = {
    "a bit": lambda text: text[:300] + bytes([text[300] ^ 1]) + text[301:],
    "a number": lambda text: text.replace(b'"totals": [\n  ', b'"totals": [\n  1'),
    "the end": lambda text: text[: len(text) // 2],
    "all": lambda text: b"",
    "no text": lambda text: b"\xff\xfe\x00",
    "no object": lambda text: b"[]",
    "a key": resealed(lambda data: data.update(key="0" * 64)),
    "a word": replaced("compute", "compote"),
    "a layer": replaced("l0", "l1"),
    "a number that is none": replaced("l0", "l9999"),
    "too much SRAM": resealed(lambda data: data.update(totals=[1, 1, 0, 1 << 40, 1, 1.0])),
    "a part": resealed(lambda data: data["nodes"].pop()),
    "no cycles": resealed(lambda data: data["totals"].pop()),
    "no totals": resealed(lambda data: data.pop("totals")),
    "no plan": resealed(lambda data: data.pop("plan")),
    "no number": resealed(lambda data: data.update(totals=["a", "b", "c", "d", "e", "f"])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_anew(damage, folder):
    first = planned(mlp(), machine(4), cache=True)
    (entry,) = folder.iterdir()
    before = (entry / MANIFEST).read_bytes()
    damaged(entry, DAMAGE[damage])
    assert (entry / MANIFEST).read_bytes() != before
    again = planned(mlp(), machine(4), cache=True)
    assert not again.cached and again.text() == first.text()
    assert (entry / MANIFEST).read_bytes() == before
    assert planned(mlp(), machine(4), cache=True).cached


def test_an_entry_under_the_name_of_another_is_stale(folder):
    planned(mlp(), machine(4), cache=True)
    planned(mlp(), machine(8), cache=True)
    one, other = (folder / keys(mlp(), machine(kib)) for kib in (4, 8))
    shutil.copy(other / MANIFEST, one / MANIFEST)
    assert not planned(mlp(), machine(4), cache=True).cached
    assert planned(mlp(), machine(8), cache=True).cached


def test_a_curve_is_kept(folder, searches):
    first = curve_of(mlp(), machine(4), cache=True)
    searches.clear()
    assert replace(curve_of(rename(mlp()), machine(4), cache=True), name=first.name) == first and searches == []
    (entry,) = folder.iterdir()
    damaged(entry, resealed(lambda data: data["moved"].pop()))
    assert curve_of(mlp(), machine(4), cache=True) == first and searches == ["searches"]


def test_entries_that_were_not_used_for_longest_go(folder, monkeypatch):
    planned(mlp(), machine(4), cache=True)
    (entry,) = folder.iterdir()
    os.utime(entry, (1, 1))
    assert planned(mlp(), machine(4), cache=True).cached and entry.stat().st_mtime > 1
    monkeypatch.setattr(cache, "MOST_BYTES", 1)
    planned(mlp(), machine(8), cache=True)
    assert [each.name for each in folder.iterdir()] == [keys(mlp(), machine(8))]


def test_a_cache_that_cannot_be_written_says_so_and_plans(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FRUSTUM_CACHE", str(tmp_path / "file" / "cache"))
    assert not planned(mlp(), machine(4), cache=True).cached
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "warning: nothing is kept for the next time: Not a directory" in said[0]


def test_off_means_that_nothing_is_read_or_written(folder, monkeypatch):
    planned(mlp(), machine(4))
    assert not folder.exists()
    monkeypatch.setenv("FRUSTUM_CACHE", "")
    assert KeptSearch.of(mlp(), machine(4), PLAN) is None
    assert not planned(mlp(), machine(4), cache=True).cached


def product(first, second):
    nodes = [mixed_models.node("MatMul", [first, "w"], [second])]
    return mixed_models.model(nodes, {first: (4, 16)}, [second], {"w": np.ones((16, 8), np.float32)})


@pytest.mark.parametrize("command", ["plan", "curve"])
def test_commands_use_it_unless_they_are_told_not_to(command, folder, searches, tmp_path, capsys):
    model = planned_models.save(tmp_path, "one", product("x", "y"))
    words = [command, model, "--target", "edge"]
    assert main([*words, "--no-cache"]) == 0
    said = capsys.readouterr().out
    assert not folder.exists() and searches
    for is_kept in (False, True):
        searches.clear()
        assert main(words) == 0
        assert capsys.readouterr().out == said and (not searches) == is_kept
    assert main([*words, "--no-cache"]) == 0 and searches
    searches.clear()
    renamed = planned_models.save(tmp_path, "other", product("in", "out"))
    assert main([command, renamed, "--target", "edge"]) == 0 and not searches
    assert "other" in capsys.readouterr().out


def test_the_api_takes_it_where_asked(folder, tmp_path):
    model = tmp_path / "one.onnx"
    onnx.save(product("x", "y"), model)
    assert [frustum.plan(model, "edge")[0].cached for _ in range(2)] == [False, False]
    assert not folder.exists()
    assert [frustum.plan(model, "edge", cache=True)[0].cached for _ in range(2)] == [False, True]
    assert frustum.curve(model, "edge", cache=True) == frustum.curve(model, "edge", cache=True)
    assert len(list(folder.iterdir())) == 2
