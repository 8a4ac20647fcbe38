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


@dataclass(frozen=True)
class Tested:
    """One-sided p per row of "the ratio lies above delta" and "below", and the rows in which anything is adjusted."""

    above: np.ndarray
    below: np.ndarray
    adjusted: np.ndarray


def adjustment(y, load, position: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows in which load varies, and rows in which the second slot costs anything."""
    rows = np.zeros(len(y), bool) if load is None else varying(load)
    if not position:
        return rows, np.zeros(len(y), bool)
    costs = np.asarray(stats.position_costs(y))
    if rows.any():
        costs[rows] = stats.position_costs(y[rows], load[rows])
    return rows, costs


def judged_at(y, b, load, delta: float, rows, costs) -> Tested:
    """Adjusted for load in some rows and for position in others, as `adjustment` found them."""
    above, below = stats.adjusted_tails(y, b, delta, position=costs)
    if rows.any():
        above[rows], below[rows] = stats.adjusted_tails(y[rows], b[rows], delta, load[rows], costs[rows])
    return Tested(above, below, rows | costs)


def bounds(y, b, load, nominal, mu: float, truth: float, position: bool):
    """Stand-ins for L, U, L90, U90 that lie on the right side of 0 and the margins; and: is 0, the truth outside.

    `nominal` gives the two-sided p of the interval and of the narrower one, with and without adjustment.
    """

    def rejected(test: Tested, side: str, which: int) -> np.ndarray:
        level = np.where(test.adjusted, nominal[True][which], nominal[False][which])
        return getattr(test, side) <= level / 2 * (1 + 1e-9)

    rows, costs = adjustment(y, load, position)
    at_low, at_zero, at_high = (judged_at(y, b, load, delta, rows, costs) for delta in (-mu, 0.0, mu))
    zero_below, zero_above = rejected(at_zero, "above", 0), rejected(at_zero, "below", 0)
    low = np.where(rejected(at_high, "above", 0), 2 * mu, np.where(zero_below, mu / 2, -2 * mu))
    high = np.where(rejected(at_low, "below", 0), -2 * mu, np.where(zero_above, -mu / 2, 2 * mu))
    low90 = np.where(rejected(at_low, "above", 1), 0.0, -2 * mu)
    high90 = np.where(rejected(at_high, "below", 1), 0.0, 2 * mu)
    at_truth = at_zero if truth == 0 else at_high if truth == mu else judged_at(y, b, load, truth, rows, costs)
    missed = rejected(at_truth, "above", 0) | rejected(at_truth, "below", 0)
    return low, high, low90, high90, zero_below | zero_above, missed


def futile(y, b, load, nominal, last: int, mu: float) -> np.ndarray:
    """Rows that are given up: by the adjusted ratios' own interval around their centre."""
    d = ratios(y, b)
    centre = stats.hodges_lehmann(d)
    if load is not None and (rows := varying(load)).any():
        slots = y[rows] - centre[rows, None] * b[rows]
        slots = slots - stats.load_slope(slots, load[rows])[:, None] * load[rows]
        d[rows] = ratios(slots, b[rows]) + centre[rows, None]
        centre = stats.hodges_lehmann(d)
    low, high = stats.signed_rank_interval(d, 1 - nominal[False][0])
    low90, high90 = stats.signed_rank_interval(d, 1 - nominal[False][1])
    n = d.shape[-1]
    return stats.conclusive_chance(centre, (high - low) / 2, (high90 - low90) / 2, n, last, mu) < analysis.FUTILITY


def ratios(y, b) -> np.ndarray:
    return np.where(b[..., 1::2], 1, -1) * (y[..., 1::2] - y[..., 0::2])


def sequential(y, b, load=None, *, looks=stats.LOOKS, truth=0.0, give_up=True, position=True) -> Outcome:
    """The default: looks, repeated intervals, verdicts that only the last look may give, futility."""
    mu, nominal = np.log1p(MARGIN), both(looks)
    rows = len(y)
    words = np.full(rows, "", dtype="<U12")
    used = np.full(rows, looks[-1])
    different, missed = np.zeros(rows, bool), np.zeros(rows, bool)
    running = np.arange(rows)
    for n in looks:
        part = slice(0, 2 * n)
        at = (y[running, part], b[running, part], None if load is None else load[running, part])
        low, high, low90, high90, away, outside = bounds(*at, nominal, mu, truth, position)
        final = n == looks[-1]
        found = gate.words(low, high, low90, high90, mu, final)
        over = np.isin(found, analysis.DECIDING) | final
        if give_up and not final:
            giving = futile(*at, nominal, looks[-1], mu) & ~over
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


def both(looks=stats.LOOKS) -> dict[bool, tuple[float, float]]:
    """Nominal p of every look, with and without adjustment."""
    return {adjusted: stats.nominal_levels(looks, 0.05, adjusted) for adjusted in (True, False)}


def ever(y, b, load=None, *, truth=0.0, looks=stats.LOOKS, position=True):
    """Rows in which any look, none of them skipped, finds a difference from `truth`; or finds it lies below.

    Returns bool (rows), bool (rows), and the units used until the first difference.
    """
    rows, nominal = len(y), both(looks)
    two, below = np.zeros(rows, bool), np.zeros(rows, bool)
    used = np.full(rows, looks[-1])
    for n in looks:
        part = slice(0, 2 * n)
        at = y[:, part], b[:, part], None if load is None else load[:, part]
        found = judged_at(*at, truth, *adjustment(at[0], at[2], position))
        level = np.where(found.adjusted, nominal[True][0], nominal[False][0])
        equivalence = np.where(found.adjusted, nominal[True][1], nominal[False][1])
        hit = np.minimum(found.above, found.below) <= level / 2 * (1 + 1e-9)
        used[hit & ~two] = n
        two |= hit
        below |= found.below <= equivalence / 2 * (1 + 1e-9)
    return two, below, used


def fixed(y, b, load=None, *, truth=0.0, level=0.95, position=True) -> Outcome:
    """A fixed number of pairs and the plain interval."""
    mu = np.log1p(MARGIN)
    nominal = dict.fromkeys((True, False), (1 - level, 2 * (1 - level)))
    low, high, low90, high90, away, outside = bounds(y, b, load, nominal, mu, truth, position)
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
