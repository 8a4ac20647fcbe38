"""The command line: one sentence and an exit code of its own for each fault, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from event_files import DATA, tiny, tree_bytes

pytestmark = pytest.mark.extras
pytest.importorskip("uproot")

from impl.events.__main__ import main  # noqa: E402

ROOT = DATA.parents[2]
HZZ = str(DATA / "hzz.root")


def run(*words, code=0):
    assert main([str(word) for word in words]) == code


def process(*words, prefix="", **options):
    """The command line in a process of its own; `prefix` is Python that runs before it."""
    program = f"import sys\n{prefix}\nfrom impl.events.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], cwd=ROOT, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # fmt: skip


def finished(child, code):
    out, err = child.communicate(timeout=120)
    assert child.returncode == code, err
    assert "Traceback" not in err
    return out, err


def test_prepare_inspect_and_verify(tmp_path, capsys):
    run("prepare", HZZ, "--schema", "hzz", "--output", tmp_path / "c", "--quiet")
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path / 'c'}: 2421 events, 6989 nodes, 16348 edges; ")
    assert "events/s with 0 workers; fingerprint " in said
    run("verify", tmp_path / "c", HZZ, "--schema", "hzz")
    assert capsys.readouterr().out == (f"{tmp_path / 'c'}: 2421 events, every column is whole, "
                                       "and it is the cache of these files and options\n")  # fmt: skip
    run("verify", tmp_path / "c", HZZ, "--schema", "hzz", "-s", "max_nodes=20", code=11)
    assert "differs in policies.max_nodes" in capsys.readouterr().err
    run("inspect", tmp_path / "c", "--event", 3)
    said = capsys.readouterr().out
    assert "nodes an event: 0 to 7, mean 2.89; 5 events without, 199 with one" in said
    assert "event 3: label 0, weight 0.00708107, met 24.3625" in said
    run("inspect", tmp_path / "c", "--event", 2421, code=2)
    run("inspect", tmp_path / "c", "--json")
    assert '"events": 2421' in capsys.readouterr().out
    run("inspect", HZZ)
    assert capsys.readouterr().out == "events: 2421 events, 51 branches\n"
    run("inspect", DATA / "delphes.root", "--schema", "delphes")
    said = capsys.readouterr().out
    assert "jet.pt                   Jet/Jet.PT\n" in said
    assert "global.met.0             constant 0\n" in said
    assert "weight                   Event/Event.Weight [0]\n" in said


def test_a_configuration_file_and_its_overrides(tmp_path, capsys):
    (tmp_path / "c.toml").write_text(f'files = ["{HZZ}"]\nschema = "hzz"\nmax_nodes = 3\ntoo_many = "truncate"\n')
    run("prepare", "-c", tmp_path / "c.toml", "--output", tmp_path / "a")
    said = capsys.readouterr()
    assert "644 events truncated; 900 objects truncated" in said.err
    run("prepare", "-c", tmp_path / "c.toml", "--output", tmp_path / "b", "-s", "max_nodes=0")
    assert "2421 events, 6989 nodes" in capsys.readouterr().out


NAN = {"pt": np.array([1, np.nan, 3, 4, 5, 6], np.float32)}


@pytest.mark.parametrize(
    ("code", "file", "options", "sentence"),
    [
        (2, HZZ, ["--schema", "hz"], "schema 'hz': expected a TOML file or one of .*; did you mean 'hzz'"),
        (2, HZZ, ["--schema", "hzz", "-s", "num_worker=1"], "did you mean 'num_workers'"),
        (2, HZZ, ["--schema", "hzz", "-s", "not_finite=zero"], "not_finite: expected one of error, drop_event"),
        (3, str(DATA / "damaged.root"), ["--schema", "delphes"], "damaged.root: expected a tree of events, found none"),
        (3, "nowhere.root", ["--schema", "hzz"], "nowhere.root: expected a ROOT file, found no such file"),
        (4, {"without": ["Object_btag"]}, [], "expected 'Object_btag', found none of that name; nearest: Object_"),
        (5, {"counts_of": {"eta": [2, 0, 2, 2]}}, [], "branch 'Object_eta': event 2: expected 1 objects"),
        (6, NAN, [], "event 0: object.pt .*: expected a finite number, found nan; set not_finite to"),
        (7, {"counts": ()}, [], "expected events, found none; set allow_empty=true"),
        (8, {}, ["-s", "max_nodes=2"], "event 3: expected at most 2 objects .*, found 3; set too_many="),
        (10, {}, ["--output", "/proc/nowhere/cache"], "expected room and permission to write the cache, found"),
    ],
)
def test_each_fault_is_one_sentence_with_its_own_exit_code(tmp_path, capsys, code, file, options, sentence):
    import re

    if isinstance(file, dict):
        file, options = tiny(tmp_path / "t.root", **file), ["--schema", "sample", *options]
    run("prepare", file, "--output", tmp_path / "cache", *options, "--quiet", code=code)
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(rf"error: .*{sentence}.*\n", said.err), said.err
    assert [path.name for path in tmp_path.iterdir() if path.name != "t.root"] == []


def test_policies_are_reported(tmp_path, capsys):
    file = tiny(tmp_path / "t.root", **NAN)
    run("prepare", file, "--schema", "sample", "--output", tmp_path / "c", "-s", "not_finite=drop_object")
    said = capsys.readouterr()
    assert "1 objects dropped; 1 not finite in object.pt (Object_pt)" in said.err
    run("prepare", file, DATA / "damaged.root", "--schema", "sample", "--output", tmp_path / "d",
        "-s", "not_finite=replace", "-s", "damaged=skip_file")  # fmt: skip
    assert f"skipped {DATA / 'damaged.root'}: expected a tree of events, found none" in capsys.readouterr().err


def test_an_existing_cache_is_refused(tmp_path, capsys):
    file = tiny(tmp_path / "t.root")
    run("prepare", file, "--schema", "sample", "--output", tmp_path / "c")
    run("prepare", file, "--schema", "sample", "--output", tmp_path / "c", code=11)
    assert "set overwrite=true or choose another output" in capsys.readouterr().err
    run("prepare", file, "--schema", "sample", "--output", tmp_path / "c", "-s", "overwrite=true")
    run("verify", tmp_path / "nowhere", code=11)
    run("inspect", tmp_path / "nowhere", code=11)


def test_progress_is_told_twice_a_second_and_with_the_speed(monkeypatch, capsys):
    from impl.events import __main__ as program

    now = iter([0.0, 0.3, 0.6, 0.9, 1.2])
    monkeypatch.setattr(program.time, "monotonic", lambda: next(now))
    told = program._Progress()
    for done in (10, 30, 45, 60):
        told(done, 60)
    assert capsys.readouterr().err == "30 of 60 events, 50 events/s\n60 of 60 events, 50 events/s\n"


FOUR = [str(DATA / f"pythia_{name}.root") for name in ("dijet", "ttbar", "wjets", "zjets")]


def worker_of(child):
    """The first spawned worker of a running command."""
    parent = psutil.Process(child.pid)
    while child.poll() is None:
        for candidate in parent.children():
            try:
                if any("spawn_main" in word for word in candidate.cmdline()):
                    return candidate
            except psutil.Error:
                continue
        time.sleep(0.002)
    raise AssertionError(child.communicate())


def test_spawned_workers_give_the_bytes_of_none(tmp_path):
    words = ("prepare", HZZ, "--schema", "hzz", "--output")
    out, _ = finished(process(*words, tmp_path / "two", "-s", "num_workers=2"), 0)
    assert "with 2 workers" in out
    run(*words, tmp_path / "none", "--quiet")
    assert tree_bytes(tmp_path / "two") == tree_bytes(tmp_path / "none")


def test_a_killed_worker_fails_the_run_and_leaves_nothing(tmp_path):
    child = process("prepare", *FOUR, "--schema", "pythia", "--output", tmp_path / "c", "-s", "num_workers=2")
    worker_of(child).kill()
    _, err = finished(child, 9)
    assert err.endswith("error: worker: expected to finish its share, found that it died; nothing was kept; "
                        "is there enough memory?\n")  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path):
    child = process("prepare", *FOUR, "--schema", "pythia", "--output", tmp_path / "c", "-s", "num_workers=2")
    worker_of(child)
    child.send_signal(signal.SIGINT)
    _, err = finished(child, 130)
    assert "interrupted; no cache was left" in err
    assert list(tmp_path.iterdir()) == []


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, workers):
    """The limit on a file's size stands for the full disk: the same write call fails, with another number."""
    words = ("prepare", *FOUR, "--schema", "pythia", "--output", tmp_path / "c", "-s", f"num_workers={workers}")
    _, err = finished(process(*words, prefix=LIMIT.format(100_000)), 10)
    assert err.endswith("to write the cache, found the file size limit; nothing was left behind\n")
    assert list(tmp_path.iterdir()) == []


WITHOUT = "for name in {0}: sys.modules[name] = None"


def test_it_works_without_torch_and_dgl_and_export_says_what_to_install(tmp_path):
    gone = WITHOUT.format(["torch", "dgl"])
    finished(process("prepare", HZZ, "--schema", "hzz", "--output", tmp_path / "c", prefix=gone), 0)
    out, _ = finished(process("verify", tmp_path / "c", prefix=gone), 0)
    assert "every column is whole" in out
    _, err = finished(process("export", tmp_path / "c", tmp_path / "c.bin", prefix=gone), 12)
    assert err == "error: DGL graphs: needs torch and dgl, which is not installed; install harness-ab[gnn]\n"
    gone = WITHOUT.format(["uproot"])
    _, err = finished(process("prepare", HZZ, "--schema", "hzz", "--output", "x", prefix=gone), 12)
    assert err == "error: reading ROOT files: needs uproot, which is not installed; install harness-ab[events]\n"


def test_preparing_imports_no_torch(tmp_path):
    prefix = "import atexit; atexit.register(lambda: print('torch' in sys.modules, 'dgl' in sys.modules))"
    out, _ = finished(process("prepare", tiny(tmp_path / "t.root"), "--schema", "sample", "--output", tmp_path / "c",
                              prefix=prefix), 0)  # fmt: skip
    assert out.endswith("False False\n")
