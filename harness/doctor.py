"""What on this machine will spoil a measurement: what it does to one, and the command that mends it.

Thresholds decide what is said here, never a verdict.
"""

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import gpu, load, machine

#: cores of foreign load, stolen cores, share of time under pressure, °C, seconds
FOREIGN, STOLEN, PRESSURE, HOT = 0.2, 0.01, 0.10, 85.0
CLOCK_STEP, SPAWN = 1e-6, 5e-3


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    name : str      what was looked at
    state : str     "ok"; "note" for what a reader should know; "harm" for what widens or shifts results here;
                    "unknown" where this machine does not say
    found : str     what was found
    effect : str    what it does to a measurement; empty when ok
    mend : str      the command or step that mends it; empty when ok
    """

    name: str
    state: str
    found: str
    effect: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Probes:
    """What can only be measured, in seconds.

    Attributes
    ----------
    clock_step : float   smallest step of the clock
    spawn : float        median time to start and collect the smallest process
    perf : bool          whether the program is there
    """

    clock_step: float
    spawn: float
    perf: bool = True


def probe() -> Probes:
    """Measure the clock's step and the price of a process; about 0.1 s."""
    steps = []
    for _ in range(200):
        begin = time.perf_counter_ns()
        while (now := time.perf_counter_ns()) == begin:
            pass
        steps.append((now - begin) * 1e-9)
    spawns = []
    for _ in range(15):
        begin = time.perf_counter()
        subprocess.run(["true"], check=True, stdin=subprocess.DEVNULL)
        spawns.append(time.perf_counter() - begin)
    return Probes(min(steps), statistics.median(spawns), shutil.which("perf") is not None)


def examine(
    proc: str = "/proc",
    sys: str = "/sys",
    *,
    wait: Callable[[], None] = lambda: time.sleep(1.0),
    probes: Probes | None = None,
    gpus: gpu.Gpus | None = None,
) -> list[Finding]:
    """Look at everything; findings in a fixed order, the good ones among them.

    Parameters
    ----------
    proc, sys : str    roots of the two file systems; others than the machine's own in tests
    wait : callable    lets time pass between the two looks that rates come from
    probes : Probes    None: measured now
    gpus : gpu.Gpus    None: the machine's own
    """
    look = _Look(proc, sys, wait, probes or probe(), gpus or gpu.Gpus())
    return [check(look) for check in _CHECKS]


class _Look:
    """The machine as it is described, and what changed while waiting."""

    def __init__(self, proc: str, sys: str, wait: Callable[[], None], probes: Probes, gpus: gpu.Gpus):
        self.proc, self.sys, self.probes, self.gpus = proc, sys, probes, gpus.describe()
        sampler = load.Sampler(proc, sys, gpus=gpus)
        before, swapped, throttled = sampler.scan(), self._swapped_in(), self._throttle_count()
        wait()
        after = sampler.scan(closing=True)
        self.load = sampler.difference(before, after, [os.getpid()])
        self.swapped_in = self._swapped_in() - swapped
        self.heat_throttled = self._throttle_count()
        self.heat_throttled_now = self.heat_throttled - throttled
        self.about = machine.describe(proc, sys)

    def text(self, path: str) -> str | None:
        content = load.read(path)
        return content.decode("utf-8", "replace").strip() if content is not None else None

    def _swapped_in(self) -> int:
        for line in (self.text(f"{self.proc}/vmstat") or "").splitlines():
            if line.startswith("pswpin "):
                return int(line.split()[1])
        return 0

    def _throttle_count(self) -> int:
        paths = Path(f"{self.sys}/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        return sum(int(text) for path in paths if (text := self.text(str(path))))


# ------------------------------------------------------------------------------------------------- processors


def _governor(look: _Look) -> Finding:
    found = look.about["governor"]
    if found is None:
        return Finding(
            "governor",
            "unknown",
            "the driver does not say",
            "the clock may follow the load; a virtual machine's is set by its host",
            "ask whoever runs the host",
        )
    if found == "performance":
        return Finding("governor", "ok", found)
    return Finding(
        "governor",
        "harm",
        found,
        "the clock rises only under load: a short iteration runs at the speed that the pause before it left",
        "sudo cpupower frequency-set -g performance",
    )


def _turbo(look: _Look) -> Finding:
    found = look.about["turbo"]
    if found is None:
        return Finding(
            "turbo", "unknown", "the driver does not say", "boost may come and go with heat", "ask the firmware's setup"
        )
    if not found:
        return Finding("turbo", "ok", "off")
    intel = load.read(f"{look.sys}/devices/system/cpu/intel_pstate/no_turbo") is not None
    return Finding(
        "turbo",
        "note",
        "on",
        "the clock depends on temperature and on how many cores are busy; pairs cancel most of it",
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
        if intel
        else "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost",
    )


def _smt(look: _Look) -> Finding:
    found = look.about["smt"]
    if found != "on":
        return Finding("smt", "ok", {None: "no siblings", "notsupported": "not supported"}.get(found, found))
    return Finding(
        "smt",
        "note",
        "on",
        "whoever runs on the sibling of a core takes up to half of its speed, in CPU time too",
        "echo off | sudo tee /sys/devices/system/cpu/smt/control, or pin an arm to a core whose sibling is idle",
    )


def _cores(look: _Look) -> Finding:
    limits = look.about["cgroup"]
    usable = min(len(look.about["affinity"] or []) or look.about["cores"], look.about["cores"])
    if limits.get("cpuset"):
        usable = min(usable, len(limits["cpuset"]))
    if usable >= 2:
        return Finding("cores", "ok", f"{usable} usable")
    return Finding(
        "cores",
        "harm",
        "1 usable",
        "the arm shares its core with the harness and everything else; mode duet is impossible",
        "run where two cores are allowed: taskset -c 0,1, or more cores for the container",
    )


def _quota(look: _Look) -> Finding:
    limit, throttled = look.about["cgroup"].get("cpu"), look.load["throttled"]
    if limit is None:
        return Finding("cpu quota", "ok", "none")
    said = f"{limit:g} cores" + (f", throttled for {throttled:.2f} s just now" if throttled else "")
    return Finding(
        "cpu quota",
        "harm",
        said,
        "when the quota of a period is used up everything stops, up to 100 ms at once, in wall time only",
        "remove it (docker run without --cpus; systemctl set-property UNIT CPUQuota=), or compare cpu_seconds",
    )


def _steal(look: _Look) -> Finding:
    found = look.load["steal"]
    if found is None:
        return Finding(
            "steal", "unknown", "this system does not say", "stolen time looks like slow code", "compare cpu_seconds"
        )
    if found <= STOLEN:
        return Finding("steal", "ok", f"{found:.3f} cores")
    return Finding(
        "steal",
        "harm",
        f"{found:.2f} cores",
        "the hypervisor gives these cores to others while an arm believes to run; units are set aside for it",
        "move to a machine that is not over-committed, or compare cpu_seconds",
    )


def _hypervisor(look: _Look) -> Finding:
    found = look.about["hypervisor"]
    if found is None:
        return Finding("virtual machine", "ok", "none")
    return Finding(
        "virtual machine",
        "note",
        "yes, of a host that does not say its name" if found == "unknown" else found,
        "neighbours share caches and sibling threads unseen: CPU time varies too, and steal does not show it",
        "use bare metal for effects below 2 %",
    )


# ------------------------------------------------------------------------------------------------- others


def _competitors(look: _Look) -> Finding:
    found = look.load["foreign"]
    if found is None:
        return Finding("competing processes", "unknown", "not to be seen", "foreign load cannot be told", "mount /proc")
    if found <= FOREIGN:
        return Finding("competing processes", "ok", f"{found:.2f} cores")
    names = ", ".join(f"{one['name']} ({one['pid']}) {one['cores']:.2f}" for one in look.load["top"][:3])
    return Finding(
        "competing processes",
        "harm",
        f"{found:.2f} cores" + (f": {names}" if names else ""),
        "they take time, caches and clock from the arms; pairs cancel what lasts longer than a pair",
        "stop them, or wait; limits.foreign_cores sets aside the units that they fall into",
    )


def _visibility(look: _Look) -> Finding:
    method = look.load["method"]
    if method in ("cgroup", "proc+children"):
        return Finding("foreign load", "ok", f"seen by {method}")
    return Finding(
        "foreign load",
        "note",
        f"{look.about['container'] or 'no /proc'}, seen by {method} only",
        "other people's processes are hidden: their load is known as one number, without names",
        "run outside the container, or with docker run --pid=host",
    )


def _pressure(look: _Look) -> Finding:
    found = look.load["psi_cpu"]
    if found is None:
        return Finding(
            "pressure", "note", "not counted", "the record lacks psi_cpu, the best sign of waiting", "boot with psi=1"
        )
    if found <= PRESSURE:
        return Finding("pressure", "ok", f"{found:.0%} of the time")
    return Finding(
        "pressure",
        "harm",
        f"some task waits for a core {found:.0%} of the time",
        "an arm waits as well: wall time grows, CPU time less so",
        "stop what competes, or compare cpu_seconds",
    )


# ------------------------------------------------------------------------------------------------- memory


def _memory(look: _Look) -> Finding:
    limit = look.about["cgroup"].get("memory_bytes")
    if limit is None:
        return Finding("memory limit", "ok", "none")
    used = 0
    for _, folder in load.own_cgroups(look.proc, look.sys):
        for name in ("memory.current", "memory.usage_in_bytes"):
            used = max(used, int(look.text(f"{folder}/{name}") or 0))
    said = f"{used / 2**20:.0f} of {limit / 2**20:.0f} MiB used"
    if used < 0.8 * limit:
        return Finding("memory limit", "ok", said)
    return Finding(
        "memory limit",
        "harm",
        said,
        "near its limit the group loses its page cache first and is killed last: inputs are read again and again",
        "raise the limit (docker run --memory; systemctl set-property UNIT MemoryMax=)",
    )


def _swap(look: _Look) -> Finding:
    used = look.about["swap_used_bytes"] or 0
    if look.swapped_in == 0 and used == 0:
        return Finding("swap", "ok", "none in use")
    return Finding(
        "swap",
        "harm" if look.swapped_in else "note",
        f"{used / 2**20:.0f} MiB in use" + (f", {look.swapped_in} pages read back just now" if look.swapped_in else ""),
        "an arm's pages may have to come from the disk: iterations that take many times as long",
        "sudo swapoff -a, when memory allows it",
    )


def _thp(look: _Look) -> Finding:
    found = look.about["thp"]
    if found != "always":
        return Finding("transparent huge pages", "ok", found or "none")
    return Finding(
        "transparent huge pages",
        "note",
        found,
        "whether a launch gets large pages is chance, and khugepaged works beside the arms: launches differ",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _aslr(look: _Look) -> Finding:
    found = look.about["aslr"]
    if found is None:
        return Finding(
            "address layout",
            "unknown",
            "this system does not say",
            "where every launch has the same layout, its chance effect is taken for the arms' difference",
            "mount /proc",
        )
    if found == 2:
        return Finding("address layout", "ok", "random in every launch")
    return Finding(
        "address layout",
        "harm",
        f"randomize_va_space = {found}",
        "every launch has the same layout: its chance effect of some per cent is taken for the arms' difference",
        "sudo sysctl kernel.randomize_va_space=2",
    )


# ------------------------------------------------------------------------------------------------- heat, clocks


def _heat(look: _Look) -> Finding:
    temperature = look.load["temperature_c"]
    hot = temperature is not None and temperature >= HOT
    if not hot and not look.heat_throttled_now:
        if temperature is None and not look.heat_throttled:
            return Finding("heat", "ok", "no sensor, no throttling counted")
        return Finding("heat", "ok", "no throttling" + ("" if temperature is None else f", {temperature:.0f} °C"))
    said = [] if temperature is None else [f"{temperature:.0f} °C"]
    if look.heat_throttled_now:
        said.append(f"throttled {look.heat_throttled_now} times just now")
    return Finding(
        "heat",
        "harm",
        ", ".join(said),
        "a hot processor slows itself: the later slots of a comparison are the slower ones",
        "let it cool, clean the fans, or cap the clock: sudo cpupower frequency-set -u 2GHz",
    )


def _battery(look: _Look) -> Finding:
    supplies = sorted(Path(f"{look.sys}/class/power_supply").glob("*/online"))
    mains = [look.text(str(path)) for path in supplies if look.text(str(path.with_name("type"))) == "Mains"]
    if not mains or "1" in mains:
        return Finding("power", "ok", "mains" if mains else "no battery")
    return Finding("power", "harm", "battery", "the firmware lowers the clock as it likes", "plug it in")


def _clock_source(look: _Look) -> Finding:
    found = look.about["clock_source"]
    if found in (None, "tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"):
        return Finding("clock source", "ok", found or "this system does not say")
    return Finding(
        "clock source",
        "harm",
        found,
        "every reading of the clock is a slow access to a device, about 1 µs, inside the timed window",
        "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource, if it is available",
    )


def _clock_step(look: _Look) -> Finding:
    step = look.probes.clock_step
    if step <= CLOCK_STEP:
        return Finding("clock step", "ok", f"{step * 1e9:.0f} ns")
    return Finding(
        "clock step",
        "harm",
        f"{step * 1e6:.1f} µs",
        f"an iteration under {step * 1e3:.1f} ms is known to 0.1 % at best",
        "make iterations longer",
    )


def _spawn(look: _Look) -> Finding:
    cost = look.probes.spawn
    if cost <= SPAWN:
        return Finding("spawn cost", "ok", f"{cost * 1e3:.1f} ms")
    return Finding(
        "spawn cost",
        "harm",
        f"{cost * 1e3:.1f} ms",
        f"in process mode this is part of every slot: commands under {cost * 50:.1f} s drown in it at a 2 % margin",
        "use mode resident, or longer commands; look for a virus scanner or a slow container runtime",
    )


def _capable(look: _Look, *capabilities: int) -> bool:
    """Whether this process has one of some capabilities, by number."""
    for line in (look.text(f"{look.proc}/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return any(int(line.split()[1], 16) >> number & 1 for number in capabilities)
    return False


_CAP_SYS_PTRACE, _CAP_SYS_ADMIN, _CAP_PERFMON = 19, 21, 38


def _events(look: _Look) -> Finding:
    name, found = "hardware events", []
    lost = "scenario.perf counts no cycles or cache misses: why an arm is faster stays unsaid; times do not change"
    paranoid = look.text(f"{look.proc}/sys/kernel/perf_event_paranoid")
    units = Path(f"{look.sys}/bus/event_source/devices")
    if not look.probes.perf:
        found.append(("no program perf", "sudo apt-get install linux-perf"))
    if paranoid is None:
        found.append(("the kernel counts none", "a kernel with CONFIG_PERF_EVENTS"))
    elif int(paranoid) > 2 and not _capable(look, _CAP_SYS_ADMIN, _CAP_PERFMON):
        found.append((f"perf_event_paranoid = {paranoid}", "sudo sysctl kernel.perf_event_paranoid=2"))
    if not any(units.glob("cpu*")):
        found.append(("the processor shows no counters", "a virtual machine has them when its host lets it"))
    if not found:
        return Finding(name, "ok", "can be counted")
    return Finding(name, "note", ", ".join(what for what, _ in found), lost, "; ".join(mend for _, mend in found))


def _gpus(look: _Look) -> Finding:
    name, devices = "graphics processors", look.load["gpus"]
    if not devices:
        return Finding(name, "ok", "none that NVIDIA's driver shows")
    named = [one["name"] or "?" for one in look.gpus]
    busy = [
        f"{kind} {number}: {len(one['foreign'])} other processes"
        + ("" if one["busy"] is None else f", {one['busy']:.0%} busy")
        for number, (kind, one) in enumerate(zip(named, devices))
        if one["foreign"]
    ]
    if busy:
        return Finding(
            name,
            "harm",
            "; ".join(busy),
            "they share memory and clock with the arms, and foreign load counts processors' cores only",
            "stop them (nvidia-smi names them), or choose another device: CUDA_VISIBLE_DEVICES",
        )
    return Finding(
        name,
        "note",
        ", ".join(named),
        "clock, power, temperature and other users are recorded around every unit; this was tried on a made library "
        "only, never on a machine with a device",
        "compare one record with nvidia-smi before you rely on it",
    )


def _stacks(look: _Look) -> Finding:
    scope = look.text(f"{look.proc}/sys/kernel/yama/ptrace_scope")
    if scope in (None, "0") or _capable(look, _CAP_SYS_PTRACE):
        return Finding("stacks of a hang", "ok", "may be read")
    return Finding(
        "stacks of a hang",
        "note",
        f"ptrace_scope = {scope}",
        "an arm that hangs is ended all the same, but the record has no stacks of it",
        "sudo sysctl kernel.yama.ptrace_scope=0",
    )


_CHECKS = (
    _governor,
    _turbo,
    _smt,
    _cores,
    _quota,
    _steal,
    _hypervisor,
    _competitors,
    _visibility,
    _pressure,
    _memory,
    _swap,
    _thp,
    _aslr,
    _heat,
    _battery,
    _clock_source,
    _clock_step,
    _spawn,
    _stacks,
    _events,
    _gpus,
)
