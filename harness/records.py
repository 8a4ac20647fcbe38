"""records.jsonl: the typed entries of a comparison, one JSON object a line, appended and flushed as they happen.

This file is the one source of truth: verdict, summary and report are pure functions of it.

Order in a comparison: one `comparison`; then for every unit its `launch`, `phase`, `slot`, `fingerprint`, `load` and
perhaps `accuracy` or `void` entries, closed by one `unit` entry; at last `end`. A unit without its `unit` entry was
interrupted and does not count. Units are numbered from 0 in the order they ran; a void or set-aside one is replaced by
a new number. Arms are "a" and "b". Times are seconds, sizes bytes, load is in cores.

Schema history
--------------
1    first version
2    entry `accuracy`; plan.seeds and plan.first_seed; plan.mode "accuracy" for `harness accuracy`, which has no pairs;
     phase `life` of a resident arm with its peak_rss_bytes
"""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import ConfigurationError, sentence

SCHEMA = 2
NAME = "records.jsonl"


class Entry(msgspec.Struct, tag_field="kind"):
    """Base of all entries; unknown fields of later versions are ignored on reading."""


class Comparison(Entry, tag="comparison", kw_only=True):
    """Everything that was decided before the first launch."""

    schema: int = SCHEMA
    run: str  # <time>-<id>, the folder's name
    created: str  # ISO 8601, UTC
    harness_version: str
    command: list[str]  # the arguments that repeat it
    scenario: dict[str, Any]  # the resolved scenario: Scenario.as_dict()
    arms: dict[str, dict[str, Any]]  # "a", "b": name, reference, kind, parameters, command, cwd, environment, revision
    seed: int
    # mode, units, pairs, warmup, fixed (bool), cap; and where they apply: method ("fixed", "looks", "anytime",
    # "deterministic"), looks, quads (bool), control (bool), time_budget (seconds)
    plan: dict[str, Any]
    machine: dict[str, Any]  # machine.describe()
    revision: dict[str, Any]  # commit and dirty flag of the tree that the comparison was started in


class Launch(Entry, tag="launch", kw_only=True):
    """One arm process was started."""

    unit: int
    arm: str
    order: int  # 0: launched first in its unit
    pid: int
    at: float  # seconds since the comparison's first launch
    startup_seconds: float | None = None  # spawn to header, or None for a command
    header: dict[str, Any] | None = None  # the arm's header, None for a command that speaks no protocol


class Phase(Entry, tag="phase", kw_only=True):
    """A named part of an arm's life outside the iterations: setup, or `life`, from spawn to exit."""

    unit: int
    arm: str
    name: str
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: float | None = None  # of `life`


class Slot(Entry, tag="slot", kw_only=True):
    """One timed execution of one arm: an iteration, or a whole process."""

    unit: int
    arm: str
    phase: str  # "warmup" or "steady"
    index: int  # in its process and phase
    at: float  # start, seconds since the comparison's first launch
    seconds: float
    cpu_seconds: float
    pair: int | None = None  # None in warm-up
    position: int | None = None  # 0: the first slot of its pair
    outside_seconds: float | None = None  # the harness's own time around the exchange
    units: float = 1  # what a per-unit metric divides by
    work: float = 0
    counters: dict[str, float] = {}
    totals: dict[str, float | None] = {}
    process_seconds: float | None = None  # spawn to exit (process mode)
    process_cpu_seconds: float | None = None
    startup_seconds: float | None = None  # spawn to the end of the first iteration; on a launch's first steady slot
    peak_rss_bytes: float | None = None
    idle_cpu_seconds: float | None = None  # CPU that the other, waiting arm used meanwhile (resident)
    load: dict[str, float] = {}  # with a pair's second slot: cores around the pair; usage, runq_wait, steal, psi_cpu


class Fingerprint(Entry, tag="fingerprint", kw_only=True):
    """What an arm's output must agree on."""

    unit: int
    arm: str
    when: str  # "warm" after warm-up, "end" of the block or process, "rerun" to name the odd arm
    work: float
    digests: dict[str, str] = {}
    totals: dict[str, float | None] = {}


class Accuracy(Entry, tag="accuracy", kw_only=True):
    """The values of both arms, reduced against each other: all that verdict and pages need of them."""

    unit: int
    reduced: dict[str, Any]  # accuracy.reduce(A, B)
    # "a", "b": path beside the record (None: too large to keep), bytes, digest of the arrays, seconds it took
    files: dict[str, dict[str, Any]] = {}


class Void(Entry, tag="void", kw_only=True):
    """A slot that gave no measurement; counted as an outcome, its unit is replaced."""

    unit: int
    arm: str
    reason: str  # crash, exit, killed, timeout, protocol, time, memory
    message: str
    pair: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    stderr: str = ""  # its end
    stacks: str = ""  # of every thread, on a hang


class Load(Entry, tag="load", kw_only=True):
    """Load on the machine around a block, or around a slot in process mode; in cores over `elapsed`."""

    unit: int
    method: str  # cgroup, proc+children, stat-only, totals
    elapsed: float
    arm: str | None = None  # None: around the whole block
    position: int | None = None
    own: float | None = None  # the harness and the arms' whole trees
    foreign: float | None = None  # other user processes
    kthread: float | None = None
    irq: float | None = None
    steal: float | None = None
    unattributed: float | None = None
    busy: float | None = None  # the machine's total without steal
    psi_cpu: float | None = None  # share of the time in which some task waited for a CPU
    psi_own: float | None = None  # the same of the own cgroup's tasks alone
    io_wait: float | None = None  # idle while somebody waited for a disk
    runq_wait: float | None = None  # own run-queue wait
    involuntary_switches: float | None = None  # how often own threads were put off a processor
    major_faults: float | None = None  # pages of own processes that had to come from a disk
    throttled: float | None = None  # seconds throttled by the own cgroup's quota
    frequency_mhz: float | None = None
    temperature_c: float | None = None
    gpus: list[dict[str, Any]] = []  # of every device: clock_mhz, power_watts, temperature_c, busy, foreign pids
    top: list[dict[str, Any]] = []  # the largest foreign processes: name, pid, cores
    sampler_seconds: float | None = None  # CPU that the two scans cost
    events: dict[str, dict[str, float]] = {}  # arm -> events of `perf stat` over the pairs of a block


class Unit(Entry, tag="unit", kw_only=True):
    """A unit is over: `state` is complete or void."""

    unit: int
    state: str


class Note(Entry, tag="note", kw_only=True):
    """Something a reader of the record should know; `about` is a short word, such as resumed or refused."""

    about: str
    message: str
    unit: int | None = None
    arm: str | None = None


class Extension(Entry, tag="extension", kw_only=True):
    """A finished comparison goes on by so many units; from here on it is judged by a test that allows it."""

    units: int


class End(Entry, tag="end", kw_only=True):
    """The comparison is over: complete, stopped (with the reason), or interrupted."""

    state: str
    message: str = ""


AnyEntry = Comparison | Launch | Phase | Slot | Fingerprint | Accuracy | Void | Load | Unit | Note | Extension | End
_decoder = msgspec.json.Decoder(AnyEntry)
_encoder = msgspec.json.Encoder()


def encode(entry: Entry) -> bytes:
    """One line without its newline; NaN and infinities become null."""
    return _encoder.encode(entry)


def decode(line: bytes | str) -> AnyEntry:
    """One entry from one line. Raises msgspec.DecodeError or ValidationError."""
    return _decoder.decode(line)


class Writer:
    """Appends entries to one record; every entry is on its way to the disk before `write` returns.

    Raises ConfigurationError when the folder cannot be written or another comparison holds it.
    """

    def __init__(self, folder: Path):
        import fcntl

        self.path = Path(folder) / NAME
        try:
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigurationError(
                sentence(
                    str(self.path), "a record that can be written", error.strerror or str(error), "check the folder"
                )
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigurationError(
                sentence(str(self.path), "a record of its own", "one that a running comparison writes", "wait for it")
            ) from None
        size = self.path.stat().st_size
        if size:
            with self.path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # killed in the middle of a line: close it, so that the next one is whole
                    self._file.write(b"\n")

    def write(self, entry: Entry) -> None:
        """Append one entry. Raises OSError, told by its file name and a sentence, when the disk takes no more."""
        line = encode(entry) + b"\n"
        try:
            written = self._file.write(line)
            found = f"only {written} of {len(line)} bytes written" if written != len(line) else ""
            code = errno.ENOSPC
        except OSError as error:
            found, code = (error.strerror or str(error)).lower(), error.errno
        if found:
            told = f"expected room for the next entry, found {found}; make room, then go on with --resume"
            raise OSError(code, told, str(self.path))

    def close(self) -> None:
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def read(path: Path) -> list[AnyEntry]:
    """All entries of a record; `path` is the file or its folder.

    A line that was cut (the harness was killed while writing it) is skipped when the comparison went on after it
    or ended there. Any other damage is a ConfigurationError that names the line.
    """
    path = Path(path)
    if path.is_dir():
        path = path / NAME
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigurationError(
            sentence(
                str(path), "a record (records.jsonl or its folder)", error.strerror or str(error), "check the path"
            )
        ) from None
    entries = list(_entries(path, lines))
    if not entries or not isinstance(entries[0], Comparison):
        found = "an empty file" if not entries else f"a '{type(entries[0]).__name__.lower()}' entry"
        raise ConfigurationError(
            sentence(f"{path}: line 1", "a 'comparison' entry", found, "is this a record of harness?")
        )
    if entries[0].schema > SCHEMA:
        raise ConfigurationError(
            sentence(f"{path}: schema", f"at most {SCHEMA}", str(entries[0].schema), "update harness to read it")
        )
    return settle(entries)


def settle(entries: list[AnyEntry]) -> list[AnyEntry]:
    """Without what an interruption left half done.

    A unit that was running when the harness ended is run again under the same number, with the same coins, after a
    note 'resumed'; its first, unfinished attempt does not count. So does an `end` that was not the last.
    """
    settled: list[AnyEntry] = []
    for entry in entries:
        if isinstance(entry, Note) and entry.about == "resumed":
            closed = {unit.unit for unit in of(settled, Unit)}
            settled = [
                old
                for old in settled
                if not isinstance(old, End) and (getattr(old, "unit", None) is None or old.unit in closed)
            ]
        settled.append(entry)
    return settled


def _entries(path: Path, lines: list[bytes]) -> Iterator[AnyEntry]:
    """Entries line by line; one that was cut is no damage where the record ends after it, or was gone on with."""
    cut: ConfigurationError | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = decode(line)
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                sentence(f"{path}: line {number}", f"an entry of schema {SCHEMA}", str(error))
            ) from None
        except msgspec.DecodeError as error:
            cut = cut or ConfigurationError(sentence(f"{path}: line {number}", "one JSON object", str(error)))
            continue
        if cut is not None and not (isinstance(entry, Note) and entry.about == "resumed"):
            raise cut
        cut = None
        yield entry


def of(entries: Iterable[AnyEntry], kind: type) -> list:
    """The entries of one kind, in order."""
    return [entry for entry in entries if isinstance(entry, kind)]


def sync_folder(folder: Path) -> None:
    """Make a new file's name durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
