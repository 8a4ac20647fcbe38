"""Automatic mixed precision that keeps the metric in float32: a decorator, and a context that switches it off.

Lorentz inner products subtract large numbers of nearly the same size (E² - p²), so below float32 they lose everything
at high rapidity. Inside an autocast region the decorated functions therefore run in at least `min_dtype`.

Trap: the switch of `naive_amp` is one for the process, so two threads cannot use different settings.
"""

import functools
from contextlib import ContextDecorator

import torch

_naive_depth = 0


def autocast_active() -> bool:
    """Whether autocast is on for the CPU or for CUDA."""
    return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")


def naive_active() -> bool:
    """Whether a `naive_amp` region is open."""
    return _naive_depth > 0


class naive_amp(ContextDecorator):
    """Let everything inside run in the autocast dtype; `naive_amp(False)` changes nothing. Nests."""

    def __init__(self, enabled: bool = True):
        self.enabled = bool(enabled)

    def __enter__(self):
        global _naive_depth
        _naive_depth += self.enabled
        return self

    def __exit__(self, *fault):
        global _naive_depth
        _naive_depth -= self.enabled
        return False


def _bits(dtype: torch.dtype) -> int:
    return torch.finfo(dtype).bits


def _is_float(value) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


class minimum_autocast_precision:
    """Decorator: under autocast, raise floating tensors to at least `min_dtype` and switch autocast off for the call.

    Parameters
    ----------
    min_dtype : torch.dtype
    output : "low", "high", dtype or None
        dtype of floating outputs: the lowest of min_dtype and the inputs, the highest of the inputs, the one given,
        or whatever the function returns.

    Only the arguments themselves are raised, not tensors inside lists or dicts. Without autocast, and inside
    `naive_amp`, the function is called as it is.

    Raises
    ------
    ValueError    output is none of these
    """

    def __init__(self, min_dtype: torch.dtype = torch.float32, output="low"):
        if not (output in ("low", "high", None) or isinstance(output, torch.dtype)):
            raise ValueError(f"output: expected 'low', 'high', a dtype or None, found {output!r}")
        self.min_dtype, self.output = min_dtype, output

    def _raise(self, value):
        if _is_float(value) and _bits(value.dtype) < _bits(self.min_dtype):
            return value.to(self.min_dtype)
        return value

    def _output_dtype(self, values) -> torch.dtype | None:
        if not isinstance(self.output, str):
            return self.output
        given = [value.dtype for value in values if _is_float(value)]
        if not given:
            return None
        if self.output == "high":
            return functools.reduce(lambda a, b: b if _bits(b) > _bits(a) else a, given)
        return functools.reduce(lambda a, b: b if _bits(b) < _bits(a) else a, given, self.min_dtype)

    def __call__(self, function):
        @functools.wraps(function)
        def protected(*args, **kwargs):
            if naive_active() or not autocast_active():
                return function(*args, **kwargs)
            raised = [self._raise(value) for value in args]
            raised_kwargs = {key: self._raise(value) for key, value in kwargs.items()}
            with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
                result = function(*raised, **raised_kwargs)
            dtype = self._output_dtype([*args, *kwargs.values()])
            if dtype is None:
                return result
            if isinstance(result, tuple):
                return tuple(value.to(dtype) if _is_float(value) else value for value in result)
            return result.to(dtype) if _is_float(result) else result

        return protected
