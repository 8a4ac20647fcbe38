"""The output grid: which voxel a coordinate falls into and how voxels are numbered."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Grid:
    """A regular grid over three coordinates, stored in chunks.

    Attributes
    ----------
    minimum : (3,) float    lower edge of voxel 0, in the units of `axes`
    step : (3,) float       voxel edge, > 0
    shape : (3,) int        voxels along each axis
    chunk : (3,) int        voxels of a storage chunk along each axis
    axes : str              what the coordinates are: lab, alpha, omega, chi, phi, crystal (Å⁻¹) or hkl (r.l.u.)

    Traps: chunk-major order of (chunk, local) is not the order of (x, y, z); the chunk is never clamped to the shape.
    """

    minimum: tuple[float, float, float]
    step: tuple[float, float, float]
    shape: tuple[int, int, int]
    chunk: tuple[int, int, int] = (64, 64, 64)
    axes: str = "hkl"

    def __post_init__(self):
        for name, kind in (("minimum", float), ("step", float), ("shape", int), ("chunk", int)):
            values = tuple(kind(value) for value in getattr(self, name))
            if len(values) != 3:
                raise ValueError(f"grid: {name}: expected three numbers, found {len(values)}")
            object.__setattr__(self, name, values)
        if not np.isfinite(self.minimum).all():
            raise ValueError(f"grid: minimum: expected finite numbers, found {self.minimum}")
        if not (np.isfinite(self.step).all() and min(self.step) > 0):
            raise ValueError(f"grid: step: expected finite numbers above 0, found {self.step}")
        if min(self.shape) < 1 or min(self.chunk) < 1:
            raise ValueError(f"grid: shape and chunk: expected at least 1, found {self.shape} and {self.chunk}")
        bits = sum(max(1, (edge - 1).bit_length()) for edge in self.shape)
        locals_, chunks = np.prod(self.chunk, dtype=object), np.prod(self.chunks, dtype=object)
        if bits > 63 or locals_ > 2**32 - 1 or chunks > 2**32 - 1:
            raise ValueError(
                f"grid: expected at most 2^32-1 chunks, 2^32-1 voxels a chunk and 63 bits of voxel id, found {chunks}, "
                f"{locals_} and {bits}; take a larger step, a smaller range or another chunk"
            )

    @classmethod
    def over(cls, minimum, maximum, step, chunk=(64, 64, 64), axes="hkl") -> "Grid":
        """The grid from minimum that covers maximum; its upper edge is minimum + shape·step."""
        spans = (np.asarray(maximum, float) - np.asarray(minimum, float)) / np.asarray(step, float)
        if not np.isfinite(spans).all() or (spans > 2.0**62).any():
            raise ValueError(f"grid: expected a finite number of steps, found {spans.tolist()}")
        return cls(tuple(minimum), tuple(step), tuple(int(np.ceil(span)) for span in spans), tuple(chunk), axes)

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk))

    def voxels(self, coordinates):
        """Voxel indices of coordinates and whether they lie inside.

        Parameters
        ----------
        coordinates : float64 (n, 3)    in the grid's axes; NaN and Inf lie outside

        Returns
        -------
        int64 (n, 3), bool (n,)         the index is 0 where outside
        """
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.floor((np.asarray(coordinates) - np.array(self.minimum)) / np.array(self.step))
            inside = ((steps >= 0) & (steps < np.array(self.shape, float))).all(axis=1)
        return np.where(inside[:, None], steps, 0).astype(np.int64), inside

    def keys(self, voxels):
        """(chunk, local) ids of voxel indices (n, 3): two uint32 arrays."""
        voxels = np.asarray(voxels, np.int64)
        chunk = local = np.zeros(len(voxels), np.uint64)
        for axis in range(3):
            c, size = np.uint64(self.chunks[axis]), np.uint64(self.chunk[axis])
            n = voxels[:, axis].astype(np.uint64)
            chunk = chunk * c + n // size
            local = local * size + n % size
        return chunk.astype(np.uint32), local.astype(np.uint32)

    def indices(self, chunk, local):
        """Voxel indices int64 (n, 3) of (chunk, local) ids: the inverse of `keys`."""
        chunk, local = np.asarray(chunk, np.int64).copy(), np.asarray(local, np.int64).copy()
        out = np.empty((len(chunk), 3), np.int64)
        for axis in (2, 1, 0):
            out[:, axis] = chunk % self.chunks[axis] * self.chunk[axis] + local % self.chunk[axis]
            chunk //= self.chunks[axis]
            local //= self.chunk[axis]
        return out

    def centres(self, voxels):
        """Coordinates float64 (n, 3) of voxel centres."""
        return np.array(self.minimum) + (np.asarray(voxels) + 0.5) * np.array(self.step)
