"""Each finding of the doctor, driven present and absent through made trees."""

import itertools
import os
import time
from types import SimpleNamespace

import made_proc as made
import pytest
from test_gpu import library  # noqa: F401  a fixture

from harness import doctor, gpu, trial

PROBES = doctor.Probes(clock_step=5e-8, spawn=1e-3)
NO_GPUS = gpu.Gpus("libno-such-driver.so.1")


@pytest.fixture
def tree(tmp_path):
    """A machine with nothing to complain about."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    made.machine(proc)
    made.process(proc, 1, name="init", parent=0)
    made.process(proc, 2, name="kthreadd", parent=0, kernel=True)
    made.process(proc, os.getpid(), name="harness")
    made.process(proc, 60, name="other")
    made.put(proc, "cpuinfo", "processor : 0\nmodel name : Test CPU\nflags : fpu\n")
    made.put(proc, "meminfo", "MemTotal: 1000 kB\nSwapTotal: 4096 kB\nSwapFree: 4096 kB\n")
    made.put(proc, "vmstat", "pswpin 7\npswpout 9\n")
    made.put(proc, "pressure/cpu", "some avg10=0 total=1000\n")
    made.put(proc, "sys/kernel/randomize_va_space", "2\n")
    made.put(proc, "sys/kernel/yama/ptrace_scope", "0\n")
    made.put(proc, "sys/kernel/perf_event_paranoid", "2\n")
    made.put(sys, "bus/event_source/devices/cpu/type", "4\n")
    made.put(proc, "self/status", "CapEff:\t0000000000000000\n")
    made.put(proc, "self/cgroup", "0::/job\n")
    made.mounts(proc, ("/sys/fs/cgroup", "cgroup2", "rw"))
    made.put(sys, "fs/cgroup/cgroup.type", "domain\n")
    made.put(sys, "fs/cgroup/job/cpu.stat", "throttled_usec 0\n")
    made.put(sys, "devices/system/cpu/online", "0-1\n")
    made.put(sys, "devices/system/cpu/smt/control", "off\n")
    made.put(sys, "devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    made.put(sys, "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n")
    made.put(sys, "devices/system/cpu/intel_pstate/no_turbo", "1\n")
    made.put(sys, "class/thermal/thermal_zone0/temp", "50000\n")
    made.put(sys, "class/power_supply/AC/type", "Mains\n")
    made.put(sys, "class/power_supply/AC/online", "1\n")
    made.put(sys, "kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    made.put(sys, "devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
    return proc, sys


@pytest.fixture(autouse=True)
def two_cores_and_one_second(monkeypatch):
    """The two looks are exactly one second apart, and this process may use two cores."""
    ticks = itertools.count()
    clocks = SimpleNamespace(monotonic=lambda: float(next(ticks)), thread_time=lambda: 0.0)
    monkeypatch.setattr("harness.load.time", clocks)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


def examine(tree, change=lambda: None, probes=PROBES, gpus=NO_GPUS):
    return {found.name: found for found in doctor.examine(*map(str, tree), wait=change, probes=probes, gpus=gpus)}


NAMES = [
    "governor", "turbo", "smt", "cores", "cpu quota", "steal", "virtual machine", "competing processes",
    "foreign load", "pressure", "memory limit", "swap", "transparent huge pages", "address layout", "heat", "power",
    "clock source", "clock step", "spawn cost", "stacks of a hang", "hardware events", "graphics processors",
]  # fmt: skip


def test_a_good_machine_has_no_finding(tree):
    found = examine(tree)
    assert list(found) == NAMES
    assert {finding.name: finding.state for finding in found.values()} == dict.fromkeys(NAMES, "ok")
    assert all(finding.effect == finding.mend == "" for finding in found.values())


def sys_file(path, text):
    return lambda proc, sys: made.put(sys, path, text)


def proc_file(path, text):
    return lambda proc, sys: made.put(proc, path, text)


def container(proc, sys):
    made.gone(proc, 2)


def memory(proc, sys):
    made.put(sys, "fs/cgroup/job/memory.max", str(100 << 20))
    made.put(sys, "fs/cgroup/job/memory.current", str(90 << 20))


def without(root, path):
    """Takes a file away, and the folder that it was alone in."""

    def take(*roots):
        (roots[root] / path).unlink()
        if not any((roots[root] / path).parent.iterdir()):
            (roots[root] / path).parent.rmdir()

    return take


CPU = "devices/system/cpu"
#: name, what makes it present before (or while) the doctor looks, state, found
STANDING = [
    ("governor", sys_file(f"{CPU}/cpu1/cpufreq/scaling_governor", "powersave"), "harm", "performance,powersave"),
    ("turbo", sys_file(f"{CPU}/intel_pstate/no_turbo", "0"), "note", "on"),
    ("smt", sys_file(f"{CPU}/smt/control", "on"), "note", "on"),
    ("cores", sys_file("fs/cgroup/job/cpuset.cpus", "1"), "harm", "1 usable"),
    ("cores", sys_file(f"{CPU}/online", "0"), "harm", "1 usable"),
    ("cpu quota", sys_file("fs/cgroup/job/cpu.max", "150000 100000"), "harm", "1.5 cores"),
    ("virtual machine", sys_file("hypervisor/type", "xen"), "note", "xen"),
    ("memory limit", memory, "harm", "90 of 100 MiB used"),
    ("swap", proc_file("meminfo", "SwapTotal: 4096 kB\nSwapFree: 2048 kB\n"), "note", "2 MiB in use"),
    ("transparent huge pages", sys_file("kernel/mm/transparent_hugepage/enabled", "[always] never"), "note", "always"),
    ("address layout", proc_file("sys/kernel/randomize_va_space", "0"), "harm", "randomize_va_space = 0"),
    ("heat", sys_file("class/thermal/thermal_zone1/temp", "91000"), "harm", "91 °C"),
    ("power", sys_file("class/power_supply/AC/online", "0"), "harm", "battery"),
    ("clock source", sys_file("devices/system/clocksource/clocksource0/current_clocksource", "hpet"), "harm", "hpet"),
    ("stacks of a hang", proc_file("sys/kernel/yama/ptrace_scope", "1"), "note", "ptrace_scope = 1"),
    ("hardware events", proc_file("sys/kernel/perf_event_paranoid", "4"), "note", "perf_event_paranoid = 4"),
    ("hardware events", without(0, "sys/kernel/perf_event_paranoid"), "note", "the kernel counts none"),
    ("hardware events", without(1, "bus/event_source/devices/cpu/type"), "note", "the processor shows no counters"),
    ("governor", without(1, f"{CPU}/cpu0/cpufreq/scaling_governor"), "unknown", "the driver does not say"),
    ("address layout", without(0, "sys/kernel/randomize_va_space"), "unknown", "this system does not say"),
    ("turbo", without(1, f"{CPU}/intel_pstate/no_turbo"), "unknown", "the driver does not say"),
]
CHANGING = [
    ("steal", lambda proc, sys: made.machine(proc, steal=25), "harm", "0.25 cores"),
    (
        "competing processes",
        lambda proc, sys: made.process(proc, 60, name="other", used=80),
        "harm",
        "0.80 cores: other (60) 0.80",
    ),
    (
        "pressure",
        proc_file("pressure/cpu", "some avg10=0 total=401000\n"),
        "harm",
        "some task waits for a core 40% of the time",
    ),
    ("swap", proc_file("vmstat", "pswpin 12\n"), "harm", "0 MiB in use, 5 pages read back just now"),
    (
        "heat",
        sys_file(f"{CPU}/cpu0/thermal_throttle/core_throttle_count", "7"),
        "harm",
        "50 °C, throttled 4 times just now",
    ),
]


def others_are_well(found, name):
    return all(finding.state == "ok" for finding in found.values() if finding.name != name)


@pytest.mark.parametrize(("name", "make", "state", "text"), STANDING, ids=[row[0] for row in STANDING])
def test_what_stands_is_found_and_nothing_else(tree, name, make, state, text):
    make(*tree)
    found = examine(tree)
    assert (found[name].state, found[name].found) == (state, text)
    assert found[name].effect
    assert found[name].mend
    assert others_are_well(found, name)


@pytest.mark.parametrize(("name", "change", "state", "text"), CHANGING, ids=[row[0] for row in CHANGING])
def test_what_happens_meanwhile_is_found_and_nothing_else(tree, name, change, state, text):
    found = examine(tree, lambda: change(*tree))
    assert (found[name].state, found[name].found) == (state, text)
    assert found[name].effect
    assert found[name].mend
    assert others_are_well(found, name)


def test_throttling_by_a_quota_is_told(tree):
    made.put(tree[1], "fs/cgroup/job/cpu.max", "50000 100000")
    found = examine(tree, lambda: made.put(tree[1], "fs/cgroup/job/cpu.stat", "throttled_usec 250000\n"))
    assert found["cpu quota"].found == "0.5 cores, throttled for 0.25 s just now"


@pytest.mark.parametrize(
    ("probes", "name", "text"),
    [
        (doctor.Probes(clock_step=1.56e-2, spawn=1e-3), "clock step", "15600.0 µs"),
        (doctor.Probes(clock_step=5e-8, spawn=2e-2), "spawn cost", "20.0 ms"),
        (doctor.Probes(clock_step=5e-8, spawn=1e-3, perf=False), "hardware events", "no program perf"),
    ],
)
def test_what_is_measured_is_judged(tree, probes, name, text):
    found = examine(tree, probes=probes)
    assert (found[name].state, found[name].found) == ("note" if name == "hardware events" else "harm", text)
    assert others_are_well(found, name)


def test_a_container_hides_others_and_is_told(tree):
    container(*tree)
    found = examine(tree)
    assert found["foreign load"].state == "note"
    assert found["foreign load"].found.endswith("seen by stat-only only")


def test_missing_pressure_is_a_note_with_its_mend(tree):
    (tree[0] / "pressure/cpu").unlink()
    assert examine(tree)["pressure"].mend == "boot with psi=1"


def test_a_machine_whose_totals_are_hidden_has_unknown_load(tree):
    (tree[0] / "stat").unlink()
    found = examine(tree)
    assert found["foreign load"].found == "no /proc, seen by totals only"
    made.machine(tree[0])
    container(*tree)
    found = examine(tree, lambda: (tree[0] / "stat").unlink())
    for name in ("steal", "competing processes"):
        assert (found[name].state, bool(found[name].mend)) == ("unknown", True)


def test_stacks_may_be_read_with_the_right_capability(tree):
    made.put(tree[0], "sys/kernel/yama/ptrace_scope", "1")
    made.put(tree[0], "self/status", f"CapEff:\t{1 << 19:016x}\n")
    assert examine(tree)["stacks of a hang"].state == "ok"


def test_events_may_be_counted_with_the_right_capability(tree):
    made.put(tree[0], "sys/kernel/perf_event_paranoid", "4")
    made.put(tree[0], "self/status", f"CapEff:\t{1 << 38:016x}\n")
    assert examine(tree)["hardware events"].state == "ok"


def test_what_runs_on_a_graphics_processor_is_found(tree, library):  # noqa: F811
    """Through a made NVML library: no machine with a device runs these tests."""
    found = examine(tree, gpus=gpu.Gpus(library(0)))["graphics processors"]
    assert (found.state, found.found) == (
        "harm",
        "Tesla 0: 2 other processes, 45% busy; Volta 1: 2 other processes, 45% busy",
    )
    for pid in (10, 20):  # what runs there is the harness's own
        made.process(tree[0], pid, name="arm", parent=os.getpid())
    found = examine(tree, gpus=gpu.Gpus(library(0)))["graphics processors"]
    assert (found.state, found.found) == ("note", "Tesla, Volta")
    assert "never on a machine with a device" in found.effect


FINDINGS = [
    doctor.Finding("smt", "ok", "off"),
    doctor.Finding("turbo", "note", "on", "boost may come and go with heat", "echo 0 | sudo tee /sys/a-very-long/path"),
    doctor.Finding("swap", "harm", "2 MiB in use", "pages may have to come from the disk", "sudo swapoff -a"),
    doctor.Finding("power", "ok", "mains"),
]


def test_findings_are_told_the_gravest_first():
    assert (
        "\n".join(trial.told_findings(FINDINGS, 44))
        == """\
harm     swap: 2 MiB in use
         pages may have to come from the
         disk
         → sudo swapoff -a
note     turbo: on
         boost may come and go with heat
         → echo 0 | sudo tee
           /sys/a-very-long/path
ok       smt off · power mains"""
    )


@pytest.mark.parametrize(("visible", "code"), [(0.12, 4), (0.08, 0), (None, 4)])
def test_the_command_ends_with_4_when_nothing_below_ten_percent_is_seen(monkeypatch, tmp_path, visible, code):
    from click.testing import CliRunner

    from harness.cli import cli

    seen = [trial.Seen("resident", "wall", 16, 0.5), trial.Seen("process", "CPU", 16, visible)]
    monkeypatch.setattr("harness.trial.run", lambda *_, **__: seen)
    monkeypatch.setattr("harness.doctor.examine", lambda: FINDINGS)
    done = CliRunner().invoke(cli, ["doctor", "--reports", str(tmp_path)])
    assert done.exit_code == code
    assert ("harness: nothing below 10 % can be seen on this machine now\n" in done.output) == (code == 4)
    shown = {0.12: "12 %", 0.08: "8 %", None: "too few units counted"}[visible]
    assert f"  process   CPU   {shown}" in done.output


def test_a_machine_that_says_nothing_has_unknowns_and_no_crash(tmp_path):
    found = examine((tmp_path / "proc", tmp_path / "sys"))
    assert list(found) == NAMES
    assert found["governor"].state == "unknown"
    assert found["foreign load"].state == "note"
    assert all(one.effect and one.mend for one in found.values() if one.state != "ok")


def test_this_machine_is_examined(monkeypatch):
    monkeypatch.setattr("harness.load.time", time)
    found = doctor.examine(wait=lambda: None)
    assert [finding.name for finding in found] == NAMES
    assert all(finding.state in ("ok", "note", "harm", "unknown") for finding in found)
    assert all(finding.effect for finding in found if finding.state in ("harm", "note"))
