"""From a scan to records: corrections, exposure tables and bands that fit the budget, then the kernel."""

from dataclasses import dataclass, replace

import numpy as np

from impl.mapping import geometry
from impl.mapping.grid import Grid
from impl.mapping.kernel import Kernel, MappingError, Options, bytes_per_sample
from impl.mapping.records import Records, merge
from impl.mapping.sources import Scan, Tile

#: counters that say how much at a time: the largest of several calls counts
LEVELS = ("leaves_max", "bytes", "bitmap")


@dataclass(frozen=True)
class Prepared:
    """One kernel call's arrays, corrected and tabulated; see Kernel.map.

    layout : 'own' (intensity and variance are the tile, (F, rows, columns)), or 'copy' or 'view' (they are lists of
    whole frames, of which the rectangle is copied before a call or mapped in place).
    """

    intensity: np.ndarray | list
    variance: np.ndarray | list
    rays: np.ndarray
    tables: np.ndarray
    stationary: np.ndarray
    place: tuple[int, int]
    layout: str = "own"
    rectangle: tuple[int, int, int, int] | None = None

    @property
    def samples(self) -> int:
        """Pixels x frames."""
        rows, columns = self.rays.shape[0] - 1, self.rays.shape[1] - 1
        return len(self.tables) * rows * columns

    def run(self, kernel: Kernel) -> Records:
        """The records of this call."""
        shared = self.rays, self.tables, self.stationary
        if self.layout == "view":
            return kernel.map_view(self.intensity, self.variance, *shared, self.rectangle)
        intensity, variance = self.intensity, self.variance
        if self.layout == "copy":
            r0, r1, c0, c1 = self.rectangle
            intensity, variance = (np.stack([f[r0:r1, c0:c1] for f in frames]) for frames in (intensity, variance))
        return kernel.map(intensity, variance, *shared, place=self.place)


def within_frames(call: Prepared, layout: str, margin: int) -> Prepared:
    """The same call with its tile inside whole frames, margin pixels from every edge; layout is 'copy' or 'view'.

    The tile's place on the detector becomes (margin, margin), so that both layouts have the same bricks.
    """
    _, rows, columns = call.intensity.shape
    rectangle = (margin, margin + rows, margin, margin + columns)
    frames = []
    for stack in (call.intensity, call.variance):
        whole = np.full((rows + 2 * margin, columns + 2 * margin), np.nan)
        frames.append([whole.copy() for _ in stack])
        for frame, tile in zip(frames[-1], stack):
            frame[margin : margin + rows, margin : margin + columns] = tile
    return Prepared(
        *frames, call.rays, call.tables, call.stationary, (margin, margin), layout=layout, rectangle=rectangle
    )


def bands(rows: int, columns: int, frames: int, depth: int, continuous: bool, budget: int, precheck: str = "records"):
    """Row ranges [(r0, r1), …] whose calls fit the budget, spread evenly.

    Raises MappingError when not even one pixel over the frames fits.
    """
    need = bytes_per_sample(depth, continuous, precheck) * frames
    fit = budget // need // columns
    if fit < 1:
        what, least = ("one pixel", need) if budget < need else ("one row", need * columns)
        raise MappingError(
            f"budget: expected at least {least} bytes for {what} of {frames} frames at depth {depth}, found {budget}; "
            "raise the budget, or take fewer frames, a lower depth or a smaller tile"
        )
    count = -(-rows // fit)
    return [(rows * i // count, rows * (i + 1) // count) for i in range(count)]


def groups(tile: Tile, frames_per_call: int) -> list[Tile]:
    """The tile cut into runs of adjacent frames, one call each; 0: all frames in one."""
    count = len(tile.counts)
    size = frames_per_call or count
    cuts = [slice(first, min(first + size, count)) for first in range(0, count, size)]
    return [replace(tile, counts=tile.counts[c], start=tile.start[c], end=tile.end[c]) for c in cuts]


def prepare(scan: Scan, tile: Tile, depth: int, exposure: str, options: Options | None = None) -> list[Prepared]:
    """Correct a tile by the detector's static factor and cut it into bands that fit the options' budget.

    exposure : 'stationary' (all at mid-exposure) or 'continuous' (from start to end).
    The variance of a count is the count; factor and its square are applied to both.
    """
    options = options or Options(depth=depth)
    start, end = tile.start, tile.end
    if exposure == "stationary":
        start = end = (start + end) / 2
    elif exposure != "continuous":
        raise ValueError(f"exposure: expected 'stationary' or 'continuous', found '{exposure}'")
    tables, stationary = geometry.exposure_tables(start, end, depth, scan.wave_number, scan.grid.axes, ub=scan.ub)
    r0, r1, c0, c1 = tile.rectangle
    factor = scan.detector.static_factor(r0, r1, c0, c1, origin=tile.origin)
    squared = factor**2
    continuous = depth > 0 and not bool(stationary.all())
    out = []
    for b0, b1 in bands(r1 - r0, c1 - c0, len(tables), depth, continuous, options.budget, options.precheck):
        counts = tile.counts[:, b0:b1]
        out.append(
            Prepared(
                np.ascontiguousarray(counts * factor[b0:b1]),
                np.ascontiguousarray(np.maximum(counts, 0) * squared[b0:b1]),
                scan.detector.corner_rays(r0 + b0, r0 + b1, c0, c1, tile.origin),
                tables,
                stationary,
                (r0 + b0, c0),
            )
        )
    return out


def map_calls(kernel: Kernel, calls: list[Prepared]) -> tuple[list[Records], dict[str, int]]:
    """One batch of records a call, in order, and the kernel's counters summed over the calls."""
    batches, totals = [], {}
    for c in calls:
        batches.append(c.run(kernel))
        for name, value in kernel.counters().items():
            totals[name] = max(totals.get(name, 0), value) if name in LEVELS else totals.get(name, 0) + value
    return batches, totals


def map_scan(scan: Scan, options: Options, exposure: str, grid: Grid | None = None) -> Records:
    """Map all tiles of a scan into one set of records; batches merge in order by a fixed tree."""
    with Kernel(grid or scan.grid, options) as kernel:
        batches = []
        for tile in scan.tiles:
            batches += map_calls(kernel, prepare(scan, tile, options.depth, exposure, options))[0]
        return merge(batches)
