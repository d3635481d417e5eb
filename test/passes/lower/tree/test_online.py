"""Attention of which loops cut the keys: softmax and what it weighs are joined over passes."""

import math

import lowered_plans
import pytest
from lowered_plans import case

from frustum.dialects import graph as g
from frustum.passes.lower.tree.cores import chains
from frustum.passes.lower.tree.cores.chain_writer import ChainWriter

HEADS = {"heads": (4, 4), "sizes": (8, 8), "scale": 0.5}


def attention(net, mask=None, keys=24, **numbers):
    q, k, v = net.input(1, 20, 32), net.input(1, keys, 32), net.input(1, keys, 32)
    return net.layer(g.AttentionOp(q, k, v, mask, **{**HEADS, "is_merged": True, **numbers}))


def grouped(net):
    return attention_of(net, (4, 2))


def attention_of(net, heads):
    q, k, v = net.input(1, 4, 20, 8), net.input(1, heads[1], 24, 8), net.input(1, heads[1], 24, 8)
    return net.layer(g.AttentionOp(q, k, v, None, **{**HEADS, "heads": heads}))


def causal(net):
    return attention(net, causal_from=4)


def hidden_first(net):
    return attention(net, causal_from=-12)


def masked(net):
    return attention(net, net.input(1, 1, 20, 24))


def many_keys(net):
    return attention(net, keys=300, heads=(2, 2), sizes=(16, 16))


BUILDS = attention, grouped, causal, masked, many_keys
KEY, ALL = "attention_1.scores.key", "compute attention_1.scores, attention_1.softmax, attention_1.context"
PLANS = {
    "keys": f"resident attention_1.context for {KEY} step 8 {{ {ALL} }}",
    "the last pass is shorter": f"resident attention_1.context for {KEY} step 7 {{ {ALL} }}",
    "keys inside queries": f"for x0.1 step 5 {{ resident attention_1.context for {KEY} step 6 {{ {ALL} }} }}",
    "queries inside keys": f"resident attention_1.context for {KEY} step 6 {{ for x0.1 step 5 {{ {ALL} }} }}",
    "keys of keys": f"resident attention_1.context for {KEY} step 12 {{ for {KEY} step 4 {{ {ALL} }} }}",
    "one key": f"resident attention_1.context for {KEY} step 1 {{ {ALL} }}",
}  # fmt: skip


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_keys_are_cut(build, name):
    text = PLANS[name]
    text = text.replace("x0.1", {grouped: "x0.2", masked: "x1.1"}.get(build, "x0.1"))
    moved, claimed = lowered_plans.check_lowered(case(build, text), lowered_plans.machine())
    assert moved == claimed


@pytest.mark.parametrize(("keys", "step"), [(300, 128), (130, 128)])
def test_pieces_of_the_last_pass_that_have_no_keys(keys, step, monkeypatch):
    """In a loop over keys in the cores: what they make of the sums of passes before is nothing."""
    monkeypatch.setattr(chains, "PAYS", math.inf)
    written, write = [], ChainWriter.write

    def noted(self):
        write(self)
        written.append(self.chain.summed)

    monkeypatch.setattr(ChainWriter, "write", noted)
    one_head = attention_with(keys=keys, heads=(1, 1), sizes=(32, 32))
    found = case(one_head, PLANS["keys"].replace("step 8", f"step {step}"))
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed and any(written)


def attention_with(**numbers):
    return lambda net: attention(net, **numbers)
