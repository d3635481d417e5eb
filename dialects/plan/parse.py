"""Reads the text of plans (docs/ir-plan.md): of a file, or of an operation inside a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.ir import Attribute
from xdsl.parser import Parser, ParserState
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input, Span

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.diagnostic import did_you_mean, render
from frustum.dialects.lexer import Lexer
from frustum.dialects.plan.check import ELEMENTS, ENGINES, MEMORIES, ORDERS, PlanError, check_structure
from frustum.dialects.plan.renaming import Pairs
from frustum.dialects.plan.repeats import Repeat, Stated
from frustum.dialects.plan.text import KEYWORDS, SRAM
from frustum.dialects.plan.tree import (
    Compute,
    Copy,
    Halo,
    Loop,
    Node,
    Over,
    Part,
    Resident,
    Sequence,
    Sum,
    layers_in,
    nodes_in,
    steps,
)

LEVELS = tuple(over.value for over in Over if over is not Over.TIME)
HALOS = tuple(halo.value for halo in Halo if halo is not Halo.NONE)
LARGEST = (1 << 31) - 1
"""Of extents and positions, which are those of tensors."""
MOST_PASSES = 1 << 20
"""Of a loop: each is an entry of its tree. More would be a program of more instructions than any memory has."""
STATEMENTS = "for, compute, resident, recompute, again, subsets, { or }"
T = TypeVar("T")


@dataclass(frozen=True)
class PlanText:
    """A plan that was read, and where in the text its nodes and residents stand."""

    name: str
    target: str
    node: Node
    file: str = field(compare=False)
    text: str = field(compare=False)
    places: Mapping[int, Span] = field(compare=False, repr=False)

    def located(self, error: PlanError) -> PlanError:
        """The error with the line and column of the node that it is about, if that is known."""
        span = self.places.get(id(error.node))
        return PlanError(_shown(self.file, self.text, span, str(error)), error.node) if span else error


Extents = Callable[[str], Mapping[str, int] | None]
"""Extents of the axes of a network, by the network's name; None where it is not known."""


def parse_plan(text: str, network: AxisNetwork | None = None, file: str = "plan") -> tuple[str, str, Node]:
    """Name, target and tree of a plan.  With its network, `step N` needs no `of EXTENT`.

    Raises PlanError with file, line and column, what was found there and what is allowed.
    """
    found = read_plan(text, None if network is None else lambda _: extents_of(network), file)
    return found.name, found.target, found.node


def extents_of(network: AxisNetwork) -> dict[str, int]:
    return {axis.name: axis.extent for layer in network.layers for axis in layer.axes}


def read_plan(text: str, extents: Extents | None = None, file: str = "plan") -> PlanText:
    """The same with the places of nodes."""
    (found,) = read_plans(text, extents, file, most=1)
    return found


def read_plans(
    text: str, extents: Extents | None = None, file: str = "plan", most: int | None = None
) -> list[PlanText]:
    """The plans of a file, at least one, one behind the other."""
    context = Context()
    context.load_dialect(Builtin)
    found: list[PlanText] = []
    try:
        parser = Parser(context, "", file)
        parser._parser_state = ParserState(Lexer(Input(text, file)))
        reader = PlanReader(parser, extents)
        while not found or (reader.found != END and len(found) != most):
            if parser.parse_optional_keyword("fplan.plan") is None:
                reader.keyword("plan")
            name, target, _, node = reader.plan()
            found.append(PlanText(name, target, node, file, text, reader.places))
        if reader.found != END:
            reader.refuse("the end after the plan's closing brace")
    except ParseError as error:
        raise PlanError(_shown(file, text, error.span, error.msg)) from None
    except RecursionError:
        raise PlanError(f"{file}: error: loops are nested too deeply") from None
    return found


def _shown(file: str, text: str, span: Span, message: str) -> str:
    place = span.get_location()
    return render(file, text, place.line, place.col, message, max(len(span.text.split("\n")[0]), 1))


END = "the end of the text"
PARTS_OF_NAMES = ("#", "/", "-", "+", "!", "%", "*", "?", "|", "=")
"""Begins of tokens that nothing here has."""


class PlanReader:
    """Reads statements with a parser of xDSL that stands before them."""

    parser: Parser
    extents: Extents | None

    def __init__(self, parser: Parser, extents: Extents | None = None) -> None:
        self.parser, self.extents = parser, extents
        self.known: Mapping[str, int] | None = None
        self.places: dict[int, Span] = {}
        self.kept: list[Node | Resident] = []
        """What `places` tells of, so that no other object takes its id."""

    def plan(self) -> tuple[str, str, Mapping[str, Attribute], Node]:
        """Name, target, attributes and tree, from behind the word `plan`."""
        start = self.here
        name = self.parser.parse_optional_symbol_name()
        if name is None:
            self.refuse("the name of a network, as in @net")
        self.known = None if self.extents is None else self.extents(name.data)
        self.keyword("for")
        target = self.string()
        if target is None:
            self.refuse('the name of a target in quotes, as in "edge"')
        attributes = self.parser.parse_optional_attr_dict_with_keyword()
        node = self.node()
        if node is None:
            self.refuse("a node: for, compute, subsets or {")
        try:
            check_structure(node)
        except PlanError as error:
            raise ParseError(self.places.get(id(error.node), start), str(error)) from None
        return name.data, target, attributes.data if attributes else {}, node

    # ------------------------------------------------------------ words

    @property
    def here(self) -> Span:
        return self.parser._current_token.span

    @property
    def found(self) -> str:
        """What is read next."""
        return f"'{self.here.text}'" if self.here.text else END

    def refuse(self, allowed: str, change: str = "") -> NoReturn:
        if self.here.text.startswith(PARTS_OF_NAMES):
            change = "; a name that is no word stands in quotes"
        self.parser.raise_error(f"expected {allowed}, found {self.found}{change}")

    def keyword(self, word: str) -> None:
        if self.parser.parse_optional_keyword(word) is None:
            self.refuse(f"'{word}'")

    def has(self, word: str) -> bool:
        return self.parser.parse_optional_keyword(word) is not None

    def punctuation(self, mark: str, what: str) -> None:
        if self.parser.parse_optional_characters(mark) is None:
            self.refuse(f"'{mark}' {what}")

    def string(self) -> str | None:
        """A text in quotes."""
        found = self.parser.parse_optional_str_literal()
        if found is None:
            span, data = self.here, self.parser.parse_optional_bytes_literal()
            try:
                found = None if data is None else data.decode()
            except UnicodeDecodeError:
                raise ParseError(span, "a name is UTF-8 text") from None
        return found

    def name(self, what: str) -> str:
        """A word that is no keyword, or a text in quotes."""
        if self.here.text in KEYWORDS:
            self.refuse(f"the name of {what}", "; a name that is a keyword stands in quotes")
        found = self.parser.parse_optional_identifier() or self.string()
        if found is None:
            self.refuse(f"the name of {what}")
        return found

    def one_of(self, words: Mapping[str, object] | tuple[str, ...], what: str) -> str:
        found = self.here.text
        if found not in words:
            self.refuse(f"{what} ({', '.join(words)})", did_you_mean(found, list(words)))
        return self.parser.parse_identifier()

    def number(self, what: str) -> int:
        span = self.here
        found = self.parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
        if found is None:
            self.refuse(what)
        if found > LARGEST:
            raise ParseError(span, f"{what}: at most {LARGEST}, found {found}")
        return found

    def listed(self, item: Callable[[], T]) -> list[T]:
        """At least one, with commas between them."""
        found = [item()]
        while self.parser.parse_optional_punctuation(","):
            found.append(item())
        return found

    def numbers(self, what: str) -> tuple[int, ...]:
        self.punctuation("[", "before numbers")
        found = self.listed(lambda: self.number(what))
        self.punctuation("]", "after numbers, with commas between them")
        return tuple(found)

    def placed(self, span: Span, node: T) -> T:
        assert isinstance(node, Node | Resident)
        self.places[id(node)] = span
        self.kept.append(node)
        return node

    def placed_parts(self, span: Span, stated: Stated) -> Stated:
        """A child that another statement stands for, and all in it, at that statement."""
        for node in nodes_in(stated.child):
            self.placed(span, node)
            for resident in node.residents if isinstance(node, Sequence) else ():
                self.placed(span, resident)
        for resident, _ in stated.residents:
            self.placed(span, resident)
        return stated

    # ------------------------------------------------------------ nodes

    def node(self) -> Node | None:
        """A loop, a compute or a sequence; None where none begins."""
        span = self.here
        if self.has("for"):
            return self.placed(span, self.loop())
        if self.has("compute"):
            return self.placed(span, self.compute())
        if span.text in ("{", "subsets"):
            return self.placed(span, self.sequence())
        return None

    def compute(self) -> Compute:
        layers = self.listed(lambda: self.name("a layer"))
        sums = self.listed(self.sum) if self.has("sum") else []
        engine = self.one_of(ENGINES, "an engine") if self.has("on") else ""
        return Compute(tuple(layers), engine, tuple(sums))

    def sum(self) -> Sum:
        tensor = self.name("a tensor")
        self.keyword("as")
        return Sum(tensor, self.one_of(ELEMENTS, "a type of sums"))

    def loop(self) -> Loop:
        axis = self.name("an axis")
        edges = self.edges(axis)
        over = Over(self.one_of(LEVELS, "a level of the machine")) if self.has("over") else Over.TIME
        halo = Halo(self.parser.parse_identifier()) if self.here.text in HALOS else Halo.NONE
        order = self.order() if self.has("map") else ""
        is_pipelined = self.has("pipelined")
        span = self.here
        if span.text not in ("{", "subsets"):
            modifiers = f"{', '.join(HALOS)}, over, map, pipelined, subsets or {{"
            self.refuse(modifiers, did_you_mean(span.text, [*HALOS, "over", "map", "pipelined", "subsets"]))
        return Loop(axis, edges, self.placed(span, self.sequence()), halo, over, order, is_pipelined)

    def edges(self, axis: str) -> tuple[int, ...]:
        """Where the ranges begin and end."""
        if self.has("ranges"):
            return self.numbers("a position of the axis")
        if not self.has("step"):
            self.refuse("'step N of EXTENT' or 'ranges [0, ..., EXTENT]'")
        span, step = self.here, self.number("the positions of a pass")
        if step < 1:
            raise ParseError(span, "a step has at least one position, found 0")
        extent = self.number("the extent of the axis") if self.has("of") else (self.known or {}).get(axis)
        if extent is None:
            near = did_you_mean(axis, list(self.known or {}))
            self.refuse("'of EXTENT'", f"; no network here says the extent of {axis}{near}")
        if extent > step * MOST_PASSES:
            raise ParseError(span, f"step {step} of {extent}: at most {MOST_PASSES} passes; take a larger step")
        return steps(extent, step)

    def order(self) -> str:
        kind = self.one_of(ORDERS, "an order of passes")
        found, span = [], self.here
        if ORDERS[kind]:
            found.append(str(self.number(f"{ORDERS[kind]} extents, as in {' '.join(('2x' * ORDERS[kind])[:-1])}")))
        if ORDERS[kind] > 1:
            rest = self.parser.parse_optional_identifier() or ""
            found += rest.removeprefix("x").split("x")
        if len(found) != ORDERS[kind] or not all(each.isdigit() for each in found):
            raise ParseError(span, f"map {kind} takes {ORDERS[kind]} extents with x between them")
        return " ".join([kind, *(["x".join(found)] if found else [])])

    # ------------------------------------------------------------ sequences

    def sequence(self) -> Sequence:
        over, subsets = Over.TIME, tuple[int, ...]()
        if self.has("subsets"):
            over = Over(self.one_of(LEVELS, "a level of the machine"))
            subsets = self.numbers("how many each child has")
        self.punctuation("{", "before the children")
        braces = _Braces(self)
        while not self.parser.parse_optional_punctuation("}"):
            braces.statement()
        return Sequence(*braces.closed(), subsets, over, tuple(braces.copies))

    def resident(self) -> tuple[Resident, str]:
        """A resident without its children, and the layer to whose child it stays."""
        span, tensor = self.here, self.name("a tensor")
        part = self.part() if self.parser.parse_optional_punctuation("[") else None
        memory = self.one_of(MEMORIES, "a memory") if self.has("in") else SRAM
        storage = self.name("the tensor whose bytes it takes") if self.has("at") else ""
        until = self.name("a layer") if self.has("until") else ""
        sharded = self.name("an axis") if self.has("sharded") else ""
        return self.placed(span, Resident(tensor, 0, 0, part, storage, memory, sharded)), until

    def part(self) -> Part:
        axis, start = self.name("an axis"), self.number("the first position")
        self.punctuation(":", "between the first position and the one after the last")
        stop = self.number("the position after the last")
        self.punctuation("]", "after a part, as in [rows 0:12]")
        return Part(axis, start, stop)

    def again(self, before: list[Stated]) -> tuple[Repeat, tuple[Stated, ...]]:
        """What comes again, and the part."""
        at: dict[str, int] = {}
        for k, each in enumerate(before):
            at.setdefault(next(layers_in(each.child), ""), k)
        first = self.known_layer(at, 0)
        last = self.known_layer(at, at[first]) if self.has("to") else first
        self.keyword("at")
        copies = self.listed(lambda: self.copy(first))
        return Repeat(first, last, tuple(copies)), tuple(before[at[first] : at[last] + 1])

    def known_layer(self, at: Mapping[str, int], least: int) -> str:
        span, name = self.here, self.name("a layer")
        if at.get(name, -1) < least:
            near = did_you_mean(name, list(at))
            raise ParseError(span, f"no child of these braces that stands before begins with layer {name}{near}")
        return name

    def copy(self, first: str) -> Pairs:
        pairs = [(first, self.name("a layer"))]
        if self.parser.parse_optional_punctuation("("):
            pairs += self.listed(self.pair)
            self.punctuation(")", "after names, as in (a as b, c as d)")
        return tuple(pairs)

    def pair(self) -> tuple[str, str]:
        old = self.name("a layer, tensor or axis")
        self.keyword("as")
        return old, self.name("a layer, tensor or axis")


class _Braces:
    """The statements between two braces."""

    def __init__(self, reader: PlanReader) -> None:
        self.reader = reader
        self.copies: list[Copy] = []
        self.children: list[Stated] = []
        self.waiting: list[tuple[Resident, str]] = []
        """Residents that begin with the next child."""

    def statement(self) -> None:
        reader, span = self.reader, self.reader.here
        if reader.has("resident"):
            self.waiting += reader.listed(reader.resident)
        elif reader.has("recompute"):
            layer = reader.name("a layer")
            reader.keyword("as")
            self.copies.append(Copy(layer, reader.name("the copy")))
        elif reader.has("again"):
            if self.waiting:
                raise ParseError(span, "a resident begins with the child after it, found 'again'; state it elsewhere")
            again, part = reader.again(self.children)
            self.children += [reader.placed_parts(span, each) for each in again.expanded(part)]
        else:
            child = reader.node()
            if child is None:
                words = [*STATEMENTS.replace(" or", ",").split(", ")]
                reader.refuse(STATEMENTS, did_you_mean(span.text, words))
            self.children.append(Stated(child, tuple(self.waiting)))
            self.waiting = []

    def closed(self) -> tuple[tuple[Node, ...], tuple[Resident, ...]]:
        """Children and residents, these from child to child."""
        if self.waiting:
            span = self.reader.places[id(self.waiting[0][0])]
            raise ParseError(span, "a resident begins with the child after it, and none is after it: move it up")
        at = {name: k for k, each in enumerate(self.children) for name in layers_in(each.child)}
        residents = []
        for k, each in enumerate(self.children):
            for resident, until in each.residents:
                span = self.reader.places[id(resident)]
                last = at.get(until, -1) if until else len(self.children) - 1
                if last < k:
                    near = did_you_mean(until, list(at)) if until not in at else "; that child is before it"
                    raise ParseError(span, f"resident {resident.tensor} until {until}: no such child{near}")
                residents.append(self.reader.placed(span, replace(resident, first=k, last=last)))
        return tuple(each.child for each in self.children), tuple(residents)
