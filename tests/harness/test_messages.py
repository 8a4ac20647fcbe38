"""Every sentence that the harness ends with stands in a test, word by word; those that no other test says, here.

`test_every_sentence_stands_in_a_test` reads the sentences from the program: whatever is filled in may be anything, and
so may the place in front of "expected".
"""

import ast
import json
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import harness
from harness import (
    accuracy,
    arms,
    benchmarks,
    comparison,
    instructions,
    pagecache,
    records,
    revision,
    runner,
    scenario,
    worker,
)
from harness.arms import Arm
from harness.cli import cli
from harness.errors import ConfigurationError, HarnessError, UnfitError
from harness.process import ArmProcess
from harness.report import claims, index
from harness.selftest import Outcome

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "data" / "records"
HOLE = "\0"

# ----------------------------------------------------------------------------------------------- all of them


def template(node) -> str:
    """A text of the program or of a test, with HOLE where something is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in SENTENCES:
        where, expected, found, *following = [template(one) for one in node.args]
        return f"{where}: expected {expected}, found {found}" + (f"; {following[0]}" if any(following) else "")
    return HOLE


def sentences(path: Path) -> dict[str, int]:
    """Template -> line of every sentence that a file's errors are made of."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            made = node if name in SENTENCES else node.args[0] if name in KINDS and node.args else None
            if made is not None and template(made) != HOLE:
                found[template(made)] = node.lineno
    return found


def texts(path: Path) -> list[str]:
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    found = {template(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}
    return [text for text in found if " " in text]


def stands_in(sentence: str, said: list[str]) -> bool:
    expected = sentence[sentence.index("expected ") :] if ": expected " in sentence else sentence
    pattern = re.compile(r"(?s:.*?)".join(re.escape(part) for part in expected.split(HOLE)))
    return any(pattern.search(text) or pattern.search(text.replace("\\", "")) for text in said)


SENTENCES = ("sentence", "Fault")
KINDS = ("ConfigurationError", "UnfitError", "fail")


def test_every_sentence_stands_in_a_test():
    said = [text for path in sorted((ROOT / "tests").rglob("test_*.py")) for text in texts(path)]
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {sentence.replace(HOLE, '{}')}"
        for path in sorted((ROOT / "harness").rglob("*.py"))
        for sentence, line in sentences(path).items()
        if not stands_in(sentence, said)
    ]
    assert missing == []


def test_the_reader_of_sentences_sees_one_that_no_test_says(tmp_path):
    path = tmp_path / "made.py"
    path.write_text(
        'raise ConfigurationError(sentence(f"{a}: b", "a pink" " elephant", repr(c), d))\n'
        'raise UnfitError(f"no pink elephant in {place}" + tail)\n'
    )
    found = list(sentences(path))
    assert sorted(found) == [
        f"{HOLE}: b: expected a pink elephant, found {HOLE}; {HOLE}",
        f"no pink elephant in {HOLE}{HOLE}",
    ]
    other = ["x: b: expected a pink elephant", "expected a grey elephant, found 3; none", "a pink elephant in it"]
    assert not any(stands_in(one, other) for one in found)
    assert stands_in(min(found), ["x: y: expected a pink elephant, found 3; look up"])


# ---------------------------------------------------------------------------------------------- one by one


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one scenario whose arms are commands; tests run in it."""
    folder = tmp_path / "project"
    (folder / "scenarios").mkdir(parents=True)
    write(folder, COMMANDS)
    monkeypatch.chdir(folder)
    return folder


COMMANDS = """\
[scenario]
name = "s"
[arms.a.run]
command = "true"
[arms.b.run]
command = "sh -c true"
[arms.c.run]
command = "sh -c :"
[schedule]
mode = "process"
pairs = 6
"""


def write(folder, text, name="s"):
    (folder / "scenarios" / f"{name}.toml").write_text(text)


def said(error, expected, call, *words, **more):
    """The call raises the error, and this is what it says."""
    with pytest.raises(HarnessError) as raised:
        call(*words, **more)
    assert (type(raised.value), str(raised.value)) == (error, expected)


def ended(expected, *words, code=2):
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (code, f"harness: {expected}")


def test_of_the_command_line(project, monkeypatch):
    ended("--output: expected one RUN, found 2; render them one by one", "report", "x", "y", "--output", "z")
    ended(
        "--append: expected a finished comparison, found --resume too; give one of them",
        *("ab", "true", "true", "--append", "x", "--resume", "x"),
    )
    ended("-p: expected two arms of a scenario, found benchmarks", "ab", "pytest:a", "pytest:b", "-p", "x=1")
    ended("--anytime: expected one comparison, found a run of benchmarks", "ab", "pytest:a", "pytest:b", "--anytime")
    failed = [Outcome(0.1, "inconclusive", "made", False, Path("x"))]
    monkeypatch.setattr("harness.selftest.run", lambda *_, **__: failed)
    ended(
        "a planted slowdown of 10 % and no slowdown cannot be told apart here; see harness doctor", "selftest", code=4
    )
    shutil.rmtree(project / "scenarios")
    ended(f"{project}: expected a folder 'scenarios' here or above, found none; go into the project", "list")


def test_of_a_pilot_of_nothing(project):
    done = CliRunner().invoke(cli, ["plan", "false", "false", "--mde", "2%", "--pilot", "4", "--quiet"])
    pattern = r"harness: the pilot gave nothing to plan from: .+; see reports/command-\w{8}/\w+-\w+\n"
    assert done.exit_code == 4
    assert re.fullmatch(pattern, done.stderr), done.stderr


def test_of_going_on_with_a_comparison(project):
    done = CliRunner().invoke(cli, ["ab", "s:a", "s:b", "--quiet"])
    assert done.exit_code in (0, 3, 1), done.output
    (folder,) = (project / "reports" / "s").iterdir()
    go_on = ("ab", "s:a", "s:b", "--quiet", "--resume", folder)
    ended(f"{folder}: the comparison is complete; there is nothing to resume", *go_on)
    ended(
        f"{folder}: its scenario differs from 's' as it is now; resume with the same options, or start anew",
        *go_on,
        *("-s", "gate.margin=0.5"),
    )
    ended(
        f"{folder}: it compares other arms; resume with the arms it was started with",
        *("ab", "s:a", "s:c", "--quiet", "--resume", folder),
    )
    path = folder / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    ended(
        f"{folder}: the comparison is not finished; go on with --resume first",
        *("ab", "s:a", "s:b", "--quiet", "--append", folder, "--pairs", "6"),
    )


def test_of_arms(project):
    write(project, COMMANDS.replace("[arms.b.run]", "[arms.b]\nn = 1\n[arms.b.run]"))
    said(
        ConfigurationError,
        "scenarios/s.toml: arms.b: expected no parameters beside run.command, found 'n'; write them into the command",
        *(arms.resolve, "s:a", "s:b"),
    )
    said(
        ConfigurationError,
        "schedule.mode: expected 'process' for commands, found 'resident'; they are launched anew",
        *(arms.resolve, "true", "true"),
        overrides={"schedule.mode": "resident"},
    )
    write(project, COMMANDS.replace('mode = "process"', ""))
    said(
        ConfigurationError,
        "schedule.mode: expected 'process' for an arm that is a command, found 'resident'; set mode = \"process\"",
        *(comparison.compare, "s:a", "s:b"),
        **{"parameters": {}, "overrides": {}, "command": [], "quiet": True},
    )


def test_of_two_cores_for_a_duet(project, monkeypatch):
    write(
        project, 'scenario = {name = "s", workload = ["true"]}\narms = {a = {}, b = {}}\nschedule = {mode = "duet"}\n'
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    said(
        ConfigurationError,
        "schedule.mode: expected two cores for 'duet', found one; set mode = \"resident\"",
        *(comparison.compare, "s:a", "s:b"),
        **{"parameters": {}, "overrides": {}, "command": [], "quiet": True},
    )


def test_of_benchmarks(project):
    said(
        ConfigurationError,
        "pytest:@main: expected pytest:PATH or pytest:PATH@revision, found no path",
        *(benchmarks._parse, "pytest:@main", project, project),
    )
    said(
        ConfigurationError,
        f"pytest:nowhere: expected a file or folder of tests in {project}, found no 'nowhere'",
        *(benchmarks._parse, "pytest:nowhere", project, project),
    )
    write(project, COMMANDS, "pytest")
    said(
        ConfigurationError,
        "'pytest:bench' can be read in two ways: an arm of the scenario 'pytest', and the benchmarks in bench; write "
        "pytest:./bench for the benchmarks, or give the scenario another name",
        *(benchmarks._parse, "pytest:bench", project, project),
    )
    said(
        ConfigurationError,
        f"{project}/started.json: expected what an interrupted run of benchmarks left, found [Errno 2] No such file or "
        f"directory: '{project}/started.json'",
        *(benchmarks._started, project),
    )


def test_of_benchmarks_that_cannot_be_had(project):
    for name, text in (
        ("one", "def test_one(benchmark): ..."),
        ("two", "def test_two(benchmark): ..."),
        ("bad", "1 1"),
    ):
        (project / f"test_{name}.py").write_text(text + "\n")
    ended(
        "nothing was measured: pytest:test_one.py and pytest:test_two.py have no benchmark in common",
        *("ab", "pytest:test_one.py", "pytest:test_two.py"),
        code=4,
    )
    done = CliRunner().invoke(cli, ["ab", "pytest:test_bad.py", "pytest:test_two.py"])
    assert done.exit_code == 4
    assert done.stderr.startswith("harness: nothing was measured: pytest could not collect pytest:test_bad.py: ")


def test_of_instructions_without_valgrind(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    said(
        UnfitError,
        "metric 'instructions': expected valgrind, found none on PATH; install it (apt-get install valgrind)",
        *(instructions.count, ["true"]),
        **{"cwd": "/", "environment": {}, "speaks_protocol": False, "timeout": 60},
    )


def test_of_the_notebook(project):
    said(
        ConfigurationError,
        "compare(): expected functions, 'package.module:name' or references of arms, found 3",
        *(harness.compare, 3, len),
    )
    said(
        ConfigurationError,
        "setup, names: expected two functions, found the arms 's:a' and 's:b'",
        *(harness.compare, "s:a", "s:b"),
        setup=len,
    )
    lock = threading.Lock()

    def locked():
        return lock

    said(
        ConfigurationError,
        f"{__name__}:test_of_the_notebook.<locals>.locked: expected a function that can be sent to another process, "
        "found cannot pickle '_thread.lock' object; open files inside of it",
        *(harness.compare, locked, locked),
    )


def test_of_the_page_cache(tmp_path, monkeypatch):
    said(
        ConfigurationError,
        "page_cache: expected files that are there, found 'nowhere'; check 'inputs'",
        *(pagecache.prepare, "warm", ["nowhere"]),
    )
    said(
        ConfigurationError,
        "page_cache: expected files that can be read, found 'nowhere'; No such file or directory",
        *(pagecache._read, Path("nowhere")),
    )

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pagecache, "open", refuse, raising=False)  # root may; nobody else
    monkeypatch.setattr(os, "sync", lambda: None)
    said(
        ConfigurationError,
        "page_cache = 'cold': expected the right to drop the machine's cache, found permission denied; run as root, or "
        "use 'own-files-evicted'",
        pagecache._drop_everything,
    )


def start(*command, **more):
    with ArmProcess(list(command), **{"cwd": "/", "environment": {}, "speaks_protocol": False, **more}):
        pass


def test_of_processes(monkeypatch):
    said(ConfigurationError, "cwd: expected a folder, found '/nowhere'; check the path", start, "true", cwd="/nowhere")
    allowed = sorted(os.sched_getaffinity(0))
    said(
        ConfigurationError,
        f"pin: expected cores among {allowed}, found [4096]; choose cores of this machine",
        *(start, "true"),
        pin=[4096],
    )
    said(
        UnfitError,
        "program 'nowhere': expected one that can be started, found no such file; check the command",
        *(start, "nowhere"),
        measure_memory=True,
    )
    said(
        UnfitError,
        "program 'nowhere': expected one that can be started, found no such file or directory (nowhere); check the "
        "command",
        *(start, "nowhere"),
        speaks_protocol=True,
    )

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)  # root may; nobody else
    said(
        ConfigurationError,
        "nice: expected a niceness that this user may set, found -5; only root may go below 0",
        *(start, "sleep", "1"),
        nice=-5,
    )


def test_of_the_worker():
    with pytest.raises(worker.Fault) as raised:
        worker.answer(None, {"do": "dance"})
    message = "worker protocol: expected setup, iterate, fingerprint, values or close, found 'dance'"
    assert str(raised.value) == message


def test_of_records(tmp_path):
    opening, *_ = (RECORDS / "nothing.jsonl").read_text().splitlines()
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**json.loads(opening), "schema": 99}) + "\n")
    said(
        ConfigurationError,
        f"{path}: schema: expected at most {records.SCHEMA}, found 99; update harness to read it",
        *(records.read, tmp_path),
    )
    path.write_text(f'{opening}\n{{"kind":"unit","unit":"x","state":"complete"}}\n')
    said(
        ConfigurationError,
        f"{path}: line 2: expected an entry of schema {records.SCHEMA}, found Expected `int`, got `str` - at `$.unit`",
        *(records.read, tmp_path),
    )
    said(
        ConfigurationError,
        f"{tmp_path / 'x'}: expected a folder with comparisons (records.jsonl), found none; run harness ab first",
        *(index.collect, tmp_path / "x"),
    )
    (tmp_path / "claims.toml").write_text("x")
    said(
        ConfigurationError,
        f"{tmp_path / 'claims.toml'}: expected a TOML file, found Expected '=' after a key in a key/value pair (at end "
        "of document)",
        *(claims.read, tmp_path),
    )


# ------------------------------------------------------------------------------------------------- revisions


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    revision._git(folder, *identity, *words)


def provide(folder, **request):
    return revision.provide(revision.Request(**request), folder, "arm 'a'")


def test_of_trees_without_a_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    said(
        ConfigurationError,
        f"arm 'a': expected a git repository, of which trees are made, found none at {tmp_path}",
        *(provide, tmp_path),
    )
    with pytest.raises(ConfigurationError, match=r"^git log failed in .+: fatal: not a git repository"):
        revision._git(tmp_path, "log")
    git(tmp_path, "init", "-q")
    said(
        ConfigurationError,
        f"{tmp_path}: expected a repository with a commit, found none; commit first",
        *(provide, tmp_path),
    )
    monkeypatch.setenv("PATH", "/nonexistent")
    said(
        ConfigurationError,
        "git: expected a program that runs, found No such file or directory",
        *(provide, tmp_path),
    )


def test_of_trees_that_cannot_be_made(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    with pytest.raises(UnfitError) as raised:
        provide(tmp_path, rev="HEAD", build=("false",))
    pattern = (
        r"nothing was measured: the build of arm 'a' ended with exit code 1; it said: \$ false "
        r"\(all of it: \.harness/trees/\w{16}\.log\)"
    )
    assert re.fullmatch(pattern, str(raised.value))
    monkeypatch.setattr(revision, "LARGEST_SNAPSHOT", 1 << 20)
    (tmp_path / "data").write_bytes(bytes(2 << 20))
    said(
        ConfigurationError,
        f"{tmp_path}: expected new files of at most 1 MiB, found 2 MiB, the largest of them 'data'; let .gitignore "
        "name data and results",
        *(provide, tmp_path),
    )
    said(
        ConfigurationError,
        f"arm 'a': copy: expected '{tmp_path / 'data'}' to stay as it is, found that it changed meanwhile; start again",
        *(revision._lay_over, tmp_path / "data", tmp_path / "to", "digest of before", "arm 'a'"),
    )


# ------------------------------------------------------------------------------------------------- comparing


def arm(name, **more):
    return Arm(name=name, reference=f"s:{name}", kind="arm", command=["true"], cwd="/", **more)


def test_of_arms_that_cannot_be_compared():
    header = {"inputs": [], "config_digest": "1" * 32, "parameters": {}}
    said(
        ConfigurationError,
        "arms 'a' and 'b' have different configurations beside their parameters (11111111 and 22222222); make them "
        "equal, or a parameter",
        *(runner.check_headers, arm("a"), arm("b"), header, {**header, "config_digest": "2" * 32}),
    )
    library = {"path": "x.so", "digest": "3" * 32, "source_digest": "4" * 64, "tree_digest": "5" * 64}
    said(
        ConfigurationError,
        "arm 'a' loaded x.so, which was built from other sources (44444444) than the tree holds (55555555); build it "
        "again with `pip install -e .`",
        *(runner._check_libraries, arm("a"), {"environment": {"libraries": [library]}}),
    )
    at = arm("a", revision={"commit": "6" * 40, "binaries": {"x.so": "7" * 32}})
    library["tree_digest"] = library["source_digest"]
    said(
        ConfigurationError,
        "arm 'a' runs at 6666666666 and loaded x.so (33333333, of sources 44444444), which was not built in its tree; "
        "both arms would measure the same library: check the build and the import path",
        *(runner._check_libraries, at, {"environment": {"libraries": [library]}}),
    )


def test_of_hooks(project):
    write(project, COMMANDS.replace('name = "s"', 'name = "s"\nsetup = "false"'))
    resolved = arms.resolve("s:a", "s:b")
    said(
        UnfitError,
        "setup of arm 'a' failed: expected exit code 0, found exit code 1",
        *(runner.run_hook, resolved, resolved.a, "setup"),
    )


# ------------------------------------------------------------------------------------------------- scenarios


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"arms": 3}, "s.toml: arms: expected a table of arms, found 3"),
        ({"arms": {"a": 3}}, "s.toml: arms.a: expected a table of parameters, found 3"),
        (
            {"scenario": {"page_cache": "warm"}},
            "s.toml: scenario.page_cache: expected scenario.inputs to say which files it is about, found none; add it",
        ),
        (
            {"scenario": {"metric": "instructions"}},
            "s.toml: schedule.mode: expected 'process' for metric 'instructions', found 'resident'; callgrind counts "
            "whole processes",
        ),
        (
            {"scenario": {"outputs": ["/out"]}},
            "s.toml: scenario.outputs: expected patterns below the working directory, found '/out'",
        ),
    ],
)
def test_of_scenarios(change, expected):
    data = {"scenario": {"name": "s", "workload": ["true"], **change.get("scenario", {})}}
    data |= {key: value for key, value in change.items() if key != "scenario"}
    said(ConfigurationError, expected, scenario.parse, data, "s.toml")


def test_of_scenario_files(project):
    said(ConfigurationError, "command: expected a command, found an empty string", scenario.words, "", False, "command")
    (project / "scenarios" / "s.toml").write_bytes(b"\xff")
    said(
        ConfigurationError,
        "scenarios/s.toml: expected a readable TOML file, found 'utf-8' codec can't decode byte 0xff in position 0: "
        "invalid start byte",
        *(scenario.load, project, "s"),
    )


# ------------------------------------------------------------------------------------------------- accuracy

MAP = {"key": [1, 2], "value": [1.0, 2.0], "variance": [1.0, 1.0], "weight": [1.0, 1.0]}
MODEL = {"key": [1, 2], "score": [0.5, -0.5], "label": [1, 0], "weight": [1.0, 1.0], "seed": [0, 0]}


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({**MAP, **MODEL}, "expected 'value' (a map) or 'score' (a model), found both; write one file of one kind"),
        ({"x": [1]}, "expected 'value' (a map) or 'score' (a model), found 'x'; see harness/protocol.py"),
        (
            {**MAP, "value": [1.0]},
            "expected arrays of one length, found key (2,), value (1,), variance (2,), weight (2,); one entry for each "
            "key",
        ),
        ({**MAP, "value": [[1.0], [2.0]]}, "expected 'value' with one axis, found shape (2, 1)"),
        ({**MAP, "key": [1.5, 2.5]}, "expected whole numbers in 'key', found type float64"),
        ({**MAP, "value": ["x", "y"]}, "expected numbers in 'value', found type <U1"),
        ({**MAP, "key": [7, 7]}, "expected each key once, found key 7 2 times; add up what belongs together"),
        (
            {**MODEL, "key": [7, 7]},
            "expected each key once for seed 0, found key 7 2 times; add up what belongs together",
        ),
        ({**MAP, "weight": [0.0, 0.0]}, "expected an entry with weight above 0, found none among 2"),
        ({name: np.array(column)[:0] for name, column in MODEL.items()}, "expected at least one event, found none"),
        (
            {**MODEL, "score": [[0.5], [0.5]]},
            "expected 'score' (n,) or (n, two classes or more), found shape (2, 1)",
        ),
        ({**MODEL, "label": [1, 2]}, "expected labels from 0 to 1, found 2; one number a class"),
        ({**MODEL, "weight": [0.0, 0.0]}, "expected weight above 0 for seed 0, found none"),
    ],
)
def test_of_values(arrays, expected):
    said(ConfigurationError, f"v.npz: {expected}", accuracy.read, arrays, "v.npz")


def test_of_a_file_of_values(tmp_path):
    path = tmp_path / "v.npz"
    path.write_text("x")
    message = "arm 'a': expected an .npz of plain arrays, found something else; write it with numpy.savez(path, …)"
    said(ConfigurationError, message, accuracy.load, path, "arm 'a'")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"score": [[0.5, 1.0, 0.0], [0.5, 1.0, 0.0]]},
            "expected scores of one shape, found (2,) and (2, 3); the same classes in both",
        ),
        ({"seed": [0, 1]}, "expected the same seeds, found [0] and [0, 1]; the arms are paired by their seeds"),
        (
            {"key": [1, 3]},
            "expected the same keys for seed 0, found 1 that only 'old' has and 1 that only 'new' has; hold out the "
            "same events in both",
        ),
        (
            {"label": [0, 0]},
            "expected the same 'label' of an event, found 1 that differ for seed 0 (key 1); both arms must be asked "
            "the same question",
        ),
    ],
)
def test_of_models_that_cannot_be_compared(change, expected):
    a, b = (accuracy.read(arrays, "v.npz") for arrays in (MODEL, {**MODEL, **change}))
    said(ConfigurationError, f"s: {expected}", accuracy._reduce_models, a, b, ("old", "new"), "s")
