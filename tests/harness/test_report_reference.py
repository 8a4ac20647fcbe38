"""The committed reference set: its pages are those of its records, its commits exist, and it survives a kill."""

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

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "reports" / "reference"
ARM = ROOT / "tests" / "arms" / "scripted.py"
FOLDERS = sorted(path.parent for path in REFERENCE.glob(f"*/*/{records.NAME}"))

specification = importlib.util.spec_from_file_location("make_reference", REFERENCE / "make.py")
make_reference = importlib.util.module_from_spec(specification)
specification.loader.exec_module(make_reference)


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


def project(folder, names):
    """A project with scenarios of scripted arms."""
    (folder / "scenarios").mkdir()
    for name in names:
        (folder / "scenarios" / f"{name}.toml").write_text(
            f'[scenario]\nname = "{name}"\nworkload = ["{sys.executable}", "{ARM}"]\n'
            'metric = "cpu_seconds"\n[arms.a]\n[arms.b]\n[schedule]\nblocks = 6\npairs = 1\nwarmup = 1\n'
        )
    (folder / "set").mkdir()


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


@pytest.mark.slow  # 20 s on a busy machine: twenty launches of arms
def test_reference_set_goes_on_after_a_kill_and_becomes_whole(tmp_path):
    names = ("first", "second", "third")
    project(tmp_path, names)
    running = start(tmp_path, start_new_session=True)
    while units(tmp_path, "second") < 2:
        assert running.poll() is None, "ended before it was killed"
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    first = next(tmp_path.glob(f"set/first/*/{records.NAME}")).read_bytes()
    cut = next(tmp_path.glob(f"set/second/*/{records.NAME}"))
    assert 2 <= units(tmp_path, "second") < 6
    before = cut.read_bytes()

    assert start(tmp_path).wait() == 0
    found = make_reference.present(tmp_path / "set")
    assert sorted(found) == [(name, "a", "b") for name in names]
    assert all(over for _, over in found.values())
    assert [units(tmp_path, name) for name in names] == [6, 6, 6]
    assert next(tmp_path.glob(f"set/first/*/{records.NAME}")).read_bytes() == first
    assert cut.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    assert len(list(tmp_path.glob(f"set/*/*/{records.NAME}"))) == 3
    for place, _ in found.values():
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
