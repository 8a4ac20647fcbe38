"""Values of real processes: `harness accuracy`, and the policy 'statistical', under which a worse result is no win."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import made
import numpy as np
import pytest

from harness import accuracy, analysis, comparison, records, report, schedule
from harness.errors import ConfigurationError
from harness.exchange import exports
from harness.report import tables

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = ROOT / "tests" / "arms" / "scripted.py"
SCENARIO = f"""\
# Is B faster, and as right?
[scenario]
name = "valued"
question = "Is B faster, and as right?"
workload = ["python", "{SCRIPTED}"]
metric = "seconds"
fingerprint = "statistical"
timeout = 20.0

[parameters]
rows = 400

[arms.old]
writes = "map"
[arms.new]
writes = "map"
[arms.bound]
[arms.bound.run]
kind = "ceiling"

[schedule]
blocks = 6
pairs = 1
warmup = 1
seed = 11
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "valued.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(**parameters):
    return "".join(f",{key}={json.dumps(value)}" for key, value in parameters.items())


def compare(a="", b="", values_alone=False, resume=None, **overrides):
    """Compare valued:old<a> with valued:new<b>; the folder, entries and summary."""
    folder = comparison.compare(
        f"valued:old{a}",
        f"valued:new{b}",
        parameters={},
        overrides={key.replace("__", "."): value for key, value in overrides.items()},
        command=["accuracy" if values_alone else "ab", "valued:old", "valued:new"],
        quiet=True,
        resume=resume,
        values_alone=values_alone,
    )
    entries = records.read(folder)
    return folder, entries, analysis.summarise(entries)


def refusal(*arguments, **more):
    with pytest.raises(ConfigurationError) as error:
        compare(*arguments, **more)
    return str(error.value)


MODEL = {"writes": "model", "seed": 3}

# ------------------------------------------------------------------------------------------------ values alone


@pytest.mark.parametrize(
    ("shift", "word", "code"), [(0.1, "indistinguishable", 0), (1.5, "different", 1), (0.7, "undecided", 3)]
)
def test_the_command_ends_as_the_values_say(project, harness, shift, word, code):
    done = harness("accuracy", "valued:old", f"valued:new,shift={shift}", "--quiet", cwd=project)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(f"{word}: at 25 contributors a voxel ")
    assert f"visible at {25 / shift**2:.4g} contributors a voxel" in done.stdout


def test_options_of_the_command_reach_the_verdict(project, harness):
    done = harness(
        *("accuracy", "valued:old", "valued:new,shift=0.25", "--exposure", 400, "--tolerance", 0.02, "--json"),
        cwd=project,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["verdict"]["word"]) == (1, 1, "different")
    assert (found["accuracy"]["exposure"], found["accuracy"]["tolerance"]) == (400.0, 0.02)
    assert found["accuracy"]["shift"]["median"] == pytest.approx(1.0)
    assert found["command"][:2] == ["harness", "accuracy"]
    assert set(found["accuracy"]["seconds"]) == {"a", "b"}
    assert all(seconds > 0 for seconds in found["accuracy"]["seconds"].values())


def test_pages_are_made_from_the_record_without_the_files(project):
    folder, entries, summary = compare(b=settings(shift=0.3), values_alone=True)
    report.write(folder, entries)
    pages = {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith(("report", "summary"))}
    assert len(pages) == 3
    assert sorted(path.name for path in (folder / "values").iterdir()) == ["0-a.npz", "0-b.npz"]
    kept = records.of(entries, records.Accuracy)[0].files
    for arm in "ab":
        with np.load(folder / kept[arm]["path"]) as file:
            assert accuracy.digest(dict(file)) == kept[arm]["digest"]
    shutil.rmtree(folder / "values")
    report.write(folder, records.read(folder))
    assert {name: (folder / name).read_bytes() for name in pages} == pages
    assert summary["accuracy"]["pull"]["median"] == pytest.approx(0.3)


def test_large_values_leave_their_digest(project, monkeypatch):
    monkeypatch.setattr("harness.values.LARGEST", 100)
    folder, entries, summary = compare(values_alone=True)
    kept = records.of(entries, records.Accuracy)[0].files
    assert [kept[arm]["path"] for arm in "ab"] == [None, None]
    assert kept["a"]["digest"] == kept["b"]["digest"]
    assert kept["a"]["bytes"] > 100
    assert list((folder / "values").iterdir()) == []
    assert summary["verdict"]["word"] == "indistinguishable"


def test_each_seed_is_a_launch_of_both_arms_in_the_coins_order(project):
    _, entries, summary = compare(settings(**MODEL), settings(**MODEL, shift=0.2), True, accuracy__seeds=6)
    launches = records.of(entries, records.Launch)
    order = ["".join(one.arm for one in launches if one.unit == unit).upper() for unit in range(6)]
    assert order == [schedule.coin(11, unit, "launch") for unit in range(6)]
    assert set(order) == {"AB", "BA"}
    for one in launches:
        assert one.header["parameters"]["seed"] == 3 + one.unit
    found = summary["accuracy"]
    assert [seed["seed"] for seed in found["per_seed"]] == [3, 4, 5, 6, 7, 8]
    assert (found["word"], summary["exit_code"], found["metric"]) == ("different", 1, "auc")
    assert found["difference"]["method"] == "signed-rank"
    assert found["changed"] == sum(seed["changed"] for seed in found["per_seed"]) > 0
    assert {entry.phase for entry in records.of(entries, records.Slot)} == {"warmup"}


def test_one_seed_asks_for_more(project):
    _, _, summary = compare(settings(**MODEL), settings(**MODEL), True)
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("undecided", 3)
    assert summary["accuracy"]["seeds_needed"] == 6


def test_an_interrupted_comparison_of_seeds_goes_on_with_the_next(project):
    folder, entries, whole = compare(settings(**MODEL), settings(**MODEL), True, accuracy__seeds=3)
    path = folder / records.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    second = next(i for i, entry in enumerate(entries) if isinstance(entry, records.Unit) and entry.unit == 1)
    path.write_bytes(b"".join(lines[:second]))  # the second unit has values, but was not closed
    _, entries, summary = compare(settings(**MODEL), settings(**MODEL), True, folder, accuracy__seeds=3)
    for one in (whole, summary):
        one["accuracy"].pop("seconds")
    assert summary["accuracy"] == whole["accuracy"]
    assert [one.unit for one in records.of(entries, records.Accuracy)] == [0, 1, 2]
    told = refusal(settings(**MODEL), settings(**MODEL), False, folder, accuracy__seeds=3)
    assert told == f"{folder}: it is a record of harness accuracy; resume it with that command"


def test_an_arm_that_dies_before_its_values_leaves_nothing_to_judge(project):
    _, _, summary = compare(b=settings(does="exit"), values_alone=True)
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("unfit", 4)
    assert summary["verdict"]["reason"] == "no values were taken: 0 void units in A, 2 in B"


@pytest.mark.parametrize(
    ("a", "b", "more", "told"),
    [
        (
            {},
            {"writes": "none"},
            {},
            "workload 'scripted': expected a workload that can write values, found one that cannot",
        ),
        (
            {},
            {"writes": "broken"},
            {},
            "arm 'new', values: expected the arrays key, value, variance, weight, found no 'weight'; "
            "write it beside the others",
        ),
        (
            {},
            {"writes": "model"},
            {},
            "arms 'old' and 'new', values: expected two of one kind, found a map and a model",
        ),
        (
            {},
            {},
            {"accuracy__seeds": 2},
            "arm 'old', values: expected scores of a model for each seed, found a map; leave the number of seeds out",
        ),
        (
            MODEL,
            {**MODEL, "writes": "other"},
            {"accuracy__seeds": 2},
            "arm 'new', values: expected seed 3, found seed 4; write the parameter 'seed' as 'seed'",
        ),
        (
            {},
            {},
            {"accuracy__metric": "f1"},
            "scenarios/valued.toml: accuracy.metric: expected 'auc', 'accuracy' or 'log_loss', found 'f1'",
        ),
        (
            {},
            {},
            {"accuracy__exposure": 0},
            "scenarios/valued.toml: accuracy.exposure: expected a number of contributors above 0, found 0",
        ),
    ],
)
def test_what_cannot_be_compared_is_told_in_one_sentence_and_nothing_is_kept(project, a, b, more, told):
    assert refusal(settings(**a), settings(**b), True, **more) == told
    assert list(project.glob("reports/valued/*")) == []


def test_a_timed_comparison_ends_with_the_same_sentence(project):
    assert refusal(b=settings(writes="broken")) == (
        "arm 'new', values: expected the arrays key, value, variance, weight, found no 'weight'; "
        "write it beside the others"
    )
    assert list(project.glob("reports/valued/*")) == []


def test_commands_have_no_values(project, harness):
    done = harness("accuracy", "true", "true", cwd=project)
    assert (done.returncode, done.stderr) == (
        2,
        "harness: harness accuracy: expected arms that speak the worker protocol, found a command; "
        "only those can write values\n",
    )
    done = harness("ab", "true", "true", "-s", "scenario.fingerprint=statistical", cwd=project)
    assert (done.returncode, done.stderr) == (
        2,
        "harness: scenario.fingerprint 'statistical': expected arms that speak the worker protocol, found a command; "
        "only those can write values\n",
    )


def test_memory_is_not_measured_where_values_are_written(project):
    assert refusal(scenario__metric="peak_rss_bytes") == (
        "scenarios/valued.toml: scenario.metric: expected another one than 'peak_rss_bytes' with fingerprint "
        "'statistical', found both; writing values takes memory in the arm; compare them by harness accuracy"
    )


STORED = ROOT / "tests" / "data" / "records" / "indistinguishable.jsonl"


@pytest.mark.parametrize("form", ["bmf", "google-benchmark"])
def test_values_are_no_times_of_another_tool(form):
    with pytest.raises(ConfigurationError) as error:
        exports.text(records.read(STORED), "run", form)
    assert str(error.value) == (
        "run: expected a comparison of times, found one of values; --format csv exports everything"
    )
    assert "warmup" in exports.text(records.read(STORED), "run", "csv")


def test_a_comparison_of_values_stands_in_the_index_beside_those_of_times(tmp_path):
    for name in ("indistinguishable", "improvement"):
        (tmp_path / name).mkdir()
        shutil.copy(STORED.with_name(f"{name}.jsonl"), tmp_path / name / records.NAME)
    page = report.write_index(tmp_path).read_text()
    assert "indistinguishable" in page
    assert "improvement" in page


# ------------------------------------------------------------------------------- the policy 'statistical'

FAST = {"seconds": 0.005}
RESIDENT, PROCESS = {}, {"schedule__mode": "process", "schedule__pairs": 6}


@pytest.mark.parametrize(
    ("mode", "b", "word", "code"),
    [
        (RESIDENT, {"shift": 0.1}, "improvement", 0),
        (RESIDENT, {"shift": 1.5}, "wrong-result", 1),
        (RESIDENT, {"shift": 0.7}, "inconclusive", 3),
        (RESIDENT, {"writes": "missing", "shift": 0.05}, "wrong-result", 1),
        (PROCESS, {"shift": 0.1}, "improvement", 0),
        (PROCESS, {"shift": 1.5}, "wrong-result", 1),
    ],
)
def test_a_faster_arm_wins_only_with_the_same_values(project, mode, b, word, code):
    _, entries, summary = compare(b=settings(**FAST, **b), **mode)
    assert (summary["verdict"]["word"], summary["exit_code"]) == (word, code)
    assert len(records.of(entries, records.Accuracy)) == 1
    if word == "wrong-result":
        assert summary["verdict"]["reason"].startswith("the values of B 'new' differ from those of A 'old': ")
        assert (summary["fingerprints"]["agree"], entries[-1].state) == (False, "stopped")
        assert not any(one.when == "rerun" for one in records.of(entries, records.Fingerprint))
    if word == "inconclusive":
        assert tables.outputs(summary) == "undecided (policy statistical)"
        assert summary["verdict"]["reason"].startswith("whether the values agree is undecided: at 25 contributors")
        assert "(it would be improvement: B/A = 0.5000" in summary["verdict"]["reason"]


def test_values_are_taken_after_the_last_timed_iteration_of_the_first_block(project):
    _, entries, _ = compare()
    place = next(i for i, entry in enumerate(entries) if isinstance(entry, records.Accuracy))
    assert entries[place].unit == 0
    own = [entry for entry in entries[place:] if isinstance(entry, records.Slot) and entry.unit == 0]
    assert own == []
    assert sum(entry.phase == "steady" for entry in records.of(entries, records.Slot)) == 12


def test_a_slower_arm_with_undecided_values_is_inconclusive_too(project):
    _, _, summary = compare(b=settings(seconds=0.02, shift=0.7))
    assert summary["verdict"]["word"] == "inconclusive"
    assert "(it would be regression" in summary["verdict"]["reason"]


def test_a_worse_and_faster_model_is_a_wrong_result_and_never_an_improvement(project):
    _, entries, summary = compare(settings(**MODEL), settings(**MODEL, **FAST, shift=0.3), accuracy__seeds=6)
    assert summary["verdict"]["word"] == "wrong-result"
    assert summary["verdict"]["reason"].endswith("all of it beyond ±0.005, B is worse")
    assert len(records.of(entries, records.Accuracy)) == 6  # every seed was waited for
    seeds = {one.unit: one.header["parameters"]["seed"] for one in records.of(entries, records.Launch)}
    assert seeds == {unit: 3 + unit for unit in range(6)}


def test_a_model_as_good_and_faster_is_an_improvement(project):
    _, _, summary = compare(settings(**MODEL), settings(**MODEL, **FAST), accuracy__seeds=6)
    assert (summary["verdict"]["word"], summary["accuracy"]["word"]) == ("improvement", "indistinguishable")


def test_fewer_seeds_than_an_interval_needs_leave_it_open(project):
    _, _, summary = compare(settings(**MODEL), settings(**MODEL, **FAST, shift=0.01), accuracy__seeds=1)
    assert summary["verdict"]["word"] == "inconclusive"
    assert "more seeds needed: 6" in summary["verdict"]["reason"]


def test_looks_wait_for_the_seeds():
    *entries, _ = made_values(0.1)
    entries[0].plan.update(fixed=False, units=40, cap=80)
    assert analysis.next_step(entries).reason == "decided"
    entries[0].plan["seeds"] = 9
    assert analysis.next_step(entries).go


def test_an_arm_that_differs_from_itself_is_wrong_although_its_values_agree(project):
    _, _, summary = compare(b=settings(does="off", at=1, launch=3, state=str(project / "launches")))
    assert summary["verdict"]["word"] == "wrong-result"
    assert "total sum" in summary["verdict"]["reason"]


def test_a_gate_that_accepts_other_outputs_accepts_other_values(project):
    _, _, summary = compare(b=settings(**FAST, shift=1.5), gate__accept="the old one was wrong")
    assert (summary["verdict"]["word"], summary["accuracy"]["word"]) == ("improvement", "different")


def made_values(shift, seconds=0.5):
    """The record of eight blocks at a ratio of `seconds`, in whose first block the values are shifted."""
    key = np.arange(100)
    arrays = {"key": key, "value": np.full(100, 10.0), "variance": np.full(100, 4.0), "weight": np.ones(100)}
    a, b = (
        accuracy.read(arrays | {"value": arrays["value"] + x, "contributors": key * 0 + 25}, "") for x in (0, 2 * shift)
    )
    entries = made.record([math.log(seconds)] * 8, scenario={"fingerprint": "statistical"})
    place = next(i for i, entry in enumerate(entries) if isinstance(entry, records.Unit))
    entries.insert(place, records.Accuracy(unit=0, reduced=accuracy.reduce(a, b)))
    return [*entries, records.End(state="complete")]


def test_in_a_gate_values_decide_as_alone():
    family = [made_values(1.5), made_values(0.7), made_values(0.1)]
    words = [one["verdict"]["word"] for one in analysis.summarise_family(family)]
    assert words == ["wrong-result", "inconclusive", "improvement"]


def test_a_comparison_that_never_took_values_decides_nothing():
    left = [entry for entry in made_values(0.1) if not isinstance(entry, records.Accuracy)]
    verdict = analysis.summarise(left)["verdict"]
    assert verdict["word"] == "inconclusive"
    assert verdict["reason"].startswith("the arms' values were not taken, so whether the results agree is not known")


def test_values_of_a_unit_that_was_not_completed_do_not_count():
    entries = made_values(1.5)
    place = next(i for i, entry in enumerate(entries) if isinstance(entry, records.Unit))
    entries[place] = records.Unit(unit=0, state="void")
    assert analysis.summarise(entries)["accuracy"] is None


# ------------------------------------------------------------------------------------------------------ the pipe


@pytest.mark.parametrize("command", [["list"], ["show", "valued"]])
def test_a_reader_that_has_left_is_no_error(project, command):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *command],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
