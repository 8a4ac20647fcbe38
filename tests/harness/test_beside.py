"""What a comparison shows beside its metric: memory, set-up and counters of both arms, each with its interval."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import made
import msgspec
import pytest

from harness import analysis, records
from harness.report import tables, words
from harness.report.markdown import markdown

DATA = Path(__file__).parents[1] / "data" / "records"
SCRIPTED = Path(__file__).parents[1] / "arms" / "scripted.py"
MEMORY = [(100.0, 150.0), (101.0, 149.0), (99.0, 152.0), (100.0, 151.0), (102.0, 150.0), (98.0, 147.0)]


def planted(blocks: int = 6) -> list:
    """The stored improvement cut to some blocks, with peak memory, a counter and set-up of known values."""
    entries = records.read(DATA / "improvement.jsonl")
    numbers = [one.unit for one in analysis.Analysis(entries).kept][:blocks]
    out = []
    for entry in entries:
        unit = getattr(entry, "unit", None)
        if unit is not None and unit not in numbers:
            continue
        if isinstance(entry, records.Phase):
            continue
        if isinstance(entry, records.Slot):
            rows = {"a": 40.0, "b": 10.0}[entry.arm] + numbers.index(unit)
            entry = msgspec.structs.replace(
                entry, peak_rss_bytes=None, counters={"rows": rows, "same": 7.0, "zero": 0.0}
            )
        if isinstance(entry, records.Unit):
            for arm, peak in zip("ab", MEMORY[numbers.index(unit)]):
                life = records.Phase(unit=unit, arm=arm, name="life", seconds=9.0, cpu_seconds=8.0, peak_rss_bytes=peak)
                setup = records.Phase(unit=unit, arm=arm, name="setup", seconds=peak / 100, cpu_seconds=0.1)
                out += [setup, life]
        if isinstance(entry, records.Comparison):
            plan = entry.plan | {"units": blocks, "fixed": True, "method": "fixed"}
            entry = msgspec.structs.replace(entry, plan=plan)
        out.append(entry)
    return out


def hodges_lehmann(values: list[float]) -> float:
    walsh = sorted((x + y) / 2 for x, y in itertools.combinations_with_replacement(values, 2))
    middle = len(walsh) // 2
    return walsh[middle] if len(walsh) % 2 else (walsh[middle - 1] + walsh[middle]) / 2


def test_memory_has_its_own_paired_ratio_and_interval():
    beside = analysis.summarise(planted())["beside"]
    logs = [math.log(b / a) for a, b in MEMORY]
    found = beside["peak_rss_bytes"]
    assert (found["a"], found["b"]) == (100.0, 150.0)
    assert found["ratio"]["estimate"] == pytest.approx(math.exp(hodges_lehmann(logs)))
    # With six units the exact 95 % interval is that of the extreme Walsh averages: the least and the largest.
    assert found["ratio"]["low"] == pytest.approx(math.exp(min(logs)))
    assert found["ratio"]["high"] == pytest.approx(math.exp(max(logs)))
    # The broken twin pairs A with the B of the next unit.
    crossed = [math.log(b / a) for (a, _), (_, b) in zip(MEMORY, MEMORY[1:] + MEMORY[:1])]
    assert math.exp(min(crossed)) != pytest.approx(found["ratio"]["low"], rel=1e-4)


def test_counters_of_both_arms_stand_beside_set_up_and_equal_ones_are_called_so():
    summary = analysis.summarise(planted())
    rows = {row[0]: row[1:] for row in tables.beside(summary)}
    assert rows["rows"][:2] == ["42.5", "12.5"]
    assert rows["same"] == ["7", "7", "equal", ""]
    assert rows["zero"] == ["0", "0", "equal", ""]
    assert rows["set-up"][:2] == ["1.00 s", "1.50 s"]
    assert "cpu_seconds" not in rows
    assert dict(tables.facts(summary))["peak memory"] == "A 100 B, B 150 B; 1.500, between 1.471 and 1.535"
    page = markdown(tables.Material(planted()))
    assert "## Measured beside it" in page
    assert "| peak memory | 100 B | 150 B | 1.500 | 1.471 to 1.535 |" in page


def test_too_few_units_give_medians_and_no_interval():
    found = analysis.summarise(planted(blocks=3))["beside"]["peak_rss_bytes"]
    assert (found["a"], found["b"]) == (100.0, 150.0)
    assert (found["ratio"]["low"], found["ratio"]["high"]) == (None, None)


def test_a_resident_arm_that_holds_more_memory_shows_it(tmp_path):
    (tmp_path / "scenarios").mkdir()
    scenario = f"""
[scenario]
name = "hold"
question = "Does holding memory show?"
workload = ["python", "{SCRIPTED}"]
[arms.less]
seconds = 0.01
[arms.more]
seconds = 0.01
holds = {96 << 20}
[schedule]
blocks = 6
pairs = 1
warmup = 1
"""
    (tmp_path / "scenarios" / "hold.toml").write_text(scenario)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "ab", "hold:less", "hold:more", "--json", "--reports", "reports"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["beside"]["peak_rss_bytes"]
    assert (96 << 20) * 0.9 < found["b"] - found["a"] < (96 << 20) * 1.1
    assert found["ratio"]["low"] > 1.5


# ------------------------------------------------------------------------------------------------- break-even

#: seconds to the first result; seconds of a warm iteration and of a steady one; units of work in each
START, PACE, UNITS = {"a": 2.0, "b": 12.0}, {"a": 0.4, "b": 0.2}, 5.0


def started(start=START, pace=PACE, sizes=UNITS, blocks=8, metric="cpu_seconds_per_unit", cpu=1.0, **settings):
    """Blocks of one warm-up and two steady iterations; numbers of an arm, or of (block, arm), are played as given."""

    def of(known, block, arm):
        return known(block, arm) if callable(known) else known[arm] if isinstance(known, dict) else known

    entries = []
    for block in range(blocks):

        def fields(arm, index, block=block):
            seconds = of(pace, block, arm)
            start_of = of(start, block, arm)
            return {
                "seconds": seconds,
                "cpu_seconds": seconds**cpu,
                "units": of(sizes, block, arm),
                "at": block + 0.1 * index + 0.05,
                "startup_seconds": None if index else start_of,
            }

        unit = made.unit(block, [0.0, 0.0], slot=fields)
        for arm in "ab":
            warm = fields(arm, 1) | {"seconds": 9.0, "at": float(block)}
            unit.insert(2, records.Slot(unit=block, arm=arm, phase="warmup", index=0, work=5.0, **warm))
        entries.append(unit)
    return made.record(entries, scenario={"metric": metric}, **settings)


def break_even(*given, **settings):
    return analysis.summarise(started(*given, **settings))["break_even"]


def test_work_until_a_later_start_is_paid_for_is_counted_from_the_launch():
    # B takes 10 s longer until both have done 5 units (12 s - 2 s) and gains 0.08 s - 0.04 s on each unit after these:
    # 10 / 0.04 + 5 = 255 units; then A has used 2 + 250 * 0.08 = 22 s and B 12 + 250 * 0.04 = 22 s.
    found = break_even()
    assert found["later"] == "b"
    assert (found["seconds"], found["longest_seconds"], found["iteration"]) == pytest.approx((10.0, 10.0, 5.0))
    assert found["work"] == pytest.approx({"estimate": 255.0, "low": 255.0, "high": 255.0})


def test_a_later_start_of_a_is_paid_for_in_the_same_way():
    found = break_even(start={"a": 12.0, "b": 2.0}, pace={"a": 0.2, "b": 0.4})
    assert (found["later"], found["work"]["estimate"]) == ("a", pytest.approx(255.0))


def test_a_metric_that_is_not_per_unit_counts_iterations():
    # 10 s / 0.2 s an iteration, and the first one: 51 iterations, however many units of work are in them.
    found = break_even(metric="seconds", sizes={"a": 5.0, "b": 7.0})
    assert (found["work"]["estimate"], found["iteration"]) == (pytest.approx(51.0), 1.0)


def test_arms_that_do_unlike_work_in_an_iteration_are_compared_by_work():
    # A: 5 units in 0.4 s, 0.08 s a unit; B: 8 units in 0.2 s, 0.025 s a unit. B does 8 units by 12 s, A 5 by 2 s, so
    # that 12 + (n - 8) * 0.025 = 2 + (n - 5) * 0.08, n = (10 - 0.2 + 0.4) / 0.055.
    found = break_even(sizes={"a": 5.0, "b": 8.0})
    assert (found["work"]["estimate"], found["iteration"]) == (pytest.approx(10.2 / 0.055), None)


def test_interval_is_that_of_the_median_over_blocks():
    # Block k starts k + 1 s later: (k + 1) / 0.04 + 5 units. For nine blocks the sign test at 95 % leaves one out at
    # each end: P(at most one of nine) = 10 / 512 = .0195 < .025, and with two it is .09.
    found = break_even(start=lambda block, arm: 2.0 + (block + 1.0) * (arm == "b"), blocks=9)
    assert found["work"] == pytest.approx({"estimate": 130.0, "low": 55.0, "high": 205.0})
    assert (found["seconds"], found["longest_seconds"]) == pytest.approx((5.0, 9.0))


def test_a_block_that_never_catches_up_leaves_the_interval_open_at_its_end():
    # In one of eight blocks B is the slower one; the wall ratio's interval stays below 1, the least Walsh average out.
    pace = {"a": 0.4, "b": 0.2}
    found = break_even(pace=lambda block, arm: 0.41 if arm == "b" and block == 3 else pace[arm])
    assert found["work"] == {"estimate": pytest.approx(255.0), "low": pytest.approx(255.0), "high": None}


def test_whether_it_pays_is_open_where_the_pace_is_not_decided():
    found = break_even(pace=lambda block, arm: 0.4 if arm == "a" else 0.38 if block < 5 else 0.42)
    assert (found["later"], found["seconds"], found["work"]) == ("b", pytest.approx(10.0), None)


def test_pace_is_wall_time_whatever_decides():
    # CPU time is the wall time's square root here: its ratio is another one, and the answer the same.
    assert break_even(cpu=0.5) == break_even()


@pytest.mark.parametrize(
    ("why", "settings"),
    [
        ("the later one is the slower one", {"pace": {"a": 0.2, "b": 0.4}}),
        ("both start alike", {"start": {"a": 2.0, "b": 2.03}}),
        ("now one, now the other starts later", {"start": lambda block, arm: 2.0 + (block % 2 == "ab".index(arm))}),
        ("no start was seen", {"start": None}),
        ("too few blocks for an interval", {"blocks": 5}),
        ("the metric is no time", {"metric": "work_done"}),
        ("the metric is the start", {"metric": "startup_seconds"}),
        ("an arm leaves work out", {"arms": {"b": {"kind": "ceiling"}}}),
        ("the only iteration is the first one", {"mode": "process", "plan": {"warmup": 0}}),
    ],
)
def test_nothing_is_said_where_it_is_no_question(why, settings):
    entries = started(**{key: value for key, value in settings.items() if key not in ("arms", "mode", "plan")})
    if "plan" in settings:
        entries[0].plan.update(settings["plan"], mode="process")
    for arm, more in settings.get("arms", {}).items():
        entries[0].arms[arm].update(more)
    assert analysis.summarise(entries)["break_even"] is None, why


def test_whole_processes_with_warm_up_are_told_too():
    entries = started()
    entries[0].plan.update(mode="process", warmup=1)
    assert analysis.summarise(entries)["break_even"]["work"]["estimate"] == pytest.approx(255.0)


def told(work, **more):
    """The sentence for a summary with this break-even."""
    known = {"later": "b", "seconds": 10.0, "longest_seconds": 11.0, "work": work, "iteration": 640.0}
    return words.break_even(
        {
            "break_even": known | more,
            "metric": more.get("metric", "cpu_seconds_per_unit"),
            "unit": more.get("unit", "particle"),
            "level": 0.95,
            "verdict": {"word": more.get("word", "improvement")},
        }
    )


@pytest.mark.parametrize(
    ("said", "work", "more"),
    [
        (
            "B takes 10.0 s longer to start and is ahead in wall time after 250 iterations, 160,000 particles "
            "(95 % between 180 and 1,300 iterations)",
            {"estimate": 160_000.0, "low": 115_200.0, "high": 832_000.0},
            {},
        ),
        (
            "A takes 10.0 s longer to start (up to 80.0 s) and is ahead in wall time after 51 iterations "
            "(95 % between 37 and 60 iterations)",
            {"estimate": 50.2, "low": 36.01, "high": 60.0},
            {"metric": "seconds", "iteration": 1.0, "later": "a", "longest_seconds": 80.0},
        ),
        (
            "B takes 10.0 s longer to start and is ahead in wall time after 190 events (95 % from 120 events on)",
            {"estimate": 185.5, "low": 120.0, "high": None},
            {"iteration": None, "unit": "events"},
        ),
        (
            "B takes 10.0 s longer to start and is ahead in wall time after 1 step (95 % between 1 and 1 step)",
            {"estimate": 0.0, "low": 0.0, "high": 0.9},
            {"iteration": 1.0, "unit": "step"},
        ),
        ("B takes 10.0 s longer to start; whether its pace ever makes up for it is open", None, {}),
        ("", {"estimate": 160_000.0, "low": 115_200.0, "high": 832_000.0}, {"word": "wrong-result"}),
    ],
)
def test_break_even_is_a_sentence_with_the_digits_that_mean_something(said, work, more):
    assert told(work, **more) == said


def test_nothing_is_said_of_an_old_summary():
    assert words.break_even({"verdict": {"word": "improvement"}}) == ""
