"""Two arms' values -> how far they differ in units of their own uncertainty, and the word for it; pure but for `load`.

A *map* has a value with an error bar at every key. Its *pull* is (B - A)/sigma, sigma of the reference A. The two arms
share their counts, so a pull is a systematic shift in units of the error bar and no test statistic: an error bar
shrinks with the exposure as 1/sqrt(N), such a shift does not. At an exposure M it is |pull| sqrt(M/N), N being the
contributors of a voxel on average; it becomes visible where its weighted median reaches 1, at N/median^2. Voxels that
one arm misses have no pull and are counted beside it. A reference that is itself not converged hides what both lack.

A *model* has scores with true labels, for one or several seeds. The arms are paired by seed and event: what the seed
does to both is no difference between them. The interval is over seeds: from 6 on the exact signed-rank one (for 95 %),
before that Student's t, which assumes normal differences and is therefore named model-based.

Sources: weighted quantiles and exposure: shared with the mapping's depth tables; AUC with ties: Hanley & McNeil,
Radiology 143 (1982) 29, by mid-ranks; seeds as pairs: Bouthillier et al., MLSys 2021; small samples: Student,
Biometrika 6 (1908) 1; signed-rank interval: stats.py.
"""

import hashlib
import math
import os
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import stats
from harness.errors import ConfigurationError, sentence

#: words and what a command ends with
EXIT_CODES = {"indistinguishable": 0, "different": 1, "undecided": 3}
METRICS = ("auc", "accuracy", "log_loss")
#: how the pages and sentences call them
METRIC_WORDS = {"auc": "AUC", "accuracy": "accuracy", "log_loss": "log loss"}
#: arrays that an .npz of each kind has; `contributors` of a map may be absent
MAP = ("key", "value", "variance", "weight")
MODEL = ("score", "label", "weight", "key", "seed")
_LEAST = {"variance": 0.0, "contributors": 1.0}
#: share of a map's weight that an arm may miss; difference of a model's metric that does not matter
MAP_TOLERANCE, MODEL_TOLERANCE = 0.01, 0.005
#: weighted median of the shift from which on maps are different; 90 % point below which they are indistinguishable
VISIBLE, HIDDEN = 1.0, 0.5
#: edges of the histogram of |pull|: ten bins a decade; what lies outside is counted in the first and the last
EDGES = np.logspace(-4, 2, 61)
#: more seeds than this are not asked for
MOST_SEEDS = 10_000
QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Map:
    """Values with error bars.

    Attributes
    ----------
    key : int64 or uint64 (n,)         which voxel, bin or pixel; each once
    value, variance : float64 (n,)     variance of the value; 0 where it has no error bar
    weight : float64 (n,)              above 0: entries without weight are left out when it is read
    contributors : float64 (n,) | None samples behind each value, at least 1
    """

    key: np.ndarray
    value: np.ndarray
    variance: np.ndarray
    weight: np.ndarray
    contributors: np.ndarray | None


@dataclass(frozen=True)
class Model:
    """Scores of events, of one or several seeds.

    Attributes
    ----------
    score : float64 (n,) or (n, C)     log odds of class 1, or one logit a class
    label : int64 (n,)                 0 or 1, or 0 … C-1
    weight : float64 (n,)              at least 0
    key, seed : int64 (n,)             the event, once for each seed
    """

    score: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    key: np.ndarray
    seed: np.ndarray


# ---------------------------------------------------------------------------------------------------- reading


def load(path: str | os.PathLike, where: str) -> tuple[Map | Model, dict[str, np.ndarray]]:
    """Values from an .npz, and its plain arrays.

    Raises ConfigurationError with one sentence that begins with `where` for anything that is no such file.
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, EOFError, TypeError, zipfile.BadZipFile) as error:
        found = "no file" if isinstance(error, FileNotFoundError) else "something else"
        raise ConfigurationError(
            sentence(where, "an .npz of plain arrays", found, "write it with numpy.savez(path, …)")
        ) from None
    return read(arrays, where), arrays


def read(arrays: dict[str, np.ndarray], where: str) -> Map | Model:
    """Arrays by name -> a map or a model, checked; raises ConfigurationError, one sentence."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    if "value" in arrays and "score" in arrays:
        raise ConfigurationError(
            sentence(where, "'value' (a map) or 'score' (a model)", "both", "write one file of one kind")
        )
    if "value" not in arrays and "score" not in arrays:
        raise ConfigurationError(
            sentence(where, "'value' (a map) or 'score' (a model)", f"{_names(arrays)}", "see harness/protocol.py")
        )
    wanted = MAP if "value" in arrays else MODEL
    for name in wanted:
        if name not in arrays:
            raise ConfigurationError(
                sentence(where, f"the arrays {', '.join(wanted)}", f"no '{name}'", "write it beside the others")
            )
    return _map(arrays, where) if wanted is MAP else _model(arrays, where)


def digest(arrays: dict[str, np.ndarray]) -> str:
    """A digest of arrays by name, type, shape and bytes: that of their content, however it is packed."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        state.update(array.tobytes())
    return state.hexdigest()[:32]


def _names(arrays) -> str:
    return ", ".join(f"'{name}'" for name in sorted(arrays)) or "no array"


def _lengths(arrays: dict[str, np.ndarray], names, where: str) -> None:
    shapes = {name: arrays[name].shape for name in names}
    if len({shape[:1] for shape in shapes.values()}) != 1 or any(shape == () for shape in shapes.values()):
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ConfigurationError(sentence(where, "arrays of one length", found, "one entry for each key"))
    for name, shape in shapes.items():
        if len(shape) != 1 and not (name == "score" and len(shape) == 2):
            raise ConfigurationError(sentence(where, f"'{name}' with one axis", f"shape {shape}"))


def _integers(arrays: dict[str, np.ndarray], name: str, where: str) -> np.ndarray:
    """Whole numbers as int64, or as uint64 where they do not fit."""
    array = arrays[name]
    if array.dtype.kind not in "iub":
        raise ConfigurationError(sentence(where, f"whole numbers in '{name}'", f"type {array.dtype}"))
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        return array.astype(np.uint64)
    return array.astype(np.int64)


def _floats(arrays: dict[str, np.ndarray], name: str, where: str) -> np.ndarray:
    array = arrays[name]
    if array.dtype.kind not in "iufb":
        raise ConfigurationError(sentence(where, f"numbers in '{name}'", f"type {array.dtype}"))
    return array.astype(np.float64)


def _finite(name: str, array: np.ndarray, key: np.ndarray, where: str, least: float = -math.inf) -> None:
    good = np.isfinite(array) & (array >= least)
    good = good if good.ndim == 1 else good.all(axis=1)
    if not good.all():
        first = int(np.argmin(good))
        number = np.atleast_1d(array[first])
        shown = next(float(x) for x in number if not (np.isfinite(x) and x >= least))
        kind = "finite numbers" if least == -math.inf else f"finite numbers of at least {least:g}"
        more = int((~good).sum()) - 1
        told = f"{shown:g} at key {key[first]}" + (f" and {more} more" if more else "")
        raise ConfigurationError(sentence(where, f"{kind} in '{name}'", told))


def _once(key: np.ndarray, where: str, of: str = "") -> None:
    """Raise unless every key is there once."""
    ordered = np.sort(key)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        times = int((ordered == twice[0]).sum())
        raise ConfigurationError(
            sentence(where, f"each key once{of}", f"key {twice[0]} {times} times", "add up what belongs together")
        )


def _map(arrays: dict[str, np.ndarray], where: str) -> Map:
    names = [*MAP, *(["contributors"] if "contributors" in arrays else [])]
    _lengths(arrays, names, where)
    key = _integers(arrays, "key", where)
    columns = {name: _floats(arrays, name, where) for name in names if name != "key"}
    _once(key, where)
    _finite("weight", columns["weight"], key, where, 0.0)
    heavy = columns["weight"] > 0  # what has no weight has no value
    if not heavy.any():
        raise ConfigurationError(sentence(where, "an entry with weight above 0", f"none among {len(key)}"))
    key, columns = key[heavy], {name: column[heavy] for name, column in columns.items()}
    for name in names[1:]:
        _finite(name, columns[name], key, where, _LEAST.get(name, -math.inf))
    return Map(key, columns["value"], columns["variance"], columns["weight"], columns.get("contributors"))


def _model(arrays: dict[str, np.ndarray], where: str) -> Model:
    if arrays["seed"].shape == ():
        arrays = arrays | {"seed": np.full(len(np.atleast_1d(arrays["key"])), arrays["seed"])}
    _lengths(arrays, MODEL, where)
    key, seed, label = (_integers(arrays, name, where) for name in ("key", "seed", "label"))
    score, weight = (_floats(arrays, name, where) for name in ("score", "weight"))
    if not len(key):
        raise ConfigurationError(sentence(where, "at least one event", "none"))
    _finite("score", score, key, where)
    _finite("weight", weight, key, where, 0.0)
    classes = 2 if score.ndim == 1 else score.shape[1]
    if classes < 2:
        raise ConfigurationError(sentence(where, "'score' (n,) or (n, two classes or more)", f"shape {score.shape}"))
    if label.min() < 0 or label.max() >= classes:
        bad = label[(label < 0) | (label >= classes)][0]
        raise ConfigurationError(sentence(where, f"labels from 0 to {classes - 1}", str(bad), "one number a class"))
    for one in np.unique(seed):
        _once(key[seed == one], where, f" for seed {one}")
        if not weight[seed == one].any():
            raise ConfigurationError(sentence(where, f"weight above 0 for seed {one}", "none"))
    return Model(score, label, weight, key, seed)


# ------------------------------------------------------------------------------------------------- arithmetic


def weighted_quantile(values, weight, share: float) -> float:
    """The first of the ascending values at which the cumulative weight reaches `share` of the total.

    values, weight : float64 (n,), weight above 0; raises ValueError for none.
    """
    values, weight = np.asarray(values, float), np.asarray(weight, float)
    if not values.size:
        raise ValueError("expected at least one value, found none")
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weight[order])
    place = np.searchsorted(cumulative, share * cumulative[-1], side="left")
    return float(values[order][min(place, len(values) - 1)])


def auc(score, positive, weight) -> float | None:
    """Area under the ROC curve, ties counted half: the weighted share of pairs that are in order.

    score : float64 (n,); positive : bool (n,); weight : float64 (n,). None where a class has no weight.
    """
    score, weight, positive = np.asarray(score, float), np.asarray(weight, float), np.asarray(positive, bool)
    _, place = np.unique(score, return_inverse=True)
    signal = np.bincount(place, weight * positive)
    background = np.bincount(place, weight * ~positive)
    pairs = signal.sum() * background.sum()
    if not pairs > 0:
        return None
    below = np.cumsum(background) - background
    return float((signal * (below + background / 2)).sum() / pairs)


def log_chances(score: np.ndarray) -> np.ndarray:
    """Logits (n, C), or log odds (n,), -> logarithms of the classes' probabilities (n, C)."""
    if score.ndim == 1:
        score = np.stack([np.zeros_like(score), score], axis=1)
    shifted = score - score.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def metrics(score: np.ndarray, label: np.ndarray, weight: np.ndarray) -> dict[str, float | None]:
    """auc (macro, one class against the rest, over the classes that have one), accuracy and log_loss, all weighted."""
    log_chance = log_chances(score)
    ranked = np.round(log_chance, 12)  # equal differences of logits are ties, whatever the softmax rounded
    classes = range(1, 2) if score.ndim == 1 else range(log_chance.shape[1])
    areas = [auc(ranked[:, one] if score.ndim == 2 else score, label == one, weight) for one in classes]
    known = [area for area in areas if area is not None]
    right = decided(score) == label
    return {
        "auc": float(np.mean(known)) if known else None,
        "accuracy": float(np.average(right, weights=weight)),
        "log_loss": float(-np.average(log_chance[np.arange(len(label)), label], weights=weight)),
    }


def decided(score: np.ndarray) -> np.ndarray:
    """The class that a score decides for: the largest logit, the first of equal ones; log odds above 0."""
    return (score > 0).astype(np.int64) if score.ndim == 1 else score.argmax(axis=1)


# ---------------------------------------------------------------------------------------- two arms against each other


def reduce(a: Map | Model, b: Map | Model, names: tuple[str, str] = ("A", "B")) -> dict[str, Any]:
    """B's values against A's, as plain numbers for the record; A is the reference.

    Raises ConfigurationError when the two cannot be set against each other.
    """
    where = f"arms '{names[0]}' and '{names[1]}', values"
    if type(a) is not type(b):
        kinds = ["a map" if isinstance(one, Map) else "a model" for one in (a, b)]
        raise ConfigurationError(sentence(where, "two of one kind", f"{kinds[0]} and {kinds[1]}"))
    return _reduce_maps(a, b) if isinstance(a, Map) else _reduce_models(a, b, names, where)


def _common(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions in a and in b of the keys that both have; NumPy would compare uint64 with int64 as floats."""
    if a.dtype != b.dtype:
        # One side holds a key beyond int64: as uint64 both are exact, and negative keys cannot meet it.
        keep = [np.flatnonzero(one >= 0) for one in (a, b)]
        _, i, j = np.intersect1d(
            a[keep[0]].astype(np.uint64), b[keep[1]].astype(np.uint64), assume_unique=True, return_indices=True
        )
        return keep[0][i], keep[1][j]
    _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return i, j


def _reduce_maps(a: Map, b: Map) -> dict[str, Any]:
    i, j = _common(a.key, b.key)
    shared, barred = a.weight[i], a.variance[i] > 0
    found: dict[str, Any] = {
        "kind": "map",
        "shared": len(i),
        "only_a": len(a.key) - len(i),
        "only_b": len(b.key) - len(j),
        "only_a_share": float(np.delete(a.weight, i).sum() / a.weight.sum()),
        "only_b_share": float(np.delete(b.weight, j).sum() / b.weight.sum()),
        "without_bar": int((~barred).sum()),
        "without_bar_share": float(shared[~barred].sum() / shared.sum()) if len(i) else 0.0,
        "weight_ratio": float(b.weight.sum() / a.weight.sum()),
        "intensity_ratio": _ratio(float((b.value * b.weight).sum()), float((a.value * a.weight).sum())),
        "contributors": None,
        "pull": None,
        "histogram": None,
    }
    i, j, weight = i[barred], j[barred], shared[barred]
    if not len(i):
        return found
    signed = (b.value[j] - a.value[i]) / np.sqrt(a.variance[i])
    pull = np.abs(signed)
    if a.contributors is not None:
        found["contributors"] = float(np.average(a.contributors[i], weights=weight))
    found["pull"] = {
        "signed_mean": float(np.average(signed, weights=weight)),
        **{name: weighted_quantile(pull, weight, share) for name, share in QUANTILES.items()},
        "rms": float(np.sqrt(np.average(pull**2, weights=weight))),
        "largest": float(pull.max()),
    }
    bins = np.clip(np.searchsorted(EDGES, pull, side="right") - 1, 0, len(EDGES) - 2)
    shares = np.bincount(bins[pull > 0], weight[pull > 0], minlength=len(EDGES) - 1) / weight.sum()
    found["histogram"] = {
        "zero": float(weight[pull == 0].sum() / weight.sum()),
        "shares": [float(f"{share:.6g}") for share in shares],
    }
    return found


def _ratio(x: float, y: float) -> float | None:
    return x / y if y else None


def _reduce_models(a: Model, b: Model, names: tuple[str, str], where: str) -> dict[str, Any]:
    if a.score.ndim != b.score.ndim or a.score.shape[1:] != b.score.shape[1:]:
        raise ConfigurationError(
            sentence(where, "scores of one shape", f"{a.score.shape} and {b.score.shape}", "the same classes in both")
        )
    seeds, theirs = sorted(set(a.seed.tolist())), sorted(set(b.seed.tolist()))
    if seeds != theirs:
        raise ConfigurationError(
            sentence(where, "the same seeds", f"{seeds} and {theirs}", "the arms are paired by their seeds")
        )
    return {"kind": "model", "seeds": [_reduce_seed(one, a, b, names, where) for one in seeds]}


def _reduce_seed(seed: int, a: Model, b: Model, names: tuple[str, str], where: str) -> dict[str, Any]:
    ours, theirs = np.flatnonzero(a.seed == seed), np.flatnonzero(b.seed == seed)
    i, j = _common(a.key[ours], b.key[theirs])
    lost = len(ours) - len(i), len(theirs) - len(j)
    if any(lost):
        raise ConfigurationError(
            sentence(
                where,
                f"the same keys for seed {seed}",
                f"{lost[0]} that only '{names[0]}' has and {lost[1]} that only '{names[1]}' has",
                "hold out the same events in both",
            )
        )
    i, j = ours[i], theirs[j]
    for name in ("label", "weight"):
        differ = getattr(a, name)[i] != getattr(b, name)[j]
        if differ.any():
            raise ConfigurationError(
                sentence(
                    where,
                    f"the same '{name}' of an event",
                    f"{int(differ.sum())} that differ for seed {seed} (key {a.key[i][differ][0]})",
                    "both arms must be asked the same question",
                )
            )
    score = {"a": a.score[i], "b": b.score[j]}
    moved = np.abs(score["b"] - score["a"])
    moved = moved if moved.ndim == 1 else moved.max(axis=1)
    changed = decided(score["a"]) != decided(score["b"])
    return {
        "seed": seed,
        "events": len(i),
        **{arm: metrics(found, a.label[i], a.weight[i]) for arm, found in score.items()},
        "moved": {
            **{name: float(np.quantile(moved, share)) for name, share in QUANTILES.items()},
            "largest": float(moved.max()),
        },
        "changed": int(changed.sum()),
    }


# -------------------------------------------------------------------------------------------------- the word for it


def judge(reduced: list[dict[str, Any]], settings: dict[str, Any], alpha: float = 0.05) -> dict[str, Any]:
    """What the summary holds of accuracy: the word, its reason and every number behind it.

    Parameters
    ----------
    reduced : list of `reduce`'s results, one for each unit that took values; a map's first one counts
    settings : the scenario's table [accuracy]: exposure, tolerance, metric; None or absent: the default
    alpha : 1 - level of a model's interval

    Returns
    -------
    dict, ready for JSON. Both kinds: kind, word, reason, reference ("a"), tolerance.
    A map: what `reduce` gave (shared, only_a, only_b and their shares of the weight, without_bar, weight_ratio,
    intensity_ratio, contributors, pull, histogram); exposure, counted (False: it is in multiples of the measured one),
    shift (the pull's quantiles at the exposure), missed_share, contributors_for_unit_pull (None: no exposure).
    A model: metric, level, seeds, events, difference {estimate, low, high, method} of the metric, B - A, and intervals
    of all metrics, seeds_needed (in all; None: settled, or above `MOST_SEEDS`), per_seed, moved (scores, the worst
    seed), changed (decisions) and changed_share.

    Raises ValueError for an empty list.
    """
    if not reduced:
        raise ValueError("expected values of at least one unit, found none")
    given = {key: value for key, value in settings.items() if value is not None}
    if reduced[0]["kind"] == "map":
        return _judge_map(reduced[0], given.get("exposure"), given.get("tolerance", MAP_TOLERANCE))
    seeds = {one["seed"]: one for found in reduced for one in found["seeds"]}
    return _judge_model(
        [seeds[seed] for seed in sorted(seeds)],
        given.get("metric", METRICS[0]),
        given.get("tolerance", MODEL_TOLERANCE),
        1 - alpha,
    )


def contributors_for_unit_pull(contributors: float, median: float) -> float:
    """The exposure, in contributors a voxel, at which the median shift is one error bar; infinite for a median of 0."""
    return contributors / median**2 if median > 0 else math.inf


def _judge_map(found: dict[str, Any], exposure: float | None, tolerance: float) -> dict[str, Any]:
    measured = found["contributors"]
    counted = measured is not None
    scale = measured if counted else 1.0  # without contributors an exposure is told in multiples of the measured one
    exposure = exposure if exposure is not None else scale
    missed = max(found["only_a_share"], found["only_b_share"])
    pull, shift, visible = found["pull"], None, None
    if pull is not None:
        factor = math.sqrt(exposure / scale) if scale > 0 else math.inf
        shift = {name: pull[name] * factor for name in QUANTILES}
        visible = contributors_for_unit_pull(scale, pull["median"])
    gone = f"{_percent(missed)} of the weight lies on voxels that one arm misses"
    at = f"at {_exposure(exposure)} " + ("contributors a voxel" if counted else "times the measured exposure")
    if missed > tolerance:
        word, why = "different", f"{gone}, more than {_percent(tolerance)}"
    elif shift is None:
        word, why = "undecided", "no voxel that both arms have carries an error bar"
    elif shift["median"] >= VISIBLE:
        word, why = "different", f"{at} half of the weight is shifted by {shift['median']:.3g} error bars or more"
    elif shift["p90"] < HIDDEN:
        word, why = "indistinguishable", f"{at} 90 % of the weight is shifted by at most {shift['p90']:.3g} error bars"
    else:
        word = "undecided"
        most = f"up to {shift['median']:.3g} error bars, 90 % by up to {shift['p90']:.3g}"
        why = f"{at} half of the weight is shifted by {most}"
    return {
        **found,
        "word": word,
        "reason": f"{why}; {_visible(visible, counted)}",
        "reference": "a",
        "exposure": exposure,
        "counted": counted,
        "tolerance": tolerance,
        "missed_share": missed,
        "shift": shift,
        "contributors_for_unit_pull": None if visible is None or math.isinf(visible) else visible,
    }


def _visible(exposure: float | None, counted: bool) -> str:
    if exposure is None:
        return "which exposure would show a shift is not known"
    if math.isinf(exposure):
        return "no exposure makes a difference visible: half of the weight agrees exactly"
    unit = "contributors a voxel" if counted else "times the measured exposure"
    return f"the shift becomes visible at {_exposure(exposure)} {unit}"


def _exposure(value: float) -> str:
    """Four digits; from ten thousand upwards three, thousands apart and no exponent."""
    return f"{value:.4g}" if value < 10_000 else f"{float(f'{value:.3g}'):,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _signed(value: float, width: float) -> str:
    """With sign and as many decimals as give an interval of that width two digits."""
    decimals = min(max(1 - math.floor(math.log10(width)), 1), 12) if width > 0 else 12
    text = f"{value:+.{decimals}f}".replace("-", "\N{MINUS SIGN}")
    return text if text.strip("+\N{MINUS SIGN}0.") else text[1:]


def paired_interval(values: list[float], level: float) -> dict[str, Any]:
    """Estimate and interval of the centre of paired differences, one a seed: {estimate, low, high, method}.

    Exact (signed ranks) from as many as the level needs, Student's t from two on, nothing from one.
    """
    n = len(values)
    if n >= stats.units_needed(level):
        low, high = map(float, stats.signed_rank_interval(values, level))
        return {"estimate": float(stats.hodges_lehmann(values)), "low": low, "high": high, "method": "signed-rank"}
    mean = float(np.mean(values))
    if n < 2:
        return {"estimate": mean, "low": None, "high": None, "method": None}
    half = float(_t(n - 1, level) * np.std(values, ddof=1) / math.sqrt(n))
    return {"estimate": mean, "low": mean - half, "high": mean + half, "method": "t"}


def _t(degrees, level: float):
    from scipy.special import stdtrit  # scipy.stats would cost 0.8 s at start

    return stdtrit(degrees, (1 + level) / 2)


def seeds_needed(values: list[float], tolerance: float, level: float) -> int | None:
    """How many seeds in all would settle it, were the differences to stay as they are; None above `MOST_SEEDS`.

    By Student's t: the least n whose half-width is below the distance of the mean from the nearer tolerance. From one
    seed no spread is known: as many as an exact interval needs.
    """
    n = len(values)
    if n < 2:
        return stats.units_needed(level)
    distance = abs(tolerance - abs(float(np.mean(values))))
    counts = np.arange(n + 1, MOST_SEEDS + 1)
    enough = _t(counts - 1, level) * np.std(values, ddof=1) / np.sqrt(counts) < distance
    return int(counts[np.argmax(enough)]) if enough.any() else None


def _judge_model(seeds: list[dict[str, Any]], metric: str, tolerance: float, level: float) -> dict[str, Any]:
    name = METRIC_WORDS[metric]
    differences = {
        one: [seed["b"][one] - seed["a"][one] for seed in seeds]
        for one in METRICS
        if all(seed[arm][one] is not None for seed in seeds for arm in "ab")
    }
    intervals = {one: paired_interval(values, level) for one, values in differences.items()}
    events = sum(seed["events"] for seed in seeds)
    found = {
        "kind": "model",
        "reference": "a",
        "metric": metric,
        "tolerance": tolerance,
        "level": level,
        "seeds": len(seeds),
        "difference": intervals.get(metric),
        "intervals": intervals,
        "seeds_needed": None,
        "per_seed": [
            {**seed, "difference": differences[metric][place] if metric in differences else None}
            for place, seed in enumerate(seeds)
        ],
        "moved": {key: max(seed["moved"][key] for seed in seeds) for key in (*QUANTILES, "largest")},
        "changed": sum(seed["changed"] for seed in seeds),
        "changed_share": sum(seed["changed"] for seed in seeds) / events,
        "events": events,
    }
    interval = found["difference"]
    if interval is None:
        return found | {"word": "undecided", "reason": f"some seed has no {name}: a class is missing among its events"}
    told = f"{name} of B minus A, paired over {len(seeds)} seed{'s' if len(seeds) > 1 else ''}: "
    if interval["low"] is None:
        told += f"{_signed(interval['estimate'], tolerance)}, and one seed does not show the spread between seeds"
    else:
        estimate, low, high = (
            _signed(interval[end], interval["high"] - interval["low"] or tolerance)
            for end in ("estimate", "low", "high")
        )
        how = "exact" if interval["method"] == "signed-rank" else "model-based: normal differences"
        told += f"{estimate}, between {low} and {high} ({_percent(level)}, {how})"
    bound = f"±{tolerance:.4g}"
    if interval["low"] is not None and (interval["low"] > tolerance or interval["high"] < -tolerance):
        better = (interval["estimate"] > 0) != (metric == "log_loss")
        return found | {
            "word": "different",
            "reason": f"{told}: all of it beyond {bound}, B is {'better' if better else 'worse'}",
        }
    if interval["low"] is not None and -tolerance < interval["low"] and interval["high"] < tolerance:
        return found | {"word": "indistinguishable", "reason": f"{told}: within {bound}"}
    needed = seeds_needed(differences[metric], tolerance, level)
    asked = f"{needed} in all" if needed is not None else f"over {MOST_SEEDS:,}"
    return found | {
        "word": "undecided",
        "seeds_needed": needed,
        "reason": f"{told}: not settled against {bound}; more seeds needed: {asked}",
    }
