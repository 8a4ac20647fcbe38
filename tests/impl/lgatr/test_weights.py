"""Weight for weight: every network and option against the package lgatr, and against our own dense form without it."""

import contextlib

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

import lgatr_exact  # noqa: E402

import impl.lgatr as ours  # noqa: E402
from impl.lgatr import native  # noqa: E402

B, N, M = 3, 7, 5
SCALARS = {"in_s_channels": 5, "out_s_channels": 3, "hidden_s_channels": 16}
NO_SCALARS = {"in_s_channels": 0, "out_s_channels": 0, "hidden_s_channels": 0}
IMPLEMENTATIONS = ("dense", "sparse", "mixed", "paired", "paired-torch")


def lgatr_case(primitives=None, attention=None, mlp=None, scalars=True, **more):
    sizes = {"num_blocks": 2, "in_mv_channels": 2, "out_mv_channels": 3, "hidden_mv_channels": 8}
    arguments = {
        **sizes,
        **(SCALARS if scalars else NO_SCALARS),
        "attention": {"num_heads": 4, **(attention or {})},
        "mlp": mlp or {},
        **more,
    }
    inputs = [torch.randn(B, N, 2, 16), torch.randn(B, N, 5) if scalars else None]
    return "LGATr", arguments, primitives or {}, inputs


def conditional_case(primitives=None, attention=None, crossattention=None, scalars=True, **more):
    _, arguments, primitives, inputs = lgatr_case(primitives, attention, None, scalars, **more)
    arguments |= {
        "mv_channels_cond": 5,
        "s_channels_cond": 6 if scalars else 0,
        "crossattention": {"num_heads": 4, **(crossattention or {})},
    }
    condition = torch.randn(B, M, 5, 16), torch.randn(B, M, 6) if scalars else None
    return "ConditionalLGATr", arguments, primitives, [inputs[0], condition[0], inputs[1], condition[1]]


NO_PRODUCT = {"geometric_product": False}
CASES = {
    "plain": lambda: lgatr_case(),
    "full group": lambda: lgatr_case({"subgroup": False}),
    "no bivector": lambda: lgatr_case({"bivector": False}),
    "no product": lambda: lgatr_case(NO_PRODUCT),
    "full group, no product": lambda: lgatr_case({"subgroup": False, **NO_PRODUCT}),
    "no scalars": lambda: lgatr_case(NO_PRODUCT, scalars=False),
    "no scalars, full group": lambda: lgatr_case({"subgroup": False, **NO_PRODUCT}, scalars=False),
    "scalars made inside": lambda: lgatr_case(NO_PRODUCT, scalars=False, hidden_s_channels=8),
    "multi-query": lambda: lgatr_case(attention={"multi_query": True, "attn_ratio": 2}),
    "head scale": lambda: lgatr_case(attention={"head_scale": True}),
    "attention ratio": lambda: lgatr_case(attention={"attn_ratio": 2, "num_heads": 2}),
    "heads beyond channels": lambda: lgatr_case(attention={"num_heads": 16}),
    "three layers": lambda: lgatr_case(mlp={"num_layers_mlp": 3, "mlp_ratio": 2, "nonlinearity": "silu"}),
    "one layer": lambda: lgatr_case(mlp={"num_layers_mlp": 1}),
    "relu": lambda: lgatr_case(mlp={"nonlinearity": "relu"}),
    "sigmoid": lambda: lgatr_case(mlp={"nonlinearity": "sigmoid"}),
    "tanh": lambda: lgatr_case(mlp={"nonlinearity": "tanh"}),
    "reinsertion": lambda: lgatr_case(reinsert_mv_channels=(0,), reinsert_s_channels=(1, 2)),
    "reinsertion of multivectors": lambda: lgatr_case(reinsert_mv_channels=(1, 0)),
    "reinsertion of scalars": lambda: lgatr_case(reinsert_s_channels=(3,)),
    "reinsertion, multi-query": lambda: lgatr_case(attention={"multi_query": True}, reinsert_mv_channels=(0,)),
    "no gains": lambda: lgatr_case(norm_elementwise_affine=False),
    "checkpointed": lambda: lgatr_case(checkpoint_blocks=True),
    "dropout of nothing": lambda: lgatr_case(dropout_prob=0.0),
    "naive": lambda: lgatr_case(naive_amp=True),
    "no blocks": lambda: lgatr_case(num_blocks=0),
    "conditional": lambda: conditional_case(),
    "conditional, full group": lambda: conditional_case({"subgroup": False}),
    "conditional, no scalars": lambda: conditional_case(NO_PRODUCT, scalars=False),
    "conditional, multi-query": lambda: conditional_case(
        attention={"multi_query": True}, crossattention={"multi_query": True, "head_scale": True}
    ),
    "conditional, checkpointed": lambda: conditional_case(checkpoint_blocks=True, norm_elementwise_affine=False),
}


def random_gains(net):
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "norm" in name or "head_scale" in name:
                parameter.uniform_(0.5, 1.5)


def run(net, inputs):
    """Outputs, gradients of inputs and of parameters of a fixed mixture of the outputs."""
    given = [None if x is None else x.clone().requires_grad_() for x in inputs]
    outputs = [out for out in net(*given) if out is not None and out.numel()]
    generator = torch.Generator().manual_seed(1)
    sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outputs).backward()
    gradients = [x.grad for x in given if x is not None and x.grad is not None]
    parameters = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return outputs, gradients, parameters


def assert_same(found, expected, tolerance=1e-12):
    for kind, ours_, theirs in zip(("output", "input gradient"), found, expected):
        assert len(ours_) == len(theirs)
        for a, b in zip(ours_, theirs):
            assert (a - b).abs().max() <= tolerance * b.abs().max(), kind
    assert set(found[2]) == set(expected[2])
    for name, b in expected[2].items():
        if b.numel():
            assert (found[2][name] - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())), name


def build(kind, arguments, primitives, implementation):
    name = implementation.removesuffix("-torch")
    return getattr(ours, kind)(**arguments, primitives={**primitives, "implementation": name})


def compare(net, inputs, implementation, expected):
    if implementation == "paired-torch":
        with native.disabled():
            return assert_same(run(net, inputs), expected)
    return assert_same(run(net, inputs), expected)


@pytest.mark.parametrize("case", CASES)
def test_against_the_package(case):
    lgatr = pytest.importorskip("lgatr")
    kind, arguments, primitives, inputs = CASES[case]()
    peer = getattr(lgatr, kind)(**arguments, primitives=primitives)
    random_gains(peer)
    expected = run(peer, inputs)
    for implementation in IMPLEMENTATIONS:
        net = build(kind, arguments, primitives, implementation)
        net.load_state_dict(peer.state_dict())
        compare(net, inputs, implementation, expected)
    back = getattr(lgatr, kind)(**arguments, primitives=primitives)
    back.load_state_dict(net.state_dict())  # and the way back
    assert [name for name, p in net.named_parameters() if not p.requires_grad] == [
        name for name, p in peer.named_parameters() if not p.requires_grad
    ]


@pytest.mark.parametrize("case", CASES)
def test_against_our_dense_form(case):
    kind, arguments, primitives, inputs = CASES[case]()
    dense = build(kind, arguments, primitives, "dense")
    random_gains(dense)
    expected = run(dense, inputs)
    for implementation in ("sparse", "paired", "paired-torch"):
        net = build(kind, arguments, primitives, implementation)
        net.load_state_dict(dense.state_dict())
        compare(net, inputs, implementation, expected)


def test_a_wrong_weight_is_noticed():
    """The broken twin: one number of one weight turned round must not pass."""
    kind, arguments, primitives, inputs = CASES["plain"]()
    dense, paired = (build(kind, arguments, primitives, name) for name in ("dense", "paired"))
    paired.load_state_dict(dense.state_dict())
    assert_same(run(paired, inputs), run(dense, inputs))
    with torch.no_grad():
        paired.blocks[0].mlp.layers[0].linear_left.weight[0, 0, 6].neg_()
    with pytest.raises(AssertionError):
        assert_same(run(paired, inputs), run(dense, inputs))


@lgatr_exact.needed
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_against_long_doubles(implementation):
    """An independent forward pass in 64-bit mantissas; the broken twin is a weight whose last digits are lost."""
    kind, arguments, primitives, (mv, s) = CASES["plain"]()
    net = build(kind, arguments, primitives, implementation)
    random_gains(net)
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    expected = lgatr_exact.network(weights, mv[0].numpy(), s[0].numpy(), heads=4)

    def error():
        with torch.no_grad(), native.disabled() if implementation == "paired-torch" else contextlib.nullcontext():
            return max(float(abs(a[0].numpy() - b).max() / abs(b).max()) for a, b in zip(net(mv, s), expected))

    assert error() < 1e-14
    with torch.no_grad():
        weight = net.blocks[1].mlp.layers[0].linear_out.weight
        weight.copy_(weight.float().double())
    assert error() > 1e-10


def slim_case(conditional=False, **more):
    arguments = {
        "num_blocks": 2, "in_v_channels": 2, "out_v_channels": 3, "hidden_v_channels": 8,
        "in_s_channels": 5, "out_s_channels": 4, "hidden_s_channels": 16, "num_heads": 4,
    }  # fmt: skip
    inputs = [torch.randn(B, N, 2, 4), torch.randn(B, N, 5)]
    if not conditional:
        return "LGATrSlim", {**arguments, **more}, inputs
    arguments |= {"v_channels_cond": 3, "s_channels_cond": 6}
    inputs = [inputs[0], torch.randn(B, M, 3, 4), inputs[1], torch.randn(B, M, 6)]
    return "ConditionalLGATrSlim", {**arguments, **more}, inputs


SLIM_CASES = {
    "plain": {},
    "no vectors out": {"out_v_channels": 0},
    "no scalars out": {"out_s_channels": 0},
    "relu both": {"nonlinearity": "relu", "nonlinearity_v": None},
    "tanh": {"nonlinearity": "tanh", "nonlinearity_v": "silu"},
    "three layers": {"num_layers_mlp": 3, "mlp_ratio": 3},
    "attention ratio": {"attn_ratio": 2},
    "heads beyond channels": {"num_heads": 16},
    "no gains": {"norm_elementwise_affine": False},
    "checkpointed": {"checkpoint_blocks": True},
    "dropout of nothing": {"dropout_prob": 0.0},
    "no blocks": {"num_blocks": 0},
}


@pytest.mark.parametrize("conditional", [False, True], ids=["slim", "conditional slim"])
@pytest.mark.parametrize("case", SLIM_CASES)
def test_slim_against_the_package(case, conditional):
    lgatr = pytest.importorskip("lgatr")
    kind, arguments, inputs = slim_case(conditional, **SLIM_CASES[case])
    peer, net = (getattr(code, kind)(**arguments) for code in (lgatr, ours))
    random_gains(peer)
    net.load_state_dict(peer.state_dict())
    expected = run(peer, inputs)
    assert_same(run(net, inputs), expected)
    with native.disabled():
        net.zero_grad()
        assert_same(run(net, inputs), expected)
    peer.load_state_dict(net.state_dict())
    frozen = [[name for name, p in n.named_parameters() if not p.requires_grad] for n in (net, peer)]
    assert frozen[0] == frozen[1]


@pytest.mark.parametrize("conditional", [False, True], ids=["slim", "conditional slim"])
@pytest.mark.parametrize("case", SLIM_CASES)
def test_slim_native_is_slim_torch(case, conditional):
    kind, arguments, inputs = slim_case(conditional, **SLIM_CASES[case])
    net = getattr(ours, kind)(**arguments)
    random_gains(net)
    found = run(net, inputs)
    net.zero_grad()
    with native.disabled():
        assert_same(found, run(net, inputs))


def test_seed_decides_the_weights():
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        kind, arguments, primitives, _ = CASES["plain"]()
        torch.manual_seed(seed)
        nets.append(build(kind, arguments, primitives, "paired"))
    same = [torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[1].parameters())]
    assert all(same)
    other = [torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[2].parameters()) if a.dim() > 1]
    assert not all(other)


def test_initial_weights_have_the_package_s_spread():
    lgatr = pytest.importorskip("lgatr")
    kind, arguments, primitives, _ = lgatr_case(hidden_mv_channels=32)
    mine = build(kind, arguments, primitives, "paired")
    theirs = dict(getattr(lgatr, kind)(**arguments, primitives=primitives).named_parameters())
    for name, parameter in mine.named_parameters():
        if parameter.numel() < 400:
            continue
        mine_, other = parameter.detach(), theirs[name].detach()
        assert abs(float(mine_.std() / other.std()) - 1) < 0.15, name
        assert abs(float(mine_.mean() - other.mean())) < 0.15 * float(other.abs().max()), name
