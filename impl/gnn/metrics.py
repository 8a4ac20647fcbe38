"""How good scores are: loss, accuracy and area under the ROC curve, all weighted; pure functions of arrays.

Scores are logits float (n, C); labels int64 (n,) (multiclass) or 0/1 (n, C) (multilabel); weights (n,).
"""

import numpy as np


def probabilities(scores: np.ndarray, task: str) -> np.ndarray:
    """Softmax over classes (multiclass) or the logistic function of each (multilabel); float64 (n, C)."""
    scores = np.asarray(scores, np.float64)
    if task == "multilabel":
        return np.exp(-np.logaddexp(0, -scores))
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def auc(score: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> float | None:
    """Probability that a positive scores above a negative, ties counting half; None where one kind has no weight.

    Source: Hanley & McNeil, Radiology 143 (1982) 29, with each pair weighted by the product of its weights.
    """
    positive = np.asarray(positive, bool)
    weight = np.asarray(weight, np.float64)
    total = weight[positive].sum() * weight[~positive].sum()
    if not positive.any() or positive.all() or total == 0:
        return None
    values, place = np.unique(score, return_inverse=True)
    signal = np.bincount(place[positive], weight[positive], minlength=len(values))
    background = np.bincount(place[~positive], weight[~positive], minlength=len(values))
    below = background.cumsum() - background
    return float((signal * (below + 0.5 * background)).sum() / total)


def aucs(scores: np.ndarray, label: np.ndarray, weight: np.ndarray, task: str) -> list[float | None]:
    """One-vs-rest AUC of every class or label."""
    chance = probabilities(scores, task)
    hot = label == 1 if task == "multilabel" else label[:, None] == np.arange(chance.shape[1])
    return [auc(chance[:, number], hot[:, number], weight) for number in range(chance.shape[1])]


def accuracy(scores: np.ndarray, label: np.ndarray, weight: np.ndarray, task: str) -> float | None:
    """Weighted share of right classes (multiclass), or of right labels (multilabel); None without weight."""
    if task == "multilabel":
        right = ((np.asarray(scores) > 0) == (label == 1)).mean(1)
    else:
        right = np.argmax(scores, 1) == label
    total = np.sum(weight, dtype=np.float64)
    return float(np.sum(right * np.asarray(weight, np.float64)) / total) if total else None


def loss(scores: np.ndarray, label: np.ndarray, weight: np.ndarray, task: str) -> float | None:
    """Weighted mean of the cross entropy, or of the mean binary cross entropy; None without weight."""
    scores = np.asarray(scores, np.float64)
    if task == "multilabel":
        each = (np.logaddexp(0, scores) - label * scores).mean(1)
    else:
        top = scores.max(1)
        each = top + np.log(np.exp(scores - top[:, None]).sum(1)) - scores[np.arange(len(scores)), label]
    total = np.sum(weight, dtype=np.float64)
    return float(np.sum(each * np.asarray(weight, np.float64)) / total) if total else None


def summary(scores: np.ndarray, label: np.ndarray, weight: np.ndarray, task: str, classes=()) -> dict:
    """Everything at once: events, loss, accuracy, auc (macro: mean over the classes that have one), auc_by_class."""
    if len(scores) == 0:
        return {"events": 0, "loss": None, "accuracy": None, "auc": None, "auc_by_class": {}}
    each = aucs(scores, label, weight, task)
    names = [str(name) for name in classes] or [str(number) for number in range(len(each))]
    known = [value for value in each if value is not None]
    return {
        "events": len(scores),
        "loss": loss(scores, label, weight, task),
        "accuracy": accuracy(scores, label, weight, task),
        "auc": float(np.mean(known)) if known else None,
        "auc_by_class": dict(zip(names, each)),
    }


def confusion(scores: np.ndarray, label: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weight of events by true class (rows) and highest score (columns); float64 (C, C)."""
    table = np.zeros((scores.shape[1], scores.shape[1]))
    np.add.at(table, (label, np.argmax(scores, 1)), weight)
    return table


def roc(score: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ROC curve: (share of negatives, share of positives) above a falling threshold, from (0, 0) to (1, 1)."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)  # equal scores are one step
    hit = np.where(positive, weight, 0.0)[order].cumsum()[last]
    false = np.where(positive, 0.0, weight)[order].cumsum()[last]
    return np.append(0, false / false[-1]), np.append(0, hit / hit[-1])
