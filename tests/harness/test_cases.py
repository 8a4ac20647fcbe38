"""Cases that must come out right, once each through the command; their rates over many seeds are in test_stats."""

import json
import math
import sys
from pathlib import Path

import pytest

from harness import records

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = ROOT / "tests" / "arms" / "scripted.py"

SCENARIO = f"""\
# Is B faster?
[scenario]
name = "case"
question = "Is B faster?"
workload = ["python", "{SCRIPTED}"]
metric = "seconds"

[arms.a]
[arms.b]

[schedule]
warmup = 0
seed = 5
"""


@pytest.fixture
def ab(tmp_path, harness):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "case.toml").write_text(SCENARIO)

    def run(a, b, *options):
        done = harness("ab", "case:a" + a, "case:b" + b, "--json", *options, cwd=tmp_path)
        summary = json.loads(done.stdout)
        assert summary["exit_code"] == done.returncode
        return summary, records.read(next((tmp_path / "reports" / "case").iterdir()))

    return run


def test_a_penalty_of_every_first_slot_is_no_difference(ab, tmp_path):
    """Two identical arms, 30 ms more in the first slot of every pair, 20 pairs of 200 ms."""
    same = f",seconds=0.2,noise=0.002,first=0.03,state={json.dumps(str(tmp_path / 'slots'))}"
    summary, entries = ab(same, same, "-s", "schedule.mode=process", "--pairs", 20)
    assert summary["verdict"]["word"] not in ("regression", "improvement")
    slots = [slot for slot in records.of(entries, records.Slot) if slot.phase == "steady"]
    penalty = [slot.seconds for slot in slots if slot.position == 0]
    plain = [slot.seconds for slot in slots if slot.position == 1]
    assert min(penalty) > max(plain)  # the penalty was really there


def test_a_ratio_is_given_with_its_interval_never_with_a_standard_deviation(ab, tmp_path):
    """20 ms and 18 ms with a spread of 25 %, 400 pairs: about 0.90, and an interval of a few percent."""
    spread = f",noise=0.25,state={json.dumps(str(tmp_path / 'launches'))}"
    summary, _ = ab(f",seconds=0.020{spread}", f",seconds=0.018{spread}", "--blocks", 10, "--pairs", 40)
    ratio = summary["ratio"]
    assert ratio["estimate"] == pytest.approx(0.9, abs=0.06)
    assert 0.01 < math.log(ratio["high"] / ratio["low"]) / 2 < 0.1
    assert summary["verdict"]["word"] == "improvement"
    folder = next((tmp_path / "reports" / "case").iterdir())
    assert "±" not in (folder / "report.md").read_text()


def test_pairs_inside_a_launch_are_repeats_and_not_units(ab, tmp_path):
    """A launch draws one level (5 %) and repeats it to 0.1 %: 60 pairs in 6 blocks are 6 units."""
    drawn = f",level=0.05,noise=0.001,state={json.dumps(str(tmp_path / 'launches'))}"
    summary, entries = ab(drawn, drawn, "--blocks", 6)
    assert summary["units"]["kept"] == 6
    assert summary["verdict"]["word"] in ("inconclusive", "slower", "not-worse", "equivalent")
    # All pairs of a block share its constant, so the interval is as wide as the levels are.
    assert math.log(summary["ratio"]["high"] / summary["ratio"]["low"]) > 0.02
    assert summary["variance"]["block"] > 10 * summary["variance"]["pair"]
    assert len([slot for slot in records.of(entries, records.Slot) if slot.phase == "steady"]) == 120


@pytest.mark.parametrize("pairs", [3, 5])
def test_too_few_pairs_never_give_an_interval(ab, pairs):
    summary, _ = ab("", ",seconds=0.1", "-s", "schedule.mode=process", "--pairs", pairs)
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("inconclusive", 3)
    assert "6 units are needed" in summary["verdict"]["reason"]


def test_right_keys_with_totals_22_percent_off_are_wrong(ab):
    summary, _ = ab("", ",does=off,at=3,every=5", "--blocks", 6, "--pairs", 4, "-s", "scenario.fingerprint=keys")
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("wrong-result", 1)


@pytest.mark.parametrize("arm", ["a", "b"])
def test_the_majority_is_the_reference_even_when_the_first_run_is_the_bad_one(ab, tmp_path, arm):
    bad = f",does=wrong,launch=0,state={json.dumps(str(tmp_path / 'launches'))}"
    arms = {"a": "", "b": "", arm: bad}
    summary, _ = ab(arms["a"], arms["b"], "--blocks", 6, "--pairs", 2, "--keep-going")
    assert summary["verdict"]["word"] == "wrong-result"
    assert summary["fingerprints"]["odd"] == arm
    assert summary["fingerprints"]["a"]["digests"] == summary["fingerprints"]["b"]["digests"]
    assert summary["units"]["wrong"] == 1
    assert summary["ratio"]["estimate"] == pytest.approx(1.0)


def test_an_empty_output_in_one_of_twenty_runs_is_wrong_and_its_time_does_not_count(tmp_path, harness):
    command = f"{sys.executable} {ROOT / 'tests' / 'arms' / 'command.py'} --seconds 0.02 --out out.txt"
    done = harness(
        *("ab", command, f"{command} --does empty --every 20 --state runs --at 3", "--pairs", 8, "--json"),
        *("-s", "scenario.outputs=['out.txt']", "--keep-going"),
        cwd=tmp_path,
    )
    summary = json.loads(done.stdout)
    assert (summary["verdict"]["word"], done.returncode) == ("wrong-result", 1)
    assert summary["units"]["wrong"] == 1
    assert summary["units"]["kept"] == 7
