"""`harness ab pytest:PATH@rev pytest:PATH`: every pytest-benchmark test is a comparison of its own, Holm across them.

PATH is what pytest takes: a folder, a file, or one test by its node id (file::test), from the project's root or
scenario.cwd below it.
Benchmarks are paired by node id, relative to PATH; those on one side only are named. Each pair is measured by the same
engine as any two arms, into reports/pytest-<name>/, and the run as a whole has its summary.json in
reports/pytest-<digest8>/.

Holm (Scand. J. Stat. 6 (1979) 65): of K benchmarks the one with the smallest p must be below alpha/K, the next below
alpha/(K - 1), and so on; a regression or improvement that fails this is inconclusive. p is that of the signed-rank
test against the margin.
"""

import dataclasses
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import analysis, arms, comparison, gate, records, revision, stats
from harness import report as reporting
from harness import scenario as scenarios
from harness.arms import Arm, Resolved
from harness.errors import ConfigurationError, UnfitError, sentence
from harness.process import ArmProcess, VoidSlot

PREFIX = "pytest:"
PROGRAM = Path(__file__).with_name("pytest_arm.py")
#: seconds that a collection may take
COLLECTION_PATIENCE = 600.0
SUITE_SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two suites.

    Attributes
    ----------
    reference : str            as the user wrote it
    path : str                 file or folder, from the project's root
    arm : Arm                  how its programs run; the command lacks the node
    nodes : dict               id relative to the path -> node id
    """

    reference: str
    path: str
    arm: Arm
    nodes: dict[str, str]


def is_reference(text: str) -> bool:
    """Whether an arm reference is a suite of benchmarks."""
    return text.startswith(PREFIX)


def compare(
    a: str,
    b: str,
    *,
    overrides: dict[str, Any],
    command: list[str],
    start: Path | None = None,
    reports: Path | None = None,
    resume: Path | None = None,
    keep_going: bool = False,
    quiet: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Measure every benchmark that both suites have; returns the run's folder and its summary.

    Raises ConfigurationError, UnfitError (nothing to measure, a build or collection failed) or Interrupted.
    """
    say: Callable[[str], None] = (lambda _: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    for first, second in ((a, b), (b, a)):
        if not is_reference(second):
            raise ConfigurationError(f"'{first}' is a suite of benchmarks, '{second}' is not; compare like with like")
    start = start or Path.cwd()
    root = scenarios.project_root(start) or start.resolve()
    sides = _sides(a, b, root, overrides, say)
    common = [name for name in sides[0].nodes if name in sides[1].nodes]
    only = [sorted(one.nodes.keys() - other.nodes.keys()) for one, other in (sides, sides[::-1])]
    for side, names in zip(sides, only):
        if names:
            say(f"only in {side.reference}: {', '.join(names)}")
    if not common:
        raise UnfitError(f"nothing was measured: {a} and {b} have no benchmark in common")
    if resume is not None:
        folder, done = resume, _started(resume)
    else:
        digest = hashlib.sha256(f"{a}\0{b}".encode()).hexdigest()[:8]
        folder = (reports or root / "reports") / f"pytest-{digest}" / comparison.new_run()
        folder.mkdir(parents=True)
        done = {}
    reports = reports or root / "reports"
    for name in common:
        resolved = _resolved(name, sides, root, overrides, len(common))
        say(f"benchmark {name}")
        place = done.get(name)
        if place is None or not _complete(reports / place):
            made = comparison.measure(
                resolved,
                command=command,
                reports=reports,
                resume=None if place is None else reports / place,
                keep_going=keep_going,
                quiet=quiet,
                started=lambda path, name=name: _remember(folder, done, name, str(path.relative_to(reports))),
            )
            reporting.write(made, records.read(made))
    summary = summarise({name: records.read(reports / done[name]) for name in common})
    summary |= {"command": ["harness", *command], "a": a, "b": b, "only_a": only[0], "only_b": only[1]}
    for one in summary["benchmarks"]:
        one["folder"] = done[one["name"]]
    reporting.replace(
        folder / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )
    return folder, summary


def summarise(entries: dict[str, list]) -> dict[str, Any]:
    """The verdict of every benchmark's record, with Holm's correction across them; pure."""
    read = {name: analysis.Analysis(found) for name, found in entries.items()}
    before = {name: one.verdict for name, one in read.items()}
    ps = {name: _p_value(one, before[name]) for name, one in read.items()}
    adjusted = dict(zip(ps, map(float, stats.holm(list(ps.values())))))
    benchmarks, worst, alpha = [], 0, None
    for name, one in read.items():
        summary, verdict, alpha = one.summary(), before[name], one.alpha
        if verdict.word in ("regression", "improvement") and adjusted[name] > alpha:
            verdict = gate.Verdict(
                "inconclusive",
                f"by itself it is {verdict.word} (p = {ps[name]:.2g} against the margin), "
                f"but not among {len(read)} benchmarks (p = {adjusted[name]:.2g} by Holm)",
            )
        code = gate.exit_code(verdict.word, one.gate.get("strict", False))
        worst = gate.worst((worst, code))
        benchmarks.append(
            {
                "name": name,
                "ratio": summary["ratio"],
                "values": summary["values"],
                "metric": summary["metric"],
                "verdict": {"word": verdict.word, "reason": verdict.reason},
                "alone": before[name].word,
                "p": ps[name],
                "p_adjusted": adjusted[name],
                "exit_code": code,
            }
        )
    return {"schema": SUITE_SCHEMA, "benchmarks": benchmarks, "alpha": alpha, "exit_code": worst}


def _p_value(one: analysis.Analysis, verdict: gate.Verdict) -> float:
    """How sure a claim of change is: p against the margin, or of deaths in one arm alone; 1 where none is made."""
    values = [unit.value for unit in one.kept if unit.value is not None]
    sign = -1 if one.direction == "higher" else 1
    margin = {"regression": sign * math.log1p(one.margin), "improvement": -sign * math.log1p(one.margin)}
    if verdict.word not in margin:
        return 1.0
    if len(values) < stats.units_needed(one.levels()[0]):  # decided by voids
        return 2.0 ** -one.void_units["b"]
    return float(stats.signed_rank_p(values, margin[verdict.word]))


def terminal(summary: dict[str, Any], reports: Path) -> str:
    """What a person reads: one line a benchmark, then what it means together."""
    lines = []
    widest = max(len(one["name"]) for one in summary["benchmarks"])
    for one in summary["benchmarks"]:
        ratio = one["ratio"]
        shown = "no ratio" if ratio["estimate"] is None else f"{ratio['estimate']:.3f}"
        if ratio["low"] is not None:
            shown += f"  [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        lines.append(f"{one['name']:<{widest}}  B/A {shown:<24}  {one['verdict']['word']}")
        if one["alone"] != one["verdict"]["word"] or one["exit_code"] in (1, 4):
            lines.append(f"{'':<{widest}}  {one['verdict']['reason']}")
        lines.append(f"{'':<{widest}}  {reports / one['folder'] / 'report.html'}")
    for letter in "ab":
        if summary[f"only_{letter}"]:
            lines.append(f"only in {summary[letter]}: {', '.join(summary[f'only_{letter}'])}")
    words = [one["verdict"]["word"] for one in summary["benchmarks"]]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    together = f"{100 * summary['alpha']:.3g} %"
    lines.append(f"{len(words)} benchmarks: {counts} (claims of change hold together at {together})")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------- the two suites


def _sides(a: str, b: str, root: Path, overrides: dict[str, Any], say) -> list[Side]:
    scenario = _scenario("collection", overrides, 1)
    cwd = root / (scenario.scenario.cwd or ".")
    parsed = [_parse(text, root, cwd) for text in (a, b)]
    apart = any(rev is not None for _, rev in parsed)
    sides = []
    for text, (path, rev) in zip((a, b), parsed):
        build = scenario.scenario.build
        words = None if build is None else tuple(scenarios.words(build, scenario.scenario.shell, "scenario.build"))
        arm = Arm(
            name=rev or "working tree",
            reference=text,
            kind="arm",
            command=[sys.executable, "-P", str(PROGRAM)],
            cwd=str(cwd),
            tree=revision.Request(rev=rev, build=words) if apart else None,
        )
        resolved = arms.built(arms.checked(Resolved(scenario, arm, arm, root, root)), say)
        sides.append(Side(text, path, resolved.a, _collect(resolved.a, text, path)))
    return sides


def _parse(text: str, root: Path, cwd: Path) -> tuple[str, str | None]:
    """PATH and revision. Raises ConfigurationError for a path that is not there, or a second way to read it."""
    path, _, rev = text.removeprefix(PREFIX).partition("@")
    if not path:
        raise ConfigurationError(sentence(text, "pytest:PATH or pytest:PATH@revision", "no path"))
    if PREFIX[:-1] in scenarios.names(root) and "/" not in path:
        raise ConfigurationError(
            f"'{text}' can be read in two ways: an arm of the scenario 'pytest', and the benchmarks in {path}; "
            f"write {PREFIX}./{path} for the benchmarks, or give the scenario another name"
        )
    if rev:
        revision.commit_of(root, rev, f"'{text}'")
    elif not (cwd / path.partition("::")[0]).exists():
        raise ConfigurationError(sentence(text, f"a file or folder of tests in {cwd}", f"no '{path}'"))
    return path, rev or None


def _collect(arm: Arm, text: str, path: str) -> dict[str, str]:
    """Node ids of the benchmarks by their ids relative to the path, in pytest's order."""
    try:
        with ArmProcess(
            [*arm.command, "--collect", path], cwd=arm.cwd, environment=arm.environment, speaks_protocol=False
        ) as process:
            nodes = json.loads(process.wait(COLLECTION_PATIENCE).output.splitlines()[-1])
    except VoidSlot as void:
        said = (void.stderr.strip().splitlines() or [void.message])[-1]
        raise UnfitError(f"nothing was measured: pytest could not collect {text}: {said}") from None
    if not nodes:
        raise UnfitError(f"nothing was measured: there is no test with a benchmark fixture in {text}")
    folder = Path(path) if (Path(arm.cwd) / path).is_dir() else Path(path).parent
    prefix = "" if folder == Path(".") else f"{folder.as_posix()}/"
    return {node.removeprefix(prefix): node for node in nodes}


def _scenario(name: str, overrides: dict[str, Any], suite: int) -> scenarios.Scenario:
    """The scenario of one benchmark among `suite`: enough blocks that it can be significant beside the others."""
    blocks = max(8, math.ceil(math.log2(suite / overrides.get("gate.alpha", 0.05))) + 2)
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-")[:60]
    data: dict[str, Any] = {
        "scenario": {
            "name": f"pytest-{slug}-{hashlib.sha256(name.encode()).hexdigest()[:6]}",
            "question": f"Is {name} faster?",
            "workload": ["python", "-P", PROGRAM.name],
            "metric": "seconds_per_unit",
        },
        "schedule": {"mode": "resident", "blocks": blocks},
        "work": {"unit": "call", "minimum": 1},
    }
    scenarios.override(data, overrides)
    return scenarios.parse(data, "command line")


def _resolved(name: str, sides: list[Side], root: Path, overrides: dict[str, Any], suite: int) -> Resolved:
    ready = []
    for side in sides:
        node = side.nodes[name]
        words = ["--arm", side.arm.name, "--set", f"node={json.dumps(node, ensure_ascii=False)}"]
        command = [*side.arm.command, *words]
        ready.append(dataclasses.replace(side.arm, command=command, parameters={"node": node}))
    return arms.checked(Resolved(_scenario(name, overrides, suite), ready[0], ready[1], root, root))


# ------------------------------------------------------------------------------------------------- going on


def _started(folder: Path) -> dict[str, str]:
    """Which benchmarks of an interrupted run were started, and where their records are."""
    try:
        return json.loads((folder / "started.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            sentence(f"{folder}/started.json", "what an interrupted run of benchmarks left", str(error))
        ) from None


def _remember(folder: Path, done: dict[str, str], name: str, place: str) -> None:
    done[name] = place
    reporting.replace(folder / "started.json", json.dumps(done, indent=1, ensure_ascii=False) + "\n")


def _complete(folder: Path) -> bool:
    last = records.read(folder)[-1]
    return isinstance(last, records.End) and last.state != "interrupted"
