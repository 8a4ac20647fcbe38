"""Made events as a cache in memory, for tests and benchmarks; needs no torch."""

import hashlib
from pathlib import Path

import numpy as np

from impl.events import kernel
from impl.events.cache import Cache


def made(sizes, seed: int = 0, classes: int = 4, self_loops: bool = False, multilabel: bool = False) -> Cache:
    """A cache in memory of random events whose label follows from their objects, for tests and benchmarks.

    Parameters
    ----------
    sizes : sequence of int     objects of each event, 0 allowed
    seed : int
    classes : int               the label is the quantile of the sum of pt over pairs nearer than 1 in d_R
    self_loops, multilabel : bool
    """
    random = np.random.default_rng(seed)
    sizes = np.asarray(sizes, np.int64)
    offsets = np.concatenate([[0], sizes.cumsum()])
    nodes = int(offsets[-1])
    pt = random.exponential(1.0, nodes).astype(np.float32) + np.float32(0.2)
    eta = random.normal(0, 1.2, nodes).astype(np.float32)
    phi = random.uniform(-np.pi, np.pi, nodes).astype(np.float32)
    kind = random.integers(0, 4, nodes).astype(np.float32)
    charge = np.where(kind > 0, random.choice([-1.0, 1.0], nodes), 0).astype(np.float32)
    tag = np.where(kind == 0, random.uniform(0, 1, nodes), 0).astype(np.float32)
    node_x = np.stack([pt, eta, phi, pt * np.cosh(eta).astype(np.float32), tag, charge, kind], 1)
    event = np.repeat(np.arange(len(sizes)), sizes)
    vector = np.zeros((len(sizes), 2))
    np.add.at(vector, event, pt[:, None] * np.stack([np.cos(phi), np.sin(phi)], 1))
    leptons = np.bincount(event[kind > 0], minlength=len(sizes))
    columns = [np.hypot(*vector.T), np.arctan2(vector[:, 1], vector[:, 0]), sizes - leptons, leptons]
    edges = kernel.edge_features(np.ascontiguousarray(node_x), offsets, 1, 2, self_loops)
    source, _ = kernel.edge_index(offsets, self_loops)
    near = np.bincount(event[source], pt[source] * (edges[:, 2] < 1), minlength=len(sizes)) if nodes else sizes * 0.0
    cuts = np.quantile(near, np.arange(1, classes) / classes) if len(sizes) else []
    label = np.searchsorted(cuts, near, side="right").astype(np.int64)
    if multilabel:
        label = (label[:, None] >= np.arange(classes)).astype(np.uint8)
    manifest = {
        "node_features": ["pt", "eta", "phi", "energy", "btag", "charge", "type"],
        "globals": ["met", "met_phi", "n_jet", "n_lepton"],
        "classes": [f"class{number}" for number in range(classes)],
        "self_loops": self_loops,
        "fingerprint": f"made-{seed}",
        "content": _content(node_x, offsets, label),
    }
    arrays = {
        "node_x": np.ascontiguousarray(node_x),
        "node_off": offsets,
        "glob": np.stack(columns, 1).astype(np.float32),
        "label": label,
        "weight": np.ones(len(sizes), np.float32),
    }
    return Cache(Path("made"), manifest, arrays)


def _content(*arrays: np.ndarray) -> str:
    """SHA-256 over the bytes of arrays, 64 hex digits."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
