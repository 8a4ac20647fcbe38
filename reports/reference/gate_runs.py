"""Does `harness gate` name what was planted in a small repository, and nothing else?

`python reports/reference/gate_runs.py` makes a small repository anew for every run, with four gated scenarios (CPU
time, margin 5 %) over a base commit, commits one change and gates it: ten times a slowdown of 15 % in one scenario, ten
times words only, once each a wrong result, a failing build and a deleted scenario, and once the slowdown among twelve
scenarios that count instructions (needs valgrind). One line a run is appended to gate-runs.jsonl beside this file, and
a second start goes on where the first one ended. `--show` prints what the file says.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("gate-runs.jsonl")
#: the scenario that changes are planted in
PLANTED = "count"
FOUR = ("parse", PLANTED, "polynomial", "checksum")
TWELVE = tuple(f"{name}{size}" for name in FOUR for size in ("", "-2", "-3"))
#: (change, metric, scenarios) of every run
PLAN = [
    *[("slower", "cpu_seconds", FOUR)] * 10,
    *[("words", "cpu_seconds", FOUR)] * 10,
    ("wrong", "cpu_seconds", FOUR),
    ("broken", "cpu_seconds", FOUR),
    ("deleted", "cpu_seconds", FOUR),
    ("slower", "instructions", TWELVE),
]

LIBRARY = """\
import zlib

ROWS = [f"{i},{i * i % 997},{i * 7 % 31}" for i in range(3000)]


def parse(rows):
    return sum(sum(map(int, row.split(","))) for row in rows)


def count(rows):
    found = {}
    for row in rows:
        for word in row.split(","):
            found[word] = found.get(word, 0) + 1
    return max(found.values())


def polynomial(rows):
    total = 0.0
    for i in range(4 * len(rows)):
        x = i / 12000
        total += ((0.25 * x + 0.5) * x + 1.0) * x + 2.0
    return total


def checksum(rows):
    state = 0
    for row in rows:
        state = zlib.crc32(row.encode(), state)
    return state


def again(name, rows):
    \"\"\"The result of the part of this name, and how many rows it took; 'parse-2' takes every second row.\"\"\"
    part, _, step = name.partition("-")
    part, rows = globals()[part], rows[:: int(step or 1)]
    return part(rows), len(rows)
"""
ARM = """\
import library
from harness import worker


class Small(worker.Workload):
    name = "small"
    accepts = {"part": "parse"}

    def iterate(self):
        self.result, rows = library.again(self.parameters["part"], library.ROWS)
        return {"work": 1, "counters": {"rows": rows}}

    def fingerprint(self):
        return {"work": 1, "digests": {"result": repr(self.result)}}


if __name__ == "__main__":
    worker.serve(Small)
"""
COMMAND = """\
import sys

import library

for _ in range(3):
    result, _ = library.again(sys.argv[1], library.ROWS)
open("result.txt", "w").write(repr(result))
"""
SCENARIO = """\
# Is {name} as fast as before?
[scenario]
name = "{name}"
question = "Is {name} as fast as before?"
metric = "{metric}"
{how}
[gate]
margin = 0.05
"""
RESIDENT = """\
workload = ["python", "arm.py"]
[arms.{name}]
part = "{name}"
[schedule]
pairs = {pairs}
warmup = {warmup}"""
COUNTED = """\
outputs = ["result.txt"]
[arms.{name}.run]
command = ["python", "-S", "run.py", "{name}"]
[schedule]
mode = "process\""""
#: what is planted: a replacement in library.py
CHANGES = {
    "slower": ("return part(rows), len(rows)", "return part(rows), len(rows) + extra(name, rows)"),
    "wrong": ("return max(found.values())", "return max(found.values()) + 1"),
}
EXTRA = f"""


def extra(name, rows):
    more = rows[: len(rows) * 15 // 100] if name == "{PLANTED}" else []
    if more:
        {PLANTED}(more)
    return len(more)
"""


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"git {words[0]} failed: {done.stderr}")
    return done.stdout.strip()


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def scenario(name: str, metric: str) -> str:
    """A scenario file; metric "rows" is a counter, which every machine reports alike."""
    quick = metric == "rows"
    how = COUNTED if metric == "instructions" else RESIDENT
    how = how.format(name=name, pairs=1 if quick else 10, warmup=0 if quick else 2)
    return SCENARIO.format(name=name, metric=metric, how=how)


def make(folder: Path, names: tuple[str, ...], metric: str) -> None:
    """The repository with its base commit."""
    (folder / "scenarios").mkdir(parents=True)
    files = {"library.py": LIBRARY, "arm.py": ARM, "run.py": COMMAND, "README": "Small.\n"}
    files[".gitignore"] = "reports/\n.harness/\n__pycache__/\nresult.txt\n"
    files |= {f"scenarios/{name}.toml": scenario(name, metric) for name in names}
    for path, text in files.items():
        (folder / path).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "base")


def change(folder: Path, what: str) -> None:
    """Commit one change."""
    planted = folder / "scenarios" / f"{PLANTED}.toml"
    if what in CHANGES:
        old, new = CHANGES[what]
        text = LIBRARY.replace(old, new)
        (folder / "library.py").write_text(text + EXTRA if what == "slower" else text)
    elif what == "words":
        (folder / "README").write_text("Small, and described.\n")
    elif what == "broken":
        planted.write_text(planted.read_text().replace("[scenario]", '[scenario]\nbuild = "false"'))
    elif what == "deleted":
        planted.unlink()
    else:
        raise ValueError(f"expected slower, words, wrong, broken or deleted, found {what!r}")
    commit(folder, what)


def gate(folder: Path, *options: str) -> tuple[int, dict | None, str]:
    """Exit code, gate.json (None when there is none) and what was said on standard error."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    words = [sys.executable, "-m", "harness", "gate", "--json", "--quiet", *options]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else None, done.stderr


def expected(what: str, row: dict) -> bool:
    """Whether a run came out as it must: what was planted is named, and no other scenario ever."""
    words = dict(row["words"])
    planted = words.pop(PLANTED, None)
    named = set(words.values()) & {"regression", "wrong-result", "unfit"}
    if named or (what == "words" and row["exit"] == 1):
        return False
    return {
        "slower": planted == "regression" and row["exit"] == 1,
        "words": row["exit"] == 0,
        "wrong": planted == "wrong-result" and row["exit"] == 1,
        "broken": planted == "unfit" and row["exit"] == 4,
        "deleted": planted is None and row["deleted"] == [PLANTED] and row["exit"] in (0, 3),
    }[what]


def measure(what: str, metric: str, names: tuple[str, ...]) -> dict:
    """One run."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=ROOT / ".harness") as place:
        folder = Path(place) / "small"
        make(folder, names, metric)
        change(folder, what)
        code, found, said = gate(folder)
    if found is None:
        raise RuntimeError(f"the gate ended with {code}: {said}")
    row = {
        "exit": code,
        "words": {one["scenario"]: one["verdict"]["word"] for one in found["scenarios"]},
        "ratios": {one["scenario"]: one["ratio"] for one in found["scenarios"]},
        "deleted": found["deleted"],
        "foreign": max((one["foreign"]["median_cores"] or 0.0 for one in found["scenarios"]), default=None),
        "seconds": round(time.monotonic() - begin, 1),
    }
    return row | {"as_expected": expected(what, row)}


def done() -> list[dict]:
    """The runs that the file holds."""
    if not RECORD.exists():
        return []
    return [json.loads(line) for line in RECORD.read_text().splitlines() if line.endswith("}")]


def show(found: list[dict]) -> None:
    """How many runs of each kind came out as they must."""
    for what, metric, names in dict.fromkeys(PLAN):
        rows = [row for row in found if (row["what"], row["metric"]) == (what, metric)]
        if rows:
            good = sum(row["as_expected"] for row in rows)
            exits = {code: sum(row["exit"] == code for row in rows) for code in sorted({row["exit"] for row in rows})}
            others = sum(
                word in ("regression", "wrong-result", "unfit")
                for row in rows
                for name, word in row["words"].items()
                if name != PLANTED
            )
            seconds = sorted(row["seconds"] for row in rows)[len(rows) // 2]
            print(
                f"{what}, {len(names)} scenarios, {metric}: {good} of {len(rows)} as expected; exit codes {exits}; "
                f"{others} other scenarios named; {seconds:.0f} s in the median"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print what was found so far")
    options = parser.parse_args()
    found = done()
    if not options.show:
        (ROOT / ".harness").mkdir(exist_ok=True)
        with RECORD.open("a") as file:
            for number, (what, metric, names) in list(enumerate(PLAN))[len(found) :]:
                row = {"number": number, "what": what, "metric": metric, **measure(what, metric, names)}
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{number + 1} of {len(PLAN)}: {what}: exit {row['exit']}, {row['words']}", file=sys.stderr)
        found = done()
    show(found)
