"""What a comparison shows beside its metric: memory, set-up and counters of both arms, each with its interval."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness import analysis, records
from harness.report import tables
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
