"""stats: exact intervals come out of the published tables, and every number agrees with a slower way to it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import stats

# n: smallest two-sided p, then k and cover of the signed-rank interval at 90, 95 and 99 %, sign order at 95 and 99 %
TABLE = {
    4: (0.125, (0, None), (0, None), (0, None), 0, 0),
    5: (0.0625, (1, 0.938), (0, None), (0, None), 0, 0),
    6: (0.03125, (3, 0.906), (1, 0.969), (0, None), 1, 0),
    7: (0.015625, (4, 0.922), (3, 0.953), (0, None), 1, 0),
    8: (0.0078125, (6, 0.922), (4, 0.961), (1, 0.992), 1, 1),
    10: (2**-9, (11, 0.916), (9, 0.951), (4, 0.990), 2, 1),
    12: (2**-11, (18, 0.908), (14, 0.958), (8, 0.991), 3, 2),
    15: (2**-14, (31, 0.905), (26, 0.952), (16, 0.992), 4, 3),
    20: (2**-19, (61, 0.903), (53, 0.952), (38, 0.991), 6, 4),
    30: (2**-29, (152, 0.904), (138, 0.950), (110, 0.990), 10, 8),
    40: (2**-39, (287, 0.903), (265, 0.950), (221, 0.990), 14, 12),
}


@pytest.mark.parametrize("n", TABLE)
def test_interval_orders_are_those_of_the_table(n):
    smallest, at90, at95, at99, sign95, sign99 = TABLE[n]
    for level, (k, cover) in ((0.90, at90), (0.95, at95), (0.99, at99)):
        assert stats.signed_rank_order(n, level) == k
        if k:
            assert 1 - 2 * stats.signed_rank_cdf(n)[k - 1] == pytest.approx(cover, abs=5e-4)
    assert stats.sign_order(n, 0.95) == sign95
    assert stats.sign_order(n, 0.99) == sign99
    assert stats.signed_rank_p(np.arange(1, n + 1.0)) == smallest


def test_six_units_are_needed_for_95_percent_and_eight_for_99():
    assert [stats.units_needed(level) for level in (0.90, 0.95, 0.99)] == [5, 6, 8]
    low, high = stats.signed_rank_interval([1.0, 2, 3, 4, 5], 0.95)
    assert (low, high) == (-math.inf, math.inf)


def test_cdf_is_that_of_all_sign_patterns():
    for n in range(1, 9):
        sums = [
            sum(rank for rank, sign in enumerate(signs, 1) if sign) for signs in itertools.product((0, 1), repeat=n)
        ]
        expected = [np.mean(np.array(sums) <= w) for w in range(n * (n + 1) // 2 + 1)]
        assert stats.signed_rank_cdf(n) == pytest.approx(expected, abs=0)


def test_p_is_scipys_exact_one_without_ties():
    from scipy.stats import wilcoxon

    d = np.random.default_rng(1).normal(0.3, 1, (20, 11))
    expected = [wilcoxon(row, method="exact").pvalue for row in d]
    assert stats.signed_rank_p(d) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", [60, 200])
def test_cdf_is_scipys_exact_one_for_many_units(n):
    from scipy.stats import wilcoxon

    for shift in (0.0, 0.1, 0.3):
        d = np.random.default_rng(n).normal(shift, 1, n)
        assert stats.signed_rank_p(d) == pytest.approx(wilcoxon(d, method="exact").pvalue, rel=1e-11)


def plain_cdf(n):
    """The distribution by adding one coin after the other to the whole of it."""
    share = np.zeros(n * (n + 1) // 2 + 1)
    share[0] = 1.0
    for rank in range(1, n + 1):
        moved = np.zeros_like(share)
        moved[rank:] = share[:-rank]
        share = (share + moved) / 2
    return np.minimum(np.cumsum(share), 1.0)


def test_growing_sums_give_the_distribution_of_whole_ones():
    assert np.array_equal(stats.signed_rank_cdf(120), plain_cdf(120))


@pytest.mark.parametrize(("n", "error"), [(401, 2.9e-9), (600, 8.6e-10)])
def test_beyond_the_exact_numbers_the_error_is_the_stated_one(n, error):
    w = np.arange(n * (n + 1) // 2 + 1)
    found, exact = stats.signed_rank_below(n, w), plain_cdf(n)
    inside = found < 1
    assert np.abs(found - exact - stats.APPROXIMATE_ERROR)[inside].max() <= error
    assert (found >= exact).all()
    assert (np.diff(found) >= 0).all()
    for level in (0.90, 0.95, 0.99, 0.9999):
        k = stats.signed_rank_order(n, level)
        assert exact[k - 1] <= (1 - level) / 2
        assert 0 <= np.searchsorted(exact, (1 - level) / 2, side="right") - k <= 1


def test_beyond_the_exact_numbers_no_table_is_made():
    with pytest.raises(ValueError, match="at most 400 units, found 401; signed_rank_below takes any number"):
        stats.signed_rank_cdf(401)


@pytest.mark.parametrize("made", ["smooth", "ties", "equal", "two values"])
def test_many_units_give_what_all_their_averages_give(made):
    random, n = np.random.default_rng(5), 1001
    d = {
        "smooth": random.standard_t(3, n) + 0.05,
        "ties": np.round(random.normal(0, 0.05, n), 2),
        "equal": np.full(n, 0.25),
        "two values": random.integers(0, 2, n) * 1.0,
    }[made]
    averages, total, k = stats.walsh_averages(d), n * (n + 1) // 2, stats.signed_rank_order(n, 0.95)
    assert stats.hodges_lehmann(d) == np.median(averages)
    assert stats.signed_rank_interval(d, 0.95) == (averages[k - 1], averages[-k])
    places = [0, 1, 77, total // 3, total - 1]
    assert [float(found) for found in stats.walsh_order(d, *places)] == averages[places].tolist()
    above, below = stats.signed_rank_tails(d)
    assert above == stats.signed_rank_below(n, total - (averages > 0).sum())
    assert below == stats.signed_rank_below(n, total - (averages < 0).sum())


@pytest.mark.parametrize(("m", "n", "digits"), [(1, 1, 9), (3, 4, 9), (300, 501, 9), (300, 501, 1), (1, 900, 9)])
def test_a_shift_is_the_median_of_all_differences(m, n, digits):
    random = np.random.default_rng(m * n)
    x, y = np.round(random.normal(0.4, 1, m), digits), np.round(random.normal(0, 1, n), digits)
    assert stats.shift(x, y) == np.median(x[:, None] - y)


def test_rows_of_many_units_are_computed_as_if_alone():
    d = np.random.default_rng(6).normal(0.1, 1, (2, 3, 450))
    low, high = stats.signed_rank_interval(d, 0.95)
    assert low.shape == stats.hodges_lehmann(d).shape == stats.signed_rank_p(d).shape == (2, 3)
    assert (low[1, 2], high[1, 2]) == stats.signed_rank_interval(d[1, 2], 0.95)
    assert stats.signed_rank_p(d)[1, 2] == stats.signed_rank_p(d[1, 2])


def test_more_equal_averages_than_are_held_give_one_of_them(monkeypatch):
    monkeypatch.setattr(stats, "_MOST_TIES", 1000)
    d = np.repeat([0.1, 0.2, 0.4], 200)
    assert stats.hodges_lehmann(d) == pytest.approx(np.median(stats.walsh_averages(d)), abs=1e-15)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_p_is_valid_under_ties_and_zeros(values):
    """Over all assignments of signs to these magnitudes, p <= α happens in at most a share α."""
    flips = np.array(list(itertools.product((-1, 1), repeat=len(values)))) * np.abs(values)
    p = stats.signed_rank_p(flips)
    for level in np.unique(p):
        assert np.mean(p <= level) <= level + 1e-12


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=20), st.sampled_from([0.9, 0.95]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_interval_and_p_are_two_views_of_one_test(values, level):
    low, high = stats.signed_rank_interval(values, level)
    outside = low > 0 or high < 0
    assert outside == (stats.signed_rank_p(values) <= (1 - level) * (1 + 1e-9))


def test_hodges_lehmann_by_hand():
    # Walsh averages of 0, 1, 5: 0, .5, 2.5, 1, 3, 5
    assert stats.hodges_lehmann([0.0, 1.0, 5.0]) == 1.75
    assert stats.hodges_lehmann([3.0]) == 3.0
    assert stats.walsh_averages([5.0, 0.0, 1.0]).tolist() == [0, 0.5, 1, 2.5, 3, 5]


def test_rows_are_computed_as_if_alone():
    d = np.random.default_rng(2).normal(size=(5, 9))
    low, high = stats.signed_rank_interval(d, 0.95)
    for row, (one_low, one_high) in zip(d, zip(low, high)):
        assert stats.signed_rank_interval(row, 0.95) == (one_low, one_high)
    assert stats.hodges_lehmann(d).tolist() == [stats.hodges_lehmann(row) for row in d]


def test_one_wild_unit_moves_the_estimate_little():
    d = [0.01, 0.02, 0.0, -0.01, 0.015, 0.005, 0.012, 50.0]
    assert abs(stats.hodges_lehmann(d)) < 0.03


def test_mde_factors_are_the_t3_row_and_interpolate_between():
    assert [stats.mde_factor(n) for n in stats.MDE_UNITS] == pytest.approx(stats.MDE_FACTORS)
    assert stats.MDE_FACTORS == (2.37, 1.62, 1.32, 1.14, 0.95, 0.80, 0.62, 0.53)
    factors = [stats.mde_factor(n) for n in range(6, 200)]
    assert all(a > b for a, b in itertools.pairwise(factors))
    assert stats.mde_factor(160) == pytest.approx(0.53 / 2)
    with pytest.raises(ValueError, match="at least 6 units, found 5"):
        stats.mde_factor(5)


def test_mde_is_factor_times_robust_sd():
    d = [-0.02, -0.01, 0.0, 0.01, 0.02, 0.03, 0.04, 0.05]
    assert stats.robust_sd(d) == pytest.approx(1.4826 * 0.02)
    assert stats.mde(d) == pytest.approx(1.62 * 1.4826 * 0.02)


@pytest.mark.parametrize(("sd", "effect"), [(0.01, 0.02), (0.03, 0.02), (0.2, 0.02), (0.0, 0.02)])
def test_units_for_is_the_smallest_number_that_shows_the_effect(sd, effect):
    n = stats.units_for(effect, sd)
    assert stats.mde_factor(n) * sd <= effect
    assert n == 6 or stats.mde_factor(n - 1) * sd > effect


def test_units_for_refuses_no_effect():
    with pytest.raises(ValueError, match="an effect above 0, found 0"):
        stats.units_for(0, 0.1)


@pytest.mark.parametrize(("k", "n"), [(0, 8), (1, 8), (3, 20), (20, 20), (5, 200), (0, 9000), (40, 9000)])
def test_share_interval_is_clopper_pearson(k, n):
    from scipy.stats import beta

    low, high = stats.share_interval(k, n)
    assert low == pytest.approx(beta.ppf(0.025, k, n - k + 1) if k else 0, abs=1e-9)
    assert high == pytest.approx(beta.ppf(0.975, k + 1, n - k) if k < n else 1, abs=1e-9)


def test_share_without_trials_is_unknown():
    assert stats.share_interval(0, 0) == (0, 1)


def test_binomial_tail_is_exact():
    assert stats.binomial_tail(5, 5, 0.5) == pytest.approx(2**-5)
    assert stats.binomial_tail(0, 5, 0.5) == 1
    assert stats.binomial_tail(3, 5, 0.0) == 0
    assert stats.binomial_tail(3, 5, 1.0) == 1


@pytest.mark.parametrize(("block", "pair"), [(0.01, 0.02), (0.03, 0.01), (0.0, 0.02)])
def test_variance_components_find_what_was_put_in(block, pair):
    rng = np.random.default_rng(3)
    made = rng.normal(0, block, (800, 1)) + rng.normal(0, pair, (800, 12))
    found_block, found_pair = stats.variance_components(made.tolist())
    assert found_pair == pytest.approx(pair, rel=0.05)
    assert found_block == pytest.approx(block, abs=0.004)


def test_variance_components_say_what_they_cannot_know():
    assert stats.variance_components([]) == (None, None)
    assert stats.variance_components([[0.1]]) == (None, None)
    block, pair = stats.variance_components([[0.1], [0.2]])
    assert block > 0
    assert pair is None
