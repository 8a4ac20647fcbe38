"""The paired layout: one row an item, complex pairs of components, so that a linear map is three plain products.

Each component is paired with its dual, signed so that the dual is multiplication by i on every pair
(`algebra.pair_planes`). A row of C multivector channels and S scalar channels has 16 C + S numbers in three sectors:

    Z  2C + S   scalars | pseudoscalars | the S scalar channels
    V  4 x 2C   for t, x, y, z: vector | axial
    F  3 x 2C   for tx, ty, tz: electric | magnetic

An equivariant linear map, its scalar channels and its bias included, multiplies Z, V and F by one matrix each.
Functions here are plain torch and run anywhere; `native.py` has the same in C.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

from . import algebra

_PLANES = algebra.pair_planes()
#: component of each half plane, re then im, in the order of the row, and its sign there
_ORDER = tuple(component for re, _, im, _ in _PLANES for component in (re, im))
_SIGNS = tuple(sign for _, re_sign, _, im_sign in _PLANES for sign in (re_sign, im_sign))


def width(channels: int, scalars: int) -> int:
    """Numbers in a row."""
    return 16 * channels + scalars


@lru_cache(maxsize=64)
def _layout(device, dtype) -> torch.Tensor:
    """Components -> half planes as a signed permutation (16, 16); its product is exact and its gradient another one."""
    matrix = torch.zeros(16, 16, dtype=dtype)
    for half, (component, sign) in enumerate(zip(_ORDER, _SIGNS)):
        matrix[component, half] = sign
    return matrix.to(device)


@lru_cache(maxsize=64)
def half_plane_signs(device, dtype) -> torch.Tensor:
    """Signs of the invariant inner product for the 16 half planes of a row."""
    inner = algebra.inner_signs()
    return torch.tensor([inner[component] for component in _ORDER], device=device, dtype=dtype)


def pack(mv: torch.Tensor, s: torch.Tensor | None) -> torch.Tensor:
    """(…, C, 16) and (…, S) or None -> rows (…, 16 C + S)."""
    # Flat for the product: a product of strided items would be one small call an item.
    planes = (mv.reshape(-1, 16) @ _layout(mv.device, mv.dtype)).view(mv.shape)
    planes = planes.transpose(-1, -2).flatten(-2)  # half planes of C numbers each
    if s is None or s.shape[-1] == 0:
        return planes
    cut = 2 * mv.shape[-2]
    return torch.cat([planes[..., :cut], s.to(mv.dtype), planes[..., cut:]], dim=-1)


def unpack(x: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (…, 16 C + S) -> (…, C, 16) and (…, S)."""
    z, v, f = split(x, channels)
    cut = 2 * channels
    planes = torch.cat([z[..., :cut], v.flatten(-2), f.flatten(-2)], dim=-1).unflatten(-1, (16, channels))
    planes = planes.transpose(-1, -2)
    return (planes.reshape(-1, 16) @ _layout(x.device, x.dtype).T).view(planes.shape), z[..., cut:]


def split(x: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows -> views Z (…, 2C + S), V (…, 4, 2C), F (…, 3, 2C)."""
    pair = 2 * channels
    z, v, f = x.split([x.shape[-1] - 7 * pair, 4 * pair, 3 * pair], dim=-1)
    return z, v.unflatten(-1, (4, pair)), f.unflatten(-1, (3, pair))


def join(z: torch.Tensor, v: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Inverse of `split`."""
    return torch.cat([z, v.flatten(-2), f.flatten(-2)], dim=-1)


def scalars(x: torch.Tensor, channels: int) -> torch.Tensor:
    """View of the scalar channels (…, S) of rows."""
    return x[..., 2 * channels : x.shape[-1] - 14 * channels]


# ------------------------------------------------------------------------------------------------ linear maps


@dataclass(frozen=True)
class LinearShape:
    """Channels of a linear map and which parameters it has; what a packed weight depends on."""

    in_mv: int
    in_s: int
    out_mv: int
    out_s: int
    subgroup: bool
    bias: bool

    @property
    def maps(self) -> int:
        return 10 if self.subgroup else 5

    @property
    def mix(self) -> int:
        """Invariant components of a multivector: scalar, and for the subgroup the pseudoscalar."""
        return 2 if self.subgroup else 1

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters, in the order in which they are concatenated for packing."""
        shapes: dict[str, tuple[int, ...]] = {"weight": (self.out_mv, self.in_mv, self.maps)}
        if self.in_s:
            shapes["s2mvs.weight"] = (self.mix * self.out_mv, self.in_s)
            if self.bias:
                shapes["s2mvs.bias"] = (self.mix * self.out_mv,)
        elif self.bias:
            shapes["bias"] = (self.out_mv, 1)
        if self.out_s:
            shapes["mvs2s.weight"] = (self.out_s, self.mix * self.in_mv)
            if self.bias:
                shapes["mvs2s.bias"] = (self.out_s,)
        if self.in_s and self.out_s:
            shapes["s2s.weight"] = (self.out_s, self.in_s)
        return shapes

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the matrices of Z, V and F."""
        z = (2 * self.in_mv + self.in_s, 2 * self.out_mv + self.out_s)
        pair = (2 * self.in_mv, 2 * self.out_mv)
        return z, pair, pair


#: columns of a panel of the native layout
PANEL = 32


@lru_cache(maxsize=256)
def sources(shape: LinearShape, panels: bool) -> torch.Tensor:
    """Where each number of the packed weight comes from: 0 for a zero, else ± (1 + position in the parameters).

    The packed weight is Z, V and F, each (inputs, outputs), and the bias of Z. With `panels` a matrix is stored as
    ⌈outputs / PANEL⌉ panels (inputs, PANEL), filled up with zeros, as the native product wants it.
    """
    numbers, position = {}, 0
    for name, size in shape.parameters().items():
        count = torch.Size(size).numel()
        numbers[name] = torch.arange(position + 1, position + 1 + count, dtype=torch.int32).view(size)
        position += count
    n_in, n_out, mix = shape.in_mv, shape.out_mv, shape.mix
    a = numbers["weight"].permute(2, 1, 0)  # (maps, in, out)
    none = torch.zeros_like(a[0])
    b = list(a) + [none] * (10 - len(a))
    z = torch.zeros(shape.matrices[0], dtype=torch.int32)
    z[:n_in, :n_out], z[n_in : 2 * n_in, :n_out] = b[0], -b[9]
    z[:n_in, n_out : 2 * n_out], z[n_in : 2 * n_in, n_out : 2 * n_out] = b[5], b[4]
    bias = torch.zeros(shape.matrices[0][1], dtype=torch.int32)
    if shape.in_s:
        m = numbers["s2mvs.weight"].T  # (in_s, mix·out)
        z[2 * n_in :, :n_out] = m[:, 0::mix]
        if mix == 2:
            z[2 * n_in :, n_out : 2 * n_out] = m[:, 1::2]
        if shape.bias:
            bias[:n_out] = numbers["s2mvs.bias"][0::mix]
            if mix == 2:
                bias[n_out : 2 * n_out] = numbers["s2mvs.bias"][1::2]
    elif shape.bias:
        bias[:n_out] = numbers["bias"][:, 0]
    if shape.out_s:
        m = numbers["mvs2s.weight"].T  # (mix·in, out_s)
        z[:n_in, 2 * n_out :] = m[0::mix]
        if mix == 2:
            z[n_in : 2 * n_in, 2 * n_out :] = m[1::2]
        if shape.in_s:
            z[2 * n_in :, 2 * n_out :] = numbers["s2s.weight"].T
        if shape.bias:
            bias[2 * n_out :] = numbers["mvs2s.bias"]
    v = torch.cat([torch.cat([b[1], b[6]], 1), torch.cat([-b[8], b[3]], 1)])
    f = torch.cat([torch.cat([b[2], b[7]], 1), torch.cat([-b[7], b[2]], 1)])
    parts = []
    for matrix in (z, v, f):
        if panels:
            padded = F.pad(matrix, (0, -matrix.shape[1] % PANEL))
            matrix = padded.view(matrix.shape[0], -1, PANEL).transpose(0, 1)
        parts.append(matrix.reshape(-1))
    return torch.cat([*parts, F.pad(bias, (0, -bias.numel() % PANEL)) if panels else bias])


@lru_cache(maxsize=256)
def _gather(shape: LinearShape, device, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    source = sources(shape, False).to(device).long()
    return source.abs(), source.sign().to(dtype)


def pack_weight(parameters: list[torch.Tensor], shape: LinearShape) -> torch.Tensor:
    """Parameters in the order of `LinearShape.parameters` -> the packed weight, one vector; differentiable."""
    flat = torch.cat([parameters[0].new_zeros(1), *(p.reshape(-1) for p in parameters)])
    index, sign = _gather(shape, flat.device, flat.dtype)
    return flat[index] * sign


def linear(x: torch.Tensor, packed: torch.Tensor, shape: LinearShape) -> torch.Tensor:
    """Rows (…, 16 in_mv + in_s) times a packed weight -> rows (…, 16 out_mv + out_s)."""
    z, v, f = split(x, shape.in_mv)
    packed = packed.to(x.dtype)
    sizes = [k * n for k, n in shape.matrices]
    wz, wv, wf, bias = packed.split([*sizes, shape.matrices[0][1]])
    wz, wv, wf = (w.view(size) for w, size in zip((wz, wv, wf), shape.matrices))
    out = F.linear(z, wz.T, bias) if shape.bias else z @ wz
    return join(out, v @ wv, f @ wf)


# ------------------------------------------------------------------------------------------------ products


@lru_cache(maxsize=2)
def _product_terms(bivector: bool) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For each half plane of the result its terms (j, k, sign) in half planes of x and y."""
    where = {component: half for half, component in enumerate(_ORDER)}
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(16)]
    for i, j, k, sign in algebra.product_terms():
        half = where[i]
        rows[half].append((where[j], where[k], sign * _SIGNS[half] * _SIGNS[where[j]] * _SIGNS[where[k]]))
    return tuple(tuple(row) if bivector or half < 10 else () for half, row in enumerate(rows))


def half_planes(x: torch.Tensor, channels: int) -> torch.Tensor:
    """Rows -> (…, 16, C), the half planes without the scalar channels."""
    z, v, f = split(x, channels)
    planes = torch.cat([z[..., : 2 * channels], v.flatten(-2), f.flatten(-2)], dim=-1)
    return planes.unflatten(-1, (16, channels))


@lru_cache(maxsize=16)
def _coefficients(bivector: bool, device, dtype) -> torch.Tensor:
    """(16 out, 16 · 16) coefficients of the product in half planes."""
    dense = torch.zeros(16, 16, 16, dtype=dtype)
    for i, row in enumerate(_product_terms(bivector)):
        for j, k, sign in row:
            dense[i, j, k] = sign
    return dense.view(16, 256).to(device)


def product(x: torch.Tensor, y: torch.Tensor, channels: int, s: torch.Tensor | None, bivector: bool = True):
    """Geometric product of the multivector channels of two rows, with s (…, S) or nothing as its scalar channels."""
    a, b = half_planes(x, channels), half_planes(y, channels)
    outer = (a.unsqueeze(-2) * b.unsqueeze(-3)).flatten(-3, -2)  # (…, j·k, C)
    out = (_coefficients(bivector, x.device, x.dtype) @ outer).flatten(-2)
    if s is None or s.shape[-1] == 0:
        return out
    cut = 2 * channels
    return torch.cat([out[..., :cut], s, out[..., cut:]], dim=-1)


# ------------------------------------------------------------------------------------------------ norms and gates


def squared_norms(planes: torch.Tensor) -> torch.Tensor:
    """(…, 16, C) half planes -> (…, C), the sum over the grades of |<~x x>_grade|."""
    signed = planes * planes * half_plane_signs(planes.device, planes.dtype)[:, None]
    grades = (
        signed[..., 0, :],
        signed[..., 1, :],
        signed[..., 2:10:2, :].sum(-2),
        signed[..., 3:10:2, :].sum(-2),
        signed[..., 10:, :].sum(-2),
    )
    return sum(grade.abs() for grade in grades)


def gain_row(weight_mv: torch.Tensor, weight_s: torch.Tensor) -> torch.Tensor:
    """Gains (C, 5) of the grades and (S,) of the scalars as one row of 16 C + S factors."""
    gain = weight_mv[:, [algebra.GRADES[component] for component in _ORDER]].T.reshape(-1)
    cut = 2 * weight_mv.shape[0]
    return torch.cat([gain[:cut], weight_s, gain[cut:]])


def norm(x: torch.Tensor, channels: int, gain: torch.Tensor | None = None, epsilon: float = 0.01) -> torch.Tensor:
    """Rows divided by the root of their mean norm (at least epsilon), scalars by a plain layer norm; then the gains."""
    s = scalars(x, channels)
    mean = squared_norms(half_planes(x, channels)).mean(-1, keepdim=True)
    factor = torch.rsqrt(mean.clamp(min=epsilon))
    cut = 2 * channels
    parts = [x[..., :cut] * factor]
    if s.shape[-1]:
        parts.append(F.layer_norm(s, s.shape[-1:]))
    parts.append(x[..., cut + s.shape[-1] :] * factor)
    out = torch.cat(parts, dim=-1)
    return out if gain is None else out * gain.to(out.dtype)


def gate(x: torch.Tensor, channels: int, function) -> torch.Tensor:
    """Each multivector channel times function(its scalar part), scalars through the function itself."""
    cut = 2 * channels
    s = scalars(x, channels)
    factor = function(x[..., :channels])
    planes = half_planes(x, channels) * factor.unsqueeze(-2)
    planes = planes.flatten(-2)
    return torch.cat([planes[..., :cut], function(s), planes[..., cut:]], dim=-1)


def dropout(x: torch.Tensor, channels: int, p: float) -> torch.Tensor:
    """Training-time dropout: each grade of a channel as a whole, scalars one by one."""
    cut = 2 * channels
    s = scalars(x, channels)
    kept = F.dropout(torch.ones(*x.shape[:-1], 5, channels, dtype=x.dtype, device=x.device), p=p)
    grades = torch.tensor([algebra.GRADES[component] for component in _ORDER], device=x.device)
    planes = (half_planes(x, channels) * kept.index_select(-2, grades)).flatten(-2)
    return torch.cat([planes[..., :cut], F.dropout(s, p=p), planes[..., cut:]], dim=-1)


# ------------------------------------------------------------------------------------------------ heads


def heads(x: torch.Tensor, channels: int, parts: int, count: int, signed: tuple[bool, ...]) -> list[torch.Tensor]:
    """Normalised features of each head out of the rows that a query, key, value map has made.

    Parameters
    ----------
    x : rows (…, N, 16 channels + S)      channels and S in the order (part, hidden, head)
    parts : int                            how many of query, key, value are in x
    count : int                            heads
    signed : one bool a part               whether the signs of the inner product are applied (queries)

    Returns
    -------
    a list of (…, count, N, 16 hidden + hidden_s), one a part; half planes before scalars
    """
    hidden = channels // (parts * count)
    s = scalars(x, channels)
    hidden_s = s.shape[-1] // (parts * count)
    planes = half_planes(x, channels).unflatten(-1, (parts, hidden, count))  # (…, N, 16, parts, hidden, heads)
    g = planes * planes * half_plane_signs(x.device, x.dtype)[:, None, None, None]
    grades = (
        g[..., 0, :, :, :],
        g[..., 1, :, :, :],
        g[..., 2:10:2, :, :, :].sum(-4),
        g[..., 3:10:2, :, :, :].sum(-4),
        g[..., 10:, :, :, :].sum(-4),
    )
    mean = sum(grade.abs() for grade in grades).mean(-2)  # (…, N, parts, heads)
    factor = torch.rsqrt(mean.clamp(min=0.01))
    planes = planes * factor[..., None, :, None, :]
    split_s = s.unflatten(-1, (parts, hidden_s, count)) if hidden_s else None
    out = []
    for part in range(parts):
        one = planes[..., part, :, :]  # (…, N, 16, hidden, heads)
        if signed[part]:
            one = one * half_plane_signs(x.device, x.dtype)[:, None, None]
        features = one.flatten(-3, -2).movedim(-1, -3)
        if split_s is not None:
            one_s = split_s[..., part, :, :].movedim(-1, -3)  # (…, heads, N, hidden_s)
            features = torch.cat([features, F.layer_norm(one_s, one_s.shape[-1:])], dim=-1)
        out.append(features)
    return out


def merge_heads(x: torch.Tensor, hidden: int) -> torch.Tensor:
    """(…, heads, N, 16 hidden + hidden_s) -> rows (…, N, …) with channels in the order (head, hidden)."""
    planes = x[..., : 16 * hidden].unflatten(-1, (16, hidden)).movedim(-4, -2).flatten(-2)  # (…, N, 16, heads·hidden)
    s = x[..., 16 * hidden :].movedim(-3, -2).flatten(-2)
    planes, cut = planes.flatten(-2), 2 * planes.shape[-1]
    return torch.cat([planes[..., :cut], s, planes[..., cut:]], dim=-1)


def concat(x: torch.Tensor, x_channels: int, y: torch.Tensor, y_channels: int) -> torch.Tensor:
    """Rows with the channels of x, then those of y, in both streams."""
    planes = torch.cat([half_planes(x, x_channels), half_planes(y, y_channels)], dim=-1).flatten(-2)
    cut = 2 * (x_channels + y_channels)
    return torch.cat([planes[..., :cut], scalars(x, x_channels), scalars(y, y_channels), planes[..., cut:]], dim=-1)
