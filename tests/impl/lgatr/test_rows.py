"""The paired layout in torch is the 16-component form, and the C kernels are the torch form, at every level."""

import itertools

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from impl.lgatr import layers, native, primitives, rows, slim  # noqa: E402
from impl.lgatr.primitives import PrimitivesConfig  # noqa: E402

needs_library = pytest.mark.skipif(not native.available(), reason="the C library is not built")
LEVELS = native.LEVELS[: native._native.lib.lgatr_level() + 1] if native.available() else ()
DENSE, PAIRED = PrimitivesConfig(implementation="dense"), PrimitivesConfig(implementation="paired")
#: channels and scalars: none, one, odd, around the width of a vector
SIZES = [(1, 0), (1, 4), (3, 5), (8, 3), (16, 32), (17, 1), (35, 7)]


def stream(items, channels, scalars, dtype=torch.float64):
    return torch.randn(2, items, channels, 16, dtype=dtype), torch.randn(2, items, scalars, dtype=dtype)


def gradients(function, *inputs):
    """Result and gradients of a fixed mixture of it."""
    given = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*given)
    generator = torch.Generator().manual_seed(5)
    (out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)).sum().backward()
    return [out.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in given)]


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        if b.numel():
            assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


# ---------------------------------------------------------------------------------------- torch form against blades


@pytest.mark.parametrize(("channels", "scalars"), SIZES)
def test_pack_and_unpack_are_inverse(channels, scalars):
    mv, s = stream(4, channels, scalars)
    x = rows.pack(mv, s)
    assert x.shape[-1] == rows.width(channels, scalars)
    back_mv, back_s = rows.unpack(x, channels)
    assert torch.equal(back_mv, mv)
    assert torch.equal(back_s, s)
    assert torch.equal(rows.join(*rows.split(x, channels)), x)


def test_parameters_come_in_the_order_of_their_shapes():
    for in_s, out_s, bias, subgroup in itertools.product((0, 3), (0, 2), (True, False), (True, False)):
        layer = layers.EquiLinear(2, 4, PrimitivesConfig(subgroup=subgroup), in_s, out_s, bias=bias)
        named = [layer.get_parameter(name) for name in layer.shape.parameters()]
        assert all(a is b for a, b in zip(layer.ordered_parameters(), named, strict=True))
        assert [tuple(p.shape) for p in named] == list(layer.shape.parameters().values())


def test_dual_is_multiplication_by_i():
    """What the layout is for: (re, im) of every pair goes to (-im, re)."""
    mv, _ = stream(4, 3, 0)
    planes = rows.half_planes(rows.pack(mv, None), 3)
    turned = rows.half_planes(rows.pack(primitives.dual(mv), None), 3)
    assert torch.equal(turned[..., 0::2, :], -planes[..., 1::2, :])
    assert torch.equal(turned[..., 1::2, :], planes[..., 0::2, :])


@pytest.mark.parametrize("subgroup", [True, False])
@pytest.mark.parametrize(("channels", "scalars"), SIZES)
def test_linear_product_norm_and_gate_are_those_of_blades(channels, scalars, subgroup):
    config = PrimitivesConfig(subgroup=subgroup, implementation="dense")
    layer = layers.EquiLinear(channels, 5, config, scalars, 3)
    mv, s = stream(4, channels, scalars)
    expected = rows.pack(*layer(mv, s if scalars else None))
    x = rows.pack(mv, s)
    weight = rows.pack_weight(layer.ordered_parameters(), layer.shape)
    assert torch.allclose(rows.linear(x, weight, layer.shape), expected, atol=1e-13)
    other, _ = stream(4, channels, 0)
    for bivector in (True, False):
        product = primitives.geometric_product(mv, other, DENSE)
        if not bivector:
            product = product * (primitives.grade_index(product.device) != 2)
        found = rows.product(rows.pack(mv, None), rows.pack(other, None), channels, s, bivector)
        assert torch.allclose(found, rows.pack(product, s), atol=1e-12)
    norm = layers.EquiLayerNorm(channels, scalars, elementwise_affine=True)
    torch.nn.init.uniform_(norm.weight_mv)
    torch.nn.init.uniform_(norm.weight_s)
    with native.disabled():
        assert torch.allclose(norm.rows(x, channels), rows.pack(*norm(mv, s)), atol=1e-13)
        gate = layers.ScalarGatedNonlinearity("silu")
        assert torch.allclose(gate.rows(x, channels), rows.pack(*gate(mv, s)), atol=1e-13)


def test_concatenation_joins_channels():
    (mv, s), (more, t) = stream(4, 3, 2), stream(4, 2, 1)
    found = rows.concat(rows.pack(mv, s), 3, rows.pack(more, t), 2)
    assert torch.equal(found, rows.pack(torch.cat([mv, more], -2), torch.cat([s, t], -1)))


# ---------------------------------------------------------------------------------------- C against the torch form


@pytest.fixture(params=LEVELS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("HARNESS_LGATR_LEVEL", request.param)
    return request.param


TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-5}
both_dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@needs_library
@both_dtypes
def test_single_kernels_are_the_torch_form(kernels, dtype):
    for (channels, scalars), items in itertools.product(SIZES, (1, 31)):
        x, y, g = (rows.pack(*stream(items, channels, k, dtype)) for k in (scalars, 0, 0))
        s = rows.scalars(x, channels).clone()
        gain = torch.rand(x.shape[-1], dtype=dtype) + 0.5
        tolerance = TOLERANCE[dtype]
        for bivector in (True, False):
            assert_close(
                gradients(lambda a, b, c, k=channels, v=bivector: native.product(a, b, k, c, v), y, g, s),
                gradients(lambda a, b, c, k=channels, v=bivector: rows.product(a, b, k, c, v), y, g, s),
                tolerance,
            )
        for scale in (1.0, 1e-3):  # above and below the floor of the norm
            assert_close(
                gradients(lambda a, b, k=channels: native.norm(a, b, k, 0.01), scale * x, gain),
                gradients(lambda a, b, k=channels: rows.norm(a, k, b, 0.01), scale * x, gain),
                tolerance * 10,
            )
        for name in native.NONLINEARITIES:
            function = primitives.nonlinearity(name)
            assert_close(
                gradients(lambda a, k=channels, f=name: native.gate(a, k, f), x),
                gradients(lambda a, k=channels, f=function: rows.gate(a, k, f), x),
                tolerance,
            )
        for subgroup, bias in itertools.product((True, False), (True, False)):
            shape = rows.LinearShape(channels, scalars, 6, 5, subgroup, bias)
            weights = [torch.randn(size, dtype=dtype) for size in shape.parameters().values()]
            assert_close(
                gradients(lambda a, *w, m=shape: native.linear(a, native.pack_weight(list(w), m), m), x, *weights),
                gradients(lambda a, *w, m=shape: rows.linear(a, rows.pack_weight(list(w), m), m), x, *weights),
                tolerance * 10,
            )


@needs_library
@both_dtypes
def test_heads_are_the_torch_form(kernels, dtype):
    for parts, count, hidden, hidden_s in ((3, 4, 2, 4), (1, 1, 3, 0), (2, 3, 1, 5)):
        channels = parts * count * hidden
        x = rows.pack(*stream(6, channels, parts * count * hidden_s, dtype))
        signed = (True, *[False] * (parts - 1))

        def stacked(module, a, k=channels, p=parts, c=count, g=signed):
            return torch.stack(module.heads(a, k, p, c, g))

        for scale in (1.0, 1e-3):
            assert_close(
                gradients(lambda a: stacked(native, a), scale * x),
                gradients(lambda a: stacked(rows, a), scale * x),
                TOLERANCE[dtype] * 10,
            )


def block_of(channels, scalars, heads, **options):
    primitives_ = PrimitivesConfig(implementation="paired", **options)
    block = layers.LGATrBlock(channels, scalars, {"num_heads": heads}, {"mlp_ratio": 2}, primitives_)
    for name, parameter in block.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return block


def block_gradients(block, x, **kwargs):
    block.zero_grad()
    found = gradients(lambda a: block.rows(a, **kwargs), x)
    return found + [p.grad.clone() for p in block.parameters() if p.grad is not None]


#: one item, sets within a tile, across tiles, larger than a tile, empty ones; all of them odd
LENGTHS = [(1,), (7, 0, 3), (23, 2, 0, 0, 30, 1), (101, 5), (49, 48, 47, 1, 2)]


@needs_library
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_fused_block_is_the_torch_form(kernels, lengths):
    for channels, scalars, heads in ((4, 6, 2), (5, 3, 3), (16, 32, 8)):
        block = block_of(channels, scalars, heads)
        x = torch.randn(sum(lengths), rows.width(channels, scalars))
        found = block_gradients(block, x, lengths=lengths)
        with native.disabled():
            expected = block_gradients(block, x, lengths=lengths)
        assert_close(found, expected, 1e-11)


@needs_library
def test_fused_block_in_float32(kernels):
    block = block_of(16, 32, 8)
    x = torch.randn(4, 40, rows.width(16, 32))
    expected = block_gradients(block, x)
    found = block_gradients(block.float(), x.float())
    assert_close([a.double() for a in found[:1]], expected[:1], 1e-5)
    assert_close([a.double() for a in found], expected, 2e-3)


@needs_library
def test_slim_block_is_the_torch_form(kernels):
    for lengths in LENGTHS:
        for channels, scalars, heads in ((4, 6, 2), (5, 3, 3), (16, 32, 8)):
            block = slim.SlimBlock(channels, scalars, heads)
            v, s = torch.randn(sum(lengths), 4, channels), torch.randn(sum(lengths), scalars)

            def run(block=block, v=v, s=s, lengths=lengths):
                block.zero_grad()
                found = gradients(lambda a, b: torch.cat([x.flatten(1) for x in block(a, b, lengths=lengths)], 1), v, s)
                return found + [p.grad.clone() for p in block.parameters()]

            found = run()
            with native.disabled():
                assert_close(found, run(), 1e-11)


@needs_library
def test_a_wrong_kernel_would_be_noticed(monkeypatch):
    """The broken twin: a product whose bivector parts are zero is not the product."""
    x, y = (rows.pack(*stream(5, 3, 0)) for _ in range(2))
    expected = rows.product(x, y, 3, None)
    assert_close([native.product(x, y, 3, None)], [expected], 1e-12)
    with pytest.raises(AssertionError):
        assert_close([native.product(x, y, 3, None, bivector=False)], [expected], 1e-12)


@needs_library
def test_kernels_take_strided_tensors():
    block = block_of(4, 6, 2)
    x = torch.randn(rows.width(4, 6), 9, 3).permute(2, 1, 0)
    assert not x.is_contiguous()
    assert torch.equal(block.rows(x), block.rows(x.contiguous()))


@needs_library
def test_hidden_rows_are_kept_only_for_a_backward_pass(monkeypatch):
    kept = []

    def spy(x, numbers, keep, room=native._hidden_of):
        kept.append(keep)
        return room(x, numbers, keep)

    monkeypatch.setattr(native, "_hidden_of", spy)
    block, x = block_of(4, 6, 2), torch.randn(2, 5, rows.width(4, 6))
    block.rows(x)
    with torch.no_grad():
        block.rows(x)
    block.requires_grad_(False)
    block.rows(x)
    block.rows(x.clone().requires_grad_())
    assert kept == [True, False, False, True]


@needs_library
@pytest.mark.parametrize("kind", ["full", "slim"])
def test_operators_are_what_is_called_directly(kind, monkeypatch):
    """Where somebody looks (a mode here, a compiler elsewhere) the registered operators run, to the same bits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Looking(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = set()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.add(str(function).split(".default")[0])
            return function(*args, **(kwargs or {}))

    if kind == "full":
        block, x = block_of(4, 6, 2), torch.randn(2, 5, rows.width(4, 6))
    else:
        block, x = slim.SlimBlock(4, 6, 2), torch.randn(2, 5, 22)
    expected = block_gradients(block, x)
    with Looking() as mode:
        found = block_gradients(block, x)
    mlp = "mlp" if kind == "full" else "slim_mlp"
    operators = {f"harness_lgatr.{name}{back}" for name in ("pack", "attention", mlp) for back in ("", "_back")}
    assert {name for name in mode.seen if name.startswith("harness_lgatr")} == operators
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    monkeypatch.setattr(native, "_plain", lambda x: False)
    assert all(torch.equal(a, b) for a, b in zip(block_gradients(block, x), expected, strict=True))


@needs_library
def test_same_bits_every_time_and_for_every_batch():
    block = block_of(16, 32, 8)
    x = torch.randn(3, 40, rows.width(16, 32))
    together = block.rows(x)
    assert torch.equal(together, block.rows(x))
    assert torch.allclose(torch.stack([block.rows(one[None])[0] for one in x]), together, atol=1e-13)


@needs_library
def test_second_derivatives_are_refused_and_torch_gives_them():
    x = torch.randn(1, 3, rows.width(2, 3), requires_grad=True)
    with pytest.raises(RuntimeError, match="disabled"):
        torch.autograd.grad(native.norm(x, None, 2, 0.01).sum(), x, create_graph=True)
    with native.disabled():
        block = block_of(2, 3, 1)
        (first,) = torch.autograd.grad(block.mlp.rows(x).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.abs().max() > 0


@needs_library
def test_packed_weights_follow_the_parameters():
    """Without gradients the packed weight is kept; changing a parameter in place must make a new one."""
    block = block_of(4, 6, 2)
    x = torch.randn(1, 5, rows.width(4, 6))
    with torch.no_grad():
        before = block.rows(x)
        assert torch.equal(before, block.rows(x))
        block.mlp.layers[2].weight.mul_(2)
        after = block.rows(x)
        assert not torch.allclose(before, after)
        with native.disabled():
            assert torch.allclose(after, block.rows(x), atol=1e-12)
        block.mlp.layers[2].weight.data.mul_(3)  # past the version counter
        with native.disabled():
            expected = block.rows(x)
        assert torch.allclose(block.rows(x), expected, atol=1e-12)
        block.load_state_dict({name: p * 0.5 for name, p in block.state_dict().items()})
        with native.disabled():
            expected = block.rows(x)
        assert torch.allclose(block.rows(x), expected, atol=1e-12)


@needs_library
def test_threads_do_not_share_scratch():
    from concurrent.futures import ThreadPoolExecutor

    block = block_of(8, 8, 2)
    inputs = [torch.randn(4, 20 + 5 * i, rows.width(8, 8)) for i in range(8)]

    def run(x):
        return [gradients(block.rows, x)[i] for i in (0, 1) for _ in range(3)]

    block.requires_grad_(False)
    alone = [run(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, inputs))
    for a, b in zip(alone, together):
        assert all(torch.equal(p, q) for p, q in zip(a, b))


def test_unknown_level_is_refused(monkeypatch):
    if not native.available():
        pytest.skip("the C library is not built")
    monkeypatch.setenv("HARNESS_LGATR_LEVEL", "avx9")
    with pytest.raises(ValueError, match="avx512"):
        native.level()


@needs_library
def test_library_is_built_from_these_sources():
    assert native.tree_digest() in (None, native.source_digest())
