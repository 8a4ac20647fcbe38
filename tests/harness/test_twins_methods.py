"""Each deliberate mistake in looks, adjustment, checks and plans is rejected by the test named beside it."""

import pytest
import test_analysis
import test_looks
import test_methods
import test_schedule
import twins

TWINS = {
    "looks without a correction": (
        "stats.nominal_levels",
        "found = NOMINAL, NOMINAL_EQUIVALENCE",
        "found = 0.05, 0.10",
        test_methods.test_the_repeated_interval_is_the_wider_one,
    ),
    "a level of .05 at every look": (
        "stats.nominal_levels",
        "found = NOMINAL, NOMINAL_EQUIVALENCE",
        "found = 0.05, 0.0335",
        test_looks.test_an_arm_against_itself,
    ),
    "a decision between the looks": (
        "analysis.Analysis.step",
        'if self.method == "looks" and self.tally.kept not in self.looks:',
        "if False:",
        test_methods.test_between_looks_nothing_is_decided,
    ),
    "every look is the last": (
        "analysis.Analysis.final",
        'self.method in ("fixed", "deterministic") or not self.step.go',
        "True",
        test_methods.test_slower_and_not_worse_are_left_to_the_last_look,
    ),
    "never given up": (
        "analysis.Analysis._futile",
        "chance < FUTILITY",
        "chance < 0",
        test_methods.test_what_cannot_be_settled_is_given_up,
    ),
    "given up at once": (
        "analysis.Analysis._futile",
        "chance < FUTILITY",
        "chance < 0.9",
        test_methods.test_what_cannot_be_settled_is_given_up,
    ),
    "the repeated interval is the plain one": (
        "analysis.Analysis.levels",
        'if self.method == "looks":',
        "if False:",
        test_methods.test_a_clear_regression_ends_at_the_first_look,
    ),
    "the guard is skipped": (
        "analysis.Analysis.load_depends_on_arm",
        "self.guard_p < checks.SUSPICION",
        "False",
        test_methods.test_load_that_depends_on_the_arm_is_neither_adjusted_for_nor_a_reason_to_set_aside,
    ),
    "the slope looks at arms": (
        "stats.adjusted_ratios",
        "z = z - load_slope(z, load)[..., None] * load",
        "z = z - load_slope(np.where(b, z, z - z.mean()), load)[..., None] * load * (1 + 0.5 * b)",
        test_methods.test_the_slope_does_not_know_the_arms,
    ),
    "the load is added, not taken out": (
        "stats.adjusted_ratios",
        "z = z - load_slope(z, load)[..., None] * load",
        "z = z + load_slope(z, load)[..., None] * load",
        test_methods.test_varying_load_is_taken_out_in_process_mode,
    ),
    "the slope of the shifted slots is not fitted anew": (
        "stats.adjusted_ratios",
        "load_slope(z, load)",
        "load_slope(y, load)",
        test_methods.test_at_the_true_ratio_nothing_is_left,
    ),
    "load is adjusted for wherever it was seen": (
        "analysis.Analysis._covariates",
        "quartiles[1] - quartiles[0] > LOAD_VARIES",
        "True",
        test_methods.test_a_load_that_hardly_varies_is_left_alone,
    ),
    "blocks are adjusted": (
        "analysis.Analysis.adjusts",
        'self.mode == "process"',
        "True",
        test_methods.test_one_pair_blocks_are_never_adjusted,
    ),
    "the position is left in": (
        "stats.adjusted_ratios",
        "if rows.any():",
        "if False:",
        test_methods.test_a_dearer_first_slot_is_taken_out,
    ),
    "the sign of a pair is its order": (
        "stats.adjusted_ratios",
        "np.where(b[..., 1::2], difference, -difference)",
        "difference",
        test_methods.test_a_dearer_first_slot_is_taken_out,
    ),
    "carry-over is not looked at": (
        "checks.carried_over",
        'found["p"] < SUSPICION',
        "False",
        test_methods.test_carry_over_forbids_a_verdict,
    ),
    "carry-over is the position's cost": (
        "checks.carry_over",
        "[a + b for found, a, b",
        "[a - b for found, a, b",
        test_methods.test_carry_over_forbids_a_verdict,
    ),
    "a null control is a unit": (
        "schedule.is_control",
        'bool(plan.get("control")) and unit % 2 == 0',
        "False",
        test_methods.test_a_control_is_no_unit_of_the_comparison,
    ),
    "the null control is not asked": (
        "analysis.Analysis._unfit",
        "self.control_p < gate.NULL_CONTROL_LIMIT",
        "False",
        test_methods.test_a_null_control_that_alarms_makes_the_comparison_unfit,
    ),
    "a finished comparison goes on by the old test": (
        "analysis.Analysis.method",
        "if self.extended:",
        "if False:",
        test_methods.test_a_finished_comparison_goes_on_only_by_a_test_that_allows_it,
    ),
    "the any-time order is one too large": (
        "stats.sign_sequence",
        "d[..., order - 1], d[..., -order]",
        "d[..., order], d[..., -order - 1]",
        test_methods.test_any_time_decides_as_soon_as_its_interval_does,
    ),
    "wealth for one-sided wins only": (
        "stats.sign_log_wealth",
        "lgamma(a + trials - wins)",
        "lgamma(a + trials - np.minimum(wins, 1))",
        test_methods.test_wealth_starts_at_one_is_fair_and_needs_eight_wins,
    ),
    "instructions are decided however much they vary": (
        "gate.deterministic",
        "if spread >= SPREAD_LIMIT:",
        "if False:",
        test_methods.test_instructions_that_vary_are_no_deterministic_metric,
    ),
    "two runs are enough": (
        "gate.deterministic",
        "if min(len(a), len(b)) < runs:",
        "if False:",
        test_methods.test_instructions_that_vary_are_no_deterministic_metric,
    ),
    "Holm without multiplying": (
        "stats.holm",
        "(len(p) - np.arange(len(p))) * p[order]",
        "p[order]",
        test_methods.test_holm_and_benjamini_hochberg_by_hand,
    ),
    "Holm without its steps": (
        "stats.holm",
        "np.maximum.accumulate(",
        "(",
        test_methods.test_holm_and_benjamini_hochberg_by_hand,
    ),
    "each scenario of a gate by itself": (
        "gate.family_tails",
        "alpha / (len(p_worse) - place)",
        "alpha",
        test_methods.test_the_bound_of_a_family_lies_beyond_the_margin_just_where_holm_rejects,
    ),
    "a gate that cannot fail passes": (
        "schedule.gate_can_fail",
        "2.0**-units <= alpha / scenarios",
        "True",
        test_methods.test_a_gate_whose_plan_cannot_fail_is_unfit,
    ),
    "two coins in a quad": (
        "schedule.plan_unit",
        'coin(seed, unit, "pair", index // 2)',
        'coin(seed, unit, "pair", index)',
        test_methods.test_a_quad_is_one_coin_for_two_pairs,
    ),
    "duet without its coin": (
        "schedule.plan_unit",
        'coin(seed, unit, "cores", index)',
        '"AB"',
        test_schedule.test_coins_are_fair_and_independent_of_one_another,
    ),
    "the budget is not looked at": (
        "schedule.next_step",
        "if seconds is not None and seconds[0] > seconds[1]:",
        "if False:",
        test_methods.test_a_time_budget_ends_a_comparison_where_it_stands,
    ),
    "every sample has one mode": (
        "stats.modes",
        "<= critical",
        "<= 10",
        test_methods.test_two_modes_are_seen_with_each_arms_share,
    ),
    "every sample has two modes": (
        "stats.modes",
        "<= critical",
        "<= 0",
        test_methods.test_one_mode_is_one,
    ),
    "the dip without shrinking the interval": (
        "stats.dip",
        "low, high = low + left, low + right",
        "break",
        test_methods.test_the_dip_is_the_distance_to_the_nearest_distribution_with_one_mode,
    ),
    "any tail is a steady state": (
        "stats.steady_state",
        "if len(x) - start < max(10, len(x) / 4):",
        "if False:",
        test_methods.test_series_are_classed_by_their_change_points,
    ),
    "warm-up and slowdown exchanged": (
        "stats.steady_state",
        '"slowdown" if faster else "warm-up"',
        '"warm-up" if faster else "slowdown"',
        test_methods.test_series_are_classed_by_their_change_points,
    ),
    "an effect inside the margin is planned": (
        "plan.plan",
        "if effect < margin:",
        "if False:",
        test_methods.test_a_plan_refuses_what_cannot_be_certified,
    ),
    "the pilot's spread about its own centre": (
        "plan.pilot",
        "stats.robust_sd([unit.value for unit in units], 0.0)",
        "stats.robust_sd([unit.value for unit in units])",
        test_methods.test_a_pilot_tells_costs_and_spread,
    ),
    "pairs without regard to costs": (
        "stats.pairs_per_block",
        "math.sqrt(max(0.0, launch_seconds) / pair_seconds) *",
        "",
        test_methods.test_pairs_in_a_block_follow_the_square_root_of_costs_and_variances,
    ),
    "the cut comes from both arms": (
        "plan.warmup",
        'slot.arm == "a"',
        "True",
        test_methods.test_one_cut_for_both_arms_comes_from_a_alone,
    ),
    "a prediction is met by the interval": (
        "analysis.Analysis._predict",
        "low <= math.exp(interval.estimate) <= high",
        "True",
        test_analysis.test_a_prediction_is_met_or_missed,
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_rejected(name):
    path, old, new, test = TWINS[name]
    with twins.broken(path, old, new):
        assert twins.rejects(test), f"{test.__name__} lets it pass: {name}"


def test_the_original_passes_every_test_that_rejects_a_twin():
    for test in {test for *_, test in TWINS.values()} - {test_looks.test_an_arm_against_itself}:
        assert not twins.rejects(test)
