"""The arm: every task does the same again, arms of one scenario agree, and values tell a worse model."""

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from harness import worker

pytestmark = pytest.mark.extras
pytest.importorskip("torch")

from impl.events import cache as caches  # noqa: E402
from impl.events.cache import Cache  # noqa: E402
from impl.gnn.arm import Gnn  # noqa: E402

DATA = Path(__file__).resolve().parents[2] / "data" / "root"

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


def test_compiled_graphs_are_a_counter(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setitem(torch._dynamo.utils.counters["stats"], "unique_graphs", 3)
    for task in ("inference", "fit"):
        made = arm(task=task, events=20, objects=4, backend="dense", compiled=True)
        assert made.iterate()["counters"] == {"compilations": 3}
        if task == "fit":
            assert json.loads((made.folder / "metrics.jsonl").read_text())["compilations"] == 3
        made.close()
    assert "counters" not in iterate(arm(task="inference", events=20, objects=4), 1)[0][0]


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
            assert (set(values["seed"]), len(values["label"]), len(values["weight"])) == ({1}, 12_000, 12_000)
            found[drop] = (facts["auc"], values["key"])
    assert np.array_equal(found[""][1], found["btag,type"][1]), "both are judged on the same events"
    assert found["btag,type"][0] < found[""][0] - 0.01


def test_values_of_several_seeds_are_those_of_each(tmp_path):
    files = []
    for given in ({"seed": 4, "seeds": 2}, {"seed": 4}, {"seed": 5}):
        made = arm(events=60, objects=4, **{"task": "fit", **given})
        if given == {"seed": 5}:  # the second training of the first arm: the events are those of its first seed
            made.cache = arm(events=60, objects=4, seed=4).cache
        made.values(str(tmp_path / "values.npz"))
        made.close()
        with np.load(tmp_path / "values.npz") as values:
            files.append(dict(values))
    both, *each = files
    for name in both:
        assert np.array_equal(both[name], np.concatenate([one[name] for one in each])), name
    assert not np.array_equal(each[0]["key"], each[1]["key"]), "another seed holds out other events"


def test_values_of_a_multilabel_network_are_an_entry_for_each_label(tmp_path, monkeypatch):
    from harness import accuracy
    from impl.gnn import metrics, sample

    flags = sample.made(np.random.default_rng(0).integers(0, 7, 100), seed=1, classes=3, multilabel=True)
    monkeypatch.setattr(Gnn, "_cache", lambda self: flags)
    made = arm(task="fit")
    facts = made.values(str(tmp_path / "values.npz"))
    made.close()
    model, _ = accuracy.load(tmp_path / "values.npz", "values")
    assert model.score.shape == (60,)
    assert np.array_equal(model.label, flags.label[model.key // 3, model.key % 3])
    found = accuracy.metrics(model.score, model.label, model.weight)
    assert found["accuracy"] == pytest.approx(facts["accuracy"], abs=1e-9)
    expected = metrics.loss(model.score.reshape(-1, 3), model.label.reshape(-1, 3), np.ones(20), "multilabel")
    assert found["log_loss"] == pytest.approx(expected, rel=1e-9)


def test_files_are_prepared_in_the_set_up_and_named_as_inputs():
    pytest.importorskip("uproot")
    made = arm(task="inference", files=f"{DATA}/pythia_[wz]jets.root", schema="pythia", backend="dense")
    assert [entry["name"] for entry in made.inputs()] == ["pythia_wjets", "pythia_zjets"]
    assert made.inputs()[0]["bytes"] == (DATA / "pythia_wjets.root").stat().st_size
    assert len(made.cache) == 30_000
    made.close()
    assert not made.folder.exists()


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
        ({"cache": "/nowhere", "files": "*.root"}, "cache and files: expected one of them, found both"),
        ({"files": "*.root"}, "files and schema: expected both or neither, found one"),
        ({"files": "/nowhere/*.root", "schema": "pythia"}, "expected files that fit the pattern, found none"),
        ({"device": "cuda"}, "device: expected cpu for the backend fused, found cuda; use the backend dense there"),
        ({"device": "teapot", "backend": "dense"}, "device: expected a device of this torch, found"),
        ({"seeds": 0}, "seeds: expected a whole number of at least 1, found 0"),
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


@pytest.fixture(scope="module")
def tenth(pythia, tmp_path_factory):
    """Folder of a cache with every tenth simulated event."""
    whole, folder = Cache.open(pythia), tmp_path_factory.mktemp("tenth") / "cache"
    some = whole.batch(np.arange(0, len(whole), 10))
    names = ("node_x", "node_off", "glob", "label", "weight")
    caches.write(folder, {name: getattr(some, name) for name in names}, node_features=whole.node_features,
                 globals=whole.globals, classes=whole.classes, self_loops=False, identity={"every": 10})  # fmt: skip
    return folder


def test_a_worse_network_is_a_wrong_result_however_fast(harness, tenth, tmp_path):
    """The real command; `worse` sees directions alone. It is half as large, so time alone would say: improvement."""
    drop = "pt,energy,btag,charge,type,met,met_phi,n_jets,n_leptons_photons"
    small = ['files=""', 'schema=""', f'cache="{tenth}"', "batch_events=128", "seeds=6"]
    done = harness(
        "ab", "gnn-precision:float32", "gnn-precision:worse", "--json", "--reports", tmp_path, "-s",
        f'arms.worse.drop="{drop}"', "-s", "schedule.pairs=1", *(word for one in small for word in ("-p", one)),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert summary["verdict"]["word"] == "wrong-result"
    assert "the values of B 'worse' differ from those of A 'float32': AUC of B minus A" in summary["verdict"]["reason"]
    assert summary["units"]["run"] == 1, "nothing is measured after the first wrong values"
    found = summary["accuracy"]
    assert (found["word"], found["seeds"], found["events"]) == ("different", 6, 7_200)
    assert found["difference"]["high"] < -0.005
    for name in ("auc", "accuracy"):
        assert found["intervals"][name]["method"] == "signed-rank"


@pytest.mark.slow
def test_bfloat16_is_as_good_on_simulated_collisions(harness, tmp_path):
    """A twin of the test above: the same command lets a network through that is as good."""
    done = harness("ab", "gnn-precision:float32", "gnn-precision:bfloat16", "-s", "schedule.pairs=1", "--json",
                   "--reports", tmp_path, timeout=1500)  # fmt: skip
    summary = json.loads(done.stdout)
    assert summary["verdict"]["word"] != "wrong-result", done.stdout
    assert summary["accuracy"]["word"] != "different"
    assert summary["accuracy"]["seeds"] == 8
