"""Each deliberate mistake in the comparison of values is rejected by the test named beside it."""

import pytest
import test_accuracy
import test_accuracy_arms
import twins

TWINS = {
    "the error bar is that of the other arm": (
        "accuracy._reduce_maps",
        "np.sqrt(a.variance[i])",
        "np.sqrt(b.variance[j])",
        test_accuracy.test_the_error_bar_is_that_of_the_reference,
    ),
    "every voxel weighs the same in a quantile": (
        "accuracy.weighted_quantile",
        "np.cumsum(weight[order])",
        "np.cumsum(np.ones(len(order)))",
        test_accuracy.test_weighted_quantiles_are_those_of_a_slow_reference,
    ),
    "a quantile lies one value further": (
        "accuracy.weighted_quantile",
        'side="left"',
        'side="right"',
        test_accuracy.test_weighted_quantiles_are_those_of_a_slow_reference,
    ),
    "half of the voxels decide": (
        "accuracy._reduce_maps",
        "name: weighted_quantile(pull, weight, share)",
        "name: weighted_quantile(pull, np.ones(len(pull)), share)",
        test_accuracy.test_half_of_the_weight_decides_not_half_of_the_voxels,
    ),
    "missed voxels are nobody's business": (
        "accuracy._judge_map",
        "if missed > tolerance:",
        "if False:",
        test_accuracy.test_missed_voxels_have_no_pull_and_are_counted_by_weight,
    ),
    "only the reference can miss a voxel": (
        "accuracy._judge_map",
        'max(found["only_a_share"], found["only_b_share"])',
        'found["only_b_share"]',
        test_accuracy.test_missed_voxels_have_no_pull_and_are_counted_by_weight,
    ),
    "missed voxels are counted by number": (
        "accuracy._reduce_maps",
        "np.delete(a.weight, i).sum() / a.weight.sum()",
        "1 - len(i) / len(a.key)",
        test_accuracy.test_missed_voxels_have_no_pull_and_are_counted_by_weight,
    ),
    "a voxel without an error bar has a pull of nothing": (
        "accuracy._reduce_maps",
        "i, j, weight = i[barred], j[barred], shared[barred]",
        "weight = shared",
        test_accuracy.test_a_whole_reduction_is_that_of_a_slow_reference,
    ),
    "an error bar shrinks as 1/N": (
        "accuracy._judge_map",
        "math.sqrt(exposure / scale)",
        "(exposure / scale)",
        test_accuracy.test_the_word_follows_the_shift_at_the_exposure,
    ),
    "the visible exposure is N over the median": (
        "accuracy.contributors_for_unit_pull",
        "median**2",
        "median",
        test_accuracy.test_a_known_shift_gives_known_pulls_and_the_exposure_that_shows_it,
    ),
    "what has no weight is an entry": (
        "accuracy._map",
        'heavy = columns["weight"] > 0',
        'heavy = columns["weight"] >= 0',
        test_accuracy.test_entries_without_weight_are_no_entries,
    ),
    "keys are compared as floats": (
        "accuracy._common",
        "if a.dtype != b.dtype:",
        "a, b = a.astype(float), b.astype(float)\n    if False:",
        test_accuracy.test_keys_beyond_64_bit_signed_are_told_apart,
    ),
    "ties count as in order": (
        "accuracy.auc",
        "background / 2",
        "background",
        test_accuracy.test_auc_is_the_share_of_pairs_in_order_with_ties_half,
    ),
    "events of an AUC weigh the same": (
        "accuracy.auc",
        "np.bincount(place, weight * positive)",
        "np.bincount(place, 1.0 * positive)",
        test_accuracy.test_auc_is_the_share_of_pairs_in_order_with_ties_half,
    ),
    "events are paired by place": (
        "accuracy._reduce_seed",
        "i, j = ours[i], theirs[j]",
        "i, j = ours, theirs",
        test_accuracy.test_events_are_paired_by_key_whatever_their_order,
    ),
    "seeds are not paired": (
        "accuracy._judge_model",
        '[seed["b"][one] - seed["a"][one] for seed in seeds]',
        '[x["b"][one] - y["a"][one] for x, y in zip(seeds, reversed(seeds))]',
        test_accuracy.test_a_loss_at_every_seed_is_seen_though_seeds_differ_more,
    ),
    "more is better, of a loss too": (
        "accuracy._judge_model",
        '!= (metric == "log_loss")',
        "!= False",
        test_accuracy.test_a_lower_loss_is_better,
    ),
    "Student's t is one-sided": (
        "accuracy._t",
        "(1 + level) / 2",
        "level",
        test_accuracy.test_few_seeds_have_students_interval_and_say_so,
    ),
    "a few seeds are called exact": (
        "accuracy.paired_interval",
        "stats.units_needed(level)",
        "2",
        test_accuracy.test_few_seeds_have_students_interval_and_say_so,
    ),
    "seeds are asked for as if there were no spread": (
        "accuracy.seeds_needed",
        "/ np.sqrt(counts)",
        "/ counts",
        test_accuracy.test_so_many_seeds_are_asked_for_as_would_settle_it,
    ),
    "the estimate alone decides": (
        "accuracy._judge_model",
        'interval["low"] > tolerance or interval["high"] < -tolerance',
        'abs(interval["estimate"]) > tolerance',
        test_accuracy.test_more_than_ten_thousand_seeds_are_not_counted,
    ),
    "values that differ are no wrong result": (
        "analysis.Analysis.wrong",
        'found["word"] == "different"',
        "False",
        test_accuracy_arms.test_in_a_gate_values_decide_as_alone,
    ),
    "undecided values let the times decide": (
        "analysis.Analysis._open_values",
        'found["word"] == "undecided"',
        "False",
        test_accuracy_arms.test_in_a_gate_values_decide_as_alone,
    ),
    "values that were never taken agree": (
        "analysis.Analysis._open_values",
        '("the arms\' values were not taken, so whether the results agree is not known",)',
        "()",
        test_accuracy_arms.test_a_comparison_that_never_took_values_decides_nothing,
    ),
    "values of a void unit count": (
        "analysis.Analysis._reduced",
        'unit.closed.state == "complete"',
        "True",
        test_accuracy_arms.test_values_of_a_unit_that_was_not_completed_do_not_count,
    ),
    "a look decides before the seeds are there": (
        "analysis.Analysis.step",
        "if self.values_decide and self.values_missing:",
        "if False:",
        test_accuracy_arms.test_looks_wait_for_the_seeds,
    ),
}


@pytest.mark.parametrize("name", list(TWINS))
def test_a_twin_of_the_values_is_rejected(name):
    path, old, new, test = TWINS[name]
    with twins.broken(path, old, new):
        assert twins.rejects(test), f"{test.__name__} lets it pass: {name}"


def test_the_original_passes_what_rejects_a_twin_of_the_values():
    for test in {test for *_, test in TWINS.values()}:
        assert not twins.rejects(test)
