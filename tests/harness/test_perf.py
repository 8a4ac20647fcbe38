"""Events by `perf stat`: read from made output, counted for real where perf is, and a sentence where they cannot be."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import made_proc
import pytest
from measured import compare

from harness import perf, records

ROOT = Path(__file__).resolve().parents[2]

# of perf 6.1 on a virtual machine, the first three with numbers that a machine with counters would give
OUTPUT = """\
# started on Tue Dec  1 01:53:32 2026

81234567;;cycles;81388469;100.00;0.999;GHz
40617283;;cpu/event=0xc0,umask=0x1/;40694234;50.00;0.50;insn per cycle
12;;cache-misses:u;81388469;100.00;1.2;%
81.39;msec;task-clock;81388469;100.00;0.160;CPUs utilized
1140;;page-faults;81388469;100.00;14.007;K/sec
<not supported>;;branches;0;100.00;;
<not counted>;;branch-misses;0;0.00;;
"""


def test_counts_are_read_and_what_was_not_counted_is_absent():
    assert perf.parse(OUTPUT) == {
        "cycles": 81234567.0,
        "cpu/event=0xc0,umask=0x1/": 40617283.0,
        "cache-misses:u": 12.0,
        "task-clock": pytest.approx(0.08139),
        "page-faults": 1140.0,
    }
    assert perf.parse("") == perf.parse("event syntax error: 'bogus'\n") == {}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose perf is a script: it prints on its standard error what it is given, and ends with a code."""
    perf.readable.cache_clear()

    def make(text, code=0):
        program = tmp_path / "bin" / "perf"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {code}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return program

    yield make
    perf.readable.cache_clear()


def test_without_perf_it_is_a_sentence(monkeypatch, machine):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert perf.readable(("cycles", "faults")) == (
        (),
        "perf events cycles, faults: expected the program 'perf', found none on PATH; "
        "install it (apt-get install linux-perf)",
    )


def test_events_that_the_machine_has_not_are_named_and_the_others_kept(machine):
    machine(OUTPUT)
    assert perf.readable(("cycles", "branches", "page-faults", "branch-misses")) == (
        ("cycles", "page-faults"),
        "perf events branches, branch-misses: expected counters of the processor, found none that this machine shows; "
        "a virtual machine has them when its host lets it; software events such as page-faults need none",
    )
    perf.readable.cache_clear()
    assert perf.readable(("cycles",)) == (("cycles",), "")


def test_a_refusal_is_told_with_the_setting_that_causes_it(machine, tmp_path):
    machine("Error:\nAccess to performance monitoring and observability operations is limited.", 255)
    made_proc.put(tmp_path / "proc", "sys/kernel/perf_event_paranoid", "3\n")
    assert perf.readable(("cycles",), str(tmp_path / "proc")) == (
        (),
        "perf events cycles: expected events that perf can count, found 'Error:' (perf_event_paranoid = 3); "
        "see `perf list`, or sudo sysctl kernel.perf_event_paranoid=1",
    )


# ------------------------------------------------------------------------------------------------- the real one


@pytest.fixture
def real():
    perf.readable.cache_clear()
    if shutil.which("perf") is None or not perf.readable(("page-faults", "task-clock"))[0]:
        if os.environ.get("CI") == "true":
            pytest.fail("perf is missing")
        pytest.skip("perf is missing, or may not count")


TOUCH = """
import mmap, sys, time
print('ready', flush=True)
for line in sys.stdin:
    held = mmap.mmap(-1, 4096 * int(line))
    begin = time.process_time()
    for at in range(0, len(held), 4096): held[at] = 1
    while time.process_time() - begin < 0.1: pass
    print('done', flush=True)
"""


def test_a_watch_counts_the_pages_and_the_time_of_its_process_alone(real):
    """Against the truth: pages that are touched for the first time fault once each."""
    words = [sys.executable, "-c", TOUCH]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def touch(pages):
            process.stdin.write(f"{pages}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        assert process.stdout.readline() == "ready\n"
        touch(5000)  # before it is watched
        with perf.Watch([process.pid], ("page-faults", "task-clock")) as watch:
            watch.start()
            touch(1000)
            counted = watch.stop()
        touch(5000)
        process.communicate("")
    assert 1000 <= counted["page-faults"] < 1500
    assert 0.1 <= counted["task-clock"] < 0.3


def test_a_watch_of_a_process_that_is_gone_counts_nothing_and_ends(real):
    with perf.Watch([2**22 - 1], ("page-faults",)) as watch:
        watch.start()
        assert watch.stop() == {}


def test_a_command_under_perf_ends_as_the_command(real, tmp_path):
    """perf alone would end with 0 after a crash, which is the broken twin here."""
    crash = ["sh", "-c", "kill -SEGV $$"]
    words = perf.command(("page-faults",), tmp_path / "counts", crash)
    assert subprocess.run(words, capture_output=True).returncode == 128 + 11
    bare = [*words[: words.index("--") + 1], *crash]
    assert subprocess.run(bare, capture_output=True).returncode == 0
    assert perf.parse((tmp_path / "counts").read_text())["page-faults"] > 0
    assert subprocess.run(perf.command(("page-faults",), tmp_path / "counts", ["sh", "-c", "exit 3"])).returncode == 3


PROGRAM = """
from harness import worker
class Pages(worker.Workload):
    name = "pages"
    accepts = {"pages": 1000}
    def setup(self): pass
    def iterate(self):
        import mmap
        held = mmap.mmap(-1, 4096 * self.parameters["pages"])
        for at in range(0, len(held), 4096): held[at] = 1
        return {"work": 1}
    def fingerprint(self): return {"work": 1, "digests": {}}
worker.serve(Pages)
"""


@pytest.mark.parametrize("mode", ["resident", "process", "command"])
def test_a_comparison_keeps_the_events_of_each_arm(real, tmp_path, monkeypatch, mode):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "pages.py").write_text(PROGRAM)
    touch = (
        "import mmap, sys\nn = 4096 * int(sys.argv[1])\nm = mmap.mmap(-1, n)\nfor i in range(0, n, 4096): m[i] = 1\n"
    )
    (tmp_path / "touch.py").write_text(touch)
    command = '["python", "touch.py", "%d"]'
    arms = {
        "few": "pages = 1000" if mode != "command" else f"[arms.few.run]\ncommand = {command % 1000}",
        "many": "pages = 3000" if mode != "command" else f"[arms.many.run]\ncommand = {command % 3000}",
    }
    workload = 'workload = ["python", "pages.py"]\n' if mode != "command" else ""
    (tmp_path / "scenarios" / "pages.toml").write_text(
        f'[scenario]\nname = "pages"\nquestion = "?"\n{workload}metric = "seconds"\nfingerprint = "none"\n'
        'perf = ["page-faults", "task-clock"]\n'
        + f"[arms.few]\n{arms['few']}\n[arms.many]\n{arms['many']}\n"
        + ("[schedule]\nblocks = 1\n" if mode == "resident" else '[schedule]\nmode = "process"\n')
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = compare(tmp_path, "pages:few", "pages:many", schedule__pairs=2, schedule__warmup=0)
    if mode == "resident":
        (one,) = done.of(records.Load)
        few, many, iterations = one.events["a"], one.events["b"], 2
    else:
        few, many = (done.of(records.Slot, arm)[0].counters for arm in "ab")
        iterations = 1
    extra = many["page-faults"] - few["page-faults"]
    assert 2000 * iterations * 0.95 < extra < 2000 * iterations * 1.1
    assert few["task-clock"] > 0
    assert few["page-faults"] >= 1000 * iterations


def test_a_comparison_without_perf_runs_and_says_why_a_column_is_missing(tmp_path, monkeypatch):
    perf.readable.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name, **_: None if name == "perf" else "/bin/true")
    (tmp_path / "scenarios").mkdir()
    done = compare(
        tmp_path, "true 1", "true 2", scenario__perf=["cycles"], scenario__fingerprint="none", schedule__pairs=2
    )
    perf.readable.cache_clear()
    notes = [note.message for note in done.of(records.Note) if note.about == "perf"]
    assert notes == [
        "perf events cycles: expected the program 'perf', found none on PATH; install it (apt-get install linux-perf)"
    ]
    assert all("cycles" not in slot.counters for slot in done.of(records.Slot))
