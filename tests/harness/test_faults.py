"""Faults around a comparison: a sentence each, and nothing that was measured is lost."""

import errno
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import made
import pytest

from harness import analysis, comparison, records, schedule
from harness.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = ROOT / "tests" / "arms" / "scripted.py"

SCENARIO = f"""\
# Is B faster?
[scenario]
name = "faults"
question = "Is B faster?"
workload = ["python", "{SCRIPTED}"]
metric = "seconds"
fingerprint = "exact"
timeout = 20.0
[arms.plain]
[arms.other]
[schedule]
blocks = 8
pairs = 2
warmup = 0
seed = 11
"""
AB = ("ab", "faults:plain", "faults:other", "--quiet")


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "faults.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(project, *more, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "harness", *AB, *map(str, more)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_folder(reports):
    (folder,) = (reports / "faults").iterdir()
    return folder


def closed_units(path):
    """How many units a record holds so far, as it is being written."""
    return path.read_bytes().count(b'"kind":"unit"') if path.exists() else 0


def until(project, units):
    """The record of the running comparison, once so many units are over."""
    while True:
        for path in (project / "reports" / "faults").glob("*/records.jsonl"):
            if closed_units(path) >= units:
                return path.parent
        time.sleep(0.005)


def check_finished(folder, units=8):
    """Every planned unit is there, under the seed's coins."""
    entries = records.read(folder)
    assert entries[-1].state == "complete"
    assert analysis.summarise(entries)["units"]["kept"] == units
    for unit in range(units):
        plan = schedule.plan_unit(11, unit, "resident", 2)
        steady = [slot for slot in records.of(entries, records.Slot) if slot.unit == unit and slot.phase == "steady"]
        assert "".join(slot.arm.upper() for slot in steady) == "".join(plan.pairs)


# --------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 12 KiB; a function that makes it larger."""
    if sys.platform != "linux":
        pytest.skip("mounts a tmpfs")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    yield place, lambda: subprocess.run(["mount", "-o", "remount,size=4m", str(place)], check=True)
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_full_is_a_sentence_and_the_comparison_goes_on_when_it_has_room(project, small_disk, harness):
    place, enlarge = small_disk
    done = harness(*AB, "--reports", place, cwd=project)
    folder = run_folder(place)
    assert done.returncode == 2
    pattern = (
        f"harness: {re.escape(str(folder))}/records.jsonl: expected room for the next entry, found "
        r"(no space left on device|only \d+ of \d+ bytes written); make room, then go on with --resume\n"
    )
    assert re.fullmatch(pattern, done.stderr), done.stderr
    before = records.read(folder)
    assert len(records.of(before, records.Unit)) >= 1
    enlarge()
    done = harness(*AB, "--reports", place, "--resume", folder, cwd=project)
    assert done.returncode == 0, done.stderr
    after = records.read(folder)
    assert len({unit.unit for unit in records.of(after, records.Unit)}) == 8
    kept = [entry for entry in after if isinstance(entry, records.Slot)]
    for slot in records.of(before, records.Slot):
        if slot.unit in {unit.unit for unit in records.of(before, records.Unit)}:
            assert slot in kept


@pytest.mark.parametrize(("size", "found"), [(2000, "only"), (0, "file too large")])
def test_a_file_that_may_not_grow_is_the_same_sentence(tmp_path, size, found):
    """The same without the right to mount: by the limit on the size of a file."""
    text = (
        "import resource, sys; from pathlib import Path; from harness import records\n"
        "writer = records.Writer(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "for _ in range(100): writer.write(records.Note(about='x', message='y' * 70))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path), str(size)], env=environment, capture_output=True, text=True
    )
    assert f"expected room for the next entry, found {found}" in done.stderr
    lines = (tmp_path / "records.jsonl").read_bytes().split(b"\n")[:-1]
    assert len(lines) == size // (len(lines[0]) + 1 if lines else 1)
    assert all(records.decode(line).message == "y" * 70 for line in lines)


def test_a_disk_that_takes_no_byte_is_a_sentence(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "records.jsonl").symlink_to("/dev/full")
    with records.Writer(tmp_path) as writer, pytest.raises(OSError, match="expected room for the next") as caught:
        writer.write(records.Note(about="x", message="y"))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "records.jsonl")


# --------------------------------------------------------------------------------------------- a folder that is shut


@pytest.mark.parametrize(
    ("place", "reason"),
    [("file/below", "Not a directory"), ("/proc/harness-reports", "No such file or directory")],
)
def test_reports_that_cannot_be_made_are_a_sentence(project, harness, place, reason):
    (project / "file").write_text("x")
    done = harness(*AB, "--reports", place, cwd=project)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"harness: {place}/faults/\S+: expected a folder that can be made, found {reason}; try --reports DIR\n",
        done.stderr,
    ), done.stderr
    assert not (project / "reports").exists()


@pytest.fixture
def read_only(project):
    """A folder that even root cannot write to."""
    place = project / "shut"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_reports_folder_that_is_read_only_is_a_sentence(project, read_only, harness):
    done = harness(*AB, "--reports", read_only, cwd=project)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"harness: {re.escape(str(read_only))}/faults/\S+: expected a folder that can be made, found Read-only file "
        r"system; try --reports DIR\n",
        done.stderr,
    ), done.stderr


def test_a_record_that_became_read_only_is_a_sentence_and_stays_as_it_was(project, harness, tmp_path):
    running = start(project)
    folder = until(project, 2)
    running.kill()
    running.communicate()
    before = (folder / "records.jsonl").read_bytes()
    bind, shut = ["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder]
    if shutil.which("mount") is None or subprocess.run(bind, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        subprocess.run(shut, check=True)
        done = harness(*AB, "--resume", folder, cwd=project)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    assert (done.returncode, done.stderr) == (
        2,
        f"harness: {folder}/records.jsonl: expected a record that can be written, found Read-only file system; "
        "check the folder\n",
    )
    assert (folder / "records.jsonl").read_bytes() == before
    assert harness(*AB, "--resume", folder, cwd=project).returncode == 0
    check_finished(folder)


# ------------------------------------------------------------------------------------------------- a record that is cut


def test_a_record_cut_at_any_byte_reads_as_the_entries_before_and_can_be_gone_on_with(tmp_path):
    header = {"schema": 1, "nested": {"a": [1.5, {}]}}
    units = [made.unit(0, [0.01], foreign=0.1, header=header), made.void(1, "b"), made.unit(2, [0.01])]
    whole = made.record([*units, [records.End(state="complete", message="café")]], units=2, pairs=1)
    lines = [records.encode(entry) + b"\n" for entry in whole]
    content, first = b"".join(lines), len(lines[0])
    path = tmp_path / records.NAME
    ends = [sum(map(len, lines[: count + 1])) for count in range(len(lines))]
    kinds = [type(entry) for entry in whole]
    cuts = [
        range(0, first, 40),
        *(range(ends[i - 1], ends[i]) for i in range(1, len(ends)) if kinds[i] not in kinds[:i]),
    ]
    for cut in itertools.chain(*cuts):
        path.write_bytes(content[:cut])
        if cut < first - 1:
            with pytest.raises(ConfigurationError, match="line 1: expected a 'comparison' entry, found an empty file"):
                records.read(path)
            continue
        complete = sum(cut >= end - 1 for end in ends)  # a line is whole without its newline
        assert records.read(path) == whole[:complete], cut
    for cut in (ends[3] - 1, ends[3] - 7, ends[3]):
        path.write_bytes(content[:cut])
        kept = whole[: sum(cut >= end - 1 for end in ends)]
        closed = {entry.unit for entry in records.of(kept, records.Unit)}
        note = records.Note(about="resumed", message="after")
        for half in (5, 20, None):  # killed while the note itself was written, twice
            with records.Writer(tmp_path) as writer:
                writer.write(note)
            if half:
                os.truncate(path, path.stat().st_size - half)
        assert records.read(path) == [one for one in kept if getattr(one, "unit", 0) in closed or one is kept[0]] + [
            note
        ]


def test_damage_that_is_no_cut_names_its_line(tmp_path):
    lines = [records.encode(entry) for entry in made.record([0.01], units=1, pairs=1)]
    path = tmp_path / records.NAME
    path.write_bytes(b"\n".join([*lines[:2], b'{"kind":"unit","unit":]}', *lines[2:]]))
    with pytest.raises(ConfigurationError) as caught:
        records.read(path)
    assert str(caught.value) == (
        f"{path}: line 3: expected one JSON object, found JSON is malformed: invalid character (byte 22)"
    )


# ----------------------------------------------------------------------------------------------- two at the same time


def test_a_comparison_that_runs_cannot_be_resumed_and_one_that_was_killed_can(project, harness):
    running = start(project, "--blocks", 300)
    folder = until(project, 1)
    refused = harness(*AB, "--blocks", 300, "--resume", folder, cwd=project)
    assert (refused.returncode, refused.stdout, refused.stderr) == (
        2,
        "",
        f"harness: {folder}/records.jsonl: expected a record of its own, found one that a running comparison writes; "
        "wait for it\n",
    )
    assert running.poll() is None
    assert not any(isinstance(entry, records.Note) for entry in records.read(folder))
    running.send_signal(signal.SIGKILL)
    running.communicate()
    done = closed_units(folder / records.NAME)
    resumed = start(project, "--blocks", 300, "--resume", folder)
    while closed_units(folder / records.NAME) == done:
        assert resumed.poll() is None, resumed.communicate()
        time.sleep(0.01)
    resumed.send_signal(signal.SIGINT)
    out, err = resumed.communicate()
    assert resumed.returncode == 130, out + err
    assert records.read(folder)[-1] == records.End(state="interrupted", message="by the user")


def test_what_was_written_between_reading_and_holding_a_record_is_not_lost(project, monkeypatch):
    """The other comparison ends just before this one takes the lock."""
    running = start(project)
    folder = until(project, 2)
    running.kill()
    running.communicate()
    original = records.Writer.__init__

    def late(self, place):
        if not late.done:
            late.done = True
            with start(project, "--resume", folder) as other:
                other.communicate()
            assert other.returncode == 0
        original(self, place)

    late.done = False
    monkeypatch.setattr(records.Writer, "__init__", late)
    with pytest.raises(ConfigurationError, match="the comparison is complete; there is nothing to resume"):
        comparison.compare(
            "faults:plain", "faults:other", parameters={}, overrides={}, command=[], resume=folder, quiet=True
        )
    check_finished(folder)


# ----------------------------------------------------------------------------------------- clocks that are put back

STEPPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec *);
static long calls;
/* the clock of HARNESS_TEST_CLOCK runs backwards: a minute further back at every look */
int clock_gettime(clockid_t id, struct timespec *to) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, to);
    if (id == atoi(getenv("HARNESS_TEST_CLOCK"))) to->tv_sec -= 60 * __sync_add_and_fetch(&calls, 1);
    return failed;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec, to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@pytest.fixture
def stepping(tmp_path):
    """The environment in which one clock runs backwards, for the harness and all its arms."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and LD_PRELOAD")
    source, library = tmp_path / "stepping.c", tmp_path / "stepping.so"
    source.write_text(STEPPING)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return lambda clock: {"LD_PRELOAD": str(library), "HARNESS_TEST_CLOCK": str(clock)}


def durations(folder):
    """Every duration of a record that the harness measured itself."""
    entries = records.read(folder)
    slots = records.of(entries, records.Slot)
    starts = [slot.at for slot in slots]
    return [
        *(slot.outside_seconds for slot in slots),
        *(slot.process_seconds for slot in slots if slot.process_seconds is not None),
        *(launch.startup_seconds for launch in records.of(entries, records.Launch) if launch.startup_seconds),
        *(one.elapsed for one in records.of(entries, records.Load)),
        *(later - earlier for earlier, later in itertools.pairwise(starts)),
    ]


@pytest.mark.parametrize("mode", ["resident", "process"])
def test_a_wall_clock_that_steps_back_changes_no_duration(project, harness, stepping, mode):
    shown = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time() > time.time() + 59)"],
        env={**os.environ, **stepping(time.CLOCK_REALTIME)},
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "True\n"  # the clock does run backwards
    settings = ["-s", f'schedule.mode="{mode}"', "--blocks" if mode == "resident" else "--pairs", 6]
    done = harness(*AB, *settings, cwd=project, **stepping(time.CLOCK_REALTIME))
    assert done.returncode == 0, done.stderr
    folder = run_folder(project / "reports")
    assert json.loads((folder / "summary.json").read_text())["units"]["kept"] == 6
    assert all(0 < one < 60 for one in durations(folder)), durations(folder)


def test_a_monotonic_clock_that_steps_back_would_be_seen_by_that_test(project, harness, stepping):
    """The broken twin: durations that rest on a clock that steps."""
    harness("ab", "faults:plain", "faults:other", cwd=project, timeout=60, **stepping(time.CLOCK_MONOTONIC))
    found = list((project / "reports").glob("faults/*/records.jsonl"))
    assert not found or not all(0 < one < 60 for one in durations(found[0].parent))
