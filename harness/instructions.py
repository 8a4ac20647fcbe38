"""How many instructions an arm executes, counted by callgrind: a metric that noise does not reach.

Run with a fixed hash seed, without address randomisation and with one thread for its linear algebra, a Python program
counts nearly the same to the instruction. What still varies depends on the time, on pids or on threads that spin while
they wait, as OpenBLAS's do from `import numpy` on. Everything is about 50 times slower meanwhile, and the count knows
nothing of caches, of waiting or of the kernel's work: a ratio of instructions is not one of times.

Processes that an arm starts by exec count; those that it only forks do not, since callgrind cannot tell a forked
process's own instructions from those that it inherited. Source: Callgrind manual, Valgrind 3.19.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import protocol
from harness.errors import UnfitError, sentence
from harness.process import ArmProcess, VoidSlot, temporary

#: how much longer an arm may take under callgrind
SLOWDOWN = 100.0
#: what keeps a count the same from run to run
FIXED = {"PYTHONHASHSEED": "0", "HARNESS_COUNTS_INSTRUCTIONS": "1"}
#: the same, unless somebody has set it
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Count:
    """What was counted.

    Attributes
    ----------
    instructions : float   of one steady iteration (protocol arms), or of the whole command
    forked : int           processes that were only forked and are not in it
    """

    instructions: float
    forked: int


def available() -> bool:
    """Whether callgrind is installed."""
    return shutil.which("valgrind") is not None


def count(
    command: list[str],
    *,
    cwd: str | os.PathLike,
    environment: Mapping[str, str | None],
    speaks_protocol: bool,
    timeout: float,
    warmup: int = 1,
    stdin: str | os.PathLike | None = None,
) -> Count:
    """Count one run; the caller makes three and compares them.

    A protocol arm runs twice, with one and with two steady iterations: the difference is one iteration, whatever
    set-up and warm-up cost.

    Parameters
    ----------
    timeout : s             the scenario's, lengthened here by SLOWDOWN
    stdin : path or None    a file for a command's standard input; None: empty

    Raises
    ------
    UnfitError            valgrind is not installed
    ConfigurationError    the arm says that its input is wrong
    VoidSlot              the arm fails, or says nothing that can be counted
    """
    if not available():
        raise UnfitError(
            sentence("metric 'instructions'", "valgrind", "none on PATH", "install it (apt-get install valgrind)")
        )
    alone = {name: value for name, value in ONE_THREAD.items() if name not in os.environ}
    overlay = {**alone, **environment, **FIXED}
    if not speaks_protocol:
        return _run(command, cwd, overlay, None, warmup, timeout, stdin)
    one = _run(command, cwd, overlay, 1, warmup, timeout)
    two = _run(command, cwd, overlay, 2, warmup, timeout)
    return Count(two.instructions - one.instructions, two.forked)


def _run(command, cwd, environment, iterations: int | None, warmup: int, timeout: float, stdin=None) -> Count:
    """The whole process's count; iterations None: a command."""
    patience = timeout * SLOWDOWN
    folder = tempfile.mkdtemp(prefix="harness-callgrind-")
    with temporary(folder):
        words = [
            "valgrind",
            "--tool=callgrind",
            "--trace-children=yes",
            "--callgrind-out-file=/dev/null",
            f"--log-file={folder}/%p",
            *command,
        ]
        with ArmProcess(
            words,
            cwd=cwd,
            environment=environment,
            speaks_protocol=iterations is not None,
            stdin=stdin,
            fixed_layout=True,
        ) as process:
            if iterations is None:
                process.wait(patience)
            else:
                process.header(patience)
                process.ask(protocol.Setup(), patience)
                for phase in ["warmup"] * warmup + ["steady"] * iterations:
                    process.ask(protocol.Iterate(phase), patience)
                process.close(patience)
        return _read_logs(Path(folder))


def _read_logs(folder: Path) -> Count:
    total, forked, found = 0, 0, False
    for path in sorted(folder.iterdir()):
        text = path.read_text(errors="replace")
        if "For interactive control" not in text:  # said once, when a program is started by exec
            forked += 1
            continue
        for line in text.splitlines():
            if "Collected :" in line:
                total += int(line.rpartition(":")[2])
                found = True
    if not found:
        raise VoidSlot("protocol", "expected a count from callgrind, found none in its log")
    return Count(float(total), forked)
