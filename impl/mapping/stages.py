"""Where a run's time goes, stage by stage, measured from outside: the call sites are wrapped, the steps know nothing.

For every stage: calls, wall, on-core (CLOCK_THREAD_CPUTIME_ID of the calling thread) and blocked = wall - on-core. The
native threads of a kernel are not the calling thread: the process's CPU less that of its Python threads is theirs. A
probe thread burns a little pure Python at a low duty; what share of the burst it waits says how contended the
interpreter lock is. On a machine with too few cores that share also holds waiting for a core, which /proc tells apart.
"""

import contextlib
import threading
import time
from pathlib import Path

from impl.mapping import checkpoint, parts
from impl.mapping.work import Work

#: stage -> where it is called
SITES = (
    ("read", Work, "read"),
    ("correct", Work, "correct"),
    ("map", Work, "map"),
    ("add", checkpoint.Levels, "insert"),
    ("fold", checkpoint.Levels, "take"),
    ("write", parts.Writer, "append"),
    ("finish part", parts.Writer, "finish"),
)


def _on_core() -> int:
    return time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)


def _queued() -> int:
    """Nanoseconds that this thread waited for a core; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class Measured:
    """Buckets a thread and stage: no lock is taken where a stage is timed."""

    def __init__(self):
        self._local, self._buckets, self._lock = threading.local(), [], threading.Lock()
        self._begin, self._cpu = time.perf_counter_ns(), time.process_time_ns()
        self.seconds = self.cpu_seconds = 0.0
        self.probe = {"burst": 0, "on_core": 0, "queued": 0, "bursts": 0}

    def _bucket(self) -> dict:
        bucket = getattr(self._local, "bucket", None)
        if bucket is None:
            bucket = self._local.bucket = {}
            with self._lock:
                self._buckets.append(bucket)
        return bucket

    def wrap(self, stage: str, function):
        """The function, timed."""

        def timed(*arguments, **named):
            wall, core, queued = time.perf_counter_ns(), _on_core(), _queued()
            try:
                return function(*arguments, **named)
            finally:
                entry = self._bucket().setdefault(stage, [0, 0, 0, 0])
                entry[0] += 1
                entry[1] += time.perf_counter_ns() - wall
                entry[2] += _on_core() - core
                entry[3] += _queued() - queued

        return timed

    def _burn(self, ended: threading.Event, burst_ns: int = 20_000_000, pause: float = 0.23) -> None:
        while not ended.wait(pause):
            wall, core, queued = time.perf_counter_ns(), _on_core(), _queued()
            while _on_core() - core < burst_ns:
                pass
            self.probe["burst"] += time.perf_counter_ns() - wall
            self.probe["on_core"] += _on_core() - core
            self.probe["queued"] += _queued() - queued
            self.probe["bursts"] += 1

    def stop(self) -> None:
        """End of what is measured."""
        self.seconds = (time.perf_counter_ns() - self._begin) * 1e-9
        self.cpu_seconds = (time.process_time_ns() - self._cpu) * 1e-9

    def report(self, frames: int, seconds: float) -> dict:
        """{"stages": [{stage, calls, wall, on_core, blocked, queued, ms_per_frame}], …}, times in seconds.

        native_seconds is CPU that no wrapped Python call, nor the probe, used: the kernel's own threads and the rest.
        """
        with self._lock:
            totals = {}
            for bucket in self._buckets:
                for stage, entry in list(bucket.items()):
                    sums = totals.setdefault(stage, [0, 0, 0, 0])
                    for k, value in enumerate(entry):
                        sums[k] += value
        stages = []
        for stage, _, _ in SITES:
            if stage in totals:
                calls, wall, core, queued = totals[stage]
                stages.append({
                    "stage": stage, "calls": calls, "wall": wall * 1e-9, "on_core": core * 1e-9,
                    "blocked": (wall - core) * 1e-9, "queued": queued * 1e-9,
                    "ms_per_frame": core * 1e-6 / max(frames, 1),
                })  # fmt: skip
        python = sum(stage["on_core"] for stage in stages) + self.probe["on_core"] * 1e-9
        waited = self.probe["burst"] - self.probe["on_core"]
        return {
            "stages": stages,
            "seconds": seconds,
            "cpu_seconds": self.cpu_seconds,
            "cores": self.cpu_seconds / self.seconds if self.seconds else 0.0,
            "native_seconds": self.cpu_seconds - python,
            "lock_waited": waited / self.probe["burst"] if self.probe["burst"] else None,
            "lock_waited_without_queue": (
                max(0, waited - self.probe["queued"]) / self.probe["burst"] if self.probe["burst"] else None
            ),
            "bursts": self.probe["bursts"],
        }


@contextlib.contextmanager
def measured(probe: bool = True):
    """Within it every stage is timed; yields a Measured. Call sites are put back afterwards, whatever happens."""
    found = Measured()
    originals = [(owner, name, getattr(owner, name)) for _, owner, name in SITES]
    ended = threading.Event()
    thread = threading.Thread(target=found._burn, args=(ended,), name="probe", daemon=True)
    for (stage, owner, name), (_, _, function) in zip(SITES, originals):
        setattr(owner, name, found.wrap(stage, function))
    try:
        if probe:
            thread.start()
        yield found
    finally:
        ended.set()
        if probe:
            thread.join()
        found.stop()
        for owner, name, function in originals:
            setattr(owner, name, function)


def table(report: dict) -> list[str]:
    """The report as lines of text."""
    lines = [f"{'stage':12} {'calls':>7} {'wall s':>9} {'on-core s':>9} {'blocked s':>9} {'ms/frame':>9}"]
    for s in report["stages"]:
        times = " ".join(f"{s[name]:9.2f}" for name in ("wall", "on_core", "blocked", "ms_per_frame"))
        lines.append(f"{s['stage']:12} {s['calls']:7} {times}")
    words = f"{report['cores']:.2f} cores in use; {report['native_seconds']:.2f} s of CPU outside these calls"
    if report["lock_waited"] is not None:
        words += (
            f"; the probe waited {report['lock_waited']:.0%} of its bursts, {report['lock_waited_without_queue']:.0%} "
            "without waiting for a core"
        )
    return [*lines, words]
