"""The scaling figure of the mapping: a point measures one map, whichever code makes it, and a file goes on."""

import importlib.util
import json
import mmap
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "reports" / "reference"
TINY = {"tile": 16, "frames": 2, "edge": 100, "depth": 1, "exposure": "stationary", "threads": 1}


@pytest.fixture(scope="module")
def script():
    """reports/reference/mapping_scaling.py as a module."""
    spec = importlib.util.spec_from_file_location("mapping_scaling", FOLDER / "mapping_scaling.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(FOLDER))  # as when it is run: it imports scaling.py beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


@pytest.fixture
def quick(script, monkeypatch, tmp_path):
    """The script with one repetition a point."""
    for name, value in (("LEAST", 1), ("MOST", 1), ("SECONDS", 0.0), ("ROOT", tmp_path)):
        monkeypatch.setattr(script, name, value)
    return script


def test_kernel_and_job_measure_the_same_map(quick, tmp_path):
    kernel, job = (quick.point(TINY | {"code": code}) for code in quick.CODES)
    assert kernel["samples"] == job["samples"] == 2 * 16 * 16
    assert kernel["records"] == job["records"] > 0
    assert kernel["contributors"] == job["contributors"] >= 2 * 16 * 16  # every sample lies in the grid
    assert kernel["steps"] == job["steps"] == 1
    assert not list((tmp_path / ".harness").iterdir())  # nothing is left behind
    shifted = quick.point(TINY | {"code": "kernel", "edge": 90})
    assert shifted["records"] != kernel["records"]  # another grid is another map


def test_a_repetition_that_maps_something_else_is_refused(quick, monkeypatch):
    class Forgets(quick.KernelWork):
        def clear(self):
            self.calls = self.calls[:0]

        def facts(self):
            return {"records": sum(map(len, self.batches))}

    monkeypatch.setitem(quick.WORKS, "kernel", Forgets)
    with pytest.raises(RuntimeError, match=r"of every repetition, found \{'records': 0\}"):
        quick.point(TINY | {"code": "kernel"})


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the peak memory of Linux")
def test_memory_is_what_a_call_raises_and_no_more(script):
    scaling = sys.modules["scaling"]

    def touch():
        with mmap.mmap(-1, 64 << 20) as pages:  # not from an allocator that may have that much at hand
            for place in range(0, len(pages), 4096):
                pages[place] = 1

    raised = scaling.rise(touch)
    assert 60 << 20 <= raised <= 80 << 20
    assert scaling.rise(lambda: None) <= 4 << 20  # the peak of the call before it is forgotten


def test_the_largest_tile_lies_in_the_grid(script, tmp_path):
    import numpy as np

    detector = script.job_of(TINY | {"tile": max(script.AXES["tile"])}, tmp_path)
    rays = detector.instrument.corner_rays(0, 1024, 0, 1024)
    reach = np.sqrt(((rays - np.array([0, 1, 0])) ** 2).sum(axis=2)).max() * detector.wave_number / (2 * np.pi / 4)
    assert reach < script.REACH


def test_the_file_has_every_point_and_draws(script, monkeypatch, tmp_path, capsys):
    lines = script.SCALING.lines()
    assert [(line["axis"], line["value"], line["code"]) for line in lines] == script.plan()
    for axis, values in script.AXES.items():  # both codes made the same map of every case
        for value in values:
            assert len({line["contributors"] for line in lines if (line["axis"], line["value"]) == (axis, value)}) == 1
    monkeypatch.setattr(script, "RECORD", tmp_path / "scaling.jsonl")
    script.show(lines)
    drawn = (tmp_path / "scaling.svg").read_text()
    assert drawn.startswith("<?xml")
    assert len(capsys.readouterr().out.splitlines()) == 2 + sum(map(len, script.AXES.values()))


def test_a_second_start_measures_only_what_is_missing(script, tmp_path):
    import dataclasses

    measured = tmp_path / "point.py"  # stands for the script: says which case it was given
    measured.write_text("import json, sys; print(json.dumps({'case': json.loads(sys.argv[2])}))")
    record = tmp_path / "lines.jsonl"
    record.write_text('{"axis": "a", "value": 1, "code": "x", "case": "kept"}\n')
    one = dataclasses.replace(
        script.SCALING, script=str(measured), record=record, plan=[("a", 1, "x"), ("a", 2, "x")],
        case_of=lambda *point: {"point": point}, words=lambda line: "",
    )  # fmt: skip
    assert one.measure() == 0
    assert [line["case"] for line in one.lines()] == ["kept", {"point": ["a", 2, "x"]}]
    measured.write_text("raise SystemExit('no such case')")
    failing = dataclasses.replace(one, plan=[*one.plan, ("a", 3, "x")])
    assert failing.measure() == 1
    assert len(one.lines()) == 2
    record.write_text(json.dumps({"axis": "a"}) + "\n{broken\n")
    with pytest.raises(ValueError, match=r"lines.jsonl, line 2: expected a JSON object, found '\{broken'; delete"):
        one.lines()
