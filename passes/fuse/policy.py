"""A fusion policy: a start rule and a list of rules with thresholds; presets, and how people write one.

rules="S2,1,4,8-12,stride-redundancy"  thresholds="11=75,19=6"
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frustum.dialects.choices import POLICIES, PRESETS, TREE
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.errors import Error
from frustum.dialects.plug_ins import all_of, plug_in, points_of, warn
from frustum.dialects.target import Options
from frustum.dialects.target.declared import FieldProblem
from frustum.passes.fuse.rules import RULES, Rule

NONE, OPTIMAL, CUSTOM, CUTS = "none", "optimal", "custom", "cuts"
"""`custom` is rules, `cuts` is layers behind which to cut."""
DEFAULT = OPTIMAL
STARTS = {"S1": "first layer", "S2": "first convolution or pooling"}


class PolicyError(Error, ValueError):
    """A policy is unknown or contradicts itself; the text says which rule, and what is allowed."""


@dataclass(frozen=True)
class Policy:
    """How units are grown."""

    name: str
    start: str
    """`S1` or `S2`."""
    rules: tuple[Rule, ...]
    thresholds: Mapping[int, int] = field(default_factory=dict)

    def threshold(self, rule: Rule) -> int | None:
        """The rule's threshold; None for a rule without one."""
        return None if rule.threshold is None else self.thresholds.get(rule.number, rule.threshold.default)

    def has(self, number: int) -> bool:
        return any(rule.number == number for rule in self.rules)


def chosen(
    policy: str | None, rules: str | None, thresholds: str | None, stored: Options
) -> tuple[str, str | None, str | None]:
    """What the user says, or else what is stored with the target, or else the default: policy, rules, thresholds."""
    if policy is None and rules is None:
        policy, rules = stored.policy, stored.rules
        thresholds = stored.thresholds if thresholds is None else thresholds
    if policy is None:
        policy = DEFAULT if rules is None else CUSTOM
    return policy, rules, thresholds


def problems_of(options: Mapping[str, Any]) -> list[FieldProblem]:
    """What is wrong with the options of a target file, beyond what their declaration says."""
    policy, rules, thresholds = (options.get(key) for key in ("policy", "rules", "thresholds"))
    problems: list[FieldProblem] = []
    numbers: list[int] | None = None
    text = rules_of(policy) if rules is None and isinstance(policy, str) else rules
    try:
        if isinstance(text, str):
            _, numbers = parse_rules(text)
    except PolicyError as error:
        problems.append(FieldProblem(("options", "rules"), f"options.rules: {error}"))
    if isinstance(rules, str) and policy in POLICIES:
        message = f"options.rules: policy '{policy}' has its own rules: one of both"
        problems.append(FieldProblem(("options", "rules"), message))
    if isinstance(thresholds, str):
        try:
            if text is None:
                raise PolicyError("there are no rules that they are of")
            parse_thresholds(thresholds, list(RULES) if numbers is None else numbers)
        except PolicyError as error:
            problems.append(FieldProblem(("options", "thresholds"), f"options.thresholds: {error}"))
    return problems


def parse_policy(policy: str, rules: str | None = None, thresholds: str | None = None) -> Policy | None:
    """The policy that these words describe; None where it is not rules that decide.  Raises `PolicyError`."""
    if policy == CUSTOM and rules is None:
        raise PolicyError(f"policy '{CUSTOM}' needs rules, such as \"{PRESETS['greedy']}\"")
    if policy not in POLICIES and policy not in (CUSTOM, CUTS):
        known = ", ".join(POLICIES)
        raise PolicyError(
            f"unknown policy '{policy}'{did_you_mean(policy, list(POLICIES))} (policies: {known})"
        )
    if rules is not None and policy != CUSTOM:
        raise PolicyError(f"policy '{policy}' has its own rules: give policy or rules, not both")
    if policy in (NONE, OPTIMAL, CUTS, TREE):
        if thresholds:
            raise PolicyError(f"policy '{policy}' has no rules, so no thresholds: found '{thresholds}'")
        return None
    text = rules_of(policy) if rules is None else rules
    if text is None:
        raise PolicyError(f"policy '{policy}' is that of a plug-in that cannot be used")
    try:
        start, numbers = parse_rules(text)
    except PolicyError as error:
        if rules is None and policy in points_of("policies") and policy not in PRESETS:
            warn("policies", policy, str(error))
            raise PolicyError(f"policy '{policy}' is that of a plug-in that cannot be used") from error
        raise
    return Policy(
        policy, start, tuple(RULES[n] for n in numbers), parse_thresholds(thresholds or "", numbers)
    )


def rules_of(policy: str) -> str | None:
    """The rules of a policy that is a list of them, ours or a plug-in's."""
    if policy in PRESETS or policy not in points_of("policies"):
        return PRESETS.get(policy)
    found = plug_in("policies", policy)
    if found is None or isinstance(found, str):
        return found
    warn("policies", policy, f"rules are a text such as \"{PRESETS['greedy']}\", not {type(found).__name__}")
    return None


def parse_rules(text: str) -> tuple[str, list[int]]:
    """`S1,1,4,8-10` as the start rule and the numbers."""
    starts: list[str] = []
    numbers: list[int] = []
    for word in words_of(text):
        if word.upper() in STARTS:
            starts.append(word.upper())
        else:
            numbers += numbers_of(word)
    twice = sorted({n for n in numbers if numbers.count(n) > 1})
    if twice:
        raise PolicyError(f"{RULES[twice[0]]} is listed twice in '{text}'")
    if len(starts) != 1:
        raise PolicyError(f"'{text}' has {len(starts)} start rules, one is needed: S1 ({STARTS['S1']}) or S2")
    refuse_contradictions(starts[0], numbers)
    return starts[0], sorted(numbers)


def refuse_contradictions(start: str, numbers: Sequence[int]) -> None:
    if {1, 2} <= set(numbers):
        raise PolicyError(f"{RULES[1]} and {RULES[2]} exclude each other")
    if 2 in numbers and start != "S2":
        raise PolicyError(
            f"{RULES[2]} needs start rule S2, found {start}: no unfused layer stands before its start"
        )


def parse_thresholds(text: str, numbers: Sequence[int]) -> dict[int, int]:
    """`11=75,19=6` for a policy of these rules."""
    found: dict[int, int] = {}
    for word in words_of(text) if text else ():
        name, equals, value = word.partition("=")
        if not (equals and value.strip().isascii() and value.strip().isdigit()):
            raise PolicyError(f"threshold '{word}' is not of the form 11=75")
        (number,) = numbers_of(name.strip())[:1]
        rule, limit = RULES[number], int(value)
        if rule.threshold is None:
            having = ", ".join(str(r.number) for r in RULES.values() if r.threshold)
            raise PolicyError(f"{rule} has no threshold (rules with one: {having})")
        if number not in numbers:
            raise PolicyError(f"threshold {limit} of {rule}: the policy does not have that rule")
        if limit not in rule.threshold.allowed:
            raise PolicyError(f"threshold {limit} of {rule} is not allowed: {rule.threshold}")
        found[number] = limit
    return found


def words_of(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise PolicyError(f"an empty word in '{text}': rules look like \"{PRESETS['greedy']}\"")
    return words


def numbers_of(word: str) -> list[int]:
    """The rules of one word: a number, a range of numbers, a name; those of plug-ins where ours are not meant."""
    found = _numbers_of(word)
    if not found:
        all_of("rules")  # which put their rules into the table
        found = _numbers_of(word)
    if found:
        return found
    names = [rule.name for rule in RULES.values()]
    most = next(number for number in itertools.count(1) if number + 1 not in RULES)
    others = "".join(f", {number}" for number in sorted(RULES) if number > most)  # of plug-ins
    known = f"rules are S1, S2 and 1 to {most}{others}, or their names"
    raise PolicyError(f"unknown rule '{word}'{did_you_mean(word, names)} ({known})")


def _numbers_of(word: str) -> list[int]:
    names = {rule.name: rule.number for rule in RULES.values()}
    if word in names:
        return [names[word]]
    first, dash, last = word.partition("-")
    if first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit())):
        numbers = list(range(int(first), int(last if dash else first) + 1))
        if numbers and numbers[0] in RULES and numbers[-1] in RULES:
            return numbers
    return []
