"""How policies are written, and what is refused, by name."""

from __future__ import annotations

import pytest
from stops import target

from frustum.backend import targets
from frustum.dialects.target import Options, read_target
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.fuse.policy import DEFAULT, PolicyError, chosen, parse_policy
from frustum.passes.fuse.rules import RULES, RuleKind

EXPECTED = {
    "pyramid": ("S2", [1, 4, 5, 8, 9, 10, 11, 12, 17, 19]),
    "template": ("S2", [2, 3, 4, 5, 6, *range(8, 20)]),
    "greedy": ("S1", [1, 4, 8, 9, 10, 12, 13, 14, 15, 16, 17]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_presets_are_those_of_the_specification(name):
    policy = parse_policy(name)
    assert (policy.start, [rule.number for rule in policy.rules]) == EXPECTED[name]


@pytest.mark.slow
def test_the_table_of_rules():
    """Numbers, kinds and thresholds of docs/techniques/tfu.md."""
    assert list(RULES) == list(range(1, 20))
    kinds = {kind: {n for n, rule in RULES.items() if rule.kind is kind} for kind in RuleKind}
    assert kinds == {
        RuleKind.SEARCH: {1, 2, 3},
        RuleKind.LEGALITY: {4, 8, 9},
        RuleKind.CAPACITY: {10, *range(12, 18)},
        RuleKind.PROFITABILITY: {5, 6, 7, 11, 18, 19},
    }
    thresholds = {n: rule.threshold.default for n, rule in RULES.items() if rule.threshold}
    assert thresholds == {11: 100, 18: 16, 19: 4}
    assert RULES[11].threshold.allowed == (50, 75, 100, 125, 150)
    assert RULES[19].threshold.allowed == (3, 4, 5, 6)
    assert all(rule.meaning for rule in RULES.values())


@pytest.mark.slow
def test_rules_by_number_range_and_name():
    policy = parse_policy("custom", "s2, 1,stride-redundancy,8-10", "19=6")
    assert (policy.start, [rule.number for rule in policy.rules]) == ("S2", [1, 8, 9, 10, 19])
    assert policy.threshold(RULES[19]) == 6
    assert policy.threshold(RULES[10]) is None


@pytest.mark.slow
def test_a_threshold_of_a_preset():
    policy = parse_policy("pyramid", None, "11=75,redundancy=50")
    assert [policy.threshold(RULES[n]) for n in (11, 19)] == [50, 4]


@pytest.mark.parametrize(
    ("rules", "thresholds", "message"),
    [
        ("S2,1,2", None, "rule 1 forward-only and rule 2 backward-first exclude each other"),
        ("S1,2", None, "rule 2 backward-first needs start rule S2, found S1: no unfused layer stands before"),
        ("S1,20", None, r"unknown rule '20' \(rules are S1, S2 and 1 to 19, or their names\)"),
        ("S1,0-3", None, "unknown rule '0-3'"),
        ("S1,5-3", None, "unknown rule '5-3'"),
        ("S3,1", None, "unknown rule 'S3'"),
        ("S1,redundency", None, "unknown rule 'redundency'; did you mean 'redundancy'"),
        ("S1,4,4", None, "rule 4 single-output is listed twice in 'S1,4,4'"),
        ("1,4", None, "'1,4' has 0 start rules, one is needed: S1 .*or S2"),
        ("S1,S2,4", None, "'S1,S2,4' has 2 start rules"),
        ("S1,,4", None, "an empty word in 'S1,,4'"),
        ("S1,11", "11=60", "threshold 60 of rule 11 redundancy is not allowed: 50, 75, 100, 125, 150"),
        ("S1,18", "18=0", "threshold 0 of rule 18 map-count is not allowed: 1 to 4096"),
        ("S1,19", "19=7", "threshold 7 of rule 19 stride-redundancy is not allowed: 3, 4, 5, 6"),
        ("S1,4", "19=6", "threshold 6 of rule 19 stride-redundancy: the policy does not have that rule"),
        ("S1,4", "4=1", r"rule 4 single-output has no threshold \(rules with one: 11, 18, 19\)"),
        ("S1,19", "19:6", "threshold '19:6' is not of the form 11=75"),
        ("S1,19", "19=-4", "threshold '19=-4' is not of the form 11=75"),
    ],
)
def test_wrong_rules_are_refused_by_name(rules, thresholds, message):
    with pytest.raises(PolicyError, match=message):
        FuseLayers(rules=rules, thresholds=thresholds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"policy": "greedi"},
            r"unknown policy 'greedi'; did you mean 'greedy'.*\(policies: none, pyramid, ",
        ),
        (
            {"policy": "greedy", "rules": "S1,4"},
            "policy 'greedy' has its own rules: give policy or rules, not both",
        ),
        (
            {"policy": "none", "thresholds": "11=75"},
            "policy 'none' has no rules, so no thresholds: found '11=75'",
        ),
        ({"policy": "optimal", "thresholds": "11=75"}, "policy 'optimal' has no rules, so no thresholds"),
        ({"policy": "custom"}, "policy 'custom' needs rules, such as"),
        ({"policy": "cuts"}, "policy 'cuts' needs option 'cuts'"),
        (
            {"policy": "none", "cuts": "a"},
            "option 'cuts' is for policies 'cuts' and 'optimal', found policy 'none'",
        ),
        ({"cuts": "a", "rules": "S1,4"}, "cuts are not found by rules: give cuts or rules, not both"),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    with pytest.raises(PolicyError, match=message):
        FuseLayers(**options)


@pytest.mark.slow
def test_what_is_asked_for_wins_over_the_target():
    stored = Options(rules="S1,4,11", thresholds="11=75")
    assert chosen(None, None, None, stored) == ("custom", "S1,4,11", "11=75")
    assert chosen(None, None, "11=50", stored) == ("custom", "S1,4,11", "11=50")
    assert chosen("greedy", None, None, stored) == ("greedy", None, None)
    assert chosen(None, "S2,4", None, stored) == ("custom", "S2,4", None)
    assert chosen(None, None, None, Options()) == (DEFAULT, None, None)


@pytest.mark.slow
def test_a_target_file_stores_a_policy():
    text = targets.path("edge").read_text()
    stored = read_target(text + '\noptions: {rules: "S2,1,4,19", thresholds: "19=6"}\n', "edge.yaml")
    policy = FuseLayers()
    assert parse_policy(*policy.words(stored.options)).thresholds == {19: 6}
    assert policy.words(target("edge").options)[0] == DEFAULT
