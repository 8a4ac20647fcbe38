"""Load around a unit, on made machines and against the processes' own accounts on this one."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import made_proc as made
import pytest

from harness import load, records

ME, OTHER = 50, 60


@pytest.fixture
def proc(tmp_path):
    """A machine with its kernel, the harness (50) and somebody else (60)."""
    root = tmp_path / "proc"
    made.machine(root)
    made.process(root, 1, name="init", parent=0)
    made.process(root, 2, name="kthreadd", parent=0, kernel=True)
    made.process(root, ME, name="harness")
    made.process(root, OTHER, name="other")
    return root


def window(proc, change, *, sys=None, method=None, own_cpu=None):
    """The columns of a window of one second in which `change` happens."""
    sampler = load.Sampler(str(proc), str(sys or proc.parent / "sys"), method)
    before = sampler.scan([ME])
    change()
    after = sampler.scan([ME], closing=True)
    found = sampler.difference(before._replace(at=0.0), after._replace(at=1.0), [ME], own_cpu)
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in found.items()}


def test_own_foreign_and_kernel_threads_are_told_apart(proc):
    made.process(proc, 70, name="kworker", parent=2, kernel=True)
    made.process(proc, 51, name="arm", parent=ME)
    made.process(proc, 52, name="worker of the arm", parent=51)

    def change():
        made.process(proc, ME, name="harness", used=1)
        made.process(proc, 51, name="arm", parent=ME, used=50)
        made.process(proc, 52, name="worker of the arm", parent=51, used=40)
        made.process(proc, OTHER, name="other", used=30)
        made.process(proc, 70, name="kworker", parent=2, kernel=True, used=5)
        made.machine(proc, user=100, system=30)

    found = window(proc, change)
    assert found["method"] == "proc+children"
    assert (found["own"], found["foreign"], found["kthread"]) == (0.91, 0.3, 0.05)
    assert found["busy"] == 1.3
    assert found["unattributed"] == 0.04
    assert found["top"] == [{"name": "other", "pid": OTHER, "cores": 0.3}]
    records.Load(unit=0, **found)


def test_a_daemon_of_the_arm_is_own_when_the_harness_adopted_it(proc):
    def change():
        made.process(proc, 53, name="daemon", parent=ME, used=25)

    assert window(proc, change)["own"] == 0.25
    assert window(proc, change)["foreign"] == 0


def test_reaped_children_count_for_who_waited_for_them_without_their_past(proc):
    made.process(proc, 61, parent=OTHER, used=1000, reaped=500)
    made.process(proc, 62, parent=OTHER, used=7)

    def change():
        made.gone(proc, 61)  # lived before the window, used 20 more ticks in it
        made.process(proc, OTHER, name="other", used=2, reaped=1520 + 30)  # and 30 by children nobody saw
        made.process(proc, 62, parent=OTHER, used=8)

    assert window(proc, change)["foreign"] == pytest.approx(0.53)


def test_an_orphans_past_is_taken_off_whoever_adopted_it(proc):
    made.process(proc, 61, parent=OTHER)
    made.process(proc, 62, parent=61, used=400)

    def change():
        made.gone(proc, 61)
        made.gone(proc, 62)
        made.process(proc, 1, name="init", parent=0, reaped=410)

    assert window(proc, change)["foreign"] == pytest.approx(0.1)


def test_a_dead_child_that_nobody_waited_for_takes_nothing_off_others(proc):
    made.process(proc, 61, parent=OTHER, used=5000)

    def change():
        made.gone(proc, 61)
        made.process(proc, ME, name="harness", reaped=70)

    found = window(proc, change)
    assert (found["own"], found["foreign"]) == (0.7, 0)


def test_a_pid_that_is_used_again_is_another_process(proc):
    made.process(proc, 61, parent=OTHER, used=5000)

    def change():
        made.process(proc, 61, parent=OTHER, used=3, start=999)
        made.process(proc, OTHER, name="other", reaped=5000)

    assert window(proc, change)["foreign"] == pytest.approx(0.03)


def test_an_arm_that_began_and_ended_in_the_window_is_own(proc):
    def change():
        made.process(proc, ME, name="harness", used=1, reaped=80)
        made.machine(proc, user=81)

    found = window(proc, change)
    assert (found["own"], found["foreign"], found["unattributed"]) == (0.81, 0, 0)
    assert window(proc, lambda: None, own_cpu=0.8123)["own"] == 0.8123


def ends_while_read(proc, monkeypatch, closing):
    """The foreign cores of a window of a second, when a child with 1 s of past ends between it and its parent."""
    made.process(proc, OTHER, name="make")
    made.process(proc, 61, name="compiler", parent=OTHER, used=100)
    sampler, read = load.Sampler(str(proc), str(proc.parent / "sys")), load.read_process

    def ends(pid, root):
        found = read(pid, root)
        if pid in (OTHER, 61) and (proc / "61").exists():  # the first of both was read
            made.gone(proc, 61)
            made.process(proc, OTHER, name="make", reaped=101)
        return found

    def scan(closes):
        with monkeypatch.context() as patch:
            if closes == closing:
                patch.setattr(load, "read_process", ends)
            return sampler.scan([ME], closing=closes)

    return load.attribute(scan(False)._replace(at=0.0), scan(True)._replace(at=1.0), [ME]).foreign


@pytest.mark.parametrize("closing", [False, True])
def test_a_child_that_ends_while_it_is_read_brings_no_past_into_the_window(proc, monkeypatch, closing):
    assert ends_while_read(proc, monkeypatch, closing) <= 0.01


@pytest.mark.parametrize("closing", [False, True])
def test_read_in_the_other_order_it_would(proc, monkeypatch, closing):
    """The broken twin: the opening scan reads parents first, the closing one children."""
    right = load.processes
    monkeypatch.setattr(load, "processes", lambda root, youngest_first: right(root, not youngest_first))
    assert ends_while_read(proc, monkeypatch, closing) >= 1.0


def test_more_than_all_processors_have_is_nobodys(proc):
    """A parent that took over what no scan saw."""
    found = window(proc, lambda: made.process(proc, OTHER, name="make", reaped=100 * (os.cpu_count() + 1)))
    assert found["foreign"] == 0


def test_interrupts_and_stolen_time_are_columns_of_their_own(proc):
    found = window(proc, lambda: made.machine(proc, user=10, irq=3, softirq=4, steal=20, idle=300))
    assert (found["irq"], found["steal"], found["busy"]) == (0.07, 0.2, 0.17)
    assert (found["foreign"], found["unattributed"]) == (0, 0.1)


def test_v1_cgroups_give_the_total(proc, tmp_path):
    sys_root = tmp_path / "sys"
    made.mounts(proc, ("/sys/fs/cgroup/cpuacct", "cgroup", "rw,cpuacct"))
    made.put(sys_root, "fs/cgroup/cpuacct/cgroup.sane_behavior", "0\n")
    made.put(sys_root, "fs/cgroup/cpuacct/cpuacct.usage", "1000000000\n")

    def change():
        made.put(sys_root, "fs/cgroup/cpuacct/cpuacct.usage", "1432100000\n")
        made.process(proc, OTHER, name="other", used=30)
        made.machine(proc, user=20)

    found = window(proc, change, sys=sys_root)
    assert (found["method"], found["unattributed"], found["busy"]) == ("cgroup", 0.1321, 0.2)


@pytest.mark.parametrize(("is_root", "method", "unattributed"), [(True, "cgroup", 0.25), (False, "proc+children", 0.2)])
def test_v2_cgroups_give_the_total_when_their_root_is_the_machines(proc, tmp_path, is_root, method, unattributed):
    sys_root = tmp_path / "sys"
    made.mounts(proc, ("/sys/fs/cgroup", "cgroup2", "rw"))
    made.put(sys_root, "fs/cgroup/cpu.stat", "usage_usec 900\nuser_usec 100\nsystem_usec 200\n")
    if not is_root:
        made.put(sys_root, "fs/cgroup/cgroup.type", "domain\n")

    def change():
        made.put(sys_root, "fs/cgroup/cpu.stat", "usage_usec 9000900\nuser_usec 200100\nsystem_usec 100200\n")
        made.machine(proc, user=20, irq=5)

    found = window(proc, change, sys=sys_root)
    assert (found["method"], found["unattributed"]) == (method, unattributed)


def test_a_container_is_named_and_its_foreign_load_is_the_machines_rest(proc):
    made.gone(proc, 2)

    def change():
        made.process(proc, ME, name="harness", reaped=50)
        made.machine(proc, user=130, irq=3)

    found = window(proc, change)
    assert (found["method"], found["own"], found["foreign"]) == ("stat-only", 0.5, 0.8)
    assert (found["kthread"], found["unattributed"]) == (None, None)


def test_without_proc_only_totals_are_left(tmp_path):
    sampler = load.Sampler(str(tmp_path / "none"), str(tmp_path))
    assert sampler.method == "totals"
    before = sampler.scan()
    found = sampler.difference(before, sampler.scan(), [ME], own_cpu=0.0)
    assert found["foreign"] == found["busy"] - found["irq"]
    assert found["top"] == []


def test_pressure_throttling_run_queue_frequency_and_temperature_are_read(proc, tmp_path):
    sys_root = tmp_path / "sys"
    made.mounts(proc, ("/sys/fs/cgroup", "cgroup2", "rw"))
    made.put(proc, "self/cgroup", "0::/user/me\n")
    made.put(sys_root, "fs/cgroup/cgroup.type", "domain\n")
    made.put(sys_root, "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2400000\n")
    made.put(sys_root, "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "2600000\n")
    made.put(sys_root, "class/thermal/thermal_zone0/temp", "45000\n")
    made.put(sys_root, "class/thermal/thermal_zone1/temp", "61500\n")

    def state(waited, pressure, throttled):
        made.process(proc, ME, name="harness", waited=waited)
        made.put(proc, "pressure/cpu", f"some avg10=1 avg60=1 avg300=1 total={pressure}\nfull avg10=0 total=0\n")
        made.put(sys_root, "fs/cgroup/user/me/cpu.stat", f"usage_usec 5\nnr_throttled 2\nthrottled_usec {throttled}\n")

        made.put(sys_root, "fs/cgroup/user/me/cpu.pressure", f"some avg10=0 total={pressure // 2}\nfull total=9\n")

    state(10**9, 500000, 1000)
    found = window(proc, lambda: state(10**9 + 40_000_000, 620000, 251000), sys=sys_root)
    assert found["psi_own"] == 0.06
    assert (found["runq_wait"], found["psi_cpu"], found["throttled"]) == (0.04, 0.12, 0.25)
    assert (found["frequency_mhz"], found["temperature_c"]) == (2500, 61.5)


def test_waits_for_disks_switches_and_faults_of_the_own_tree_are_read(proc):
    made.process(proc, ME, name="harness", switches=10, faults=3)
    made.process(proc, 51, name="arm", parent=ME, switches=100, faults=50)
    made.process(proc, OTHER, name="other", switches=7000, faults=900)

    def change():
        made.process(
            proc, ME, name="harness", switches=14, faults=3 + 55
        )  # waited for the arm, and took over its faults
        made.gone(proc, 51)
        made.process(proc, 52, name="next arm", parent=ME, switches=6, faults=2)
        made.process(proc, OTHER, name="other", switches=9000, faults=2000)
        made.machine(proc, idle=100, io_wait=5 + 30)

    found = window(proc, change)
    assert found["io_wait"] == 0.3
    assert found["major_faults"] == 5 + 2
    assert (
        found["involuntary_switches"] == 0
    )  # the dead arm's are in the account of who waited for it, not in its files
    made.process(proc, 52, name="next arm", parent=ME, switches=6)
    assert (
        window(proc, lambda: made.process(proc, 52, name="next arm", parent=ME, switches=26))["involuntary_switches"]
        == 20
    )


def test_what_a_machine_does_not_have_is_none(proc):
    found = window(proc, lambda: None)
    for name in (
        "psi_cpu", "psi_own", "throttled", "runq_wait", "involuntary_switches", "frequency_mhz", "temperature_c",
    ):  # fmt: skip
        assert found[name] is None, name


def test_counters_around_a_pair_are_rates(proc, tmp_path):
    made.process(proc, ME, waited=10**9)
    made.put(proc, "pressure/cpu", "some avg10=0 total=1000000\n")
    sampler = load.Sampler(str(proc), str(tmp_path / "sys"))
    before = sampler.counters([ME])
    made.process(proc, ME, waited=10**9 + 5 * 10**8)
    made.put(proc, "pressure/cpu", "some avg10=0 total=1500000\n")
    made.machine(proc, steal=10)
    after = sampler.counters([ME])
    found = load.between(before | {"at": 0.0}, after | {"at": 2.0})
    assert found == pytest.approx({"runq_wait": 0.25, "psi_cpu": 0.25, "steal": 0.05})


def test_a_name_with_spaces_and_brackets_is_read(proc):
    made.process(proc, 61, name="a (b) c)", used=3)
    assert load.read_process(61, str(proc)).name == "a (b) c)"
    assert load.read_process(61, str(proc)).used == 0.03


def test_the_heaviest_five_are_named(proc):
    for pid in range(100, 110):
        made.process(proc, pid, name=f"p{pid}")
    found = window(proc, lambda: [made.process(proc, pid, name=f"p{pid}", used=pid) for pid in range(100, 110)])
    assert [process["name"] for process in found["top"]] == ["p109", "p108", "p107", "p106", "p105"]


# ------------------------------------------------------------------------------------------------- this machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# waits for a line, works, says its own rusage with its waited-for children, waits for the end of its input
PROGRAM = """
import os, resource, signal, sys, time
def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)
def children(seconds, wait):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid = os.fork()
        if pid == 0:
            spin(0.004)
            os._exit(0)
        if wait: os.waitpid(pid, 0)
        else:
            try: os.waitpid(pid, 0)
            except ChildProcessError: pass
what, seconds = sys.argv[1], float(sys.argv[2])
if what == 'auto': signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print('ready', flush=True)
sys.stdin.readline()
before = used()
end = time.monotonic() + seconds
if what == 'spin':
    while time.monotonic() < end: pass
else: children(seconds, what == 'storm')
print(used() - before, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def foreigners():
    """Starts programs that the sampler is not told to be own."""
    started = []

    def start(what, seconds):
        words = [sys.executable, "-c", PROGRAM, what, str(seconds)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.communicate("\n\n", timeout=60)


def go(*running):
    """Let them work; what each used by its own account, in seconds."""
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    return [float(process.stdout.readline()) for process in running]


@linux
def test_a_spinner_and_a_storm_of_children_are_foreign_to_within_a_twentieth_of_a_core(foreigners):
    spinner, storm = foreigners("spin", 3), foreigners("storm", 3)
    nobody = foreigners("spin", 0)
    sampler, simple = load.Sampler(), load.Sampler(method="proc+children")
    begun, before = simple.scan([nobody.pid]), sampler.scan([nobody.pid])
    truth = go(spinner, storm)
    after, ended = sampler.scan([nobody.pid]), simple.scan([nobody.pid])
    elapsed = after.at - before.at
    shares = load.attribute(before, after, [nobody.pid])
    found = {process.pid: used for process, used in shares.by_process}
    for process, used in zip((spinner, storm), truth):
        assert used > 0.1
        assert abs(found[process.pid] - used) / elapsed < 0.05
    for columns in (sampler.difference(before, after, [nobody.pid]), simple.difference(begun, ended, [nobody.pid])):
        assert columns["foreign"] >= sum(truth) / elapsed - 0.05


@linux
def test_a_comparison_of_living_processes_alone_would_miss_the_storm(foreigners):
    """The broken twin: without the correction for reaped children the storm is nearly invisible."""
    storm = foreigners("storm", 1)
    sampler = load.Sampler()
    before = sampler.scan()
    (truth,) = go(storm)
    after = sampler.scan()
    forgetful = [
        scan._replace(processes={key: p._replace(reaped=0.0) for key, p in scan.processes.items()})
        for scan in (before, after)
    ]
    seen = {p.pid: used for p, used in load.attribute(*forgetful, [0]).by_process}
    assert seen[storm.pid] < 0.7 * truth


@linux
def test_our_own_children_and_threads_are_never_foreign(foreigners):
    import threading

    spinner, storm = foreigners("spin", 1), foreigners("storm", 1)
    sampler = load.Sampler()
    before = sampler.scan()

    def spin():
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    truth = go(spinner, storm)
    thread.join()
    after = sampler.scan()
    shares = load.attribute(before, after, [os.getpid()])
    assert shares.own >= sum(truth) + 0.3 - 0.1
    assert {p.pid for p, _ in shares.by_process} & {os.getpid(), spinner.pid, storm.pid} == set()
    assert all(process["pid"] not in (os.getpid(), spinner.pid, storm.pid) for process in _top(sampler, before, after))


@linux
def test_what_is_own_is_known_by_clocks_and_not_by_ticks():
    """Children that end within a few ticks, and one that lives on, are counted to the millisecond."""
    spin = "import time; e = time.process_time() + 0.003\nwhile time.process_time() < e: pass"
    sampler = load.Sampler()
    before, children = sampler.scan(), resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.process_time()
    for _ in range(4):
        subprocess.run([sys.executable, "-I", "-S", "-c", spin], check=True)
    with subprocess.Popen([sys.executable, "-c", spin + "\nprint(flush=True); input()"], stdin=-1, stdout=-1) as living:
        living.stdout.readline()
        after, children_after = sampler.scan(), resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = time.process_time() - begin
        truth = spent + sum(
            getattr(children_after, name) - getattr(children, name) for name in ("ru_utime", "ru_stime")
        )
        truth += load.cpu_clock(living.pid, 0.0)
        living.communicate(b"\n")
    found = sampler.difference(before, after, [os.getpid()])
    assert found["own"] * found["elapsed"] == pytest.approx(truth, abs=0.005)


def _top(sampler, before, after):
    return sampler.difference(before, after, [os.getpid()])["top"]


@pytest.fixture
def account():
    """A cgroup of the test's own whose kernel account is the truth; a function that moves a process into it."""
    folder, leaf, unit = None, "", 1.0
    for kind, name, size in (("cpuacct", "cpuacct.usage", 1e-9), ("unified", "cpu.stat", 1e-6), ("", "cpu.stat", 1e-6)):
        folder, leaf, unit = Path("/sys/fs/cgroup", kind, f"harness-test-{os.getpid()}"), name, size
        try:
            folder.mkdir()
            break
        except OSError:
            continue
    if not folder.is_dir():
        pytest.skip("needs the right to make a cgroup")

    def enter(process):
        (folder / "cgroup.procs").write_text(str(process.pid))

        def usage():
            text = (folder / leaf).read_text()
            return int(text if unit == 1e-9 else text.split()[1]) * unit

        return usage

    yield enter
    for pid in map(int, (folder / "cgroup.procs").read_text().split()):
        (folder.parent / "cgroup.procs").write_text(str(pid))
    folder.rmdir()


@linux
def test_children_that_nobody_waits_for_are_unattributed_and_not_lost(foreigners, account):
    storm, nobody = foreigners("auto", 2), foreigners("spin", 0)
    usage = account(storm)
    sampler = load.Sampler()
    if sampler.method not in ("cgroup", "proc+children"):
        pytest.skip("the machine's total cannot be seen")
    before, begin = sampler.scan([nobody.pid]), usage()
    go(storm)
    after, truth = sampler.scan([nobody.pid]), usage() - begin
    elapsed = after.at - before.at
    assert truth > 0.1
    found = sampler.difference(before, after, [nobody.pid])
    others = {p.pid: used for p, used in load.attribute(before, after, [nobody.pid]).by_process if p.pid != storm.pid}
    explained = found["foreign"] + found["unattributed"] - sum(others.values()) / elapsed
    # other people's own unseen children are in it as well: the lower bound always holds
    assert explained > truth / elapsed - 0.05
    if sum(others.values()) / elapsed < 0.3:
        assert explained < truth / elapsed + 0.05


@linux
def test_the_own_account_of_the_kernel_agrees_with_what_is_own(foreigners, account):
    spinner = foreigners("spin", 1)
    usage = account(spinner)
    sampler = load.Sampler()
    before, begin = sampler.scan([spinner.pid]), usage()
    go(spinner)
    after, truth = sampler.scan([spinner.pid]), usage() - begin
    found = sampler.difference(before, after, [spinner.pid])
    assert abs(found["own"] * found["elapsed"] - truth) < 0.05


@linux
def test_a_scan_says_what_it_cost():
    """Against the clock of this thread, just outside both scans."""
    sampler = load.Sampler()
    begin = time.thread_time()
    before = sampler.scan()
    after = sampler.scan(closing=True)
    around = time.thread_time() - begin
    found = sampler.difference(before, after, [os.getpid()])
    assert 0.8 * around < found["sampler_seconds"] <= around
    assert os.getpid() in {process.pid for process in before.processes.values()}


@linux
def test_the_machines_totals_are_those_that_another_reader_finds():
    """psutil before and after, both in ticks: what is between them is between ours."""
    import psutil

    def theirs():
        times = psutil.cpu_times()
        return times.user + times.nice + times.system, times.irq + times.softirq, times.steal, times.iowait

    sampler = load.Sampler()
    first, scan, last = theirs(), sampler.scan(), theirs()
    for low, found, high in zip(first, (scan.busy, scan.irq, scan.steal, scan.io_wait), last):
        assert low - 1e-6 <= found <= high + 1e-6


@linux
def test_the_wait_in_the_run_queue_is_the_time_a_spinner_did_not_get(foreigners):
    """Two spinners on one core: what one of them lacks of the wall's time it spent waiting."""
    core = min(os.sched_getaffinity(0))
    mine, rival = foreigners("spin", 1.5), foreigners("spin", 2.0)
    for process in (mine, rival):
        os.sched_setaffinity(process.pid, {core})
    sampler = load.Sampler()
    before = sampler.scan([mine.pid])
    if before.runq_wait is None:
        pytest.skip("the kernel does not count run-queue waits")
    used, _ = go(mine, rival)
    after = sampler.scan([mine.pid])
    found = sampler.difference(before, after, [mine.pid])
    assert found["runq_wait"] * found["elapsed"] == pytest.approx(1.5 - used, abs=0.1)
    if found["psi_cpu"] is not None:  # the kernel adds to it in periods of its own, so only its sense is asked
        assert found["psi_cpu"] > 0


@linux
def test_involuntary_switches_are_those_of_the_kernels_own_account(foreigners):
    """Two children on one core put each other off it, and one that ends meanwhile both of them."""
    core = min(os.sched_getaffinity(0))
    both = foreigners("spin", 1.0), foreigners("spin", 1.0)
    for process in both:
        os.sched_setaffinity(process.pid, {core})

    def account():
        """Own and waited-for children by getrusage, living ones by their own files."""
        used = [resource.getrusage(who).ru_nivcsw for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        texts = [Path(f"/proc/{process.pid}/status").read_text() for process in both]
        return [*used, *(int(text.rpartition("nonvoluntary_ctxt_switches:")[2]) for text in texts)]

    sampler = load.Sampler()
    outer, before, inner = account(), sampler.scan(), account()
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    subprocess.run(["taskset", "-c", str(core), sys.executable, "-c", "for i in range(3000000): pass"], check=True)
    for process in both:
        process.stdout.readline()
    inner = [late - early for late, early in zip(account(), inner)]
    after = sampler.scan()
    outer = [late - early for late, early in zip(account(), outer)]
    found = sampler.difference(before, after, [os.getpid()])["involuntary_switches"]
    assert all(grown > 0 for grown in inner[1:])
    assert sum(inner) <= found <= sum(outer)


@linux
def test_major_faults_are_pages_that_came_from_the_disk(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(os.urandom(4 << 20))
    text = (
        "import mmap, os, resource, sys\n"
        "handle = os.open(sys.argv[1], os.O_RDONLY)\n"
        "os.fsync(handle); os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)\n"
        "m = mmap.mmap(handle, 0, prot=mmap.PROT_READ); m.madvise(mmap.MADV_RANDOM)\n"
        "sum(m[at] for at in range(0, len(m), 65536))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_majflt)\n"
    )
    sampler = load.Sampler()
    before = sampler.scan()
    begin = sum(resource.getrusage(who).ru_majflt for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    done = subprocess.run([sys.executable, "-c", text, str(file)], capture_output=True, text=True, check=True)
    found = sampler.difference(before, sampler.scan(), [os.getpid()])
    after = sum(resource.getrusage(who).ru_majflt for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    if int(done.stdout) < 32:
        pytest.skip("the file system keeps everything in memory")
    assert found["major_faults"] == pytest.approx(after - begin, abs=2)
    assert found["major_faults"] >= int(done.stdout) >= 32


# measures its own throttling: moves itself into the group before it builds its sampler, and reads the kernel's account
# just outside and just inside of its two scans
THROTTLED = """
import sys, time
group = sys.argv[1]
open(group + '/cgroup.procs', 'w').write('0')
from harness import load
def account():
    lines = dict(line.split() for line in open(group + '/cpu.stat'))
    return int(lines['throttled_time']) * 1e-9 if 'throttled_time' in lines else int(lines['throttled_usec']) * 1e-6
sampler = load.Sampler()
sampler.scan()
limit, text = sys.argv[2:]
open(group + '/' + limit, 'w').write(text)  # a twentieth of a core: less than any load leaves
outer, before, inner = account(), sampler.scan(), account()
end = time.monotonic() + 1.0
while time.monotonic() < end: pass
inner, after, outer = account() - inner, sampler.scan(), account() - outer
print(inner, sampler.difference(before, after, [0])['throttled'], outer)
"""


@linux
def test_a_planted_quota_is_seen_as_the_kernel_counts_it():
    for folder in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        group = folder / f"harness-throttle-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "cpu.cfs_quota_us").exists() or (group / "cpu.max").exists():
            break
        group.rmdir()
    else:
        pytest.skip("needs the right to limit a cgroup")
    try:
        limit = ("cpu.max", "5000 100000") if (group / "cpu.max").exists() else ("cpu.cfs_quota_us", "5000")
        words = [sys.executable, "-c", THROTTLED, str(group), *limit]
        environment = {**os.environ, "PYTHONPATH": str(Path(load.__file__).parents[1])}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    finally:
        group.rmdir()
    inner, said, outer = map(float, done.stdout.split())
    assert 0 < inner <= said + 1e-6
    assert said <= outer + 1e-6


CONTAINED = """
import os, time
from harness import load, machine
sampler = load.Sampler()
before = sampler.scan()
print('ready', flush=True)
input()
found = sampler.difference(before, sampler.scan(), [os.getpid()])
print(found['method'], found['foreign'] * found['elapsed'], found['unattributed'], len(found['top']), flush=True)
print(machine.describe()['container'], flush=True)
"""


@linux
def test_in_a_container_hidden_load_is_known_without_names_and_the_method_says_so(foreigners):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs the right to make a pid namespace")
    environment = {**os.environ, "PYTHONPATH": str(Path(load.__file__).parents[1])}
    spinner = foreigners("spin", 1)
    words = [*unshare, sys.executable, "-c", CONTAINED]
    with subprocess.Popen(words, env=environment, stdin=-1, stdout=-1, text=True) as contained:
        assert contained.stdout.readline() == "ready\n"
        (truth,) = go(spinner)
        out, _ = contained.communicate("\n")
    line, container = out.splitlines()
    method, foreign, unattributed, named = line.split()
    assert (method, unattributed, named) == ("stat-only", "None", "0")
    assert float(foreign) > truth - 0.1  # and whatever else ran on the machine
    assert container != "None"
