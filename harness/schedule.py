"""Seed and counts -> who runs when, and when it is over: coins for launch, pairs and cores, replacement, the cap.

Every coin is a keyed hash of (seed, unit, purpose, index): it does not depend on what happened before, so a resumed
comparison, or one in which units were replaced, flips the coins it would have flipped anyway.
"""

import hashlib
import math
from dataclasses import dataclass

#: the share of complete units that may be set aside before the machine counts as unfit
SET_ASIDE_LIMIT = 0.30


@dataclass(frozen=True)
class UnitPlan:
    """Who runs when in one unit.

    Attributes
    ----------
    unit : int                  number in the order of running, from 0
    launch : "AB" or "BA"       which arm is launched first
    pairs : tuple of the same   the order inside every pair
    cores : tuple of the same   per pair: which arm gets the first set of cores (duet only)
    """

    unit: int
    launch: str
    pairs: tuple[str, ...]
    cores: tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """What became of the units that ran.

    Attributes
    ----------
    planned, cap : int          units that the plan wants, and at most allows to run
    run : int                   units that ended, whatever became of them
    kept : int                  complete units that count
    wrong, set_aside : int      complete units that do not: a wrong output, too much load
    void : int                  units in which a slot gave no measurement
    voids_a, voids_b : int      units in which that arm was void
    """

    planned: int
    cap: int
    run: int
    kept: int
    wrong: int
    set_aside: int
    void: int
    voids_a: int
    voids_b: int


@dataclass(frozen=True)
class Step:
    """Whether another unit is run.

    `reason` is one word when it is not: complete (all that was planned), decided, futility, cap, time or voids.
    """

    go: bool
    reason: str = ""


def coin(seed: int, unit: int, purpose: str, index: int = 0) -> str:
    """A fair coin: "AB" or "BA"."""
    key = f"{seed}/{unit}/{purpose}/{index}".encode()
    return "BA" if hashlib.blake2b(key, digest_size=1).digest()[0] & 1 else "AB"


def plan_unit(seed: int, unit: int, mode: str, pairs: int, quads: bool = False) -> UnitPlan:
    """The plan of one unit; in process mode a unit is one pair, whatever `pairs` says.

    With `quads` one coin orders two pairs in a row, ABBA or BAAB, which cancels a linear drift and the position; in
    process mode a unit is then one quad.

    Raises ValueError when mode is unknown, or unit or pairs are out of range.
    """
    if mode not in ("process", "resident", "duet"):
        raise ValueError(f"expected process, resident or duet, found {mode!r}")
    if unit < 0 or pairs < 1:
        raise ValueError(f"expected a unit from 0 and at least 1 pair, found unit {unit} and {pairs} pairs")
    count = pairs if mode != "process" else 2 if quads else 1
    if quads:
        count += count % 2
        order = tuple(_turned(coin(seed, unit, "pair", index // 2), index % 2 == 1) for index in range(count))
    else:
        order = tuple(coin(seed, unit, "pair", index) for index in range(count))
    cores = tuple(coin(seed, unit, "cores", index) for index in range(count)) if mode == "duet" else ()
    # In process mode a launch is a slot, so the pair's coin is the launch's.
    launch = order[0] if mode == "process" else coin(seed, unit, "launch")
    return UnitPlan(unit=unit, launch=launch, pairs=order, cores=cores)


def _turned(order: str, turn: bool) -> str:
    return order[::-1] if turn else order


def is_control(plan: dict, unit: int) -> bool:
    """Whether a unit is a null control, in which A's program also plays B; with `control` units 0, 2, 4 … are."""
    return bool(plan.get("control")) and unit % 2 == 0


def gate_units(scenarios: int, alpha: float) -> int:
    """Units that every scenario of a gate needs: max(8, ceil(log2(K / alpha)) + 2)."""
    return max(8, math.ceil(math.log2(scenarios / alpha)) + 2)


def gate_can_fail(units: int, scenarios: int, alpha: float) -> bool:
    """Whether the smallest one-sided p of so many units, 2^-units, reaches Holm's first step alpha / K."""
    return 2.0**-units <= alpha / scenarios


def next_look(looks: tuple[int, ...], kept: int) -> int:
    """The first look at `kept` units or more; the last one beyond all."""
    return next((look for look in looks if look >= kept), looks[-1])


def voids_decide(voids: int, other: int, alpha: float) -> bool:
    """Whether one arm's voids, none in the other arm, are more than chance: 2^-voids < alpha (5 for .05)."""
    return other == 0 and voids > 0 and 2.0**-voids < alpha


def next_step(tally: Tally, alpha: float, seconds: tuple[float, float] | None = None) -> Step:
    """Whether a comparison that nothing has decided yet goes on.

    `seconds` is the time used, the next unit's share included, and the time allowed; None without a budget. A unit that
    is void or set aside is replaced until `planned` are kept or `cap` have run. Once the voids of one arm decide by
    themselves, more hangs would only cost time.
    """
    if tally.kept + tally.wrong >= tally.planned:
        return Step(False, "complete")
    if tally.run >= tally.cap:
        return Step(False, "cap")
    if voids_decide(tally.voids_a, tally.voids_b, alpha) or voids_decide(tally.voids_b, tally.voids_a, alpha):
        return Step(False, "voids")
    if seconds is not None and seconds[0] > seconds[1]:
        return Step(False, "time")
    return Step(True)
