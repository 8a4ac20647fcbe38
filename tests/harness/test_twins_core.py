"""Each deliberate mistake in the pure core is rejected by the test named beside it."""

import pytest
import test_analysis
import test_fingerprint
import test_gate
import test_schedule
import test_simulation
import test_stats
import twins

TWINS = {
    "a void counts as a unit": (
        "analysis.Analysis.tally",
        'kept=states["kept"]',
        'kept=states["kept"] + states["void"]',
        test_analysis.test_a_void_unit_is_counted_replaced_and_no_unit,
    ),
    "slots of a void unit are used": (
        "analysis.Analysis.kept",
        'unit.state == "kept"',
        'unit.state in ("kept", "void")',
        test_analysis.test_measured_slots_of_a_void_unit_count_for_nothing,
    ),
    "an interrupted unit counts": (
        "analysis.Analysis._unit",
        'state, why = "interrupted", "not finished"',
        "pass",
        test_analysis.test_an_interrupted_unit_is_run_again_and_does_not_count,
    ),
    "pairs are the units": (
        "analysis.Analysis._values",
        "[unit.value for unit in units if unit.value is not None]",
        "[ratio for unit in units for ratio in unit.ratios]",
        test_analysis.test_a_block_is_one_number_however_many_pairs_it_has,
    ),
    "the ratio is A/B": (
        "analysis.log_ratio",
        "math.log(b / a)",
        "math.log(a / b)",
        test_analysis.test_estimate_and_interval_are_those_of_the_blocks,
    ),
    "load is judged by one slot only": (
        "analysis.Analysis._unit",
        "max((_disturbing(one) for one in loads), default=0.0)",
        "_disturbing(loads[0]) if loads else 0.0",
        test_analysis.test_setting_aside_looks_at_both_slots_of_a_pair,
    ),
    "steal is no load": (
        "analysis._disturbing",
        "+ (load.steal or 0.0)",
        "",
        test_analysis.test_steal_counts_as_load,
    ),
    "beyond the exact numbers the normal is enough": (
        "stats.signed_rank_below",
        "below = _normal_cdf(x) - density * np.polynomial.hermite_e.hermeval(x, series)",
        "below = _normal_cdf(x)",
        test_stats.test_beyond_the_exact_numbers_the_error_is_the_stated_one,
    ),
    "steps are taken for a smooth distribution": (
        "stats.signed_rank_below",
        "+ 0.5 - n",
        "- n",
        test_stats.test_beyond_the_exact_numbers_the_error_is_the_stated_one,
    ),
    "a p of many units may be too small": (
        "stats.signed_rank_below",
        "below + APPROXIMATE_ERROR, APPROXIMATE_ERROR",
        "below, 0",
        test_stats.test_beyond_the_exact_numbers_the_error_is_the_stated_one,
    ),
    "a rank's coin is forgotten": (
        "stats.signed_rank_cdf",
        "share[rank : top + rank + 1] += before",
        "share[rank - 1 : top + rank] += before",
        test_stats.test_cdf_is_that_of_all_sign_patterns,
    ),
    "of many averages the neighbour is taken": (
        "stats._sum_at",
        "inside = place - ",
        "inside = place + 1 - ",
        test_stats.test_many_units_give_what_all_their_averages_give,
    ),
    "averages of many units are counted without their own": (
        "stats._averages_beyond",
        'np.maximum(np.searchsorted(row, -row, "right"), places)',
        'np.maximum(np.searchsorted(row, -row, "right"), places + 1)',
        test_stats.test_many_units_give_what_all_their_averages_give,
    ),
    "units without a value are dropped in silence": (
        "analysis.Analysis.unmeasured",
        "for unit in self.complete:",
        "for unit in ():",
        test_analysis.test_a_unit_is_never_left_out_for_its_value,
    ),
    "wrong units are averaged in": (
        "analysis.Analysis.units",
        "number in wrong",
        "False",
        test_analysis.test_ten_wrong_runs_of_every_kind_and_medians_without_them,
    ),
    "the minimum of work is not asked": (
        "analysis.Analysis.idle",
        "one.work < minimum",
        "False",
        test_analysis.test_less_work_than_the_minimum_is_wrong_even_if_nothing_is_compared,
    ),
    "the first output is the reference": (
        "fingerprint._majority",
        "2 * len(members) > total",
        "True",
        test_fingerprint.test_the_reference_is_the_majority_not_the_first,
    ),
    "re-runs are not looked at": (
        "fingerprint.judge",
        "if reruns:",
        "if False:",
        test_fingerprint.test_reruns_name_the_arm_that_cannot_repeat_itself,
    ),
    "totals are not compared": (
        "fingerprint.differences",
        "if not agree:",
        "if False:",
        test_fingerprint.test_what_each_policy_compares,
    ),
    "exact is approximate": (
        "fingerprint._same",
        "x == y",
        "abs(x - y) < 1e-12",
        test_fingerprint.test_what_each_policy_compares,
    ),
    "values count as keys": (
        "fingerprint.compared_digests",
        'policy in ("keys", "statistical")',
        "False",
        test_fingerprint.test_what_each_policy_compares,
    ),
    "nothing compared is agreement": (
        "fingerprint.judge",
        "agree=agree if compared or not agree else None",
        "agree=agree",
        test_fingerprint.test_nothing_to_compare_is_not_agreement,
    ),
    "regression by the estimate, not by the bound": (
        "gate.words",
        "np.greater(low, mu)",
        "np.greater(np.add(low, high) / 2, mu)",
        test_gate.test_the_interval_decides,
    ),
    "equivalence by the wide interval's one side": (
        "gate.words",
        "np.greater(low90, -mu) & np.less(high90, mu)",
        "np.less(high90, mu)",
        test_gate.test_the_interval_decides,
    ),
    "slower at any look": (
        "gate.words",
        "np.greater(low, 0) & final",
        "np.greater(low, 0)",
        test_gate.test_not_worse_and_slower_wait_for_the_last_look,
    ),
    "voids count against the limit of set-aside units": (
        "gate.verdict",
        "schedule.SET_ASIDE_LIMIT * evidence.complete",
        "schedule.SET_ASIDE_LIMIT * (evidence.complete + sum(voids.values()))",
        test_gate.test_what_comes_before_the_interval,
    ),
    "the second verdict is not asked": (
        "gate.verdict",
        "if evidence.everything is not None:",
        "if False:",
        test_gate.test_a_verdict_that_rests_on_setting_aside_is_none,
    ),
    "a ceiling may win": (
        "gate.by_interval",
        "if winner in evidence.ceiling:",
        "if False:",
        test_gate.test_a_ceiling_never_wins,
    ),
    "more is better is forgotten": (
        "gate._table",
        "low, high, low90, high90 = -high, -low, -high90, -low90",
        "pass",
        test_gate.test_where_more_is_better_the_ratio_is_inverted_first,
    ),
    "wrong outputs only matter when slow": (
        "gate.verdict",
        "if evidence.wrong:",
        "if evidence.wrong and evidence.complete:",
        test_gate.test_wrong_outputs_come_before_everything,
    ),
    "unfit is better than inconclusive": (
        "gate.worst",
        "in WORST_FIRST:",
        "in (1, 3, 4, 0):",
        test_gate.test_several_scenarios_end_with_the_worst,
    ),
    "always A first": (
        "schedule.coin",
        "& 1",
        "& 0",
        test_schedule.test_coins_are_fair_and_independent_of_one_another,
    ),
    "a biased coin": (
        "schedule.coin",
        "digest_size=1).digest()[0] & 1",
        "digest_size=1).digest()[0] > 115",
        test_schedule.test_coins_are_fair_and_independent_of_one_another,
    ),
    "launch and first pair share a coin": (
        "schedule.plan_unit",
        'coin(seed, unit, "launch")',
        'coin(seed, unit, "pair", 0)',
        test_schedule.test_coins_are_fair_and_independent_of_one_another,
    ),
    "set-aside units are not replaced": (
        "schedule.next_step",
        "tally.kept + tally.wrong >= tally.planned",
        "tally.kept + tally.wrong + tally.set_aside >= tally.planned",
        test_schedule.test_a_void_or_set_aside_unit_is_replaced_until_the_cap,
    ),
    "replacement without end": (
        "schedule.next_step",
        "tally.run >= tally.cap",
        "False",
        test_schedule.test_a_void_or_set_aside_unit_is_replaced_until_the_cap,
    ),
    "one void decides": (
        "schedule.voids_decide",
        "2.0**-voids < alpha",
        "True",
        test_schedule.test_five_voids_in_one_arm_and_none_in_the_other_decide,
    ),
    "one order too narrow": (
        "stats.signed_rank_interval",
        "walsh_order(d, k - 1, n * (n + 1) // 2 - k)",
        "walsh_order(d, k, n * (n + 1) // 2 - k - 1)",
        test_analysis.test_estimate_and_interval_are_those_of_the_blocks,
    ),
    "the order is one too large": (
        "stats.signed_rank_order",
        'side="right"))',
        'side="right")) + 1',
        test_stats.test_interval_orders_are_those_of_the_table,
    ),
    "p is one-sided": (
        "stats.signed_rank_p",
        "2 * np.minimum(above, below)",
        "np.minimum(above, below)",
        test_simulation.test_an_arm_against_itself_alarms_at_the_nominal_rate,
    ),
    "ties count for the larger side": (
        "stats.signed_rank_tails",
        "(averages > centre)",
        "(averages >= centre)",
        test_stats.test_p_is_valid_under_ties_and_zeros,
    ),
    "Walsh averages without the values themselves": (
        "stats._triangle",
        "np.triu_indices(n)",
        "np.triu_indices(n, 1 if n > 1 else 0)",
        test_stats.test_hodges_lehmann_by_hand,
    ),
    "the normal row stands for t3": (
        "stats.mde_factor",
        "np.log(MDE_FACTORS)",
        "np.log((1.76, 1.26, 1.03, 0.94, 0.80, 0.67, 0.54, 0.47))",
        test_stats.test_mde_factors_are_the_t3_row_and_interpolate_between,
    ),
    "the pairs' noise is left in the block's": (
        "stats.variance_components",
        "spread * spread - noise",
        "spread * spread",
        test_stats.test_variance_components_find_what_was_put_in,
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_rejected(name):
    path, old, new, test = TWINS[name]
    with twins.broken(path, old, new):
        assert twins.rejects(test), f"{test.__name__} lets it pass: {name}"


def test_the_original_passes_every_test_that_rejects_a_twin():
    for test in {test for *_, test in TWINS.values()}:
        assert not twins.rejects(test)
