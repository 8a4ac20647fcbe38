"""Merging batches in C against the same merge in NumPy, to the last bit."""

import kernel_twins as twins
import numpy as np
import pytest
from jobs import same_bytes

from impl.mapping import kernel
from impl.mapping.records import COLUMNS, Records, add, merge


def numpy_add(left: Records, right: Records) -> Records:
    """The merge by a stable sort of both batches' keys."""
    key = np.concatenate([left.key(), right.key()])
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    second = np.concatenate([key[1:] == key[:-1], [False]])[first]
    out = Records.empty(len(first))
    for name in COLUMNS:
        column = np.concatenate([getattr(left, name), getattr(right, name)])[order]
        target = getattr(out, name)
        target[:] = column[first]
        if name not in ("chunk", "local"):
            target[second] += column[first[second] + 1]
    return out


def batch(rng, count, keys):
    """Records of `count` of the keys 0..keys, some of them at the very ends of 64 bits."""
    key = np.sort(rng.choice(keys, min(count, keys), replace=False)).astype(np.uint64)
    key[key > keys // 2] += np.uint64(2**64 - 2 - keys)
    key[key % 3 == 1] |= np.uint64(1) << np.uint64(31)
    key = np.unique(key)
    n = len(key)
    odd = np.array([-0.0, 0.0, np.inf, -np.inf, 5e-324, 1e308, 1 / 3])
    sums = [np.where(rng.random(n) < 0.2, rng.choice(odd, n), rng.normal(0, 1e3, n)) for _ in range(3)]
    few = rng.integers(0, 2**32, n, np.uint32)
    return Records((key >> np.uint64(32)).astype(np.uint32), key.astype(np.uint32), *sums, few)


CASES = [(50, 60, 100), (1, 1, 1), (1, 40, 50), (300, 2, 400), (500, 500, 500), (500, 500, 10**6)]


def pairs():
    rng = np.random.default_rng(0)
    return [(batch(rng, a, keys), batch(rng, b, keys)) for a, b, keys in CASES for _ in range(20)]


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # Inf - Inf
def test_adding_in_c_gives_the_bytes_of_numpy():
    shared = 0
    for left, right in pairs():
        found = add(left, right)
        assert same_bytes(found, numpy_add(left, right))
        shared += len(left) + len(right) - len(found)
        key = found.key()
        assert (key[1:] > key[:-1]).all()
        assert all(column.flags.owndata for column in found.columns())
    assert shared > 5000
    empty = Records.empty()
    left = pairs()[0][0]
    assert add(left, empty) is left
    assert add(empty, left) is left


def test_the_largest_key_is_a_key_like_any_other():
    most, one = np.array([2**32 - 1], np.uint32), np.ones(1)
    last = Records(most, most, one, one, one, np.ones(1, np.uint32))
    for left, right in ((last, last), (last, batch(np.random.default_rng(1), 9, 20))):
        assert same_bytes(add(left, right), numpy_add(left, right))


def test_a_merge_is_the_same_tree_whoever_adds(monkeypatch):
    rng = np.random.default_rng(3)
    batches = [batch(rng, 200, 300) for _ in range(7)]
    for one in batches:
        for name in ("sum_intensity", "sum_variance", "sum_weight"):
            getattr(one, name)[:] = rng.normal(0, 1, len(one))
    found = merge(batches)
    b = batches
    tree = [numpy_add(b[0], b[1]), numpy_add(b[2], b[3]), numpy_add(b[4], b[5]), b[6]]
    tree = [numpy_add(tree[0], tree[1]), numpy_add(tree[2], tree[3])]
    assert same_bytes(found, numpy_add(*tree))
    in_a_row = b[0]
    for one in b[1:]:
        in_a_row = numpy_add(in_a_row, one)
    assert not same_bytes(found, in_a_row)  # another association is seen
    assert not same_bytes(found, merge(b[::-1]))
    assert merge(b[:1]) is b[0]


TWINS = {
    "right + left is left alone": ("l = (s & from_both) | (l & ~from_both);", "(void)s;"),
    "the right side of a pair is not passed": (
        "j += (int64_t)(from_right & 1);",
        "j += (int64_t)(from_right & ~both & 1);",
    ),
    "the tail is dropped": ("append(out, &b, j);", "(void)j;"),
}


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_a_broken_merge_is_seen(name, tmp_path, monkeypatch):
    twins.use(monkeypatch, twins.build(tmp_path, [("mapping_records.c", *TWINS[name])]))
    assert not all(same_bytes(add(left, right), numpy_add(left, right)) for left, right in pairs()[:60])


def test_columns_that_would_need_a_copy_are_refused():
    left, right = pairs()[0]
    for name, bad, words in (
        ("sum_weight", left.sum_weight.astype(np.float32), "left: sum_weight: expected float64, found float32"),
        ("local", np.repeat(left.local, 2)[::2], "left: local: expected an aligned, C-contiguous"),
        ("contributors", left.contributors[:-1], "left: contributors: expected shape"),
    ):
        broken = Records(*(bad if n == name else getattr(left, n) for n in COLUMNS))
        with pytest.raises((TypeError, ValueError), match=words):
            add(broken, right)
    with pytest.raises((TypeError, ValueError), match="right: chunk"):
        kernel.add_records(left, Records(right.chunk.astype(int), *right.columns()[1:]))
