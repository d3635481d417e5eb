"""Files that people name: whole or not at all, whatever ends the process that writes them."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frustum.runtime import files
from frustum.runtime.failures import UsageError

EACH_END = """
import os, shutil, sys
from pathlib import Path
from frustum.runtime import files

CONTENT = {"one.bin": "1" * 5000, "two.txt": "2"}
ACTIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.dlsym")
exchanges, place = sys.argv[1] == "exchange", Path(sys.argv[2])
if not exchanges:
    files._exchange = lambda one, other: False

def write(folder, text):
    for name, content in CONTENT.items():
        (folder / name).write_text(content + text)

def what_is_there():
    if not place.exists():
        return "nothing"
    return {next((end for end in ("old", "new") if (place / name).read_text() == content + end), "damaged")
            for name, content in CONTENT.items()}

ends, seen = 0, set()
while True:
    shutil.rmtree(place, ignore_errors=True)
    files.write_folder(place, lambda folder: write(folder, "old"))
    assert sorted(os.listdir(place.parent)) == [place.name]
    child = os.fork()
    if child == 0:
        left = ends
        def hook(event, arguments):
            global left
            if event in ACTIONS:
                if left == 0:
                    os._exit(9)
                left -= 1
        sys.addaudithook(hook)
        files.write_folder(place, lambda folder: write(folder, "new"))
        os._exit(0)
    finished = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = what_is_there()
    if exchanges:
        assert found in ({"old"}, {"new"}), (ends, found)
    else:
        assert found in ("nothing", {"old"}, {"new"}), (ends, found)
        files.recover(place)
        assert what_is_there() in ({"old"}, {"new"}), (ends, found, os.listdir(place.parent))
    seen.add(str(found))
    if finished:
        assert found == {"new"}
        break
    files.write_folder(place, lambda folder: write(folder, "third"))
    assert (place / "two.txt").read_text() == "2third"
    assert os.listdir(place.parent) == [place.name], os.listdir(place.parent)
    ends += 1
print(ends, *sorted(seen))
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("way", ["exchange", "two renames"])
def test_a_process_that_ends_anywhere_leaves_the_old_folder_or_the_new_one(tmp_path: Path, way: str) -> None:
    if way == "exchange" and not exchanges(tmp_path):
        pytest.skip("this system has no renames that exchange")
    inside = tmp_path / "inside"
    inside.mkdir()
    command = [sys.executable, "-c", EACH_END, way, str(inside / "folder")]
    done = subprocess.run(command, text=True, capture_output=True, timeout=100)
    assert done.stderr == ""
    ends, *seen = done.stdout.split()
    assert int(ends) >= 7  # places at which it ended
    assert seen == (["{'new'}", "{'old'}"] if way == "exchange" else ["nothing", "{'new'}", "{'old'}"])


def exchanges(folder: Path) -> bool:
    one, other = folder / "one", folder / "other"
    one.mkdir()
    other.mkdir()
    return files._exchange(one, other)


def test_what_a_killed_run_left_is_removed_by_the_next_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = files._host()
    left = tmp_path / f".out.json.{host}-{dead.pid}.new"
    others = [
        tmp_path / f".out.json.{host}-{os.getppid()}.new",  # that process runs
        tmp_path / f".out.json.elsewhere-{dead.pid}.new",  # nobody knows about that machine
        tmp_path / f".other.json.{host}-{dead.pid}.new",
        tmp_path / ".out.json.notes",
    ]
    for path in (left, *others):
        path.write_text("")
    files.write_file(tmp_path / "out.json", lambda path: path.write_text("{}"))
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "out.json"])


def test_a_folder_whose_name_a_killed_run_took_is_found_by_the_command_that_reads_it(tmp_path: Path) -> None:
    from frustum.runtime.model.sources import kind_of

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f".model.{files._host()}-{dead.pid}.old"
    left.mkdir()
    assert kind_of(str(tmp_path / "model")) == "folder"
    assert not left.exists()


def test_a_full_disk_leaves_nothing_and_the_old_folder(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    files.write_folder(place, lambda folder: (folder / "a").write_text("old") and None)

    def full(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError, match=r"folder: error: cannot be written: No space left on device$"):
        files.write_folder(place, full)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    assert (place / "a").read_text() == "old"


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    files.write_folder(link, lambda folder: (folder / "a").write_text("new") and None)
    assert link.is_symlink() and (real / "a").read_text() == "new"


def test_a_pipe_or_a_device_is_written_into_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        files.check_writable_file(pipe)
        files.write_file(pipe, lambda path: path.write_text("text") and None)
        assert reader.read() == "text"
    assert pipe.is_fifo()
