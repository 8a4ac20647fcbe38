"""Real files and small made-up trees for the tests of impl.events."""

from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).resolve().parents[2] / "data" / "root"

#: file -> (schema, events, nodes, edges)
FILES = {
    "hzz": ("hzz", 2421, 6989, 16348),
    "hzz_zstd": ("hzz", 2421, 6989, 16348),
    "nanoaod_ttbar_2015": ("nanoaod", 200, 726, 3054),
    "nanoaod_dy": ("nanoaod", 40, 259, 1730),
    "nanoaod_data_2018": ("nanoaod", 40, 380, 3672),
    "nanoaod_v5_sim": ("nanoaod", 1000, 12465, 155942),
    "physlite": ("physlite", 100, 1312, 18584),
    "muons_rntuple": ("muons", 1000, 2372, 4566),
    "delphes": ("delphes", 10, 60, 320),
    "pythia_ttbar": ("pythia", 15000, 80011, 382200),
    "pythia_wjets": ("pythia", 15000, None, None),
    "pythia_zjets": ("pythia", 15000, None, None),
    "pythia_dijet": ("pythia", 15000, None, None),
}


def tiny(path, counts=(2, 0, 1, 3), rntuple=False, counts_of=None, without=(), **values):
    """A small tree for the schema `sample`; values replace branches, `counts_of` gives single branches other counts."""
    ak = pytest.importorskip("awkward")
    uproot = pytest.importorskip("uproot")
    counts = np.asarray(counts, np.int64)
    counts_of = counts_of or {}
    lists, scalars = {}, {}
    for place, name in enumerate(("pt", "eta", "phi", "mass", "btag", "charge")):
        own = np.asarray(counts_of.get(name, counts))
        default = (np.arange(own.sum()) * 0.5 + place + 1).astype(np.float32) % 3
        lists[f"Object_{name}"] = ak.unflatten(np.asarray(values.pop(name, default), default.dtype), own)
    n = len(counts)
    for name, default in (
        ("MET_pt", np.full(n, 30, np.float32)),
        ("MET_phi", np.linspace(-1, 1, n, dtype=np.float32)),
        ("weight", np.ones(n, np.float32)),
        ("label", np.arange(n, dtype=np.int32) % 2),
        ("event", np.arange(n, dtype=np.uint64) + np.uint64(2**60)),
    ):
        scalars[name] = np.asarray(values.pop(name, default))
    assert not values, values
    branches = {name: array for name, array in {**lists, **scalars}.items() if name not in without}
    with uproot.recreate(path) as file:
        if rntuple:
            file["Events"] = branches
        else:
            types = {k: a.dtype if isinstance(a, np.ndarray) else ak.type(a).content for k, a in branches.items()}
            tree = file.mktree("Events", types)
            if n:
                tree.extend(branches)
    return path


def tree_bytes(folder) -> dict:
    """Name -> bytes of every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
