"""gate: every row of the verdict table, in first-match order, and what the command ends with."""

import math

import pytest

from harness import gate
from harness.gate import Evidence, Interval

MU = math.log1p(0.02)


def interval(low, high, low90=None, high90=None, **more):
    """An interval in multiples of the margin."""
    low90, high90 = low if low90 is None else low90, high if high90 is None else high90
    return Interval(
        n=8,
        level=0.95,
        estimate=(low + high) / 2 * MU,
        low=low * MU,
        high=high * MU,
        low90=low90 * MU,
        high90=high90 * MU,
        **({"p": 0.5, "mde": 0.03, "units_needed": 6, "units_to_settle": 20} | more),
    )


def evidence(found=None, **more):
    return Evidence(**({"interval": found or interval(-0.5, 0.5), "complete": 8} | more))


NO_UNITS = Interval(n=0, level=0.95, units_needed=6)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (interval(1.01, 5), "regression"),
        (interval(-5, -1.01), "improvement"),
        (interval(-0.9, 0.9), "equivalent"),
        (interval(-1.5, 1.5, -0.9, 0.9), "equivalent"),
        (interval(0.1, 0.9, p=0.01), "equivalent"),
        (interval(-3, 0.9), "not-worse"),
        (interval(-3, -0.5), "not-worse"),
        (interval(-3, 1.1, -2.5, 0.9), "not-worse"),
        (interval(0.5, 1.5), "slower"),
        (interval(0.0, 1.5), "inconclusive"),
        (interval(-0.5, 1.5), "inconclusive"),
        (interval(1.0, 5), "slower"),
        (interval(-5, -1.0), "not-worse"),
        (interval(-1.0, 0.5), "not-worse"),
        (interval(-5, 5), "inconclusive"),
    ],
)
def test_the_interval_decides(found, word):
    assert gate.verdict(evidence(found)).word == word


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (interval(1.01, 5), "improvement"),
        (interval(-5, -1.01), "regression"),
        (interval(-0.9, 3), "not-worse"),
        (interval(-1.5, -0.5), "slower"),
        (interval(-0.9, 0.9), "equivalent"),
    ],
)
def test_where_more_is_better_the_ratio_is_inverted_first(found, word):
    assert gate.verdict(evidence(found, direction="higher")).word == word


def test_not_worse_and_slower_wait_for_the_last_look():
    assert gate.verdict(evidence(interval(-3, 0.9), final=False)).word == "inconclusive"
    assert gate.verdict(evidence(interval(0.5, 1.5), final=False)).word == "inconclusive"
    assert gate.verdict(evidence(interval(1.5, 2.5), final=False)).word == "regression"


def test_the_margin_is_the_scenarios():
    assert gate.verdict(evidence(interval(1.01, 5), margin=0.12)).word == "equivalent"


def test_too_few_units_give_no_interval():
    few = Interval(n=5, level=0.95, estimate=2.3, units_needed=6)
    found = gate.verdict(evidence(few, complete=5))
    assert found.word == "inconclusive"
    assert found.reason == "6 units are needed for a 95 % interval, and 5 count"


def test_reasons_are_sentences():
    assert gate.verdict(evidence(interval(2, 4))).reason == (
        "B/A = 1.0612, between 1.0404 and 1.0824 (95 %): all of it above the margin at 1.02"
    )
    assert gate.verdict(evidence(interval(0.2, 0.9, p=0.0078))).reason == (
        "B/A = 1.0110, between 1.0040 and 1.0180 (95 %): within the margin of 2 %, yet slower (p = 0.0078)"
    )
    assert gate.verdict(evidence(interval(-2, 2))).reason == (
        "B/A = 1.0000, between 0.9612 and 1.0404 (95 %); 8 blocks show 3.05 %, about 20 would show 2 %"
    )


def test_wrong_outputs_come_before_everything():
    found = gate.verdict(evidence(NO_UNITS, complete=0, wrong=("digest out differs",), unfit=("no program",)))
    assert (found.word, found.reason) == ("wrong-result", "digest out differs")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"unfit": ("no program x",)}, "unfit"),
        ({"interval": NO_UNITS, "complete": 0}, "unfit"),
        ({"interval": NO_UNITS, "complete": 0, "voids": {"a": 3, "b": 13}}, "unfit"),
        ({"interval": NO_UNITS, "complete": 0, "voids": {"a": 0, "b": 4}}, "unfit"),
        ({"interval": NO_UNITS, "complete": 0, "voids": {"a": 0, "b": 5}}, "regression"),
        ({"voids": {"a": 5, "b": 0}}, "unfit"),
        ({"voids": {"a": 4, "b": 0}}, "equivalent"),
        ({"voids": {"a": 0, "b": 4}}, "equivalent"),
        ({"voids": {"a": 0, "b": 5}}, "regression"),
        ({"voids": {"a": 1, "b": 9}}, "equivalent"),
        ({"voids": {"a": 0, "b": 5}, "interval": interval(-5, -2)}, "regression"),
        ({"set_aside": 3, "complete": 10, "everything": interval(-0.5, 0.5)}, "equivalent"),
        ({"set_aside": 4, "complete": 10, "everything": interval(-0.5, 0.5)}, "unfit"),
        ({"set_aside": 4, "complete": 10, "voids": {"a": 20, "b": 20}}, "unfit"),
        ({"set_aside": 3, "complete": 10, "voids": {"a": 20, "b": 20}, "everything": interval(0, 0.1)}, "equivalent"),
        ({"unmeasured": ("no metric",)}, "inconclusive"),
        ({"doubts": ("order matters",)}, "inconclusive"),
    ],
)
def test_what_comes_before_the_interval(settings, word):
    settings = {"interval": interval(-0.5, 0.5)} | settings
    assert gate.verdict(evidence(settings.pop("interval"), **settings)).word == word


def test_a_verdict_that_rests_on_setting_aside_is_none():
    found = gate.verdict(evidence(interval(1.5, 3), everything=interval(0.5, 3), set_aside=2, complete=10))
    assert found.word == "inconclusive"
    assert found.reason.startswith("regression without and slower with the 2 blocks set aside for their load")


def test_a_ceiling_never_wins():
    for ceiling, found, word in (
        ("b", interval(-5, -2), "inconclusive"),
        ("a", interval(2, 5), "inconclusive"),
        ("a", interval(0.5, 5), "inconclusive"),
        ("b", interval(2, 5), "regression"),
        ("a", interval(-0.5, 0.5), "equivalent"),
    ):
        assert gate.verdict(evidence(found, ceiling=frozenset(ceiling))).word == word
    assert "arm B is a ceiling" in gate.verdict(evidence(interval(-5, -2), ceiling=frozenset("b"))).reason


def test_exit_codes_are_those_of_the_table():
    assert {word: gate.exit_code(word) for word in gate.EXIT_CODES} == {
        "indistinguishable": 0,
        "different": 1,
        "undecided": 3,
        "wrong-result": 1,
        "unfit": 4,
        "regression": 1,
        "improvement": 0,
        "equivalent": 0,
        "not-worse": 0,
        "slower": 3,
        "inconclusive": 3,
    }
    assert gate.exit_code("slower", strict=True) == 1
    assert gate.exit_code("inconclusive", strict=True) == 3
    with pytest.raises(ValueError, match="expected one of"):
        gate.exit_code("slow")


def test_several_scenarios_end_with_the_worst():
    assert gate.worst([0, 3, 4, 1]) == 1
    assert gate.worst([0, 3, 4]) == 4
    assert gate.worst([3, 0]) == 3
    assert gate.worst([0, 0]) == 0
    with pytest.raises(ValueError, match="exit codes"):
        gate.worst([])
