"""Comparisons that really run, in a folder of their own: for tests of what arms may be."""

from pathlib import Path

import psutil

from harness import analysis, arms, comparison, records


class Measured:
    """One comparison, run to its end inside this process.

    Attributes
    ----------
    folder : Path      of the record
    entries : list     as they were written, read again from the disk
    summary : dict     computed from them
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.entries = records.read(folder)
        self.summary = analysis.summarise(self.entries)

    @property
    def word(self) -> str:
        return self.summary["verdict"]["word"]

    def of(self, kind: type, arm: str | None = None) -> list:
        return [entry for entry in records.of(self.entries, kind) if arm is None or entry.arm == arm]


def compare(project: Path, a: str, b: str, *, keep_going: bool = False, heard: list | None = None, **overrides):
    """`harness ab A B` in a project, quietly; overrides are scenario keys with _ _ for the dot: schedule__pairs=1."""
    settings = {"schedule.pairs": 1, "schedule.seed": 1}
    settings |= {key.replace("__", "."): value for key, value in overrides.items()}
    resolved = arms.resolve(a, b, start=project, overrides=settings)
    resolved = arms.built(resolved, (heard if heard is not None else []).append)
    return Measured(comparison.measure(resolved, command=["ab", a, b], keep_going=keep_going, quiet=True))


def left_behind(project: Path) -> list[str]:
    """Command lines of processes that still run and name a file of the project."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(project) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found
