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


def tails(y, b, load, delta: float):
    """One-sided p per row, adjusted for position, and for load in the rows where it varies."""
    above, below = stats.adjusted_tails(y, b, delta)
    if load is not None and (rows := varying(load)).any():
        above[rows], below[rows] = stats.adjusted_tails(y[rows], b[rows], delta, load[rows])
    return above, below


def bounds(y, b, load, level, level90, mu: float, truth: float):
    """Stand-ins for L, U, L90, U90 that lie on the right side of 0 and the margins; and: is 0, the truth outside."""
    tail, tail90 = (1 - level) / 2 * (1 + 1e-9), (1 - level90) / 2 * (1 + 1e-9)
    at_low, at_zero, at_high = (tails(y, b, load, delta) for delta in (-mu, 0.0, mu))
    low = np.where(at_high[0] <= tail, 2 * mu, np.where(at_zero[0] <= tail, mu / 2, -2 * mu))
    high = np.where(at_low[1] <= tail, -2 * mu, np.where(at_zero[1] <= tail, -mu / 2, 2 * mu))
    low90 = np.where(at_low[0] <= tail90, 0.0, -2 * mu)
    high90 = np.where(at_high[1] <= tail90, 0.0, 2 * mu)
    different = np.minimum(*at_zero) <= tail
    missed = np.minimum(*tails(y, b, load, truth)) <= tail
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


def sequential(y, b, load=None, *, looks=stats.LOOKS, truth=0.0, give_up=True, levels=None) -> Outcome:
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
        plain, less = levels or (stats.nominal_levels(looks, 0.05), stats.nominal_levels(looks, 0.05, adjusted=True))
        adjusted = np.zeros(len(running), bool) if load is None else varying(at[2])
        nominal, equivalence = np.where(adjusted, less[0], plain[0]), np.where(adjusted, less[1], plain[1])
        low, high, low90, high90, away, outside = bounds(*at, 1 - nominal, 1 - equivalence, mu, truth)
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
    return Outcome(words, used, different, missed)


def fixed(y, b, load=None, *, truth=0.0, level=0.95) -> Outcome:
    """A fixed number of pairs and the plain interval."""
    mu = np.log1p(MARGIN)
    low, high, low90, high90, away, outside = bounds(y, b, load, level, 2 * level - 1, mu, truth)
    return Outcome(gate.words(low, high, low90, high90, mu), np.full(len(y), y.shape[1] // 2), away, outside)
