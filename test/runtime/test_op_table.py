"""docs/operations.md is what the definitions say."""

from pathlib import Path

from xdsl.dialects.builtin import i32
from xdsl.ir import Dialect
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)

from frustum.runtime import op_table

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


@irdl_op_definition
class Mix(IRDLOperation):
    """Mixes a | b.

    At length.
    """

    name = "toy.mix"
    in_ = operand_def()
    extra = opt_operand_def()
    out = result_def(i32)
    ratio = prop_def()
    speed = opt_prop_def()


@irdl_op_definition
class Many(IRDLOperation):
    name = "toy.many"
    values = var_operand_def()


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text() == op_table.op_table(), "run `make docs`"


def test_one_row_for_each_operation() -> None:
    assert op_table._section(Dialect("toy", [Mix, Many], [])).splitlines()[4:] == [
        "| `toy.mix` | in, extra? | out | ratio, speed? | Mixes a \\| b. |",
        "| `toy.many` | values* | - | - |  |",
    ]
