"""The bounded cache of edge indices never changes a result and stays within its bounds."""

import threading

import numpy as np
import pytest

from impl.events import graph, topology
from impl.events.topology import TopologyCache


def assert_is_edge_index(pair, nodes, self_loops=False):
    for made, expected in zip(pair, graph.edge_index(nodes, self_loops), strict=True):
        assert made.dtype == np.int64
        assert made.flags.c_contiguous
        np.testing.assert_array_equal(made, expected)


def test_the_thirty_third_size_evicts_the_least_recently_used():
    cache = TopologyCache()
    for nodes in range(2, 34):
        cache.get(nodes)
    cache.get(2)  # now 3 is the oldest
    cache.get(34)
    assert (len(cache), cache.counters.evicted_by_count) == (32, 1)
    misses = cache.counters.misses
    cache.get(2)
    assert cache.counters.misses == misses
    assert_is_edge_index(cache.get(3), 3)
    assert cache.counters.misses == misses + 1


def test_bytes_are_bounded_and_an_entry_beyond_the_bound_is_not_kept():
    cache = TopologyCache(max_bytes=16 * (20 * 19 + 10 * 9))
    cache.get(20)
    cache.get(10)
    assert cache.bytes == 16 * (20 * 19 + 10 * 9)
    cache.get(11)
    assert (len(cache), cache.counters.evicted_by_bytes) == (2, 1)
    assert cache.bytes == 16 * (10 * 9 + 11 * 10)
    assert_is_edge_index(cache.get(1000), 1000)
    assert (len(cache), cache.counters.not_kept) == (2, 1)


def check_keys(cache):
    for nodes in (0, 1, 2, 5):
        for self_loops in (False, True):
            assert_is_edge_index(cache.get(nodes, self_loops), nodes, self_loops)
            assert_is_edge_index(cache.get(nodes, self_loops), nodes, self_loops)
    assert (cache.counters.hits, cache.counters.misses, len(cache)) == (8, 8, 8)


def test_keys_do_not_collide():
    check_keys(TopologyCache())


def test_the_check_of_keys_rejects_a_cache_that_forgets_self_loops():
    class Forgetful(TopologyCache):
        def get(self, nodes, self_loops=False, device=None):
            for key, pair in self._entries.items():
                if key[0] == nodes:
                    self.counters.hits += 1
                    return pair
            return super().get(nodes, self_loops, device)

    with pytest.raises(AssertionError):
        check_keys(Forgetful())


def test_a_switched_off_cache_keeps_nothing_and_gives_the_same():
    cache = TopologyCache(max_entries=0)
    for _ in range(2):
        assert_is_edge_index(cache.get(6), 6)
    assert (len(cache), cache.counters.hits, cache.counters.misses) == (0, 0, 2)


def test_the_order_of_requests_changes_no_result():
    rng = np.random.default_rng(2)
    cache = TopologyCache(max_entries=3)
    for nodes in rng.integers(0, 9, 200):
        assert_is_edge_index(cache.get(nodes), int(nodes))


def test_numpy_entries_cannot_be_written_into():
    src, _ = TopologyCache().get(4)
    with pytest.raises(ValueError, match="read-only"):
        src[0] = 9


def test_eight_threads_get_right_pairs_and_the_counters_add_up():
    cache = TopologyCache(max_entries=4)
    wrong = []

    def ask(seed):
        for nodes in np.random.default_rng(seed).integers(0, 12, 300):
            pair = cache.get(nodes)
            if not all(np.array_equal(a, b) for a, b in zip(pair, graph.edge_index(int(nodes)))):
                wrong.append(nodes)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.counters.hits + cache.counters.misses == 8 * 300
    assert len(cache) <= 4
    assert cache.bytes == sum(16 * len(pair[0]) for pair in cache._entries.values())


def test_the_common_cache_is_cleared():
    topology.cache_clear()
    topology.fully_connected_edges(3)
    topology.fully_connected_edges(3)
    assert (topology.DEFAULT.counters.hits, topology.DEFAULT.counters.misses) == (1, 1)
    topology.cache_clear()
    assert (topology.DEFAULT.counters.hits, len(topology.DEFAULT)) == (0, 0)


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="at least 0"):
        TopologyCache().get(-1)
