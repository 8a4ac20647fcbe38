"""Our kernel and xrayutilities, which stays in a process of its own, meet the same voxels."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.worker import Fault, effective
from impl.mapping.peer_arm import Gridding

ROOT = Path(__file__).resolve().parents[3]
needs_the_peer = pytest.mark.skipif(find_spec("xrayutilities") is None, reason="needs the extra 'peers'")
MEASURE = """
import sys
import numpy as np
from harness.worker import effective
from impl.mapping.peer_arm import Gridding
arm = Gridding(effective("gridding", Gridding.accepts, {"way": "xrayutilities", "tile": 96}))
arm.setup()
print(max(np.abs(a - b).max() / s for a, b, s in zip(arm.area(), arm.coordinates, arm.scan.grid.step)))
"""


def by_hand(way):
    given = ("--set", f'way="{way}"', "--set", "tile=96", "--iterations", "2")
    command = [sys.executable, "-m", "impl.mapping.peer_arm", *given]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.extras
@needs_the_peer
def test_both_ways_meet_the_same_voxels():
    ours, theirs = (
        next(line for line in by_hand(way) if line["kind"] == "fingerprint") for way in ("kernel", "xrayutilities")
    )
    assert ours["work"] == theirs["work"] > 1000
    assert ours["digests"] == theirs["digests"]
    assert ours["totals"]["sumI"] == pytest.approx(theirs["totals"]["sumI"], rel=1e-12)


@pytest.mark.extras
@needs_the_peer
def test_the_peer_has_our_geometry():
    done = subprocess.run([sys.executable, "-c", MEASURE], cwd=ROOT, capture_output=True, text=True, timeout=300)
    # rays of the pixels' middles against the middles of their corners' rays, in voxels
    assert 0 < float(done.stdout.split()[-1]) < 5e-5


def test_nobody_else_imports_the_peer():
    lines = [line for path in (ROOT / "impl").rglob("*.py") for line in path.read_text().splitlines()]
    assert [line.strip() for line in lines if "import xrayutilities" in line] == ["import xrayutilities"]


def test_bad_parameters_are_one_sentence():
    for given, words in (({"way": "xrayutils"}, "did you mean 'xrayutilities'"), ({"tile": 0}, "from 1 to 1024")):
        with pytest.raises(Fault) as fault:
            Gridding(effective("gridding", Gridding.accepts, given))
        assert words in str(fault.value)
