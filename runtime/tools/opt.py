"""frustum-opt: xDSL's driver with MLIR's diagnostics, dumps and spelling of options.

Exit codes are those of `frustum`: 0 good, 1 internal error, 2 the command line or the IR is wrong, or a pass refuses
it, 4 it does not fit the target.  Into a file (`-o`) locations are printed where the input has some.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from importlib.metadata import version
from io import BytesIO
from typing import IO, Any, NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.printer import Printer
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError, ShrinkException
from xdsl.xdsl_opt_main import xDSLOptMain

from frustum.runtime import compatibility
from frustum.runtime.diagnostics import Reported, SourceText, debugging, located_errors
from frustum.runtime.failures import BAD_INPUT, DOES_NOT_FIT, GOOD, INTERNAL_ERROR, exit_code_of
from frustum.runtime.garbage import collect_rarely
from frustum.runtime.pipeline_text import AvailablePasses, PipelineError, parse_passes

NOT_SHRUNK = 1
AFTER = "after pass "
SEVERITY = (GOOD, BAD_INPUT, DOES_NOT_FIT, INTERNAL_ERROR)
"""Of several chunks of the input the worst counts."""
MLIR_FLAGS = {
    "--mlir-print-op-generic": "print_op_generic",
    "--mlir-print-debuginfo": "print_debuginfo",
    "--mlir-timing": "time_passes",
}
"""How mlir-opt calls flags of xDSL."""
ANCHORED = re.compile(r"\s*(?:builtin\.module|any)\s*\((?P<passes>.*)\)\s*", re.DOTALL)
COMMENT = re.compile(r"//[^\n]*")
BANNER = "// -----// IR Dump {when} {cls} ({name}) //----- //"


def main(args: Sequence[str] | None = None) -> int:
    """Run the tool; the exit code."""
    compatibility.warn_outside_range()
    collect_rarely()
    try:
        return FrustumOpt("Run passes over MLIR text: Frustum's, and every one that xDSL knows.", args).run()
    except BrokenPipeError:  # `frustum-opt ... | head` is no error; keep Python from flushing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (PipelineError, ArgSpecParseError, OSError) as error:
        if debugging():
            raise
        print(_usage_message(error), file=sys.stderr)
        return BAD_INPUT


class FrustumOpt(xDSLOptMain):
    """The driver.  What it adds to xDSL's: where errors are, dumps between passes, every chunk tried."""

    source: SourceText
    doing: str = ""  # what an error of this moment is put down to

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        own = arg_parser.add_argument_group(conflict_handler="resolve")  # in place of xDSL's
        own.add_argument("--version", action="version", version=f"frustum-opt on xDSL {version('xdsl')}")
        for when in ("after", "before"):
            arg_parser.add_argument(
                f"--print-ir-{when}-all",
                f"--mlir-print-ir-{when}-all",
                action="store_true",
                help=f"Print the IR {when} each pass, on stderr",
            )
        for flag, name in MLIR_FLAGS.items():
            arg_parser.add_argument(flag, dest=name, action="store_true", help=f"As --{name.replace('_', '-')}")
        arg_parser.add_argument(
            "--pass-pipeline", dest="passes", type=_anchored, metavar="builtin.module(PASSES)", help="As --passes"
        )
        arg_parser.add_argument(
            "--verify-each", dest="disable_verify", type=_is_off, nargs="?", const=False, metavar="0|1",
            help="0: as --disable-verify",
        )  # fmt: skip
        arg_parser.add_argument(
            "--show-dialects", action=_ShowDialects, nargs=0, context=self.ctx, help="Print all dialects, and exit"
        )
        vars(arg_parser).update(prog="frustum-opt", error=partial(_wrong_words, arg_parser))

    def register_all_frontends(self) -> None:
        super().register_all_frontends()
        self.available_frontends["mlir"] = self._parse

    def setup_pipeline(self) -> None:
        passes = parse_passes(AvailablePasses(self.available_passes), self.args.passes)
        for each in passes:  # xDSL asks again; those of plug-ins are ours to know
            self.available_passes.setdefault(each.name, partial(type, each))
        super().setup_pipeline()
        check = self.pipeline.callback
        assert check is not None

        def between(previous: ModulePass | None, module: ModuleOp, following: ModulePass | None) -> None:
            self.doing = f"{AFTER}'{previous.name}'" if previous else ""
            with redirect_stdout(sys.stderr) if self.args.time_passes else nullcontext():
                check(previous, module, following)
            if previous and self.args.print_ir_after_all:
                self._dump("After", previous, module)
            if following and self.args.print_ir_before_all:
                self._dump("Before", following, module)
            self.doing = f"pass '{following.name}'" if following else ""

        self.pipeline: PassPipeline = PassPipeline(passes, between)

    def get_input_stream(self) -> tuple[IO[bytes], str]:
        if self.args.input_file == "-":
            self.args.input_file = None
        extension = (self.args.input_file or "").rpartition(".")[2]
        # Like mlir-opt, take any file name for MLIR text.
        kind = extension if extension in self.available_frontends else "mlir"
        return compatibility.input_stream(self.args.input_file), kind

    def run(self) -> int:
        """Process every chunk of the input; the exit code."""
        chunks, extension = self.prepare_input()
        code = GOOD
        results = []
        for chunk, offset in chunks:
            try:
                results.append(self._result_of(chunk, offset, extension))
            except ShrinkException:
                print("Success, can shrink")
                return 0
            except Reported as error:
                if self._is_wanted(error):
                    results.append(f"{error}\n")
                else:
                    print(error, file=sys.stderr)
                    code = max(code, self._code_of(error), key=SEVERITY.index)
        self._write("// -----\n".join(results), code)
        if self.args.shrink:
            print("Failure, can't shrink")
            return NOT_SHRUNK
        return code

    def _result_of(self, chunk: IO[bytes], offset: int, extension: str) -> str:
        self.doing = "the parser"
        try:
            with chunk:
                # Line numbers are those of the file: the lines before the chunk become empty ones.
                module = self.parse_chunk(BytesIO(b"\n" * offset + compatibility.bytes_of(chunk)), extension)
            assert module is not None
            self.doing = ""
            with located_errors(self.source, lambda: self.doing):
                self.apply_passes(module)
                self.args.print_debuginfo |= self.args.output_file is not None and self.source.has_locations
                return self.output_resulting_program(module)
        except (Reported, ShrinkException):
            raise
        except Exception as error:
            if debugging():
                raise
            raise _Internal(self._internal_error(error)) from error

    def _parse(self, stream: IO[bytes]) -> ModuleOp:
        """The module; an empty one of nothing and of comments alone, as mlir-opt has it."""
        self.source = SourceText.read(self.get_input_name(), stream.read())
        if not self.args.no_implicit_module and not COMMENT.sub("", self.source.text).strip():
            return ModuleOp([])
        with located_errors(self.source):
            return self.source.parse(self.ctx, not self.args.no_implicit_module)

    def _code_of(self, error: Reported) -> int:
        """The exit code of what went wrong with a chunk; a pass that leaves wrong IR is a mistake of ours."""
        if isinstance(error, _Internal) or self.doing.startswith(AFTER):
            return INTERNAL_ERROR
        own = None if error.__cause__ is None else exit_code_of(error.__cause__)
        return BAD_INPUT if own is None else own

    def _is_wanted(self, error: Reported) -> bool:
        """Whether the command line asks for this kind of error as the result."""
        if isinstance(error.__cause__, ParseError):
            return bool(self.args.parsing_diagnostics)
        return isinstance(error.__cause__, DiagnosticException) and bool(self.args.verify_diagnostics)

    def _internal_error(self, error: Exception) -> str:
        where = f" in {self.doing}" if self.doing else ""
        return (
            f"frustum-opt: internal error{where}: {type(error).__name__}: {error}\n"
            "FRUSTUM_DEBUG=1 shows where"
        )

    def _dump(self, when: str, kind: ModulePass, module: ModuleOp) -> None:
        print(BANNER.format(when=when, cls=type(kind).__name__, name=kind.name), file=sys.stderr)
        printer = Printer(
            stream=sys.stderr,
            print_generic_format=self.args.print_op_generic,
            print_debuginfo=self.args.print_debuginfo,
        )
        printer.print_op(module)
        print("\n", file=sys.stderr)

    def _write(self, text: str, code: int) -> None:
        if self.args.output_file is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        elif code == GOOD:  # a failed run leaves the file as it was
            with open(self.args.output_file, "w") as file:
                file.write(text)


class _Internal(Reported):
    """A mistake of ours, ready to print."""


def _anchored(text: str) -> str:
    """The passes of mlir-opt's `builtin.module(...)`; passes here have no other anchors."""
    found = ANCHORED.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed builtin.module(PASSES)")
    return found["passes"]


def _is_off(text: str) -> bool:
    """Whether a flag of mlir-opt is off."""
    words = {"0": True, "false": True, "1": False, "true": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed 0, 1, true, false")
    return words[text.lower()]


def _wrong_words(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """One line, as `frustum` has it."""
    parser.exit(BAD_INPUT, f"frustum-opt: error: {message} (frustum-opt --help shows what there is)\n")
    raise AssertionError("argparse ends the process")


class _ShowDialects(argparse.Action):
    def __init__(self, context: Context, **settings: Any) -> None:
        super().__init__(**settings)
        self._context = context

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print("\n".join(sorted(self._context.registered_dialect_names)))
        parser.exit()


def _usage_message(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"frustum-opt: error: cannot open '{error.filename}': {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
