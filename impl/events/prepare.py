"""ROOT files to one graph cache: contiguous ranges of events, in this process or in workers, merged in source order.

The bytes of the cache do not depend on the number of workers: a worker writes the columns of its share into a folder of
its own, and only the parent writes the cache, share after share; with no workers the parent passes its own ranges
through the same door (`_Assembler`). Edge features are made there, from the nodes, so they cross no process border.

A worker opens its own files. Worker processes are spawned: they import NumPy and uproot, never torch. Any
`concurrent.futures.Executor` does, also one of a cluster that shares the folder of the output.
"""

import concurrent.futures
import contextlib
import dataclasses
import glob
import importlib.metadata
import itertools
import multiprocessing
import os
import platform
import signal
import time
from pathlib import Path

import numpy as np

from impl.events import cache, kernel, nodes, root
from impl.events import schema as schemas
from impl.events.cache import ColumnWriter
from impl.events.config import Options
from impl.events.errors import (
    CacheError,
    ConfigurationError,
    NoEventsError,
    SourceError,
    WorkerError,
)
from impl.events.nodes import Policies, Report
from impl.events.root import Reader

_EDGES_AT_ONCE = 65_536  # 0.8 MB of edge features: written while they are still in the second-level cache
_OPEN_READERS = 16
_PROBE_EVENTS = 2_000


@dataclasses.dataclass(frozen=True)
class Source:
    """One tree of one file: where it is, events, their class (None: from a branch), what identifies it."""

    path: str
    tree: str
    entries: int
    label: int | None
    identity: dict


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker must know; picklable."""

    schema: schemas.Schema
    bindings: dict
    policies: Policies
    sources: tuple[Source, ...]
    step_events: int


@dataclasses.dataclass(frozen=True)
class Share:
    """A worker's part: ranges (source, start, stop) one after the other, and the folder for its columns."""

    number: int
    ranges: tuple[tuple[int, int, int], ...]
    folder: str


@dataclasses.dataclass
class ShareResult:
    """What a worker says about its share; checked against what it wrote."""

    number: int
    events: int
    nodes: int
    report: Report


@dataclasses.dataclass
class Prepared:
    """What `prepare` did: the manifest of the cache, workers used, time, and why that many workers."""

    path: Path
    manifest: dict
    workers: int
    seconds: float
    reason: str = ""


# ---------------------------------------------------------------------------------------------------- sources


def expand(files) -> list[tuple[str, str]]:
    """(path, tree or '') of every file: globs expanded and sorted bytewise, FILE:TREE taken apart, order kept.

    Raises
    ------
    NoEventsError           no file, or a pattern that fits none
    ConfigurationError      a file twice
    """
    found = []
    for text in files:
        path, tree = text, ""
        if ":" in text and not os.path.exists(text):
            path, tree = text.rsplit(":", 1)
        if any(letter in path for letter in "*?[") and not os.path.exists(path):
            matches = sorted(glob.glob(path, recursive=True), key=os.fsencode)
            if not matches:
                raise NoEventsError(path, "files that fit the pattern", "none", "check the path")
            found += [(match, tree) for match in matches]
        else:
            found.append((path, tree))
    if not found:
        raise NoEventsError("files", "at least one", "none", "name the ROOT files")
    seen = set()
    for entry in found:
        key = (os.path.realpath(entry[0]), entry[1])
        if key in seen:
            raise ConfigurationError(entry[0], "each file once", "it twice", "remove one")
        seen.add(key)
    return found


def identify(path: str, how: str) -> dict:
    """What tells a file from another: {bytes, sha256}, or {path, bytes, mtime_ns}."""
    try:
        status = os.stat(path)
        if how == "stat":
            return {"path": os.path.realpath(path), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
        return {"bytes": status.st_size, "sha256": cache.file_digest(path)}
    except OSError as error:
        found = error.strerror or str(error)
        raise SourceError(path, "a readable file", found, "check the path", source=path) from None


class _Plan:
    """The opened set of files: schema, job, and readers that are still open (the first few files)."""

    def __init__(self, options: Options, files: list[tuple[str, str]], stack: contextlib.ExitStack):
        schema = schemas.load(options.schema)
        policies = Policies(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Policies)})
        nodes.check_policies(policies, schema)
        if isinstance(options.label, tuple) and len(options.label) != len(files):
            raise ConfigurationError("label", f"one class a file, {len(files)}", str(len(options.label)), "")
        labels = [_label_of(schema, options, i, path) for i, (path, _) in enumerate(files)]
        readers = []
        for path, tree in files:
            reader = stack.enter_context(Reader(path, tree or options.tree or schema.tree))
            reader.describe(schema)
            readers.append(reader)
            if len(readers) > _OPEN_READERS:  # a thousand files are no thousand open ones
                reader.close()
        self.job = Job(
            schema, root.bind(schema, readers), policies,
            tuple(Source(r.path, r.tree_name, r.entries, label, identify(r.path, options.identity))
                  for r, label in zip(readers, labels, strict=True)),
            options.step_events,
        )  # fmt: skip
        self.events = sum(reader.entries for reader in readers)
        self.readers = dict(enumerate(readers[:_OPEN_READERS]))
        if self.events == 0 and not options.allow_empty:
            raise NoEventsError(readers[0].path if len(readers) == 1 else f"{len(readers)} files", "events", "none",
                                "set allow_empty=true if that is meant")  # fmt: skip

    def shares(self, workers: int, folder: Path) -> list[Share]:
        """One share of contiguous events a worker, cut where baskets begin when that is near."""
        marks = [self._near_cut(self.events * k // workers, self.events / workers / 10) for k in range(workers)]
        shares = []
        for first, last in itertools.pairwise([*marks, self.events]):
            ranges = tuple(ranges_of(self.job.sources, first, last))
            if ranges:
                number = len(shares)
                shares.append(Share(number, ranges, str(folder / f"share-{number}")))
        return shares

    def _near_cut(self, mark: int, near: float) -> int:
        """The nearest basket border at most `near` events from `mark`, or `mark`; only in files that are open."""
        begin = 0
        for number, source in enumerate(self.job.sources):
            if begin <= mark < begin + source.entries:
                if number not in self.readers:
                    return mark
                branches = [b.branch for b in self.job.bindings.values() if b.branch is not None]
                cut = begin + min(self.readers[number].cuts(branches), key=lambda c: abs(begin + c - mark))
                return cut if abs(cut - mark) <= near else mark
            begin += source.entries
        return mark


def _label_of(schema: schemas.Schema, options: Options, place: int, path: str) -> int | None:
    if options.label is not None:
        label = options.label[place] if isinstance(options.label, tuple) else options.label
        classes = schema.label.classes
        if classes and label >= len(classes):
            raise ConfigurationError("label", f"a class below {len(classes)} ({', '.join(classes)})", str(label), "")
        return label
    if schema.label.kind == "files":
        return schema.class_of(path)
    return schema.label.value if schema.label.kind == "value" else None


def ranges_of(sources, first: int, last: int):
    """(source, start, stop) of the events first … last-1, counted over all sources in order."""
    begin = 0
    for number, source in enumerate(sources):
        start, stop = max(first - begin, 0), min(last - begin, source.entries)
        if start < stop:
            yield number, start, stop
        begin += source.entries


# ---------------------------------------------------------------------------------------------------- the work


def _steps(job: Job, ranges, readers: dict):
    """Columns and report of the ranges, `step_events` at a time; opens what `readers` does not hold."""
    for number, start, stop in ranges:
        source = job.sources[number]
        with contextlib.ExitStack() as stack:
            reader = readers.get(number) or stack.enter_context(Reader(source.path, source.tree))
            if reader.entries != source.entries:
                raise SourceError(source.path, f"{source.entries} events as before", str(reader.entries),
                                  "leave the file alone meanwhile", source=source.path)  # fmt: skip
            for first in range(start, stop, job.step_events):
                last = min(first + job.step_events, stop)
                values = root.read_range(reader, job.bindings, first, last)
                yield nodes.columns(job.schema, job.bindings, values, last - first, job.policies, source.path, first,
                                    source.label)  # fmt: skip


def prepare_share(job: Job, share: Share) -> ShareResult:
    """Write the columns of one share into its folder: what a worker does.

    Raises
    ------
    EventsError     of the kinds in errors.py; StorageError also when the folder is gone because the run was given up
    """
    folder = Path(share.folder)
    result = ShareResult(share.number, 0, 0, Report())
    writers: dict[str, ColumnWriter] = {}
    try:
        folder.mkdir()
        for columns, report in _steps(job, share.ranges, {}):
            if not folder.exists():  # the parent gave up
                raise FileNotFoundError(2, "the run was given up")
            for name, array in columns.items():
                if name not in writers:
                    writers[name] = ColumnWriter(folder / f"{name}.npy")
                writers[name].append(array)
            result.events += len(columns["node_counts"])
            result.nodes += len(columns["node_x"])
            result.report.add(report)
        for writer in writers.values():
            writer.finish()
        cache.close_all(writers.values(), sync=False)
    except OSError as error:
        raise cache.storage_error(folder, error) from None
    finally:
        for writer in writers.values():
            writer.abandon()
    return result


class _Assembler:
    """The only writer of a cache: takes columns of consecutive events, adds offsets and edge features."""

    def __init__(self, folder: Path, schema: schemas.Schema, self_loops: bool, edge_features: bool):
        self.folder, self.self_loops = folder, self_loops
        self.writers: dict[str, ColumnWriter] = {}
        self.events = self.nodes = self.edges = 0
        self.eta, self.phi = schema.features.index("eta"), schema.features.index("phi")
        self._buffer = np.empty((_EDGES_AT_ONCE, 3), np.float32) if edge_features else None

    def _append(self, name: str, array: np.ndarray) -> None:
        if name not in self.writers:
            self.writers[name] = ColumnWriter(self.folder / f"{name}.npy")
        self.writers[name].append(array)

    def add(self, columns: dict[str, np.ndarray]) -> None:
        """Append the events of some columns as `nodes.columns` returns them."""
        counts, node_x = columns["node_counts"], columns["node_x"]
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        if "node_off" not in self.writers:
            self._append("node_off", np.zeros(1, np.int64))
        self._append("node_off", offsets[1:] + self.nodes)
        for name, array in columns.items():
            if name != "node_counts":
                self._append(name, array)
        edges = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(kernel.edge_counts(counts, self.self_loops), out=edges[1:])
        if self._buffer is not None:
            self._edges(node_x, offsets, edges)
        self.events += len(counts)
        self.nodes += len(node_x)
        self.edges += int(edges[-1])

    def _edges(self, node_x, offsets, edges) -> None:
        node_x = np.ascontiguousarray(node_x)
        first = 0
        if len(offsets) == 1:
            self._append("edge_x", self._buffer[:0])
        while first < len(offsets) - 1:
            last = int(np.searchsorted(edges, edges[first] + _EDGES_AT_ONCE, side="right")) - 1
            last = min(max(last, first + 1), len(offsets) - 1)
            count = int(edges[last] - edges[first])
            if count > len(self._buffer):
                self._buffer = np.empty((count, 3), np.float32)
            out = self._buffer[:count]
            kernel.edge_features(node_x, offsets[first : last + 1], self.eta, self.phi, self.self_loops, out=out)
            self._append("edge_x", out)
            first = last

    def add_share(self, share: Share, result: ShareResult, step: int) -> None:
        """Append what a worker wrote, `step` events at a time, after checking that it is the whole share."""
        folder = Path(share.folder)
        asked = sum(stop - start for _, start, stop in share.ranges)
        columns = {}
        for path in sorted(folder.glob("*.npy")):
            try:
                columns[path.stem] = cache.load_column(path)
            except (OSError, ValueError, EOFError) as error:
                raise WorkerError(f"worker {share.number}: {path.stem}", "a whole column", str(error).splitlines()[0],
                                  "nothing was kept; start again") from None  # fmt: skip
        written = len(columns.get("node_counts", ()))
        if (
            (result.number, result.report.events_read) != (share.number, asked)
            or written != result.events
            or any(
                len(array) != (result.nodes if name == "node_x" else result.events) for name, array in columns.items()
            )
        ):
            expected = f"{asked} events read and {result.events} written"
            raise WorkerError(f"worker {share.number}", expected, f"{result.report.events_read} and {written}",
                              "nothing was kept; start again")  # fmt: skip
        offsets = np.zeros(written + 1, np.int64)
        np.cumsum(columns["node_counts"], out=offsets[1:])
        for first in range(0, max(written, 1), step):
            last = min(first + step, written)
            self.add({name: array[offsets[first] : offsets[last]] if name == "node_x" else array[first:last]
                      for name, array in columns.items()})  # fmt: skip
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

    def close(self) -> dict:
        """Finish all columns; returns {name: {dtype, shape, sha256}}, the digest None for edge_x."""
        return cache.finish_all(self.writers)

    def abandon(self) -> None:
        for writer in self.writers.values():
            writer.abandon()


@contextlib.contextmanager
def _interrupts_wait():
    """Hold an interrupt back while workers start: they inherit that, and the interrupt belongs to the parent alone.

    Otherwise a worker that is still starting, or gets only half of its orders, ends with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def default_executor(workers: int) -> concurrent.futures.ProcessPoolExecutor:
    """Fresh processes, started by spawn: nothing of the parent, no open file, no lock, crosses over."""
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def _end_workers(executor) -> None:
    """End what a failed run has left at work.

    A pool that breaks while another worker is being started ends those it knew by then and waits for all: for ever.
    """
    for process in list((getattr(executor, "_processes", None) or {}).values()):
        process.kill()


def _worker_died() -> WorkerError:
    return WorkerError("worker", "to finish its share", "that it died", "nothing was kept; is there enough memory?")


def _in_workers(plan: _Plan, workers: int, writing, assembler, executor, progress) -> Report:
    shares = plan.shares(workers, writing.folder)
    report = Report()
    own = executor is None
    executor = executor or default_executor(min(workers, max(len(shares), 1)))
    futures, broken = [], False
    try:
        with _interrupts_wait():
            futures = [executor.submit(prepare_share, plan.job, share) for share in shares]
        _watch(futures, shares, plan.events, progress)
        for share, future in zip(shares, futures, strict=True):  # the first failure in source order is the one told
            result = future.result()
            report.add(result.report)
            assembler.add_share(share, result, plan.job.step_events)
    except concurrent.futures.BrokenExecutor:
        broken = True
        raise _worker_died() from None
    except OSError as error:
        # A worker that dies while another starts closes the pool's own pipe: "handle is closed", without a number.
        if error.errno is not None:
            raise
        broken = True
        raise _worker_died() from None
    finally:
        for future in futures:
            future.cancel()
        if not all(future.done() for future in futures):
            writing.discard()  # workers at work see that their folder is gone and stop
        if own:
            if broken:
                _end_workers(executor)
            executor.shutdown(wait=True, cancel_futures=True)
    return report


def _watch(futures, shares, events: int, progress) -> None:
    """Wait for all, or the first failure; tell progress by the sizes of the count columns."""
    pending = set(futures)
    while pending:
        done, pending = concurrent.futures.wait(pending, 0.2, concurrent.futures.FIRST_EXCEPTION)
        if any(future.exception() is not None for future in done):
            return
        written = 0
        for share in shares:
            with contextlib.suppress(OSError):
                written += max(os.stat(Path(share.folder) / "node_counts.npy").st_size // 8 - 16, 0)
        progress(min(written, events), events)


def _here(plan: _Plan, assembler, progress) -> Report:
    report, done = Report(), 0
    for columns, step in _steps(plan.job, ranges_of(plan.job.sources, 0, plan.events), plan.readers):
        assembler.add(columns)
        report.add(step)
        done += step.events_read
        progress(done, plan.events)
    return report


# ---------------------------------------------------------------------------------------------------- how many workers


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds that a preparation would take with each number of workers, from measured parts."""

    events: int
    share_seconds: float
    merge_seconds: float
    start_seconds: float

    def seconds(self, workers: int) -> float:
        """Start-up of workers, who share one machine, their work side by side, the parent's merge after it."""
        if workers == 0:
            return self.events * (self.share_seconds + self.merge_seconds)
        return self.start_seconds * workers / self._cores() + self.events * (
            self.share_seconds / min(workers, self._cores()) + self.merge_seconds
        )

    @staticmethod
    def _cores() -> int:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def best(self) -> int:
        """The number of workers with the smallest estimate; 0 unless another saves a tenth."""
        best = min(range(self._cores() + 1), key=self.seconds)
        return best if self.seconds(best) < 0.9 * self.seconds(0) else 0

    def words(self) -> str:
        best = self.best()
        return (f"{self.events} events at {(self.share_seconds + self.merge_seconds) * 1e6:.0f} us, "
                f"{self.start_seconds:.2f} s to start a worker: about {self.seconds(best):.2f} s with {best}, "
                f"{self.seconds(0):.2f} s with 0")  # fmt: skip


def probe(plan: _Plan, folder: Path, edge_features: bool) -> Estimate:
    """Measure a few events and, only where workers could pay, the start of one worker."""
    events = min(_PROBE_EVENTS, plan.events)
    if events == 0:
        return Estimate(0, 0.0, 0.0, 0.0)
    share = merge = 0.0
    for _ in range(2):  # the first pass also warms caches and imports
        share = -time.perf_counter()
        steps = [c for c, _ in _steps(plan.job, ranges_of(plan.job.sources, 0, events), plan.readers)]
        share += time.perf_counter()
        trial = folder / "probe"
        trial.mkdir()
        assembler = _Assembler(trial, plan.job.schema, plan.job.policies.self_loops, edge_features)
        merge = -time.perf_counter()
        for columns in steps:
            assembler.add(columns)
        merge += time.perf_counter()
        assembler.abandon()
        for path in trial.iterdir():
            path.unlink()
        trial.rmdir()
        if events == plan.events:
            break
    # 0.3 s is less than any worker needs to start: below two of them there is nothing to gain.
    if plan.events * (share + merge) / events < 0.6:
        return Estimate(plan.events, share / events, merge / events, 0.3)
    start = -time.perf_counter()
    with default_executor(1) as executor:
        with _interrupts_wait():
            future = executor.submit(_loaded)
        future.result()
    start += time.perf_counter()
    return Estimate(plan.events, share / events, merge / events, start)


def _loaded() -> bool:
    """True in a worker once this module is imported there."""
    return True


# ---------------------------------------------------------------------------------------------------- the whole


def identity_of(job: Job, options: Options) -> dict:
    """What the fingerprint covers: schema, policies, sources, version of the format."""
    return {
        "format": cache.FORMAT_VERSION,
        "schema": job.schema.raw,
        "policies": {**dataclasses.asdict(job.policies), "edge_features": options.edge_features},
        "sources": [
            {**source.identity, "tree": source.tree, "entries": source.entries, "label": source.label}
            for source in job.sources
        ],
    }


def identity_for(options: Options) -> dict:
    """The identity that a cache of these options has, without preparing it; for `Cache.open(path, expect=…)`."""
    with contextlib.ExitStack() as stack:
        return identity_of(_Plan(options, expand(options.files), stack).job, options)


def _versions() -> dict:
    found = {"python": platform.python_version()}
    for package in ("numpy", "uproot", "awkward", "harness-ab"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def prepare(options: Options, executor: concurrent.futures.Executor | None = None, progress=None) -> Prepared:
    """Turn ROOT files into a graph cache.

    Parameters
    ----------
    options : Options
    executor : Executor, optional   runs the shares instead of spawned processes; `num_workers` says how many shares
    progress : callable, optional   called with (events done, events in all)

    Returns
    -------
    Prepared

    Raises
    ------
    EventsError     one of errors.py; no cache is left then
    """
    begin = time.perf_counter()
    files = expand(options.files)
    skipped: list[dict] = []
    while True:
        try:
            prepared = _attempt(options, files, skipped, executor, progress or (lambda done, total: None))
        except SourceError as error:
            if options.damaged != "skip_file" or error.source not in [path for path, _ in files]:
                raise
            # Whatever was read of it is dropped with the attempt: a file is used whole or not at all.
            gone = [path for path, _ in files].index(error.source)
            options = _without(options, gone)
            files = files[:gone] + files[gone + 1 :]
            skipped.append({"path": error.source, "cause": f"expected {error.expected}, found {error.found}"})
            if not files:
                raise NoEventsError("files", "at least one whole file", "none", str(error)) from None
            continue
        prepared.seconds = time.perf_counter() - begin
        return prepared


def _without(options: Options, place: int) -> Options:
    """The options without the label of one file."""
    if not isinstance(options.label, tuple):
        return options
    return dataclasses.replace(options, label=options.label[:place] + options.label[place + 1 :])


def _attempt(options: Options, files, skipped, executor, progress) -> Prepared:
    if Path(options.output).exists() and not options.overwrite:  # also checked under the lock; here before reading
        raise CacheError(options.output, "a path that does not exist", "one that does",
                         "set overwrite=true or choose another output")  # fmt: skip
    with contextlib.ExitStack() as stack:
        plan = _Plan(options, files, stack)
        writing = stack.enter_context(cache.Writing(options.output, options.overwrite))
        workers, reason = options.num_workers, ""
        if workers == "auto":
            estimate = probe(plan, writing.folder, options.edge_features)
            workers, reason = estimate.best(), estimate.words()
        if executor is not None and workers == 0:
            workers = 1
        schema, policies = plan.job.schema, plan.job.policies
        assembler = _Assembler(writing.folder, schema, policies.self_loops, options.edge_features)
        stack.callback(assembler.abandon)
        if workers and plan.events:
            report = _in_workers(plan, workers, writing, assembler, executor, progress)
        else:
            workers = 0
            report = _here(plan, assembler, progress)
            if plan.events == 0:
                empty, _ = nodes.columns(schema, plan.job.bindings,
                                         root.read_range(plan.readers[0], plan.job.bindings, 0, 0), 0, policies,
                                         plan.job.sources[0].path, 0, plan.job.sources[0].label)  # fmt: skip
                assembler.add(empty)
        if assembler.events == 0 and not options.allow_empty:
            raise NoEventsError(options.output, "at least one event", f"none left of {plan.events}",
                                "set allow_empty=true if that is meant")  # fmt: skip
        columns = assembler.close()
        manifest = cache.describe(
            columns, identity_of(plan.job, options), node_features=schema.features,
            globals=[spec.name for spec in schema.globals], classes=schema.label.classes,
            self_loops=policies.self_loops, edges=assembler.edges,
            report={**dataclasses.asdict(report), "skipped_files": skipped,
                    "branches": {key: b.branch if b.branch is not None else b.constant
                                 for key, b in plan.job.bindings.items()}},
            sources=[{"path": source.path, "tree": source.tree, "entries": source.entries}
                     for source in plan.job.sources],
            versions=_versions(),
        )  # fmt: skip
        writing.commit(manifest)
    return Prepared(Path(options.output), manifest, workers, 0.0, reason)
