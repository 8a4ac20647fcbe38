"""Equivariant functions of multivectors with 16 components each, in a dense and a sparse form.

Shapes: multivectors (…, C channels, 16), scalars (…, S channels), items before the channels. The dense forms contract
with the full coefficient arrays, zeros included; the sparse forms touch only the entries that are not zero. Both are
plain torch and compile. The fast path of this package is `rows.py`.
"""

from dataclasses import dataclass, fields
from functools import lru_cache

import torch
import torch.nn.functional as F

from . import algebra
from .attention import scaled_dot_product_attention
from .precision import minimum_autocast_precision

#: weight index of the direct and of the dual map out of a grade
_DUAL = 5


def cast(kind, value):
    """An instance of the dataclass `kind` as it is, or one made of a mapping; anything else is a ValueError."""
    if isinstance(value, kind):
        return value
    try:
        given = dict(value)
    except (TypeError, ValueError):
        raise ValueError(f"{kind.__name__}: expected an instance or a mapping, found {type(value).__name__}") from None
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ValueError(f"{kind.__name__}: expected keys among {', '.join(sorted(known))}, found '{unknown[0]}'")
    return kind(**given)


IMPLEMENTATIONS = ("paired", "dense", "sparse", "mixed")


@dataclass(frozen=True)
class PrimitivesConfig:
    """Which symmetry, and which way to compute.

    Attributes
    ----------
    subgroup : bool             the connected group SO⁺(1,3) (10 maps a channel pair); else with parity and time
                                reversal (5 maps)
    bivector : bool             False: bivector parts are set to zero after each product
    geometric_product : bool    False: the MLP gates a linear map instead of multiplying two
    sparse_gp, sparse_linear    the form of product and linear map on 16 components; None: as `implementation` says
    implementation : str        "paired": complex pairs, packed weights, native kernels (rows.py);
                                "dense", "sparse": 16 components; "mixed": 16 components with the two keys
                                (sparse product, dense map unless they say otherwise)
    """

    subgroup: bool = True
    bivector: bool = True
    geometric_product: bool = True
    sparse_gp: bool | None = None
    sparse_linear: bool | None = None
    implementation: str | None = None

    def __post_init__(self):
        keys = (self.sparse_gp, self.sparse_linear)
        name = self.implementation
        if name is None:
            name = "paired" if keys == (None, None) else "mixed"
        if name not in IMPLEMENTATIONS:
            raise ValueError(f"implementation: expected one of {', '.join(IMPLEMENTATIONS)}, found {name!r}")
        fixed = {"dense": (False, False), "sparse": (True, True), "paired": (None, None)}.get(name)
        if fixed is None:
            fixed = (True if keys[0] is None else keys[0], False if keys[1] is None else keys[1])
        elif any(key is not None and key != value for key, value in zip(keys, fixed)):
            raise ValueError(
                f"implementation '{name}' has no choice of sparse_gp and sparse_linear, found {keys[0]}, {keys[1]}; "
                "leave them out or say implementation='mixed'"
            )
        for field, value in zip(("sparse_gp", "sparse_linear", "implementation"), (*fixed, name)):
            object.__setattr__(self, field, value)

    @property
    def paired(self) -> bool:
        return self.implementation == "paired"

    @property
    def num_maps(self) -> int:
        """Number of independent equivariant maps between two channels."""
        return 10 if self.subgroup else 5


# ------------------------------------------------------------------------------------------------ constants


@lru_cache(maxsize=64)
def _basis(subgroup: bool, device, dtype) -> torch.Tensor:
    """Basis of the equivariant maps, (maps, 16, 16)."""
    basis = torch.zeros(10 if subgroup else 5, 16, 16, dtype=dtype)
    for a, i, j, sign in algebra.linear_terms(subgroup):
        basis[a, i, j] = sign
    return basis.to(device)


@lru_cache(maxsize=64)
def _product(device, dtype) -> torch.Tensor:
    """Coefficients of the geometric product, (16, 16, 16): out_i = Σ G_ijk x_j y_k."""
    coefficients = torch.zeros(16, 16, 16, dtype=dtype)
    for i, j, k, sign in algebra.product_terms():
        coefficients[i, j, k] = sign
    return coefficients.to(device)


# Lists made at import: the compiler looks through lru_cache, and would trace an assignment a term.
_PARTNERS = [[k for i, _, k, _ in algebra.product_terms() if i == row] for row in range(16)]
_PARTNER_SIGNS = [[float(sign) for i, _, _, sign in algebra.product_terms() if i == row] for row in range(16)]


@lru_cache(maxsize=64)
def _product_lists(device, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """For each (i, j) of the product the one k with a term, and its sign: two (16, 16); terms are sorted by i, j."""
    return torch.tensor(_PARTNERS, device=device), torch.tensor(_PARTNER_SIGNS, dtype=dtype, device=device)


@lru_cache(maxsize=256)
def _constant(name: str, device, dtype) -> torch.Tensor:
    values = {
        "inner": algebra.inner_signs,
        "reverse": algebra.reverse_signs,
        "involution": algebra.involution_signs,
        "dual": lambda: [sign for _, sign in algebra.dual()],
        "grade_mask": lambda: [[float(grade == g) for grade in algebra.GRADES] for g in range(5)],
    }[name]()
    return torch.tensor(values, dtype=dtype, device=device)


def constant(name: str, like: torch.Tensor) -> torch.Tensor:
    return _constant(name, like.device, like.dtype)


@lru_cache(maxsize=8)
def grade_index(device) -> torch.Tensor:
    """Component -> grade, (16,)."""
    return torch.tensor(algebra.GRADES, device=device)


def warm_constants(device, dtype) -> None:
    """Make every constant for a device and dtype now, so that a compiled graph finds them."""
    for subgroup in (True, False):
        _basis(subgroup, device, dtype)
    _product(device, dtype)
    _product_lists(device, dtype)
    for name in ("inner", "reverse", "involution", "dual", "grade_mask"):
        _constant(name, device, dtype)
    grade_index(device)


# ------------------------------------------------------------------------------------------------ linear maps


def _linear_dense(x: torch.Tensor, weight: torch.Tensor, subgroup: bool) -> torch.Tensor:
    full = torch.einsum("yxa,aij->yixj", weight, _basis(subgroup, weight.device, weight.dtype))
    flat = x.flatten(-2)  # (…, C·16)
    out = flat @ full.flatten(2).flatten(0, 1).T.to(flat.dtype)
    return out.unflatten(-1, (weight.shape[0], 16))


def _linear_sparse(x: torch.Tensor, weight: torch.Tensor, subgroup: bool) -> torch.Tensor:
    """One matrix product a grade; the dual half of its rows goes, reversed and signed, to the opposite grade."""
    rows = weight.shape[0]
    direct, opposite = [], []
    for grade, components in enumerate(algebra.GRADE_SLICES):
        part = x[..., components].transpose(-1, -2)  # (…, components of the grade, C)
        w = weight[..., grade]
        if subgroup:
            w = torch.cat([w, weight[..., _DUAL + grade]])
        y = part @ w.T.to(x.dtype)
        direct.append(y[..., :rows].transpose(-1, -2))
        opposite.append(y[..., rows:].transpose(-1, -2))
    out = torch.cat(direct, dim=-1)
    if subgroup:
        # The dual of component 15 - i lands on component i, so reversing all components sorts them.
        out = out + torch.cat(opposite, dim=-1).flip(-1) * constant("dual", out)
    return out


@minimum_autocast_precision(torch.float32, output="high")
def equi_linear(x: torch.Tensor, weight: torch.Tensor, config: PrimitivesConfig) -> torch.Tensor:
    """Equivariant linear map between channels.

    Parameters
    ----------
    x : (…, C, 16)
    weight : (C_out, C, 10 or 5)    one number per map of `algebra.linear_terms`
    config : PrimitivesConfig       subgroup and sparse_linear are read

    Returns
    -------
    (…, C_out, 16)
    """
    form = _linear_sparse if config.sparse_linear else _linear_dense
    return form(x, weight, config.subgroup)


# ------------------------------------------------------------------------------------------------ products


def _product_dense(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Contiguous: a product of strided items with the coefficients would be one small call an item.
    x, y = (part.contiguous() for part in torch.broadcast_tensors(x, y))
    outer = (x.unsqueeze(-1) * y.unsqueeze(-2)).flatten(-2)  # (…, 256)
    return outer @ _product(x.device, x.dtype).reshape(16, 256).T


def _product_sparse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    index, signs = _product_lists(x.device, x.dtype)
    return (x.unsqueeze(-2) * (signs * y[..., index])).sum(-1)  # Σ_j over (…, i, j)


@minimum_autocast_precision(torch.float32, output="high")
def geometric_product(x: torch.Tensor, y: torch.Tensor, config: PrimitivesConfig) -> torch.Tensor:
    """Geometric product of two multivectors (…, 16) that broadcast; sparse_gp of config is read."""
    return _product_sparse(x, y) if config.sparse_gp else _product_dense(x, y)


def reverse(x: torch.Tensor) -> torch.Tensor:
    """Reverse the order of generators in every blade of (…, 16)."""
    return x * constant("reverse", x)


def grade_involute(x: torch.Tensor) -> torch.Tensor:
    """Change the sign of the odd grades of (…, 16)."""
    return x * constant("involution", x)


def grade_project(x: torch.Tensor) -> torch.Tensor:
    """Split (…, 16) by grade: (…, 5, 16)."""
    return x.unsqueeze(-2) * constant("grade_mask", x)


def dual(x: torch.Tensor) -> torch.Tensor:
    """Multiply (…, 16) by the pseudoscalar from the right."""
    return x.flip(-1) * constant("dual", x)


# ------------------------------------------------------------------------------------------------ invariants


def inner_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Invariant inner product <~x y>_0 of (…, 16), kept as (…, 1)."""
    return (x * y * constant("inner", x)).sum(-1, keepdim=True)


@minimum_autocast_precision(torch.float32)
def abs_squared_norm(x: torch.Tensor) -> torch.Tensor:
    """Sum over the grades of |<~x x>_grade| of (…, 16), kept as (…, 1); never negative, unlike the norm itself."""
    # Contiguous, so that the order of summation does not depend on strides; sums over slices and not a product with a
    # mask, which on strided input becomes one small product per item.
    squares = (x * x * constant("inner", x)).contiguous()
    return sum(squares[..., part].sum(-1, keepdim=True).abs() for part in algebra.GRADE_SLICES)


@minimum_autocast_precision(torch.float32, output="high")
def equi_layer_norm(x: torch.Tensor, channel_dim: int = -2, gain: float = 1.0, epsilon: float = 0.01) -> torch.Tensor:
    """Divide by the root of the mean over channels of `abs_squared_norm`, which is at least epsilon (a floor).

    Under autocast float64 stays float64, where the package returns float32.
    """
    mean = abs_squared_norm(x).mean(channel_dim, keepdim=True)
    return x * (gain * torch.rsqrt(mean.clamp(min=epsilon)))


# ------------------------------------------------------------------------------------------------ others


NONLINEARITIES = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def nonlinearity(name: str):
    """The function of that name; a ValueError lists the names."""
    if name not in NONLINEARITIES:
        raise ValueError(f"nonlinearity: expected one of {', '.join(NONLINEARITIES)}, found {name!r}")
    return NONLINEARITIES[name]


def grade_dropout(x: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """Drop each grade of each channel of (…, C, 16) as a whole with probability p and scale the others."""
    if not training or p == 0.0:
        return x
    kept = F.dropout(torch.ones(*x.shape[:-1], 5, dtype=x.dtype, device=x.device), p=p)
    return x * kept[..., grade_index(x.device)]


@minimum_autocast_precision(torch.float32, output="high")
def sdp_attention(q_mv, k_mv, v_mv, q_s=None, k_s=None, v_s=None, **attn_kwargs):
    """Attention whose logits are invariant inner products plus products of scalars.

    Parameters
    ----------
    q_mv, k_mv, v_mv : (…, N, C, 16)
    q_s, k_s, v_s : (…, N, S), all or none of them
    attn_kwargs : what `attention.scaled_dot_product_attention` takes

    Returns
    -------
    (…, N, C, 16) and (…, N, S) or None

    Raises
    ------
    ValueError    only some of the scalars are given
    """
    given = [scalars is not None for scalars in (q_s, k_s, v_s)]
    if any(given) != all(given):
        raise ValueError("q_s, k_s and v_s: expected all of them or none")
    q = (q_mv * constant("inner", q_mv)).flatten(-2)
    k, v = k_mv.flatten(-2), v_mv.flatten(-2)
    if all(given):
        q, k, v = (torch.cat([mv, s], dim=-1) for mv, s in ((q, q_s), (k, k_s), (v, v_s)))
    out = scaled_dot_product_attention(q, k, v, **attn_kwargs)
    split = v_mv.shape[-2] * 16
    return out[..., :split].unflatten(-1, v_mv.shape[-2:]), out[..., split:] if all(given) else None
