"""Makes the reference set: every scenario once, the claims' arms included; run again after a kill, it goes on.

`python reports/reference/make.py [--only SCENARIO …] [--list] [--again] [--dirty] [--picture SCENARIO]`. A comparison
that is complete is left alone, one that was cut off is resumed, the rest are measured; then all pages and the index are
written anew. Exit 0 when the set is whole, 1 when a comparison could not be made, 2 for a tree with changes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import records, report, scenario
from harness.report import claims

HERE = Path(__file__).resolve().parent


def wanted(root: Path, folder: Path) -> list[tuple[str, str, str]]:
    """(scenario, A, B) of the set: the arms of a scenario's prediction, else its first two, and those of claims."""
    found = []
    known = {}
    for name in scenario.names(root):
        loaded = scenario.load(root, name)
        known[name] = list(loaded.arms)
        if len(known[name]) >= 2:
            found.append((name, *(loaded.scenario.predict.arms or known[name][:2])))
    for claim in claims.read(folder):
        one = (claim["scenario"], claim["a"], claim["b"])
        if one not in found and {claim["a"], claim["b"]} <= set(known.get(claim["scenario"], ())):
            found.append(one)
    return found


def present(folder: Path) -> dict[tuple[str, str, str], tuple[Path, bool]]:
    """(scenario, A, B) -> the newest comparison's folder, and whether it is over."""
    found = {}
    for path in sorted(folder.glob(f"*/*/{records.NAME}")):
        entries = records.read(path)
        opening = entries[0]
        key = (opening.scenario["scenario"]["name"], opening.arms["a"]["name"], opening.arms["b"]["name"])
        over = any(end.state in ("complete", "stopped") for end in records.of(entries, records.End)[-1:])
        found[key] = (path.parent, over)
    return found


def changed(root: Path) -> bool:
    """Whether tracked files differ from the commit; a reference names a commit that anyone can check out."""
    done = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
    )
    return done.returncode != 0 or bool(done.stdout.strip())


def picture(page: Path, target: Path) -> None:
    """The upper part of a page as a PNG, 1100 pixels wide, taken by Chromium.

    Raises FileNotFoundError when there is no Chromium, CalledProcessError when it fails.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise FileNotFoundError("no Chromium on this machine; apt install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--window-size=1100,1260", f"--screenshot={target}", page.as_uri()]
        home = os.environ | {"HOME": profile}  # it writes crash settings there
        subprocess.run(command, check=True, capture_output=True, timeout=120, env=home)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="SCENARIO", help="these scenarios alone")
    parser.add_argument("--list", action="store_true", help="say what is there and what is missing, measure nothing")
    parser.add_argument("--again", action="store_true", help="measure complete ones anew, beside the old")
    parser.add_argument("--dirty", action="store_true", help="measure although the tree has changes")
    parser.add_argument("--picture", metavar="SCENARIO", help="take report.png of its comparison, measure nothing")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the set is (default: beside this file)")
    options = parser.parse_args(argv)
    if options.picture:
        there = [place for (name, *_), (place, _) in present(options.folder).items() if name == options.picture]
        if not there:
            print(f"no comparison of '{options.picture}' in {options.folder}", file=sys.stderr)
            return 1
        picture(there[0] / "report.html", options.folder / "report.png")
        return 0
    root = scenario.project_root(Path.cwd())
    if root is None:
        print("no folder 'scenarios' here or above; go into the project", file=sys.stderr)
        return 2
    chosen = [one for one in wanted(root, options.folder) if not options.only or one[0] in options.only]
    if not options.list and not options.dirty and changed(root):
        print("the tree has changes; commit them first, so that the records name a commit", file=sys.stderr)
        return 2
    missing = 0
    for name, a, b in chosen:
        place, over = present(options.folder).get((name, a, b), (None, False))
        state = "there" if over else "cut off" if place else "missing"
        print(f"{state:<8} {name}: {b} against {a}", file=sys.stderr, flush=True)
        if options.list or (over and not options.again):
            missing += not over
            continue
        command = [
            sys.executable,
            "-m",
            "harness",
            "ab",
            f"{name}:{a}",
            f"{name}:{b}",
            "--reports",
            os.path.relpath(options.folder, root),
        ]
        if place and not over:
            command += ["--resume", str(place)]
        code = subprocess.run(command, cwd=root).returncode
        if code not in (0, 1, 3, 4):
            print(f"{name}: harness ended with {code}", file=sys.stderr)
            missing += 1
    if not options.list:
        for place, _ in present(options.folder).values():
            report.write(place, records.read(place))
        if present(options.folder):
            report.write_index(options.folder)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
