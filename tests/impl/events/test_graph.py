"""Edges of an event: their order, their features, and that the C library equals the NumPy reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.events import graph, kernel

SIZES = (0, 1, 2, 3, 31, 63, 64, 65, 130)


def angles(rng, n, limit=2 * np.pi):
    x = np.zeros((n, 3), np.float32)
    x[:, 0] = rng.normal(0, 2, n)
    x[:, 1] = np.clip(rng.uniform(-limit, limit, n), -graph.TWO_PI, graph.TWO_PI)
    return x


def assert_same_bits(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_edges_are_all_ordered_pairs_source_major(n, self_loops):
    src, dst = graph.edge_index(n, self_loops)
    pairs = [(s, d) for s in range(n) for d in range(n) if self_loops or s != d]
    assert list(zip(src.tolist(), dst.tolist())) == pairs
    assert src.dtype == dst.dtype == np.int64


@pytest.mark.parametrize("self_loops", [False, True])
def test_kernel_indices_of_a_batch_equal_the_reference_event_by_event(self_loops):
    off = np.concatenate([[0], np.cumsum(SIZES)])
    src, dst = kernel.edge_index(off, self_loops)
    expected = [np.stack(graph.edge_index(n, self_loops)) + o for n, o in zip(SIZES, off)]
    assert_same_bits(np.stack([src, dst]), np.concatenate(expected, axis=1))


@pytest.mark.parametrize("self_loops", [False, True])
def test_kernel_features_of_a_batch_equal_the_reference_to_the_last_bit(self_loops):
    off = np.concatenate([[0], np.cumsum(SIZES)])
    x = angles(np.random.default_rng(5), off[-1])
    made = kernel.edge_features(x, off, 0, 1, self_loops)
    parts = []
    for begin, end in itertools.pairwise(off):
        src, dst = graph.edge_index(end - begin, self_loops)
        parts.append(graph.edge_features(x[begin:end, 0], x[begin:end, 1], src, dst))
    assert_same_bits(made, np.concatenate(parts))


def test_the_comparison_sees_one_flipped_bit():
    x = angles(np.random.default_rng(5), 40)
    made = kernel.edge_features(x, [0, 40], 0, 1)
    broken = made.copy()
    broken.view(np.uint32)[777, 2] ^= 1
    with pytest.raises(AssertionError):
        assert_same_bits(made, broken)


def wrapped(a, b):
    return float(graph.wrap(np.float32(a) - np.float32(b)))


def test_a_difference_of_exactly_plus_pi_becomes_minus_pi():
    assert wrapped(graph.PI, 0) == -float(graph.PI)
    assert wrapped(0, graph.PI) == -float(graph.PI)
    below = np.nextafter(graph.PI, np.float32(0))
    assert wrapped(below, 0) == float(below)
    assert wrapped(0, below) == -float(below)
    x = np.array([[0, graph.PI], [0, 0]], np.float32)
    assert kernel.edge_features(x, [0, 2], 0, 1)[:, 1].tolist() == [-float(graph.PI)] * 2


def check_properties(edges, src, dst):
    """d_eta antisymmetric, d_phi in [-π, π) and antisymmetric except at -π, d_R symmetric and at least 0."""
    table = {(s, d): e for s, d, e in zip(src.tolist(), dst.tolist(), edges)}
    for (s, d), (d_eta, d_phi, d_r) in table.items():
        back = table[d, s]
        assert d_eta == -back[0]
        assert -graph.PI <= d_phi < graph.PI
        assert d_phi == -back[1] or d_phi == back[1] == -graph.PI
        assert d_r == back[2] >= 0
        assert d_r == np.float32(np.hypot(float(d_eta), float(d_phi)))


PHI = st.floats(float(-graph.TWO_PI), float(graph.TWO_PI), width=32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(-10, 10, width=32), PHI), min_size=2, max_size=9))
def test_edge_features_obey_their_symmetries(objects):
    x = np.array(objects, np.float32)
    src, dst = graph.edge_index(len(x))
    check_properties(kernel.edge_features(x, [0, len(x)], 0, 1), src, dst)


@pytest.mark.parametrize("column", [0, 1, 2])
def test_the_symmetry_check_rejects_a_wrong_column(column):
    x = angles(np.random.default_rng(3), 6, np.pi)
    src, dst = graph.edge_index(6)
    edges = kernel.edge_features(x, [0, 6], 0, 1)
    broken = edges.copy()
    broken[:, column] = [x[src, 0] + x[dst, 0], x[src, 1] - x[dst, 1] + 7, x[src, 0]][column]
    check_properties(edges, src, dst)
    with pytest.raises(AssertionError):
        check_properties(broken, src, dst)


def test_gather_concatenates_the_rows_of_chosen_items():
    source = np.arange(24, dtype=np.int32).reshape(8, 3)
    offset = np.array([0, 2, 2, 5, 8])
    made = kernel.gather(source, offset, [3, 1, 0, 3])
    assert_same_bits(made, np.concatenate([source[5:8], source[2:2], source[0:2], source[5:8]]))


def test_the_kernel_refuses_what_would_read_or_write_outside():
    x = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match="expected within 0 … 4 rows"):
        kernel.edge_features(x, [0, 5], 0, 1)
    with pytest.raises(ValueError, match="float32"):
        kernel.edge_features(x.astype(np.float64), [0, 4], 0, 1)
    with pytest.raises(ValueError, match="columns below 3"):
        kernel.edge_features(x, [0, 4], 0, 3)
    with pytest.raises(ValueError, match="out: expected"):
        kernel.edge_features(x, [0, 4], 0, 1, out=np.empty((11, 3), np.float32))
    with pytest.raises(IndexError, match="expected events 0 … 0, found 1 … 1"):
        kernel.gather(x, [0, 4], [1])
    with pytest.raises(Exception, match="offsets that ascend"):
        kernel.edge_index([0, 3, 1])


def test_the_loaded_library_was_built_from_these_sources():
    assert kernel.source_digest() == kernel.tree_digest()
