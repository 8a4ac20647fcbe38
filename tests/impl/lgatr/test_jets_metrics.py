"""Metrics of jets against plain loops, and intervals against what they promise over many samples."""

import math

import numpy as np
import pytest

pytestmark = pytest.mark.extras
pytest.importorskip("torch")

from impl.lgatr import metrics  # noqa: E402


def drawn(seed, signal=60, background=90, shift=1.5):
    """Normal scores with unit deviation, as logits; weights 1."""
    random = np.random.default_rng(seed)
    label = np.concatenate([np.ones(signal, np.int64), np.zeros(background, np.int64)])
    score = random.normal(np.where(label == 1, shift, 0.0))
    return np.stack([np.zeros_like(score), score - shift / 2], 1), label, np.ones(len(label))


def test_rejection_is_that_of_a_loop_over_thresholds():
    scores, label, _ = drawn(0)
    weight = np.random.default_rng(1).uniform(0.5, 2, len(label))
    value = metrics.margin(scores)
    for efficiency in (0.3, 0.5, 0.9):
        kept = max(
            cut for cut in value if weight[(label == 1) & (value >= cut)].sum() >= efficiency * weight[label == 1].sum()
        )
        share = weight[(label == 0) & (value >= kept)].sum() / weight[label == 0].sum()
        found = metrics.rejection(value, label, weight, efficiency)
        assert found == (pytest.approx(1 / share) if share else None)


def test_rejection_without_background_left_is_none():
    assert metrics.rejection(np.array([3.0, 2.0, 1.0, 0.0]), np.array([1, 1, 0, 0]), np.ones(4), 0.5) is None


def test_equal_scores_are_kept_or_rejected_together():
    assert metrics.rejection(np.zeros(4), np.array([1, 1, 0, 0]), np.ones(4), 0.3) == 1


def test_summary_holds_every_value_inside_its_interval():
    found = metrics.summary(*drawn(2))
    for name in ("accuracy", "auc", "rejection_50"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]
    assert found["method"] == "bootstrap percentiles, 2000 resamples within each class"
    assert found == metrics.summary(*drawn(2)), "the resamples are seeded"


def covered(level, samples=60):
    """How often the intervals of AUC and accuracy hold the true values of the distribution."""
    area = 0.5 * (1 + math.erf(1.5 / 2))  # two unit normals 1.5 apart: Phi(1.5 / sqrt 2)
    right = 0.5 * (1 + math.erf(0.75 / math.sqrt(2)))
    hits = np.zeros(2)
    for seed in range(samples):
        found = metrics.intervals(*drawn(100 + seed), level=level, resamples=120)
        hits += [found[name][0] <= truth <= found[name][1] for name, truth in (("auc", area), ("accuracy", right))]
    return hits / samples


def test_intervals_cover_as_often_as_they_say():
    """60 samples: 0.95 has a standard deviation of 0.028; percentiles of small samples cover a little less."""
    assert (covered(0.95) > 0.86).all()
    assert (covered(0.5) < 0.72).all(), "a broken twin: half intervals must not pass"


def test_one_class_has_no_intervals():
    scores, label, weight = drawn(0)
    found = metrics.summary(scores, np.ones_like(label), weight)
    assert found["auc"] == {"value": None, "low": None, "high": None}
    assert found["rejection_30"] == {"value": None, "low": None, "high": None}


def test_without_background_left_an_end_is_none():
    scores, label, weight = drawn(0, shift=6.0)
    assert metrics.intervals(scores, label, weight)["rejection_30"][1] is None
