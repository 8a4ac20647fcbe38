"""A comparison in Bencher's metric format: each arm a benchmark, and their ratio with its interval as a third.

Times are the measure `latency` in nanoseconds, Bencher's own for times; any other metric is a measure of its name. Only
the ratio has bounds: an arm's level on a shared machine has none that hold.

Source of the form: "Bencher Metric Format (BMF)", Bencher documentation.
"""

import statistics
from typing import Any

from harness.exchange.ours import Run

NAME = "bmf"


def written(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm in "ab":
        values = [unit.value for unit in run.units(arm) if unit.value is not None]
        if not values:
            continue
        middle = statistics.median(values)
        measure = {"latency": {"value": middle * 1e9}} if run.is_time else {run.analysis.metric: {"value": middle}}
        found[run.label(arm)] = measure
    ratio = run.summary["ratio"]
    if ratio["estimate"] is not None:
        bounds = {"lower_value": ratio["low"], "upper_value": ratio["high"]}
        bounds = {key: value for key, value in bounds.items() if value is not None}
        found[f"{run.summary['scenario']}: B/A"] = {"ratio": {"value": ratio["estimate"], **bounds}}
    return found
