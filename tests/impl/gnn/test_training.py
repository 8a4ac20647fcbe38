"""Training: repeatable, resumable, transferable, and stopped by a loss that is no number."""

import dataclasses
import json

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from impl.gnn import batches, checkpoint, predict, sample, train  # noqa: E402
from impl.gnn.errors import InputError, LossError  # noqa: E402

OPTIONS = train.Options(epochs=2, events=64, rate=3e-3)
SMALL = {"hidden": 16, "rounds": 2}


@pytest.fixture(scope="module")
def cache():
    return sample.made(np.random.default_rng(0).integers(0, 9, 400), seed=2)


def fit(cache, folder, options=OPTIONS, backend="fused", shape=SMALL, **more):
    return train.train(cache, train.network_for(cache, "", backend, **shape), options, folder, **more)


def equal(one, two):
    """Whether two checkpoints hold the same bits: weights, optimiser, generator."""
    same = all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    for number, state in one["optimiser"]["state"].items():
        same &= all(torch.equal(state[name], two["optimiser"]["state"][number][name]) for name in state)
    return same and torch.equal(one["random"], two["random"])


def without_times(lines):
    return [{k: v for k, v in line.items() if "seconds" not in k and k != "events_per_s"} for line in lines]


@pytest.mark.parametrize("edges", [0, 600])
def test_a_resumed_run_equals_a_straight_one_bit_by_bit(cache, tmp_path, edges):
    options = dataclasses.replace(OPTIONS, edges=edges)
    straight = fit(cache, tmp_path / "straight", options)
    fit(cache, tmp_path / "parts", dataclasses.replace(options, epochs=1))
    resumed = fit(cache, tmp_path / "parts", options, resume=True)
    one, two = checkpoint.load(tmp_path / "straight"), checkpoint.load(tmp_path / "parts")
    assert one["epoch"] == two["epoch"] == 2
    assert equal(one, two)
    assert without_times(straight.epochs) == without_times(resumed.epochs)
    assert len((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_run_cut_off_inside_an_epoch_ends_with_the_bits_of_a_straight_one(cache, tmp_path):
    def cut(epoch, batch, *_):
        if (epoch, batch) == (1, 3):
            raise KeyboardInterrupt

    fit(cache, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        fit(cache, tmp_path / "cut", progress=cut)
    assert checkpoint.load(tmp_path / "cut")["epoch"] == 1
    fit(cache, tmp_path / "cut", resume=True)
    assert equal(checkpoint.load(tmp_path / "straight"), checkpoint.load(tmp_path / "cut"))


def names(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


def test_the_last_checkpoints_stay_and_any_can_be_gone_on_from(cache, tmp_path):
    options = dataclasses.replace(OPTIONS, epochs=4)
    run = fit(cache, tmp_path, options, keep=2)
    assert names(tmp_path) == ["best.pt", "epoch-3.pt", "epoch-4.pt", "last.pt"]
    assert [checkpoint.load(tmp_path / f"epoch-{number}.pt")["epoch"] for number in (3, 4)] == [3, 4]
    end = checkpoint.load(tmp_path)
    again = fit(cache, tmp_path, options, resume=tmp_path / "epoch-3.pt", keep=2)
    assert equal(end, checkpoint.load(tmp_path))
    assert without_times(again.epochs) == without_times(run.epochs)
    fit(cache, tmp_path / "none", dataclasses.replace(options, epochs=1))
    assert names(tmp_path / "none") == ["best.pt", "last.pt"]
    with pytest.raises(InputError, match="keep: expected a whole number of at least 0, found -1"):
        fit(cache, tmp_path, keep=-1)


def test_winding_back_removes_the_checkpoints_of_what_was_left(cache, tmp_path):
    fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=4), keep=3)
    fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=3), resume=tmp_path / "epoch-2.pt", keep=3)
    assert names(tmp_path) == ["best.pt", "epoch-2.pt", "epoch-3.pt", "last.pt"]


def test_the_comparison_sees_an_optimiser_that_forgot(cache, tmp_path):
    """A broken twin: the checkpoint without Adam's moments."""
    fit(cache, tmp_path / "straight")
    fit(cache, tmp_path / "parts", dataclasses.replace(OPTIONS, epochs=1))
    state = checkpoint.load(tmp_path / "parts")
    state["optimiser"]["state"] = {}
    checkpoint.save(tmp_path / "parts" / "last.pt", state)
    fit(cache, tmp_path / "parts", resume=True)
    assert not equal(checkpoint.load(tmp_path / "straight"), checkpoint.load(tmp_path / "parts"))


def test_the_seed_decides_everything(cache, tmp_path):
    one, two = (checkpoint.load(fit(cache, tmp_path / name).folder) for name in "ab")
    other = checkpoint.load(fit(cache, tmp_path / "c", dataclasses.replace(OPTIONS, seed=1)).folder)
    assert equal(one, two)
    assert not equal(one, other)


def test_backends_train_alike_from_one_seed(cache, tmp_path):
    losses = [fit(cache, tmp_path / name, backend=name).epochs[0]["train_loss"] for name in ("dense", "fused")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_training_lowers_the_loss_and_keeps_the_best(cache, tmp_path):
    run = fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=6, decay=1.0))
    assert run.epochs[-1]["train_loss"] < 0.9 * run.epochs[0]["train_loss"]
    best = checkpoint.load(tmp_path / "best.pt")
    assert best["best"] == max(line["auc"] for line in run.epochs)
    assert best["epoch"] == 1 + int(np.argmax([line["auc"] for line in run.epochs]))


def test_multilabel_trains(tmp_path):
    flags = sample.made(np.random.default_rng(0).integers(0, 9, 400), seed=2, multilabel=True, classes=3)
    run = fit(flags, tmp_path, dataclasses.replace(OPTIONS, epochs=4))
    assert run.net.config.task == "multilabel"
    assert run.epochs[-1]["loss"] < run.epochs[0]["loss"]
    assert run.epochs[-1]["auc_by_class"]["class0"] is None  # every event has it
    assert run.epochs[-1]["auc_by_class"]["class2"] > 0.7


def test_clipping_bounds_the_step(cache):
    net = train.network_for(cache, **SMALL)
    batch = batches.Batch(cache.batch(range(64)))
    norms = []
    for clip in (0.0, 0.01):
        options = dataclasses.replace(OPTIONS, clip=clip)
        train.initialise(net, cache, np.arange(300), options)
        train.step(net, batch, torch.optim.SGD(net.parameters(), 0.0), options)
        norms.append(torch.stack([parameter.grad.norm() for parameter in net.parameters()]).norm().item())
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-3)


def test_weights_weigh_the_loss_and_the_gradient():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    cache = sample.made([2, 2], classes=2)
    batch = batches.Batch(cache.batch([0, 1]))
    batch.label, batch.weight = torch.tensor([0, 0]), torch.tensor([3.0, 1.0])
    each = torch.nn.functional.cross_entropy(logits, batch.label, reduction="none")
    expected = (0.75 * each[0] + 0.25 * each[1]).item()
    assert train.loss_of(logits, batch, "multiclass").item() == pytest.approx(expected)


@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_a_loss_that_is_no_number_names_its_events(backend):
    cache = sample.made([4, 3, 0, 6, 5], seed=1)
    cache.node_x[cache.node_off[3] + 1, 0] = np.nan
    net = train.network_for(cache, "", backend, **SMALL)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    batch = batches.Batch(cache.batch([0, 3, 4]))
    with pytest.raises(LossError, match="expected a number, found nan from events 3; look at these events") as fault:
        train.step(net, batch, torch.optim.Adam(net.parameters()), OPTIONS)
    assert fault.value.events == [3]
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items()), "nothing was learnt"


def test_training_stops_at_such_a_loss_and_writes_the_batch(cache, tmp_path):
    broken = sample.made(np.random.default_rng(0).integers(0, 9, 400), seed=2)
    training, _ = batches.split(400, 0)
    broken.weight[training[17]] = np.nan
    with pytest.raises(LossError) as fault:
        fit(broken, tmp_path)
    assert fault.value.events == [training[17]]
    written = json.loads((tmp_path / "bad_batch.json").read_text())
    assert written["events"] == [training[17]]
    assert training[17] in written["batch_events"]
    assert len(written["batch_events"]) == 64
    assert not (tmp_path / "last.pt").exists()


def test_weights_without_a_sum_are_an_error():
    cache = sample.made([3, 3], classes=2)
    batch = batches.Batch(cache.batch([0, 1]))
    batch.weight = torch.zeros(2)
    with pytest.raises(LossError, match="expected weights that do not sum to 0"):
        train.loss_of(torch.zeros(2, 2), batch, "multiclass")


def test_features_that_are_no_numbers_are_refused_before_training(tmp_path):
    broken = sample.made([4] * 30)
    broken.node_x[5, 1] = np.inf
    with pytest.raises(InputError, match="expected finite features, found NaN or infinity in eta"):
        fit(broken, tmp_path)


def test_fine_tuning_takes_all_but_the_head(cache, tmp_path):
    fit(cache, tmp_path / "first")
    source = checkpoint.load(tmp_path / "first")
    other = sample.made(np.random.default_rng(7).integers(0, 9, 300), seed=8, classes=2)
    run = fit(other, tmp_path / "second", dataclasses.replace(OPTIONS, epochs=1, freeze=True), source=source)
    assert run.transfer["new"] == ["head.weight", "head.bias"]
    assert run.transfer["skipped"] == ["head.weight", "head.bias"]
    assert len(run.transfer["loaded"]) == len(source["model"]) - 2
    after = run.net.state_dict()
    for name, tensor in source["model"].items():
        frozen = not name.startswith(("head.", "decode."))
        assert torch.equal(tensor, after[name]) == frozen, name
    free = fit(other, tmp_path / "third", dataclasses.replace(OPTIONS, epochs=1), source=source)
    assert not torch.equal(free.net.state_dict()["encode_node.first.weight"], after["encode_node.first.weight"])


def test_a_checkpoint_of_another_width_cannot_be_fine_tuned(cache, tmp_path):
    fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=1))
    with pytest.raises(InputError, match="message rounds do not fit"):
        checkpoint.transfer(train.network_for(cache, hidden=32, rounds=2), checkpoint.load(tmp_path))


def test_one_checkpoint_serves_every_backend(cache, tmp_path):
    fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=1))
    state = checkpoint.load(tmp_path)
    scores = [predict.scores_of(checkpoint.network(state, name), cache, np.arange(100)) for name in ("fused", "dense")]
    assert np.abs(scores[0] - scores[1]).max() < 1e-4
    assert np.array_equal(scores[0].argmax(1), scores[1].argmax(1))


def test_what_does_not_fit_a_resumed_run_is_said(cache, tmp_path):
    fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=1))
    other = sample.made([3] * 50, seed=9)
    with pytest.raises(InputError, match="resume: expected the cache made-2"):
        fit(other, tmp_path, resume=True)
    with pytest.raises(InputError, match=r"the options of the first run, rate 0\.003, found others"):
        fit(cache, tmp_path, dataclasses.replace(OPTIONS, rate=0.1), resume=True)
    with pytest.raises(InputError, match="expected more than 1 epochs, found 1; raise --epochs"):
        fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=1), resume=True)
    with pytest.raises(InputError, match="expected the network"):
        fit(cache, tmp_path, shape={"hidden": 32, "rounds": 2}, resume=True)


def test_a_checkpoint_that_runs_code_is_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save({"format": 1, "model": Trap()}, tmp_path / "last.pt")
    with pytest.raises(InputError, match="expected a checkpoint, found"):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "last.pt").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(InputError, match="expected a checkpoint"):
        checkpoint.load(tmp_path)
    torch.save({"format": 99}, tmp_path / "last.pt")
    with pytest.raises(InputError, match="format 1 or older, found 99"):
        checkpoint.load(tmp_path)


def test_a_failed_write_leaves_the_old_checkpoint(cache, tmp_path, monkeypatch):
    fit(cache, tmp_path, dataclasses.replace(OPTIONS, epochs=1))
    before = (tmp_path / "last.pt").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError, match="room and permission for a checkpoint, found No space left on device"):
        checkpoint.save(tmp_path / "last.pt", {})
    assert (tmp_path / "last.pt").read_bytes() == before
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_bfloat16_is_refused_where_it_only_costs_and_close_where_allowed(cache, tmp_path, monkeypatch):
    from impl.gnn import precision

    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    with pytest.raises(InputError, match=r"a CPU with bfloat16 instructions .* found one without"):
        fit(cache, tmp_path, dataclasses.replace(OPTIONS, precision="bfloat16"), backend="dense")
    with pytest.raises(InputError, match="expected the backend 'dense', found 'fused'"):
        fit(cache, tmp_path, dataclasses.replace(OPTIONS, precision="bfloat16", allow_slow=True))
    with pytest.raises(InputError, match="one of float32, bfloat16"):
        fit(cache, tmp_path, dataclasses.replace(OPTIONS, precision="float16"))
    net = train.network_for(cache, "", "dense", **SMALL)
    train.initialise(net, cache, np.arange(300), OPTIONS)
    full = predict.scores_of(net, cache, np.arange(60))
    half = predict.scores_of(net, cache, np.arange(60), precision="bfloat16")
    assert 1e-5 < np.abs(full - half).max() < 0.1
    options = dataclasses.replace(OPTIONS, epochs=1, precision="bfloat16", allow_slow=True)
    loss = fit(cache, tmp_path, options, backend="dense").epochs[0]["train_loss"]
    assert loss == pytest.approx(fit(cache, tmp_path / "full", backend="dense").epochs[0]["train_loss"], rel=0.02)


def test_what_a_cpu_lacks_does_not_matter_on_another_device(cache, tmp_path, monkeypatch):
    from impl.gnn import precision

    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    precision.check_precision("bfloat16", "dense", allow_slow=False, device="cuda")
    asked = []

    def check(*arguments):
        asked.append(arguments)
        raise InputError("precision", "…", "asked")

    for module in (train, predict):
        monkeypatch.setattr(module, "check_precision", check)
    net = train.network_for(cache, "", "dense", **SMALL)
    with pytest.raises(InputError, match="asked"):
        train.train(cache, net, OPTIONS, tmp_path, device="cuda:1")
    with pytest.raises(InputError, match="asked"):
        predict.predict(net, cache, tmp_path / "scores.npy", device="cuda:1")
    assert [arguments[3] for arguments in asked] == ["cuda", "cuda"]


def test_initial_weights_are_made_on_the_cpu_whatever_the_device(cache, monkeypatch):
    """A network that a GPU trained before comes back for it: another generator would make other weights."""
    net, calls = train.network_for(cache, **SMALL), []
    monkeypatch.setattr(type(net), "cpu", lambda self: calls.append("cpu"))
    monkeypatch.setattr(train, "_reset", lambda module: calls.append("weights"))
    train.initialise(net, cache, np.arange(300), OPTIONS)
    assert calls[0] == "cpu"
    assert "weights" in calls


def test_scaling_takes_the_training_events_numbers(cache):
    net = train.network_for(cache, **SMALL)
    train.initialise(net, cache, np.arange(300), dataclasses.replace(OPTIONS, drop=("btag", "met_phi")))
    rows = net.scale_node(torch.from_numpy(cache.batch(range(300)).node_x))
    assert rows.mean(0).abs().max() < 1e-4
    assert rows.std(0)[[0, 1, 2, 3, 5, 6]].tolist() == pytest.approx([1] * 6, abs=0.01)
    assert not rows[:, 4].any()
    assert net.scale_node.logarithmic.tolist() == [True, False, False, True, False, False, False]
    assert net.scale_glob.scale[1] == 0
    with pytest.raises(InputError, match="--drop: expected one of pt, eta"):
        train.initialise(net, cache, np.arange(300), dataclasses.replace(OPTIONS, drop=("colour",)))
