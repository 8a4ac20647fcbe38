"""What compilers keep belongs to one arm, start-up is measured without it, nothing is written outside the project."""

import pytest
from measured import compare

from harness import records

#: an arm that "compiles" in its first iteration unless its cache has what it needs, and says what it found
ARM = """\
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from harness import worker

class Compiles(worker.Workload):
    name = "compiles"
    accepts = {{"weight": 1}}

    def environment(self):
        names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR", "DGLBACKEND")
        return {{name: os.environ.get(name) for name in names}}

    def iterate(self):
        kept = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "kernel"
        found = [path.read_text() for path in kept.parent.glob("*")]
        compiled = 0 if kept.exists() else 1
        if compiled:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(str(self.parameters["weight"]))
            time.sleep(0.05)
        foreign = sum(text != str(self.parameters["weight"]) for text in found)
        return {{"work": 1, "counters": {{"compiled": compiled, "foreign": foreign}}}}

    def fingerprint(self):
        return {{"work": 1}}

worker.serve(Compiles)
"""
SCENARIO = """\
# Is it faster?
[scenario]
name = "compiles"
question = "Is it faster?"
workload = ["python", "arm.py"]
[arms.one]
[arms.two]
weight = 2
[arms.own]
[arms.own.run]
env = { TORCHINDUCTOR_CACHE_DIR = "own" }
[schedule]
blocks = 2
pairs = 2
warmup = 1
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    return make_project(tmp_path, monkeypatch)


def make_project(tmp_path, monkeypatch):
    from pathlib import Path

    import harness

    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR", "DGLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "compiles.toml").write_text(SCENARIO)
    (tmp_path / "arm.py").write_text(ARM.format(root=str(Path(harness.__file__).parents[1])))
    return tmp_path


def run(project, a="compiles:one", b="compiles:two", **overrides):
    return compare(project, a, b, schedule__pairs=2, **overrides)


def counters(found, arm, name="compiled"):
    return [slot.counters[name] for slot in found.of(records.Slot, arm)]


def test_an_arm_finds_its_own_cache_again_and_never_the_others(project):
    found = run(project)
    assert counters(found, "a") == counters(found, "b") == [1, 0, 0, 0, 0, 0]
    assert counters(found, "a", "foreign") == counters(found, "b", "foreign") == [0] * 6
    assert counters(run(project), "a") == [0] * 6


def test_start_up_is_cold_in_every_launch_and_ends_with_the_first_iteration(project):
    found = run(project, scenario__metric="startup_seconds")
    assert counters(found, "a") == counters(found, "b") == [1, 0, 0] * 2
    slots = found.of(records.Slot, "b")
    started = [slot.startup_seconds for slot in slots]
    assert [value is not None for value in started] == [False, True, False] * 2
    for value, launch in zip([value for value in started if value], found.of(records.Launch, "b")):
        first = next(slot for slot in slots if slot.unit == launch.unit)
        assert value > launch.startup_seconds + first.seconds  # the compilation is part of it
        assert first.seconds > 0.05
    median = sum(value for value in started if value) / 2  # of two
    assert found.summary["values"]["b"]["median"] == pytest.approx(median)
    assert not list((project / ".harness" / "caches").rglob("kernel"))
    assert found.summary["verdict"]["word"] == "inconclusive"  # two blocks have one start each


def test_start_up_of_whole_processes(project):
    found = run(project, scenario__metric="startup_seconds", schedule__mode="process", schedule__warmup=0)
    assert counters(found, "a") == [1, 1]
    slot = found.of(records.Slot, "a")[0]
    assert slot.seconds + 0 < slot.startup_seconds < slot.process_seconds


def test_tools_write_below_the_project_unless_the_user_says_otherwise(project, monkeypatch):
    found = run(project, schedule__blocks=1)
    seen = {one.arm: one.header["environment"] for one in found.of(records.Launch)}
    assert seen["a"]["DGLBACKEND"] == "pytorch"
    assert seen["a"]["MPLCONFIGDIR"] == seen["b"]["MPLCONFIGDIR"] == str(project / ".harness" / "matplotlib")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert seen["a"][name].startswith(str(project / ".harness" / "caches"))
        assert seen["a"][name] != seen["b"][name]
        assert len(seen["a"][name]) == len(seen["b"][name])
    monkeypatch.setenv("DGLBACKEND", "tensorflow")
    monkeypatch.setenv("MPLCONFIGDIR", str(project / "mine"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(project / "kept"))
    found = run(project, b="compiles:own", schedule__blocks=1)
    seen = {one.arm: one.header["environment"] for one in found.of(records.Launch)}
    assert seen["a"]["DGLBACKEND"] == "tensorflow"
    assert seen["a"]["MPLCONFIGDIR"] == str(project / "mine")
    assert seen["a"]["TORCHINDUCTOR_CACHE_DIR"].startswith(str(project / "kept") + "/")
    assert seen["b"]["TORCHINDUCTOR_CACHE_DIR"] == "own"
    assert (project / "own" / "kernel").exists()
