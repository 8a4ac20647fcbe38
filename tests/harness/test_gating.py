"""The gate on a small repository of somebody else's: what is planted is named, and nothing else."""

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

RECORDS = Path(__file__).resolve().parents[1] / "data" / "records"

WORK = """\
import sys, time
def work(steps):
    state = 1
    for _ in range(steps):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
    return state
"""

ARM = """\
from harness import worker
import lib

class Small(worker.Workload):
    name = "small"
    accepts = {"part": "parse"}

    def iterate(self):
        self.result = lib.PARTS[self.parameters["part"]]()
        return {"work": 1}

    def fingerprint(self):
        return {"work": 1, "digests": {"result": str(self.result)}}

if __name__ == "__main__":
    worker.serve(Small)
"""

LIB = """\
from work import work
PARTS = {"parse": lambda: work(20_000), "sort": lambda: work(20_000)}
"""

SCENARIO = """\
# Is {name} as fast as before?
[scenario]
name = "{name}"
question = "Is {name} as fast as before?"
workload = ["python", "arm.py"]
metric = "cpu_seconds"
[arms.{name}]
part = "{name}"
[schedule]
pairs = 4
warmup = 1
[gate]
margin = 0.30
"""


def git(folder, *words):
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder, message):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "scenarios").mkdir(parents=True)
    (folder / "work.py").write_text(WORK)
    (folder / "lib.py").write_text(LIB)
    (folder / "arm.py").write_text(ARM)
    (folder / ".gitignore").write_text("reports/\n.harness/\n__pycache__/\n")
    for name in ("parse", "sort"):
        (folder / "scenarios" / f"{name}.toml").write_text(SCENARIO.format(name=name))
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "base")
    return folder


def plant(folder, text):
    (folder / "lib.py").write_text(LIB.replace('"sort": lambda: work(20_000)', f'"sort": lambda: {text}'))


def gate(harness, folder, *options):
    done = harness("gate", "--json", "--quiet", *options, cwd=folder)
    return done, (json.loads(done.stdout) if done.stdout.startswith("{") else None)


def words(found):
    return {one["scenario"]: one["verdict"]["word"] for one in found["scenarios"]}


def test_a_planted_slowdown_is_named_and_nothing_else(project, harness):
    plant(project, "work(20_000) + 0 * work(20_000)")
    commit(project, "slower sort")
    done, found = gate(harness, project)
    assert done.returncode == 1, done.stderr
    assert found["exit_code"] == 1
    assert words(found)["sort"] == "regression"
    assert words(found)["parse"] != "regression"
    folder = next((project / "reports" / "gate").iterdir())
    suite = ElementTree.parse(folder / "junit.xml").getroot()
    failed = {case.get("classname") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed == {"harness.sort"}
    assert "**sort: regression**" in (folder / "gate.md").read_text()
    assert found["base"] == git(project, "rev-parse", "HEAD~1")


def test_a_wrong_result_fails_and_an_accepted_one_is_shown(project, harness):
    plant(project, "work(20_001)")
    commit(project, "another result")
    done, found = gate(harness, project, "sort")
    assert (done.returncode, words(found)) == (1, {"sort": "wrong-result"})
    path = project / "scenarios" / "sort.toml"
    path.write_text(path.read_text() + 'accept = "one more step, as agreed"\n')
    done, found = gate(harness, project, "sort")
    assert done.returncode in (0, 3), done.stderr
    assert words(found)["sort"] != "wrong-result"
    newest = sorted((project / "reports" / "gate").iterdir())[-1]
    texts = [path.read_text() for path in (project / "reports" / "gate").glob("*/gate.md")]
    assert any("outputs that differ are accepted: one more step, as agreed" in text for text in texts), newest


def test_a_build_that_fails_is_unfit_and_the_others_go_on(project, harness):
    path = project / "scenarios" / "sort.toml"
    path.write_text(path.read_text().replace('metric = "cpu_seconds"', 'metric = "cpu_seconds"\nbuild = "false"'))
    commit(project, "a build that fails")
    done, found = gate(harness, project, "--base", "HEAD")
    assert words(found)["sort"] == "unfit"
    assert words(found)["parse"] != "unfit"
    assert done.returncode == 4


def test_a_deleted_scenario_is_named(project, harness):
    (project / "scenarios" / "sort.toml").unlink()
    commit(project, "no sort any more")
    done = harness("gate", "--quiet", cwd=project)
    assert "sort: deleted: this gated scenario exists at the base only" in done.stdout
    assert done.returncode in (0, 3), done.stderr


def test_a_dry_run_measures_nothing_and_says_what_it_would(project, harness):
    commit_again(project)
    done = harness("gate", "--dry-run", cwd=project)
    assert done.returncode == 0
    base = git(project, "rev-parse", "HEAD~1")
    assert done.stdout.splitlines()[0] == f"base {base[:10]}, 2 scenarios, alpha 0.05 for all together"
    assert f"parse: parse:parse@{base} against parse:parse, 8 units, never measured here" in done.stdout
    assert not (project / "reports").exists()


def commit_again(project):
    (project / "README").write_text("words only\n")
    commit(project, "documentation only")


def test_a_documentation_only_change_does_not_fail(project, harness):
    commit_again(project)
    done, found = gate(harness, project, "--github")
    assert done.returncode in (0, 3), done.stdout
    assert "regression" not in words(found).values()


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--units", "3"), 4, "3 units cannot fail a gate of 2 scenarios at alpha 0.05; it needs 8"),
        (("--base", "nowhere"), 2, "--base: expected a git revision, found 'nowhere'; see git log"),
        (("srot",), 2, "no scenario 'srot'; there is 'parse', 'sort'; did you mean 'sort'?"),
    ],
)
def test_a_gate_that_cannot_work_says_so_before_it_starts(project, harness, options, code, sentence):
    commit_again(project)
    done = harness("gate", *options, cwd=project)
    assert (done.returncode, done.stderr) == (code, f"harness: {sentence}\n")
    assert not (project / "reports").exists()


def test_a_scenario_without_the_table_is_left_alone_or_refused_by_name(project, harness):
    path = project / "scenarios" / "sort.toml"
    path.write_text(path.read_text().replace("[gate]\nmargin = 0.30\n", ""))
    commit_again(project)
    assert "1 scenarios" in harness("gate", "--dry-run", cwd=project).stdout
    refused = harness("gate", "sort", cwd=project)
    assert refused.stderr == (
        "harness: scenarios/sort.toml: expected a table [gate], found none; add it, if only with a margin\n"
    )


def test_two_arms_can_be_gated_and_more_must_be_chosen(project, harness):
    path = project / "scenarios" / "sort.toml"
    path.write_text(path.read_text() + '[arms.other]\npart = "parse"\n')
    commit_again(project)
    refused = harness("gate", "sort", cwd=project)
    assert refused.stderr == (
        "harness: scenarios/sort.toml: gate.arms: expected the arm to compare with itself at the base revision, "
        "or two arms, found nothing; it has 'other', 'sort'\n"
    )
    text = path.read_text().replace("margin = 0.30", 'margin = 0.30\narms = ["sort", "other"]')
    path.write_text(text)
    done = harness("gate", "sort", "--dry-run", cwd=project)
    assert "sort: sort:sort against sort:other, 8 units" in done.stdout


def test_a_time_budget_too_short_to_fail_is_unfit(project, harness):
    commit_again(project)
    done, found = gate(harness, project, "--time-budget", "0.1s")
    assert done.returncode == 4, done.stdout
    assert set(words(found).values()) == {"unfit"}
    assert "cannot fail a gate of 2 scenarios; it needs 8" in found["scenarios"][0]["verdict"]["reason"]


@pytest.mark.parametrize(("policy", "code"), [(None, 3), ("pass", 0), ("fail", 1)])
def test_a_policy_decides_about_what_stays_open(policy, code):
    from harness import gating, records

    entries = records.read(RECORDS / "inconclusive.jsonl")
    plan = gating.Gate(RECORDS, "base", [], [], 0.05)
    summaries, found = gating.judge(plan, [(None, entries)], policy)
    assert summaries[0]["verdict"]["word"] == "inconclusive"
    assert found == code


def test_the_first_commit_has_nothing_to_be_compared_with(project, harness):
    done = harness("gate", cwd=project)
    assert done.returncode == 2
    assert "expected a commit before HEAD, found the first one; name it: --base REV" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="needs make and a C compiler")
def test_a_C_program_with_a_makefile_is_gated_by_a_short_scenario(tmp_path, harness):
    """Instructions of a compiled command at two revisions: twice the work is a regression on any machine."""
    if shutil.which("valgrind") is None and os.environ.get("CI") != "true":
        pytest.skip("valgrind is not installed")
    folder = tmp_path / "counter"
    (folder / "scenarios").mkdir(parents=True)
    program = "#include <stdio.h>\nint main(void) {{ volatile long s = 0; for (long i = 0; i < {n}; i++) s += i;\n"
    program += 'FILE *f = fopen("sum.txt", "w"); fprintf(f, "done\\n"); fclose(f); return 0; }}\n'
    (folder / "count.c").write_text(program.format(n=100_000))
    (folder / "Makefile").write_text("count: count.c\n\tcc -O1 -o $@ $<\n")
    (folder / ".gitignore").write_text("reports/\n.harness/\ncount\nsum.txt\n")
    (folder / "scenarios" / "count.toml").write_text(
        "# Does counting take more instructions than before?\n"
        '[scenario]\nname = "count"\nquestion = "Does counting take more instructions than before?"\n'
        'metric = "instructions"\noutputs = ["sum.txt"]\nbuild = "make"\n'
        '[arms.count.run]\ncommand = ["./count"]\n[schedule]\nmode = "process"\n[gate]\nmargin = 0.05\n'
    )
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "base")
    (folder / "count.c").write_text(program.format(n=200_000))
    commit(folder, "twice the work")
    done, found = gate(harness, folder)
    assert (done.returncode, words(found)) == (1, {"count": "regression"}), done.stderr
