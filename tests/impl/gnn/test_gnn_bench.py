"""The benchmark's lines carry what repeating and comparing needs."""

import json

import pytest

pytestmark = pytest.mark.extras
pytest.importorskip("torch")

from impl.gnn import bench  # noqa: E402

#: what every line must say
FIELDS = [
    "schema", "bench", "case", "phase", "seconds", "cpu_seconds", "events", "nodes", "edges", "events_per_s",
    "edges_per_s", "peak_rss", "seed", "input_sha256", "git", "argv", "env", "threads_torch", "threads_interop",
    "versions", "cpu_model", "cpu_flags", "cores", "affinity", "governor", "load_before", "load_after", "steal",
    "device", "device_name", "dtype", "deterministic", "cache_hits", "cache_misses", "utc",
]  # fmt: skip
SMALL = ["--events", "4", "--objects", "5", "--hidden", "16", "--rounds", "1", "--iterations", "3", "--warmup", "2"]


def lines_of(capsys, *arguments):
    assert bench.main([*SMALL, *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_phases_are_apart_and_every_line_is_whole(capsys):
    lines = lines_of(capsys)
    assert [line["phase"] for line in lines] == ["setup", *["warmup"] * 2, *["steady"] * 3, "summary"]
    for line in lines:
        assert [name for name in FIELDS if name not in line] == []
    assert (lines[0]["events"], lines[0]["nodes"], lines[0]["edges"]) == (4, 20, 80)
    assert lines[-1]["wall"]["n"] == 3
    assert lines[-1]["seconds"] == sorted(line["seconds"] for line in lines[3:6])[1]


def test_the_checksum_tells_runs_apart_that_compute_something_else(capsys):
    inference = ["--task", "inference"]
    sums = {line["result_checksum"] for line in lines_of(capsys, *inference)[1:]}
    assert len(sums) == 1
    assert {line["result_checksum"] for line in lines_of(capsys, *inference)[1:]} == sums
    other = lines_of(capsys, *inference, "--seed", "2")
    assert other[-1]["result_checksum"] not in sums
    assert other[-1]["input_sha256"] != lines_of(capsys)[0]["input_sha256"]


def test_compiled_graphs_are_counted_and_the_first_step_is_set_up(capsys, monkeypatch):
    import torch

    calls = []

    def compile_of(function, **_):
        def compiled(*arguments):
            calls.append(len(calls))
            torch._dynamo.utils.counters["stats"]["unique_graphs"] = 2
            return function(*arguments)

        return compiled

    monkeypatch.setattr(torch, "compile", compile_of)
    lines = lines_of(capsys, "--backend", "dense", "--compile", "--task", "inference")
    assert [line["compilations"] for line in lines] == [2] * 7, "two graphs, both made before the first warm-up"
    assert len(calls) == 6, "one round: set-up, two of warm-up, three steady"
    assert "compilations" not in lines_of(capsys)[0]


def test_a_profile_is_a_chrome_trace(capsys, tmp_path):
    lines_of(capsys, "--profile", str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--iterations", "0"], "--iterations: expected a whole number of at least 1, found 0"),
        (["--device", "cuda:99"], "--device: expected a device of this torch"),
        (["--backend", "dgk"], "backend: expected one of dgl, dense, fused"),
    ],
)
def test_a_fault_is_one_sentence(capsys, arguments, words):
    assert bench.main([*SMALL, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_summary_is_of_the_steady_iterations():
    assert bench.summary([3.0, 1.0, 2.0]) == {
        "n": 3, "median": 2.0, "p10": pytest.approx(1.2), "p90": pytest.approx(2.8), "min": 1.0, "mad": 1.0
    }  # fmt: skip
