"""One `harness ab` from references to a finished record: resolve, open or resume, run."""

import contextlib
import datetime
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness import __version__, arms, caches, machine, protocol, records, runner, stats, worker
from harness.arms import Resolved
from harness.errors import ConfigurationError, sentence
from harness.process import ArmProcess, VoidSlot
from harness.progress import Progress


def compare(
    a: str,
    b: str,
    *,
    parameters: dict[str, Any],
    overrides: dict[str, Any],
    command: list[str],
    reports: Path | None = None,
    resume: Path | None = None,
    more: int | None = None,
    keep_going: bool = False,
    quiet: bool = False,
    values_alone: bool = False,
) -> Path:
    """Resolve two references, measure B against A and return the folder of the record.

    Raises ConfigurationError (nothing is kept), UnfitError or Interrupted.
    """
    resolved = arms.built(arms.resolve(a, b, parameters=parameters, overrides=overrides), _say(quiet))
    return measure(
        resolved,
        command=command,
        reports=reports,
        resume=resume,
        more=more,
        keep_going=keep_going,
        quiet=quiet,
        values_alone=values_alone,
    )


def measure(
    resolved: Resolved,
    *,
    command: list[str],
    reports: Path | None = None,
    resume: Path | None = None,
    more: int | None = None,
    keep_going: bool = False,
    quiet: bool = False,
    started: Callable[[Path], None] = lambda folder: None,
    values_alone: bool = False,
) -> Path:
    """Measure two resolved arms and return the folder of the record; with `more`, extend a finished one at `resume`.

    `command` are the arguments that repeat it; `started` hears of the folder once the record is open. `values_alone`
    compares the arms' values and no times (`harness accuracy`).
    """
    reports = reports or resolved.root / "reports"
    if resume is not None:
        folder, entries = _reopen(resume, resolved, extend=more is not None, values_alone=values_alone)
    else:
        folder, entries = _open(reports, resolved, command, values_alone)
    with records.Writer(folder) as writer:
        if resume is not None:
            entries = records.read(folder)  # whoever held it may have gone on meanwhile
        if resume is None:
            writer.write(entries[0])
        elif more is not None:
            if not isinstance(entries[-1], records.End) or entries[-1].state != "complete":
                raise ConfigurationError(f"{folder}: the comparison is not finished; go on with --resume first")
            entries.append(records.Extension(units=more))
            writer.write(entries[-1])
        elif isinstance(entries[-1], records.End) and entries[-1].state == "complete":
            raise ConfigurationError(f"{folder}: the comparison is complete; there is nothing to resume")
        else:
            note = records.Note(about="resumed", message=f"resumed at {_now().isoformat(timespec='seconds')}")
            writer.write(note)
            entries = records.settle([*entries, note])
        started(folder)
        opening: records.Comparison = entries[0]
        word = {"process": "pair", "accuracy": "unit"}.get(opening.plan["mode"], "block")
        progress = Progress(
            resolved.scenario.name,
            word,
            opening.plan["units"] + (more or 0),
            fixed=opening.plan.get("fixed", True),
            quiet=quiet,
        )
        running = runner.Runner(resolved, opening.plan, opening.seed, entries, writer, progress, keep_going=keep_going)
        try:
            running.run()
        except ConfigurationError:
            # An arm refused its input before anything was measured: leave no empty comparison behind.
            if resume is None and not records.of(entries, records.Unit):
                shutil.rmtree(folder)
            raise
    return folder


def resolve_for_pilot(a: str, b: str, parameters: dict, overrides: dict, units: int) -> Resolved:
    """Resolve two references with a schedule of so many units."""
    resolved = arms.resolve(a, b, parameters=parameters, overrides=overrides)
    key = "schedule.pairs" if resolved.scenario.schedule.mode == "process" else "schedule.blocks"
    return arms.resolve(a, b, parameters=parameters, overrides={**overrides, key: units})


def _say(quiet: bool):
    """Where news from before the measurement goes: standard error, or nowhere."""
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def new_run(at: datetime.datetime | None = None) -> str:
    """A name that no other comparison has: <time>-<id>."""
    return f"{(at or _now()).strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(3)}"


def _open(reports: Path, resolved: Resolved, command: list[str], values_alone: bool = False) -> tuple[Path, list]:
    """A new folder, never an old one, and the entry that opens its record."""
    scenario = resolved.scenario
    plan = _plan(resolved, values_alone)
    mode = plan["mode"]
    if (mode == "accuracy" or scenario.scenario.fingerprint == "statistical") and not (
        resolved.a.speaks_protocol and resolved.b.speaks_protocol
    ):
        where = "harness accuracy" if mode == "accuracy" else "scenario.fingerprint 'statistical'"
        raise ConfigurationError(
            sentence(where, "arms that speak the worker protocol", "a command", "only those can write values")
        )
    if mode in ("resident", "duet") and not (resolved.a.speaks_protocol and resolved.b.speaks_protocol):
        raise ConfigurationError(
            sentence("schedule.mode", "'process' for an arm that is a command", f"'{mode}'", 'set mode = "process"')
        )
    if mode == "duet" and len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError(sentence("schedule.mode", "two cores for 'duet'", "one", 'set mode = "resident"'))
    created = _now()
    run = new_run(created)
    folder = reports / scenario.name / run
    seed = scenario.schedule.seed if scenario.schedule.seed is not None else runner.new_seed()
    opening = records.Comparison(
        run=run,
        created=created.isoformat(timespec="seconds"),
        harness_version=__version__,
        command=["harness", *command],
        scenario=scenario.as_dict(),
        arms=_described(resolved),
        seed=seed,
        plan=plan,
        machine=machine.describe(),
        revision=worker.revision(resolved.root),
    )
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigurationError(
            sentence(str(folder), "a folder that can be made", error.strerror or str(error), "try --reports DIR")
        ) from None
    return folder, [opening]


def _reopen(path: Path, resolved: Resolved, extend: bool, values_alone: bool = False) -> tuple[Path, list]:
    """A record to go on with; refused when it answers another question. An extension keeps the record's schedule."""
    entries = records.read(path)
    folder = path if path.is_dir() else path.parent
    opening: records.Comparison = entries[0]
    if (opening.plan["mode"] == "accuracy") != values_alone:
        command = "accuracy" if opening.plan["mode"] == "accuracy" else "ab"
        raise ConfigurationError(f"{folder}: it is a record of harness {command}; resume it with that command")
    recorded, wanted = dict(opening.scenario), resolved.scenario.as_dict()
    if extend:
        recorded.pop("schedule", None)
        wanted.pop("schedule")
    if recorded != wanted:
        raise ConfigurationError(
            f"{folder}: its scenario differs from '{resolved.scenario.name}' as it is now; "
            "resume with the same options, or start anew"
        )
    if opening.arms != _described(resolved):
        raise ConfigurationError(f"{folder}: it compares other arms; resume with the arms it was started with")
    return folder, entries


@contextlib.contextmanager
def opened(reports: Path, resolved: Resolved, command: list[str], quiet: bool):
    """A new comparison that is stepped from outside: (folder, entries, runner); its record is closed at the end."""
    folder, entries = _open(reports, resolved, command)
    with records.Writer(folder) as writer:
        writer.write(entries[0])
        opening: records.Comparison = entries[0]
        word = "pair" if opening.plan["mode"] == "process" else "block"
        progress = Progress(resolved.scenario.name, word, opening.plan["units"], quiet=quiet)
        yield folder, entries, runner.Runner(resolved, opening.plan, opening.seed, entries, writer, progress)


def _plan(resolved: Resolved, values_alone: bool = False) -> dict[str, Any]:
    """How many units, how they are ordered, and how it is decided: what the record keeps of the schedule."""
    scenario = resolved.scenario
    asked = scenario.schedule
    seeds = {}
    if scenario.accuracy.seeds and (values_alone or scenario.scenario.fingerprint == "statistical"):
        first = resolved.a.parameters.get("seed", resolved.b.parameters.get("seed", 0))
        seeds = {"seeds": scenario.accuracy.seeds, "first_seed": first}
    if values_alone:
        units = scenario.accuracy.seeds or 1
        return {
            "mode": "accuracy",
            "method": "fixed",
            "units": units,
            "pairs": 0,
            "warmup": asked.warmup,
            "fixed": True,
            "cap": 2 * units,
            **seeds,
        }
    if scenario.scenario.metric == "instructions":
        method, units = "deterministic", 3
    else:
        method = "anytime" if asked.anytime else "looks" if asked.fixed_units is None else "fixed"
        units = asked.fixed_units or stats.LOOKS[-1]
    return {
        "mode": asked.mode,
        "method": method,
        "units": units,
        "pairs": asked.pairs_in_block,
        "warmup": asked.warmup,
        "fixed": method in ("fixed", "deterministic"),
        "cap": 2 * units,
        "quads": asked.quads,
        "control": asked.control,
        "pilot": asked.pilot,
        "time_budget": asked.time_budget,
        **seeds,
    }


def _described(resolved: Resolved) -> dict[str, dict[str, Any]]:
    return {letter: arm.as_dict(resolved.root) for letter, arm in resolved.arms.items()}


def run_once(reference: str, *, parameters, overrides, warmup: int, iterations: int, say) -> None:
    """Launch one arm, iterate, and say every line of its answers; raises ConfigurationError with its complaint."""
    resolved = arms.built(arms.one(reference, parameters=parameters, overrides=overrides), _say(False))
    arm, question = resolved.a, resolved.scenario.scenario
    timeout = question.timeout
    try:
        for hook in ("setup", "prepare"):
            runner.run_hook(resolved, arm, hook)
        with (
            caches.environment(arm, resolved.root, cold=False) as environment,
            ArmProcess(
                arm.command,
                cwd=arm.cwd,
                environment=environment,
                speaks_protocol=arm.speaks_protocol,
                stdin=resolved.stdin,
                memory_limit=question.memory_limit,
                nice=question.nice,
                pin=question.pin,
            ) as process,
        ):
            if arm.speaks_protocol:
                say(_line(process.header(timeout)))
                commands = [protocol.Setup()]
                commands += [protocol.Iterate("warmup")] * warmup + [protocol.Iterate("steady")] * iterations
                for command in [*commands, protocol.DescribeOutput()]:
                    say(_line(process.ask(command, timeout)[0]))
                ended = process.close(timeout)
            else:
                ended = process.wait(timeout)
                say(ended.output.decode("utf-8", "replace").rstrip("\n"))
    except VoidSlot as void:
        say(void.stderr.rstrip() or "(the arm printed nothing on standard error)")
        raise ConfigurationError(f"arm '{arm.name}': {void.reason}: {void.message}") from None
    finally:
        runner.run_hook(resolved, arm, "cleanup")
    measured = {name: getattr(ended, name) for name in ("exit_code", "seconds", "cpu_seconds", "peak_rss_bytes")}
    say(json.dumps({"kind": "exit", **measured}))


def _line(message: protocol.Message) -> str:
    return msgspec.json.encode(message).decode()
