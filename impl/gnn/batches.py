"""Events of a cache as torch batches: plans of which events go together, the batches, and made events for tests.

A plan is a list of int64 arrays of event numbers. Fully connected events cost n(n-1) edges, so equal numbers of events
make very different batches: `by_edges` bounds the edges of a batch instead, and with them its memory.
"""

from pathlib import Path

import numpy as np
import torch

from impl.events import kernel as events_kernel
from impl.events.cache import Cache
from impl.gnn.errors import InputError
from impl.gnn.kernel import Layout

#: events that `by_edges` sorts by size at a time, as a multiple of the events of a batch
WINDOW = 16


class Batch:
    """Some events on a device; row k of `glob`, `label`, `weight` belongs to event index[k] of the cache.

    Attributes
    ----------
    index : int64 (B,) numpy
    layout : kernel.Layout          events, nodes and edges of the batch
    objects, pairs : int64 (B,)     nodes and edges of each event
    node_x, edge_x, glob : float (N, F), (E, 3), (B, G)
    label : int64 (B,) or float (B, C)
    weight : float32 (B,)
    """

    def __init__(self, events, device="cpu", dtype=torch.float32):
        """Take over an `impl.events.cache.Batch`, or a cache and nothing else of that shape."""

        def tensor(array, kind):
            return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=kind)

        self.index = events.index
        self.layout = Layout.of(np.diff(events.node_off), events.self_loops)
        self.objects = tensor(self.layout.objects, torch.int64)
        self.pairs = tensor(np.diff(events.edge_off), torch.int64)
        self.node_x, self.edge_x = tensor(events.node_x, dtype), tensor(events.edge_x, dtype)
        self.glob, self.weight = tensor(events.glob, dtype), tensor(events.weight, dtype)
        self.label = tensor(events.label, torch.int64 if events.label.ndim == 1 else dtype)
        self._derived: dict = {}

    def __len__(self) -> int:
        return len(self.index)

    def derived(self, name: str, make):
        """make(self), once a batch: what a backend keeps between calls."""
        if name not in self._derived:
            self._derived[name] = make(self)
        return self._derived[name]

    def edge_index(self):
        """Source and destination of every edge, int64 (E,) each, source-major."""
        return self.derived("edge_index", _edge_index)

    def event_of_node(self):
        """int64 (N,)"""
        return self.derived("event", lambda b: torch.repeat_interleave(b.objects, output_size=b.layout.nodes))

    def inverse_counts(self):
        """1 / nodes and 1 / edges of each event, float (B, 1); 1 where there are none, so that empty means are 0."""
        return self.derived("inverse", _inverse_counts)

    def sum_nodes(self, rows):
        """Sum over the nodes of each event: (N, H) -> (B, H)."""
        return rows.new_zeros(len(self), rows.shape[1]).index_add(0, self.event_of_node(), rows)


def _edge_index(batch: Batch):
    offsets = np.concatenate([[0], batch.layout.objects.cumsum()])
    pair = events_kernel.edge_index(offsets, batch.layout.self_loops)
    return tuple(torch.from_numpy(rows).to(batch.node_x.device) for rows in pair)


def _inverse_counts(batch: Batch):
    return tuple(1 / count.clamp(min=1).to(batch.node_x.dtype).unsqueeze(1) for count in (batch.objects, batch.pairs))


# ---------------------------------------------------------------------------------------------------- plans


def fixed(index: np.ndarray, events: int) -> list[np.ndarray]:
    """Batches of `events` events in the order given; the last may be smaller."""
    if events < 1:
        raise InputError("batch: events", "a whole number of at least 1", repr(events))
    return [index[first : first + events] for first in range(0, len(index), events)]


def by_edges(index: np.ndarray, pairs: np.ndarray, edges: int, events: int) -> list[np.ndarray]:
    """Batches of at most `edges` edges and `events` events; an event above the budget is a batch of its own.

    Events are sorted by size inside windows of the order given, so that a batch holds events of like size; every event
    occurs once, and which window it is in depends on the order alone.

    Parameters
    ----------
    index : int64 (n,)      events, in order
    pairs : int64           edges of every event of the cache
    edges, events : int     budgets of a batch
    """
    if edges < 1 or events < 1:
        raise InputError("batch: budget", "at least 1 edge and 1 event", f"{edges} and {events}")
    plan = []
    for first in range(0, len(index), WINDOW * events):
        window = index[first : first + WINDOW * events]
        window = window[np.argsort(pairs[window], kind="stable")]
        start, used = 0, 0
        for place, size in enumerate(pairs[window].tolist()):
            if place > start and (used + size > edges or place - start == events):
                plan.append(window[start:place])
                start, used = place, 0
            used += size
        if start < len(window):
            plan.append(window[start:])
    return plan


def in_order(index: np.ndarray, pairs: np.ndarray, edges: int, events: int) -> list[np.ndarray]:
    """Like `by_edges` without sorting: runs of the order given, cut where a budget is reached."""
    plan, start, used = [], 0, 0
    for place, size in enumerate(pairs[index].tolist()):
        if place > start and (used + size > edges or place - start == events):
            plan.append(index[start:place])
            start, used = place, 0
        used += size
    if start < len(index):
        plan.append(index[start:])
    return plan


def shuffled(index: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """The epoch's permutation, a function of (seed, epoch) alone: a resumed run needs no sampler state."""
    return np.random.default_rng([seed, 1, epoch]).permutation(index)


def split(events: int, seed: int, held_out: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out events: every `held_out`-th of a seeded shuffle is held out; both ascending."""
    order = np.random.default_rng([seed, 0]).permutation(events)
    return np.sort(order[np.arange(events) % held_out != 0]), np.sort(order[::held_out])


# ---------------------------------------------------------------------------------------------------- made events


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
    edges = events_kernel.edge_features(np.ascontiguousarray(node_x), offsets, 1, 2, self_loops)
    source, _ = events_kernel.edge_index(offsets, self_loops)
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
        "content": events_content(node_x, offsets, label),
    }
    arrays = {
        "node_x": np.ascontiguousarray(node_x),
        "node_off": offsets,
        "glob": np.stack(columns, 1).astype(np.float32),
        "label": label,
        "weight": np.ones(len(sizes), np.float32),
    }
    return Cache(Path("made"), manifest, arrays)


def events_content(*arrays: np.ndarray) -> str:
    """SHA-256 over the bytes of arrays, 64 hex digits."""
    import hashlib

    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
