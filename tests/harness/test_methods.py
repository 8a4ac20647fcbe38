"""analysis by its other methods: looks, any time, deterministic; adjustment, guard, order, controls, families, plan."""

import math

import made
import numpy as np
import pytest

from harness import analysis, plan, records, schedule, stats
from harness.analysis import Analysis, summarise

LOOKS = {"units": 40, "plan": {"fixed": False, "cap": 80}}


def looks(values, **settings):
    """A record of blocks with these log ratios, to be looked at."""
    return made.record([[value, value] for value in values], **(LOOKS | settings))


def noise(n, sd, centre=0.0, seed=1):
    """n values with exactly this median and a robust spread near sd, in an order that shows no trend."""
    x = np.random.default_rng(seed).standard_normal(n)
    return (centre + sd * (x - np.median(x))).tolist()


def word(entries):
    return summarise(entries)["verdict"]["word"]


# -------------------------------------------------------------------------------------------------------------- looks


def test_a_clear_regression_ends_at_the_first_look():
    values = noise(40, 0.01, 0.10)
    for n in range(8):
        assert analysis.next_unit(looks(values[:n])) == n
    found = analysis.next_step(looks(values[:8]))
    assert (found.go, found.reason) == (False, "decided")
    summary = summarise(looks(values[:8]))
    assert summary["verdict"]["word"] == "regression"
    assert summary["level"] == pytest.approx(0.9844)
    assert summary["method"] == "looks"
    assert summary["stopped"] == "decided"
    assert summary["units"]["planned"] == 8
    assert summary["looks"] == [8, 12, 16, 20, 28, 40]
    assert "98.44 %" in summary["verdict"]["reason"]


def test_between_looks_nothing_is_decided():
    values = noise(40, 0.01, 0.10)
    assert analysis.next_step(looks(values[:9])).go
    assert analysis.next_step(looks(values[:11])).go
    assert not analysis.next_step(looks(values[:12])).go


def test_equal_arms_end_as_soon_as_they_are_equivalent():
    values = noise(40, 0.004)
    assert analysis.next_step(looks(values[:8])) == schedule.Step(False, "decided")
    assert word(looks(values[:8])) == "equivalent"


def test_the_repeated_interval_is_the_wider_one():
    values = noise(12, 0.02, 0.03)
    fixed = summarise(made.record([[value] for value in values], units=12))["ratio"]
    repeated = summarise(looks(values))["ratio"]
    low, high = stats.signed_rank_interval(values, 1 - 0.0156)
    assert (repeated["low"], repeated["high"]) == pytest.approx((math.exp(low), math.exp(high)))
    assert repeated["low"] < fixed["low"]
    assert repeated["high"] > fixed["high"]


def test_slower_and_not_worse_are_left_to_the_last_look():
    values = noise(40, 0.006, 0.018, seed=3)
    assert word(looks(values[:12])) == "inconclusive"
    assert analysis.next_step(looks(values[:12])).go
    assert word(looks(values)) == "slower"
    assert analysis.next_step(looks(values)).reason == "complete"


def test_what_cannot_be_settled_is_given_up():
    values = noise(40, 0.30, 0.03, seed=3)
    reasons = [analysis.next_step(looks(values[:n])).reason for n in stats.LOOKS]
    assert reasons[:4] == ["", "", "", "futility"]
    summary = summarise(looks(values[:20]))
    assert summary["verdict"]["word"] == "inconclusive"
    assert summary["stopped"] == "futility"


def test_other_looks_and_levels_are_calibrated():
    two, one = stats.nominal_levels((6, 10, 15, 20, 30, 40), 0.05)
    assert two == pytest.approx(0.0175, abs=0.0015)
    assert one > two
    strict, _ = stats.nominal_levels(stats.LOOKS, 0.01)
    assert 0.001 < strict < 0.01
    assert stats.nominal_levels(stats.LOOKS, 0.05) == (0.0156, 0.0335)
    adjusted = stats.nominal_levels(stats.LOOKS, 0.05, adjusted=True)
    assert adjusted == (pytest.approx(0.0150), pytest.approx(0.0320))


def test_a_void_or_set_aside_unit_is_no_look():
    values = noise(40, 0.01, 0.10)
    blocks = [made.unit(u, [value]) for u, value in enumerate(values[:7])] + [made.void(7, "a")]
    assert analysis.next_unit(made.record(blocks, **LOOKS)) == 8


def test_a_time_budget_ends_a_comparison_where_it_stands():
    values = noise(40, 0.3, 0.0)
    entries = looks(values[:10], plan={"fixed": False, "cap": 80, "time_budget": 10.05})
    for entry in entries:
        if isinstance(entry, records.Launch):
            entry.at = float(entry.unit)
    # Ten units took 9.1 s; an eleventh would end at 10.0 s, within 10.05 s but not within 9.9 s.
    assert analysis.next_step(entries).go
    entries[0].plan["time_budget"] = 9.9
    assert analysis.next_step(entries) == schedule.Step(False, "time")
    assert Analysis(entries).final


# ----------------------------------------------------------------------------------------------------------- any time


def anytime(values, **settings):
    return made.record([[value] for value in values], **({"units": 40, "plan": {"method": "anytime"}} | settings))


def test_any_time_decides_as_soon_as_its_interval_does():
    values = noise(40, 0.005, 0.10)
    assert [analysis.next_step(anytime(values[:n])).go for n in (5, 6, 7)] == [True] * 3
    assert analysis.next_step(anytime(values[:8])) == schedule.Step(False, "decided")
    found = summarise(anytime(values[:8]))
    assert found["verdict"]["word"] == "regression"
    assert found["ratio"]["low"] == pytest.approx(math.exp(min(values[:8])))
    assert found["ratio"]["high"] == pytest.approx(math.exp(max(values[:8])))
    assert found["ratio"]["estimate"] == pytest.approx(found["median"])


def test_p_at_any_time_is_what_wealth_allows():
    found = Analysis(anytime(noise(8, 0.002, 0.01)))
    assert found._interval_of(found.kept).p == pytest.approx(9 / 2**8)


def test_seven_units_have_no_any_time_interval():
    found = summarise(anytime(noise(7, 0.005, 0.10)))
    assert found["ratio"]["low"] is None
    assert found["verdict"]["reason"] == "8 units are needed for a 95 % interval, and 7 count"


def test_a_finished_comparison_goes_on_only_by_a_test_that_allows_it():
    values = noise(20, 0.02, 0.021, seed=5)
    entries = made.record([[value] for value in values[:8]], units=8)
    assert analysis.next_unit(entries) is None
    entries += [records.End(state="complete"), records.Extension(units=12)]
    assert Analysis(entries).method == "anytime"
    assert Analysis(entries).end is None
    assert analysis.next_unit(entries) == 8
    for number, value in enumerate(values[8:], 8):
        assert analysis.next_unit(entries) == number
        entries += made.unit(number, [value])
    assert analysis.next_unit(entries) is None
    low, high = stats.sign_sequence(values, 0.05)
    found = summarise(entries)
    assert (found["ratio"]["low"], found["ratio"]["high"]) == pytest.approx((math.exp(low), math.exp(high)))
    assert found["units"]["planned"] == 20


def test_wealth_starts_at_one_is_fair_and_needs_eight_wins():
    assert stats.sign_log_wealth(0, 0) == 0
    for t in range(1, 12):
        wins = np.arange(t + 1)
        weights = np.array([math.comb(t, int(k)) for k in wins]) / 2**t
        assert (weights * np.exp(stats.sign_log_wealth(wins, np.full(t + 1, t)))).sum() == pytest.approx(1)
    for prior, needed in ((1, 8), (3, 10), (10, 15)):
        first = next(t for t in range(1, 30) if stats.sign_log_wealth(t, t, prior) >= math.log(20))
        assert first == needed


# ------------------------------------------------------------------------------------------------------ deterministic


def counted(a, b, **settings):
    blocks = [
        made.unit(
            u, [0.0], mode="process", slot=lambda arm, pair, u=u: {"counters": {"instructions": (a, b)[arm == "b"][u]}}
        )
        for u in range(len(a))
    ]
    settings = {"scenario": {"metric": "instructions"} | settings.pop("scenario", {})} | settings
    return made.record(blocks, mode="process", units=3, pairs=1, **settings)


def test_counted_instructions_are_decided_by_their_ratio():
    steady = [1e9, 1e9 + 1e4, 1e9]
    for factor, expected in ((1.0, "equivalent"), (1.019, "equivalent"), (1.03, "regression"), (0.97, "improvement")):
        entries = counted(steady, [factor * x for x in steady])
        assert word(entries) == expected
        assert analysis.next_unit(entries) is None
    assert word(counted(steady, [1.03 * x for x in steady], scenario={"direction": "higher"})) == "improvement"
    assert summarise(counted(steady, steady))["method"] == "deterministic"


def test_instructions_that_vary_are_no_deterministic_metric():
    found = summarise(counted([1e9, 1.002e9, 1e9], [1e9] * 3))
    assert found["verdict"]["word"] == "inconclusive"
    assert found["verdict"]["reason"].startswith("arm A varies by 0.2 % from run to run, 0.1 % is allowed")
    assert word(counted([1e9] * 2, [1e9] * 2)) == "inconclusive"


# ---------------------------------------------------------------------------------------------------- load, position


def processes(a, b, *, seed=1, cores=None, prints=True, **settings):
    """Pairs of processes from their log times; `cores` gives the load of (arm, pair)."""
    blocks = []
    for u, (x, z) in enumerate(zip(a, b)):
        entries = made.unit(u, [z - x], mode="process", seed=seed, base=math.exp(x), close=False, prints=prints)
        for position, letter in enumerate(schedule.plan_unit(seed, u, "process", 1).pairs[0]):
            arm = letter.lower()
            if cores is not None:
                entries.append(
                    records.Load(
                        unit=u, method="proc+children", elapsed=1, arm=arm, position=position, foreign=cores(arm, u)
                    )
                )
        blocks.append([*entries, records.Unit(unit=u, state="complete")])
    return made.record(blocks, mode="process", units=len(a), pairs=1, seed=seed, **settings)


def loaded_times(n, effect, seed=8):
    """Log times that follow a load of 0 to 2 cores in each slot."""
    rng = np.random.default_rng(seed)
    load = rng.uniform(0, 2, (n, 2))
    times = -2 + 0.15 * load + rng.normal(0, 0.005, (n, 2))
    return times[:, 0], times[:, 1] + effect, load


def test_varying_load_is_taken_out_in_process_mode():
    a, b, load = loaded_times(20, math.log(1.03))
    entries = processes(a, b, cores=lambda arm, u: float(load[u, int(arm == "b")]))
    found = summarise(entries)
    assert found["adjusted"] == ["load"]
    assert found["ratio"]["estimate"] == pytest.approx(1.03, abs=0.005)
    assert found["verdict"]["word"] == "regression"
    whole = Analysis(entries)
    assert whole._interval_of(whole.kept).p < 1e-4
    without = summarise(processes(a, b))
    assert without["adjusted"] == []
    assert found["ratio"]["high"] - found["ratio"]["low"] < 0.2 * (without["ratio"]["high"] - without["ratio"]["low"])


def test_a_load_that_hardly_varies_is_left_alone():
    a, b, load = loaded_times(20, 0.0)
    entries = processes(a, b, cores=lambda arm, u: 0.05 * float(load[u, int(arm == "b")]))
    assert summarise(entries)["adjusted"] == []


def test_load_that_depends_on_the_arm_is_neither_adjusted_for_nor_a_reason_to_set_aside():
    """B's helpers look like somebody else's load: to regress them away would hide what B costs."""
    rng = np.random.default_rng(3)
    helpers = {(arm, u): float((1.5 if arm == "b" else 0.0) + rng.uniform(0, 0.3)) for arm in "ab" for u in range(20)}
    a = rng.normal(-2, 0.01, 20)
    entries = processes(a, a + 0.15, cores=lambda arm, u: helpers[arm, u], limits={"foreign_cores": 1.0})
    found = summarise(entries)
    assert found["guard"]["load_depends_on_arm"] is True
    assert found["guard"]["p"] < 0.01
    assert found["adjusted"] == []
    assert found["set_aside"] == {}
    assert found["verdict"]["word"] == "regression"
    assert found["ratio"]["estimate"] == pytest.approx(math.exp(0.15), abs=0.01)


def test_a_dearer_first_slot_is_taken_out():
    rng = np.random.default_rng(4)
    a, b = rng.normal(-2, 0.003, 20), rng.normal(-2, 0.003, 20)
    for u in range(20):
        if schedule.plan_unit(1, u, "process", 1).pairs[0] == "AB":
            a[u] += math.log1p(0.15)
        else:
            b[u] += math.log1p(0.15)
    found = summarise(processes(a, b))
    assert found["adjusted"] == ["position"]
    assert found["order"]["position"]["ratio"] == pytest.approx(1 / 1.15, abs=0.01)
    assert found["order"]["position"]["p"] < 0.001
    assert (found["ratio"]["high"] - found["ratio"]["low"]) / 2 <= 0.015
    assert found["verdict"]["word"] == "equivalent"


def test_one_pair_blocks_are_never_adjusted():
    """The same times and loads as blocks of one pair: a block's load surrounds both arms."""
    rng = np.random.default_rng(4)
    blocks = []
    for u in range(20):
        order = schedule.plan_unit(1, u, "resident", 1).pairs[0]
        shift = math.log1p(0.15) * (1 if order == "BA" else -1)
        blocks.append(made.unit(u, [shift + float(rng.normal(0, 0.003))], foreign=2.0 * (u % 2)))
    found = summarise(made.record(blocks, units=20, pairs=1))
    assert found["adjusted"] == []
    assert found["order"]["position"]["p"] < 0.001


@pytest.mark.parametrize("position", [False, True])
def test_the_inverted_interval_is_the_test_turned_round(position):
    """Its ends are the last values that are not rejected, and without covariates it is the plain interval."""
    rng = np.random.default_rng(6)
    for _ in range(6):
        n = int(rng.integers(10, 16))
        y, load = rng.normal(0, 0.05, 2 * n), rng.uniform(0, 2, 2 * n)
        b = np.zeros(2 * n, bool)
        first = rng.random(n) < 0.5
        b[0::2], b[1::2] = first, ~first
        y += 0.1 * b + 0.05 * load
        estimate, low, high = stats.adjusted_interval(y, b, 0.95, load, position)
        assert low < estimate < high
        for edge, side, direction in ((low, 0, -1), (high, 1, 1)):
            beyond = [edge + direction * step for step in np.linspace(0, 1e-9, 40)]
            p = [float(stats.adjusted_tails(y, b, delta, load, position)[side]) for delta in beyond]
            assert min(p) <= 0.025 < p[0]
        d = np.where(b[1::2], 1, -1) * (y[1::2] - y[0::2])
        plain = tuple(map(float, stats.signed_rank_interval(d, 0.95)))
        assert stats.adjusted_interval(y, b, 0.95, position=False)[1:] == pytest.approx(plain, abs=1e-6)
        assert stats.adjusted_interval(y, b, 0.95, position=False)[0] == pytest.approx(stats.hodges_lehmann(d))


def test_the_slope_does_not_know_the_arms():
    rng = np.random.default_rng(7)
    y, load = rng.normal(size=40), rng.uniform(0, 2, 40)
    b = np.tile([True, False], 20)
    whole = stats.adjusted_ratios(y, b, 0.0, load)
    assert stats.adjusted_ratios(y, ~b, 0.0, load) == pytest.approx(-whole)


def test_at_the_true_ratio_nothing_is_left():
    """Load and arm correlate by chance in six pairs; the slope is that of the load alone all the same."""
    rng = np.random.default_rng(14)
    load = rng.uniform(0, 2, 12)
    b = np.array([0, 1, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1], bool)
    y = 0.3 * load + 0.5 * b
    assert stats.adjusted_ratios(y, b, 0.5, load) == pytest.approx(np.zeros(6), abs=1e-12)
    estimate, _, _ = stats.adjusted_interval(y + 1e-4 * rng.normal(size=12), b, 0.95, load)
    assert estimate == pytest.approx(0.5, abs=1e-3)


def test_a_slowdown_is_seen_even_where_all_pairs_happened_to_run_in_one_order():
    """Position and arm are the same then: the plain interval bounds what the adjustment may say."""
    n = 12
    rng = np.random.default_rng(15)
    y = rng.normal(-2, 0.003, 2 * n) + np.tile([0.0, 1.0], n)
    b = np.tile([False, True], n)
    assert stats.position_costs(y)
    _, low, _ = stats.adjusted_interval(y, b, 0.95, position=True)
    assert low > 0.9


# -------------------------------------------------------------------------------------------------------------- order


def test_carry_over_forbids_a_verdict():
    """B after A costs more than B before A: seen in the totals of pairs."""
    n = 24
    rng = np.random.default_rng(8)
    a, b = rng.normal(-2, 0.004, n), rng.normal(-2, 0.004, n)
    for u in range(n):
        if schedule.plan_unit(1, u, "process", 1).pairs[0] == "AB":
            b[u] += 0.10
    found = summarise(processes(a, b))
    assert found["order"]["carry_over"]["p"] < 0.01
    assert found["order"]["carry_over"]["ratio"] == pytest.approx(math.exp(0.10), abs=0.01)
    assert found["order"]["carry_over"]["little_power"] is False
    assert found["verdict"]["word"] == "inconclusive"
    assert found["verdict"]["reason"].startswith("an arm costs something else after the other than before it")


def test_carry_over_inside_blocks_is_seen_too():
    blocks = []
    for u in range(10):
        order = schedule.plan_unit(1, u, "resident", 8).pairs
        extra = [0.10 if letters == "AB" else 0.0 for letters in order]
        blocks.append(made.unit(u, extra))
    found = summarise(made.record(blocks, units=10, pairs=8))
    assert found["order"]["carry_over"]["p"] < 0.01
    assert found["order"]["carry_over"]["little_power"] is True
    assert found["verdict"]["word"] == "inconclusive"


def test_without_carry_over_the_order_is_only_told():
    found = summarise(looks(noise(8, 0.004)))
    assert found["order"]["carry_over"]["p"] > 0.01
    assert set(found["order"]) == {"position", "carry_over", "serial"}


def test_rank_sum_is_exact_and_agrees_with_scipy():
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(9)
    for m, n in ((3, 4), (5, 5), (8, 12)):
        x, y = rng.normal(0.5, 1, m), rng.normal(size=n)
        assert stats.rank_sum_p(x, y) == pytest.approx(mannwhitneyu(x, y, method="exact").pvalue)
    x, y = rng.integers(0, 5, 30), rng.integers(1, 6, 40)
    assert stats.rank_sum_p(x, y) == pytest.approx(mannwhitneyu(x, y, method="asymptotic").pvalue)
    assert stats.rank_sum_p([], [1.0]) == 1
    assert stats.rank_sum_p([1.0], [1.0]) == 1


def test_serial_correlation_is_spearmans():
    from scipy.stats import spearmanr

    d = np.random.default_rng(10).integers(0, 6, 25)
    assert stats.lag_correlation(d) == pytest.approx(spearmanr(d[:-1], d[1:]).statistic)
    assert stats.lag_correlation([1, 2, 3]) is None
    assert stats.lag_correlation([1, 1, 1, 1, 1]) is None


# ------------------------------------------------------------------------------------------------ controls, families


def test_a_null_control_that_alarms_makes_the_comparison_unfit():
    def with_controls(shift):
        blocks = [made.unit(u, [0.0 if u % 2 == 1 else shift + 0.001 * u] * 2) for u in range(16)]
        return made.record(blocks, units=8, plan={"control": True, "cap": 16})

    found = summarise(with_controls(0.05))
    assert found["control"]["units"] == 8
    assert found["control"]["p"] < 0.01
    assert found["verdict"]["word"] == "unfit"
    assert found["verdict"]["reason"].startswith("the null control alarms: A differs from itself")
    assert analysis.next_unit(with_controls(0.05)) is None
    quiet = summarise(with_controls(-0.007))
    assert quiet["verdict"]["word"] == "equivalent"
    assert quiet["units"]["kept"] == 8
    assert quiet["units"]["run"] == 8


def test_a_control_is_no_unit_of_the_comparison():
    blocks = [made.unit(u, [0.1 if u % 2 == 1 else 0.0] * 2) for u in range(16)]
    assert summarise(made.record(blocks, units=8, plan={"control": True, "cap": 16}))["ratio"][
        "estimate"
    ] == pytest.approx(math.exp(0.1))


def family_of(*centres, n=12, sd=0.01):
    return [looks(noise(n, sd, centre, seed=k), units=n, plan={"fixed": True}) for k, centre in enumerate(centres)]


def test_a_gate_judges_its_scenarios_together():
    alone = [word(entries) for entries in family_of(0.0, 0.08, 0.08, 0.0305)]
    assert alone == ["equivalent", "regression", "regression", "regression"]
    together = analysis.summarise_family(family_of(0.0, 0.08, 0.08, 0.0305))
    words = [one["verdict"]["word"] for one in together]
    assert words[:3] == ["equivalent", "regression", "regression"]
    p = [one["p_worse"] for one in together]
    rejected = stats.holm(p) <= 0.05
    assert [found == "regression" for found in words] == rejected.tolist()


def test_the_bound_of_a_family_lies_beyond_the_margin_just_where_holm_rejects():
    from harness import gate

    rng = np.random.default_rng(11)
    for _ in range(50):
        p = (rng.random(6) ** 6).tolist()
        tails = gate.family_tails(p, 0.05)
        assert [x <= tail for x, tail in zip(p, tails)] == gate.family(p, 0.05) == (stats.holm(p) <= 0.05).tolist()


def test_a_gate_whose_plan_cannot_fail_is_unfit():
    assert schedule.gate_units(166, 0.05) == 14
    assert schedule.gate_units(1, 0.05) == 8
    assert schedule.gate_can_fail(12, 166, 0.05)
    assert not schedule.gate_can_fail(11, 166, 0.05)
    found = analysis.summarise_family(family_of(*[0.3] * 20, n=8))
    assert {one["verdict"]["word"] for one in found} == {"unfit"}
    assert found[0]["verdict"]["reason"] == "8 blocks cannot fail a gate of 20 scenarios; it needs 11"


def test_holm_and_benjamini_hochberg_by_hand():
    p = [0.01, 0.04, 0.03, 0.005]
    assert stats.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])


def test_a_family_lists_its_differences_by_false_discovery_rate():
    found = analysis.summarise_family(family_of(0.0, 0.08, 0.0, -0.05))
    q = [one["family"]["q"] for one in found]
    p = [
        stats.signed_rank_p([unit.value for unit in Analysis(entries).kept])
        for entries in family_of(0.0, 0.08, 0.0, -0.05)
    ]
    assert q == pytest.approx(stats.benjamini_hochberg(p))
    assert [value <= 0.10 for value in q] == [False, True, False, True]
    assert found[0]["family"]["scenarios"] == 4


# -------------------------------------------------------------------------------------------------------------- quads


def test_a_quad_is_one_coin_for_two_pairs():
    orders = {schedule.plan_unit(3, unit, "process", 1, quads=True).pairs for unit in range(30)}
    assert orders == {("AB", "BA"), ("BA", "AB")}
    plan_of_block = schedule.plan_unit(3, 1, "resident", 6, quads=True).pairs
    assert [first[::-1] for first in plan_of_block[0::2]] == list(plan_of_block[1::2])


def test_a_quad_cancels_drift_and_position():
    """log times rise by .01 a slot and the second slot costs .05 more: the quad's value is the arms' ratio."""
    blocks = []
    for u in range(6):
        order = schedule.plan_unit(1, u, "process", 1, quads=True).pairs
        times, entries = {}, []
        for index, letters in enumerate(order):
            for position, letter in enumerate(letters):
                slot = 2 * index + position
                times[index, letter.lower()] = math.exp(0.01 * slot + 0.05 * position + (0.03 if letter == "B" else 0))
                entries.append(
                    records.Slot(
                        unit=u,
                        arm=letter.lower(),
                        phase="steady",
                        index=0,
                        at=float(u),
                        seconds=times[index, letter.lower()],
                        cpu_seconds=1.0,
                        pair=index,
                        position=position,
                    )
                )
        blocks.append([*entries, records.Unit(unit=u, state="complete")])
    found = summarise(
        made.record(blocks, mode="process", units=6, plan={"quads": True}, scenario={"fingerprint": "none"})
    )
    assert found["ratio"]["low"] == pytest.approx(math.exp(0.03))
    assert found["ratio"]["high"] == pytest.approx(math.exp(0.03))


# --------------------------------------------------------------------------------------------------- modes, steadiness


def test_two_modes_are_seen_with_each_arms_share():
    rng = np.random.default_rng(12)
    n = 40
    a = np.where(np.arange(n) % 20 < 7, 0.14, 0.0) + rng.normal(0, 0.003, n)
    b = np.where(np.arange(n) % 20 < 14, 0.14, 0.0) + rng.normal(0, 0.003, n)
    found = summarise(processes(rng.permutation(a), rng.permutation(b)))["modes"]
    assert found["count"] == 2
    assert found["above"] == {"a": 0.35, "b": 0.7}
    assert 1.01 < found["split"] < 1.14


def test_one_mode_is_one():
    rng = np.random.default_rng(13)
    counts = [stats.modes(rng.normal(size=60))[0] for _ in range(100)]
    assert counts.count(2) <= 12
    assert stats.modes([1.0, 1.0, 1.0, 1.0, 1.0]) == (1, None)


@pytest.mark.parametrize("seed", range(3))
def test_the_dip_is_the_distance_to_the_nearest_distribution_with_one_mode(seed):
    """Against a linear programme over every place of the mode."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(seed)
    x = np.sort(np.concatenate([rng.normal(0, 1, 4), rng.normal(rng.choice([0, 6]), 1, 5)]))
    n, best = len(x), math.inf
    for mode in range(n):
        # Unknowns: G just before and at every value (they may differ only at the mode), and the distance.
        size = 2 * n + 1
        rows, limits = [], []

        def at_most(pairs, limit, size=size, rows=rows, limits=limits):
            row = np.zeros(size)
            for k, value in pairs:
                row[k] += value
            rows.append(row)
            limits.append(limit)

        for i in range(n):
            before, after = 2 * i, 2 * i + 1
            at_most([(before, 1), (2 * n, -1)], i / n)
            at_most([(before, -1), (2 * n, -1)], -i / n)
            at_most([(after, 1), (2 * n, -1)], (i + 1) / n)
            at_most([(after, -1), (2 * n, -1)], -(i + 1) / n)
            at_most([(before, 1), (after, -1)], 0)
            if i != mode:
                at_most([(after, 1), (before, -1)], 0)
        slopes = [(2 * i + 1, 2 * i + 2, x[i + 1] - x[i]) for i in range(n - 1)]
        for start, end, _ in slopes:
            at_most([(start, 1), (end, -1)], 0)
        for i in range(n - 2):
            (s0, e0, w0), (s1, e1, w1) = slopes[i], slopes[i + 1]
            if i + 1 == mode:
                continue
            rising = 1 if i + 1 < mode else -1
            at_most([(e0, rising / w0), (s0, -rising / w0), (e1, -rising / w1), (s1, rising / w1)], 0)
        bounds = [(0, 1)] * (2 * n) + [(0, 1)]
        cost = np.zeros(size)
        cost[-1] = 1
        solved = linprog(cost, A_ub=np.array(rows), b_ub=limits, bounds=bounds)
        best = min(best, solved.fun)
    assert stats.dip(x) == pytest.approx(best, abs=1e-6)


def series(*parts, seed=1):
    rng = np.random.default_rng(seed)
    return np.concatenate([level + rng.normal(0, 0.01, n) for level, n in parts])


@pytest.mark.parametrize(
    ("parts", "kind", "start"),
    [
        ([(1.0, 60)], "flat", 0),
        ([(2.0, 15), (1.0, 60)], "warm-up", 15),
        ([(3.0, 10), (2.0, 10), (1.0, 60)], "warm-up", 20),
        ([(1.0, 30), (1.2, 60)], "slowdown", 30),
        ([(2.0, 60), (1.0, 8)], "none", 68),
        ([(1.0, 12)], "short", 0),
    ],
)
def test_series_are_classed_by_their_change_points(parts, kind, start):
    assert stats.steady_state(series(*parts)) == (kind, start)


def test_equal_times_are_flat():
    assert stats.steady_state([1.0] * 40) == ("flat", 0)
    assert stats.change_points([1.0] * 40) == [0]


def test_the_report_is_told_which_arm_never_settles():
    def slot(arm, pair):
        slow = arm == "b" and pair >= 52
        return {"seconds": 0.2 if slow else 0.1, "cpu_seconds": 0.1, "at": float(pair)}

    blocks = [made.unit(u, [0.0] * 60, slot=slot) for u in range(6)]
    found = summarise(made.record(blocks, pairs=60, units=6))["steady"]
    assert found["a"] == {"class": "flat", "start": 0}
    assert found["b"]["class"] == "none"


def test_notes_say_what_a_reader_must_know():
    def slot(arm, pair):
        late = arm == "b" and pair >= 52
        return {"seconds": 0.2 if late else 0.1, "cpu_seconds": 0.1, "at": float(pair), "idle_cpu_seconds": 0.004}

    blocks = [made.unit(u, [0.0] * 60, slot=slot) for u in range(6)]
    found = summarise(made.record(blocks, pairs=60, units=6))
    assert found["idle"] == {"a": pytest.approx(0.04), "b": pytest.approx(0.04)}
    assert "the iterations of B 'new' reach no steady state" in found["notes"]
    assert "while it waits, A 'old' uses 4 % of a core, B 'new' 4 %: its threads disturb the other" in found["notes"]
    quiet = summarise(looks(noise(8, 0.004)))
    assert quiet["notes"] == []
    assert quiet["idle"] == {"a": None, "b": None}


def test_one_cut_for_both_arms_comes_from_a_alone():
    def slot(arm, pair):
        return {"seconds": (0.3 if pair < (12 if arm == "a" else 40) else 0.1) + 1e-4 * (pair % 3), "at": float(pair)}

    blocks = [made.unit(u, [0.0] * 60, slot=slot) for u in range(6)]
    assert plan.warmup(made.record(blocks, pairs=60, units=6)) == 12
    with pytest.raises(ValueError, match="at least 20 iterations"):
        plan.warmup(looks(noise(8, 0.004)))


# --------------------------------------------------------------------------------------------------------------- plan


def pilot_record(sd=0.01, n=6, launch=1.0, pair=0.2, pairs=4, seed=1, **settings):
    rng = np.random.default_rng(seed)
    unit_seconds = launch + pair * pairs
    blocks = []
    for u in range(n):
        values = (rng.normal(0, sd) + rng.normal(0, sd, pairs)).tolist()
        block = made.unit(
            u, values, base=pair / 2, slot=lambda arm, index, u=u: {"at": u * unit_seconds + launch + index * pair}
        )
        for entry in block:
            if isinstance(entry, records.Launch):
                entry.at = u * unit_seconds
        blocks.append(block)
    return made.record(blocks, units=n, pairs=pairs, **settings)


def test_a_pilot_tells_costs_and_spread():
    seen = plan.pilot(pilot_record())
    assert seen.units == 6
    assert seen.pairs == 4
    assert seen.pair_seconds == pytest.approx(0.2, rel=0.2)
    assert seen.launch_seconds == pytest.approx(1.0, rel=0.1)
    assert seen.unit_sd == pytest.approx(stats.robust_sd([u.value for u in Analysis(pilot_record()).kept], 0.0))
    loud = pilot_record(limits={"foreign_cores": 0.5})
    for number in range(6):
        place = next(i for i, entry in enumerate(loud) if isinstance(entry, records.Unit) and entry.unit == number)
        loud.insert(place, records.Load(unit=number, method="cgroup", elapsed=1.0, foreign=2.0))
    assert Analysis(loud).kept == []
    assert plan.pilot(loud) == seen
    with pytest.raises(ValueError, match="a pilot of at least 4 complete units, found 3"):
        plan.pilot(pilot_record(n=3))


SEEN = plan.Pilot(units=6, unit_sd=0.02, block_sd=0.015, pair_sd=0.02, launch_seconds=2.0, pair_seconds=0.5, pairs=4)


def test_a_plan_shows_the_effect_and_settles_the_margin():
    found = plan.plan(SEEN, effect=0.05, margin=0.02, mode="process")
    assert found.refused == ""
    assert found.units == max(stats.units_for(math.log1p(0.05), 0.02), math.ceil(9 * (0.02 / math.log1p(0.02)) ** 2))
    assert found.seconds == found.units * (2.0 + 4 * 0.5)
    assert found.visible <= 0.05
    closer = plan.plan(SEEN, effect=0.021, margin=0.02, mode="process")
    assert closer.units > found.units


def test_a_plan_balances_pairs_against_launches():
    found = plan.plan(SEEN, effect=0.05, margin=0.02)
    assert found.pairs == stats.pairs_per_block(2.0, 0.5, 0.015, 0.02) == 3


@pytest.mark.parametrize(
    ("costs", "pairs"),
    [((4.0, 1.0, 0.01, 0.02), 4), ((0.0, 1.0, 0.01, 0.02), 2), ((100.0, 0.001, 0.001, 0.1), 100), ((1, 1, 0, 1), 100)],
)
def test_pairs_in_a_block_follow_the_square_root_of_costs_and_variances(costs, pairs):
    assert stats.pairs_per_block(*costs) == pairs


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"effect": 0.01, "margin": 0.02}, "an effect of 1 % lies inside the margin of 2 %"),
        ({"effect": 0.0005, "margin": 0.0002}, "units would be needed on this machine, more than 2000"),
        ({"effect": 0.03, "margin": 0.02, "time_budget": 20.0}, "the budget is 20 s, enough for 5: too few to decide"),
    ],
)
def test_a_plan_refuses_what_cannot_be_certified(settings, sentence):
    found = plan.plan(SEEN, mode="process", **settings)
    assert found.units is None
    assert sentence in found.refused
    assert plan.as_dict(found)["refused"] == found.refused


def test_a_gates_plan_can_fail():
    found = plan.plan(SEEN, effect=0.5, margin=0.3, mode="process", scenarios=166)
    assert found.units == schedule.gate_units(166, 0.05) == 14


def test_a_plan_without_an_effect_is_a_mistake():
    with pytest.raises(ValueError, match="an effect and a margin above 0"):
        plan.plan(SEEN, effect=0.0, margin=0.02)
