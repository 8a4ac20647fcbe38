"""The arm: every task does the same again, arms of one scenario agree, and values tell a worse model."""

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from harness import worker

pytestmark = pytest.mark.extras
pytest.importorskip("torch")

from impl.gnn.arm import Gnn  # noqa: E402

SCENARIOS = sorted((Path(__file__).resolve().parents[3] / "scenarios").glob("gnn-*.toml"))


def arm(**given):
    made = Gnn(worker.effective("gnn", Gnn.accepts, {"hidden": 16, "rounds": 1, "classes": 3, **given}))
    made.setup()
    return made


def iterate(made, times=2):
    """(result, fingerprint) of each iteration."""
    lines = []
    for _ in range(times):
        made.prepare()
        lines.append((made.iterate(), made.fingerprint()))
    made.close()
    return lines


@pytest.mark.parametrize("task", ["train", "inference", "predict", "fit"])
def test_iterations_repeat_to_the_last_bit(task):
    one, two = iterate(arm(task=task, events=40, objects=5))
    assert one == two
    assert one[0]["units"] == 40
    assert one[1]["work"] == 40


@pytest.mark.parametrize("task", ["train", "inference"])
def test_backends_agree_in_digests_and_totals(task):
    lines = [
        iterate(arm(task=task, events=30, objects=0, **given), 1)[0]
        for given in ({"backend": "dense"}, {"backend": "fused"}, {"backend": "fused", "recompute": True})
    ]
    for result, found in lines[1:]:
        assert found["digests"] == lines[0][1]["digests"]
        assert found["totals"]["sum"] == pytest.approx(lines[0][1]["totals"]["sum"], rel=1e-4)
        assert result.get("totals", {}) == pytest.approx(lines[0][0].get("totals", {}), rel=1e-3)


def test_another_network_has_another_fingerprint():
    """A broken twin: the weights of another seed."""
    one, two = (iterate(arm(task="inference", events=40, seed=seed), 1)[0][1] for seed in (1, 2))
    assert one["digests"] != two["digests"]


def test_streaming_gives_the_bytes_of_memory():
    one, two = (iterate(arm(task="predict", events=50, objects=6, streaming=flag), 1)[0][1] for flag in (False, True))
    assert one == two


def test_size_aware_batches_give_the_same_answers():
    plain = {"task": "predict", "events": 60, "objects": 0}
    one, two = (iterate(arm(**plain, **more), 1)[0][1] for more in ({}, {"batch_edges": 900}))
    assert one["digests"] == two["digests"]


def test_values_show_a_planted_worse_model(pythia, tmp_path):
    found = {}
    for drop in ("", "btag,type"):
        made = arm(cache=str(pythia), drop=drop)
        facts = made.values(str(tmp_path / "values.npz"))
        made.close()
        with np.load(tmp_path / "values.npz") as values:
            assert values["score"].shape == (12_000, 4)
            assert values["score"].dtype == np.float32
            assert sorted(values.files) == ["key", "label", "score", "seed", "weight"]
            assert (values["seed"], len(values["label"]), len(values["weight"])) == (1, 12_000, 12_000)
            found[drop] = (facts["auc"], values["key"])
    assert np.array_equal(found[""][1], found["btag,type"][1]), "both are judged on the same events"
    assert found["btag,type"][0] < found[""][0] - 0.01


def test_the_header_comes_without_torch_and_names_the_library(pythia):
    made = Gnn({**Gnn.accepts})
    (library,) = made.libraries()
    assert library["source_digest"] == library["tree_digest"]
    assert len(made.inputs()[0]["digest"]) == 32
    assert [entry["name"] for entry in Gnn({**Gnn.accepts, "cache": str(pythia)}).inputs()] == [
        "node_x", "node_off", "label"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"task": "tran"}, "task: expected one of train, inference, predict, fit, found 'tran'"),
        ({"precision": "bfloat16"}, "precision bfloat16: expected the backend dense, found fused"),
        ({"events": 0}, "events: expected a whole number of at least 1, found 0"),
        ({"hidden": 20}, "backend 'fused': expected a hidden width that is a multiple of 16"),
        ({"drop": "colour"}, "--drop: expected one of pt"),
        ({"cache": "/nowhere"}, "expected a cache"),
    ],
)
def test_bad_parameters_are_faults(given, words):
    with pytest.raises(worker.Fault) as fault:
        arm(**given)
    assert words in str(fault.value)


def test_an_arm_without_dgl_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(worker.Fault, match=r"backend 'dgl': expected dgl 1\.1\.0 .*; pip install 'harness-ab\[gnn\]'"):
        arm(backend="dgl", events=3)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_gives_the_arm_parameters_that_it_takes(path):
    scenario = tomllib.loads(path.read_text())
    assert path.read_text().splitlines()[0] == f"# {scenario['scenario']['question']}"
    for name, table in scenario["arms"].items():
        given = {**scenario.get("parameters", {}), **{k: v for k, v in table.items() if k != "run"}}
        Gnn(worker.effective(f"gnn, arm {name}", Gnn.accepts, given))


@pytest.mark.slow
def test_a_faster_and_worse_network_is_a_wrong_result(harness):
    done = harness("ab", "gnn-precision:float32", "gnn-precision:worse", "--blocks", "6", timeout=500)
    assert done.returncode == 1, done.stderr
    assert "wrong-result" in done.stdout
