"""The workload 'correction' as the harness meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.worker import Fault, effective
from impl.mapping.correct_arm import Correct

ROOT = Path(__file__).resolve().parents[3]
SMALL = {"rows": 130, "columns": 70, "frames": 2}


def fingerprint(**given):
    job = Correct(effective("correction", Correct.accepts, SMALL | given))
    job.setup()
    line = job.iterate()
    found = job.fingerprint()
    job.close()
    assert 0 < line["work"] == found["work"] < line["units"] == 130 * 70 * 2
    return found


@pytest.mark.parametrize("given", [{}, {"map": True}, {"background": "none", "uncertain": False, "dtype": "uint16"}])
def test_both_ways_have_one_fingerprint_and_the_ceiling_another(given):
    expected = fingerprint(way="numpy", **given)
    assert fingerprint(way="fused", **given) == expected
    assert fingerprint(way="fused", instructions="plain", **given) == expected
    assert fingerprint(way="ceiling", **given)["digests"] != expected["digests"]
    assert ("records local" in expected["digests"]) == given.get("map", False)


@pytest.mark.parametrize(
    "changed",
    [
        {"background": "exact"},
        {"static": False},
        {"monitors": 2},
        {"uncertain": False},
        {"dtype": "float32", "seed": 1},
    ],
)
def test_parameters_change_the_output(changed):
    assert fingerprint(**changed)["digests"] != fingerprint()["digests"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"way": "fuse"}, "did you mean 'fused'"),
        ({"background": "exakt"}, "did you mean 'exact'"),
        ({"dtype": "int31"}, "did you mean 'int32'"),
        ({"rows": 0}, "from 1 to 3072"),
        ({"monitors": 9}, "from 0 to 8"),
        ({"instructions": "sse"}, "expected one of"),
    ],
)
def test_bad_parameters_are_one_sentence(given, words):
    with pytest.raises(Fault) as fault:
        Correct(effective("correction", Correct.accepts, given))
    assert words in str(fault.value)
    assert "\n" not in str(fault.value)


def test_by_hand_it_says_what_it_did():
    done = subprocess.run(
        [sys.executable, "-m", "impl.mapping.correct_arm", "--set", "rows=64", "--iterations", "1"],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert kinds == ["header", "phase", "iteration", "iteration", "fingerprint", "closed"]
