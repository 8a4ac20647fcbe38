"""What is said about a machine, read from made trees and from this one."""

import json

import made_proc as made
import pytest

from harness import machine


@pytest.fixture
def tree(tmp_path):
    """A bare-metal machine of four cores."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    made.machine(proc)
    made.process(proc, 2, name="kthreadd", parent=0, kernel=True)
    made.put(
        proc, "cpuinfo", "processor : 0\nmodel name : Test CPU\ncpu MHz : 2100.5\nflags : fpu sse\n\nprocessor : 1\n"
    )
    made.put(proc, "meminfo", "MemTotal: 1000 kB\nSwapTotal: 400 kB\nSwapFree: 300 kB\n")
    made.put(proc, "loadavg", "0.50 0.25 0.10 1/90 1234\n")
    made.put(proc, "sys/kernel/osrelease", "6.1.0-test\n")
    made.put(proc, "sys/kernel/randomize_va_space", "2\n")
    made.put(sys, "devices/system/cpu/online", "0-2,5\n")
    made.put(sys, "devices/system/cpu/smt/control", "on\n")
    made.put(sys, "devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    made.put(sys, "devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n")
    made.put(sys, "devices/system/cpu/intel_pstate/no_turbo", "0\n")
    made.put(sys, "devices/system/cpu/cpu0/cache/index0/level", "1\n")
    made.put(sys, "devices/system/cpu/cpu0/cache/index0/type", "Data\n")
    made.put(sys, "devices/system/cpu/cpu0/cache/index0/size", "48K\n")
    made.put(sys, "devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0\n")
    made.put(sys, "kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    made.put(sys, "devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
    return proc, sys


def described(tree):
    return machine.describe(*map(str, tree))


def test_what_a_machine_shows_is_described(tree):
    found = described(tree)
    assert {name: found[name] for name in (
        "kernel", "cpu", "cores", "smt", "memory_bytes", "swap_bytes", "swap_used_bytes", "governor", "turbo",
        "frequency_mhz", "hypervisor", "thp", "aslr", "clock_source", "load_average", "cgroup", "container",
    )} == {
        "kernel": "6.1.0-test", "cpu": "Test CPU", "cores": 4, "smt": "on", "memory_bytes": 1024000,
        "swap_bytes": 409600, "swap_used_bytes": 102400, "governor": "performance,powersave", "turbo": True,
        "frequency_mhz": 2100.5, "hypervisor": None, "thp": "madvise", "aslr": 2, "clock_source": "tsc",
        "load_average": [0.5, 0.25, 0.1], "cgroup": {}, "container": None,
    }  # fmt: skip
    assert found["caches"] == [{"level": 1, "type": "Data", "bytes": 49152, "shared_by": "0"}]


def test_a_frequency_that_the_driver_says_wins(tree):
    made.put(tree[1], "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3100000\n")
    assert described(tree)["frequency_mhz"] == pytest.approx(3100)


@pytest.mark.parametrize(("file", "text", "turbo"), [
    ("intel_pstate/no_turbo", "1", False), ("cpufreq/boost", "1", True), ("cpufreq/boost", "0", False),
])  # fmt: skip
def test_boost_is_read_from_either_driver(tree, file, text, turbo):
    (tree[1] / "devices/system/cpu/intel_pstate/no_turbo").unlink()
    made.put(tree[1], f"devices/system/cpu/{file}", text)
    assert described(tree)["turbo"] is turbo


def test_a_virtual_machine_is_named(tree):
    made.put(tree[0], "cpuinfo", "processor : 0\nflags : fpu hypervisor\n")
    assert described(tree)["hypervisor"] == "unknown"
    made.put(tree[1], "class/dmi/id/sys_vendor", "QEMU\n")
    assert described(tree)["hypervisor"] == "QEMU"
    made.put(tree[1], "hypervisor/type", "xen\n")
    assert described(tree)["hypervisor"] == "xen"


def test_limits_of_both_kinds_of_cgroups_are_read(tree):
    proc, sys = tree
    made.mounts(proc, ("/sys/fs/cgroup", "cgroup2", "rw"))
    made.put(proc, "self/cgroup", "0::/job\n")
    made.put(sys, "fs/cgroup/job/cpu.max", "150000 100000\n")
    made.put(sys, "fs/cgroup/job/memory.max", "1048576\n")
    made.put(sys, "fs/cgroup/job/cpuset.cpus", "0-1\n")
    assert described(tree)["cgroup"] == {"cpu": 1.5, "memory_bytes": 1048576, "cpuset": [0, 1]}
    made.put(sys, "fs/cgroup/job/cpu.max", "max 100000\n")
    made.put(sys, "fs/cgroup/job/memory.max", "max\n")
    made.put(sys, "fs/cgroup/job/cpuset.cpus", "\n")
    assert described(tree)["cgroup"] == {}

    made.mounts(proc, ("/sys/fs/cgroup/cpu", "cgroup", "rw,cpu"), ("/sys/fs/cgroup/memory", "cgroup", "rw,memory"))
    made.put(proc, "self/cgroup", "4:memory:/x\n1:cpu:/\n")
    made.put(sys, "fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    made.put(sys, "fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    made.put(sys, "fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n")
    assert described(tree)["cgroup"] == {"cpu": 0.5}
    made.put(sys, "fs/cgroup/memory/x/memory.limit_in_bytes", "2097152\n")
    assert described(tree)["cgroup"] == {"cpu": 0.5, "memory_bytes": 2097152}


def test_a_container_is_known_by_what_it_hides(tree):
    proc, _ = tree
    made.put(proc, "1/cgroup", "0::/kubepods/pod7/abc\n")
    assert described(tree)["container"] == "kubepods"
    made.put(proc, "1/cgroup", "0::/\n")
    assert described(tree)["container"] is None
    made.gone(proc, 2)
    made.put(proc, "self/status", "\n")
    assert described(tree)["container"] is not None


def test_a_machine_that_shows_nothing_is_described_as_far_as_it_goes(tmp_path):
    found = machine.describe(str(tmp_path / "proc"), str(tmp_path / "sys"))
    for name in ("smt", "caches", "memory_bytes", "governor", "turbo", "hypervisor", "thp", "aslr", "clock_source"):
        assert found[name] is None, name


def test_this_machine_is_described_without_its_name(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "beamline-7")
    text = json.dumps(machine.describe())
    assert "beamline-7" not in text
    assert len(json.loads(text)["hostname_hash"]) == 12


def test_the_kernels_lists_of_cores_are_read():
    assert machine.parse_list("0-2,5\n") == [0, 1, 2, 5]
    assert machine.parse_list("\n") == []
