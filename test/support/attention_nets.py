"""Networks of one attention layer, and the check that every level computes what the graph says."""

from __future__ import annotations

import numpy as np
from networks import Net
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects import tile as t

TOLERANCE = {"f32": 2e-6, "f16": 4e-3, "bf16": 3e-2}


def attention(
    heads,
    sizes,
    rows,
    keys,
    *,
    batch=1,
    is_apart=False,
    is_merged=True,
    mask=None,
    is_channels_first=False,
    constants="",
    **rest,
):
    """A network of one attention layer; `constants`: which of q, k and v are weights."""
    net, ((queries, groups), (size, value_size)) = Net(), (heads, sizes)
    shapes = (queries, rows, size), (groups, keys, size), (groups, keys, value_size)
    order = [(h, n, s) if is_apart else (n, h * s) for h, n, s in shapes]
    order = [shape[::-1] for shape in order] if is_channels_first else order
    make = [net.weight if name in constants else net.input for name in "qkv"]
    q, k, v = (new(batch, *shape) for new, shape in zip(make, order, strict=True))
    added = None if mask is None else net.input(*mask)
    numbers = {
        "heads": heads,
        "sizes": sizes,
        "scale": size**-0.5,
        "is_merged": is_merged and not is_channels_first,
    }
    return net.module(
        net.layer(g.AttentionOp(q, k, v, added, is_channels_first=is_channels_first, **numbers, **rest))
    )


def of_planes(plane, key_plane, *, heads, sizes, batch=1, **rest):
    """The same of maps whose positions are the rows."""
    net, ((queries, groups), (size, value_size)) = Net(), (heads, sizes)
    q = net.input(batch, queries * size, *plane)
    k, v = net.input(batch, groups * size + 2, *key_plane), net.input(batch, groups * value_size, *key_plane)
    op = g.AttentionOp(
        q, k, v, heads=heads, sizes=sizes, firsts=(0, 2, 0), scale=size**-0.5, is_channels_first=True, **rest
    )
    return net.module(net.layer(op))


def made_by_heads(tokens=128, heads=8, size=16):
    """Attention between products: its result is made by heads, which clusters share, and read by tokens."""
    net, channels = Net(), heads * size

    def product(x, outputs):
        return net.layer(g.MatmulOp(x, net.weight(outputs, g.shape_of(x)[-1]), None, trans_b=True))

    x = net.input(1, tokens, channels)
    parts = [product(x, channels) for _ in range(3)]
    numbers = {"heads": (heads, heads), "sizes": (size, size), "scale": size**-0.5}
    rows = net.layer(g.AttentionOp(*parts, None, is_merged=True, is_channels_first=False, **numbers))
    return net.module(product(net.unary("tanh", product(rows, channels)), 4 * channels))


def check(module, inputs, target_name, dtype="f32", **choices):
    """Every stop agrees with the graph; what was made of attention."""
    (wanted,) = run_module(module, inputs).values()
    found = modules_at_stops(module, target_name, Choices(dtype=dtype, **choices))
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], inputs, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))
    return [op for op in found["placed"].walk() if isinstance(op, t.ComputeOp)]
