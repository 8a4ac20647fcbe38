"""The fused step in C against plain torch, in every instruction set, width and event shape."""

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from impl.gnn import kernel, native  # noqa: E402

#: no object, one, two, and enough edges for several tiles and runs with a ragged end
RAGGED = [0, 1, 2, 3, 0, 60, 7, 13, 1, 5]
HERE = native.ISAS[: native.ISAS.index(native.best_isa()) + 1]


def edges_of(objects, self_loops):
    source, target, first = [], [], 0
    for n in objects:
        for i in range(n):
            for j in range(n):
                if i != j or self_loops:
                    source.append(first + i)
                    target.append(first + j)
        first += n
    return torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64)


def problem(objects, hidden, width=None, self_loops=False, dtype=torch.float32, seed=0):
    """Everything that a step takes, as leaves with gradients; width None: a state with a norm to apply."""
    generator = torch.Generator().manual_seed(seed)
    layout = kernel.Layout.of(objects, self_loops)

    def leaf(*shape, scale=1.0):
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype).requires_grad_()

    def norm():
        made = torch.nn.LayerNorm(hidden, dtype=dtype)
        with torch.no_grad():
            made.weight.copy_(leaf(hidden).abs() + 0.5)
            made.bias.copy_(leaf(hidden))
        return made

    columns = width or hidden
    x = leaf(layout.edges, columns)
    if width:
        x = x.detach()
    return {
        "layout": layout,
        "x": x,
        "w1": leaf(hidden, columns, scale=columns**-0.5),
        "b1": leaf(hidden),
        "projections": None if width else (leaf(layout.nodes, hidden), leaf(layout.nodes, hidden)),
        "w2": leaf(hidden, hidden, scale=hidden**-0.5),
        "b2": leaf(hidden),
        "norm": norm(),
        "in_norm": None if width else norm(),
    }


def leaves(given):
    pair = given["projections"] or ()
    named = [given["x"], given["w1"], given["b1"], given["w2"], given["b2"], *pair, given["norm"].weight,
             given["norm"].bias]  # fmt: skip
    return [tensor for tensor in named if tensor.requires_grad]


def plain(given, swap=False, mean=False):
    """The same step in torch: (state before its norm, sum). The twins swap source and destination, or average."""
    layout, x = given["layout"], given["x"]
    source, target = edges_of(layout.objects.tolist(), layout.self_loops)
    if given["in_norm"] is not None:
        # The derivative of a state is by definition the one after its norm.
        x = given["in_norm"](x.detach()) + (x - x.detach())
    z = x @ given["w1"].T + given["b1"]
    if given["projections"]:
        first, second = given["projections"][::-1] if swap else given["projections"]
        z = z + first[source] + second[target]
    state = torch.relu(torch.relu(z) @ given["w2"].T + given["b2"])
    out = given["norm"](state)
    total = torch.zeros(layout.nodes, out.shape[1], dtype=out.dtype).index_add(0, target, out)
    if mean:
        total = total / torch.bincount(target, minlength=layout.nodes).clamp(min=1).unsqueeze(1)
    return state, out, total


def results(given, outputs, seed=1):
    """(sum, gradients by every leaf) for random gradients by the normalised state and by the sum."""
    generator = torch.Generator().manual_seed(seed)
    out, total = outputs
    d_out = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    d_sum = torch.randn(total.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    return total.detach(), torch.autograd.grad([out, total], leaves(given), [d_out, d_sum])


def fused(given, **options):
    state, total = kernel.step(**given, **options)
    return results(given, (state, total))


def reference(given, **twin):
    _, out, total = plain(given, **twin)
    return results(given, (out, total))


def distance(found, expected):
    """Largest difference of sums and, of the norm of all gradients together, the relative one."""
    total = (found[0] - expected[0]).abs().max().item() if expected[0].numel() else 0.0
    flat = [torch.cat([g.double().flatten() for g in side[1]]) for side in (found, expected)]
    return total, ((flat[0] - flat[1]).norm() / flat[1].norm()).item()


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("hidden", [16, 64, 80])
def test_double_precision_equals_torch_to_rounding(hidden, self_loops):
    given = problem(RAGGED, hidden, self_loops=self_loops, dtype=torch.float64)
    total, gradient = distance(fused(given), reference(given))
    assert total < 1e-11
    assert gradient < 1e-12


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("hidden", [16, 48, 64, 128])
def test_single_precision_is_as_near_to_double_as_torch_is(isa, hidden):
    single, double = problem(RAGGED, hidden), problem(RAGGED, hidden, dtype=torch.float64)
    truth = reference(double)
    ours, theirs = distance(fused(single, isa=isa), truth), distance(reference(single), truth)
    assert ours[0] < 2e-4
    assert ours[0] < 4 * theirs[0]
    assert ours[1] < 1e-3


@pytest.mark.parametrize("twin", [{"swap": True}, {"mean": True}])
def test_the_comparison_rejects_a_broken_step(twin):
    given = problem(RAGGED, 16, dtype=torch.float64)
    total, gradient = distance(fused(given), reference(given, **twin))
    assert total > 0.1
    assert gradient > 0.1


@pytest.mark.parametrize("isa", HERE)
def test_the_encoder_takes_a_few_features_an_edge(isa):
    given = problem(RAGGED, 64, width=3)
    state, none = kernel.step(**given, with_sum=False, isa=isa)
    assert none is None
    expected_state, out, _ = plain(given)
    torch.testing.assert_close(state, expected_state, atol=2e-6, rtol=1e-5)
    d_out = torch.randn(state.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(state, leaves(given), d_out)
    for ours, theirs in zip(found, torch.autograd.grad(out, leaves(given), d_out), strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_saved_and_recomputed_activations_give_the_same_bits():
    for dtype in (torch.float32, torch.float64):
        given = problem(RAGGED, 32, dtype=dtype)
        saved, again = fused(given), fused(given, recompute=True)
        assert torch.equal(saved[0], again[0])
        assert all(torch.equal(a, b) for a, b in zip(saved[1], again[1], strict=True))


def test_recomputing_halves_what_is_kept():
    given = problem([30] * 4, 64)
    kernel.pool.clear()
    kept = []
    for recompute in (False, True):
        before = kernel.pool.used_bytes
        outputs = kernel.step(**given, recompute=recompute)
        kept.append(kernel.pool.used_bytes - before)
        del outputs
        assert kernel.pool.used_bytes == before, "buffers come back when their tensors are gone"
    edges = given["layout"].edges
    assert kept[1] >= edges * 64 * 4
    assert kept[0] == pytest.approx(2 * kept[1], rel=0.1)


def test_threads_and_repetition_do_not_change_a_bit():
    given = problem([40, 3, 0, 25, 31, 17, 22] * 3, 32)
    blocks = kernel.Layout.of(given["layout"].objects, block_edges=1500)
    assert len(blocks.blocks) > 5
    given["layout"] = blocks
    once = fused(given)
    torch.set_num_threads(2)
    for other in (fused(given), fused(given)):
        assert torch.equal(once[0], other[0])
        assert all(torch.equal(a, b) for a, b in zip(once[1], other[1], strict=True))


def test_blocks_hold_whole_events_and_every_edge_once():
    objects = [0, 50, 1, 30, 30, 0, 2]
    layout = kernel.Layout.of(objects, block_edges=1000)
    assert [block[0] for block in layout.blocks] == [0, 1, 2, 4]  # 50 objects have 2450 edges: over the budget, alone
    assert layout.blocks[-1][1] == len(objects)
    assert layout.edges == sum(n * (n - 1) for n in objects) == layout.blocks[-1][5]
    for one, two in zip(layout.blocks, layout.blocks[1:], strict=False):
        assert (one[1], one[3], one[5]) == (two[0], two[2], two[4])


def test_gradcheck_through_encoder_and_two_steps():
    torch.manual_seed(0)
    objects = [3, 1, 0, 2]
    layout = kernel.Layout.of(objects)
    features = torch.randn(layout.edges, 3, dtype=torch.float64)
    norms = [torch.nn.LayerNorm(16, dtype=torch.float64) for _ in range(2)]
    shapes = [(16, 3), (16,), (16, 16), (16,), (16, 16), (layout.nodes, 16), (layout.nodes, 16), (16, 16), (16,)]
    arguments = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    arguments += [parameter for norm in norms for parameter in norm.parameters()]

    def network(w0, b0, v0, c0, w1, ps, pd, w2, b2, *_):
        state, _ = kernel.step(layout, features, w0, b0, None, v0, c0, norms[0], with_sum=False)
        state, first = kernel.step(layout, state, w1, None, (ps, pd), w2, b2, norms[1], norms[0])
        _, second = kernel.step(layout, state, w1, None, (pd, ps), w2, b2, norms[1], norms[1], recompute=True)
        return first, second

    assert torch.autograd.gradcheck(network, arguments, fast_mode=False)


def test_no_edges_give_zero_sums_and_zero_gradients():
    given = problem([0, 1, 0, 1], 16)
    total, gradients = fused(given)
    assert torch.equal(total, torch.zeros(2, 16))
    assert all(not gradient.any() for gradient in gradients)


def test_inference_writes_over_the_state_and_agrees_with_training():
    given = problem(RAGGED, 32)
    expected, total = kernel.step(**given)
    with torch.no_grad():
        state, found = kernel.step(**given)
        assert state.data_ptr() == given["x"].data_ptr()
        assert torch.equal(state, expected)
        assert torch.equal(found, total)


@pytest.mark.parametrize("isa", HERE)
def test_not_a_number_goes_through_like_in_torch(isa):
    given = problem([3, 3], 16)
    with torch.no_grad():
        given["x"][1, 4] = float("nan")  # source 0 to destination 2 of the first event
        _, total = kernel.step(**given, isa=isa)
    assert np.flatnonzero(total.isnan().any(1)).tolist() == [2]


def test_what_the_step_cannot_do_is_said():
    given = problem([3, 2], 16)
    with pytest.raises(ValueError, match="hidden a multiple of 16"):
        kernel.step(**problem([3, 2], 24))
    _, total = kernel.step(**given)
    (first,) = torch.autograd.grad((total**2).sum(), given["w2"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
    encoder = problem([3, 2], 16, width=3)
    encoder["x"].requires_grad_()
    with pytest.raises(RuntimeError, match="edge features"):
        kernel.step(**encoder, with_sum=False)
    with pytest.raises(ValueError, match="contiguous"):
        kernel.step(**{**given, "w2": given["w2"].T})


def test_the_library_was_built_from_these_sources():
    assert native.source_digest() == native.tree_digest()
