"""Checkpoints of a job: batches of records in, parts on disk out, in an order that completion cannot change.

A range is a run of planned calls; every (grid, range) becomes one part on disk, or several where memory asks for it.
Batches enter in whatever order they are done and are added in the order of the frames, by a binary counter: level k
holds the sum of 2^k batches. Where a grid's levels reach the plan's flush_bytes they become a part. Both depend on the
batches alone, so equal plans give equal bytes, in one run or in many; a part that is whole is never mapped again.

    <scratch>/plan.json    <scratch>/lock    <scratch>/<grid>/r0003_p0001.part
"""

import fcntl
import os
import re
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from impl.mapping.parts import ROW_BYTES, Part, StorageError, Summary, Writer, merged
from impl.mapping.plan import Plan
from impl.mapping.records import Records, add

_NAME = re.compile(r"r(\d{4})_p(\d{4})\.part")


class EmptyMap(Exception):
    """Frames were mapped and something came out empty: where, expected, found, next in one sentence."""


@dataclass(frozen=True)
class Facts:
    """What is known of one frame that was mapped.

    Attributes
    ----------
    frame : int       its index in the scan
    digest : str      content hash of its counts
    valid : int       pixels that may be mapped
    factors : tuple   (c, c2, v_c or None) that scaled it, in order
    """

    frame: int
    digest: str
    valid: int
    factors: tuple = ()


class Levels:
    """A binary counter of batches: the sum's association depends on how many there were, never on when."""

    def __init__(self):
        self._levels: list[Records | None] = []
        self.bytes = self.batches = 0

    def insert(self, batch: Records) -> None:
        """Add the next batch."""
        place = 0
        while place < len(self._levels) and self._levels[place] is not None:
            batch = add(self._levels[place], batch)
            self._levels[place] = None
            place += 1
        if place == len(self._levels):
            self._levels.append(None)
        self._levels[place] = batch
        self.batches += 1
        self.bytes = sum(len(level) * ROW_BYTES for level in self._levels if level is not None)

    def take(self) -> Records:
        """The sum of all batches, older ones on the left; the counter is empty afterwards."""
        out = Records.empty()
        for place, level in enumerate(self._levels):
            if level is not None:
                out = add(level, out)
            self._levels[place] = None
        self._levels, self.bytes, self.batches = [], 0, 0
        return out


class Lock:
    """One run a scratch folder. Raises StorageError where another process holds it."""

    def __init__(self, folder: Path):
        path = folder / "lock"
        try:
            self._file = path.open("a+")
        except OSError as error:
            raise StorageError(folder, "a scratch folder", error.strerror or str(error), "check `scratch`") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise StorageError(
                folder, "no other run on this scratch", f"process {holder}", "wait for it, or take another scratch"
            ) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let the next run in."""
        self._file.close()


def holder(folder: Path) -> int | None:
    """The process that maps into a scratch folder now, None without one."""
    try:
        with (folder / "lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                text = file.read().strip()
                return int(text) if text.isdigit() else 0
    except OSError:
        pass
    return None


class _Progress:
    """Of one (grid, range): how many of its calls are in parts, and what waits in memory."""

    def __init__(self, calls: int):
        self.calls, self.done, self.parts = calls, 0, []
        self.levels, self.facts = Levels(), []


class Router:
    """Takes batches of calls in any order and leaves parts in the order of the frames.

    Parameters
    ----------
    folder : Path          the scratch folder; what is valid there is kept, what is not is deleted and named
    plan : Plan
    grids : list of str    names
    say : callable         told one sentence for everything that was found unfit
    look : bool            only look: nothing is made, deleted or read in full
    stop : Stop or None    its check() is called between the parts that are read
    """

    def __init__(self, folder, plan: Plan, grids, say=lambda text: None, look: bool = False, stop=None):
        self.folder, self.plan, self.grids, self._look, self._stop = Path(folder), plan, tuple(grids), look, stop
        self._lock = threading.Lock()  # of the waiting batches
        self._turn = threading.Lock()  # of the levels: one thread adds at a time
        self._waiting, self._claimed, self._failure = {}, set(), None
        self.records = dict.fromkeys(self.grids, 0)  # that entered, before any merging
        self._state = {}
        for grid in self.grids:
            self._recover(grid, say)
        self.todo = [n for n in range(len(plan.calls)) if self.needed(n)]
        self._next = 0

    # ------------------------------------------------------------------------------------------ what is there

    def _recover(self, grid: str, say) -> None:
        folder = self.folder / grid
        try:
            if not self._look:
                folder.mkdir(parents=True, exist_ok=True)
            found = sorted(folder.iterdir()) if folder.exists() else []
        except OSError as error:
            raise StorageError(folder, "a folder for parts", error.strerror or str(error), "check `scratch`") from None
        files = {}
        for path in found:
            match = _NAME.fullmatch(path.name)
            if match:
                files.setdefault(int(match[1]), {})[int(match[2])] = path
            elif path.name.endswith(".tmp"):
                self._delete(path)
        for number, (first, last) in enumerate(self.plan.ranges):
            state = self._state[grid, number] = _Progress(last - first)
            there = files.pop(number, {})
            while (path := there.pop(len(state.parts), None)) is not None:
                if self._stop is not None:
                    self._stop.check()
                try:
                    part = Part(path)
                    if not self._look:
                        part.verify()
                    self._fits(part, grid, number, first + state.done)
                except StorageError as error:
                    say(str(error))
                    self._delete(path)
                    break
                state.parts.append(part)
                state.done += part.footer["calls"][1] - part.footer["calls"][0]
            for path in there.values():
                say(f"{path}: expected the parts before it, found one missing; its frames are mapped again")
                self._delete(path)
        for path in (path for there in files.values() for path in there.values()):
            say(f"{path}: expected {len(self.plan.ranges)} ranges, found a part of another; deleted")
            self._delete(path)

    def _delete(self, path: Path) -> None:
        if not self._look:
            path.unlink(missing_ok=True)

    def _fits(self, part: Part, grid: str, number: int, call: int) -> None:
        """Raise unless a part is the next one of its range."""
        footer = part.footer
        for name, expected in (
            ("job", self.plan.job), ("plan", self.plan.digest()), ("grid", grid), ("range", number),
        ):  # fmt: skip
            if footer.get(name) != expected:
                raise StorageError(
                    part.path, f"{name} {expected}", f"{footer.get(name)}", "deleted; its frames are mapped again"
                )
        begin, end = footer["calls"]
        if begin != call or not begin < end <= self.plan.ranges[number][1]:
            raise StorageError(
                part.path, f"calls from {call}", f"{begin} to {end}", "deleted; its frames are mapped again"
            )
        frames = [frame for n in range(begin, end) for frame in self.plan.calls[n]]
        if footer["frames_covered"] != len(frames) or [fact["frame"] for fact in footer["frames"]] != frames:
            raise StorageError(
                part.path, f"{len(frames)} frames", f"{footer['frames_covered']}", "deleted; they are mapped again"
            )

    def needed(self, call: int) -> tuple[str, ...]:
        """Grids that lack a call."""
        number = self.plan.range_of(call)
        place = call - self.plan.ranges[number][0]
        return tuple(grid for grid in self.grids if self._state[grid, number].done <= place)

    @property
    def taken(self) -> int:
        """Calls that left the waiting room, counted from this start."""
        with self._lock:
            return self._next

    def frames_covered(self) -> int:
        """Frames that lie in parts of every grid."""
        missing = {frame for call in self.todo for frame in self.plan.calls[call] if self.needed(call)}
        return len(self.plan.frames) - len(missing)

    def parts(self, grid: str) -> list[Part]:
        """The parts of a grid in the order of the frames."""
        return [part for number in range(len(self.plan.ranges)) for part in self._state[grid, number].parts]

    # ------------------------------------------------------------------------------------------ what comes in

    def insert(self, frames, batches: dict[str, Records], facts: list[Facts]) -> None:
        """Take the batches of one call, one a grid; written parts are on disk when this returns.

        Any thread may call it. Raises ValueError for frames that are no call of the plan or were taken already,
        StorageError where a part cannot be written.
        """
        call = self.plan.call_of(frames)
        if [fact.frame for fact in facts] != list(frames):
            raise ValueError(f"frames {list(frames)}: expected one fact each, found {[f.frame for f in facts]}")
        if self._failure is not None:
            raise self._failure
        with self._lock:
            if call in self._claimed or not self.needed(call):
                raise ValueError(f"frames {list(frames)}: expected them once, found them again")
            self._claimed.add(call)
            for grid, batch in batches.items():
                self.records[grid] += len(batch)
            self._waiting[call] = batches, facts
        # Whoever comes while another adds leaves its batch to that thread, unless that thread has just stopped looking.
        while self._ready() and self._turn.acquire(blocking=False):
            try:
                while (ready := self._pop()) is not None:
                    self._advance(*ready)
            except BaseException as error:
                self._failure = error  # levels may lack a batch now: nothing may be added to them any more
                raise
            finally:
                self._turn.release()

    def _ready(self) -> bool:
        with self._lock:
            waiting = self._next < len(self.todo) and self.todo[self._next] in self._waiting
            return waiting and self._failure is None

    def _pop(self):
        with self._lock:
            if self._failure is None and self._next < len(self.todo) and self.todo[self._next] in self._waiting:
                call = self.todo[self._next]
                self._next += 1
                return call, *self._waiting.pop(call)
            return None

    def _advance(self, call: int, batches, facts) -> None:
        number = self.plan.range_of(call)
        last = call + 1 == self.plan.ranges[number][1]
        for grid in self.needed(call):
            state = self._state[grid, number]
            state.levels.insert(batches[grid])
            state.facts += facts
            if last or state.levels.bytes >= self.plan.flush_bytes:
                self._flush(grid, number, state)

    def _flush(self, grid: str, number: int, state: _Progress) -> None:
        begin = self.plan.ranges[number][0] + state.done
        end = begin + state.levels.batches
        path = self.folder / grid / f"r{number:04d}_p{len(state.parts):04d}.part"
        records, frames, state.facts = state.levels.take(), state.facts, []
        with Writer(path) as writer:
            writer.append(records)
            writer.finish(
                {
                    "job": self.plan.job,
                    "plan": self.plan.digest(),
                    "grid": grid,
                    "range": number,
                    "calls": [begin, end],
                    "frames_covered": len(frames),
                    "frames": [asdict(fact) for fact in frames],
                }
            )
        state.parts.append(Part(path))
        state.done = end - self.plan.ranges[number][0]

    def finish(self) -> None:
        """Raise unless every call of the plan lies in a part of every grid."""
        missing = [n for n in self.todo if self.needed(n)]
        if missing:
            raise ValueError(
                f"{self.folder}: expected all {len(self.plan.calls)} calls in parts, found {len(missing)} missing, "
                f"the first is call {missing[0]} of frames {list(self.plan.calls[missing[0]])}"
            )


def guard_empty(router: Router, allow_empty: bool) -> list[str]:
    """Names of the grids that are empty; raises EmptyMap for any, unless allowed.

    Empty parts claim their frames, so that the next run would find them done: they are deleted, and it maps again.
    """
    empty = [grid for grid in router.grids if not sum(part.rows for part in router.parts(grid))]
    if empty and not allow_empty:
        for grid in empty:
            for part in router.parts(grid):
                part.path.unlink(missing_ok=True)
        names = ", ".join(f"'{grid}'" for grid in empty)
        raise EmptyMap(
            f"grid {names}: expected records of {len(router.plan.frames)} frames, found none; check its range against "
            "the scan, or set allow_empty = true"
        )
    return empty


def duplicates(frames: list[dict]) -> list[tuple[int, int]]:
    """Pairs of frames of equal content: each with the first that has it."""
    first, out = {}, []
    for fact in sorted(frames, key=lambda fact: fact["frame"]):
        if fact["digest"] in first:
            out.append((first[fact["digest"]], fact["frame"]))
        first.setdefault(fact["digest"], fact["frame"])
    return out


def finalise(job_digest: str, frames, routers: list[Router], grid: str, path, window: int = 1 << 20, stop=None) -> dict:
    """Add up the parts of a grid over all shares of a job into one file of records; returns its footer.

    window is about how many rows are in memory; stop.check() is called between two windows. Parts add in the order
    of the frames. Raises StorageError where a part is damaged, belongs to another job, or frames are missing or
    covered twice.
    """
    parts = sorted((p for router in routers for p in router.parts(grid)), key=lambda p: p.footer["frames"][0]["frame"])
    facts = [fact for part in parts for fact in part.footer["frames"]]
    covered = [fact["frame"] for fact in facts]
    if covered != list(frames):
        lost = sorted(set(frames) - set(covered))
        found = f"{len(lost)} missing, the first is {lost[0]}" if lost else "some twice or out of order"
        raise StorageError(path, f"{len(frames)} frames in parts of grid '{grid}'", found, "map what is missing")
    for part in parts:
        if part.footer["job"] != job_digest:
            raise StorageError(part.path, f"a part of job {job_digest[:12]}", part.footer["job"][:12], "map again")
    summary = Summary()
    for part in parts:
        summary.include(part.footer)
    with Writer(path) as writer:
        for records in merged(parts, window):
            if stop is not None:
                stop.check()
            writer.append(records)
        found = writer.summary.facts()
        for name in ("contributors", "fingerprint"):
            if found[name] != summary.facts()[name]:
                raise StorageError(path, f"{name} {summary.facts()[name]} of the parts", f"{found[name]}", "map again")
        return writer.finish(
            {"job": job_digest, "grid": grid, "frames": facts, "frames_covered": len(facts), "parts": len(parts)}
        )
