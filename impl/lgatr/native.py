"""The only caller of the C kernels (csrc/lgatr.h): registered torch operators on rows, with their gradients.

The operators reach C by data pointer, so building never needs torch. They run on CPU tensors of float32 and float64;
`usable` tells, and everything that they do `rows.py` does in plain torch. They can be differentiated once: for second
derivatives, use `disabled()`.

Parameters of several linear maps and the gains of a norm are packed into one vector (`pack_weight`), whose gradient is
unpacked again, so the networks keep their plain parameters.
"""

import contextlib
import hashlib
import os
import threading
import weakref
from functools import lru_cache
from pathlib import Path

import torch

from . import precision, rows

try:
    from . import _native
except ImportError:  # not built: rows.py does the work
    _native = None

NONLINEARITIES = {"relu": 0, "sigmoid": 1, "tanh": 2, "gelu": 3, "silu": 4}
LEVELS = ("plain", "avx2", "avx512")
_DTYPES = {torch.float32: 0, torch.float64: 1}
_local = threading.local()
_switched_off = 0


def available() -> bool:
    """Whether the library has been built."""
    return _native is not None


@contextlib.contextmanager
def disabled():
    """Do everything in plain torch inside, also what the library could do; for the whole process."""
    global _switched_off
    _switched_off += 1
    try:
        yield
    finally:
        _switched_off -= 1


def usable(x: torch.Tensor) -> bool:
    """Whether the kernels can take this tensor: on the CPU, float32 or float64, no autocast inside `naive_amp`."""
    return (
        _native is not None
        and not _switched_off
        and x.device.type == "cpu"
        and x.dtype in _DTYPES
        and x.numel() > 0
        and not (precision.naive_active() and precision.autocast_active())
    )


def level() -> int:
    """Instructions used: position in `LEVELS`; HARNESS_LGATR_LEVEL takes a lower one."""
    return _level(os.environ.get("HARNESS_LGATR_LEVEL", ""))


@lru_cache(maxsize=8)
def _level(wish: str) -> int:
    best = _native.lib.lgatr_level()
    if wish == "":
        return best
    if wish not in LEVELS:
        raise ValueError(f"HARNESS_LGATR_LEVEL: expected one of {', '.join(LEVELS)}, found '{wish}'")
    return min(best, LEVELS.index(wish))


def path() -> str:
    """File of the library really loaded."""
    return _native.__file__


def source_digest() -> str:
    """Digest of the sources that the library was built from."""
    return _native.ffi.string(_native.lib.lgatr_source_digest()).decode()


def tree_digest() -> str | None:
    """The same of the sources beside the package now, None where there are none (csrc/build.py says how)."""
    folder = Path(__file__).resolve().parents[2] / "csrc"
    files = sorted(["lgatr.c", "lgatr.h", "lgatr_body.h", "build.py"])
    if not all((folder / file).is_file() for file in files):
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.encode() + b"\0" + (folder / file).read_bytes() + b"\0")
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------- calling C


def _at(x: torch.Tensor | None):
    """The tensor's data as a pointer for C; the tensor must outlive the call."""
    return _native.ffi.NULL if x is None else _native.ffi.cast("void *", x.data_ptr())


def _at_int64(x: torch.Tensor):
    return _native.ffi.cast("int64_t *", x.data_ptr())


def _at_int32(x: torch.Tensor):
    return _native.ffi.cast("int32_t *", x.data_ptr())


def _kind(x: torch.Tensor) -> int:
    return 2 * level() + _DTYPES[x.dtype]


def _scratch(numbers: int, like: torch.Tensor):
    """Working memory of this thread, kept between calls: fresh pages cost more than the kernels save."""
    kept = getattr(_local, "scratch", None)
    size = numbers * like.element_size()
    if kept is None or kept.numel() < size:
        kept = _local.scratch = torch.empty(size + size // 4, dtype=torch.uint8)
    return _at(kept)


def _shape(numbers):
    return _native.ffi.new("lgatr_shape *", [*numbers, 0])


def _once() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "native kernels: expected one differentiation, found create_graph=True; use impl.lgatr.native.disabled()"
        )


def _rows_of(x: torch.Tensor) -> int:
    return x.numel() // x.shape[-1]


_library = torch.library.Library("harness_lgatr", "DEF")


def _plain(x: torch.Tensor) -> bool:
    """Whether nobody looks at the operators: no compiler, no mode, no transform, no subclass."""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
    )


class _Operator:
    """A registered operator, or what is behind it where nobody looks: that spares 0.1 ms a call and its gradient.

    gradient(ctx, gradient, back) and keep(ctx, inputs, output) are those of the operator, whose first output alone is
    differentiated; where the first argument is a list of tensors, `listed` says so.
    """

    def __init__(self, operator, forward, back, gradient, keep, listed):
        self.operator, self.run, self.listed = operator, forward, listed

        class Direct(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *given):
                given = _gathered(given) if listed else given
                out = forward(*given)
                keep(ctx, given, out)
                return out

            @staticmethod
            def backward(ctx, down, *_):
                found = gradient(ctx, down, back)
                return (*found[1:], *found[0]) if listed else found

        self.direct = Direct

    def __call__(self, *given):
        first = given[0][0] if self.listed else given[0]
        if not _plain(first):
            return self.operator(*given)
        if not torch.is_grad_enabled():
            return self.run(*given)
        return self.direct.apply(*given[1:], *given[0]) if self.listed else self.direct.apply(*given)


def _gathered(given):
    """(others, *tensors) -> (list of tensors, others): an autograd function sees tensors outside lists only."""
    return list(given[1:]), given[0]


def _register(schema: str, forward, backward, gradient, keep, fake, backward_fake, listed=False):
    """Define `name(...)` and `name_back(...)` with C behind them, and tie them for autograd."""
    name = schema.split("(")[0]
    _library.define(schema)
    _library.impl(name, forward, "CPU")
    torch.library.register_fake(f"harness_lgatr::{name}", fake, lib=_library)
    back_schema, function = backward
    back_name = back_schema.split("(")[0]
    _library.define(back_schema)
    _library.impl(back_name, function, "CPU")
    torch.library.register_fake(f"harness_lgatr::{back_name}", backward_fake, lib=_library)
    operator, back = (getattr(torch.ops.harness_lgatr, word).default for word in (name, back_name))

    def registered(ctx, down, *_):
        return gradient(ctx, down, back)

    torch.library.register_autograd(f"harness_lgatr::{name}", registered, setup_context=keep, lib=_library)
    return _Operator(operator, forward, function, gradient, keep, listed)


# ------------------------------------------------------------------------------------------------- packing


def _pack(parameters, source):
    flat = torch.cat([parameters[0].new_zeros(1), *(p.reshape(-1) for p in parameters)])
    out = torch.empty(source.numel(), dtype=flat.dtype)
    _native.lib.lgatr_pack(_kind(flat), source.numel(), _at_int32(source), _at(flat), _at(out))
    return out


def _unpack(gradient, source, count):
    gradient = gradient.contiguous()
    out = torch.zeros(count + 1, dtype=gradient.dtype)
    _native.lib.lgatr_unpack(_kind(gradient), source.numel(), _at_int32(source), _at(gradient), _at(out))
    return out[1:].clone()


def _pack_keep(ctx, inputs, output):
    parameters, ctx.source = inputs
    ctx.shapes = [p.shape for p in parameters]


def _pack_gradient(ctx, gradient, back):
    _once()
    counts = [shape.numel() for shape in ctx.shapes]
    flat = back(gradient, ctx.source, sum(counts))
    return [part.view(shape) for part, shape in zip(flat.split(counts), ctx.shapes)], None


_op_pack = _register(
    "pack(Tensor[] parameters, Tensor source) -> Tensor",
    _pack,
    ("pack_back(Tensor gradient, Tensor source, int count) -> Tensor", _unpack),
    _pack_gradient,
    _pack_keep,
    lambda parameters, source: parameters[0].new_empty(source.numel()),
    lambda gradient, source, count: gradient.new_empty(count),
    listed=True,
)


_remembered: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def remember(owner, key: tuple, parameters, make):
    """What make() returns, from the owner's last call if the parameters still have the same numbers.

    The numbers themselves are compared (0.1 ms a block against 0.6 ms for packing): version counters do not see
    changes through `.data`.
    """
    with torch.no_grad():
        flat = torch.cat([p.reshape(-1) for p in parameters])
    kept = _remembered.get(owner)
    if kept is None or kept[0] != key or kept[1].dtype != flat.dtype or not torch.equal(kept[1], flat):
        kept = _remembered[owner] = (key, flat, make())
    return kept[2]


def _encoded(source: torch.Tensor) -> torch.Tensor:
    """0 or ± (1 + position) as C wants it: twice the position after a leading zero, odd for minus."""
    return (2 * source.abs() + (source < 0)).to(torch.int32).contiguous()


@lru_cache(maxsize=256)
def _sources(shapes: tuple[rows.LinearShape, ...], gains: tuple[int, int] | None) -> torch.Tensor:
    """Source list of several packed weights, one behind the other, then of a row of gains (channels, scalars)."""
    parts, offset = [], 0
    for shape in shapes:
        source = rows.sources(shape, True)
        parts.append(source + source.sign() * offset)
        offset += sum(torch.Size(size).numel() for size in shape.parameters().values())
    if gains is not None:
        channels, scalars = gains
        numbers = torch.arange(offset + 1, offset + 1 + 5 * channels + scalars)
        row = rows.gain_row(numbers[: 5 * channels].view(channels, 5), numbers[5 * channels :])
        parts.append(row.to(torch.int32))
    return _encoded(torch.cat(parts))


def pack_weight(parameters: list[torch.Tensor], shape: rows.LinearShape) -> torch.Tensor:
    """Parameters in the order of `LinearShape.parameters` -> the packed weight with panels."""
    return _op_pack(parameters, _sources((shape,), None))


def _packed(owner, linears, norm) -> torch.Tensor:
    """Packed weights of several maps and the gains of a norm; kept at the owner while no gradient is wanted."""
    parameters = [p for linear in linears for p in linear.ordered_parameters()]
    gains = None
    if norm.weight_mv is not None:
        parameters += [norm.weight_mv, norm.weight_s]
        gains = (norm.weight_mv.shape[0], norm.weight_s.shape[0])
    source = _sources(tuple(linear.shape for linear in linears), gains)
    recorded = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
    if recorded or torch.compiler.is_compiling():
        return _op_pack(parameters, source)
    return remember(owner, ("fused",), parameters, lambda: _op_pack(parameters, source))


# ------------------------------------------------------------------------------------------------- linear map


def _linear(x, weight, shape):
    s = _shape(shape)
    out = torch.empty(*x.shape[:-1], 16 * shape[2] + shape[3], dtype=x.dtype)
    x = x.contiguous()
    _native.lib.lgatr_linear_forward(_kind(x), s, _rows_of(x), _at(weight), _at(x), _at(out))
    return out


def _linear_back(gradient, x, weight, shape):
    s = _shape(shape)
    x, gradient = x.contiguous(), gradient.contiguous()
    dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
    scratch = _scratch(_native.lib.lgatr_linear_scratch(s), x)
    _native.lib.lgatr_linear_backward(
        _kind(x), s, _rows_of(x), _at(weight), _at(x), _at(gradient), _at(dx), _at(dweight), scratch
    )
    return dx, dweight


def _linear_keep(ctx, inputs, output):
    x, weight, ctx.shape = inputs
    ctx.save_for_backward(x, weight)


def _linear_gradient(ctx, gradient, back):
    _once()
    return *back(gradient, *ctx.saved_tensors, ctx.shape), None


_op_linear = _register(
    "linear(Tensor x, Tensor weight, int[] shape) -> Tensor",
    _linear,
    ("linear_back(Tensor gradient, Tensor x, Tensor weight, int[] shape) -> (Tensor, Tensor)", _linear_back),
    _linear_gradient,
    _linear_keep,
    lambda x, weight, shape: x.new_empty(*x.shape[:-1], 16 * shape[2] + shape[3]),
    lambda gradient, x, weight, shape: (torch.empty_like(x), torch.empty_like(weight)),
)


def linear(x: torch.Tensor, packed: torch.Tensor, shape: rows.LinearShape) -> torch.Tensor:
    """`rows.linear` with a weight in panels."""
    numbers = [shape.in_mv, shape.in_s, shape.out_mv, shape.out_s, int(shape.bias)]
    return _op_linear(x, packed.to(x.dtype), numbers)


# ------------------------------------------------------------------------------------------------- product


def _product(x, y, s, channels, bivector):
    x, y, s = x.contiguous(), y.contiguous(), s.contiguous()
    out = torch.empty(*x.shape[:-1], x.shape[-1] + s.shape[-1], dtype=x.dtype)
    _native.lib.lgatr_product_forward(
        _kind(x), channels, s.shape[-1], int(bivector), _rows_of(x), _at(x), _at(y), _at(s), _at(out)
    )
    return out


def _product_back(gradient, x, y, channels, bivector):
    x, y, gradient = x.contiguous(), y.contiguous(), gradient.contiguous()
    scalars = gradient.shape[-1] - 16 * channels
    dx, dy, ds = torch.empty_like(x), torch.empty_like(y), gradient.new_empty(*gradient.shape[:-1], scalars)
    _native.lib.lgatr_product_backward(
        _kind(x),
        channels,
        scalars,
        int(bivector),
        _rows_of(x),
        _at(x),
        _at(y),
        _at(gradient),
        _at(dx),
        _at(dy),
        _at(ds),
    )
    return dx, dy, ds


def _product_keep(ctx, inputs, output):
    x, y, _, ctx.channels, ctx.bivector = inputs
    ctx.save_for_backward(x, y)


def _product_gradient(ctx, gradient, back):
    _once()
    x, y = ctx.saved_tensors
    return *back(gradient, x, y, ctx.channels, ctx.bivector), None, None


_op_product = _register(
    "product(Tensor x, Tensor y, Tensor s, int channels, bool bivector) -> Tensor",
    _product,
    (
        "product_back(Tensor gradient, Tensor x, Tensor y, int channels, bool bivector) -> (Tensor, Tensor, Tensor)",
        _product_back,
    ),
    _product_gradient,
    _product_keep,
    lambda x, y, s, channels, bivector: x.new_empty(*x.shape[:-1], x.shape[-1] + s.shape[-1]),
    lambda gradient, x, y, channels, bivector: (
        torch.empty_like(x),
        torch.empty_like(y),
        gradient.new_empty(*gradient.shape[:-1], gradient.shape[-1] - 16 * channels),
    ),
)


def product(x, y, channels: int, s: torch.Tensor | None, bivector: bool = True) -> torch.Tensor:
    """`rows.product`."""
    s = x.new_empty(*x.shape[:-1], 0) if s is None else s
    return _op_product(x, y, s, channels, bivector)


# ------------------------------------------------------------------------------------------------- norm, gate


def _norm(x, gain, channels, epsilon):
    x = x.contiguous()
    out, scalars = torch.empty_like(x), x.shape[-1] - 16 * channels
    scratch = _scratch(_native.lib.lgatr_norm_scratch(channels, scalars), x)
    _native.lib.lgatr_norm_forward(
        _kind(x), channels, scalars, epsilon, _rows_of(x), _at(x), _at(gain), _at(out), scratch
    )
    return out


def _norm_back(gradient, x, gain, channels, epsilon):
    x, gradient = x.contiguous(), gradient.contiguous()
    dx, scalars = torch.empty_like(x), x.shape[-1] - 16 * channels
    dgain = torch.zeros(x.shape[-1] if gain is not None else 0, dtype=x.dtype)
    scratch = _scratch(_native.lib.lgatr_norm_scratch(channels, scalars), x)
    _native.lib.lgatr_norm_backward(
        _kind(x),
        channels,
        scalars,
        epsilon,
        _rows_of(x),
        _at(x),
        _at(gain),
        _at(gradient),
        _at(dx),
        _at(None if gain is None else dgain),
        scratch,
    )
    return dx, dgain


def _norm_keep(ctx, inputs, output):
    x, gain, ctx.channels, ctx.epsilon = inputs
    ctx.gained = gain is not None
    ctx.save_for_backward(x, *([gain] if ctx.gained else []))


def _norm_gradient(ctx, gradient, back):
    _once()
    x, gain = ctx.saved_tensors if ctx.gained else (*ctx.saved_tensors, None)
    dx, dgain = back(gradient, x, gain, ctx.channels, ctx.epsilon)
    return dx, dgain if ctx.gained else None, None, None


_op_norm = _register(
    "norm(Tensor x, Tensor? gain, int channels, float epsilon) -> Tensor",
    _norm,
    ("norm_back(Tensor gradient, Tensor x, Tensor? gain, int channels, float epsilon) -> (Tensor, Tensor)", _norm_back),
    _norm_gradient,
    _norm_keep,
    lambda x, gain, channels, epsilon: torch.empty_like(x),
    lambda gradient, x, gain, channels, epsilon: (
        torch.empty_like(x),
        x.new_empty(x.shape[-1] if gain is not None else 0),
    ),
)


def norm(x: torch.Tensor, gain: torch.Tensor | None, channels: int, epsilon: float) -> torch.Tensor:
    """`rows.norm`."""
    return _op_norm(x, None if gain is None else gain.to(x.dtype).contiguous(), channels, epsilon)


def _gate(x, channels, nonlinearity):
    x = x.contiguous()
    out = torch.empty_like(x)
    _native.lib.lgatr_gate_forward(
        _kind(x),
        channels,
        x.shape[-1] - 16 * channels,
        nonlinearity,
        _rows_of(x),
        _at(x),
        _at(out),
        _scratch(2 * channels, x),
    )
    return out


def _gate_back(gradient, x, channels, nonlinearity):
    x, gradient = x.contiguous(), gradient.contiguous()
    dx = torch.empty_like(x)
    _native.lib.lgatr_gate_backward(
        _kind(x),
        channels,
        x.shape[-1] - 16 * channels,
        nonlinearity,
        _rows_of(x),
        _at(x),
        _at(gradient),
        _at(dx),
        _scratch(2 * channels, x),
    )
    return dx


def _gate_keep(ctx, inputs, output):
    x, ctx.channels, ctx.nonlinearity = inputs
    ctx.save_for_backward(x)


def _gate_gradient(ctx, gradient, back):
    _once()
    return back(gradient, *ctx.saved_tensors, ctx.channels, ctx.nonlinearity), None, None


_op_gate = _register(
    "gate(Tensor x, int channels, int nonlinearity) -> Tensor",
    _gate,
    ("gate_back(Tensor gradient, Tensor x, int channels, int nonlinearity) -> Tensor", _gate_back),
    _gate_gradient,
    _gate_keep,
    lambda x, channels, nonlinearity: torch.empty_like(x),
    lambda gradient, x, channels, nonlinearity: torch.empty_like(x),
)


def gate(x: torch.Tensor, channels: int, nonlinearity: str) -> torch.Tensor:
    """`rows.gate` with the nonlinearity by name."""
    return _op_gate(x, channels, NONLINEARITIES[nonlinearity])


# ------------------------------------------------------------------------------------------------- heads


def _heads_sizes(x, channels, parts, count):
    hidden = channels // (parts * count)
    hidden_s = (x.shape[-1] - 16 * channels) // (parts * count)
    return hidden, hidden_s, 16 * hidden + hidden_s


def _heads(x, channels, parts, count, signed):
    x = x.contiguous()
    hidden, hidden_s, depth = _heads_sizes(x, channels, parts, count)
    out = torch.empty(*x.shape[:-1], parts, count, depth, dtype=x.dtype)
    _native.lib.lgatr_heads_forward(
        _kind(x), parts, count, hidden, hidden_s, int(signed), _rows_of(x), _at(x), _at(out)
    )
    return out


def _heads_back(gradient, x, channels, parts, count, signed):
    x, gradient = x.contiguous(), gradient.contiguous()
    hidden, hidden_s, _ = _heads_sizes(x, channels, parts, count)
    dx = torch.empty_like(x)
    _native.lib.lgatr_heads_backward(
        _kind(x), parts, count, hidden, hidden_s, int(signed), _rows_of(x), _at(x), _at(gradient), _at(dx)
    )
    return dx


def _heads_keep(ctx, inputs, output):
    x, *ctx.numbers = inputs
    ctx.save_for_backward(x)


def _heads_gradient(ctx, gradient, back):
    _once()
    return back(gradient, *ctx.saved_tensors, *ctx.numbers), None, None, None, None


def _heads_fake(x, channels, parts, count, signed):
    return x.new_empty(*x.shape[:-1], parts, count, _heads_sizes(x, channels, parts, count)[2])


_op_heads = _register(
    "heads(Tensor x, int channels, int parts, int count, bool signed) -> Tensor",
    _heads,
    ("heads_back(Tensor gradient, Tensor x, int channels, int parts, int count, bool signed) -> Tensor", _heads_back),
    _heads_gradient,
    _heads_keep,
    _heads_fake,
    lambda gradient, x, *numbers: torch.empty_like(x),
)


def heads(x, channels: int, parts: int, count: int, signed: tuple[bool, ...]) -> list[torch.Tensor]:
    """`rows.heads`; only the first part can be signed."""
    out = _op_heads(x, channels, parts, count, signed[0])
    return [part.transpose(-2, -3) for part in out.unbind(-3)]


# ------------------------------------------------------------------------------------------------- attention


@lru_cache(maxsize=1024)
def _offsets(lengths: tuple[int, ...], repeats: int) -> torch.Tensor:
    counts = torch.tensor((0, *(lengths * repeats)), dtype=torch.int64)
    return counts.cumsum(0)


def offsets_of(x: torch.Tensor, lengths) -> torch.Tensor:
    """Where each set of items begins and the last ends, int64, for rows (…, N, R); lengths as in `attention.py`."""
    items, total = x.shape[-2], _rows_of(x)
    if lengths is None:
        return _offsets((items,), total // items)
    lengths = tuple(int(n) for n in lengths)
    if sum(lengths) != items or min(lengths, default=0) < 0:
        raise ValueError(f"lengths: expected whole numbers with sum {items}, found a sum of {sum(lengths)}")
    return _offsets(lengths, total // items)


def _attention_struct(numbers, epsilon):
    return _native.ffi.new("lgatr_attention *", [*numbers, epsilon])


def _attention(x, packed, offsets, numbers, epsilon):
    a = _attention_struct(numbers, epsilon)
    x, lib, sets = x.contiguous(), _native.lib, offsets.numel() - 1
    out = torch.empty_like(x)
    scratch = _scratch(lib.lgatr_attention_scratch(a, sets, _at_int64(offsets)), x)
    gain = packed[lib.lgatr_attention_weight(a) :]
    lib.lgatr_attention_forward(
        _kind(x), a, sets, _at_int64(offsets), _at(packed), _at(gain), _at(x), _at(out), scratch
    )
    return out


def _attention_back(gradient, x, packed, offsets, numbers, epsilon):
    a = _attention_struct(numbers, epsilon)
    x, gradient, lib, sets = x.contiguous(), gradient.contiguous(), _native.lib, offsets.numel() - 1
    dx, dpacked = torch.empty_like(x), torch.zeros_like(packed)
    scratch = _scratch(lib.lgatr_attention_scratch(a, sets, _at_int64(offsets)), x)
    count = lib.lgatr_attention_weight(a)
    lib.lgatr_attention_backward(
        _kind(x),
        a,
        sets,
        _at_int64(offsets),
        _at(packed),
        _at(packed[count:]),
        _at(x),
        _at(gradient),
        _at(dx),
        _at(dpacked),
        _at(dpacked[count:]),
        scratch,
    )
    return dx, dpacked


def _attention_keep(ctx, inputs, output):
    x, packed, ctx.offsets, ctx.numbers, ctx.epsilon = inputs
    ctx.save_for_backward(x, packed)


def _attention_gradient(ctx, gradient, back):
    _once()
    return *back(gradient, *ctx.saved_tensors, ctx.offsets, ctx.numbers, ctx.epsilon), None, None, None


_op_attention = _register(
    "attention(Tensor x, Tensor packed, Tensor offsets, int[] numbers, float epsilon) -> Tensor",
    _attention,
    (
        "attention_back(Tensor gradient, Tensor x, Tensor packed, Tensor offsets, int[] numbers, float epsilon) "
        "-> (Tensor, Tensor)",
        _attention_back,
    ),
    _attention_gradient,
    _attention_keep,
    lambda x, packed, offsets, numbers, epsilon: torch.empty_like(x),
    lambda gradient, x, packed, offsets, numbers, epsilon: (torch.empty_like(x), torch.empty_like(packed)),
)


def attention(x: torch.Tensor, norm, layer, lengths) -> torch.Tensor:
    """x + layer(norm(x)) for a plain multi-head SelfAttention, rows (…, N, R), sets by lengths or one a batch entry."""
    config = layer.config
    packed = _packed(layer, (layer.qkv_module.in_linear, layer.out_linear), norm)
    numbers = [
        config.in_mv_channels,
        config.in_s_channels,
        config.num_heads,
        config.hidden_mv_channels,
        config.hidden_s_channels,
        int(norm.weight_mv is not None),
        0,
    ]
    return _op_attention(x, packed.to(x.dtype), offsets_of(x, lengths), numbers, norm.epsilon)


# ------------------------------------------------------------------------------------------------- MLP


def _mlp_struct(numbers, epsilon):
    return _native.ffi.new("lgatr_mlp *", [*numbers, epsilon])


def _hidden_of(x, numbers, kept):
    """Room for the hidden rows before their norm, or for nothing."""
    return x.new_empty((_rows_of(x), 16 * numbers[3] + numbers[4]) if kept else (0,))


def _mlp(x, packed, numbers, epsilon, kept):
    m, x, lib = _mlp_struct(numbers, epsilon), x.contiguous(), _native.lib
    out, hidden = torch.empty_like(x), _hidden_of(x, numbers, kept)
    lib.lgatr_mlp_forward(
        _kind(x),
        m,
        _rows_of(x),
        _at(packed),
        _at(packed[lib.lgatr_mlp_weight(m) :]),
        _at(x),
        _at(out),
        _at(hidden if kept else None),
        _scratch(lib.lgatr_mlp_scratch(m), x),
    )
    return out, hidden


def _mlp_back(gradient, x, packed, hidden, numbers, epsilon):
    m, x, gradient, lib = _mlp_struct(numbers, epsilon), x.contiguous(), gradient.contiguous(), _native.lib
    dx, dpacked = torch.empty_like(x), torch.zeros_like(packed)
    count = lib.lgatr_mlp_weight(m)
    lib.lgatr_mlp_backward(
        _kind(x),
        m,
        _rows_of(x),
        _at(packed),
        _at(packed[count:]),
        _at(x),
        _at(hidden),
        _at(gradient),
        _at(dx),
        _at(dpacked),
        _at(dpacked[count:]),
        _scratch(lib.lgatr_mlp_scratch(m), x),
    )
    return dx, dpacked


def _mlp_keep(ctx, inputs, output):
    x, packed, ctx.numbers, ctx.epsilon, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, packed, output[1])


def _mlp_gradient(ctx, gradient, back):
    _once()
    return *back(gradient, *ctx.saved_tensors, ctx.numbers, ctx.epsilon), None, None, None


_op_mlp = _register(
    "mlp(Tensor x, Tensor packed, int[] numbers, float epsilon, bool kept) -> (Tensor, Tensor)",
    _mlp,
    (
        "mlp_back(Tensor gradient, Tensor x, Tensor packed, Tensor hidden, int[] numbers, float epsilon) "
        "-> (Tensor, Tensor)",
        _mlp_back,
    ),
    _mlp_gradient,
    _mlp_keep,
    lambda x, packed, numbers, epsilon, kept: (torch.empty_like(x), _hidden_of(x, numbers, kept)),
    lambda gradient, x, packed, hidden, numbers, epsilon: (torch.empty_like(x), torch.empty_like(packed)),
)


def mlp(x: torch.Tensor, norm, linears, nonlinearity: str, bivector: bool) -> torch.Tensor:
    """x + the two-layer geometric MLP of norm(x); linears are left, right, out and last."""
    left, _, out, _ = (linear.shape for linear in linears)
    packed = _packed(linears[-1], linears, norm)
    numbers = [
        left.in_mv,
        left.in_s,
        left.out_mv,
        out.out_mv,
        out.out_s,
        int(bivector),
        int(norm.weight_mv is not None),
        NONLINEARITIES[nonlinearity],
    ]
    packed = packed.to(x.dtype)
    kept = torch.is_grad_enabled() and (x.requires_grad or packed.requires_grad)
    return _op_mlp(x, packed, numbers, norm.epsilon, kept)[0]


# ------------------------------------------------------------------------------------------------- slim


@lru_cache(maxsize=256)
def _slim_source(linears: tuple[tuple[int, int, int, int, bool], ...], gains: tuple[int, int] | None) -> torch.Tensor:
    """As `_sources` for the slim network: (in_v, out_v, in_s, out_s, bias) a map, and gains (vectors, scalars)."""
    parts, offset = [], 0

    def numbers(*size):
        nonlocal offset
        count = torch.Size(size).numel()
        found = torch.arange(offset + 1, offset + 1 + count, dtype=torch.int32).view(size)
        offset += count
        return found

    def panels(weight):  # (out, in) -> panels of (in, out)
        padded = torch.nn.functional.pad(weight.T, (0, -weight.shape[0] % rows.PANEL))
        return padded.reshape(padded.shape[0], -1, rows.PANEL).transpose(0, 1).reshape(-1)

    for in_v, out_v, in_s, out_s, bias in linears:
        parts += [panels(numbers(out_v, in_v)), panels(numbers(out_s, in_s))]
        of_bias = numbers(out_s) if bias else torch.zeros(out_s, dtype=torch.int32)
        parts.append(torch.nn.functional.pad(of_bias, (0, -out_s % rows.PANEL)))
    if gains is not None:
        parts += [numbers(gains[0]).repeat(4), numbers(gains[1])]
    return _encoded(torch.cat(parts))


def _slim_packed(owner, linears, norm) -> torch.Tensor:
    parameters, shapes, gains = [], [], None
    for linear in linears:
        weight, scalar = linear.weight_v, linear.linear_s
        parameters += [weight, scalar.weight, *([] if scalar.bias is None else [scalar.bias])]
        shapes.append((weight.shape[1], weight.shape[0], scalar.in_features, scalar.out_features,
                       scalar.bias is not None))  # fmt: skip
    if norm.weight_v is not None:
        parameters += [norm.weight_v, norm.weight_s]
        gains = (norm.weight_v.shape[0], norm.weight_s.shape[0])
    source = _slim_source(tuple(shapes), gains)
    recorded = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
    if recorded or torch.compiler.is_compiling():
        return _op_pack(parameters, source)
    return remember(owner, ("slim",), parameters, lambda: _op_pack(parameters, source))


def slim_attention(x: torch.Tensor, norm, layer, lengths) -> torch.Tensor:
    """x + layer(norm(x)) for a SlimSelfAttention, rows (…, N, 4 V + S)."""
    packed = _slim_packed(layer, (layer.linear_in, layer.linear_out), norm)
    channels = layer.linear_in.weight_v.shape[1]
    numbers = [
        channels,
        x.shape[-1] - 4 * channels,
        layer.num_heads,
        layer.hidden_v,
        layer.hidden_s,
        int(norm.weight_v is not None),
        1,
    ]
    return _op_attention(x, packed.to(x.dtype), offsets_of(x, lengths), numbers, norm.epsilon)


def _slim_mlp_struct(numbers, epsilon):
    return _native.ffi.new("lgatr_slim_mlp *", [*numbers, epsilon])


def _slim_mlp(x, packed, numbers, epsilon):
    m, x, lib = _slim_mlp_struct(numbers, epsilon), x.contiguous(), _native.lib
    out = torch.empty_like(x)
    gain = packed[lib.lgatr_slim_mlp_weight(m) :]
    lib.lgatr_slim_mlp_forward(
        _kind(x), m, _rows_of(x), _at(packed), _at(gain), _at(x), _at(out), _scratch(lib.lgatr_slim_mlp_scratch(m), x)
    )
    return out


def _slim_mlp_back(gradient, x, packed, numbers, epsilon):
    m, x, gradient, lib = _slim_mlp_struct(numbers, epsilon), x.contiguous(), gradient.contiguous(), _native.lib
    dx, dpacked = torch.empty_like(x), torch.zeros_like(packed)
    count = lib.lgatr_slim_mlp_weight(m)
    lib.lgatr_slim_mlp_backward(
        _kind(x),
        m,
        _rows_of(x),
        _at(packed),
        _at(packed[count:]),
        _at(x),
        _at(gradient),
        _at(dx),
        _at(dpacked),
        _at(dpacked[count:]),
        _scratch(lib.lgatr_slim_mlp_scratch(m), x),
    )
    return dx, dpacked


def _slim_mlp_keep(ctx, inputs, output):
    x, packed, ctx.numbers, ctx.epsilon = inputs
    ctx.save_for_backward(x, packed)


def _slim_mlp_gradient(ctx, gradient, back):
    _once()
    return *back(gradient, *ctx.saved_tensors, ctx.numbers, ctx.epsilon), None, None


_op_slim_mlp = _register(
    "slim_mlp(Tensor x, Tensor packed, int[] numbers, float epsilon) -> Tensor",
    _slim_mlp,
    (
        "slim_mlp_back(Tensor gradient, Tensor x, Tensor packed, int[] numbers, float epsilon) -> (Tensor, Tensor)",
        _slim_mlp_back,
    ),
    _slim_mlp_gradient,
    _slim_mlp_keep,
    lambda x, packed, numbers, epsilon: torch.empty_like(x),
    lambda gradient, x, packed, numbers, epsilon: (torch.empty_like(x), torch.empty_like(packed)),
)


def slim_mlp(x: torch.Tensor, norm, glu, last) -> torch.Tensor:
    """x + last(glu(norm(x))) for a SlimMLP of two layers, rows (…, N, 4 V + S)."""
    packed = _slim_packed(last, (glu.linear, last), norm)
    channels = last.weight_v.shape[0]
    numbers = [
        channels,
        x.shape[-1] - 4 * channels,
        last.weight_v.shape[1],
        last.linear_s.in_features,
        int(norm.weight_v is not None),
        *(NONLINEARITIES[name] for name in glu.names),
    ]
    return _op_slim_mlp(x, packed.to(x.dtype), numbers, norm.epsilon)


def with_offsets(x: torch.Tensor, attn_kwargs: dict) -> dict:
    """The same keyword arguments with lengths as a tuple, so that no layer has to read a tensor again."""
    lengths = attn_kwargs.get("lengths")
    if lengths is None:
        return attn_kwargs
    return {**attn_kwargs, "lengths": tuple(int(n) for n in lengths)}
