"""A network behind one pass, which changes none of its numbers."""

from __future__ import annotations

import numpy as np
from stops import run_module
from xdsl.context import Context


def after_pass(step, net, *results, rtol=0.0, atol=0.0):
    """The verified module of these results behind a pass, checked against what it computed before."""
    module, inputs = net.module(*results)
    changed = module.clone()
    step.apply(Context(), changed)
    changed.verify()
    wanted, got = run_module(module, inputs), run_module(changed, inputs)
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=atol)
    return changed
