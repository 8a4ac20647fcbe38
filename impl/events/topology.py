"""A bounded cache of edge indices of fully connected events: indices only, never features, graphs or results.

`fully_connected_edges(nodes, self_loops, device)` is the door. At most 32 entries and a bound on bytes; the least
recently used goes first. An entry for 1,000 nodes holds 16 MB. Whatever the cache does, the values, their order
(source-major) and their type are the same; only how often they are computed differs.

Without a device the pair is NumPy, write-protected. With one it is torch, which has no write protection: callers must
not write into it, and `TopologyCache.verify` finds out who did.
"""

import collections
import dataclasses
import threading

import numpy as np

from impl.events import kernel

MAX_ENTRIES = 32
MAX_BYTES = 256 << 20


@dataclasses.dataclass
class Counters:
    """What a cache did since it was made or cleared."""

    hits: int = 0
    misses: int = 0
    evicted_by_count: int = 0
    evicted_by_bytes: int = 0
    not_kept: int = 0


class TopologyCache:
    """Edge indices by (nodes, self_loops, device); safe to use from several threads.

    Parameters
    ----------
    max_entries : int       0 switches the cache off
    max_bytes : int         of all indices together; a larger single entry is made but not kept
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES):
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._entries: collections.OrderedDict = collections.OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self.counters = Counters()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Memory of the indices that are kept."""
        return self._bytes

    def get(self, nodes: int, self_loops: bool = False, device=None):
        """Source and destination of every edge of an event with `nodes` nodes.

        Parameters
        ----------
        nodes : int
        self_loops : bool
        device : str, torch.device or None      None: NumPy

        Returns
        -------
        int64 (E,), int64 (E,)      source-major; shared, not to be written
        """
        if nodes < 0:
            raise ValueError(f"nodes: expected at least 0, found {nodes}")
        key = (int(nodes), bool(self_loops), None if device is None else str(device))
        with self._lock:
            pair = self._entries.get(key)
            if pair is not None:
                self._entries.move_to_end(key)
                self.counters.hits += 1
                return pair
            self.counters.misses += 1
        pair = _compute(*key)  # outside the lock: two threads may compute the same pair, which is the same values
        with self._lock:
            self._keep(key, pair)
        return pair

    def _keep(self, key: tuple, pair: tuple) -> None:
        size = 16 * len(pair[0])
        if key in self._entries:
            return
        if self.max_entries < 1 or size > self.max_bytes:
            self.counters.not_kept += 1
            return
        while len(self._entries) >= self.max_entries:
            self._evict()
            self.counters.evicted_by_count += 1
        while self._bytes + size > self.max_bytes:
            self._evict()
            self.counters.evicted_by_bytes += 1
        self._entries[key] = pair
        self._bytes += size

    def _evict(self) -> None:
        _, pair = self._entries.popitem(last=False)
        self._bytes -= 16 * len(pair[0])

    def clear(self) -> None:
        """Forget everything, counters too."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0
            self.counters = Counters()

    def verify(self) -> None:
        """Compare every entry with a fresh computation; raises RuntimeError naming one that somebody wrote into."""
        with self._lock:
            entries = list(self._entries.items())
        for key, pair in entries:
            for kept, fresh in zip(pair, _compute(key[0], key[1], None), strict=True):
                if not np.array_equal(np.asarray(kept) if key[2] is None else kept.cpu().numpy(), fresh):
                    raise RuntimeError(f"topology cache: the entry of {key[0]} nodes was written into by a caller")


def _compute(nodes: int, self_loops: bool, device: str | None):
    pair = kernel.edge_index(np.array([0, nodes], np.int64), self_loops)
    if device is None:
        for array in pair:
            array.flags.writeable = False
        return pair
    import torch

    return tuple(torch.from_numpy(array).to(device) for array in pair)


#: the cache behind `fully_connected_edges`
DEFAULT = TopologyCache()


def fully_connected_edges(nodes: int, self_loops: bool = False, device=None):
    """Edge indices of a fully connected event from the common cache; see TopologyCache.get."""
    return DEFAULT.get(nodes, self_loops, device)


def cache_clear() -> None:
    """Empty the common cache and its counters."""
    DEFAULT.clear()
