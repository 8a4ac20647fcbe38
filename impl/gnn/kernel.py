"""The fused message step as a function that torch can differentiate; the only caller of csrc/gnn.c.

The header csrc/gnn.h is the manual. An edge state is kept before its norm (t2), and the gradient that goes with it is
the one after the norm: states pass from one step to the next and to nothing else.
"""

import bisect
import functools
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from impl.gnn.native import ISAS, best_isa, ffi, lib

#: edges of a work block: what one thread claims at once; fixed, so that results do not depend on the threads
BLOCK_EDGES = 32768


class Pool:
    """Buffers that are used again, since the allocator hands large ones back to the system and gets them page by page.

    glibc serves blocks above 32 MiB by mmap and returns them on free; the next use then pays a page fault per 4 KiB,
    which at [131072, 64] float32 costs more than the arithmetic on it. A buffer comes back by itself when the last
    tensor on it is gone. `limit` bounds the bytes that lie idle; `used_bytes` are out, `peak_bytes` were at most,
    `hits` and `misses` count buffers used again and newly made.
    """

    def __init__(self, limit: int = 4 << 30):
        self.limit = limit
        self.idle_bytes = self.used_bytes = self.peak_bytes = 0
        self.hits = self.misses = 0
        self._sizes: list[int] = []
        self._buffers: list[np.ndarray] = []
        self._lock = threading.RLock()  # a finalizer may run inside `take`

    def take(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor [rows, columns]."""
        number = np.float64 if dtype == torch.float64 else np.float32
        size = rows * columns * np.dtype(number).itemsize + 64
        with self._lock:
            place = bisect.bisect_left(self._sizes, size)
            if place < len(self._sizes) and self._sizes[place] <= size + size // 2 + 4096:
                self.idle_bytes -= self._sizes.pop(place)
                buffer = self._buffers.pop(place)
                self.hits += 1
            else:
                self.misses += 1
                buffer = np.empty(size + size // 16, np.uint8)  # room for a slightly larger batch
            self.used_bytes += buffer.nbytes
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        start = -buffer.ctypes.data % 64  # a cache line, so that no vector straddles two
        view = buffer[start : start + rows * columns * np.dtype(number).itemsize].view(number).reshape(rows, columns)
        weakref.finalize(view, self._give_back, buffer).atexit = False
        return torch.from_numpy(view)

    def _give_back(self, buffer: np.ndarray) -> None:
        with self._lock:
            self.used_bytes -= buffer.nbytes
            if self.idle_bytes + buffer.nbytes > self.limit:
                return
            place = bisect.bisect_left(self._sizes, buffer.nbytes)
            self._sizes.insert(place, buffer.nbytes)
            self._buffers.insert(place, buffer)
            self.idle_bytes += buffer.nbytes

    def clear(self) -> None:
        """Give the idle buffers back to the system."""
        with self._lock:
            self._sizes.clear()
            self._buffers.clear()
            self.idle_bytes = 0


pool = Pool()


@dataclass(frozen=True)
class Layout:
    """Where a batch's events, nodes and edges lie.

    Attributes
    ----------
    objects : int64 (B,)            nodes of each event
    self_loops : bool
    nodes, edges : int              in all
    blocks : tuple                  (event, event, node, node, edge, edge) ranges of whole events
    """

    objects: np.ndarray
    self_loops: bool
    nodes: int
    edges: int
    blocks: tuple

    @classmethod
    def of(cls, objects, self_loops: bool = False, block_edges: int = BLOCK_EDGES) -> "Layout":
        objects = np.ascontiguousarray(objects, np.int64)
        pairs = objects * objects if self_loops else objects * np.maximum(objects - 1, 0)
        node, edge = np.concatenate([[0], objects.cumsum()]), np.concatenate([[0], pairs.cumsum()])
        cuts = [0]
        while cuts[-1] < len(objects):
            end = int(np.searchsorted(edge, edge[cuts[-1]] + block_edges, side="right")) - 1
            cuts.append(min(max(end, cuts[-1] + 1), len(objects)))
        blocks = tuple(
            (a, b, int(node[a]), int(node[b]), int(edge[a]), int(edge[b])) for a, b in itertools.pairwise(cuts)
        )
        return cls(objects, bool(self_loops), int(node[-1]), int(edge[-1]), blocks)


@functools.cache
def _executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="gnn")


_work = threading.local()


def _scratch(size: int):
    if getattr(_work, "buffer", None) is None or _work.buffer.nbytes < size:
        _work.buffer = np.empty(size, np.uint8)
    return ffi.cast("void *", _work.buffer.ctypes.data)


_PER_NODE = ("ps", "pd", "sum", "d_sum", "d_ps", "d_pd")
_PER_EDGE = ("x", "t1", "t2", "d_out", "d_x")
_PER_BLOCK = ("d_w1", "d_b1", "d_w2", "d_b2", "d_gamma", "d_beta")


def _run(name: str, layout: Layout, hidden: int, width: int, epsilon: float, isa: str, tensors: dict) -> None:
    """Call gnn_forward or gnn_backward for every work block; `tensors` maps the fields of gnn_step to tensors."""
    first = tensors["x"]
    item = first.element_size()
    for field, tensor in tensors.items():
        if tensor is not None and not (tensor.is_contiguous() and tensor.dtype == first.dtype):
            raise ValueError(f"{field}: expected contiguous {first.dtype}, found {tensor.dtype} {tensor.stride()}")
    addresses = {field: tensor.data_ptr() for field, tensor in tensors.items() if tensor is not None}
    call = getattr(lib, name)
    size = lib.gnn_work_bytes(hidden, width, item)

    def block(number: int) -> int:
        first_event, last_event, first_node, _, first_edge, _ = layout.blocks[number]
        step = ffi.new("gnn_step *")
        step.events = last_event - first_event
        step.objects = ffi.cast("int64_t *", layout.objects.ctypes.data + 8 * first_event)
        step.self_loops, step.hidden, step.width, step.precision = layout.self_loops, hidden, width, item
        step.isa, step.epsilon, step.work = ISAS.index(isa) if item == 4 else 0, epsilon, _scratch(size)
        for field, address in addresses.items():
            if field in _PER_NODE:
                address += first_node * hidden * item
            elif field in _PER_EDGE:
                address += first_edge * (width if field in ("x", "d_x") else hidden) * item
            elif field in _PER_BLOCK:
                address += number * tensors[field][0].numel() * item
            setattr(step, field, ffi.cast("void *", address))
        return call(step)

    threads = min(torch.get_num_threads(), len(layout.blocks))
    if threads > 1:
        statuses = list(_executor(threads).map(block, range(len(layout.blocks))))
    else:
        statuses = [block(number) for number in range(len(layout.blocks))]
    if any(statuses):
        raise ValueError(
            f"fused step: expected hidden a multiple of 16 up to 512, width hidden or 1 to 16, and an instruction set "
            f"of this machine, found hidden {hidden}, width {width}, isa {isa}"
        )


class _Step(torch.autograd.Function):
    """(state or features, projections, weights) -> (state, sum over sources)."""

    @staticmethod
    def forward(ctx, settings, x, in_gamma, in_beta, w1, b1, ps, pd, w2, b2, gamma, beta):
        layout, recompute, epsilon, isa, with_sum = settings
        hidden, width = w1.shape
        t1 = None if recompute or ps is None else pool.take(layout.edges, hidden, x.dtype)
        t2 = pool.take(layout.edges, hidden, x.dtype)
        total = x.new_empty(layout.nodes, hidden) if with_sum else None
        inputs = {"x": x, "in_gamma": in_gamma, "in_beta": in_beta, "w1": w1, "b1": b1, "ps": ps, "pd": pd, "w2": w2,
                  "b2": b2, "gamma": gamma, "beta": beta}  # fmt: skip
        _run("gnn_forward", layout, hidden, width, epsilon, isa, {**inputs, "t1": t1, "t2": t2, "sum": total})
        ctx.settings, ctx.t1 = settings, t1
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs.values(), t2)
        return t2, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_sum):
        layout, _, epsilon, isa, _ = ctx.settings
        x, in_gamma, in_beta, w1, b1, ps, pd, w2, b2, gamma, beta, t2 = ctx.saved_tensors
        hidden, width = w1.shape
        blocks = len(layout.blocks)

        def empty(*shape):
            return x.new_empty(blocks, *shape)

        t1, ctx.t1 = ctx.t1, None
        d_x = pool.take(layout.edges, hidden, x.dtype) if ctx.needs_input_grad[1] else None
        d_ps, d_pd = (None, None) if ps is None else (torch.empty_like(ps), torch.empty_like(pd))
        weights = {"d_w1": empty(hidden, width), "d_b1": None if b1 is None else empty(hidden),
                   "d_w2": empty(hidden, hidden), "d_b2": empty(hidden), "d_gamma": empty(hidden),
                   "d_beta": empty(hidden)}  # fmt: skip
        if blocks == 0:
            return (None, d_x, None, None, *[None] * 8)
        _run("gnn_backward", layout, hidden, width, epsilon, isa, {
            "x": x, "in_gamma": in_gamma, "in_beta": in_beta, "w1": w1, "b1": b1, "ps": ps, "pd": pd, "w2": w2,
            "b2": b2, "gamma": gamma, "beta": beta, "t1": t1, "t2": t2,
            "d_out": None if d_out is None else d_out.contiguous(), "d_sum": None if d_sum is None else
            d_sum.contiguous(), "d_x": d_x, "d_ps": d_ps, "d_pd": d_pd, **weights,
        })  # fmt: skip
        d_w1, d_b1, d_w2, d_b2, d_gamma, d_beta = (
            None if tensor is None else tensor[0] if blocks == 1 else tensor.sum(0) for tensor in weights.values()
        )
        return None, d_x, None, None, d_w1, d_b1, d_ps, d_pd, d_w2, d_b2, d_gamma, d_beta


def step(layout: Layout, x, w1, b1, projections, w2, b2, norm, in_norm=None, with_sum=True, recompute=False, last=False,
         isa=None):  # fmt: skip
    """One message step over every edge of a batch.

    Parameters
    ----------
    layout : Layout
    x : float (E, K)                edge features, or the state of the step before
    w1, b1 : (H, K), (H,) or None
    projections : None, or ((N, H), (N, H)), what the source and the destination add before the first ReLU
    w2, b2 : (H, H), (H,)
    norm : torch.nn.LayerNorm       after the second ReLU
    in_norm : the norm of the step that made x, None for features; its gradient arises in that step
    with_sum : bool                 also the sum over sources
    recompute : bool                compute the first activation again in backward instead of keeping it
    last : bool                     the state is not needed; saves writing it where no gradient is asked for
    isa : one of ISAS, None for the best

    Returns
    -------
    (state (E, H), before its norm, and sum (N, H) or None). Without gradients the state takes x's memory when x is
    a state.

    Raises
    ------
    ValueError                      shapes or types that the library does not take
    RuntimeError                    from torch, for a second derivative or one by edge features
    """
    ps, pd = projections or (None, None)
    in_gamma, in_beta = (in_norm.weight, in_norm.bias) if in_norm is not None else (None, None)
    isa = isa or best_isa()
    if not torch.is_grad_enabled():
        hidden, width = w1.shape
        state = None if last else x if in_norm is not None else pool.take(layout.edges, hidden, x.dtype)
        total = x.new_empty(layout.nodes, hidden) if with_sum else None
        _run("gnn_forward", layout, hidden, width, norm.eps, isa, {
            "x": x, "in_gamma": in_gamma, "in_beta": in_beta, "w1": w1.contiguous(), "b1": b1, "ps": ps, "pd": pd,
            "w2": w2, "b2": b2, "gamma": norm.weight, "beta": norm.bias, "t2": state, "sum": total,
        })  # fmt: skip
        return state, total
    if x.requires_grad and x.shape[1] != w1.shape[0]:
        raise RuntimeError("fused step: the derivative by edge features is not available; use the dense backend")
    settings = (layout, recompute, norm.eps, isa, with_sum)
    return _Step.apply(settings, x, in_gamma, in_beta, w1.contiguous(), b1, ps, pd, w2, b2, norm.weight, norm.bias)
