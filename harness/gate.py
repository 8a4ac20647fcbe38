"""Numbers and limits -> the verdict with its reason, and the exit code; pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from harness import accuracy, schedule, stats

EXIT_CODES = {
    "wrong-result": 1,
    "unfit": 4,
    "regression": 1,
    "improvement": 0,
    "equivalent": 0,
    "not-worse": 0,
    "slower": 3,
    "inconclusive": 3,
    **accuracy.EXIT_CODES,
}
#: exit codes from the worst to the best
WORST_FIRST = (1, 4, 3, 0)


@dataclass(frozen=True)
class Interval:
    """Estimate and bounds of log(B/A) as measured; None where there is none.

    Attributes
    ----------
    low, high : float           bounds at `level`, each one-sided at (1 - level)/2
    low90, high90 : float       the narrower ones, for "equivalent" and "not-worse"
    p : float                   exact two-sided p of "no difference"
    """

    n: int
    level: float
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    low90: float | None = None
    high90: float | None = None
    p: float | None = None
    mde: float | None = None
    units_needed: int | None = None  # that exist at `level`
    units_to_settle: int | None = None  # for an MDE of the margin


@dataclass(frozen=True)
class Evidence:
    """Everything a verdict rests on.

    Attributes
    ----------
    interval : Interval         over the units that are kept
    everything : Interval       over those set aside as well; None when none is
    final : bool                whether no more units may come: not-worse and slower need it
    direction : str             "lower" or "higher": which of the metric's values is better
    complete : int              units that were measured to the end, set aside or not
    wrong : list of str         why the output is wrong, in words; empty when it is not
    unmeasured : list of str    why there is no number, in words
    doubts : list of str        what forbids any verdict on the ratio, in words (order, carry-over, null control)
    ceiling : set of str        "a", "b": arms that leave work out on purpose
    """

    interval: Interval
    everything: Interval | None = None
    margin: float = 0.02
    alpha: float = 0.05
    direction: str = "lower"
    final: bool = True
    unit: str = "blocks"
    complete: int = 0
    set_aside: int = 0
    voids: dict[str, int] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    ceiling: frozenset[str] = frozenset()
    settled: "Verdict | None" = None  # of a deterministic metric, in the interval's place


#: spread of a deterministic metric over an arm's runs, above which it is not deterministic
SPREAD_LIMIT = 1e-3
#: p of a null control (A against itself) below which the comparison says nothing
NULL_CONTROL_LIMIT = 0.01


@dataclass(frozen=True)
class Verdict:
    word: str
    reason: str


def _ratio(x: float) -> str:
    """B/A from its logarithm, in as many digits as a margin of a percent needs."""
    if math.isinf(x):
        return "∞" if x > 0 else "0"
    ratio = math.exp(x)
    return f"{ratio:.4f}" if 0.1 <= ratio < 10 else f"{ratio:.4g}"


def _percent(x: float) -> str:
    """A log ratio as a change in percent."""
    return f"{100 * abs(math.expm1(x)):.3g} %"


def _level(level: float) -> str:
    return f"{100 * level:.4g} %"


def _seen(interval: Interval) -> str:
    return (
        f"B/A = {_ratio(interval.estimate)}, between {_ratio(interval.low)} and {_ratio(interval.high)} "
        f"({_level(interval.level)})"
    )


def words(low, high, low90, high90, mu: float, final: bool = True) -> np.ndarray:
    """The words that intervals of a log ratio decide, less being better; arrays of any one shape -> array of str."""
    return np.select(
        [
            np.greater(low, mu),
            np.less(high, -mu),
            np.greater(low90, -mu) & np.less(high90, mu),
            np.less(high90, mu) & final,
            np.greater(low, 0) & final,
        ],
        ["regression", "improvement", "equivalent", "not-worse", "slower"],
        "inconclusive",
    )


def _table(interval: Interval, evidence: Evidence) -> Verdict:
    unit, margin = evidence.unit, evidence.margin
    if interval.low is None:
        needed = interval.units_needed
        return Verdict(
            "inconclusive",
            f"{needed} units are needed for a {_level(interval.level)} interval, and {interval.n} "
            f"{'counts' if interval.n == 1 else 'count'}",
        )
    low, high, low90, high90 = interval.low, interval.high, interval.low90, interval.high90
    if evidence.direction == "higher":
        low, high, low90, high90 = -high, -low, -high90, -low90
    word = str(words(low, high, low90, high90, math.log1p(margin), evidence.final))
    bound, other = f"{1 + margin:.4g}", f"{1 / (1 + margin):.4g}"
    worse, better = "above", "below"
    if evidence.direction == "higher":
        bound, other = other, bound
        worse, better = better, worse
    seen = _seen(interval)
    if word == "regression":
        return Verdict(word, f"{seen}: all of it {worse} the margin at {bound}")
    if word == "improvement":
        return Verdict(word, f"{seen}: all of it {better} the margin at {other}")
    if word == "equivalent":
        reason = f"{seen}: within the margin of {100 * margin:.3g} %"
        if low > 0 or high < 0:
            sense = ("slower", "faster") if evidence.direction == "lower" else ("worse", "better")
            reason += f", yet {sense[0] if low > 0 else sense[1]} (p = {interval.p:.2g})"
        return Verdict(word, reason)
    if word == "not-worse":
        return Verdict(word, f"{seen}: not beyond the margin at {bound}")
    if word == "slower":
        return Verdict(word, f"{seen}: {worse} 1, by an amount not settled against {bound}")
    visible = f"; {interval.n} {unit} show {_percent(interval.mde)}" if interval.mde is not None else ""
    needed = (
        f", about {interval.units_to_settle} would show {100 * margin:.3g} %"
        if interval.units_to_settle is not None and interval.units_to_settle > interval.n
        else ""
    )
    return Verdict(word, f"{seen}{visible}{needed}")


def by_interval(interval: Interval, evidence: Evidence) -> Verdict:
    """The rows of the table that an interval decides, from "too few units" downwards.

    An arm that leaves work out on purpose (a ceiling) never wins.
    """
    found = evidence.settled or _table(interval, evidence)
    winner = {"regression": "a", "slower": "a", "improvement": "b"}.get(found.word)
    if winner in evidence.ceiling:
        return Verdict(
            "inconclusive", f"arm {winner.upper()} is a ceiling: it leaves work out and cannot win; {found.reason}"
        )
    return found


def _named(word: str, counts: dict[str, int], arm: str) -> str:
    return f"{counts[arm]} {word} in {arm.upper()} and none in {'B' if arm == 'a' else 'A'}"


def verdict(evidence: Evidence) -> Verdict:
    """The first row of the table that applies."""
    if evidence.wrong:
        return Verdict("wrong-result", "; ".join(evidence.wrong))
    voids = {arm: evidence.voids.get(arm, 0) for arm in "ab"}
    b_fails = schedule.voids_decide(voids["b"], voids["a"], evidence.alpha)
    if evidence.unfit:
        return Verdict("unfit", "; ".join(evidence.unfit))
    if schedule.voids_decide(voids["a"], voids["b"], evidence.alpha):
        return Verdict("unfit", f"{_named('void units', voids, 'a')}: the base does not run")
    if evidence.complete == 0 and not b_fails:
        found = f"{voids['a']} void units in A, {voids['b']} in B" if any(voids.values()) else "no unit was completed"
        return Verdict("unfit", f"nothing was measured: {found}")
    if evidence.set_aside > schedule.SET_ASIDE_LIMIT * evidence.complete:
        return Verdict(
            "unfit",
            f"{evidence.set_aside} of {evidence.complete} {evidence.unit} were set aside for their load, more than "
            f"{100 * schedule.SET_ASIDE_LIMIT:.0f} %; wait for a quieter machine or raise limits.foreign_cores",
        )
    if b_fails:
        return Verdict("regression", f"{_named('void units', voids, 'b')}: B does not run")
    if evidence.unmeasured:
        return Verdict("inconclusive", "; ".join(evidence.unmeasured))
    found = by_interval(evidence.interval, evidence)
    if evidence.doubts and found.word != "inconclusive":
        return Verdict("inconclusive", f"{'; '.join(evidence.doubts)} (it would be {found.word}: {found.reason})")
    if evidence.everything is not None:
        whole = by_interval(evidence.everything, evidence)
        if whole.word != found.word:
            return Verdict(
                "inconclusive",
                f"{found.word} without and {whole.word} with the {evidence.set_aside} {evidence.unit} set aside for "
                f"their load ({found.reason})",
            )
    return found


def by_values(found: dict | None, unfit: tuple[str, ...], voids: dict[str, int]) -> Verdict:
    """The verdict of `harness accuracy`: what accuracy.judge found, or unfit where there is nothing to judge."""
    if unfit:
        return Verdict("unfit", "; ".join(unfit))
    if found is None:
        why = f"{voids['a']} void units in A, {voids['b']} in B" if any(voids.values()) else "no unit was completed"
        return Verdict("unfit", f"no values were taken: {why}")
    return Verdict(found["word"], found["reason"])


def deterministic(a: list[float], b: list[float], margin: float, direction: str = "lower", runs: int = 3) -> Verdict:
    """The verdict on a metric without noise, such as instructions: values of each arm's runs, all above 0.

    The spread (largest over smallest) must stay under .1 % in both arms; then the ratio of medians decides.
    """
    if min(len(a), len(b)) < runs:
        return Verdict("inconclusive", f"{runs} runs of each arm are needed, and there are {len(a)} and {len(b)}")
    for arm, values in (("A", a), ("B", b)):
        spread = max(values) / min(values) - 1
        if spread >= SPREAD_LIMIT:
            return Verdict(
                "inconclusive",
                f"arm {arm} varies by {100 * spread:.2g} % from run to run, {100 * SPREAD_LIMIT:g} % is allowed; "
                "fix its seeds, or measure time",
            )
    ratio = math.log(float(np.median(b)) / float(np.median(a)))
    bad = -ratio if direction == "higher" else ratio
    mu = math.log1p(margin)
    word = "regression" if bad > mu else "improvement" if bad < -mu else "equivalent"
    return Verdict(word, f"B/A = {_ratio(ratio)}, the same in {runs} runs, against a margin of {100 * margin:.3g} %")


def family(p_worse: list[float], alpha: float) -> list[bool]:
    """Which of several scenarios are regressions: Holm's step-down on one-sided p of "worse than the margin"."""
    return [bool(p <= alpha * (1 + 1e-9)) for p in stats.holm(p_worse)]


def family_tails(p_worse: list[float], alpha: float) -> list[float]:
    """The one-sided level at which each scenario's bound is tested, so that bounds and Holm's decisions agree.

    The smallest p meets alpha/K, the next alpha/(K-1) and so on, up to the first that is not rejected; that one and all
    larger ones are held to its level.
    """
    tails = [0.0] * len(p_worse)
    stopped = None
    for place, i in enumerate(sorted(range(len(p_worse)), key=lambda i: (p_worse[i], i))):
        tails[i] = alpha / (len(p_worse) - place) if stopped is None else stopped
        if stopped is None and p_worse[i] > tails[i] * (1 + 1e-9):
            stopped = tails[i]
    return tails


def exit_code(word: str, strict: bool = False) -> int:
    """What the command ends with; `strict` fails "slower". Raises ValueError for an unknown word."""
    if word not in EXIT_CODES:
        raise ValueError(f"expected one of {', '.join(EXIT_CODES)}, found {word!r}")
    return 1 if strict and word == "slower" else EXIT_CODES[word]


def worst(codes: Iterable[int]) -> int:
    """The exit code of several scenarios: the worst in the order 1, 4, 3, 0. Raises ValueError without any."""
    codes = set(codes)
    for code in WORST_FIRST:
        if code in codes:
            return code
    raise ValueError(f"expected exit codes among {WORST_FIRST}, found {sorted(codes)}")
