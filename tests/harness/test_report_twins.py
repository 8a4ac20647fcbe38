"""Each deliberate mistake in the pages is rejected by the test named beside it."""

import tempfile
from pathlib import Path

import pytest
import test_beside
import test_report
import test_report_ci
import test_report_index
import twins

from harness import records, report


def materials():
    return {name: report.Material(records.read(test_report.DATA / f"{name}.jsonl")) for name in test_report.NAMES}


def summaries():
    return {name: material.summary for name, material in materials().items()}


def with_folder(test, *rest):
    """A test that wants a folder, given one."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder), *(one() if callable(one) else one for one in rest))

    return call


def with_patch(test):
    def call():
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            test(Path(folder), patch)

    return call


TWINS = {
    "the axis is linear": (
        "report.plots.Axis.__call__",
        "position = math.log(value) if self.log else value",
        "position = self.first + (value - 0.8) if self.log else value",
        test_report.test_interval_stands_to_scale_against_the_margin,
    ),
    "the text's axis is linear": (
        "report.terminal._scale",
        "(math.log(x) - first) / (last - first)",
        "(x - math.exp(first)) / (math.exp(last) - math.exp(first))",
        test_report.test_text_interval_stands_to_scale_against_the_margin,
    ),
    "a wrong result is drawn": (
        "report.words.counts",
        'not in ("wrong-result", "unfit")',
        'not in ("unfit",)',
        lambda: test_report.test_a_ratio_that_does_not_count_is_never_drawn_or_called_won(materials()),
    ),
    "a name may hold control characters": (
        "report.words.printable",
        '"".join(character if character.isprintable() else "\\ufffd" for character in str(text))',
        "str(text)",
        lambda: test_report.test_no_control_or_direction_character_reaches_terminal_or_markdown(materials()),
    ),
    "the last entry of the record is not carried": (
        "report.tables.record_gz",
        "for entry in entries)",
        "for entry in entries[:-1])",
        with_folder(test_report.test_page_carries_the_record_that_it_was_made_from, materials),
    ),
    "Markdown takes names for commands": (
        "report.markdown.escape",
        '_SPECIAL.sub(r"\\\\\\g<0>", words.printable(" ".join(str(text).split())))',
        "words.printable(text)",
        lambda: test_report.test_markdown_of_a_hostile_record_is_text_alone(materials()),
    ),
    "inline code ends at a backtick": (
        "report.markdown.code",
        'fence = "`" * (longest + 1)',
        'fence = "`"',
        test_report.test_inline_code_cannot_end_early,
    ),
    "a thinned figure loses its extremes": (
        "report.plots.thin",
        "kept += sorted({low, high})",
        "kept.append(group[0])",
        test_report.test_a_figure_of_many_points_keeps_their_extremes,
    ),
    "labels of figures trust the record": (
        "report.plots.figure",
        'aria-label="{escape(label)}"',
        'aria-label="{label}"',
        test_report.test_every_label_of_a_figure_escapes_what_it_quotes,
    ),
    "the percent of less counts from the wrong end": (
        "report.words.difference",
        '(high_amount, low_amount) if low_sense == "less" else (low_amount, high_amount)',
        "(low_amount, high_amount)",
        test_report.test_verdict_is_a_sentence_that_a_person_would_say,
    ),
    "the arms of a break-even are swapped": (
        "analysis.caught_up",
        "gain = other.pace - later.pace",
        "gain = later.pace - other.pace",
        test_beside.test_work_until_a_later_start_is_paid_for_is_counted_from_the_launch,
    ),
    "the first iteration is not counted": (
        "analysis.caught_up",
        "later.start - later.first * later.pace - other.start + other.first * other.pace",
        "later.start - other.start",
        test_beside.test_work_until_a_later_start_is_paid_for_is_counted_from_the_launch,
    ),
    "an iteration's pace is taken for a unit's": (
        "analysis.Analysis._lives",
        "slot.seconds / amount",
        "slot.seconds",
        test_beside.test_work_until_a_later_start_is_paid_for_is_counted_from_the_launch,
    ),
    "pace is taken from the clock that decides": (
        "analysis.Analysis._lives",
        "slot.seconds / amount",
        "slot.cpu_seconds / amount",
        test_beside.test_pace_is_wall_time_whatever_decides,
    ),
    "an undecided pace is believed": (
        "analysis.Analysis._break_even",
        "if faster and ",
        "if ",
        test_beside.test_whether_it_pays_is_open_where_the_pace_is_not_decided,
    ),
    "units of a break-even are called iterations": (
        "report.words.break_even",
        "_whole(work[key], scale)",
        "_whole(work[key])",
        lambda: test_beside.test_break_even_is_a_sentence_with_the_digits_that_mean_something(
            "B takes 10.0 s longer to start and is ahead in wall time after 250 iterations, 160,000 particles "
            "(95 % between 180 and 1,300 iterations)",
            {"estimate": 160_000.0, "low": 115_200.0, "high": 832_000.0},
            {},
        ),
    ),
    "a file is written in place": (
        "report.replace",
        "temporary.write_text(",
        "path.write_text(",
        with_patch(test_report.test_a_file_is_replaced_whole_or_left_alone),
    ),
    "a series reaches across machines": (
        "report.index.histories",
        'row["machine"], row["inputs"])',
        '"", row["inputs"])',
        with_folder(test_report_index.test_series_never_reach_across_machines_inputs_or_parameters, lambda: "machine"),
    ),
    "a series reaches across inputs": (
        "report.index.histories",
        'row["machine"], row["inputs"])',
        'row["machine"], "")',
        with_folder(test_report_index.test_series_never_reach_across_machines_inputs_or_parameters, lambda: "inputs"),
    ),
    "a claim holds when an end of the interval fits": (
        "report.claims.outcome",
        "claimed[0] <= low and high <= claimed[1]",
        "claimed[0] <= low or high <= claimed[1]",
        test_report_index.test_a_claim_holds_when_the_whole_interval_is_what_it_says,
    ),
    "a claim is set beside any variant": (
        "report.claims.asks",
        "analysis.laid(opening, arm) == analysis.laid(opening, arm, parameters)",
        "True",
        with_folder(test_report_index.test_a_claim_is_not_set_beside_another_variant),
    ),
    "a variant of one arm answers for both": (
        "report.claims.asks",
        'all(analysis.laid(opening, arm) == analysis.laid(opening, arm, parameters) for arm in "ab")',
        'analysis.laid(opening, "b") == analysis.laid(opening, "b", parameters)',
        with_folder(test_report_index.test_a_claim_is_not_set_beside_another_variant),
    ),
    "the scenario's own parameters are a variant": (
        "analysis.laid",
        "key not in known or known[key] != value",
        "True",
        with_folder(
            test_report_index.test_variants_of_a_comparison_are_named_by_what_was_laid_over_and_share_no_history
        ),
    ),
    "a lone variant has no name": (
        "report.index._name_variants",
        "key in over[arm] or ",
        "",
        with_folder(test_report_index.test_a_lone_variant_is_named),
    ),
    "what a scenario changed since has no name": (
        "report.index._name_variants",
        " or seen[arm, text] < len(group)",
        "",
        with_folder(test_report_index.test_what_a_scenario_changed_since_tells_variants_apart_too),
    ),
    "JUnit counts errors as failures": (
        "report.junit.outcome",
        '4: "error"',
        '4: "failure"',
        lambda: test_report_ci.test_junit_counts_what_it_holds_and_meets_the_schema_of_jenkins("skipped", summaries()),
    ),
    "an annotation's title may hold colons": (
        "report.github._property",
        '.replace(":", "%3A")',
        "",
        lambda: test_report_ci.test_annotations_have_the_documented_form_on_one_line_each(summaries()),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_rejected(name):
    path, old, new, test = TWINS[name]
    with twins.broken(path, old, new):
        assert twins.rejects(test), f"it passes: {name}"


def test_the_original_passes_every_test_that_rejects_a_twin():
    for *_, test in TWINS.values():
        assert not twins.rejects(test)
