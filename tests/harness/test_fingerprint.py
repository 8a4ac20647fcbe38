"""fingerprint: what each policy compares, and who is the odd one when outputs disagree."""

import pytest

from harness import fingerprint
from harness.fingerprint import TOLD, Observation


def seen(arm, value="x", unit=0, group="end", **more):
    """An observation whose one digest is `value`."""
    return Observation(unit=unit, arm=arm, group=group, work=5, digests={"out": value}, **more)


def told(policy, expected, found, rtol=1e-12):
    return [
        what
        for what, _, _ in fingerprint.differences(
            Observation(0, "a", "end", **expected), Observation(0, "b", "end", **found), policy, rtol
        )
    ]


FULL = {"work": 5, "digests": {"keys": "k", "values": "v"}, "totals": {"sum": 1.0, "bad": None}}


@pytest.mark.parametrize(
    ("change", "exact", "keys"),
    [
        ({}, [], []),
        ({"work": 6}, ["work"], ["work"]),
        ({"digests": {"keys": "K", "values": "v"}}, ["digest keys"], ["digest keys"]),
        ({"digests": {"keys": "k", "values": "V"}}, ["digest values"], []),
        ({"digests": {"keys": "k"}}, ["digest values"], []),
        ({"digests": {"values": "v"}}, ["digest keys"], ["digest keys"]),
        ({"totals": {"sum": 1.0 + 1e-15, "bad": None}}, ["total sum"], []),
        ({"totals": {"sum": 1.22, "bad": None}}, ["total sum"], ["total sum"]),
        ({"totals": {"sum": 1.0, "bad": 0.0}}, ["total bad"], ["total bad"]),
        ({"totals": {"sum": 1.0}}, ["total bad"], ["total bad"]),
    ],
)
def test_what_each_policy_compares(change, exact, keys):
    assert told("exact", FULL, FULL | change) == exact
    assert told("keys", FULL, FULL | change) == keys
    assert told("none", FULL, FULL | change) == []


def test_exact_means_the_last_bit_even_of_zero():
    assert told("exact", {"totals": {"sum": 0.0}}, {"totals": {"sum": -0.0}}) == ["total sum"]
    assert told("keys", {"totals": {"sum": 0.0}}, {"totals": {"sum": -0.0}}) == []


def test_the_tolerance_of_totals_is_the_scenarios():
    assert told("keys", {"totals": {"sum": 1.0}}, {"totals": {"sum": 1.0005}}, rtol=1e-3) == []
    assert told("keys", {"totals": {"sum": 1.0}}, {"totals": {"sum": 1.002}}, rtol=1e-3) == ["total sum"]


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="expected one of exact, keys, statistical, none, found 'loose'"):
        told("loose", FULL, FULL)


def judged(*observations, policy="exact", **more):
    return fingerprint.judge(observations, policy, 1e-12, **more)


def test_equal_outputs_agree():
    found = judged(*[seen(arm, unit=unit) for unit in range(3) for arm in "ab"])
    assert found.agree is True
    assert (found.differences, found.odd, found.wrong) == ([], None, frozenset())
    assert found.a == found.b == {"work": 5, "digests": {"out": "x"}, "totals": {}}


def test_the_reference_is_the_majority_not_the_first():
    found = judged(
        *[seen("a", "y" if unit == 0 else "x", unit) for unit in range(4)], *[seen("b", unit=u) for u in range(4)]
    )
    assert found.agree is False
    assert found.odd == "a"
    assert found.wrong == {(0, "a")}
    assert found.differences == [
        {"unit": 0, "arm": "a", "when": "end", "what": "digest out", "expected": "x", "found": "y"}
    ]
    assert found.a["digests"] == {"out": "x"}


def test_one_wrong_run_in_twenty_is_found():
    runs = [seen("b", "bad" if unit == 13 else "x", unit) for unit in range(20)] + [
        seen("a", unit=u) for u in range(20)
    ]
    found = judged(*runs)
    assert found.odd == "b"
    assert found.wrong == {(13, "b")}


def test_arms_that_are_each_at_one_with_themselves_differ_without_an_odd_one():
    found = judged(*[seen("a", "x", u) for u in range(3)], *[seen("b", "y", u) for u in range(2)])
    assert found.agree is False
    assert found.odd is None
    assert found.wrong == frozenset()
    assert {(one["expected"], one["found"]) for one in found.differences} == {("x", "y")}


def test_reruns_name_the_arm_that_cannot_repeat_itself():
    first = [seen("a", "x"), seen("b", "y")]
    reruns = [seen("a", "x", rerun=True) for _ in range(3)] + [seen("b", value, rerun=True) for value in "xyz"]
    assert judged(*first).odd is None
    found = judged(*first, *reruns)
    assert found.odd == "b"
    assert found.wrong == {(0, "b")}


def test_reruns_are_compared_where_the_disagreement_was():
    warm = [seen("a", "w", group="warm"), seen("b", "v", group="warm")]
    end = [seen("a", "x"), seen("b", "x")]
    reruns = [seen("a", "v", rerun=True), seen("a", "v", rerun=True), seen("a", "v", rerun=True)]
    reruns += [seen("b", "v", rerun=True) for _ in range(3)]
    found = judged(*warm, *end, *reruns)
    assert found.odd == "a"
    assert found.wrong == {(0, "a")}


def test_a_ceiling_need_not_agree():
    both = [seen("a", "x"), seen("b", "y")]
    assert judged(*both, exempt=frozenset("b")).agree is True


def test_each_arm_must_agree_with_itself_where_arms_may_differ():
    pieces = [
        Observation(u, arm, "work", work=work, across=False) for u in range(3) for arm, work in (("a", 4), ("b", 9))
    ]
    assert judged(*pieces).agree is True
    found = judged(*pieces, Observation(3, "b", "work", work=8, across=False))
    assert found.agree is False
    assert found.wrong == {(3, "b")}


def test_nothing_to_compare_is_not_agreement():
    assert judged().agree is None
    assert judged(Observation(0, "a", "end", work=0), Observation(0, "b", "end", work=0)).agree is None
    assert judged(seen("a", "x"), seen("b", "y"), policy="none").agree is None


def test_work_of_one_arm_only_disagrees_with_none():
    found = judged(*[seen("b", unit=u) for u in range(3)], *[Observation(u, "a", "end", work=0) for u in range(3)])
    assert found.agree is False


def test_differences_are_told_up_to_a_limit_and_counted_beyond():
    found = judged(
        *[seen("a", unit=u) for u in range(60)], *[seen("b", "x" if u > 29 else str(u), u) for u in range(70)]
    )
    assert len(found.differences) == TOLD
    assert found.count == 30


def test_a_rerun_is_compared_with_iterations_in_what_they_report():
    """Totals of one iteration of B are off; the re-runs carry digests and work as well, and name B alone."""
    told = [fingerprint.Observation(0, arm, "totals of steady 1", totals={"sum": 1.0}) for arm in "aaa"]
    told += [fingerprint.Observation(0, "b", "totals of steady 1", totals={"sum": 1.5})]
    whole = {"work": 1000, "digests": {"keys": "0"}}
    told += [
        fingerprint.Observation(0, arm, "rerun", totals={"sum": 1.0 if arm == "a" else 1.5}, rerun=True, **whole)
        for arm in "aaabbb"
    ]
    found = fingerprint.judge(told, "exact", 1e-12)
    assert not found.agree
    assert {one["what"] for one in found.differences} == {"total sum"}
    assert {one["arm"] for one in found.differences} == {"b"}
