"""Depthwise convolutions on the vector unit: what the matrix unit makes of them, and the choice between the two."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check_agreement
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_networks import IntegerNet
from networks import Net

from frustum.backend.compile import compile_module
from frustum.backend.pipeline import Choices
from frustum.dialects.isa.program import Conv, Depthwise
from frustum.passes.plan import pieces
from frustum.runtime.machine import Machine
