"""Taggers: Lorentz invariant or not, ragged, and the same function in every implementation and precision."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")
pytest.importorskip("h5py")

from impl.gnn.errors import InputError  # noqa: E402
from impl.lgatr import jets, native, symmetry  # noqa: E402
from impl.lgatr.tagger import PRECISIONS, Config, Tagger, running  # noqa: E402

FILE = Path(__file__).resolve().parents[2] / "data" / "jets" / "pythia_top_qcd.h5"
NETS = ("lgatr", "slim", "plain", "gnn")


@pytest.fixture(scope="module")
def some():
    return jets.read(FILE).select(np.arange(24))


def made(net, seed=0, **config):
    torch.manual_seed(seed)
    return Tagger(Config(net=net, **config))


def logits(net, sample, index=None, precision="float32"):
    index = np.arange(len(sample)) if index is None else index
    with torch.no_grad(), running(precision):
        return net.eval()(sample.batch(np.asarray(index))).double()


def moved(net, some, rapidity=1.5):
    """Largest change of the logits by one boost of all jets, in units of their spread; float64."""
    boost = symmetry.random_transformation(torch.Generator().manual_seed(1), rapidity)
    one, two = (logits(net, jets.Sample(which, net.config.items, net.config.lightcone, torch.float64))
                for which in (some, some.transformed(boost)))  # fmt: skip
    return float((one - two).abs().max() / one.std())


@pytest.mark.parametrize(("net", "lightcone"), [("lgatr", False), ("slim", False), ("slim", True)])
def test_a_boost_of_all_jets_changes_no_score(some, net, lightcone):
    assert moved(made(net, lightcone=lightcone), some) < 1e-9


@pytest.mark.parametrize(("net", "config"), [("plain", {}), ("gnn", {}), ("lgatr", {"beam": "xyplane"}),
                                             ("slim", {"beam": "lightlike"})])  # fmt: skip
def test_a_boost_changes_the_scores_of_networks_that_are_not_invariant(some, net, config):
    """Broken twins of the test above: no symmetry, or a beam that is not boosted with the jets."""
    network = made(net, **config)
    if net == "gnn":
        network.float()
        network.net.fit(jets.Sample(some, 16).batch(np.arange(len(some))))
    assert moved(network, some) > 1e-4


@pytest.mark.parametrize("net", NETS)
def test_a_batch_gives_what_its_jets_give_one_by_one(some, net):
    """Ragged batches against batches of one; lengths differ."""
    network = made(net)
    if net == "gnn":
        network.float()
    sample = jets.Sample(some.select(np.argsort(some.counts)[:8]), dtype=network.dtype)
    assert len(set(sample.lengths.tolist())) > 1
    together = logits(network, sample)
    alone = torch.cat([logits(network, sample, [k]) for k in range(len(sample))])
    torch.testing.assert_close(together, alone, atol=1e-5 if net == "gnn" else 1e-11, rtol=0)
    assert (together[1:] - together[:-1]).abs().max() > 1e-3


@pytest.mark.parametrize("net", NETS)
def test_the_order_of_constituents_changes_nothing(some, net):
    network = made(net, items=0)
    if net == "gnn":
        network.float()
    random = np.random.default_rng(0)
    rows = np.concatenate([random.permutation(np.arange(a, b)) for a, b in zip(some.offsets, some.offsets[1:])])
    mixed = jets.Jets(some.source, some.momenta[rows], some.offsets, some.label, some.weight)
    one, two = (logits(network, jets.Sample(which, dtype=network.dtype)) for which in (some, mixed))
    torch.testing.assert_close(one, two, atol=1e-4 if net == "gnn" else 1e-10, rtol=0)


def test_implementations_and_compiled_kernels_are_one_function(some):
    one = made("lgatr")
    sample = jets.Sample(some, 16, dtype=torch.float64)
    expected = logits(one, sample)
    for implementation in ("sparse", "dense"):
        other = Tagger(one.config, implementation)
        other.load_state_dict(one.state_dict())
        torch.testing.assert_close(logits(other, sample), expected, atol=1e-11, rtol=0)
    with native.disabled():
        torch.testing.assert_close(logits(one, sample), expected, atol=1e-11, rtol=0)


def test_light_cone_components_are_the_same_function_and_keep_bfloat16_closer(some):
    """In float64 equal to plain components; with naive-amp at most half as far from float64."""
    networks = [made("slim", mv=16, s=32, lightcone=on) for on in (False, True)]
    exact = [logits(net, jets.Sample(some, 16, net.config.lightcone, torch.float64)) for net in networks]
    torch.testing.assert_close(exact[1], exact[0], atol=1e-11, rtol=0)
    off = []
    for net in networks:
        rough = logits(net.float(), jets.Sample(some, 16, net.config.lightcone), precision="naive-amp")
        off.append(float((rough - exact[0]).abs().max()))
    assert off[1] < 0.5 * off[0]


def test_a_precision_changes_what_it_says(some):
    """lgatr's fast implementation keeps all in float32 under amp; naive-amp is rougher than amp in slim."""
    sample = jets.Sample(some, 16)
    found = {}
    for net in ("lgatr", "slim"):
        network = made(net).float()
        found[net] = [logits(network, sample, precision=name) for name in PRECISIONS]
    assert torch.equal(found["lgatr"][0], found["lgatr"][1])
    exact, amp, naive = found["slim"]
    assert 0 < (amp - exact).abs().max() < (naive - exact).abs().max()
    assert (found["lgatr"][2] - found["lgatr"][0]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"net": "cnn"}, "model: net: expected one of lgatr, slim, plain, gnn, found 'cnn'"),
        ({"beam": "x"}, "model: beam: expected one of none, xyplane, lightlike, spacelike, timelike, found 'x'"),
        ({"blocks": 0}, "model: blocks: expected a whole number of at least 1, found 0"),
        ({"lightcone": True}, "model: lightcone: expected the net slim, found lgatr"),
        ({"net": "slim", "lightcone": True, "beam": "timelike"}, "model: lightcone: expected no beam, found timelike"),
        ({"net": "gnn", "beam": "lightlike"}, "model: beam: expected the net lgatr or slim, found gnn"),
        ({"net": "slim", "beam": "xyplane"},
         "model: beam: expected lightlike, spacelike, timelike or none for slim, found xyplane"),
        ({"net": "plain", "s": 6}, "model: s: expected a multiple of heads, found 6 and 4 heads"),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_is_one_sentence(config, sentence):
    with pytest.raises(InputError) as caught:
        Config(**config)
    assert str(caught.value) == sentence


def test_an_unknown_precision_is_one_sentence():
    with pytest.raises(InputError) as caught, running("half"):
        pass
    assert str(caught.value) == "--precision: expected one of float32, amp, naive-amp, found 'half'"


@pytest.mark.parametrize("net", ["lgatr", "slim"])
def test_padded_jets_give_what_ragged_ones_do(some, net):
    """What a compiled network computes, without the compiler; padding has no weight in the mean."""
    network = made(net)
    sample = jets.Sample(some, 16, dtype=torch.float64)
    ragged = logits(network, sample)
    network.padded = True
    torch.testing.assert_close(logits(network, sample), ragged, atol=1e-11, rtol=0)
