"""The workload and the benchmark: arms of a scenario make the same output, faults are sentences, lines are complete."""

import json
import subprocess
import sys
import tomllib

import pytest
from event_files import DATA

pytestmark = pytest.mark.extras
pytest.importorskip("uproot")

from harness import worker  # noqa: E402
from impl.events import bench  # noqa: E402
from impl.events.arm import Events  # noqa: E402

ROOT = DATA.parents[2]
SCENARIOS = ("prepare", "prepare-workers", "topology", "cache-format")


def run(parameters, iterations=1):
    """One arm in this process: the last iteration's line and the fingerprint."""
    workload = Events(worker.effective("events", Events.accepts, parameters))
    if workload._needs_dgl():
        pytest.importorskip("torch")
        pytest.importorskip("dgl")
    workload.inputs()
    workload.setup()
    try:
        for _ in range(iterations):
            workload.prepare()
            line = workload.iterate()
        return line, workload.fingerprint()
    finally:
        workload.close()
        assert not workload.folder.exists()


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_arms_of_a_scenario_make_the_same_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scenario = tomllib.loads((ROOT / "scenarios" / f"{name}.toml").read_text())
    found = {}
    for arm, own in scenario["arms"].items():
        if arm == "large-2":
            continue  # made small it would be small-2 once more, with a second to start its workers
        own = {key: value for key, value in own.items() if key != "run"}
        line, fingerprint = run(scenario["parameters"] | own | {"events": 40}, iterations=1 if "workers" in own else 2)
        assert line["units"] == line["work"] == 40, arm
        found[arm] = fingerprint
    assert len(found) >= 2
    assert all(fingerprint == next(iter(found.values())) for fingerprint in found.values())
    assert (ROOT / "scenarios" / f"{name}.toml").read_text().startswith(f"# {scenario['scenario']['question']}\n")


def test_another_seed_gives_another_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = (run({"events": 9, "seed": seed})[1]["digests"] for seed in (1, 2))
    assert not set(one.values()) & (set(other.values()) - {one["meta_event"]})


def test_the_form_of_the_file_changes_no_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forms = ({}, {"compression": "none"}, {"compression": "zstd"}, {"rntuple": True})
    found = [run({"events": 30, **form})[1] for form in forms]
    assert all(fingerprint == found[0] for fingerprint in found)
    assert len(list((tmp_path / ".harness" / "events").iterdir())) == len(forms)


def test_the_topology_arms_differ_in_what_they_compute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts = {}
    for cached in (False, True):
        line, _ = run({"task": "topology", "graphs": "numpy", "cached": cached, "events": 64}, iterations=2)
        counts[cached] = (line["counters"]["hits"], line["counters"]["misses"])
    assert counts[False] == (0, 128)
    assert counts[True][0] > 40
    assert sum(counts[True]) == 128


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"task": "prepar"}, "task: expected one of prepare, load, topology, found 'prepar'; did you mean 'prepare'"),
        ({"path": "fast"}, "path: expected one of vectorised, per-event"),
        ({"events": 0}, "expected at least 1, at least 0, an ascending pair, found 0, 0, 8, 56"),
        ({"nodes_min": 60}, "an ascending pair"),
    ],
)
def test_a_parameter_that_cannot_be_is_a_fault(parameters, message):
    with pytest.raises(worker.Fault, match=message):
        Events(worker.effective("events", Events.accepts, parameters))


def test_by_hand_the_arm_prints_header_phases_and_fingerprint(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "impl.events.arm", "--set", "events=30", "--iterations", "2"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["header", "phase", *["iteration"] * 3, "fingerprint", "closed"]
    (library,) = lines[0]["environment"]["libraries"]
    assert library["name"] == "events"
    assert library["source_digest"] == library["tree_digest"]
    assert lines[0]["inputs"][0]["bytes"] > 0
    assert lines[-2]["work"] == 30
    assert set(lines[-2]["digests"]) >= {"node_x", "edge_x", "node_off", "label", "weight", "glob", "meta_event"}


FIELDS = (
    "schema", "bench", "case", "phase", "iteration", "seconds", "cpu_seconds", "events", "nodes", "edges",
    "events_per_s", "edges_per_s", "peak_rss", "seed", "input_sha256", "git", "argv", "env", "threads_torch",
    "threads_interop", "versions", "cpu_model", "cpu_flags", "cores", "affinity", "governor", "load_before",
    "load_after", "steal", "device", "device_name", "dtype", "deterministic", "cache_hits", "cache_misses",
    "result_checksum", "utc", "units", "work",
)  # fmt: skip


def lines_of(capsys, *words):
    assert bench.main([*words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_benchmark_times_three_phases_apart_and_its_lines_are_complete(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = lines_of(capsys, "--events", "20", "--nodes", "8", "--warmup", "1", "--iterations", "3")
    assert [line["phase"] for line in lines] == ["setup", "warmup", *["steady"] * 3, "summary"]
    assert [field for field in FIELDS if field not in lines[2]] == []
    assert len({line["result_checksum"] for line in lines[1:]}) == 1
    last = lines[-1]
    assert (last["wall"]["n"], last["events"], last["warmup_iterations"]) == (3, 20, 1)
    assert last["wall"]["median"] == sorted(line["seconds"] for line in lines[2:5])[1]
    assert list((tmp_path / ".harness" / "events").iterdir()) == []


def test_records_of_other_inputs_or_machines_are_not_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--events", "10", "--nodes", "8", "--warmup", "0", "--iterations", "1")
    one = lines_of(capsys, *words)
    changed = {"same": {}, "machine": {"cpu_model": "another"}, "wrong": {"result_checksum": "0"},
               "threads": {"threads": "7"}, "malloc": {"malloc": {"MALLOC_TOP_PAD_": "1"}}}  # fmt: skip
    for name, change in changed.items():
        (tmp_path / name).write_text("\n".join(json.dumps(line | change) for line in one))
    (tmp_path / "half").write_text(json.dumps(one[0]))
    assert bench.main(["--compare", "same", "same"]) == 0
    assert capsys.readouterr().out.startswith("CPU: B/A 1 (")
    for name, field in (("machine", "cpu_model"), ("wrong", "result_checksum"), ("threads", "threads"),
                        ("malloc", "malloc")):  # fmt: skip
        assert bench.main(["--compare", "same", name]) == 2
        assert f"expected comparable records, found different {field};" in capsys.readouterr().err
    assert bench.main(["--compare", "same", "half"]) == 2
    assert "half: expected a summary line" in capsys.readouterr().err
    assert bench.main(["--events", "0"]) == 2


def test_both_cases_and_any_number_of_workers_prepare_the_same(tmp_path, monkeypatch, capsys):
    pytest.importorskip("dgl")
    monkeypatch.chdir(tmp_path)
    words = ("--events", "24", "--nodes", "8", "--warmup", "0", "--iterations", "1")
    variants = ([], ["--no-edges"], ["--case", "per-event"], ["--compression", "none"])
    assert len({lines_of(capsys, *words, *more)[-1]["result_checksum"] for more in variants}) == 1


def test_the_options_of_the_benchmark_reach_the_sample_and_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--events", "12", "--nodes", "8", "--warmup", "0", "--iterations", "1")
    plain, fixed, seeded, spawned = (
        lines_of(capsys, *words, *more)[-1] for more in ([], ["--fixed"], ["--seed", "2"], ["--workers", "1"])
    )
    assert fixed["nodes"] == 12 * 8 != plain["nodes"]
    assert len({line["input_sha256"] for line in (plain, fixed, seeded)}) == 3
    assert bench.differences(plain, spawned) == []
    assert (plain["workers"], spawned["workers"]) == (0, 1)
    assert spawned["cpu_seconds"] > 0


def test_the_summary_is_made_of_order_statistics():
    made = bench.summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (made["n"], made["median"], made["min"], made["mad"]) == (5, 3.0, 1.0, 1.0)
    assert (made["p10"], made["p90"]) == (pytest.approx(1.4), pytest.approx(4.6))
