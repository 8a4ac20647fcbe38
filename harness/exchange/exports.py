"""`harness export`: a record in another tool's format; pure."""

import json

from harness.exchange import bmf, csv_table, google_benchmark
from harness.exchange.ours import Run

FORMATS = (csv_table.NAME, bmf.NAME, google_benchmark.NAME)


def text(entries: list, source: str, form: str) -> str:
    """The whole file. Raises ConfigurationError when the format holds results only, and this record has none."""
    run = Run(entries, source)
    if form == csv_table.NAME:
        return csv_table.written(run)
    run.must_count()
    module = bmf if form == bmf.NAME else google_benchmark
    return json.dumps(module.written(run), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
