"""The map in slow Python: the truth that the kernel is tested against.

Written from the definition, not from the kernel: cells recurse, every corner is evaluated anew, a dictionary holds the
voxels, sums are exactly rounded (math.fsum) and so free of any order. Pure Python floats; use it on small tiles.
"""

import math
from fractions import Fraction

import numpy as np

from impl.mapping.grid import Grid
from impl.mapping.records import Records


def _blend(r00, r10, r01, r11, u, v):
    return tuple(
        (1.0 - v) * ((1.0 - u) * a + u * b) + v * ((1.0 - u) * c + u * d) for a, b, c, d in zip(r00, r10, r01, r11)
    )


def voxel(grid: Grid, corners, affine, u: float, v: float):
    """Voxel (x, y, z) of the point (u, v) of a pixel, or None outside the grid.

    corners : four rays r00, r10, r01, r11 (first index rows); affine : 3 x 4 rows (a0, a1, a2, b).
    """
    x, y, z = _blend(*corners, u, v)
    try:
        norm = math.sqrt((x * x + y * y) + z * z)
        x, y, z = x / norm, y / norm, z / norm
    except (ZeroDivisionError, ValueError, OverflowError):
        return None
    found = []
    for axis in range(3):
        a0, a1, a2, b = affine[axis]
        steps = ((((a0 * x + a1 * y) + a2 * z) + b) - grid.minimum[axis]) / grid.step[axis]
        if not math.isfinite(steps) or not 0 <= math.floor(steps) < grid.shape[axis]:
            return None
        found.append(math.floor(steps))
    return tuple(found)


def footprint(grid: Grid, corners, table, depth: int, stationary: bool) -> dict:
    """Voxels of one sample with the exact share of it: {(x, y, z): Fraction}.

    table : (2^(depth+1)+1, 3, 4), affine maps over the exposure.
    """
    last = len(table) - 1
    dimensions = 2 if stationary else 3
    shares: dict = {}

    def at(point):
        t = Fraction(1, 2) if stationary else point[2]
        return voxel(grid, corners, table[int(t * last)], float(point[0]), float(point[1]))

    def visit(low, side, level):
        found = {at([low[d] + side * (corner >> d & 1) for d in range(dimensions)]) for corner in range(2**dimensions)}
        if len(found) == 1 and None not in found:
            add(found.pop(), side)
        elif level == depth:
            add(at([edge + side / 2 for edge in low]), side)
        else:
            for child in range(2**dimensions):
                visit([low[d] + side / 2 * (child >> d & 1) for d in range(dimensions)], side / 2, level + 1)

    def add(place, side):
        if place is not None:
            shares[place] = shares.get(place, 0) + side**dimensions

    if depth == 0:
        add(at([Fraction(1, 2)] * dimensions), Fraction(1))
    else:
        visit([Fraction(0)] * dimensions, Fraction(1), 0)
    return shares


def reference_map(grid: Grid, intensity, variance, rays, tables, stationary, depth: int, mask=None) -> Records:
    """Map a stack of tiles: the arguments and result of kernel.Kernel.map, slowly."""
    frames, rows, columns = intensity.shape
    voxels: dict = {}
    for f in range(frames):
        table = tables[f].tolist()
        for i in range(rows):
            for j in range(columns):
                value, spread = float(intensity[f, i, j]), float(variance[f, i, j])
                if (mask is not None and mask[f, i, j]) or not math.isfinite(value):
                    continue
                if not (math.isfinite(spread) and spread >= 0):
                    continue
                corners = [rays[i, j], rays[i + 1, j], rays[i, j + 1], rays[i + 1, j + 1]]
                corners = [corner.tolist() for corner in corners]
                if not np.isfinite(corners).all():
                    continue
                shares = footprint(grid, corners, table, depth, bool(stationary[f]))
                for place, share in shares.items():
                    voxels.setdefault(place, []).append((float(share), value, spread))
    places = np.array(list(voxels), np.int64).reshape(-1, 3)
    chunk, local = grid.keys(places)
    out = Records.empty(len(places))
    out.chunk[:], out.local[:] = chunk, local
    for n, samples in enumerate(voxels.values()):
        out.sum_intensity[n] = math.fsum(w * i for w, i, _ in samples)
        out.sum_variance[n] = math.fsum(w * w * v for w, _, v in samples)
        out.sum_weight[n] = math.fsum(w for w, _, _ in samples)
        out.contributors[n] = len(samples)
    order = np.argsort(out.key())
    return Records(*(column[order] for column in out.columns()))


def correct(
    counts, variance=None, mask=None, factors=(), static=None, background=None, background_variance=None,
    static_mask=None,
):  # fmt: skip
    """Correct one frame: what correction.Correction.apply gives without repair, pixel by pixel.

    `static_mask` is the correction's `mask`; every operation is one of Python's floats.
    """
    from impl.mapping.correction import Corrected

    out = Corrected.empty(counts.shape)
    for place in np.ndindex(counts.shape):
        value = float(counts[place])
        if variance is not None:
            spread = float(variance[place])
        else:
            spread = 0.0 if value <= 0 else value
        excluded = any(m is not None and bool(m[place]) for m in (mask, static_mask))
        if background is not None:
            value -= float(background[place])
            spread += 0.0 if background_variance is None else float(background_variance[place])
        if static is not None:
            s = float(static[place])
            value, spread = value * s, spread * (s * s)
        for c, c2, v in factors:
            added = 0.0 if math.isnan(v) else (value * value) * v
            value, spread = value * c, spread * c2 + added
        out.intensity[place], out.variance[place] = value, spread
        out.mask[place] = excluded or not (math.isfinite(value) and math.isfinite(spread))
    return out
