"""Which machine this is: what a reader of a record must know to believe or repeat its times.

Sizes are bytes, frequencies MHz. What cannot be read is None. The machine's name is hashed: records are published.
"""

import hashlib
import os
import platform
import time
from pathlib import Path

from harness import gpu, load


def describe(proc: str = "/proc", sys: str = "/sys") -> dict:
    """Everything about the machine that changes speed, as plain values for a record.

    Parameters
    ----------
    proc, sys : str   roots of the two file systems; others than the machine's own in tests
    """
    cpuinfo = _cpuinfo(proc)
    return {
        "hostname_hash": hashlib.sha256(platform.node().encode()).hexdigest()[:12],
        "os": _os_name(),
        "kernel": _text(f"{proc}/sys/kernel/osrelease") or platform.release(),
        "architecture": platform.machine(),
        "cpu": cpuinfo.get("model name") or cpuinfo.get("Model") or platform.processor() or None,
        "cores": _online(sys) or os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "smt": _text(f"{sys}/devices/system/cpu/smt/control"),
        "caches": caches(sys),
        "memory_bytes": _meminfo(proc).get("MemTotal"),
        "swap_bytes": _meminfo(proc).get("SwapTotal"),
        "swap_used_bytes": _swap_used(proc),
        "governor": governor(sys),
        "turbo": turbo(sys),
        "frequency_mhz": _frequency(sys, cpuinfo),
        "hypervisor": hypervisor(proc, sys),
        "container": container(proc),
        "cgroup": cgroup_limits(proc, sys),
        "thp": chosen(f"{sys}/kernel/mm/transparent_hugepage/enabled"),
        "aslr": _number(f"{proc}/sys/kernel/randomize_va_space"),
        "clock_source": _text(f"{sys}/devices/system/clocksource/clocksource0/current_clocksource"),
        "clock_resolution_seconds": time.get_clock_info("perf_counter").resolution,
        "load_average": _load_average(proc),
        "gpus": gpu.Gpus().describe() if proc == "/proc" else [],
    }


def _text(path: str) -> str | None:
    content = load.read(path)
    return content.decode("utf-8", "replace").strip() if content is not None else None


def _number(path: str) -> int | None:
    text = _text(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def chosen(path: str) -> str | None:
    """The choice in brackets of a file such as `always [madvise] never`."""
    text = _text(path) or ""
    start, end = text.find("["), text.find("]")
    return text[start + 1 : end] if 0 <= start < end else None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.platform(terse=True)


def _cpuinfo(proc: str) -> dict[str, str]:
    """The first processor's fields."""
    fields = {}
    for line in (_text(f"{proc}/cpuinfo") or "").splitlines():
        if not line.strip() and fields:
            break
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def _meminfo(proc: str) -> dict[str, int]:
    fields = {}
    for line in (_text(f"{proc}/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            fields[key] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields


def _swap_used(proc: str) -> int | None:
    fields = _meminfo(proc)
    if "SwapTotal" not in fields or "SwapFree" not in fields:
        return None
    return fields["SwapTotal"] - fields["SwapFree"]


def parse_list(text: str) -> list[int]:
    """Cores from the kernel's notation: '0-2,5' -> [0, 1, 2, 5]."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return cores


def _online(sys: str) -> int | None:
    text = _text(f"{sys}/devices/system/cpu/online")
    return len(parse_list(text)) if text else None


def caches(sys: str) -> list[dict] | None:
    """Level, type, bytes and sharing cores of the caches of core 0."""
    folder = Path(f"{sys}/devices/system/cpu/cpu0/cache")
    found = []
    for index in sorted(folder.glob("index*")) if folder.is_dir() else []:
        size = _text(f"{index}/size") or ""
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
        digits = size.rstrip("KMG")
        found.append(
            {
                "level": _number(f"{index}/level"),
                "type": _text(f"{index}/type"),
                "bytes": int(digits) * unit if digits.isdigit() else None,
                "shared_by": _text(f"{index}/shared_cpu_list"),
            }
        )
    return found or None


def governor(sys: str) -> str | None:
    """The frequency governor; several of them joined by commas."""
    paths = Path(f"{sys}/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = sorted({text for path in paths if (text := _text(str(path)))})
    return ",".join(found) or None


def turbo(sys: str) -> bool | None:
    """Whether clock boost is on; None where the driver does not say."""
    inverted = _number(f"{sys}/devices/system/cpu/intel_pstate/no_turbo")
    if inverted is not None:
        return inverted == 0
    boost = _number(f"{sys}/devices/system/cpu/cpufreq/boost")
    return None if boost is None else boost == 1


def _frequency(sys: str, cpuinfo: dict[str, str]) -> float | None:
    current = _number(f"{sys}/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if current is not None:
        return current * 1e-3
    try:
        return float(cpuinfo["cpu MHz"])
    except (KeyError, ValueError):
        return None


def hypervisor(proc: str, sys: str) -> str | None:
    """The hypervisor's name, "unknown" for one that does not say it, None on bare metal."""
    named = _text(f"{sys}/hypervisor/type")
    if named:
        return named
    if "hypervisor" not in _cpuinfo(proc).get("flags", "").split():
        return None
    return _text(f"{sys}/class/dmi/id/sys_vendor") or "unknown"


def container(proc: str) -> str | None:
    """The kind of container this runs in, by its traces; None outside of one."""
    groups = _text(f"{proc}/1/cgroup") or ""
    for word in ("docker", "kubepods", "lxc", "containerd", "libpod"):
        if word in groups:
            return word
    kthreadd = load.read_process(2, proc)
    if (kthreadd and kthreadd.kernel) or not os.path.isdir(f"{proc}/self"):
        return None
    # a pid namespace of its own hides the kernel's threads
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(path):
            return kind
    return "pid namespace"


def cgroup_limits(proc: str, sys: str) -> dict:
    """Limits of the own cgroups: cpu (cores, by quota), cpuset (cores), memory_bytes; absent where none is set."""
    limits: dict = {}
    for kind, folder in load.own_cgroups(proc, sys):
        controllers = kind.split(",")
        if kind == "cgroup2":
            quota = (_text(f"{folder}/cpu.max") or "").split()
            if len(quota) == 2 and quota[0] != "max":
                limits["cpu"] = int(quota[0]) / int(quota[1])
            memory = _text(f"{folder}/memory.max")
            if memory and memory != "max":
                limits["memory_bytes"] = int(memory)
            cores = _text(f"{folder}/cpuset.cpus")
        else:
            cores = _text(f"{folder}/cpuset.cpus") if "cpuset" in controllers else None
        if "cpu" in controllers:
            quota, period = _number(f"{folder}/cpu.cfs_quota_us"), _number(f"{folder}/cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                limits["cpu"] = quota / period
        if "memory" in controllers:
            memory = _number(f"{folder}/memory.limit_in_bytes")
            if memory is not None and memory < 1 << 60:  # v1 says "none" with the largest number of pages
                limits["memory_bytes"] = memory
        if cores:
            limits["cpuset"] = parse_list(cores)
    return limits


def _load_average(proc: str) -> list[float] | None:
    words = (_text(f"{proc}/loadavg") or "").split()
    return [float(word) for word in words[:3]] if len(words) >= 3 else None
