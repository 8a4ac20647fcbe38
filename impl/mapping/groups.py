"""How many adjacent frames one native call takes: two gates on the scan, then a timed probe on the job's own tiles.

Adjacent frames share a call where they fall into the same voxels: fewer records are written and merged. Whether that
pays is not modelled but timed, against one frame a call; without a clear gain the answer is one frame.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from impl.mapping.geometry import affine
from impl.mapping.kernel import Kernel, MappingError
from impl.mapping.records import merge

#: frames a call that are tried
CANDIDATES = (1, 2, 4, 8, 16)
#: median travel, voxels a frame, from which frames share too little
TRAVEL = 1.0
#: radians: an axis that moves less over the job stands still
STILL = 1e-9
#: radians: a step back that is noise
NOISE = 1e-12
#: pairs of one and F frames a call that are timed for every tile
ROUNDS = 7
LEAST_PAIRS = 6


@dataclass(frozen=True)
class Choice:
    """Frames per call, why, and what was measured.

    Attributes
    ----------
    frames_per_call : int
    reason : str           one sentence
    evidence : dict        plain values: travel, monotone, and for every candidate its paired CPU ratios to one frame
    """

    frames_per_call: int
    reason: str
    evidence: dict = field(default_factory=dict)


def travel(detector, grid, wave_number, start, end, ub=None, u=None, excluded=(), rectangle=None, origin=(0, 0, 0)):
    """Median distance in voxels between a pixel's coordinates in adjacent frames; 0 where the axes stand still.

    Parameters
    ----------
    detector : detector.Detector
    grid : grid.Grid
    wave_number : float                    Å⁻¹
    start, end : float64 (F, 4)            angles at both ends of every exposure
    ub, u : float64 (3, 3)                 as the grid's axes need them
    excluded : frame indices               a pair with one of them is left out
    rectangle : (r0, r1, c0, c1) or None   pixels that are sampled; None: the whole panel

    Returns
    -------
    float       infinite where there is no pair of adjacent frames

    8 x 8 pixels spread over the rectangle, and the first, middle and last pair of adjacent frames.
    """
    middle = (np.asarray(start, float) + np.asarray(end, float)) / 2
    out = set(excluded)
    pairs = [f for f in range(len(middle) - 1) if f not in out and f + 1 not in out]
    if not pairs:
        return float("inf")
    r0, r1, c0, c1 = rectangle or (0, detector.shape[0], 0, detector.shape[1])
    rows, columns = np.linspace(r0, r1 - 1, 8)[:, None], np.linspace(c0, c1 - 1, 8)[None, :]
    rays = detector.rays(rows, columns, origin).reshape(-1, 3)
    found = []
    for f in dict.fromkeys((pairs[0], pairs[len(pairs) // 2], pairs[-1])):
        maps = affine(middle[f : f + 2], wave_number, grid.axes, u=u, ub=ub)
        moved = rays @ (maps[1, :, :3] - maps[0, :, :3]).T + (maps[1, :, 3] - maps[0, :, 3])
        found.append(np.linalg.norm(moved / np.array(grid.step), axis=1))
    return float(np.median(found))


def monotone(start, end) -> bool:
    """Whether every axis that moves over the job moves in one direction; an interlaced scan does not.

    start, end : float64 (F, 4). Axes that stay within 1e-9 rad stand still; steps below 1e-12 rad are noise.
    """
    middle = (np.asarray(start, float) + np.asarray(end, float)) / 2
    for axis in middle.T:
        if np.ptp(axis) > STILL:
            steps = np.diff(axis)
            if (steps > NOISE).any() and (steps < -NOISE).any():
                return False
    return True


def cut(frames: Sequence[int], size: int, boundaries: Iterable[int] = ()) -> list[list[int]]:
    """Runs of adjacent frames, at most `size` long, that cross no boundary and no gap.

    frames : ascending frame indices; boundaries : frame indices that begin a new run (as the checkpoints of any grid).
    Raises ValueError for a size below 1 or frames that do not ascend.
    """
    if size < 1:
        raise ValueError(f"frames per call: expected at least 1, found {size}")
    begins, out = set(boundaries), []
    for frame in frames:
        if out and frame <= out[-1][-1]:
            raise ValueError(f"frames: expected ascending indices, found {frame} after {out[-1][-1]}")
        if not out or len(out[-1]) == size or frame != out[-1][-1] + 1 or frame in begins:
            out.append([])
        out[-1].append(frame)
    return out


@dataclass(frozen=True)
class Piece:
    """Adjacent frames of one tile, as Kernel.map_view takes them; lists and tables have one entry a frame.

    Attributes
    ----------
    intensity, variance, mask : lists of arrays (rows, columns)    whole frames; mask may be None
    rays, rectangle                                                see Kernel.map_view
    tables : float64 (F, 2^(depth+1)+1, 3, 4)
    stationary : bool (F,)
    """

    intensity: list
    variance: list
    mask: list | None
    rays: np.ndarray
    rectangle: tuple[int, int, int, int]
    tables: np.ndarray
    stationary: np.ndarray

    def __len__(self) -> int:
        return len(self.intensity)

    def run(self, kernel: Kernel, size: int) -> int:
        """Map all frames, `size` a call, and merge the calls as a job does; returns how many records that gave."""
        batches = []
        for first in range(0, len(self), size):
            part = slice(first, first + size)
            batches.append(
                kernel.map_view(
                    self.intensity[part],
                    self.variance[part],
                    self.rays,
                    np.ascontiguousarray(self.tables[part]),
                    np.ascontiguousarray(self.stationary[part]),
                    self.rectangle,
                    mask=None if self.mask is None else self.mask[part],
                )
            )
        return len(merge(batches))


def choose(
    kernel: Kernel,
    pieces: Sequence[Piece],
    travelled: float,
    is_monotone: bool,
    affordable: Callable[[int], bool] = lambda frames: True,
    candidates: Sequence[int] = CANDIDATES,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.process_time,
) -> Choice:
    """Frames per call for a job.

    Parameters
    ----------
    kernel : Kernel                   with the job's grid and options
    pieces : tiles of the job         each with as many adjacent frames as the largest candidate that is to be tried
    travelled : float                 voxels a frame, see `travel`; from 1 on it is not worth trying
    is_monotone : bool                see `monotone`
    affordable : frames -> bool       whether that many frames a call fit the memory budget
    candidates : ascending; `rounds` : pairs timed for each and every piece
    clock : () -> seconds of CPU      read before and after each side of a pair

    Returns
    -------
    Choice    1 unless a candidate wins every pair (and of at least six: chance does so once in 64); of several such,
              the one with the least median ratio

    Pairs are interleaved, the order turns from one to the next, the first pair of each is a warm-up. A candidate that
    is not affordable, outgrows the kernel's budget or finds no piece long enough ends the list.
    """
    evidence = {"travel": travelled, "monotone": bool(is_monotone), "candidates": {}}
    if not is_monotone:
        return Choice(1, "the scan is interlaced: adjacent frames are not neighbours", evidence)
    if not travelled < TRAVEL:
        return Choice(1, f"frames lie {travelled:.2f} voxels apart, at least {TRAVEL:g}", evidence)
    best, least = 1, 1.0
    for size in sorted(set(candidates) - {1}):
        long = [piece for piece in pieces if len(piece) >= size]
        if not long or not affordable(size):
            evidence["stopped"] = f"{size}: " + ("more memory than there is" if long else "no probe of so many frames")
            break
        try:
            ratios = [ratio for piece in long for ratio in _ratios(kernel, piece, size, rounds, clock)]
        except MappingError as error:
            evidence["stopped"] = f"{size}: {error}"
            break
        median, won = statistics.median(ratios), sum(ratio < 1 for ratio in ratios)
        evidence["candidates"][size] = {"median": median, "won": won, "pairs": len(ratios), "ratios": ratios}
        if won == len(ratios) >= LEAST_PAIRS and median < least:
            best, least = size, median
    if best == 1:
        return Choice(1, "no number of frames a call was clearly faster than one", evidence)
    won = evidence["candidates"][best]
    return Choice(
        best, f"{least:.2f} of the CPU time of one frame a call, {won['won']} of {won['pairs']} pairs", evidence
    )


def _ratios(kernel, piece, size, rounds, clock):
    """CPU time with `size` frames a call over that with one, pair by pair, on as many frames as `size` divides."""
    count = len(piece) // size * size
    part = Piece(
        piece.intensity[:count], piece.variance[:count], None if piece.mask is None else piece.mask[:count],
        piece.rays, piece.rectangle, piece.tables[:count], piece.stationary[:count],
    )  # fmt: skip

    def seconds(frames):
        begin = clock()
        part.run(kernel, frames)
        return clock() - begin

    out = []
    for n in range(rounds + 1):
        order = (1, size) if n % 2 else (size, 1)
        took = {frames: seconds(frames) for frames in order}
        if n and took[1] > 0:
            out.append(took[size] / took[1])
    return out
