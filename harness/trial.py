"""The doctor's A/A trial: which effect can be seen on this machine now, in both modes and by both clocks."""

import dataclasses
import sys
import textwrap
from pathlib import Path
from typing import Any

from harness import analysis, arms, comparison, records, scenario, stats
from harness.doctor import Finding

#: the effect above which a machine is of no use
LIMIT = 0.10
_METRICS = {"wall": "seconds", "CPU": "cpu_seconds"}


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one mode and clock show.

    Attributes
    ----------
    units : int        units that the trial rests on
    visible : float    the effect that 20 units show in 80 of 100 comparisons, as a share; None with too few units
    """

    mode: str
    clock: str
    units: int
    visible: float | None


def run(reports: Path, *, blocks: int, quiet: bool) -> list[Seen]:
    """Compare the pure-Python loop with itself, resident and as processes."""
    seen = []
    for mode, schedule in (("resident", {"blocks": blocks, "pairs": 10}), ("process", {"pairs": blocks})):
        data = {
            "scenario": {
                "name": f"doctor-{mode}",
                "question": f"Which effect can be seen here in {mode} mode?",
                "workload": [sys.executable, "-m", "impl.loop.arm"],
                "metric": "cpu_seconds",
            },
            "parameters": {"steps": 100_000},
            "arms": {"a": {}, "b": {}},
            "schedule": {"mode": mode, **schedule},
        }
        resolved = arms.from_scenario(scenario.parse(data, "doctor"), "a", "b", reports.parent)
        folder = comparison.measure(resolved, command=["doctor"], reports=reports, quiet=quiet)
        found = analysis.Analysis(records.read(folder))
        for clock, metric in _METRICS.items():
            values = found.series(metric)
            enough = len(values) >= stats.MDE_UNITS[0]
            visible = float(stats.mde_factor(20) * stats.robust_sd(values)) if enough else None
            seen.append(Seen(mode, clock, len(values), visible))
    return seen


def usable(seen: list[Seen]) -> bool:
    """Whether some mode and clock show an effect below 10 %."""
    return any(one.visible is not None and one.visible < LIMIT for one in seen)


def told(seen: list[Seen]) -> list[str]:
    """The trial in lines for a terminal."""
    if not seen:
        return []
    lines = ["", "visible here with 20 units, in 80 of 100 comparisons:"]
    for one in seen:
        shown = "too few units counted" if one.visible is None else f"{100 * one.visible:.2g} %"
        lines.append(f"  {one.mode:<9} {one.clock:<5} {shown}")
    return lines


def told_findings(findings: list[Finding], width: int = 100) -> list[str]:
    """The findings in lines for a terminal: what harms first, with its effect and what mends it; the good ones last."""
    lines = []
    for state in ("harm", "note", "unknown"):
        for one in findings:
            if one.state == state:
                lines += _wrapped(f"{state:<9}{one.name}: {one.found}", width)
                lines += _wrapped(f"{'':<9}{one.effect}", width) if one.effect else []
                lines += _wrapped(f"{'':<9}→ {one.mend}", width, 11) if one.mend else []
    good = [f"{one.name} {one.found}" for one in findings if one.state == "ok"]
    return lines + (_wrapped(f"{'ok':<9}{' · '.join(good)}", width) if good else [])


def _wrapped(text: str, width: int, indent: int = 9) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def as_dict(findings: list[Finding], seen: list[Seen]) -> dict[str, Any]:
    """Findings and trial ready for JSON."""
    return {
        "findings": [dataclasses.asdict(one) for one in findings],
        "trial": [dataclasses.asdict(one) for one in seen],
    }
