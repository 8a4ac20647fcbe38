"""The gate on a small repository: what is planted is named, and nothing else; what cannot work is said beforehand.

The repository is that of reports/reference/gate_runs.py. Here its scenarios count rows, which no noise reaches.
"""

import importlib.util
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import made
import numpy as np
import pytest
from scipy.stats import wilcoxon

from harness import gating, records

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "data" / "records"
SCRIPT = ROOT / "reports" / "reference" / "gate_runs.py"
_spec = importlib.util.spec_from_file_location("gate_runs", SCRIPT)
runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runs)

NAMES = ("count", "parse")


@pytest.fixture
def project(tmp_path):
    """The repository with its base commit."""
    folder = tmp_path / "project"
    runs.make(folder, NAMES, "rows")
    return folder


def edit(folder, name, old, new):
    path = folder / "scenarios" / f"{name}.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def words(found):
    return {one["scenario"]: one["verdict"]["word"] for one in found["scenarios"]}


# -------------------------------------------------------------------------------------- what is planted is named


def test_a_planted_slowdown_is_named_and_nothing_else(project, harness):
    runs.change(project, "slower")
    done = harness("gate", "--github", "--quiet", cwd=project)
    assert done.returncode == 1, done.stderr
    (folder,) = (project / "reports" / "gate").iterdir()
    found = json.loads((folder / "gate.json").read_text())
    assert words(found) == {"count": "regression", "parse": "equivalent"}
    assert found["scenarios"][0]["ratio"]["estimate"] == pytest.approx(1.15)
    assert (found["exit_code"], found["base"]) == (1, runs.git(project, "rev-parse", "HEAD~1"))
    suite = ElementTree.parse(folder / "junit.xml").getroot()
    failed = {case.get("classname") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed == {"harness.count"}
    page = (folder / "gate.md").read_text()
    assert page.startswith("<!-- harness gate -->\n## harness gate: fail\n\n**count: regression** — ")
    lines = done.stdout.splitlines()
    assert [line.partition(" title=")[0] for line in lines[:2]] == ["::error", "::notice"]
    assert lines[2].startswith("count: regression: B/A = 1.1500, between 1.1500 and 1.1500 (")
    assert lines[3].startswith("parse: equivalent: B/A = 1.0000, ")
    assert lines[4:] == [f"gate: exit 1; {folder.relative_to(project)}/gate.md"]


@pytest.mark.parametrize(
    ("what", "code", "word"),
    [
        ("words", 0, "equivalent"),
        ("wrong", 1, "wrong-result"),
        ("broken", 4, "unfit"),
        ("deleted", 0, None),
    ],
)
def test_every_change_of_the_reference_runs_comes_out_as_it_must(project, tmp_path, monkeypatch, what, code, word):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    runs.change(project, what)
    ended, found, said = runs.gate(project)
    assert ended == code, said
    planted = {} if word is None else {"count": word}
    assert words(found) == planted | {"parse": "equivalent"}
    assert found["deleted"] == ([] if word else ["count"])
    row = {"exit": ended, "words": words(found), "deleted": found["deleted"]}
    assert runs.expected(what, row)
    page = next(project.glob("reports/gate/*/gate.md")).read_text()
    assert (tmp_path / "summary.md").read_text() == page
    assert ("The gated scenario `count` exists at the base and was deleted." in page) == (what == "deleted")
    if what == "broken":
        reason = found["scenarios"][0]["verdict"]["reason"]
        assert reason.startswith("nothing was measured: the build of arm 'count:count")
        assert "ended with exit code 1" in reason


def test_an_accepted_result_passes_and_is_shown(project):
    runs.change(project, "wrong")
    edit(project, "count", "margin = 0.05", 'margin = 0.05\naccept = "one more, as *agreed*"')
    code, found, said = runs.gate(project, "count")
    assert (code, words(found)) == (0, {"count": "equivalent"}), said
    page = next(project.glob("reports/gate/*/gate.md")).read_text()
    assert page.endswith("\n`count`: outputs that differ are accepted: one more, as \\*agreed\\*\n")


@pytest.mark.parametrize(
    ("what", "row"),
    [
        ("slower", {"exit": 1, "words": {"count": "regression", "parse": "regression"}}),
        ("slower", {"exit": 3, "words": {"count": "slower", "parse": "equivalent"}}),
        ("words", {"exit": 3, "words": {"count": "inconclusive", "parse": "equivalent"}}),
        ("words", {"exit": 0, "words": {"count": "equivalent", "parse": "unfit"}}),
        ("wrong", {"exit": 1, "words": {"count": "regression", "parse": "equivalent"}}),
        ("broken", {"exit": 0, "words": {"count": "equivalent", "parse": "equivalent"}}),
        ("deleted", {"exit": 0, "words": {"parse": "equivalent"}}),
    ],
)
def test_the_reference_runs_count_what_else_happens_as_a_miss(what, row):
    assert not runs.expected(what, {"deleted": [], **row})


def test_the_committed_record_holds_every_run_and_the_figures_that_are_claimed(capsys):
    found = runs.done()
    assert [(row["what"], row["metric"], len(row["words"]) + len(row["deleted"])) for row in found] == [
        (what, metric, len(names)) for what, metric, names in runs.PLAN
    ]
    for row in found:
        assert row["as_expected"] == runs.expected(row["what"], row)
    by_kind = {what: [row for row in found if row["what"] == what] for what, _, _ in runs.PLAN}
    named = [row for row in by_kind["slower"] if row["metric"] == "cpu_seconds" and row["as_expected"]]
    assert len(named) >= 9
    assert all(row["exit"] != 1 for row in by_kind["words"])
    assert sum(row["exit"] == 0 for row in by_kind["words"]) >= 8
    assert all(row["as_expected"] for what in ("wrong", "broken", "deleted") for row in by_kind[what])
    assert found[-1]["as_expected"]
    runs.show(found)
    assert f"slower, 4 scenarios, cpu_seconds: {len(named)} of 10 as expected; " in capsys.readouterr().out


# -------------------------------------------------------------------------------------- said before it starts


def test_a_dry_run_says_what_would_run_and_after_a_gate_how_long(project, harness):
    runs.change(project, "words")
    base = runs.git(project, "rev-parse", "HEAD~1")[:10]
    done = harness("gate", "--dry-run", cwd=project)
    assert done.stdout == (
        f"base {base} 'base'; 2 scenarios, alpha 0.05 for all together\n"
        f"count: count against count@{base}, 8 blocks, never measured here\n"
        f"parse: parse against parse@{base}, 8 blocks, never measured here\n"
    )
    assert not (project / "reports").exists()
    runs.gate(project, "count")
    lines = harness("gate", "--dry-run", cwd=project).stdout.splitlines()
    assert lines[1].startswith(f"count: count against count@{base}, 8 blocks, about ")
    assert lines[1].endswith(" s, fails on 5 %")
    assert lines[3].endswith(" for those measured before")
    assert harness("gate", "count", "--dry-run", cwd=project).stdout.splitlines()[-1].endswith(" and the builds")


def test_the_forecast_leaves_out_what_the_other_scenarios_took(tmp_path):
    """The windows of a unit's load, not the time to its next unit: between these lies a unit of everything else."""
    blocks = [made.unit(u, [0.001 * u], foreign=0.0) for u in range(8)]  # each load's window is 1 s
    (tmp_path / "made" / "one").mkdir(parents=True)
    with records.Writer(tmp_path / "made" / "one") as writer:
        for entry in made.record(blocks):
            writer.write(entry)
    seconds, effect = gating.forecast(gating.Item("made", "made:a@1", "made:a", 16, "blocks"), tmp_path)
    assert seconds == 16.0
    assert 0.02 < effect < 0.03


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--units", "3"), 4, "3 units cannot fail a gate of 2 scenarios at alpha 0.05; it needs 8"),
        (("--base", "nowhere"), 2, "--base: expected a git revision, found 'nowhere'; see git log"),
        (("cuont",), 2, "no scenario 'cuont'; there is 'count', 'parse'; did you mean 'count'?"),
    ],
)
def test_a_gate_that_cannot_work_says_so_before_it_starts(project, harness, options, code, sentence):
    runs.change(project, "words")
    done = harness("gate", *options, cwd=project)
    assert (done.returncode, done.stderr) == (code, f"harness: {sentence}\n")
    assert not (project / "reports").exists()


def test_a_scenario_without_the_table_is_left_alone_or_refused_by_name(project, harness):
    edit(project, "count", "[gate]\nmargin = 0.05\n", "")
    runs.change(project, "words")
    assert "; 1 scenario, alpha" in harness("gate", "--dry-run", cwd=project).stdout
    refused = harness("gate", "count", cwd=project)
    assert refused.stderr == (
        "harness: scenarios/count.toml: expected a table [gate], found none; add it, if only with a margin\n"
    )
    edit(project, "parse", "[gate]\nmargin = 0.05\n", "")
    assert harness("gate", cwd=project).stderr == (
        f"harness: {project}: expected a scenario with a table [gate], found none; add [gate] to one\n"
    )


def test_the_last_scenarios_of_a_gate_are_missed(project, harness):
    for name in NAMES:
        (project / "scenarios" / f"{name}.toml").unlink()
    (project / "scenarios" / "README").touch()
    runs.change(project, "words")
    done = harness("gate", cwd=project)
    assert (done.returncode, done.stderr) == (
        2,
        f"harness: {project}: expected a scenario with a table [gate], found none any more: 'count', 'parse' of the "
        "base; add [gate] to one\n",
    )


def test_two_arms_can_be_gated_and_more_must_be_chosen(project, harness):
    edit(project, "count", "[schedule]", '[arms.other]\npart = "parse"\n[schedule]')
    runs.change(project, "words")
    refused = harness("gate", "count", cwd=project)
    assert refused.stderr == (
        "harness: scenarios/count.toml: gate.arms: expected the arm to compare with itself at the base revision, "
        "or two arms, found nothing; it has 'count', 'other'\n"
    )
    edit(project, "count", "margin = 0.05", 'margin = 0.05\narms = ["count", "others"]')
    refused = harness("gate", "count", cwd=project)
    assert refused.stderr == (
        "harness: scenarios/count.toml: gate.arms: expected arms among 'count', 'other', found 'others'; "
        "did you mean 'other'?\n"
    )
    edit(project, "count", '"others"', '"other"')
    done = harness("gate", "count", "--dry-run", cwd=project)
    assert "count: other against count, 8 blocks" in done.stdout


def test_a_time_budget_too_short_to_fail_is_unfit(project):
    runs.change(project, "words")
    code, found, said = runs.gate(project, "--time-budget", "0.1s")
    assert code == 4, said
    assert set(words(found).values()) == {"unfit"}
    assert "cannot fail a gate of 2 scenarios; it needs 8" in found["scenarios"][0]["verdict"]["reason"]


# -------------------------------------------------------------------------------------------------- the base


def test_the_base_is_where_a_branch_began(project, harness):
    begin = runs.git(project, "rev-parse", "HEAD")
    runs.git(project, "checkout", "-q", "-b", "change")
    runs.change(project, "words")
    runs.change(project, "wrong")
    runs.git(project, "checkout", "-q", "main")
    runs.change(project, "slower")
    runs.git(project, "checkout", "-q", "change")
    assert gating.base_revision(project, None) == begin
    runs.git(project, "checkout", "-q", "main")
    assert gating.base_revision(project, None) == begin  # main itself: the commit before
    assert gating.base_revision(project, "change") == runs.git(project, "rev-parse", "change")


def test_the_first_commit_and_a_shallow_clone_have_nothing_to_be_compared_with(project, harness, tmp_path):
    assert harness("gate", cwd=project).stderr == (
        f"harness: {project}: expected a commit before HEAD, found the first one; name it: --base REV\n"
    )
    runs.change(project, "words")
    runs.git(tmp_path, "clone", "-q", "--depth", "1", f"file://{project}", "shallow")
    done = harness("gate", cwd=tmp_path / "shallow")
    assert (done.returncode, done.stderr) == (
        2,
        f"harness: {tmp_path / 'shallow'}: expected the history before HEAD, found a shallow clone; fetch the rest: "
        "git fetch --unshallow\n",
    )


def test_outside_git_there_is_no_base(tmp_path, harness):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "count.toml").write_text(runs.scenario("count", "rows"))
    done = harness("gate", cwd=tmp_path, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    assert (done.returncode, done.stderr) == (
        2,
        f"harness: {tmp_path}: expected a git repository with a commit, found none; commit first\n",
    )


def test_this_repository_is_gated_by_scenarios_that_are_there():
    (line,) = [one for one in (ROOT / ".ci" / "run").read_text().splitlines() if "harness gate " in one]
    names = line.split("harness gate ")[1].split(" --policy")[0].split()
    plan = gating.plan(ROOT, names, base="HEAD", units=None)
    assert [(item.name, item.word) for item in plan.items] == [
        ("gate-kernel", "runs"),
        ("gate-records", "runs"),
        ("gate-same", "blocks"),
    ]
    assert all(item.a.endswith(f"@{plan.base}") for item in plan.items[:2])


# ------------------------------------------------------------------------------------------------- the family


@pytest.mark.parametrize(("policy", "code"), [(None, 3), ("pass", 0), ("fail", 1)])
def test_a_policy_decides_about_what_stays_open(policy, code):
    entries = records.read(RECORDS / "inconclusive.jsonl")
    summaries, found = gating.judge(family(), [(None, entries)], policy)
    assert summaries[0]["verdict"]["word"] == "inconclusive"
    assert found == code


def family():
    return gating.Gate(RECORDS, "base", [], [], 0.05)


def judged(d):
    """The gate's words and exit code over made log ratios (scenarios, pairs), and each one's q of "no difference"."""
    entries = [
        made.record([made.unit(u, [x]) for u, x in enumerate(row)], units=len(row), pairs=1, mode="process")
        for row in d
    ]
    summaries, code = gating.judge(family(), [(None, one) for one in entries], None)
    return [one["verdict"]["word"] for one in summaries], code, [one["family"]["q"] for one in summaries]


def alarms(d, margin=0.02):
    """One-sided exact p of "worse than the margin", by scipy."""
    return np.array([wilcoxon(row - math.log1p(margin), alternative="greater", method="exact").pvalue for row in d])


def test_case_t9_the_gate_of_166_scenarios_is_holms_and_its_uncorrected_twin_alarms():
    """All just at the margin, twelve pairs each; in the second family three are far beyond it."""
    rng = np.random.default_rng(9)
    for far in (0, 3):
        d = math.log1p(0.02) + 0.02 * rng.standard_t(3, (166, 12))
        d[:far] += 0.5
        found, code, _ = judged(d)
        p = alarms(d)
        ranked = np.argsort(p)
        holm = np.maximum.accumulate(p[ranked] * np.arange(166, 0, -1))
        rejected = set(ranked[holm <= 0.05].tolist())
        assert {i for i, word in enumerate(found) if word == "regression"} == rejected == set(range(far))
        assert code == (1 if far else 3)
        assert (p <= 0.05).sum() > far + 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_case_t9_through_the_gate_two_hundred_times():
    """Holm's first step asks for p of at most .05/166, which twelve pairs reach only when all are beyond the margin.

    So a family fails just where a scenario has twelve of twelve: 1 - (1 - 2 ** -12) ** 166 = 4.0 % of them.
    """
    rng = np.random.default_rng(10)
    failed = whole = listed = twin = 0
    for _ in range(200):
        d = 0.02 * rng.standard_t(3, (166, 12))
        whole += bool((d > 0).all(axis=1).any())
        listed += any(q <= 0.10 for q in judged(d)[2])
        at_margin = d + math.log1p(0.02)
        failed += judged(at_margin)[1] == 1
        twin += bool((alarms(at_margin) <= 0.05).any())
    assert failed == whole
    # three standard errors of a share of 5 and of 10 % over 200 families
    assert failed <= 200 * 0.05 + 9
    assert listed <= 200 * 0.10 + 12
    assert twin > 190
