"""Automatic mixed precision: the metric stays in float32, and the switch nests."""

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

import impl.lgatr as ours  # noqa: E402
from impl.lgatr import primitives  # noqa: E402
from impl.lgatr.precision import minimum_autocast_precision, naive_active, naive_amp  # noqa: E402

BF, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def autocast(dtype=BF):
    return torch.autocast("cpu", dtype=dtype)


def run(decorator, *dtypes):
    """The dtypes that the function sees, whether autocast is on inside, and the dtype that comes out."""
    seen = {}

    @decorator
    def function(*tensors):
        seen["inside"] = [t.dtype for t in tensors]
        seen["autocast"] = torch.is_autocast_enabled("cpu")
        return tensors[0] + 0, "text"

    out, text = function(*(torch.ones(2, dtype=dtype) for dtype in dtypes))
    assert text == "text"
    return seen["inside"], seen["autocast"], out.dtype


@pytest.mark.parametrize(
    ("output", "given", "expected"),
    [
        ("low", (BF, F32), BF), ("high", (BF, F32), F32), ("low", (F64,), F32), ("high", (F64,), F64),
        ("high", (BF,), BF), (None, (BF,), F32), (torch.float16, (F32,), torch.float16),
        ("low", (torch.int64,), torch.int64),
    ],
)  # fmt: skip
def test_table_of_dtypes(output, given, expected):
    decorator = minimum_autocast_precision(F32, output=output)
    with autocast():
        inside, active, out = run(decorator, *given)
    assert inside == [F32 if dtype == BF else dtype for dtype in given]
    assert not active
    assert out == expected


def test_nothing_happens_without_autocast_or_inside_naive():
    decorator = minimum_autocast_precision(F32)
    assert run(decorator, BF) == ([BF], False, BF)
    with autocast(), naive_amp():
        assert run(decorator, BF) == ([BF], True, BF)
    with pytest.raises(ValueError, match="'low', 'high'"):
        minimum_autocast_precision(F32, output="middle")


def test_keyword_arguments_are_raised_too():
    @minimum_autocast_precision(F32, output=None)
    def function(x, y):
        return y

    with autocast():
        assert function(torch.ones(1), y=torch.ones(1, dtype=BF)).dtype == F32


def test_naive_nests_and_survives_errors():
    with naive_amp():
        with naive_amp(False):
            assert naive_active()
        with pytest.raises(KeyError), naive_amp():
            raise KeyError
        assert naive_active()
    assert not naive_active()

    @naive_amp()
    def inside():
        return naive_active()

    assert inside()
    assert not naive_active()


@pytest.mark.parametrize("dtype", [BF, torch.float16])
def test_primitives_keep_their_output_dtypes(dtype):
    config = primitives.PrimitivesConfig(implementation="dense")
    low, high = torch.randn(3, 2, 16, dtype=dtype), torch.randn(3, 2, 16, dtype=F32)
    weight = torch.randn(4, 2, 10, dtype=F32)
    with autocast(dtype):
        assert primitives.equi_linear(low, weight, config).dtype == F32
        assert primitives.geometric_product(low, high, config).dtype == F32
        assert primitives.geometric_product(low, low, config).dtype == dtype
        assert primitives.abs_squared_norm(high).dtype == F32
        assert primitives.abs_squared_norm(low).dtype == dtype
        assert primitives.equi_layer_norm(low).dtype == dtype
        assert primitives.sdp_attention(high, high, high)[0].dtype == F32


def islands(code):
    """Every function that keeps its precision under autocast: name -> call with tensors of a dtype."""
    if code == "ours":
        from impl.lgatr import primitives as p
        from impl.lgatr import slim

        config = p.PrimitivesConfig(implementation="dense")
        linear, rms, glu = slim.SlimLinear, slim.SlimRMSNorm, slim.SlimGLU
        vectors, inner, attend = "_vectors", "_inner", slim._attend
    else:
        lgatr = pytest.importorskip("lgatr")
        from lgatr import primitives as p
        from lgatr.layers import slim_layers as slim

        config = lgatr.PrimitivesConfig()
        linear, rms, glu = slim.SlimLinear, slim.SlimRMSNorm, slim.SlimGLU
        vectors, inner, attend = "_linear_v", "_get_inner_product", None

    def mv(dtype):
        return torch.ones(1, 3, 2, 16, dtype=dtype)

    def v(dtype):
        return torch.ones(1, 3, 4, 2, dtype=dtype)

    weight = torch.ones(4, 2, 10, dtype=F32)
    made = (linear(2, 2, 2, 2).float(), rms(2, 2).float(), glu(2, 2, 2, 2).float())
    yield "linear", lambda t: p.equi_linear(mv(t), weight, config=config)
    yield "product", lambda t: p.geometric_product(mv(t), mv(t), config=config)
    yield "squared norm", lambda t: p.abs_squared_norm(mv(t))
    yield "norm", lambda t: p.equi_layer_norm(mv(t))
    yield "attention", lambda t: p.sdp_attention(*[mv(t)] * 3, *[torch.ones(1, 3, 2, dtype=t)] * 3)[0]
    yield "slim linear", lambda t: getattr(made[0], vectors)(v(t))
    yield "slim norm", lambda t: made[1](v(t), torch.ones(1, 3, 2, dtype=t))[0]
    yield "slim inner product", lambda t: getattr(made[2], inner)(v(t), v(t))
    if attend is not None:
        yield "slim attention", lambda t: attend(*[torch.ones(1, 2, 3, 4, dtype=t)] * 3)


#: island -> dtype out for bfloat16 or float16 ("low": the same), float32 and float64 in; weights are float32
TABLE = {
    "linear": (F32, F32, F64), "product": ("low", F32, F64), "squared norm": ("low", F32, F32),
    "norm": ("low", F32, F64), "attention": ("low", F32, F64), "slim linear": ("low", F32, None),
    "slim norm": ("low", F32, F64), "slim inner product": ("low", F32, F32), "slim attention": ("low", F32, F64),
}  # fmt: skip


@pytest.mark.parametrize("code", ["ours", "lgatr"])
@pytest.mark.parametrize("low", [BF, torch.float16])
def test_table_of_every_island(low, code):
    """The package has the same, but for float64: its norm returns float32 and its linear map refuses it."""
    for name, call in islands(code):
        for given, expected in zip((low, F32, F64), TABLE[name]):
            if given == F64 and (expected is None or (code == "lgatr" and name in ("norm", "linear"))):
                continue
            with autocast(low):
                assert call(given).dtype == (low if expected == "low" else expected), (name, given)


SIZES = {
    "num_blocks": 2, "in_mv_channels": 1, "out_mv_channels": 1, "hidden_mv_channels": 8,
    "in_s_channels": 2, "out_s_channels": 2, "hidden_s_channels": 16, "attention": {"num_heads": 2}, "mlp": {},
}  # fmt: skip


def errors(kind, naive, dtype):
    torch.manual_seed(0)
    if kind == "slim":
        net = ours.LGATrSlim(2, 1, 1, 8, 2, 2, 16, num_heads=2, naive_amp=naive)
        x = torch.randn(2, 6, 1, 4)
    else:
        net = ours.LGATr(**SIZES, primitives={"implementation": kind}, naive_amp=naive)
        x = torch.randn(2, 6, 1, 16)
    s = torch.randn(2, 6, 2)
    exact, _ = net(x, s)
    net, x, s = net.float(), x.float(), s.float()
    with autocast(dtype):
        out, out_s = net(x, s)
    assert out_s.dtype in (F32, dtype)
    return float((out.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max())


@pytest.mark.parametrize("dtype", [BF, torch.float16])
@pytest.mark.parametrize("kind", ["dense", "sparse", "paired", "slim"])
def test_naive_loses_what_protection_keeps(kind, dtype):
    protected, naive = errors(kind, False, dtype), errors(kind, True, dtype)
    assert 0 < protected < naive < 0.5
    if kind == "paired":  # both streams share a row, so all of it is protected
        assert protected < 1e-5


@pytest.mark.parametrize("kind", ["dense", "paired"])
def test_agrees_with_the_package_under_autocast(kind):
    lgatr = pytest.importorskip("lgatr")
    torch.manual_seed(0)
    net = ours.LGATr(**SIZES, primitives={"implementation": kind}).float()
    peer = lgatr.LGATr(**SIZES).float()
    peer.load_state_dict(net.state_dict())
    x, s = torch.randn(2, 6, 1, 16, dtype=F32), torch.randn(2, 6, 2, dtype=F32)
    with autocast():
        (a, a_s), (b, b_s) = net(x, s), peer(x, s)
    assert a.dtype == b.dtype == F32
    assert (a - b).abs().max() < 0.02 * b.abs().max()
    assert (a_s.float() - b_s.float()).abs().max() < 0.02 * b_s.abs().max()


def test_float16_gradients_flow():
    torch.manual_seed(0)
    net = ours.LGATr(**SIZES).float()
    with autocast(torch.float16):
        out, out_s = net(torch.randn(1, 4, 1, 16, dtype=F32), torch.randn(1, 4, 2, dtype=F32))
        loss = out.float().square().sum() + out_s.float().square().sum()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
