"""The benchmark runs and says what it promises."""

import json

import pytest

from impl.mapping import bench


def test_every_line_has_its_fields(monkeypatch, capsys):
    monkeypatch.setattr(bench, "CASES", (("stationary", 0, 32), ("continuous", 1, 24)))
    assert bench.main(["--json", "--seconds", "0"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    fields = {
        "arm", "exposure", "depth", "tile", "threads", "cpu_ns_per_pixel", "wall_ns_per_pixel", "evaluations_per_pixel",
        "records_per_pixel", "calls",
    }  # fmt: skip
    assert all(set(line) == fields for line in lines)
    assert [(line["depth"], line["arm"], line["threads"]) for line in lines] == [
        (0, "corner-passing", 1), (0, "flat, filter", 1), (0, "numpy", 1), (0, "flat, filter", 2),
        (1, "corner-passing", 1), (1, "flat, double", 1), (1, "flat, filter", 1),
    ]  # fmt: skip
    # NumPy and the kernel meet as many voxels, and arms agree on the records
    assert len({line["records_per_pixel"] for line in lines if line["depth"] == 0}) == 1
    assert len({line["records_per_pixel"] for line in lines if line["depth"] == 1}) == 1
    assert lines[0]["evaluations_per_pixel"] == 1
    assert bench.main(["--seconds", "0"]) == 0
    assert "cpu ns/px" in capsys.readouterr().out


def test_full_adds_cases():
    assert len(list(bench.cases(True))) > len(list(bench.cases(False)))
    with pytest.raises(SystemExit):
        bench.main(["--fast"])
