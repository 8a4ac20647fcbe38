"""Mixed precision: bfloat16 products in the forward pass, everything else in float32; refused where it only costs."""

import contextlib
from pathlib import Path

import torch

from impl.gnn.errors import InputError

PRECISIONS = ("float32", "bfloat16")
_FLAGS = {"amx_bf16", "avx512_bf16", "bf16", "svebf16"}


def cpu_has_bfloat16() -> bool:
    """Whether this machine multiplies bfloat16 in hardware."""
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not _FLAGS.isdisjoint(words)


def check_precision(precision: str, backend: str, allow_slow: bool, device: str = "cpu") -> None:
    """Raise InputError for a precision that does not exist, does not fit the backend or would only be slower.

    `device` is a type of torch, 'cpu' or 'cuda': what a CPU lacks does not matter elsewhere.
    """
    if precision not in PRECISIONS:
        raise InputError("--precision", "one of " + ", ".join(PRECISIONS), repr(precision))
    if precision == "float32":
        return
    if backend != "dense":
        raise InputError("--precision bfloat16", "the backend 'dense'", repr(backend))
    if device == "cpu" and not allow_slow and not cpu_has_bfloat16():
        # measured without such instructions: training 9.6 times slower than float32
        raise InputError("--precision bfloat16", "a CPU with bfloat16 instructions (avx512_bf16 or amx_bf16)",
                         "one without", "use float32, or --allow-slow to see the cost")  # fmt: skip


def autocast(precision: str, device: str = "cpu"):
    """The context of a forward pass."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)
