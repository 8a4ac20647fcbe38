"""Every argument of every constructor changes something that can be seen; an argument without a pair here is a failure.

What is seen: names, shapes and wants of the parameters, outputs in evaluation, in training and under autocast, which
functions run and how often, and how `torch.compile` is called.
"""

import contextlib
import dataclasses
import inspect
from collections import Counter

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

import impl.lgatr as ours  # noqa: E402
from impl.lgatr import embed, layers, native, primitives, rows, slim  # noqa: E402
from impl.lgatr.primitives import PrimitivesConfig  # noqa: E402

SIZES = {
    "num_blocks": 1, "in_mv_channels": 2, "out_mv_channels": 1, "hidden_mv_channels": 4,
    "in_s_channels": 2, "out_s_channels": 1, "hidden_s_channels": 8, "attention": {"num_heads": 2}, "mlp": {},
}  # fmt: skip
CONDITION = {"mv_channels_cond": 2, "s_channels_cond": 3, "crossattention": {"num_heads": 2}}
SLIM = {
    "num_blocks": 1, "in_v_channels": 2, "out_v_channels": 1, "hidden_v_channels": 4,
    "in_s_channels": 2, "out_s_channels": 1, "hidden_s_channels": 8, "num_heads": 2,
}  # fmt: skip
SLIM_CONDITION = {"v_channels_cond": 2, "s_channels_cond": 3}
BASE = {
    "LGATr": SIZES,
    "ConditionalLGATr": {**SIZES, **CONDITION},
    "LGATrSlim": SLIM,
    "ConditionalLGATrSlim": {**SLIM, **SLIM_CONDITION},
}

#: argument -> another value of it; or two sets of arguments where it matters only beside another one
COMPILED = {"compile": True}
COMMON = {
    "num_blocks": 2, "in_s_channels": 3, "out_s_channels": 2, "hidden_s_channels": 12, "dropout_prob": 0.5,
    "norm_elementwise_affine": False, "checkpoint_blocks": True, "naive_amp": True, "compile": True,
    "compile_kwargs": (COMPILED, {**COMPILED, "compile_kwargs": {"dynamic": True}}),
    "activation_memory_budget": (COMPILED, {**COMPILED, "activation_memory_budget": 0.5}),
}  # fmt: skip
FULL = {
    **COMMON, "in_mv_channels": 3, "out_mv_channels": 2, "hidden_mv_channels": 6, "attention": {"num_heads": 1},
    "mlp": {"mlp_ratio": 2}, "primitives": {"subgroup": False},
}  # fmt: skip
VECTORS = {
    **COMMON, "in_v_channels": 3, "out_v_channels": 2, "hidden_v_channels": 6, "num_heads": 1, "nonlinearity": "relu",
    "nonlinearity_v": "tanh", "mlp_ratio": 3, "attn_ratio": 2, "num_layers_mlp": 3,
}  # fmt: skip
OTHER = {
    "LGATr": {**FULL, "reinsert_mv_channels": (1,), "reinsert_s_channels": (1,)},
    "ConditionalLGATr": {
        **FULL, "mv_channels_cond": 3, "s_channels_cond": 4, "crossattention": {"num_heads": 2, "multi_query": True},
    },
    "LGATrSlim": {**VECTORS, "lightcone": True},
    "ConditionalLGATrSlim": {**VECTORS, "v_channels_cond": 3, "s_channels_cond": 4},
}  # fmt: skip


def nested(where, key, value, **beside):
    """A pair that differs in one field of a configuration."""
    base = {**SIZES, **CONDITION}.get(where) or {}
    return {where: {**base, **beside}}, {where: {**base, **beside, key: value}}


ATTENTION = {"num_heads": 1, "multi_query": True, "attn_ratio": 2, "head_scale": True}
MLP = {"nonlinearity": "relu", "mlp_ratio": 2, "num_layers_mlp": 3}
MIXED = {"implementation": "mixed"}
#: configuration -> (network, argument, fields of the user with another value)
CONFIGURATIONS = {
    layers.SelfAttentionConfig: ("LGATr", "attention", ATTENTION),
    layers.CrossAttentionConfig: ("ConditionalLGATr", "crossattention", ATTENTION),
    layers.MLPConfig: ("LGATr", "mlp", MLP),
    PrimitivesConfig: ("LGATr", "primitives", {
        "subgroup": False, "bivector": False, "geometric_product": False, "implementation": "dense",
        "sparse_gp": nested("primitives", "sparse_gp", False, **MIXED),
        "sparse_linear": nested("primitives", "sparse_linear", True, **MIXED),
    }),
}  # fmt: skip
#: fields that the network fills in; what each does is seen on the layer
FILLED = {
    layers.SelfAttentionConfig: {
        "in_mv_channels": 6, "out_mv_channels": 2, "in_s_channels": 12, "out_s_channels": 3, "output_init": "small",
        "additional_qk_mv_channels": 1, "additional_qk_s_channels": 1, "dropout_prob": 0.5,
    },
    layers.CrossAttentionConfig: {
        "q_mv_channels": 6, "kv_mv_channels": 5, "out_mv_channels": 2, "q_s_channels": 12, "kv_s_channels": 3,
        "out_s_channels": 3, "output_init": "small", "dropout_prob": 0.5,
    },
    layers.MLPConfig: {"mv_channels": 6, "s_channels": 12, "dropout_prob": 0.5},
}  # fmt: skip


def watched():
    """Functions whose calls are counted."""
    for name in ("_linear_dense", "_linear_sparse", "_product_dense", "_product_sparse"):
        yield primitives, name
    yield from ((rows, "linear"), (native, "mlp"), (native, "attention"), (native, "slim_mlp"))
    for block in (layers.LGATrBlock, layers.ConditionalLGATrBlock):
        yield block, "rows"
    yield from ((slim.SlimBlock, "rows"), (slim.SlimBlock, "forward"), (slim.ConditionalSlimBlock, "forward"))


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def inputs(kind, arguments):
    vectors, size = ("v", 4) if "Slim" in kind else ("mv", 16)
    given = [drawn(2, 5, arguments[f"in_{vectors}_channels"], size), drawn(2, 5, arguments["in_s_channels"])]
    if kind.startswith("Conditional"):
        given.insert(1, drawn(2, 3, arguments[f"{vectors}_channels_cond"], size))
        given.append(drawn(2, 3, arguments["s_channels_cond"]))
    return given


@pytest.fixture
def observe(monkeypatch):
    """A function (network, arguments) -> everything that is seen of it."""
    calls = Counter()
    for owner, name in watched():
        original = getattr(owner, name)

        def counted(*args, _original=original, _name=f"{owner.__name__}.{name}", **kwargs):
            calls[_name] += 1
            return _original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    def compile(function, **kwargs):
        import torch._functorch.config as functorch

        def compiled(*args, **more):
            calls[f"compiled {kwargs} {functorch.activation_memory_budget}"] += 1
            return function(*args, **more)

        return compiled

    monkeypatch.setattr(torch, "compile", compile)

    def run(net, given):
        outputs = []
        for low in (False, True):
            if low:
                net, given = net.float(), [x.float() for x in given]
            for training in (False, True):
                torch.manual_seed(1)
                with torch.autocast("cpu", enabled=True) if low else contextlib.nullcontext():
                    made = net.train(training)(*given)
                outputs += [part.double() for part in made if part is not None]
                if training and not low:
                    sum(part.sum() for part in outputs[-1:]).backward()
        return outputs

    def look(make, given):
        calls.clear()
        torch.manual_seed(3)
        net = make()
        parameters = {name: (tuple(p.shape), p.requires_grad) for name, p in net.named_parameters()}
        return parameters, run(net, given), dict(calls)

    return look


def differ(a, b):
    """Whether two observations are told apart."""
    if a[0] != b[0] or a[2] != b[2] or len(a[1]) != len(b[1]):
        return True
    return not all(x.shape == y.shape and torch.allclose(x, y, rtol=1e-9, atol=1e-9) for x, y in zip(a[1], b[1]))


def network(kind, changes):
    arguments = {**BASE[kind], **changes}
    return lambda: getattr(ours, kind)(**arguments), inputs(kind, arguments)


def pair_of(key, value):
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, dict) for part in value):
        return value
    return {}, {key: value}


def arguments_of(function):
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.parametrize("kind", BASE)
def test_every_argument_of_a_network(kind, observe):
    assert arguments_of(getattr(ours, kind).__init__) == set(OTHER[kind])
    plain = observe(*network(kind, {}))
    assert not differ(plain, observe(*network(kind, {})))  # or the rest would say nothing
    silent = []
    for key, value in OTHER[kind].items():
        one, other = pair_of(key, value)
        a = plain if not one else observe(*network(kind, one))
        if not differ(a, observe(*network(kind, other))):
            silent.append(key)
    assert silent == []


def test_an_option_that_does_nothing_is_found(observe, monkeypatch):
    """The broken twin: a network that forgets its dropout, and one that forgets to compile."""
    monkeypatch.setattr(slim.SlimDropout, "active", False)
    monkeypatch.setattr("impl.lgatr.nets.compile_forward", lambda *args: None)
    base = observe(*network("LGATrSlim", {"dropout_prob": 0.1}))
    assert not differ(base, observe(*network("LGATrSlim", {"dropout_prob": 0.5})))
    assert not differ(observe(*network("LGATrSlim", {})), observe(*network("LGATrSlim", COMPILED)))


@pytest.mark.parametrize("kind", CONFIGURATIONS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_configuration(kind, observe):
    net, argument, others = CONFIGURATIONS[kind]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == set(others) | set(FILLED.get(kind, {}))
    silent = []
    for key, value in others.items():
        one, other = value if isinstance(value, tuple) else nested(argument, key, value)
        if not differ(observe(*network(net, one)), observe(*network(net, other))):
            silent.append(key)
    assert silent == []


class _Layer(torch.nn.Module):
    """A layer between the inputs of its configuration and its outputs."""

    def __init__(self, inner, order):
        super().__init__()
        self.inner, self.order = inner, order

    def forward(self, *given):
        return self.inner(*(given[i] for i in self.order))


def layer(kind, changes):
    def made(sizes):
        return kind(**{**sizes, **changes}), PrimitivesConfig(implementation="dense")

    if kind is layers.MLPConfig:
        config, maps = made({"mv_channels": 4, "s_channels": 8})
        given = [drawn(5, config.mv_channels, 16), drawn(5, config.s_channels)]
        return lambda: _Layer(layers.GeoMLP(config, maps), (0, 1)), given
    if kind is layers.CrossAttentionConfig:
        sizes = {"q_mv_channels": 4, "kv_mv_channels": 3, "out_mv_channels": 4, "q_s_channels": 8, "kv_s_channels": 2}
        config, maps = made({**sizes, "out_s_channels": 8, "num_heads": 2})
        given = [drawn(5, config.q_mv_channels, 16), drawn(3, config.kv_mv_channels, 16)]
        given += [drawn(5, config.q_s_channels), drawn(3, config.kv_s_channels)]
        return lambda: _Layer(layers.CrossAttention(config, maps), (0, 1, 2, 3)), given
    sizes = {"in_mv_channels": 4, "out_mv_channels": 4, "in_s_channels": 8, "out_s_channels": 8, "num_heads": 2}
    config, maps = made(sizes)
    given, order = [drawn(5, config.in_mv_channels, 16), drawn(5, config.in_s_channels)], (0, 1)
    if config.additional_qk_mv_channels or config.additional_qk_s_channels:
        given += [drawn(5, config.additional_qk_mv_channels, 16), drawn(5, config.additional_qk_s_channels)]
        order = (0, 1, 2, 3)
    return lambda: _Layer(layers.SelfAttention(config, maps), order), given


@pytest.mark.parametrize("kind", FILLED, ids=lambda kind: kind.__name__)
def test_every_field_that_the_network_fills_in(kind, observe):
    plain = observe(*layer(kind, {}))
    assert not differ(plain, observe(*layer(kind, {})))
    silent = [key for key, value in FILLED[kind].items() if not differ(plain, observe(*layer(kind, {key: value})))]
    assert silent == []


DENSE = PrimitivesConfig(implementation="dense")
#: layer -> (arguments, other values)
LAYERS = {
    layers.EquiLinear: (
        {"in_mv_channels": 2, "out_mv_channels": 3, "primitives": DENSE, "in_s_channels": 4, "out_s_channels": 2},
        {"in_mv_channels": 3, "out_mv_channels": 4, "primitives": PrimitivesConfig(subgroup=False), "bias": False,
         "in_s_channels": 5, "out_s_channels": 3, "initialization": "small"},
    ),
    layers.EquiLayerNorm: (
        {},
        {"mv_channels": ({"elementwise_affine": True, "mv_channels": 2, "s_channels": 4},
                         {"elementwise_affine": True, "mv_channels": 1, "s_channels": 4}),
         "s_channels": ({"elementwise_affine": True, "mv_channels": 2, "s_channels": 4},
                        {"elementwise_affine": True, "mv_channels": 2, "s_channels": 1}),
         "mv_channel_dim": -3, "epsilon": 1e3, "gain": 2.0,
         "elementwise_affine": ({"mv_channels": 2, "s_channels": 4},
                                {"mv_channels": 2, "s_channels": 4, "elementwise_affine": True})},
    ),
    layers.ScalarGatedNonlinearity: ({}, {"nonlinearity": "relu"}),
    layers.GradeDropout: ({"p": 0.1}, {"p": 0.6}),
    layers.GeometricBilinear: (
        {"in_mv_channels": 2, "out_mv_channels": 3, "primitives": DENSE, "in_s_channels": 4, "out_s_channels": 2},
        {"in_mv_channels": 3, "out_mv_channels": 4, "primitives": PrimitivesConfig(bivector=False),
         "hidden_mv_channels": 5, "in_s_channels": 5, "out_s_channels": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_every_argument_of_a_layer(kind, observe):
    base, others = LAYERS[kind]
    assert arguments_of(kind.__init__) == set(others)

    def seen(changes):
        arguments = {**base, **changes}
        given = [drawn(5, arguments.get("in_mv_channels", 2), 16), drawn(5, arguments.get("in_s_channels", 4))]
        if not any(True for _ in kind(**arguments).parameters()):
            given[0].requires_grad_()
            given[1].requires_grad_()
        return observe(lambda: _Layer(kind(**arguments), (0, 1)), given)

    silent = [key for key, value in others.items() if not differ(*(seen(part) for part in pair_of(key, value)))]
    assert silent == []


def test_every_argument_of_the_spurions():
    def seen(**changes):
        made = embed.get_spurions(**{"beam_spurion": "lightlike", **changes})
        numbers = "none" if made.device.type == "meta" else made.double().tolist()
        return tuple(made.shape), str(made.device), str(made.dtype), str(numbers)

    others = {"beam_spurion": "timelike", "add_time_spurion": False, "beam_mirror": False, "device": "meta",
              "dtype": torch.float64}  # fmt: skip
    assert arguments_of(embed.get_spurions) == set(others)
    assert [key for key, value in others.items() if seen(**{key: value}) == seen()] == []
