"""pyperf: each run is a process, and its values, usually three, become one; calibration runs have none.

Source of the form: the JSON that pyperf documents as version 1.0 of its file format.
"""

from collections.abc import Iterator
from typing import Any

from harness.exchange.results import Result, middle

NAME = "pyperf"
UNITS = {"second": "seconds", "byte": "bytes", "integer": "integers"}


def recognises(data: dict[str, Any]) -> bool:
    benchmarks = data.get("benchmarks")
    return (
        isinstance(benchmarks, list)
        and isinstance(data.get("version"), str)
        and all(isinstance(one, dict) and "runs" in one for one in benchmarks)
    )


def read(data: dict[str, Any]) -> Iterator[Result]:
    shared = data.get("metadata") or {}
    for one in data["benchmarks"]:
        metadata = shared | (one.get("metadata") or {})
        runs = [run["values"] for run in one["runs"] if run.get("values")]
        yield Result(
            metadata.get("name", "benchmark"),
            NAME,
            tuple(middle(values) for values in runs),
            quantity=UNITS.get(metadata.get("unit", "second"), metadata.get("unit")),
            inner=sum(map(len, runs)),
        )
