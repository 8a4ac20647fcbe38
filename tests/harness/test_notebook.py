"""Two functions are compared from a notebook or script as two arms are, in processes of their own."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import harness
from harness import callables, worker
from harness.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
QUICK = {"blocks": 1, "pairs": 2, "warmup": 0, "seed": 1, "quiet": True}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_functions_of_a_script_are_sent_with_what_they_refer_to(elsewhere):
    factor = 3

    def slow(data):
        return sum([x * factor for x in data for _ in range(40)]) // 40

    def fast(data):
        return sum(x * factor for x in data)

    result = harness.compare(slow, fast, setup=lambda: list(range(200)), **{**QUICK, "blocks": 6})
    assert result.word == "improvement"
    assert result.ratio < 0.5
    assert result.interval[0] <= result.ratio <= result.interval[1]
    assert result.summary["fingerprints"]["agree"] is True
    assert repr(result).startswith("B ")
    assert list(result.frame.columns) == ["unit", "pair", "order", "a", "b", "ratio", "state"]
    assert len(result.frame) == 12
    assert (result.frame["ratio"] == result.frame["b"] / result.frame["a"]).all()
    assert (elsewhere / "reports").exists()
    assert result.folder.is_relative_to(elsewhere / "reports")
    assert (result.folder / "report.html").exists()
    page = result._repr_html_()
    assert "&#x27;" in page
    assert "<th style='text-align:left'>B/A</th>" in page
    assert str(result.folder) in page


def test_import_paths_are_imported_by_the_arms(elsewhere):
    (elsewhere / "mine.py").write_text("def one():\n    return 1\n\ndef two():\n    return 2\n")
    result = harness.compare("mine:one", "mine:two", **QUICK)
    assert result.word == "wrong-result"
    same = harness.compare("mine:one", "mine:one", names=("first", "second"), reports=elsewhere / "own", **QUICK)
    assert same.word == "inconclusive"
    assert same.summary["arms"]["b"]["name"] == "second"
    assert same.folder.is_relative_to(elsewhere / "own")
    assert not (elsewhere / ".harness" / "functions").exists()


def test_references_of_arms_are_taken_as_by_the_command_line(monkeypatch):
    monkeypatch.chdir(ROOT)
    result = harness.compare(
        "aa-python:a", "aa-python:b,steps=1000", reports=Path(os.environ.get("TMPDIR", "/tmp")) / "harness-notebook",
        fingerprint="none", **QUICK,
    )  # fmt: skip
    assert result.summary["scenario"] == "aa-python"


def test_a_tolerance_lets_last_bits_differ():
    def forward():
        return sum([0.1] * 10)

    def exactly():
        return 1.0

    assert harness.compare(forward, exactly, **QUICK).word == "wrong-result"
    assert harness.compare(forward, exactly, fingerprint="keys", totals_rtol=1e-9, **QUICK).word == "inconclusive"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: harness.compare(1, len), "compare(): expected functions, 'package.module:name' or references of arms"),
        (lambda: harness.compare(len, len, block=3), "compare(): expected one of 'alpha', 'blocks', "),
        (lambda: harness.compare(len, len, blocks="x"), "compare(): schedule.blocks: expected a whole number"),
        (
            lambda: harness.compare("no_such:function", "no_such:function", quiet=True),
            "function: expected package.module",
        ),
        (lambda: harness.compare("cat x", "cat y", setup=list), "setup, names: expected two functions, found the arms"),
        (lambda: harness.compare(threading.Lock().acquire, len, quiet=True), "__main__:lock.acquire: expected a func"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(call, sentence):
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert str(caught.value).startswith(sentence)


def test_importing_harness_imports_nothing_heavy():
    code = "import sys, harness; print([m for m in ('numpy', 'pandas', 'scipy', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError):
        _ = harness.no_such_thing


# ------------------------------------------------------------------------------------------- results as fingerprints


def same(x, y):
    return callables.reproducible(callables.fingerprint(x), callables.fingerprint(y))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (1, 2),
        (1, True),
        (0.0, -0.0),
        (1.0, 1),
        ([1, 2], (1, 2)),
        ([1, [2]], [1, 2]),
        ({"a": 1}, {"a": 2}),
        ("a", b"a"),
        (np.arange(3), np.arange(3, dtype=np.int32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.array([1.0, 2.0]), np.array([2.0, 1.0])),
        ({1, 2}, {1, 3}),
        (1j, 2j),
        (None, 0),
    ],
)
def test_different_results_have_different_fingerprints(x, y):
    assert same(x, x)
    assert not same(x, y)


def test_equal_results_have_equal_fingerprints_however_they_were_made():
    assert same({"a": 1, "b": [2.5]}, {"b": [2.5], "a": 1})
    assert same({3, 1, 2}, {2, 3, 1})
    assert same(np.arange(6).reshape(2, 3)[:, ::-1], np.arange(6).reshape(2, 3)[:, ::-1].copy())
    assert callables.fingerprint(object())["digests"].keys() == {"shape"}  # its type is all that can be compared
    itself = []
    itself.append(itself)
    assert callables.fingerprint(itself)["work"] == 1


def test_floats_are_summed_for_a_comparison_within_tolerance():
    found = callables.fingerprint([1.5, np.array([-2.0, 4.0]), "x"])
    assert found["totals"] == {"sum": 3.5, "magnitude": 7.5}
    other = callables.fingerprint([1.5000001, np.array([-2.0, 4.0]), "x"])
    assert found["digests"]["shape"] == other["digests"]["shape"]
    assert found["digests"]["values"] != other["digests"]["values"]


def test_an_iteration_is_as_many_calls_as_take_long_enough():
    at = [0.0]

    def call():
        at[0] += 0.001

    assert callables.calls_for(call, lambda: at[0]) == 16  # 10 ms and more, by doubling
    assert callables.calls_for(lambda: at.__setitem__(0, at[0] + 1.0), lambda: at[0]) == 1


def test_one_interruption_does_not_pass_for_work():
    at, calls = [0.0], [0]

    def call():
        calls[0] += 1
        at[0] += 5.0 if calls[0] == 2 else 0.001

    assert callables.calls_for(call, lambda: at[0]) == 16


def test_a_name_that_cannot_be_imported_is_a_fault():
    assert callables.imported("os.path:join") is os.path.join
    with pytest.raises(worker.Fault) as caught:
        callables.imported("os.path:jion")
    assert "'os.path:jion'" in str(caught.value)


# ------------------------------------------------------------------------------------------- a notebook


def test_the_notebook_of_the_examples_runs(elsewhere):
    pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    text = (ROOT / "examples" / "compare.ipynb").read_text()
    (elsewhere / "compare.ipynb").write_text(text)
    places = {f"JUPYTER_{name}_DIR": str(elsewhere / name.lower()) for name in ("RUNTIME", "CONFIG", "DATA")}
    environment = {**os.environ, **places, "IPYTHONDIR": str(elsewhere / "ipython"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "compare.ipynb"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    page = (elsewhere / "compare.html").read_text()
    assert "improvement" in text
    assert "is faster: it takes" in page
    assert "wall time per call" in page
