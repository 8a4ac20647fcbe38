"""The command line: exit codes, one sentence for each fault, JSON lines on standard output; all of it without dgl."""

import json
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from impl.events import cache as caches  # noqa: E402
from impl.gnn import sample  # noqa: E402
from impl.gnn.__main__ import main  # noqa: E402

SMALL = ["--hidden", "16", "--rounds", "1", "--epochs", "1", "--quiet"]


def write(folder, made):
    arrays = {"node_x": made.node_x, "node_off": made.node_off, "glob": made.glob, "label": made.label,
              "weight": made.weight}  # fmt: skip
    caches.write(folder, arrays, node_features=made.node_features, globals=made.globals, classes=made.classes,
                 self_loops=made.self_loops, identity={"made": made.content})  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    sizes = np.random.default_rng(0).integers(0, 8, 200)
    return write(tmp_path_factory.mktemp("made") / "cache", sample.made(sizes, seed=1))


@pytest.fixture(autouse=True)
def _no_dgl(monkeypatch):
    """Everything here must work, or say what to install, where dgl cannot be imported."""
    monkeypatch.setitem(sys.modules, "dgl", None)


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_train_predict_evaluate_without_dgl(cache, tmp_path, capsys, backend):
    run, out = tmp_path / "run", tmp_path / "scores.npy"
    more = ["--backend", backend]
    assert main(["train", str(cache), "--out", str(run), *SMALL, *more]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads((run / "metrics.jsonl").read_text())
    assert main(["train", str(cache), "--out", str(run), *SMALL, *more, "--epochs", "2", "--resume"]) == 0
    assert sorted(path.name for path in run.glob("*.pt")) == ["best.pt", "epoch-1.pt", "epoch-2.pt", "last.pt"]
    wind_back = ["--epochs", "2", "--keep", "1", "--resume", str(run / "epoch-1.pt")]
    assert main(["train", str(cache), "--out", str(run), *SMALL, *more, *wind_back]) == 0
    assert sorted(path.name for path in run.glob("*.pt")) == ["best.pt", "epoch-2.pt", "last.pt"]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    capsys.readouterr()
    for arguments in ([], ["--streaming"], ["--batch-edges", "100"]):
        assert main(["predict", str(run), str(cache), "--out", str(out), *more, *arguments, "--quiet"]) == 0
        assert json.loads(capsys.readouterr().out)["events"] == 200
        assert np.load(out).shape == (200, 4)
    assert main(["evaluate", str(run / "best.pt"), str(cache), *more, "--events-of", "all"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 200


def test_multilabel_from_training_to_plots(tmp_path, capsys):
    sizes = np.random.default_rng(0).integers(0, 8, 200)
    folder = write(tmp_path / "flags", sample.made(sizes, seed=1, multilabel=True, classes=3))
    assert main(["train", str(folder), "--out", str(tmp_path / "run"), *SMALL, "--task", "multilabel"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), str(folder), "--plots", str(tmp_path / "plots")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auc_by_class"].keys() == {"class0", "class1", "class2"}
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["loss.svg", "roc.svg"]
    single = write(tmp_path / "single", sample.made(sizes, seed=1, classes=3))
    assert main(["evaluate", str(tmp_path / "run"), str(single), "--events-of", "all"]) == 2
    assert "expected labels for a multilabel network, found shape (200,)" in capsys.readouterr().err


def test_progress_goes_to_standard_error(cache, tmp_path, capsys, monkeypatch):
    from impl.gnn.__main__ import Progress

    monkeypatch.setattr("time.monotonic", iter(range(100)).__next__)
    Progress(quiet=False).batch(0, 3, 7, 0.5)
    captured = capsys.readouterr()
    assert captured.err == "epoch 1, batch 3 of 7, loss 0.5000\n"
    assert captured.out == ""


def test_fine_tuning_reports_its_tensors(cache, tmp_path, capsys):
    assert main(["train", str(cache), "--out", str(tmp_path / "a"), *SMALL]) == 0
    other = write(tmp_path / "other", sample.made([3] * 50, seed=5, classes=2))
    arguments = ["train", str(other), "--out", str(tmp_path / "b"), "--epochs", "1", "--quiet"]
    assert main([*arguments, "--from", str(tmp_path / "a"), "--freeze"]) == 0
    assert "2 skipped, 2 new; new: head.weight, head.bias" in capsys.readouterr().err


def test_tensorboard_writes_where_installed_and_says_where_not(cache, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["train", str(cache), "--out", str(tmp_path / "none"), *SMALL, "--tensorboard"]) == 2
    assert capsys.readouterr().err == (
        "error: --tensorboard: needs tensorboard, which is not installed; pip install tensorboard\n"
    )
    monkeypatch.undo()
    pytest.importorskip("torch.utils.tensorboard")
    assert main(["train", str(cache), "--out", str(tmp_path / "some"), *SMALL, "--tensorboard"]) == 0
    assert list((tmp_path / "some").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "dgl"], "backend 'dgl': needs dgl 1.1.0 (Linux, Python 3.11), which is not installed; pip"),
        (["--backend", "dgk"], "backend: expected one of dgl, dense, fused, found 'dgk'"),
        (["--compile"], "backend 'fused': expected the options recompute, isa, found compiled"),
        (["--hidden", "20"], "backend 'fused': expected a hidden width that is a multiple of 16"),
        (["--epochs", "0"], "train: epochs: expected a whole number of at least 1, found 0"),
        (["--rate", "0"], "train: rate, decay, clip: expected rate > 0"),
        (["--drop", "colour"], "--drop: expected one of pt, eta, phi, energy, btag, charge, type, met"),
        (["--task", "multilabel"], "task: expected 'multilabel' for flags and 'multiclass' for one label"),
        (["--threads", "0"], "--threads: expected a whole number of at least 1, found 0"),
        (["--device", "teapot"], "--device: expected a device of this torch, found"),
        (["--precision", "float8"], "--precision: expected one of float32, bfloat16, found 'float8'"),
        (["--keep", "-1"], "train: keep: expected a whole number of at least 0, found -1"),
        (["--resume"], "last.pt: expected a checkpoint, found none"),
        (["--from", "nowhere.pt"], "nowhere.pt: expected a checkpoint, found none"),
    ],
)
def test_a_fault_is_one_sentence_and_exit_code_2(cache, tmp_path, capsys, arguments, words):
    assert main(["train", str(cache), "--out", str(tmp_path / "run"), *SMALL, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_a_cache_that_is_none_is_one_sentence(tmp_path, capsys):
    assert main(["train", str(tmp_path / "none"), "--out", str(tmp_path / "run")]) == 2
    assert "expected a cache (a folder with manifest.json), found none" in capsys.readouterr().err


def test_a_cache_of_other_features_or_another_training_is_refused(cache, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", str(cache), "--out", str(run), *SMALL]) == 0
    other = write(tmp_path / "other", sample.made([3] * 30, seed=5))
    assert main(["evaluate", str(run), str(other)]) == 2
    assert "expected the cache of the training" in capsys.readouterr().err
    renamed = sample.made([3] * 30, seed=5)
    renamed.node_features = ("pt", "eta", "phi", "energy", "btag", "charge", "flavour")
    assert main(["predict", str(run), str(write(tmp_path / "renamed", renamed)), "--out", "x"]) == 2
    assert "expected the features of the checkpoint, pt, eta" in capsys.readouterr().err


def test_a_bad_loss_is_exit_code_3(tmp_path, capsys):
    made = sample.made([3] * 40, seed=5)
    made.weight[:] = np.nan
    assert main(["train", str(write(tmp_path / "c", made)), "--out", str(tmp_path / "run"), *SMALL]) == 3
    assert "expected a number, found nan from events" in capsys.readouterr().err
    assert (tmp_path / "run" / "bad_batch.json").exists()
