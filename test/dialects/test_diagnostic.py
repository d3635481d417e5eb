"""How a problem in a text file is shown."""

from frustum.dialects.diagnostic import did_you_mean, render


def test_message_source_line_and_caret() -> None:
    assert render("t.yaml", "a: 1\nbc: 22\n", 2, 5, "too much", 2) == (
        "t.yaml:2:5: error: too much\nbc: 22\n    ^~"
    )


def test_tabs_stay_so_that_the_caret_fits() -> None:
    assert render("f", "\tx\ty", 1, 4, "m").splitlines()[2] == "\t \t^"


def test_the_underline_ends_with_the_line() -> None:
    assert render("f", "abc", 1, 3, "m", 9).splitlines()[2] == "  ^"


def test_the_end_of_the_line_can_be_pointed_at() -> None:
    assert render("f", "abc\r\n", 1, 4, "m").splitlines()[1:] == ["abc", "   ^"]


def test_a_line_that_does_not_exist_is_left_out() -> None:
    assert render("f", "abc", 7, 1, "m") == "f:7:1: error: m"


def test_further_lines_of_the_message_come_last() -> None:
    assert render("f", "abc", 1, 1, "m\nn", kind="warning") == "f:1:1: warning: m\nabc\n^\nn"


def test_the_nearest_word_is_proposed() -> None:
    assert did_you_mean("cluters", ["clusters", "cores"]) == "; did you mean 'clusters'?"
    assert did_you_mean("xyz", ["clusters", "cores"]) == ""
