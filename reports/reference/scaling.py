"""Measures points, each in a process of its own, into a file of JSON lines; a second start goes on where it ended.

A point is (axis, value, code): what is varied, how much of it, and which implementation is measured.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: what tells points apart, in the order of a point
KEYS = ("axis", "value", "code")


def rise(work) -> int:
    """Bytes by which a call raises the most resident memory of this process above what it has before; 0 without /proc.

    work : callable without arguments
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _memory("VmRSS")
    work()
    return max(0, _memory("VmHWM") - before)


def _memory(name: str) -> int:
    """A line of /proc/self/status in bytes; 0 without it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def clock(work, seconds: float, least: int, most: int, before=lambda: None) -> dict:
    """Least and median CPU and wall seconds of a call, and how many calls there were.

    work : callable without arguments; repeated at least `least` times, then until `seconds` of CPU are spent or `most`
    calls made. CPU time is the whole process's. `before` is called before each, untimed.
    """
    cpu, wall = [], []
    while len(cpu) < least or (sum(cpu) < seconds and len(cpu) < most):
        before()
        w, c = time.perf_counter(), time.process_time()
        work()
        cpu.append(time.process_time() - c)
        wall.append(time.perf_counter() - w)
    middle = len(cpu) // 2
    return {
        "seconds": min(cpu), "median_seconds": sorted(cpu)[middle],
        "wall_seconds": min(wall), "median_wall_seconds": sorted(wall)[middle], "steps": len(cpu),
    }  # fmt: skip


def machine() -> dict:
    """The processor's kind and name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"machine": platform.machine(), "cpu": names[0] if names else ""}


@dataclass(frozen=True)
class Scaling:
    """A measurement of points.

    Attributes
    ----------
    script : str                     the file that runs when a point is measured
    record : Path                    the JSON lines
    plan : list of points
    case_of : (axis, value, code) -> dict     what `point` is given
    point : dict -> dict             measures a case in this process
    words : dict -> str              a line in words
    show : list of dict -> None      draws and prints what the file says
    environment : dict               variables of the points' processes
    """

    script: str
    record: Path
    plan: list[tuple[str, int, str]]
    case_of: Callable[[str, int, str], dict]
    point: Callable[[dict], dict]
    words: Callable[[dict], str]
    show: Callable[[list[dict]], None]
    environment: dict

    def lines(self) -> list[dict]:
        """What the file has. Raises ValueError for a line that is none."""
        if not self.record.exists():
            return []
        found = []
        for number, text in enumerate(self.record.read_text().splitlines(), 1):
            try:
                found.append(json.loads(text))
            except json.JSONDecodeError:
                raise ValueError(
                    f"{self.record.name}, line {number}: expected a JSON object, found {text[:40]!r}; delete the line"
                ) from None
        return found

    def measure(self) -> int:
        """Measure what the file lacks; returns the exit code: 1 when a point fails."""
        done = {tuple(line[key] for key in KEYS) for line in self.lines()}
        environment = os.environ | self.environment | {"PYTHONPATH": str(ROOT)}
        for one in self.plan:
            if one in done:
                continue
            words = [sys.executable, self.script, "--point", json.dumps(self.case_of(*one))]
            found = subprocess.run(words, env=environment, capture_output=True, text=True)
            if found.returncode:
                print(*one, (found.stderr.strip() or "no word").splitlines()[-1], file=sys.stderr)
                return 1
            line = dict(zip(KEYS, one)) | json.loads(found.stdout)
            with self.record.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(*one, self.words(line), flush=True)
        return 0

    def main(self, about: str) -> int:
        """The command line: measure, --show, and --point for the processes that it starts."""
        parser = argparse.ArgumentParser(description=about.split("\n")[0])
        parser.add_argument("--show", action="store_true", help="draw and print what the file says")
        parser.add_argument("--point", metavar="JSON", help=argparse.SUPPRESS)
        arguments = parser.parse_args()
        if arguments.point:
            print(json.dumps(self.point(json.loads(arguments.point))))
            return 0
        if arguments.show:
            self.show(self.lines())
            return 0
        return self.measure()
