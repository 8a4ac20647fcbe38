"""The networks LGATr and ConditionalLGATr: a linear map in, blocks, a linear map out.

Their arguments and the names of their parameters are those of the package `lgatr`, so `load_state_dict` works in
both directions without a conversion.
"""

from dataclasses import replace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import native, primitives, rows
from .layers import (
    ConditionalLGATrBlock,
    CrossAttentionConfig,
    EquiLinear,
    LGATrBlock,
    MLPConfig,
    SelfAttentionConfig,
    pack_extra,
)
from .precision import minimum_autocast_precision, naive_amp
from .primitives import PrimitivesConfig, cast


def compile_forward(net: nn.Module, compile_kwargs=None, activation_memory_budget: float | None = None) -> None:
    """Replace the forward of this one net by its compiled form.

    Parameters
    ----------
    compile_kwargs : mapping      handed to torch.compile as it is
    activation_memory_budget : float in [0, 1]
        how much of the activations the backward pass may keep; lower values compute more again

    Raises
    ------
    ValueError    this torch cannot compile, or knows no budget; said here, not at the first call
    """
    version = torch.__version__.split("+")[0]
    if not hasattr(torch, "compile"):
        raise ValueError(f"compile=True: expected torch 2.0 or newer, found {version}; leave compile out")
    forward = torch.compile(net.forward, **dict(compile_kwargs or {}))
    if activation_memory_budget is not None:
        import torch._functorch.config as functorch

        if not hasattr(functorch, "activation_memory_budget"):
            raise ValueError(f"activation_memory_budget: expected torch 2.4 or newer, found {version}; leave it out")
        forward = functorch.patch(activation_memory_budget=activation_memory_budget)(forward)
    net.forward = forward


class Net(nn.Module):
    """What the four networks share: checkpointed blocks, naive_amp, compilation, constants after a move."""

    def _finish(self, checkpoint_blocks, use_naive_amp, compile, compile_kwargs, activation_memory_budget):
        self._checkpoint_blocks, self._naive_amp = checkpoint_blocks, use_naive_amp
        if compile:
            self._apply(lambda tensor: tensor)  # makes the constants, so that the compiled graph need not
            compile_forward(self, compile_kwargs, activation_memory_budget)

    def _apply(self, fn, *args, **kwargs):
        super()._apply(fn, *args, **kwargs)
        parameter = next(self.parameters(), None)
        if parameter is not None and parameter.is_floating_point():
            primitives.warm_constants(parameter.device, parameter.dtype)
        return self

    def _run(self, function, *args, **kwargs):
        """A block, or with checkpoint_blocks a block whose inside is computed again in the backward pass."""
        if self._checkpoint_blocks:
            return checkpoint(function, *args, use_reentrant=False, **kwargs)
        return function(*args, **kwargs)


class LGATr(Net):
    """Lorentz-equivariant transformer on multivectors and scalars.

    Parameters
    ----------
    num_blocks : int
    in_mv_channels, out_mv_channels, hidden_mv_channels, in_s_channels, out_s_channels, hidden_s_channels : int
    attention, mlp : SelfAttentionConfig, MLPConfig or mappings
    primitives : PrimitivesConfig or mapping           symmetry and implementation
    reinsert_mv_channels, reinsert_s_channels : tuple of int
        input channels that every attention layer sees beside its own
    dropout_prob : float or None
    norm_elementwise_affine : bool                     learnt factors in the norms before attention and MLP
    checkpoint_blocks : bool                           less memory, one more forward pass
    naive_amp : bool                                   under autocast, no protection of the metric
    compile, compile_kwargs, activation_memory_budget  see `compile_forward`

    forward((…, N, in_mv, 16), (…, N, in_s) or None, **attn_kwargs) -> (…, N, out_mv, 16), (…, N, out_s) or None.
    attn_kwargs are those of `attention.scaled_dot_product_attention`; `lengths` says that the items of all sets stand
    one behind the other.
    """

    def __init__(
        self,
        num_blocks: int,
        in_mv_channels: int,
        out_mv_channels: int,
        hidden_mv_channels: int,
        in_s_channels: int,
        out_s_channels: int,
        hidden_s_channels: int,
        attention,
        mlp,
        primitives=None,
        reinsert_mv_channels: tuple[int, ...] | None = None,
        reinsert_s_channels: tuple[int, ...] | None = None,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
        checkpoint_blocks: bool = False,
        naive_amp: bool = False,
        compile: bool = False,
        compile_kwargs=None,
        activation_memory_budget: float | None = None,
    ):
        super().__init__()
        self.primitives = PrimitivesConfig() if primitives is None else cast(PrimitivesConfig, primitives)
        self.linear_in = EquiLinear(
            in_mv_channels, hidden_mv_channels, self.primitives, in_s_channels, hidden_s_channels
        )
        attention = replace(
            SelfAttentionConfig.cast(attention),
            additional_qk_mv_channels=len(reinsert_mv_channels or ()),
            additional_qk_s_channels=len(reinsert_s_channels or ()),
        )
        mlp = MLPConfig.cast(mlp)
        self.blocks = nn.ModuleList(
            LGATrBlock(
                hidden_mv_channels,
                hidden_s_channels,
                attention,
                mlp,
                self.primitives,
                dropout_prob,
                norm_elementwise_affine,
            )
            for _ in range(num_blocks)
        )
        self.linear_out = EquiLinear(
            hidden_mv_channels, out_mv_channels, self.primitives, hidden_s_channels, out_s_channels
        )
        self._reinsert_mv = None if reinsert_mv_channels is None else list(reinsert_mv_channels)
        self._reinsert_s = None if reinsert_s_channels is None else list(reinsert_s_channels)
        self._finish(checkpoint_blocks, naive_amp, compile, compile_kwargs, activation_memory_budget)

    def _reinserted(self, multivectors, scalars):
        mv = None if self._reinsert_mv is None else multivectors[..., self._reinsert_mv, :]
        if self._reinsert_s is None:
            return mv, None
        if scalars is None:
            raise ValueError("reinsert_s_channels: expected scalars in the input, found none")
        return mv, scalars[..., self._reinsert_s]

    @minimum_autocast_precision(torch.float32, output="high")
    def _forward_rows(self, multivectors, scalars, attn_kwargs):
        extra_mv, extra_s = self._reinserted(multivectors, scalars)
        extra = None
        if extra_mv is not None or extra_s is not None:
            extra = pack_extra(multivectors, extra_mv, extra_s)
        x = self.linear_in.rows(rows.pack(multivectors, scalars))
        attn_kwargs = native.with_offsets(x, attn_kwargs)
        for block in self.blocks:
            x = self._run(block.rows, x, extra, **attn_kwargs)
        mv, s = rows.unpack(self.linear_out.rows(x), self.linear_out.shape.out_mv)
        return mv, (s if self.linear_out.shape.out_s else None)

    def forward(self, multivectors: torch.Tensor, scalars: torch.Tensor | None = None, **attn_kwargs):
        self.linear_in._check(scalars)
        with naive_amp(self._naive_amp):
            if self.primitives.paired:
                return self._forward_rows(multivectors, scalars, attn_kwargs)
            extra_mv, extra_s = self._reinserted(multivectors, scalars)
            mv, s = self.linear_in(multivectors, scalars)
            for block in self.blocks:
                mv, s = self._run(block, mv, s, extra_mv, extra_s, **attn_kwargs)
            return self.linear_out(mv, s)


class ConditionalLGATr(Net):
    """LGATr whose blocks also attend to a second set of items, the condition.

    Arguments as in LGATr, with the channels of the condition and `crossattention` (CrossAttentionConfig or mapping);
    there is no reinsertion. forward takes the condition after the items, and the keyword arguments of both attentions
    as dicts.
    """

    def __init__(
        self,
        num_blocks: int,
        in_mv_channels: int,
        mv_channels_cond: int,
        out_mv_channels: int,
        hidden_mv_channels: int,
        in_s_channels: int,
        s_channels_cond: int,
        out_s_channels: int,
        hidden_s_channels: int,
        attention,
        crossattention,
        mlp,
        primitives=None,
        dropout_prob: float | None = None,
        norm_elementwise_affine: bool = True,
        checkpoint_blocks: bool = False,
        naive_amp: bool = False,
        compile: bool = False,
        compile_kwargs=None,
        activation_memory_budget: float | None = None,
    ):
        super().__init__()
        self.primitives = PrimitivesConfig() if primitives is None else cast(PrimitivesConfig, primitives)
        self.linear_in = EquiLinear(
            in_mv_channels, hidden_mv_channels, self.primitives, in_s_channels, hidden_s_channels
        )
        attention, mlp = SelfAttentionConfig.cast(attention), MLPConfig.cast(mlp)
        crossattention = CrossAttentionConfig.cast(crossattention)
        self.blocks = nn.ModuleList(
            ConditionalLGATrBlock(
                hidden_mv_channels,
                hidden_s_channels,
                mv_channels_cond,
                s_channels_cond,
                attention,
                crossattention,
                mlp,
                self.primitives,
                dropout_prob,
                norm_elementwise_affine,
            )
            for _ in range(num_blocks)
        )
        self.linear_out = EquiLinear(
            hidden_mv_channels, out_mv_channels, self.primitives, hidden_s_channels, out_s_channels
        )
        self._finish(checkpoint_blocks, naive_amp, compile, compile_kwargs, activation_memory_budget)

    @minimum_autocast_precision(torch.float32, output="high")
    def _forward_rows(self, multivectors, multivectors_cond, scalars, scalars_cond, attn_kwargs, crossattn_kwargs):
        condition = rows.pack(multivectors_cond, scalars_cond)
        x = self.linear_in.rows(rows.pack(multivectors, scalars))
        attn_kwargs = native.with_offsets(x, attn_kwargs or {})
        for block in self.blocks:
            x = self._run(block.rows, x, condition, attn_kwargs, crossattn_kwargs)
        mv, s = rows.unpack(self.linear_out.rows(x), self.linear_out.shape.out_mv)
        return mv, (s if self.linear_out.shape.out_s else None)

    def forward(
        self,
        multivectors: torch.Tensor,
        multivectors_cond: torch.Tensor,
        scalars: torch.Tensor | None = None,
        scalars_cond: torch.Tensor | None = None,
        attn_kwargs: dict | None = None,
        crossattn_kwargs: dict | None = None,
    ):
        self.linear_in._check(scalars)
        arguments = (multivectors_cond, scalars, scalars_cond, attn_kwargs, crossattn_kwargs)
        with naive_amp(self._naive_amp):
            if self.primitives.paired:
                return self._forward_rows(multivectors, *arguments)
            mv, s = self.linear_in(multivectors, scalars)
            for block in self.blocks:
                mv, s = self._run(block, mv, multivectors_cond, s, *arguments[2:])
            return self.linear_out(mv, s)
