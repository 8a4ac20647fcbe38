"""An arm's values: have it write them, read them, keep them beside the record as far as they are small."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import accuracy, protocol
from harness.errors import ConfigurationError, sentence
from harness.process import ArmProcess

FOLDER = "values"
#: bytes, compressed; of larger values the record keeps the digest, and what `accuracy.reduce` made of them
LARGEST = 8 << 20


@dataclass(frozen=True)
class Taken:
    """What one arm wrote; `where` begins a sentence about it, `file` is what the record says of it."""

    values: accuracy.Map | accuracy.Model
    where: str
    file: dict[str, Any]


def take(running: ArmProcess, folder: Path, name: str, where: str, timeout: float) -> Taken:
    """Ask a warm arm for its values; they are kept as <folder>/values/<name>, compressed.

    Raises ConfigurationError when the arm cannot write them or what it wrote is no map and no model, VoidSlot when it
    does not answer.
    """
    path = folder / FOLDER / name
    path.parent.mkdir(exist_ok=True)
    raw = path.with_suffix(".raw.npz")
    try:
        _, seconds = running.ask(protocol.WriteValues(str(raw.resolve())), timeout)
        values, arrays = accuracy.load(raw, where)
    finally:
        raw.unlink(missing_ok=True)
    file = {"path": f"{FOLDER}/{name}", "digest": accuracy.digest(arrays), "seconds": seconds}
    np.savez_compressed(path, **arrays)
    file["bytes"] = path.stat().st_size
    if file["bytes"] > LARGEST:
        path.unlink()
        file["path"] = None
    return Taken(values, where, file)


def reduce(a: Taken, b: Taken, names: tuple[str, str], seed: int | None) -> dict[str, Any]:
    """B's values against A's, for the record; `seed` is the one that both were launched with, None if none was asked.

    Raises ConfigurationError when they cannot be compared, or do not belong to that seed.
    """
    if seed is not None:
        for one in (a, b):
            if isinstance(one.values, accuracy.Map):
                raise ConfigurationError(
                    sentence(one.where, "scores of a model for each seed", "a map", "leave the number of seeds out")
                )
            found = sorted(set(one.values.seed.tolist()))
            if found != [seed]:
                told = ", ".join(map(str, found))
                raise ConfigurationError(
                    sentence(one.where, f"seed {seed}", f"seed {told}", "write the parameter 'seed' as 'seed'")
                )
    return accuracy.reduce(a.values, b.values, names)
