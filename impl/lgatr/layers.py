"""The layers of L-GATr as modules whose parameters are named as in the package `lgatr`.

Every layer has two ways in: `forward(multivectors, scalars)` on tensors (…, N items, C channels, 16) and (…, N, S), and
`rows(x)` on the paired layout (`rows.py`). With implementation "paired" forward goes through rows; with the others
rows is not used. Scalars are None where there is no scalar stream.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from . import native, primitives, rows
from .attention import plain, scaled_dot_product_attention
from .precision import minimum_autocast_precision
from .primitives import PrimitivesConfig, cast

#: initialization -> factor of the multivector weights, shift of the scalar bias, factor of the scalar weights
_INITIALIZATIONS = {
    "default": (1.0, 0.0, 1.0),
    "small": (0.1, 0.0, 0.1),
    "unit_scalar": (0.1, 1.0, 1.0),
    "almost_unit_scalar": (0.5, 1.0, 1.0),
}


@dataclass
class SelfAttentionConfig:
    """Self-attention; the fields up to dropout_prob are filled in by the network.

    num_heads heads with max(attn_ratio · channels / num_heads, 1) multivector and, where there are scalars, at least
    4 scalar channels each; multi_query: keys and values are shared by all heads; head_scale: a learnt factor a head.
    """

    in_mv_channels: int | None = None
    out_mv_channels: int | None = None
    in_s_channels: int = 0
    out_s_channels: int = 0
    additional_qk_mv_channels: int = 0
    additional_qk_s_channels: int = 0
    output_init: str = "default"
    dropout_prob: float | None = None
    num_heads: int = 8
    multi_query: bool = False
    attn_ratio: int = 1
    head_scale: bool = False

    @property
    def hidden_mv_channels(self) -> int:
        return max(self.attn_ratio * self.in_mv_channels // self.num_heads, 1)

    @property
    def hidden_s_channels(self) -> int:
        return max(self.attn_ratio * self.in_s_channels // self.num_heads, 4) if self.in_s_channels else 0

    @classmethod
    def cast(cls, config):
        return cast(cls, config)


@dataclass
class CrossAttentionConfig:
    """Cross-attention; the fields up to dropout_prob are filled in by the network, the others as in self-attention."""

    q_mv_channels: int | None = None
    kv_mv_channels: int | None = None
    out_mv_channels: int | None = None
    out_s_channels: int = 0
    q_s_channels: int = 0
    kv_s_channels: int = 0
    output_init: str = "default"
    dropout_prob: float | None = None
    num_heads: int = 8
    multi_query: bool = False
    attn_ratio: int = 1
    head_scale: bool = False

    @property
    def hidden_mv_channels(self) -> int:
        return max(self.attn_ratio * self.q_mv_channels // self.num_heads, 1)

    @property
    def hidden_s_channels(self) -> int:
        return max(self.attn_ratio * self.q_s_channels // self.num_heads, 4) if self.q_s_channels else 0

    @classmethod
    def cast(cls, config):
        return cast(cls, config)


@dataclass
class MLPConfig:
    """The MLP: mlp_ratio times as many hidden channels, num_layers_mlp ≥ 1 linear layers; the rest by the network."""

    mv_channels: int | None = None
    s_channels: int = 0
    dropout_prob: float | None = None
    nonlinearity: str = "gelu"
    mlp_ratio: int = 4
    num_layers_mlp: int = 2

    @classmethod
    def cast(cls, config):
        return cast(cls, config)


def freeze_empty(module: nn.Module) -> None:
    """Parameters without numbers want no gradient: with one, distributed training waits for it."""
    for parameter in module.parameters(recurse=False):
        if parameter.numel() == 0:
            parameter.requires_grad_(False)


def _add(x: torch.Tensor | None, y: torch.Tensor | None) -> torch.Tensor | None:
    return y if x is None else x if y is None else x + y


def _as_rows(layer, multivectors, scalars, *args, **kwargs):
    """Run the rows of a layer on 16-component tensors; the layer says its outputs' channels."""
    out_mv, out_s = layer.row_channels(multivectors, scalars)
    x = layer.rows(rows.pack(multivectors, scalars), *args, **kwargs)
    mv, s = rows.unpack(x, out_mv)
    return mv, (s if out_s else None)


class EquiLinear(nn.Module):
    """Equivariant linear map of multivector and scalar channels, scalars mixing with invariant components.

    Parameters
    ----------
    in_mv_channels, out_mv_channels, in_s_channels, out_s_channels : int
    primitives : PrimitivesConfig
    bias : bool                on scalars (and, for the subgroup, pseudoscalars) and scalar channels
    initialization : str       "default", "small", "unit_scalar" or "almost_unit_scalar"

    Raises
    ------
    ValueError             forward: scalars are missing, or given to a layer that has none; an unknown initialization
    NotImplementedError    a unit initialization without bias or without scalars
    """

    def __init__(
        self,
        in_mv_channels: int,
        out_mv_channels: int,
        primitives: PrimitivesConfig,
        in_s_channels: int = 0,
        out_s_channels: int = 0,
        bias: bool = True,
        initialization: str = "default",
    ):
        super().__init__()
        self.primitives = primitives
        self.shape = rows.LinearShape(
            in_mv_channels, in_s_channels, out_mv_channels, out_s_channels, primitives.subgroup, bias
        )
        mix = self.shape.mix
        self.weight = nn.Parameter(torch.empty(out_mv_channels, in_mv_channels, primitives.num_maps))
        self.bias = nn.Parameter(torch.zeros(out_mv_channels, 1)) if bias and not in_s_channels else None
        self.s2mvs = nn.Linear(in_s_channels, mix * out_mv_channels, bias=bias) if in_s_channels else None
        self.mvs2s = nn.Linear(mix * in_mv_channels, out_s_channels, bias=bias) if out_s_channels else None
        self.s2s = nn.Linear(in_s_channels, out_s_channels, bias=False) if in_s_channels and out_s_channels else None
        self.reset_parameters(initialization)
        for module in self.modules():
            freeze_empty(module)

    @torch.no_grad()
    def reset_parameters(self, initialization: str) -> None:
        if initialization not in _INITIALIZATIONS:
            names = ", ".join(_INITIALIZATIONS)
            raise ValueError(f"initialization: expected one of {names}, found {initialization!r}")
        shape = self.shape
        mv_factor, shift, s_factor = _INITIALIZATIONS[initialization]
        if shift and not (shape.bias and shape.in_s):
            raise NotImplementedError(f"initialization '{initialization}' needs a bias and scalar inputs")
        bound = mv_factor / math.sqrt(max(shape.in_mv, 1))
        self.weight.uniform_(-bound, bound)
        if self.s2mvs is not None:
            # Two independent contributions meet in the scalar and the pseudoscalar part.
            for a in (0, 9) if shape.subgroup else (0,):
                self.weight[..., a].uniform_(-bound / math.sqrt(2), bound / math.sqrt(2))
            bound = mv_factor / math.sqrt(shape.in_s) / math.sqrt(2)
            self.s2mvs.weight.uniform_(-bound, bound)
            if shape.bias:
                bound = 1 / math.sqrt(shape.in_s + shape.in_mv)
                self.s2mvs.bias.uniform_(shift - bound, shift + bound)
        maps = [layer for layer in (self.s2s, self.mvs2s) if layer is not None]
        for layer in maps:
            bound = s_factor / math.sqrt(max(layer.in_features, 1)) / math.sqrt(len(maps))
            layer.weight.uniform_(-bound, bound)
        if self.mvs2s is not None and shape.bias:
            bound = s_factor / math.sqrt(max(sum(layer.in_features for layer in maps), 1))
            self.mvs2s.bias.uniform_(-bound, bound)

    def ordered_parameters(self) -> list[torch.Tensor]:
        """Parameters in the order of `rows.LinearShape.parameters`."""
        # Named one by one: get_parameter costs 4 µs each, 0.1 ms a block.
        found = [self.weight]
        if self.s2mvs is not None:
            found.append(self.s2mvs.weight)
            if self.shape.bias:
                found.append(self.s2mvs.bias)
        elif self.bias is not None:
            found.append(self.bias)
        if self.mvs2s is not None:
            found.append(self.mvs2s.weight)
            if self.shape.bias:
                found.append(self.mvs2s.bias)
            if self.s2s is not None:
                found.append(self.s2s.weight)
        return found

    def packed(self, panels: bool) -> torch.Tensor:
        """The packed weight: rows.py's matrices, or the native panels of them. Kept while nothing changes it."""
        parameters = self.ordered_parameters()
        recorded = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        make = native.pack_weight if panels else rows.pack_weight
        if recorded or torch.compiler.is_compiling():
            return make(parameters, self.shape)
        return native.remember(self, (panels,), parameters, lambda: make(parameters, self.shape))

    def row_channels(self, multivectors, scalars):
        return self.shape.out_mv, self.shape.out_s

    def _check(self, scalars) -> None:
        found = 0 if scalars is None else scalars.shape[-1]
        if found != self.shape.in_s and (found == 0 or self.shape.in_s == 0):
            raise ValueError(f"EquiLinear: expected {self.shape.in_s} scalar channels, found {found or 'none'}")

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Rows (…, 16 in_mv + in_s) -> (…, 16 out_mv + out_s)."""
        if native.usable(x):
            return native.linear(x, self.packed(True), self.shape)
        return rows.linear(x, self.packed(False), self.shape)

    def forward(self, multivectors: torch.Tensor, scalars: torch.Tensor | None = None):
        self._check(scalars)
        if self.primitives.paired:
            return _protected_rows(self, multivectors, scalars)
        shape = self.shape
        out = primitives.equi_linear(multivectors, self.weight, self.primitives)
        if self.bias is not None:
            out = out + F.pad(self.bias, (0, 15)).to(out.dtype)
        if self.s2mvs is not None:
            lifted = self.s2mvs(scalars).unflatten(-1, (shape.out_mv, shape.mix))
            first = lifted[..., :1].to(out.dtype)
            if shape.subgroup:
                middle = out.new_zeros(()).expand(*lifted.shape[:-1], 14)
                out = out + torch.cat([first, middle, lifted[..., 1:].to(out.dtype)], dim=-1)
            else:
                out = out + F.pad(first, (0, 15))
        out_s = None
        if self.mvs2s is not None:
            invariant = multivectors[..., [0, 15]] if shape.subgroup else multivectors[..., :1]
            out_s = self.mvs2s(invariant.flatten(-2))
            if self.s2s is not None:
                out_s = out_s + self.s2s(scalars)
        return out, out_s


@minimum_autocast_precision(torch.float32, output="high")
def _protected_rows(layer, multivectors, scalars, *args, **kwargs):
    """The paired layout holds both streams in one row, so under autocast all of it is protected."""
    return _as_rows(layer, multivectors, scalars, *args, **kwargs)


class EquiLayerNorm(nn.Module):
    """Normalise multivectors by the mean over channels of their absolute squared norm, scalars by a layer norm.

    The squared norm is at least epsilon: small inputs stay small. elementwise_affine learns a factor for each channel
    and grade, and for each scalar channel.
    """

    def __init__(
        self,
        mv_channels: int = 0,
        s_channels: int = 0,
        mv_channel_dim: int = -2,
        epsilon: float = 0.01,
        gain: float = 1.0,
        elementwise_affine: bool = False,
    ):
        super().__init__()
        self.mv_channel_dim, self.epsilon, self.gain = mv_channel_dim, epsilon, gain
        self.weight_mv = nn.Parameter(torch.ones(mv_channels, 5)) if elementwise_affine else None
        self.weight_s = nn.Parameter(torch.ones(s_channels)) if elementwise_affine else None
        freeze_empty(self)

    def gain_row(self, channels: int, width: int) -> torch.Tensor | None:
        """All factors as one row, None where they are all one."""
        if self.weight_mv is None:
            return None if self.gain == 1.0 else self._gain(channels, width)
        row = rows.gain_row(self.weight_mv, self.weight_s[: width - 16 * channels])
        return row if self.gain == 1.0 else row * self._gain(channels, width)

    def _gain(self, channels: int, width: int) -> torch.Tensor:
        row = torch.full((width,), float(self.gain), device=None if self.weight_mv is None else self.weight_mv.device)
        row[2 * channels : width - 14 * channels] = 1.0  # the scalars know no gain
        return row

    def row_channels(self, multivectors, scalars):
        return multivectors.shape[-2], 0 if scalars is None else scalars.shape[-1]

    def rows(self, x: torch.Tensor, channels: int) -> torch.Tensor:
        gain = self.gain_row(channels, x.shape[-1])
        if native.usable(x):
            return native.norm(x, gain, channels, self.epsilon)
        return rows.norm(x, channels, gain, self.epsilon)

    def forward(self, multivectors: torch.Tensor, scalars: torch.Tensor | None = None):
        mv = primitives.equi_layer_norm(multivectors, self.mv_channel_dim, self.gain, self.epsilon)
        s = None if scalars is None else F.layer_norm(scalars, scalars.shape[-1:])
        if self.weight_mv is not None:
            mv = mv * self.weight_mv[:, primitives.grade_index(mv.device)].to(mv.dtype)
            if s is not None:
                s = s * self.weight_s.to(s.dtype)
        return mv, s


class ScalarGatedNonlinearity(nn.Module):
    """Multiply each multivector by a function of its scalar part; scalars go through the function."""

    def __init__(self, nonlinearity: str = "gelu"):
        super().__init__()
        self.name = nonlinearity
        self.function = primitives.nonlinearity(nonlinearity)

    def rows(self, x: torch.Tensor, channels: int) -> torch.Tensor:
        if native.usable(x):
            return native.gate(x, channels, self.name)
        return rows.gate(x, channels, self.function)

    def forward(self, multivectors: torch.Tensor, scalars: torch.Tensor | None = None):
        gated = multivectors * self.function(multivectors[..., :1])
        return gated, None if scalars is None else self.function(scalars)


class GradeDropout(nn.Module):
    """Dropout of whole grades of a channel, and of single scalars; only in training."""

    def __init__(self, p: float = 0.0):
        super().__init__()
        self.p = p

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def rows(self, x: torch.Tensor, channels: int) -> torch.Tensor:
        return rows.dropout(x, channels, self.p) if self.active else x

    def forward(self, multivectors: torch.Tensor, scalars: torch.Tensor | None = None):
        mv = primitives.grade_dropout(multivectors, self.p, self.training)
        return mv, None if scalars is None else F.dropout(scalars, self.p, self.training)


class GeometricBilinear(nn.Module):
    """Geometric product of two linear maps, a linear map of the product, and a normalisation."""

    def __init__(
        self,
        in_mv_channels: int,
        out_mv_channels: int,
        primitives: PrimitivesConfig,
        hidden_mv_channels: int | None = None,
        in_s_channels: int = 0,
        out_s_channels: int = 0,
    ):
        super().__init__()
        hidden = out_mv_channels if hidden_mv_channels is None else hidden_mv_channels
        self.primitives = primitives
        self.linear_left = EquiLinear(in_mv_channels, hidden, primitives, in_s_channels)
        self.linear_right = EquiLinear(
            in_mv_channels, hidden, primitives, in_s_channels, initialization="almost_unit_scalar"
        )
        self.linear_out = EquiLinear(hidden, out_mv_channels, primitives, in_s_channels, out_s_channels)
        self.norm = EquiLayerNorm()

    def row_channels(self, multivectors, scalars):
        return self.linear_out.row_channels(multivectors, scalars)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        shape = self.linear_left.shape
        s = rows.scalars(x, shape.in_mv)
        product = native.product if native.usable(x) else rows.product
        h = product(self.linear_left.rows(x), self.linear_right.rows(x), shape.out_mv, s, self.primitives.bivector)
        return self.norm.rows(self.linear_out.rows(h), self.linear_out.shape.out_mv)

    def forward(self, multivectors: torch.Tensor, scalars: torch.Tensor | None = None):
        if self.primitives.paired:
            return _protected_rows(self, multivectors, scalars)
        left, _ = self.linear_left(multivectors, scalars)
        right, _ = self.linear_right(multivectors, scalars)
        product = primitives.geometric_product(left, right, self.primitives)
        if not self.primitives.bivector:
            keep = primitives.grade_index(product.device) != 2
            product = product * keep
        return self.norm(*self.linear_out(product, scalars))


class GeoMLP(nn.Module):
    """Geometric bilinear (or, without the product, a gate and a linear map), then gated linear layers."""

    def __init__(self, config: MLPConfig, primitives: PrimitivesConfig):
        super().__init__()
        if config.num_layers_mlp < 1:
            raise ValueError(f"num_layers_mlp: expected at least 1, found {config.num_layers_mlp}")
        self.config, self.primitives = config, primitives
        hidden = config.num_layers_mlp - 1
        mv = [config.mv_channels, *[config.mlp_ratio * config.mv_channels] * hidden, config.mv_channels]
        s = [config.s_channels, *[config.mlp_ratio * config.s_channels] * hidden, config.s_channels]
        layers: list[nn.Module] = []
        for i in range(config.num_layers_mlp):
            if i == 0 and primitives.geometric_product:
                layers.append(GeometricBilinear(mv[0], mv[1], primitives, in_s_channels=s[0], out_s_channels=s[1]))
            else:
                layers.append(ScalarGatedNonlinearity(config.nonlinearity))
                layers.append(EquiLinear(mv[i], mv[i + 1], primitives, s[i], s[i + 1]))
            if config.dropout_prob is not None:
                layers.append(GradeDropout(config.dropout_prob))
        self.layers = nn.ModuleList(layers)

    @property
    def dropping(self) -> bool:
        return any(isinstance(layer, GradeDropout) and layer.active for layer in self.layers)

    def row_channels(self, multivectors, scalars):
        return self.config.mv_channels, self.config.s_channels

    def fused(self) -> tuple[EquiLinear, ...] | None:
        """The four linear maps of the shape that the fused kernel knows, else None."""
        layers = [layer for layer in self.layers if not isinstance(layer, GradeDropout)]
        if self.dropping or not self.primitives.geometric_product or self.config.num_layers_mlp != 2:
            return None
        first, _, last = layers
        return first.linear_left, first.linear_right, first.linear_out, last

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        channels = self.config.mv_channels
        for layer in self.layers:
            if isinstance(layer, GeometricBilinear):
                x, channels = layer.rows(x), layer.linear_out.shape.out_mv
            elif isinstance(layer, EquiLinear):
                x, channels = layer.rows(x), layer.shape.out_mv
            else:
                x = layer.rows(x, channels)
        return x

    def forward(self, multivectors: torch.Tensor, scalars: torch.Tensor | None = None):
        if self.primitives.paired:
            return _protected_rows(self, multivectors, scalars)
        for layer in self.layers:
            multivectors, scalars = layer(multivectors, scalars)
        return multivectors, scalars


def _heads(mv, s, hidden, hidden_s, heads):
    """Channels in the order (hidden, head) -> (…, heads, N, hidden, 16) and (…, heads, N, hidden_s)."""
    mv = mv.unflatten(-2, (hidden, heads)).movedim(-2, -4)
    return mv, None if s is None else s.unflatten(-1, (hidden_s, heads)).movedim(-1, -3)


class QKVModule(nn.Module):
    """Queries, keys and values of all heads from one linear map (or three, multi-query), normalised a head."""

    def __init__(self, config: SelfAttentionConfig, primitives: PrimitivesConfig):
        super().__init__()
        self.config = config
        in_mv = config.in_mv_channels + config.additional_qk_mv_channels
        in_s = config.in_s_channels + config.additional_qk_s_channels
        hidden, hidden_s, heads = config.hidden_mv_channels, config.hidden_s_channels, config.num_heads

        def linear(in_mv, in_s, count):
            return EquiLinear(in_mv, count * hidden, primitives, in_s, count * hidden_s, bias=False)

        if config.multi_query:
            self.q_linear = linear(in_mv, in_s, heads)
            self.k_linear = linear(in_mv, in_s, 1)
            self.v_linear = linear(config.in_mv_channels, config.in_s_channels, 1)
        else:
            self.in_linear = linear(in_mv, in_s, 3 * heads)
        self.norm_qkv = EquiLayerNorm()

    def forward(self, mv, s, extra_mv, extra_s):
        config = self.config
        full_mv = mv if extra_mv is None else torch.cat([mv, extra_mv], dim=-2)
        full_s = s if extra_s is None else extra_s if s is None else torch.cat([s, extra_s], dim=-1)
        hidden, hidden_s = config.hidden_mv_channels, config.hidden_s_channels
        if config.multi_query:
            parts = [self.q_linear(full_mv, full_s), self.k_linear(full_mv, full_s), self.v_linear(mv, s)]
            heads = (config.num_heads, 1, 1)
        else:
            out_mv, out_s = self.in_linear(full_mv, full_s)
            parts = list(zip(out_mv.chunk(3, -2), (None,) * 3 if out_s is None else out_s.chunk(3, -1)))
            heads = (config.num_heads,) * 3
        return [
            self.norm_qkv(*_heads(part_mv, part_s, hidden, hidden_s, count))
            for (part_mv, part_s), count in zip(parts, heads)
        ]

    def rows(self, x, extra):
        """Rows and further rows (or None) -> query, key, value features (…, heads, N, D)."""
        config = self.config
        full = x
        if extra is not None:
            full = rows.concat(x, config.in_mv_channels, extra, config.additional_qk_mv_channels)
        heads = native.heads if native.usable(x) else rows.heads
        hidden = config.hidden_mv_channels
        if not config.multi_query:
            y = self.in_linear.rows(full)
            return heads(y, 3 * hidden * config.num_heads, 3, config.num_heads, (True, False, False))
        (q,) = heads(self.q_linear.rows(full), hidden * config.num_heads, 1, config.num_heads, (True,))
        (k,) = heads(self.k_linear.rows(full), hidden, 1, 1, (False,))
        (v,) = heads(self.v_linear.rows(x), hidden, 1, 1, (False,))
        return [q, k, v]


def _merge(mv, s):
    """Heads become the slow index of the channels again."""
    return mv.transpose(-4, -3).flatten(-3, -2), None if s is None else s.transpose(-3, -2).flatten(-2)


class _Attention(nn.Module):
    """What self- and cross-attention share: attention by head, scale, merging, the linear map out, dropout."""

    def __init__(self, config, primitives: PrimitivesConfig):
        super().__init__()
        self.config, self.primitives = config, primitives
        self.out_linear = EquiLinear(
            config.hidden_mv_channels * config.num_heads,
            config.out_mv_channels,
            primitives,
            config.hidden_s_channels * config.num_heads,
            config.out_s_channels,
            initialization=config.output_init,
        )
        self.dropout = None if config.dropout_prob is None else GradeDropout(config.dropout_prob)
        if config.head_scale:
            self.head_scale = nn.Parameter(torch.ones(config.num_heads))

    @property
    def dropping(self) -> bool:
        return self.dropout is not None and self.dropout.active

    def row_channels(self, *_):
        return self.out_linear.shape.out_mv, self.out_linear.shape.out_s

    def _attend(self, q, k, v, attn_kwargs):
        mv, s = primitives.sdp_attention(q[0], k[0], v[0], q[1], k[1], v[1], **attn_kwargs)
        if self.config.head_scale:
            mv = mv * self.head_scale[:, None, None, None]
            s = None if s is None else s * self.head_scale[:, None, None]
        mv, s = self.out_linear(*_merge(mv, s))
        return (mv, s) if self.dropout is None else self.dropout(mv, s)

    def _attend_rows(self, q, k, v, attn_kwargs):
        if k.shape[-3] != q.shape[-3]:  # multi-query: one head of keys for all
            k, v = (x.expand(*x.shape[:-3], q.shape[-3], *x.shape[-2:]) for x in (k, v))
        h = scaled_dot_product_attention(q, k, v, **attn_kwargs)
        if self.config.head_scale:
            h = h * self.head_scale[:, None, None].to(h.dtype)
        x = self.out_linear.rows(rows.merge_heads(h, self.config.hidden_mv_channels))
        return x if self.dropout is None else self.dropout.rows(x, self.out_linear.shape.out_mv)


class SelfAttention(_Attention):
    """Multi-head self-attention over the items; heads see invariant products only, so weights are invariant."""

    def __init__(self, config: SelfAttentionConfig, primitives: PrimitivesConfig):
        super().__init__(config, primitives)
        self.qkv_module = QKVModule(config, primitives)

    def rows(self, x: torch.Tensor, extra: torch.Tensor | None = None, **attn_kwargs) -> torch.Tensor:
        return self._attend_rows(*self.qkv_module.rows(x, extra), attn_kwargs)

    def forward(
        self,
        multivectors: torch.Tensor,
        scalars: torch.Tensor | None = None,
        additional_qk_features_mv: torch.Tensor | None = None,
        additional_qk_features_s: torch.Tensor | None = None,
        **attn_kwargs,
    ):
        if self.primitives.paired:
            extra = None
            if additional_qk_features_mv is not None or additional_qk_features_s is not None:
                extra = pack_extra(multivectors, additional_qk_features_mv, additional_qk_features_s)
            return _protected_rows(self, multivectors, scalars, extra, **attn_kwargs)
        q, k, v = self.qkv_module(multivectors, scalars, additional_qk_features_mv, additional_qk_features_s)
        return self._attend(q, k, v, attn_kwargs)


def pack_extra(multivectors, extra_mv, extra_s) -> torch.Tensor:
    """Rows of the additional query and key features, of which one may be missing."""
    if extra_mv is None:
        extra_mv = multivectors[..., :0, :]
    return rows.pack(extra_mv, extra_s)


class CrossAttention(_Attention):
    """Queries from one set of items, keys and values from another."""

    def __init__(self, config: CrossAttentionConfig, primitives: PrimitivesConfig):
        super().__init__(config, primitives)
        hidden, hidden_s, heads = config.hidden_mv_channels, config.hidden_s_channels, config.num_heads
        pairs = 2 * (1 if config.multi_query else heads)
        self.q_linear = EquiLinear(
            config.q_mv_channels, hidden * heads, primitives, config.q_s_channels, hidden_s * heads, bias=False
        )
        self.kv_linear = EquiLinear(
            config.kv_mv_channels, hidden * pairs, primitives, config.kv_s_channels, hidden_s * pairs, bias=False
        )
        self.norm = EquiLayerNorm()

    def rows(self, x: torch.Tensor, condition: torch.Tensor, **attn_kwargs) -> torch.Tensor:
        config = self.config
        heads = native.heads if native.usable(x) else rows.heads
        hidden, count = config.hidden_mv_channels, config.num_heads
        shared = 1 if config.multi_query else count
        (q,) = heads(self.q_linear.rows(x), hidden * count, 1, count, (True,))
        k, v = heads(self.kv_linear.rows(condition), 2 * hidden * shared, 2, shared, (False, False))
        return self._attend_rows(q, k, v, attn_kwargs)

    def forward(
        self,
        multivectors_q: torch.Tensor,
        multivectors_kv: torch.Tensor,
        scalars_q: torch.Tensor | None = None,
        scalars_kv: torch.Tensor | None = None,
        **attn_kwargs,
    ):
        config = self.config
        if self.primitives.paired:
            condition = rows.pack(multivectors_kv, scalars_kv)
            return _protected_rows(self, multivectors_q, scalars_q, condition, **attn_kwargs)
        hidden, hidden_s = config.hidden_mv_channels, config.hidden_s_channels
        shared = 1 if config.multi_query else config.num_heads
        q = _heads(*self.q_linear(multivectors_q, scalars_q), hidden, hidden_s, config.num_heads)
        kv_mv, kv_s = self.kv_linear(multivectors_kv, scalars_kv)
        parts = zip(kv_mv.chunk(2, -2), (None, None) if kv_s is None else kv_s.chunk(2, -1))
        k, v = (_heads(mv, s, hidden, hidden_s, shared) for mv, s in parts)
        return self._attend(self.norm(*q), self.norm(*k), self.norm(*v), attn_kwargs)


class LGATrBlock(nn.Module):
    """Normalise, attend, add; normalise, MLP, add."""

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        attention,
        mlp,
        primitives: PrimitivesConfig,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
    ):
        super().__init__()
        primitives = cast(PrimitivesConfig, primitives)
        self.primitives, self.channels = primitives, mv_channels

        def norm():
            return EquiLayerNorm(mv_channels, s_channels, elementwise_affine=norm_elementwise_affine)

        self.norm1 = norm()
        self.norm2 = norm()
        self.attention = SelfAttention(
            replace(
                SelfAttentionConfig.cast(attention),
                in_mv_channels=mv_channels,
                out_mv_channels=mv_channels,
                in_s_channels=s_channels,
                out_s_channels=s_channels,
                output_init="small",
                dropout_prob=dropout_prob,
            ),
            primitives,
        )
        self.mlp = GeoMLP(
            replace(MLPConfig.cast(mlp), mv_channels=mv_channels, s_channels=s_channels, dropout_prob=dropout_prob),
            primitives,
        )

    def row_channels(self, multivectors, scalars):
        return self.mlp.row_channels(multivectors, scalars)

    def rows(self, x: torch.Tensor, extra: torch.Tensor | None = None, **attn_kwargs) -> torch.Tensor:
        x = attention_half(x, self.norm1, self.attention, extra, attn_kwargs)
        return mlp_half(x, self.norm2, self.mlp)

    def forward(
        self,
        multivectors: torch.Tensor,
        scalars: torch.Tensor | None = None,
        additional_qk_features_mv: torch.Tensor | None = None,
        additional_qk_features_s: torch.Tensor | None = None,
        **attn_kwargs,
    ):
        if self.primitives.paired:
            extra = None
            if additional_qk_features_mv is not None or additional_qk_features_s is not None:
                extra = pack_extra(multivectors, additional_qk_features_mv, additional_qk_features_s)
            return _protected_rows(self, multivectors, scalars, extra, **attn_kwargs)
        h_mv, h_s = self.norm1(multivectors, scalars)
        h_mv, h_s = self.attention(h_mv, h_s, additional_qk_features_mv, additional_qk_features_s, **attn_kwargs)
        multivectors, scalars = multivectors + h_mv, _add(scalars, h_s)
        h_mv, h_s = self.mlp(*self.norm2(multivectors, scalars))
        return multivectors + h_mv, _add(scalars, h_s)


def attention_half(x, norm: EquiLayerNorm, attention: SelfAttention, extra, attn_kwargs) -> torch.Tensor:
    """x + attention(norm(x)) on rows, in one native call where the options allow it."""
    config = attention.config
    if (
        native.usable(x)
        and extra is None
        and not (config.multi_query or config.head_scale or attention.dropping)
        and plain(attn_kwargs)
    ):
        return native.attention(x, norm, attention, attn_kwargs.get("lengths"))
    h = norm.rows(x, config.in_mv_channels)
    return x + attention.rows(h, extra, **attn_kwargs)


def mlp_half(x, norm: EquiLayerNorm, mlp: GeoMLP) -> torch.Tensor:
    """x + mlp(norm(x)) on rows, in one native call where the options allow it."""
    if native.usable(x) and (linears := mlp.fused()) is not None:
        return native.mlp(x, norm, linears, mlp.config.nonlinearity, mlp.primitives.bivector)
    return x + mlp.rows(norm.rows(x, mlp.config.mv_channels))


class ConditionalLGATrBlock(nn.Module):
    """Self-attention, cross-attention to a condition, MLP; each normalised before and added after."""

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        mv_channels_cond: int,
        s_channels_cond: int,
        attention,
        crossattention,
        mlp,
        primitives: PrimitivesConfig,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
    ):
        super().__init__()
        primitives = cast(PrimitivesConfig, primitives)
        self.primitives, self.channels, self.condition_channels = primitives, mv_channels, mv_channels_cond

        def norm(mv, s):
            return EquiLayerNorm(mv, s, elementwise_affine=norm_elementwise_affine)

        self.norm1 = norm(mv_channels, s_channels)
        self.norm2 = norm(mv_channels, s_channels)
        self.norm3 = norm(mv_channels, s_channels)
        self.norm_cond = norm(mv_channels_cond, s_channels_cond)
        common = {
            "out_mv_channels": mv_channels,
            "out_s_channels": s_channels,
            "output_init": "small",
            "dropout_prob": dropout_prob,
        }
        attention = replace(
            SelfAttentionConfig.cast(attention), in_mv_channels=mv_channels, in_s_channels=s_channels, **common
        )
        self.attention = SelfAttention(attention, primitives)
        crossattention = replace(
            CrossAttentionConfig.cast(crossattention),
            q_mv_channels=mv_channels,
            q_s_channels=s_channels,
            kv_mv_channels=mv_channels_cond,
            kv_s_channels=s_channels_cond,
            **common,
        )
        self.crossattention = CrossAttention(crossattention, primitives)
        self.mlp = GeoMLP(
            replace(MLPConfig.cast(mlp), mv_channels=mv_channels, s_channels=s_channels, dropout_prob=dropout_prob),
            primitives,
        )

    def row_channels(self, multivectors, scalars):
        return self.mlp.row_channels(multivectors, scalars)

    def rows(self, x, condition, attn_kwargs=None, crossattn_kwargs=None):
        x = attention_half(x, self.norm1, self.attention, None, attn_kwargs or {})
        h = self.norm2.rows(x, self.channels)
        other = self.norm_cond.rows(condition, self.condition_channels)
        x = x + self.crossattention.rows(h, other, **(crossattn_kwargs or {}))
        return mlp_half(x, self.norm3, self.mlp)

    def forward(
        self,
        multivectors: torch.Tensor,
        multivectors_cond: torch.Tensor,
        scalars: torch.Tensor | None = None,
        scalars_cond: torch.Tensor | None = None,
        attn_kwargs: dict | None = None,
        crossattn_kwargs: dict | None = None,
    ):
        if self.primitives.paired:
            condition = rows.pack(multivectors_cond, scalars_cond)
            return _protected_rows(self, multivectors, scalars, condition, attn_kwargs, crossattn_kwargs)
        h_mv, h_s = self.attention(*self.norm1(multivectors, scalars), **(attn_kwargs or {}))
        multivectors, scalars = multivectors + h_mv, _add(scalars, h_s)
        h_mv, h_s = self.norm2(multivectors, scalars)
        c_mv, c_s = self.norm_cond(multivectors_cond, scalars_cond)
        h_mv, h_s = self.crossattention(h_mv, c_mv, h_s, c_s, **(crossattn_kwargs or {}))
        multivectors, scalars = multivectors + h_mv, _add(scalars, h_s)
        h_mv, h_s = self.mlp(*self.norm3(multivectors, scalars))
        return multivectors + h_mv, _add(scalars, h_s)
