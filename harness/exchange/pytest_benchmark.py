"""pytest-benchmark --benchmark-json, or its storage: all rounds of a file ran in one process and become one value.

Source of the form: the files that pytest-benchmark 5.3 writes.
"""

from collections.abc import Iterator
from typing import Any

from harness.exchange.results import Result

NAME = "pytest-benchmark"


def recognises(data: dict[str, Any]) -> bool:
    return isinstance(data.get("benchmarks"), list) and "machine_info" in data


def read(data: dict[str, Any]) -> Iterator[Result]:
    for one in data["benchmarks"]:
        stats = one["stats"]
        yield Result(one["fullname"], NAME, (stats["median"],), inner=stats["rounds"])
