"""Scaled dot-product attention by name of a backend, and helpers for sets of different length.

Backends: `torch` (the default: masks and causal), `ragged` (our own, works on the CPU: items of all sets one behind
the other, no padding), and those of other packages, loaded on first use: `varlen`, `flex` (torch), `xformers`, `flash`.
Without `backend=` the keyword arguments choose, in the order of `_KEYWORDS`.
"""

import importlib
import math

import torch
import torch.nn.functional as F

#: backend -> keyword arguments that select it, in the order in which they are looked at
_KEYWORDS = {
    "ragged": ("lengths",),
    "varlen": ("cu_seq_q", "cu_seq_k", "max_q", "max_k"),
    "xformers": ("attn_bias", "op"),
    "flex": ("score_mod", "block_mask"),
    "flash": ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
}
BACKENDS = ("torch", *_KEYWORDS)


def buckets(lengths: list[int]) -> dict[int, list[int]]:
    """Sets of the same length, so that each bucket is one dense call: length -> indices; empty sets are left out."""
    found: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        if length > 0:
            found.setdefault(length, []).append(index)
    return found


def _ragged(q, k, v, lengths, lengths_k=None, **kwargs):
    """Attention inside each set of consecutive items: q (…, H, T, D), lengths whole numbers with sum T.

    Equal lengths share one call. lengths_k gives the sets of keys where they differ from those of the queries; a set
    without keys leaves zeros.
    """
    lengths = [int(n) for n in lengths]
    lengths_k = lengths if lengths_k is None else [int(n) for n in lengths_k]
    if sum(lengths) != q.shape[-2] or sum(lengths_k) != k.shape[-2] or len(lengths) != len(lengths_k):
        raise ValueError(
            f"lengths: expected sums {q.shape[-2]} (queries) and {k.shape[-2]} (keys) over equally many sets, "
            f"found {sum(lengths)} and {sum(lengths_k)} over {len(lengths)} and {len(lengths_k)}"
        )
    starts, starts_k = [0], [0]
    for n, m in zip(lengths, lengths_k):
        starts.append(starts[-1] + n)
        starts_k.append(starts_k[-1] + m)
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, pair in enumerate(zip(lengths, lengths_k)):
        if min(pair) > 0:
            shapes.setdefault(pair, []).append(index)

    def gather(x, starts, members, n):
        base = torch.tensor([starts[i] for i in members], device=x.device)
        index = (base[:, None] + torch.arange(n, device=x.device)).reshape(-1)
        return x.index_select(-2, index).unflatten(-2, (len(members), n)).movedim(-3, 0), index

    heads = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    out = v.new_zeros(*heads, q.shape[-2], v.shape[-1])
    for (n, m), members in shapes.items():
        part, index = gather(q, starts, members, n)
        keys, _ = gather(k, starts_k, members, m)
        values, _ = gather(v, starts_k, members, m)
        done = _torch(part, keys, values, **kwargs)  # (sets, …, H, n, D)
        out = out.index_copy(-2, index, done.movedim(0, -3).flatten(-3, -2))
    return out


def _torch(q, k, v, **kwargs):
    return F.scaled_dot_product_attention(q, k, v, **kwargs)


def _varlen(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, **kwargs):
    module = importlib.import_module("torch.nn.attention.varlen")
    width, out_width = q.shape[-1], v.shape[-1]
    dtype = q.dtype if q.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16

    def prepare(x):  # (1, H, T, D) -> (T, H, D rounded up to 8)
        return F.pad(x[0].transpose(0, 1), (0, -x.shape[-1] % 8)).to(dtype)

    out = module.varlen_attn(
        prepare(q), prepare(k), prepare(v), cu_seq_q, cu_seq_k, max_q, max_k, scale=1 / math.sqrt(width), **kwargs
    )
    return out[..., :out_width].transpose(0, 1)[None].to(q.dtype)


def _flex(q, k, v, **kwargs):
    return importlib.import_module("torch.nn.attention.flex_attention").flex_attention(q, k, v, **kwargs)


def _xformers(q, k, v, **kwargs):
    module = importlib.import_module("xformers.ops")
    swapped = (x.transpose(-3, -2).contiguous() for x in (q, *(y.expand(*q.shape[:-2], *y.shape[-2:]) for y in (k, v))))
    return module.memory_efficient_attention(*swapped, **kwargs).transpose(-3, -2)


def _flash(q, k, v, **kwargs):
    module = importlib.import_module("flash_attn")
    parts = (x[0].transpose(0, 1).to(torch.float16 if x.dtype == torch.float16 else torch.bfloat16) for x in (q, k, v))
    return module.flash_attn_varlen_func(*parts, **kwargs).transpose(0, 1)[None].to(q.dtype)


_CALLS = {"torch": _torch, "ragged": _ragged, "varlen": _varlen, "flex": _flex, "xformers": _xformers, "flash": _flash}


def choose(backend: str | None = None, **kwargs) -> str:
    """Name of the backend that these keyword arguments mean; ValueError for a name that there is not."""
    if backend == "native":  # the other common name of torch's own
        backend = "torch"
    if backend is not None:
        if backend not in BACKENDS:
            raise ValueError(f"attention backend: expected one of {', '.join(BACKENDS)}, found {backend!r}")
        return backend
    for name, keywords in _KEYWORDS.items():
        if any(kwargs.get(keyword) is not None for keyword in keywords):
            return name
    return "torch"


def plain(kwargs: dict) -> bool:
    """Whether these keyword arguments mean attention of all items, or of all in a set, to each other and no more."""
    if not set(kwargs) <= {"lengths", "backend"}:
        return False
    if kwargs.get("lengths") is None:
        return kwargs.get("backend") in (None, "torch", "native")
    return kwargs.get("backend") in (None, "ragged")


def scaled_dot_product_attention(q, k, v, backend: str | None = None, **kwargs):
    """softmax(q kᵀ / √D) v over (…, H, N, D) by the chosen backend.

    Raises
    ------
    ValueError    the backend is unknown, not installed, or does not run on this device
    """
    name = choose(backend, **kwargs)
    if name in ("varlen", "xformers", "flash") and q.device.type == "cpu":
        raise ValueError(f"attention backend '{name}': expected tensors on a GPU, found them on the CPU; use 'ragged'")
    try:
        return _CALLS[name](q, k, v, **kwargs)
    except ImportError as error:
        raise ValueError(f"attention backend '{name}': expected it to be installed, found {error}") from None
