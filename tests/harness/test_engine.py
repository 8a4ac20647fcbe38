"""Schedules, stopping and metrics through the command: each option is seen where it changes something."""

import json
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import made
import pytest

from harness import analysis, comparison, records, runner, schedule
from harness.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = ROOT / "tests" / "arms" / "scripted.py"

SCENARIO = f"""\
# Is B faster?
[scenario]
name = "engine"
question = "Is B faster?"
workload = ["python", "{SCRIPTED}"]
metric = "seconds"

[arms.a]
[arms.b]

[schedule]
warmup = 0
seed = 7
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "engine.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ab(b="", a="", more=None, resume=None, **overrides):
    """Compare engine:a<a> with engine:b<b>; folder, entries and summary."""
    folder = comparison.compare(
        "engine:a" + a,
        "engine:b" + b,
        parameters={},
        overrides={key.replace("__", "."): value for key, value in overrides.items()},
        command=["ab"],
        quiet=True,
        more=more,
        resume=resume,
    )
    entries = records.read(folder)
    return folder, entries, analysis.summarise(entries)


def steady(entries, unit):
    return [s for s in records.of(entries, records.Slot) if s.unit == unit and s.phase == "steady"]


# -------------------------------------------------------------------------------------------------- stopping


def test_without_a_number_of_blocks_it_stops_at_the_first_look_that_decides(project):
    _, entries, summary = ab(b=",seconds=0.02", schedule__pairs=1)
    assert entries[0].plan["method"] == "looks"
    assert summary["units"]["run"] == 8
    assert summary["verdict"]["word"] == "regression"
    assert summary["level"] == pytest.approx(0.9844, abs=1e-4)


def test_a_look_that_does_not_decide_is_followed_by_the_next(project):
    """Levels of 2 % between launches: nothing is settled at 8 blocks against a margin of 2 %."""
    drawn = f",level=0.03,state={json.dumps(str(project / 'launches'))}"
    _, _, summary = ab(a=drawn, b=drawn, schedule__pairs=1)
    assert summary["units"]["run"] in (12, 16, 20, 28, 40)


def test_a_fixed_number_of_blocks_takes_the_plain_interval(project):
    _, entries, summary = ab(b=",seconds=0.02", schedule__blocks=7, schedule__pairs=1)
    assert entries[0].plan["method"] == "fixed"
    assert summary["units"]["run"] == 7
    assert summary["level"] == 0.95


def test_a_time_budget_stops_and_says_so(project):
    drawn = f",level=0.05,state={json.dumps(str(project / 'launches'))}"
    _, entries, summary = ab(a=drawn, b=drawn, schedule__pairs=1, schedule__time_budget=0.5)
    assert summary["units"]["run"] < 40
    assert entries[-1].message == "time"


def test_anytime_may_stop_after_any_block(project):
    _, entries, summary = ab(b=",seconds=0.02", schedule__pairs=1, schedule__anytime=True)
    assert entries[0].plan["method"] == "anytime"
    assert summary["units"]["run"] == 8  # all eight won: the least that the martingale can decide on
    assert summary["verdict"]["word"] == "regression"


def test_a_finished_comparison_is_extended_and_judged_by_the_test_that_allows_it(project):
    folder, _, before = ab(schedule__blocks=6, schedule__pairs=1)
    again, entries, after = ab(more=4, resume=folder)
    assert again == folder
    assert (before["units"]["run"], after["units"]["run"]) == (6, 8)  # decided at eight
    assert after["method"] == "anytime"
    assert len(records.of(entries, records.Comparison)) == 1
    letters = "".join(slot.arm.upper() for slot in steady(entries, 7))
    assert letters == "".join(schedule.plan_unit(7, 7, "resident", 1).pairs)


def test_an_unfinished_comparison_is_not_extended(project):
    folder, _, _ = ab(schedule__blocks=2, schedule__pairs=1)
    path = folder / "records.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ConfigurationError, match="the comparison is not finished; go on with --resume first"):
        ab(more=4, resume=folder)


# ----------------------------------------------------------------------------------------------------- order


def test_quads_run_as_ABBA_or_BAAB(project):
    _, entries, _ = ab(schedule__blocks=8, schedule__pairs=4, schedule__quads=True)
    seen = set()
    for unit in range(8):
        letters = "".join(slot.arm.upper() for slot in steady(entries, unit))
        seen |= {letters[:4], letters[4:]}
    assert seen == {"ABBA", "BAAB"}


def test_quads_of_processes_are_the_units(project):
    _, entries, summary = ab(schedule__mode="process", schedule__pairs=6, schedule__quads=True)
    for unit in range(6):
        assert "".join(slot.arm.upper() for slot in steady(entries, unit)) in ("ABBA", "BAAB")
    assert summary["units"]["kept"] == 6


def test_every_second_unit_of_a_null_control_runs_the_base_twice(project):
    _, entries, summary = ab(b=",seconds=0.02", schedule__blocks=6, schedule__pairs=2, schedule__control=True)
    for launch in records.of(entries, records.Launch):
        expected = 0.02 if launch.arm == "b" and not schedule.is_control(entries[0].plan, launch.unit) else 0.01
        assert launch.header["parameters"]["seconds"] == expected
    assert summary["units"]["kept"] == 6
    assert summary["ratio"]["estimate"] == pytest.approx(2.0)
    assert summary["control"]["units"] >= 5


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a duet needs two cores")
def test_a_duet_runs_both_at_once_and_swaps_their_cores(project):
    (project / "where.py").write_text(
        "import os, time\n"
        "from harness import worker\n"
        "class Where(worker.Workload):\n"
        "    name = 'where'\n"
        "    def iterate(self):\n"
        "        begin = time.monotonic()\n"
        "        time.sleep(0.03)\n"
        "        core = min(os.sched_getaffinity(0))\n"
        "        return {'work': 1, 'counters': {'core': core, 'begin': begin, 'end': time.monotonic()}}\n"
        "    def fingerprint(self):\n"
        "        return {'work': 1}\n"
        "worker.serve(Where)\n"
    )
    path = project / "scenarios" / "engine.toml"
    path.write_text(SCENARIO.replace(str(SCRIPTED), str(project / "where.py")))
    _, entries, summary = ab(schedule__mode="duet", schedule__blocks=3, schedule__pairs=4)
    assert summary["mode"] == "duet"
    places = set()
    for unit in range(3):
        coins = schedule.plan_unit(7, unit, "duet", 4)
        slots = steady(entries, unit)
        for pair in range(4):
            both = {slot.arm: slot.counters for slot in slots if slot.pair == pair}
            assert both["a"]["begin"] < both["b"]["end"]
            assert both["b"]["begin"] < both["a"]["end"]
            assert both["a"]["core"] != both["b"]["core"]
            assert (both["a"]["core"] < both["b"]["core"]) == (coins.cores[pair] == "AB")
            places.add(both["a"]["core"])
    assert len(places) == 2


def test_a_pilot_chooses_the_pairs_of_later_blocks(project):
    """No spread between launches and much inside them: more pairs a launch pay."""
    noisy = f",noise=0.2,state={json.dumps(str(project / 'launches'))}"
    _, entries, _ = ab(a=noisy, b=noisy, schedule__blocks=6, schedule__pairs=3, schedule__pilot=4)
    counts = [len(steady(entries, unit)) // 2 for unit in range(6)]
    assert counts[:4] == [3, 3, 3, 3]
    assert counts[4] == counts[5] != 3


def test_a_pilot_finds_how_many_iterations_warm_an_arm_up(project):
    """An arm whose first six iterations of a launch are slow: blocks after the pilot warm up at least as long."""
    (project / "warms.py").write_text(
        "from harness import worker\n"
        "class Warms(worker.Workload):\n"
        "    name, clock, count = 'warms', 'scripted', 0\n"
        "    def iterate(self):\n"
        "        self.count += 1\n"
        "        seconds = 0.05 if self.count <= 6 else 0.01 + 1e-5 * (self.count % 3)\n"
        "        return {'work': 1, 'seconds': seconds, 'cpu_seconds': seconds}\n"
        "    def fingerprint(self):\n"
        "        return {'work': 1}\n"
        "worker.serve(Warms)\n"
    )
    path = project / "scenarios" / "engine.toml"
    path.write_text(SCENARIO.replace(str(SCRIPTED), str(project / "warms.py")))
    _, entries, _ = ab(schedule__blocks=6, schedule__pairs=30, schedule__pilot=4, schedule__warmup=1)
    slots = [slot for slot in records.of(entries, records.Slot) if slot.phase == "warmup"]
    warm = [sum((slot.unit, slot.arm) == one for slot in slots) for one in ((0, "a"), (0, "b"), (5, "a"), (5, "b"))]
    assert warm[:2] == [1, 1]
    assert warm[2] == warm[3] >= 6


# -------------------------------------------------------------------------------------------- position and modes


def test_a_penalty_of_first_slots_is_taken_out_and_the_interval_is_narrow(project):
    """30 ms on 200 ms in every first slot of 20 pairs: the position line shows it, the half-width is at most .015."""
    same = f",seconds=0.2,noise=0.004,first=0.03,state={json.dumps(str(project / 'slots'))}"
    _, _, summary = ab(a=same, b=same, schedule__mode="process", schedule__pairs=20)
    assert "position" in summary["adjusted"]
    assert (summary["ratio"]["high"] - summary["ratio"]["low"]) / 2 <= 0.015
    assert summary["order"]["position"]["p"] < 0.001
    assert summary["order"]["position"]["ratio"] == pytest.approx(1 / 1.15, abs=0.02) or summary["order"]["position"][
        "ratio"
    ] == pytest.approx(1.15, abs=0.02)


SETTLED_OR_OPEN = {"equivalent", "inconclusive", "not-worse", "slower"}


@pytest.mark.parametrize(("share", "words"), [(0.35, SETTLED_OR_OPEN), (0.7, {"regression", "slower"})])
def test_modes_are_counted_and_their_shares_shown(project, share, words):
    """Launches fall into a mode that is 15 % slower, 35 % of A's and 35 or 70 % of B's; 40 pairs of processes."""
    state = f",noise=0.004,slow_share={{}},state={json.dumps(str(project / 'launches'))}"
    _, _, summary = ab(a=state.format(0.35), b=state.format(share), schedule__mode="process", schedule__pairs=40)
    assert summary["modes"]["count"] == 2
    assert summary["modes"]["above"]["a"] == pytest.approx(0.35, abs=0.25)
    assert summary["modes"]["above"]["b"] == pytest.approx(share, abs=0.25)
    assert summary["verdict"]["word"] in words


# --------------------------------------------------------------------------------------------------- metrics


needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None and os.environ.get("CI") != "true", reason="valgrind is not installed"
)


@needs_valgrind
def test_instructions_are_counted_and_compared_without_an_interval(project):
    (project / "few.sh").write_text("i=0\nwhile [ $i -lt $1 ]; do i=$((i+1)); done\n")
    folder = comparison.compare(
        "sh few.sh 3000",
        "sh few.sh 6000",
        parameters={},
        overrides={"scenario.metric": "instructions"},
        command=["ab"],
        quiet=True,
    )
    summary = analysis.summarise(records.read(folder))
    assert summary["units"]["run"] == 3
    assert summary["verdict"]["word"] == "regression"
    assert summary["ratio"]["low"] is None
    assert 1.3 < summary["ratio"]["estimate"] < 2.2


def test_instructions_need_whole_processes(project):
    with pytest.raises(ConfigurationError, match=r"schedule\.mode: expected 'process' for metric 'instructions'"):
        ab(scenario__metric="instructions")


def test_peak_memory_of_two_commands_is_compared(project):
    program = "import sys; data = bytearray(int(sys.argv[1])); data[::4096] = b'x' * len(data[::4096])"
    (project / "take.py").write_text(program)
    folder = comparison.compare(
        f"{shutil.which('python3')} take.py 60000000",
        f"{shutil.which('python3')} take.py 120000000",
        parameters={},
        overrides={"scenario.metric": "peak_rss_bytes", "schedule.pairs": 6},
        command=["ab"],
        quiet=True,
    )
    summary = analysis.summarise(records.read(folder))
    assert summary["values"]["b"]["median"] - summary["values"]["a"]["median"] == pytest.approx(60e6, rel=0.1)


def test_the_page_cache_is_put_into_the_wanted_state_before_every_slot(project, monkeypatch):
    from harness import pagecache

    (project / "input.bin").write_bytes(bytes(1 << 20))
    asked = []
    prepare = pagecache.prepare
    monkeypatch.setattr(pagecache, "prepare", lambda mode, paths: asked.append(mode) or prepare(mode, paths))
    given = {"scenario__inputs": ["input.bin"], "schedule__pairs": 2, "schedule__mode": "process"}
    ab(scenario__page_cache="warm", **given)
    assert asked == ["warm"] * 4
    with pytest.raises(
        ConfigurationError, match=r"expected scenario\.inputs to say which files it is about, found none"
    ):
        ab(scenario__page_cache="warm")


# -------------------------------------------------------------------------------------------- other commands


def test_a_plan_says_units_and_time_or_refuses(project, harness):
    drawn = f",level=0.01,state={json.dumps(str(project / 'launches'))}"
    done = harness("plan", "engine:a" + drawn, "engine:b" + drawn, "--mde", "5%", "--json", "--pilot", 5, cwd=project)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["units"] >= 8
    refused = harness("plan", "engine:a", "engine:b", "--mde", "1%", cwd=project)
    assert refused.returncode == 3
    assert refused.stdout.startswith("refused: an effect of 1 % lies inside the margin of 2 %")


def test_a_duration_and_a_share_are_understood_or_refused(project, harness):
    refused = harness("ab", "engine:a", "engine:b", "--time-budget", "soon", cwd=project)
    assert refused.returncode == 2
    assert "expected a time above 0 such as 90s, 5m or 1h, found 'soon'" in refused.stderr
    refused = harness("plan", "engine:a", "engine:b", "--mde", "much", cwd=project)
    assert "expected a share above 0 such as 2% or 0.02, found 'much'" in refused.stderr


def test_appending_needs_to_know_how_many(project, harness):
    assert harness("ab", "engine:a", "engine:b", "--append", "x", cwd=project).stderr == (
        "harness: --append: expected --blocks or --pairs: how many more, found neither; add one\n"
    )


def test_the_doctor_names_findings_and_what_mends_them(harness, tmp_path):
    done = harness("doctor", "--no-trial", cwd=tmp_path)
    assert done.returncode == 0
    assert "clock step" in done.stdout
    as_json = json.loads(harness("doctor", "--no-trial", "--json", cwd=tmp_path).stdout)
    assert as_json["trial"] == []
    for finding in as_json["findings"]:
        assert finding["state"] in ("ok", "note", "harm", "unknown")
        assert finding["state"] == "ok" or (finding["effect"] and finding["mend"])


def test_the_trial_fails_where_nothing_below_ten_percent_is_seen():
    from harness.trial import Seen, told, usable

    assert usable([Seen("resident", "wall", 20, 0.2), Seen("resident", "CPU", 20, 0.03)])
    assert not usable([Seen("resident", "wall", 20, 0.2), Seen("resident", "CPU", 3, None)])
    assert "too few units counted" in told([Seen("resident", "CPU", 3, None)])[-1]


def test_the_trial_and_the_selftest_run_for_real(harness, tmp_path):
    """Verdicts depend on the machine, so only their form is asked: what was planted, and one of the two exits."""
    done = harness("selftest", "--blocks", 6, "--pairs", 2, "--quiet", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    lines = done.stdout.splitlines()
    assert [line[7:].split(":")[0] for line in lines] == ["10% slower", "nothing planted"]
    done = harness("doctor", "--blocks", 6, "--quiet", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    assert "visible here with 20 units" in done.stdout


@pytest.mark.parametrize("seed", range(40))
def test_a_unit_that_surely_follows_is_one_that_the_whole_record_asks_for(seed):
    """The short way to "another unit", against the analysis of the record, after every unit of a made comparison."""
    chance = random.Random(seed)
    method = chance.choice(["fixed", "fixed", "looks"])
    plan = {"method": method, "fixed": method == "fixed", "control": chance.random() < 0.2}
    entries = made.record([], units=8, pairs=1, plan=plan, limits={"foreign_cores": 0.5})
    counts, surely = {"complete": 0, "void": 0}, 0
    for number in range(20):
        stub = SimpleNamespace(
            plan=entries[0].plan,
            _counts=counts,
            resolved=SimpleNamespace(scenario=SimpleNamespace(gate=SimpleNamespace(alpha=0.05))),
        )
        go = analysis.next_step(entries).go
        if runner.Runner._surely_goes_on(stub):
            surely += 1
            assert go
        if not go:
            break
        if chance.random() < 0.4:
            new = made.void(number, chance.choice("ab") if seed % 2 else "b")
        else:
            work = 5.0 if chance.random() < 0.9 else 4.0
            new = made.unit(number, [0.01], foreign=chance.choice([0.1, 0.9]), work=work)
        entries += new
        for entry in new:
            runner.Runner._tally(stub, entry)
    assert (surely > 0) == (method == "fixed")
