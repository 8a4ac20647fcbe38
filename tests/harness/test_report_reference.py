"""The committed reference set: its pages are those of its records, its commits exist, and it survives a kill."""

import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import records, report
from harness.errors import ConfigurationError
from harness.report import claims

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "reports" / "reference"
ARM = ROOT / "tests" / "arms" / "scripted.py"
FOLDERS = sorted(path.parent for path in REFERENCE.glob(f"*/*/{records.NAME}"))

specification = importlib.util.spec_from_file_location("make_reference", REFERENCE / "make.py")
make_reference = importlib.util.module_from_spec(specification)
specification.loader.exec_module(make_reference)
sys.path.insert(0, str(ROOT / "tests" / "data" / "records"))
make = importlib.import_module("make")


def without_record(page):
    """A page without the compressed record, whose bytes depend on the version of zlib."""
    return re.sub(r"base64,[A-Za-z0-9+/=]*", "base64,", re.sub(r", [\d.,]+ (B|KiB|MiB) compressed", "", page))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_pages_of_a_reference_are_those_of_its_record(folder, tmp_path):
    report.write(tmp_path, records.read(folder))
    for name in ("summary.json", "report.md", "report.html"):
        made = without_record((tmp_path / name).read_text(encoding="utf-8"))
        kept = without_record((folder / name).read_text(encoding="utf-8"))
        assert made == kept, f"{folder / name}: render it anew with harness report {folder.relative_to(ROOT)}"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_a_reference_names_a_commit_of_the_history_and_a_clean_tree(folder):
    revision = records.read(folder)[0].revision
    assert revision["dirty"] is False
    git = ["git", "-C", str(ROOT)]
    if (
        subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True).stdout
        != "false\n"
    ):
        pytest.skip("the history is not here")
    assert subprocess.run([*git, "merge-base", "--is-ancestor", revision["commit"], "HEAD"]).returncode == 0


def project(folder, names, entries=()):
    """A project with scenarios of scripted arms, and the entries of its set's comparisons.toml."""
    (folder / "scenarios").mkdir()
    for name in names:
        (folder / "scenarios" / f"{name}.toml").write_text(
            f'[scenario]\nname = "{name}"\nworkload = ["{sys.executable}", "{ARM}"]\n'
            'metric = "cpu_seconds"\n[arms.a]\n[arms.b]\n[schedule]\nblocks = 6\npairs = 1\nwarmup = 1\n'
        )
    (folder / "set").mkdir()
    if entries:
        text = "".join(f"  {{ {entry} }},\n" for entry in entries)
        (folder / "set" / make_reference.NAME).write_text(f"comparison = [\n{text}]\n")


def start(folder, **options):
    command = [sys.executable, str(REFERENCE / "make.py"), "--dirty", "--folder", str(folder / "set")]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,
    )


def units(folder, name):
    """Closed units in the record of a scenario, so far."""
    found = [path.read_bytes() for path in folder.glob(f"set/{name}/*/{records.NAME}")]
    return sum(text.count(b'"kind":"unit"') for text in found)


@pytest.mark.slow  # 20 s on a busy machine: twenty-odd launches of arms
def test_reference_set_goes_on_after_a_kill_and_becomes_whole(tmp_path):
    names = ("first", "second")
    longer = "parameters = { seconds = 0.02 }, settings = { schedule = { blocks = 7 } }"
    other = 'parameters = { seconds = 0.03, noise = 0.01 }, settings = { "schedule.blocks" = 6 }'
    project(tmp_path, names, [f'scenario = "first", a = "a", b = "b", {text}' for text in (longer, other)])
    running = start(tmp_path, start_new_session=True)
    while units(tmp_path, "first") < 6 + 2:
        assert running.poll() is None, "ended before it was killed"
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    plain, cut = sorted(tmp_path.glob(f"set/first/*/{records.NAME}"))
    assert [units(tmp_path, name) for name in names] in ([6 + 2, 6], [6 + 3, 6], [6 + 4, 6])
    first, before = plain.read_bytes(), cut.read_bytes()

    assert start(tmp_path).wait() == 0
    found = make_reference.present(tmp_path / "set")
    told = [
        (opening.scenario["scenario"]["name"], opening.arms["a"]["parameters"], opening.plan["units"])
        for opening, _, _ in found
    ]
    assert sorted(told, key=str) == [
        ("first", {"seconds": 0.02}, 7),
        ("first", {"seconds": 0.03, "noise": 0.01}, 6),
        ("first", {}, 6),
        ("second", {}, 6),
    ]
    assert all(opening.arms["a"]["parameters"] == opening.arms["b"]["parameters"] for opening, _, _ in found)
    assert all(over for _, _, over in found)
    assert [units(tmp_path, name) for name in names] == [6 + 7 + 6, 6]
    assert plain.read_bytes() == first
    assert cut.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    for _, place, _ in found:
        assert {"summary.json", "report.md", "report.html"} <= {path.name for path in place.iterdir()}
    assert (tmp_path / "set" / "index.html").exists()


def test_reference_set_is_not_made_from_a_tree_with_changes(tmp_path, capsys, monkeypatch):
    project(tmp_path, ["only"])
    git = shutil.which("git")
    subprocess.run([git, "init", "-q", str(tmp_path)], check=True)
    subprocess.run([git, "-C", str(tmp_path), "add", "scenarios"], check=True)
    monkeypatch.chdir(tmp_path)
    assert make_reference.main(["--folder", str(tmp_path / "set")]) == 2
    assert capsys.readouterr().err == "the tree has changes; commit them first, so that the records name a commit\n"
    assert list((tmp_path / "set").iterdir()) == []


def test_list_says_what_is_missing_and_measures_nothing(tmp_path, capsys, monkeypatch):
    project(tmp_path, ["only"])
    monkeypatch.chdir(tmp_path)
    assert make_reference.main(["--list", "--folder", str(tmp_path / "set")]) == 1
    assert capsys.readouterr().err == "missing  only: b against a\n"
    assert list((tmp_path / "set").iterdir()) == []


def test_list_names_parameters_and_only_takes_all_of_a_scenario(tmp_path, capsys, monkeypatch):
    entries = [
        'scenario = "x", a = "b", b = "a"',
        'scenario = "x", a = "a", b = "b", parameters = { seconds = 0.5, does = "hang" }, predict = [0.5, 0.6]',
        'scenario = "x", a = "a", b = "b", settings = { scenario = { metric = "seconds" } }',
        'scenario = "y", a = "a", b = "b", settings = { schedule = { blocks = 7 } }',
    ]
    project(tmp_path, ["x", "y"], entries)
    claim = "".join(f"{key} = '{value}'\n" for key, value in {"what": "w", "published": "p", "source": "s"}.items())
    (tmp_path / "set" / "claims.toml").write_text(
        f"[[claim]]\n{claim}scenario = 'x'\na = 'a'\nb = 'b'\nparameters = {{ seconds = 2.0 }}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert make_reference.main(["--list", "--only", "x", "--folder", str(tmp_path / "set")]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "missing  x: b against a",
        "missing  x: a against b",
        'missing  x: b against a, seconds=0.5, does="hang"',
        'missing  x: b against a, scenario.metric="seconds"',
        "missing  x: b against a, seconds=2.0",
    ]
    assert [str(one) for one in make_reference.wanted(tmp_path, tmp_path / "set")].count("y: b against a") == 1
    third = make_reference.wanted(tmp_path, tmp_path / "set")[3]
    assert third.arguments() == [
        *("x:a", "x:b", "-p", "seconds=0.5", "-p", 'does="hang"'),
        *("-s", "scenario.predict.ratio=[0.5, 0.6]", "-s", 'scenario.predict.arms=["a", "b"]'),
    ]


def stored(folder, day, laid=(), **changed):
    """A finished comparison of per-frame with grouped, with parameters laid over those of its scenario."""
    maker = make.Maker("grouping", "Does it help?", blocks=6, pairs=2)
    opening = maker.entries[0]
    opening.run = f"202610{day:02d}T000000Z-abcdef"
    for arm in "ab":
        opening.arms[arm] = {**opening.arms[arm], "parameters": {**opening.arms[arm]["parameters"], **dict(laid)}}
    opening.plan = opening.plan | {key: value for key, value in changed.items() if key == "mode"}
    opening.scenario["scenario"] |= {key: value for key, value in changed.items() if key == "metric"}
    place = folder / "grouping" / opening.run
    place.mkdir(parents=True)
    entries = maker.blocks_of(0.8).end()
    (place / records.NAME).write_bytes(b"".join(records.encode(entry) + b"\n" for entry in entries))
    return place


def test_a_comparison_is_there_only_when_it_has_the_parameters_and_the_metric(tmp_path):
    metric = make.Maker("grouping", "").entries[0].scenario["scenario"]["metric"]
    plain = make_reference.Wanted("grouping", "per-frame", "grouped", metric)
    forward = make_reference.Wanted("grouping", "per-frame", "grouped", metric, {"gradient": False})
    found = lambda one: make_reference.newest(one, make_reference.present(tmp_path))  # noqa: E731
    assert found(plain) == (None, False)
    first = stored(tmp_path, 1)
    assert found(plain) == (first, True)
    assert found(forward) == (None, False)
    second = stored(tmp_path, 2, {"gradient": False})
    assert (found(plain), found(forward)) == ((first, True), (second, True))
    stored(tmp_path, 3, {"gradient": False, "jets": 64})
    stored(tmp_path, 4, {"gradient": True})
    stored(tmp_path, 5, metric="work_bytes")
    stored(tmp_path, 6, mode="accuracy")
    assert (found(plain), found(forward)) == ((first, True), (second, True))
    newer = stored(tmp_path, 7)
    assert found(plain) == (newer, True)
    # laid over, but what the scenario says anyway
    own = make_reference.Wanted("grouping", "per-frame", "grouped", metric, {"depth": 4})
    assert found(own) == (newer, True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("comparison = [", "{path}: expected a TOML file, found Invalid value (at end of document)"),
        ("comparisons = []", "{path}: expected a list 'comparison' alone, found 'comparisons'"),
        ("comparison = 1", "{path}: expected a list 'comparison' alone, found 'comparison'"),
        ("comparison = [1]", "{path}: comparison 1: expected a table, found 1"),
        (
            "comparison = [{ parameter = {} }]",
            "{path}: comparison 1: expected one of 'a', 'b', 'parameters', 'predict', 'scenario', 'settings', found "
            "'parameter'; did you mean 'parameters'?",
        ),
        ("comparison = [{ parameters = 1 }]", "{path}: comparison 1: parameters: expected a table, found 1"),
        ("comparison = [{ scenario = 'only', a = 'a' }]", "{path}: comparison 1: expected the key 'b', found none"),
        (
            "comparison = [{ scenario = 'onyl', a = 'a', b = 'b' }]",
            "{path}: comparison 1: scenario: expected one of 'only', found 'onyl'; did you mean 'only'?",
        ),
        (
            "comparison = [{ scenario = 'only', a = 'a', b = 'b' }, { scenario = 'only', a = 'a', b = 'c' }]",
            "{path}: comparison 2: b: expected an arm of 'only', one of 'a', 'b', found 'c'",
        ),
        (
            "comparison = [{ scenario = 'only', a = 'a', b = 'b', settings = { schedule = { block = 6 } } }]",
            "{path}: comparison 1: scenarios/only.toml: schedule.block: expected one of 'anytime', 'blocks', "
            "'control', 'mode', 'pairs', 'pilot', 'quads', 'seed', 'time_budget', 'warmup', found 'block'; did you "
            "mean 'blocks'?",
        ),
        (
            "comparison = [{ scenario = 'only', a = 'a', b = 'b', predict = [0.9, 0.8] }]",
            "{path}: comparison 1: scenarios/only.toml: scenario.predict.ratio: expected two numbers above 0, the "
            "lower first, found [0.9, 0.8]; try [0.8, 0.9]",
        ),
        (
            "comparison = [{ scenario = 'only', a = 'a', b = 'b', parameters = { seconds = { a = 1 } } }]",
            "{path}: comparison 1: scenarios/only.toml: arms.a.seconds: expected a number, a string, true, false or a "
            "list, found {'a': 1}",
        ),
    ],
)
def test_a_bad_entry_is_refused_with_its_place_before_anything_runs(tmp_path, capsys, monkeypatch, text, complaint):
    project(tmp_path, ["only"])
    path = tmp_path / "set" / make_reference.NAME
    path.write_text(text)
    complaint = complaint.replace("{path}", str(path))
    with pytest.raises(ConfigurationError) as caught:
        make_reference.listed(tmp_path, tmp_path / "set")
    assert str(caught.value) == complaint
    monkeypatch.chdir(tmp_path)
    assert make_reference.main(["--dirty", "--folder", str(tmp_path / "set")]) == 2
    assert capsys.readouterr().err == complaint + "\n"
    assert [one.name for one in (tmp_path / "set").iterdir()] == [make_reference.NAME]


def test_the_committed_entries_and_claims_are_measured_once_each():
    listed = make_reference.listed(ROOT, REFERENCE)
    asked = [one.asked for one in make_reference.wanted(ROOT, REFERENCE)]
    assert listed
    assert all(asked.count(one.asked) == 1 for one in listed)
    assert all([one.asked for one in listed].count(one.asked) == 1 for one in listed)
    for claim in claims.read(REFERENCE):
        if "elsewhere" in claim:
            assert (ROOT / claim["elsewhere"]).exists()
        else:
            pair = (*(claim[key] for key in ("scenario", "a", "b")), claim.get("parameters", {}))
            assert sum((*one[:3], one[4]) == pair for one in asked) == 1, claim["what"]
