"""How well jets are told apart: accuracy, area under the ROC curve and background rejection, each with its interval.

Scores are logits float (n, 2) or one number a jet (n,), higher for signal; labels int64 (n,) 1 or 0; weights (n,).
Intervals are percentiles of bootstrap resamples of the jets within each class (stratified), so they hold the spread
by the choice of test jets, and not that by the seed of the training.
"""

import numpy as np

from impl.gnn import metrics as shared

#: signal efficiencies at which the rejection is given
EFFICIENCIES = (0.3, 0.5)


def margin(scores: np.ndarray) -> np.ndarray:
    """One number a jet, float64 (n,): the logit of signal less that of background."""
    scores = np.asarray(scores, np.float64)
    return scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores


def rejection(score: np.ndarray, label: np.ndarray, weight: np.ndarray, efficiency: float) -> float | None:
    """1 / share of background above the threshold that keeps at least this share of signal; None if it keeps none."""
    false, hit = shared.roc(score, np.asarray(label) == 1, weight)
    share = float(false[np.searchsorted(hit, efficiency - 1e-12)])
    return 1 / share if share > 0 else None


def plain(scores: np.ndarray, label: np.ndarray, weight: np.ndarray) -> dict:
    """jets, loss, accuracy, auc, rejection_30 and rejection_50, without intervals."""
    found = shared.summary(scores, label, weight, "multiclass")
    line = {"jets": found["events"]} | {name: found[name] for name in ("loss", "accuracy", "auc")}
    for efficiency in EFFICIENCIES:
        value = None
        if found["auc"] is not None:
            value = rejection(margin(scores), label, weight, efficiency)
        line[f"rejection_{round(100 * efficiency)}"] = value
    return line


def intervals(scores: np.ndarray, label: np.ndarray, weight: np.ndarray, level: float = 0.95, resamples: int = 2000,
              seed: int = 0) -> dict:  # fmt: skip
    """Bootstrap intervals [low, high] of accuracy, auc, rejection_30 and rejection_50; None: no background was left.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap (1993), 13.3 (percentiles), within each class.

    Parameters
    ----------
    scores : float (n, 2)
    level : float
    resamples, seed : int
    """
    score, label, weight = margin(scores), np.asarray(label), np.asarray(weight, np.float64)
    order = np.argsort(-score, kind="stable")
    score, hot, weight = score[order], label[order] == 1, weight[order]
    step = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)  # the last jet of each run of equal scores
    right = np.where(hot, score > 0, score <= 0)
    random = np.random.default_rng(seed)
    names = ["accuracy", "auc", *(f"rejection_{round(100 * e)}" for e in EFFICIENCIES)]
    found = np.empty((resamples, len(names)))
    places = [np.flatnonzero(hot), np.flatnonzero(~hot)]
    if min(map(len, places)) == 0:
        return dict.fromkeys(names)
    for number in range(resamples):
        drawn = np.zeros(len(score))
        for place in places:
            drawn[place] = np.bincount(random.integers(0, len(place), len(place)), minlength=len(place))
        drawn *= weight
        hit, false = np.where(hot, drawn, 0).cumsum()[step], np.where(hot, 0, drawn).cumsum()[step]
        if hit[-1] == 0 or false[-1] == 0:
            found[number] = np.nan
            continue
        found[number, 0] = (drawn * right).sum() / drawn.sum()
        before, above = np.append(0, hit[:-1]), np.diff(false, prepend=0)
        found[number, 1] = (above * (before + 0.5 * (hit - before))).sum() / (hit[-1] * false[-1])
        for column, efficiency in enumerate(EFFICIENCIES, 2):
            share = false[np.searchsorted(hit, (efficiency - 1e-12) * hit[-1])] / false[-1]
            found[number, column] = 1 / share if share else np.inf
    tail = 100 * (1 - level) / 2
    result = {}
    for column, name in enumerate(names):
        values = np.sort(found[~np.isnan(found[:, column]), column])  # percentiles by rank: some may be infinite
        ends = [values[min(len(values) - 1, int(q / 100 * len(values)))] for q in (tail, 100 - tail)]
        result[name] = [float(end) if np.isfinite(end) else None for end in ends]
    return result


def summary(scores: np.ndarray, label: np.ndarray, weight: np.ndarray, level: float = 0.95) -> dict:
    """`plain` with the intervals of `intervals` as {value, low, high}."""
    line, ends = plain(scores, label, weight), intervals(scores, label, weight, level)
    for name, pair in ends.items():
        low, high = pair or (None, None)
        line[name] = {"value": line[name], "low": low, "high": high}
    return line | {"level": level, "method": "bootstrap percentiles, 2000 resamples within each class"}
