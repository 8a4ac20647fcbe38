"""L-GATr-slim: four-vectors and scalars only, coupled through invariant products; layers and both networks.

Inside, vectors are (…, N, 4, V channels) with the channels last; the networks take and return (…, N, V, 4). Names of
parameters are those of the package `lgatr`. The streams mix in the norms, the gates and the attention, not in the
linear maps.

Below float32 the components (t, x, y, z) of a fast particle lose its mass: t² - z² is the difference of two numbers
that are the same in the leading bits. Light-cone components t + z, x, y, t - z keep the small one by itself.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import algebra, native
from .attention import plain, scaled_dot_product_attention
from .layers import freeze_empty
from .nets import Net
from .precision import minimum_autocast_precision, naive_amp
from .primitives import nonlinearity as function_of

_INITIALIZATIONS = {"default": 1.0, "small": 0.1}


def to_lightcone(vectors: torch.Tensor) -> torch.Tensor:
    """(…, 4) as t, x, y, z -> (t + z, x, y, t - z)/√2, without the √2 for x and y; to be done in float64."""
    t, x, y, z = vectors.unbind(-1)
    root = math.sqrt(0.5)
    return torch.stack([root * (t + z), x, y, root * (t - z)], dim=-1)


def _signed(vectors: torch.Tensor, lightcone: bool = False) -> torch.Tensor:
    """Lower the index of (…, 4, V): the space components change sign; on the light cone the outer two change places."""
    if lightcone:
        plus, x, y, minus = vectors.unbind(-2)
        return torch.stack([minus, -x, -y, plus], dim=-2)
    return vectors * torch.tensor(algebra.METRIC, dtype=vectors.dtype, device=vectors.device)[:, None]


class SlimDropout(nn.Module):
    """Dropout of whole vectors and of single scalars; only in training."""

    def __init__(self, dropout_prob: float):
        super().__init__()
        self.p = dropout_prob

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor):
        if not self.active:
            return vectors, scalars
        kept = F.dropout(torch.ones_like(vectors[..., :1, :]), self.p)
        return vectors * kept, F.dropout(scalars, self.p)


class SlimRMSNorm(nn.Module):
    """Divide both streams by the root of their common mean square, |v·v| of the vectors and s² of the scalars."""

    def __init__(self, v_channels: int, s_channels: int, epsilon: float = 0.01, elementwise_affine: bool = True):
        super().__init__()
        self.epsilon, self.lightcone = epsilon, False
        self.weight_v = nn.Parameter(torch.ones(v_channels)) if elementwise_affine else None
        self.weight_s = nn.Parameter(torch.ones(s_channels)) if elementwise_affine else None
        freeze_empty(self)

    @minimum_autocast_precision(torch.float32, output="high")
    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor):
        squares = (vectors * _signed(vectors, self.lightcone)).sum(-2).abs().sum(-1, keepdim=True)
        mean = (squares + scalars.square().sum(-1, keepdim=True)) / (vectors.shape[-1] + scalars.shape[-1])
        factor = torch.rsqrt(mean + self.epsilon)
        vectors, scalars = vectors * factor.unsqueeze(-1), scalars * factor
        if self.weight_v is not None:
            vectors, scalars = vectors * self.weight_v, scalars * self.weight_s
        return vectors, scalars


class SlimLinear(nn.Module):
    """One matrix for the vector channels, the same for the four components, and one for the scalars."""

    def __init__(
        self,
        in_v_channels: int,
        out_v_channels: int,
        in_s_channels: int,
        out_s_channels: int,
        bias: bool = True,
        initialization: str = "default",
    ):
        super().__init__()
        self.out_s_channels = out_s_channels
        self.weight_v = nn.Parameter(torch.empty(out_v_channels, in_v_channels))
        both = in_s_channels and out_s_channels
        self.linear_s = nn.Linear(in_s_channels, out_s_channels, bias=bias) if both else None
        self.reset_parameters(initialization)
        freeze_empty(self)

    @torch.no_grad()
    def reset_parameters(self, initialization: str) -> None:
        if initialization not in _INITIALIZATIONS:
            names = ", ".join(_INITIALIZATIONS)
            raise ValueError(f"initialization: expected one of {names}, found {initialization!r}")
        factor = _INITIALIZATIONS[initialization]
        weights = [self.weight_v] + ([] if self.linear_s is None else [self.linear_s.weight])
        for weight in weights:
            bound = factor / math.sqrt(max(weight.shape[1], 1))
            weight.uniform_(-bound, bound)
        if self.linear_s is not None and self.linear_s.bias is not None:
            self.linear_s.bias.zero_()

    @minimum_autocast_precision(torch.float32, output="high")
    def _vectors(self, vectors: torch.Tensor) -> torch.Tensor:
        return F.linear(vectors, self.weight_v)

    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor):
        if self.linear_s is None:
            return self._vectors(vectors), scalars.new_zeros(*scalars.shape[:-1], self.out_s_channels)
        return self._vectors(vectors), self.linear_s(scalars)


class SlimGLU(nn.Module):
    """Gated linear unit: vectors gated by a function of an inner product of two others, scalars by scalars."""

    def __init__(
        self,
        in_v_channels: int,
        out_v_channels: int,
        in_s_channels: int,
        out_s_channels: int,
        nonlinearity: str = "gelu",
        nonlinearity_v: str | None = "sigmoid",
    ):
        super().__init__()
        self.linear = SlimLinear(in_v_channels, 3 * out_v_channels, in_s_channels, 2 * out_s_channels)
        self.lightcone = False
        self.names = (nonlinearity, nonlinearity if nonlinearity_v is None else nonlinearity_v)
        self.nonlinearity, self.nonlinearity_v = (function_of(name) for name in self.names)

    @minimum_autocast_precision(torch.float32)
    def _inner(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return 0.5 * (first * _signed(second, self.lightcone)).sum(-2, keepdim=True)  # 0.5 = 1/√4

    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor):
        vectors, scalars = self.linear(vectors, scalars)
        value, first, second = vectors.chunk(3, dim=-1)
        value_s, gate_s = scalars.chunk(2, dim=-1)
        return self.nonlinearity_v(self._inner(first, second)) * value, self.nonlinearity(gate_s) * value_s


@minimum_autocast_precision(torch.float32, output="high")
def _attend(q, k, v, **attn_kwargs):
    return scaled_dot_product_attention(q, k, v, **attn_kwargs)


class _SlimAttention(nn.Module):
    def _setup(self, v_channels, s_channels, num_heads, attn_ratio, dropout_prob):
        self.num_heads, self.lightcone = num_heads, False
        self.hidden_v = max(attn_ratio * v_channels // num_heads, 1)
        self.hidden_s = max(attn_ratio * s_channels // num_heads, 4)
        self.norm = SlimRMSNorm(self.hidden_v, self.hidden_s, elementwise_affine=False)
        self.dropout = None if dropout_prob is None else SlimDropout(dropout_prob)

    @property
    def dropping(self) -> bool:
        return self.dropout is not None and self.dropout.active

    def _linear(self, v_channels, s_channels, count, initialization="small"):
        heads = count * self.num_heads
        return SlimLinear(
            v_channels, heads * self.hidden_v, s_channels, heads * self.hidden_s, bias=False, initialization="small"
        )

    def _linear_out(self, v_channels, s_channels):
        heads = self.num_heads
        return SlimLinear(heads * self.hidden_v, v_channels, heads * self.hidden_s, s_channels, initialization="small")

    def _heads(self, vectors, scalars, parts):
        """(…, N, 4, parts·hidden·heads) -> a part (…, heads, N, 4, hidden) and (…, heads, N, hidden_s), normalised."""
        vectors = vectors.unflatten(-1, (parts, self.hidden_v, self.num_heads)).movedim(-1, -5).movedim(-2, 0)
        scalars = scalars.unflatten(-1, (parts, self.hidden_s, self.num_heads)).movedim(-1, -4).movedim(-2, 0)
        vectors, scalars = self.norm(vectors, scalars)
        return [(vectors[part], scalars[part]) for part in range(parts)]

    @staticmethod
    def _features(vectors, scalars):
        return torch.cat([vectors.flatten(-2), scalars], dim=-1)

    def _finish(self, q, k, v, attn_kwargs):
        q = (_signed(q[0], self.lightcone), q[1])
        out = _attend(*(self._features(*part) for part in (q, k, v)), **attn_kwargs)
        vectors = out[..., : 4 * self.hidden_v].unflatten(-1, (4, self.hidden_v))
        scalars = out[..., 4 * self.hidden_v :]
        vectors = vectors.movedim(-4, -2).flatten(-2)  # (…, N, 4, heads·hidden)
        scalars = scalars.movedim(-3, -2).flatten(-2)
        vectors, scalars = self.linear_out(vectors, scalars)
        return (vectors, scalars) if self.dropout is None else self.dropout(vectors, scalars)


class SlimSelfAttention(_SlimAttention):
    """Multi-head self-attention on vectors and scalars."""

    def __init__(self, v_channels, s_channels, num_heads, attn_ratio=1, dropout_prob=None):
        super().__init__()
        self._setup(v_channels, s_channels, num_heads, attn_ratio, dropout_prob)
        self.linear_in = self._linear(v_channels, s_channels, 3)
        self.linear_out = self._linear_out(v_channels, s_channels)

    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor, **attn_kwargs):
        q, k, v = self._heads(*self.linear_in(vectors, scalars), 3)
        return self._finish(q, k, v, attn_kwargs)


class SlimCrossAttention(_SlimAttention):
    """Queries from one set, keys and values from another."""

    def __init__(
        self, q_v_channels, kv_v_channels, q_s_channels, kv_s_channels, num_heads, attn_ratio=1, dropout_prob=None
    ):
        super().__init__()
        self._setup(q_v_channels, q_s_channels, num_heads, attn_ratio, dropout_prob)
        self.linear_in_q = self._linear(q_v_channels, q_s_channels, 1)
        self.linear_in_kv = self._linear(kv_v_channels, kv_s_channels, 2)
        self.linear_out = self._linear_out(q_v_channels, q_s_channels)

    def forward(self, vectors_q, vectors_kv, scalars_q, scalars_kv, **attn_kwargs):
        (q,) = self._heads(*self.linear_in_q(vectors_q, scalars_q), 1)
        k, v = self._heads(*self.linear_in_kv(vectors_kv, scalars_kv), 2)
        return self._finish(q, k, v, attn_kwargs)


class SlimMLP(nn.Module):
    """num_layers - 1 gated units and a linear map; at least two layers."""

    def __init__(
        self,
        v_channels: int,
        s_channels: int,
        nonlinearity: str = "gelu",
        nonlinearity_v: str | None = "sigmoid",
        mlp_ratio: int = 2,
        num_layers: int = 2,
        dropout_prob: float | None = None,
    ):
        super().__init__()
        if num_layers < 2:
            raise ValueError(f"num_layers_mlp: expected at least 2, found {num_layers}")
        v = [v_channels, *[mlp_ratio * v_channels] * (num_layers - 1)]
        s = [s_channels, *[mlp_ratio * s_channels] * (num_layers - 1)]
        layers: list[nn.Module] = []
        for i in range(num_layers - 1):
            layers.append(SlimGLU(v[i], v[i + 1], s[i], s[i + 1], nonlinearity, nonlinearity_v))
            if dropout_prob is not None:
                layers.append(SlimDropout(dropout_prob))
        layers.append(SlimLinear(v[-1], v_channels, s[-1], s_channels))
        self.layers = nn.ModuleList(layers)

    @property
    def dropping(self) -> bool:
        return any(isinstance(layer, SlimDropout) and layer.active for layer in self.layers)

    @property
    def maps(self) -> list[nn.Module]:
        """The layers without dropout."""
        return [layer for layer in self.layers if not isinstance(layer, SlimDropout)]

    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor):
        for layer in self.layers:
            vectors, scalars = layer(vectors, scalars)
        return vectors, scalars


class SlimBlock(nn.Module):
    """Normalise, attend, add; normalise, MLP, add."""

    def __init__(
        self,
        v_channels: int,
        s_channels: int,
        num_heads: int,
        nonlinearity: str = "gelu",
        nonlinearity_v: str | None = "sigmoid",
        mlp_ratio: int = 2,
        attn_ratio: int = 1,
        num_layers_mlp: int = 2,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
    ):
        super().__init__()
        self.norm1 = SlimRMSNorm(v_channels, s_channels, elementwise_affine=norm_elementwise_affine)
        self.norm2 = SlimRMSNorm(v_channels, s_channels, elementwise_affine=norm_elementwise_affine)
        self.attention = SlimSelfAttention(v_channels, s_channels, num_heads, attn_ratio, dropout_prob)
        self.mlp = SlimMLP(
            v_channels, s_channels, nonlinearity, nonlinearity_v, mlp_ratio, num_layers_mlp, dropout_prob
        )

    def fused(self, vectors, scalars, attn_kwargs) -> bool:
        """Whether `rows` does all that forward does."""
        return attention_fused(vectors, scalars, self.attention, attn_kwargs) and mlp_fused(
            vectors, scalars, self.norm2, self.mlp
        )

    def rows(self, x: torch.Tensor, lengths=None) -> torch.Tensor:
        """Rows (…, N, 4 V + S) -> the same, in two native calls."""
        x = native.slim_attention(x, self.norm1, self.attention, lengths)
        return native.slim_mlp(x, self.norm2, *self.mlp.maps)

    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor, **attn_kwargs):
        if self.fused(vectors, scalars, attn_kwargs):
            return _on_rows(vectors, scalars, self.rows, attn_kwargs.get("lengths"))
        vectors, scalars = attention_half(vectors, scalars, self.norm1, self.attention, attn_kwargs)
        return mlp_half(vectors, scalars, self.norm2, self.mlp)


@minimum_autocast_precision(torch.float32, output="high")
def _on_rows(vectors, scalars, function, *arguments):
    """Run a native function on rows (…, 4 V + S) and give the streams back as views of its result."""
    channels = vectors.shape[-1]
    out = function(torch.cat([vectors.flatten(-2), scalars], dim=-1), *arguments)
    # One split, whose gradient is one concatenation; that of a slice is a row of zeros with the slice in it.
    vectors, scalars = out.split([4 * channels, out.shape[-1] - 4 * channels], dim=-1)
    return vectors.unflatten(-1, (4, channels)), scalars


def attention_fused(vectors, scalars, attention, attn_kwargs) -> bool:
    """Whether the options allow one native call for norm, attention and sum."""
    return (
        native.usable(vectors)
        and scalars.dtype == vectors.dtype
        and attention.linear_in.linear_s is not None
        and not attention.dropping
        and not attention.lightcone
        and plain(attn_kwargs)
    )


def mlp_fused(vectors, scalars, norm, mlp) -> bool:
    """Whether the options allow one native call for norm, MLP and sum."""
    return (
        native.usable(vectors)
        and scalars.dtype == vectors.dtype
        and not mlp.dropping
        and not norm.lightcone
        and len(mlp.maps) == 2
        and mlp.maps[0].linear.linear_s is not None
    )


def attention_half(vectors, scalars, norm, attention, attn_kwargs):
    """Streams plus the attention of their norms, in one native call where the options allow it."""
    if attention_fused(vectors, scalars, attention, attn_kwargs):
        return _on_rows(vectors, scalars, native.slim_attention, norm, attention, attn_kwargs.get("lengths"))
    h_v, h_s = attention(*norm(vectors, scalars), **attn_kwargs)
    return vectors + h_v, scalars + h_s


def mlp_half(vectors, scalars, norm, mlp):
    """Streams plus the MLP of their norms, in one native call where the options allow it."""
    if mlp_fused(vectors, scalars, norm, mlp):
        return _on_rows(vectors, scalars, native.slim_mlp, norm, *mlp.maps)
    h_v, h_s = mlp(*norm(vectors, scalars))
    return vectors + h_v, scalars + h_s


class ConditionalSlimBlock(nn.Module):
    """Self-attention, cross-attention to a condition (which is not normalised before), MLP."""

    def __init__(
        self,
        v_channels: int,
        v_channels_cond: int,
        s_channels: int,
        s_channels_cond: int,
        num_heads: int,
        nonlinearity: str = "gelu",
        nonlinearity_v: str | None = "sigmoid",
        mlp_ratio: int = 2,
        attn_ratio: int = 1,
        num_layers_mlp: int = 2,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
    ):
        super().__init__()
        for name in ("norm1", "norm2", "norm3"):
            setattr(self, name, SlimRMSNorm(v_channels, s_channels, elementwise_affine=norm_elementwise_affine))
        self.selfattention = SlimSelfAttention(v_channels, s_channels, num_heads, attn_ratio, dropout_prob)
        self.crossattention = SlimCrossAttention(
            v_channels, v_channels_cond, s_channels, s_channels_cond, num_heads, attn_ratio, dropout_prob
        )
        self.mlp = SlimMLP(
            v_channels, s_channels, nonlinearity, nonlinearity_v, mlp_ratio, num_layers_mlp, dropout_prob
        )

    def forward(
        self,
        vectors,
        vectors_cond,
        scalars,
        scalars_cond,
        attn_kwargs: dict | None = None,
        crossattn_kwargs: dict | None = None,
    ):
        vectors, scalars = attention_half(vectors, scalars, self.norm1, self.selfattention, attn_kwargs or {})
        h_v, h_s = self.norm2(vectors, scalars)
        h_v, h_s = self.crossattention(h_v, vectors_cond, h_s, scalars_cond, **(crossattn_kwargs or {}))
        vectors, scalars = vectors + h_v, scalars + h_s
        return mlp_half(vectors, scalars, self.norm3, self.mlp)


def _freeze_dead_tail(norm: SlimRMSNorm, mlp: SlimMLP, out_v: int, out_s: int) -> None:
    """Without an output of a stream, what the last MLP does to that stream reaches nothing and gets no gradient."""
    dead = [(out_v, norm.weight_v, "weight_v"), (out_s, norm.weight_s, "linear_s")]
    for channels, gain, part in dead:
        if channels:
            continue
        if gain is not None:
            gain.requires_grad_(False)
        for name, parameter in mlp.named_parameters():
            if part in name.split("."):
                parameter.requires_grad_(False)


def _require_scalars(**named) -> None:
    for name, scalars in named.items():
        if scalars is None or scalars.shape[-1] == 0:
            raise ValueError(f"{name}: expected at least one scalar channel, found none; give a constant one")


class LGATrSlim(Net):
    """Lorentz-equivariant transformer on four-vectors and scalars.

    Arguments as in `nets.LGATr` where they have the same name; nonlinearity gates scalars, nonlinearity_v vectors
    (None: the same). With lightcone the vectors are those of `to_lightcone`, and the native kernels are left out.
    forward((…, N, in_v, 4), (…, N, in_s), **attn_kwargs) -> (…, N, out_v, 4), (…, N, out_s).
    """

    def __init__(
        self,
        num_blocks: int,
        in_v_channels: int,
        out_v_channels: int,
        hidden_v_channels: int,
        in_s_channels: int,
        out_s_channels: int,
        hidden_s_channels: int,
        num_heads: int,
        nonlinearity: str = "gelu",
        nonlinearity_v: str | None = "sigmoid",
        mlp_ratio: int = 2,
        attn_ratio: int = 1,
        num_layers_mlp: int = 2,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
        checkpoint_blocks: bool = False,
        naive_amp: bool = False,
        compile: bool = False,
        compile_kwargs=None,
        activation_memory_budget: float | None = None,
        lightcone: bool = False,
    ):
        super().__init__()
        self.linear_in = SlimLinear(in_v_channels, hidden_v_channels, in_s_channels, hidden_s_channels)
        self.blocks = nn.ModuleList(
            SlimBlock(
                hidden_v_channels,
                hidden_s_channels,
                num_heads,
                nonlinearity,
                nonlinearity_v,
                mlp_ratio,
                attn_ratio,
                num_layers_mlp,
                dropout_prob,
                norm_elementwise_affine,
            )
            for _ in range(num_blocks)
        )
        self.linear_out = SlimLinear(hidden_v_channels, out_v_channels, hidden_s_channels, out_s_channels)
        if num_blocks:
            last = self.blocks[-1]
            _freeze_dead_tail(last.norm2, last.mlp, out_v_channels, out_s_channels)
        for module in self.modules():
            if hasattr(module, "lightcone"):
                module.lightcone = lightcone
        self._finish(checkpoint_blocks, naive_amp, compile, compile_kwargs, activation_memory_budget)

    def forward(self, vectors: torch.Tensor, scalars: torch.Tensor, **attn_kwargs):
        _require_scalars(scalars=scalars)
        with naive_amp(self._naive_amp):
            v, s = self.linear_in(vectors.transpose(-1, -2), scalars)
            attn_kwargs = native.with_offsets(v, attn_kwargs)
            if len(self.blocks) and all(block.fused(v, s, attn_kwargs) for block in self.blocks):
                v, s = _on_rows(v, s, self._rows, attn_kwargs.get("lengths"))
            else:
                for block in self.blocks:
                    v, s = self._run(block, v, s, **attn_kwargs)
            v, s = self.linear_out(v, s)
        return v.transpose(-1, -2), s

    def _rows(self, x, lengths):
        """All blocks on rows, so that the streams are joined and parted once."""
        for block in self.blocks:
            x = self._run(block.rows, x, lengths)
        return x


class ConditionalLGATrSlim(Net):
    """LGATrSlim whose blocks also attend to a second set of items; keyword arguments of both attentions as dicts."""

    def __init__(
        self,
        num_blocks: int,
        in_v_channels: int,
        v_channels_cond: int,
        out_v_channels: int,
        hidden_v_channels: int,
        in_s_channels: int,
        s_channels_cond: int,
        out_s_channels: int,
        hidden_s_channels: int,
        num_heads: int,
        nonlinearity: str = "gelu",
        nonlinearity_v: str | None = "sigmoid",
        mlp_ratio: int = 2,
        attn_ratio: int = 1,
        num_layers_mlp: int = 2,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
        checkpoint_blocks: bool = False,
        naive_amp: bool = False,
        compile: bool = False,
        compile_kwargs=None,
        activation_memory_budget: float | None = None,
    ):
        super().__init__()
        self.linear_in = SlimLinear(in_v_channels, hidden_v_channels, in_s_channels, hidden_s_channels)
        self.blocks = nn.ModuleList(
            ConditionalSlimBlock(
                hidden_v_channels,
                v_channels_cond,
                hidden_s_channels,
                s_channels_cond,
                num_heads,
                nonlinearity,
                nonlinearity_v,
                mlp_ratio,
                attn_ratio,
                num_layers_mlp,
                dropout_prob,
                norm_elementwise_affine,
            )
            for _ in range(num_blocks)
        )
        self.linear_out = SlimLinear(hidden_v_channels, out_v_channels, hidden_s_channels, out_s_channels)
        if num_blocks:
            last = self.blocks[-1]
            _freeze_dead_tail(last.norm3, last.mlp, out_v_channels, out_s_channels)
        self._finish(checkpoint_blocks, naive_amp, compile, compile_kwargs, activation_memory_budget)

    def forward(
        self,
        vectors,
        vectors_cond,
        scalars,
        scalars_cond,
        attn_kwargs: dict | None = None,
        crossattn_kwargs: dict | None = None,
    ):
        _require_scalars(scalars=scalars, scalars_cond=scalars_cond)
        with naive_amp(self._naive_amp):
            v, s = self.linear_in(vectors.transpose(-1, -2), scalars)
            condition = vectors_cond.transpose(-1, -2)
            for block in self.blocks:
                v, s = self._run(block, v, condition, s, scalars_cond, attn_kwargs, crossattn_kwargs)
            v, s = self.linear_out(v, s)
        return v.transpose(-1, -2), s
