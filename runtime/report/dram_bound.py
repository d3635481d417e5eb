"""A bound on the bytes of DRAM that any plan for a network moves on a machine, and the argument that gives it.

The greatest of these, with M bytes of memory on chip.  Values may be made again, partial sums may leave and come back.

- `compulsory`: every input, weight and output once;
- `matrix product`, `chain of products`: P products whose operands are inputs or constants, or made of each other, are
  made in pieces of 2 S loads, S = M / bytes of a word.  In a piece are at most 3 S words of all operands and results
  together, where a result counts as loaded when it is begun; and sqrt(a b c) products of a, b, c of them (Loomis and
  Whitney; a word of a map in r windows counts r times).  Each product has an operand of its own, and each result one
  product: their operands and results are a forest, for which the sum of sqrt(a b c) is at most ((a + b + c) / 3)^1.5
  (Motzkin and Straus).  So all load sum(2 P / sqrt(r S)) - 2 S words or more, less the results that were begun on chip.
  Making a result again saves no bytes where it takes sqrt(r S) / 2 products an element: of others nothing is said.
  Of one product it is 2 m n k / sqrt(S) - 2 S (Smith, Lowery, Langou, van de Geijn, arXiv 1702.02017);
- `closure`: no element of a layer can be made before all n words of a part of an input were loaded, and from then on w
  words of the part, or made of them, are needed in ways that share no word (Menger): at most M of these bytes wait on
  chip, the others are loaded again.  Behind a norm, softmax, pool or attention over the whole;
- `attention`: where each pair of a query and a key is finished while both rows, the value's and the result's row are on
  chip, M + X words see at most ((M + X) / 2 (d + dv))^2 pairs, so that P pairs move P (d + dv)^2 / M - M words or more.
  It holds for every plan that keeps scores on chip, which all of ours do.

What else the network moves is added as compulsory.  With compressed weights only `closure` is asked, which is of maps.
Products say more than `compulsory` only of many rows and columns: 2 m n k / sqrt(S) is below the operand of n k words
for m < sqrt(S) / 2 (a transformer of 512 tokens on 1 MiB: S = 2^19 words of f16, sqrt(S) = 724).  Closures of maps that
are made of small inputs say nothing: a plan may make them again.
Source: docs/report.md, "The bound on bytes".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import floor, sqrt
from typing import Any, NamedTuple

COMPULSORY, PRODUCT, CHAIN = "compulsory", "matrix product", "chain of products"
CLOSURE, ATTENTION = "closure", "attention"


class DramBound(NamedTuple):
    """At least so many bytes, and the argument, with the layers that it is about."""

    bytes: int
    by: str


def dram_bound(
    memory_bytes: int,
    compulsory_bytes: int,
    facts: Iterable[Mapping[str, Any]],
    passed: Collection[str] = (),
    is_compressed: bool = False,
) -> DramBound:
    """Of a network with so many bytes of memory on chip; `facts` as `passes/analysis/least_work.py` writes them, of
    each of its pieces, which hand each other the tensors `passed`: of these nothing is said, another plan may make
    them on chip."""
    found = [DramBound(compulsory_bytes, COMPULSORY)]
    for piece in facts:
        given = [name not in passed for name in piece["inputs"]]
        for layer in piece["layers"]:
            if CLOSURE in layer:
                found.append(_closure(layer, memory_bytes, compulsory_bytes, given))
            if ATTENTION in layer and not is_compressed and all(given):
                found.append(_attention(layer, memory_bytes, compulsory_bytes))
        if not is_compressed:
            found.append(_products(piece, memory_bytes, compulsory_bytes, given))
    return max(found, key=lambda each: each.bytes)


def _closure(layer: Mapping[str, Any], memory: int, compulsory: int, given: list[bool]) -> DramBound:
    groups, words, element, number = layer[CLOSURE]
    again = groups * max(0, words * element - memory) if given[number] else 0
    return DramBound(compulsory + again, f"{CLOSURE} '{layer['name']}'")


def _attention(layer: Mapping[str, Any], memory: int, compulsory: int) -> DramBound:
    pairs, size, value_size, element, own = layer[ATTENTION]
    words = attention_words(memory / element, pairs, size, value_size)
    return DramBound(compulsory - own + floor(words * element), f"{ATTENTION} '{layer['name']}'")


def attention_words(memory: float, pairs: int, size: int, value_size: int) -> float:
    """Words that attention over so many pairs of rows moves with so many words of memory."""
    return pairs * (size + value_size) ** 2 / memory - memory


# ---------------------------------------------------------------- products


class ProductTree(NamedTuple):
    """Bytes that some products add to what is compulsory, but for the memory, and these products, by number."""

    bytes: float
    layers: tuple[int, ...] = ()

    def with_(self, others: Iterable[ProductTree]) -> ProductTree:
        """And those of the others that add some."""
        more = [each for each in others if each.bytes > 0]
        layers = sum((each.layers for each in more), self.layers)
        return ProductTree(self.bytes + sum(each.bytes for each in more), layers)


def _products(piece: Mapping[str, Any], memory: int, compulsory: int, given: list[bool]) -> DramBound:
    """Of the best set of products: each with the product or input that its operand is made of."""
    layers = piece["layers"]
    least = min((layer[PRODUCT][4] for layer in layers if PRODUCT in layer), default=1)
    words = memory / least
    root: dict[int, int] = {}  # of each product that may be in the set
    for number, layer in enumerate(layers):
        if PRODUCT in layer and all(given[-1 - each] for each in layer.get("own", ())):
            _, reuse, depth, *_ = layer[PRODUCT]
            roots = [each for each in layer["roots"] if (given[-1 - each] if each < 0 else each in root)]
            if roots and depth >= sqrt(reuse * words) / 2:
                root[number] = roots[0]
    behind: dict[int, list[ProductTree]] = {}
    for number in sorted(root, reverse=True):
        macs, reuse, _, size, _, own = layers[number][PRODUCT]
        gain = least * (2 * macs / sqrt(reuse * words) - size) - own
        behind.setdefault(root[number], []).append(ProductTree(gain, (number,)).with_(behind.get(number, ())))
    trees = [ProductTree(-size).with_(behind.get(-1 - k, ())) for k, size in enumerate(piece["input_bytes"])]
    whole = ProductTree(-2 * memory).with_(trees)
    names = [layers[number]["name"] for number in sorted(whole.layers)]
    by = f"{PRODUCT} '{names[0]}'" if len(names) == 1 else f"{CHAIN} '{names[0]}' to '{names[-1]}'" if names else ""
    return DramBound(compulsory + floor(whole.bytes), by)
