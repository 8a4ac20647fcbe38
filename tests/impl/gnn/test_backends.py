"""The network with its backends: one function, three orders of operations."""

import sys
from dataclasses import replace

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from impl.events.cache import Cache  # noqa: E402
from impl.gnn import batches, message, sample, train  # noqa: E402
from impl.gnn.errors import InputError, PackageError  # noqa: E402
from impl.gnn.model import Config, EventNet  # noqa: E402

#: 0 to 60 objects an event
SIZES = np.concatenate([[0, 1, 2, 60, 0, 33], np.random.default_rng(0).integers(0, 24, 40)])
CONFIG = Config(classes=4)
BACKENDS = [
    pytest.param("dgl", {}, id="dgl"),
    pytest.param("dense", {}, id="dense"),
    pytest.param("fused", {}, id="fused"),
    pytest.param("fused", {"recompute": True}, id="recompute"),
]


def batch_of(cache, index=None):
    return batches.Batch(cache.batch(np.arange(len(cache)) if index is None else index))


def network(backend, config=CONFIG, seed=0, **options):
    if backend == "dgl":
        pytest.importorskip("dgl")
    torch.manual_seed(seed)
    return EventNet(config, backend, **options)


def run(net, batch):
    """Logits and the gradients of the loss by all parameters, as one vector."""
    logits = net(batch)
    loss = train.loss_of(logits, batch, net.config.task)
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    return logits.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def apart(one, two):
    """Largest difference of logits; norm of the gradients' difference by the norm of all gradients; argmax equal."""
    return (
        (one[0] - two[0]).abs().max().item(),
        ((one[1] - two[1]).norm() / two[1].norm()).item(),
        torch.equal(one[0].argmax(1), two[0].argmax(1)),
    )


@pytest.fixture(scope="module")
def ragged():
    return sample.made(SIZES, seed=3)


@pytest.fixture(scope="module")
def by_hand(ragged):
    """The same network event by event and edge by edge, for shared and for separate weights."""
    return {share: run_by_hand(replace(CONFIG, share_weights=share), batch_of(ragged)) for share in (True, False)}


@pytest.mark.parametrize("share_weights", [True, False])
@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_backends_agree_with_the_specification(ragged, by_hand, backend, options, share_weights):
    config = replace(CONFIG, share_weights=share_weights)
    logits, gradient, same = apart(run(network(backend, config, **options), batch_of(ragged)), by_hand[share_weights])
    assert logits < 1e-4
    assert gradient < 1e-3
    assert same


def run_by_hand(config, batch):
    """The network event by event and edge by edge as section 4 of its specification reads, in double precision."""
    torch.manual_seed(0)
    net = EventNet(config, "dense").double()
    rows = []
    for number, n in enumerate(batch.layout.objects.tolist()):
        first = int(batch.layout.objects[:number].sum())
        edge = int(batch.pairs[:number].sum())
        x = batch.node_x[first : first + n].double()
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
        h = net.encode_node(net.scale_node(x))
        g = net.encode_glob(net.scale_glob(batch.glob[number : number + 1].double()))
        e = net.encode_edge(batch.edge_x[edge : edge + len(pairs)].double())
        source = torch.tensor([i for i, _ in pairs], dtype=torch.int64)
        target = torch.tensor([j for _, j in pairs], dtype=torch.int64)
        for update in net.rounds():
            e = update.edge(torch.cat([e, h[source], h[target], g.expand(len(pairs), -1)], 1))
            a = torch.stack([e[target == j].sum(0) for j in range(n)]) if n else h
            h = update.node(torch.cat([h, a, g.expand(n, -1)], 1))
            mean_h = h.mean(0, keepdim=True) if n else torch.zeros_like(g)
            mean_e = e.mean(0, keepdim=True) if pairs else torch.zeros_like(g)
            g = update.glob(torch.cat([g, mean_h, mean_e], 1))
        rows.append(net.head(net.decode(g)))
    logits = torch.cat(rows)
    loss = torch.nn.functional.cross_entropy(logits, batch.label)
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    return logits.detach().float(), torch.cat([gradient.flatten() for gradient in gradients]).float()


@pytest.mark.parametrize(("backend", "options"), BACKENDS[1:])
def test_each_backend_agrees_with_dgl(ragged, backend, options):
    batch = batch_of(ragged)
    logits, gradient, same = apart(run(network(backend, **options), batch), run(network("dgl"), batch))
    assert logits < 1e-4
    assert gradient < 1e-3
    assert same


class Swapped(message.Fused):
    """A broken twin: source and destination exchanged."""

    def step(self, batch, edges, w_edge, ps, pd, mlp, last):
        return super().step(batch, edges, w_edge, pd, ps, mlp, last)


class Averaged(message.Fused):
    """A broken twin: the mean over sources instead of the sum."""

    def step(self, *arguments):
        edges, a = super().step(*arguments)
        return edges, a / 3


@pytest.mark.parametrize("twin", [Swapped, Averaged])
def test_the_agreement_rejects_a_broken_backend(ragged, twin):
    batch = batch_of(ragged)
    broken = network("fused")
    broken.backend = twin()
    logits, gradient, _ = apart(run(broken, batch), run(network("dense"), batch))
    assert logits > 1e-3
    assert gradient > 1e-2


def test_equal_sizes_take_the_broadcast_path_and_agree():
    cache = sample.made([9] * 12, seed=1)
    batch = batch_of(cache)
    logits, gradient, same = apart(run(network("dense"), batch), run(network("fused"), batch))
    assert (logits < 1e-4, gradient < 1e-3, same) == (True, True, True)


def test_self_loops_are_edges_too():
    cache = sample.made([0, 1, 2, 9, 4], seed=1, self_loops=True)
    batch = batch_of(cache)
    assert batch.layout.edges == 1 + 4 + 81 + 16
    dense = run(network("dense"), batch)
    assert apart(run(network("fused"), batch), dense)[:2] < (1e-4, 1e-3)
    without = batch_of(sample.made([0, 1, 2, 9, 4], seed=1))
    assert (run(network("dense"), without)[0] - dense[0]).abs().max() > 1e-3


def permuted(cache, seed=0):
    """The same events with the objects of each in another order."""
    random = np.random.default_rng(seed)
    order = np.concatenate([first + random.permutation(n) for first, n in zip(cache.node_off, cache.node_counts)])
    arrays = {"node_x": np.ascontiguousarray(cache.node_x[order]), "node_off": cache.node_off, "glob": cache.glob,
              "label": cache.label, "weight": cache.weight}  # fmt: skip
    return Cache(cache.path, cache.manifest, arrays), order


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_permuting_objects_leaves_the_logits(ragged, backend, options):
    other, order = permuted(ragged)
    assert not np.array_equal(order, np.arange(len(order)))
    net = network(backend, **options)
    with torch.inference_mode():
        one, two = net(batch_of(ragged)), net(batch_of(other))
    assert (one - two).abs().max() < 1e-5 * one.abs().max()


def test_an_event_does_not_depend_on_its_batch(ragged):
    net = network("fused")
    with torch.inference_mode():
        together = net(batch_of(ragged))
        alone = torch.cat([net(batch_of(ragged, [k])) for k in range(0, len(ragged), 5)])
    assert (together[::5] - alone).abs().max() < 1e-5


def test_a_backend_changes_no_parameter():
    names = [list(network(backend).state_dict()) for backend in ("dense", "fused")]
    assert names[0] == names[1]
    count = sum(parameter.numel() for parameter in EventNet(Config()).parameters())
    assert count == 77_196  # at the default widths, counted by hand from the specification


def test_an_event_without_objects_reads_its_globals_only():
    cache = sample.made([0, 0, 5], seed=1)
    for backend in ("dense", "fused"):
        logits, _ = run(network(backend), batch_of(cache))
        assert torch.isfinite(logits).all()


def test_without_dgl_its_backend_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(PackageError, match=r"needs dgl 1\.1\.0 .* pip install 'harness-ab\[gnn\]'"):
        EventNet(CONFIG, "dgl")
    EventNet(CONFIG, "dense")
    EventNet(CONFIG, "fused")


@pytest.mark.parametrize(
    ("backend", "config", "options", "words"),
    [
        ("dgk", CONFIG, {}, "backend: expected one of dgl, dense, fused, found 'dgk'"),
        ("dense", CONFIG, {"recompute": True}, "backend 'dense': expected the options compiled, found recompute"),
        ("fused", replace(CONFIG, hidden=24), {}, "a multiple of 16 up to 512 and up to 16 edge features, found 24"),
        ("fused", CONFIG, {"isa": "neon"}, "isa: expected one of plain, avx2, avx512, found 'neon'"),
    ],
)
def test_what_a_backend_cannot_do_is_said(backend, config, options, words):
    with pytest.raises(InputError) as fault:
        EventNet(config, backend, **options)
    assert words in str(fault.value)


def test_a_config_that_cannot_be_is_said():
    with pytest.raises(InputError, match="model: rounds: expected a whole number of at least 1, found 0"):
        Config(rounds=0)
    with pytest.raises(InputError, match="'multiclass' or 'multilabel'"):
        Config(task="regression")


@pytest.mark.parametrize("edges", [1, 4, 5, 17, 1000, 131_072, 131_073])
def test_a_bucket_holds_its_edges_and_wastes_at_most_a_quarter(edges):
    assert edges <= message.bucket(edges) <= max(4, 1.25 * edges)


def test_there_are_four_buckets_an_octave():
    assert len({message.bucket(edges) for edges in range(1025, 2049)}) == 4


@pytest.mark.slow
def test_the_compiled_edge_update_agrees_and_compiles_once_a_bucket():
    small, large, again = (sample.made(sizes, seed=5) for sizes in ([6] * 5, [6] * 9, [6] * 5 + [3]))
    net, plain = network("dense", compiled=True), network("dense")
    before = net.backend.compilations()
    counts = []
    for cache in (small, large, again):
        batch = batch_of(cache)
        logits, gradient, same = apart(run(net, batch), run(plain, batch))
        assert (logits < 1e-4, gradient < 1e-3, same) == (True, True, True)
        counts.append(net.backend.compilations() - before)
    assert message.bucket(150) == message.bucket(156) != message.bucket(270)
    assert counts[0] >= 1
    assert counts[1] > counts[0], "another bucket is another graph"
    assert counts[2] == counts[1], "the same bucket is not"


def test_a_failing_compiler_is_said_once_and_does_without(ragged, capsys):
    net, plain = network("dense"), network("dense")

    def fails(*_):
        raise torch._dynamo.exc.TorchDynamoException("no C++ compiler")

    net.backend.compiled = fails
    batch = batch_of(ragged)
    logits, gradient, same = apart(run(net, batch), run(plain, batch))
    assert (logits < 1e-4, gradient < 1e-3, same) == (True, True, True)
    assert capsys.readouterr().err == "torch.compile failed (no C++ compiler); going on without it\n"


def test_in_mixed_precision_norms_and_sums_are_float32(ragged, monkeypatch):
    from impl.gnn.precision import autocast

    net, kinds = network("dense"), []
    step = net.backend.step

    def watched(*arguments):
        edges, a = step(*arguments)
        kinds.append((arguments[3].dtype, edges.dtype, a.dtype))
        return edges, a

    monkeypatch.setattr(net.backend, "step", watched)
    with torch.no_grad(), autocast("bfloat16"):
        net(batch_of(ragged, range(8)))
    assert set(kinds) == {(torch.bfloat16, torch.float32, torch.float32)}, "products are not"
