"""Fills in small masked components of a frame from the valid pixels around them.

A component is a set of masked pixels that touch along edges. One of a single pixel takes the median of its valid edge
neighbours; a larger one, up to a size, takes in each of its pixels the mean of all valid pixels that touch the
component, weighted by the inverse of their distance. The variance is Σ w² V with the weights w that made the value;
that filled pixels share neighbours, and are correlated, is not kept. Whole frames are repaired, before they are cut
into tiles.
"""

import threading
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """Which pixels are filled from which, for one mask; all indices are flat.

    Attributes
    ----------
    single : int64 (n,)                pixels that take a median
    around : int64 (n, 4)              their edge neighbours; -1 beyond the frame
    pixel : int64 (m,)                 pixels that take a weighted mean
    first : int64 (m,)                 where their neighbours begin in `neighbour`
    neighbour : int64 (k,)
    inverse : float64 (k,)             1 / distance in pixels
    """

    single: np.ndarray
    around: np.ndarray
    pixel: np.ndarray
    first: np.ndarray
    neighbour: np.ndarray
    inverse: np.ndarray


def plan(mask, largest: int) -> Plan:
    """How the components of at most `largest` pixels of a mask, bool (rows, columns), are filled."""
    from scipy.ndimage import label

    rows, columns = mask.shape
    masked = np.flatnonzero(mask)
    labels = label(mask)[0].ravel()[masked]
    order = np.argsort(labels, kind="stable")
    masked, labels = masked[order], labels[order]
    size = np.bincount(labels)[labels] if len(labels) else labels
    keep = size <= largest
    masked, labels, size = masked[keep], labels[keep], size[keep]
    row, column = np.divmod(masked, columns)
    around = np.empty((len(masked), 4), np.int64)
    for k, (down, right) in enumerate(((-1, 0), (0, -1), (0, 1), (1, 0))):
        inside = (row + down >= 0) & (row + down < rows) & (column + right >= 0) & (column + right < columns)
        around[:, k] = np.where(inside, masked + down * columns + right, -1)
    alone = size == 1
    flat = np.append(mask.ravel(), True)  # -1, beyond the frame, counts as masked
    # Pairs (component, valid pixel that touches it), each once.
    owner, touching = np.repeat(labels[~alone], 4), around[~alone].ravel()
    valid = ~flat[touching]
    pairs = np.unique(np.stack([owner[valid], touching[valid]], axis=1), axis=0)
    components, start, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    # Every pixel of a component with every pixel that touches it; a component that nothing valid touches stays.
    place = np.searchsorted(components, labels[~alone])
    known = place < len(components)
    known[known] = components[place[known]] == labels[~alone][known]
    pixel, place = masked[~alone][known], place[known]
    many = count[place]
    first = np.concatenate([[0], np.cumsum(many)[:-1]]).astype(np.int64) if len(many) else np.zeros(0, np.int64)
    within = np.arange(many.sum()) - np.repeat(first, many)
    neighbour = pairs[np.repeat(start[place], many) + within, 1]
    here = np.repeat(pixel, many)
    away = np.hypot(here // columns - neighbour // columns, here % columns - neighbour % columns)
    return Plan(masked[alone], around[alone], pixel, first, neighbour, 1 / away)


def fill(how: Plan, intensity, variance, mask):
    """The filled intensity, variance and mask as new arrays; see `repair`."""
    intensity, variance, mask = intensity.copy(), variance.copy(), mask.copy()
    values, spread, flags = intensity.ravel(), variance.ravel(), mask.ravel()
    good = np.isfinite(values[how.around]) & np.isfinite(spread[how.around]) & (how.around >= 0)
    good &= ~flags[how.around]
    v = np.where(good, values[how.around], np.inf)
    rank = np.argsort(v, axis=1, kind="stable")
    v = np.take_along_axis(v, rank, axis=1)
    s = np.take_along_axis(np.where(good, spread[how.around], 0.0), rank, axis=1)
    count = good.sum(axis=1)
    line, there = np.arange(len(count)), count > 0
    low, high = np.maximum(count - 1, 0) // 2, np.maximum(count, 1) // 2
    # An odd number has one middle: weight 1. An even one has two: weight 1/2 each, variance 1/4 of either's.
    single = how.single[there]
    middle = np.where(low == high, v[line, low], v[line, low] / 2 + v[line, high] / 2)
    spread_there = np.where(low == high, s[line, low], (s[line, low] + s[line, high]) / 4)
    new = [(single, middle[there], spread_there[there])]
    if len(how.pixel):
        a, b = values[how.neighbour], spread[how.neighbour]
        good = np.isfinite(a) & np.isfinite(b)
        w = np.where(good, how.inverse, 0.0)
        a, b = np.where(good, a, 0.0), np.where(good, b, 0.0)
        total = np.add.reduceat(w, how.first)
        there = total > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.add.reduceat(w * a, how.first) / total
            square = np.add.reduceat(w * w * b, how.first) / total**2
        new.append((how.pixel[there], mean[there], square[there]))
    for pixel, value, of_value in new:
        values[pixel], spread[pixel], flags[pixel] = value, of_value, False
    return intensity, variance, mask


#: each thread's last (largest, mask, plan): finding components takes 0.2 s of CPU on six million pixels, filling
#: 0.01 s, and one mask serves most frames
_last = threading.local()


def repair(intensity, variance, mask, largest: int):
    """Fill in masked components of at most `largest` pixels.

    Parameters
    ----------
    intensity, variance : float64 (rows, columns), C-contiguous
    mask : bool (rows, columns)    True excludes
    largest : int                  0 repairs nothing

    Returns
    -------
    float64, float64, bool (rows, columns)    new arrays; the mask is False where a pixel was filled

    Raises
    ------
    ValueError                     arrays of other types or shapes

    Neighbours that are masked or not finite do not count; a component without any that do stays masked.
    """
    for name, array, dtype in (
        ("intensity", intensity, np.float64),
        ("variance", variance, np.float64),
        ("mask", mask, bool),
    ):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 2 or array.shape != mask.shape:
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"{name}: expected {np.dtype(dtype)} (rows, columns), found {found}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: expected a C-contiguous array, found another layout")
    kept = getattr(_last, "kept", None)
    if kept is None or kept[0] != largest or not np.array_equal(kept[1], mask):
        kept = _last.kept = (largest, mask.copy(), plan(mask, largest))
    return fill(kept[2], intensity, variance, mask)
