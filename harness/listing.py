"""What `harness list` and `harness show` print: scenarios, arms, and the verdicts found in their reports."""

import json
import shlex
from pathlib import Path
from typing import Any

from harness import arms, scenario
from harness.errors import ConfigurationError, UnfitError


def table(root: Path, reports: Path) -> list[str]:
    """One line a scenario: name, arms, last verdict; a scenario that cannot be read says why."""
    rows = []
    for name in scenario.names(root):
        try:
            loaded = scenario.load(root, name)
        except ConfigurationError as error:
            rows.append((name, "", str(error)))
            continue
        last = verdicts(reports, name)[-1:]
        rows.append((name, ", ".join(loaded.arms), last[0] if last else "never run"))
    if not rows:
        return [f"no scenarios in {root / scenario.FOLDER}"]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {names:<{widths[1]}}  {verdict}" for name, names, verdict in rows]


def details(root: Path, name: str, overrides: dict[str, Any], reports: Path) -> list[str]:
    """Everything about one scenario, one fact a line."""
    loaded = scenario.load(root, name, overrides)
    question = loaded.scenario
    lines = [name, f"  {question.question}" if question.question else "  (no question stated)"]
    if question.expect:
        lines.append(f"  expected: {question.expect}")
    if question.predict.ratio:
        lines.append(f"  predicted B/A: {question.predict.ratio[0]:g} to {question.predict.ratio[1]:g}")
    for arm in loaded.arms:
        try:
            shown = shlex.join(arms.one(f"{name}:{arm}", start=root, overrides=overrides).a.command)
        except UnfitError as error:  # its program may be built yet
            shown = str(error)
        lines.append(f"  arm {arm}: {shown}")
    as_dict = loaded.as_dict()
    for section in ("scenario", "schedule", "gate", "work", "limits", "accuracy"):
        for key, value in as_dict[section].items():
            if key not in ("name", "question", "expect", "predict", "workload"):
                lines.append(f"  {section}.{key} = {json.dumps(value)}")
    found = verdicts(reports, name)
    lines += [f"  {verdict}" for verdict in found[-5:]] or ["  never run"]
    return lines


def verdicts(reports: Path, name: str) -> list[str]:
    """The verdicts of a scenario's reports, oldest first: '<run>  B/A = … (improvement)'."""
    found = []
    for path in sorted((reports / name).glob("*/summary.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            arm_names = f"{summary['arms']['a']['name']} → {summary['arms']['b']['name']}"
            ratio = summary["ratio"]["estimate"]
            shown = f"B/A {ratio:.3f}" if ratio is not None else "no ratio"
            found.append(f"{path.parent.name}  {arm_names}  {summary['verdict']['word']}  {shown}")
        except (OSError, ValueError, KeyError, TypeError):
            found.append(f"{path.parent.name}  summary.json cannot be read; harness report makes it anew")
    return found
