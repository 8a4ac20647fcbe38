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
import numpy as np
import xrayutilities
from impl.mapping.detector import PoniDetector
from impl.mapping.geometry import AXES, b_matrix, affine

rng = np.random.default_rng(0)
shape, pitch, distance = (30, 40), (1e-3, 1.3e-3), 0.3
detector = PoniDetector(shape, pitch, (0.004, 0.03), distance)
k, angles = 9.0, rng.uniform(-2, 2, 4)
u = np.linalg.qr(rng.normal(size=(3, 3)))[0]
u *= np.linalg.det(u)
ub = u @ b_matrix(4, 5, 6, 1.4, 1.5, 1.7)
rays = detector.rays(np.arange(30)[:, None], np.arange(40)[None, :])
for n, axes in enumerate(AXES):
    circles = ["x+", "z-", "y+", "x+"][: min(n, 4)] or ["x+"]
    given = angles[: min(n, 4)] if n else [0.0]
    peer = xrayutilities.experiment.QConversion(circles, ["x+"], [0, 1, 0], en=1e4)
    middle = [p / s - 0.5 for p, s in zip((0.004, 0.03), pitch)]
    peer.init_area("x+", "z+", *middle, *shape, distance=distance, pwidth1=pitch[0], pwidth2=pitch[1])
    matrix = {"crystal": u, "hkl": ub}.get(axes, np.identity(3))
    theirs = np.stack(peer.area(*given, 0.0, deg=False, wl=2 * np.pi / k, UB=matrix), axis=-1)
    table = affine(angles, k, axes, u=u, ub=ub)
    ours = rays @ table[:, :3].T + table[:, 3]
    wrong = affine(angles * [1, -1, 1, 1], k, axes, u=u, ub=ub)  # omega turned the other way
    print(axes, np.abs(ours - theirs).max(), np.abs(rays @ wrong[:, :3].T + wrong[:, 3] - theirs).max())
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
def test_the_peer_has_our_seven_axes():
    done = subprocess.run([sys.executable, "-c", MEASURE], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in found] == ["lab", "alpha", "omega", "chi", "phi", "crystal", "hkl"]
    for axes, difference, turned in found:
        assert float(difference) < 1e-13, axes
        assert (float(turned) > 1e-3) == (axes not in ("lab", "alpha")), axes


def test_nobody_else_imports_the_peer():
    lines = [line for path in (ROOT / "impl").rglob("*.py") for line in path.read_text().splitlines()]
    assert [line.strip() for line in lines if "import xrayutilities" in line] == ["import xrayutilities"]


def test_bad_parameters_are_one_sentence():
    for given, words in (({"way": "xrayutils"}, "did you mean 'xrayutilities'"), ({"tile": 0}, "from 1 to 1024")):
        with pytest.raises(Fault) as fault:
            Gridding(effective("gridding", Gridding.accepts, given))
        assert words in str(fault.value)
