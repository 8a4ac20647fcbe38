"""The workload 'mapping' as the harness meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.worker import Fault, effective
from impl.mapping.arm import Mapping

ROOT = Path(__file__).resolve().parents[3]


def workload(**given):
    return Mapping(effective("mapping", Mapping.accepts, {"data": str(ROOT / "tests/data/xray")} | given))


def fingerprint(**given):
    job = workload(**given)
    job.setup()
    job.prepare()
    line = job.iterate()
    found = job.fingerprint()
    assert line["totals"] == found["totals"]
    assert line["work"] == found["work"] > 0
    job.close()
    return line["units"], found


@pytest.mark.parametrize("given", [{}, {"exposure": "continuous", "tile": 16, "tiles": 4, "frames": 1}])
def test_both_subdivisions_have_one_fingerprint(given):
    units, passing = fingerprint(subdivision="corner-passing", **given)
    assert fingerprint(subdivision="corner-cache", **given) == (units, passing)
    assert units == given.get("tile", 48) ** 2 * given.get("tiles", 8) * given.get("frames", 3)
    assert fingerprint(subdivision="corner-passing", threads=2, work_block=100, **given)[1] == passing


@pytest.mark.parametrize(
    "changed",
    [{"panel": "ff2"}, {"frames": 2}, {"tile": 40}, {"tiles": 7}, {"depth": 3}, {"exposure": "continuous", "depth": 1}],
)
def test_parameters_of_the_job_change_the_output(changed):
    assert fingerprint(**changed)[1]["digests"] != fingerprint(depth=1)[1]["digests"]


def test_intensities_are_not_dyadic():
    job = workload(depth=0)
    job.setup()
    values = np.concatenate([call.intensity[call.intensity > 0] for call in job.calls])
    assert (values * 2**20 != np.round(values * 2**20)).mean() > 0.9
    job.close()


def test_the_synthetic_scan_has_the_density_that_was_published():
    units, found = fingerprint(source="synthetic", tile=512, frames=1, depth=0)
    assert found["work"] / units == pytest.approx(0.4527, abs=1e-4)
    assert (
        fingerprint(source="synthetic", tile=64, frames=1, depth=0, seed=1)[1]["totals"]
        != (fingerprint(source="synthetic", tile=64, frames=1, depth=0)[1]["totals"])
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"panel": "ff3"}, "did you mean"),
        ({"source": "rubi"}, "did you mean 'ruby'"),
        ({"subdivision": "corner-cach"}, "did you mean 'corner-cache'"),
        ({"exposure": "stationery"}, "did you mean 'stationary'"),
        ({"precheck": "record"}, "did you mean 'records'"),
        ({"depth": 9}, "from 0 to 8"),
        ({"tile": 0}, "from 1"),
        ({"tiles": 9}, "from 0 to 8"),
        ({"threads": 0}, "from 1"),
        ({"frames": 1441}, "from 1 to 1440"),
        ({"depth": 2.5}, "a whole number"),
        ({"depht": 2}, "did you mean 'depth'"),
        ({"budget": 100}, "one pixel"),
        ({"budget": 5000}, "one row"),
        ({"data": "/nowhere"}, "ruby_ff1.npz"),
    ],
)
def test_bad_parameters_are_one_sentence(given, words):
    def start():
        job = workload(**given)
        job.inputs()
        job.setup()

    with pytest.raises(Fault) as fault:
        start()
    assert words in str(fault.value)
    assert "\n" not in str(fault.value)
    assert "expected" in str(fault.value)


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "impl.mapping.arm", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_by_hand_it_says_what_it_did(tmp_path):
    done = run("--set", "depth=1", "--set", "tiles=1", "--iterations", "1", "--values", str(tmp_path / "values.npz"))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in lines] == [
        "header", "phase", "iteration", "iteration", "fingerprint", "values", "closed",
    ]  # fmt: skip
    library = lines[0]["environment"]["libraries"][0]
    assert library["source_digest"] == library["tree_digest"]
    assert library["path"].endswith(".so")
    with np.load(tmp_path / "values.npz") as values:
        assert len(values["key"]) == lines[-2]["records"] > 0
        assert {"key", "value", "variance", "weight"} <= set(values)


def test_an_unreadable_scan_ends_with_2_and_a_sentence(tmp_path):
    for name in ("ruby_instrument.yml", "ruby_grains.out"):
        (tmp_path / name).write_bytes((ROOT / "tests/data/xray" / name).read_bytes())
    (tmp_path / "ruby_ff1.npz").write_bytes(b"no archive")
    done = run("--set", f'data="{tmp_path}"')
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "ruby_ff1.npz: expected a frame cache" in done.stderr
