"""How many units and minutes an effect needs here, from a pilot; refuses what no plan could certify; pure.

The pilot's spread is taken about 0, from the magnitudes of its ratios alone, so that its units may be used in the test
as well. Effects and margins are fractions (0.02 is 2 %), times seconds.
"""

import math
from dataclasses import dataclass
from typing import Any

from harness import checks, schedule, stats
from harness.analysis import Analysis

#: units beyond which a plan is refused: at one a second it would take most of an hour
MOST_UNITS = 2000
#: units a pilot needs
PILOT_UNITS = 4


@dataclass(frozen=True)
class Pilot:
    """What a short comparison says about the machine.

    Attributes
    ----------
    units : int                   units it rests on
    unit_sd : float               robust standard deviation of a unit's log ratio, about 0
    block_sd, pair_sd : float     its parts: between launches, and of a pair; None where unknown
    launch_seconds : float        of a unit, apart from its pairs
    pair_seconds : float          of one pair
    pairs : int                   in a unit
    """

    units: int
    unit_sd: float
    block_sd: float | None
    pair_sd: float | None
    launch_seconds: float
    pair_seconds: float
    pairs: int


@dataclass(frozen=True)
class Plan:
    """An answer to "how long would it take".

    Attributes
    ----------
    units, pairs, seconds       what to run; None when it is refused
    visible : float             the effect that so many units show
    refused : str               why no plan certifies it, or an empty string
    table : list                (units, seconds, effect that they show) for the numbers of units at hand
    """

    units: int | None
    pairs: int
    seconds: float | None
    visible: float | None
    refused: str
    table: list[tuple[int, float, float]]


def pilot(entries: list) -> Pilot:
    """Read a pilot from its record, units that were set aside for their load included.

    Raises ValueError when fewer than four of its units are complete and right.
    """
    analysis = Analysis(entries)
    units = [unit for unit in analysis.complete if unit.value is not None]
    if len(units) < PILOT_UNITS:
        raise ValueError(f"expected a pilot of at least {PILOT_UNITS} complete units, found {len(units)}")
    block, pair = stats.variance_components([unit.ratios for unit in units])
    spans, ends = analysis.spans(units)
    pair_seconds = checks.middle([span / max(1, len(unit.pairs)) for unit, span in zip(units, spans)])
    whole = checks.middle(ends)
    pairs = max(1, round(checks.middle([len(unit.pairs) for unit in units])))
    return Pilot(
        units=len(units),
        unit_sd=float(stats.robust_sd([unit.value for unit in units], 0.0)),
        block_sd=block,
        pair_sd=pair,
        launch_seconds=max(0.0, whole - pairs * pair_seconds),
        pair_seconds=pair_seconds,
        pairs=pairs,
    )


def warmup(entries: list) -> int:
    """Iterations that a launch needs until A is steady, from a pilot's A arm alone: one cut for both arms.

    The largest of its blocks; every iteration counts where a block reaches no steady state.
    Raises ValueError when no block has 20 iterations of A.
    """
    analysis = Analysis(entries)
    starts = []
    for unit in analysis.kept:
        slots = sorted((slot for slot in analysis.slots(unit.unit) if slot.arm == "a"), key=lambda slot: slot.at)
        kind, start = stats.steady_state([slot.seconds for slot in slots])
        if kind != "short":
            starts.append(start)
    if not starts:
        raise ValueError("expected a pilot with at least 20 iterations of A in a block, found none")
    return max(starts)


def pairs_in_block(seen: Pilot) -> int:
    """Pairs a block, balanced between the cost of launches and the spread they average; the pilot's where unknown."""
    if seen.block_sd is None or seen.pair_sd is None:
        return seen.pairs
    return stats.pairs_per_block(seen.launch_seconds, seen.pair_seconds, seen.block_sd, seen.pair_sd)


def plan(
    seen: Pilot,
    *,
    effect: float,
    margin: float,
    alpha: float = 0.05,
    mode: str = "resident",
    scenarios: int = 1,
    time_budget: float | None = None,
) -> Plan:
    """Units that show `effect` in 80 % of comparisons, and that can settle the margin when there is no effect.

    Refused, with a sentence: an effect inside the margin (the gate could not fail on it), one that needs more units
    than anybody would wait for, and one that the time budget cannot hold.
    Raises ValueError when effect or margin is not above 0.
    """
    if not effect > 0 or not margin > 0:
        raise ValueError(f"expected an effect and a margin above 0, found {effect:g} and {margin:g}")
    pairs = seen.pairs if mode == "process" else pairs_in_block(seen)
    sd = seen.unit_sd if pairs == seen.pairs else _sd_with(seen, pairs)
    unit_seconds = seen.launch_seconds + pairs * seen.pair_seconds

    def seconds(n: int) -> float:
        return n * unit_seconds

    def shows(n: int) -> float:
        return math.expm1(stats.mde_factor(n) * sd)

    table = [(n, seconds(n), shows(n)) for n in stats.MDE_UNITS]
    delta, mu = math.log1p(effect), math.log1p(margin)
    least = schedule.gate_units(scenarios, alpha) if scenarios > 1 else max(8, stats.units_needed(1 - alpha))
    # 9.0 (s/μ)² units settle ±μ in 80 % of comparisons without an effect.
    wanted = max(least, stats.units_for(delta, sd), math.ceil(9.0 * (sd / mu) ** 2))
    refused = ""
    if effect < margin:
        refused = (
            f"an effect of {100 * effect:g} % lies inside the margin of {100 * margin:g} %: no number of units makes "
            "it a regression; ask for more than the margin, or set a smaller one"
        )
    elif wanted > MOST_UNITS:
        refused = (
            f"{wanted} units would be needed on this machine, more than {MOST_UNITS}; {MOST_UNITS} show "
            f"{100 * shows(MOST_UNITS):.2g} %"
        )
    elif time_budget is not None and seconds(wanted) > time_budget:
        affordable = int(time_budget / unit_seconds)
        visible = (
            f"they show {100 * shows(affordable):.2g} %" if affordable >= stats.MDE_UNITS[0] else "too few to decide"
        )
        refused = (
            f"{wanted} units take {seconds(wanted):.0f} s and the budget is {time_budget:.0f} s, enough for "
            f"{affordable}: {visible}"
        )
    if refused:
        return Plan(None, pairs, None, None, refused, table)
    return Plan(wanted, pairs, seconds(wanted), shows(wanted), "", table)


def as_dict(found: Plan) -> dict[str, Any]:
    """A plan ready for JSON."""
    return {
        "units": found.units,
        "pairs": found.pairs,
        "seconds": found.seconds,
        "visible": found.visible,
        "refused": found.refused or None,
        "table": [{"units": n, "seconds": seconds, "visible": visible} for n, seconds, visible in found.table],
    }


def told(found: Plan, effect: float, mode: str) -> list[str]:
    """A plan in lines for a terminal: the answer first, then what other numbers of units show."""
    word = "pairs" if mode == "process" else f"blocks of {found.pairs} pairs"
    if found.refused:
        lines = [f"refused: {found.refused}"]
    else:
        lines = [
            f"{found.units} {word} show an effect of {100 * effect:.3g} % in 80 of 100 comparisons; "
            f"about {_span(found.seconds)}"
        ]
    lines.append(f"{'units':>8}  {'time':>10}  shows")
    lines += [f"{n:>8}  {_span(seconds):>10}  {100 * visible:.2g} %" for n, seconds, visible in found.table]
    return lines


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _sd_with(seen: Pilot, pairs: int) -> float:
    """What a unit's spread would be with another number of pairs in it."""
    return math.sqrt(seen.block_sd**2 + seen.pair_sd**2 / (0.955 * pairs))
