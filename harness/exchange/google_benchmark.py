"""google-benchmark's JSON, in and out: real time of the repetitions, which all ran in one process.

Source of the form: the fields that Google Benchmark's user guide documents, and files of its version 1.9.5.
"""

import math
from collections.abc import Iterator
from typing import Any

from harness.exchange import ours
from harness.exchange.results import Result, middle

NAME = "google-benchmark"
#: time_unit -> seconds
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def recognises(data: dict[str, Any]) -> bool:
    return isinstance(data.get("benchmarks"), list) and "context" in data


def read(data: dict[str, Any]) -> Iterator[Result]:
    """The median of a benchmark's repetitions, or the aggregate "median" where only aggregates were kept."""
    times: dict[str, list[float]] = {}
    medians: dict[str, float] = {}
    counted: dict[str, int] = {}
    for one in data["benchmarks"]:
        name = one.get("run_name", one["name"])
        repetitions = times.setdefault(name, [])
        if one.get("error_occurred") or one.get("skipped"):
            continue
        aggregate = one.get("run_type") == "aggregate"
        if aggregate and one["aggregate_name"] != "median":
            continue
        if one.get("time_unit", "ns") not in UNITS:
            raise ValueError(f"time_unit {one['time_unit']!r}, and {', '.join(UNITS)} are known")
        seconds = one["real_time"] * UNITS[one.get("time_unit", "ns")]
        if aggregate:
            medians[name] = seconds
            counted[name] = one["repetitions"]
        else:
            repetitions.append(seconds)
    for name, found in times.items():
        values = (middle(found),) if found else (medians[name],) if name in medians else ()
        yield Result(name, NAME, values, inner=len(found) or counted.get(name, 0))


def written(run: "ours.Run") -> dict[str, Any]:
    """Each kept unit of each arm as a repetition: wall and CPU nanoseconds (per unit of work, where the metric is).

    A metric that is no time is a counter of its name.
    """
    machine = run.analysis.comparison.machine
    benchmarks = []
    for family, arm in enumerate("ab"):
        name = run.label(arm)
        units = run.units(arm)
        for index, unit in enumerate(units):
            one = {
                "name": name,
                "family_index": family,
                "per_family_instance_index": 0,
                "run_name": name,
                "run_type": "iteration",
                "repetitions": len(units),
                "repetition_index": index,
                "threads": 1,
                "iterations": unit.slots,
                "real_time": unit.seconds * 1e9,
                "cpu_time": unit.cpu_seconds * 1e9,
                "time_unit": "ns",
            }
            if not run.is_time and unit.value is not None and math.isfinite(unit.value):
                one[run.analysis.metric] = unit.value
            benchmarks.append(one)
    context = {
        "date": run.analysis.comparison.created,
        "host_name": "",
        "executable": "harness",
        "num_cpus": machine.get("cores") or 0,
        "mhz_per_cpu": 0,
        "cpu_scaling_enabled": False,
        "caches": [],
        "load_avg": [],
        "library_build_type": "release",
        "json_schema_version": 1,
    }
    return {"context": context, "benchmarks": benchmarks}
