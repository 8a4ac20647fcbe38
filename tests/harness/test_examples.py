"""The arms of examples/ do what its README says."""

import shutil
from pathlib import Path

import pytest
from measured import Measured, compare, left_behind
from test_revision import commit, git

from harness import records

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def examples(tmp_path):
    """A copy, in a repository of its own."""
    root = tmp_path / "examples"
    shutil.copytree(EXAMPLES, root, ignore=shutil.ignore_patterns("collatz", "counts.*", ".harness", "reports"))
    return root


def quick(project, a, b, **overrides) -> Measured:
    return compare(project, a, b, schedule__blocks=1, schedule__pairs=1, schedule__warmup=1, **overrides)


def test_an_arm_in_python_by_serve(examples, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    found = quick(examples, "sorting:timsort", "sorting:heap,n=2000", parameters__n=2000)
    assert found.summary["fingerprints"]["agree"] is True
    assert {slot.work for slot in found.of(records.Slot)} == {2000}


def test_an_arm_in_c_that_speaks_the_protocol_is_built_by_setup(examples):
    found = quick(examples, "collatz:plain", "collatz:table", parameters__n=20000)
    assert (examples / "collatz").exists()
    assert found.summary["fingerprints"]["agree"] is True
    assert found.of(records.Fingerprint)[0].digests == {"best": f"{17647:x}"}  # the longest chain below 20,000
    assert left_behind(examples) == []


def test_an_arm_in_c_at_a_revision(examples):
    git(examples, "init", "-q")
    commit(examples)
    source = examples / "collatz.c"
    source.write_text(source.read_text().replace("uint64_t best = 1;", "uint64_t best = 2;"))
    found = quick(examples, "collatz:plain@HEAD", "collatz:plain", parameters__n=2)
    assert found.word == "wrong-result"
    assert [one.digests["best"] for one in found.of(records.Fingerprint)[:2]] in (["1", "2"], ["2", "1"])


def test_an_arm_in_shell(examples):
    found = quick(examples, "words:sort", "words:awk")
    assert found.summary["fingerprints"]["agree"] is True
    assert found.of(records.Slot)[0].work > 100
