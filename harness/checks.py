"""What else a record's numbers say about the measurement: order, modes and steadiness; pure.

These are checks and descriptions beside the verdict; only a carry-over can forbid one.
"""

import math
from collections import Counter
from typing import Any

from harness import stats

#: p below which load depends on the arm, or the order changes what an arm costs
SUSPICION = 0.01
#: units below which the check for carry-over sees little
POWERFUL = 16
#: values that are looked at for modes
MODES_AT_MOST = 400

#: a pair's order and the logarithms of A's and B's value
Logs = tuple[str, float, float]


def order(units: list[list[Logs]]) -> dict[str, Any]:
    """What the second slot of a pair costs, and whether the order changes what an arm costs; from each unit's pairs."""
    seconds = [stats.hodges_lehmann([b - a if letters == "AB" else a - b for letters, a, b in unit]) for unit in units]
    position = {"ratio": math.exp(float(stats.hodges_lehmann(seconds))), "p": float(stats.signed_rank_p(seconds))}
    return {"position": position, "carry_over": carry_over(units)}


def carry_over(units: list[list[Logs]]) -> dict[str, Any] | None:
    """Whether pairs that ran AB take longer or shorter together than those that ran BA; None without both.

    They do when A costs more after B than B after A. What a second slot costs whatever the arm is in both totals. One
    pair a unit: a rank-sum test between the units. Several: a signed-rank test of the differences inside units, which
    drift from unit to unit cannot touch.
    """
    totals = {
        letters: [[a + b for found, a, b in unit if found == letters] for unit in units] for letters in ("AB", "BA")
    }
    if all(len(unit) == 1 for unit in units):
        first, second = ([x for unit in totals[letters] for x in unit] for letters in ("AB", "BA"))
        if not first or not second:
            return None
        difference = stats.shift(first, second)
        p = stats.rank_sum_p(first, second)
    else:
        inside = [middle(x) - middle(y) for x, y in zip(totals["AB"], totals["BA"]) if x and y]
        if not inside:
            return None
        difference = float(stats.hodges_lehmann(inside))
        p = float(stats.signed_rank_p(inside))
    return {"ratio": math.exp(difference), "p": p, "little_power": len(units) < POWERFUL}


def carried_over(found: dict[str, Any] | None, margin: float) -> bool:
    """Whether a carry-over is sure and large enough to forbid a verdict."""
    return found is not None and found["p"] < SUSPICION and abs(math.log(found["ratio"])) > math.log1p(margin)


def modes(a: list[float], b: list[float]) -> dict[str, Any]:
    """How many modes positive values have, and each arm's share in the slower (larger) one."""
    a, b = [math.log(value) for value in a], [math.log(value) for value in b]
    every = max(1, (len(a) + len(b)) // MODES_AT_MOST)
    count, split = stats.modes(a[::every] + b[::every])
    if split is None:
        return {"count": 1, "split": None, "above": None}
    above = {arm: sum(x > split for x in values) / len(values) for arm, values in (("a", a), ("b", b)) if values}
    return {"count": count, "split": math.exp(split), "above": above}


def steady(series: list[list[float]]) -> dict[str, Any] | None:
    """The commonest class of an arm's series of iterations, and the latest start of steadiness in that class.

    None where every series is too short.
    """
    classes = [found for found in map(stats.steady_state, series) if found[0] != "short"]
    if not classes:
        return None
    names = Counter(name for name, _ in classes)
    common = min(names, key=lambda name: (-names[name], name))
    return {"class": common, "start": max(start for name, start in classes if name == common)}


def middle(values: list[float]) -> float | None:
    """The median; None without values."""
    if not values:
        return None
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
