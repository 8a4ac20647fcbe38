"""`python -m impl.mapping` as a user and a batch system meet it: words, exit codes, signals, kills, a full disk."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from made_scans import NOWHERE, files, job_file

from impl.mapping import schedule
from impl.mapping.__main__ import main
from impl.mapping.checkpoint import Lock
from impl.mapping.job import Job
from impl.mapping.parts import Part

ROOT = Path(__file__).resolve().parents[3]
#: 24 frames, enough work that a kill meets it half way
LONGER = {"frames": 24, "rows": 600, "columns": 500, "frames_per_call": 2, "checkpoints": 12, "counts": "integer",
          "budget": "256 MiB"}  # fmt: skip


def command(*arguments, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "impl.mapping", *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **how,
    )  # fmt: skip


def ended(process, code):
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out, err


def when_parts(job, count, process):
    """Wait until that many parts are there, or the process has ended; returns how many there are."""
    folder = job.with_name("made.nxs.scratch")
    while len(found := list(folder.rglob("*.part"))) < count and process.poll() is None:
        time.sleep(0.001)
    return len(found)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The longer job mapped without trouble: name -> bytes."""
    job = job_file(tmp_path_factory.mktemp("undisturbed"), **LONGER)
    assert main(["map", str(job), "--quiet"]) == 0
    assert main(["finalise", str(job), "--quiet"]) == 0
    return files(job.parent, "*.part") | files(job.parent, "*.records")


def finished(job):
    assert main(["finalise", str(job), "--quiet"]) == 0
    return files(job.parent, "*.part") | files(job.parent, "*.records")


@pytest.mark.parametrize("seed", range(2))
def test_killed_three_times_at_random_it_gives_the_same_bytes(tmp_path, undisturbed, seed):
    job, rng, killed = job_file(tmp_path, **LONGER), random.Random(seed), 0
    for first in sorted(rng.sample(range(11), 3)):
        process = command("map", job, "--quiet")
        when_parts(job, first, process)
        time.sleep(rng.random() * 0.02)  # somewhere within the next call
        process.kill()
        killed += ended(process, process.wait()) and process.returncode == -signal.SIGKILL
    assert killed >= 2  # the last may have been done already
    out, _ = ended(command("resume", job, "--json"), 0)
    assert json.loads(out.splitlines()[-1])["peak_rss_bytes"] <= 1.1 * (256 << 20)
    assert finished(job) == undisturbed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("schedule", ["grouped", "inline"])
def test_a_signal_leaves_what_can_be_gone_on_with(tmp_path, undisturbed, number, code, schedule):
    job = job_file(tmp_path, **LONGER)
    process = command("map", job, "--schedule", schedule)
    assert 3 <= when_parts(job, 3, process) < 12
    process.send_signal(number)
    _, err = ended(process, code)
    assert f"stopped by {number.name}; what is written stays valid; go on with: python -m impl.mapping resume" in err
    before = files(tmp_path)
    assert 3 <= len(before) < 12
    _, err = ended(command("resume", job), 0)
    assert "of 24 frames are there already" in err
    assert "Traceback" not in err
    after = finished(job)
    assert all(after[name] == data for name, data in before.items())
    assert after == undisturbed


def test_every_step_meets_a_signal(tmp_path, monkeypatch, capsys):
    job = job_file(tmp_path, frames=4)
    real = schedule.Stop.check

    def check(self):
        self.signal = signal.SIGTERM
        real(self)

    def stopped(*arguments):
        with monkeypatch.context() as patched:
            patched.setattr(schedule.Stop, "check", check)
            assert main([*arguments, str(job), "--quiet"]) == 143
        assert f"go on with: python -m impl.mapping {arguments[0]} " in capsys.readouterr().err
        assert not list(tmp_path.rglob("*.tmp"))

    for name in ("map", "finalise", "export"):
        assert main([name, str(job), "--quiet"]) == 0
    before = files(tmp_path, "*.records")
    for name in ("resume", "finalise", "export"):
        stopped(name)
    assert files(tmp_path, "*.records") == before


def test_a_second_start_is_refused_by_a_sentence(tmp_path):
    job = job_file(tmp_path)
    folder = tmp_path / "made.nxs.scratch" / "share-1-of-1"
    folder.mkdir(parents=True)
    lock = Lock(folder)
    _, err = ended(command("map", job), 10)
    assert f"expected no other run on this scratch, found process {os.getpid()}; wait for it" in err
    assert err.count("\n") == 1
    out, _ = ended(command("status", job), 0)
    assert "not begun" in out
    lock.release()
    assert main(["map", str(job), "--quiet"]) == 0


def limited(size):
    """For the child: no file may grow beyond `size` bytes; a write that would is an error and no signal."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_write_that_fails_is_a_sentence_and_nothing_is_lost(tmp_path, undisturbed):
    job = job_file(tmp_path, **LONGER)
    sizes = sorted(len(data) for name, data in undisturbed.items() if name.endswith(".part"))
    process = command("map", job, "--quiet", preexec_fn=limited(sizes[-1] - 1))
    _, err = ended(process, 10)
    assert "expected room to write, found File too large; make room; what is written stays valid, then resume" in err
    assert err.count("\n") == 1
    left = files(tmp_path)
    assert all(undisturbed[name] == data for name, data in left.items())
    assert not list(tmp_path.rglob("*.tmp"))
    ended(command("resume", job, "--quiet"), 0)
    assert finished(job) == undisturbed


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="only root can mount a small disk")
def test_a_full_disk_is_a_sentence_and_nothing_is_lost(tmp_path, undisturbed):
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(len(data) for name, data in undisturbed.items() if name.endswith(".part")) // 2
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True).returncode:
        pytest.skip("this machine does not let its root mount")
    try:
        job = job_file(tmp_path, **LONGER)
        job.write_text(job.read_text().replace('"made.nxs"', '"disk/made.nxs"'))
        _, err = ended(command("map", job, "--quiet"), 10)
        assert "expected room to write, found No space left on device" in err
        assert err.count("\n") == 1
        left = files(disk)
        assert 0 < len(left) < 12
        assert all(undisturbed[name] == data for name, data in left.items())
        subprocess.run(["mount", "-o", "remount,size=1g", disk], check=True)
        ended(command("resume", job, "--quiet"), 0)
        assert main(["finalise", str(job), "--quiet"]) == 0
        assert files(disk, "*.part") | files(disk, "*.records") == undisturbed
    finally:
        subprocess.run(["umount", disk], check=True)


# ---------------------------------------------------------------------------------------------------- words


def test_what_it_says_on_a_pipe(tmp_path, capsys):
    job = str(job_file(tmp_path, frames=6))
    assert main(["status", job]) == 0
    assert capsys.readouterr().out.endswith("not begun\n")
    assert main(["map", job]) == 0
    out, err = capsys.readouterr()
    assert "2 frames a call (given by the job)" in err
    assert "6 of 6 frames" in err.splitlines()[-1]
    assert out.startswith("6 of 6 frames mapped in ")
    assert "grid hkl: " in out
    assert main(["map", job]) == 0
    assert "6 of 6 frames are there already" in capsys.readouterr().err
    assert main(["finalise", job]) == 0
    assert "hkl.records: " in capsys.readouterr().out
    assert main(["status", job]) == 0
    out = capsys.readouterr().out
    assert "share 1 of 1: 6 of 6 frames" in out
    assert "finalised: " in out
    assert main(["finalise", job, "--quiet", "--clean"]) == 0
    assert capsys.readouterr() == ("", "")
    assert not files(tmp_path)


def test_json_lines_say_the_same(tmp_path, capsys):
    job = str(job_file(tmp_path, frames=6))
    assert main(["map", job, "--json", "--stages"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["kind"] == "note"
    assert lines[-2]["kind"] == "progress"
    assert lines[-2]["done"] == lines[-2]["frames"] == 6
    done = lines[-1]
    assert done["kind"] == "mapped"
    assert done["mapped"] == 6
    assert done["grids"]["hkl"]["contributors"] == 6 * 24 * 20
    assert done["peak_rss_bytes"] > 0
    assert {stage["stage"] for stage in done["stages"]["stages"]} >= {"read", "correct", "map", "write"}
    assert main(["status", job, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["complete"] is True
    assert status["shares"][0] | {"bytes": 0} == {
        "share": [1, 1], "frames": 6, "done": 6, "holder": None, "bytes": 0, "unfit": [],
    }  # fmt: skip
    assert main(["finalise", job, "--json"]) == 0
    final = json.loads(capsys.readouterr().out)["grids"]["hkl"]
    assert final["fingerprint"] == done["grids"]["hkl"]["fingerprint"] == status["grids"]["hkl"]["fingerprint"]
    assert main(["export", job, "--json", "--values", str(tmp_path / "values.npz")]) == 0
    with np.load(tmp_path / "values.npz") as values:
        assert len(values["key"]) == final["rows"]
        assert set(values) == {"key", "value", "variance", "weight", "contributors"}
        assert values["weight"].sum() == pytest.approx(final["sumW"])


def test_a_bar_on_a_terminal(tmp_path):
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "impl.mapping", "map", str(job_file(tmp_path))], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=slave, env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    process.communicate(timeout=60)
    os.close(master)
    assert process.returncode == 0
    assert b"mapping" in seen
    assert b"8/8" in seen


@pytest.mark.parametrize(
    ("arguments", "changed", "code", "words"),
    [
        (["map"], {"grids": NOWHERE}, 3, "grid 'nowhere': expected records of 8 frames, found none"),
        (["map"], {"budget": "100 MiB"}, 2, "budget: expected about"),
        (["map", "--share", "3/2"], {}, 2, "--share: expected I/N with 1 <= I <= N, found '3/2'"),
        (["map", "--share", "1/99"], {}, 2, "share: expected at most 8 shares"),
        (["map", "--schedule", "pools"], {}, 2, "schedule: expected one of inline"),
        (["map", "--watchdog", "-1"], {}, 2, "--watchdog: expected at least 0 seconds, found -1"),
        (["resume"], {}, 10, "expected a run to go on with, found none; start it with map"),
        (["export"], {}, 10, "hkl.records: expected a finalised map, found none; finalise it first"),
        (["finalise"], {}, 10, "expected a mapped job, found none; map it first"),
        (["map"], {"seed": -1}, 2, "job.toml: input.synthetic.seed"),
    ],
)
def test_faults_are_one_sentence_and_a_code(tmp_path, capsys, arguments, changed, code, words):
    job = str(job_file(tmp_path, **changed))
    assert main([arguments[0], job, "--quiet", *arguments[1:]]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1
    assert main([arguments[0], job, "--json", *arguments[1:]]) == code
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["kind"] == "error"
    assert line["exit_code"] == code
    assert words in line["text"]


def test_shares_by_hand(tmp_path, capsys):
    job = str(job_file(tmp_path))
    assert main(["map", job, "--quiet", "--share", "2/2"]) == 0
    assert main(["status", job]) == 0
    out = capsys.readouterr().out
    assert "share 2 of 2: 4 of 4 frames" in out
    assert "1 of 2 shares are not begun" in out
    assert main(["finalise", job, "--quiet"]) == 10
    assert "expected 2 shares, found 1 of 2 missing; map it first" in capsys.readouterr().err
    assert main(["map", job, "--quiet", "--share", "1/2"]) == 0
    assert main(["finalise", job, "--quiet"]) == 0


def test_an_export_is_the_map_and_tells_its_frames(tmp_path, capsys):
    import h5py

    job = job_file(tmp_path, frames=4, step=0.1)
    for name in ("map", "finalise"):
        assert main([name, str(job), "--quiet"]) == 0
    assert main(["export", str(job), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert [Path(path).name for path in written] == ["made.nxs", "made.hkl.png"]
    part = Part(tmp_path / "made.nxs.scratch" / "hkl.records")
    records, grid = part.read(0, part.rows), dict(Job.read(job).grids)["hkl"]
    with h5py.File(tmp_path / "made.nxs") as file:
        place = tuple(grid.indices(records.chunk, records.local).T)
        assert file["entry/hkl/intensity"][()][place].tobytes() == records.intensity().tobytes()
        assert file["entry/hkl/contributors"][()].sum() == part.footer["contributors"]
        facts = json.loads(file["entry/process/records"][()])["hkl"]
    assert facts["fingerprint"] == part.footer["fingerprint"]
    assert [fact["frame"] for fact in facts["frames"]] == [0, 1, 2, 3]
    assert main(["map", str(job_file(tmp_path, frames=4, step=0.1, seed=2)), "--quiet"]) == 10
    assert main(["export", str(job), "--quiet"]) == 10
    assert "hkl.records: expected a map of job" in capsys.readouterr().err
