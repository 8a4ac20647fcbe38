"""`harness gate`: every gated scenario against a base revision, interleaved, judged as one family."""

import contextlib
import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from harness import analysis, arms, comparison, gate, records, scenario, schedule, stats
from harness.errors import ConfigurationError, UnfitError, sentence
from harness.progress import duration
from harness.worker import nearest

#: branches that a change is merged into, in order of preference
_TARGETS = ("origin/HEAD", "origin/main", "origin/master", "main", "master")


@dataclasses.dataclass
class Item:
    """One scenario of the gate.

    Attributes
    ----------
    units : int              how many independent units it gets
    word : str               what they are: pairs, blocks or runs
    """

    name: str
    a: str
    b: str
    units: int
    word: str
    unfit: str = ""


@dataclasses.dataclass(frozen=True)
class Gate:
    """What is going to be run: the items, the base revision, and gated scenarios that exist only there."""

    root: Path
    base: str
    items: list[Item]
    deleted: list[str]
    alpha: float


def _git(root: Path, *words: str) -> str | None:
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(root), *words], capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip() if done.returncode == 0 else None


def base_revision(root: Path, asked: str | None) -> str:
    """The commit to compare with: the asked one, else the merge base with the main branch, HEAD~1 when that is HEAD.

    Raises ConfigurationError when there is none.
    """
    if asked is not None:
        found = _git(root, "rev-parse", "--verify", "--quiet", f"{asked}^{{commit}}")
        if found is None:
            raise ConfigurationError(sentence("--base", "a git revision", f"'{asked}'", "see git log"))
        return found
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if head is None:
        raise ConfigurationError(sentence(str(root), "a git repository with a commit", "none", "commit first"))
    for target in _TARGETS:
        merge_base = _git(root, "merge-base", "HEAD", target)
        if merge_base is not None and merge_base != head:
            return merge_base
    previous = _git(root, "rev-parse", "--verify", "--quiet", "HEAD~1")
    if previous is None and _git(root, "rev-parse", "--is-shallow-repository") == "true":
        next_step = "fetch the rest: git fetch --unshallow"
        raise ConfigurationError(sentence(str(root), "the history before HEAD", "a shallow clone", next_step))
    if previous is None:
        raise ConfigurationError(sentence(str(root), "a commit before HEAD", "the first one", "name it: --base REV"))
    return previous


def plan(root: Path, names: list[str], *, base: str | None, units: int | None) -> Gate:
    """Resolve every scenario of the gate; nothing is built or run.

    `units` overrides how many units each scenario gets. Raises ConfigurationError for what cannot be read, UnfitError
    when so many units could not fail a gate of so many scenarios.
    """
    known = scenario.gated(root)
    for name in names:
        scenario.load(root, name)  # says what is wrong with the name
        if name not in known:
            raise ConfigurationError(
                sentence(f"{scenario.FOLDER}/{name}.toml", "a table [gate]", "none", "add it, if only with a margin")
            )
    chosen = names or known
    if not chosen:
        gone = _deleted(root, base_revision(root, base)) if _git(root, "rev-parse", "--verify", "HEAD~1") else []
        found = f"none any more: {scenario.quoted(gone)} of the base" if gone else "none"
        raise ConfigurationError(sentence(str(root), "a scenario with a table [gate]", found, "add [gate] to one"))
    loaded = [scenario.load(root, name) for name in chosen]
    alpha = min(one.gate.alpha for one in loaded)
    if units is not None and not schedule.gate_can_fail(units, len(loaded), alpha):
        raise UnfitError(
            f"{units} units cannot fail a gate of {len(loaded)} scenarios at alpha {alpha:g}; "
            f"it needs {schedule.gate_units(len(loaded), alpha)}"
        )
    revision = base_revision(root, base)
    items = []
    for one in loaded:
        asked = units or max(one.schedule.fixed_units or 0, schedule.gate_units(len(loaded), alpha))
        a, b = _references(one, revision)
        if one.scenario.metric == "instructions":
            items.append(Item(one.name, a, b, 3, "runs"))
        else:
            items.append(Item(one.name, a, b, asked, "pairs" if one.schedule.mode == "process" else "blocks"))
    return Gate(root, revision, items, _deleted(root, revision) if not names else [], alpha)


def _references(one: scenario.Scenario, base: str) -> tuple[str, str]:
    chosen = one.gate.arms or list(one.arms)
    for arm in chosen:
        if arm not in one.arms:
            place, known = f"scenarios/{one.name}.toml: gate.arms", scenario.quoted(one.arms)
            raise ConfigurationError(sentence(place, f"arms among {known}", f"'{arm}'", nearest(arm, one.arms)))
    if one.gate.arms is None and len(chosen) != 1:
        raise ConfigurationError(
            sentence(
                f"scenarios/{one.name}.toml: gate.arms",
                "the arm to compare with itself at the base revision, or two arms",
                "nothing",
                f"it has {scenario.quoted(one.arms)}",
            )
        )
    if len(chosen) == 2:
        return f"{one.name}:{chosen[0]}", f"{one.name}:{chosen[1]}"
    return f"{one.name}:{chosen[0]}@{base}", f"{one.name}:{chosen[0]}"


def _deleted(root: Path, base: str) -> list[str]:
    """Gated scenarios of the base that the working tree does not have any more."""
    import tomllib

    top = _git(root, "rev-parse", "--show-prefix")
    listed = _git(root, "ls-tree", "--name-only", f"{base}:{top or ''}{scenario.FOLDER}") or ""
    gone = []
    for file in listed.splitlines():
        if file.endswith(".toml") and not (root / scenario.FOLDER / file).exists():
            text = _git(root, "show", f"{base}:{top or ''}{scenario.FOLDER}/{file}") or ""
            with contextlib.suppress(tomllib.TOMLDecodeError):
                if "gate" in tomllib.loads(text):
                    gone.append(file.removesuffix(".toml"))
    return gone


def forecast(item: Item, reports: Path) -> tuple[float | None, float | None]:
    """Seconds that an item takes and the effect that it shows, by its scenario's last record; None where unknown.

    A unit takes as long as the windows of its load, which surround its launches, pairs and counts of instructions; the
    other scenarios, whose units run in turn with it, are not in them.
    """
    for folder in sorted((reports / item.name).glob("*"), reverse=True):
        try:
            entries = records.read(folder)
            found = analysis.Analysis(entries)
        except (ConfigurationError, ValueError):
            continue
        values = [unit.value for unit in found.kept if unit.value is not None]
        if not values or (len(values) < 4 and found.method != "deterministic"):
            continue
        spent = dict.fromkeys((unit.unit for unit in found.kept), 0.0)
        for one in records.of(entries, records.Load):
            if one.unit in spent:
                spent[one.unit] += one.elapsed
        seconds = sorted(spent.values())[len(spent) // 2] * item.units
        if found.method == "deterministic":
            return seconds, found.margin
        return seconds, float(stats.mde_factor(item.units) * stats.robust_sd(values, 0.0)) + found.margin
    return None, None


def told(plan: Gate, reports: Path) -> list[str]:
    """What `gate --dry-run` says: what would be compared, for how long, and on which effect it can fail."""
    subject = _git(plan.root, "log", "-1", "--format=%s", plan.base)
    many = f"{len(plan.items)} scenario{'s' if len(plan.items) > 1 else ''}"
    lines = [f"base {plan.base[:10]} '{subject}'; {many}, alpha {plan.alpha:g} for all together"]
    total, unknown = 0.0, 0
    for item in plan.items:
        seconds, effect = forecast(item, reports)
        total, unknown = total + (seconds or 0.0), unknown + (seconds is None)
        known = (
            "never measured here" if seconds is None else f"about {duration(seconds)}, fails on {100 * effect:.3g} %"
        )
        a, b = (text.partition(":")[2].replace(plan.base, plan.base[:10]) for text in (item.a, item.b))
        lines.append(f"{item.name}: {b} against {a}, {item.units} {item.word}, {known}")
    lines += [f"{name}: deleted: this gated scenario exists at the base only" for name in plan.deleted]
    if unknown < len(plan.items):
        lines.append(f"about {duration(total)}" + (" for those measured before" if unknown else " and the builds"))
    return lines


def run(plan: Gate, reports: Path, *, time_budget: float | None, quiet: bool, say) -> list[tuple[Path | None, list]]:
    """Build and run every item, a unit of each in turn; (folder, entries) of each, in the order of the items.

    A failed build or missing program is written to the item's record as unfit; the others go on.
    """
    with contextlib.ExitStack() as stack:
        opened = []
        for item in plan.items:
            overrides: dict[str, Any] = {}
            one = scenario.load(plan.root, item.name)
            key = "schedule.pairs" if one.schedule.mode == "process" else "schedule.blocks"
            if one.scenario.metric != "instructions":
                overrides[key] = item.units
            resolved = arms.resolve(item.a, item.b, start=plan.root, overrides=overrides)
            try:
                resolved = arms.built(resolved, say)
            except UnfitError as error:
                item.unfit = str(error)
            opened.append(stack.enter_context(comparison.opened(reports, resolved, ["gate", item.name], quiet)))
        going = []
        for item, (_, entries, running) in zip(plan.items, opened):
            if item.unfit:
                note = records.Note(about="unfit", message=item.unfit)
                running.writer.write(note)
                entries.append(note)
                running.step(stop="not built")
            else:
                going.append(running)
        begin = time.monotonic()
        while going:
            spent = time.monotonic() - begin
            stop = "time" if time_budget is not None and spent > time_budget else None
            going = [running for running in going if running.step(stop)]
    return [(folder, entries) for folder, entries, _ in opened]


def judge(plan: Gate, found: list[tuple[Path | None, list]], policy: str | None) -> tuple[list[dict[str, Any]], int]:
    """Summaries of the family and the exit code; `policy` makes an undecided one pass or fail."""
    summaries = analysis.summarise_family([entries for _, entries in found], plan.alpha)
    for summary in summaries:
        if summary["exit_code"] == 3 and policy is not None:
            summary["exit_code"] = 0 if policy == "pass" else 1
    return summaries, gate.worst(summary["exit_code"] for summary in summaries)


def write(folder: Path, plan: Gate, summaries: list[dict[str, Any]], code: int) -> None:
    """gate.json, gate.md and junit.xml into a folder of their own; gate.md is GitHub's job summary, too."""
    from harness.report import junit

    folder.mkdir(parents=True)
    whole = {"base": plan.base, "exit_code": code, "deleted": plan.deleted, "scenarios": summaries}
    (folder / "gate.json").write_text(json.dumps(whole, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    text = markdown(plan, summaries, code)
    (folder / "gate.md").write_text(text, encoding="utf-8")
    (folder / "junit.xml").write_text(junit.junit(summaries), encoding="utf-8")
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        with open(target, "a", encoding="utf-8") as file:
            file.write(text)


def markdown(plan: Gate, summaries: list[dict[str, Any]], code: int) -> str:
    """The comment for a pull request, with scenarios that disappeared and outputs that were accepted."""
    from harness.report import github
    from harness.report.markdown import escape

    text = github.comment(summaries, code)
    for name in plan.deleted:
        text += f"\nThe gated scenario `{name}` exists at the base and was deleted.\n"
    for item in plan.items:
        reason = scenario.load(plan.root, item.name).gate.accept
        if reason:
            text += f"\n`{item.name}`: outputs that differ are accepted: {escape(reason)}\n"
    return text
