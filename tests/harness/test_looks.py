"""The default end to end on made data: errors at their limits, power as published, and controls that must alarm.

Every run has a fresh seed, printed with a failure; HARNESS_SEED repeats one. A check fails only when its count is more
than chance makes of the limit, far beyond the 99 % bound, so that a right program does not fail by bad luck.
`make slow` does the same with ten times the comparisons.
"""

import os
import secrets

import numpy as np
import pytest
from noise import SETTINGS, made
from replicates import MARGIN, coins, ever, fixed, ratios, sequential, slots_of

from harness import stats

SEED = int(os.environ.get("HARNESS_SEED") or secrets.randbits(32))
NAMES = [*SETTINGS, "trace", "blocks"]
LAST = stats.LOOKS[-1]
#: cores that a burst which doubles the time is worth
CORES = 10


def generator(name: str):
    print(f"HARNESS_SEED={SEED}")
    return np.random.default_rng([SEED, *name.encode()])


def comparisons(name: str, rng, rows: int, effect: float = 0.0):
    """Slots, which are B's, their load, and whether a test of slots may look at positions."""
    b = coins(rng, rows, LAST)
    theta = np.log1p(effect)
    if name == "blocks":
        launches = rng.normal(0, 0.01, (rows, LAST)) - rng.normal(0, 0.01, (rows, LAST))
        pairs = 0.004 * rng.standard_t(3, (rows, LAST, 10))
        return slots_of(stats.hodges_lehmann(launches[..., None] + pairs) + theta, b), b, None, False
    y, load = made(name, rng, rows, 2 * LAST)
    return y + theta * b, b, load if name == "trace" else CORES * load, True


def beyond(count: int, trials: int, limit: float) -> bool:
    """Whether a count is beyond the limit's rate: exact, one-sided, 99.99 %."""
    return stats.binomial_tail(int(count), trials, limit) < 1e-4


def errors_of_an_arm_against_itself(name, rows):
    y, b, load, position = comparisons(name, generator(name), rows)
    different, _, _ = ever(y, b, load, position=position)
    found = sequential(y, b, load, position=position)
    assert not beyond(different.sum(), rows, 0.05)
    assert not beyond(found.count("regression"), rows, 0.01)
    assert not beyond(found.missed.sum(), rows, 0.06)


def errors_at_the_margin(name, rows):
    y, b, load, position = comparisons(name, generator(f"{name} margin"), rows, MARGIN)
    found = sequential(y, b, load, truth=np.log1p(MARGIN), position=position)
    assert not beyond(found.count("equivalent", "not-worse", "improvement"), rows, 0.05)
    assert not beyond(found.count("regression"), rows, 0.05)
    assert not beyond(found.missed.sum(), rows, 0.06)


@pytest.mark.parametrize("name", NAMES)
def test_an_arm_against_itself(name):
    errors_of_an_arm_against_itself(name, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_arm_against_itself_20000_times(name):
    rng = generator(f"{name} slow")
    counts = np.zeros(3, int)
    for _ in range(10):
        y, b, load, position = comparisons(name, rng, 2000)
        found = sequential(y, b, load, position=position)
        counts += (ever(y, b, load, position=position)[0].sum(), found.count("regression"), found.missed.sum())
    print(name, counts)
    for count, limit in zip(counts, (0.05, 0.01, 0.06)):
        assert stats.binomial_tail(int(count), 20_000, limit) >= 0.001, counts


@pytest.mark.parametrize("name", NAMES)
def test_b_exactly_at_the_margin(name):
    errors_at_the_margin(name, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_b_exactly_at_the_margin_20000_times(name):
    rng = generator(f"{name} margin slow")
    counts = np.zeros(2, int)
    for _ in range(10):
        y, b, load, position = comparisons(name, rng, 2000, MARGIN)
        found = sequential(y, b, load, truth=np.log1p(MARGIN), position=position)
        counts += (found.count("equivalent", "not-worse", "improvement"), found.missed.sum())
    print(name, counts)
    for count, limit in zip(counts, (0.05, 0.06)):
        assert stats.binomial_tail(int(count), 20_000, limit) >= 0.001, counts


def test_the_nominal_level_by_conditional_sign_flips():
    """One recorded hour, its times and loads fixed, only the coins flipped: the looks together stay within 5 %."""
    rng = generator("flips")
    y, load = made("trace", rng, 1, 2 * LAST)
    rows = 2000
    many = np.repeat(y, rows, axis=0), np.repeat(load, rows, axis=0)
    different, below, _ = ever(many[0], coins(rng, rows, LAST), many[1])
    assert not beyond(different.sum(), rows, 0.05)
    assert not beyond(below.sum(), rows, 0.05)


@pytest.mark.parametrize("name", ["hostile", "trace"])
def test_the_inverted_interval_covers(name):
    """The bounds that a report prints, found by stepping and halving, and not by duality as elsewhere here."""
    rows, n, theta = 100, 16, np.log1p(0.05)
    rng = generator(f"{name} inverted")
    y, load = made(name, rng, rows, 2 * n)
    load = load if name == "trace" else CORES * load
    b = coins(rng, rows, n)
    y += theta * b
    missed, widths, plain = 0, [], []
    for row in range(rows):
        position = bool(stats.position_costs(y[row], load[row]))
        _, low, high = stats.adjusted_interval(y[row], b[row], 0.95, load[row], position)
        missed += not low <= theta <= high
        widths.append(high - low)
        plain.append(np.ptp(stats.signed_rank_interval(ratios(y[row], b[row]), 0.95)))
    assert not beyond(missed, rows, 0.05)
    assert np.median(widths) < 1.1 * np.median(plain)


# ------------------------------------------------------------------------------------------------------------- power

#: share called different with 40 pairs at most, at effects where it is not all of them; of 2,000 comparisons a cell
POWER = {
    "quiet": {0.01: 1.00},
    "drifty": {0.01: 0.99},
    "bimodal": {0.01: 0.55, 0.02: 0.99},
    "ci-vm": {0.01: 0.61, 0.02: 0.98},
    "hostile": {0.05: 0.32},
}


@pytest.mark.parametrize("name", POWER)
def test_power_is_the_published_one_or_better(name):
    rows = 2000
    for effect, published in POWER[name].items():
        y, b, load, position = comparisons(name, generator(f"{name} power"), rows, effect)
        found = ever(y, b, load, position=position)[0].mean()
        # Two standard errors of a difference of two such shares, and the rounding of the published one.
        error = 2 * np.sqrt(2 * max(published * (1 - published), 0.002) / rows) + 0.005
        assert found >= published - error, (name, effect, found, published)


def test_power_on_the_recordings_is_the_published_one():
    """27 % at +5 %, give or take the five points of overlapping windows."""
    y, b, load, position = comparisons("trace", generator("trace power"), 2000, 0.05)
    assert ever(y, b, load, position=position)[0].mean() >= 0.22


def test_verdicts_are_the_published_ones():
    """ci-vm: equal arms are equivalent after 18 pairs, +5 % a regression after 12, +2 % neither."""
    rows = 2000
    equal = sequential(*comparisons("ci-vm", generator("equal"), rows)[:3])
    assert equal.share("equivalent", "not-worse") >= 0.97
    assert equal.used.mean() <= 20
    slower = sequential(*comparisons("ci-vm", generator("slower"), rows, 0.05)[:3])
    assert slower.share("regression") >= 0.985
    assert slower.used.mean() <= 14
    hostile = sequential(*comparisons("hostile", generator("hostile"), rows)[:3])
    assert hostile.share("inconclusive") >= 0.85
    assert hostile.used.mean() < 34  # given up where nothing can come of it


def test_a_regression_of_five_percent_never_passes_on_the_recordings():
    y, b, load, _ = comparisons("trace", generator("pass"), 2000, 0.05)
    assert sequential(y, b, load).share("equivalent", "not-worse", "improvement") <= 0.01


# --------------------------------------------------------------------------------- controls: these must all alarm


def shares_of_alarms(d) -> float:
    return float((stats.signed_rank_p(d) <= 0.05).mean())


def test_peeking_after_every_pair_alarms():
    y, b, _, _ = comparisons("ci-vm", generator("peeking"), 1000)
    d = ratios(y, b)
    alarmed = np.zeros(len(d), bool)
    for n in range(6, 31):
        alarmed |= stats.signed_rank_p(d[:, :n]) <= 0.05
    assert alarmed.mean() > 0.12


def test_a_biased_coin_alarms():
    rng = generator("bias")
    y, _ = made("drifty", rng, 1000, 2 * LAST)
    assert shares_of_alarms(ratios(y, coins(rng, 1000, LAST, share=0.9))) > 0.10
    assert not beyond((stats.signed_rank_p(ratios(y, coins(rng, 1000, LAST))) <= 0.05).sum(), 1000, 0.05)


def test_an_adjustment_that_looks_at_arms_alarms():
    """The slope that makes the arms differ most, out of nine."""
    y, b, load, _ = comparisons("hostile", generator("arms"), 1000)
    slope = stats.load_slope(y, load)[:, None]
    p = [stats.signed_rank_p(ratios(y - factor * slope * load, b)) for factor in range(-4, 5)]
    assert beyond((np.min(p, axis=0) <= 0.05).sum(), 1000, 0.05)
    honest = stats.signed_rank_p(ratios(y - slope * load, b))
    assert not beyond((honest <= 0.05).sum(), 1000, 0.05)


def test_looks_without_a_correction_alarm():
    y, b, _, _ = comparisons("drifty", generator("looks"), 2000)
    d = ratios(y, b)
    alarmed = np.zeros(len(d), bool)
    for n in stats.LOOKS:
        alarmed |= stats.signed_rank_p(d[:, :n]) <= 0.05
    assert alarmed.mean() > 0.09


# ---------------------------------------------------------------------------------------------------------- the cases


def test_case_t1_over_a_thousand_seeds():
    """30 ms in every first slot of 200 ms: no alarm, and with the position taken out a narrow interval."""
    rng = generator("t1")
    y = np.log(0.2) + 0.004 * rng.standard_t(3, (1000, 40))
    y[:, 0::2] += np.log1p(0.15)
    b = coins(rng, 1000, 20)
    found = fixed(y, b)
    assert not beyond(found.different.sum(), 1000, 0.05)
    assert found.share("regression", "improvement") <= 0.01
    assert not beyond(found.missed.sum(), 1000, 0.06)
    widths, narrower = [], 0
    for row in range(40):
        _, low, high = stats.adjusted_interval(y[row], b[row], 0.95, position=bool(stats.position_costs(y[row])))
        widths.append((np.exp(high) - np.exp(low)) / 2)
        plain_low, plain_high = stats.signed_rank_interval(ratios(y[row], b[row]), 0.95)
        narrower += high - low < plain_high - plain_low
    assert np.quantile(widths, 0.95) <= 0.015
    assert narrower >= 37  # 18 equal coins of 20 leave no position to take out: one row in 2,500
    shifted = fixed(y + np.log1p(0.02) * b, b)
    assert shifted.different.mean() > 0.8


def test_case_t2_over_many_seeds():
    rng = generator("t2")
    estimates, halves = [], []
    for _ in range(1000):
        a, b = rng.normal(20, 5, 400), rng.normal(18, 5, 400)
        d = np.log(np.maximum(b, 1) / np.maximum(a, 1))
        estimates.append(np.exp(stats.hodges_lehmann(d)))
        low, high = np.exp(stats.signed_rank_interval(d, 0.95))
        halves.append((high - low) / 2)
    assert np.median(halves) == pytest.approx(0.034, abs=0.004)
    assert np.mean(estimates) == pytest.approx(0.90, abs=0.01)
    assert np.std(estimates) == pytest.approx(0.017, abs=0.004)


def test_case_t4_over_a_thousand_seeds():
    rng = generator("t4")
    for n in (3, 4, 5):
        low, high = stats.signed_rank_interval(np.log(10) + rng.normal(0, 0.1, (1000, n)), 0.95)
        assert np.isinf(low).all()
        assert np.isinf(high).all()


def test_case_t8_over_a_thousand_seeds():
    """Two modes 15 % apart, equally often in both arms, then twice as often in B."""
    rng = generator("t8")

    def runs(rows, share):
        return np.log1p(0.15) * (rng.random((rows, 40)) < share) + rng.normal(0, 0.004, (rows, 40))

    a, b_equal, b_more = runs(1000, 0.35), runs(1000, 0.35), runs(1000, 0.70)
    low, _ = stats.signed_rank_interval(b_equal - a, 0.95)
    assert (low > np.log1p(0.02)).mean() <= 0.01
    low, _ = stats.signed_rank_interval(b_more - a, 0.95)
    assert (low > 0).mean() >= 0.75
    for row in range(30):
        count, split = stats.modes(np.concatenate([a[row], b_more[row]]))
        assert count == 2
        assert 0.02 < split < 0.12
    assert abs((a > split).mean() - 0.35) < 0.02
    assert abs((b_more > split).mean() - 0.70) < 0.02


def test_case_t9_over_two_hundred_families():
    """166 scenarios of 12 pairs, no difference anywhere: a gate fails in at most 5 % of families."""
    rng = generator("t9")
    d = 0.02 * rng.standard_t(3, (200, 166, 12))
    worse, _ = stats.signed_rank_tails(d, np.log1p(MARGIN))
    failed = sum((stats.holm(row) <= 0.05).any() for row in worse)
    assert not beyond(failed, 200, 0.05)
    two_sided = stats.signed_rank_p(d)
    listed = sum((stats.benjamini_hochberg(row) <= 0.10).any() for row in two_sided)
    assert not beyond(listed, 200, 0.10)
    assert (two_sided <= 0.05).any(axis=1).mean() > 0.99  # without a correction every family alarms


def test_any_time_bounds_hold_at_every_unit():
    """The sign martingale, looked at after every pair, alarms in at most 5 %; 8 wins in a row are enough."""
    rng = generator("any time")
    rows = 2000
    y, _ = made("ci-vm", rng, rows, 80)
    d = ratios(y, coins(rng, rows, 40))
    alarmed, missed = np.zeros(rows, bool), np.zeros(rows, bool)
    for n in range(2, 41):
        low, high = stats.sign_sequence(d[:, :n], 0.05)
        alarmed |= (low > 0) | (high < 0)
        low, high = stats.sign_sequence(d[:, :n] + 0.05, 0.05)
        missed |= (low > 0.05) | (high < 0.05)
    assert not beyond(alarmed.sum(), rows, 0.05)
    assert (alarmed == missed).mean() > 0.999
    orders = [stats.sign_sequence_order(n, 0.05) for n in range(1, 13)]
    assert orders == [0] * 7 + [1] * 4 + [2]
