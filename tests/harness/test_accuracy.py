"""Values of two arms: closed forms, slow references, every word and every sentence; nothing is launched here."""

import itertools
import math

import numpy as np
import pytest

from harness import accuracy, stats
from harness.errors import ConfigurationError


def a_map(value=10.0, variance=4.0, weight=1.0, key=None, contributors=25.0, n=100):
    """A map of n keys; numbers stand for all of them."""
    key = np.arange(n) if key is None else np.asarray(key)
    arrays = {"key": key}
    for name, given in (("value", value), ("variance", variance), ("weight", weight)):
        arrays[name] = np.broadcast_to(np.asarray(given, float), key.shape).copy()
    if contributors is not None:
        arrays["contributors"] = np.broadcast_to(np.asarray(contributors, float), key.shape).copy()
    return accuracy.read(arrays, "a map")


def random_map(seed, n=300, of=400):
    random = np.random.default_rng(seed)
    return a_map(
        key=random.permutation(of)[:n],
        value=random.normal(10, 3, n),
        variance=random.exponential(2, n) * (random.random(n) > 0.1),
        weight=random.exponential(1, n) * (random.random(n) > 0.05),
        contributors=random.integers(1, 50, n),
    )


def a_model(score, label, seed=0, weight=1.0, key=None):
    score, label = np.asarray(score, float), np.asarray(label)
    key = np.arange(len(label)) if key is None else np.asarray(key)
    weight = np.broadcast_to(np.asarray(weight, float), label.shape)
    return accuracy.read({"score": score, "label": label, "seed": seed, "weight": weight, "key": key}, "a model")


def judged(a, b, **settings):
    return accuracy.judge([accuracy.reduce(a, b)], settings)


# ------------------------------------------------------------------------------------------------ quantiles, AUC


def slow_quantile(values, weight, share):
    """The first value, ascending, at which the running weight reaches the share; in plain loops."""
    pairs = sorted(zip(values, weight))
    total, running = math.fsum(weight), 0.0
    for value, one in pairs:
        running += one
        if running >= share * total:
            return value
    return pairs[-1][0]


@pytest.mark.parametrize("seed", range(20))
def test_weighted_quantiles_are_those_of_a_slow_reference(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 40))
    values = random.integers(0, 10, n) / 4  # ties
    weight = random.integers(1, 9, n) * 0.5  # sums are exact
    for share in (0.01, 0.25, 0.5, 0.9, 0.99, 1.0):
        assert accuracy.weighted_quantile(values, weight, share) == slow_quantile(values, weight, share)


def test_a_quantile_needs_a_value():
    with pytest.raises(ValueError, match="expected at least one value, found none"):
        accuracy.weighted_quantile([], [], 0.5)


def slow_auc(score, positive, weight):
    """The weighted share of pairs in order, ties half; every pair is looked at."""
    good = total = 0.0
    for i, j in itertools.product(range(len(score)), repeat=2):
        if positive[i] and not positive[j]:
            pair = weight[i] * weight[j]
            total += pair
            good += pair * ((score[i] > score[j]) + 0.5 * (score[i] == score[j]))
    return good / total if total else None


@pytest.mark.parametrize("seed", range(10))
def test_auc_is_the_share_of_pairs_in_order_with_ties_half(seed):
    random = np.random.default_rng(seed)
    score, positive = random.integers(0, 6, 40) * 1.0, random.random(40) < 0.4
    weight = random.exponential(1, 40) * (random.random(40) > 0.1)
    assert accuracy.auc(score, positive, weight) == pytest.approx(slow_auc(score, positive, weight), rel=1e-12)


def test_auc_of_one_class_alone_does_not_exist():
    assert accuracy.auc([1.0, 2.0], [True, True], [1.0, 1.0]) is None
    assert accuracy.auc([1.0, 2.0], [True, False], [1.0, 0.0]) is None


@pytest.mark.extras
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_metrics_are_those_of_sklearn(classes):
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(classes)
    score, label = random.normal(0, 2, (200, classes)), random.integers(0, classes, 200)
    score[np.arange(200), label] += 1
    weight = random.exponential(1, 200)
    chance = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
    given, more = (chance[:, 1], {}) if classes == 2 else (chance, {"multi_class": "ovr", "average": "macro"})
    if classes > 2:
        by_class = [sklearn.roc_auc_score(label == c, chance[:, c], sample_weight=weight) for c in range(classes)]
        area = np.mean(by_class)
        even = accuracy.metrics(score, label, np.ones(200))["auc"]
        assert even == pytest.approx(sklearn.roc_auc_score(label, given, **more), rel=1e-9)
    else:
        area = sklearn.roc_auc_score(label, given, sample_weight=weight)
    right = sklearn.accuracy_score(label, score.argmax(axis=1), sample_weight=weight)
    loss = sklearn.log_loss(label, chance, sample_weight=weight)
    want = {"auc": area, "accuracy": right, "log_loss": loss}
    assert accuracy.metrics(score, label, weight) == pytest.approx(want, rel=1e-9)


@pytest.mark.extras
def test_auc_with_ties_is_that_of_sklearn():
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    score, positive, weight = random.integers(0, 5, 300), random.random(300) < 0.3, random.exponential(1, 300)
    want = sklearn.roc_auc_score(positive, score, sample_weight=weight)
    assert accuracy.auc(score, positive, weight) == pytest.approx(want, rel=1e-12)


def test_log_odds_and_two_logits_are_the_same_model():
    random = np.random.default_rng(3)
    odds, label, weight = np.round(random.normal(0, 2, 50), 1), random.integers(0, 2, 50), random.exponential(1, 50)
    two = np.stack([1 - odds / 2, 1 + odds / 2], axis=1)
    one, other = accuracy.metrics(odds, label, weight), accuracy.metrics(two, label, weight)
    assert one == pytest.approx(other, rel=1e-12)


# ----------------------------------------------------------------------------------------------------- maps


def test_a_known_shift_gives_known_pulls_and_the_exposure_that_shows_it():
    signs = (-1.0) ** np.arange(100)
    found = judged(a_map(), a_map(value=10 + 0.4 * 2 * signs))
    assert found["pull"] == pytest.approx(
        {"signed_mean": 0.0, "median": 0.4, "p90": 0.4, "p99": 0.4, "rms": 0.4, "largest": 0.4}, abs=1e-12
    )
    assert found["contributors"] == 25.0
    assert found["contributors_for_unit_pull"] == pytest.approx(25 / 0.4**2)
    assert found["exposure"] == 25.0
    assert (found["shared"], found["only_a"], found["only_b"]) == (100, 0, 0)
    assert (found["weight_ratio"], found["intensity_ratio"]) == (1.0, pytest.approx(1.0))
    shares = found["histogram"]["shares"]
    place = int(np.argmax(shares))
    assert (sum(shares), shares[place], found["histogram"]["zero"]) == (1.0, 1.0, 0.0)
    assert accuracy.EDGES[place] <= 0.4 < accuracy.EDGES[place + 1]


@pytest.mark.parametrize(
    ("exposure", "word"),
    [
        (None, "indistinguishable"),  # 0.4 error bars at the measured 25
        (39.0, "indistinguishable"),  # 0.49960
        (39.1, "undecided"),  # 0.50024: 90 % are no longer below one half
        (156.2, "undecided"),  # 0.99986
        (156.3, "different"),  # 1.00018
    ],
)
def test_the_word_follows_the_shift_at_the_exposure(exposure, word):
    found = judged(a_map(), a_map(value=10.8), exposure=exposure)
    assert found["word"] == word
    assert found["shift"]["median"] == pytest.approx(0.4 * math.sqrt((exposure or 25) / 25))
    assert found["reason"].endswith("the shift becomes visible at 156.2 contributors a voxel")


def test_half_of_the_weight_decides_not_half_of_the_voxels():
    value, weight = np.full(100, 10.0), np.ones(100)
    value[:10], weight[:10] = 14.0, 100.0  # a tenth of the voxels, 92 % of the weight, two error bars
    assert judged(a_map(weight=weight), a_map(value=value, weight=weight))["word"] == "different"


def test_the_error_bar_is_that_of_the_reference():
    found = accuracy.reduce(a_map(variance=4.0), a_map(value=12.0, variance=400.0))
    assert found["pull"]["median"] == pytest.approx(1.0)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_missed_voxels_have_no_pull_and_are_counted_by_weight(lost):
    weight = np.ones(100)
    weight[:2] = 49.0  # each of the first two is a quarter of 196
    whole = a_map(weight=weight)
    part = a_map(key=np.arange(lost, 100), weight=weight[lost:])
    for a, b, side in ((whole, part, "only_a"), (part, whole, "only_b")):
        found = judged(a, b)
        assert (found["shared"], found[side], found[f"{side}_share"]) == (100 - lost, lost, pytest.approx(lost / 4))
        assert found["pull"]["largest"] == 0.0
        assert found["word"] == ("different" if lost else "indistinguishable")
        assert judged(a, b, tolerance=0.51)["word"] == "indistinguishable"


@pytest.mark.parametrize("seed", range(5))
def test_a_whole_reduction_is_that_of_a_slow_reference(seed):
    a, b = random_map(seed), random_map(seed + 100)
    ours = {k: (v, s, w, c) for k, v, s, w, c in zip(a.key, a.value, a.variance, a.weight, a.contributors)}
    theirs = {k: (v, w) for k, v, w in zip(b.key, b.value, b.weight)}
    both = sorted(ours.keys() & theirs.keys())
    judged_keys = [k for k in both if ours[k][1] > 0]
    pulls = [(theirs[k][0] - ours[k][0]) / math.sqrt(ours[k][1]) for k in judged_keys]
    weight = [ours[k][2] for k in judged_keys]
    total = math.fsum(weight)
    found = accuracy.reduce(a, b)
    assert found["shared"] == len(both)
    assert found["only_a"], found["only_b"] == (len(ours) - len(both), len(theirs) - len(both))
    gone = math.fsum(w for k, (_, _, w, _) in ours.items() if k not in theirs)
    assert found["only_a_share"] == pytest.approx(gone / math.fsum(w for _, _, w, _ in ours.values()))
    gone = math.fsum(w for k, (_, w) in theirs.items() if k not in ours)
    assert found["only_b_share"] == pytest.approx(gone / math.fsum(w for _, w in theirs.values()))
    assert found["without_bar"] == len(both) - len(judged_keys) > 0
    no_bar = math.fsum(ours[k][2] for k in both if k not in judged_keys)
    assert found["without_bar_share"] == pytest.approx(no_bar / math.fsum(ours[k][2] for k in both))
    want = {
        "signed_mean": math.fsum(p * w for p, w in zip(pulls, weight)) / total,
        "rms": math.sqrt(math.fsum(p * p * w for p, w in zip(pulls, weight)) / total),
        "largest": max(map(abs, pulls)),
        **{name: slow_quantile([abs(p) for p in pulls], weight, q) for name, q in accuracy.QUANTILES.items()},
    }
    assert found["pull"] == pytest.approx(want)
    assert found["contributors"] == pytest.approx(math.fsum(ours[k][3] * ours[k][2] for k in judged_keys) / total)
    sums = [math.fsum(v * w for v, w in pairs) for pairs in ([(x[0], x[2]) for x in ours.values()], theirs.values())]
    assert found["intensity_ratio"] == pytest.approx(sums[1] / sums[0])


def test_equal_maps_differ_at_no_exposure():
    found = judged(a_map(), a_map(), exposure=1e9)
    assert (found["word"], found["contributors_for_unit_pull"]) == ("indistinguishable", None)
    assert found["reason"] == (
        "at 1,000,000,000 contributors a voxel 90 % of the weight is shifted by at most 0 error bars; "
        "no exposure makes a difference visible: half of the weight agrees exactly"
    )
    assert found["histogram"]["zero"] == 1.0


def test_without_contributors_the_exposure_is_told_in_multiples():
    found = judged(a_map(contributors=None), a_map(value=10.8), exposure=4.0)
    assert (found["word"], found["counted"], found["contributors_for_unit_pull"]) == (
        "undecided",
        False,
        pytest.approx(6.25),
    )
    assert found["reason"].startswith("at 4 times the measured exposure half of the weight is shifted by up to 0.8")


def test_maps_without_error_bars_are_undecided_and_without_common_voxels_different():
    assert judged(a_map(variance=0.0), a_map(value=99.0))["reason"] == (
        "no voxel that both arms have carries an error bar; which exposure would show a shift is not known"
    )
    assert judged(a_map(), a_map(key=np.arange(100, 200)))["word"] == "different"


def test_entries_without_weight_are_no_entries():
    weight = np.ones(100)
    weight[3] = 0
    value = np.full(100, 10.0)
    value[3] = np.nan
    found = accuracy.reduce(a_map(), a_map(value=value, weight=weight))
    assert (found["shared"], found["only_a"]) == (99, 1)


def test_keys_beyond_64_bit_signed_are_told_apart():
    big = np.array([2**63 + 1, 2**63 + 2, 5], np.uint64)
    found = accuracy.reduce(a_map(key=big), a_map(key=np.array([2**63 + 2, 5, 7], np.uint64)))
    assert (found["shared"], found["only_a"], found["only_b"]) == (2, 1, 1)
    found = accuracy.reduce(a_map(key=big), a_map(key=np.array([-1, 5])))
    assert (found["shared"], found["only_a"], found["only_b"]) == (1, 2, 1)


# --------------------------------------------------------------------------------------------------- models


def seeds(differences, spread=0.3, metric="accuracy", n=1000):
    """Reduced seeds whose metric wanders by `spread` from seed to seed, B being off A by the differences."""
    random = np.random.default_rng(1)
    found = []
    for seed, difference in enumerate(differences):
        level = 0.5 + spread * random.random()
        both = {arm: dict.fromkeys(accuracy.METRICS, 0.5) for arm in "ab"}
        both["a"][metric], both["b"][metric] = level, level + difference
        moved = {"median": 0.0, "p90": 0.0, "p99": 0.0, "largest": 0.0}
        found.append({"seed": seed, "events": n, **both, "moved": moved, "changed": 0})
    return [{"kind": "model", "seeds": [one]} for one in found]


def word_of(differences, tolerance=0.005, metric="accuracy", **more):
    return accuracy.judge(seeds(differences, metric=metric, **more), {"metric": metric, "tolerance": tolerance})


def test_metrics_and_moves_of_a_small_model_are_known():
    a = a_model([2.0, -1.0, 1.0, -3.0], [1, 0, 0, 0])
    b = a_model([2.0, 0.5, 1.0, -3.0], [1, 0, 0, 0])
    found = accuracy.reduce(a, b)["seeds"][0]
    assert (found["seed"], found["events"], found["changed"]) == (0, 4, 1)
    assert (found["a"]["accuracy"], found["b"]["accuracy"]) == (0.75, 0.5)
    assert (found["a"]["auc"], found["b"]["auc"]) == (1.0, 1.0)
    assert found["moved"] == pytest.approx({"median": 0.0, "p90": 1.05, "p99": 1.455, "largest": 1.5})


def test_events_are_paired_by_key_whatever_their_order():
    random = np.random.default_rng(5)
    score, label, weight = random.normal(0, 1, (60, 3)), random.integers(0, 3, 60), random.exponential(1, 60)
    turn = random.permutation(60)
    a = a_model(score, label, weight=weight)
    b = a_model(score[turn] + 0.25, label[turn], weight=weight[turn], key=turn)
    found = accuracy.reduce(a, b)["seeds"][0]
    assert found["changed"] == 0
    assert found["moved"] == pytest.approx(dict.fromkeys(found["moved"], 0.25))
    assert found["a"] == pytest.approx(found["b"])


def test_several_seeds_lie_in_one_file_or_in_several():
    random = np.random.default_rng(7)
    label, key = random.integers(0, 2, 50), np.arange(50)
    scores = [(random.normal(0, 1, 50), random.normal(0, 1, 50)) for _ in range(3)]
    apart = [accuracy.reduce(a_model(x, label, seed), a_model(y, label, seed)) for seed, (x, y) in enumerate(scores)]
    together = accuracy.reduce(
        *(
            a_model(
                np.concatenate([pair[i] for pair in scores]),
                np.tile(label, 3),
                np.repeat([0, 1, 2], 50),
                key=np.tile(key, 3),
            )
            for i in range(2)
        )
    )
    assert accuracy.judge(apart, {}) == accuracy.judge([together], {})


def test_a_loss_at_every_seed_is_seen_though_seeds_differ_more():
    found = word_of([-0.010, -0.011, -0.012, -0.010, -0.011, -0.012])
    assert (found["word"], found["difference"]["method"]) == ("different", "signed-rank")
    assert found["difference"] == pytest.approx(
        {"estimate": -0.011, "low": -0.012, "high": -0.010, "method": "signed-rank"}
    )
    assert found["reason"] == (
        "accuracy of B minus A, paired over 6 seeds: \N{MINUS SIGN}0.0110, between \N{MINUS SIGN}0.0120 and "
        "\N{MINUS SIGN}0.0100 (95 %, exact): all of it beyond ±0.005, B is worse"
    )


def test_a_lower_loss_is_better():
    assert word_of([-0.02] * 6, metric="log_loss")["reason"].endswith("B is better")
    assert word_of([0.02] * 6, metric="auc")["reason"].endswith("B is better")


def test_differences_within_the_tolerance_are_indistinguishable():
    found = word_of([0.001, -0.001, 0.002, 0.0, -0.002, 0.001])
    assert (found["word"], found["seeds_needed"]) == ("indistinguishable", None)
    assert found["reason"].endswith("(95 %, exact): within ±0.005")


def test_differences_are_told_with_the_digits_that_their_interval_has():
    found = word_of([0.00012, -0.00011, 0.00021, -0.00002, -0.00019, 0.00001])
    assert "6 seeds: 0.00000, between \N{MINUS SIGN}0.00019 and +0.00021 (95 %" in found["reason"]
    assert "6 seeds: +0.0200, between +0.0200 and +0.0200 (95 %" in word_of([0.02] * 6)["reason"]


def test_one_seed_decides_nothing_and_asks_for_six():
    found = word_of([-0.3])
    assert (found["word"], found["seeds_needed"]) == ("undecided", 6)
    assert found["reason"] == (
        "accuracy of B minus A, paired over 1 seed: \N{MINUS SIGN}0.3000, and one seed does not show the spread "
        "between seeds: not settled against ±0.005; more seeds needed: 6 in all"
    )


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_few_seeds_have_students_interval_and_say_so(n):
    import scipy.stats

    values = list(np.random.default_rng(n).normal(0.001, 0.002, n))
    found = accuracy.paired_interval(values, 0.95)
    want = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((want.low, want.high), rel=1e-9)
    assert found["method"] == "t"
    assert "model-based: normal differences" in word_of(values)["reason"]


def test_six_seeds_have_the_exact_interval():
    values = list(np.random.default_rng(6).normal(0, 1, 9))
    low, high = stats.signed_rank_interval(values, 0.95)
    assert accuracy.paired_interval(values, 0.95) == {
        "estimate": stats.hodges_lehmann(values),
        "low": low,
        "high": high,
        "method": "signed-rank",
    }


@pytest.mark.parametrize("mean", [0.0, 0.003, 0.008])
def test_so_many_seeds_are_asked_for_as_would_settle_it(mean):
    values = mean + 0.01 * np.array([-1.0, 1.0, -1.0, 1.0])
    found = accuracy.seeds_needed(list(values), 0.005, 0.95)
    import scipy.stats

    sd = np.std(values, ddof=1)
    half = [scipy.stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n) for n in (found - 1, found)]
    assert half[1] < abs(0.005 - mean) <= half[0]


def test_more_than_ten_thousand_seeds_are_not_counted():
    found = word_of([0.005 + 0.1, 0.005 - 0.1, 0.005])
    assert found["seeds_needed"] is None
    assert found["reason"].endswith("more seeds needed: over 10,000")


@pytest.mark.parametrize("n", [3, 8])
def test_equal_models_are_called_different_in_at_most_one_of_twenty(n):
    random = np.random.default_rng(n)
    calls = [accuracy.paired_interval(list(row), 0.95) for row in random.normal(0, 1, (2000, n))]
    outside = sum(found["low"] > 0 or found["high"] < 0 for found in calls)
    assert outside / 2000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    assert outside > 10  # and not because it never is


def test_a_class_that_is_missing_leaves_the_auc_undecided():
    one = a_model([1.0, 2.0], [1, 1])
    found = judged(one, one)
    assert (found["word"], found["reason"]) == (
        "undecided",
        "some seed has no AUC: a class is missing among its events",
    )
    assert judged(one, one, metric="accuracy")["difference"]["estimate"] == 0.0


def test_nothing_to_judge_is_refused():
    with pytest.raises(ValueError, match="expected values of at least one unit, found none"):
        accuracy.judge([], {})


# ------------------------------------------------------------------------------------------------- sentences

MAP = {
    "key": np.arange(3),
    "value": np.ones(3),
    "variance": np.ones(3),
    "weight": np.ones(3),
    "contributors": np.ones(3),
}
MODEL = {
    "score": np.zeros((3, 2)),
    "label": np.array([0, 1, 0]),
    "weight": np.ones(3),
    "key": np.arange(3),
    "seed": np.int64(4),
}
START = "arm 'x', values: expected "


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"key": MAP["key"]}, "'value' (a map) or 'score' (a model), found 'key'; see harness/protocol.py"),
        ({}, "'value' (a map) or 'score' (a model), found no array; see harness/protocol.py"),
        (MAP | MODEL, "'value' (a map) or 'score' (a model), found both; write one file of one kind"),
        (
            {name: MAP[name] for name in ("key", "value", "variance")},
            "the arrays key, value, variance, weight, found no 'weight'; write it beside the others",
        ),
        (
            {name: MODEL[name] for name in ("score", "label", "weight", "key")},
            "the arrays score, label, weight, key, seed, found no 'seed'; write it beside the others",
        ),
        (
            MAP | {"value": np.ones(2)},
            "arrays of one length, found key (3,), value (2,), variance (3,), weight (3,), contributors (3,); "
            "one entry for each key",
        ),
        (MAP | {"value": np.ones((3, 2))}, "'value' with one axis, found shape (3, 2)"),
        (MAP | {"key": np.ones(3)}, "whole numbers in 'key', found type float64"),
        (MAP | {"value": np.array(["a", "b", "c"])}, "numbers in 'value', found type <U1"),
        (MAP | {"key": np.array([5, 7, 5])}, "each key once, found key 5 2 times; add up what belongs together"),
        (MAP | {"value": np.array([1, np.nan, np.inf])}, "finite numbers in 'value', found nan at key 1 and 1 more"),
        (
            MAP | {"variance": np.array([1, -2.0, 1])},
            "finite numbers of at least 0 in 'variance', found -2 at key 1",
        ),
        (
            MAP | {"contributors": np.array([1, 1, 0])},
            "finite numbers of at least 1 in 'contributors', found 0 at key 2",
        ),
        (MAP | {"weight": np.array([1, -2.0, 1])}, "finite numbers of at least 0 in 'weight', found -2 at key 1"),
        (MAP | {"weight": np.zeros(3)}, "an entry with weight above 0, found none among 3"),
        (MODEL | {"score": np.zeros((3, 1))}, "'score' (n,) or (n, two classes or more), found shape (3, 1)"),
        (MODEL | {"score": np.full((3, 2), np.nan)}, "finite numbers in 'score', found nan at key 0 and 2 more"),
        (MODEL | {"label": np.array([0, 2, 0])}, "labels from 0 to 1, found 2; one number a class"),
        (MODEL | {"label": np.array([0.0, 1, 0])}, "whole numbers in 'label', found type float64"),
        (
            MODEL | {"key": np.array([1, 1, 2])},
            "each key once for seed 4, found key 1 2 times; add up what belongs together",
        ),
        (MODEL | {"weight": np.zeros(3)}, "weight above 0 for seed 4, found none"),
        ({name: array[:0] if array.ndim else array for name, array in MODEL.items()}, "at least one event, found none"),
    ],
)
def test_a_bad_file_gets_one_sentence(arrays, told):
    with pytest.raises(ConfigurationError) as error:
        accuracy.read(arrays, "arm 'x', values")
    assert str(error.value) == START + told


@pytest.mark.parametrize(
    ("b", "told"),
    [
        (MAP, "two of one kind, found a model and a map"),
        (
            MODEL | {"score": np.zeros((3, 4))},
            "scores of one shape, found (3, 2) and (3, 4); the same classes in both",
        ),
        (MODEL | {"seed": 5}, "the same seeds, found [4] and [5]; the arms are paired by their seeds"),
        (
            MODEL | {"key": np.array([0, 1, 9])},
            "the same keys for seed 4, found 1 that only 'old' has and 1 that only 'new' has; "
            "hold out the same events in both",
        ),
        (
            MODEL | {"label": np.array([0, 1, 1])},
            "the same 'label' of an event, found 1 that differ for seed 4 (key 2); "
            "both arms must be asked the same question",
        ),
        (
            MODEL | {"weight": np.array([1, 2.0, 3.0])},
            "the same 'weight' of an event, found 2 that differ for seed 4 (key 1); "
            "both arms must be asked the same question",
        ),
    ],
)
def test_two_arms_that_do_not_belong_together_get_one_sentence(b, told):
    with pytest.raises(ConfigurationError) as error:
        accuracy.reduce(accuracy.read(MODEL, ""), accuracy.read(b, ""), ("old", "new"))
    assert str(error.value) == f"arms 'old' and 'new', values: expected {told}"


@pytest.mark.parametrize(
    ("content", "found"), [(None, "no file"), (b"", "something else"), (b"PK\x03\x04", "something else")]
)
def test_a_file_that_is_no_npz_gets_one_sentence(tmp_path, content, found):
    path = tmp_path / "x.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as error:
        accuracy.load(path, "arm 'x', values")
    assert str(error.value) == START + f"an .npz of plain arrays, found {found}; write it with numpy.savez(path, …)"


def test_a_pickle_is_not_opened(tmp_path):
    np.savez(tmp_path / "x.npz", value=np.array([print], dtype=object))
    with pytest.raises(ConfigurationError, match=r"expected an \.npz of plain arrays, found something else"):
        accuracy.load(tmp_path / "x.npz", "arm 'x', values")
    np.save(tmp_path / "y.npy", np.ones(3))
    with pytest.raises(ConfigurationError, match=r"expected an \.npz of plain arrays, found something else"):
        accuracy.load(tmp_path / "y.npy", "arm 'x', values")


def test_a_digest_is_that_of_the_content(tmp_path):
    np.savez(tmp_path / "plain.npz", **MAP)
    np.savez_compressed(tmp_path / "packed.npz", **dict(reversed(MAP.items())))
    digests = {accuracy.digest(accuracy.load(tmp_path / f"{name}.npz", "")[1]) for name in ("plain", "packed")}
    assert digests == {accuracy.digest(MAP)}
    assert accuracy.digest(MAP | {"value": MAP["value"].astype(np.float32)}) not in digests
