"""Random ONNX files on shipped and random machines, in checked mode, against onnxruntime without optimisation; and
batches in place of a static 1: each is refused, or gives what the images give alone.

    python -m pytest -n 0 test/soak/soak_onnx.py --hypothesis-profile=soak
"""

from hypothesis import given
from hypothesis import strategies as st
from onnx_differences import difference_of, images_of

SEEDS = st.integers(0, 2**31)


@given(SEEDS)
def test_any_file_gives_what_onnxruntime_gives(seed):
    assert difference_of(seed) == ""


@given(SEEDS, st.integers(2, 4))
def test_any_batch_is_refused_or_what_its_images_give(seed, count):
    assert images_of(seed, count) == ""
