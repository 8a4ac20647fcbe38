"""Writes a deterministic, made-up sample of events to a ROOT file: the input of the benchmarks.

Eleven branches: six lists (Object_pt, _eta, _phi, _mass, _btag, _charge) and five scalars (MET_pt, MET_phi, weight,
label, event). The same arguments give the same values; the file's bytes also hold its creation time, so identity is
taken over the values (`digest`), not the file. Energies in GeV; the numbers follow no physics process.
"""

import hashlib
from pathlib import Path

import numpy as np

from impl.events.errors import PackageError

COMPRESSIONS = ("none", "zlib", "lz4", "zstd")


def columns(events: int, nodes: tuple[int, int] = (8, 56), seed: int = 1) -> tuple[np.ndarray, dict, dict]:
    """Values of the sample.

    Parameters
    ----------
    events : int            how many
    nodes : (int, int)      smallest and largest number of objects; uniform between, both ends included
    seed : int

    Returns
    -------
    int64 (events,)         objects of every event
    dict                    list branches, float32 or int32 (sum of the counts,)
    dict                    scalar branches, (events,)
    """
    rng = np.random.default_rng(seed)
    counts = rng.integers(nodes[0], nodes[1] + 1, events)
    total = int(counts.sum())
    objects = {
        "Object_pt": (20 + rng.exponential(40, total)).astype(np.float32),
        "Object_eta": rng.normal(0, 1.5, total).astype(np.float32),
        "Object_phi": rng.uniform(-np.pi, np.pi, total).astype(np.float32),
        "Object_mass": rng.exponential(8, total).astype(np.float32),
        "Object_btag": rng.uniform(0, 1, total).astype(np.float32),
        "Object_charge": rng.integers(-1, 2, total).astype(np.int32),
    }
    scalars = {
        "MET_pt": rng.exponential(40, events).astype(np.float32),
        "MET_phi": rng.uniform(-np.pi, np.pi, events).astype(np.float32),
        "weight": rng.normal(1, 0.3, events).astype(np.float32),
        "label": rng.integers(0, 2, events).astype(np.int32),
        "event": (np.arange(events, dtype=np.uint64) + np.uint64(2**53 + 1)),  # beyond what a float64 can hold
    }
    return counts, objects, scalars


def digest(events: int, nodes: tuple[int, int] = (8, 56), seed: int = 1) -> tuple[str, int]:
    """SHA-256 over all values of the sample, 64 hex digits, and how many bytes they are."""
    counts, objects, scalars = columns(events, nodes, seed)
    state = hashlib.sha256(counts.tobytes())
    size = counts.nbytes
    for name, array in {**objects, **scalars}.items():
        state.update(name.encode() + b"\0" + array.tobytes())
        size += array.nbytes
    return state.hexdigest(), size


def write(path, events: int, nodes: tuple[int, int] = (8, 56), seed: int = 1, compression: str = "zlib",
          rntuple: bool = False, basket: int = 10_000) -> Path:  # fmt: skip
    """Write the sample as a TTree (or an RNTuple) called Events, `basket` events a cluster; returns the path."""
    try:
        import awkward as ak
        import uproot
    except ImportError as error:
        raise PackageError("sample", error.name, "", "install harness-ab[events]") from None
    chosen = {"none": None, "zlib": uproot.ZLIB(1), "lz4": uproot.LZ4(1), "zstd": uproot.ZSTD(1)}[compression]
    counts, objects, scalars = columns(events, nodes, seed)
    lists = {name: ak.unflatten(array, counts) for name, array in objects.items()}
    path = Path(path)
    with uproot.recreate(path, compression=chosen) as file:
        if rntuple:
            file["Events"] = {**lists, **scalars}
            return path
        # Assigning a dict would write an RNTuple; mktree is what writes a TTree. Objects are zipped for one counter.
        zipped = ak.zip({name.removeprefix("Object_"): array for name, array in lists.items()})
        tree = {"Object": zipped, **scalars}
        types = {"Object": ak.type(zipped).content, **{name: array.dtype for name, array in scalars.items()}}
        events_tree = file.mktree("Events", types)
        for first in range(0, max(events, 1), basket):
            events_tree.extend({name: array[first : first + basket] for name, array in tree.items()})
    return path
