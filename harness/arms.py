"""An arm reference (scenario:arm@rev, a bare arm, or a command) -> something that can be launched.

`resolve` only reads; an arm with a tree of its own (a revision, overlays, a build) is made ready by `built`, which may
take as long as a build does.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from harness import revision
from harness import scenario as scenarios
from harness.errors import ConfigurationError, UnfitError, sentence
from harness.scenario import Scenario
from harness.worker import Fault, nearest, parse_settings

_NAMED = re.compile(r"^(?P<scenario>[\w.-]+):(?P<arm>[\w.-]+)(@(?P<rev>[^,\s]+))?(?P<settings>(,[^,=]+=[^,]*)*)$")
_BARE = re.compile(r"^(?P<arm>[\w.-]+)(@(?P<rev>[^,\s]+))?$")


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
    tree : Request | None   the tree that it runs in, if not the user's own
    revision : dict | None  which tree that is, once it is built: commit, dirty, tree, binaries
    """

    name: str
    reference: str
    kind: str
    command: list[str]
    cwd: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    tree: revision.Request | None = None
    revision: dict[str, Any] | None = None

    @property
    def speaks_protocol(self) -> bool:
        return self.kind != "command"

    def as_dict(self, root: Path) -> dict[str, Any]:
        """As the record keeps it: paths below `root` relative to it, the harness's own interpreter as 'python'."""
        names = ("name", "reference", "kind", "command", "cwd", "parameters", "environment", "revision")
        shown = {name: getattr(self, name) for name in names}
        shown["command"] = [_relative(word, root) for word in self.command]
        shown["cwd"] = _relative(self.cwd, root)
        shown["environment"] = {
            name: os.pathsep.join(_relative(part, root) for part in value.split(os.pathsep))
            for name, value in self.environment.items()
        }
        return shown


@dataclasses.dataclass(frozen=True)
class Resolved:
    """What `harness ab A B` is going to compare, and where its reports go."""

    scenario: Scenario
    a: Arm
    b: Arm
    root: Path  # the folder that holds reports/
    base: Path  # the folder that relative paths of the scenario start from

    @property
    def arms(self) -> dict[str, Arm]:
        return {"a": self.a, "b": self.b}

    @property
    def stdin(self) -> Path | None:
        """The file that both arms read as standard input; a revision's own copy would make their inputs differ."""
        given = self.scenario.scenario.stdin
        return None if given is None else self.base / given


def built(resolved: Resolved, say=lambda _: None) -> Resolved:
    """The same comparison with every tree that its arms want in place; `say` hears that a build begins.

    Raises UnfitError (exit 4) when a build fails or its program is missing afterwards.
    """
    ready = {letter: _built(arm, resolved, say) for letter, arm in resolved.arms.items()}
    return dataclasses.replace(resolved, a=ready["a"], b=ready["b"])


def _built(arm: Arm, resolved: Resolved, say) -> Arm:
    if arm.tree is None:
        return arm
    tree = revision.provide(arm.tree, resolved.root, f"arm '{arm.reference}'", say)
    cwd = tree.folder / (resolved.scenario.scenario.cwd or ".")
    environment = {**tree.environment, **arm.environment}
    # what a setup command is going to make cannot be there yet
    first = arm.command[0] if resolved.scenario.scenario.setup else program(arm.command[0], cwd)
    return dataclasses.replace(
        arm,
        command=[first, *arm.command[1:]],
        cwd=str(cwd),
        environment=environment,
        revision=tree.as_dict(),
    )


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
        return checked(_resolve_scenario(a, b, root, parameters or {}, overrides or {}))
    if parameters:
        raise ConfigurationError(
            sentence("-p", "two arms of a scenario", "commands", "write parameters into the commands themselves")
        )
    return checked(_resolve_commands(first, second, root or start, overrides or {}, start))


def checked(resolved: Resolved) -> Resolved:
    """Refuse keys for commands where no command is, and a standard input that is not there, before anything is done."""
    question = resolved.scenario.scenario
    for key in ("stdin", "outputs"):
        if getattr(question, key) and any(arm.speaks_protocol for arm in resolved.arms.values()):
            raise ConfigurationError(
                sentence(
                    f"scenario.{key}",
                    "two arms that are commands",
                    "one that speaks the worker protocol",
                    "its commands come on standard input" if key == "stdin" else "its fingerprint says what it made",
                )
            )
    if resolved.stdin is not None and not resolved.stdin.is_file():
        raise ConfigurationError(sentence("scenario.stdin", f"a file below {resolved.base}", f"'{question.stdin}'"))
    return resolved


def from_scenario(scenario: Scenario, a: str, b: str, root: Path) -> Resolved:
    """Two arms of a scenario that exists in memory only; `root` is where they run."""
    references = [_Reference(name, scenario.name, name, {}) for name in (a, b)]
    return checked(_of_scenario(scenario, references, root, {}))


def one(reference: str, *, start: Path | None = None, parameters=None, overrides=None) -> Resolved:
    """One reference, for `harness run`: an arm compared with itself."""
    return resolve(reference, reference, start=start, parameters=parameters, overrides=overrides)


@dataclasses.dataclass(frozen=True)
class _Reference:
    """scenario:arm@rev,key=value taken apart."""

    text: str
    scenario: str
    arm: str
    settings: dict[str, Any]
    rev: str | None = None


def _parse(first: str, second: str, root: Path | None):
    """Both references taken apart: a _Reference each, or None for a command."""
    parsed = [_parse_named(text, root) for text in (first, second)]
    for index, (text, reference) in enumerate(zip((first, second), parsed)):
        if reference is None and _BARE.match(text):
            parsed[index] = _parse_bare(text, (first, second)[1 - index], root)
    return parsed


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
    return _Reference(text, match["scenario"], match["arm"], settings, match["rev"])


def _parse_bare(text: str, other: str, root: Path | None) -> _Reference | None:
    """A bare arm name, when exactly one scenario has it (and the other name too); a program of that name is a clash."""
    if root is None:
        return None
    match = _BARE.match(text)
    text, arm = match["arm"] if match["rev"] is None else text, match["arm"]
    beside = _NAMED.match(other) or _BARE.match(other)
    wanted = {arm, beside["arm"] if beside else other}
    holders = []
    for name in scenarios.names(root):
        try:
            arms = scenarios.load(root, name).arms
        except ConfigurationError:
            continue  # a broken scenario is reported when it is asked for by name
        if wanted <= set(arms):
            holders.append(name)
    path = shutil.which(text)
    if holders and path:
        raise ConfigurationError(
            f"'{text}' can be read in two ways: arm '{holders[0]}:{text}' and the program {path}; write one of them"
        )
    if len(holders) > 1:
        readings = ", ".join(f"'{holder}:{text}'" for holder in holders)
        raise ConfigurationError(f"'{text}' is an arm of more than one scenario; write one of {readings}")
    if holders:
        return _Reference(text, holders[0], arm, {}, match["rev"])
    if path:
        return None
    known = sorted({arm for name in scenarios.names(root) for arm in _arm_names(root, name)})
    hint = nearest(arm, known)
    raise ConfigurationError(
        f"no arm '{arm}' in a scenario that has both arms, and no program of that name" + (f"; {hint}" if hint else "")
    )


def _arm_names(root: Path, name: str) -> list[str]:
    try:
        return list(scenarios.load(root, name).arms)
    except ConfigurationError:
        return []


def _resolve_scenario(a: _Reference, b: _Reference, root: Path, parameters: dict, overrides: dict) -> Resolved:
    if a.scenario != b.scenario:
        raise ConfigurationError(
            f"'{a.text}' and '{b.text}' belong to two scenarios; a comparison asks one question: "
            f"take both arms from one of them"
        )
    return _of_scenario(scenarios.load(root, a.scenario, overrides), [a, b], root, parameters)


def _of_scenario(scenario: Scenario, references: list[_Reference], root: Path, parameters: dict) -> Resolved:
    for reference in references:
        if reference.arm not in scenario.arms:
            hint = nearest(reference.arm, scenario.arms)
            raise ConfigurationError(
                f"no arm '{reference.arm}' in scenario '{scenario.name}'; it has {scenarios.quoted(scenario.arms)}"
                + (f"; {hint}" if hint else "")
            )
    # One arm in a tree and the other in the user's folder would differ in more than was asked: in the length of
    # their paths, and in how and when they were built.
    apart = any(_wants_tree(scenario, reference) for reference in references)
    arms = [_scenario_arm(scenario, reference, root, parameters, apart) for reference in references]
    return Resolved(scenario, arms[0], arms[1], root, root)


def _wants_tree(scenario: Scenario, reference: _Reference) -> bool:
    run = scenario.arms[reference.arm].run
    return reference.rev is not None or run.rev is not None or bool(run.copy) or run.build is not None


def _scenario_arm(scenario: Scenario, reference: _Reference, root: Path, parameters: dict, apart: bool) -> Arm:
    arm = scenario.arms[reference.arm]
    place = f"{scenarios.FOLDER}/{scenario.name}.toml: arms.{reference.arm}"
    is_command = arm.run.command is not None
    command = arm.run.command if is_command else scenario.scenario.workload
    words = scenarios.words(command, scenario.scenario.shell, f"{place}.run.command")
    settings = {**scenario.parameters, **arm.parameters, **parameters, **reference.settings}
    if is_command and settings:
        raise ConfigurationError(
            sentence(
                place,
                "no parameters beside run.command",
                scenarios.quoted(settings),
                "write them into the command",
            )
        )
    if words[0] == "python":
        words[0] = sys.executable
    cwd = root / (scenario.scenario.cwd or ".")
    if not apart and scenario.scenario.setup is None:  # else it may be built yet
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
        tree=_request(scenario, reference, root, place) if apart else None,
    )


def _request(scenario: Scenario, reference: _Reference, root: Path, place: str) -> revision.Request:
    run, shell = scenario.arms[reference.arm].run, scenario.scenario.shell
    if reference.rev is not None and run.rev is not None:
        raise ConfigurationError(
            sentence(f"{place}.run.rev", f"no revision beside '@{reference.rev}'", f"'{run.rev}'", "name one of them")
        )
    build = run.build if run.build is not None else scenario.scenario.build
    rev = reference.rev or run.rev
    if rev is not None:
        revision.commit_of(root, rev, f"'{reference.text}'")
    return revision.Request(
        rev=rev,
        build=None if build is None else tuple(scenarios.words(build, shell, f"{place}: build")),
        copy=tuple((source, to) for source, to in run.copy),
        environment=tuple(sorted(run.env.items())),
    )


def _resolve_commands(first: str, second: str, root: Path, overrides: dict, start: Path) -> Resolved:
    digest = hashlib.sha256(f"{first}\0{second}".encode()).hexdigest()[:8]
    name = f"command-{digest}"
    data: dict[str, Any] = {
        "scenario": {
            "name": name,
            "question": "Is the second command faster than the first?",
            "metric": "seconds",
            "workload": [first],
        },
        "schedule": {"mode": "process"},
    }
    scenarios.override(data, overrides)
    scenario = scenarios.parse(data, "command line")
    if scenario.schedule.mode != "process":
        raise ConfigurationError(
            sentence("schedule.mode", "'process' for commands", f"'{scenario.schedule.mode}'", "they are launched anew")
        )
    cwd = start / (scenario.scenario.cwd or ".")
    arms = []
    for letter, text in (("A", first), ("B", second)):
        if not text.strip():
            raise ConfigurationError(sentence("arm", "a reference or a command", "an empty string"))
        words = scenarios.words(text, scenario.scenario.shell, f"command '{text}'")
        # what a setup command is going to make cannot be there yet
        command = words if scenario.scenario.setup else [program(words[0], cwd), *words[1:]]
        arms.append(Arm(name=letter, reference=text, kind="command", command=command, cwd=str(cwd)))
    return Resolved(scenario, arms[0], arms[1], root, start)


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
