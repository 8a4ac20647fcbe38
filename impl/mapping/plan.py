"""What a job does and in which order, chosen once: calls, ranges, bands and how memory is shared out; see Plan.

The plan is part of a checkpoint's identity. It is stored beside the parts and never chosen again for them.
"""

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass, fields
from pathlib import Path

from impl.mapping.groups import cut
from impl.mapping.kernel import MappingError, bytes_per_sample
from impl.mapping.parts import StorageError, canonical, write_whole

#: how sums of several calls associate; a change of it changes last bits, and the plan's digest
ASSOCIATION = "calls in frame order by a binary counter; parts by neighbours"
#: pixels of a band at most
BAND_PIXELS = 1 << 20
#: what the interpreter and its libraries take, measured 110 MB
BASELINE = 128 << 20


@dataclass(frozen=True)
class Layout:
    """How a budget of memory is shared out.

    Attributes
    ----------
    bands : ((r0, r1), …)    row ranges, one native call each
    workers : int            native calls at once
    threads : int            of one native call
    in_flight : int          calls of the plan that are between reading and their part
    kernel_bytes : int       working memory of one native call
    buffer_bytes : int       corrected frames of one call of the plan
    flush_bytes : int        where a grid's records in memory become a part
    rays_cached : bool       corner rays of all bands stay in memory
    parts : dict             bytes by purpose; their sum is at most the budget
    """

    bands: tuple
    workers: int
    threads: int
    in_flight: int
    kernel_bytes: int
    buffer_bytes: int
    flush_bytes: int
    rays_cached: bool
    parts: dict


def layout(
    shape, frames_per_call: int, depth: int, continuous: bool, grids: int, budget: int, threads: int, readers: int,
    static_bytes: int = 17, frame_bytes: int = 9,
) -> Layout:  # fmt: skip
    """Share a budget out: a quarter to records in memory, the rest to frames, rays and native calls.

    static_bytes and frame_bytes are a pixel's, of what is alike for all frames (factor, its square, mask; images) and
    of what a reader holds beside the buffer it fills (counts at their widest, mask; copies of a repair).
    Raises MappingError where not even bands of one row fit.
    """
    rows, columns = shape
    pixels, per_sample = rows * columns, bytes_per_sample(depth, continuous) * frames_per_call
    buffer = frames_per_call * pixels * 17  # intensity, variance, mask
    static, reading = pixels * static_bytes, readers * pixels * frame_bytes
    accumulators = budget // 4
    rays = pixels * 24
    cached = rays <= budget // 8
    spare = budget - BASELINE - static - reading - accumulators - (rays if cached else 0)
    # A worker has one kernel a grid, and each keeps its memory between calls.
    row = columns * (per_sample * grids + (0 if cached else 24))
    least = 2 * buffer + row
    if spare < least:
        need = (budget - spare + least) * 4 // 3
        raise MappingError(
            f"budget: expected about {need} bytes for frames of {rows} x {columns} pixels, {frames_per_call} a call, "
            f"found {budget}; raise it, or take fewer frames a call or fewer readers"
        )
    wanted = min(rows, max(1, BAND_PIXELS // columns))
    twentieth = -(-rows // 19)
    for workers in range(threads, 0, -1):
        fit = (spare - (workers + 1) * buffer) // workers // row
        if fit >= min(wanted, twentieth) or workers == 1:
            break
    height = max(1, min(wanted, fit))
    count = -(-rows // height)
    bands = tuple((rows * i // count, rows * (i + 1) // count) for i in range(count))
    call = height * row
    left = spare - workers * (call + buffer)
    in_flight = workers + max(1, min(3, left // buffer))
    shares = {
        "interpreter": BASELINE, "static": static, "reading": reading, "accumulators": accumulators,
        "rays": rays if cached else 0, "calls": workers * call, "frames": in_flight * buffer,
    }  # fmt: skip
    # The levels and their sum exist at once, and a batch that tips the scale may be as large as what it tips.
    flush = max(1, accumulators // grids // 3)
    return Layout(
        bands,
        workers,
        max(1, threads // workers),
        in_flight,
        height * columns * per_sample,
        buffer,
        flush,
        cached,
        shares,
    )


@dataclass(frozen=True)
class Plan:
    """What is fixed for a job's checkpoints.

    Attributes
    ----------
    job : str                   digest of the job
    share : (i, n)              which of how many equal shares of the frames, from 1
    calls : ((frame, …), …)     frames of every native call, in the order of the scan
    ranges : ((first, last), …) runs of calls, one checkpoint each
    bands : ((r0, r1), …)       rows of every native call
    frames_per_call : int       as chosen
    evidence : str              why
    workers, threads, in_flight, readers, work_block, kernel_bytes, flush_bytes, rays_cached    see Layout
    library : str               digest of the sources of the C library that maps
    association : str
    """

    job: str
    share: tuple[int, int]
    calls: tuple
    ranges: tuple
    bands: tuple
    frames_per_call: int
    evidence: str
    workers: int
    threads: int
    in_flight: int
    readers: int
    work_block: int
    kernel_bytes: int
    flush_bytes: int
    rays_cached: bool
    library: str
    association: str = ASSOCIATION

    def __post_init__(self):
        object.__setattr__(self, "_first", [first for first, _ in self.ranges])
        object.__setattr__(self, "_call_of", {frame: n for n, call in enumerate(self.calls) for frame in call})

    @property
    def frames(self) -> list[int]:
        """All frames of this share in order."""
        return [frame for call in self.calls for frame in call]

    def range_of(self, call: int) -> int:
        """The range that a call lies in."""
        return bisect_right(self._first, call) - 1

    def call_of(self, frames) -> int:
        """The call that consists of these frames; raises ValueError where there is none."""
        frames = tuple(frames)
        calls = sorted({self._call_of.get(frame, -1) for frame in frames})
        if len(calls) == 1 and calls[0] >= 0 and self.calls[calls[0]] == frames:
            return calls[0]
        if not calls or calls[0] < 0:
            raise ValueError(f"frames {list(frames)}: expected frames of the plan, found others")
        ranges = sorted({self.range_of(call) for call in calls})
        if len(ranges) > 1:
            raise ValueError(f"frames {list(frames)}: expected frames of one range, found that they straddle {ranges}")
        raise ValueError(f"frames {list(frames)}: expected the call {list(self.calls[calls[0]])}, found another cut")

    def content(self) -> dict:
        """All fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def digest(self) -> str:
        """SHA-256 of all fields but the evidence, which is a measurement."""
        content = self.content()
        del content["evidence"]
        return hashlib.sha256(canonical(content)).hexdigest()


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def read(path) -> Plan | None:
    """The plan of a scratch folder, None where there is none; raises StorageError for a file that is no plan."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(path, "a plan", error.strerror or str(error), "check the path") from None
    try:
        return Plan(**{name: _tuples(value) for name, value in json.loads(text).items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise StorageError(path, "a plan", f"none ({error})", "delete the scratch folder and map again") from None


def write(plan: Plan, path) -> None:
    """Store a plan; raises StorageError."""
    write_whole(Path(path), canonical(plan.content()))


def share_of(frames, share: tuple[int, int]) -> list[int]:
    """Frames of share i of n by position: sizes differ by one at most. Raises ValueError for a share that is none."""
    index, count = share
    if not 1 <= index <= count:
        raise ValueError(f"share: expected i/n with 1 <= i <= n, found {index}/{count}")
    frames = list(frames)
    if count > len(frames):
        raise ValueError(f"share: expected at most {len(frames)} shares of as many frames, found {count}")
    return frames[len(frames) * (index - 1) // count : len(frames) * index // count]


def cut_ranges(frames, frames_per_call: int, checkpoints: int, breaks=()):
    """(calls, ranges) of frames in order: checkpoints of whole calls, as equal as that allows.

    No call goes over a gap between frames, where one is excluded, or over a frame of `breaks`, where the scan jumps.
    """
    calls = cut(frames, frames_per_call, breaks)
    count = max(1, min(checkpoints, len(calls)))
    ranges = [(len(calls) * i // count, len(calls) * (i + 1) // count) for i in range(count)]
    return tuple(map(tuple, calls)), tuple(ranges)
