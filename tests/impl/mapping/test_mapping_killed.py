"""Large jobs killed at random and gone on with: the bytes of an undisturbed run, within the memory that was allowed."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_scans import files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
#: 64 frames of a PILATUS 6M: 3.98e8 pixels
SIX = """
[job]
name = "six"
output = "map.nxs"
depth = 0
[input]
format = "synthetic"
[input.synthetic]
frames = 64
masked = 0.001
[instrument]
energy_keV = 12.4
shape = [2527, 2463]
pixel_m = [172e-6, 172e-6]
poni_m = [0.217, 0.212]
distance_m = 0.4
[goniometer]
omega = { axis = "omega", sign = 1, offset_degrees = 17.2 }
[crystal]
cell = [10, 10, 10, 90, 90, 90]
orientation = [0.31, -0.47, 0.83]
[grids.hkl]
minimum = [-10, -10, -10]
maximum = [10, 10, 10]
step = [0.01, 0.01, 0.01]
[corrections]
polarisation = 0.99
exposure_time = true
[run]
frames_per_call = 4
checkpoints = 8
threads = 2
readers = 2
budget = "3 GiB"
"""


def ruby(depth=0, every=4):
    """The ruby scan, every so manieth frame, as a job's text."""
    text = (ROOT / "tests/data/xray/jobs/ruby_ff1.toml").read_text()
    text = text.replace("../", f"{ROOT}/tests/data/xray/")
    kept = set(range(0, 1440, every))
    left_out = json.dumps([frame for frame in range(1440) if frame not in kept])
    for key, value in (("output", '"map.nxs"'), ("depth", depth), ("scratch", '"map.nxs.scratch"')):
        text = re.sub(rf"(?m)^{key} *=.*\n", "", text)
        text = text.replace("[job]\n", f"[job]\n{key} = {value}\n", 1)
    text = re.sub(r"(?m)^excluded *=.*\n", "", text).replace("[job]\n", f"[job]\nexcluded = {left_out}\n", 1)
    text = re.sub(r"(?ms)^\[run\].*?(?=^\[|\Z)", "", text)
    return text + '\n[run]\nframes_per_call = 1\ncheckpoints = 8\nthreads = 2\nreaders = 2\nbudget = "3 GiB"\n'


def started(job):
    return subprocess.Popen(
        [sys.executable, "-m", "impl.mapping", "map", str(job), "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("text", [SIX, ruby()], ids=["pilatus-6m", "ruby-ff1"])
def test_killed_three_times_it_gives_the_bytes_of_an_undisturbed_run(tmp_path, text):
    jobs = [tmp_path / name / "job.toml" for name in ("whole", "killed")]
    for job in jobs:
        job.parent.mkdir()
        job.write_text(text)
    begin = time.monotonic()
    process = started(jobs[0])
    whole = json.loads(process.communicate()[0].splitlines()[-1])
    seconds = time.monotonic() - begin
    assert process.returncode == 0
    rng, kills = random.Random(64), 0
    for parts in sorted(rng.sample(range(7), 3)):
        process = started(jobs[1])
        while len(list(jobs[1].parent.rglob("*.part"))) < parts and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, seconds / 8))  # anywhere before the next checkpoint
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    process = started(jobs[1])
    resumed = json.loads(process.communicate()[0].splitlines()[-1])
    assert process.returncode == 0
    assert kills == 3
    assert 0 < resumed["mapped"] < resumed["frames"]
    assert resumed["grids"] == whole["grids"]
    assert files(jobs[0].parent) == files(jobs[1].parent)
    for done in (whole, resumed):
        assert done["peak_rss_bytes"] <= 1.1 * (3 << 30)
    print({"seconds": seconds, "cpu_seconds": whole["cpu_seconds"], "peak_rss_bytes": whole["peak_rss_bytes"],
           "kills": kills, "mapped after the kills": resumed["mapped"]})  # fmt: skip
