"""The only caller of the C library csrc/events.c; its header csrc/events.h is the manual.

Results equal impl.events.graph's NumPy reference to the last bit, on every machine.
"""

import hashlib
from pathlib import Path

import numpy as np

from impl.events.errors import EventsError

try:
    from impl.events import _native
except ImportError as error:
    raise ImportError(
        "impl.events: the C library is not built; run `python csrc/build.py events` or install the package"
    ) from error

_ffi, _lib = _native.ffi, _native.lib
_WORDS = {
    _lib.EVENTS_BAD_OFFSETS: "offsets that ascend",
    _lib.EVENTS_BAD_ROWS: "as many rows as the offsets ask for",
    _lib.EVENTS_BAD_INDEX: "indices within the cache",
}


def _check(status: int, name: str) -> None:
    if status != _lib.EVENTS_OK:
        raise EventsError(f"kernel '{name}'", _WORDS[status], f"status {status}", "")


def _pointer(kind: str, array: np.ndarray):
    return _ffi.cast(kind, array.ctypes.data)


def _offsets(node_off) -> np.ndarray:
    node_off = np.ascontiguousarray(node_off, np.int64)
    if node_off.ndim != 1 or len(node_off) == 0:
        raise ValueError(f"offsets: expected int64 (n + 1,), found shape {node_off.shape}")
    return node_off


def edge_counts(node_counts: np.ndarray, self_loops: bool) -> np.ndarray:
    """Edges of fully connected events: n(n-1), or n² with self loops; int64, the shape of `node_counts`."""
    counts = np.asarray(node_counts, np.int64)
    return counts * counts if self_loops else counts * np.maximum(counts - 1, 0)


def _row_range(node_off: np.ndarray, rows: int) -> None:
    if node_off[0] < 0 or node_off[-1] > rows:
        raise ValueError(f"offsets: expected within 0 … {rows} rows, found {node_off[0]} … {node_off[-1]}")


def edge_features(node_x, node_off, eta: int, phi: int, self_loops: bool = False, out=None) -> np.ndarray:
    """Edge features of a batch of fully connected events.

    Parameters
    ----------
    node_x : float32 (rows, F)      node features, C order; |phi| ≤ 2π
    node_off : int64 (n + 1,)       event i owns the rows node_off[i] … node_off[i+1]-1
    eta, phi : int                  columns of pseudorapidity and azimuth (rad)
    self_loops : bool               also the edge from a node to itself
    out : float32 (E, 3), optional  where to write

    Returns
    -------
    float32 (E, 3)                  (d_eta, d_phi in [-π, π), d_R), source-major

    Raises
    ------
    ValueError                      wrong type, shape or column
    """
    node_off = _offsets(node_off)
    if node_x.dtype != np.float32 or node_x.ndim != 2 or not node_x.flags.c_contiguous:
        raise ValueError(f"node_x: expected float32 (rows, F) in C order, found {node_x.dtype} {node_x.shape}")
    if not (0 <= eta < node_x.shape[1] and 0 <= phi < node_x.shape[1]):
        raise ValueError(f"eta, phi: expected columns below {node_x.shape[1]}, found {eta}, {phi}")
    _row_range(node_off, len(node_x))
    edges = int(edge_counts(np.diff(node_off), self_loops).sum())
    if out is None:
        out = np.empty((edges, 3), np.float32)
    if out.dtype != np.float32 or out.shape != (edges, 3) or not out.flags.c_contiguous:
        raise ValueError(f"out: expected float32 ({edges}, 3) in C order, found {out.dtype} {out.shape}")
    status = _lib.events_edge_features(
        _pointer("float *", node_x), node_x.shape[1], eta, phi, _pointer("int64_t *", node_off), len(node_off) - 1,
        self_loops, _pointer("float *", out), edges,
    )  # fmt: skip
    _check(status, "edge_features")
    return out


def edge_index(node_off, self_loops: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Source and destination rows, counted from node_off[0], of a batch of fully connected events.

    Returns
    -------
    int64 (E,), int64 (E,)          source-major, one event after the other
    """
    node_off = _offsets(node_off)
    edges = int(edge_counts(np.diff(node_off), self_loops).sum())
    src, dst = np.empty(edges, np.int64), np.empty(edges, np.int64)
    status = _lib.events_edge_index(
        _pointer("int64_t *", node_off), len(node_off) - 1, self_loops, _pointer("int64_t *", src),
        _pointer("int64_t *", dst), edges,
    )  # fmt: skip
    _check(status, "edge_index")
    return src, dst


def gather(source: np.ndarray, offset: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Rows of chosen items one after the other: source[offset[i]:offset[i+1]] for every i of index, concatenated.

    Parameters
    ----------
    source : (rows, …)              C order, any dtype without objects
    offset : int64 (n + 1,)         item i owns the rows offset[i] … offset[i+1]-1
    index : int64 (k,)              items, each within 0 … n-1, repeats allowed
    """
    offset = _offsets(offset)
    index = np.ascontiguousarray(index, np.int64)
    if not source.flags.c_contiguous:
        raise ValueError("source: expected C order, found another")
    _row_range(offset, len(source))
    if len(index) and (index.min() < 0 or index.max() >= len(offset) - 1):
        raise IndexError(f"index: expected events 0 … {len(offset) - 2}, found {index.min()} … {index.max()}")
    rows = int((offset[index + 1] - offset[index]).sum())
    out = np.empty((rows, *source.shape[1:]), source.dtype)
    row_bytes = out.dtype.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
    status = _lib.events_gather(
        _pointer("char *", source), row_bytes, _pointer("int64_t *", offset), len(offset) - 1,
        _pointer("int64_t *", index), len(index), _pointer("char *", out), rows,
    )  # fmt: skip
    _check(status, "gather")
    return out


def path() -> str:
    """The shared library that was really loaded."""
    return _native.__file__


def source_digest() -> str:
    """Digest of the sources that the loaded library was built from."""
    return _ffi.string(_lib.events_source_digest()).decode()


def tree_digest() -> str | None:
    """The same digest of the csrc folder beside impl, or None where there is none (an installed package).

    Mirrors `source_digest` of csrc/build.py.
    """
    folder = Path(__file__).resolve().parents[2] / "csrc"
    digest = hashlib.sha256()
    try:
        for file in sorted(["events.c", "events.h", "build.py"]):
            digest.update(file.encode() + b"\0" + (folder / file).read_bytes() + b"\0")
    except OSError:
        return None
    return digest.hexdigest()
