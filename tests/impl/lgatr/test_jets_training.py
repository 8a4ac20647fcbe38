"""Training of taggers: repeatable, resumable to the last bit, and stopped by what is no number."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")
pytest.importorskip("h5py")

from impl.gnn import checkpoint  # noqa: E402
from impl.gnn.errors import InputError, LossError  # noqa: E402
from impl.lgatr import jets, train  # noqa: E402
from impl.lgatr.tagger import Config, Tagger  # noqa: E402

FILE = Path(__file__).resolve().parents[2] / "data" / "jets" / "pythia_top_qcd.h5"
OPTIONS = train.Options(epochs=3, jets=32, rate=3e-3)


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def some():
    return jets.read(FILE).select(np.arange(120))


def config(net="slim", **more):
    return Config(net=net, **{"blocks": 1, "mv": 4, "s": 16, "heads": 2, "items": 6} | more)


def equal(one, two):
    """Whether two checkpoints hold the same bits: averages, weights, optimiser, generator."""
    same = all(torch.equal(one[part][name], two[part][name]) for part in ("model", "weights") for name in one[part])
    for number, state in one["optimiser"]["state"].items():
        other = two["optimiser"]["state"].get(number, {})
        same &= all(name in other and torch.equal(state[name], other[name]) for name in state)
    return same and torch.equal(one["random"], two["random"])


def without_times(lines):
    return [{k: v for k, v in line.items() if "seconds" not in k and k != "jets_per_s"} for line in lines]


@pytest.mark.parametrize("net", ["lgatr", "slim", "plain", "gnn"])
def test_a_resumed_training_equals_a_straight_one_bit_by_bit(some, tmp_path, net):
    straight = train.train(some, config(net), OPTIONS, tmp_path / "straight")
    train.train(some, config(net), OPTIONS, tmp_path / "parts", stop=1)
    resumed = train.train(some, config(net), OPTIONS, tmp_path / "parts", resume=True)
    one, two = train.load(tmp_path / "straight"), train.load(tmp_path / "parts")
    assert one["epoch"] == two["epoch"] == 3
    assert equal(one, two)
    assert without_times(straight.epochs) == without_times(resumed.epochs)
    assert len((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()) == 3
    _, held = train.split(len(some), OPTIONS)
    scores = [train.scores_of(net, jets.Sample(some, 6), held) for net in (straight.net, train.restored(two))]
    assert np.array_equal(*scores), "the checkpoint's network is the one with averaged weights"


@pytest.mark.parametrize("forgotten", ["moments", "average"])
def test_the_comparison_sees_a_checkpoint_that_forgot(some, tmp_path, forgotten):
    """Broken twins: a checkpoint without Adam's moments, and one whose average is that of the weights."""
    train.train(some, config(), OPTIONS, tmp_path / "straight")
    train.train(some, config(), OPTIONS, tmp_path / "parts", stop=1)
    state = train.load(tmp_path / "parts")
    if forgotten == "moments":
        state["optimiser"]["state"] = {}
    else:
        state["model"] = state["weights"]
    checkpoint.save(tmp_path / "parts" / "last.pt", state)
    train.train(some, config(), OPTIONS, tmp_path / "parts", resume=True)
    assert not equal(train.load(tmp_path / "straight"), train.load(tmp_path / "parts"))


def test_the_seed_decides_everything_but_the_held_out_jets(some, tmp_path):
    runs = [train.train(some, config(), dataclasses.replace(OPTIONS, epochs=1, seed=seed), tmp_path / name)
            for name, seed in (("a", 0), ("b", 0), ("c", 1))]  # fmt: skip
    one, two, other = (train.load(run.folder) for run in runs)
    assert equal(one, two)
    assert not equal(one, other)
    training, held = train.split(len(some), OPTIONS)
    assert held.tolist() == list(range(0, 120, 5))
    assert sorted([*training, *held]) == list(range(120))


def one_step(some, weight, whole_parts=1, break_weights=False):
    options = dataclasses.replace(OPTIONS, accumulate=whole_parts, clip=0.0)
    sample = jets.Sample(some, 6, dtype=torch.float64)
    net = train.made(sample, config(), np.arange(100), options).double()
    index = np.arange(40)
    if break_weights:
        weight = np.ones_like(weight)
    loss, logits = train.step(net, sample, index, some.label, weight, train.optimiser_of(net, options), options)
    return loss, logits, [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_a_batch_in_parts_has_the_gradient_of_the_whole(some):
    weight = np.random.default_rng(0).uniform(0.2, 3, len(some)).astype(np.float32)
    whole, parts = (one_step(some, weight, count) for count in (1, 7))
    assert parts[0] == pytest.approx(whole[0], rel=1e-7)  # weights are float32
    torch.testing.assert_close(parts[1], whole[1], atol=1e-12, rtol=0)
    for one, two in zip(whole[2], parts[2]):
        torch.testing.assert_close(one, two, atol=1e-7, rtol=1e-6)
    broken = one_step(some, weight, 7, break_weights=True)  # a broken twin: weights that are left out
    assert broken[0] != pytest.approx(whole[0], rel=1e-5)


def test_the_schedule_is_torch_s():
    """Against LinearLR followed by CosineAnnealingLR."""
    steps, warm = 40, 8
    options = dataclasses.replace(OPTIONS, rate=0.1, warmup=warm / steps)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    parts = [
        torch.optim.lr_scheduler.LinearLR(optimiser, 1 / warm, 1, warm - 1),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps - warm),
    ]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimiser, parts, [warm])
    for step in range(steps):
        assert train.rate_at(step, steps, options) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9), step
        optimiser.step()
        scheduler.step()


def test_the_average_follows_its_formula_and_swaps_exactly():
    """Against a loop in float64: the share kept of the old average grows from 0.1 to the decay."""
    net = torch.nn.Linear(3, 2, bias=False)
    ours = train.Average(net, 0.8)
    mean = net.weight.detach().double()
    for step in range(60):
        with torch.no_grad():
            net.weight.add_(torch.randn_like(net.weight))
        ours.update(step)
        kept = min(0.8, (1 + step) / (10 + step))
        mean = kept * mean + (1 - kept) * net.weight.detach().double()
    torch.testing.assert_close(ours.values[0].double(), mean, atol=1e-5, rtol=1e-5)
    weights, average = net.weight.detach().clone(), ours.values[0].clone()
    ours.swap()
    assert torch.equal(net.weight, average)
    ours.swap()
    assert torch.equal(net.weight, weights)
    assert not torch.equal(weights, average)


def test_gradients_are_clipped_together(some):
    options = dataclasses.replace(OPTIONS, clip=1e-3)
    sample = jets.Sample(some, 6)
    net = train.made(sample, config(), np.arange(100), options)
    train.step(net, sample, np.arange(40), some.label, some.weight, train.optimiser_of(net, options), options)
    norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("net", ["lgatr", "slim", "plain", "gnn"])
def test_gains_and_biases_do_not_decay(net):
    net = Tagger(config(net))
    decaying, free = (group["params"] for group in train.optimiser_of(net, OPTIONS).param_groups)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    assert all("norm" in names[id(p)] or names[id(p)].endswith("bias") for p in free)
    assert all(p.ndim > 1 for p in decaying)
    assert len(free) + len(decaying) == sum(p.requires_grad for p in net.parameters())


# ------------------------------------------------------------------------------------------- what goes wrong


def test_a_loss_that_is_no_number_names_its_jets_and_leaves_the_checkpoint(some, tmp_path):
    broken = jets.Jets(some.source, some.momenta.copy(), some.offsets, some.label, some.weight)
    broken.momenta[broken.offsets[3]] = [3e38, 0, 0, 3e38]
    with pytest.raises(LossError) as caught:
        train.train(broken, config(), OPTIONS, tmp_path)
    assert str(caught.value) == (
        "loss: expected a number, found nan from jets 3; look at these jets, or lower the learning rate"
    )
    found = json.loads((tmp_path / "bad_batch.json").read_text())
    assert found["jets"] == [3]
    assert 3 in found["batch_jets"]
    assert caught.value.exit_code == 3
    assert not (tmp_path / "last.pt").exists()


def test_a_checkpoint_of_another_architecture_is_one_sentence(some, tmp_path):
    train.train(some, config(), OPTIONS, tmp_path, stop=1)
    with pytest.raises(InputError) as caught:
        train.train(some, config("lgatr", blocks=2), OPTIONS, tmp_path, resume=True)
    assert str(caught.value) == (
        "resume: expected the network of the first run, net slim, blocks 1, found net lgatr, blocks 2"
    )
    with pytest.raises(InputError) as caught:
        train.train(some, config(), dataclasses.replace(OPTIONS, rate=0.1), tmp_path, resume=True)
    assert str(caught.value) == "resume: expected the options of the first run, rate 0.003, found rate 0.1"
    other = some.select(np.arange(100))
    with pytest.raises(InputError) as caught:
        train.train(other, config(), OPTIONS, tmp_path, resume=True)
    assert str(caught.value) == (
        f"resume: expected the jets {some.fingerprint[:12]}…, found {other.fingerprint[:12]}…; "
        "give the file of the first run"
    )


def test_a_checkpoint_of_another_program_is_one_sentence(tmp_path):
    checkpoint.save(tmp_path / "last.pt", {"model": {}, "config": {"hidden": 64}})
    with pytest.raises(InputError) as caught:
        train.load(tmp_path / "last.pt")
    assert str(caught.value) == (
        f"{tmp_path / 'last.pt'}: expected a checkpoint of `python -m impl.lgatr train`, found one of another program"
    )


def test_a_finished_training_is_not_resumed(some, tmp_path):
    options = dataclasses.replace(OPTIONS, epochs=1)
    train.train(some, config(), options, tmp_path)
    with pytest.raises(InputError) as caught:
        train.train(some, config(), options, tmp_path, resume=True)
    assert str(caught.value) == "resume: expected more than 1 epochs, found 1; it is trained"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "train: epochs: expected a whole number of at least 1, found 0"),
        ({"fold": 5}, "train: fold: expected a whole number below held_out, 5, found 5"),
        ({"precision": "half"}, "train: precision: expected one of float32, amp, naive-amp, found 'half'"),
        ({"rate": 0.0}, "train: rate, warmup, decay, clip, average: expected rate > 0, 0 <= warmup < 1, decay >= 0, "
                        "clip >= 0, 0 <= average < 1, found 0.0, 0.05, 0.01, 1.0, 0.99"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_one_sentence(options, sentence):
    with pytest.raises(InputError) as caught:
        dataclasses.replace(OPTIONS, **options)
    assert str(caught.value) == sentence


def test_bfloat16_is_refused_for_the_event_network(some, tmp_path):
    with pytest.raises(InputError) as caught:
        train.train(some, config("gnn"), dataclasses.replace(OPTIONS, precision="amp"), tmp_path)
    assert str(caught.value) == "train: precision: expected float32 for the net gnn, found amp"
