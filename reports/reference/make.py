"""Makes the reference set: every scenario once, comparisons.toml and the claims; run again after a kill, it goes on.

`python reports/reference/make.py [--only SCENARIO …] [--list] [--again] [--dirty] [--picture SCENARIO]`. A comparison
that is complete is left alone, one that was cut off is resumed, the rest are measured; then all pages and the index are
written anew. Exit 0 when the set is whole, 1 when a comparison could not be made, 2 for a tree with changes or a fault
in comparisons.toml.

comparisons.toml lists what is asked beside each scenario's own arms: `comparison = [{ … }, …]`, each with `scenario`,
`a` and `b`, and where they apply `parameters` (as -p, for both arms), `predict` (two numbers, the lower bound of B/A
first) and `settings` (tables of the scenario's keys, as -s).
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from harness import records, report, scenario
from harness.errors import ConfigurationError, sentence
from harness.report import claims, words
from harness.worker import nearest

HERE = Path(__file__).resolve().parent
NAME = "comparisons.toml"
#: key of an entry -> its type, and what is expected in words
KEYS = {
    "scenario": (str, "a string"),
    "a": (str, "a string"),
    "b": (str, "a string"),
    "parameters": (dict, "a table"),
    "predict": (list, "two numbers, the lower first"),
    "settings": (dict, "a table"),
}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """One comparison of the set; `settings` are dotted keys of the scenario, `metric` is what comes of them."""

    scenario: str
    a: str
    b: str
    metric: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def asked(self) -> tuple:
        """What tells it from others; a shorter schedule asks the same."""
        return (self.scenario, self.a, self.b, self.metric, self.parameters)

    def fits(self, opening: records.Comparison) -> bool:
        """Whether a record answers it."""
        question = opening.scenario["scenario"]
        of = (question["name"], opening.arms["a"]["name"], opening.arms["b"]["name"], question["metric"])
        return (
            of == (self.scenario, self.a, self.b, self.metric)
            and opening.plan["mode"] != "accuracy"
            and claims.asks(opening, self.parameters)
        )

    def arguments(self) -> list[str]:
        """Those of `harness ab`."""
        given = [f"{self.scenario}:{self.a}", f"{self.scenario}:{self.b}"]
        for option, table in (("-p", self.parameters), ("-s", self.settings)):
            for setting in words.settings(table):
                given += [option, setting]
        return given

    def __str__(self) -> str:
        # neither a schedule nor a prediction changes what is asked
        shown = [key for key in self.settings if not key.startswith(("schedule.", "scenario.predict."))]
        told = words.settings({**self.parameters, **{key: self.settings[key] for key in shown}})
        return ", ".join([f"{self.scenario}: {self.b} against {self.a}", *told])


def _dotted(table: dict[str, Any]) -> dict[str, Any]:
    """{"schedule": {"blocks": 6}} -> {"schedule.blocks": 6}, as -s has it."""
    found = {}
    for key, value in table.items():
        inner = _dotted(value) if isinstance(value, dict) else None
        found |= {key: value} if inner is None else {f"{key}.{under}": one for under, one in inner.items()}
    return found


def listed(root: Path, folder: Path) -> list[Wanted]:
    """The entries of comparisons.toml, none where there is no such file. Raises ConfigurationError for a bad one."""
    path = folder / NAME
    if not path.exists():
        return []
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(sentence(str(path), "a TOML file", str(error))) from None
    entries = document.pop("comparison", [])
    if document or not isinstance(entries, list):
        found = f"'{next(iter(document), 'comparison')}'"
        raise ConfigurationError(sentence(str(path), "a list 'comparison' alone", found))
    return [_entry(f"{path}: comparison {position}", entry, root) for position, entry in enumerate(entries, 1)]


def _entry(where: str, entry: Any, root: Path) -> Wanted:
    if not isinstance(entry, dict):
        raise ConfigurationError(sentence(where, "a table", repr(entry)))
    for key, value in entry.items():
        if key not in KEYS:
            raise ConfigurationError(sentence(where, f"one of {scenario.quoted(KEYS)}", f"'{key}'", nearest(key, KEYS)))
        kind, expected = KEYS[key]
        if not isinstance(value, kind):
            raise ConfigurationError(sentence(f"{where}: {key}", expected, repr(value)))
    for key in ("scenario", "a", "b"):
        if key not in entry:
            raise ConfigurationError(sentence(where, f"the key '{key}'", "none"))
    parameters, settings = entry.get("parameters", {}), _dotted(entry.get("settings", {}))
    if "predict" in entry:
        settings |= {"scenario.predict.ratio": entry["predict"], "scenario.predict.arms": [entry["a"], entry["b"]]}
    known = scenario.names(root)
    name = entry["scenario"]
    if name not in known:
        raise ConfigurationError(
            sentence(f"{where}: scenario", f"one of {scenario.quoted(known)}", f"'{name}'", nearest(name, known))
        )
    arms = scenario.load(root, name).arms
    for key in "ab":
        if entry[key] not in arms:
            expected = f"an arm of '{name}', one of {scenario.quoted(arms)}"
            hint = nearest(entry[key], arms)
            raise ConfigurationError(sentence(f"{where}: {key}", expected, f"'{entry[key]}'", hint))
    try:
        loaded = scenario.load(root, name, settings | {f"parameters.{key}": value for key, value in parameters.items()})
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return Wanted(name, entry["a"], entry["b"], loaded.scenario.metric, parameters, settings)


def wanted(root: Path, folder: Path) -> list[Wanted]:
    """The set: the arms of each scenario's prediction, else its first two; the entries of comparisons.toml; claims."""
    scenarios = {name: scenario.load(root, name) for name in scenario.names(root)}
    found = []
    for name, loaded in scenarios.items():
        if len(loaded.arms) >= 2:
            a, b = loaded.scenario.predict.arms or list(loaded.arms)[:2]
            found.append(Wanted(name, a, b, loaded.scenario.metric))
    found += listed(root, folder)
    for claim in claims.read(folder):
        loaded = scenarios.get(claim.get("scenario"))
        if loaded and {claim["a"], claim["b"]} <= set(loaded.arms):
            of = (claim["scenario"], claim["a"], claim["b"], loaded.scenario.metric)
            found.append(Wanted(*of, claim.get("parameters", {})))
    return [one for place, one in enumerate(found) if one.asked not in [earlier.asked for earlier in found[:place]]]


def present(folder: Path) -> list[tuple[records.Comparison, Path, bool]]:
    """What is there, oldest first: how each comparison opens, its folder, and whether it is over."""
    found = []
    for path in sorted(folder.glob(f"*/*/{records.NAME}"), key=lambda path: (path.parent.name, path)):
        entries = records.read(path)
        over = any(end.state in ("complete", "stopped") for end in records.of(entries, records.End)[-1:])
        found.append((entries[0], path.parent, over))
    return found


def newest(one: Wanted, there: list[tuple[records.Comparison, Path, bool]]) -> tuple[Path | None, bool]:
    """The folder of the newest comparison that answers it, and whether that is over; (None, False) without one."""
    return next(((place, over) for opening, place, over in reversed(there) if one.fits(opening)), (None, False))


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
    parser.add_argument(
        "--picture", metavar="SCENARIO", help="take report.png of its newest comparison, measure nothing"
    )
    parser.add_argument("--folder", type=Path, default=HERE, help="where the set is (default: beside this file)")
    options = parser.parse_args(argv)
    if options.picture:
        there = [one for one in present(options.folder) if one[0].scenario["scenario"]["name"] == options.picture]
        if not there:
            print(f"no comparison of '{options.picture}' in {options.folder}", file=sys.stderr)
            return 1
        picture(there[-1][1] / "report.html", options.folder / "report.png")
        return 0
    root = scenario.project_root(Path.cwd())
    if root is None:
        print("no folder 'scenarios' here or above; go into the project", file=sys.stderr)
        return 2
    try:
        chosen = [one for one in wanted(root, options.folder) if not options.only or one.scenario in options.only]
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    if not options.list and not options.dirty and changed(root):
        print("the tree has changes; commit them first, so that the records name a commit", file=sys.stderr)
        return 2
    missing = 0
    there = present(options.folder)
    for one in chosen:
        place, over = newest(one, there)
        state = "there" if over else "cut off" if place else "missing"
        print(f"{state:<8} {one}", file=sys.stderr, flush=True)
        if options.list or (over and not options.again):
            missing += not over
            continue
        command = [sys.executable, "-m", "harness", "ab", *one.arguments()]
        command += ["--reports", os.path.relpath(options.folder, root)]
        if place and not over:
            command += ["--resume", str(place)]
        code = subprocess.run(command, cwd=root).returncode
        if code not in (0, 1, 3, 4):
            print(f"{one}: harness ended with {code}", file=sys.stderr)
            missing += 1
    if not options.list:
        there = present(options.folder)
        for _, place, _ in there:
            report.write(place, records.read(place))
        if there:
            report.write_index(options.folder)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
