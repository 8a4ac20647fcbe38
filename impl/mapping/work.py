"""What is done with the frames of one planned call: read, correct, map; who does it when is in schedule.py."""

import threading

import numpy as np

from impl.mapping.checkpoint import EmptyMap, Facts
from impl.mapping.correction import Corrected, Correction, scalar_factors, scan_axis, static_factor
from impl.mapping.frames import Frame, FrameStack
from impl.mapping.geometry import exposure_tables
from impl.mapping.job import Job
from impl.mapping.kernel import Kernel, MappingError, Options
from impl.mapping.plan import Plan
from impl.mapping.records import Records, merge

#: rows of the static factor that are computed at once, to bound temporary arrays
_ROWS = 128


def correction_of(job: Job, stack: FrameStack, frames, fused: bool = True) -> Correction:
    """What is corrected alike in every frame of a job.

    The Lorentz factor is about the axis that these frames turn about. Rays of the static factor start at the
    laboratory's origin, wherever the sample turns to.
    """
    wanted, (rows, columns) = job.corrections, job.instrument.shape
    axis = None
    if wanted.lorentz:
        frames = list(frames)
        axis = scan_axis(stack.start[frames], stack.end[frames])
    images = {
        name: job.image(name) for name in ("flat", "background", "background_variance", "mask") if getattr(wanted, name)
    }
    flat, static = images.get("flat"), None
    if wanted.solid_angle or wanted.polarisation is not None or flat is not None or axis is not None:
        static = np.empty((rows, columns))
        for r0 in range(0, rows, _ROWS):
            rectangle = (r0, min(r0 + _ROWS, rows), 0, columns)
            static[r0 : rectangle[1]] = static_factor(
                job.instrument, wanted.solid_angle, wanted.polarisation, flat, axis, rectangle
            )
    return Correction(
        static=static,
        background=images.get("background"),
        background_variance=images.get("background_variance"),
        mask=images.get("mask"),
        repair=wanted.repair,
        fused=fused,
    )


class Kernels:
    """One kernel a grid, for one worker. Close it."""

    def __init__(self, grids, options: Options):
        self.by_grid = {name: Kernel(grid, options) for name, grid in grids}

    def close(self) -> None:
        """End the threads and free the memory."""
        for kernel in self.by_grid.values():
            kernel.close()


class Work:
    """A job's frames on their way to records; every method may be called from several threads at once.

    Parameters
    ----------
    job, stack, plan
    fused : bool          corrections in one pass of C, or step by step in NumPy: the same bytes
    layout : str          bands are mapped in place ('view') or copied out first ('copy'): the same bytes
    subdivision : str     see kernel.Options: the same bytes
    """

    def __init__(self, job: Job, stack: FrameStack, plan: Plan, fused=True, layout="view", subdivision="flat"):
        if layout not in ("view", "copy"):
            raise ValueError(f"layout: expected 'view' or 'copy', found '{layout}'")
        self.job, self.stack, self.plan, self.layout = job, stack, plan, layout
        self.correction = correction_of(job, stack, plan.frames, fused)
        self.options = Options(
            depth=job.depth, subdivision=subdivision, threads=plan.threads, work_block=plan.work_block,
            budget=plan.kernel_bytes,
        )  # fmt: skip
        self._kept, self._lock = {}, threading.Lock()
        # Every value is checked before hours are spent: the last frame's monitor may be the bad one.
        self._factors = {frame: self._scalars(frame) for frame in plan.frames}

    def kernels(self) -> Kernels:
        """Kernels for one more worker."""
        return Kernels(self.job.grids, self.options)

    def buffer(self) -> Corrected:
        """Memory for one corrected frame."""
        return Corrected.empty(tuple(self.job.instrument.shape))

    def _scalars(self, frame: int):
        """Factors of a frame, in the order of the contract."""
        wanted, stack = self.job.corrections, self.stack
        exposure = spread = None
        if wanted.exposure_time:
            if stack.exposure is None:
                raise MappingError(
                    "corrections.exposure_time: expected the frames' exposure times, found none; give [input.exposure] "
                    "or leave the correction out"
                )
            exposure = stack.exposure[frame]
            spread = None if stack.exposure_variance is None else stack.exposure_variance[frame]
        monitors = {name: stack.monitors[name][frame] for name in wanted.monitors}
        variances = {n: v[frame] for n, v in stack.monitor_variances.items() if n in monitors}
        return scalar_factors(exposure, spread, monitors, variances, where=f"frame {frame}")

    # ------------------------------------------------------------------------------------------------ the steps

    def read(self, frame: int) -> Frame:
        """Step 1: the frame as it was recorded."""
        return self.stack.read(frame)

    def correct(self, index: int, frame: Frame, out: Corrected) -> Facts:
        """Step 2: correct a frame into `out`. Raises EmptyMap where no pixel is left, unless the job allows it."""
        factors = self._factors[index]
        self.correction.apply(frame.counts, frame.variance, frame.mask, factors, out)
        valid = out.mask.size - int(np.count_nonzero(out.mask))
        if not valid and not self.job.allow_empty:
            raise EmptyMap(
                f"frame {index}: expected pixels to map, found that all are masked or not finite; leave it out "
                "(job.excluded), or set allow_empty = true"
            )
        plain = tuple((c, c2, None if np.isnan(v) else float(v)) for c, c2, v in factors)
        return Facts(index, frame.digest, valid, plain)

    def map(self, kernels: Kernels, frames, corrected: list[Corrected], grids) -> dict[str, Records]:
        """Step 3: the records of one call, band by band, merged: one batch for each of `grids`."""
        frames = list(frames)
        start, end = self.stack.start[frames], self.stack.end[frames]
        if self.job.exposure == "stationary":
            start = end = (start + end) / 2
        batches = {name: [] for name in grids}
        tables = {
            name: exposure_tables(
                start, end, self.job.depth, self.job.wave_number, grid.axes, u=self.job.u, ub=self.job.ub
            )
            for name, grid in self.job.grids
            if name in batches
        }
        origin = self.job.origin(start, end)
        for r0, r1 in self.plan.bands:
            rays = self._band_rays(r0, r1, origin)
            for name, given in tables.items():
                batches[name].append(self._map_band(kernels.by_grid[name], corrected, rays, *given, r0, r1))
        return {name: merge(made) for name, made in batches.items()}

    def _map_band(self, kernel: Kernel, corrected, rays, tables, stationary, r0: int, r1: int) -> Records:
        columns = self.job.instrument.shape[1]
        arrays = [[getattr(c, name) for c in corrected] for name in ("intensity", "variance", "mask")]
        if self.layout == "copy":
            intensity, variance, mask = (np.stack([frame[r0:r1] for frame in frames]) for frames in arrays)
            records = kernel.map(intensity, variance, rays, tables, stationary, mask=mask, place=(r0, 0))
        else:
            intensity, variance, mask = arrays
            records = kernel.map_view(intensity, variance, rays, tables, stationary, (r0, r1, 0, columns), mask=mask)
        seen, expected = kernel.counters()["samples"], len(corrected) * (r1 - r0) * columns
        if seen != expected:
            raise MappingError(f"rows {r0} to {r1}: expected {expected} samples mapped, found {seen}; report it")
        return records

    def _band_rays(self, r0: int, r1: int, origin):
        """Corner rays of a band. What is alike for all frames is kept where memory allows it: rays, or their ends."""
        columns = self.job.instrument.shape[1]
        if not self.plan.rays_cached:
            return self.job.instrument.corner_rays(r0, r1, 0, columns, origin)
        with self._lock:
            if (r0, r1) not in self._kept:
                self._kept[r0, r1] = self._fixed(r0, r1)
        kept = self._kept[r0, r1]
        return kept if self.job.fixed_origin else rays_to(kept, origin)

    def _fixed(self, r0: int, r1: int):
        """Rays of a band from the laboratory's origin, or the positions of its corners where rays start elsewhere."""
        detector, columns = self.job.instrument, self.job.instrument.shape[1]
        if self.job.fixed_origin:
            return detector.corner_rays(r0, r1, 0, columns)
        rows, columns = np.arange(r0, r1 + 1) - 0.5, np.arange(columns + 1) - 0.5
        return np.ascontiguousarray(detector.position(rows[:, None], columns[None, :]))


def rays_to(positions, origin, rows: int = 16):
    """Unit rays from an origin to positions (n, m, 3): the bits of Detector.rays, 14 instead of 47 ns a pixel.

    Rows are done a few at a time, so that what lies between the steps stays in the cache.
    """
    out, origin = np.empty_like(positions), np.asarray(origin, float)
    square, sums = np.empty((rows, positions.shape[1])), np.empty((rows, positions.shape[1]))
    for first in range(0, len(positions), rows):
        vector = out[first : first + rows]
        q, s = square[: len(vector)], sums[: len(vector)]
        np.subtract(positions[first : first + rows], origin, out=vector)
        np.multiply(vector[..., 0], vector[..., 0], out=s)
        for axis in (1, 2):
            np.multiply(vector[..., axis], vector[..., axis], out=q)
            s += q
        np.sqrt(s, out=s)
        vector /= s[..., None]
    return out
