"""Entries of a record -> units, verdict and every field of summary.json; pure: same entries, same bytes.

Log ratios are log(B/A) of the metric as measured, whatever its direction. A unit's value is the Hodges-Lehmann
estimate of its pairs; a unit counts when it is complete, not set aside for its load, and right.

summary.json, schema 1: the fields of the contract (`unit` is the work's unit, `pairs` those of a block), and beside
them `values` (median and least per arm), `variance` (standard deviations of log ratios between blocks and of pairs
inside one), `void_shares` (exact intervals), `asymmetric` (plain median and estimate differ by more than half the
interval) and `units.set_aside` (number -> why).
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from harness import fingerprint, gate, schedule, stats
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


@dataclass(frozen=True)
class Pair:
    """One slot of each arm; `order` is "AB" or "BA", `load` foreign and stolen cores (first slot, second slot)."""

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


@dataclass
class _UnitEntries:
    """The entries of one unit, sorted by kind."""

    slots: list[record.Slot] = field(default_factory=list)
    launches: list[record.Launch] = field(default_factory=list)
    fingerprints: list[record.Fingerprint] = field(default_factory=list)
    voids: list[record.Void] = field(default_factory=list)
    loads: list[record.Load] = field(default_factory=list)
    closed: record.Unit | None = None


class Analysis:
    """A record, read once; every property is computed from its entries alone.

    Raises ValueError when the first entry is not a comparison.
    """

    def __init__(self, entries: list[record.AnyEntry]):
        if not entries or not isinstance(entries[0], record.Comparison):
            raise ValueError("expected a comparison entry first")
        self.comparison: record.Comparison = entries[0]
        self.end: record.End | None = None
        self.notes: list[record.Note] = []
        self._units: dict[int, _UnitEntries] = {}
        kinds = {
            record.Slot: "slots",
            record.Launch: "launches",
            record.Fingerprint: "fingerprints",
            record.Void: "voids",
            record.Load: "loads",
        }
        for entry in entries[1:]:
            if isinstance(entry, record.End):
                self.end = entry
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
    def level(self) -> float:
        return 1 - self.alpha

    @property
    def mode(self) -> str:
        return self.plan.get("mode", "resident")

    @property
    def unit_word(self) -> str:
        return "pairs" if self.mode == "process" else "blocks"

    @cached_property
    def ceilings(self) -> frozenset[str]:
        arms = self.comparison.arms
        return frozenset(arm for arm in ("a", "b") if arms.get(arm, {}).get("kind") == "ceiling")

    # ------------------------------------------------------------------------------------------------- outputs

    @cached_property
    def judgement(self) -> fingerprint.Judgement:
        """Whether the outputs agree: fingerprints over all units, and what the iterations themselves report."""
        seen = []
        for number, unit in self._units.items():
            for one in unit.fingerprints:
                seen.append(
                    fingerprint.Observation(
                        unit=number,
                        arm=one.arm,
                        group=one.when,
                        work=one.work,
                        digests=one.digests,
                        totals=one.totals,
                        rerun=one.when == "rerun",
                    )
                )
            for slot in unit.slots:
                place = f"{slot.phase} {slot.index}"
                # An iteration's work counts what this arm wrote, which arms may split differently; totals are sums
                # over the output, so the arms must agree on them.
                seen.append(fingerprint.Observation(number, slot.arm, f"work of {place}", work=slot.work, across=False))
                if slot.totals:
                    seen.append(fingerprint.Observation(number, slot.arm, f"totals of {place}", totals=slot.totals))
        rtol = self.question.get("totals_rtol", 1e-12)
        return fingerprint.judge(seen, self.policy, rtol, self.ceilings)

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
        return tuple(told)

    def name(self, arm: str) -> str:
        """An arm as it is told to a reader: its letter and name."""
        name = self.comparison.arms.get(arm, {}).get("name")
        return f"{arm.upper()} '{name}'" if name else arm.upper()

    # --------------------------------------------------------------------------------------------------- units

    @cached_property
    def units(self) -> list[UnitResult]:
        """Every unit in the order of running, interrupted ones too."""
        wrong = {unit for unit, _ in self.judgement.wrong} | {unit for unit, _, _ in self.idle}
        return [self._unit(number, unit, number in wrong) for number, unit in sorted(self._units.items())]

    def _unit(self, number: int, unit: _UnitEntries, wrong: bool) -> UnitResult:
        pairs = _pairs(unit.slots)
        ratios = self._ratios(unit, pairs, self.metric)
        loads = unit.loads
        launches = {one.arm: one.order for one in unit.launches}
        launch = "BA" if launches.get("b", 1) < launches.get("a", 0) else "AB"
        limit = self.limits.get("foreign_cores")
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
        planned = self.plan.get("units", 8)
        return schedule.Tally(
            planned=planned,
            cap=self.plan.get("cap", 2 * planned),
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
        void = [unit for unit in self._units.values() if unit.closed is not None and unit.closed.state != "complete"]
        return {arm: sum(any(one.arm == arm for one in unit.voids) for unit in void) for arm in ("a", "b")}

    # ---------------------------------------------------------------------------------------------- statistics

    def interval(self, values: list[float]) -> gate.Interval:
        """Estimate and exact interval of units' log ratios."""
        n = len(values)
        needed = stats.units_needed(self.level)
        if n == 0:
            return gate.Interval(n=0, level=self.level, units_needed=needed)
        estimate = float(stats.hodges_lehmann(values))
        if n < needed:
            return gate.Interval(n=n, level=self.level, estimate=estimate, units_needed=needed)
        low, high = map(float, stats.signed_rank_interval(values, self.level))
        low90, high90 = map(float, stats.signed_rank_interval(values, 1 - 2 * self.alpha))
        sd = float(stats.robust_sd(values))
        visible = stats.mde(values) if n >= stats.MDE_UNITS[0] else None
        return gate.Interval(
            n=n,
            level=self.level,
            estimate=estimate,
            low=low,
            high=high,
            low90=low90,
            high90=high90,
            p=float(stats.signed_rank_p(values)),
            mde=visible,
            units_needed=needed,
            units_to_settle=stats.units_for(math.log1p(self.margin), sd),
        )

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """Why some complete unit has no value; leaving it out would choose units by their values."""
        for unit in self.complete:
            if unit.value is None or (self.metric != "startup_seconds" and len(unit.ratios) < len(unit.pairs)):
                return (f"{self.unit_word[:-1]} {unit.unit} has no '{self.metric}' above 0 in both arms",)
        return ()

    def _values(self, units: list[UnitResult]) -> list[float]:
        return [unit.value for unit in units if unit.value is not None]

    def _verdict(self, values: list[float], everything: list[float], final: bool = True) -> gate.Verdict:
        return gate.verdict(self._evidence(values, everything, final))

    def _evidence(self, values: list[float], everything: list[float], final: bool) -> gate.Evidence:
        set_aside = self.tally.set_aside
        return gate.Evidence(
            interval=self.interval(values),
            everything=self.interval(everything) if set_aside else None,
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
            ceiling=self.ceilings,
        )

    def _unfit(self) -> tuple[str, ...]:
        """Nothing was measured: a program or build was missing, or no unit reports the metric."""
        told = tuple(note.message for note in self.notes if note.about == "unfit")
        if not told and self.complete and all(unit.value is None for unit in self.complete):
            told = (f"nothing was measured: no unit has a '{self.metric}' above 0 in both arms",)
        return told

    @cached_property
    def verdict(self) -> gate.Verdict:
        return self._verdict(self._values(self.kept), self._values(self.complete))

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
        interval = self.interval(values)
        verdict, tally = self.verdict, self.tally
        block, pair = stats.variance_components([unit.ratios for unit in kept])
        median = math.exp(_median(values)) if values else None
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
                "planned": tally.planned,
                "run": tally.run,
                "kept": tally.kept,
                "wrong": tally.wrong,
                "set_aside": {str(unit.unit): unit.why for unit in self.units if unit.state == "set-aside"},
            },
            "pairs": self.plan.get("pairs", 1),
            "set_aside": {"load": tally.set_aside} if tally.set_aside else {},
            "voids": {arm: self._void_kinds(arm) for arm in ("a", "b")},
            "void_shares": {arm: self._void_share(arm) for arm in ("a", "b")},
            "adjusted": [],
            "without_setting_aside": self._without_setting_aside(),
            "verdict": {"word": verdict.word, "reason": verdict.reason},
            "exit_code": gate.exit_code(verdict.word, self.gate.get("strict", False), self.gate.get("accept") or ()),
            "predict": self._predict(interval),
            "fingerprints": {
                "policy": self.policy,
                "agree": self.judgement.agree,
                "a": self.judgement.a,
                "b": self.judgement.b,
                "odd": self.judgement.odd,
                "differences": self.judgement.differences,
            },
            "accuracy": None,
            "clocks": self._clocks(),
            "foreign": self._foreign(),
            "mde": None if interval.mde is None else math.expm1(interval.mde),
            "variance": {"block": block, "pair": pair},
            "seed": comparison.seed,
            "inputs": self._inputs(),
            "environment": self._environment(),
        }

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
        found = []
        for unit in self.kept:
            launch = next((one for one in self._units[unit.unit].launches if one.arm == arm), None)
            for pair in _measured(unit.pairs, self.metric):
                value = metric_value(getattr(pair, arm), self.metric, launch)
                if value is not None:
                    found.append(value)
        return {"median": _median(found), "least": min(found, default=None)}

    def _sign(self) -> int:
        return -1 if self.direction == "higher" else 1

    def _won(self) -> float | None:
        """The share of pairs in which B is better."""
        ratios = [self._sign() * ratio for unit in self.kept for ratio in unit.ratios]
        return sum(ratio < 0 for ratio in ratios) / len(ratios) if ratios else None

    def _separated(self) -> bool | None:
        """Whether every B beats every A."""
        found: dict[str, list[float]] = {"a": [], "b": []}
        for unit in self.kept:
            launches = {one.arm: one for one in self._units[unit.unit].launches}
            for pair in _measured(unit.pairs, self.metric):
                for arm, slot in (("a", pair.a), ("b", pair.b)):
                    value = metric_value(slot, self.metric, launches.get(arm))
                    if value is not None:
                        found[arm].append(self._sign() * value)
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
        return {"word": gate.by_interval(self.interval(self._values(self.complete)), self._bare()).word}

    def _bare(self) -> gate.Evidence:
        """What a verdict on an interval alone needs."""
        return gate.Evidence(
            interval=gate.Interval(n=0, level=self.level),
            margin=self.margin,
            alpha=self.alpha,
            direction=self.direction,
            unit=self.unit_word,
            ceiling=self.ceilings,
        )

    def _predict(self, interval: gate.Interval) -> dict[str, Any] | None:
        band = (self.question.get("predict") or {}).get("ratio")
        if not band:
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

    def _foreign(self) -> dict[str, Any]:
        loads = [one for unit in self._units.values() if unit.closed is not None for one in unit.loads]
        cores: Counter[str] = Counter()
        for one in loads:
            for process in one.top:
                cores[str(process.get("name"))] += (process.get("cores") or 0.0) / len(loads)
        top = sorted(cores.items(), key=lambda item: (-item[1], item[0]))[:TOP]
        return {
            "method": ", ".join(sorted({one.method for one in loads})) or None,
            "median_cores": _median([one.foreign for one in loads if one.foreign is not None]),
            "worst_cores": _largest(one.foreign for one in loads),
            "unattributed": _median([one.unattributed for one in loads if one.unattributed is not None]),
            "steal": _median([one.steal for one in loads if one.steal is not None]),
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


def summarise(entries: list[record.AnyEntry]) -> dict[str, Any]:
    """summary.json of a record's entries, ready for JSON. Raises ValueError when no comparison comes first."""
    return Analysis(entries).summary()


def next_step(entries: list[record.AnyEntry]) -> schedule.Step:
    """Whether another unit is run after these entries, and why not; the runner asks before every unit."""
    analysis = Analysis(entries)
    return schedule.next_step(analysis.tally, analysis.alpha)


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


def _centre(ratios: list[float | None]) -> float | None:
    found = [ratio for ratio in ratios if ratio is not None]
    return float(stats.hodges_lehmann(found)) if found else None


def _disturbing(load: record.Load) -> float:
    """What a unit may be set aside for, in cores: other users' processes and steal."""
    return (load.foreign or 0.0) + (load.steal or 0.0)


def _largest(values) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _median(values: list[float]) -> float | None:
    if not values:
        return None
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _bounds(interval: gate.Interval) -> dict[str, float | None]:
    """Estimate and interval as ratios."""
    return {
        key: None if value is None else math.exp(value)
        for key, value in (("estimate", interval.estimate), ("low", interval.low), ("high", interval.high))
    }


def _asymmetric(interval: gate.Interval, values: list[float]) -> bool | None:
    if interval.low is None:
        return None
    return abs(_median(values) - interval.estimate) > (interval.high - interval.low) / 2


def _short(value: Any) -> str:
    """A digest by its first letters, a number in full."""
    if isinstance(value, str):
        return value[:8]
    return "nothing" if value is None else repr(value)
