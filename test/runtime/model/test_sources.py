"""A compiled folder finds its model again, tells nobody where it lies, and takes no other one for it."""

import shutil

import numpy as np
import onnx
import pytest
from mixed_models import model, node

import frustum
from frustum.runtime.failures import UsageError
from frustum.runtime.model.compiled_folder import open_folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder with `models/net.onnx`."""
    root = tmp_path / "project"
    (root / "models").mkdir(parents=True)
    onnx.save(net(1.0), root / "models" / "net.onnx")
    monkeypatch.chdir(root)
    return root


def net(scale):
    weights = np.full((2, 3, 1, 1), scale, np.float32)
    return model([node("Conv", ["x", "w"], ["y"])], {"x": (1, 3, 4, 4)}, ["y"], {"w": weights})


def compiled(path, folder, target="edge"):
    frustum.compile(str(path), target).save(folder)
    return folder


def test_no_absolute_path_is_in_what_others_are_given(project, tmp_path):
    own = tmp_path / "secret" / "own.yaml"
    own.parent.mkdir()
    own.write_text("extends: edge\nname: own\n")
    for number, model_path in enumerate((project / "models" / "net.onnx", "models/net.onnx")):
        for folder in (project / "out", tmp_path / "elsewhere" / "out"):
            folder.parent.mkdir(exist_ok=True)
            compiled(model_path, folder, str(own))
            for file in folder.iterdir():
                content = file.read_bytes()
                assert str(tmp_path).encode() not in content and b"secret" not in content, (number, file)


def test_the_model_is_found_where_it_was_beside_the_folder_and_in_the_working_folder(project, tmp_path, monkeypatch):
    source = project / "models" / "net.onnx"
    folder = compiled(source, project / "out")
    monkeypatch.chdir(tmp_path)
    assert frustum.run(folder, check=True).report["check"]["max_abs_error"] < 1e-4
    moved = tmp_path / "moved" / "out"
    shutil.copytree(folder, moved)
    source.rename(tmp_path / "moved" / "net.onnx")
    assert open_folder(moved)[1].load() == tmp_path / "moved" / "net.onnx"
    (tmp_path / "moved" / "net.onnx").rename(tmp_path / "net.onnx")
    away = compiled(tmp_path / "net.onnx", tmp_path / "moved" / "again")
    assert open_folder(away)[1].load() == tmp_path / "net.onnx"


def test_another_model_of_that_name_is_not_taken(project):
    source = project / "models" / "net.onnx"
    folder = compiled(source, project / "out")
    onnx.save(net(2.0), source)
    with pytest.raises(UsageError, match=r"net\.onnx: error: is not the model that .*out was compiled from"):
        frustum.run(folder, check=True)
    shutil.copy(source, project / "net.onnx")
    onnx.save(net(1.0), project / "net.onnx")
    assert open_folder(folder)[1].load() == project / "net.onnx"
    source.unlink()
    (project / "net.onnx").unlink()
    with pytest.raises(UsageError, match=r"the model is not there any more, .*check_against"):
        frustum.run(folder, check=True)


def test_a_folder_of_others_is_not_replaced(project):
    """A file of that name is written by many programs."""
    made = frustum.compile("models/net.onnx", "edge")
    for name, text in (("manifest.json", '{"name": "a web page"}'), ("photo.png", "")):
        folder = project / f"with {name}"
        made.save(folder)
        (folder / name).write_text(text)
        with pytest.raises(UsageError, match="cannot be written: it holds other files"):
            made.save(folder)
        assert (folder / name).read_text() == text
    made.save(project / "out")
    made.save(project / "out")
