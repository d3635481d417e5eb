"""What was compiled before is found again, checked, and never another model's."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from mixed_models import model, node

import frustum
from frustum.backend import targets
from frustum.runtime.failures import UsageError
from frustum.runtime.model import build, cache
from frustum.runtime.model.cache import Entry, built, cache_folder, key_of
from frustum.runtime.model.compiled import Compiled
from frustum.runtime.model.compiled_folder import MANIFEST
from frustum.runtime.model.execution import execute_chain
from frustum.runtime.model.options import Request


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FRUSTUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.onnx"
    onnx.save(small_model(1.0), path)
    return path


def small_model(scale):
    weights = scale * np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)
    return model([node("Conv", ["x", "w"], ["y"])], {"x": (1, 3, 8, 8)}, ["y"], {"w": weights})


def run(job):
    return execute_chain(job.chain, {"x": np.ones((1, 3, 8, 8), np.float32)}, "functional", False).outputs["y"]


def test_the_second_time_nothing_is_compiled(folder, small, monkeypatch):
    request = Request(model=small, target="edge", cache=True)
    first = built(request)
    assert not first.seconds.cached and len(list(folder.iterdir())) == 1
    monkeypatch.setattr(build, "build", None)
    second = built(request)
    assert second.seconds.cached and second.origin == first.origin
    assert second.chain.hashes == first.chain.hashes and set(first.chain.hashes) == {"model", "target", "pipeline"}
    assert (run(first) == run(second)).all()
    assert [each.name for each in second.chain.inputs] == ["x"]


def test_a_copy_of_a_model_is_checked_against_itself(folder, small, tmp_path):
    """The model that was compiled first may be gone."""
    built(Request(model=small, target="edge", cache=True))
    copy = tmp_path / "copy.onnx"
    shutil.move(small, copy)
    again = built(Request(model=copy, target="edge", cache=True))
    assert again.seconds.cached and again.origin is not None
    assert again.origin.load() == copy.resolve()
    compiled = Compiled(again)
    compiled.save(tmp_path / "folder")
    assert frustum.run(tmp_path / "folder", mode="functional", check=True).report["check"]["max_abs_error"] < 1e-4


def test_what_is_found_may_still_be_refused(folder, small):
    request = Request(model=small, target="edge", cache=True)
    built(request)

    def refuse(inputs):
        raise UsageError(f"error: takes {inputs[0].name}")

    with pytest.raises(UsageError, match="takes x"):
        built(request, see=refuse)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    "change",
    [
        {"target": "default"}, {"dtype": "f16"}, {"policy": "none"}, {"batch": 2}, {"optimise": "bytes"},
        {"compress_weights": "none"}, {"shapes": {"x": (1, 3, 9, 9)}}, {"carry": "f32"}, {"streams": True},
        {"weights_seed": 3, "model": "zoo:squeezenet"}, {"model": "zoo:squeezenet"},
    ],
)  # fmt: skip
def test_every_option_has_entries_of_its_own(small, change):
    request = Request(model=small, target="edge", cache=True)
    assert key_of(request) != key_of(replace(request, **change))
    assert key_of(request) == key_of(replace(request, no_cache=True))


def test_the_key_knows_the_bytes_of_model_target_and_weights(small, tmp_path, monkeypatch):
    request = Request(model=small, target="edge", cache=True)
    before = key_of(request)
    onnx.save(small_model(2.0), small)
    assert key_of(request) != before
    onnx.save(small_model(1.0), small)
    assert key_of(request) == before
    own = tmp_path / "own.yaml"
    text = targets.path("edge").read_text()
    own.write_text(text)
    one = key_of(replace(request, target=str(own)))
    own.write_text(text.replace("512 KiB", "256 KiB", 1))
    assert key_of(replace(request, target=str(own))) != one
    monkeypatch.setattr(cache, "PACKAGES", ("numpy",))
    assert key_of(request) != before


def test_the_key_knows_weights_in_other_files(tmp_path):
    path = tmp_path / "outside.onnx"
    onnx.save(small_model(1.0), path, save_as_external_data=True, location="w.data", size_threshold=0)
    request = Request(model=path, cache=True)
    before = key_of(request)
    data = bytearray((tmp_path / "w.data").read_bytes())
    data[5] ^= 1
    (tmp_path / "w.data").write_bytes(data)
    assert key_of(request) != before


@pytest.mark.slow
def test_what_is_damaged_is_made_anew(folder, small):
    request = Request(model=small, target="edge", cache=True)
    wanted = run(built(request))
    for file in list(next(folder.iterdir()).iterdir()):
        place = next(folder.iterdir()) / file.name
        content = bytearray(place.read_bytes())
        content[len(content) // 2] ^= 1
        place.write_bytes(content)
        again = built(request)
        assert not again.seconds.cached and (run(again) == wanted).all()
        assert built(request).seconds.cached


def test_a_cache_that_cannot_be_written_says_so_once_and_compiles(tmp_path, small, monkeypatch, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FRUSTUM_CACHE", str(tmp_path / "file" / "cache"))
    job = built(Request(model=small, target="edge", cache=True))
    assert run(job).shape == (1, 4, 8, 8)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "warning: nothing is kept for the next time: Not a directory" in said[0]


@pytest.mark.slow
def test_the_oldest_entries_go_first(folder, small, monkeypatch):
    requests = [Request(model=small, target="edge", batch=batch, cache=True) for batch in (1, 2, 3)]
    for age, request in enumerate(requests):
        built(request)
        os.utime(folder / key_of(request), (age, age))
    size = sum(file.stat().st_size for file in (folder / key_of(requests[0])).iterdir())
    assert built(requests[0]).seconds.cached  # which makes it the newest
    monkeypatch.setattr(cache, "MOST_BYTES", 3 * size)
    built(Request(model=small, target="edge", batch=4, cache=True))
    left = {each.name for each in folder.iterdir()}
    assert key_of(requests[0]) in left and key_of(requests[1]) not in left and len(left) <= 3


def test_several_may_use_it_at_once(folder, small):
    request = Request(model=small, target="edge", cache=True)
    job = built(request)
    entry = Entry(folder / key_of(request))

    def use(number):
        if number % 3 == 0:
            entry.keep(job)
        if number % 5 == 0:
            shutil.rmtree(entry.path, ignore_errors=True)
        found = entry.open()
        return found is None or (run(found) == run(job)).all()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(24)))
    assert [each.name for each in folder.iterdir()] in ([], [key_of(request)])


def test_where_it_is(monkeypatch):
    monkeypatch.setenv("FRUSTUM_CACHE", "")
    assert cache_folder() is None
    monkeypatch.delenv("FRUSTUM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/frustum")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "frustum"


def test_off_means_that_nothing_is_read_or_written(folder, small, tmp_path):
    for request in (
        Request(model=small, target="edge"),
        Request(model=small, target="edge", cache=True, dump_ir=tmp_path / "ir"),
        Request(model=onnx.load(small), target="edge", cache=True),
    ):
        assert not built(request).seconds.cached
    assert not folder.exists()


def test_an_entry_without_a_manifest_is_none(tmp_path):
    assert Entry(tmp_path).open() is None
    (tmp_path / MANIFEST).write_text("{}")
    assert Entry(tmp_path).open() is None and not tmp_path.exists()


def test_calibration_inputs_count_where_the_target_says_int8(small, tmp_path):
    quantising = tmp_path / "quantising.yaml"
    quantising.write_text("extends: edge\nname: quantising\noptions: {dtype: int8}\n")

    def key(target, factor, **more):
        inputs = ({"x": np.full((1, 3, 8, 8), factor, np.float32)},)
        return key_of(Request(model=small, target=str(target), calibration=inputs, cache=True, **more))

    assert key(quantising, 1) != key(quantising, 10)
    assert key(quantising, 1) != key(quantising, 1, calibration_seed=1)
    assert key("edge", 1) == key("edge", 10, calibration_seed=1)
    assert key(quantising, 1, dtype="model") == key(quantising, 10, dtype="model")


def test_only_entries_are_removed(folder, small, monkeypatch):
    """Whatever else lies in the folder stays, and what somebody put into an entry too."""
    foreign = {"thesis/data.bin", "0" * 64 + "/notes.txt", "manifest.json", "shop/manifest.json"}
    for name in foreign:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("not of this cache")
    old, new = (Request(model=small, target="edge", batch=batch, cache=True) for batch in (1, 2))
    built(old)
    (folder / key_of(old) / "remarks.txt").write_text("mine")
    (folder / ("f" * 64)).symlink_to(folder / "shop")
    monkeypatch.setattr(cache, "MOST_BYTES", 1)
    built(new)
    left = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
    assert left >= foreign | {f"{key_of(old)}/remarks.txt", f"{key_of(new)}/{MANIFEST}"}
    assert f"{key_of(old)}/{MANIFEST}" not in left and (folder / ("f" * 64)).is_symlink()


def test_a_plug_in_that_is_edited_counts_without_a_new_version(small, tmp_path, monkeypatch):
    """Of a module of its own, of a package, and of another one that is installed with it."""
    request = Request(model=small, target="edge", cache=True)
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("acme_cached_tables\n")
    points = "[frustum.rules]\na = acme_cached_one\nb = acme_cached_two.inner:RULE\nc = acme_not_there\n"
    (info / "entry_points.txt").write_text(points)
    files = [tmp_path / name for name in ("acme_cached_one.py", "acme_cached_two/other.yaml", "acme_cached_tables.py")]
    (tmp_path / "acme_cached_two").mkdir()
    for file in (*files, tmp_path / "acme_cached_two" / "__init__.py"):
        file.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = [key_of(request)]
    for file in files:
        file.write_text("# another rule")
        keys.append(key_of(request))
    assert len(set(keys)) == len(keys) and key_of(request) == keys[-1]
