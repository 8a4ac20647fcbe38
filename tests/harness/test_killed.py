"""The harness killed at any moment: the record reads, the comparison goes on with its coins, no process is left."""

import os
import random
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


def test_three_kills_leave_a_record_that_goes_on_and_no_process(tmp_path):
    kill_often(tmp_path, 3, seed=1)


@pytest.mark.slow
def test_a_hundred_kills_at_random_moments_leave_a_record_that_goes_on_and_no_process(tmp_path):
    kill_often(tmp_path, 100, seed=2)
