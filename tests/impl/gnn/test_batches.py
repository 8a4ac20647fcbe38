"""Plans lose and repeat no event, keep their budgets, and follow from the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.extras
pytest.importorskip("torch")

from impl.gnn import batches, sample  # noqa: E402
from impl.gnn.errors import InputError  # noqa: E402


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 60), max_size=120),
    st.integers(1, 3000),
    st.integers(1, 40),
    st.integers(0, 5),
)
def test_every_event_once_within_the_budgets(sizes, edges, events, seed):
    pairs = np.array([n * (n - 1) for n in sizes], np.int64)
    order = np.random.default_rng(seed).permutation(len(sizes))
    plan = batches.by_edges(order, pairs, edges, events)
    assert sorted(np.concatenate([*plan, np.empty(0, np.int64)]).tolist()) == list(range(len(sizes)))
    for batch in plan:
        assert len(batch) <= events
        assert pairs[batch].sum() <= edges or len(batch) == 1


def test_an_event_above_the_budget_is_a_batch_of_its_own():
    pairs = np.array([6, 900, 6, 6])
    plan = batches.by_edges(np.arange(4), pairs, 100, 10)
    assert [batch.tolist() for batch in plan] == [[0, 2, 3], [1]]


def test_events_of_like_size_go_together():
    sizes = np.random.default_rng(0).integers(0, 60, 400)
    pairs = sizes * (sizes - 1)
    spread = [np.ptp(sizes[batch]) for batch in batches.by_edges(np.arange(400), pairs, 5000, 50)]
    mixed = [np.ptp(sizes[batch]) for batch in batches.fixed(np.arange(400), 20)]
    assert np.mean(spread) < 0.3 * np.mean(mixed)


def test_the_shuffle_follows_from_seed_and_epoch():
    index = np.arange(50)
    first = batches.shuffled(index, 1, 0)
    assert np.array_equal(first, batches.shuffled(index, 1, 0))
    assert sorted(first) == list(range(50))
    assert not np.array_equal(first, batches.shuffled(index, 1, 1))
    assert not np.array_equal(first, batches.shuffled(index, 2, 0))


def test_the_split_parts_the_events():
    train, held = batches.split(103, 0)
    assert len(held) == 21
    assert sorted([*train, *held]) == list(range(103))


def test_budgets_that_cannot_be_are_said():
    with pytest.raises(InputError, match="at least 1"):
        batches.fixed(np.arange(3), 0)
    with pytest.raises(InputError, match="at least 1 edge and 1 event"):
        batches.by_edges(np.arange(3), np.ones(3), 0, 5)


def test_a_batch_holds_its_events_in_order():
    cache = sample.made([3, 0, 5, 2], seed=1)
    batch = batches.Batch(cache.batch([2, 1, 0]))
    assert batch.index.tolist() == [2, 1, 0]
    assert batch.layout.objects.tolist() == [5, 0, 3]
    assert batch.pairs.tolist() == [20, 0, 6]
    assert batch.event_of_node().tolist() == [0] * 5 + [2] * 3
    source, target = batch.edge_index()
    assert (source[:4].tolist(), target[:4].tolist()) == ([0] * 4, [1, 2, 3, 4])
    assert batch.label.tolist() == cache.label[[2, 1, 0]].tolist()
    sums = batch.sum_nodes(batch.node_x)
    assert sums[1].tolist() == [0] * 7
    assert sums[0] == pytest.approx(batch.node_x[:5].sum(0))


def test_made_events_follow_from_the_seed():
    one, two, other = (sample.made([4, 7, 2], seed=seed) for seed in (1, 1, 2))
    assert one.content == two.content != other.content
    assert sample.made([4, 7, 2], multilabel=True, classes=3).label.shape == (3, 3)
