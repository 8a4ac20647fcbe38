"""Events of a cache as torch batches: plans of which events go together, and the batches.

A plan is a list of int64 arrays of event numbers. Fully connected events cost n(n-1) edges, so equal numbers of events
make very different batches: `by_edges` bounds the edges of a batch instead, and with them its memory.
"""

import numpy as np
import torch

from impl.events import kernel as events_kernel
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
