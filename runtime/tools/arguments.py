"""The command line of `frustum`: what can be typed.  Imports nothing but the standard library, for a fast `--help`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from frustum.runtime.failures import BAD_INPUT
from frustum.runtime.report.terminal import show

DTYPES = ("f32", "f16", "bf16", "int8", "model")
METHODS = ("minmax", "percentile")
"""Of calibration."""
POLICIES = ("none", "pyramid", "template", "greedy", "optimal")
MODES = ("full", "functional", "timing")
COMPRESSIONS = ("auto", "none", "zero", "huffman")
"""Of weights."""
HOLDINGS = ("replicated", "shared")
"""Of weights that all clusters need."""
BORDERS = ("overlap", "exchange", "auto")
"""Of tiles."""
HOSTS = ("never", "auto", "only")
SPLITS = ("auto", "never", "outputs")
COMMANDS = ("run", "compile", "inspect", "targets", "warm-up")
"""Each is a module of `frustum.runtime.tools.commands` (`_` for `-`) with a function `main(options) -> exit code`."""

MODEL = "a path to .onnx, zoo:NAME, a compiled folder, or a dumped stage NN-stop.mlir"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command; SystemExit with code 2 and one line on stderr where they are wrong."""
    return _parser().parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    """Errors in one line, options in full."""

    def __init__(self, **settings: object) -> None:
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]  # passed on as they are

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} ({self.prog} --help shows what there is)\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="frustum", description="Compile neural networks, and run them on an emulated accelerator."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print versions and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="compile (or load), emulate, report"))
    _add_compile(commands.add_parser("compile", help="write the executable and manifest.json to a folder"))
    _add_inspect(commands.add_parser("inspect", help="what is in an executable, a compiled folder, a model"))
    _add_targets(commands.add_parser("targets", help="list the shipped targets, print one, or check a file"))
    _add_warm_up(commands.add_parser("warm-up", help="compile the emulator's loops now"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compile (or load) a model, run it on the emulated machine, print the report."
    _add_model(parser)
    parser.add_argument("--input", metavar="FILE.npz", help="inputs: arrays by input name")
    parser.add_argument(
        "--input-seed", metavar="N", type=_natural, help="random inputs from this seed (default 0)"
    )
    parser.add_argument("--output", metavar="FILE.npz", help="write the outputs, arrays by output name")
    parser.add_argument("--report", metavar="FILE.json", help="write the report; `-`: to stdout, in place of the text")
    parser.add_argument(
        "--check", action="store_true", help="compare with onnxruntime; exit code 3 if it differs"
    )
    parser.add_argument(
        "--mode", choices=MODES, default="full", help="numbers and time, or one of them (default full)"
    )
    parser.add_argument(
        "--checked", action="store_true", help="stop on uninitialised reads, out-of-range accesses and races"
    )


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compile a model into a folder that `frustum run` takes."
    _add_model(parser)
    parser.add_argument("-o", dest="folder", metavar="DIR", required=True, help="the folder to write")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show what is in an executable, a compiled folder, a model or a dumped stage."
    parser.add_argument("path", metavar="PATH", help="an executable, or what `run` takes for MODEL")
    parser.add_argument("--disassemble", action="store_true", help="print the instructions")


def _add_targets(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the shipped targets, print one as YAML with its comments, or check a target file."
    parser.add_argument("name", metavar="NAME|FILE.yaml", nargs="?", help="the target to print, the file to check")


def _add_warm_up(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compile the emulator's loops and keep them, so that no run has to."


def _add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL and the options that say how it is imported and compiled; absent ones are None."""
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--target", metavar="NAME|FILE.yaml", help="the machine (default `default`)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="element type on the device (default `model`: the file's)"
    )
    parser.add_argument(
        "--calibrate", choices=METHODS, help="how --dtype int8 finds ranges, from --input or random inputs"
    )
    parser.add_argument(
        "--shape",
        metavar="INPUT=1x3x160x224",
        type=_shape,
        action="append",
        help="bind an input's shape (repeatable)",
    )
    parser.add_argument(
        "--batch", metavar="N", type=_positive, help="bind a dynamic batch, or change a batch of 1"
    )
    parser.add_argument(
        "--policy", choices=POLICIES, help="how layers are fused (docs/fusion.md; default `optimal`); `none`: not"
    )
    parser.add_argument(
        "--order", metavar="ORDER",
        help="of tiles: row-major, column-major, bands{bands=2,direction=top-down}, serpentine, z-order, quadrants,"
        " checkerboard, mirrored; any with {depth=breadth-first} (docs/traversal.md)",
    )  # fmt: skip
    parser.add_argument(
        "--borders", choices=BORDERS, help="of tiles: computed again, kept or sent, or what is cheaper"
    )
    parser.add_argument(
        "--pipeline", metavar='"pass{option=...},..."', help="these passes instead of the default pipeline"
    )
    parser.add_argument(
        "--dump-ir", metavar="DIR", help="write the module at every stop, numbered, with its weights"
    )
    parser.add_argument(
        "--host", choices=HOSTS, help="layers on the host: none, what the device lacks (`auto`, the default), all"
    )
    parser.add_argument(
        "--split", choices=SPLITS,
        help="networks cut where they do not fit or it is better (`auto`, the default), at output branches, or not",
    )  # fmt: skip
    parser.add_argument(
        "--refuse", metavar="STRATEGY",
        help="fuse pieces again: conditions{nodes=2..9,weight_bytes=..N,compute=..N}, pairs, forward, bidirectional",
    )  # fmt: skip
    parser.add_argument(
        "--placement", metavar="one|each|0,0,1", help="the chip of each executable (default `one`: chip 0)"
    )
    parser.add_argument(
        "--compress-weights", metavar="MODE", choices=COMPRESSIONS,
        help="weights stay compressed up to WRAM: where it is better (`auto`, the default), never (`none`), always,"
        " by `zero` runs or `huffman` codes",
    )  # fmt: skip
    parser.add_argument(
        "--weights", choices=HOLDINGS, help="what all clusters need lies in each (`replicated`), or once on the chip"
    )
    parser.add_argument(
        "--weights-seed", metavar="N", type=_natural, help="of a zoo: network's weights (default 0)"
    )


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, extents = text.rpartition("=")
    try:
        shape = tuple(int(extent) for extent in extents.split("x"))
    except ValueError:
        shape = ()
    if not (name and equals and shape) or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form INPUT=1x3x160x224")
    return name, shape


def _positive(text: str) -> int:
    return _integer(text, 1)


def _natural(text: str) -> int:
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer of at least {least}")
    return int(text)


class _Version(argparse.Action):
    """Looks versions up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        show(f"frustum {version('frustum')}, xDSL {version('xdsl')}, onnx {version('onnx')}\n")
        parser.exit()
