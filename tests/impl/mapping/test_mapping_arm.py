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


def keys(found):
    return {name: digest for name, digest in found["digests"].items() if not name.startswith("values")}


def test_ways_to_run_that_must_not_change_a_byte():
    job = {"source": "synthetic", "tile": 70, "frames": 2, "depth": 1}
    expected = fingerprint(**job)
    for way in (
        {"subdivision": "flat"},
        {"subdivision": "flat", "filter": False},
        {"subdivision": "flat", "instructions": "plain"},
        {"accumulate": "radix"},
        {"accumulate": "bitmap"},
        {"reject": False},
        {"precheck": "leaves"},
        {"threads": 2, "work_block": 33},
        {"count_blocks": True},
    ):
        assert fingerprint(**job, **way) == expected, way
    copied = fingerprint(**job, layout="copy", margin=30)
    assert copied == fingerprint(**job, layout="view", margin=30)
    assert keys(copied[1]) == keys(expected[1])
    assert copied != fingerprint(**job, layout="view", margin=0)  # other bricks, other last bits


def test_calls_of_one_frame_merge_to_the_group():
    job = {"source": "synthetic", "tile": 70, "frames": 5, "depth": 0, "exposure": "continuous", "merge": True}
    grouped, alone, pairs = (fingerprint(**job, frames_per_call=n)[1] for n in (0, 1, 2))
    assert keys(grouped) == keys(alone) == keys(pairs)
    assert grouped["totals"]["sumI"] == pytest.approx(alone["totals"]["sumI"], rel=1e-13)
    unmerged = fingerprint(**(job | {"merge": False}), frames_per_call=1)[1]
    assert unmerged["work"] > grouped["work"]
    banded = fingerprint(**job, budget=1_000_000)[1]
    assert keys(banded) == keys(grouped)


def test_a_region_keeps_its_own_voxels_alone():
    job = {"source": "synthetic", "tile": 70, "frames": 1, "depth": 1}
    assert 0 < fingerprint(**job, region=8)[1]["work"] < fingerprint(**job)[1]["work"] / 10


@pytest.mark.parametrize(("frames", "bricks", "calls"), [(4, 0.695, 0.692), (8, 0.644, 0.641), (16, 0.619, 0.615)])
def test_bricks_of_frames_meet_fewer_voxels(frames, bricks, calls):
    def counted(order, frames_per_call):
        job = workload(
            source="synthetic", tile=512, frames=16, frames_per_call=frames_per_call, exposure="continuous", depth=0,
            subdivision="flat", order=order, count_blocks=True,
        )  # fmt: skip
        job.setup()
        line = job.iterate()
        job.close()
        return line["counters"]["block_records"], line["work"]

    flat, alone = counted("flat-runs", 1), counted("bricks", frames)
    assert alone[0] / flat[0] == pytest.approx(bricks, abs=0.01)
    assert alone[1] / flat[1] == pytest.approx(calls, abs=0.01)


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
        ({"accumulate": "bitmaps"}, "did you mean 'bitmap'"),
        ({"instructions": "avx"}, "one of best, plain, avx2, avx512"),
        ({"order": "brick"}, "did you mean 'bricks'"),
        ({"layout": "views"}, "did you mean 'view'"),
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
