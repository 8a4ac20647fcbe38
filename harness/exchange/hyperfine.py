"""hyperfine --export-json: every time is a process of its own, from spawn to exit, in seconds.

Source of the form: the files that hyperfine 1.15 writes.
"""

from collections.abc import Iterator
from typing import Any

from harness.exchange.results import Result

NAME = "hyperfine"


def recognises(data: dict[str, Any]) -> bool:
    results = data.get("results")
    return isinstance(results, list) and all(isinstance(one, dict) and "command" in one for one in results)


def read(data: dict[str, Any]) -> Iterator[Result]:
    """Runs whose exit code is not 0 count as failed. Without single times the median is one."""
    for one in data["results"]:
        times = one.get("times") or [one["median"]]
        codes = one.get("exit_codes") or [0] * len(times)
        if len(codes) != len(times):
            raise ValueError(f"{len(times)} times and {len(codes)} exit codes")
        values = tuple(time for time, code in zip(times, codes) if code == 0)
        yield Result(one["command"], NAME, values, inner=len(values), failed=len(times) - len(values))
