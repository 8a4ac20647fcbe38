"""Made jobs for the kernel's tests: small tiles with every kind of trouble in them."""

from dataclasses import dataclass

import numpy as np

from impl.mapping import geometry
from impl.mapping.detector import PoniDetector
from impl.mapping.grid import Grid
from impl.mapping.kernel import Kernel, Options


@dataclass
class Job:
    """What Kernel.map and reference_map take."""

    grid: Grid
    depth: int
    intensity: np.ndarray
    variance: np.ndarray
    rays: np.ndarray
    tables: np.ndarray
    stationary: np.ndarray
    mask: np.ndarray
    place: tuple[int, int] = (0, 0)

    def arrays(self):
        return self.intensity, self.variance, self.rays, self.tables, self.stationary

    def map(self, **options):
        with Kernel(self.grid, Options(depth=self.depth, **options)) as kernel:
            return kernel.map(*self.arrays(), mask=self.mask, place=self.place)

    def map_counted(self, **options):
        with Kernel(self.grid, Options(depth=self.depth, **options)) as kernel:
            return kernel.map(*self.arrays(), mask=self.mask, place=self.place), kernel.counters()


def random_rotation(rng):
    q = rng.normal(size=4)
    w, x, y, z = q / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def make_job(
    seed,
    depth,
    rows=3,
    columns=3,
    frames=1,
    continuous="all",
    step=0.6,
    trouble=True,
    clip=1.0,
    chunk=(3, 4, 5),
    place=(0, 0),
    on_edges=False,
):
    """A tile of a random detector seen by a random triclinic crystal.

    continuous : 'all', 'none' or 'mixed'; step : voxel edge in pixels; clip : the share of each axis of the
    tile's box that the grid covers; on_edges : put voxel edges exactly on the coordinates of one corner.
    """
    rng = np.random.default_rng(seed)
    detector = PoniDetector(
        (8192, 8192),
        tuple(rng.uniform(0.5e-4, 2e-4, 2)),
        tuple(rng.uniform(-0.3, 0.3, 2)),
        rng.uniform(0.1, 0.5),
        tuple(rng.uniform(-2.5, 2.5, 3)),
        rng.uniform(0, 6),
    )
    rays = detector.corner_rays(place[0], place[0] + rows, place[1], place[1] + columns)
    cell = (*rng.uniform(3, 12, 3), *rng.uniform(1.3, 1.8, 3))
    ub = random_rotation(rng) @ geometry.b_matrix(*cell)
    k = rng.uniform(3, 20)
    start = rng.uniform(-3, 3, 4) + np.arange(frames)[:, None] * rng.uniform(-2e-3, 2e-3, 4)
    end = start + rng.uniform(-2e-3, 2e-3, 4)
    still = {"all": np.zeros(frames, bool), "none": np.ones(frames, bool), "mixed": rng.random(frames) < 0.5}[
        continuous
    ]
    end[still] = start[still]
    tables, stationary = geometry.exposure_tables(start, end, depth, k, "hkl", ub=ub)
    corners = np.einsum("fmij,rcj->fmrci", tables[..., :3], rays) + tables[:, :, None, None, :, 3]
    low, high = corners.min(axis=(0, 1, 2, 3)), corners.max(axis=(0, 1, 2, 3))
    pixel = np.abs(np.diff(corners, axis=3)).max() + np.abs(np.diff(corners, axis=2)).max()
    size = np.maximum(high - low, pixel / 100)
    voxel = np.full(3, pixel / 2 * step) * rng.uniform(0.5, 2, 3)
    middle, span = (
        (low + high) / 2 + (1 - clip) * size * rng.uniform(-0.5, 0.5, 3),
        clip * size + (clip == 1) * 3 * voxel,
    )
    minimum = middle - span / 2
    if on_edges:
        minimum = corners[0, 0, 0, 0] - voxel * np.round((corners[0, 0, 0, 0] - minimum) / voxel)
    shape = np.clip(np.ceil(span / voxel), 1, 4000).astype(int)
    grid = Grid(tuple(minimum), tuple(voxel), tuple(shape), chunk)
    intensity = rng.normal(5, 3, (frames, rows, columns))
    variance = rng.uniform(0, 5, (frames, rows, columns))
    mask = np.zeros(intensity.shape, bool)
    if trouble:
        mask |= rng.random(mask.shape) < 0.1
        flat, spread = intensity.reshape(-1), variance.reshape(-1)
        for array, value in ((flat, np.nan), (flat, np.inf), (spread, np.nan), (spread, np.inf), (spread, -1.0)):
            if rng.random() < 0.3:
                array[rng.integers(len(array))] = value
        if rng.random() < 0.3:  # a pixel without area
            rays[-1, :] = rays[-2, :]
        if rng.random() < 0.3:  # a corner that the geometry could not give
            rays[rng.integers(rows + 1), rng.integers(columns + 1), rng.integers(3)] = rng.choice([np.nan, np.inf])
    return Job(grid, depth, intensity, variance, rays, tables, stationary, mask, place)


def assert_same_map(a, b, rtol=1e-12):
    """Keys and contributors equal, sums within rtol of the larger of the sum and 1."""
    np.testing.assert_array_equal(a.key(), b.key())
    np.testing.assert_array_equal(a.contributors, b.contributors)
    for name in ("sum_intensity", "sum_variance", "sum_weight"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=rtol, atol=rtol, err_msg=name)


def same_bytes(a, b):
    """Whether all six columns are equal to the last bit."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.columns(), b.columns()))
