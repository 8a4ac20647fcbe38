"""Real learning on simulated collisions of four processes, from the command line."""

import json

import numpy as np
import pytest

pytestmark = pytest.mark.extras
pytest.importorskip("torch")
pytest.importorskip("sklearn")

from impl.events.cache import Cache  # noqa: E402
from impl.gnn import batches, metrics  # noqa: E402
from impl.gnn.__main__ import main  # noqa: E402

#: of gradient-boosted trees on 16 summary quantities, see tests/data/root/SOURCES.md
BASELINE_AUC, BASELINE_ACCURACY = 0.894, 0.693
QUICK = ["--hidden", "32", "--rounds", "2", "--rate", "0.003", "--quiet"]


def fit(cache, folder, *options):
    """Train from the command line; the metrics of every epoch."""
    assert main(["train", str(cache), "--out", str(folder), *QUICK, *options]) == 0
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary_quantities(cache):
    """16 numbers an event: multiplicities, missing and summed momentum, leading objects' momenta and b-tags."""
    columns = dict(zip(cache.node_features, np.asarray(cache.node_x).T))
    event = np.repeat(np.arange(len(cache)), cache.node_counts)
    counts = [np.bincount(event[columns["type"] == code], minlength=len(cache)) for code in range(4)]
    jets = columns["type"] == 0
    sums = np.bincount(event[jets], columns["pt"][jets], minlength=len(cache))

    def leading(code, how_many, *names):
        chosen = np.flatnonzero(columns["type"] == code)
        order = chosen[np.lexsort((-columns["pt"][chosen], event[chosen]))]
        first = np.concatenate([[0], np.bincount(event[order], minlength=len(cache)).cumsum()])[:-1]
        rank = np.arange(len(order)) - first[event[order]]
        table = np.zeros((len(cache), how_many * len(names)))
        for place, name in enumerate(names):
            keep = rank < how_many
            table[event[order[keep]], rank[keep] * len(names) + place] = columns[name][order[keep]]
        return table

    parts = [np.stack(counts, 1), cache.glob[:, :1], sums[:, None], leading(0, 3, "pt", "btag"), leading(2, 2, "pt"),
             leading(1, 2, "pt")]  # fmt: skip
    return np.concatenate(parts, 1)


@pytest.fixture(scope="module")
def trained(pythia, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, fit(pythia, folder, "--epochs", "4")


def test_held_out_events_are_told_apart_better_than_by_trees(pythia, trained):
    from sklearn.ensemble import HistGradientBoostingClassifier

    cache = Cache.open(pythia)
    quantities = summary_quantities(cache)
    assert quantities.shape == (60_000, 16)
    training, held = batches.split(len(cache), 0)
    trees = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    trees.fit(quantities[training], cache.label[training])
    scores = np.log(np.maximum(trees.predict_proba(quantities[held]), 1e-12))
    by_trees = metrics.summary(scores, cache.label[held], cache.weight[held], "multiclass")
    ours = trained[1][-1]
    assert by_trees["auc"] == pytest.approx(BASELINE_AUC, abs=0.005), "the trees are the stated baseline"
    assert ours["auc"] > max(BASELINE_AUC, by_trees["auc"]) + 0.005
    assert ours["accuracy"] > max(BASELINE_ACCURACY, by_trees["accuracy"])


def test_permuted_labels_teach_nothing(pythia, tmp_path):
    (line,) = fit(pythia, tmp_path, "--epochs", "1", "--permute-labels")
    assert line["auc"] == pytest.approx(0.5, abs=0.02)  # 12,000 events: one standard deviation is about 0.003
    assert line["accuracy"] == pytest.approx(0.25, abs=0.03)


def test_a_feature_less_is_a_worse_network(pythia, trained, tmp_path):
    """Without b-tags, top pairs and W with jets look more alike; a planted worse model, seen as one."""
    lines = fit(pythia, tmp_path, "--epochs", "2", "--drop", "btag")
    assert lines[1]["auc"] < trained[1][1]["auc"] - 0.004


def test_evaluate_repeats_the_metrics_of_training_and_draws(pythia, trained, tmp_path, capsys):
    folder, lines = trained
    assert main(["evaluate", str(folder), str(pythia), "--plots", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["events"] == 12_000
    for name in ("auc", "accuracy", "loss"):
        assert found[name] == pytest.approx(lines[-1][name], abs=1e-9)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(texts) == ["confusion.svg", "loss.svg", "roc.svg"]
    assert all(text.startswith("<?xml") and "</svg>" in text for text in texts.values())


def test_another_backend_evaluates_the_same_checkpoint(pythia, trained, capsys):
    folder, lines = trained
    assert main(["evaluate", str(folder), str(pythia), "--backend", "dense", "--events-of", "held-out"]) == 0
    assert json.loads(capsys.readouterr().out)["auc"] == pytest.approx(lines[-1]["auc"], abs=1e-6)


@pytest.mark.slow
def test_the_default_network_over_three_seeds(pythia, tmp_path):
    aucs, accuracies = [], []
    for seed in range(3):
        folder = tmp_path / str(seed)
        assert main(["train", str(pythia), "--out", str(folder), "--seed", str(seed), "--quiet"]) == 0
        line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        aucs.append(line["auc"])
        accuracies.append(line["accuracy"])
    assert min(aucs) > 0.905
    assert min(accuracies) > 0.705
