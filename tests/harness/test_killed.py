"""The harness ended at any moment: the record reads, the comparison goes on with its coins, no process is left."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import records, schedule

ROOT = Path(__file__).resolve().parents[2]
BLOCKS, PAIRS, SEED = 6, 3, 77

# arm b forks workers, arm a leaves a daemon of another session and environment in every iteration
SCENARIO = f"""\
# Does a killed comparison go on?
[scenario]
name = "killed"
question = "Does a killed comparison go on?"
workload = ["python", "{ROOT / "tests" / "arms" / "scripted.py"}"]
metric = "seconds"
fingerprint = "exact"
[parameters]
noise = 0.01
[arms.a]
does = "leave"
[arms.b]
does = "fork"
seed = 1
[schedule]
mode = "resident"
blocks = {BLOCKS}
pairs = {PAIRS}
seed = {SEED}
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def here(folder):
    """Processes that work in a folder: every arm and all that comes from one does, and the harness."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(os.readlink(f"/proc/{name}/cwd")) == folder:
                found.append((int(name), Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except OSError:
            continue
    return found


def left(folder):
    """The same when they have had two seconds."""
    for _ in range(100):
        if not here(folder):
            break
        time.sleep(0.02)
    return here(folder)


def command(*more):
    return [sys.executable, "-m", "harness", "ab", "killed:a", "killed:b", "--quiet", *map(str, more)]


def start(folder, *more):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.Popen(
        command(*more), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def check_coins(entries):
    """Every launch and every pair stands in the order that the seed says, in finished units and in cut ones."""
    kept = 0
    for unit in {slot.unit for slot in records.of(entries, records.Slot)}:
        plan = schedule.plan_unit(SEED, unit, "resident", PAIRS)
        launches = [entry for entry in records.of(entries, records.Launch) if entry.unit == unit]
        assert "".join(entry.arm.upper() for entry in launches if entry.order < 2) == plan.launch[: len(launches)]
        steady = [s for s in records.of(entries, records.Slot) if s.unit == unit and s.phase == "steady"]
        assert "".join(s.arm.upper() for s in steady) == "".join(plan.pairs)[: len(steady)]
        kept += len(steady) == 2 * PAIRS
    return kept


def kill_often(folder, times, seed):
    """Kill one comparison again and again, resuming it in between; at the end it finishes."""
    chance = random.Random(seed)
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "killed.toml").write_text(SCENARIO)
    record, killed = None, 0
    while killed < times:
        running = start(folder, *(("--resume", record) if record else ()))
        try:
            out, err = running.communicate(timeout=chance.uniform(0.05, 2.5))
            assert running.returncode == 0, out + err
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
            killed += 1
        assert left(folder) == []
        record = unfinished(folder)
    done = start(folder, *(("--resume", record) if record else ()))
    out, err = done.communicate()
    assert done.returncode == 0, out + err
    assert left(folder) == []
    assert unfinished(folder) is None


def unfinished(folder):
    """The newest record's folder while its comparison is not complete; every record is checked on the way."""
    found = None
    for path in sorted((folder / "reports").glob("killed/*/records.jsonl"), key=lambda path: path.stat().st_mtime):
        found = path.parent if path.stat().st_size else None  # killed before the first entry was written
        if found:
            entries = records.read(path)
            kept = check_coins(records.settle(entries))
            if isinstance(entries[-1], records.End) and entries[-1].state == "complete":
                assert kept == BLOCKS
                found = None
    return found


def interrupt_often(folder, times, seed):
    """Interrupt one comparison again and again, resuming it in between; it ends in order every time."""
    chance = random.Random(seed)
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "killed.toml").write_text(SCENARIO)
    record, interrupted = None, 0
    while interrupted < times:
        running = start(folder, *(("--resume", record) if record else ()))
        try:
            out, err = running.communicate(timeout=chance.uniform(0.05, 2.5))
            assert running.returncode == 0, out + err
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            out, err = running.communicate()
            interrupted += 1
            # before Python can catch it, while it starts itself, in time, or too late
            assert running.returncode in (0, 130, -signal.SIGINT) or "init_import_site" in err, out + err
            # a line of Python's own about an interrupt that struck a callback is no traceback of ours
            dropped = "Exception ignored in" in err
            assert running.returncode not in (0, 130) or dropped or "Traceback" not in err, err
        assert left(folder) == []
        record = unfinished(folder)
        if running.returncode == 130 and record:
            last = records.read(record)[-1]
            assert isinstance(last, records.Comparison) or last == records.End(
                state="interrupted", message="by the user"
            )


DROPPED = """
import os, signal, sys, weakref
from harness import interrupts
if sys.argv[1] == 'watched': interrupts.watch()
class Thing: pass
thing = Thing()
def callback(reference):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10): pass
watcher = weakref.ref(thing, callback)
del thing  # Python prints that it ignores the exception
try: interrupts.check()
except KeyboardInterrupt: print('kept')
interrupts.forget()
interrupts.check()
print('over')
"""


@pytest.mark.parametrize(("how", "said"), [("watched", "kept\nover\n"), ("unwatched", "over\n")])
def test_an_interrupt_that_python_drops_is_kept(how, said):
    """Unwatched is the broken twin."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", DROPPED, how], env=environment, capture_output=True, text=True)
    assert "Exception ignored in" in done.stderr
    assert done.stdout == said


def test_an_interrupt_at_any_moment_leaves_a_record_that_goes_on(tmp_path):
    interrupt_often(tmp_path, 4, seed=3)


@pytest.mark.slow
def test_a_hundred_interrupts_at_random_moments_leave_a_record_that_goes_on(tmp_path):
    interrupt_often(tmp_path, 100, seed=4)


def test_three_kills_leave_a_record_that_goes_on_and_no_process(tmp_path):
    kill_often(tmp_path, 3, seed=1)


@pytest.mark.slow
def test_a_hundred_kills_at_random_moments_leave_a_record_that_goes_on_and_no_process(tmp_path):
    kill_often(tmp_path, 100, seed=2)


HANGS = f"""\
# Does a hang, and a killed harness, leave a comparison that finishes?
[scenario]
name = "killed"
question = "Does a comparison survive a hang and a kill?"
workload = ["python", "{ROOT / "tests" / "arms" / "scripted.py"}"]
metric = "seconds"
fingerprint = "exact"
timeout = 2.0
[parameters]
noise = 0.01
[arms.a]
[arms.b]
does = "hang"
at = 0
state = "launches"
launch = 4
seed = 1
[schedule]
mode = "process"
pairs = 10
warmup = 0
seed = {SEED}
"""


def test_a_hang_and_a_kill_leave_a_comparison_that_finishes_with_its_coins(tmp_path):
    """B hangs in its fifth run, the harness is killed in the ninth pair; then it is gone on with."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "killed.toml").write_text(HANGS)
    running = start(tmp_path)
    while True:
        (record,) = [*(tmp_path / "reports").glob("killed/*/records.jsonl")] or [None]
        if record and record.read_bytes().count(b'"kind":"unit"') >= 8:
            break
        assert running.poll() is None, running.communicate()
        time.sleep(0.002)
    running.kill()
    running.communicate()
    assert left(tmp_path) == []
    before = records.read(record)
    (void,) = records.of(before, records.Void)
    assert (void.arm, void.reason, void.unit) == ("b", "timeout", 4)
    assert "expected an answer to 'iterate' within 2 s, found none" in void.message
    assert len(re.findall(r"time\.sleep|sleep \(|_hang|wait", void.stacks)) >= 1
    assert void.stacks.count("Thread ") >= 2
    done = start(tmp_path, "--resume", record.parent)
    out, err = done.communicate()
    assert done.returncode == 0, out + err
    assert left(tmp_path) == []
    after = records.read(record)
    for unit in range(11):
        plan = schedule.plan_unit(SEED, unit, "process", 1)
        launches = [entry.arm.upper() for entry in records.of(after, records.Launch) if entry.unit == unit]
        assert plan.launch.startswith("".join(launches[:2]))
    kept = [slot for slot in records.of(before, records.Slot) if slot.unit < 8]
    assert [slot for slot in records.of(after, records.Slot) if slot.unit < 8] == kept
    summary = json.loads((record.parent / "summary.json").read_text())
    assert summary["units"]["kept"] == 10
    assert summary["voids"] == {"a": {}, "b": {"timeout": 1}}
    low, high = summary["void_shares"]["b"]["low"], summary["void_shares"]["b"]["high"]
    assert (summary["void_shares"]["b"]["void"], summary["void_shares"]["b"]["of"]) == (1, 11)
    assert (round(low, 4), round(high, 4)) == (0.0023, 0.4128)  # scipy.stats.beta.ppf(.025, 1, 11), (.975, 2, 10)
    page = (record.parent / "report.md").read_text()
    assert "1 × a hang" in page
    assert "B: 1 of 11 (between 0.23 % and 41 %, 95 %)" in (record.parent / "report.html").read_text()
    assert all(line in page for line in void.stacks.splitlines()[:3])


TEMPORARY = {
    "callgrind": ("scenario.metric", "instructions", "harness-callgrind-*"),
    "compilers' caches": ("scenario.metric", "startup_seconds", "inductor/*"),
}


@pytest.mark.parametrize("what", TEMPORARY)
def test_a_killed_harness_leaves_no_temporary_tree(tmp_path, what):
    key, metric, pattern = TEMPORARY[what]
    if metric == "instructions" and shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    place, project = tmp_path / "temporary", tmp_path / "project"
    place.mkdir()
    project.mkdir()
    program = project / "program.py"
    program.write_text(
        "import os, time\n"
        "os.makedirs(os.environ['TORCHINDUCTOR_CACHE_DIR'] + '/deep/er', exist_ok=True)\n"
        "time.sleep(60)\n"
    )
    words = ["ab", f"{sys.executable} {program} 1", f"{sys.executable} {program} 2", "--quiet", "--pairs", "3"]
    words += ["-s", f'{key}="{metric}"', "-s", 'scenario.fingerprint="none"']
    # the count comes after a plain run, which must end soon
    if metric == "instructions":
        program.write_text("import os, time\nif 'HARNESS_COUNTS_INSTRUCTIONS' in os.environ: time.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place), "TORCHINDUCTOR_CACHE_DIR": ""}
    if metric == "startup_seconds":
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(place / "inductor")
    running = subprocess.Popen([sys.executable, "-m", "harness", *words], cwd=project, env=environment)
    while not (found := list(place.glob(pattern))):
        assert running.poll() is None
        time.sleep(0.01)
    assert found
    running.kill()
    running.wait()
    assert left(project) == []
    for _ in range(100):
        if not list(place.glob(pattern)):
            break
        time.sleep(0.02)
    assert list(place.glob(pattern)) == []
