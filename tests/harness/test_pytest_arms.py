"""A pytest-benchmark suite is measured as it is: its tests are paired by id, and what they assert still counts."""

import json
import sys

import pytest
from made import record
from test_revision import commit, git, write

from harness import benchmarks, protocol, records
from harness.errors import ConfigurationError, UnfitError
from harness.process import ArmProcess, VoidSlot

WORK = """\
def work(n):
    total = 0
    for i in range(n * {factor}):
        total += i % 7
    return n
"""
SUITE = """\
import pytest
from work import work

def test_work(benchmark):
    assert benchmark(work, 300) == 300

def test_without():
    assert work(1)
"""


@pytest.fixture
def project(tmp_path):
    """A Python program with benchmarks, at two revisions, the second with a planted slow loop."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    write(root, {"work.py": WORK.format(factor=1), "bench/test_work.py": SUITE, ".gitignore": "reports\n"})
    write(root, {"bench/test_old.py": "def test_gone(benchmark):\n    benchmark(int)\n"})
    commit(root)
    (root / "bench" / "test_old.py").unlink()
    write(root, {"work.py": WORK.format(factor=30)})
    write(root, {"bench/test_new.py": "def test_come(benchmark):\n    benchmark(int)\n"})
    commit(root)
    return root


def test_the_same_ids_of_two_revisions_are_compared_and_the_others_named(project, capsys):
    folder, summary = benchmarks.compare(
        "pytest:bench@HEAD~1",
        "pytest:bench",
        overrides={"schedule.blocks": 6, "schedule.pairs": 2, "schedule.warmup": 0, "schedule.seed": 1},
        command=["ab"],
        start=project,
        quiet=True,
    )
    assert [one["name"] for one in summary["benchmarks"]] == ["test_work.py::test_work"]
    assert (summary["only_a"], summary["only_b"]) == (["test_old.py::test_gone"], ["test_new.py::test_come"])
    [one] = summary["benchmarks"]
    assert one["verdict"]["word"] == "regression"
    assert summary["exit_code"] == 1
    assert json.loads((folder / "summary.json").read_text()) == summary
    record = records.read(project / "reports" / one["folder"])
    assert (project / "reports" / one["folder"] / "report.html").exists()
    assert record[0].arms["a"]["revision"]["commit"] == git(project, "rev-parse", "HEAD~1")
    slots = records.of(record, records.Slot)
    assert {slot.work for slot in slots} == {1}
    assert min(slot.units for slot in slots if slot.arm == "a") > 1  # fast functions are called many times
    told = benchmarks.terminal(summary, project / "reports")
    assert "test_work.py::test_work  B/A " in told
    assert "only in pytest:bench@HEAD~1: test_old.py::test_gone\n" in told
    assert told.endswith("1 benchmarks: 1 regression (claims of change hold together at 5 %)\n")


def test_an_interrupted_run_goes_on_with_what_is_missing(project):
    options = {"overrides": {"schedule.blocks": 1, "schedule.pairs": 1}, "command": ["ab"], "start": project}
    one = "bench/test_work.py::test_work"
    assert benchmarks._parse(f"pytest:{one}", project, project) == (one, None)
    write(project, {"bench/test_more.py": "def test_more(benchmark):\n    assert benchmark(int) == 0\n"})
    (project / "bench" / "test_new.py").unlink()
    folder, whole = benchmarks.compare("pytest:bench", "pytest:bench", quiet=True, **options)
    assert [one["name"] for one in whole["benchmarks"]] == ["test_more.py::test_more", "test_work.py::test_work"]
    started = json.loads((folder / "started.json").read_text())
    del started["test_work.py::test_work"]
    (folder / "started.json").write_text(json.dumps(started))
    again, summary = benchmarks.compare("pytest:bench", "pytest:bench", quiet=True, resume=folder, **options)
    assert again == folder
    folders = [{one["name"]: one["folder"] for one in found["benchmarks"]} for found in (whole, summary)]
    assert folders[0]["test_more.py::test_more"] == folders[1]["test_more.py::test_more"]
    assert folders[0]["test_work.py::test_work"] != folders[1]["test_work.py::test_work"]


def test_the_command_line_takes_suites_and_refuses_what_is_none(project, harness):
    write(project, {"bench/test_work.py": "def test_without():\n    pass\n"})
    (project / "bench" / "test_new.py").unlink()
    done = harness("ab", "pytest:bench", "pytest:bench", cwd=project)
    assert done.returncode == 4  # an empty selection measures nothing
    assert done.stderr == ("harness: nothing was measured: there is no test with a benchmark fixture in pytest:bench\n")
    done = harness("ab", "pytest:bench", "true x", cwd=project)
    assert (done.returncode, done.stderr) == (
        2,
        "harness: 'pytest:bench' is a suite of benchmarks, 'true x' is not; compare like with like\n",
    )
    for options in (
        ("-p", "n=1"),
        ("--append", "x", "--blocks", "1"),
        ("--anytime",),
        ("--outputs", "out"),
        ("--cwd", "nowhere"),
    ):
        assert harness("ab", "pytest:bench", "pytest:bench", *options, cwd=project).returncode == 2


@pytest.mark.parametrize(
    ("references", "kind", "sentence"),
    [
        (("pytest:", "pytest:bench"), ConfigurationError, "pytest:: expected pytest:PATH or pytest:PATH@revision"),
        (("pytest:nowhere", "pytest:bench"), ConfigurationError, "pytest:nowhere: expected a file or folder of tests"),
        (("pytest:bench@mian", "pytest:bench"), ConfigurationError, "'pytest:bench@mian': expected a git revision"),
        (
            ("pytest:broken.py", "pytest:bench"),
            UnfitError,
            "nothing was measured: pytest could not collect",
        ),
    ],
)
def test_a_suite_that_cannot_be_is_a_sentence(project, references, kind, sentence):
    write(project, {"broken.py": "import nothing_of_that_name\n"})
    with pytest.raises(kind) as caught:
        benchmarks.compare(*references, overrides={}, command=[], start=project, quiet=True)
    assert str(caught.value).startswith(sentence)


# ------------------------------------------------------------------------------------------- one benchmark

ONE = """\
import pytest
state = []

def test_pedantic(benchmark):
    made = []
    def setup():
        made.append(1)
        return ([3, 1, 2],), {"reverse": True}
    def target(data, reverse):
        assert data == [3, 1, 2]
        data.sort(reverse=reverse)
        return data
    assert benchmark.pedantic(target, setup=setup, rounds=2) == [3, 2, 1]
    assert len(made) == 2 + 4  # once and once again in set-up, then one for each iteration

def test_random(benchmark):
    benchmark(lambda: state.append(0) or len(state))

def test_wrong(benchmark):
    assert benchmark(sum, [1, 2]) == 4

def test_raises(benchmark):
    benchmark(int, "x")

@pytest.mark.skip
def test_skipped(benchmark):
    benchmark(int)

def test_none():
    print("no benchmark here")

def test_statistics(benchmark):
    benchmark.extra_info["a"] = 1
    benchmark(int)
    assert 0 < benchmark.stats.stats.mean < 1
"""


@pytest.fixture
def serve(tmp_path):
    """Run one test of ONE as an arm, with four iterations; the answers after the header, closing included."""

    def run(name, **files):
        write(tmp_path, {"test_one.py": ONE, "pytest.ini": "[pytest]\naddopts = --benchmark-disable\n", **files})
        words = [sys.executable, "-P", str(benchmarks.PROGRAM), "--set", f"node=test_one.py::{name}"]
        with ArmProcess(words, cwd=tmp_path, environment={}, speaks_protocol=True) as process:
            process.header(60)
            commands = [protocol.Setup(), *[protocol.Iterate("warmup")] * 2, *[protocol.Iterate("steady")] * 2]
            answers = [process.ask(command, 60)[0] for command in [*commands, protocol.DescribeOutput()]]
            process.close(60)
        return answers

    return run


def test_a_pedantic_benchmark_gets_fresh_arguments_every_time(serve):
    answers = serve("test_pedantic")
    assert [one.units for one in answers[1:5]] == [1] * 4
    assert set(answers[5].digests) == {"values", "shape"}


def test_a_result_that_differs_from_call_to_call_is_not_compared(serve):
    assert serve("test_random")[5].digests == {}


def test_statistics_are_there_for_a_test_that_looks_at_them(serve):
    assert serve("test_statistics")[5].work == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_wrong", "test_one.py::test_wrong: call failed"),
        ("test_raises", "test_one.py::test_raises: call failed"),
        ("test_skipped", "test_one.py::test_skipped: skipped"),
        ("test_none", "test_one.py::test_none: expected a test that uses the benchmark fixture, found one that"),
    ],
)
def test_a_test_that_fails_or_measures_nothing_is_void(serve, name, said):
    with pytest.raises(VoidSlot) as caught:
        serve(name)
    assert (caught.value.reason, caught.value.exit_code) == ("exit", 1)
    assert f"it said: {said}" in caught.value.message


# ------------------------------------------------------------------------------------------- many at once


def suite(**ratios):
    return benchmarks.summarise({name: record([[r] for r in values]) for name, values in ratios.items()})


def test_a_regression_that_many_tests_produce_by_chance_is_none():
    slow = [0.2, 0.21, 0.22, 0.19, 0.2, 0.23]  # six blocks: p = 2/64, enough for one
    same = [0.01, -0.01, 0.02, -0.02, 0.001, -0.001]
    alone = suite(slow=slow)
    assert alone["benchmarks"][0]["verdict"]["word"] == "regression"
    assert alone["exit_code"] == 1
    together = suite(slow=slow, same=same)
    first = together["benchmarks"][0]
    assert (first["alone"], first["verdict"]["word"]) == ("regression", "inconclusive")
    assert first["p_adjusted"] == pytest.approx(2 * 2 / 64)
    assert "not among 2 benchmarks (p = 0.062 by Holm)" in first["verdict"]["reason"]
    assert together["exit_code"] == 3
    more = suite(slow=[*slow, 0.2, 0.24], same=same)  # eight blocks
    assert more["benchmarks"][0]["verdict"]["word"] == "regression"


def test_enough_blocks_are_planned_for_every_benchmark_to_be_seen():
    for many in (1, 2, 4, 20, 300):
        blocks = benchmarks._scenario("x", {}, many).schedule.blocks
        assert many * 2.0 ** (1 - blocks) < 0.05
        assert blocks >= 8
    assert benchmarks._scenario("x", {"schedule.blocks": 3}, 4).schedule.blocks == 3
