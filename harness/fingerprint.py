"""Digests and their policies: when two outputs agree, which one is the reference, and which arm is the odd one.

`exact`: work, every digest and every total to the last bit. `keys`: work and every digest whose name does not begin
with "values" (those of floating-point values, which depend on the order of summation), totals within a relative
tolerance. `statistical`: as `keys`, but each arm with itself alone; between the arms the values decide (accuracy.py).
`none`: nothing is compared. The reference is what the majority gave, never what came first.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

POLICIES = ("exact", "keys", "statistical", "none")
#: differences that are told one by one; the rest is only counted
TOLD = 20


@dataclass(frozen=True)
class Observation:
    """What one arm's output was at one moment.

    Attributes
    ----------
    group : str          only observations of one group are compared: warm, end, or a slot's place in its process
    rerun : bool         made by an untimed re-run, to name the odd arm
    across : bool        whether the arms must agree with one another, or each arm only with itself
    """

    unit: int
    arm: str
    group: str
    work: float | None = None
    digests: dict[str, str] = field(default_factory=dict)
    totals: dict[str, float | None] = field(default_factory=dict)
    rerun: bool = False
    across: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it to compare."""
        return not self.work and not self.digests and not self.totals


@dataclass(frozen=True)
class Judgement:
    """What the observations of a comparison add up to.

    Attributes
    ----------
    agree : bool or None     None: nothing was compared
    a, b : dict or None      the majority's work, digests and totals of each arm at the block's end
    differences : list       {unit, arm, when, what, expected, found}, the first `TOLD`
    count : int              how many differences there are in all
    odd : "a", "b" or None   the arm that departs from the reference; None when none does, or each is at one with itself
    wrong : frozenset        (unit, arm) whose output is not the reference
    """

    agree: bool | None
    a: dict[str, Any] | None
    b: dict[str, Any] | None
    differences: list[dict[str, Any]]
    count: int
    odd: str | None
    wrong: frozenset[tuple[int, str]]


def _same(x: float | None, y: float | None) -> bool:
    if x is None or y is None:
        return x is y
    return x == y and math.copysign(1.0, x) == math.copysign(1.0, y)


def _close(x: float | None, y: float | None, rtol: float) -> bool:
    if x is None or y is None:
        return x is y
    return abs(x - y) <= rtol * max(abs(x), abs(y))


def compared_digests(digests: dict[str, str], policy: str) -> dict[str, str]:
    """The digests that a policy looks at."""
    if policy in ("keys", "statistical"):
        return {name: value for name, value in digests.items() if not name.startswith("values")}
    return digests


def differences(expected: Observation, found: Observation, policy: str, rtol: float) -> list[tuple[str, Any, Any]]:
    """(what, expected, found) for everything in which two outputs disagree under a policy; empty when they agree."""
    if policy not in POLICIES:
        raise ValueError(f"expected one of {', '.join(POLICIES)}, found {policy!r}")
    if policy == "none":
        return []
    told = []
    if expected.work != found.work:
        told.append(("work", expected.work, found.work))
    ours, theirs = compared_digests(expected.digests, policy), compared_digests(found.digests, policy)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            told.append((f"digest {name}", ours.get(name), theirs.get(name)))
    for name in sorted(expected.totals.keys() | found.totals.keys()):
        x, y = expected.totals.get(name), found.totals.get(name)
        both = name in expected.totals and name in found.totals
        agree = both and (_same(x, y) if policy == "exact" else _close(x, y, rtol))
        if not agree:
            told.append((f"total {name}", x, y))
    return told


def _classes(observations: list[Observation], policy: str, rtol: float) -> list[list[Observation]]:
    """Observations that agree, together, in order of appearance; each class is led by its first member."""
    classes: list[list[Observation]] = []
    for one in observations:
        for members in classes:
            if not differences(members[0], one, policy, rtol):
                members.append(one)
                break
        else:
            classes.append([one])
    return classes


def _majority(classes: list[list[Observation]]) -> Observation | None:
    """The class with more than half of the observations, by its first member."""
    total = sum(map(len, classes))
    for members in classes:
        if 2 * len(members) > total:
            return members[0]
    return None


@dataclass(frozen=True)
class _Group:
    """One group judged: the reference (None: undecided), the odd arm, each arm's majority."""

    observations: list[Observation]
    agree: bool
    reference: Observation | None
    odd: str | None
    majorities: dict[str, Observation]


def _judge_group(observations: list[Observation], policy: str, rtol: float) -> _Group:
    by_arm: dict[str, list[Observation]] = {}
    for one in observations:
        by_arm.setdefault(one.arm, []).append(one)
    classes = {arm: _classes(members, policy, rtol) for arm, members in by_arm.items()}
    majorities = {arm: found for arm in by_arm if (found := _majority(classes[arm])) is not None}
    unanimous = {arm for arm in by_arm if len(classes[arm]) == 1}
    across = all(one.across for one in observations)
    if len(by_arm) == 1 or not across:
        agree = len(unanimous) == len(by_arm)
        odd = next((arm for arm in sorted(by_arm) if arm not in unanimous), None)
        return _Group(observations, agree, None, odd, majorities)
    agree = len(_classes(observations, policy, rtol)) == 1
    reference, odd = None, None
    if not agree:
        first, second = majorities.get("a"), majorities.get("b")
        if first and second and differences(first, second, policy, rtol):
            if "a" in unanimous and "b" not in unanimous:
                reference = first
            elif "b" in unanimous and "a" not in unanimous:
                reference = second
        else:
            reference = first or second
        if reference is not None:
            departing = {one.arm for one in observations if differences(reference, one, policy, rtol)}
            odd = departing.pop() if len(departing) == 1 else None
    return _Group(observations, agree, reference, odd, majorities)


def _as_asked(rerun: Observation, group: list[Observation]) -> Observation:
    """A re-run reduced to what the observations of a group hold: iterations report totals or work alone."""
    return replace(
        rerun,
        work=rerun.work if any(one.work is not None for one in group) else None,
        digests=rerun.digests if any(one.digests for one in group) else {},
        totals=rerun.totals if any(one.totals for one in group) else {},
        across=group[0].across if group else rerun.across,
    )


def judge(
    observations: Iterable[Observation], policy: str, rtol: float, exempt: frozenset[str] = frozenset()
) -> Judgement:
    """Decide whether the outputs of a comparison agree.

    Each arm must agree with itself over all blocks, and with the other where the observation says so. An arm's
    majority is more than half of what it gave; where both arms have one and they differ, an arm that always gave the
    same is believed rather than one that did not; two arms that are each at one with themselves simply differ.
    Arms in `exempt` (ceilings) are left out.
    """
    seen = [one for one in observations if one.arm not in exempt]
    if policy == "none":
        return Judgement(None, None, None, [], 0, None, frozenset())
    groups: dict[str, list[Observation]] = {}
    reruns = [one for one in seen if one.rerun]
    for one in seen:
        if not one.rerun:
            groups.setdefault(one.group, []).append(one)
    if reruns:  # they repeat the iterations before the first disagreement
        doubted = next((key for key, group in groups.items() if not _judge_group(group, policy, rtol).agree), None)
        asked = groups.get(doubted or "end", [])
        groups.setdefault(doubted or "end", []).extend(_as_asked(one, asked) for one in reruns)

    told: list[dict[str, Any]] = []
    wrong: set[tuple[int, str]] = set()
    odd: list[str | None] = []
    agree = True
    for key, group in groups.items():
        judged = _judge_group(group, policy, rtol)
        agree &= judged.agree
        if judged.agree:
            continue
        odd.append(judged.odd)
        for one in group:
            own = judged.reference if one.across else None
            expected = own or judged.majorities.get(one.arm) or group[0]
            found = differences(expected, one, policy, rtol)
            if found and (own or one.arm in judged.majorities) and not one.rerun:
                wrong.add((one.unit, one.arm))
            told += [_told(one, key, *items) for items in found]
        if judged.reference is None and {"a", "b"} <= judged.majorities.keys() and group[0].across:
            mine, theirs = judged.majorities["a"], judged.majorities["b"]
            told += [_told(theirs, key, *items) for items in differences(mine, theirs, policy, rtol)]
    compared = [one for one in seen if not one.empty]
    named = {arm for arm in odd if arm}
    return Judgement(
        agree=agree if compared or not agree else None,
        a=_shown(groups, "a", policy, rtol),
        b=_shown(groups, "b", policy, rtol),
        differences=told[:TOLD],
        count=len(told),
        odd=named.pop() if len(named) == 1 else None,
        wrong=frozenset(wrong),
    )


def _told(one: Observation, key: str, what: str, expected: Any, found: Any) -> dict[str, Any]:
    when = "rerun" if one.rerun else key
    return {"unit": one.unit, "arm": one.arm, "when": when, "what": what, "expected": expected, "found": found}


def _shown(groups: dict[str, list[Observation]], arm: str, policy: str, rtol: float) -> dict[str, Any] | None:
    """An arm's own majority at the block's end, or after warm-up when that is all there is."""
    for key in ("end", "warm"):
        own = [one for one in groups.get(key, []) if one.arm == arm]
        if own:
            one = _majority(_classes(own, policy, rtol))
            return None if one is None else {"work": one.work, "digests": one.digests, "totals": one.totals}
    return None
