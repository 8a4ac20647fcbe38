"""Whole comparisons by the thousand: the schedule's coins, the statistics at every look, the verdict at the last.

The verdict is found by duality, L > x just where "the ratio lies above x" is not rejected from below, so that three
tests a look stand for four bounds; one test of the suite compares this with bounds that were really computed.
"""

from dataclasses import dataclass

import numpy as np

from harness import analysis, gate, stats

MARGIN = 0.02


@dataclass(frozen=True)
class Outcome:
    """Per replicate: the verdict, units used, whether 0 or the truth was ever outside the interval when it ended."""

    words: np.ndarray
    used: np.ndarray
    different: np.ndarray
    missed: np.ndarray

    def share(self, *words) -> float:
        return float(np.isin(self.words, words).mean())

    def count(self, *words) -> int:
        return int(np.isin(self.words, words).sum())


def varying(load: np.ndarray) -> np.ndarray:
    """Rows whose load varies enough to be adjusted for."""
    quartiles = np.quantile(load, [0.25, 0.75], axis=-1)
    return quartiles[1] - quartiles[0] > analysis.LOAD_VARIES


def tails(y, b, load, delta: float, position: bool = True):
    """One-sided p per row, adjusted for position, and for load in the rows where it varies."""
    above, below = stats.adjusted_tails(y, b, delta, position=position)
    if load is not None and (rows := varying(load)).any():
        above[rows], below[rows] = stats.adjusted_tails(y[rows], b[rows], delta, load[rows])
    return above, below


def bounds(y, b, load, level, level90, mu: float, truth: float, position: bool):
    """Stand-ins for L, U, L90, U90 that lie on the right side of 0 and the margins; and: is 0, the truth outside."""
    tail, tail90 = (1 - level) / 2 * (1 + 1e-9), (1 - level90) / 2 * (1 + 1e-9)
    at_low, at_zero, at_high = (tails(y, b, load, delta, position) for delta in (-mu, 0.0, mu))
    low = np.where(at_high[0] <= tail, 2 * mu, np.where(at_zero[0] <= tail, mu / 2, -2 * mu))
    high = np.where(at_low[1] <= tail, -2 * mu, np.where(at_zero[1] <= tail, -mu / 2, 2 * mu))
    low90 = np.where(at_low[0] <= tail90, 0.0, -2 * mu)
    high90 = np.where(at_high[1] <= tail90, 0.0, 2 * mu)
    different = np.minimum(*at_zero) <= tail
    missed = np.minimum(*tails(y, b, load, truth, position)) <= tail
    return low, high, low90, high90, different, missed


def futile(y, b, load, level, level90, last: int, mu: float) -> np.ndarray:
    """Rows that are given up: by the adjusted ratios' own interval around their centre."""
    d = ratios(y, b)
    centre = stats.hodges_lehmann(d)
    if load is not None and (rows := varying(load)).any():
        slots = y[rows] - centre[rows, None] * b[rows]
        slots = slots - stats.load_slope(slots, load[rows])[:, None] * load[rows]
        d[rows] = ratios(slots, b[rows]) + centre[rows, None]
        centre = stats.hodges_lehmann(d)
    low, high = stats.signed_rank_interval(d, float(np.max(level)))
    low90, high90 = stats.signed_rank_interval(d, float(np.max(level90)))
    n = d.shape[-1]
    return stats.conclusive_chance(centre, (high - low) / 2, (high90 - low90) / 2, n, last, mu) < analysis.FUTILITY


def ratios(y, b) -> np.ndarray:
    return np.where(b[..., 1::2], 1, -1) * (y[..., 1::2] - y[..., 0::2])


def sequential(y, b, load=None, *, looks=stats.LOOKS, truth=0.0, give_up=True, position=True) -> Outcome:
    """The default: looks, repeated intervals, verdicts that only the last look may give, futility."""
    mu = np.log1p(MARGIN)
    rows = len(y)
    words = np.full(rows, "", dtype="<U12")
    used = np.full(rows, looks[-1])
    different, missed = np.zeros(rows, bool), np.zeros(rows, bool)
    running = np.arange(rows)
    for n in looks:
        part = slice(0, 2 * n)
        at = (y[running, part], b[running, part], None if load is None else load[running, part])
        nominal, equivalence = levels(at[2], len(running), looks)
        low, high, low90, high90, away, outside = bounds(*at, 1 - nominal, 1 - equivalence, mu, truth, position)
        final = n == looks[-1]
        found = gate.words(low, high, low90, high90, mu, final)
        over = np.isin(found, analysis.DECIDING) | final
        if give_up and not final:
            giving = futile(*at, 1 - nominal, 1 - equivalence, looks[-1], mu) & ~over
            # Given up: what the last look may say is said now.
            found[giving] = gate.words(low, high, low90, high90, mu, True)[giving]
            over |= giving
        different[running] |= away
        missed[running] |= outside
        words[running[over]], used[running[over]] = found[over], n
        running = running[~over]
        if not len(running):
            break
    return Outcome(words, used, different, missed)


def levels(load, rows: int, looks=stats.LOOKS) -> tuple[np.ndarray, np.ndarray]:
    """Nominal p of each row at a look: a little less where it is adjusted for load."""
    plain, less = stats.nominal_levels(looks, 0.05), stats.nominal_levels(looks, 0.05, adjusted=True)
    adjusted = np.zeros(rows, bool) if load is None else varying(load)
    return np.where(adjusted, less[0], plain[0]), np.where(adjusted, less[1], plain[1])


def ever(y, b, load=None, *, truth=0.0, looks=stats.LOOKS, position=True):
    """Rows in which any look, none of them skipped, finds a difference from `truth`; or finds it lies below.

    Returns bool (rows), bool (rows), and the units used until the first difference.
    """
    rows = len(y)
    two, below = np.zeros(rows, bool), np.zeros(rows, bool)
    used = np.full(rows, looks[-1])
    for n in looks:
        part = slice(0, 2 * n)
        cores = None if load is None else load[:, part]
        nominal, equivalence = levels(cores, rows, looks)
        more, less = tails(y[:, part], b[:, part], cores, truth, position)
        hit = np.minimum(more, less) <= nominal / 2 * (1 + 1e-9)
        used[hit & ~two] = n
        two |= hit
        below |= less <= equivalence / 2 * (1 + 1e-9)
    return two, below, used


def fixed(y, b, load=None, *, truth=0.0, level=0.95, position=True) -> Outcome:
    """A fixed number of pairs and the plain interval."""
    mu = np.log1p(MARGIN)
    low, high, low90, high90, away, outside = bounds(y, b, load, level, 2 * level - 1, mu, truth, position)
    return Outcome(gate.words(low, high, low90, high90, mu), np.full(len(y), y.shape[1] // 2), away, outside)


def slots_of(d, b) -> np.ndarray:
    """Slots whose pairs have the log ratios d: what blocks would look like to a test of slots."""
    y = np.zeros(b.shape)
    y[..., 1::2] = np.where(b[..., 1::2], d, -d)
    return y


def coins(rng, rows: int, pairs: int, share: float = 0.5) -> np.ndarray:
    """bool (rows, 2 pairs): which slots are B's, by coins that say AB in this share."""
    first = rng.random((rows, pairs)) >= share
    b = np.empty((rows, 2 * pairs), bool)
    b[:, 0::2], b[:, 1::2] = first, ~first
    return b
