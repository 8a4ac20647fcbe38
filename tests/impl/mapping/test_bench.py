"""The benchmark runs and says what it promises."""

import json
from importlib.util import find_spec

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


@pytest.mark.extras
@pytest.mark.skipif(find_spec("xrayutilities") is None, reason="needs the extra 'peers'")
def test_peers_meet_as_many_voxels(monkeypatch, capsys):
    monkeypatch.setattr(bench, "CASES", ())
    monkeypatch.setattr(bench, "PEERS", tuple((name, 48, given) for name, _, given in bench.PEERS))
    assert bench.main(["--json", "--peers", "--seconds", "0"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["arm"] for line in lines] == ["kernel", "Gridder3D", "and QConversion"]
    assert len({line["records_per_pixel"] for line in lines}) == 1


def test_a_peer_that_cannot_run_ends_the_benchmark(monkeypatch):
    monkeypatch.setattr(bench, "CASES", ())
    monkeypatch.setattr(bench, "PEERS", (("none", 48, {"way": "nobody"}),))
    with pytest.raises(SystemExit) as ended:
        bench.main(["--peers", "--seconds", "0"])
    assert ended.value.code == 2


def test_full_adds_cases():
    assert len(list(bench.cases(True))) > len(list(bench.cases(False)))
    with pytest.raises(SystemExit):
        bench.main(["--fast"])
