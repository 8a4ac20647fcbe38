"""Entries of a record -> units, verdict and every field of summary.json; pure: same entries, same bytes.

Log ratios are log(B/A) of the metric as measured, whatever its direction. A unit's value is the Hodges-Lehmann
estimate of its pairs; a unit counts when it is complete, not set aside for its load, and right.

Four methods: `fixed` (so many units, plain interval), `looks` (group-sequential, repeated intervals), `anytime` (sign
martingale, the interval of the median), `deterministic` (three runs, no interval).

summary.json, schema 1: the fields of the contract (`unit` is the work's unit, `pairs` those of a block), and beside
them `values` (median and least per arm), `variance` (standard deviations of log ratios between blocks and of pairs
inside one), `void_shares` (exact intervals), `asymmetric` (plain median and estimate differ by more than half the
interval), `units.set_aside` (number -> why), `method`, `stopped` (why no more units are run), `looks`, `p_worse`
(one-sided p of "worse than the margin"), `break_even` (after how much work a longer start is paid for), `order`
(position, carry-over, serial correlation), `modes`, `steady` (class of each arm's iterations), `guard` (does the load
depend on the arm), `control` (A against itself), `idle` (share of a core that a waiting arm uses) and `notes`
(sentences for a reader). In a gate also `family`.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from harness import accuracy, checks, fingerprint, gate, schedule, stats
from harness import records as record

SUMMARY_SCHEMA = 1
#: metric -> the metric of the other clock
CLOCKS = {
    "seconds": ("seconds", "cpu_seconds"),
    "cpu_seconds": ("seconds", "cpu_seconds"),
    "seconds_per_unit": ("seconds_per_unit", "cpu_seconds_per_unit"),
    "cpu_seconds_per_unit": ("seconds_per_unit", "cpu_seconds_per_unit"),
}
#: foreign processes that are named in the summary
TOP = 5
#: words that end a comparison before its last look
DECIDING = ("wrong-result", "unfit", "regression", "improvement", "equivalent")
#: chance of any verdict at the last look below which it is not waited for
FUTILITY = 0.10
#: spread of the load over slots, in cores between quartiles, from which on it is adjusted for
LOAD_VARIES = 0.2
#: pairs from which on load and position are adjusted for: of fewer, a slope explains too much
ADJUSTED_FROM = 8
#: share of a core that an arm may use while it waits
IDLE_LIMIT = 0.01


@dataclass(frozen=True)
class Pair:
    """One slot of each arm; `order` is "AB" or "BA"."""

    index: int
    order: str
    a: record.Slot
    b: record.Slot


@dataclass(frozen=True)
class UnitResult:
    """One unit, as the statistics see it.

    Attributes
    ----------
    state : str                 kept, set-aside, wrong, void or interrupted
    launch : "AB" or "BA"       which arm was launched first
    value : float or None       log ratio B/A of the metric
    ratios : list of float      of its pairs, in order
    foreign, steal : float or None   cores, the largest over the unit's loads
    why : str                   what happened to a unit that does not count
    """

    unit: int
    state: str
    launch: str
    pairs: list[Pair] = field(default_factory=list)
    value: float | None = None
    ratios: list[float] = field(default_factory=list)
    foreign: float | None = None
    steal: float | None = None
    why: str = ""


def metric_value(slot: record.Slot, metric: str, launch: record.Launch | None = None) -> float | None:
    """A slot's value of a metric, None when it has none."""
    if metric in ("seconds", "cpu_seconds", "peak_rss_bytes"):
        return getattr(slot, metric)
    if metric in ("seconds_per_unit", "cpu_seconds_per_unit"):
        return getattr(slot, metric.removesuffix("_per_unit")) / slot.units if slot.units > 0 else None
    if metric == "startup_seconds":
        if slot.startup_seconds is not None:
            return slot.startup_seconds
        return launch.startup_seconds if launch is not None else None
    return slot.counters.get(metric)


def log_ratio(a: float | None, b: float | None) -> float | None:
    """log(b/a); None unless both are above 0."""
    if a is None or b is None or not (a > 0 and b > 0) or math.isinf(a) or math.isinf(b):
        return None
    return math.log(b / a)


class Life(NamedTuple):
    """What an arm's launch costs and brings, in wall seconds.

    Attributes
    ----------
    start : float   seconds from spawn to the end of the first iteration
    first : float   units of work of that iteration
    pace : float    seconds a unit in steady state
    """

    start: float
    first: float
    pace: float


def caught_up(later: Life, other: Life) -> float:
    """Units of work, each arm's first iteration included, after which `later` is ahead; infinite if it never is."""
    gain = other.pace - later.pace
    if gain <= 0:
        return math.inf
    return max(0.0, (later.start - later.first * later.pace - other.start + other.first * other.pace) / gain)


@dataclass(frozen=True)
class Bounds:
    """Estimate of log(B/A), its interval at `level`, the narrower one, and the two-sided p of "no difference"."""

    level: float
    p: float
    estimate: float
    low: float
    high: float
    low90: float
    high90: float


@dataclass(frozen=True)
class Covariates:
    """Slots in the order they ran, two a pair: log values, which are B's, and what is to be taken out of them.

    `load` is in cores, None where it does not vary enough; `position` says whether the second slot costs more or less.
    """

    y: np.ndarray
    b: np.ndarray
    load: np.ndarray | None
    position: bool

    @property
    def names(self) -> list[str]:
        return ["load"] * (self.load is not None) + ["position"] * self.position

    def tails(self, delta: float) -> tuple[float, float]:
        return tuple(map(float, stats.adjusted_tails(self.y, self.b, delta, self.load, self.position)))

    def interval(self, level: float) -> tuple[float, float, float]:
        return stats.adjusted_interval(self.y, self.b, level, self.load, self.position)


@dataclass
class _UnitEntries:
    """The entries of one unit, sorted by kind."""

    slots: list[record.Slot] = field(default_factory=list)
    launches: list[record.Launch] = field(default_factory=list)
    phases: list[record.Phase] = field(default_factory=list)
    fingerprints: list[record.Fingerprint] = field(default_factory=list)
    voids: list[record.Void] = field(default_factory=list)
    loads: list[record.Load] = field(default_factory=list)
    values: list[record.Accuracy] = field(default_factory=list)
    closed: record.Unit | None = None


class Analysis:
    """A record, read once; every property is computed from its entries alone.

    `family_tail` is the one-sided level of the bound that a regression is judged by, where the comparison is one of a
    gate's family (Holm).

    Raises ValueError when the first entry is not a comparison.
    """

    def __init__(self, entries: list[record.AnyEntry], family_tail: float | None = None):
        self.family_tail = family_tail
        if not entries or not isinstance(entries[0], record.Comparison):
            raise ValueError("expected a comparison entry first")
        self.comparison: record.Comparison = entries[0]
        self.end: record.End | None = None
        self.extended = 0
        self.notes: list[record.Note] = []
        self._units: dict[int, _UnitEntries] = {}
        kinds = {
            record.Slot: "slots",
            record.Launch: "launches",
            record.Phase: "phases",
            record.Fingerprint: "fingerprints",
            record.Void: "voids",
            record.Load: "loads",
            record.Accuracy: "values",
        }
        for entry in entries[1:]:
            if isinstance(entry, record.End):
                self.end = entry
            elif isinstance(entry, record.Extension):
                self.end = None
                self.extended += entry.units
            elif isinstance(entry, record.Note):
                self.notes.append(entry)
            elif isinstance(entry, record.Unit):
                self._units.setdefault(entry.unit, _UnitEntries()).closed = entry
            elif type(entry) in kinds:
                unit = self._units.setdefault(entry.unit, _UnitEntries())
                # Re-runs that name the odd arm are launched after their unit is closed.
                if unit.closed is None or isinstance(entry, record.Fingerprint):
                    getattr(unit, kinds[type(entry)]).append(entry)
        table = self.comparison.scenario
        self.question: dict[str, Any] = table.get("scenario") or {}
        self.gate: dict[str, Any] = table.get("gate") or {}
        self.work: dict[str, Any] = table.get("work") or {}
        self.limits: dict[str, Any] = table.get("limits") or {}
        self.plan = self.comparison.plan

    # ------------------------------------------------------------------------------------------------ settings

    @property
    def metric(self) -> str:
        return self.question.get("metric") or "seconds"

    @property
    def direction(self) -> str:
        return self.question.get("direction") or "lower"

    @property
    def policy(self) -> str:
        return self.question.get("fingerprint") or "exact"

    @property
    def margin(self) -> float:
        return self.gate.get("margin", 0.02)

    @property
    def alpha(self) -> float:
        return self.gate.get("alpha", 0.05)

    @property
    def method(self) -> str:
        """How it is decided: fixed, looks, anytime or deterministic."""
        if self.extended:
            return "anytime"
        if self.metric == "instructions":
            return "deterministic"
        return self.plan.get("method") or ("fixed" if self.plan.get("fixed", True) else "looks")

    @property
    def looks(self) -> tuple[int, ...]:
        return tuple(self.plan.get("looks") or stats.LOOKS)

    def levels(self, adjusted: bool = False) -> tuple[float, float]:
        """Two-sided levels of the interval, and of the narrower one for "equivalent" and "not-worse".

        `adjusted`: the comparison is adjusted for load or position.
        """
        if self.method == "looks":
            nominal, equivalence = stats.nominal_levels(self.looks, self.alpha, adjusted)
            return 1 - nominal, 1 - equivalence
        return 1 - self.alpha, 1 - 2 * self.alpha

    @property
    def mode(self) -> str:
        return self.plan.get("mode", "resident")

    @property
    def unit_word(self) -> str:
        if self.mode != "process":
            return "blocks"
        return "quads" if self.plan.get("quads") else "pairs"

    @cached_property
    def ceilings(self) -> frozenset[str]:
        arms = self.comparison.arms
        return frozenset(arm for arm in ("a", "b") if arms.get(arm, {}).get("kind") == "ceiling")

    # ------------------------------------------------------------------------------------------------- outputs

    @cached_property
    def judgement(self) -> fingerprint.Judgement:
        """Whether the outputs agree: fingerprints over all units, and what the iterations themselves report.

        Where the gate accepts that the arms' outputs differ, each arm must still agree with itself.
        """
        seen = []
        # Under 'statistical' the values decide between the arms; with a seed for each unit an arm's output changes.
        across = not self.gate.get("accept") and self.policy != "statistical"
        policy = "none" if self.values_alone or self.plan.get("seeds") else self.policy
        for number, unit in self._units.items():
            control = schedule.is_control(self.plan, number)
            for one in unit.fingerprints:
                seen.append(
                    fingerprint.Observation(
                        unit=number,
                        arm="a" if control else one.arm,
                        group=one.when,
                        work=one.work,
                        digests=one.digests,
                        totals=one.totals,
                        rerun=one.when == "rerun",
                        across=across,
                    )
                )
            for slot in () if control else unit.slots:
                place = f"{slot.phase} {slot.index}"
                # An iteration's work counts what this arm wrote, which arms may split differently; totals are sums
                # over the output, so the arms must agree on them.
                seen.append(fingerprint.Observation(number, slot.arm, f"work of {place}", work=slot.work, across=False))
                if slot.totals:
                    seen.append(
                        fingerprint.Observation(
                            number, slot.arm, f"totals of {place}", totals=slot.totals, across=across
                        )
                    )
        rtol = self.question.get("totals_rtol", 1e-12)
        return fingerprint.judge(seen, policy, rtol, self.ceilings)

    @cached_property
    def idle(self) -> list[tuple[int, str, float]]:
        """(unit, arm, work) of everything that did less work than the scenario's minimum."""
        minimum = self.work.get("minimum", 0)
        return [
            (number, one.arm, one.work)
            for number, unit in self._units.items()
            for one in (*unit.slots, *unit.fingerprints)
            if one.arm not in self.ceilings and one.work < minimum
        ]

    @cached_property
    def wrong(self) -> tuple[str, ...]:
        """Why outputs are wrong, one sentence each; empty when they are right."""
        told = []
        if self.idle:
            number, arm, work = self.idle[0]
            more = f" (and {len(self.idle) - 1} more)" if len(self.idle) > 1 else ""
            told.append(
                f"arm {self.name(arm)}, {self.unit_word[:-1]} {number}: work of at least "
                f"{self.work.get('minimum', 0):g} expected, found {work:g}{more}"
            )
        found = self.judgement
        if found.agree is False:
            first = found.differences[0]
            odd = f"; the odd one is {self.name(found.odd)}" if found.odd else ""
            more = f" (and {found.count - 1} more)" if found.count > 1 else ""
            told.append(
                f"arm {self.name(first['arm'])}, {self.unit_word[:-1]} {first['unit']}, {first['when']}: "
                f"{first['what']} {_short(first['found'])} differs from {_short(first['expected'])}{more}{odd}"
            )
        found = self.accuracy
        if found and found["word"] == "different" and self.values_decide and not self.values_missing:
            told.append(f"the values of {self.name('b')} differ from those of {self.name('a')}: {found['reason']}")
        return tuple(told)

    @property
    def odd_sought(self) -> bool:
        """Whether re-runs can name an odd arm: outputs disagree, or an arm did too little."""
        return bool(self.idle) or self.judgement.agree is False

    # --------------------------------------------------------------------------------------------------- values

    @property
    def values_alone(self) -> bool:
        """Whether this is a record of `harness accuracy`: values, and no pairs."""
        return self.mode == "accuracy"

    @property
    def values_decide(self) -> bool:
        """Whether values that differ make a wrong result: policy 'statistical', unless the gate accepts it."""
        return self.policy == "statistical" and not self.gate.get("accept") and not self.ceilings

    @cached_property
    def _reduced(self) -> list[dict[str, Any]]:
        """The values of complete units, in the order of running."""
        complete = [
            unit
            for _, unit in sorted(self._units.items())
            if unit.closed is not None and unit.closed.state == "complete"
        ]
        return [one.reduced for unit in complete for one in unit.values]

    @property
    def values_missing(self) -> bool:
        """Whether values are still to come: looking at each seed as it comes would be looking until it fits."""
        return self.end is None and len(self._reduced) < (self.plan.get("seeds") or 1)

    @cached_property
    def accuracy(self) -> dict[str, Any] | None:
        """What the values say (accuracy.judge), with the seconds that writing them took; None without values."""
        if not self._reduced:
            return None
        found = accuracy.judge(self._reduced, self.comparison.scenario.get("accuracy") or {}, self.alpha)
        kept = [one for unit in self._units.values() for one in unit.values]
        seconds = {arm: [one.files[arm]["seconds"] for one in kept if arm in one.files] for arm in ("a", "b")}
        return found | {"units": len(self._reduced), "seconds": {arm: checks.middle(seconds[arm]) for arm in seconds}}

    def name(self, arm: str) -> str:
        """An arm as it is told to a reader: its letter and name."""
        name = self.comparison.arms.get(arm, {}).get("name")
        return f"{arm.upper()} '{name}'" if name and name != arm.upper() else arm.upper()

    # --------------------------------------------------------------------------------------------------- units

    @cached_property
    def units(self) -> list[UnitResult]:
        """Every unit in the order of running, interrupted ones too."""
        wrong = {unit for unit, _ in self.judgement.wrong} | {unit for unit, _, _ in self.idle}
        return [
            self._unit(number, unit, number in wrong)
            for number, unit in sorted(self._units.items())
            if not schedule.is_control(self.plan, number)
        ]

    @cached_property
    def controls(self) -> list[UnitResult]:
        """Complete null controls: A's program in both places."""
        found = [
            self._unit(number, unit, False)
            for number, unit in sorted(self._units.items())
            if schedule.is_control(self.plan, number)
        ]
        return [unit for unit in found if unit.state == "kept" and unit.value is not None]

    @cached_property
    def control_p(self) -> float | None:
        """p of "A does not differ from itself"; None without controls."""
        return float(stats.signed_rank_p([unit.value for unit in self.controls])) if self.controls else None

    def _unit(self, number: int, unit: _UnitEntries, wrong: bool) -> UnitResult:
        pairs = _pairs(unit.slots)
        ratios = self._ratios(unit, pairs, self.metric)
        loads = unit.loads
        launches = {one.arm: one.order for one in unit.launches}
        launch = "BA" if launches.get("b", 1) < launches.get("a", 0) else "AB"
        limit = None if self.load_depends_on_arm else self.limits.get("foreign_cores")
        load = max((_disturbing(one) for one in loads), default=0.0)
        state, why = "kept", ""
        if unit.closed is None:
            state, why = "interrupted", "not finished"
        elif unit.closed.state != "complete":
            state = "void"
            why = unit.voids[0].message or unit.voids[0].reason if unit.voids else "void"
        elif wrong:
            state, why = "wrong", "its output is wrong"
        elif limit is not None and load > limit:
            state, why = "set-aside", f"{load:.2f} cores of foreign load and steal, above {limit:g}"
        return UnitResult(
            unit=number,
            state=state,
            launch=launch,
            pairs=pairs,
            value=_centre(ratios),
            ratios=[ratio for ratio in ratios if ratio is not None],
            foreign=_largest(one.foreign for one in loads),
            steal=_largest(one.steal for one in loads),
            why=why,
        )

    def _slot_loads(self, unit: _UnitEntries) -> dict[str, float]:
        """Arm -> foreign and stolen cores around its slots, the largest; only where every slot was surrounded."""
        found: dict[str, float] = {}
        for one in unit.loads:
            if one.arm is not None and one.foreign is not None:
                found[one.arm] = max(found.get(one.arm, 0.0), _disturbing(one))
        return found

    @cached_property
    def guard_p(self) -> float | None:
        """p of "the load does not depend on the arm", over all complete units; None where it cannot be told apart."""
        differences = []
        for number, unit in sorted(self._units.items()):
            if (
                unit.closed is not None
                and unit.closed.state == "complete"
                and not schedule.is_control(self.plan, number)
            ):
                both = self._slot_loads(unit)
                if {"a", "b"} <= both.keys():
                    differences.append(both["b"] - both["a"])
        return float(stats.signed_rank_p(differences)) if differences else None

    @property
    def load_depends_on_arm(self) -> bool:
        """Whether load is an outcome of the arm, so that neither adjusting for it nor setting aside is honest."""
        return self.guard_p is not None and self.guard_p < checks.SUSPICION

    def _ratios(self, unit: _UnitEntries, pairs: list[Pair], metric: str) -> list[float | None]:
        launches = {one.arm: one for one in unit.launches}
        return [
            log_ratio(metric_value(pair.a, metric, launches.get("a")), metric_value(pair.b, metric, launches.get("b")))
            for pair in _measured(pairs, metric)
        ]

    @cached_property
    def kept(self) -> list[UnitResult]:
        return [unit for unit in self.units if unit.state == "kept"]

    @cached_property
    def complete(self) -> list[UnitResult]:
        """Kept units and those set aside."""
        return [unit for unit in self.units if unit.state in ("kept", "set-aside")]

    @cached_property
    def tally(self) -> schedule.Tally:
        """What became of the units, for the schedule."""
        states = Counter(unit.state for unit in self.units)
        planned = self.plan.get("units", 8) + self.extended
        return schedule.Tally(
            planned=planned,
            cap=self.plan.get("cap", 2 * planned) + 2 * self.extended,
            run=sum(states.values()) - states["interrupted"],
            kept=states["kept"],
            wrong=states["wrong"],
            set_aside=states["set-aside"],
            void=states["void"],
            voids_a=self.void_units["a"],
            voids_b=self.void_units["b"],
        )

    @cached_property
    def void_units(self) -> dict[str, int]:
        """How many ended units each arm made void."""
        void = [
            unit
            for number, unit in self._units.items()
            if unit.closed is not None
            and unit.closed.state != "complete"
            and not schedule.is_control(self.plan, number)
        ]
        return {arm: sum(any(one.arm == arm for one in unit.voids) for unit in void) for arm in ("a", "b")}

    # ---------------------------------------------------------------------------------------------- statistics

    def interval(self, values: list[float], bounds: "Bounds | None" = None) -> gate.Interval:
        """Estimate and interval of units' log ratios by the comparison's method; `bounds` are adjusted ones."""
        n = len(values)
        if n == 0:
            level = self.levels()[0]
            return gate.Interval(n=0, level=level, units_needed=self._units_needed(level))
        bounds = bounds or self._bounds(values)
        level = bounds.level
        needed = self._units_needed(level)
        if n < needed:
            return gate.Interval(n=n, level=level, estimate=bounds.estimate, units_needed=needed)
        sd = float(stats.robust_sd(values))
        return gate.Interval(
            n=n,
            level=level,
            estimate=bounds.estimate,
            low=bounds.low,
            high=bounds.high,
            low90=bounds.low90,
            high90=bounds.high90,
            p=bounds.p,
            mde=stats.mde(values) if n >= stats.MDE_UNITS[0] else None,
            units_needed=needed,
            units_to_settle=stats.units_for(math.log1p(self.margin), sd),
        )

    def _units_needed(self, level: float) -> int:
        if self.method != "anytime":
            return stats.units_needed(level)
        n = 1
        while stats.sign_sequence_order(n, self.alpha) == 0:
            n += 1
        return n

    def _bounds(self, values: list[float]) -> "Bounds":
        if self.method == "anytime":
            low, high = map(float, stats.sign_sequence(values, self.alpha))
            low90, high90 = map(float, stats.sign_sequence(values, 2 * self.alpha))
            # A bound on ever seeing so many wins: the p that may be looked at after every unit.
            p = math.exp(-max(0.0, float(stats.sign_log_wealth(sum(value > 0 for value in values), len(values)))))
            return Bounds(self.levels()[0], p, float(np.median(values)), low, high, low90, high90)
        level, level90 = self.levels()
        low, high = map(float, stats.signed_rank_interval(values, level))
        low90, high90 = map(float, stats.signed_rank_interval(values, level90))
        if self.family_tail is not None:
            family_low, family_high = map(float, stats.signed_rank_interval(values, 1 - 2 * self.family_tail))
            low, high = (low, family_high) if self.direction == "higher" else (family_low, high)
        p = float(stats.signed_rank_p(values))
        return Bounds(level, p, float(stats.hodges_lehmann(values)), low, high, low90, high90)

    # ------------------------------------------------------------------------------- adjustment, in process mode

    @cached_property
    def adjusts(self) -> bool:
        """Whether load and position may be taken out: pairs of whole processes, and a test made for it."""
        return self.mode == "process" and not self.plan.get("quads") and self.method in ("fixed", "looks")

    def _covariates(self, units: list[UnitResult]) -> "Covariates | None":
        """Slots in the order they ran; None where they are not one pair a unit."""
        if not self.adjusts or any(unit.value is None or len(unit.pairs) != 1 for unit in units):
            return None
        y, b, load = [], [], []
        for unit in units:
            pair, launches = unit.pairs[0], {one.arm: one for one in self._units[unit.unit].launches}
            cores = self._slot_loads(self._units[unit.unit])
            for letter in pair.order:
                arm = letter.lower()
                y.append(math.log(metric_value(getattr(pair, arm), self.metric, launches.get(arm))))
                b.append(arm == "b")
                load.append(cores.get(arm))
        y, b, cores = np.array(y), np.array(b), None
        if not any(one is None for one in load) and not self.load_depends_on_arm:
            quartiles = np.quantile(load, [0.25, 0.75])
            cores = np.array(load, float) if quartiles[1] - quartiles[0] > LOAD_VARIES else None
        return Covariates(y, b, cores, bool(stats.position_costs(y, cores)))

    def adjusted(self, units: list[UnitResult]) -> "tuple[list[str], Bounds | None]":
        """What is taken out of the units' slots, and the bounds without it; nothing and None where nothing is."""
        if len(units) < ADJUSTED_FROM:
            return [], None
        slots = self._covariates(units)
        if slots is None or not slots.names:
            return [], None
        level, level90 = self.levels(adjusted=True)
        estimate, low, high = slots.interval(level)
        _, low90, high90 = slots.interval(level90)
        if self.family_tail is not None:
            _, family_low, family_high = slots.interval(1 - 2 * self.family_tail)
            low, high = (low, family_high) if self.direction == "higher" else (family_low, high)
        p = min(1.0, 2 * min(slots.tails(0.0)))
        return slots.names, Bounds(level, p, estimate, low, high, low90, high90)

    def _interval_of(self, units: list[UnitResult]) -> gate.Interval:
        return self.interval(self._values(units), self.adjusted(units)[1])

    @cached_property
    def p_worse(self) -> float | None:
        """One-sided p of "B is worse by more than the margin does not hold", for families; None without units."""
        if not self.kept or any(unit.value is None for unit in self.kept) or self.method == "deterministic":
            return None
        mu = math.log1p(self.margin)
        slots = self._covariates(self.kept) if self.adjusted(self.kept)[1] is not None else None
        side, delta = (1, -mu) if self.direction == "higher" else (0, mu)
        if slots is not None:
            return slots.tails(delta)[side]
        return float(stats.signed_rank_tails(self._values(self.kept), delta)[side])

    # ------------------------------------------------------------------------------------------ checks on the order

    @cached_property
    def order(self) -> dict[str, Any] | None:
        """Position, carry-over and serial correlation; None in duet mode, and where a pair has no ratio."""
        measured = all(unit.value is not None and len(unit.ratios) == len(unit.pairs) for unit in self.kept)
        if not self.kept or not measured or self.mode == "duet":
            return None
        logs = [
            [(pair.order, math.log(a), math.log(b)) for pair, a, b in self._pair_values(unit)] for unit in self.kept
        ]
        return checks.order(logs) | {"serial": stats.lag_correlation([unit.value for unit in self.kept])}

    def _pair_values(self, unit: UnitResult) -> list[tuple[Pair, float | None, float | None]]:
        """A unit's pairs with the metric of A and of B."""
        launches = {one.arm: one for one in self._units[unit.unit].launches}
        return [
            (
                pair,
                metric_value(pair.a, self.metric, launches.get("a")),
                metric_value(pair.b, self.metric, launches.get("b")),
            )
            for pair in _measured(unit.pairs, self.metric)
        ]

    @cached_property
    def _slot_values(self) -> dict[str, list[float]]:
        """All values of the kept units' slots by arm; slots without one are left out."""
        found: dict[str, list[float]] = {"a": [], "b": []}
        for unit in self.kept:
            for _, *both in self._pair_values(unit):
                for arm, value in zip("ab", both):
                    if value is not None:
                        found[arm].append(value)
        return found

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """What forbids a verdict on the ratio."""
        return self._open_values() + self._carried_over()

    def _open_values(self) -> tuple[str, ...]:
        if not self.values_decide:
            return ()
        found = self.accuracy
        if found is None:
            return ("the arms' values were not taken, so whether the results agree is not known",)
        return (f"whether the values agree is undecided: {found['reason']}",) if found["word"] == "undecided" else ()

    def _carried_over(self) -> tuple[str, ...]:
        found = (self.order or {}).get("carry_over")
        if checks.carried_over(found, self.margin):
            return (
                f"an arm costs something else after the other than before it (pairs AB against BA: "
                f"{found['ratio']:.4f}, p = {found['p']:.2g}); warm up before every slot, or measure apart",
            )
        return ()

    # ------------------------------------------------------------------------------------------------- the verdict

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """Why some complete unit has no value; leaving it out would choose units by their values."""
        for unit in self.complete:
            if unit.value is None or (self.metric != "startup_seconds" and len(unit.ratios) < len(unit.pairs)):
                return (f"{self.unit_word[:-1]} {unit.unit} has no '{self.metric}' above 0 in both arms",)
        return ()

    def _values(self, units: list[UnitResult]) -> list[float]:
        return [unit.value for unit in units if unit.value is not None]

    def _evidence(self, units: list[UnitResult], complete: list[UnitResult], final: bool) -> gate.Evidence:
        set_aside = self.tally.set_aside
        return gate.Evidence(
            interval=self._interval_of(units),
            everything=self._interval_of(complete) if set_aside else None,
            margin=self.margin,
            alpha=self.alpha,
            direction=self.direction,
            final=final,
            unit=self.unit_word,
            complete=len(self.complete),
            set_aside=set_aside,
            voids=self.void_units,
            wrong=self.wrong,
            unfit=self._unfit(),
            unmeasured=self.unmeasured,
            doubts=self.doubts,
            ceiling=self.ceilings,
        )

    def _unfit(self) -> tuple[str, ...]:
        """Nothing was measured, or what was says nothing: a missing program or metric, A unlike itself."""
        told = tuple(note.message for note in self.notes if note.about == "unfit")
        if not told and not self.values_alone and self.complete and all(unit.value is None for unit in self.complete):
            told = (f"nothing was measured: no unit has a '{self.metric}' above 0 in both arms",)
        if self.control_p is not None and self.control_p < gate.NULL_CONTROL_LIMIT:
            told += (
                f"the null control alarms: A differs from itself (p = {self.control_p:.2g}, {len(self.controls)} "
                f"{self.unit_word})",
            )
        return told

    @cached_property
    def step(self) -> schedule.Step:
        """Whether another unit is run, and why not."""
        step = schedule.next_step(self.tally, self.alpha, self._time())
        if not step.go or self.method in ("fixed", "deterministic"):
            return step
        if self.values_decide and self.values_missing:
            return step
        if self.method == "looks" and self.tally.kept not in self.looks:
            return step
        evidence = self._evidence(self.kept, self.complete, final=False)
        found = self._judged(evidence)
        if found.word in DECIDING and self.kept:
            return schedule.Step(False, "decided")
        if self.method == "looks" and self._futile(evidence.interval):
            return schedule.Step(False, "futility")
        return step

    def _futile(self, interval: gate.Interval) -> bool:
        if interval.low is None or not math.isfinite(interval.high - interval.low):
            return False
        sign = self._sign()
        chance = stats.conclusive_chance(
            sign * interval.estimate,
            (interval.high - interval.low) / 2,
            (interval.high90 - interval.low90) / 2,
            interval.n,
            self.looks[-1],
            math.log1p(self.margin),
        )
        return bool(chance < FUTILITY)

    def slots(self, unit: int) -> list[record.Slot]:
        """All slots of a unit, warm-up included."""
        return self._units[unit].slots

    @cached_property
    def idle_shares(self) -> dict[str, float | None]:
        """The share of a core that each arm uses while it waits for the other; None where it is not known."""
        found: dict[str, list[float]] = {"a": [], "b": []}
        for unit in self.kept:
            for slot in self.slots(unit.unit):
                if slot.idle_cpu_seconds is not None and slot.seconds > 0:
                    found["b" if slot.arm == "a" else "a"].append(slot.idle_cpu_seconds / slot.seconds)
        return {arm: checks.middle(shares) for arm, shares in found.items()}

    @cached_property
    def reader_notes(self) -> list[str]:
        """What a reader must know beside the verdict, in words."""
        told = []
        if clocks := self._clocks()["note"]:
            told.append(clocks)
        for arm in ("a", "b"):
            if (self.steady[arm] or {}).get("class") == "none":
                told.append(f"the iterations of {self.name(arm)} reach no steady state")
        if self.load_depends_on_arm:
            told.append(f"the load differs by arm (p = {self.guard_p:.2g}); adjustment and setting aside are off")
        busy = {arm: share for arm, share in self.idle_shares.items() if share is not None and share > IDLE_LIMIT}
        if busy:
            first, *more = busy
            shares = f"{self.name(first)} uses {100 * busy[first]:.2g} % of a core"
            shares += "".join(f", {self.name(arm)} {100 * busy[arm]:.2g} %" for arm in more)
            told.append(f"while it waits, {shares}: its threads disturb the other")
        if self.kept and self.modes["count"] > 1 and len(self.modes["above"]) == 2:
            above = self.modes["above"]
            told.append(
                f"the times have two modes; in the slower lie {100 * above['a']:.0f} % of A and "
                f"{100 * above['b']:.0f} % of B"
            )
        return told

    def spans(self, units: list[UnitResult]) -> tuple[list[float], list[float]]:
        """Seconds of each unit's pairs, and of the whole unit: from its first launch to the next unit's."""
        starts = {number: min(one.at for one in unit.launches) for number, unit in self._units.items() if unit.launches}
        pairs, wholes = [], []
        for unit in units:
            slots = [slot for slot in self._units[unit.unit].slots if slot.pair is not None]
            first, end = min(slot.at for slot in slots), max(_end(slot) for slot in slots)
            following = [at for number, at in starts.items() if number > unit.unit]
            start = starts.get(unit.unit, first)
            pairs.append(end - first)
            wholes.append((min(following) if following else end) - start)
        return pairs, wholes

    def _time(self) -> tuple[float, float] | None:
        """Seconds used, with what one more unit takes, and the seconds allowed; None without a budget."""
        budget = self.plan.get("time_budget")
        starts = sorted(min(one.at for one in unit.launches) for unit in self._units.values() if unit.launches)
        if budget is None or not starts:
            return None
        slots = [slot for unit in self._units.values() for slot in unit.slots]
        used = max([starts[-1], *map(_end, slots)]) - starts[0]
        return used + used / len(starts), budget

    @cached_property
    def final(self) -> bool:
        """Whether no more units may come: verdicts that only the last look may give can be given."""
        return self.method in ("fixed", "deterministic") or not self.step.go

    @cached_property
    def verdict(self) -> gate.Verdict:
        if self.values_alone:
            return gate.by_values(self.accuracy, self._unfit(), self.void_units)
        return self._judged(self._evidence(self.kept, self.complete, self.final))

    def _judged(self, evidence: gate.Evidence) -> gate.Verdict:
        if self.method == "deterministic":
            return gate.verdict(replace(evidence, settled=self._deterministic()))
        return gate.verdict(evidence)

    def _deterministic(self) -> gate.Verdict:
        values = {arm: [value for value in values if value] for arm, values in self._slot_values.items()}
        return gate.deterministic(values["a"], values["b"], self.margin, self.direction)

    # ---------------------------------------------------------------------------------- shapes of the distributions

    @cached_property
    def modes(self) -> dict[str, Any]:
        """How many modes the slots have, and each arm's share in the slower one."""
        return checks.modes(*([value for value in self._slot_values[arm] if value > 0] for arm in "ab"))

    @cached_property
    def steady(self) -> dict[str, dict[str, Any] | None]:
        """Per arm the class of its iterations, warm-up included."""
        found: dict[str, dict[str, Any] | None] = {}
        for arm in ("a", "b"):
            series = []
            for unit in self.kept:
                slots = sorted((slot for slot in self.slots(unit.unit) if slot.arm == arm), key=lambda slot: slot.at)
                values = [metric_value(slot, self.metric) for slot in slots]
                if all(value is not None and value > 0 for value in values):
                    series.append(values)
            found[arm] = checks.steady(series)
        return found

    def series(self, metric: str) -> list[float]:
        """The kept units' log ratios by another metric; units without it are left out."""
        found = []
        for unit in self.kept:
            centre = _centre(self._ratios(self._units[unit.unit], unit.pairs, metric))
            if centre is not None:
                found.append(centre)
        return found

    # ------------------------------------------------------------------------------------------------- summary

    def summary(self) -> dict[str, Any]:
        """summary.json, schema 1, ready for JSON."""
        comparison, kept = self.comparison, self.kept
        values = self._values(kept)
        names, bounds = self.adjusted(kept)
        interval = self.interval(values, bounds)
        verdict, tally = self.verdict, self.tally
        block, pair = stats.variance_components([unit.ratios for unit in kept])
        median = math.exp(checks.middle(values)) if values else None
        clocks, beside = self._clocks(), self._beside()
        return {
            "schema": SUMMARY_SCHEMA,
            "run": comparison.run,
            "harness_version": comparison.harness_version,
            "command": comparison.command,
            "scenario": self.question.get("name"),
            "question": self.question.get("question"),
            "arms": {arm: dict(comparison.arms.get(arm, {})) for arm in ("a", "b")},
            "metric": self.metric,
            "unit": self.work.get("unit", "unit"),
            "direction": self.direction,
            "mode": self.mode,
            "method": self.method,
            "stopped": self.step.reason or None,
            "looks": list(self.looks) if self.method == "looks" else None,
            "clock": self._clock(),
            "margin": self.margin,
            "alpha": self.alpha,
            "level": interval.level,
            "ratio": _bounds(interval),
            "median": median,
            "asymmetric": _asymmetric(interval, values),
            "values": {arm: self._arm_values(arm) for arm in ("a", "b")},
            "won": self._won(),
            "separated": self._separated(),
            "units": {
                "planned": tally.kept if self.step.reason in ("decided", "futility") else tally.planned,
                "run": tally.run,
                "kept": tally.kept,
                "wrong": tally.wrong,
                "set_aside": {str(unit.unit): unit.why for unit in self.units if unit.state == "set-aside"},
            },
            "pairs": self.plan.get("pairs", 1),
            "set_aside": {"load": tally.set_aside} if tally.set_aside else {},
            "voids": {arm: self._void_kinds(arm) for arm in ("a", "b")},
            "void_shares": {arm: self._void_share(arm) for arm in ("a", "b")},
            "adjusted": names,
            "without_setting_aside": self._without_setting_aside(),
            "verdict": {"word": verdict.word, "reason": verdict.reason},
            "exit_code": gate.exit_code(verdict.word, self.gate.get("strict", False)),
            "predict": self._predict(interval),
            "fingerprints": {
                "policy": self.policy,
                "agree": self._agree(),
                "a": self.judgement.a,
                "b": self.judgement.b,
                "odd": self.judgement.odd,
                "differences": self.judgement.differences,
            },
            "accuracy": self.accuracy,
            "clocks": clocks,
            "beside": beside,
            "break_even": self._break_even(clocks["wall"], beside.get("startup_seconds")),
            "foreign": self._foreign(),
            "mde": None if interval.mde is None else math.expm1(interval.mde),
            "variance": {"block": block, "pair": pair},
            "notes": self.reader_notes,
            "idle": self.idle_shares,
            "p_worse": self.p_worse,
            "order": self.order,
            "modes": self.modes if kept else None,
            "steady": self.steady,
            "guard": None
            if self.guard_p is None
            else {"p": self.guard_p, "load_depends_on_arm": self.load_depends_on_arm},
            "control": None if self.control_p is None else {"p": self.control_p, "units": len(self.controls)},
            "seed": comparison.seed,
            "inputs": self._inputs(),
            "laid": {arm: laid(comparison, arm) for arm in "ab"},
            "environment": self._environment(),
        }

    def _agree(self) -> bool | None:
        """Whether the outputs agree under the policy; under 'statistical' it is the values that say so."""
        found = self.accuracy
        if self.policy != "statistical" or self.judgement.agree is False or self.values_alone:
            return self.judgement.agree
        return None if found is None else {"different": False, "indistinguishable": True}.get(found["word"])

    def _headers(self, arm: str) -> list[dict[str, Any]]:
        return [
            one.header
            for _, unit in sorted(self._units.items())
            for one in unit.launches
            if one.arm == arm and one.header
        ]

    def _clock(self) -> str:
        headers = [header for arm in ("a", "b") for header in self._headers(arm)]
        return "scripted" if any(header.get("clock") == "scripted" for header in headers) else "wall"

    def _arm_values(self, arm: str) -> dict[str, float | None]:
        return {"median": checks.middle(self._slot_values[arm]), "least": min(self._slot_values[arm], default=None)}

    def _sign(self) -> int:
        return -1 if self.direction == "higher" else 1

    def _won(self) -> float | None:
        """The share of pairs in which B is better."""
        ratios = [self._sign() * ratio for unit in self.kept for ratio in unit.ratios]
        return sum(ratio < 0 for ratio in ratios) / len(ratios) if ratios else None

    def _separated(self) -> bool | None:
        """Whether every B beats every A."""
        found = {arm: [self._sign() * value for value in values] for arm, values in self._slot_values.items()}
        return max(found["b"]) < min(found["a"]) if found["a"] and found["b"] else None

    def _void_kinds(self, arm: str) -> dict[str, int]:
        kinds = Counter(
            one.reason
            for unit in self._units.values()
            if unit.closed is not None
            for one in unit.voids
            if one.arm == arm
        )
        return dict(sorted(kinds.items()))

    def _void_share(self, arm: str) -> dict[str, Any]:
        low, high = stats.share_interval(self.void_units[arm], self.tally.run)
        return {"void": self.void_units[arm], "of": self.tally.run, "low": low, "high": high}

    def _without_setting_aside(self) -> dict[str, str] | None:
        if not self.tally.set_aside:
            return None
        return {"word": gate.by_interval(self._interval_of(self.complete), self._bare()).word}

    def _bare(self) -> gate.Evidence:
        """What a verdict on an interval alone needs."""
        return gate.Evidence(
            interval=gate.Interval(n=0, level=self.levels()[0]),
            margin=self.margin,
            alpha=self.alpha,
            direction=self.direction,
            final=self.final,
            unit=self.unit_word,
            ceiling=self.ceilings,
        )

    def _predict(self, interval: gate.Interval) -> dict[str, Any] | None:
        expected = self.question.get("predict") or {}
        band, about = expected.get("ratio"), expected.get("arms")
        measured = [self.comparison.arms.get(arm, {}).get("name") for arm in ("a", "b")]
        if not band or (about and measured != about):
            return None
        low, high = band
        met = None if interval.estimate is None else low <= math.exp(interval.estimate) <= high
        return {"low": low, "high": high, "met": met}

    def _clocks(self) -> dict[str, Any]:
        """Both clocks, whatever the metric is, and a sentence when one sees a change that the other does not."""
        wall, cpu = CLOCKS.get(self.metric, CLOCKS["seconds"])
        shown: dict[str, Any] = {}
        for clock, metric in (("wall", wall), ("cpu", cpu)):
            values = self.series(metric)
            if len(values) < len(self.kept) or not values:
                shown[clock] = None
                continue
            interval = self.interval(values)
            lower = replace(self._bare(), direction="lower")
            shown[clock] = {"metric": metric, **_bounds(interval), "word": gate.by_interval(interval, lower).word}
        shown["note"] = None
        if shown["wall"] and shown["cpu"]:
            words = {clock: shown[clock]["word"] for clock in ("wall", "cpu")}
            if words["wall"] != words["cpu"] and {"regression", "improvement"} & set(words.values()):
                shown["note"] = f"the clocks disagree: {words['wall']} in wall time, {words['cpu']} in CPU time"
        return shown

    def _beside(self) -> dict[str, dict[str, Any]]:
        """What was measured beside the metric: memory, start and set-up, and every counter that both arms report.

        Name -> {a, b (medians over the kept units), ratio {estimate, low, high}}; a ratio needs values above 0 in
        every kept unit.
        """
        found: dict[str, dict[str, list[float]]] = {}
        for kept in self.kept:
            unit = self._units[kept.unit]
            for arm in ("a", "b"):
                for name, value in _besides(unit, [getattr(pair, arm) for pair in kept.pairs], arm).items():
                    found.setdefault(name, {"a": [], "b": []})[arm].append(value)
        shown = {}
        for name, arms in found.items():
            if not (arms["a"] and arms["b"]) or name == self.metric:
                continue
            ratios = [log_ratio(a, b) for a, b in zip(arms["a"], arms["b"])]
            whole = len(arms["a"]) == len(arms["b"]) == len(self.kept) and None not in ratios
            shown[name] = {
                "a": checks.middle(arms["a"]),
                "b": checks.middle(arms["b"]),
                "ratio": _bounds(self.interval(ratios)) if whole else None,
            }
        return shown

    def _break_even(self, wall: dict[str, Any] | None, started: dict[str, Any] | None) -> dict[str, Any] | None:
        """After how much work the arm that starts later has caught up, in wall time; from both ratios' intervals.

        {later (the arm), seconds (by which it starts later, median over units), longest_seconds, work {estimate, low,
        high} in units of the metric, iteration (units in one, None where they differ)}. `work` is None where which arm
        is the faster one is not decided; a bound is None where it is infinite. Estimate and interval are those of the
        median over units: a quotient of two differences has no centre of symmetry.

        None where it is no question: the metric is no time or holds the start, no start was seen, the only iteration
        is the first one, an arm leaves work out, neither starts later by more than the margin, or the later one is
        the slower one.
        """
        start = (started or {}).get("ratio")
        cold = self.mode == "process" and not self.plan.get("warmup")
        if self.metric not in CLOCKS or self.ceilings or cold or not (wall and start):
            return None
        if wall["low"] is None or start["low"] is None:
            return None
        beyond = 1 + self.margin
        later, other = ("b", "a") if start["low"] > beyond else ("a", "b")
        slower, faster = (wall["low"] > 1, wall["high"] < 1) if later == "b" else (wall["high"] < 1, wall["low"] > 1)
        if slower or (later == "a" and start["high"] >= 1 / beyond):
            return None
        lives = [self._lives(unit) for unit in self.kept]
        extra = [arms[later].start - arms[other].start for arms in lives]
        after = sorted(caught_up(arms[later], arms[other]) for arms in lives)
        n, level = len(after), self.levels()[0]
        anytime = self.method == "anytime"
        order = stats.sign_sequence_order(n, self.alpha) if anytime else stats.sign_order(n, level)
        found = {"estimate": checks.middle(after), "low": after[order - 1], "high": after[-order]}
        sizes = {self._amount(slot) for unit in self.kept for slot in self.slots(unit.unit)}
        return {
            "later": later,
            "seconds": checks.middle(extra),
            "longest_seconds": max(extra),
            "work": {key: value if math.isfinite(value) else None for key, value in found.items()}
            if faster and math.isfinite(found["estimate"])
            else None,
            "iteration": sizes.pop() if len(sizes) == 1 else None,
        }

    def _amount(self, slot: record.Slot) -> float:
        """What a slot counts for: its units of work, or one iteration where the metric is not one per unit."""
        return slot.units if self.metric.endswith("_per_unit") else 1.0

    def _lives(self, unit: UnitResult) -> dict[str, Life]:
        """Arm -> its launch in a kept unit."""
        found = {}
        for arm in ("a", "b"):
            slots = [getattr(pair, arm) for pair in unit.pairs]
            first = min((slot for slot in self.slots(unit.unit) if slot.arm == arm), key=lambda slot: slot.at)
            found[arm] = Life(
                start=max(slot.startup_seconds for slot in slots if slot.startup_seconds is not None),
                first=self._amount(first),
                pace=checks.middle([slot.seconds / amount for slot in slots if (amount := self._amount(slot)) > 0]),
            )
        return found

    def _foreign(self) -> dict[str, Any]:
        loads = [one for unit in self._units.values() if unit.closed is not None for one in unit.loads]
        cores: Counter[str] = Counter()
        for one in loads:
            for process in one.top:
                cores[str(process.get("name"))] += (process.get("cores") or 0.0) / len(loads)
        top = sorted(cores.items(), key=lambda item: (-item[1], item[0]))[:TOP]
        return {
            "method": ", ".join(sorted({one.method for one in loads})) or None,
            "median_cores": checks.middle([one.foreign for one in loads if one.foreign is not None]),
            "worst_cores": _largest(one.foreign for one in loads),
            "unattributed": checks.middle([one.unattributed for one in loads if one.unattributed is not None]),
            "steal": checks.middle([one.steal for one in loads if one.steal is not None]),
            "top": [{"name": name, "cores": value} for name, value in top],
        }

    def _inputs(self) -> list[dict[str, Any]]:
        for arm in ("a", "b"):
            for header in self._headers(arm):
                if header.get("inputs"):
                    return header["inputs"]
        return []

    def _environment(self) -> dict[str, Any]:
        """What the arms' first headers say, apart where they differ, and the machine."""
        first = {arm: next(iter(self._headers(arm)), {}).get("environment") or {} for arm in ("a", "b")}
        same = {key for key, value in first["a"].items() if key in first["b"] and first["b"][key] == value}
        common = {key: first["a"][key] for key in sorted(same)}
        return {
            "common": {"machine": self.comparison.machine, "revision": self.comparison.revision, **common},
            **{arm: {key: first[arm][key] for key in sorted(first[arm].keys() - same)} for arm in ("a", "b")},
        }


def own(opening: record.Comparison, arm: str) -> dict:
    """The parameters that a comparison's scenario itself gives to one of its arms."""
    scenario = opening.scenario
    return {
        **scenario.get("parameters", {}),
        **scenario.get("arms", {}).get(opening.arms[arm]["name"], {}).get("parameters", {}),
    }


def laid(opening: record.Comparison, arm: str, parameters: dict | None = None) -> dict:
    """What of an arm's parameters, or of these, is not its scenario's own: a variant's difference (-p)."""
    known = own(opening, arm)
    given = (opening.arms[arm].get("parameters") or {}) if parameters is None else parameters
    return {key: value for key, value in given.items() if key not in known or known[key] != value}


def summarise(entries: list[record.AnyEntry]) -> dict[str, Any]:
    """summary.json of a record's entries, ready for JSON. Raises ValueError when no comparison comes first."""
    return Analysis(entries).summary()


def summarise_family(family: list[list[record.AnyEntry]], alpha: float = 0.05) -> list[dict[str, Any]]:
    """Summaries of a gate's scenarios, regressions judged together by Holm's step-down, in the order given.

    A scenario that has too few units for its share of alpha cannot fail: its summary says unfit. `family` in each
    holds the one-sided level of its bound (`tail`) and its false discovery rate (`q`, Benjamini-Hochberg).
    """
    alone = [Analysis(entries) for entries in family]
    judged = [one for one in alone if one.p_worse is not None]
    tails = dict(zip(map(id, judged), gate.family_tails([one.p_worse for one in judged], alpha)))
    summaries = []
    for entries, one in zip(family, alone):
        whole = Analysis(entries, family_tail=tails.get(id(one)))
        n = len(one.kept)
        if id(one) in tails and not schedule.gate_can_fail(n, len(family), alpha):
            whole.notes.append(
                record.Note(
                    about="unfit",
                    message=f"{n} {one.unit_word} cannot fail a gate of {len(family)} scenarios; it needs "
                    f"{schedule.gate_units(len(family), alpha)}",
                )
            )
        summaries.append(whole.summary())
    listed = [i for i, one in enumerate(alone) if one.p_worse is not None]
    p = [float(stats.signed_rank_p([unit.value for unit in alone[i].kept])) for i in listed]
    q = dict(zip(listed, map(float, stats.benjamini_hochberg(p))))
    for i, summary in enumerate(summaries):
        summary["family"] = {"scenarios": len(family), "tail": tails.get(id(alone[i])), "q": q.get(i)}
    return summaries


def next_step(entries: list[record.AnyEntry]) -> schedule.Step:
    """Whether another unit is run after these entries, and why not; asked before every unit."""
    return Analysis(entries).step


def next_unit(entries: list[record.AnyEntry]) -> int | None:
    """The number of the next unit to run, None when the comparison is over; an interrupted one is run again."""
    if not next_step(entries).go:
        return None
    return max((entry.unit for entry in record.of(entries, record.Unit)), default=-1) + 1


def wrong(entries: list[record.AnyEntry]) -> tuple[str, ...]:
    """What is wrong with the outputs so far, one sentence each; empty when nothing is."""
    return Analysis(entries).wrong


def _pairs(slots: list[record.Slot]) -> list[Pair]:
    """Complete pairs of steady slots, by index."""
    found: dict[int, dict[str, record.Slot]] = {}
    for slot in slots:
        if slot.phase == "steady" and slot.pair is not None:
            found.setdefault(slot.pair, {})[slot.arm] = slot
    pairs = []
    for index, both in sorted(found.items()):
        if {"a", "b"} <= both.keys():
            a, b = both["a"], both["b"]
            pairs.append(Pair(index=index, order="AB" if a.position == 0 else "BA", a=a, b=b))
    return pairs


def _measured(pairs: list[Pair], metric: str) -> list[Pair]:
    """The pairs that have a value of their own: a block has one start-up for all its pairs."""
    return pairs[:1] if metric == "startup_seconds" else pairs


def _end(slot: record.Slot) -> float:
    """When a slot was over, seconds since the comparison's first launch."""
    return slot.at + (slot.outside_seconds or slot.seconds)


def _centre(ratios: list[float | None]) -> float | None:
    found = [ratio for ratio in ratios if ratio is not None]
    return float(stats.hodges_lehmann(found)) if found else None


def _disturbing(load: record.Load) -> float:
    """What a unit may be set aside for, in cores: other users' processes and steal."""
    return (load.foreign or 0.0) + (load.steal or 0.0)


def _besides(unit: _UnitEntries, slots: list[record.Slot], arm: str) -> dict[str, float]:
    """What one arm of a unit was seen to need beside its times, by name."""
    found = {}
    for phase in unit.phases:
        if phase.arm == arm and phase.name == "setup":
            found["setup_seconds"] = phase.seconds
        if phase.arm == arm and phase.peak_rss_bytes is not None:
            found["peak_rss_bytes"] = phase.peak_rss_bytes
    for name in ("startup_seconds", "peak_rss_bytes"):
        values = [value for slot in slots if (value := getattr(slot, name)) is not None]
        if values:
            found[name] = max(values)
    for name in dict.fromkeys(name for slot in slots for name in slot.counters):
        found[name] = checks.middle([slot.counters[name] for slot in slots if name in slot.counters])
    return found


def _largest(values) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _bounds(interval: gate.Interval) -> dict[str, float | None]:
    """Estimate and interval as ratios; None where there is none, or an infinite one."""
    return {
        key: None if value is None or math.isinf(value) else math.exp(value)
        for key, value in (("estimate", interval.estimate), ("low", interval.low), ("high", interval.high))
    }


def _asymmetric(interval: gate.Interval, values: list[float]) -> bool | None:
    if interval.low is None or math.isinf(interval.high - interval.low):
        return None
    return abs(checks.middle(values) - interval.estimate) > (interval.high - interval.low) / 2


def _short(value: Any) -> str:
    """A digest by its first letters, a number in full."""
    if isinstance(value, str):
        return value[:8]
    return "nothing" if value is None else repr(value)
