"""The workload 'mapping-job' as the harness meets it, whole and with every fault that a job can have."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.worker import Fault, effective
from impl.mapping import faults
from impl.mapping.job_arm import MappingJob

ROOT = Path(__file__).resolve().parents[3]
SMALL = {"frames": 4, "rows": 40, "columns": 48, "frames_per_call": 2, "step": 0.1}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fingerprint(path=None, **given):
    job = MappingJob(effective("mapping-job", MappingJob.accepts, SMALL | given))
    job.setup()
    try:
        for _ in range(2):  # an iteration must not find what the one before it left
            job.prepare()
            line = job.iterate()
        found = job.fingerprint()
        if path:
            job.values(str(path))
    finally:
        job.close()
    assert line["totals"] == found["totals"]
    assert line["work"] == found["work"] > 0
    return line["units"], found


def keys(found):
    return {name: digest for name, digest in found["digests"].items() if not name.startswith("values")}


def test_ways_to_run_a_job_that_must_not_change_a_byte(tmp_path):
    units, expected = fingerprint()
    assert units == 4 * 40 * 48
    for way in (
        {"schedule": "inline"}, {"schedule": "per-frame-pool"}, {"correction": "numpy"}, {"layout": "copy"},
        {"subdivision": "corner-cache"}, {"readers": 2}, {"threads": 2},
    ):  # fmt: skip
        assert fingerprint(**way)[1] == expected, way
    single = fingerprint(frames_per_call=1)[1]
    assert keys(single) == keys(expected)
    assert single["digests"] != expected["digests"]
    for name, total in single["totals"].items():
        assert total == pytest.approx(expected["totals"][name], rel=1e-12)
    assert not list((tmp_path / ".harness" / "mapping").iterdir())


@pytest.mark.parametrize(
    "changed", [{"seed": 2}, {"depth": 1}, {"frames": 3}, {"step": 0.03}, {"exposure": "stationary", "depth": 1}]
)
def test_parameters_of_the_job_change_the_output(changed):
    assert keys(fingerprint(**changed)[1]) != keys(fingerprint()[1])


def test_what_killed_arms_left_is_cleared_and_what_others_use_is_not(tmp_path):
    scratch = tmp_path / ".harness" / "mapping"
    for name in (f"{2**22 + 1}-dead", f"{os.getppid()}-alive", "other"):  # above the largest process number
        (scratch / name).mkdir(parents=True)
    fingerprint()
    assert sorted(path.name for path in scratch.iterdir()) == [f"{os.getppid()}-alive", "other"]


def test_values_are_those_of_the_map(tmp_path):
    found = fingerprint(tmp_path / "values.npz")[1]
    with np.load(tmp_path / "values.npz") as values:
        assert len(values["key"]) == found["work"]
        assert values["weight"].sum() == pytest.approx(found["totals"]["sumW hkl"])
        assert (values["value"] * values["weight"]).sum() == pytest.approx(found["totals"]["sumI hkl"])


def test_the_ruby_scan_as_a_job_keeps_each_so_many_frames():
    path = ROOT / "tests/data/xray/jobs/ruby_ff1.toml"
    job = MappingJob(effective("mapping-job", MappingJob.accepts, {"job": str(path), "every": 480, "depth": -1}))
    assert [entry["name"] for entry in job.inputs()] == ["ruby_ff1.toml", "ruby_ff1.npz"]
    made = job._job()
    assert len(made.excluded) == 1437
    assert made.frames_per_call == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schedule": "groupd"}, "did you mean 'grouped'"),
        ({"correction": "fusd"}, "did you mean 'fused'"),
        ({"fault": "monitr"}, "did you mean 'monitor'"),
        ({"layout": "own"}, "one of copy, view"),
        ({"depth": -1}, "from 0 to 8"),
        ({"step": 0.0}, "above 0"),
        ({"frames": 0}, "from 1"),
        ({"job": "none.toml"}, "none.toml"),
        ({"frams": 2}, "did you mean 'frames'"),
    ],
)
def test_bad_parameters_are_one_sentence(given, words):
    def start():
        job = MappingJob(effective("mapping-job", MappingJob.accepts, given))
        job.inputs()
        job.setup()

    with pytest.raises(Fault) as fault:
        start()
    assert words in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_fault_is_gone_afterwards():
    before = fingerprint()[1]
    with pytest.raises(ValueError, match="fault: expected one of nan-frames"), faults.injected("none"):
        pass
    assert fingerprint(fault="monitor")[1]["totals"]["sumI hkl"] == pytest.approx(1.22 * before["totals"]["sumI hkl"])
    assert fingerprint()[1] == before


# ---------------------------------------------------------------------------------------------------- comparisons


def compared(tmp_path, arm, *more):
    """(exit code, summary, the page as text) of `clean` against an arm with a fault."""
    (tmp_path / "scenarios").mkdir()
    shutil.copy(ROOT / "scenarios" / "mapping-faults.toml", tmp_path / "scenarios")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "ab", "clean", arm, "--json", "--seed", "1", *more], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout, done.stderr
    [page] = (tmp_path / "reports").rglob("report.md")
    return done.returncode, json.loads(done.stdout), page.read_text()


@pytest.mark.parametrize(
    ("arm", "evidence"),
    [
        ("nan-frames-allowed", ("digest contributors hkl", "digest frames", "total sumI hkl", "total sumW hkl")),
        ("other-frame", ("digest frames", "total sumI hkl")),
        ("monitor", ("total applied factors", "total sumI hkl", "total sumV hkl")),
        ("early-return", ("digest chunk hkl", "digest fingerprint hkl", "total sumW hkl", "work")),
    ],
)
def test_a_wrong_output_is_a_wrong_result_and_named(tmp_path, arm, evidence):
    code, summary, page = compared(tmp_path, arm, "--blocks", "6")
    assert (code, summary["verdict"]["word"]) == (1, "wrong-result")
    told = json.dumps(summary["fingerprints"]["differences"]) + page
    for words in evidence:
        assert words in told
    if arm == "monitor":  # the right voxels and counts with another intensity
        assert "digest" not in json.dumps(summary["fingerprints"]["differences"])


@pytest.mark.parametrize(
    ("arm", "kind", "words"),
    [
        ("nan-frames", "exit", "frame 1: expected pixels to map, found that all are masked or not finite"),
        ("full-disk", "exit", "expected room to write, found No space left on device"),
        ("sigterm", "killed", "SIGTERM"),
        ("hang", "timeout", ""),
    ],
)
def test_a_run_that_does_not_end_well_is_void_counted_and_told(tmp_path, arm, kind, words):
    # Two voids are evidence enough at a level of 0.3; at 0.05 it takes five, and a hang costs its whole time limit.
    code, summary, _ = compared(tmp_path, arm, "-s", "gate.alpha=0.3", "-s", "scenario.timeout=6")
    assert (code, summary["verdict"]["word"]) == (1, "regression")
    assert summary["voids"]["a"] == {}
    assert sum(summary["voids"]["b"].values()) >= 2
    assert kind in json.dumps(summary["voids"]["b"])
    [record] = (tmp_path / "reports").rglob("records.jsonl")
    assert words in record.read_text()
    assert "B does not run" in json.dumps(summary["verdict"])


def test_without_a_fault_the_outputs_agree(tmp_path):
    code, summary, _ = compared(tmp_path, "clean", "--blocks", "1")
    assert (code, summary["verdict"]["word"]) == (3, "inconclusive")  # one block is no evidence of speed
    assert summary["fingerprints"]["agree"] is True
    assert summary["voids"] == {"a": {}, "b": {}}
