"""One TOML file -> one frozen Scenario; every default and every check on it lives here."""

import json
import shlex
import tomllib
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from harness.errors import ConfigurationError, sentence
from harness.worker import nearest

FOLDER = "scenarios"
Text = Annotated[str, msgspec.Meta(description="a string")]
Flag = Annotated[bool, msgspec.Meta(description="true or false")]
Texts = Annotated[list[str], msgspec.Meta(description="a list of strings")]
Words = Annotated[list[str], msgspec.Meta(min_length=1, description="a list of words, the program first")]
Command = (
    Annotated[str, msgspec.Meta(min_length=1, description="a command as one string")]
    | Annotated[list[str], msgspec.Meta(min_length=1, description="a list of words")]
)
Overlays = Annotated[
    list[Annotated[list[str], msgspec.Meta(min_length=2, max_length=2)]],
    msgspec.Meta(description="a list of [from, to]"),
]
AtLeast0 = Annotated[int, msgspec.Meta(ge=0, description="a whole number of at least 0")]
AtLeast1 = Annotated[int, msgspec.Meta(ge=1, description="a whole number of at least 1", examples=[8])]
Seconds = Annotated[float, msgspec.Meta(gt=0, description="a number of seconds above 0")]
Fraction = Annotated[float, msgspec.Meta(gt=0, lt=1, description="a number between 0 and 1")]
NotNegative = Annotated[float, msgspec.Meta(ge=0, description="a number of at least 0")]
Band = Annotated[
    list[float], msgspec.Meta(min_length=2, max_length=2, description="two numbers, the lower bound of B/A first")
]


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the tables of a scenario file."""


class Predict(_Table, frozen=True, kw_only=True):
    """What was expected before measuring: the ratio of two arms, the first two of the file unless named."""

    ratio: Band | None = None
    arms: list[str] | None = None


class Question(_Table, frozen=True, kw_only=True):
    """The table [scenario]."""

    name: Text
    question: Text = ""
    expect: Text = ""
    predict: Predict = Predict()
    workload: Words | None = None
    metric: Text = "seconds"
    direction: Annotated[
        Literal["lower", "higher"], msgspec.Meta(description="'lower' (less is better) or 'higher'")
    ] = "lower"
    fingerprint: Annotated[
        Literal["exact", "keys", "statistical", "none"],
        msgspec.Meta(description="'exact', 'keys', 'statistical' or 'none'"),
    ] = "exact"
    totals_rtol: NotNegative = 1e-12
    inputs: Texts = []  # files or folders that `page_cache` is about
    outputs: Texts = []
    page_cache: (
        Annotated[
            Literal["warm", "cold", "own-files-evicted"],
            msgspec.Meta(description="'warm', 'cold' or 'own-files-evicted'"),
        ]
        | None
    ) = None
    cwd: Text | None = None
    stdin: Text | None = None
    shell: Flag = False  # commands given as one string go to /bin/sh
    setup: Command | None = None  # once for each arm, before its first launch
    prepare: Command | None = None  # before every launch
    cleanup: Command | None = None  # once for each arm, after its last launch
    build: Command | None = None  # how an arm's own tree is built; absent: the project's wheel, if it is one
    pin: Annotated[list[int], msgspec.Meta(description="a list of core numbers")] | None = None
    nice: Annotated[int, msgspec.Meta(ge=-20, le=19, description="a whole number from -20 to 19")] | None = None
    perf: Texts = []  # events that `perf stat` counts for each arm
    timeout: Seconds = 600.0
    memory_limit: Annotated[int, msgspec.Meta(ge=1 << 20, description="a number of bytes, at least 1048576")] | None = (
        None
    )


class Run(_Table, frozen=True, kw_only=True):
    """The table [arms.NAME.run]: how an arm is run, apart from its parameters."""

    kind: Annotated[Literal["arm", "ceiling"], msgspec.Meta(description="'arm' or 'ceiling'")] = "arm"
    env: Annotated[dict[str, str], msgspec.Meta(description="a table of strings")] = {}
    command: Command | None = None
    rev: Text | None = None  # the git revision whose tree it runs in
    copy: Overlays = []  # files of the project laid over a tree of its own
    build: Command | None = None  # builds a tree of its own


class Arm(_Table, frozen=True, kw_only=True):
    """One [arms.NAME]: the workload's parameters, and how to run it."""

    parameters: dict[str, Any] = {}
    run: Run = Run()


class Schedule(_Table, frozen=True, kw_only=True):
    """The table [schedule].

    Without `blocks` (in process mode without `pairs`) a comparison looks at its units group-sequentially and stops when
    they decide; with it the number of units is fixed.
    """

    mode: Annotated[
        Literal["resident", "process", "duet"], msgspec.Meta(description="'resident', 'process' or 'duet'")
    ] = "resident"
    blocks: AtLeast1 | None = None
    pairs: AtLeast1 | None = None  # in a block; in process mode in all
    warmup: AtLeast0 = 2
    seed: AtLeast0 | None = None
    quads: Flag = False  # one coin orders two pairs in a row, ABBA or BAAB
    control: Flag = False  # every second unit compares A with itself
    anytime: Flag = False  # stop by the sign martingale, after any unit
    pilot: Annotated[int, msgspec.Meta(ge=4, description="a whole number of at least 4")] | None = None
    time_budget: Seconds | None = None

    @property
    def fixed_units(self) -> int | None:
        """How many independent units are asked for (pairs in process mode, blocks otherwise); None: stop by looks."""
        return self.pairs if self.mode == "process" else self.blocks

    @property
    def pairs_in_block(self) -> int:
        """Pairs of a unit: one in process mode."""
        return 1 if self.mode == "process" else (self.pairs or 10)


class Gate(_Table, frozen=True, kw_only=True):
    """The table [gate]; a scenario file that has it takes part in `harness gate`."""

    margin: Fraction = 0.02
    alpha: Fraction = 0.05
    strict: Flag = False
    arms: (
        Annotated[
            list[str],
            msgspec.Meta(
                min_length=1,
                max_length=2,
                description="one arm, which is compared with itself at the base revision, or two arms to compare",
            ),
        ]
        | None
    ) = None
    accept: Text | None = None  # why the arms' outputs may differ; shown until it is removed


class Work(_Table, frozen=True, kw_only=True):
    """The table [work]: what a per-unit time is divided by (the word for `units`), and the least `work` that counts."""

    unit: Text = "unit"
    minimum: NotNegative = 0.0


class Limits(_Table, frozen=True, kw_only=True):
    """The table [limits]: load above which a unit is set aside."""

    foreign_cores: NotNegative | None = None


class Accuracy(_Table, frozen=True, kw_only=True):
    """The table [accuracy]: what counts as a difference of values (accuracy.py), for `harness accuracy` and the policy
    'statistical'.
    """

    exposure: Annotated[float, msgspec.Meta(gt=0, description="a number of contributors above 0")] | None = None
    tolerance: NotNegative | None = None  # of a map: the share of weight that may be missed; of a model: of its metric
    metric: (
        Annotated[Literal["auc", "accuracy", "log_loss"], msgspec.Meta(description="'auc', 'accuracy' or 'log_loss'")]
        | None
    ) = None
    seeds: AtLeast1 | None = None  # of a model: so many units, each with a `seed` of its own; absent: as the arms say


class Scenario(_Table, frozen=True, kw_only=True):
    """A whole scenario file."""

    scenario: Question
    parameters: dict[str, Any] = {}
    arms: dict[str, Arm] = {}
    schedule: Schedule = Schedule()
    gate: Gate = Gate()
    work: Work = Work()
    limits: Limits = Limits()
    accuracy: Accuracy = Accuracy()

    @property
    def name(self) -> str:
        return self.scenario.name

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts and lists with every default filled in, as the record keeps them."""
        return msgspec.to_builtins(self)


def words(command: str | list[str], shell: bool, where: str) -> list[str]:
    """The argument list of a command; one string is split as a shell would, or handed to the shell if `shell`."""
    if isinstance(command, list):
        return list(command)
    if shell:
        return ["/bin/sh", "-c", command]
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(sentence(where, "words as a shell splits them", str(error))) from None
    if not found:
        raise ConfigurationError(sentence(where, "a command", "an empty string"))
    return found


def quoted(names) -> str:
    """'a', 'b' in alphabetical order."""
    return ", ".join(f"'{name}'" for name in sorted(names))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _struct_of(annotation) -> type | None:
    """The table class behind an annotation, None when it is a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, _Table):
        return annotation
    return None


def _example(annotation) -> Any:
    """A value that would do, where the annotation names one."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((found for item in typing.get_args(annotation) if (found := _example(item)) is not None), None)
    for item in getattr(annotation, "__metadata__", ()):
        if isinstance(item, msgspec.Meta) and item.examples:
            return item.examples[0]
    return None


def _describe(annotation) -> str:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(_describe(item) for item in typing.get_args(annotation) if item is not type(None))
    for item in getattr(annotation, "__metadata__", ()):
        if isinstance(item, msgspec.Meta) and item.description:
            return item.description
    return getattr(annotation, "__name__", str(annotation))


def _check(kind: type, data: Any, source: str, path: str) -> Any:
    """Convert a TOML table into a table class; the first fault is a ConfigurationError that names its place."""
    if not isinstance(data, dict):
        raise ConfigurationError(sentence(f"{source}: {path}", "a table", _shown(data)))
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in data:
        if key not in fields:
            place = f"{path}.{key}" if path else key
            raise ConfigurationError(
                sentence(f"{source}: {place}", f"one of {quoted(fields)}", f"'{key}'", nearest(key, fields))
            )
    values = {}
    for name, field in fields.items():
        place = f"{path}.{name}" if path else name
        if name not in data:
            if field.required:
                wanted = f"a table [{place}]" if _struct_of(field.type) else _describe(field.type)
                raise ConfigurationError(sentence(f"{source}: {place}", wanted, "nothing", "add it"))
            continue
        table = _struct_of(field.type)
        if table is not None:
            values[name] = _check(table, data[name], source, place)
        elif place == "arms":
            values[name] = _arms(data[name], source)
        else:
            try:
                values[name] = msgspec.convert(data[name], field.type, strict=True)
            except msgspec.ValidationError:
                default = field.default if field.default not in (msgspec.NODEFAULT, None) else _example(field.type)
                hint = f"try {json.dumps(default)}" if isinstance(default, (int, float, str)) and default != "" else ""
                raise ConfigurationError(
                    sentence(f"{source}: {place}", _describe(field.type), _shown(data[name]), hint)
                ) from None
    return kind(**values)


def _arms(data: Any, source: str) -> dict[str, Arm]:
    if not isinstance(data, dict):
        raise ConfigurationError(sentence(f"{source}: arms", "a table of arms", _shown(data)))
    arms = {}
    for name, table in data.items():
        place = f"arms.{name}"
        if not isinstance(table, dict):
            raise ConfigurationError(sentence(f"{source}: {place}", "a table of parameters", _shown(table)))
        parameters = {key: value for key, value in table.items() if key != "run"}
        arms[name] = Arm(parameters=parameters, run=_check(Run, table.get("run", {}), source, f"{place}.run"))
    return arms


def parse(data: dict[str, Any], source: str) -> Scenario:
    """A Scenario from a parsed TOML document; `source` names it in messages."""
    if isinstance(data.get("scenario"), dict) and data["scenario"].get("outputs"):
        # A command that wrote none of its output files did no work.
        data = {**data, "work": {"minimum": 1, **data.get("work", {})}}
    scenario: Scenario = _check(Scenario, data, source, "")
    question = scenario.scenario
    for pattern in question.outputs:
        if Path(pattern).is_absolute() or not pattern:
            raise ConfigurationError(
                sentence(f"{source}: scenario.outputs", "patterns below the working directory", _shown(pattern))
            )
    for name, arm in scenario.arms.items():
        if question.workload is None and arm.run.command is None:
            raise ConfigurationError(
                sentence(f"{source}: arms.{name}", "a command to run", "neither scenario.workload nor run.command")
            )
        for key, value in {**scenario.parameters, **arm.parameters}.items():
            if not isinstance(value, (bool, int, float, str, list)):
                raise ConfigurationError(
                    sentence(f"{source}: arms.{name}.{key}", "a number, a string, true, false or a list", _shown(value))
                )
    if question.page_cache and not question.inputs:
        raise ConfigurationError(
            sentence(
                f"{source}: scenario.page_cache", "scenario.inputs to say which files it is about", "none", "add it"
            )
        )
    if question.metric == "instructions" and scenario.schedule.mode != "process":
        raise ConfigurationError(
            sentence(
                f"{source}: schedule.mode",
                "'process' for metric 'instructions'",
                f"'{scenario.schedule.mode}'",
                "callgrind counts whole processes",
            )
        )
    if question.fingerprint == "statistical" and question.metric == "peak_rss_bytes":
        raise ConfigurationError(
            sentence(
                f"{source}: scenario.metric",
                "another one than 'peak_rss_bytes' with fingerprint 'statistical'",
                "both",
                "writing values takes memory in the arm; compare them by harness accuracy",
            )
        )
    if question.predict.ratio is not None and not 0 < question.predict.ratio[0] <= question.predict.ratio[1]:
        raise ConfigurationError(
            sentence(
                f"{source}: scenario.predict.ratio",
                "two numbers above 0, the lower first",
                _shown(question.predict.ratio),
                "try [0.8, 0.9]",
            )
        )
    predicted = question.predict.arms
    if predicted is not None and (len(predicted) != 2 or not set(predicted) <= set(scenario.arms)):
        raise ConfigurationError(
            sentence(
                f"{source}: scenario.predict.arms",
                f"two of {quoted(scenario.arms) or 'the arms'}, A first",
                _shown(predicted),
            )
        )
    if question.predict.ratio is not None and predicted is None and len(scenario.arms) >= 2:
        named = msgspec.structs.replace(question.predict, arms=list(scenario.arms)[:2])
        scenario = msgspec.structs.replace(scenario, scenario=msgspec.structs.replace(question, predict=named))
    return scenario


def project_root(start: Path) -> Path | None:
    """The nearest folder at or above `start` that holds `scenarios/`, None without one."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / FOLDER).is_dir():
            return folder
    return None


def names(root: Path) -> list[str]:
    """The scenarios of a project, by file name."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.toml"))


def gated(root: Path) -> list[str]:
    """The scenarios that take part in a gate: those whose file has a table [gate], readable or not."""
    found = []
    for name in names(root):
        text = (root / FOLDER / f"{name}.toml").read_text(encoding="utf-8", errors="replace")
        try:
            takes_part = "gate" in tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            takes_part = True  # `load` says what is wrong with it
        if takes_part:
            found.append(name)
    return found


def load(root: Path, name: str, overrides: dict[str, Any] | None = None) -> Scenario:
    """Read scenarios/<name>.toml; `overrides` maps dotted paths (schedule.blocks) to values laid over the file.

    Raises ConfigurationError for an unknown name, unreadable or wrong TOML, unknown keys and wrong values.
    """
    path = root / FOLDER / f"{name}.toml"
    source = f"{FOLDER}/{name}.toml"
    if not path.is_file():
        known = names(root)
        hint = nearest(name, known)
        raise ConfigurationError(
            f"no scenario '{name}'; there is {quoted(known) or 'none'}" + (f"; {hint}" if hint else "")
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(sentence(source, "a readable TOML file", str(error))) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(sentence(source, "TOML", str(error))) from None
    override(data, overrides or {})
    scenario = parse(data, source)
    if scenario.name != name:
        raise ConfigurationError(sentence(f"{source}: scenario.name", f"'{name}'", f"'{scenario.name}'"))
    return scenario


def override(data: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Lay values over a parsed document in place, by dotted path; a short path such as blocks is not guessed."""
    for path, value in overrides.items():
        *folders, key = path.split(".")
        table = data
        for folder in folders:
            table = table.setdefault(folder, {})
            if not isinstance(table, dict):
                raise ConfigurationError(sentence(f"-s {path}", "a path of tables", f"a value at '{folder}'"))
        if not folders:
            tables = ("scenario", "parameters", "schedule", "gate", "work", "limits", "accuracy")
            raise ConfigurationError(
                sentence(f"-s {path}", "table.key=value", f"'{path}'", f"the tables are {', '.join(tables)}")
            )
        table[key] = value
