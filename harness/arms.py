"""An arm reference (scenario:arm, a bare arm, or a command) -> something that can be launched."""

import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from harness import scenario as scenarios
from harness.errors import ConfigurationError, UnfitError, sentence
from harness.scenario import Scenario
from harness.worker import Fault, nearest, parse_settings

_NAMED = re.compile(r"^(?P<scenario>[\w.-]+):(?P<arm>[\w.-]+)(?P<settings>(,[^,=]+=[^,]*)*)$")
_BARE = re.compile(r"^[\w.-]+$")


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to run the job, ready to be launched.

    Attributes
    ----------
    reference : str         as the user wrote it
    kind : str              arm, ceiling (leaves work out on purpose, never a winner) or command
    command : list          the whole argument list
    parameters : dict       what was set, defaults not filled in
    environment : dict      variables laid over the harness's own
    """

    name: str
    reference: str
    kind: str
    command: list[str]
    cwd: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def speaks_protocol(self) -> bool:
        return self.kind != "command"

    def as_dict(self, root: Path) -> dict[str, Any]:
        """As the record keeps it: paths below `root` relative to it, the harness's own interpreter as 'python'."""
        shown = dataclasses.asdict(self)
        shown["command"] = [_relative(word, root) for word in self.command]
        shown["cwd"] = _relative(self.cwd, root)
        return shown


@dataclasses.dataclass(frozen=True)
class Resolved:
    """What `harness ab A B` is going to compare, and where its reports go."""

    scenario: Scenario
    a: Arm
    b: Arm
    root: Path  # the folder that holds reports/

    @property
    def arms(self) -> dict[str, Arm]:
        return {"a": self.a, "b": self.b}


def resolve(
    first: str,
    second: str,
    *,
    start: Path | None = None,
    parameters: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
) -> Resolved:
    """Two references -> scenario and arms.

    `parameters` are laid over both arms' parameters (-p), `overrides` over any scenario key (-s).
    Raises ConfigurationError (exit 2) for anything that cannot be read, UnfitError (exit 4) for a missing program.
    """
    start = start or Path.cwd()
    root = scenarios.project_root(start)
    a, b = _parse(first, second, root)
    if isinstance(a, _Reference) != isinstance(b, _Reference):
        odd, other = (first, second) if isinstance(a, _Reference) else (second, first)
        raise ConfigurationError(f"'{odd}' is an arm of a scenario and '{other}' is a command; compare like with like")
    if isinstance(a, _Reference):
        return _resolve_scenario(a, b, root, parameters or {}, overrides or {})
    if parameters:
        raise ConfigurationError(
            sentence("-p", "two arms of a scenario", "commands", "write parameters into the commands themselves")
        )
    return _resolve_commands(first, second, a, b, root or start, overrides or {}, start)


def from_scenario(scenario: Scenario, a: str, b: str, root: Path) -> Resolved:
    """Two arms of a scenario that exists in memory only; `root` is where they run."""
    found = [_scenario_arm(scenario, _Reference(name, scenario.name, name, {}), root, {}) for name in (a, b)]
    return Resolved(scenario, found[0], found[1], root)


def one(reference: str, *, start: Path | None = None, parameters=None, overrides=None) -> Resolved:
    """One reference, for `harness run`: an arm compared with itself."""
    return resolve(reference, reference, start=start, parameters=parameters, overrides=overrides)


@dataclasses.dataclass(frozen=True)
class _Reference:
    """scenario:arm,key=value taken apart."""

    text: str
    scenario: str
    arm: str
    settings: dict[str, Any]


def _parse(first: str, second: str, root: Path | None):
    """Both references taken apart: two _Reference, or argument lists for commands."""
    parsed = [_parse_named(text, root) for text in (first, second)]
    for index, (text, reference) in enumerate(zip((first, second), parsed)):
        if reference is None and _BARE.match(text):
            parsed[index] = _parse_bare(text, (first, second)[1 - index], root)
    return [reference if reference is not None else _split(text) for text, reference in zip((first, second), parsed)]


def _parse_named(text: str, root: Path | None) -> _Reference | None:
    match = _NAMED.match(text)
    if match is None:
        return None
    if root is None:
        raise ConfigurationError(
            f"'{text}' names a scenario, but no folder 'scenarios' was found here or above; go into the project"
        )
    try:
        settings = parse_settings([item for item in match["settings"].split(",") if item])
    except Fault as fault:
        raise ConfigurationError(str(fault)) from None
    return _Reference(text, match["scenario"], match["arm"], settings)


def _parse_bare(text: str, other: str, root: Path | None) -> _Reference | None:
    """A bare arm name, when exactly one scenario has it (and the other name too); a program of that name is a clash."""
    if root is None:
        return None
    wanted = {text, other.split(":", 1)[1].split(",", 1)[0] if _NAMED.match(other) else other}
    holders = []
    for name in scenarios.names(root):
        try:
            arms = scenarios.load(root, name).arms
        except ConfigurationError:
            continue  # a broken scenario is reported when it is asked for by name
        if wanted <= set(arms):
            holders.append(name)
    program = shutil.which(text)
    if holders and program:
        raise ConfigurationError(
            f"'{text}' can be read in two ways: arm '{holders[0]}:{text}' and the program {program}; write one of them"
        )
    if len(holders) > 1:
        readings = ", ".join(f"'{holder}:{text}'" for holder in holders)
        raise ConfigurationError(f"'{text}' is an arm of more than one scenario; write one of {readings}")
    if holders:
        return _Reference(text, holders[0], text, {})
    if program:
        return None
    known = sorted({arm for name in scenarios.names(root) for arm in _arm_names(root, name)})
    hint = nearest(text, known)
    raise ConfigurationError(
        f"no arm '{text}' in a scenario that has both arms, and no program of that name" + (f"; {hint}" if hint else "")
    )


def _arm_names(root: Path, name: str) -> list[str]:
    try:
        return list(scenarios.load(root, name).arms)
    except ConfigurationError:
        return []


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(sentence(f"command '{text}'", "words as a shell splits them", str(error))) from None
    if not words:
        raise ConfigurationError(sentence("arm", "a reference or a command", "an empty string"))
    return words


def _resolve_scenario(a: _Reference, b: _Reference, root: Path, parameters: dict, overrides: dict) -> Resolved:
    if a.scenario != b.scenario:
        raise ConfigurationError(
            f"'{a.text}' and '{b.text}' belong to two scenarios; a comparison asks one question: "
            f"take both arms from one of them"
        )
    scenario = scenarios.load(root, a.scenario, overrides)
    arms = [_scenario_arm(scenario, reference, root, parameters) for reference in (a, b)]
    return Resolved(scenario, arms[0], arms[1], root)


def _scenario_arm(scenario: Scenario, reference: _Reference, root: Path, parameters: dict) -> Arm:
    if reference.arm not in scenario.arms:
        hint = nearest(reference.arm, scenario.arms)
        raise ConfigurationError(
            f"no arm '{reference.arm}' in scenario '{scenario.name}'; it has {scenarios.quoted(scenario.arms)}"
            + (f"; {hint}" if hint else "")
        )
    arm = scenario.arms[reference.arm]
    is_command = arm.run.command is not None
    words = list(arm.run.command if is_command else scenario.scenario.workload)
    settings = {**scenario.parameters, **arm.parameters, **parameters, **reference.settings}
    if is_command and settings:
        raise ConfigurationError(
            sentence(
                f"{scenarios.FOLDER}/{scenario.name}.toml: arms.{reference.arm}",
                "no parameters beside run.command",
                scenarios.quoted(settings),
                "write them into the command",
            )
        )
    if words[0] == "python":
        words[0] = sys.executable
    cwd = root / (scenario.scenario.cwd or ".")
    words[0] = program(words[0], cwd)
    if not is_command:
        words += ["--arm", reference.arm]
        for key, value in settings.items():
            words += ["--set", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    return Arm(
        name=reference.arm,
        reference=reference.text,
        kind="command" if is_command else arm.run.kind,
        command=words,
        cwd=str(cwd),
        parameters=settings,
        environment=dict(arm.run.env),
    )


def _resolve_commands(first, second, a, b, root: Path, overrides: dict, start: Path) -> Resolved:
    digest = hashlib.sha256(f"{first}\0{second}".encode()).hexdigest()[:8]
    name = f"command-{digest}"
    data: dict[str, Any] = {
        "scenario": {
            "name": name,
            "question": "Is the second command faster than the first?",
            "metric": "seconds",
            "fingerprint": "none",
            "workload": a,
        },
        "schedule": {"mode": "process"},
    }
    scenarios.override(data, overrides)
    if data["scenario"].get("outputs") and "scenario.fingerprint" not in overrides:
        data["scenario"]["fingerprint"] = "exact"
    scenario = scenarios.parse(data, "command line")
    if scenario.schedule.mode != "process":
        raise ConfigurationError(
            sentence("schedule.mode", "'process' for commands", f"'{scenario.schedule.mode}'", "they are launched anew")
        )
    cwd = start / (scenario.scenario.cwd or ".")
    arms = [
        Arm(name=letter, reference=text, kind="command", command=[program(words[0], cwd), *words[1:]], cwd=str(cwd))
        for letter, text, words in (("A", first, a), ("B", second, b))
    ]
    return Resolved(scenario, arms[0], arms[1], root)


def _relative(word: str, root: Path) -> str:
    if word == sys.executable:
        return "python"
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(root):
        return str(path.relative_to(root))
    return word


def program(word: str, cwd: Path) -> str:
    """The path of a program, as a shell in `cwd` would find it. Raises UnfitError when there is none."""
    found = shutil.which(word if os.sep not in word else str(cwd / word))
    if found is None:
        raise UnfitError(f"nothing was measured: there is no program '{word}' on PATH" + _hint_for(word))
    return found


def _hint_for(word: str) -> str:
    return "; write scenario:arm for an arm of a scenario" if ":" in word else ""
