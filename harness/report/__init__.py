"""Records -> what a person reads: terminal lines, summary.json, report.md, report.html; pure but for `write`.

The same entries give the same bytes of every output, on any machine, without the arms.
"""

import json
import os
from pathlib import Path

from harness.report.html import html
from harness.report.markdown import markdown
from harness.report.tables import Material
from harness.report.terminal import terminal

__all__ = ["Material", "html", "markdown", "terminal", "write", "write_index"]


def write(folder: Path, entries: list) -> dict:
    """Write summary.json, report.md and report.html into `folder` (made if need be) and return the summary.

    Each file appears whole or not at all. Raises OSError.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    material = Material(entries)
    pages = {
        "summary.json": json.dumps(material.summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "report.md": markdown(material),
        "report.html": html(material),
    }
    for name, text in pages.items():
        replace(folder / name, text)
    return material.summary


def write_index(folder: Path) -> Path:
    """Write index.html over all comparisons below `folder`, with its claims.toml if it has one; return its path.

    Raises ConfigurationError when there are none, OSError.
    """
    from harness.report import claims
    from harness.report.index import collect, index

    path = Path(folder) / "index.html"
    replace(path, index(collect(folder), claims.read(folder)))
    return path


def replace(path: Path, text: str) -> None:
    """Put a whole file in the place of `path`, or leave what is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
