"""A Python function as a workload: how often an iteration calls it, and what its result must agree on.

Run as `python -m harness.callables --set 'function="package.module:name"'`, or with a pickle of a function that has no
importable name (harness.compare writes it). An iteration is as many calls as take `TARGET` seconds, so that reading
the clock costs nothing; times are per call. The function gets what `setup` returned, if there is one.

The relative import below is meant: pytest_arm.py loads this file under another package name.
"""

import hashlib
import importlib
import math
import struct
import time
from collections.abc import Callable
from typing import Any

from . import worker

#: seconds that the calls of an iteration take at least, if one does not take longer by itself
TARGET = 0.01


def calls_for(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> int:
    """How many calls take at least TARGET seconds: a power of two, from trials that double.

    A trial that was long enough is repeated, since one interruption must not pass for many calls' work.
    """

    def seconds() -> float:
        begin = clock()
        for _ in range(calls):
            function()
        return clock() - begin

    calls = 1
    while calls < 1 << 30 and not (seconds() >= TARGET and seconds() >= TARGET):
        calls *= 2
    return calls


# ------------------------------------------------------------------------------------------------- results


class _Unknown(Exception):
    """A result with parts whose bytes say nothing about their value."""


def fingerprint(result: Any) -> dict[str, Any]:
    """work, digests and totals of a function's result.

    Numbers, texts, bytes, lists, tuples, dicts, sets and arrays are digested: `values` to the last bit, `shape`
    without floating-point values, whose sum and sum of magnitudes are totals. Of anything else only the type is told.
    """
    values, shape, totals = hashlib.sha256(), hashlib.sha256(), [0.0, 0.0]
    try:
        _feed(result, values, shape, totals)
    except (_Unknown, RecursionError):
        return {"work": 1, "digests": {"shape": worker.digest(type(result).__qualname__.encode())}, "totals": {}}
    digests = {"values": values.hexdigest()[:32], "shape": shape.hexdigest()[:32]}
    return {"work": 1, "digests": digests, "totals": {"sum": totals[0], "magnitude": totals[1]}}


def _feed(value: Any, values, shape, totals: list[float]) -> None:
    def both(kind: str, data: bytes) -> None:
        for state in (values, shape):
            state.update(f"{kind} {len(data)}:".encode() + data)

    if value is None or isinstance(value, (bool, int)):
        both(type(value).__name__, repr(value).encode())
    elif isinstance(value, float):
        both("float", b"")
        values.update(struct.pack("<d", value))
        if math.isfinite(value):
            totals[0] += value
            totals[1] += abs(value)
    elif isinstance(value, complex):
        both("complex", b"")
        _feed(value.real, values, shape, totals)
        _feed(value.imag, values, shape, totals)
    elif isinstance(value, str):
        both("str", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        both("bytes", bytes(value))
    elif isinstance(value, (list, tuple)):
        both(type(value).__name__, str(len(value)).encode())
        for item in value:
            _feed(item, values, shape, totals)
    elif isinstance(value, dict):
        both("dict", str(len(value)).encode())
        for key in sorted(value, key=repr):
            _feed(key, values, shape, totals)
            _feed(value[key], values, shape, totals)
    elif isinstance(value, (set, frozenset)):
        both("set", str(len(value)).encode())
        for item in sorted(value, key=repr):
            _feed(item, values, shape, totals)
    else:
        _feed_array(value, values, shape, totals, both)


def _feed_array(value: Any, values, shape, totals: list[float], both) -> None:
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor
        value = value.detach().cpu()
        value = value.float().numpy() if "bfloat16" in str(value.dtype) else value.numpy()
    if not (hasattr(value, "dtype") and hasattr(value, "tobytes") and hasattr(value, "shape")):
        raise _Unknown
    if value.dtype.kind not in "biufcSUmM":
        raise _Unknown
    both("array", f"{value.dtype.str} {tuple(value.shape)}".encode())
    data = value.tobytes()
    values.update(data)
    if value.dtype.kind in "fc":
        totals[0] += float(value.real.sum())
        totals[1] += float(abs(value).sum())
    else:
        shape.update(data)


def reproducible(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two fingerprints of the same arm are the same to the last bit."""
    return first["digests"] == second["digests"]


# ------------------------------------------------------------------------------------------------- workload


class Function(worker.Workload):
    """function: package.module:name, or only a name for the reader where a pickle holds it; pickle: that file."""

    name = "function"
    accepts = {"function": "", "pickle": "", "setup": ""}

    def setup(self) -> None:
        function, prepare = self._load()
        if prepare is None:
            self.call = function
        else:
            data = prepare()
            self.call = lambda: function(data)
        self.result = self.call()
        self.calls = calls_for(self.call)

    def _load(self):
        given = self.parameters
        if given["pickle"]:
            import pickle

            with open(given["pickle"], "rb") as file:
                return pickle.load(file)
        return imported(given["function"]), imported(given["setup"]) if given["setup"] else None

    def iterate(self) -> dict:
        call = self.call
        for _ in range(self.calls):
            result = call()
        self.result = result
        return {"units": self.calls, "work": 1}

    def fingerprint(self) -> dict:
        return fingerprint(self.result)


def imported(path: str) -> Callable:
    """The object that package.module:name stands for. Raises Fault when there is none."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise worker.Fault("function", "package.module:name that can be imported", f"'{path}' ({error})") from None
    return found


if __name__ == "__main__":
    worker.serve(Function)
