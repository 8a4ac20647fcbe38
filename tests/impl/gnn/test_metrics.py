"""Metrics against scikit-learn and by hand."""

import numpy as np
import pytest

pytestmark = pytest.mark.extras
sklearn_metrics = pytest.importorskip("sklearn.metrics")

from impl.gnn import metrics  # noqa: E402


def scored(seed=0, n=400, classes=3):
    random = np.random.default_rng(seed)
    label = random.integers(0, classes, n)
    scores = random.normal(0, 1, (n, classes)) + 1.5 * (label[:, None] == np.arange(classes))
    return np.round(scores, 1).astype(np.float32), label, random.uniform(0.1, 2, n)  # rounding makes ties


def test_auc_accuracy_and_loss_equal_scikit_learn():
    scores, label, weight = scored()
    chance = metrics.probabilities(scores, "multiclass")
    found = metrics.summary(scores, label, weight, "multiclass")
    one_vs_rest = [sklearn_metrics.roc_auc_score(label == k, chance[:, k], sample_weight=weight) for k in range(3)]
    assert list(found["auc_by_class"].values()) == pytest.approx(one_vs_rest, abs=1e-12)
    assert found["auc"] == pytest.approx(np.mean(one_vs_rest))
    assert found["loss"] == pytest.approx(sklearn_metrics.log_loss(label, chance, sample_weight=weight))
    right = sklearn_metrics.accuracy_score(label, scores.argmax(1), sample_weight=weight)
    assert found["accuracy"] == pytest.approx(right)


def test_multilabel_metrics_equal_scikit_learn():
    random = np.random.default_rng(1)
    label = random.integers(0, 2, (300, 4)).astype(np.uint8)
    scores = (random.normal(0, 1, label.shape) + label).astype(np.float32)
    weight = random.uniform(0.5, 1.5, 300)
    found = metrics.summary(scores, label, weight, "multilabel")
    expected = sklearn_metrics.roc_auc_score(label, scores, average=None, sample_weight=weight)
    assert list(found["auc_by_class"].values()) == pytest.approx(expected.tolist(), abs=1e-12)
    assert found["accuracy"] == pytest.approx(np.average(((scores > 0) == label).mean(1), weights=weight))


def test_ties_count_half():
    assert metrics.auc(np.array([1, 1, 1, 1.0]), np.array([1, 0, 1, 0]), np.ones(4)) == 0.5
    assert metrics.auc(np.array([2, 1, 1, 0.0]), np.array([1, 1, 0, 0]), np.ones(4)) == pytest.approx(3.5 / 4)


def test_a_class_that_is_absent_has_no_auc():
    scores, label, weight = scored(classes=3)
    label = np.where(label == 2, 0, label)
    found = metrics.summary(scores, label, weight, "multiclass", ["a", "b", "c"])
    assert found["auc_by_class"]["c"] is None
    assert found["auc"] == pytest.approx((found["auc_by_class"]["a"] + found["auc_by_class"]["b"]) / 2)


def test_nothing_has_no_metrics():
    found = metrics.summary(np.empty((0, 3)), np.empty(0, int), np.empty(0), "multiclass")
    assert (found["events"], found["loss"], found["accuracy"], found["auc"]) == (0, None, None, None)
    assert metrics.accuracy(np.ones((2, 2)), np.zeros(2, int), np.zeros(2), "multiclass") is None


def test_the_roc_curve_encloses_the_auc():
    scores, label, weight = scored()
    false, hit = metrics.roc(scores[:, 0], label == 0, weight)
    assert (false[0], hit[0], false[-1], hit[-1]) == (0, 0, pytest.approx(1), pytest.approx(1))
    assert np.trapezoid(hit, false) == pytest.approx(metrics.auc(scores[:, 0], label == 0, weight))


def test_confusion_counts_weight_by_true_class():
    scores = np.array([[2, 1], [0, 1], [3, 0.0]])
    table = metrics.confusion(scores, np.array([0, 0, 1]), np.array([1.0, 2.0, 4.0]))
    assert table.tolist() == [[1, 2], [4, 0]]
