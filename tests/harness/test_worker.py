"""The arm's half of the protocol: lines by hand and under the harness, faults as sentences, a clean stream."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import worker

ROOT = Path(__file__).resolve().parents[2]

NOISY = """
import os, sys
from harness import worker

class Noisy(worker.Workload):
    name = "noisy"
    accepts = {"n": 3, "scale": 1.0, "mode": "plain"}
    packages = ("click", "no-such-package")

    def __init__(self, parameters):
        super().__init__(parameters)
        worker.choice("mode", parameters["mode"], ("plain", "fancy"))

    def setup(self):
        print("a library says hello")
        os.system("echo and a child too")
        self.read = sys.stdin.read()

    def iterate(self):
        print("still talking")
        return {"units": self.parameters["n"], "work": self.parameters["n"], "totals": {"sum": float("nan")},
                "seconds": 99.0}

    def fingerprint(self):
        return {"work": self.parameters["n"], "digests": {"read": worker.digest(self.read.encode())}}

    def close(self):
        print("bye")

if __name__ == "__main__":
    worker.serve(Noisy)
"""


@pytest.fixture
def noisy(tmp_path):
    path = tmp_path / "noisy.py"
    path.write_text(NOISY)

    def run(*arguments, commands=None):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if commands is not None:
            environment["HARNESS_PROTOCOL"] = "1"
        return subprocess.run(
            [sys.executable, str(path), *arguments],
            input=commands or "",
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_by_hand_it_prints_setup_warmup_and_steady_state_apart(noisy):
    done = noisy("--set", "n=5", "--warmup", "1", "--iterations", "2", "--arm", "quiet")
    found = lines(done)
    assert [line["kind"] for line in found] == ["header", "phase", *["iteration"] * 3, "fingerprint", "closed"]
    assert [line["phase"] for line in found if line["kind"] == "iteration"] == ["warmup", "steady", "steady"]
    assert [line["index"] for line in found if line["kind"] == "iteration"] == [0, 0, 1]
    header = found[0]
    assert header["parameters"] == {"n": 5, "scale": 1.0, "mode": "plain"}
    assert header["arm"] == "quiet"
    assert header["environment"]["packages"]["no-such-package"] is None
    assert header["environment"]["packages"]["click"]
    assert done.returncode == 0


def test_prints_of_libraries_and_children_go_to_standard_error(noisy):
    done = noisy(commands='{"do":"setup"}\n{"do":"iterate","phase":"steady"}\n{"do":"close"}\n')
    assert [line["kind"] for line in lines(done)] == ["header", "phase", "iteration", "closed"]
    assert "a library says hello" in done.stderr
    assert "and a child too" in done.stderr


def test_a_workload_that_reads_standard_input_does_not_eat_commands(noisy):
    done = noisy(commands='{"do":"setup"}\n{"do":"fingerprint"}\n{"do":"close"}\n')
    assert lines(done)[2]["digests"]["read"] == worker.digest(b"")


def test_nan_becomes_null_and_a_wall_clock_cannot_be_overruled(noisy):
    iteration = lines(noisy())[2]
    assert iteration["totals"] == {"sum": None}
    assert 0 <= iteration["seconds"] < 60
    assert iteration["units"] == 3


def test_the_end_of_standard_input_ends_the_arm(noisy):
    done = noisy(commands='{"do":"setup"}\n')
    assert done.returncode == 0
    assert [line["kind"] for line in lines(done)] == ["header", "phase"]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("m=3", "workload 'noisy': parameter: expected one of mode, n, scale, found 'm'"),
        ("mod=3", "workload 'noisy': parameter: expected one of mode, n, scale, found 'mod'; did you mean 'mode'?"),
        ("n=three", "workload 'noisy': n: expected a whole number, found 'three'"),
        ("n=true", "workload 'noisy': n: expected a whole number, found True"),
        ("scale=x", "workload 'noisy': scale: expected a number, found 'x'"),
        ("mode=fanci", "mode: expected one of plain, fancy, found 'fanci'; did you mean 'fancy'?"),
        ("n", "--set n: expected key=value, found 'n'; write for instance --set depth=2"),
    ],
)
def test_a_wrong_parameter_is_one_sentence_and_exit_2(noisy, setting, sentence):
    by_hand = noisy("--set", setting)
    assert (by_hand.returncode, by_hand.stdout) == (2, "")
    assert by_hand.stderr == f"error: {sentence}\n"
    under_harness = lines(noisy("--set", setting, commands=""))
    assert under_harness[0]["kind"] == "error"


def test_a_whole_number_is_a_number(noisy):
    assert lines(noisy("--set", "scale=2"))[0]["parameters"]["scale"] == 2.0


def test_values_need_a_workload_that_has_them(noisy):
    done = noisy("--values", "x.npz")
    assert done.returncode == 2
    assert "expected a workload that can write values" in done.stderr


def test_the_worker_needs_the_standard_library_only():
    """A fresh interpreter that finds no installed package serves an arm all the same."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import harness.worker"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_library_and_an_input_carry_their_digests(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"abc")
    assert worker.file_input(path) == {"name": "data.bin", "bytes": 3, "digest": worker.digest(b"abc")}
    assert worker.library("x", str(path), "s", None)["digest"] == worker.digest(b"abc")
    with pytest.raises(worker.Fault, match="expected a readable file, found No such file or directory; check the path"):
        worker.file_input(tmp_path / "none")


def test_cpu_time_of_waited_for_children_counts():
    class Forking(worker.Workload):
        def iterate(self):
            subprocess.run([sys.executable, "-c", "sum(i * i for i in range(3_000_000))"], check=True)
            return {}

    served = worker._Served(Forking, {}, None)
    mine = served.iterate("steady")["cpu_seconds"]
    # An interpreter that sums three million squares needs far more than this; without the child it would be ~1 ms.
    assert mine > 0.05
