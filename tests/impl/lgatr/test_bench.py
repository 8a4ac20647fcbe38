"""Cases, the bench, the arm and its scenarios."""

import json
import math
import os
import random
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import asdict, replace
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
    assert lines[1].split()[-3:] == ["1.00", "[0.00,", "inf]"]  # one round has no interval
    assert int(lines[-1].split()[1]) > 1e6
    faults = ((["--dtype", "int8"], "float64"), (["--case", "magic"], "paired"), (["--jets", "0"], "jets"))
    for wrong, message in faults:
        with pytest.raises(SystemExit) as stop:
            bench.main(wrong)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


class Scripted:
    """Jobs that write down their turn and take given CPU seconds, with a spread of 10 % by a fixed seed."""

    def __init__(self, monkeypatch):
        self.now, self.order, self.generator = 0.0, "", random.Random(1)
        monkeypatch.setattr(bench.time, "process_time", lambda: self.now)

    def job(self, letter, seconds):
        def step():
            self.order += letter
            self.now += seconds * self.generator.uniform(0.9, 1.1)

        return type("Job", (), {"step": staticmethod(step)})()


def test_rounds_are_interleaved_and_turned_round(monkeypatch):
    clock = Scripted(monkeypatch)
    times = bench.measure({"A": clock.job("A", 1.0), "B": clock.job("B", 2.0)}, 4)
    assert clock.order == "BAABBAABBAAB"
    assert [len(values) for values in times.values()] == [4, 4]
    assert all(900 <= value <= 1100 for value in times["A"])


def test_a_against_a_holds_one_and_a_difference_does_not(monkeypatch):
    clock = Scripted(monkeypatch)
    jobs = {"A": clock.job("A", 1.0), "A again": clock.job("A", 1.0), "B": clock.job("B", 1.2)}
    times = bench.measure(jobs, 20)
    ratio, low, high = bench.paired_ratio(times["A"], times["A again"])
    assert low < 1 < high < 1.1
    assert abs(ratio - 1) < 0.05
    ratio, low, high = bench.paired_ratio(times["A"], times["B"])
    assert 1 < low < ratio < high
    assert abs(ratio - 1.2) < 0.1
    assert bench.paired_ratio([1.0] * 3, [2.0] * 3) == (pytest.approx(2), 0, math.inf)


def test_an_autocast_that_is_slower_is_warned_of(monkeypatch, capsys):
    clock = Scripted(monkeypatch)
    seconds = {("bfloat16", "paired"): 1.3, ("bfloat16", "dense"): 0.7}
    monkeypatch.setattr(
        bench, "Job", lambda case: clock.job("A", seconds.get((case.autocast, case.implementation), 1.0))
    )
    options = ["--rounds", "12", "--case", "paired", "--case", "dense"]
    assert bench.main(["--autocast", "bfloat16", *options]) == 0
    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines()[1:5]] == [
        "paired", "dense", "paired float32", "dense float32",
    ]  # fmt: skip
    (warning,) = [line for line in out.splitlines() if "leave autocast out" in line]
    assert warning.startswith("paired: bfloat16 takes 1.")
    assert warning.endswith("times float32 on this machine; leave autocast out")
    assert bench.main(options) == 0
    assert "leave autocast out" not in capsys.readouterr().out


def test_when_compiling_pays():
    cases = {
        "paired": SMALL, "dense": replace(SMALL, implementation="dense"), "slow": replace(SMALL, compile=True, seed=2),
        "compiled": replace(SMALL, compile=True), "other": replace(SMALL, code="lgatr", compile=True),
    }  # fmt: skip
    times = {"paired": [10.0], "dense": [20.0], "slow": [12.0], "compiled": [6.0], "other": [1.0]}
    first = {"paired": 1.0, "dense": 0.1, "slow": 2.0, "compiled": 9.0, "other": 9.0}
    assert bench.steps_to_pay(first, times, cases) == [
        "slow: first step 2.0 s; compiling pays against paired never, for its steps take longer",
        "compiled: first step 9.0 s; compiling pays against paired after 2000 steps",
    ]


#: field of a case -> another value of it, or two sets of fields
FIELDS = {
    "work": "gemm", "net": "slim", "code": "lgatr", "implementation": "dense", "gradient": False, "native": False,
    "sparse_linear": ({"implementation": "mixed"}, {"implementation": "mixed", "sparse_linear": True}),
    "sparse_gp": ({"implementation": "mixed"}, {"implementation": "mixed", "sparse_gp": False}),
    "jets": 4, "particles": 6, "batch": "ragged", "blocks": 2, "mv": 8, "s": 16, "heads": 1, "dtype": "float64",
    "autocast": ({"implementation": "dense"}, {"implementation": "dense", "autocast": "bfloat16"}),
    "naive_amp": ({"implementation": "dense", "autocast": "bfloat16"},
                  {"implementation": "dense", "autocast": "bfloat16", "naive_amp": True}),
    "compile": True, "threads": 2, "seed": 2,
}  # fmt: skip


def test_every_field_of_a_case_changes_what_is_done(monkeypatch):
    from impl.lgatr import native, primitives

    pytest.importorskip("lgatr")
    called = Counter()

    def count(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: called.update([name]) or original(*a, **k))

    for name in ("_linear_dense", "_linear_sparse", "_product_dense", "_product_sparse"):
        count(primitives, name)
    count(native, "mlp")
    monkeypatch.setattr(torch, "compile", lambda function: called.update(["compile"]) or function)

    def seen(fields):
        called.clear()
        job = bench.Job(replace(SMALL, **fields))
        job.step()
        kinds = [type(job.net).__module__, str(job.outputs[0].dtype), str(torch.get_num_threads())]
        sums = {name: f"{value:.5g}" for name, value in job.totals().items()}
        return job.particles, job.lengths, kinds, sums, dict(called)

    assert set(FIELDS) == set(asdict(bench.Case()))
    assert seen({}) == seen({})
    pairs = {name: value if isinstance(value, tuple) else ({}, {name: value}) for name, value in FIELDS.items()}
    assert [name for name, (one, other) in pairs.items() if seen(one) == seen(other)] == []


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
    assert lines[2]["counters"]["first_step_seconds"] == lines[3]["counters"]["first_step_seconds"] > 0
    assert set(lines[4]["totals"]) == {"output0", "output1", "gradient", "parameters"}


@pytest.mark.parametrize(
    ("parameters", "word"),
    [({"work": "magic"}, "gemm"), ({"jets": 0}, "at least 1"), ({"steps": 0}, "at least 1"),
     ({"code": "lgatr", "batch": "ragged"}, "ours"), ({"autocast": "int8"}, "bfloat16")],
)  # fmt: skip
def test_arm_refuses_what_cannot_be(parameters, word):
    with pytest.raises(worker.Fault, match=word):
        arm.Lgatr(worker.effective("lgatr", arm.Lgatr.accepts, parameters))


#: those of this workload; the trainings have an arm and a test of their own
SCENARIOS = sorted(
    path for path in (ROOT / "scenarios").glob("*.toml") if '"impl.lgatr.arm"' in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_name_possible_arms(path):
    scenario = tomllib.loads(path.read_text())
    for given in scenario["arms"].values():
        own = {key: value for key, value in given.items() if key != "run"}
        parameters = worker.effective("lgatr", arm.Lgatr.accepts, {**scenario.get("parameters", {}), **own})
        arm.Lgatr(parameters)
