# Tests: test/runtime/tools/test_api.py
"""What `frustum.compile` gives: a model compiled for a target, in one or several pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from frustum.backend.file.executable import Executable
from frustum.dialects.target import Target
from frustum.runtime.failures import UsageError
from frustum.runtime.files import check_writable_folder, write_folder
from frustum.runtime.model.chain import Chain, DevicePiece, Interface, chain_of
from frustum.runtime.model.compiled_folder import MANIFEST, is_own, open_compiled, write_chain
from frustum.runtime.model.execution import layers_of, units_of
from frustum.runtime.model.options import Request
from frustum.runtime.model.sources import Job
from frustum.runtime.report.report import LayerInfo, Seconds
from frustum.runtime.report.units import UnitInfo


@dataclass(frozen=True, eq=False, repr=False)
class Compiled:
    """A model compiled for a target: what `frustum.run` runs, and what is to be known of it."""

    job: Job
    request: Request | None = None
    """What it was compiled from, if it was compiled here."""

    @classmethod
    def of(cls, what: Compiled | Executable | Chain | str | Path) -> Compiled:
        """What is compiled already: also a file, or a folder that `save` or `frustum compile` wrote."""
        if isinstance(what, Compiled):
            return what
        origin = None
        if isinstance(what, str | Path):
            chain, origin = open_compiled(Path(what))
        elif isinstance(what, Executable | Chain):
            chain = chain_of(what) if isinstance(what, Executable) else what
        else:
            raise UsageError(f"error: {type(what).__name__} is nothing that was compiled, nor a path of it")
        return cls(Job(chain, origin, None, Seconds()))

    @property
    def chain(self) -> Chain:
        """All pieces, of the device and of the host, in the order in which they run."""
        return self.job.chain

    @property
    def executables(self) -> tuple[Executable, ...]:
        """Those of the device."""
        return self.chain.executables

    @property
    def executable(self) -> Executable:
        """The executable that is all of it; UsageError where there are several pieces."""
        found = self.chain.single
        if found is None:
            pieces = ", ".join(f"'{each.name}'" for each in self.chain.pieces)
            raise UsageError(f"error: {self.model} is not one executable; its pieces are {pieces}")
        return found

    @property
    def model(self) -> str:
        """The model's file, or its name."""
        return self.chain.model

    @property
    def target(self) -> Target:
        return self.chain.target

    @property
    def dtype(self) -> str:
        """The element type on the device; `host` where nothing runs there."""
        return self.chain.dtype

    @property
    def policy(self) -> str:
        return self.chain.policy

    @property
    def inputs(self) -> tuple[Interface, ...]:
        """Name, type and shape of each."""
        return self.chain.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.chain.outputs

    @property
    def hashes(self) -> Mapping[str, str]:
        """Checksums of model, target and pipeline."""
        return self.chain.hashes

    @property
    def units(self) -> tuple[UnitInfo, ...]:
        """What is fused, in the order in which it runs; by the names that the report has."""
        return tuple(unit for prefix, each in self._devices() for unit in units_of(each.executable.manifest, prefix))

    @property
    def layers(self) -> tuple[LayerInfo, ...]:
        """Those of the device, each with its unit, and then those of the host, each with the reason."""
        devices = (each for prefix, d in self._devices() for each in layers_of(d.executable.manifest, prefix))
        hosted = (LayerInfo(each.name, each.op, None, "host", each.reason) for each in self.chain.fallbacks)
        return (*devices, *hosted)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed of the model, such as a batch of 1, and how it was cut: what commands say on stderr."""
        return self.chain.log

    def with_modules(self) -> Job:
        """The job with its modules as they were before they were compiled, made again where nobody kept them; as it is
        where it was not compiled here.  UsageError where the model is another one by now."""
        if self.request is None:
            return self.job
        from frustum.runtime.model.build import build

        again = build(replace(self.request, keeps_modules=True))
        if again.chain.hashes != self.hashes:
            raise UsageError(f"{self.model}: error: is not the model any more that was compiled: compile it again")
        return replace(self.job, sources=again.sources, original=again.original)

    def save(self, folder: str | Path) -> Path:
        """Write what `frustum run` and `frustum.run` take; UsageError where it cannot be written, or where the folder
        holds other files."""
        path = Path(folder)
        check_folder(path)
        write_folder(path, lambda written: write_chain(written, self.chain, self.job.origin))
        return path

    def __repr__(self) -> str:
        return f"<frustum.Compiled: {', '.join(self._summary())}>"

    def _repr_html_(self) -> str:
        return "<br>".join(escape(each) for each in self._summary())

    def _summary(self) -> list[str]:
        pieces = len(self.chain.pieces)
        return [
            f"{self.model} for {self.target.name}, {self.dtype}, policy {self.policy}",
            f"{len(self.layers)} layers in {len(self.units)} units",
            *([f"{pieces} pieces"] if pieces != 1 else []),
        ]

    def _devices(self) -> list[tuple[str, DevicePiece]]:
        """The pieces of the device, with what the report says before their names."""
        found = [each for each in self.chain.pieces if isinstance(each, DevicePiece)]
        return [(f"{each.name}." if len(found) > 1 else "", each) for each in found]


def check_folder(folder: Path) -> None:
    """UsageError unless the folder can be written, and nothing but an older result is lost by that."""
    check_writable_folder(folder)
    if folder.is_dir() and any(folder.iterdir()) and not is_own(folder):
        lack = "" if (folder / MANIFEST).is_file() else f" (and no {MANIFEST})"
        raise UsageError(f"{folder}: error: cannot be written: it holds other files{lack}")
