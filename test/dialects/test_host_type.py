"""Types of the host: text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.host_type import HostType

SCALES = st.floats(min_value=1e-30, max_value=1e30)


NAMES = ["float32", "bfloat16", "uint8", "bool", "float8_e4m3fn"]


@given(st.sampled_from(NAMES), st.none() | SCALES, st.integers(-128, 127))
def test_a_type_is_read_as_it_was_written(dtype, scale, zero):
    host = HostType(dtype, scale, zero if scale is not None else 0)
    assert HostType.parse(str(host)) == host


@pytest.mark.parametrize("text", ["", "float32<1>", "float32<a, 1>", "Float32", "float32<1.0, 2> "])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="is no type of the host"):
        HostType.parse(text)
