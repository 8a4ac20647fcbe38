"""What the exports share: a comparison's kept units, arm by arm, and whether its times count; pure."""

import statistics
from dataclasses import dataclass

from harness import analysis, records
from harness.errors import ConfigurationError, sentence

TIMES = ("seconds", "cpu_seconds", "seconds_per_unit", "cpu_seconds_per_unit", "startup_seconds")


@dataclass(frozen=True)
class ArmUnit:
    """One arm in one kept unit: medians over its slots, divided by the units of work where the metric is.

    `value` is the median of the metric itself, None where a slot lacks it.
    """

    seconds: float
    cpu_seconds: float
    value: float | None
    slots: int


class Run:
    """A record, read for export."""

    def __init__(self, entries: list, source: str):
        self.entries = entries
        self.source = source
        self.analysis = analysis.Analysis(entries)
        self.summary = self.analysis.summary()

    @property
    def is_time(self) -> bool:
        return self.analysis.metric in TIMES

    def label(self, arm: str) -> str:
        """scenario:arm; the reference where both arms have one name."""
        arms = self.analysis.comparison.arms
        name = arms[arm]["name"]
        if name == arms["b" if arm == "a" else "a"]["name"]:
            return arms[arm].get("reference") or f"{self.summary['scenario']}:{name} ({arm.upper()})"
        return f"{self.summary['scenario']}:{name}"

    def must_count(self) -> None:
        """Raises ConfigurationError when its times say nothing."""
        word = self.summary["verdict"]["word"]
        if self.analysis.values_alone:
            raise ConfigurationError(
                sentence(self.source, "a comparison of times", "one of values", "--format csv exports everything")
            )
        if word in ("wrong-result", "unfit") or not self.analysis.kept:
            found = f"{word}: {self.summary['verdict']['reason']}"
            raise ConfigurationError(
                sentence(self.source, "a comparison whose times count", found, "--format csv exports everything")
            )

    def units(self, arm: str) -> list[ArmUnit]:
        """The arm's side of every kept unit, in the order they ran."""
        per_unit = self.analysis.metric.endswith("_per_unit")
        launches = {(one.unit, one.arm): one for one in records.of(self.entries, records.Launch)}
        found = []
        for unit in self.analysis.kept:
            slots = [getattr(pair, arm) for pair in unit.pairs]
            share = [slot.units if per_unit and slot.units > 0 else 1 for slot in slots]
            values = [
                analysis.metric_value(slot, self.analysis.metric, launches.get((unit.unit, arm))) for slot in slots
            ]
            found.append(
                ArmUnit(
                    seconds=statistics.median(slot.seconds / n for slot, n in zip(slots, share)),
                    cpu_seconds=statistics.median(slot.cpu_seconds / n for slot, n in zip(slots, share)),
                    value=None if None in values else statistics.median(values),
                    slots=len(slots),
                )
            )
        return found
