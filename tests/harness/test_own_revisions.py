"""This repository's own kernel at two revisions, the second with a planted slow loop: as an arm, and as a benchmark."""

import json
from pathlib import Path

import pytest
from test_revision import commit, git

ROOT = Path(__file__).parents[2]
BUILD = ("-s", 'scenario.build="python csrc/build.py mapping"')
QUICK = ("--blocks", "6", "--pairs", "4", "--seed", "1", "--json")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of what is committed, with one commit more."""
    root = tmp_path_factory.mktemp("clone") / "project"
    git(ROOT, "clone", "-q", str(ROOT), str(root))
    source = root / "csrc" / "mapping.c"
    loop = "    for (int64_t k = begin; k < end; k++) {\n"
    text = source.read_text()
    assert text.count(loop) == 1
    source.write_text(text.replace(loop, f"{loop}        for (volatile int spin = 0; spin < 3000; spin++) {{}}\n"))
    commit(root)
    return root


def run(harness, clone, *words):
    done = harness("ab", *words, *BUILD, *QUICK, cwd=clone, timeout=1200, PYTHONPATH=str(clone))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_kernel_at_two_revisions(harness, clone):
    code, summary = run(harness, clone, "aa-mapping:a@HEAD~1", "aa-mapping:b")
    assert (code, summary["verdict"]["word"]) == (1, "regression")
    assert summary["fingerprints"]["agree"] is True
    libraries = [summary["environment"][arm]["libraries"][0] for arm in "ab"]
    assert libraries[0]["source_digest"] != libraries[1]["source_digest"]
    assert [one["source_digest"] for one in libraries] == [one["tree_digest"] for one in libraries]
    assert git(clone, "status", "--porcelain") == ""


def test_the_benchmarks_at_two_revisions(harness, clone):
    path = "pytest:tests/bench/test_bench.py::test_mapping_kernel"
    code, summary = run(harness, clone, f"{path}@HEAD~1", path)
    assert [one["name"] for one in summary["benchmarks"]] == ["test_bench.py::test_mapping_kernel"]
    assert (code, summary["benchmarks"][0]["verdict"]["word"]) == (1, "regression")
