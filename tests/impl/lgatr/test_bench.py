"""Cases, the bench, the arm and its scenarios."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from harness import worker  # noqa: E402
from impl.lgatr import arm, bench  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SMALL = bench.Case(jets=3, particles=5, mv=4, s=8, heads=2)


def totals(case):
    job = bench.Job(case)
    job.step()
    return job.totals()


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("net", ["lgatr", "slim"])
def test_all_ways_do_the_same_work(net, gradient):
    base = replace(SMALL, net=net, gradient=gradient)
    expected = totals(base)
    assert set(expected) == {"output0", "output1", *(["gradient", "parameters"] if gradient else [])}
    others = [replace(base, native=False), replace(base, compile=False, threads=1)]
    if net == "lgatr":
        others += [replace(base, implementation=name) for name in ("dense", "sparse", "mixed")]
    try:
        import lgatr  # noqa: F401

        others += [replace(base, code="lgatr", sparse_linear=key, sparse_gp=not key) for key in (True, False)]
    except ImportError:
        pass
    for case in others:
        assert totals(case) == pytest.approx(expected, rel=1e-3), case
    assert totals(replace(base, seed=2)) != pytest.approx(expected, rel=1e-3)
    assert totals(replace(base, dtype="float64")) == pytest.approx(expected, rel=1e-3)
    assert totals(replace(base, blocks=2)) != pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("net", ["lgatr", "slim"])
def test_padded_and_ragged_do_the_same_work(net):
    base = replace(SMALL, net=net)
    padded, ragged = (replace(base, batch=batch) for batch in ("padded", "ragged"))
    jobs = [bench.Job(case) for case in (padded, ragged)]
    assert jobs[0].lengths == jobs[1].lengths
    assert len(set(jobs[0].lengths)) > 1
    assert totals(padded) == pytest.approx(totals(ragged), rel=1e-3)


@pytest.mark.parametrize("work", ["linear", "product"])
def test_single_layers_do_the_same_work(work):
    base = replace(SMALL, work=work)
    expected = totals(replace(base, implementation="dense"))
    cases = [replace(base, implementation=name) for name in ("sparse", "paired")]
    for case in [*cases, replace(base, native=False)]:
        assert totals(case) == pytest.approx(expected, rel=1e-3)


def test_autocast_types_are_a_parameter():
    plain = totals(replace(SMALL, gradient=False, implementation="dense"))
    for kind in ("bfloat16", "float16"):
        low = totals(replace(SMALL, gradient=False, implementation="dense", autocast=kind))
        naive = totals(replace(SMALL, gradient=False, implementation="dense", autocast=kind, naive_amp=True))
        assert low != plain
        assert naive != low
        assert low == pytest.approx(plain, rel=0.1)


def test_matrix_products_of_the_network():
    job = bench.Job(replace(SMALL, work="gemm", gradient=False))
    job.step()
    assert job.totals() == {}
    with_gradient = bench.Job(replace(SMALL, work="gemm"))
    with_gradient.step()
    assert bench.check(replace(SMALL, work="linear", net="slim"))[1] == "net lgatr"


def test_bench_prints_a_row_a_case(capsys):
    assert bench.main(["--jets", "2", "--particles", "4", "--mv", "4", "--s", "8", "--heads", "2", "--rounds", "1",
                       "--case", "paired", "--case", "dense"]) == 0  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["case", "paired", "dense", "peak_rss_bytes"]
    assert int(lines[-1].split()[1]) > 1e6
    faults = ((["--dtype", "int8"], "float64"), (["--case", "magic"], "paired"), (["--jets", "0"], "jets"))
    for wrong, message in faults:
        with pytest.raises(SystemExit) as stop:
            bench.main(wrong)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_arm_says_its_lines():
    words = ["jets=2", "particles=4", "mv=4", "s=8", "heads=2", "steps=2"]
    command = [sys.executable, "-m", "impl.lgatr.arm", "--iterations", "1"]
    for word in words:
        command += ["--set", word]
    environment = {key: value for key, value in os.environ.items() if key != "HARNESS_PROTOCOL"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["header", "phase", "iteration", "iteration", "fingerprint", "closed"]
    assert lines[2]["work"] == lines[2]["units"] == 16
    assert lines[2]["counters"]["resident_peak_bytes"] > 1e7
    assert set(lines[4]["totals"]) == {"output0", "output1", "gradient", "parameters"}


@pytest.mark.parametrize(
    ("parameters", "word"),
    [({"work": "magic"}, "gemm"), ({"jets": 0}, "at least 1"), ({"steps": 0}, "at least 1"),
     ({"code": "lgatr", "batch": "ragged"}, "ours"), ({"autocast": "int8"}, "bfloat16")],
)  # fmt: skip
def test_arm_refuses_what_cannot_be(parameters, word):
    with pytest.raises(worker.Fault, match=word):
        arm.Lgatr(worker.effective("lgatr", arm.Lgatr.accepts, parameters))


SCENARIOS = sorted([*(ROOT / "scenarios").glob("lgatr-*.toml"), ROOT / "scenarios/slim-peer.toml"])


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_name_possible_arms(path):
    scenario = tomllib.loads(path.read_text())
    for given in scenario["arms"].values():
        own = {key: value for key, value in given.items() if key != "run"}
        parameters = worker.effective("lgatr", arm.Lgatr.accepts, {**scenario.get("parameters", {}), **own})
        arm.Lgatr(parameters)
