"""Plots of a run: loss and metrics by epoch, ROC curves, the confusion table; SVG files, no display needed."""

from pathlib import Path

import numpy as np

from impl.gnn import metrics


def axes_of(title: str):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def save(figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    return path


def loss(epochs: list[dict], path) -> Path:
    """Training and held-out loss, and the held-out AUC, by epoch."""
    figure, axes = axes_of("Loss")
    number = [line["epoch"] for line in epochs]
    axes.plot(number, [line["train_loss"] for line in epochs], marker="o", label="training")
    axes.plot(number, [line["loss"] for line in epochs], marker="o", label="held out")
    axes.set_xlabel("epoch")
    axes.set_ylabel("weighted mean loss")
    right = axes.twinx()
    right.plot(number, [line["auc"] for line in epochs], color="0.5", linestyle=":", label="macro AUC")
    right.set_ylabel("held-out macro AUC")
    figure.legend(loc="outside lower center", ncols=3)
    return save(figure, Path(path))


def roc(scores, label, weight, task: str, classes, path) -> Path:
    """One-vs-rest ROC curve of each class that has both kinds of events."""
    figure, axes = axes_of("One against the rest")
    chance = metrics.probabilities(scores, task)
    for number, name in enumerate(classes):
        hot = label[:, number] == 1 if task == "multilabel" else label == number
        area = metrics.auc(chance[:, number], hot, weight)
        if area is None:
            continue
        false, hit = metrics.roc(chance[:, number], hot, weight)
        axes.plot(false, hit, label=f"{name}, AUC {area:.3f}")
    axes.plot([0, 1], [0, 1], color="0.7", linestyle=":")
    axes.set_xlabel("share of the rest")
    axes.set_ylabel("share of the class")
    axes.legend(loc="lower right")
    return save(figure, Path(path))


def confusion(scores, label, weight, classes, path) -> Path:
    """Shares of each true class by highest score."""
    figure, axes = axes_of("Highest score by true class")
    table = metrics.confusion(scores, label, weight)
    share = table / np.maximum(table.sum(1, keepdims=True), 1e-300)
    axes.imshow(share, vmin=0, vmax=1, cmap="Blues")
    for row, column in np.ndindex(share.shape):
        axes.text(column, row, f"{share[row, column]:.2f}", ha="center", va="center",
                  color="white" if share[row, column] > 0.6 else "black")  # fmt: skip
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("highest score")
    axes.set_ylabel("true class")
    return save(figure, Path(path))
