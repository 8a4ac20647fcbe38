"""Numbers in, numbers out: estimate, exact interval, smallest visible effect; every method cites its source.

Values are log ratios log(B/A) unless a function says otherwise; arrays run along their last axis, so that thousands of
comparisons are computed at once. Nothing here knows a clock, a file or an arm.

Sources: Hodges & Lehmann, Ann. Math. Stat. 34 (1963) 598 (estimate); Tukey (1949) and Hollander & Wolfe, Nonparametric
Statistical Methods, ch. 3 (interval by counting Walsh averages); Clopper & Pearson, Biometrika 26 (1934) 404 (shares).
"""

import math
from functools import lru_cache

import numpy as np

#: normal scale of a median absolute deviation
MAD_SCALE = 1.4826
#: what 80 % power at a two-sided 5 % signed-rank test needs, in robust standard deviations, for noise with t3 tails;
#: simulated, statistics at hand from 6 to 40 units
MDE_UNITS = (6, 8, 10, 12, 15, 20, 30, 40)
MDE_FACTORS = (2.37, 1.62, 1.32, 1.14, 0.95, 0.80, 0.62, 0.53)


@lru_cache(maxsize=256)
def signed_rank_cdf(n: int) -> np.ndarray:
    """P(W <= w) for w = 0 … n(n+1)/2, the exact null distribution of the signed-rank sum of n fair signs."""
    share = np.zeros(n * (n + 1) // 2 + 1)
    share[0] = 1.0
    for rank in range(1, n + 1):
        moved = np.zeros_like(share)
        moved[rank:] = share[:-rank]
        share = (share + moved) / 2
    cdf = np.minimum(np.cumsum(share), 1.0)
    cdf.flags.writeable = False
    return cdf


def walsh_averages(d) -> np.ndarray:
    """float64 (..., n) -> (..., n(n+1)/2): all (d_i + d_j)/2 with i <= j, in ascending order."""
    d = np.asarray(d, float)
    i, j = np.triu_indices(d.shape[-1])
    return np.sort((d[..., i] + d[..., j]) / 2, axis=-1)


def hodges_lehmann(d) -> np.ndarray | float:
    """Median of the Walsh averages; float64 (..., n) -> (...). Tolerates 29 % wild values."""
    d = np.asarray(d, float)
    i, j = np.triu_indices(d.shape[-1])
    return np.median((d[..., i] + d[..., j]) / 2, axis=-1)


@lru_cache(maxsize=1024)
def signed_rank_order(n: int, level: float) -> int:
    """The k of the interval [w(k), w(M+1-k)] of sorted Walsh averages; 0 where none exists at this level.

    k is the largest whole number with P(W <= k-1) <= (1 - level)/2.
    """
    # A sum of powers of two is exact up to n = 53; the tolerance is for a level such as 1 - 2^-7 written in decimals.
    tail = (1 - level) / 2 * (1 + 1e-9)
    return int(np.searchsorted(signed_rank_cdf(n), tail, side="right"))


def signed_rank_interval(d, level: float):
    """Exact interval of the centre of d; float64 (..., n) -> low (...), high (...); infinite where n is too small."""
    d = np.asarray(d, float)
    k = signed_rank_order(d.shape[-1], level)
    if k == 0:
        infinite = np.full(d.shape[:-1], np.inf)
        return -infinite, infinite
    averages = walsh_averages(d)
    return averages[..., k - 1], averages[..., -k]


def signed_rank_p(d, centre: float = 0.0):
    """Exact two-sided p of "the centre of d is `centre`", dual to `signed_rank_interval`: float64 (..., n) -> (...).

    Walsh averages that equal the centre count for neither side, which keeps the test valid, if cautious, under ties.
    """
    above, below = signed_rank_tails(d, centre)
    return np.minimum(1.0, 2 * np.minimum(above, below))


def signed_rank_tails(d, centre: float = 0.0):
    """One-sided p of "the centre lies above" and of "it lies below": float64 (..., n) -> (...), (...)."""
    d = np.asarray(d, float)
    n = d.shape[-1]
    averages = walsh_averages(d)
    cdf = signed_rank_cdf(n)
    total = n * (n + 1) // 2
    above = cdf[total - (averages > centre).sum(axis=-1)]
    below = cdf[total - (averages < centre).sum(axis=-1)]
    return above, below


def units_needed(level: float) -> int:
    """The smallest number of units for which a two-sided interval of this level exists: 6 for 95 %, 8 for 99 %."""
    n = 1
    while signed_rank_order(n, level) == 0:
        n += 1
    return n


def sign_order(n: int, level: float) -> int:
    """The s of the sign interval [d(s), d(n+1-s)] of the median; 0 where none exists at this level."""
    tail = (1 - level) / 2 * (1 + 1e-9)
    below, s = 0.0, 0
    while s <= n:
        below += math.comb(n, s) / 2**n
        if below > tail:
            return s
        s += 1
    return s


def robust_sd(d, centre: float | None = None):
    """1.4826 times the median absolute deviation from the median (or from `centre`); float64 (..., n) -> (...)."""
    d = np.asarray(d, float)
    middle = np.median(d, axis=-1, keepdims=True) if centre is None else centre
    return MAD_SCALE * np.median(np.abs(d - middle), axis=-1)


def mde_factor(n: float) -> float:
    """How many robust standard deviations n units resolve (80 % power, two-sided 5 %, t3 tails); n at least 6.

    Between the simulated counts the logarithm is interpolated over log n; beyond 40 it falls as 1/sqrt(n).
    """
    if n < MDE_UNITS[0]:
        raise ValueError(f"expected at least {MDE_UNITS[0]} units, found {n}")
    if n >= MDE_UNITS[-1]:
        return MDE_FACTORS[-1] * math.sqrt(MDE_UNITS[-1] / n)
    return math.exp(np.interp(math.log(n), np.log(MDE_UNITS), np.log(MDE_FACTORS)))


def mde(d) -> float:
    """The smallest log ratio that these units would have shown in 80 % of comparisons."""
    d = np.asarray(d, float)
    return mde_factor(d.shape[-1]) * float(robust_sd(d))


def units_for(effect: float, sd: float) -> int:
    """The smallest number of units (at least 6) whose MDE is at most `effect`; both are log ratios.

    Raises ValueError when effect is not above 0.
    """
    if not effect > 0:
        raise ValueError(f"expected an effect above 0, found {effect}")
    n = MDE_UNITS[0]
    if sd > 0:
        beyond = MDE_UNITS[-1] * (MDE_FACTORS[-1] * sd / effect) ** 2
        if beyond > MDE_UNITS[-1]:
            return math.ceil(beyond)
        while mde_factor(n) * sd > effect:
            n += 1
    return n


def binomial_tail(successes: int, trials: int, share: float) -> float:
    """P(X >= successes) for `trials` independent trials of probability `share`."""
    if successes <= 0:
        return 1.0
    if share <= 0.0:
        return 0.0
    if share >= 1.0:
        return 1.0
    logs = (
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(share)
        + (trials - k) * math.log1p(-share)
        for k in range(successes, trials + 1)
    )
    return min(1.0, math.fsum(math.exp(x) for x in logs))


def share_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact (Clopper-Pearson) interval of a share; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else _bisect(lambda p: binomial_tail(successes, trials, p) > tail)
    high = 1.0 if successes == trials else _bisect(lambda p: 1 - binomial_tail(successes + 1, trials, p) <= tail)
    return low, high


def _bisect(above) -> float:
    """The point of [0, 1] from which on `above` is true."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if above(middle):
            high = middle
        else:
            low = middle
    return high


def variance_components(blocks) -> tuple[float | None, float | None]:
    """Robust standard deviations between blocks and of pairs inside a block, from a list of lists of log ratios.

    The pair part is the pooled deviation from each block's centre; the block part is what is left of the spread of
    the blocks' values once the pairs' share (s_pair^2 / (0.955 k)) is taken away, at least 0. None where unknown: the
    pair part needs a block of two pairs, the block part two blocks.
    """
    blocks = [np.asarray(block, float) for block in blocks if len(block)]
    residuals = [
        (block - hodges_lehmann(block)) * math.sqrt(len(block) / (len(block) - 1)) for block in blocks if len(block) > 1
    ]
    pair = float(robust_sd(np.concatenate(residuals), 0.0)) if residuals else None
    if len(blocks) < 2:
        return None, pair
    spread = float(robust_sd([hodges_lehmann(block) for block in blocks]))
    k = float(np.median([len(block) for block in blocks]))
    noise = 0.0 if pair is None else pair * pair / (0.955 * k)
    return math.sqrt(max(0.0, spread * spread - noise)), pair
