"""The command line on jets: train, evaluate, predict; real learning in seconds; one sentence for each fault."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")

from impl.gnn.errors import InputError  # noqa: E402
from impl.lgatr import jets, metrics, recipe, symmetry, train  # noqa: E402
from impl.lgatr.__main__ import main  # noqa: E402

FILE = Path(__file__).resolve().parents[2] / "data" / "jets" / "pythia_top_qcd.h5"
TREES = 0.932  # tests/data/jets/SOURCES.md
TINY = ["-s", "net=slim", "-s", "blocks=1", "-s", "mv=4", "-s", "s=8", "-s", "heads=2", "-s", "items=6",
        "-s", "epochs=1", "-s", "jets=32", "--quiet"]  # fmt: skip


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The first 100 jets, with labels and without."""
    folder = tmp_path_factory.mktemp("jets")
    with h5py.File(FILE) as file:
        columns = {name: file[name][:100] for name in ("constituents", "count", "label")}
    for name, leave in (("labelled.h5", ()), ("unknown.h5", ("label",))):
        with h5py.File(folder / name, "w") as file:
            for column, values in columns.items():
                if column not in leave:
                    file[column] = values
    return folder


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_train_resume_evaluate_and_predict(small, tmp_path, capsys):
    out, scores = tmp_path / "run", tmp_path / "scores.npy"
    two = [*TINY, "-s", "epochs=2"]
    assert run("train", small / "labelled.h5", "--out", out, *two, "--stop", 1) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads((out / "metrics.jsonl").read_text())
    assert run("train", small / "labelled.h5", "--out", out, *two, "--resume") == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
    capsys.readouterr()
    assert run("evaluate", out, small / "labelled.h5", "--plots", tmp_path / "plots") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["jets"] == 20
    assert found["auc"]["low"] <= found["auc"]["value"] <= found["auc"]["high"]
    assert found["auc"]["value"] == json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["auc"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["loss.svg", "roc.svg", "scores.svg"]
    assert all("<svg" in path.read_text() for path in (tmp_path / "plots").iterdir())
    assert run("predict", out, small / "unknown.h5", "--out", scores) == 0
    assert json.loads(capsys.readouterr().out)["jets"] == 100
    rows = np.load(scores)
    assert rows.shape == (100, 2)
    assert rows.dtype == np.float32
    assert run("evaluate", out, small / "labelled.h5", "--jets-of", "all") == 0
    label = jets.read(small / "labelled.h5").label
    assert json.loads(capsys.readouterr().out)["auc"]["value"] == metrics.plain(rows, label, np.ones(100))["auc"]


def boosted_scores_differ_by_rounding_alone(net):
    """In float64 hardly at all; in float32 as much as when each momentum moves by its last bit."""
    sample = jets.read(FILE).select(np.arange(0, 1000, 5))
    up = np.random.default_rng(0).random(sample.momenta.shape) < 0.5
    bits = np.nextafter(sample.momenta, np.where(up, np.inf, -np.inf).astype(np.float32))
    boosted = sample.transformed(symmetry.boost(1.0, torch.tensor([1.0, 2.0, 3.0])))

    def moved(net, dtype, other):
        with torch.no_grad():
            one, two = (net(jets.Sample(which, 8, dtype=dtype).batch(np.arange(200))) for which in (sample, other))
        return (one - two).abs().amax(1)

    by_boost = moved(net.eval(), torch.float32, boosted)
    by_bits = moved(net, torch.float32, dataclasses.replace(sample, momenta=bits))
    assert float(by_boost.median()) < 3 * float(by_bits.median())
    assert float(moved(net.double(), torch.float64, boosted).max()) < 1e-7


def test_a_small_network_learns_in_seconds(tmp_path, capsys):
    """6 epochs of L-GATr-slim with 8 items; the trees' 0.932 needs the recipe. Permuted labels teach nothing."""
    small = ["-s", "net=slim", "-s", "blocks=1", "-s", "mv=8", "-s", "s=16", "-s", "items=8", "-s", "epochs=6",
             "-s", "rate=0.01", "--quiet"]  # fmt: skip
    assert run("train", FILE, "--out", tmp_path / "a", *small) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["auc"] > 0.88
    assert line["rejection_30"] > 10
    boosted_scores_differ_by_rounding_alone(train.restored(train.load(tmp_path / "a")))
    assert run("train", FILE, "--out", tmp_path / "b", *small, "-s", "permute_labels=true", "-s", "epochs=2") == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["auc"] == pytest.approx(0.5, abs=0.06)  # 1,200 jets: one standard deviation is 0.017


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lgatr", "slim"])
def test_a_recipe_beats_trees(tmp_path, capsys, name):
    """L-GATr takes 50 s of one core, slim 35 s."""
    assert run("train", FILE, "--out", tmp_path, "--recipe", name, "--quiet") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["auc"] > TREES + 0.008


# ------------------------------------------------------------------------------------------- recipes and faults


def test_every_recipe_of_the_package_loads():
    assert recipe.names() == ["gnn", "lgatr", "plain", "slim"]
    for name in recipe.names():
        assert recipe.load(name).config.net == name


def test_settings_come_after_the_recipe():
    chosen = recipe.load("slim", ["epochs=3", "rate=1", "net=lgatr"])
    assert (chosen.options.epochs, chosen.options.rate, chosen.config.net) == (3, 1.0, "lgatr")
    assert chosen.config.mv == recipe.load("slim").config.mv


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("slin", [], "slin: expected a TOML file or one of gnn, lgatr, plain, slim, found none"),
        (None, ["epochs"], "-s epochs: expected key=value, found 'epochs'; write for instance -s epochs=10"),
        (None, ["epochs=two"], "-s epochs=two: epochs: expected a whole number, found 'two'"),
        (None, ["compiled=1"], "-s compiled=1: compiled: expected true or false, found 1"),
        (None, ["implementation=fast"], "implementation: expected one of paired, sparse, dense, found 'fast'"),
    ],
)
def test_a_recipe_that_cannot_be_is_one_sentence(name, settings, sentence):
    with pytest.raises(InputError) as caught:
        recipe.load(name, settings)
    assert str(caught.value) == sentence


def test_an_unknown_key_is_answered_with_the_nearest_one():
    with pytest.raises(InputError) as caught:
        recipe.load(None, ["epoch=3"])
    assert str(caught.value).startswith("-s epoch=3: key: expected one of net, blocks, mv,")
    assert str(caught.value).endswith("found 'epoch'; did you mean 'epochs'?")


def test_a_fault_is_one_sentence_and_exit_code_2(small, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("train", small / "labelled.h5", "--out", out, *TINY) == 0
    capsys.readouterr()
    for arguments, sentence in (
        (["train", small / "unknown.h5", "--out", tmp_path / "x", *TINY],
         f"{small / 'unknown.h5'}: expected a dataset 'label' (1 signal, 0 background), found none; "
         "training and evaluation need labels, `predict` does not"),
        (["evaluate", out, small / "unknown.h5"],
         f"{small / 'unknown.h5'}: expected a dataset 'label' (1 signal, 0 background), found none; "
         "training and evaluation need labels, `predict` does not"),
        (["train", small / "labelled.h5", "--out", tmp_path / "x", *TINY, "--stop", "-1"],
         "--stop: expected a whole number of at least 0, found -1"),
        (["evaluate", out, FILE], f"{FILE}: expected the jets of the training, whose held-out ones are known, found "
                                  "others; use --jets-of all"),
        (["evaluate", out, small / "labelled.h5", "--level", "2"],
         "--level: expected a number between 0 and 1, found 2.0"),
        (["predict", tmp_path / "no.pt", FILE, "--out", tmp_path / "s.npy"],
         f"{tmp_path / 'no.pt'}: expected a checkpoint, found none; make one with `train`"),
        (["predict", out, tmp_path / "no.h5", "--out", tmp_path / "s.npy"],
         f"{tmp_path / 'no.h5'}: expected an HDF5 file of jets or a cache's folder, found no such file"),
        (["predict", out, small / "labelled.h5", "--out", tmp_path / "no" / "s.npy"],
         f"{tmp_path / 'no' / 's.npy'}: expected room and permission for the scores, found No such file or directory"),
        (["predict", out, small / "labelled.h5", "--out", tmp_path / "s.npy", "--batch-jets", "0"],
         "--batch-jets: expected a whole number of at least 1, found 0"),
        (["predict", out, small / "labelled.h5", "--out", tmp_path / "s.npy", "--threads", "0"],
         "--threads: expected a whole number of at least 1, found 0"),
        (["predict", out, small / "labelled.h5", "--out", tmp_path / "s.npy", "--implementation", "x"],
         "--implementation: expected one of paired, sparse, dense, found 'x'"),
        (["predict", out, small / "labelled.h5", "--out", tmp_path / "s.npy", "--precision", "half"],
         "--precision: expected one of float32, amp, naive-amp, found 'half'"),
    ):  # fmt: skip
        assert run(*arguments) == 2, arguments
        assert capsys.readouterr().err == f"error: {sentence}\n"
