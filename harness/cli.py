"""Arguments in, exit code out; no measuring, no arithmetic."""

import json
import sys
from pathlib import Path

import click

from harness import __version__
from harness.errors import ConfigurationError, HarnessError, Interrupted, UnfitError, sentence
from harness.worker import Fault, parse_settings

#: exit code when the reader of the output is gone (`harness list | head`): that of SIGPIPE, which is no verdict's
CUT_OFF = 141


class _Group(click.Group):
    """Prints every expected failure once, as one sentence, and ends with its exit code."""

    def invoke(self, context: click.Context):
        try:
            return super().invoke(context)
        except HarnessError as error:
            click.echo(f"harness: {error}", err=True)
            context.exit(error.exit_code)
        except Fault as fault:
            click.echo(f"harness: {fault}", err=True)
            context.exit(ConfigurationError.exit_code)
        except BrokenPipeError:
            _discard_output()
            context.exit(CUT_OFF)
        except OSError as error:
            click.echo(f"harness: {_os_sentence(error)}", err=True)
            context.exit(ConfigurationError.exit_code)
        except KeyboardInterrupt:
            click.echo("harness: interrupted", err=True)
            context.exit(Interrupted.exit_code)

    def resolve_command(self, context, arguments):
        from harness.worker import nearest

        name = arguments[0] if arguments else ""
        if name and not name.startswith("-") and self.get_command(context, name) is None:
            hint = nearest(name, self.commands)
            known = ", ".join(sorted(self.commands))
            click.echo(
                f"harness: no command '{name}'; there is {known}" + (f"; {hint}" if hint else ""),
                err=True,
            )
            context.exit(ConfigurationError.exit_code)
        return super().resolve_command(context, arguments)


def _discard_output() -> None:
    """Let what is still buffered go nowhere: flushing it at exit would fail once more, with a traceback."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _os_sentence(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="harness")
def cli() -> None:
    """Tell whether B is faster than A and still right, on a shared, noisy machine."""


class _Share(click.ParamType):
    """A share such as 2% or 0.02."""

    name = "SHARE"

    def convert(self, value, parameter, context) -> float:
        if isinstance(value, float):
            return value
        try:
            share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
        except ValueError:
            share = 0.0
        if not 0 < share < 10:
            self.fail(f"expected a share above 0 such as 2% or 0.02, found '{value}'", parameter, context)
        return share


class _Duration(click.ParamType):
    """A time such as 90, 90s, 5m or 1h, in seconds."""

    name = "TIME"

    def convert(self, value, parameter, context) -> float:
        if isinstance(value, float):
            return value
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        number, unit = (value[:-1], value[-1]) if value[-1:] in units else (value, "s")
        try:
            seconds = float(number) * units[unit]
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self.fail(f"expected a time above 0 such as 90s, 5m or 1h, found '{value}'", parameter, context)
        return seconds


def _overlays(command):
    """The options -p and -s, which every command that resolves an arm has."""
    command = click.option(
        "-s",
        "settings",
        multiple=True,
        metavar="TABLE.KEY=VALUE",
        help="Override any key of the scenario, for instance -s gate.margin=0.05.",
    )(command)
    return click.option(
        "-p", "parameters", multiple=True, metavar="KEY=VALUE", help="Set a parameter of both arms, as a TOML value."
    )(command)


_reports_option = click.option(
    "--reports",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for reports (default: reports/ of the project).",
)


def _commands(command):
    """Options for commands; each sets the scenario's key of its name, for both arms alike."""
    for name, given, text in (
        ("--outputs", {"multiple": True, "metavar": "PATTERN"}, "Files that an arm writes; they must agree."),
        ("--cwd", {"metavar": "DIR"}, "Working directory of both arms."),
        ("--stdin", {"metavar": "FILE"}, "Standard input of both arms (default: empty)."),
        ("--shell", {"is_flag": True}, "Give commands to /bin/sh instead of splitting them into words."),
        ("--cleanup", {"metavar": "COMMAND"}, "Run once after each arm's last run."),
        ("--prepare", {"metavar": "COMMAND"}, "Run before every run of an arm, not timed."),
        ("--setup", {"metavar": "COMMAND"}, "Run once before each arm's first run."),
    ):
        command = click.option(name, help=text, **given)(command)
    return command


@cli.command()
@click.argument("a")
@click.argument("b")
@_overlays
@_commands
@click.option("--blocks", type=click.IntRange(min=1), help="Number of blocks (resident mode).")
@click.option("--pairs", type=click.IntRange(min=1), help="Pairs in a block; in process mode, pairs in all.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of all coins (default: a fresh one, recorded).")
@click.option("--time-budget", type=_Duration(), help="Stop after this time, such as 90s, 5m or 1h.")
@click.option("--anytime", is_flag=True, help="Decide after any block by a test that allows it (wider intervals).")
@click.option("--append", type=click.Path(path_type=Path), help="Add --blocks (or --pairs) to a finished comparison.")
@click.option("--strict", is_flag=True, help="Exit 1, not 3, when B is slower by an amount that is not settled.")
@click.option("--keep-going", is_flag=True, help="Finish the comparison even when outputs disagree.")
@click.option("--resume", type=click.Path(path_type=Path), help="Go on with an interrupted comparison (its folder).")
@_reports_option
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of the summary.")
@click.option("--quiet", is_flag=True, help="Print the verdict line alone, and no progress.")
def ab(
    a,
    b,
    parameters,
    settings,
    blocks,
    pairs,
    seed,
    time_budget,
    anytime,
    append,
    strict,
    keep_going,
    resume,
    reports,
    as_json,
    quiet,
    **commands,
) -> None:
    """Compare arm B with arm A: measure, record, decide, report.

    An arm is scenario:arm, scenario:arm@revision, scenario:arm,key=value, a bare arm name that one scenario has, a
    command in quotes, or pytest:PATH or pytest:PATH@revision for all benchmarks of pytest-benchmark found there.
    """
    from harness import benchmarks, comparison

    overrides = parse_settings(list(settings))
    overrides |= {
        f"scenario.{key}": list(value) if key == "outputs" else value for key, value in commands.items() if value
    }
    more = None
    if append is not None:
        if resume is not None:
            raise ConfigurationError(sentence("--append", "a finished comparison", "--resume too", "give one of them"))
        more, blocks, pairs = (blocks, None, pairs) if blocks else (pairs, None, None)
        if more is None:
            raise ConfigurationError(sentence("--append", "--blocks or --pairs: how many more", "neither", "add one"))
    for path, value in (
        ("schedule.blocks", blocks),
        ("schedule.pairs", pairs),
        ("schedule.seed", seed),
        ("schedule.time_budget", time_budget),
        ("schedule.anytime", anytime or None),
        ("gate.strict", strict or None),
    ):
        if value is not None:
            overrides[path] = value
    if benchmarks.is_reference(a) or benchmarks.is_reference(b):
        if parameters:
            raise ConfigurationError(sentence("-p", "two arms of a scenario", "benchmarks"))
        for option, given in (("--append", append), ("--anytime", anytime)):
            if given:  # Holm's correction is for numbers of blocks that were fixed beforehand
                raise ConfigurationError(sentence(option, "one comparison", "a run of benchmarks"))
        folder, summary = benchmarks.compare(
            a,
            b,
            overrides=overrides,
            command=sys.argv[1:],
            reports=reports,
            resume=resume,
            keep_going=keep_going,
            quiet=quiet or as_json,
        )
        place = _relative(reports or folder.parents[1])
        click.echo(json.dumps(summary, indent=2) if as_json else benchmarks.terminal(summary, Path(place)), nl=as_json)
        click.get_current_context().exit(summary["exit_code"])
    folder = comparison.compare(
        a,
        b,
        parameters=parse_settings(list(parameters)),
        overrides=overrides,
        reports=reports,
        resume=append or resume,
        more=more,
        keep_going=keep_going,
        quiet=quiet or as_json,
        command=sys.argv[1:],
    )
    _finish(folder, as_json, quiet)


@cli.command()
@click.argument("a")
@click.argument("b")
@_overlays
@click.option("--exposure", type=click.FloatRange(min=0, min_open=True), help="Contributors a voxel of the real job.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Share of a map's weight that may be missed (default 0.01); difference of a model's metric (default 0.005).",
)
@click.option("--metric", type=click.Choice(["auc", "accuracy", "log_loss"]), help="Of a model (default: auc).")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds of a model: a launch of each arm for every one.")
@click.option("--resume", type=click.Path(path_type=Path), help="Go on with an interrupted comparison (its folder).")
@_reports_option
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of the summary.")
@click.option("--quiet", is_flag=True, help="Print the verdict line alone, and no progress.")
def accuracy(a, b, parameters, settings, exposure, tolerance, metric, seeds, resume, reports, as_json, quiet) -> None:
    """Compare B's values with those of A, the reference, in units of their own uncertainty.

    A map is judged by its pulls and at an exposure, a model by its metric, paired over seeds. Ends with 0 when B is
    indistinguishable, 1 when it is different, 3 when that is undecided.
    """
    from harness import comparison

    overrides = parse_settings(list(settings))
    given = {"exposure": exposure, "tolerance": tolerance, "metric": metric, "seeds": seeds}
    overrides |= {f"accuracy.{key}": value for key, value in given.items() if value is not None}
    folder = comparison.compare(
        a,
        b,
        parameters=parse_settings(list(parameters)),
        overrides=overrides,
        reports=reports,
        resume=resume,
        quiet=quiet or as_json,
        command=sys.argv[1:],
        values_alone=True,
    )
    _finish(folder, as_json, quiet)


def _finish(folder: Path, as_json: bool, quiet: bool) -> None:
    """Write the pages of a finished record, print the summary and leave with the verdict's exit code."""
    from harness import records

    click.get_current_context().exit(_written(folder, records.read(folder), as_json, quiet))


def _written(folder: Path, entries: list, as_json: bool, quiet: bool) -> int:
    """Write the pages of a record and print its summary; the verdict's exit code."""
    from harness import report

    summary = report.write(folder, entries)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    elif quiet:
        click.echo(f"{summary['verdict']['word']}: {summary['verdict']['reason']}")
    else:
        click.echo(report.terminal(summary, colour=_colour()), nl=False)
        click.echo(f"report: {_relative(folder / 'report.html')}")
    return summary["exit_code"]


def _colour() -> bool:
    import os

    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _relative(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@cli.command()
@click.argument("arm")
@_overlays
@click.option("--warmup", type=click.IntRange(min=0), default=1, show_default=True, help="Warm-up iterations.")
@click.option("--iterations", type=click.IntRange(min=1), default=3, show_default=True, help="Steady iterations.")
def run(arm, parameters, settings, warmup, iterations) -> None:
    """Run one arm once and print its lines: for debugging an arm."""
    from harness import comparison

    comparison.run_once(
        arm,
        parameters=parse_settings(list(parameters)),
        overrides=parse_settings(list(settings)),
        warmup=warmup,
        iterations=iterations,
        say=click.echo,
    )


@cli.command("list")
@_reports_option
def list_(reports) -> None:
    """List the scenarios, their arms and last verdicts."""
    from harness import listing

    root = _root()
    for line in listing.table(root, reports or root / "reports"):
        click.echo(line)


@cli.command()
@click.argument("name", metavar="SCENARIO")
@_overlays
@_reports_option
def show(name, parameters, settings, reports) -> None:
    """Show one scenario: question, arms with their commands, every key with its value, last verdicts."""
    from harness import listing

    root = _root()
    overrides = parse_settings(list(settings))
    overrides |= {f"parameters.{key}": value for key, value in parse_settings(list(parameters)).items()}
    for line in listing.details(root, name, overrides, reports or root / "reports"):
        click.echo(line)


@cli.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of the summary.")
@click.option("--quiet", is_flag=True, help="Print the verdict line alone.")
@click.option(
    "--index",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write index.html over all comparisons below this folder.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the pages here instead of beside the record (one RUN only).",
)
def report(runs, as_json, quiet, index, output) -> None:
    """Render html, md and json again from records; the verdict is that of the record, on any machine."""
    from harness import records
    from harness import report as reporting
    from harness.gate import worst

    if not runs and index is None:
        raise ConfigurationError(sentence("harness report", "a RUN or --index DIR", "neither", "see harness report -h"))
    if output is not None and len(runs) > 1:
        raise ConfigurationError(sentence("--output", "one RUN", f"{len(runs)}", "render them one by one"))
    codes = [0]
    for path in runs:
        folder = output or (path if path.is_dir() else path.parent)
        codes.append(_written(folder, records.read(path), as_json, quiet))
    if index is not None:
        click.echo(f"index: {_relative(reporting.write_index(index))}")
    click.get_current_context().exit(worst(codes))


@cli.command()
@click.argument("scenario", required=False)
@_reports_option
def history(scenario, reports) -> None:
    """Show the course of a scenario's ratio and levels over its comparisons; all scenarios without a name."""
    from harness.report.index import collect
    from harness.report.index import history as course

    click.echo(course(collect(reports or _root() / "reports"), scenario), nl=False)


@cli.command()
@click.argument("a")
@click.argument("b")
@_overlays
@click.option("--mde", "effect", required=True, type=_Share(), help="The effect that must be seen, such as 2%.")
@click.option("--time-budget", type=_Duration(), help="Refuse a plan that takes longer, such as 5m.")
@click.option("--scenarios", type=click.IntRange(min=1), default=1, show_default=True, help="Scenarios of the gate.")
@click.option("--pilot", type=click.IntRange(min=4), default=6, show_default=True, help="Units of the pilot.")
@_reports_option
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--quiet", is_flag=True, help="No progress.")
def plan(a, b, parameters, settings, effect, time_budget, scenarios, pilot, reports, as_json, quiet) -> None:
    """Units and minutes that an effect needs here, from a short pilot; refuses (exit 3) what cannot be certified."""
    from harness import comparison, records
    from harness import plan as planning

    overrides = parse_settings(list(settings))
    resolved = comparison.resolve_for_pilot(a, b, parse_settings(list(parameters)), overrides, pilot)
    folder = comparison.measure(resolved, command=sys.argv[1:], reports=reports, quiet=quiet or as_json)
    try:
        seen = planning.pilot(records.read(folder))
    except ValueError as error:
        raise UnfitError(f"the pilot gave nothing to plan from: {error}; see {_relative(folder)}") from None
    scenario = resolved.scenario
    found = planning.plan(
        seen,
        effect=effect,
        margin=scenario.gate.margin,
        alpha=scenario.gate.alpha,
        mode=scenario.schedule.mode,
        scenarios=scenarios,
        time_budget=time_budget,
    )
    if as_json:
        click.echo(json.dumps(planning.as_dict(found), indent=2))
    else:
        for line in planning.told(found, effect, scenario.schedule.mode):
            click.echo(line)
    click.get_current_context().exit(3 if found.refused else 0)


@cli.command()
@click.argument("names", metavar="[SCENARIO...]", nargs=-1)
@click.option("--base", help="Revision to compare with (default: the merge base with the main branch, else HEAD~1).")
@click.option("--policy", type=click.Choice(["inconclusive=pass", "inconclusive=fail"]), help="What exit 3 becomes.")
@click.option("--units", type=click.IntRange(min=1), help="Units of each scenario (default: as many as can fail).")
@click.option("--time-budget", type=_Duration(), help="Stop measuring after this time, such as 20m.")
@click.option("--dry-run", is_flag=True, help="Say what would run, how long, and which effect it can fail on.")
@click.option("--github", is_flag=True, help="Print GitHub annotations too; the job summary is written where asked.")
@_reports_option
@click.option("--json", "as_json", is_flag=True, help="Print gate.json instead of lines.")
@click.option("--quiet", is_flag=True, help="No progress.")
def gate(names, base, policy, units, time_budget, dry_run, github, reports, as_json, quiet) -> None:
    """Every scenario with a [gate]: the working tree against a base revision, judged as one family.

    One unit of each scenario runs in turn, so that a slow hour hits all. Exit code as in a comparison, the worst of
    all. Writes gate.json, gate.md and junit.xml to reports/gate/<time>-<id>/.
    """
    from harness import comparison, gating
    from harness import report as reporting

    root = _root()
    reports = reports or root / "reports"
    planned = gating.plan(root, list(names), base=base, units=units)
    if dry_run:
        for line in gating.told(planned, reports):
            click.echo(line)
        return
    say = (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))
    found = gating.run(planned, reports, time_budget=time_budget, quiet=quiet or as_json, say=say)
    summaries, code = gating.judge(planned, found, policy.split("=")[1] if policy else None)
    for folder, entries in found:
        reporting.write(folder, entries)
    folder = reports / "gate" / comparison.new_run()
    gating.write(folder, planned, summaries, code)
    if as_json:
        click.echo((folder / "gate.json").read_text(), nl=False)
    else:
        if github:
            from harness.report import github as annotating

            click.echo(annotating.annotations(summaries, planned.deleted), nl=False)
        for summary in summaries:
            verdict = summary["verdict"]
            click.echo(f"{summary['scenario']}: {verdict['word']}: {verdict['reason']}")
        for name in planned.deleted:
            click.echo(f"{name}: deleted: this gated scenario exists at the base only")
        click.echo(f"gate: exit {code}; {_relative(folder / 'gate.md')}")
    click.get_current_context().exit(code)


@cli.command()
@click.option("--blocks", type=click.IntRange(min=6), default=20, show_default=True, help="Blocks of the A/A trial.")
@click.option("--no-trial", is_flag=True, help="Look at the machine only; skip the two-minute A/A trial.")
@_reports_option
@click.option("--json", "as_json", is_flag=True, help="Print findings and trial as JSON.")
@click.option("--quiet", is_flag=True, help="No progress.")
def doctor(blocks, no_trial, reports, as_json, quiet) -> None:
    """What on this machine will spoil a measurement, what mends it, and which effect can be seen here.

    Ends with 4 when the trial shows that nothing below 10 % can be seen.
    """
    from harness import trial
    from harness.doctor import examine

    findings = examine()
    if not as_json:
        for line in trial.told_findings(findings):
            click.echo(line)
    seen = []
    if not no_trial:
        seen = trial.run(reports or _project() / "reports", blocks=blocks, quiet=quiet or as_json)
    if as_json:
        click.echo(json.dumps(trial.as_dict(findings, seen), indent=2))
    else:
        for line in trial.told(seen):
            click.echo(line)
    if seen and not trial.usable(seen):
        raise UnfitError("nothing below 10 % can be seen on this machine now")


@cli.command()
@click.option("--blocks", type=click.IntRange(min=6), default=16, show_default=True, help="Blocks a comparison.")
@click.option("--pairs", type=click.IntRange(min=1), default=10, show_default=True, help="Pairs in a block.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of all coins (default: fresh ones, recorded).")
@_reports_option
@click.option("--quiet", is_flag=True, help="No progress.")
def selftest(blocks, pairs, seed, reports, quiet) -> None:
    """Plant a slowdown of 10 %, which must fail, and nothing, which must pass, at a margin of 5 %.

    Ends with 0 when both come out right, with 4 when this machine does not allow it.
    """
    from harness import selftest as test

    outcomes = test.run(
        reports or _project() / "reports",
        blocks=blocks,
        pairs=pairs,
        seed=seed,
        quiet=quiet,
    )
    for outcome in outcomes:
        planted = f"{outcome.planted:.0%} slower" if outcome.planted else "nothing planted"
        click.echo(f"{'ok    ' if outcome.passed else 'FAILED'} {planted}: {outcome.word}; {outcome.reason}")
    if not all(outcome.passed for outcome in outcomes):
        raise UnfitError("a planted slowdown of 10 % and no slowdown cannot be told apart here; see harness doctor")


@cli.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("other", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--a", "name_a", metavar="NAME", help="The result that is A (default: by name, or the first of two).")
@click.option("--b", "name_b", metavar="NAME", help="The result that is B.")
@click.option("--margin", type=_Share(), default=0.02, show_default="2%", help="The slowdown that you do not mind.")
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON.")
def import_(file, other, name_a, name_b, margin, as_json) -> None:
    """Judge results of hyperfine, pyperf, pytest-benchmark, asv or google-benchmark (their JSON).

    Two files are A and B, and results of one name are compared; one file must hold two results. A folder is all its
    *.json of one arm, a process each. The verdict is model-based: the runs were not paired, and another tool chose
    their order. Exit codes are those of ab.
    """
    from harness.exchange import imports, results

    a = results.read(file)
    b = results.read(other) if other is not None else None
    found = imports.pairs(a, b, name_a, name_b)
    for line in imports.left_out(a, b, found):
        click.echo(f"harness: {line}", err=True)
    summaries = imports.summarise(found, (a.source, (b or a).source), margin)
    code = imports.worst(summaries)
    if as_json:
        click.echo(json.dumps({"exit_code": code, "comparisons": summaries}, indent=2))
    else:
        for summary in summaries:
            for line in imports.told(summary):
                click.echo(line)
        click.echo(f"note: {imports.WARNING}")
    click.get_current_context().exit(code)


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", required=True, type=click.Choice(["csv", "bmf", "google-benchmark"]), help="What to write."
)
def export(run, form) -> None:
    """Print a comparison (its folder or records.jsonl) as CSV, Bencher's metric format or google-benchmark's JSON."""
    from harness import records
    from harness.exchange import exports

    click.echo(exports.text(records.read(run), str(run), form), nl=False)


def _project() -> Path:
    """The project's folder, or this one outside any project."""
    from harness.scenario import project_root

    return project_root(Path.cwd()) or Path.cwd()


def _root() -> Path:
    from harness.scenario import FOLDER, project_root

    root = project_root(Path.cwd())
    if root is None:
        raise ConfigurationError(
            sentence(str(Path.cwd()), f"a folder '{FOLDER}' here or above", "none", "go into the project")
        )
    return root
