"""Every option changes something that can be seen, and says what is wrong with a value that cannot be."""

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

import impl.lgatr as ours  # noqa: E402
from impl.lgatr import attention, embed, layers, native, nets, primitives, rows  # noqa: E402
from impl.lgatr.primitives import PrimitivesConfig  # noqa: E402

SIZES = {
    "num_blocks": 1, "in_mv_channels": 1, "out_mv_channels": 1, "hidden_mv_channels": 4,
    "in_s_channels": 2, "out_s_channels": 1, "hidden_s_channels": 8, "attention": {"num_heads": 2}, "mlp": {},
}  # fmt: skip
SLIM = {
    "num_blocks": 1, "in_v_channels": 1, "out_v_channels": 1, "hidden_v_channels": 4,
    "in_s_channels": 2, "out_s_channels": 1, "hidden_s_channels": 8, "num_heads": 2,
}  # fmt: skip


def net_of(kind="LGATr", **changes):
    torch.manual_seed(1)
    net = getattr(ours, kind)(**{**(SLIM if "Slim" in kind else SIZES), **changes})
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "norm" in name or "head_scale" in name:
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return net


def inputs(kind="LGATr"):
    generator = torch.Generator().manual_seed(2)
    size = 4 if "Slim" in kind else 16
    return torch.randn(2, 5, 1, size, generator=generator), torch.randn(2, 5, 2, generator=generator)


def names(net):
    return {name: tuple(p.shape) for name, p in net.named_parameters()}


@pytest.mark.parametrize(
    "changes",
    [
        {"primitives": {"subgroup": False}},
        {"primitives": {"geometric_product": False}},
        {"attention": {"num_heads": 2, "multi_query": True}},
        {"attention": {"num_heads": 2, "head_scale": True}},
        {"attention": {"num_heads": 2, "attn_ratio": 2}},
        {"mlp": {"mlp_ratio": 2}},
        {"mlp": {"num_layers_mlp": 3}},
        {"reinsert_mv_channels": (0,)},
        {"reinsert_s_channels": (1,)},
        {"norm_elementwise_affine": False},
        {"num_blocks": 2},
    ],
    ids=str,
)
def test_options_that_change_the_parameters(changes):
    net = net_of(**changes)
    assert names(net) != names(net_of())
    assert all(torch.isfinite(part).all() for part in net(*inputs()))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": {"num_heads": 1}},
        {"primitives": {"bivector": False}},
        {"mlp": {"nonlinearity": "relu"}},
        {"mlp": {"nonlinearity": "silu"}},
    ],
    ids=str,
)
def test_options_that_change_the_outputs(changes):
    net, plain = net_of(**changes), net_of()
    net.load_state_dict(plain.state_dict())
    assert not torch.allclose(net(*inputs())[0], plain(*inputs())[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"nonlinearity": "relu"}, {"nonlinearity_v": "tanh"}, {"nonlinearity_v": None}, {"mlp_ratio": 3},
        {"attn_ratio": 2}, {"num_layers_mlp": 3}, {"num_heads": 1}, {"norm_elementwise_affine": False},
    ],
    ids=str,
)  # fmt: skip
def test_slim_options(changes):
    net, plain = net_of("LGATrSlim", **changes), net_of("LGATrSlim")
    if names(net) == names(plain):
        net.load_state_dict(plain.state_dict())
        streams = zip(net(*inputs("LGATrSlim")), plain(*inputs("LGATrSlim")))
        assert not all(torch.allclose(a, b) for a, b in streams)


def test_reinserted_channels_are_seen():
    net = net_of(num_blocks=1, reinsert_s_channels=(1,))
    with torch.no_grad():
        for parameter in net.linear_in.parameters():
            parameter.zero_()  # nothing but the reinserted channel comes through
    mv, s = inputs()
    other = s.clone()
    other[..., 1] += torch.arange(5.0)
    assert not torch.allclose(net(mv, s)[1], net(mv, other)[1])
    with pytest.raises(ValueError, match="scalar"):
        net(mv, None)


@pytest.mark.parametrize(("kind", "implementation"), [("LGATr", "paired"), ("LGATr", "dense"), ("LGATrSlim", None)])
def test_dropout_only_in_training(kind, implementation):
    changes = {"primitives": {"implementation": implementation}} if kind == "LGATr" else {}
    net = net_of(kind, dropout_prob=0.5, **changes)
    plain = net_of(kind, **changes)
    renamed = dict(zip(net.state_dict(), plain.state_dict().values()))
    net.load_state_dict(renamed)
    arguments = inputs(kind)
    net.eval()
    assert torch.equal(net(*arguments)[0], plain(*arguments)[0])
    net.train()
    first, second = net(*arguments)[0], net(*arguments)[0]
    assert not torch.allclose(first, second)


def test_dropout_takes_whole_grades_and_keeps_the_mean():
    mv = torch.ones(4000, 2, 16)
    for dropped in (primitives.grade_dropout(mv, 0.25), rows.unpack(rows.dropout(rows.pack(mv, None), 2, 0.25), 2)[0]):
        for part in [slice(0, 1), slice(1, 5), slice(5, 11), slice(11, 15), slice(15, 16)]:
            values = dropped[..., part]
            assert torch.equal(values.amin(-1), values.amax(-1))
        assert set(dropped.unique().tolist()) == {0.0, 1 / 0.75}
        assert abs(dropped.mean() - 1) < 0.02
    assert primitives.grade_dropout(mv, 0.25, training=False) is mv


@pytest.mark.parametrize("kind", ["LGATr", "LGATrSlim"])
def test_checkpointed_blocks_are_computed_again(kind, monkeypatch):
    calls = []
    plain, net = net_of(kind), net_of(kind, checkpoint_blocks=True)
    block = net.blocks[0]
    name = "rows" if kind == "LGATr" or native.available() else "forward"
    original = getattr(block, name)
    monkeypatch.setattr(block, name, lambda *a, **k: calls.append(1) or original(*a, **k))
    sum(part.sum() for part in net(*inputs(kind))).backward()
    sum(part.sum() for part in plain(*inputs(kind))).backward()
    assert len(calls) == 2
    for a, b in zip(net.parameters(), plain.parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-13)


def test_compile_arguments_arrive_as_they_are(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda function, **kwargs: seen.append(kwargs) or function)
    for kind in ("LGATr", "LGATrSlim"):
        net_of(kind, compile=True, compile_kwargs={"dynamic": True, "mode": "default"})
        net_of(kind, compile=True)
        net_of(kind)
    assert seen == [{"dynamic": True, "mode": "default"}, {}] * 2


def test_activation_memory_budget_holds_during_the_call_only(monkeypatch):
    import torch._functorch.config as config

    before = config.activation_memory_budget
    seen = []
    monkeypatch.setattr(
        torch, "compile", lambda function: lambda *a: seen.append(config.activation_memory_budget) or function(*a)
    )
    net = net_of(compile=True, activation_memory_budget=0.5)
    net(*inputs())
    assert seen == [0.5]
    assert config.activation_memory_budget == before


def test_old_torch_is_told_at_construction(monkeypatch):
    monkeypatch.delattr(torch, "compile")
    with pytest.raises(ValueError, match=r"torch 2\.0 or newer"):
        net_of(compile=True)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize(
    ("kind", "implementation"),
    [("LGATr", "paired"), ("LGATrSlim", None), pytest.param("LGATr", "dense", marks=pytest.mark.slow)],
)
def test_compiled_is_eager_with_gradients(kind, implementation):
    """Traced and differentiated ahead of time, without a C++ compiler; the slow test uses one."""
    changes = {"primitives": {"implementation": implementation}} if kind == "LGATr" else {}
    plain = net_of(kind, **changes)
    net = net_of(kind, **changes, compile=True, compile_kwargs={"backend": "aot_eager"})
    net.load_state_dict(plain.state_dict())
    found, expected = ([*n(*inputs(kind))] for n in (net, plain))
    for a, b in zip(found, expected):
        assert torch.allclose(a, b, atol=1e-12)
    for parts in (found, expected):
        sum(part.square().sum() for part in parts).backward()
    for a, b in zip(net.parameters(), plain.parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LGATr", "LGATrSlim"])
def test_compiled_by_inductor_is_eager(kind):
    changes = {"primitives": {"implementation": "sparse"}} if kind == "LGATr" else {}
    plain = net_of(kind, **changes)
    net = net_of(kind, **changes, compile=True)
    for n in (net, plain):
        sum(part.square().sum() for part in n(*inputs(kind))).backward()
    for a, b in zip(net.parameters(), plain.parameters()):
        assert (a.grad - b.grad).abs().max() <= 1e-5 * max(1.0, float(b.grad.abs().max()))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_lengths_do_not_compile_again():
    compiled = []

    def backend(graph, example):
        compiled.append(1)
        return graph

    net = net_of(compile=True, compile_kwargs={"backend": backend, "dynamic": True})
    with torch.no_grad():
        for items in (5, 7, 9, 12):
            mv, s = torch.randn(2, items, 1, 16), torch.randn(2, items, 2)
            net(mv, s)
    once = len(compiled)
    with torch.no_grad():
        for items in (6, 8, 13):
            net(torch.randn(2, items, 1, 16), torch.randn(2, items, 2))
    assert len(compiled) == once


# ------------------------------------------------------------------------------------------------ configuration


def test_implementations_and_keys():
    assert PrimitivesConfig().implementation == "paired"
    mixed = PrimitivesConfig(sparse_linear=True)
    assert (mixed.implementation, mixed.sparse_linear, mixed.sparse_gp) == ("mixed", True, True)
    dense, sparse = PrimitivesConfig(implementation="dense"), PrimitivesConfig(implementation="sparse")
    assert (dense.sparse_linear, dense.sparse_gp, sparse.sparse_linear, sparse.sparse_gp) == (False, False, True, True)
    with pytest.raises(ValueError, match="mixed"):
        PrimitivesConfig(implementation="dense", sparse_gp=True)
    with pytest.raises(ValueError, match="paired, dense, sparse, mixed"):
        PrimitivesConfig(implementation="fast")


def test_the_implementation_decides_what_runs(monkeypatch):
    seen = []
    for module, name in (
        (primitives, "_linear_dense"), (primitives, "_linear_sparse"), (primitives, "_product_dense"),
        (primitives, "_product_sparse"), (rows, "linear"), (native, "mlp"),
    ):  # fmt: skip
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, n=name, f=original, **k: seen.append(n) or f(*a, **k))
    expected = {
        "dense": {"_linear_dense", "_product_dense"},
        "sparse": {"_linear_sparse", "_product_sparse"},
        "mixed": {"_linear_dense", "_product_sparse"},
        "paired": {"mlp"} if native.available() else {"linear"},
    }
    for name, calls in expected.items():
        seen.clear()
        net_of(primitives={"implementation": name})(*inputs())
        assert set(seen) == calls
    seen.clear()
    with native.disabled():
        net_of()(*inputs())
    assert set(seen) == {"linear"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: net_of(attention={"heads": 2}), "num_heads"),
        (lambda: net_of(attention=3), "mapping"),
        (lambda: net_of(mlp={"num_layers_mlp": 0}), "at least 1"),
        (lambda: net_of(mlp={"nonlinearity": "sin"}), "silu"),
        (lambda: net_of("LGATrSlim", num_layers_mlp=1), "at least 2"),
        (lambda: net_of()(inputs()[0], None), "2 scalar channels"),
        (lambda: net_of("LGATrSlim")(inputs("LGATrSlim")[0], None), "scalars"),
        (lambda: net_of("LGATrSlim")(inputs("LGATrSlim")[0], torch.zeros(2, 5, 0)), "scalars"),
        (lambda: layers.EquiLinear(1, 1, PrimitivesConfig(), initialization="huge"), "almost_unit_scalar"),
        (lambda: net_of()(*inputs(), backend="magic"), "ragged"),
        (lambda: net_of()(*inputs(), backend="flash"), "GPU"),
        (lambda: net_of()(*inputs(), cu_seq_q=torch.zeros(1)), "GPU"),
        (lambda: embed.embed_vector(torch.zeros(3)), "4 numbers"),
        (lambda: embed.get_spurions("sideways"), "lightlike"),
    ],
)
def test_bad_values_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_unit_initialization_needs_scalars():
    with pytest.raises(NotImplementedError, match="scalar"):
        layers.EquiLinear(2, 2, PrimitivesConfig(), initialization="unit_scalar")


@pytest.mark.parametrize(("name", "mean", "variance"), [
    ("default", 0.0, 1 / 3), ("small", 0.0, 0.01 / 3), ("unit_scalar", 1.0, 0.01 / 3),
    ("almost_unit_scalar", 1.0, 0.25 / 3),
])  # fmt: skip
def test_initializations_keep_their_scale(name, mean, variance):
    layer = layers.EquiLinear(128, 64, PrimitivesConfig(implementation="dense"), 32, 16, initialization=name)
    out, _ = layer(torch.randn(50, 128, 16), torch.randn(50, 32))
    assert abs(out[..., [0, 15]].mean() - mean) < 0.1
    middle = out[..., 1:15].var()
    assert variance / 3 < middle < variance * 3


def test_layer_norm_floor_and_strides():
    norm = layers.EquiLayerNorm()
    big = torch.randn(7, 5, 16)
    out, _ = norm(big)
    assert torch.allclose(primitives.abs_squared_norm(out).mean(-2), torch.ones(7, 1))
    tiny = big * 1e-6
    assert torch.allclose(norm(tiny)[0], tiny * 10)  # 1 / √0.01
    strided = torch.randn(16, 5, 7).permute(2, 1, 0)
    assert torch.equal(norm(strided)[0], norm(strided.contiguous())[0])
    assert torch.allclose(layers.EquiLayerNorm(gain=2.0)(big)[0], 2 * out)
    wide = layers.EquiLayerNorm(epsilon=1e6)(big)[0]
    assert torch.allclose(wide, big * 1e-3)
    along_items, _ = layers.EquiLayerNorm(mv_channel_dim=-3)(big)
    assert torch.allclose(primitives.abs_squared_norm(along_items).mean(-3), torch.ones(5, 1))
    with native.disabled():
        x = rows.pack(big, None)
        expected = rows.pack(*layers.EquiLayerNorm(gain=2.0)(big))
        assert torch.allclose(layers.EquiLayerNorm(gain=2.0).rows(x, 5), expected)


def cost(function, *given):
    """Calls that torch makes in one evaluation, and bytes that it allocates for them."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        function(*given)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            function(*given)
    events = seen.events()
    return len(events), sum(max(event.self_cpu_memory_usage, 0) for event in seen.key_averages())


def strided_costs(function, items):
    mv = torch.randn(items, 5, 16)
    strided = mv.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not strided.is_contiguous()
    return cost(function, mv), cost(function, strided)


def function_of(layer, implementation):
    config = PrimitivesConfig(implementation=implementation)
    if layer == "linear":
        linear = layers.EquiLinear(5, 4, config, 3, 2)
        return lambda mv: linear(mv, torch.ones(len(mv), 3))
    if layer == "product":
        return lambda mv: primitives.geometric_product(mv, mv, config)
    return layers.EquiLayerNorm() if layer == "norm" else layers.ScalarGatedNonlinearity()


@pytest.mark.parametrize(("layer", "implementation"), [
    ("linear", "dense"), ("linear", "sparse"), ("linear", "paired"), ("product", "dense"), ("product", "sparse"),
    ("norm", "dense"), ("gate", "dense"),
])  # fmt: skip
def test_strided_inputs_cost_at_most_twice_as_much(layer, implementation):
    """Not by the clock: no more calls for more items, and at most twice the calls and the memory of contiguous ones."""
    function = function_of(layer, implementation)
    few, many = strided_costs(function, 7), strided_costs(function, 70)
    assert few[1][0] == many[1][0]
    for contiguous, strided in (few, many):
        assert strided[0] <= 2 * contiguous[0]
        assert strided[1] <= 2 * contiguous[1]


def test_a_call_an_item_would_be_noticed():
    """The broken twin: squares times a mask of the grades, which torch multiplies item by item when strided."""
    mask = torch.randn(16, 5)
    few, many = (strided_costs(lambda mv: (mv * mv) @ mask, items)[1][0] for items in (7, 70))
    assert many > few + 7


# ------------------------------------------------------------------------------------------------ embedding


def test_embedding_and_back():
    for size, there, back in (
        (1, embed.embed_scalar, embed.extract_scalar),
        (4, embed.embed_vector, embed.extract_vector),
        (6, embed.embed_bivector, embed.extract_bivector),
        (4, embed.embed_axialvector, embed.extract_axialvector),
        (1, embed.embed_pseudoscalar, embed.extract_pseudoscalar),
    ):
        x = torch.randn(3, 2, size)
        mv = there(x)
        assert mv.shape == (3, 2, 16)
        assert torch.equal(back(mv), x)
        assert int((mv != 0).sum()) == x.numel()
    axial = embed.embed_axialvector(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert axial[11:15].tolist() == [4.0, 3.0, 2.0, 1.0]


def test_spurions():
    plane = embed.get_spurions()
    assert plane.shape == (2, 16)
    assert plane[0].nonzero().flatten().tolist() == [8]
    assert plane[1].nonzero().flatten().tolist() == [1]
    light = embed.get_spurions("lightlike", add_time_spurion=False)
    assert embed.extract_vector(light).tolist() == [[1, 0, 0, 1], [1, 0, 0, -1]]
    heavy = embed.get_spurions("timelike", False, beam_mirror=False, dtype=torch.float64)
    assert torch.allclose(primitives.inner_product(heavy, heavy), torch.ones(1, 1))
    assert embed.extract_vector(embed.get_spurions("spacelike", False)).tolist() == [[0, 0, 0, 1], [0, 0, 0, -1]]
    assert embed.get_spurions(None, False).shape == (0, 16)
    for beam in ("lightlike", "timelike", "spacelike", "xyplane", None):
        for time in (True, False):
            for mirror in (True, False):
                assert embed.get_num_spurions(beam, time, mirror) == len(embed.get_spurions(beam, time, mirror))
    mv = embed.jets(torch.randn(3, 5, 4), embed.get_spurions("lightlike", dtype=torch.float64))
    assert mv.shape == (3, 5, 4, 16)


def test_spurions_are_the_package_s():
    lgatr = pytest.importorskip("lgatr")
    for beam in ("lightlike", "timelike", "spacelike", "xyplane", None):
        for time in (True, False):
            for mirror in (True, False):
                theirs = lgatr.get_spurions(beam, time, mirror, dtype=torch.float64)
                assert torch.allclose(embed.get_spurions(beam, time, mirror, dtype=torch.float64), theirs)


# ------------------------------------------------------------------------------------------------ attention


def test_keyword_arguments_choose_the_backend():
    assert attention.choose() == "torch"
    assert attention.choose(attn_mask=1) == "torch"
    assert attention.choose(lengths=[1]) == "ragged"
    assert attention.choose(cu_seq_q=1) == "varlen"
    assert attention.choose(attn_bias=1) == "xformers"
    assert attention.choose(block_mask=1) == "flex"
    assert attention.choose(cu_seqlens_q=1) == "flash"
    assert attention.choose(backend="native") == "torch"


def test_what_the_fused_kernel_may_take():
    taken = ({}, {"backend": "torch"}, {"lengths": [1]}, {"lengths": [1], "backend": "ragged"})
    assert all(attention.plain(k) for k in taken)
    refused = ({"attn_mask": 1}, {"backend": "ragged"}, {"lengths": [1], "backend": "torch"}, {"backend": "flex"})
    assert not any(attention.plain(k) for k in refused)


def test_ragged_attention_is_attention_in_each_set():
    lengths, lengths_k = [3, 0, 5, 3], [2, 4, 1, 2]
    q, k, v = torch.randn(2, 11, 6), torch.randn(2, 9, 6), torch.randn(2, 9, 6)
    found = attention.scaled_dot_product_attention(q, k, v, lengths=lengths, lengths_k=lengths_k)
    start = start_k = 0
    for n, m in zip(lengths, lengths_k):
        part = torch.softmax(q[:, start : start + n] @ k[:, start_k : start_k + m].mT / 6**0.5, -1)
        expected = part @ v[:, start_k : start_k + m]
        assert torch.allclose(found[:, start : start + n], expected, atol=1e-12)
        start, start_k = start + n, start_k + m
    assert attention.buckets([3, 0, 5, 3]) == {3: [0, 3], 5: [2]}


def test_masks_reach_attention():
    net, (mv, s) = net_of(), inputs()
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    assert not torch.allclose(net(mv, s, attn_mask=mask)[0], net(mv, s)[0])
    assert torch.allclose(net(mv, s, attn_mask=mask)[0], net(mv, s, is_causal=True)[0], atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_by_its_keywords():
    net, (mv, s) = net_of(primitives={"implementation": "dense"}).float(), [x.float() for x in inputs()]
    with torch.no_grad():
        same = net(mv, s, score_mod=lambda score, batch, head, query, key: score)[0]
        causal = net(mv, s, score_mod=lambda score, b, h, q, k: torch.where(q >= k, score, -torch.inf))[0]
        assert torch.allclose(same, net(mv, s)[0], atol=1e-5)
        assert torch.allclose(causal, net(mv, s, is_causal=True)[0], atol=1e-5)


def test_heads_of_attention_see_scalars_and_multivectors():
    q, k, v = (torch.randn(1, 4, 2, 16) for _ in range(3))
    with pytest.raises(ValueError, match="all of them or none"):
        primitives.sdp_attention(q, k, v, torch.randn(1, 4, 3))
    out, none = primitives.sdp_attention(q, k, v)
    assert none is None
    weights = torch.softmax(
        torch.stack([primitives.inner_product(q, k[:, j : j + 1]).sum((-1, -2)) for j in range(4)], -1) / 32**0.5, -1
    )
    assert torch.allclose(out, torch.einsum("bij,bjcx->bicx", weights, v), atol=1e-12)


def test_constants_are_made_before_compilation(monkeypatch):
    made = []
    monkeypatch.setattr(primitives, "warm_constants", lambda device, dtype: made.append((device.type, dtype)))
    net = net_of()
    net.to(torch.float32)
    assert ("cpu", torch.float32) in made
    assert isinstance(net, nets.Net)
