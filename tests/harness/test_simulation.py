"""stats and schedule on made data: an arm against itself alarms at the stated rate, and intervals cover.

Every replicate is a whole comparison: the schedule's coins say which slots are B's, the statistics see what a record
would give them. A check fails only when the exact one-sided bound of its count puts the rate beyond the limit.
"""

import numpy as np
import pytest
from noise import SETTINGS, fixed_order, made, orders, ratios

from harness import stats

SEEDS = 2000
NAMES = [*SETTINGS, "trace"]


def beyond(count: int, trials: int, limit: float, level: float = 0.999) -> bool:
    """Whether the exact lower bound of a rate lies above the limit."""
    return stats.binomial_tail(int(count), trials, limit) < 1 - level


def alarms(d, level=0.95) -> int:
    return int((stats.signed_rank_p(d) <= (1 - level) * (1 + 1e-9)).sum())


@pytest.mark.parametrize("n", [8, 20])
@pytest.mark.parametrize("name", NAMES)
def test_an_arm_against_itself_alarms_at_the_nominal_rate(name, n):
    rng = np.random.default_rng([n, *name.encode()])
    y, _ = made(name, rng, SEEDS, 2 * n)
    d = ratios(y, orders(rng, SEEDS, n))
    assert not beyond(alarms(d), SEEDS, 0.05)


@pytest.mark.parametrize("effect", [0.0, 0.05])
@pytest.mark.parametrize("name", NAMES)
def test_the_interval_covers_what_is_true(name, effect):
    n, theta = 12, np.log1p(effect)
    rng = np.random.default_rng([n, *name.encode()])
    y, _ = made(name, rng, SEEDS, 2 * n)
    b = orders(rng, SEEDS, n)
    low, high = stats.signed_rank_interval(ratios(y + theta * b, b), 0.95)
    missed = ((low > theta) | (high < theta)).sum()
    assert not beyond(missed, SEEDS, 0.06)
    assert missed > 0  # an interval that never misses is no 95 % interval


def blocks_of(rng, rows, blocks, pairs, launch_sd, pair_sd, effect=0.0):
    """(rows, blocks, pairs) log ratios: the launches of a block share what sets them apart."""
    launches = rng.normal(0, launch_sd, (rows, blocks, 1)) - rng.normal(0, launch_sd, (rows, blocks, 1))
    return launches + pair_sd * rng.standard_t(3, (rows, blocks, pairs)) + effect


def test_launches_that_differ_are_no_difference_of_arms():
    d = blocks_of(np.random.default_rng(1), SEEDS, 8, 10, 0.01, 0.004)
    assert not beyond(alarms(stats.hodges_lehmann(d)), SEEDS, 0.05)


def test_pooled_pairs_alarm():
    """Contrast: the same data with every pair taken for a unit."""
    d = blocks_of(np.random.default_rng(1), 500, 8, 10, 0.01, 0.004)
    assert alarms(d.reshape(500, -1)) > 0.5 * 500


def test_pseudo_replication_case_t3():
    """A process draws one level (sd 5 %) and then 100 values (sd .1 %): 6 pairs are 6 units, not 600."""
    d = blocks_of(np.random.default_rng(2), 1000, 6, 100, 0.05, 0.001)
    units = np.concatenate([stats.hodges_lehmann(part) for part in np.split(d, 20)])
    assert not beyond(alarms(units), 1000, 0.05)
    pooled = d.reshape(1000, -1)
    t = pooled.mean(axis=1) / (pooled.std(axis=1, ddof=1) / np.sqrt(pooled.shape[1]))
    assert (np.abs(t) > 1.97).sum() > 0.8 * 1000


def test_fixed_order_alarms():
    """Contrast: A always first, where the second slot costs .3 % more."""
    rng = np.random.default_rng(3)
    y, _ = made("drifty", rng, SEEDS, 80)
    assert alarms(ratios(y, fixed_order(SEEDS, 40))) > 0.3 * SEEDS
    assert not beyond(alarms(ratios(y, orders(rng, SEEDS, 40))), SEEDS, 0.05)


def test_a_dearer_first_slot_is_no_difference_of_arms_case_t1():
    """30 ms on a run of 200 ms in every first slot; A always first would alarm every time."""
    rng = np.random.default_rng(4)
    y = np.log(0.2) + 0.004 * rng.standard_t(3, (1000, 40))
    y[:, 0::2] += np.log1p(0.15)
    d = ratios(y, orders(rng, 1000, 20))
    low, high = stats.signed_rank_interval(d, 0.95)
    assert not beyond(alarms(d), 1000, 0.05)
    assert ((low > np.log1p(0.02)) | (high < -np.log1p(0.02))).mean() <= 0.01
    assert alarms(ratios(y, fixed_order(1000, 20))) == 1000


def test_a_shift_of_five_percent_is_seen():
    rng = np.random.default_rng(5)
    for name, power in (("quiet", 0.99), ("drifty", 0.95), ("bimodal", 0.9), ("ci-vm", 0.6)):
        y, _ = made(name, rng, 500, 24)
        b = orders(rng, 500, 12)
        assert alarms(ratios(y + np.log1p(0.05) * b, b)) >= power * 500


def test_the_recorded_comparisons_come_out_as_published():
    """B/A of the recordings in the order they were made: no difference, no difference, and 2 % more work."""
    import json

    from noise import TRACES

    found = {}
    for name in ("aa1", "aa2", "ab2"):
        pairs = {}
        for line in (TRACES / f"{name}.jsonl").read_text().splitlines():
            run = json.loads(line)
            pairs.setdefault(run["i"], {})[run["arm"]] = run["wall"]
        d = np.log([both[1] / both[0] for both in pairs.values() if len(both) == 2])
        found[name] = (np.expm1(stats.hodges_lehmann(d)), float(stats.signed_rank_p(d)), float(stats.robust_sd(d)))
    assert found["aa1"] == pytest.approx((0.010, 0.57, 0.225), abs=0.006)
    assert found["aa2"] == pytest.approx((0.008, 0.47, 0.173), abs=0.006)
    assert found["ab2"] == pytest.approx((0.031, 0.036, 0.179), abs=0.006)
