"""A comparison as CSV: one row a slot, everything that was timed, with what became of its unit.

`value` is the metric, `ratio` the unit's B/A; both are empty where there is none. Times are seconds, sizes bytes.
"""

import csv
import io
import math
from typing import Any

from harness import analysis, records, schedule
from harness.exchange.ours import Run

NAME = "csv"
COLUMNS = (
    "run",
    "scenario",
    "unit",
    "state",
    "ratio",
    "arm",
    "name",
    "phase",
    "pair",
    "position",
    "index",
    "at",
    "seconds",
    "cpu_seconds",
    "units",
    "work",
    "peak_rss_bytes",
    "metric",
    "value",
)


def written(run: Run) -> str:
    """The whole table, in the order of the record; a null control's state is 'control'."""
    comparison, metric = run.analysis.comparison, run.analysis.metric
    units = {unit.unit: unit for unit in run.analysis.units}
    launches = {(one.unit, one.arm): one for one in records.of(run.entries, records.Launch)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for slot in records.of(run.entries, records.Slot):
        unit = units.get(slot.unit)
        control = schedule.is_control(run.analysis.plan, slot.unit)
        ratio = None if unit is None or unit.value is None else math.exp(unit.value)
        row: dict[str, Any] = {
            "run": comparison.run,
            "scenario": run.summary["scenario"],
            "state": "control" if control else unit.state if unit else "interrupted",
            "ratio": ratio,
            "name": comparison.arms["a" if control else slot.arm]["name"],
            "metric": metric,
            "value": analysis.metric_value(slot, metric, launches.get((slot.unit, slot.arm))),
        }
        writer.writerow([row[key] if key in row else getattr(slot, key) for key in COLUMNS])
    return text.getvalue()
