"""Numbers in, numbers out: estimate, exact interval, smallest visible effect; every method cites its source.

Values are log ratios log(B/A) unless a function says otherwise; arrays run along their last axis, so that thousands of
comparisons are computed at once. Nothing here knows a clock, a file or an arm.

Everything is exact or says where it is approximate.

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


#: units up to which the distribution of the signed-rank sum is exact; beyond, the largest error, which is added to it
EXACT_UNITS, APPROXIMATE_ERROR = 400, 4e-9
_MOST_TIES = 4_000_000  # Walsh averages that are held at once, 100 MB with their indices


@lru_cache(maxsize=256)
def signed_rank_cdf(n: int) -> np.ndarray:
    """P(W <= w) for w = 0 … n(n+1)/2, the exact null distribution of the signed-rank sum of n fair signs.

    Raises ValueError above EXACT_UNITS: it takes n³/6 additions, 14 ms for 400 and 9 s for 3,000.
    """
    if n > EXACT_UNITS:
        raise ValueError(f"expected at most {EXACT_UNITS} units, found {n}; signed_rank_below takes any number")
    share = np.zeros(n * (n + 1) // 2 + 1)
    share[0] = 1.0
    top = 0  # the largest sum of the ranks so far
    for rank in range(1, n + 1):
        before = share[: top + 1] / 2
        share[: top + 1] = before
        share[top + 1 : top + rank + 1] = 0.0
        share[rank : top + rank + 1] += before
        top += rank
    cdf = np.minimum(np.cumsum(share), 1.0)
    cdf.flags.writeable = False
    return cdf


def signed_rank_below(n: int, w) -> np.ndarray:
    """P(W <= w) for whole numbers w >= 0 of any shape; exact up to EXACT_UNITS.

    Beyond, two terms of Edgeworth's series about the normal for W plus a uniform value that fills its steps, whose
    cumulants are known. The largest error, found against the exact distribution, is 2.9e-9 at 400 units, 8.5e-10 at 600
    and 1.8e-10 at 1,000; APPROXIMATE_ERROR is added, so that a p is never too small.

    Source: Kolassa & McCullagh, Ann. Stat. 18 (1990) 981 (Edgeworth's series on a lattice).
    """
    if n <= EXACT_UNITS:
        return signed_rank_cdf(n)[w]
    ranks = np.arange(1.0, n + 1)
    second = (ranks**2).sum() / 4 + 1 / 12
    fourth = (-(ranks**4).sum() / 8 - 1 / 120) / second**2
    sixth = ((ranks**6).sum() / 4 + 1 / 252) / second**3
    x = (np.asarray(w, float) + 0.5 - n * (n + 1) / 4) / math.sqrt(second)
    # Hermite's polynomials of orders 3, 5 and 7
    series = [0, 0, 0, fourth / 24, 0, sixth / 720, 0, fourth**2 / 1152]
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    below = _normal_cdf(x) - density * np.polynomial.hermite_e.hermeval(x, series)
    return np.clip(below + APPROXIMATE_ERROR, APPROXIMATE_ERROR, 1.0)


def walsh_averages(d) -> np.ndarray:
    """float64 (..., n) -> (..., n(n+1)/2): all (d_i + d_j)/2 with i <= j, in ascending order."""
    return np.sort(_averages(d), axis=-1)


def _averages(d) -> np.ndarray:
    d = np.asarray(d, float)
    i, j = _triangle(d.shape[-1])
    return (d[..., i] + d[..., j]) / 2


@lru_cache(maxsize=64)
def _triangle(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(n)


def walsh_order(d, *places: int) -> list[np.ndarray]:
    """Walsh averages by their places in ascending order, 0 the smallest; float64 (..., n) -> (...) for each place."""
    d = np.asarray(d, float)
    if d.shape[-1] <= EXACT_UNITS:
        averages = np.partition(_averages(d), sorted(set(places)), axis=-1)
        return [averages[..., place] for place in places]
    rows = np.sort(d.reshape(-1, d.shape[-1]), axis=-1)
    return [
        np.array([_sum_at(row, row, place, triangle=True) / 2 for row in rows]).reshape(d.shape[:-1])
        for place in places
    ]


def _sum_at(x: np.ndarray, y: np.ndarray, place: int, triangle: bool = False) -> float:
    """The sum x_i + y_j that stands at a place, 0 the smallest; x and y ascending. `triangle`: only those with j >= i.

    They are not all made: how many sums lie at or below a value is counted in n log n steps, and halving finds an
    interval that holds a few times n of them.
    """
    starts = np.arange(len(x)) if triangle else np.zeros(len(x), int)

    def firsts(value: float, side: str) -> np.ndarray:
        """For every i the first j whose sum with it is above `value` (right), or not below it (left)."""
        return np.maximum(np.searchsorted(y, value - x[::-1], side)[::-1], starts)

    low, high = float(x[0] + y[0]), float(x[-1] + y[-1])
    below, upto = 0, int((len(y) - starts).sum())  # sums up to `low`, and up to `high`
    slack = 4 * np.spacing(max(abs(low), abs(high)))
    while upto - below > 8 * (len(x) + len(y)) and high - low > slack:
        middle = (low + high) / 2
        count = int((firsts(middle, "right") - starts).sum())
        if count > place:
            high, upto = middle, count
        else:
            low, below = middle, count
    # rounding may move a sum across an end, so the ends are a little wider
    first, last = firsts(low - slack, "left"), firsts(high + slack, "right")
    sizes = last - first
    if int(sizes.sum()) > _MOST_TIES:  # ties beyond number: any of them, equal to rounding
        i = int(np.argmax(sizes > 0))
        return float(x[i] + y[first[i]])
    i = np.repeat(np.arange(len(x)), sizes)
    j = np.arange(len(i)) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
    inside = place - int((first - starts).sum())
    return float(np.partition(x[i] + y[j], inside)[inside])


def hodges_lehmann(d) -> np.ndarray | float:
    """Median of the Walsh averages; float64 (..., n) -> (...). Tolerates 29 % wild values."""
    d = np.asarray(d, float)
    n = d.shape[-1]
    if n == 1:
        return d[..., 0]
    if n <= EXACT_UNITS:
        return np.median(_averages(d), axis=-1)
    total = n * (n + 1) // 2
    lower, upper = walsh_order(d, (total - 1) // 2, total // 2)
    return (lower + upper) / 2


@lru_cache(maxsize=1024)
def signed_rank_order(n: int, level: float) -> int:
    """The k of the interval [w(k), w(M+1-k)] of sorted Walsh averages; 0 where none exists at this level.

    k is the largest whole number with P(W <= k-1) <= (1 - level)/2.
    """
    # A sum of powers of two is exact up to n = 53; the tolerance is for a level such as 1 - 2^-7 written in decimals.
    tail = (1 - level) / 2 * (1 + 1e-9)
    if n <= EXACT_UNITS:
        return int(np.searchsorted(signed_rank_cdf(n), tail, side="right"))
    low, high = 0, n * (n + 1) // 2
    while low < high:
        middle = (low + high) // 2
        if float(signed_rank_below(n, middle)) <= tail:
            low = middle + 1
        else:
            high = middle
    return low


def signed_rank_interval(d, level: float):
    """Exact interval of the centre of d; float64 (..., n) -> low (...), high (...); infinite where n is too small."""
    d = np.asarray(d, float)
    n = d.shape[-1]
    k = signed_rank_order(n, level)
    if k == 0:
        infinite = np.full(d.shape[:-1], np.inf)
        return -infinite, infinite
    low, high = walsh_order(d, k - 1, n * (n + 1) // 2 - k)
    return low, high


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
    total = n * (n + 1) // 2
    if n <= EXACT_UNITS:
        averages = _averages(d)
        larger, smaller = (averages > centre).sum(axis=-1), (averages < centre).sum(axis=-1)
    else:
        larger, smaller = _averages_beyond(d - centre)
    return signed_rank_below(n, total - larger), signed_rank_below(n, total - smaller)


def _averages_beyond(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many Walsh averages lie above 0 and below 0, by counting partners: float64 (..., n) -> (...), (...)."""
    n = d.shape[-1]
    rows = np.sort(d.reshape(-1, n), axis=-1)
    places = np.arange(n)
    larger = [int((n - np.maximum(np.searchsorted(row, -row, "right"), places)).sum()) for row in rows]
    smaller = [int(np.maximum(np.searchsorted(row, -row, "left") - places, 0).sum()) for row in rows]
    return np.array(larger).reshape(d.shape[:-1]), np.array(smaller).reshape(d.shape[:-1])


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
    whole, mode = math.lgamma(trials + 1), (trials + 1) * share
    found = []
    for k in range(successes, trials + 1):
        term = whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * math.log(share)
        found.append(math.exp(term + (trials - k) * math.log1p(-share)))
        if k > mode and found[-1] < 1e-20 * found[0]:  # they fall from here on, faster and faster
            break
    return min(1.0, math.fsum(found))


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


# ------------------------------------------------------------------------------------------------- several looks

#: units at which a comparison without a fixed number of units is looked at
LOOKS = (8, 12, 16, 20, 28, 40)
#: two-sided p at every one of these looks for 5 % over all of them: 4.94 % by 2 million rows of fair coins
NOMINAL = 0.0156
#: the same for two one-sided tests at 5 % each, "equivalent" and "not-worse": 4.98 % one-sided
NOMINAL_EQUIVALENCE = 0.0335
#: the same where load or position is adjusted for: what is fitted anew at every look loosens the looks from one
#: another, which costs up to .3 points (5.2 and 5.4 % at the levels above by 20,000 comparisons, 4.9 % at these)
NOMINAL_ADJUSTED = 0.0150
NOMINAL_EQUIVALENCE_ADJUSTED = 0.0320


def nominal_levels(looks: tuple[int, ...], alpha: float, adjusted: bool = False) -> tuple[float, float]:
    """The constant p of every look for a two-sided test at alpha over all looks, and for two one-sided ones.

    `adjusted`: load or position is adjusted for, which asks for a little less.

    Levels that are not on the shelf are found by 40,000 rows of fair coins from a fixed seed: given the magnitudes,
    only the order of the ranks matters, so that any continuous noise gives the same answer.
    """
    if tuple(looks) == LOOKS and alpha == 0.05:
        found = NOMINAL, NOMINAL_EQUIVALENCE
    else:
        found = _calibrated(tuple(looks), alpha)
    if not adjusted:
        return found
    return found[0] * NOMINAL_ADJUSTED / NOMINAL, found[1] * NOMINAL_EQUIVALENCE_ADJUSTED / NOMINAL_EQUIVALENCE


@lru_cache(maxsize=16)
def _calibrated(looks: tuple[int, ...], alpha: float) -> tuple[float, float]:
    d = _coins(20261130).standard_normal((40_000, looks[-1]))
    smallest = np.ones((2, len(d)))
    for n in looks:
        ranks = np.argsort(np.argsort(np.abs(d[:, :n]), axis=1), axis=1) + 1
        above = (ranks * (d[:, :n] > 0)).sum(axis=1)
        high, low = signed_rank_below(n, above), signed_rank_below(n, n * (n + 1) // 2 - above)
        smallest = np.minimum(smallest, (2 * np.minimum(low, high), 2 * high))
    # The largest p that keeps the share of rows at or below it within alpha.
    found = []
    for row in smallest:
        values, counts = np.unique(row, return_counts=True)
        fits = np.cumsum(counts) <= alpha * len(row)
        found.append(float(values[fits][-1]) if fits.any() else 0.0)
    return found[0], found[1]


def _coins(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def conclusive_chance(estimate, half, half90, n: int, last: int, mu: float):
    """The chance that the last look ends with any verdict but "inconclusive", as seen after n units.

    `half` and `half90` are the half-widths of the intervals after n units; arrays of any one shape. The estimate after
    `last` units is taken for normal around today's with variance s²(1/n - 1/last), the flat-prior prediction, and the
    half-widths for shrinking as sqrt(n/last). Approximate: it decides only when to give up, never a verdict.
    """
    estimate, half, half90 = (np.asarray(x, float) for x in (estimate, half, half90))
    # 2.42 normal standard deviations are a two-sided .0156.
    sd = np.maximum(half / 2.42 * math.sqrt(max(0.0, 1 - n / last)), 1e-300)
    upper, lower = half * math.sqrt(n / last), mu - half90 * math.sqrt(n / last)
    with np.errstate(over="ignore"):
        chance = _normal_cdf((lower - estimate) / sd) + _normal_cdf((estimate - upper) / sd)
    return np.where(lower >= upper, 1.0, chance)


_normal_cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[float])


# ------------------------------------------------------------------------------------------------------- any time


def sign_log_wealth(wins, trials, prior: float = 1.0):
    """log of the sign martingale 2^t B(a + S, a + t - S) / B(a, a) after S wins of t; a is `prior`.

    It starts at 1 and is a martingale while wins are fair coins, so that it ever reaches 1/alpha with a probability
    of at most alpha (Ville), however often one looks.
    """
    wins, trials = np.asarray(wins, float), np.asarray(trials, float)
    lgamma = np.vectorize(math.lgamma, otypes=[float])
    a = prior
    top = lgamma(a + wins) + lgamma(a + trials - wins) - lgamma(2 * a + trials)
    return trials * math.log(2) + top - (2 * math.lgamma(a) - math.lgamma(2 * a))


@lru_cache(maxsize=4096)
def sign_sequence_order(n: int, alpha: float, prior: float = 1.0) -> int:
    """The l of the confidence sequence [d(l), d(n+1-l)] for the median; 0 where it is still infinite."""
    wealth = sign_log_wealth(np.arange(n + 1), np.full(n + 1, n), prior)
    inside = np.flatnonzero(wealth < -math.log(alpha))
    return int(inside[0]) if len(inside) else n // 2


def sign_sequence(d, alpha: float):
    """Interval of the median that may be looked at after every unit; float64 (..., n) -> low (...), high (...)."""
    d = np.sort(np.asarray(d, float), axis=-1)
    order = sign_sequence_order(d.shape[-1], alpha)
    if order == 0:
        infinite = np.full(d.shape[:-1], np.inf)
        return -infinite, infinite
    return d[..., order - 1], d[..., -order]


# ------------------------------------------------------------------------- load and position as covariates, arm-blind


def load_slope(z, load):
    """Robust slope of log times on load from the pairs' own differences: float64 (..., 2n) twice -> (...).

    Arm-blind: it sees slots in the order they ran. Differences inside a pair are free of drift; those beyond six
    median absolute deviations are clipped, so that one burst cannot dictate it.
    """
    dz, dx = z[..., 1::2] - z[..., 0::2], load[..., 1::2] - load[..., 0::2]
    limit = 6 * np.median(np.abs(dz), axis=-1, keepdims=True)
    dz = np.clip(dz, -limit, limit)
    weight = (dx * dx).sum(axis=-1)
    return np.where(weight > 0, (dx * dz).sum(axis=-1) / np.where(weight > 0, weight, 1), 0.0)


#: p from which on a position is taken out: at .05 the choice itself, which a large ratio and uneven coins can also
#: bring about, lets 5.5 % of arms at the margin pass for equivalent instead of 5 (40,000 comparisons)
POSITION_LIMIT = 1e-3


def position_costs(y, load=None):
    """Rows in which the second slot of a pair surely costs more or less than the first; float64 (..., 2n) -> (...).

    Arm-blind like the slope, so that what it decides does not change how often an arm differs from itself. Deciding
    after the arms' ratio was taken out would: 6.2 % instead of 5 % by 20,000 comparisons.
    """
    y = np.asarray(y, float)
    if load is not None:
        y = y - load_slope(y, load)[..., None] * load
    return signed_rank_p(y[..., 1::2] - y[..., 0::2]) < POSITION_LIMIT


def adjusted_ratios(y, b, delta: float, load=None, position=False):
    """What is left of the pairs' log ratios when B's slots are `delta` longer, load and position taken out.

    Parameters
    ----------
    y : float64 (..., 2n)       log times of slots in the order they ran; slots 2i and 2i+1 are a pair
    b : bool (..., 2n)          which slots are B's
    load : float64 (..., 2n)    cores; None: not adjusted for
    position : bool (...)       where what the second slot of a pair costs is taken out

    Returns
    -------
    float64 (..., n)            their centre is 0 when the true ratio is `delta`
    """
    z = y - delta * b
    if load is not None:
        z = z - load_slope(z, load)[..., None] * load
    difference = z[..., 1::2] - z[..., 0::2]
    rows = np.broadcast_to(np.asarray(position, bool), difference.shape[:-1])
    if rows.any():
        cost = np.zeros(rows.shape)
        cost[rows] = hodges_lehmann(difference[rows])
        difference = difference - cost[..., None]
    return np.where(b[..., 1::2], difference, -difference)


def adjusted_tails(y, b, delta: float, load=None, position=False):
    """One-sided p of "the ratio lies above delta" and of "below", adjusted arm-blind: exact whatever the slope.

    Slope and cost are found anew for every delta from the slots in the order they ran, so that under the ratio
    `delta` the coins decide nothing but signs.
    """
    return signed_rank_tails(adjusted_ratios(y, b, delta, load, position))


#: values of delta at which a comparison is tried before its bounds are refined
TRIES = 49


def adjusted_interval(y, b, level: float, load=None, position: bool = False) -> tuple[float, float, float]:
    """Estimate, low and high of one comparison by inverting the adjusted test; y, b and load are (2n,).

    The bounds are the outermost values that are not rejected, refined to 1e-9, within one width of the plain interval:
    the truth does not lie beyond that, while a slope that is fitted to a far larger shift can explain any. The estimate
    is where the centre of what is left is 0, found by iteration from the plain one. Infinite where the plain one is.
    """
    y, b = np.asarray(y, float), np.asarray(b, bool)
    load = None if load is None else np.asarray(load, float)
    d = np.where(b[1::2], 1, -1) * (y[1::2] - y[0::2])
    plain_low, plain_high = map(float, signed_rank_interval(d, level))
    estimate = float(hodges_lehmann(d))
    for _ in range(20):
        estimate += float(hodges_lehmann(adjusted_ratios(y, b, estimate, load, position)))
    if math.isinf(plain_high - plain_low):
        return estimate, plain_low, plain_high
    tail = (1 - level) / 2 * (1 + 1e-9)
    width = max(plain_high - plain_low, 1e-9)
    tries = np.sort(np.append(np.linspace(plain_low - width, plain_high + width, TRIES), estimate))
    shape = (len(tries), len(y))
    many = (np.broadcast_to(y, shape), np.broadcast_to(b, shape), tries[:, None])
    above, below = adjusted_tails(*many, None if load is None else np.broadcast_to(load, shape), position)

    def rejected(delta: float, side: int) -> bool:
        return float(adjusted_tails(y, b, delta, load, position)[side]) <= tail

    def bound(kept: np.ndarray, side: int) -> float:
        """The outermost try that is kept, moved towards its outer neighbour as far as it is kept."""
        outwards = -1 if side == 0 else 1
        places = np.flatnonzero(kept)
        if not len(places):
            return estimate
        place = int(places[0] if side == 0 else places[-1])
        if not 0 <= place + outwards < len(tries):
            return float(tries[place])
        inside, outside = float(tries[place]), float(tries[place + outwards])
        while abs(outside - inside) > 1e-9:
            middle = (inside + outside) / 2
            if rejected(middle, side):
                outside = middle
            else:
                inside = middle
        return inside

    low, high = bound(above > tail, 0), bound(below > tail, 1)
    return min(max(estimate, low), high), low, high


# ---------------------------------------------------------------------------------------------- checks on the order


def rank_sum_p(x, y) -> float:
    """Two-sided p of Mann and Whitney's test that x and y are alike; exact counts below 400 pairs without ties.

    Otherwise the normal approximation with midranks and a correction for ties and continuity.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    m, n = len(x), len(y)
    if m == 0 or n == 0:
        return 1.0
    ordered = np.sort(y)
    larger = (np.searchsorted(ordered, x, "left").sum() + np.searchsorted(ordered, x, "right").sum()) / 2
    both = np.concatenate([x, y])
    _, counts = np.unique(both, return_counts=True)
    extreme = max(larger, m * n - larger)
    if counts.max() == 1 and m * n <= 400:
        ways = _rank_sum_ways(m, n)
        return float(min(1.0, 2 * ways[int(extreme) :].sum() / ways.sum()))
    total = m + n
    spread = m * n / 12 * (total + 1 - (counts**3 - counts).sum() / (total * (total - 1)))
    if spread <= 0:
        return 1.0
    return math.erfc(max(0.0, extreme - m * n / 2 - 0.5) / math.sqrt(2 * spread))


def shift(x, y) -> float:
    """Hodges and Lehmann's estimate of how far x lies above y: the median of all x_i - y_j; both one-dimensional."""
    x, y = np.sort(np.asarray(x, float)), np.sort(-np.asarray(y, float))
    total = len(x) * len(y)
    return (_sum_at(x, y, (total - 1) // 2) + _sum_at(x, y, total // 2)) / 2


@lru_cache(maxsize=256)
def _rank_sum_ways(m: int, n: int) -> np.ndarray:
    """In how many ways m of m + n ranks give each count of larger pairs 0 … mn."""
    ways = [np.zeros(m * n + 1) for _ in range(m + 1)]
    ways[0][0] = 1
    for value in range(m + n):
        for chosen in range(min(m, value + 1), 0, -1):
            gain = value - (chosen - 1)  # the pairs that the chosen-th member wins: smaller ones that are not chosen
            if gain <= m * n:
                shifted = np.zeros(m * n + 1)
                shifted[gain:] = ways[chosen - 1][: m * n + 1 - gain]
                ways[chosen] = ways[chosen] + shifted
    return ways[m]


def lag_correlation(d) -> float | None:
    """Rank correlation of each value with the next; None below 4 values or without variation."""
    d = np.asarray(d, float)
    if len(d) < 4:
        return None
    first, second = _midranks(d[:-1]), _midranks(d[1:])
    first, second = first - first.mean(), second - second.mean()
    norm = math.sqrt(float((first * first).sum() * (second * second).sum()))
    return float((first * second).sum()) / norm if norm else None


def _midranks(x: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


# ------------------------------------------------------------------------------------------------- many comparisons


def holm(p) -> np.ndarray:
    """Holm's adjusted p, in the order given: rejecting those at most alpha errs at all in at most alpha of families.

    Source: Holm, Scand. J. Stat. 6 (1979) 65.
    """
    p = np.asarray(p, float)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, raised)
    return adjusted


def benjamini_hochberg(p) -> np.ndarray:
    """q values: among those at most q, a share of at most q is false on average.

    Source: Benjamini & Hochberg, J. R. Stat. Soc. B 57 (1995) 289.
    """
    p = np.asarray(p, float)
    order = np.argsort(p, kind="stable")
    q = p[order] * len(p) / (np.arange(len(p)) + 1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(q[::-1])[::-1])
    return adjusted


# ------------------------------------------------------------------------------------------------------------ plans


def pairs_per_block(
    launch_seconds: float, pair_seconds: float, block_sd: float, pair_sd: float, most: int = 100
) -> int:
    """How many pairs a block should have so that neither launches nor pairs are wasted; 2 to `most`.

    Source: Kalibera & Jones, ISMM 2013: sqrt((c_launch / c_pair) (s_pair² / s_block²)).
    """
    if pair_seconds <= 0 or block_sd <= 0:
        return most
    wanted = math.sqrt(max(0.0, launch_seconds) / pair_seconds) * pair_sd / block_sd
    return max(2, min(most, round(wanted)))


# ------------------------------------------------------------------------------------------------- modes of a sample

#: 95 % points of sqrt(n) times the dip of n uniform values, by 2,000 to 20,000 samples a row
DIP_SIZES = (4, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000)
DIP_CRITICAL = (0.417, 0.404, 0.434, 0.441, 0.461, 0.471, 0.483, 0.500, 0.508, 0.523, 0.529, 0.532)


def dip(x) -> float:
    """The largest distance between the sample's distribution and the nearest one with a single mode.

    Source: Hartigan & Hartigan, Ann. Stat. 13 (1985) 70: the greatest convex minorant left of a modal interval and
    the least concave majorant right of it, the interval shrunk until it no longer improves.
    """
    x = np.sort(np.asarray(x, float))
    n = len(x)
    if n < 2 or x[0] == x[-1]:
        return 1 / (2 * max(n, 1))
    before, after = np.arange(n, dtype=float), np.arange(1.0, n + 1)  # counts left of and up to each value
    low, high, depth = 0, n - 1, 1.0
    while True:
        part = slice(low, high + 1)
        convex = _hull(x[part], before[part], 1)
        concave = _hull(x[part], after[part], -1)
        under = np.interp(x[part], x[part][convex], before[part][convex])
        over = np.interp(x[part], x[part][concave], after[part][concave])
        at_convex, at_concave = (over - under)[convex], (over - under)[concave]
        gap = max(at_convex.max(), at_concave.max())
        if gap <= depth:
            break
        if at_convex.max() >= at_concave.max():
            left = convex[int(np.argmax(at_convex))]
            right = next((one for one in concave if one >= left), concave[-1])
        else:
            right = concave[int(np.argmax(at_concave))]
            left = next((one for one in reversed(convex) if one <= right), convex[0])
        outside_left = (after[part] - under)[: left + 1].max()
        outside_right = (over - before[part])[right:].max()
        depth = max(depth, outside_left, outside_right)
        if left == 0 and right == high - low:
            break
        low, high = low + left, low + right
    return depth / (2 * n)


def _hull(x: np.ndarray, y: np.ndarray, turn: int) -> list[int]:
    """Vertices of the greatest convex minorant (turn 1) or the least concave majorant (turn -1) of points."""
    found: list[int] = []
    for i in range(len(x)):
        while len(found) > 1:
            j, k = found[-2], found[-1]
            if turn * ((y[k] - y[j]) * (x[i] - x[j]) - (y[i] - y[j]) * (x[k] - x[j])) >= 0:
                found.pop()
            else:
                break
        # Of equal values the minorant keeps the lowest point, the majorant the highest.
        if found and x[found[-1]] == x[i]:
            if turn * (y[found[-1]] - y[i]) <= 0:
                continue
            found.pop()
        found.append(i)
    return found


def modes(x) -> tuple[int, float | None]:
    """1, or 2 where a sample has more than one mode (dip test at 5 %), and where to part it."""
    x = np.sort(np.asarray(x, float))
    n = len(x)
    if n < DIP_SIZES[0]:
        return 1, None
    critical = float(np.interp(math.log(n), np.log(DIP_SIZES), DIP_CRITICAL))
    if math.sqrt(n) * dip(x) <= critical:
        return 1, None
    # The parting with the least spread inside the two parts.
    count = np.arange(1, n)
    left, right = np.cumsum(x)[:-1], np.cumsum(x[::-1])[-2::-1]
    cut = int(np.argmax(left * left / count + right * right / (n - count))) + 1
    return 2, float((x[cut - 1] + x[cut]) / 2)


# ------------------------------------------------------------------------------------------------------ steady state


def change_points(x, penalty: float | None = None, least: int = 3) -> list[int]:
    """Starts of the segments of a series whose mean and variance are constant, the first of them 0.

    Segments of at least `least` values minimise normal log-likelihood costs plus `penalty` (15 log n) a change, by
    dynamic programming over all partitions. A spread below .05 % of the median counts as that, so that a clock's
    steps are no changes.

    Source: Killick, Fearnhead & Eckley, JASA 107 (2012) 1590, without the pruning, which series of a few hundred
    values do not need.
    """
    x = np.asarray(x, float)
    n = len(x)
    if n < 2 * least:
        return [0]
    penalty = 15 * math.log(n) if penalty is None else penalty
    floor = (5e-4 * abs(float(np.median(x)))) ** 2 or 1e-300
    total = np.concatenate([[0.0], np.cumsum(x - x.mean())])
    square = np.concatenate([[0.0], np.cumsum((x - x.mean()) ** 2)])
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(n + 1, int)
    for end in range(least, n + 1):
        starts = np.arange(0, end - least + 1)
        size = end - starts
        mean = (total[end] - total[starts]) / size
        variance = np.maximum((square[end] - square[starts]) / size - mean * mean, floor)
        cost = best[starts] + size * (np.log(variance) + 1) + penalty
        last[end] = int(np.argmin(cost))
        best[end] = cost[last[end]]
    found, end = [], n
    while end > 0:
        end = int(last[end])
        found.append(end)
    return sorted(found)


def steady_state(x) -> tuple[str, int]:
    """The class of a series of iterations and where its steady part begins.

    Classes: flat, warm-up (earlier parts are slower), slowdown (some are faster), none (no steady state; the start is
    the length then), short (fewer than 20 iterations, nothing can be said). Segments whose means differ by at most
    their standard deviation or .1 % count as one; the steady part is the last, at least a quarter and 10 iterations.

    Source: Barrett et al., Proc. ACM Program. Lang. 1 (OOPSLA 2017) 52.
    """
    x = np.asarray(x, float)
    if len(x) < 20:
        return "short", 0
    starts = change_points(x)
    parts = [x[start:end] for start, end in zip(starts, [*starts[1:], len(x)])]
    final = parts[-1]
    within = max(float(final.std()), 1e-3 * abs(float(final.mean())))
    first = len(parts) - 1
    while first > 0 and abs(float(parts[first - 1].mean() - final.mean())) <= within:
        first -= 1
    start = starts[first]
    if len(x) - start < max(10, len(x) / 4):
        return "none", len(x)
    if first == 0:
        return "flat", 0
    faster = any(float(part.mean()) < float(final.mean()) - within for part in parts[:first])
    return ("slowdown" if faster else "warm-up"), start
