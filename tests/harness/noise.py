"""Made timings: logarithms of slot times on a shared machine, thousands of comparisons at once; and recorded ones.

A row is a comparison, a column a slot. What the environment does to a slot is the sum of a random walk, slow
autocorrelated drift, bursts of foreign load (observed with noise), a two-state process mode, heavy tails and rare
outliers. It never depends on the arm: arms differ only in which slots are theirs, and that is the schedule's coin.

Settings: statistics at hand for five kinds of machine, from a quiet one to a hostile one.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import schedule

TRACES = Path(__file__).parents[1] / "data" / "traces"


@dataclass(frozen=True)
class Setting:
    """Standard deviations and sizes are of log times; lengths are slots."""

    walk: float  # step of the random walk
    drift: tuple[float, float]  # autocorrelation and standard deviation of the slow drift
    burst: tuple[float, float, float]  # chance to start, mean length, mean size
    mode: tuple[float, float]  # share of slow processes and how much slower they are
    tail: float  # scale of t3 noise
    outlier: tuple[float, float]  # chance and mean size
    position: float  # what the second slot of a pair costs more


SETTINGS = {
    "quiet": Setting(0.0003, (0.95, 0.002), (0, 1, 0), (0, 0), 0.002, (0.01, 0.01), 0.0),
    "drifty": Setting(0.0020, (0.97, 0.010), (0.004, 6, 0.08), (0, 0), 0.004, (0.02, 0.03), 0.003),
    "bimodal": Setting(0.0005, (0.95, 0.004), (0.004, 6, 0.08), (0.35, 0.03), 0.004, (0.02, 0.03), 0.003),
    "ci-vm": Setting(0.0010, (0.95, 0.012), (0.02, 5, 0.15), (0.2, 0.02), 0.006, (0.04, 0.06), 0.003),
    "hostile": Setting(0.0030, (0.75, 0.120), (0.06, 6, 0.30), (0.2, 0.02), 0.060, (0.04, 0.10), 0.005),
}


def environment(setting: Setting, rng, rows: int, slots: int):
    """float64 (rows, slots) log times that no arm has touched, and the foreign load observed in each slot."""
    y = np.cumsum(rng.normal(0, setting.walk, (rows, slots)), axis=1)
    decay, sd = setting.drift
    slow = np.empty((slots, rows))
    slow[0] = rng.normal(0, sd, rows)
    for k in range(1, slots):
        slow[k] = decay * slow[k - 1] + rng.normal(0, sd * math.sqrt(1 - decay * decay), rows)
    y += slow.T
    start, length, size = setting.burst
    load = np.zeros((slots, rows))
    if start:
        on = rng.random(rows) < start * length / (1 + start * length)
        strength = rng.exponential(size, rows)
        for k in range(slots):
            begins = ~on & (rng.random(rows) < start)
            ends = on & (rng.random(rows) < 1 / length)
            strength = np.where(begins, rng.exponential(size, rows), strength)
            on = (on | begins) & ~ends
            load[k] = np.where(on, strength, 0)
        y += load.T * rng.uniform(0.5, 1.5, (rows, slots))
    observed = np.maximum(0, load.T + rng.normal(0, 0.02, (rows, slots)))
    share, slower = setting.mode
    y += slower * (rng.random((rows, slots)) < share)
    y += setting.tail * rng.standard_t(3, (rows, slots))
    chance, size = setting.outlier
    y += (rng.random((rows, slots)) < chance) * rng.exponential(size, (rows, slots))
    y[:, 1::2] += setting.position
    return y, observed


def recordings() -> list[tuple[np.ndarray, np.ndarray]]:
    """Log wall times and foreign cores of the recorded A/A runs, in order of running."""
    found = []
    for name in ("aa1", "aa2"):
        runs = [json.loads(line) for line in (TRACES / f"{name}.jsonl").read_text().splitlines()]
        wall = np.array([run["wall"] for run in runs])
        busy = np.array([run["stat"][0] + run["stat"][2] for run in runs]) / 100
        own = np.array([run["cpu"] for run in runs])
        found.append((np.log(wall), np.maximum(0, (busy - own) / wall)))
    return found


def replay(rng, rows: int, slots: int):
    """Random windows of the recordings: log wall times and foreign cores, (rows, slots)."""
    traces = recordings()
    y, load = np.empty((rows, slots)), np.empty((rows, slots))
    for row in range(rows):
        times, cores = traces[rng.integers(len(traces))]
        first = rng.integers(len(times) - slots + 1)
        y[row], load[row] = times[first : first + slots], cores[first : first + slots]
    return y, load


def made(name: str, rng, rows: int, slots: int):
    """`environment` of a named setting, or `replay` for "trace"."""
    return replay(rng, rows, slots) if name == "trace" else environment(SETTINGS[name], rng, rows, slots)


def orders(rng, rows: int, pairs: int) -> np.ndarray:
    """bool (rows, 2 pairs): which slots are B's, by the schedule's own coins from random seeds."""
    seeds = rng.integers(1 << 48, size=rows)
    first = np.array(
        [[schedule.coin(int(seed), pair, "pair") == "BA" for pair in range(pairs)] for seed in seeds], bool
    )
    slots = np.empty((rows, 2 * pairs), bool)
    slots[:, 0::2], slots[:, 1::2] = first, ~first
    return slots


def fixed_order(rows: int, pairs: int) -> np.ndarray:
    """A always first."""
    return np.tile(np.array([False, True]), (rows, pairs))


def ratios(y: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(rows, 2n) log times and which are B's -> (rows, n) log ratios of the pairs."""
    rows = len(y)
    return y[b].reshape(rows, -1) - y[~b].reshape(rows, -1)
