"""Executables of one network, run one after the other."""

from __future__ import annotations

from chains import in_order

from frustum.runtime.machine import Machine


class Part:
    """An executable with what it takes and gives."""

    def __init__(self, executable):
        self.executable = executable
        self.inputs, self.outputs = (
            tuple(e.name for e in executable.program.externals if e.class_ == kind) for kind in ("input", "output")
        )


def run_pieces(executables, inputs, outputs, *, checked=False):
    """The outputs by name of executables in a row."""

    def run(part, given):
        return Machine(part.executable).run(given, mode="functional", checked=checked).outputs

    return in_order(run, [Part(each) for each in executables], inputs, outputs)
