"""Other tools' files are judged as unpaired processes, exports are read by others, and pipelines post one comment."""

import csv
import http.server
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from harness import analysis, records, stats
from harness.cli import cli
from harness.exchange import exports, imports, pyperf, results, unpaired
from harness.exchange.results import Result
from harness.report import github

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "exchange"
RECORDS = ROOT / "tests" / "data" / "records"
CI = ROOT / "docs" / "ci"
TOOLS = "hyperfine, pyperf, pytest-benchmark, asv or google-benchmark"


@pytest.fixture
def inside(monkeypatch):
    monkeypatch.chdir(DATA)


def call(*words):
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def made(tmp_path, data, name="made.json"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def hyperfine(**arms):
    return {"results": [{"command": name, "times": times} for name, times in arms.items()]}


def judged(a, b, margin=0.02):
    return imports.summarise([(Result("x", "made", tuple(a)), Result("x", "made", tuple(b)))], ("a", "b"), margin)[0]


# ------------------------------------------------------------------------------------- what is in the files


@pytest.mark.parametrize(
    ("file", "tool", "counts"),
    [
        ("hyperfine-three.json", "hyperfine", {"short": (8, 8), "long": (8, 8), "again": (8, 8)}),
        ("pyperf-60.json", "pyperf", {"sum": (20, 60)}),
        ("pyperf-57.json", "pyperf", {"sum": (19, 57)}),
        ("pytest-old/1.json", "pytest-benchmark", {"test_bench.py::test_joining": (1, 5)}),
        ("pytest-old", "pytest-benchmark", {"test_bench.py::test_joining": (6, 30)}),
        ("asv-a.json", "asv", {"parsing.Parsing.time_split(1000, 'comma')": (1, 1), "parsing.time_one": (1, 1)}),
        ("google-benchmark.json", "google-benchmark", {"sorting/100/iterations:200/repeats:3": (1, 3)}),
        ("google-benchmark-aggregates.json", "google-benchmark", {"sorting/100/iterations:200/repeats:3": (1, 3)}),
    ],
)
def test_a_process_is_a_value_in_the_files_of_every_tool(file, tool, counts):
    side = results.read(DATA / file)
    assert side.tool == tool
    assert {name: (len(side.results[name].values), side.results[name].inner) for name in counts} == counts


def test_values_are_those_of_the_tool_in_seconds_and_bytes():
    def value(file, name):
        return results.read(DATA / file).results[name].values[0]

    raw = json.loads((DATA / "pyperf-60.json").read_text())["benchmarks"][0]["runs"][0]["values"]
    assert value("pyperf-60.json", "sum") == sorted(raw)[1]
    gbench = json.loads((DATA / "google-benchmark.json").read_text())["benchmarks"]
    stated = next(one["real_time"] for one in gbench if one.get("aggregate_name") == "median")
    assert value("google-benchmark.json", "sorting/100/iterations:200/repeats:3") == pytest.approx(stated * 1e-9)
    stated = json.loads((DATA / "pytest-old" / "1.json").read_text())["benchmarks"][2]["stats"]["median"]
    assert value("pytest-old/1.json", "test_bench.py::test_joining") == stated
    asv = results.read(DATA / "asv-a.json")
    assert asv.results["parsing.Parsing.time_split(100, 'tab')"].values == (2.750000021478627e-06,)
    quantities = {name.split("(")[0]: result.quantity for name, result in asv.results.items()}
    assert quantities == {
        "parsing.Parsing.peakmem_split": "bytes",
        "parsing.Parsing.time_split": "seconds",
        "parsing.time_one": "seconds",
        "parsing.track_rows": "numbers",
    }


def test_failed_and_skipped_benchmarks_are_named_not_dropped_in_silence(inside):
    done = call("import", "asv-a.json", "asv-b.json")
    assert done.exit_code == 3
    assert done.stderr == (
        "harness: asv-a.json: no value of parsing.Parsing.peakmem_split(1000, 'tab'), "
        "parsing.Parsing.time_split(1000, 'tab'), parsing.time_broken\n"
        "harness: asv-b.json: no value of parsing.Parsing.peakmem_split(1000, 'tab'), "
        "parsing.Parsing.time_split(1000, 'tab'), parsing.time_broken\n"
    )


def test_results_of_one_side_only_are_named(tmp_path):
    a = made(tmp_path, hyperfine(x=[1.0], old=[1.0]), "a.json")
    b = made(tmp_path, hyperfine(x=[1.0], new=[1.0]), "b.json")
    assert call("import", a, b).stderr == f"harness: only in {a}: old\nharness: only in {b}: new\n"


def test_a_file_without_single_times_is_one_value(tmp_path):
    path = made(tmp_path, {"results": [{"command": "x", "median": 2.0, "mean": 9.0}]})
    assert results.read(path).results["x"].values == (2.0,)


def test_names_cannot_rewrite_the_terminal(tmp_path):
    path = made(tmp_path, hyperfine(**{"x\x1b[2J": [1.0], "y": [1.0]}))
    assert call("import", path).stdout.startswith("y against x\ufffd[2J\n")


def test_two_results_of_one_name_stay_apart(tmp_path):
    twice = {"results": [{"command": "x", "times": [1.0]}, {"command": "x", "times": [2.0]}]}
    found = results.read(made(tmp_path, twice)).results
    assert {name: result.values for name, result in found.items()} == {"x": (1.0,), "x (2)": (2.0,)}


# ------------------------------------------------------------------------------------------- the interval


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 5), (6, 6), (7, 4), (20, 19)])
def test_the_rank_sum_distribution_is_the_exact_one(m, n):
    ways = stats._rank_sum_ways(m, n)
    assert unpaired.rank_sum_cdf(m, n) == pytest.approx(np.cumsum(ways) / ways.sum(), abs=1e-12)
    assert unpaired.rank_sum_cdf(m, n)[-1] == 1


def test_the_normal_form_meets_the_exact_one(monkeypatch):
    exact = unpaired.rank_sum_cdf(50, 70)
    monkeypatch.setattr(unpaired, "EXACT", 0)
    assert np.abs(unpaired.rank_sum_cdf.__wrapped__(50, 70) - exact).max() < 1e-3


def test_tails_are_those_of_all_ways_to_share_out_the_values():
    rng = np.random.default_rng(3)
    both = rng.normal(size=9)
    a, b = both[:4], both[4:]

    def won(chosen):
        rest = np.delete(both, chosen)
        return int((rest[:, None] > both[list(chosen)]).sum())

    ways = [won(chosen) for chosen in itertools.combinations(range(9), 4)]
    seen = won((0, 1, 2, 3))
    above, below = unpaired.tails(a, b)
    assert above == pytest.approx(np.mean([one >= seen for one in ways]))
    assert below == pytest.approx(np.mean([one <= seen for one in ways]))


def test_interval_and_p_say_the_same():
    rng = np.random.default_rng(4)
    for _ in range(200):
        a, b = np.exp(rng.normal(size=6)), np.exp(rng.normal(0.9, size=11))
        found = unpaired.interval(a, b, 0.02)
        assert (found.low > 0 or found.high < 0) == (found.p <= 0.05)


def test_like_samples_are_covered_and_a_shift_is_seen():
    rng = np.random.default_rng(5)
    covered = seen = 0
    for _ in range(500):
        a, b = np.exp(0.02 * rng.standard_t(3, size=20)), np.exp(0.02 * rng.standard_t(3, size=17))
        found = unpaired.interval(a, b, 0.02)
        covered += found.low <= 0 <= found.high
        seen += unpaired.interval(a, 1.06 * b, 0.02).low > 0
    assert 462 <= covered <= 490
    assert seen > 475


def test_values_inside_a_process_are_no_units():
    """Every process draws one level; its 100 values are nearly equal. The pooled twin alarms nearly always."""
    rng = np.random.default_rng(6)
    ours = twin = 0
    for _ in range(150):
        sides = []
        for _ in range(2):
            runs = np.exp(rng.normal(scale=0.05, size=(6, 1)) + rng.normal(scale=0.001, size=(6, 100)))
            data = {"version": "1.0", "benchmarks": [{"runs": [{"values": list(run)} for run in runs]}]}
            (result,) = pyperf.read(data)
            sides.append((result, runs.ravel()))
        found = judged(sides[0][0].values, sides[1][0].values)
        ours += found["ratio"]["low"] > 1 or found["ratio"]["high"] < 1
        twin += stats.rank_sum_p(sides[0][1], sides[1][1]) < 0.05
    assert ours <= 0.05 * 150 + 6
    assert twin > 0.8 * 150


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 3), (4, 60), (5, 5), (60, 5), (1, 60)])
def test_below_six_values_a_side_nothing_is_significant(m, n):
    found = judged([1.0 + i / 1000 for i in range(m)], [10.0 + i / 1000 for i in range(n)])
    assert found["verdict"] == {
        "word": "inconclusive",
        "basis": "model-based",
        "reason": f"model-based: 6 values of each arm are needed for a 95 % interval, and there are {m} of A and {n} "
        "of B",
    }
    assert (found["ratio"]["low"], found["p"], found["exit_code"]) == (None, None, 3)
    assert found["ratio"]["estimate"] == pytest.approx(10, rel=0.06)


@pytest.mark.parametrize(
    ("factor", "spread", "word", "code"),
    [
        (1.10, 0.001, "regression", 1),
        (0.90, 0.001, "improvement", 0),
        (1.001, 0.001, "equivalent", 0),
        (0.985, 0.012, "not-worse", 0),
        (1.02, 0.004, "slower", 3),
        (1.0, 0.2, "inconclusive", 3),
    ],
)
def test_every_word_of_the_table_with_its_exit_code(factor, spread, word, code):
    a = [1 + spread * (i - 4.5) / 4.5 for i in range(10)]
    found = judged(a, [factor * x for x in a])
    assert (found["verdict"]["word"], found["exit_code"]) == (word, code)
    assert found["verdict"]["reason"].startswith("model-based: B/A = ")


def test_the_margin_decides():
    a = [1 + i / 10000 for i in range(8)]
    b = [1.04 * x for x in a]
    assert judged(a, b)["verdict"]["word"] == "regression"
    assert judged(a, b, margin=0.10)["verdict"]["word"] == "equivalent"


def test_many_results_are_judged_together():
    """Six values a side reach p = .002 at best, which does not carry 60 results; alone it does."""
    a, b = Result("x", "made", tuple(1 + i / 1e4 for i in range(6))), Result("x", "made", (1.2,) * 6)
    same = Result("x", "made", (1.0,) * 6)
    assert imports.summarise([(a, b)], ("a", "b"), 0.02)[0]["verdict"]["word"] == "regression"
    found = imports.summarise([(a, b)] + [(same, same)] * 59, ("a", "b"), 0.02)
    assert found[0]["verdict"]["reason"] == (
        "model-based: by itself it is regression (p = 0.0022 against the margin), but not among 60 results "
        "(p = 0.13 by Holm)"
    )
    assert found[0]["exit_code"] == 3
    assert imports.worst(found) == 3


# ----------------------------------------------------------------------------------------- failing runs


def test_runs_that_fail_in_b_alone_are_a_regression(inside):
    done = call("import", "hyperfine-fails.json")
    assert done.exit_code == 1
    assert done.stdout == (
        "false against true\n"
        "  regression (model-based): B fails where A does not.\n"
        "  0 of 8 runs of A and 8 of 8 of B failed (p = 7.8e-05): B does not run\n"
        "  A  8 values, median 4.49 ms  hyperfine-fails.json\n"
        "  B  0 values  hyperfine-fails.json\n"
        "note: the other tool chose the order of the runs, so drift of the machine between A and B counts as a "
        "difference\n"
    )


@pytest.mark.parametrize(
    ("a", "b", "word", "reason"),
    [
        ((8, 8), (8, 0), "unfit", "8 of 8 runs of A and 0 of 8 of B failed (p = 7.8e-05): the base does not run"),
        ((8, 8), (8, 8), "unfit", "8 of 8 runs of A and 8 of 8 of B failed; mend them first"),
        ((9, 1), (9, 0), "inconclusive", "1 of 9 runs of A and 0 of 9 of B failed; mend them first"),
        ((1, 0), (1, 1), "unfit", "0 of 1 runs of A and 1 of 1 of B failed; mend them first"),
    ],
)
def test_failing_runs_never_pass(a, b, word, reason):
    sides = [Result(n, "made", (1.0,) * (runs - bad), failed=bad) for n, (runs, bad) in zip("ab", (a, b))]
    found = imports.summarise([tuple(sides)], ("a", "b"), 0.02)[0]
    assert found["verdict"] == {"word": word, "basis": "model-based", "reason": f"model-based: {reason}"}
    assert found["exit_code"] == {"unfit": 4, "inconclusive": 3}[word]


# -------------------------------------------------------------------------------------- the import command


def test_unequal_counts_of_pyperf_are_processes(inside):
    done = call("import", "pyperf-60.json", "pyperf-57.json", "--json")
    told = json.loads(done.stdout)
    (found,) = told["comparisons"]
    assert done.exit_code == told["exit_code"] == found["exit_code"] == 1
    assert found["method"] == found["verdict"]["basis"] == "model-based"
    assert [(found["values"][arm]["count"], found["values"][arm]["measured"]) for arm in "ab"] == [(20, 60), (19, 57)]
    assert found["verdict"]["reason"] == (
        "model-based: B/A = 1.3492, between 1.1505 and 1.6149 (95 %): all of it above the margin at 1.02"
    )


def test_five_processes_are_too_few_however_many_values_they_hold(inside):
    done = call("import", "pyperf-60.json", "pyperf-15.json")
    assert done.exit_code == 3
    assert done.stdout == (
        "sum\n"
        "  inconclusive (model-based): Whether B 'pyperf-15.json' is faster or slower than A 'pyperf-60.json' stays "
        "open.\n"
        "  6 values of each arm are needed for a 95 % interval, and there are 20 of A and 5 of B (processes; the 60 "
        "and 15 values measured inside them are not independent)\n"
        "  A  20 values from 60 measured, median 7.07 µs  pyperf-60.json\n"
        "  B  5 values from 15 measured, median 97.8 µs  pyperf-15.json\n"
        "note: the other tool chose the order of the runs, so drift of the machine between A and B counts as a "
        "difference\n"
    )


def test_folders_of_files_give_a_value_a_file(inside):
    told = json.loads(call("import", "pytest-old", "pytest-new", "--json").stdout)
    words = {one["scenario"]: one["verdict"]["word"] for one in told["comparisons"]}
    assert words == {
        "test_bench.py::test_sorting[100]": "regression",
        "test_bench.py::test_sorting[1000]": "regression",
        "test_bench.py::test_joining": "inconclusive",
    }
    assert call("import", "pytest-old/1.json", "pytest-new/1.json").exit_code == 3


def test_results_are_chosen_by_name_and_judged_by_the_margin(inside):
    asked = ("import", "hyperfine-three.json", "--a", "short", "--b", "long")
    assert call(*asked).exit_code == 1
    done = call(*asked, "--margin", "50%", "--json")
    assert (done.exit_code, json.loads(done.stdout)["comparisons"][0]["margin"]) == (3, 0.5)
    both = call("import", "hyperfine-three.json", "hyperfine-same.json", "--a", "long", "--b", "two", "--json")
    arms = json.loads(both.stdout)["comparisons"][0]["arms"]
    assert [arms[arm]["source"] for arm in "ab"] == ["hyperfine-three.json", "hyperfine-same.json"]


def test_two_files_of_one_result_each_need_no_common_name(tmp_path):
    a, b = made(tmp_path, hyperfine(old=[1.0]), "a.json"), made(tmp_path, hyperfine(new=[1.0]), "b.json")
    done = call("import", a, b)
    assert (done.exit_code, done.stderr) == (3, "")
    assert done.stdout.startswith("new against old\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("no.json", f"no.json: expected a file of {TOOLS}, found No such file or directory"),
        ("SOURCES.md", f"SOURCES.md: expected JSON of {TOOLS}, found Expecting value: line 1 column 1 (char 0)"),
        (
            "hyperfine-three.json",
            "hyperfine-three.json: expected two results to compare, found 3: 'short', 'long', 'again'; choose with "
            "--a NAME --b NAME, or add a file",
        ),
        ("pyperf-60.json --a sum", "--a: expected --b too, found it alone; name both results"),
        ("pyperf-60.json --b sum", "--b: expected --a too, found it alone; name both results"),
        (
            "hyperfine-three.json --a shrot --b long",
            "--a: expected a result of hyperfine-three.json, found 'shrot'; it has 3: 'short', 'long', 'again'; did "
            "you mean 'short'?",
        ),
        (
            "pyperf-60.json pyperf-57.json --a sum --b product",
            "--b: expected a result of pyperf-57.json, found 'product'; it has 1: 'sum'",
        ),
        (
            "pyperf-60.json hyperfine-pair.json",
            "hyperfine-pair.json: expected a file of pyperf as pyperf-60.json, found one of hyperfine",
        ),
        (
            "hyperfine-pair.json hyperfine-fails.json",
            "hyperfine-fails.json: expected a result that hyperfine-pair.json has too, found 2: 'true', 'false'; "
            "choose with --a NAME --b NAME",
        ),
        (
            "asv-a.json --a parsing.time_one --b parsing.track_rows",
            "asv-a.json: 'parsing.track_rows': expected seconds, found numbers",
        ),
    ],
)
def test_errors_of_import_about_real_files(inside, words, message):
    done = call("import", *words.split())
    assert (done.exit_code, done.stderr, done.stdout) == (2, f"harness: {message}\n", "")


PYPERF = {"version": "1.0", "benchmarks": [{"runs": [{"values": [1.0]}], "metadata": {"name": "x"}}]}
GOOGLE = {"context": {}, "benchmarks": [{"name": "x", "real_time": 1, "time_unit": "h"}]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, f"expected JSON of {TOOLS}, found an empty object"),
        ([1], f"expected JSON of {TOOLS}, found a list"),
        ({"a": 1, "b": 2}, f"expected JSON of {TOOLS}, found the keys 'a', 'b'"),
        ({"results": []}, "expected results with values, found none"),
        ({"results": [{"command": "x"}]}, "expected the layout of hyperfine, found no 'median'"),
        (
            {"results": [{"command": "x", "times": [1.0, 2.0], "exit_codes": [0]}]},
            "expected the layout of hyperfine, found 2 times and 1 exit codes",
        ),
        (hyperfine(x=[1.0, 0.0]), "'x': expected numbers above 0 and below 1e+100, found 0.0"),
        (hyperfine(x=["fast"]), "'x': expected numbers above 0 and below 1e+100, found 'fast'"),
        (
            '{"results": [{"command": "x", "times": [Infinity]}]}',
            "'x': expected numbers above 0 and below 1e+100, found inf",
        ),
        (
            {"version": "1.0", "benchmarks": [{"runs": [{"metadata": {}}]}]},
            "expected results with values, found none",
        ),
        (
            {"machine_info": {}, "benchmarks": [{"fullname": "x", "stats": {"mean": 1}}]},
            "expected the layout of pytest-benchmark, found no 'median'",
        ),
        (
            {"version": 1, "result_columns": [], "results": {}},
            "expected the layout of asv, found version 1, and only 2 is known",
        ),
        (
            hyperfine(**{"x\x1b[2J": [1.0], "y": [1e200]}),
            "'y': expected numbers above 0 and below 1e+100, found 1e+200",
        ),
        (
            "[" * 100000,
            f"expected JSON of {TOOLS}, found brackets nested without end",
        ),
        (GOOGLE, "expected the layout of google-benchmark, found time_unit 'h', and ns, us, ms, s are known"),
    ],
)
def test_errors_of_import_about_what_a_file_holds(tmp_path, data, message):
    path = made(tmp_path, data)
    done = call("import", path)
    where = f"{path}: "
    assert (done.exit_code, done.stderr) == (2, f"harness: {where}{message}\n")


def test_errors_of_import_about_folders(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert call("import", empty).stderr == (
        f"harness: {empty}: expected files *.json of a benchmark tool, found none\n"
    )
    folder = tmp_path / "mixed"
    a, b = made(tmp_path, hyperfine(x=[1.0]), "mixed/a.json"), made(tmp_path, PYPERF, "mixed/b.json")
    assert call("import", folder).stderr == (
        f"harness: {b}: expected a file of hyperfine as {a}, found one of pyperf\n"
    )
    memory = json.loads(json.dumps(PYPERF))
    memory["benchmarks"][0]["metadata"]["unit"] = "byte"
    made(tmp_path, PYPERF, "mixed/a.json")
    made(tmp_path, memory, "mixed/b.json")
    assert call("import", folder).stderr == f"harness: {b}: 'x': expected seconds, found bytes\n"


def test_usage_errors_of_both_commands(inside):
    done = call("import", "hyperfine-pair.json", "--margin", "much")
    assert done.exit_code == 2
    assert done.stderr.endswith(
        "Error: Invalid value for '--margin': expected a share above 0 such as 2% or 0.02, found 'much'\n"
    )
    assert call("import").stderr.endswith("Error: Missing argument 'FILE'.\n")
    assert call("export").stderr.endswith("Error: Missing argument 'RUN'.\n")
    missing = call("export", RECORDS / "improvement.jsonl")
    assert missing.exit_code == 2
    assert "Error: Missing option '--format'. Choose from:" in missing.stderr
    unknown = call("export", RECORDS / "improvement.jsonl", "--format", "xml")
    assert unknown.stderr.endswith(
        "Error: Invalid value for '--format': 'xml' is not one of 'csv', 'bmf', 'google-benchmark'.\n"
    )


# -------------------------------------------------------------------------------------- the export command


def exported(name, form):
    done = call("export", RECORDS / f"{name}.jsonl", "--format", form)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_csv_has_a_row_for_every_slot_with_the_state_of_its_unit():
    seen = set()
    for name in ("improvement", "voids", "wrong-result", "hostile", "command", "unfit"):
        entries = records.read(RECORDS / f"{name}.jsonl")
        rows = list(csv.DictReader(io.StringIO(exported(name, "csv"))))
        slots = records.of(entries, records.Slot)
        states = {unit.unit: unit.state for unit in analysis.Analysis(entries).units}
        assert len(rows) == len(slots) > 0
        for row, slot in zip(rows, slots):
            assert (row["arm"], row["phase"]) == (slot.arm, slot.phase)
            assert (int(row["unit"]), float(row["seconds"])) == (slot.unit, slot.seconds)
            if row["metric"] == "cpu_seconds_per_unit":
                assert float(row["value"]) == slot.cpu_seconds / slot.units
            assert row["state"] == states[slot.unit]
            seen.add(row["state"])
    assert seen >= {"kept", "set-aside"}


def test_bmf_is_latency_of_both_arms_and_the_ratio_with_its_interval():
    assert json.loads(exported("improvement", "bmf")) == {
        "grouping:per-frame": {"latency": {"value": pytest.approx(7555.2545)}},
        "grouping:grouped": {"latency": {"value": pytest.approx(6106.25975)}},
        "grouping: B/A": {
            "ratio": {
                "value": pytest.approx(0.80912989),
                "lower_value": pytest.approx(0.80672231),
                "upper_value": pytest.approx(0.81176101),
            }
        },
    }
    assert json.loads(exported("early", "bmf")).keys() == json.loads(exported("improvement", "bmf")).keys()


def test_a_metric_that_is_no_time_keeps_its_name():
    entries = records.read(RECORDS / "improvement.jsonl")
    entries[0].scenario["scenario"]["metric"] = "peak_rss_bytes"
    found = json.loads(exports.text(entries, "made", "bmf"))
    assert found["grouping:per-frame"] == {"peak_rss_bytes": {"value": 61000000.0}}
    found = json.loads(exports.text(entries, "made", "google-benchmark"))
    assert found["benchmarks"][0]["peak_rss_bytes"] == 61000000.0


def test_google_benchmark_has_a_repetition_for_every_kept_unit_and_is_read_back(tmp_path):
    text = exported("improvement", "google-benchmark")
    real = json.loads((DATA / "google-benchmark.json").read_text())
    found = json.loads(text)
    repetition = next(one for one in real["benchmarks"] if one["run_type"] == "iteration")
    assert found["benchmarks"][0].keys() == repetition.keys()
    assert found["context"].keys() <= real["context"].keys()
    assert [one["repetition_index"] for one in found["benchmarks"]] == 2 * list(range(8))
    side = results.read(made(tmp_path, text))
    assert {name: result.inner for name, result in side.results.items()} == {
        "grouping:per-frame": 8,
        "grouping:grouped": 8,
    }
    cpu = [one["cpu_time"] for one in found["benchmarks"][8:]]
    assert np.median(cpu) == pytest.approx(
        json.loads(exported("improvement", "bmf"))["grouping:grouped"]["latency"]["value"]
    )


@pytest.mark.parametrize("form", ["bmf", "google-benchmark"])
@pytest.mark.parametrize("name", ["wrong-result", "nothing", "unfit"])
def test_times_that_do_not_count_are_exported_as_csv_only(name, form):
    path = RECORDS / f"{name}.jsonl"
    done = call("export", path, "--format", form)
    (reason,) = re.findall(r"found (.*); --format csv exports everything\n$", done.stderr)
    assert done.stderr == (
        f"harness: {path}: expected a comparison whose times count, found {reason}; --format csv exports everything\n"
    )
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason.split(":")[0] == ("wrong-result" if name == "wrong-result" else "unfit")
    assert exported(name, "csv").startswith("run,scenario,unit,")


def test_errors_of_export_about_the_record(tmp_path):
    assert call("export", tmp_path / "none", "--format", "csv").stderr == (
        f"harness: {tmp_path}/none: expected a record (records.jsonl or its folder), found No such file or directory; "
        "check the path\n"
    )
    wrong = made(tmp_path, '{"kind":"end","state":"complete"}\n', "records.jsonl")
    assert call("export", wrong, "--format", "csv").stderr == (
        f"harness: {wrong}: line 1: expected a 'comparison' entry, found a 'end' entry; is this a record of harness?\n"
    )


# --------------------------------------------------------------------------------------------- pipelines


class Forge(http.server.BaseHTTPRequestHandler):
    """Keeps comments as GitHub and GitLab do, in pages; refuses without the right token."""

    def log_message(self, *_):
        pass

    def answer(self, code, data):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def refused(self):
        self.server.asked.append((self.command, self.path))
        secret = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN")
        if secret in ("Bearer secret", "secret"):
            return False
        self.answer(403, {})
        return True

    def do_GET(self):
        if not self.refused():
            page = int(re.search(r"[?&]page=(\d+)", self.path)[1])
            self.answer(200, self.server.comments[100 * (page - 1) : 100 * page])

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]

    def do_POST(self):
        if not self.refused():
            self.server.comments.append({"id": len(self.server.comments), "body": self.body()})
            self.answer(201, self.server.comments[-1])

    def replace(self):
        if not self.refused():
            number = int(self.path.rpartition("/")[2])
            self.server.comments[number]["body"] = self.body()
            self.answer(200, self.server.comments[number])

    do_PATCH = do_PUT = replace


@pytest.fixture
def forge():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forge)
    server.comments, server.asked = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def comment(forge, kind, path, **more):
    at = f"http://127.0.0.1:{forge.server_port}" if forge else ""
    variables = {
        "github": {"GITHUB_API_URL": at, "GITHUB_TOKEN": "secret", "GITHUB_REPOSITORY": "me/it", "NUMBER": "7"},
        "gitlab": {
            "GITLAB_TOKEN": "secret",
            "CI_API_V4_URL": at,
            "CI_PROJECT_ID": "me/it",
            "CI_MERGE_REQUEST_IID": "7",
        },
    }.get(kind, {})
    environment = {key: value for key, value in {**variables, **more}.items() if value is not None}
    command = [sys.executable, "-S", str(CI / "comment.py"), kind, str(path)]
    return subprocess.run(command, capture_output=True, text=True, env={"no_proxy": "127.0.0.1", **environment})


@pytest.mark.parametrize(
    ("kind", "listed", "replaced"),
    [
        ("github", "/repos/me/it/issues/7/comments", ("PATCH", "/repos/me/it/issues/comments/120")),
        ("gitlab", "/projects/me%2Fit/merge_requests/7/notes", ("PUT", "/projects/me%2Fit/merge_requests/7/notes/120")),
    ],
)
def test_the_comment_is_posted_once_and_then_replaced(tmp_path, forge, kind, listed, replaced):
    quoting = f"> {github.MARKER}"
    forge.comments += [{"id": i, "body": quoting if i == 3 else None if i == 4 else f"talk {i}"} for i in range(120)]
    first = made(tmp_path, f"{github.MARKER}\nfirst\n", "gate.md")
    assert comment(forge, kind, first).stdout == "comment 120 posted\n"
    second = made(tmp_path, f"{github.MARKER}\nsecond\n", "gate.md")
    assert comment(forge, kind, second).stdout == "comment 120 replaced\n"
    assert len(forge.comments) == 121
    assert forge.comments[120]["body"] == f"{github.MARKER}\nsecond\n"
    pages = [("GET", f"{listed}?per_page=100&page={page}") for page in (1, 2)]
    assert forge.asked == [*pages, ("POST", listed), *pages, replaced]


def test_a_long_page_is_cut_at_a_line(tmp_path, forge):
    path = made(tmp_path, github.MARKER + "\n" + "a line of text\n" * 9000)
    assert comment(forge, "github", path).returncode == 0
    body = forge.comments[0]["body"]
    assert len(body) < 65536
    assert body.endswith("a line of text\n\nThe rest is in gate.md among the artifacts.\n")


def test_errors_of_the_comment(tmp_path, forge):
    page = made(tmp_path, f"{github.MARKER}\n", "gate.md")

    def said(*words, **more):
        done = comment(*words, **more)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    assert said(forge, "github", page, NUMBER=None) == (
        "comment.py: NUMBER: expected a value in the environment, found none; see the head of comment.py\n"
    )
    address = f"http://127.0.0.1:{forge.server_port}/repos/me/it/issues/7/comments?per_page=100&page=1"
    assert said(forge, "github", page, GITHUB_TOKEN="wrong") == (
        f"comment.py: GET {address}: expected an answer, found 403 Forbidden\n"
    )
    assert said(forge, "github", tmp_path / "none.md") == (
        f"comment.py: {tmp_path}/none.md: expected the gate.md of a run, found No such file or directory; did the gate "
        "run?\n"
    )
    other = made(tmp_path, "something", "other.md")
    assert said(forge, "github", other) == (
        f"comment.py: {other}: expected '<!-- harness gate -->' at its beginning, found something else; give the "
        "gate.md of a run\n"
    )
    assert said(forge, "bitbucket", page) == (
        f"comment.py: arguments: expected github or gitlab and a file, found 'bitbucket {page}'\n"
    )


def steps():
    """The shell lines of the three templates that call the gate."""
    actions = yaml.safe_load((CI / "github-actions.yml").read_text())["jobs"]["gate"]["steps"]
    gitlab = yaml.safe_load((CI / "gitlab-ci.yml").read_text())["performance"]
    jenkins = re.search(r"returnStatus: true, script: '''\n(.*?)'''", (CI / "Jenkinsfile").read_text(), re.DOTALL)[1]
    return {
        "github": next(step["run"] for step in actions if step.get("name") == "gate"),
        "gitlab": gitlab["script"][-1],
        "jenkins": jenkins,
    }


@pytest.mark.parametrize("kind", ["github", "gitlab", "jenkins"])
def test_templates_gate_against_the_commit_branched_off(tmp_path, kind):
    """The line runs in a repository whose main branch went on; the base must be where the branch began."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    script = (
        "init -qb main|commit -q --allow-empty -m one|checkout -qb change|commit -q --allow-empty -m two|"
        "checkout -q main|commit -q --allow-empty -m three|update-ref refs/remotes/origin/main main|checkout -q change"
    )
    for words in script.split("|"):
        subprocess.run([*git, *words.split()], check=True)
    base = subprocess.run([*git, "rev-parse", "main~1"], check=True, capture_output=True, text=True).stdout.strip()
    program = tmp_path / "venv" / "bin" / "harness"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "WORKSPACE_TMP": str(tmp_path),
        "GITHUB_BASE_REF": "main",
        "CHANGE_TARGET": "main",
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
    }
    done = subprocess.run(
        ["bash", "-ec", steps()[kind]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    words = done.stdout.split()
    assert words[0] == "gate"
    assert words[words.index("--base") + 1] == base
    known = {name for option in cli.commands["gate"].params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_templates_fetch_history_and_keep_reports_and_comment():
    actions = yaml.safe_load((CI / "github-actions.yml").read_text())
    by_name = {step.get("name", step.get("uses")): step for step in actions["jobs"]["gate"]["steps"]}
    assert by_name["actions/checkout@v4"]["with"] == {"fetch-depth": 0}
    assert actions["permissions"]["pull-requests"] == "write"
    assert shlex.split(by_name["comment"]["run"])[1:3] == [".ci/comment.py", "github"]
    gitlab = yaml.safe_load((CI / "gitlab-ci.yml").read_text())["performance"]
    assert gitlab["variables"]["GIT_DEPTH"] == "0"
    assert gitlab["allow_failure"] == {"exit_codes": [3]}
    assert gitlab["artifacts"]["reports"]["junit"] == "reports/gate/*/junit.xml"
    assert "comment.py gitlab reports/gate/*/gate.md" in gitlab["after_script"][0]
    jenkins = (CI / "Jenkinsfile").read_text()
    assert jenkins.count("{") == jenkins.count("}")
    assert "comment.py github reports/gate/*/gate.md" in jenkins
    namespace = {}
    exec(compile((CI / "comment.py").read_text(), "comment.py", "exec"), {"__name__": "read"}, namespace)
    assert namespace["MARKER"] == github.MARKER
