"""Small masked components are filled as a slow loop would fill them, wherever the frame is cut."""

import math

import numpy as np
import pytest

from impl.mapping import repair as fast
from impl.mapping.repair import repair


def slow(intensity, variance, mask, largest):
    """The same by plain loops: flood fill, sorting, sums."""
    rows, columns = mask.shape
    out, spread, flags = intensity.copy(), variance.copy(), mask.copy()

    def edge(r, c):
        return [
            (r + d, c + e) for d, e in ((-1, 0), (0, -1), (0, 1), (1, 0)) if 0 <= r + d < rows and 0 <= c + e < columns
        ]

    def good(place):
        return not mask[place] and math.isfinite(intensity[place]) and math.isfinite(variance[place])

    seen = set()
    for start in zip(*np.nonzero(mask)):
        if start in seen:
            continue
        component, todo = [], [start]
        seen.add(start)
        while todo:
            place = todo.pop()
            component.append(place)
            for other in edge(*place):
                if mask[other] and other not in seen:
                    seen.add(other)
                    todo.append(other)
        if len(component) > largest:
            continue
        touching = sorted({n for place in component for n in edge(*place) if good(n)})
        if not touching:
            continue
        if len(component) == 1:
            ranked = sorted(touching, key=lambda n: (intensity[n], n))
            middle = ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]
            out[start] = sum(intensity[n] for n in middle) / len(middle)
            spread[start] = sum(variance[n] for n in middle) / len(middle) ** 2
            flags[start] = False
            continue
        for place in component:
            weights = [1 / math.dist(place, n) for n in touching]
            total = sum(weights)
            out[place] = sum(w * intensity[n] for w, n in zip(weights, touching)) / total
            spread[place] = sum(w * w * variance[n] for w, n in zip(weights, touching)) / total**2
            flags[place] = False
    return out, spread, flags


def made(seed, shape=(17, 23), share=0.2):
    rng = np.random.default_rng(seed)
    intensity, variance = rng.normal(10, 3, shape), rng.uniform(0, 4, shape)
    intensity[rng.random(shape) < 0.02] = np.nan
    variance[rng.random(shape) < 0.02] = np.inf
    return intensity, variance, rng.random(shape) < share


@pytest.mark.parametrize("largest", [0, 1, 2, 4, 9, 1000])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_components_are_filled_as_a_slow_loop_fills_them(largest, share):
    for seed in range(5):
        arrays = made(seed, share=share)
        kept = [array.copy() for array in arrays]
        result, expected = repair(*arrays, largest), slow(*arrays, largest)
        for array, before in zip(arrays, kept):
            np.testing.assert_array_equal(array, before)
        np.testing.assert_array_equal(result[2], expected[2])
        valid = ~expected[2]
        np.testing.assert_allclose(result[0][valid], expected[0][valid], rtol=1e-13)
        np.testing.assert_allclose(result[1][valid], expected[1][valid], rtol=1e-13)
        np.testing.assert_array_equal(result[0][expected[2]], arrays[0][expected[2]])


def test_four_neighbours_of_unit_variance_give_a_half():
    intensity = np.array([[0.0, 1.0, 0.0], [2.0, 99.0, 4.0], [0.0, 7.0, 0.0]])
    mask = np.zeros((3, 3), bool)
    mask[1, 1] = True
    result = repair(intensity, np.ones((3, 3)), mask, 1)
    assert (result[0][1, 1], result[1][1, 1], result[2].any()) == (3.0, 0.5, False)
    # in the corner two neighbours are left, at the edge three: their median has one weight of 1
    mask[:] = False
    mask[0, 0] = mask[2, 1] = True
    result = repair(intensity, np.ones((3, 3)), mask, 1)
    assert (result[0][0, 0], result[1][0, 0]) == (1.5, 0.5)
    assert (result[0][2, 1], result[1][2, 1]) == (0.0, 1.0)


def test_weights_of_a_pair_are_inverse_distances():
    intensity, mask = np.zeros((3, 4)), np.zeros((3, 4), bool)
    intensity[1] = [1.0, 99.0, 99.0, 5.0]
    mask[1, 1:3] = True
    result = repair(intensity, np.ones((3, 4)), mask, 2)
    weights = np.array([1, 1, 1, 0.5, 1 / math.sqrt(2), 1 / math.sqrt(2)])  # left, up, down, far, two diagonals
    assert result[0][1, 1] == pytest.approx((1 * 1 + 0.5 * 5) / weights.sum(), rel=1e-15)
    assert result[1][1, 1] == pytest.approx((weights**2).sum() / weights.sum() ** 2, rel=1e-15)
    assert repair(intensity, np.ones((3, 4)), mask, 1)[2].sum() == 2


def test_repair_does_not_depend_on_what_is_far():
    intensity, variance, mask = made(3, (60, 60), 0.1)
    whole = repair(intensity, variance, mask, 6)
    # A component of six pixels and its neighbours reach seven pixels at most.
    for r0, c0 in ((0, 0), (11, 5), (22, 31)):
        cut = np.s_[r0 : r0 + 29, c0 : c0 + 29]
        part = repair(*(np.ascontiguousarray(array[cut]) for array in (intensity, variance, mask)), 6)
        inner = np.s_[8:-8, 8:-8]
        for one, other in zip(part, whole):
            assert one[inner].tobytes() == np.ascontiguousarray(other[cut][inner]).tobytes()


def test_a_kept_plan_follows_the_mask():
    for seed, largest in ((0, 4), (0, 4), (1, 4), (0, 4), (0, 2)):
        intensity, variance, mask = made(seed)
        expected = slow(intensity, variance, mask, largest)
        np.testing.assert_array_equal(repair(intensity, variance, mask, largest)[2], expected[2])
        mask[:] = False  # the caller's array may change under the plan
    intensity, variance, mask = made(0)
    np.testing.assert_array_equal(repair(intensity, variance, mask, 2)[2], expected[2])
    # fewer pixels, as many of them: another mask all the same
    narrow = (array[:, :20].copy() for array in made(0))
    assert repair(*narrow, 2)[0].shape == (17, 20)


@pytest.mark.parametrize("twin", ["variance by w", "diagonals", "no renormalising"])
def test_broken_twins_are_seen(twin, monkeypatch):
    arrays = made(1)
    expected = slow(*arrays, 4)
    fast._last.kept = None
    if twin == "variance by w":
        broken = (arrays[0], arrays[1] * 1.3, arrays[2])
    elif twin == "no renormalising":
        real = fast.plan
        monkeypatch.setattr(fast, "plan", lambda mask, largest: fast.Plan(**{
            **vars(real(mask, largest)), "inverse": np.ones_like(real(mask, largest).inverse)}))  # fmt: skip
        broken = arrays
    else:
        import scipy.ndimage

        real = scipy.ndimage.label
        monkeypatch.setattr(scipy.ndimage, "label", lambda mask: real(mask, np.ones((3, 3))))
        broken = arrays
    result = repair(*broken, 4)
    fast._last.kept = None
    valid = ~expected[2]
    same = np.array_equal(result[2], expected[2]) and all(
        np.allclose(a[valid], b[valid], rtol=1e-13, equal_nan=True) for a, b in zip(result[:2], expected[:2])
    )
    assert not same


def test_arrays_of_other_kinds_are_refused():
    a, m = np.zeros((3, 3)), np.zeros((3, 3), bool)
    with pytest.raises(ValueError, match=r"intensity: expected float64 \(rows, columns\), found float32 \(3, 3\)"):
        repair(a.astype(np.float32), a, m, 1)
    with pytest.raises(ValueError, match=r"variance: expected float64 \(rows, columns\), found float64 \(3, 2\)"):
        repair(a, a[:, :2].copy(), m, 1)
    with pytest.raises(ValueError, match="intensity: expected a C-contiguous array, found another layout"):
        repair(np.asfortranarray(a), a, m, 1)
