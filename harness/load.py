"""Load on the machine around a unit: who used the processors, in cores, and by what method this is known.

Own is the harness with everything that descends from it. Foreign is what other *user* processes used; kernel threads,
interrupts, time stolen by the hypervisor and what nobody can be named for stand in columns of their own. Foreign is
never "busy minus own" where processes can be seen: kernel work that an arm's own input and output causes would be
charged to somebody else.

Methods, the best first; each entry names the one that was used:

cgroup          the machine's total comes from the root of the cgroup tree (v1 cpuacct: to the nanosecond, from
                scheduling events; v2: to the microsecond), processes from /proc with the correction for reaped children
proc+children   the same with the total from /proc/stat, in ticks of 10 ms
stat-only       in a container: other people's processes cannot be seen, foreign is the machine's busy time minus own
totals          no /proc (macOS): as stat-only, from the system's totals

Correction for reaped children: a parent that waits for a child takes over the child's time (cutime, cstime). So what a
process's children used in the window is the growth of these, minus what those of them that were alive at the first
scan had used by then. Processes are known by (pid, start time): pids are used again. Children that nobody waits
for and that live between two scans leave no trace but the total: they are `unattributed`.

A scan costs about 15 µs of CPU a process and belongs outside every timed window; `counters` cost about 30 µs.
Source of the fields: proc(5); Documentation/admin-guide/cgroup-v1/cpuacct.rst, cgroup-v2.rst, accounting/psi.rst.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from harness import gpu

_PF_KTHREAD = 0x00200000
_TOP = 5
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Process(NamedTuple):
    """One process as a scan saw it; times in seconds since its start."""

    pid: int
    start: int  # clock ticks after boot; with the pid it names the process
    parent: int
    state: str
    name: str
    kernel: bool
    used: float  # user and system time of all its threads
    reaped: float  # the same of the children that it waited for, theirs included
    major_faults: int  # pages that had to come from a disk, for itself and the children that it waited for


class Scan(NamedTuple):
    """The machine at one moment."""

    at: float  # s, monotonic
    processes: dict[tuple[int, int], Process]
    busy: float | None  # s, machine total without idle, iowait, irq, softirq and steal
    irq: float | None  # s, irq and softirq
    steal: float | None  # s
    io_wait: float | None  # s that processors were idle while somebody waited for a disk
    total: float | None  # s, root of the cgroup tree: all tasks
    own: float | None  # s, what this process and everything below it used, by clocks instead of ticks
    psi_cpu: float | None  # s in which some task waited for a processor
    psi_own: float | None  # the same of the tasks in the own cgroup
    throttled: float | None  # s that the own cgroup was held back by its quota
    runq_wait: float | None  # s, of the own processes
    involuntary_switches: int | None  # how often own threads were put off a processor
    major_faults: int | None  # of the own processes
    frequency_mhz: float | None
    temperature_c: float | None
    gpus: list[dict]  # clock, power, temperature, foreign users of every device, see gpu.py
    cost: float  # CPU seconds of this scan


def read(path: str) -> bytes | None:
    """A small file of /proc or /sys, or None where it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = chunk = os.read(handle, 65536)
        while len(chunk) == 65536:
            chunk = os.read(handle, 65536)
            content += chunk
        return content
    except OSError:
        return None
    finally:
        os.close(handle)


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """One process from its stat file, or None when it is gone."""
    text = read(f"{proc}/{pid}/stat")
    if not text:
        return None
    end = text.rfind(b")")
    fields = text[end + 2 :].split()
    if len(fields) < 20:
        return None
    parent = int(fields[1])
    return Process(
        pid=pid,
        start=int(fields[19]),
        parent=parent,
        state=fields[0].decode(),
        name=text[text.find(b"(") + 1 : end].decode("utf-8", "replace"),
        kernel=bool(int(fields[6]) & _PF_KTHREAD) or pid == 2 or parent == 2,
        used=(int(fields[11]) + int(fields[12])) / _TICK,
        reaped=(int(fields[13]) + int(fields[14])) / _TICK,
        major_faults=int(fields[9]) + int(fields[10]),
    )


def processes(proc: str = "/proc", youngest_first: bool = False) -> list[Process]:
    """Every process that can be seen, read by ascending pid, or by descending."""
    pids = sorted((int(name) for name in _listed(proc) if name.isdigit()), reverse=youngest_first)
    found = (read_process(pid, proc) for pid in pids)
    return [process for process in found if process is not None]


def descendants(found: Iterable[Process], roots: Iterable[int]) -> set[int]:
    """Pids of the roots and of everything below them."""
    children: dict[int, list[int]] = {}
    present = set()
    for process in found:
        present.add(process.pid)
        children.setdefault(process.parent, []).append(process.pid)
    reached: set[int] = set()
    waiting = [pid for pid in roots if pid in present]
    while waiting:
        pid = waiting.pop()
        if pid not in reached:
            reached.add(pid)
            waiting.extend(children.get(pid, ()))
    return reached


class Sampler:
    """Looks at the machine before and after a unit.

    Parameters
    ----------
    proc, sys : str     roots of the two file systems; others than the machine's own in tests
    method : str        "cgroup", "proc+children", "stat-only" or "totals"; None: the best that works here
    gpus : gpu.Gpus     None: the machine's own, none beside other roots
    """

    def __init__(self, proc: str = "/proc", sys: str = "/sys", method: str | None = None, gpus: gpu.Gpus | None = None):
        self._proc, self._sys = proc, sys
        self._total = _TotalOfCgroups(proc, sys)
        self._throttled = _own_throttling(proc, sys)
        self._own_pressure = _own_pressure(proc, sys)
        self._frequencies = _existing(f"{sys}/devices/system/cpu", "cpu", "cpufreq/scaling_cur_freq")
        self._temperatures = _existing(f"{sys}/class/thermal", "thermal_zone", "temp")
        self._psi = read(f"{proc}/pressure/cpu") is not None
        self._gpus = gpus if gpus is not None else gpu.Gpus() if proc == "/proc" else None
        self.method = method or self._best_method()

    def _best_method(self) -> str:
        if not os.path.exists(f"{self._proc}/stat"):
            return "totals"
        kthreadd = read_process(2, self._proc)
        if kthreadd is None or not kthreadd.kernel:
            return "stat-only"  # a pid namespace of our own: the machine's other processes are hidden
        return "cgroup" if self._total.read() is not None else "proc+children"

    def scan(self, own_roots: Iterable[int] | None = None, *, closing: bool = False) -> Scan:
        """Look at everything; outside timed windows only.

        A process may end, and its parent take over its time, while both are read. So the scan that opens a window reads
        children before parents, who then have at least what is known of the dead, and the one that closes it parents
        before children, who then have not got what is still counted for the living.

        Parameters
        ----------
        closing : bool      whether a window ends here
        own_roots : pids    whose run-queue wait is wanted, with everything below them; None: this process, whose
                            time is then known by clocks instead of ticks as well
        """
        begin = time.thread_time()
        times = self._machine_times()
        found = (
            {}
            if self.method == "totals"
            else {(p.pid, p.start): p for p in processes(self._proc, youngest_first=not closing)}
        )
        at = time.monotonic()
        own = descendants(found.values(), [os.getpid()] if own_roots is None else own_roots)
        by_clocks = _own_by_clocks(found.values(), own) if self._proc == "/proc" and own_roots is None else None
        return Scan(
            at=at,
            processes=found,
            busy=times[0],
            irq=times[1],
            steal=times[2],
            io_wait=times[3],
            total=self._total.read() if self.method == "cgroup" else None,
            own=by_clocks,
            psi_cpu=_pressure(f"{self._proc}/pressure/cpu") if self._psi else None,
            psi_own=_pressure(self._own_pressure) if self._own_pressure else None,
            throttled=self._throttled() if self._throttled else None,
            runq_wait=self._runq_wait(own),
            involuntary_switches=self._switches(own, own_roots is None),
            major_faults=sum(p.major_faults for p in found.values() if p.pid in own) if found else None,
            frequency_mhz=_mean(self._frequencies, 1e-3),
            temperature_c=_largest(self._temperatures, 1e-3),
            gpus=self._gpus.read(own) if self._gpus else [],
            cost=time.thread_time() - begin,
        )

    def difference(self, before: Scan, after: Scan, own_roots: Iterable[int], own_cpu: float | None = None) -> dict:
        """What was used between two scans, in cores.

        Parameters
        ----------
        own_roots : pids         the harness; with it everything that descends from it is own
        own_cpu : float, s       the own time where the caller knows it better

        Returns
        -------
        dict                     the fields of records.Load but unit, arm and position
        """
        elapsed = max(after.at - before.at, 1e-9)
        shares = attribute(before, after, own_roots)
        own = own_cpu
        if own is None and list(own_roots) == [os.getpid()]:
            own = _growth(before.own, after.own)
        if own is None:
            own = shares.own
        irq, steal = _growth(before.irq, after.irq), _growth(before.steal, after.steal)
        busy = _growth(before.busy, after.busy)
        foreign, kthread, unattributed = shares.foreign, shares.kthread, None
        if self.method in ("stat-only", "totals"):
            kthread = None
            foreign = None if busy is None else max(0.0, busy - own)
        else:
            total = self._total.growth(before, after) if self.method == "cgroup" else busy
            if total is not None:
                unattributed = total - own - foreign - kthread
        cores = {
            "own": own,
            "foreign": foreign,
            "kthread": kthread,
            "irq": irq,
            "steal": steal,
            "unattributed": unattributed,
            "busy": None if busy is None else busy + (irq or 0.0),
            "io_wait": _growth(before.io_wait, after.io_wait),
            "psi_cpu": _growth(before.psi_cpu, after.psi_cpu),
            "psi_own": _growth(before.psi_own, after.psi_own),
            "runq_wait": _growth(before.runq_wait, after.runq_wait),
        }
        named = [
            {"name": process.name, "pid": process.pid, "cores": used / elapsed}
            for process, used in sorted(shares.by_process, key=lambda pair: -pair[1])[:_TOP]
            if used > 0
        ]
        return {
            "method": self.method,
            "elapsed": elapsed,
            **{name: None if value is None else value / elapsed for name, value in cores.items()},
            "throttled": _growth(before.throttled, after.throttled),
            "involuntary_switches": _growth(before.involuntary_switches, after.involuntary_switches),
            "major_faults": _growth(before.major_faults, after.major_faults),
            "frequency_mhz": after.frequency_mhz,
            "temperature_c": after.temperature_c,
            "gpus": after.gpus,
            "top": named,
            "sampler_seconds": before.cost + after.cost,
        }

    def counters(self, pids: Iterable[int]) -> dict[str, float]:
        """Cumulative counters that are cheap enough to stand around one pair; what cannot be read is absent.

        at, usage (all tasks of the machine), runq_wait (of the threads of `pids`), steal, psi_cpu; seconds.
        """
        _, _, steal, _ = self._machine_times()
        found = {
            "at": time.monotonic(),
            "usage": self._total.read(),
            "runq_wait": self._runq_wait(pids),
            "steal": steal,
            "psi_cpu": _pressure(f"{self._proc}/pressure/cpu") if self._psi else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _machine_times(self) -> tuple[float | None, ...]:
        """busy (user, nice, system), irq with softirq, steal, iowait; seconds since boot."""
        if self.method == "totals":
            return _totals()
        try:
            handle = os.open(f"{self._proc}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None, None, None, None
        try:
            line = os.read(handle, 256).split(b"\n", 1)[0]
        finally:
            os.close(handle)
        ticks = [int(field) / _TICK for field in line.split()[1:9]]
        ticks += [0.0] * (8 - len(ticks))
        user, nice, system, _, waiting, irq, softirq, steal = ticks
        return user + nice + system, irq + softirq, steal, waiting

    def _switches(self, pids: Iterable[int], with_the_dead: bool) -> int | None:
        """How often threads were put off a processor; with the children that this process waited for, or without."""
        found, seen = 0, False
        for pid in pids:
            for thread in _listed(f"{self._proc}/{pid}/task"):
                text = read(f"{self._proc}/{pid}/task/{thread}/status") or b""
                start = text.find(b"nonvoluntary_ctxt_switches:")
                if start >= 0:
                    found += int(text[start + 27 :].split(None, 1)[0])
                    seen = True
        if seen and with_the_dead and self._proc == "/proc":
            import resource

            found += resource.getrusage(resource.RUSAGE_CHILDREN).ru_nivcsw
        return found if seen else None

    def _runq_wait(self, pids: Iterable[int]) -> float | None:
        """Time that living threads were runnable and did not run, s; None where the kernel does not count it."""
        waited, seen = 0, False
        for pid in pids:
            for thread in _listed(f"{self._proc}/{pid}/task"):
                fields = (read(f"{self._proc}/{pid}/task/{thread}/schedstat") or b"").split()
                if len(fields) >= 2:
                    waited += int(fields[1])
                    seen = True
        return waited * 1e-9 if seen else None


def between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What `counters` grew by, in cores: usage, runq_wait, steal, psi_cpu."""
    elapsed = max(after["at"] - before["at"], 1e-9)
    return {name: max(0.0, after[name] - before[name]) / elapsed for name in after if name != "at" and name in before}


# ------------------------------------------------------------------------------------------------- attribution


class Shares(NamedTuple):
    """Who used how many CPU seconds between two scans."""

    own: float
    foreign: float
    kthread: float
    by_process: list[tuple[Process, float]]  # foreign ones, with the children that each waited for


def attribute(before: Scan, after: Scan, own_roots: Iterable[int]) -> Shares:
    """Divide the time that processes used between two scans among own, foreign and kernel threads."""
    own_roots = set(own_roots)
    first = {process.pid: process for process in before.processes.values()}
    last = {process.pid: process for process in after.processes.values()}
    own = descendants(before.processes.values(), own_roots)
    own_after = descendants(after.processes.values(), own_roots)
    used: dict[int, float] = {}
    grown: dict[int, float] = {}
    for key, process in after.processes.items():
        old = before.processes.get(key)
        used[process.pid] = process.used - (old.used if old else 0.0)
        grown[process.pid] = process.reaped - (old.reaped if old else 0.0)

    # What the dead had used before the window is inside the reaped time of whoever waited for them.
    for key, process in before.processes.items():
        if key in after.processes:
            continue
        debt = process.used + process.reaped
        heir, orphaned = _heir(process, first, after)
        # an orphan went to pid 1, or to the harness, where no ancestor that lives took it over; a child that its
        # living parent did not wait for left nothing behind, so nothing is taken off for it
        heirs = [heir, 1, *(own_roots if process.pid in own else ())] if orphaned else [heir]
        for pid in dict.fromkeys(heirs):
            paid = min(debt, max(0.0, grown.get(pid, 0.0)))
            debt -= paid
            if paid:
                grown[pid] -= paid

    # Pids that began anew defeat the order of reading. More than all processors have is nobody's work in a window:
    # without this limit and the order, 21 of 20,000 windows beside a build held the past of a compiler that ended as
    # it was read: 105 s in one of 15 ms.
    most = (os.cpu_count() or 1) * (after.at - before.at) + 2 / _TICK
    grown = {pid: amount if amount <= most else 0.0 for pid, amount in grown.items()}

    shares = {"own": 0.0, "foreign": 0.0, "kthread": 0.0}
    by_process = []
    for pid, process in last.items():
        amount = max(0.0, used[pid]) + max(0.0, grown[pid])
        was_there = (process.pid, process.start) in before.processes
        if process.kernel:
            shares["kthread"] += amount
        elif pid in own_after or (was_there and pid in own):
            shares["own"] += amount
        else:
            shares["foreign"] += amount
            by_process.append((process, amount))
    return Shares(**shares, by_process=by_process)


def _heir(dead: Process, first: dict[int, Process], after: Scan) -> tuple[int, bool]:
    """The nearest ancestor that outlived the window, by the first scan's tree; and whether others died before it."""
    seen = set()
    parent = first.get(dead.parent)
    while parent is not None and parent.pid not in seen:
        if (parent.pid, parent.start) in after.processes:
            return parent.pid, bool(seen)
        seen.add(parent.pid)
        parent = first.get(parent.parent)
    return 1, True


def _growth(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _own_by_clocks(found: Iterable[Process], own: set[int]) -> float:
    """What this process, its waited-for children and its living descendants have used, s.

    What dies in between goes from its own clock to the account of waited-for children, so growth is exact; only what
    living descendants waited for is in ticks.
    """
    import resource

    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + children.ru_utime + children.ru_stime
    for process in found:
        if process.pid in own and process.pid != os.getpid():
            used += process.reaped + cpu_clock(process.pid, process.used)
    return used


def cpu_clock(pid: int, otherwise: float) -> float:
    """CPU seconds of a process and all its threads by its clock, see clock_getcpuclockid(3); 2 µs."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) * 1e-9
    except OSError:
        return otherwise


# ------------------------------------------------------------------------------------------------- sources


class _TotalOfCgroups:
    """CPU seconds of all tasks of the machine from the root of the cgroup tree; None where there is no such root."""

    def __init__(self, proc: str, sys: str):
        self._path, self._unit = None, 1.0
        for mount, kind, options in _mounts(proc):
            folder = sys + mount[4:] if mount.startswith("/sys/") else mount
            if kind == "cgroup" and "cpuacct" in options and os.path.exists(f"{folder}/cgroup.sane_behavior"):
                self._path, self._unit = f"{folder}/cpuacct.usage", 1e-9
                return
            # only the real root has no cgroup.type; a container's root is somebody's child
            is_root = os.path.exists(f"{folder}/cpu.stat") and not os.path.exists(f"{folder}/cgroup.type")
            if kind == "cgroup2" and is_root and self._path is None:
                self._path, self._unit = f"{folder}/cpu.stat", 1e-6

    def growth(self, before: Scan, after: Scan) -> float | None:
        """What all tasks used between two scans, interrupts apart."""
        grown = _growth(before.total, after.total)
        if grown is None or self._unit == 1e-9:
            return grown
        return grown - (_growth(before.irq, after.irq) or 0.0)  # the root of v2 counts interrupts as system time

    def read(self) -> float | None:
        """The sum until now, s; None where it cannot be read."""
        text = read(self._path) if self._path else None
        if not text:
            return None
        if self._unit == 1e-9:
            return int(text) * 1e-9
        fields = dict(line.split() for line in text.splitlines() if line.count(b" ") == 1)
        try:  # usage_usec of the root held stolen time in some kernels; its two parts never did
            return (int(fields[b"user_usec"]) + int(fields[b"system_usec"])) * 1e-6
        except (KeyError, ValueError):
            return None


def _mounts(proc: str) -> list[tuple[str, str, list[str]]]:
    """Mount point, type and super-block options of every cgroup file system."""
    found = []
    for line in (read(f"{proc}/self/mountinfo") or b"").decode("utf-8", "replace").splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) > 4 and len(rest) > 2 and rest[0].startswith("cgroup"):
            found.append((fields[4], rest[0], rest[2].split(",")))
    return found


def own_cgroups(proc: str, sys: str) -> list[tuple[str, str]]:
    """("cgroup2" or the controllers, folder) of every cgroup of this process that is mounted and readable."""
    paths = {}
    for line in (read(f"{proc}/self/cgroup") or b"").decode("utf-8", "replace").splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path
    found = []
    for mount, kind, options in _mounts(proc):
        folder = sys + mount[4:] if mount.startswith("/sys/") else mount
        for controllers, path in paths.items():
            matches = kind == "cgroup2" if not controllers else set(controllers.split(",")) <= set(options)
            if not matches:
                continue
            for candidate in (folder + path.rstrip("/"), folder):  # a namespaced mount starts at the own group
                if os.path.isdir(candidate):
                    found.append((controllers or "cgroup2", candidate))
                    break
    return found


def _own_throttling(proc: str, sys: str):
    """A function that reads for how many seconds the own cgroup was throttled, or None."""
    for kind, folder in own_cgroups(proc, sys):
        if kind == "cgroup2" or "cpu" in kind.split(","):
            text = read(f"{folder}/cpu.stat") or b""
            if b"throttled_" in text:
                return lambda path=f"{folder}/cpu.stat": _throttled(path)
    return None


def _own_pressure(proc: str, sys: str) -> str | None:
    """The file that says how long tasks of the own cgroup waited for a processor, or None."""
    for kind, folder in own_cgroups(proc, sys):
        if kind == "cgroup2" and read(f"{folder}/cpu.pressure"):
            return f"{folder}/cpu.pressure"
    return None


def _pressure(path: str) -> float | None:
    """Seconds in which some task waited, from a pressure file."""
    text = read(path) or b""
    start = text.find(b"total=")
    return int(text[start + 6 :].split(None, 1)[0]) * 1e-6 if start >= 0 else None


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _throttled(path: str) -> float | None:
    for line in (read(path) or b"").splitlines():
        if line.startswith(b"throttled_usec "):
            return int(line.split()[1]) * 1e-6
        if line.startswith(b"throttled_time "):
            return int(line.split()[1]) * 1e-9
    return None


def _totals() -> tuple[float | None, ...]:
    import psutil

    times = psutil.cpu_times()
    irq = getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
    return times.user + getattr(times, "nice", 0.0) + times.system, irq, getattr(times, "steal", 0.0), None


def _existing(folder: str, prefix: str, leaf: str) -> list[str]:
    with contextlib.suppress(OSError):
        paths = (f"{folder}/{name}/{leaf}" for name in sorted(os.listdir(folder)) if name.startswith(prefix))
        return [path for path in paths if os.path.exists(path)]
    return []


def _numbers(paths: list[str], unit: float) -> list[float]:
    texts = [read(path) for path in paths]
    return [int(text) * unit for text in texts if text and text.strip().lstrip(b"-").isdigit()]


def _mean(paths: list[str], unit: float) -> float | None:
    values = _numbers(paths, unit)
    return sum(values) / len(values) if values else None


def _largest(paths: list[str], unit: float) -> float | None:
    return max(_numbers(paths, unit), default=None)
