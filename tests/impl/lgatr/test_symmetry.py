"""Networks commute with the Lorentz group; broken layers are caught by the same test."""

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

import lgatr_exact  # noqa: E402

import impl.lgatr as ours  # noqa: E402
from impl.lgatr import embed, layers, native, symmetry  # noqa: E402
from impl.lgatr.primitives import PrimitivesConfig  # noqa: E402

SIZES = {
    "num_blocks": 2, "in_mv_channels": 2, "out_mv_channels": 2, "hidden_mv_channels": 8,
    "in_s_channels": 3, "out_s_channels": 2, "hidden_s_channels": 8, "attention": {"num_heads": 2}, "mlp": {},
}  # fmt: skip
SLIM = {
    "num_blocks": 2, "in_v_channels": 2, "out_v_channels": 2, "hidden_v_channels": 8,
    "in_s_channels": 3, "out_s_channels": 2, "hidden_s_channels": 8, "num_heads": 2,
}  # fmt: skip
IMPLEMENTATIONS = ("dense", "sparse", "paired")


def transformations(rapidities=(0.5, 1.5, 3.0)):
    generator = torch.Generator().manual_seed(7)
    return [symmetry.rotation(generator), *(symmetry.random_transformation(generator, y) for y in rapidities)]


def net_of(implementation, **primitives):
    torch.manual_seed(3)
    net = ours.LGATr(**SIZES, primitives={"implementation": implementation, **primitives})
    for name, parameter in net.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return net


def event(items=9):
    generator = torch.Generator().manual_seed(11)
    return torch.randn(2, items, 2, 16, generator=generator), torch.randn(2, items, 3, generator=generator)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_boosts_and_rotations(implementation):
    net, (mv, s) = net_of(implementation), event()
    for matrix in transformations():
        symmetry.assert_equivariant(net, mv, matrix, s)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_parity_and_time_reversal_for_the_full_group_only(implementation):
    mv, s = event()
    full, connected = net_of(implementation, subgroup=False), net_of(implementation)
    for matrix in (symmetry.PARITY, symmetry.TIME_REVERSAL, symmetry.PARITY @ transformations((1.0,))[1]):
        symmetry.assert_equivariant(full, mv, matrix, s)
        with pytest.raises(AssertionError):
            symmetry.assert_equivariant(connected, mv, matrix, s)


def test_slim_network():
    net = ours.LGATrSlim(**SLIM)
    generator = torch.Generator().manual_seed(2)
    v, s = torch.randn(2, 9, 2, 4, generator=generator), torch.randn(2, 9, 3, generator=generator)
    for matrix in (*transformations(), symmetry.PARITY, symmetry.TIME_REVERSAL):
        symmetry.assert_equivariant(net, v, matrix, s)


def test_conditional_networks():
    sizes = {**SIZES, "mv_channels_cond": 2, "s_channels_cond": 3, "crossattention": {"num_heads": 2}}
    generator = torch.Generator().manual_seed(2)
    (mv, s), (c_mv, c_s) = event(6), event(4)
    v, c_v = (torch.randn(2, n, 2, 4, generator=generator) for n in (6, 4))
    for matrix in transformations((2.0,)):
        wide = symmetry.on_multivectors(matrix)
        for implementation in IMPLEMENTATIONS:
            net = ours.ConditionalLGATr(**sizes, primitives={"implementation": implementation})
            out, out_s = net(mv, c_mv, s, c_s)
            moved, moved_s = net(symmetry.apply(wide, mv), symmetry.apply(wide, c_mv), s, c_s)
            assert (moved - symmetry.apply(wide, out)).abs().max() < 1e-10 * out.abs().max() * wide.abs().max()
            assert torch.allclose(moved_s, out_s, atol=1e-10)
        slim = ours.ConditionalLGATrSlim(**SLIM, v_channels_cond=2, s_channels_cond=3)
        out, out_s = slim(v, c_v, s, c_s)
        moved, moved_s = slim(symmetry.apply(matrix, v), symmetry.apply(matrix, c_v), s, c_s)
        assert (moved - symmetry.apply(matrix, out)).abs().max() < 1e-10 * out.abs().max() * matrix.abs().max()
        assert torch.allclose(moved_s, out_s, atol=1e-10)


def _layers():
    config = PrimitivesConfig(implementation="paired")
    yield "linear", layers.EquiLinear(2, 4, config, 3, 2)
    yield "bilinear", layers.GeometricBilinear(2, 4, config, in_s_channels=3, out_s_channels=2)
    yield "norm", layers.EquiLayerNorm(2, 3, elementwise_affine=True)
    yield "gate", layers.ScalarGatedNonlinearity("gelu")
    mlp = layers.MLPConfig(mv_channels=2, s_channels=3)
    yield "mlp", layers.GeoMLP(mlp, config)
    attention = layers.SelfAttentionConfig(in_mv_channels=2, out_mv_channels=2, in_s_channels=3, out_s_channels=3)
    yield "attention", layers.SelfAttention(attention, config)


@pytest.mark.parametrize("name", ["linear", "bilinear", "norm", "gate", "mlp", "attention"])
def test_every_layer(name):
    (mv, s), layer = event(), dict(_layers())[name]
    for matrix in transformations():
        symmetry.assert_equivariant(layer, mv, matrix, s)


class _Broken(torch.nn.Module):
    """A layer whose twelfth component has the wrong sign in the dual, or one that adds a fixed vector."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, mv, s):
        out, out_s = self.inner(mv, s)
        out = out.clone()
        if self.how == "sign":
            out[..., 12] = -out[..., 12]
        elif self.how == "direction":
            out[..., 3] = out[..., 3] + 1e-6
        elif self.how == "norm":
            out = out / out.norm(dim=-1, keepdim=True)
        return out, out_s


@pytest.mark.parametrize("how", ["sign", "direction", "norm"])
def test_broken_layers_are_caught(how):
    (mv, s), config = event(), PrimitivesConfig(implementation="paired")
    layer = _Broken(layers.EquiLinear(2, 4, config, 3, 2), how)
    with pytest.raises(AssertionError, match="equivariance"):
        symmetry.assert_equivariant(layer, mv, transformations()[1], s)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_order_of_items_does_not_matter(implementation):
    net, (mv, s) = net_of(implementation), event()
    order = torch.randperm(mv.shape[1], generator=torch.Generator().manual_seed(1))
    out, out_s = net(mv, s)
    moved, moved_s = net(mv[:, order], s[:, order])
    assert torch.allclose(moved, out[:, order], atol=1e-12)
    assert torch.allclose(moved_s, out_s[:, order], atol=1e-12)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_changes_nothing_and_ragged_is_a_loop(implementation):
    net, lengths = net_of(implementation), [5, 0, 1, 12, 7]
    mv, s = torch.randn(sum(lengths), 2, 16), torch.randn(sum(lengths), 3)
    ragged, ragged_s = net(mv, s, lengths=lengths)
    alone = [net(a[None], b[None]) for a, b in zip(mv.split(lengths), s.split(lengths)) if len(a)]
    assert torch.allclose(ragged, torch.cat([out[0] for out, _ in alone]), atol=1e-12)
    (padded, mask), (padded_s, _) = embed.pad(lengths, mv), embed.pad(lengths, s)
    for filling in (0.0, 1e3):
        filled, filled_s = padded.clone(), padded_s.clone()
        filled[~mask], filled_s[~mask] = filling, filling
        out, out_s = net(filled, filled_s, attn_mask=embed.attention_mask(mask))
        assert torch.allclose(out[mask], ragged, atol=1e-11)
        assert torch.allclose(out_s[mask], ragged_s, atol=1e-11)
    unmasked, _ = net(padded, padded_s)
    assert not torch.allclose(unmasked[mask], ragged)  # the mask matters
    found, tensors = embed.unpad(mask, padded, padded_s)
    assert found == lengths
    assert torch.equal(tensors[0], mv)


def test_slim_ragged_is_a_loop():
    net, lengths = ours.LGATrSlim(**SLIM), [5, 0, 1, 12, 7]
    v, s = torch.randn(sum(lengths), 2, 4), torch.randn(sum(lengths), 3)
    ragged, _ = net(v, s, lengths=torch.tensor(lengths))
    alone = [net(a[None], b[None])[0][0] for a, b in zip(v.split(lengths), s.split(lengths)) if len(a)]
    assert torch.allclose(ragged, torch.cat(alone), atol=1e-12)
    with native.disabled():
        assert torch.allclose(net(v, s, lengths=lengths)[0], ragged, atol=1e-12)


def test_wrong_lengths_are_refused():
    net, (mv, s) = net_of("paired"), event()
    with pytest.raises(ValueError, match="lengths"):
        net(mv, s, lengths=[3, 3])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_empty_jets(implementation):
    net = net_of(implementation)
    for shape in ((2, 0), (0, 3)):
        out, out_s = net(torch.zeros(*shape, 2, 16), torch.zeros(*shape, 3))
        assert out.shape == (*shape, 2, 16)
        assert out_s.shape == (*shape, 2)


def collinear(items, angle, generator):
    """Nearly massless momenta of 1 to 101 within `angle` of one direction, as one jet."""
    direction = torch.randn(items, 3, generator=generator) * angle + torch.tensor([0.6, 0.0, 0.8])
    direction = direction / direction.norm(dim=-1, keepdim=True)
    energy = torch.rand(items, 1, generator=generator) * 100 + 1
    momentum = energy * direction
    mass = 1e-4
    return torch.cat([(momentum.square().sum(-1, keepdim=True) + mass**2).sqrt(), momentum], dim=-1)


def jet():
    generator = torch.Generator().manual_seed(4)
    p = torch.stack([collinear(8, 1e-3, generator) for _ in range(2)]) / 20
    spurions = embed.get_spurions("lightlike", True, dtype=torch.float64)
    return p, spurions, torch.randn(2, 8, 3, generator=generator)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nearly_massless_collinear_particles(implementation):
    torch.manual_seed(5)
    net = ours.LGATr(**{**SIZES, "in_mv_channels": 4}, primitives={"implementation": implementation})
    p, spurions, s = jet()
    mv = embed.jets(p, spurions)
    out, out_s = net(mv, s)
    assert torch.isfinite(out).all()
    assert torch.isfinite(out_s).all()
    for matrix in transformations():
        symmetry.assert_equivariant(net, mv, matrix, s)
    leaf = mv.clone().requires_grad_()
    sum(part.square().sum() for part in net(leaf, s)).backward()
    assert torch.isfinite(leaf.grad).all()


@lgatr_exact.needed
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_without_a_frame_the_rounding_of_the_input_is_what_breaks_the_symmetry(implementation):
    """Momenta alone, not scaled: every invariant is a difference of energies squared, 1e-6 of them or less.

    A transformed momentum is rounded, and that alone moves the exact outputs (long double) by 1e-11 to 1e-10 of the
    largest. The networks add no more than a few times as much; the package is the same there.
    """
    generator = torch.Generator().manual_seed(4)
    p, s = collinear(8, 1e-3, generator)[None], torch.randn(1, 8, 3, generator=generator)
    torch.manual_seed(5)
    net = ours.LGATr(**{**SIZES, "in_mv_channels": 1}, primitives={"implementation": implementation})
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    mv = embed.jets(p)
    before, _ = lgatr_exact.network(weights, mv[0].numpy(), s[0].numpy(), heads=2)
    for matrix in transformations()[2:]:
        moved = symmetry.apply(symmetry.on_multivectors(matrix), mv)
        after, _ = lgatr_exact.network(weights, moved[0].numpy(), s[0].numpy(), heads=2)
        image = before @ lgatr_exact.on_multivectors(matrix.numpy()).T
        rounding = float(abs(after - image).max() / abs(image).max())
        assert 1e-13 < rounding < 1e-9
        with torch.no_grad():
            arithmetic = float(abs(net(moved, s)[0][0].numpy() - after).max() / abs(image).max())
        assert arithmetic < 30 * rounding
        assert symmetry.deviation(net, mv, matrix, s) < 30 * rounding


def test_curve_of_the_error_against_rapidity(capsys):
    """Rounding breaks the symmetry more the larger the boost; float64 stays far below float32, that below bfloat16."""
    net, (mv, s) = net_of("paired"), event()
    generator = torch.Generator().manual_seed(3)
    axis = torch.randn(3, generator=generator)
    table = []
    for rapidity in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0):
        matrix = symmetry.boost(rapidity, axis)

        def as_type(dtype, naive):
            low = net_of("paired").to(torch.float32 if dtype == torch.bfloat16 else dtype)
            low._naive_amp = naive

            def run(x, y):
                given = x.to(next(low.parameters()).dtype), y.to(next(low.parameters()).dtype)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                    return low(*given)

            return run

        row = [symmetry.deviation(net, mv, matrix, s)]
        row += [symmetry.deviation(as_type(*kind), mv, matrix, s) for kind in (
            (torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True))]  # fmt: skip
        table.append((rapidity, *row))
    with capsys.disabled():
        print("\ndeviation from equivariance, largest component")
        print("rapidity  float64   float32   bf16 protected  bf16 naive")
        for rapidity, *row in table:
            print(f"{rapidity:8.1f}  " + "  ".join(f"{value:8.1e}" for value in row))
    for rapidity, double, single, protected, naive in table:
        if 0 < rapidity <= 3:
            assert double < 1e-10
            assert double < single < 1e-2
            assert protected < 1e-2 < 10 * naive
    assert table[-1][1] > table[1][1]  # it does grow
    assert table[-1][2] > table[1][2]
