"""Command line of impl.mapping: map, status, resume, finalise, export; arguments in, exit code out.

Exit codes: 0 done, 1 a step failed, 2 bad command, job or data, 3 nothing was mapped, 10 storage, 130 and 143
interrupted (SIGINT, SIGTERM: what is written stays valid, `resume` goes on).
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.mapping", description="Scans to maps of reciprocal space.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, what: str, quiet: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=what)
        one.add_argument("job", help="the job's file (.toml)")
        one.add_argument("--json", action="store_true", help="JSON lines on standard output")
        if quiet:
            one.add_argument("--quiet", action="store_true", help="errors alone")
        return one

    for name, what in (("map", "map a job, or go on with it"), ("resume", "go on with a job that was begun")):
        one = command(name, what)
        one.add_argument("--share", default="1/1", metavar="I/N", help="the I-th of N equal shares of the frames")
        one.add_argument(
            "--schedule", default="grouped", help="inline, grouped or per-frame-pool (default %(default)s)"
        )
        one.add_argument("--watchdog", type=float, default=300.0, metavar="SECONDS",
                         help="say where the run stands when nothing happened for so long; 0: never")  # fmt: skip
        one.add_argument("--stages", action="store_true", help="report time and clock of every stage at the end")
    command("status", "say where a job stands", quiet=False)
    one = command("finalise", "add all parts up to one map a grid")
    one.add_argument("--clean", action="store_true", help="delete the parts once the maps are whole")
    one = command("export", "write a finalised map as NeXus and draw slices of it")
    one.add_argument("--values", metavar="FILE", help="write the first grid for `harness accuracy` (.npz) and no more")
    return parser


class _Reporter:
    """Progress of a run: a bar where standard error is a terminal, a line at most every two seconds otherwise."""

    def __init__(self, as_json: bool, quiet: bool):
        self._json, self._quiet, self._bar, self._task = as_json, quiet, None, None
        self._done = self._frames = self._first = 0
        self._begin = self._last = time.monotonic()

    def say(self, text: str) -> None:
        """One sentence."""
        if self._json:
            self._line({"kind": "note", "text": text})
        elif not self._quiet:
            self._end_bar_line(text)

    def _end_bar_line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def __call__(self, kind: str, facts: dict) -> None:
        if kind == "begin":
            self._done = self._first = facts["done"]
            self._frames, self._begin = facts["frames"], time.monotonic()
            if sys.stderr.isatty() and not self._json and not self._quiet:
                self._start_bar()
        elif kind == "call":
            self._done += facts["frames"]
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done)
            elif time.monotonic() - self._last >= 2 or self._done == self._frames:
                self._last = time.monotonic()
                self._progress()
        elif kind == "watchdog":
            text = f"nothing happened for {facts['seconds']} s; {facts['outstanding']} tasks: {facts['tasks']}"
            if self._json:
                self._line({"kind": "watchdog"} | facts)
            else:
                self._end_bar_line(text)

    def _progress(self) -> None:
        rate = (self._done - self._first) / max(time.monotonic() - self._begin, 1e-9)
        if self._json:
            self._line({"kind": "progress", "done": self._done, "frames": self._frames, "frames_per_second": rate})
        elif not self._quiet:
            left = (self._frames - self._done) / rate if rate else 0
            print(f"{self._done} of {self._frames} frames, {rate:.2f} frames/s, {left:.0f} s left", file=sys.stderr,
                  flush=True)  # fmt: skip

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("mapping"), BarColumn(), MofNCompleteColumn(), TextColumn("frames"), TimeRemainingColumn(),
            console=Console(stderr=True), transient=False,
        )  # fmt: skip
        self._task = self._bar.add_task("frames", total=self._frames, completed=self._done)
        self._bar.start()

    def _line(self, line: dict) -> None:
        print(json.dumps(line, sort_keys=True), flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def result(self, kind: str, facts: dict, text: str) -> None:
        """The end of a command."""
        self.close()
        if self._json:
            self._line({"kind": kind} | facts)
        elif not self._quiet:
            print(text)


def _share(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise ValueError(f"--share: expected I/N with 1 <= I <= N, found '{text}'; write for instance 2/8")
    return int(index), int(count)


def _map(arguments, job, reporter, stop) -> int:
    from contextlib import nullcontext

    from impl.mapping import run, stages

    if arguments.watchdog < 0:
        raise ValueError(f"--watchdog: expected at least 0 seconds, found {arguments.watchdog}")
    with stages.measured() if arguments.stages else nullcontext() as measured:
        done = run.map_job(
            job, _share(arguments.share), arguments.schedule, reporter.say, reporter, stop,
            fresh=False if arguments.command == "resume" else None, watchdog=arguments.watchdog,
        )  # fmt: skip
    facts = dataclasses.asdict(done)
    lines = [f"{done.mapped} of {done.frames} frames mapped in {done.seconds:.1f} s, {done.cpu_seconds:.1f} s of CPU, "
             f"at most {done.peak_rss_bytes / 2**20:.0f} MiB"]  # fmt: skip
    lines += [
        f"grid {name}: {grid['rows']} records in parts, {grid['contributors']} contributors, intensity "
        f"{grid['sumI']:.9g}, fingerprint {grid['fingerprint'][:16]}"
        for name, grid in done.grids.items()
    ]
    if measured is not None:
        report = measured.report(done.mapped, done.seconds)
        facts["stages"] = report
        lines += stages.table(report)
    reporter.result("mapped", facts, "\n".join(lines))
    return 0


def _status(arguments, job, reporter, stop) -> int:
    from impl.mapping import run

    found = run.status(job)
    facts = dataclasses.asdict(found) | {"complete": found.complete}
    lines = [job.describe()]
    if not found.shares:
        lines.append("not begun")
    for share in found.shares:
        index, count = share["share"]
        words = (
            f"share {index} of {count}: {share['done']} of {share['frames']} frames, {share['bytes'] / 2**20:.1f} MiB"
        )
        lines.append(words + (f", process {share['holder']} maps it now" if share["holder"] else ""))
        lines += share["unfit"]
    if found.shares and len(found.shares) < found.shares_expected:
        lines.append(f"{found.shares_expected - len(found.shares)} of {found.shares_expected} shares are not begun")
    for name, grid in found.grids.items():
        if found.shares:
            lines.append(f"grid {name}: {grid['rows']} records in parts, {grid['contributors']} contributors")
    lines += [f"frames {first} and {second} have equal content" for first, second in found.equal]
    lines += [f"finalised: {path}, {rows} records" for path, rows in found.final.items()]
    reporter.result("status", facts, "\n".join(lines))
    return 0


def _finalise(arguments, job, reporter, stop) -> int:
    from impl.mapping import run

    footers = run.finalise(job, reporter.say, arguments.clean, stop)
    kept = ("rows", "contributors", "fingerprint", "sumW", "sumI", "sumV", "frames_covered", "parts")
    facts = {name: {key: footer[key] for key in kept} for name, footer in footers.items()}
    lines = [f"{run.records_path(job, name)}: {grid['rows']} records of {grid['frames_covered']} frames"
             for name, grid in facts.items()]  # fmt: skip
    reporter.result("finalised", {"grids": facts, "peak_rss_bytes": run.peak_rss_bytes()}, "\n".join(lines))
    return 0


def _export(arguments, job, reporter, stop) -> int:
    from impl.mapping import run

    if arguments.values:
        facts = run.values(job, job.grids[0][0], arguments.values)
        reporter.result("values", facts, f"{arguments.values}: {facts['records']} records")
        return 0
    files = run.export(job, stop)
    reporter.result("exported", {"files": [str(path) for path in files]}, "\n".join(map(str, files)))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    from impl.mapping import schedule
    from impl.mapping.checkpoint import EmptyMap
    from impl.mapping.job import Job
    from impl.mapping.kernel import MappingError
    from impl.mapping.parts import StorageError
    from impl.mapping.sources import SourceError

    commands = {"map": _map, "resume": _map, "status": _status, "finalise": _finalise, "export": _export}
    reporter = _Reporter(arguments.json, getattr(arguments, "quiet", False))

    def failed(error: Exception, code: int) -> int:
        reporter.close()
        if arguments.json:
            print(json.dumps({"kind": "error", "text": str(error), "exit_code": code}, sort_keys=True), flush=True)
        print(f"error: {error}", file=sys.stderr)
        return code

    with schedule.Stop() as stop:
        try:
            return commands[arguments.command](arguments, Job.read(Path(arguments.job)), reporter, stop)
        except StorageError as error:
            return failed(error, 10)
        except EmptyMap as error:
            return failed(error, 3)
        except schedule.Interrupted as error:
            reporter.close()
            again = "resume" if arguments.command in ("map", "resume") else arguments.command
            print(f"{error}; go on with: python -m impl.mapping {again} {arguments.job}", file=sys.stderr)
            return 128 + error.signal
        except (SourceError, ValueError) as error:
            return failed(error, 2)
        except MappingError as error:
            return failed(error, 2 if str(error).startswith(("budget", "corrections")) else 1)
        except OSError as error:
            return failed(error, 10)
        finally:
            reporter.close()


if __name__ == "__main__":
    sys.exit(main())
