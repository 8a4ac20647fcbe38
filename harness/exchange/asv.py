"""asv's results, one file a commit and environment: the median of a benchmark for each combination of its parameters.

The processes of its rounds are not told apart in the file, so a file is one value. Failed combinations are null or NaN.
What is measured follows from the name, as asv has it: time_ seconds, mem_ and peakmem_ bytes, track_ a number.

Source of the form: result files of version 2, as asv 0.6 writes them.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from harness.exchange.results import Result

NAME = "asv"
VERSION = 2


def recognises(data: dict[str, Any]) -> bool:
    return "result_columns" in data and isinstance(data.get("results"), dict)


def read(data: dict[str, Any]) -> Iterator[Result]:
    if data.get("version") != VERSION:
        raise ValueError(f"version {data.get('version')}, and only {VERSION} is known")
    columns = data["result_columns"]
    for name, row in data["results"].items():
        known = dict(zip(columns, row))
        combinations = list(itertools.product(*(known.get("params") or [])))
        medians = known["result"] or [None] * len(combinations)
        samples = known.get("stats_repeat") or [1] * len(combinations)
        for values, median, repeat in zip(combinations, medians, samples):
            given = median is not None and not math.isnan(median)
            yield Result(
                f"{name}({', '.join(values)})" if values else name,
                NAME,
                (median,) if given else (),
                quantity=_quantity(name),
                inner=repeat if given else 0,
            )


def _quantity(name: str) -> str:
    kind = name.rpartition(".")[2].lower()
    if kind.startswith("time"):
        return "seconds"
    return "bytes" if kind.startswith(("mem", "peakmem")) else "numbers"
