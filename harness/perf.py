"""Hardware and kernel events of an arm, counted by `perf stat`: cycles, cache misses, branch misses, faults.

An arm that speaks the protocol is watched from after its warm-up to its last iteration, in the very run that is timed:
counting costs it nothing but a longer switch between threads. A command is run once more for it, untimed, since perf
around it would cost time; the shell that hands on its exit code is in its count, about 1 ms of CPU. (perf itself ends
with 0 when what it counts crashes.)

Events that share a counter in turns are scaled up by perf. Time is in seconds, whatever unit perf says it in; the rest
are numbers of events. Source of the format: perf-stat(1), CSV FORMAT; of the rights: Documentation/admin-guide/
perf-security.rst.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from functools import lru_cache

from harness import load
from harness.errors import sentence
from harness.process import guarded

#: seconds that perf may take to answer
PATIENCE = 10.0
_SEPARATOR = ";"  # names of events may hold commas
_UNITS = {"msec": 1e-3, "ns": 1e-9, "nsec": 1e-9, "usec": 1e-6, "sec": 1.0}


def parse(text: str) -> dict[str, float]:
    """What `perf stat -x;` counted, by event; those that it could not count are absent."""
    found = {}
    for line in text.splitlines():
        fields = line.split(_SEPARATOR)
        if len(fields) < 3 or line.startswith("#"):
            continue
        with contextlib.suppress(ValueError):  # <not supported>, <not counted>
            found[fields[2]] = float(fields[0]) * _UNITS.get(fields[1], 1.0)
    return found


def _words(events: Iterable[str]) -> list[str]:
    return ["perf", "stat", f"-x{_SEPARATOR}", *(word for event in events for word in ("-e", event))]


def command(events: Iterable[str], file: str | os.PathLike, words: list[str]) -> list[str]:
    """`words` under perf, which writes its counts to `file` and ends with the exit code of `words`."""
    return [*_words(events), "-o", str(file), "--", "sh", "-c", '"$@"; exit $?', "sh", *words]


@lru_cache(maxsize=16)
def readable(events: tuple[str, ...], proc: str = "/proc") -> tuple[tuple[str, ...], str]:
    """Which events can be counted here, and one sentence on those that cannot; empty when all can.

    It is tried, on `true`: whether the machine has the counters and this user the right to them is nowhere else said.
    """
    names = ", ".join(events)
    if shutil.which("perf") is None:
        return (), sentence(
            f"perf events {names}", "the program 'perf'", "none on PATH", "install it (apt-get install linux-perf)"
        )
    done = _run([*_words(events), "--", "true"])
    if done.returncode != 0:
        said = next((line.strip() for line in done.stderr.splitlines() if line.strip()), f"code {done.returncode}")
        paranoid = (load.read(f"{proc}/sys/kernel/perf_event_paranoid") or b"?").decode().strip()
        return (), sentence(
            f"perf events {names}",
            "events that perf can count",
            f"'{said[:200]}' (perf_event_paranoid = {paranoid})",
            "see `perf list`, or sudo sysctl kernel.perf_event_paranoid=1",
        )
    counted = parse(done.stderr)
    missing = [event for event in events if event not in counted]
    if not missing:
        return events, ""
    return tuple(event for event in events if event in counted), sentence(
        f"perf events {', '.join(missing)}",
        "counters of the processor",
        "none that this machine shows",
        "a virtual machine has them when its host lets it; software events such as page-faults need none",
    )


def _run(words: list[str]) -> subprocess.CompletedProcess:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


class Watch:
    """Counts events of processes, of their threads and of the children that they have from then on.

    Parameters
    ----------
    pids : process ids
    events : names that `readable` returned

    `stop` returns the counts since `start`, empty when perf gave none. A context manager: it ends perf.
    """

    def __init__(self, pids: Iterable[int], events: Iterable[str]):
        asks, self._asks = os.pipe()
        self._hears, says = os.pipe()
        handles = [*_words(events), "-D", "-1", "--control", f"fd:{asks},{says}", "-p", ",".join(map(str, pids))]
        try:
            with guarded():
                self._perf = subprocess.Popen(
                    handles,
                    pass_fds=(asks, says),
                    env={**os.environ, "LC_ALL": "C"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
        finally:
            os.close(asks)
            os.close(says)

    def _ask(self, word: str) -> None:
        """Perf ends by itself when the processes are gone: then there is nobody to ask, and no answer."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._asks, word.encode() + b"\n")
            os.read(self._hears, 16)

    def start(self) -> None:
        """Count from now on."""
        self._ask("enable")

    def stop(self) -> dict[str, float]:
        """End the counting; event -> number."""
        self._ask("disable")
        self._perf.send_signal(signal.SIGINT)
        try:
            return parse(self._perf.communicate(timeout=PATIENCE)[1])
        except subprocess.TimeoutExpired:
            return {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in (self._asks, self._hears):
            os.close(handle)
        if self._perf.poll() is None:
            self._perf.kill()
        self._perf.communicate()
