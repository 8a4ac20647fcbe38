"""An arm at a revision, under an overlay or with a build of its own runs in a built tree, and nowhere else."""

import json
import subprocess

import pytest
from measured import compare

from harness import arms, comparison, records, revision, runner
from harness.errors import ConfigurationError, UnfitError

PROGRAM = """\
#include <stdio.h>
int main(void) {
    unsigned long state = 1;
    for (long i = 0; i < LOOPS; i++) state = state * 6364136223846793005u + 1442695040888963407u;
    printf("{\\"kind\\": \\"iteration\\", \\"phase\\": \\"steady\\", \\"index\\": 0,"
           " \\"seconds\\": 0, \\"cpu_seconds\\": 0,"
           " \\"work\\": 1, \\"counters\\": {\\"loops\\": %ld}}\\n", (long)LOOPS);
    return state == 0;
}
"""
MAKEFILE = "LOOPS = 1000\nsum: sum.c\n\t$(CC) -DLOOPS=$(LOOPS) -o $@ $<\n"
SCENARIO = """\
# Is it faster?
[scenario]
name = "sum"
question = "Is it faster?"
metric = "loops"
build = "make"
[arms.sum.run]
command = "./sum"
[arms.many.run]
command = "./sum"
build = ["make", "LOOPS=2000"]
[arms.laid.run]
command = "./sum"
copy = [["overlays/Makefile", "Makefile"], ["overlays", "beside/it"]]
[arms.old.run]
command = "./sum"
rev = "HEAD~1"
[arms.writes.run]
command = ["sh", "-c", "echo '# changed' >> Makefile; ./sum"]
[arms.where.run]
command = ["sh", "-c", "pwd -P > place; ./sum"]
[schedule]
mode = "process"
"""


def git(folder, *words):
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder, message="change"):
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


def make_project(folder):
    """A C program with a Makefile, at two revisions: 1000 loops, then 3000; the tree has a file not yet committed."""
    root = folder / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    write(root, {"sum.c": PROGRAM, "Makefile": MAKEFILE, "scenarios/sum.toml": SCENARIO})
    write(root, {"overlays/Makefile": MAKEFILE.replace("1000", "7000"), ".gitignore": "ignored\n.harness/\nreports/\n"})
    commit(root, "first")
    write(root, {"Makefile": MAKEFILE.replace("1000", "3000")})
    commit(root, "second")
    write(root, {"ignored": "x", "new.txt": "not committed"})
    return root


def loops(found):
    return {arm: found.of(records.Slot, arm)[0].counters["loops"] for arm in "ab"}


def everything(root):
    """Every file of the user's checkout with its bytes and time, and what git thinks of it."""
    files = {
        path.relative_to(root): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in (".git", ".harness", "reports")
    }
    return files, git(root, "status", "--porcelain", "--", ".", ":(exclude)reports"), git(root, "rev-parse", "HEAD")


def test_two_revisions_of_a_program_are_built_and_compared(project):
    before = everything(project)
    heard = []
    found = compare(project, "sum:sum@HEAD~1", "sum:sum@main", heard=heard)
    assert loops(found) == {"a": 1000, "b": 3000}
    a, b = (found.entries[0].arms[arm] for arm in "ab")
    assert a["revision"]["commit"] == git(project, "rev-parse", "HEAD~1")
    assert b["revision"]["dirty"] is False
    assert len(a["cwd"]) == len(b["cwd"])
    assert len(heard) == 2
    assert everything(project) == before


def test_what_was_built_is_used_again_and_the_log_stays(project):
    compare(project, "sum:sum@HEAD~1", "sum:sum@HEAD")
    heard = []
    found = compare(project, "sum:old", "sum:sum@main", heard=heard)
    assert heard == []
    assert loops(found) == {"a": 1000, "b": 3000}
    key = found.entries[0].arms["a"]["revision"]["tree"]
    assert "-DLOOPS=1000" in (project / ".harness" / "trees" / f"{key}.log").read_text()


def test_the_working_tree_beside_a_revision_is_a_tree_as_well(project):
    write(project, {"Makefile": MAKEFILE.replace("1000", "5000")})
    git(project, "add", "Makefile")
    write(project, {"Makefile": MAKEFILE.replace("1000", "6000")})  # staged one thing, has another
    before = everything(project)
    found = compare(project, "sum:sum@HEAD", "sum:where")
    assert loops(found) == {"a": 3000, "b": 6000}
    tree = found.entries[0].arms["b"]["revision"]
    assert tree["dirty"] is True
    assert tree["commit"] == git(project, "rev-parse", "HEAD")
    folder = project / ".harness" / "trees" / tree["tree"]
    assert (folder / "place").read_text() == f"{folder}\n"
    assert (folder / "new.txt").read_text() == "not committed"
    assert not (folder / "ignored").exists()
    assert everything(project) == before
    heard = []
    compare(project, "sum:sum@HEAD", "sum:where", heard=heard)
    assert heard == []  # the same content is the same tree


def test_without_revisions_an_arm_runs_where_it_is(project):
    subprocess.run(["make", "-C", str(project)], check=True, capture_output=True)
    found = compare(project, "sum:sum", "sum:where")
    assert found.entries[0].arms["a"]["revision"] is None
    assert (project / "place").read_text() == f"{project}\n"
    assert not (project / ".harness" / "trees").exists()


def test_a_build_of_its_own_gives_an_arm_its_own_tree(project):
    assert loops(compare(project, "sum:sum", "sum:many")) == {"a": 3000, "b": 2000}


def test_overlays_go_into_a_private_copy_and_are_part_of_its_key(project):
    before = everything(project)
    found = compare(project, "sum:sum", "sum:laid")
    assert loops(found) == {"a": 3000, "b": 7000}
    folder = project / found.entries[0].arms["b"]["cwd"]
    assert (folder / "beside" / "it" / "Makefile").read_text() == MAKEFILE.replace("1000", "7000")
    assert everything(project) == before
    assert loops(compare(project, "sum:sum@HEAD", "sum:laid@HEAD")) == {"a": 3000, "b": 7000}
    write(project, {"overlays/Makefile": MAKEFILE.replace("1000", "8000")})
    assert loops(compare(project, "sum:sum@HEAD", "sum:laid@HEAD")) == {"a": 3000, "b": 8000}


def test_the_build_sees_the_arms_environment_and_a_shell_if_asked(project):
    settings = {"scenario__shell": True, "scenario__build": "make LOOPS=$LOOPS"}
    found = compare(project, "sum:sum@HEAD", "sum:sum", arms__sum__run__env={"LOOPS": "4000"}, **settings)
    assert loops(found) == {"a": 4000, "b": 4000}


def test_a_setup_command_may_do_what_a_build_could(project):
    assert not (project / "sum").exists()
    settings = {"scenario__build": "true", "scenario__setup": "make"}
    assert loops(compare(project, "sum:sum@HEAD~1", "sum:sum@HEAD", **settings)) == {"a": 1000, "b": 3000}


def test_the_working_directory_is_below_the_tree(project):
    found = compare(project, "sum:sum@HEAD", "sum:sum", scenario__cwd="overlays", arms__sum__run__command="../sum")
    assert found.entries[0].arms["a"]["cwd"].endswith("/overlays")
    assert loops(found) == {"a": 3000, "b": 3000}


@pytest.mark.parametrize(
    ("copy", "sentence"),
    [
        ([["nothing", "x"]], "arm 'sum:sum': copy: expected a file or folder of the project, found 'nothing'"),
        ([["Makefile", "../x"]], "arm 'sum:sum': copy: expected a place inside the tree, found '../x'"),
        ([["Makefile", "/x"]], "arm 'sum:sum': copy: expected a place inside the tree, found '/x'"),
        ([["Makefile", "a/../.git/config"]], "arm 'sum:sum': copy: expected a place inside the tree, found "),
    ],
)
def test_an_overlay_that_cannot_be_is_refused(project, copy, sentence):
    with pytest.raises(ConfigurationError) as caught:
        compare(project, "sum:sum", "sum:sum", arms__sum__run__copy=copy)
    assert str(caught.value).startswith(sentence)


def test_an_arm_that_writes_into_its_sources_is_told_and_its_tree_made_anew(project):
    before = everything(project)
    found = compare(project, "sum:sum@HEAD~1", "sum:writes@HEAD")
    notes = [note.message for note in found.of(records.Note) if note.about == "tree-changed"]
    assert notes[0].startswith("arm 'writes' changed its own tree (Makefile); ")
    assert everything(project) == before
    heard = []
    found = compare(project, "sum:sum@HEAD", "sum:sum@HEAD", heard=heard)
    assert len(heard) == 1
    assert loops(found) == {"a": 3000, "b": 3000}
    folder = project / found.entries[0].arms["a"]["cwd"]
    assert "changed" not in (folder / "Makefile").read_text()


@pytest.mark.parametrize("name", ["sum", "Makefile", "beside/it/Makefile"])
def test_a_tree_that_was_tampered_with_is_not_used(project, name):
    request = revision.Request(rev="HEAD", build=("make",), copy=(("overlays", "beside/it"),))
    tree = revision.provide(request, project, "arm 'x'")
    (tree.folder / name).write_text("something else")
    assert revision.changes(tree.folder) == [name]
    again = revision.provide(request, project, "arm 'x'")
    assert again == tree
    assert revision.changes(tree.folder) == []
    assert (tree.folder / name).read_bytes() != b"something else"


def test_the_key_knows_revision_overlay_build_environment_compiler_and_python(project, monkeypatch):
    (project / "cc").write_text('#!/bin/sh\nexec cc "$@"\n')
    (project / "cc").chmod(0o755)

    def key(**changed):
        request = revision.Request(**{"rev": "HEAD", "build": ("true",), **changed})
        return revision.provide(request, project, "arm 'x'").key

    plain = key()
    assert key() == plain
    keys = [
        plain,
        key(rev="HEAD~1"),
        key(build=("true", "too")),
        key(copy=(("Makefile", "other"),)),
        key(environment=(("X", "1"),)),
        key(environment=(("CC", str(project / "cc")),)),
    ]
    with monkeypatch.context() as patch:
        patch.setenv("CFLAGS", "-O1")
        keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(revision.platform, "python_version", lambda: "3.99.0")
        keys.append(key())
    assert len(set(keys)) == len(keys)
    assert {len(one) for one in keys} == {16}


def test_a_failed_build_is_unfit_and_not_remembered(project, harness):
    write(project, {"Makefile": "sum:\n\t@echo no compiler here >&2; exit 9\n"})
    done = harness("ab", "sum:sum@HEAD", "sum:sum", "--pairs", "1", cwd=project)
    assert done.returncode == 4
    assert "nothing was measured: the build of arm 'sum:sum' ended with exit code 2; it said: " in done.stderr
    told = done.stderr.splitlines()[-1]
    log = next(
        path for path in (project / ".harness" / "trees").glob("*.log") if str(path.relative_to(project)) in told
    )
    assert "no compiler here" in log.read_text()
    assert not log.with_suffix(".json").exists()
    assert not (project / "reports").exists()
    with pytest.raises(UnfitError):
        compare(project, "sum:sum@HEAD", "sum:sum")


def test_a_build_without_its_program_is_unfit(project):
    with pytest.raises(UnfitError) as caught:
        compare(project, "sum:sum", "sum:sum", arms__sum__run__build="no-such-tool")
    assert str(caught.value) == (
        "nothing was measured: the build of arm 'sum:sum' could not start: No such file or directory (no-such-tool)"
    )
    with pytest.raises(UnfitError) as caught:
        compare(project, "sum:sum", "sum:sum", arms__sum__run__build="true")
    assert str(caught.value) == "nothing was measured: there is no program './sum' on PATH"


def test_a_revision_that_is_not_there_is_refused(project, tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        compare(project, "sum:sum@mian", "sum:sum")
    assert str(caught.value) == (
        "'sum:sum@mian': expected a git revision after '@', found 'mian'; did you mean 'main'?"
    )
    with pytest.raises(ConfigurationError) as caught:
        compare(project, "sum:old@HEAD", "sum:sum")
    assert str(caught.value) == (
        "scenarios/sum.toml: arms.old.run.rev: expected no revision beside '@HEAD', found 'HEAD~1'; name one of them"
    )
    write(tmp_path / "bare", {"scenarios/sum.toml": SCENARIO})
    with pytest.raises(ConfigurationError) as caught:
        compare(tmp_path / "bare", "sum:sum@HEAD", "sum:sum")
    assert str(caught.value).startswith(
        "'sum:sum@HEAD': expected a git repository, of which trees are made, found none"
    )


def test_a_bare_arm_and_settings_take_a_revision(project):
    found = arms.resolve("many@HEAD~1", "sum@main", start=project)
    assert (found.a.tree.rev, found.b.tree.rev) == ("HEAD~1", "main")
    assert found.a.reference == "many@HEAD~1"
    assert arms._NAMED.match("sum:sum@HEAD~1,n=3")["settings"] == ",n=3"


def test_resolving_builds_nothing(project, harness):
    arms.resolve("sum:sum@HEAD~1", "sum:sum", start=project)
    assert not (project / ".harness").exists()
    assert "./sum" in harness("show", "sum", cwd=project).stdout


def test_data_that_is_not_ignored_is_not_swallowed(project, monkeypatch):
    monkeypatch.setattr(revision, "LARGEST_SNAPSHOT", 1000)
    write(project, {"data": "x" * 2000})
    with pytest.raises(ConfigurationError) as caught:
        compare(project, "sum:sum@HEAD", "sum:sum")
    assert "the largest of them 'data'; let .gitignore name data and results" in str(caught.value)


def test_only_the_trees_used_last_are_kept(project, monkeypatch):
    monkeypatch.setattr(revision, "KEPT", 2)
    trees = []
    for number in range(4):
        request = revision.Request(rev="HEAD", build=("true", str(number)))
        trees.append(revision.provide(request, project, "arm 'x'").folder)
        revision.release()  # as if the comparison were over
    assert [tree.exists() for tree in trees] == [False, False, True, True]
    held = revision.provide(revision.Request(rev="HEAD", build=("true", "2")), project, "arm 'x'").folder
    for number in range(4, 7):
        descriptors = dict(revision._locks)
        revision._locks.clear()  # another process
        revision.provide(revision.Request(rev="HEAD", build=("true", str(number))), project, "arm 'x'")
        revision.release()
        revision._locks.update(descriptors)
    assert held.exists()
    revision.release()


# --------------------------------------------------------------------------------------- libraries and projects

PACKAGE = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "demo-package"
version = "1"
[tool.setuptools.packages.find]
where = ["src"]
""",
    "setup.py": """\
from setuptools import Extension, setup
setup(ext_modules=[Extension("demo._native", ["src/demo/native.c"])])
""",
    "src/demo/__init__.py": "LOOPS = 1000\n",
    "src/demo/native.c": """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__native(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddStringConstant(made, "digest", "the first sources");
    return made;
}
""",
    "arm.py": """\
import os, sys
sys.path.insert(0, os.environ["HARNESS_HOME"])
from harness import worker
class Demo(worker.Workload):
    name = "demo"
    accepts = {"other": ""}
    def libraries(self):
        if self.parameters["other"]:
            sys.path.insert(0, self.parameters["other"])
        from demo import _native
        return [worker.library("demo", _native.__file__, _native.digest, None)]
    def iterate(self):
        import demo
        return {"counters": {"loops": demo.LOOPS}, "work": 1}
    def fingerprint(self):
        return {"work": 1}
worker.serve(Demo)
""",
    "scenarios/demo.toml": """\
# Is it faster?
[scenario]
name = "demo"
question = "Is it faster?"
workload = ["python", "-P", "arm.py"]
metric = "loops"
[arms.demo]
[arms.strays]
[schedule]
mode = "process"
warmup = 0
""",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A Python package with an extension module in src/, at two revisions."""
    from pathlib import Path

    root = tmp_path / "package"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    write(root, PACKAGE)
    commit(root, "first")
    write(root, {"src/demo/__init__.py": "LOOPS = 3000\n"})
    native = root / "src" / "demo" / "native.c"
    native.write_text(native.read_text().replace("first", "second"))
    commit(root, "second")
    monkeypatch.setenv("HARNESS_HOME", str(Path(revision.__file__).parents[1]))
    return root


def test_a_python_project_is_built_as_its_wheel_and_loads_its_own_library(package):
    found = compare(package, "demo:demo@HEAD~1", "demo:demo")
    assert loops(found) == {"a": 1000, "b": 3000}
    libraries = {one.arm: one.header["environment"]["libraries"][0] for one in found.of(records.Launch)}
    assert {arm: one["source_digest"] for arm, one in libraries.items()} == {
        "a": "the first sources",
        "b": "the second sources",
    }
    assert not (package / "build").exists()
    # the same, but the second arm finds the first one's library: the classic wasted week
    other = package / found.entries[0].arms["a"]["cwd"] / ".harness" / "site"
    with pytest.raises(ConfigurationError) as caught:
        compare(package, "demo:demo@HEAD~1", f"demo:strays,other={other}", scenario__fingerprint="none")
    text = str(caught.value)
    assert text.startswith("arm 'strays' runs at ")
    assert "of sources the firs" in text
    assert text.endswith(
        "which was not built in its tree; both arms would measure the same library: check the build and the import path"
    )
    assert len(list((package / "reports" / "demo").iterdir())) == 1  # the refused one left nothing


def test_a_library_that_its_tree_did_not_build_is_refused():
    made = {"commit": "c" * 40, "dirty": False, "tree": "t" * 16, "binaries": {"lib.so": "d" * 32}}
    arm = arms.Arm("b", "x:b@HEAD", "arm", ["x"], ".", revision=made)
    library = {"name": "lib", "path": "/elsewhere/lib.so", "digest": "e" * 32, "source_digest": "s" * 64}
    runner._check_libraries(arm, {"environment": {"libraries": [library | {"digest": "d" * 32}]}})
    with pytest.raises(ConfigurationError) as caught:
        runner._check_libraries(arm, {"environment": {"libraries": [library]}})
    assert "loaded /elsewhere/lib.so (eeeeeeee, of sources ssssssss), which was not built in its tree" in str(
        caught.value
    )


def test_a_record_of_revisions_can_be_resumed_only_with_the_same_trees(project):
    resolved = arms.built(arms.resolve("sum:sum@HEAD~1", "sum:sum", start=project, overrides={"schedule.pairs": 1}))
    folder = comparison.measure(resolved, command=["ab"], quiet=True)
    path = folder / records.NAME
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if json.loads(line)["kind"] != "end") + "\n")
    write(project, {"Makefile": MAKEFILE.replace("1000", "5000")})
    changed = arms.built(arms.resolve("sum:sum@HEAD~1", "sum:sum", start=project, overrides={"schedule.pairs": 1}))
    with pytest.raises(ConfigurationError) as caught:
        comparison.measure(changed, command=["ab"], quiet=True, resume=folder)
    assert "it compares other arms" in str(caught.value)
