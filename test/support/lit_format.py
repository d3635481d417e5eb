"""The lit format of our tests: RUN lines that only pipe our tools run in the warm process, all others in a shell."""

import re
import shlex
from functools import cache

import lit.discovery
import lit.LitConfig
from lit.formats import ShTest
from lit.Test import FAIL, PASS, Result, Test
from lit.TestRunner import (
    applySubstitutions,
    getDefaultSubstitutions,
    getTempPaths,
    parseIntegratedTestScript,
)
from warm import TOOLS, Command, Warm

WARM = Warm()


class WarmTest(ShTest):
    """`ShTest`, seven times faster where the RUN lines allow it."""

    def execute(self, test: Test, lit_config: lit.LitConfig.LitConfig) -> Result:
        script = parseIntegratedTestScript(test)
        if isinstance(script, Result):  # it has no RUN line, or is not for this machine
            return script
        substitutions = getDefaultSubstitutions(test, *getTempPaths(test))
        lines = applySubstitutions(
            script, substitutions, recursion_limit=test.config.recursiveExpansionLimit
        )
        pipes = [pipe_of(re.sub(r"%dbg\([^)]*\)", "", line)) for line in lines]
        if None in pipes:
            return super().execute(test, lit_config)
        passed, log = WARM.run([pipe for pipe in pipes if pipe], test.getSourcePath().rsplit("/", 1)[0])
        return Result(PASS if passed else FAIL, log)


def pipe_of(line: str) -> list[Command] | None:
    """The commands of a RUN line, or None where it needs a shell."""
    words = shlex.split(line)
    commands = []
    while words:
        end = words.index("|") if "|" in words else len(words)
        command = _command_of(words[:end])
        if command is None:
            return None
        commands.append(command)
        words = words[end + 1 :]
    return commands


def run_file(path: str) -> Result:
    """The result of one test file."""
    config = _lit_config()
    (test,) = lit.discovery.find_tests_for_inputs(config, [path])
    return test.config.test_format.execute(test, config)


def _command_of(words: list[str]) -> Command | None:
    fails, merges = words[:1] == ["not"], words[-1:] == ["2>&1"]
    words = words[fails : len(words) - merges]
    if not words or words[0] not in TOOLS or any(re.search(r"[<>;&|]", word) for word in words):
        return None
    return Command(words, fails, merges)


@cache
def _lit_config() -> lit.LitConfig.LitConfig:
    return lit.LitConfig.LitConfig(
        progname="pytest",
        path=[],
        diagnostic_level="note",
        useValgrind=False,
        valgrindLeakCheck=False,
        valgrindArgs=[],
        noExecute=False,
        debug=False,
        isWindows=False,
        order="smart",
        params={},
    )
