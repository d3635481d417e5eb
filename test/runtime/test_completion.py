"""Scripts of completion: bash completes with its own, fish and zsh read theirs where they are there."""

import shutil
import subprocess

import pytest

from frustum.runtime.model.options import RunOptions, flag_of, options_of
from frustum.runtime.tools import cli

ASK = """
{script}
COMP_WORDS=({words}) COMP_CWORD={last}
{function} frustum "${{COMP_WORDS[{last}]}}" ""
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(["--print-completion", shell])
    assert left.value.code in (0, None)
    return capsys.readouterr().out


def test_bash_completes_commands_options_values_and_files(capsys, tmp_path) -> None:
    script = script_for("bash", capsys)
    function = script.rpartition("complete ")[2].split("-F ")[1].split()[0]
    (tmp_path / "model.onnx").touch()

    def completed(*words: str) -> set[str]:
        text = ASK.format(
            script=script, words=" ".join(f"'{word}'" for word in words), last=len(words) - 1, function=function
        )
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, cwd=tmp_path, check=True)
        return {word.strip() for word in done.stdout.split()}

    assert completed("frustum", "ex") == {"explain", "explore"}
    assert completed("frustum", "") >= set(cli.COMMANDS)
    typed = {flag_of(each) for each, said in options_of(RunOptions) if said.is_typed and flag_of(each)}
    assert completed("frustum", "run", "-") >= typed
    assert completed("frustum", "run", "x.onnx", "--dtype", "f") == {"f32", "f16"}
    assert completed("frustum", "run", "x.onnx", "--mode", "") == {"full", "functional", "timing"}
    assert "model.onnx" in completed("frustum", "run", "x.onnx", "--input", "mod")
    assert "model.onnx" in completed("frustum", "run", "mod")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_others_have_scripts_with_all_commands(shell, capsys, tmp_path) -> None:
    script = script_for(shell, capsys)
    assert all(name in script for name in cli.COMMANDS)
    assert "weights-seed" in script and "functional" in script
    if program := shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([program, "-n", str(file)], check=True)


def test_a_wrong_shell_and_a_missing_package_are_one_line(capsys, monkeypatch) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--print-completion", "csh"])
    assert left.value.code == 2
    assert "argument --print-completion: invalid choice: 'csh'" in capsys.readouterr().err
    monkeypatch.setattr("frustum.runtime.completion.find_spec", lambda name: None)
    assert cli.main(["--print-completion", "bash"]) == 2
    assert capsys.readouterr().err == (
        "frustum: error: --print-completion needs the package shtab: pip install 'frustum[completion]'\n"
    )
