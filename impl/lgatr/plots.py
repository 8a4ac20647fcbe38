"""Plots of a tagger: loss by epoch, rejection against efficiency, score distributions; SVG, no display needed."""

from pathlib import Path

import numpy as np

from impl.gnn.metrics import roc as curve
from impl.gnn.plots import axes_of, loss, save
from impl.lgatr.jets import CLASSES
from impl.lgatr.metrics import EFFICIENCIES, margin

__all__ = ["loss", "roc", "scores"]


def roc(scored: dict, label, weight, path) -> Path:
    """Background rejection by signal efficiency, a line for each of {name: scores (n, 2)}."""
    figure, axes = axes_of("Background rejection")
    for name, scores in scored.items():
        false, hit = curve(margin(scores), np.asarray(label) == 1, weight)
        shown = false > 0
        axes.plot(hit[shown], 1 / false[shown], label=name)
    for efficiency in EFFICIENCIES:
        axes.axvline(efficiency, color="0.8", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("signal efficiency")
    axes.set_ylabel("1 / share of background")
    axes.legend()
    return save(figure, Path(path))


def scores(scores, label, weight, path) -> Path:
    """Log odds of signal for both classes, each with area 1."""
    figure, axes = axes_of("Scores")
    value = margin(scores)
    edges = np.linspace(value.min(), value.max() + 1e-9, 41)
    for number, name in enumerate(CLASSES):
        chosen = np.asarray(label) == number
        if chosen.any():
            axes.hist(
                value[chosen], edges, weights=np.asarray(weight)[chosen], density=True, histtype="step", label=name
            )
    axes.set_xlabel("log odds of signal")
    axes.set_ylabel("density")
    axes.legend()
    return save(figure, Path(path))
