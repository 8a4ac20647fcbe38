"""A job from its file to its map: opened, planned, mapped or gone on with, added up; see __main__.py for the words.

<scratch>/share-1-of-1/    plan.json, lock and parts of a share (checkpoint.py); a job that is not split has one
<scratch>/<grid>.records   the map, once all shares are whole
"""

import functools
import itertools
import os
import re
import resource
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from impl.mapping import checkpoint, groups
from impl.mapping import plan as plans
from impl.mapping import schedule as schedules
from impl.mapping.checkpoint import EmptyMap, Lock, Router
from impl.mapping.correction import Corrected
from impl.mapping.frames import FrameStack
from impl.mapping.geometry import exposure_tables
from impl.mapping.job import Job
from impl.mapping.kernel import Kernel, MappingError, Options, library_digest
from impl.mapping.parts import Part, StorageError, Summary, merged
from impl.mapping.plan import Plan
from impl.mapping.sources import SourceError
from impl.mapping.work import Work, correction_of

#: what of a finished map's footer is kept with an exported one
FACTS = ("rows", "contributors", "fingerprint", "sumW", "sumI", "sumV", "frames_covered", "frames")
_SHARE = re.compile(r"share-(\d+)-of-(\d+)")


def share_folder(job: Job, share: tuple[int, int]) -> Path:
    """Where a share's plan and parts lie."""
    return job.scratch / f"share-{share[0]}-of-{share[1]}"


def included(job: Job, stack: FrameStack) -> list[int]:
    """Frames of the scan that the job does not leave out. Raises SourceError where none is left or one is unknown."""
    if job.excluded and job.excluded[-1] >= stack.frames:
        raise SourceError(f"{job.source}: job.excluded", f"frames below {stack.frames}", str(job.excluded[-1]))
    excluded = set(job.excluded)
    frames = [frame for frame in range(stack.frames) if frame not in excluded]
    if not frames:
        raise SourceError(f"{job.source}: job.excluded", "frames left to map", "none")
    return frames


def make_plan(job: Job, stack: FrameStack, share: tuple[int, int] = (1, 1)) -> Plan:
    """Choose everything that the checkpoints' identity holds; times the frames of a call where the job leaves it open.

    Raises MappingError for a budget that is too small, ValueError for a share that is none.
    """
    frames = plans.share_of(included(job, stack), share)
    threads = job.threads or len(os.sched_getaffinity(0))
    readers = job.readers or (min(4, threads) if stack.concurrent else 1)
    moving = bool((stack.start[frames] != stack.end[frames]).any())
    continuous = job.depth > 0 and job.exposure == "continuous" and moving

    wanted = job.corrections
    static = 17 + 8 * (bool(wanted.background) + bool(wanted.background_variance))
    frame = 9 + (34 if wanted.repair else 0)  # a repair copies intensity, variance and mask twice

    def layout(count: int):
        return plans.layout(
            job.instrument.shape, count, job.depth, continuous, len(job.grids), job.budget, threads, readers, static,
            frame,
        )  # fmt: skip

    count, evidence = job.frames_per_call, "given by the job"
    if not count:
        count, evidence = _choose(job, stack, frames, layout)
    made = layout(count)
    calls, ranges = plans.cut_ranges(frames, count, job.checkpoints, stack.breaks)
    return Plan(
        job=job.digest(), share=share, calls=calls, ranges=ranges, bands=made.bands, frames_per_call=count,
        evidence=evidence, workers=made.workers, threads=made.threads, in_flight=made.in_flight, readers=readers,
        work_block=0, kernel_bytes=made.kernel_bytes, flush_bytes=made.flush_bytes, rays_cached=made.rays_cached,
        library=library_digest(),
    )  # fmt: skip


#: rows and columns of the two tiles on which frames a call are timed
PROBE = (64, 512)
#: samples of a job below which timing would cost more than it can gain
WORTH_TIMING = 1 << 27


def _choose(job: Job, stack: FrameStack, frames: list[int], layout) -> tuple[int, str]:
    """Frames a call by timing on two tiles of the job's first frames, and why.

    layout(n) shares the budget for n frames a call; what it refuses, or what leaves less than three calls at once where
    one frame a call allows them, is not tried.
    """
    start, end = stack.start[frames], stack.end[frames]
    rows, columns = job.instrument.shape
    if len(frames) * rows * columns < WORTH_TIMING:
        return 1, "too short a job for timing to pay"
    given = {"ub": job.ub, "u": job.u}
    gaps = {k for k, (a, b) in enumerate(itertools.pairwise(frames)) if b != a + 1 or b in stack.breaks}
    travelled = max(
        groups.travel(job.instrument, grid, job.wave_number, start, end, excluded=gaps, **given)
        for _, grid in job.grids
    )
    together = groups.cut(frames, max(groups.CANDIDATES), stack.breaks)
    enough = min(3, layout(1).workers)

    def affordable(count: int) -> bool:
        try:
            return layout(count).workers >= enough
        except MappingError:
            return False

    pieces = []
    if travelled < groups.TRAVEL:
        pieces = _pieces(job, stack, max(together, key=len))
    options = Options(depth=job.depth, subdivision="flat")
    with Kernel(job.grids[0][1], options) as kernel:
        choice = groups.choose(kernel, pieces, travelled, groups.monotone(start, end), affordable)
    return choice.frames_per_call, choice.reason


def _pieces(job: Job, stack: FrameStack, frames) -> list[groups.Piece]:
    """Two tiles of some adjacent frames, in the detector's middle and half way to its edge, corrected."""
    rows, columns = job.instrument.shape
    height, width = min(PROBE[0], rows), min(PROBE[1] >> job.depth, columns)
    c0 = (columns - width) // 2
    places = [((rows - height) // 2, c0), ((rows - height) // 4, c0)]
    correction = correction_of(job, stack, frames)
    whole, tiles = Corrected.empty((rows, columns)), [[] for _ in places]
    for index in frames:
        frame = stack.read(index)
        correction.apply(frame.counts, frame.variance, frame.mask, out=whole)
        for tile, (r, c) in zip(tiles, places):
            tile.append([
                np.ascontiguousarray(array[r : r + height, c : c + width])
                for array in (whole.intensity, whole.variance, whole.mask)
            ])  # fmt: skip
    start, end = stack.start[list(frames)], stack.end[list(frames)]
    if job.exposure == "stationary":
        start = end = (start + end) / 2
    grid, origin = job.grids[0][1], job.origin(start, end)
    tables, stationary = exposure_tables(start, end, job.depth, job.wave_number, grid.axes, u=job.u, ub=job.ub)
    return [
        groups.Piece(
            *(list(arrays) for arrays in zip(*tile)), job.instrument.corner_rays(r, r + height, c, c + width, origin),
            (0, height, 0, width), tables, stationary,
        )
        for tile, (r, c) in zip(tiles, places)
    ]  # fmt: skip


@dataclass
class Report:
    """What a run did.

    Attributes
    ----------
    mapped, frames : int    frames mapped by this start, and of the share in all
    entered : dict          records that entered the checkpoints by this start, before merging, by grid
    grids : dict            rows, contributors, fingerprint, sumW, sumI, sumV of the parts, by grid
    empty : list of str     grids without a record
    equal : list            pairs of frames of equal content
    seconds, cpu_seconds : float
    peak_rss_bytes : int    of the process so far
    """

    mapped: int
    frames: int
    entered: dict
    grids: dict
    empty: list
    equal: list
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int


def peak_rss_bytes() -> int:
    """Most memory that this process held at once.

    Not ru_maxrss where /proc is there: that begins with the high-water mark of whoever started the process.
    """
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _summary(parts) -> dict:
    summary = Summary()
    for part in parts:
        summary.include(part.footer)
    return summary.facts()


def _frame_facts(routers, grid: str) -> list[dict]:
    return [fact for router in routers for part in router.parts(grid) for fact in part.footer["frames"]]


def map_job(
    job: Job, share: tuple[int, int] = (1, 1), schedule: str = "grouped", say=lambda text: None, report=None, stop=None,
    fresh: bool | None = None, watchdog: float = schedules.WATCHDOG, **how,
) -> Report:  # fmt: skip
    """Map what a job lacks; what an earlier run left is kept.

    Parameters
    ----------
    share : (i, n)          map the i-th of n equal shares of the frames
    say : callable          told a sentence now and then
    report : callable       see schedule.run; also 'begin' with the frames done and in all
    fresh : bool or None    False: there must be something to go on with; None: either
    how                     fused, layout, subdivision of work.Work

    Raises
    ------
    SourceError, StorageError, MappingError, EmptyMap, ValueError, schedule.Interrupted
    """
    begin, cpu = time.perf_counter(), time.process_time()
    report = report or (lambda kind, facts: None)
    names = [name for name, _ in job.grids]
    with ExitStack() as closing:
        stack = job.open()
        closing.callback(stack.close)
        if tuple(stack.shape) != tuple(job.instrument.shape):
            raise SourceError(job.source, f"frames of {job.instrument.shape} pixels", f"{stack.shape}")
        folder = share_folder(job, share)
        _only_split(job, share)
        if fresh is False and not (folder / "plan.json").exists():
            raise StorageError(folder, "a run to go on with", "none", "start it with map")
        _make_folder(folder)
        lock = Lock(folder)
        closing.callback(lock.release)
        plan = plans.read(folder / "plan.json")
        if plan is None:
            plan = make_plan(job, stack, share)
            plans.write(plan, folder / "plan.json")
            say(f"{plan.frames_per_call} frames a call ({plan.evidence}), {plan.workers} calls at once, "
                f"{len(plan.bands)} bands, {len(plan.ranges)} checkpoints")  # fmt: skip
        else:
            _check(plan, job, folder, say)
        router = Router(folder, plan, names, say, stop=stop)
        done = router.frames_covered()
        if done:
            say(f"{folder}: {done} of {len(plan.frames)} frames are there already")
        report("begin", {"done": done, "frames": len(plan.frames)})
        if router.todo:
            work = Work(job, stack, plan, **how)
            schedules.run(work, router, schedule, report, stop, watchdog)
        router.finish()
        # A share may miss a grid; a job may not, and no run may come out with nothing at all.
        empty = checkpoint.guard_empty(router, job.allow_empty or (share[1] > 1 and _some(router)))
        for name in empty:
            say(f"grid '{name}' is empty in share {share[0]} of {share[1]}")
        equal = checkpoint.duplicates(_frame_facts([router], names[0]))
        for first, second in equal[:5]:
            say(f"frames {first} and {second} have equal content; was one read twice?")
        return Report(
            sum(len(plan.calls[call]) for call in router.todo), len(plan.frames), dict(router.records),
            {name: _summary(router.parts(name)) for name in names}, empty, equal, time.perf_counter() - begin,
            time.process_time() - cpu, peak_rss_bytes(),
        )  # fmt: skip


def _some(router: Router) -> bool:
    """Whether any grid has a record."""
    return any(part.rows for grid in router.grids for part in router.parts(grid))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(folder, "a scratch folder", error.strerror or str(error), "check job.scratch") from None


def _shares(job: Job) -> list[tuple[int, int]]:
    """Shares that have a plan in the scratch folder."""
    found = []
    for path in sorted(job.scratch.glob("share-*-of-*")):
        match = _SHARE.fullmatch(path.name)
        if match and (path / "plan.json").exists():
            found.append((int(match[1]), int(match[2])))
    return found


def _only_split(job: Job, share: tuple[int, int]) -> None:
    """Raise where the scratch holds another split of the job."""
    for index, count in _shares(job):
        if count != share[1]:
            raise StorageError(
                job.scratch, f"shares of {share[1]}", f"share {index} of {count}",
                "go on with that split, or take another scratch",
            )  # fmt: skip


def _check(plan: Plan, job: Job, folder: Path, say, mapping: bool = True) -> None:
    """Raise unless a stored plan is this job's; say where the job now asks for something else than was planned.

    mapping : frames are to be mapped too, which takes the library that mapped the others.
    """
    digest = job.digest()
    if plan.job != digest:
        raise StorageError(
            folder, f"the state of job {digest[:12]}", f"that of {plan.job[:12]}",
            "undo the job's change, or take another scratch",
        )  # fmt: skip
    if mapping and plan.library != library_digest():
        raise StorageError(
            folder, f"parts of the library {library_digest()[:12]}", plan.library[:12],
            "map on with that build, or take another scratch",
        )  # fmt: skip
    if job.frames_per_call not in (0, plan.frames_per_call):
        say(f"{plan.frames_per_call} frames a call, as planned; {job.frames_per_call} needs another scratch")


@dataclass
class Status:
    """Where a job stands.

    Attributes
    ----------
    shares : list of dict    share, frames, done, holder (process that maps it now, or None), bytes, unfit (sentences)
    shares_expected : int
    grids : dict             rows, contributors, fingerprint, sumW, sumI, sumV of all parts, by grid
    final : dict             path -> rows of finalised maps
    equal : list             pairs of frames of equal content
    """

    shares: list
    shares_expected: int
    grids: dict
    final: dict
    equal: list

    @property
    def complete(self) -> bool:
        """Whether all frames of all shares lie in parts."""
        return len(self.shares) == self.shares_expected and all(s["done"] == s["frames"] for s in self.shares)


def status(job: Job) -> Status:
    """Look at a job's scratch without touching it. Raises StorageError for a plan of another job."""
    names = [name for name, _ in job.grids]
    shares, routers, digest = [], [], job.digest()
    for share in _shares(job):
        folder, unfit = share_folder(job, share), []
        plan = plans.read(folder / "plan.json")
        if plan.job != digest:
            raise StorageError(folder, f"the state of job {digest[:12]}", f"that of {plan.job[:12]}", "check the job")
        router = Router(folder, plan, names, unfit.append, look=True)
        routers.append(router)
        shares.append({
            "share": list(share), "frames": len(plan.frames), "done": router.frames_covered(),
            "holder": checkpoint.holder(folder), "unfit": unfit,
            "bytes": sum(part.path.stat().st_size for grid in names for part in router.parts(grid)),
        })  # fmt: skip
    grids = {name: _summary(part for router in routers for part in router.parts(name)) for name in names}
    final = {}
    for name in names:
        path = records_path(job, name)
        if path.exists():
            final[str(path)] = Part(path).rows
    expected = shares[0]["share"][1] if shares else 1
    return Status(shares, expected, grids, final, checkpoint.duplicates(_frame_facts(routers, names[0])))


def records_path(job: Job, grid: str) -> Path:
    """Where the map of a grid lies after `finalise`."""
    return job.scratch / f"{grid}.records"


def finalise(job: Job, say=lambda text: None, clean: bool = False, stop=None) -> dict[str, dict]:
    """Add up all shares of a job into one file of records a grid; returns their footers.

    clean : delete the parts once every file is whole.

    Raises
    ------
    StorageError    shares or frames are missing, a part is damaged, a share is being mapped
    EmptyMap        a grid has no record in any share, unless the job allows it
    """
    names, digest = [name for name, _ in job.grids], job.digest()
    shares = _shares(job)
    if not shares:
        raise StorageError(job.scratch, "a mapped job", "none", "map it first")
    count = shares[0][1]
    _only_split(job, (1, count))
    missing = sorted(set(range(1, count + 1)) - {index for index, _ in shares})
    if missing:
        raise StorageError(job.scratch, f"{count} shares", f"{missing[0]} of {count} missing", "map it first")
    with ExitStack() as closing:
        stack = job.open()
        frames = included(job, stack)
        stack.close()
        routers = []
        for share in shares:
            folder = share_folder(job, share)
            lock = Lock(folder)
            closing.callback(lock.release)
            plan = plans.read(folder / "plan.json")
            _check(plan, job, folder, say, mapping=False)
            router = Router(folder, plan, names, say, stop=stop)
            if router.todo:
                done = router.frames_covered()
                raise StorageError(folder, f"{len(plan.frames)} frames mapped", str(done), "resume it first")
            routers.append(router)
        empty = [name for name in names if not any(part.rows for r in routers for part in r.parts(name))]
        if empty and not job.allow_empty:
            raise EmptyMap(
                f"grid '{empty[0]}': expected records of {len(frames)} frames, found none; check its range against the "
                "scan, or set allow_empty = true"
            )
        footers = {}
        for name in names:
            footers[name] = checkpoint.finalise(digest, frames, routers, name, records_path(job, name), stop=stop)
            Part(records_path(job, name)).verify()
        if clean:
            for router in routers:
                for name in names:
                    for part in router.parts(name):
                        part.path.unlink()
        return footers


def _finalised(job: Job, grid: str) -> Part:
    """The map of a grid, checked; raises StorageError where there is none, or that of another job."""
    path = records_path(job, grid)
    if not path.exists():
        raise StorageError(path, "a finalised map", "none", "finalise it first")
    part = Part(path)
    if part.footer["job"] != job.digest():
        raise StorageError(
            path, f"a map of job {job.digest()[:12]}", f"one of {part.footer['job'][:12]}", "finalise it again"
        )
    part.verify()
    return part


def export(job: Job, stop=None) -> list[Path]:
    """Write the finalised maps to the job's output with planes of each beside it (export.py); returns the files.

    The file also says of every frame which content it had and what scaled it.
    """
    from impl.mapping import export as exports

    parts = {name: _finalised(job, name) for name, _ in job.grids}
    facts = {name: {key: part.footer[key] for key in FACTS} for name, part in parts.items()}

    def windows(part: Part):
        for records in merged([part]):
            if stop is not None:
                stop.check()
            yield records

    maps = {name: functools.partial(windows, part) for name, part in parts.items() if part.rows}
    return exports.export(job, maps, facts)


def values(job: Job, grid: str, path) -> dict:
    """Write value, variance, weight, key and contributors of a finalised map as .npz, for `harness accuracy`."""
    part = _finalised(job, grid)
    records = part.read(0, part.rows)
    np.savez(
        path, key=records.key(), value=records.intensity(), variance=records.variance(), weight=records.sum_weight,
        contributors=records.contributors,
    )  # fmt: skip
    return {"records": len(records)}
