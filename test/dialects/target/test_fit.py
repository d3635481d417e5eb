"""What a refusal for lack of room carries, for people and for whoever tries again."""

import pytest

from frustum.dialects.target.fit import DoesNotFit, OrderDoesNotFit


@pytest.mark.parametrize("kind", [DoesNotFit, OrderDoesNotFit])
def test_options_come_first_and_all_else_stays(kind):
    error = kind("buffers", "layer 'SRAM_gate'", "70000 B", "65536 B of nram", "nram").under("order z-order")
    assert type(error) is kind and error.resource == "nram"
    assert str(error) == (
        "order z-order: layer 'SRAM_gate': buffers does not fit: needed 70000 B, available 65536 B of nram"
    )


def test_less_of_nothing_helps_unless_said():
    assert DoesNotFit("one element", "unit u0", 8, 4).resource is None
