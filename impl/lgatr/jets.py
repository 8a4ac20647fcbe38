"""Jets as lists of four-momenta: from HDF5, from a cache of impl.events, and made ready for a network.

Four-momenta are (E, px, py, pz) in GeV. The field's HDF5 layout: `constituents` (jets, N, 4) by falling pt, padded with
zeros; optional `count` (jets,), `label` (jets,) with 1 for signal, and `weight` (jets,). ROOT files go through
`python -m impl.events prepare`, whose cache is a folder.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from impl.gnn.errors import InputError, PackageError

#: GeV; momenta are divided by it, so that a constituent's energy is of order 1
UNIT = 20.0
CLASSES = ("background", "signal")
#: jets that are read at a time: padding is never in memory for more
RANGE = 16384


@dataclass
class Jets:
    """A sample in memory; jet k owns the rows offsets[k] … offsets[k+1]-1 of momenta.

    Attributes
    ----------
    source : str                where it comes from, for messages
    momenta : float32 (N, 4)    E, px, py, pz in GeV, the constituents of a jet by falling pt
    offsets : int64 (J + 1,)
    label : int64 (J,)          1 signal, 0 background; None without labels
    weight : float32 (J,)
    """

    source: str
    momenta: np.ndarray
    offsets: np.ndarray
    label: np.ndarray | None
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> np.ndarray:
        """Constituents of each jet, int64 (J,)."""
        return np.diff(self.offsets)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything but the source, 64 hex digits."""
        state = hashlib.sha256()
        for array in (self.momenta, self.offsets, self.label, self.weight):
            state.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def labelled(self) -> np.ndarray:
        """The labels; InputError without any."""
        if self.label is None:
            raise InputError(self.source, "a dataset 'label' (1 signal, 0 background)", "none",
                             "training and evaluation need labels, `predict` does not")  # fmt: skip
        return self.label

    def select(self, index) -> "Jets":
        """The jets `index`, in that order."""
        index = np.asarray(index, np.int64)
        counts = self.counts[index]
        offsets = np.concatenate([[0], counts.cumsum()])
        rows = np.repeat(self.offsets[index] - offsets[:-1], counts) + np.arange(offsets[-1])
        label = None if self.label is None else self.label[index]
        return Jets(self.source, self.momenta[rows], offsets, label, self.weight[index])

    def transformed(self, matrix) -> "Jets":
        """All momenta multiplied by a Lorentz transformation (4, 4) on (E, px, py, pz), in float64."""
        momenta = self.momenta.astype(np.float64) @ np.asarray(matrix, np.float64).T
        return Jets(self.source, momenta, self.offsets, self.label, self.weight)

    def checked(self) -> "Jets":
        """Itself; InputError that names the first jet that is empty or holds something that is no momentum."""
        if len(self) == 0:
            raise InputError(self.source, "at least one jet", "none")
        empty = np.flatnonzero(self.counts == 0)
        if len(empty):
            raise InputError(f"{self.source}: jet {empty[0]}", "at least one constituent",
                             f"none, as in {len(empty)} of {len(self)} jets", "leave empty jets out")  # fmt: skip
        rows = np.flatnonzero(~np.isfinite(self.momenta).all(1) | ~(self.momenta[:, 0] > 0))
        if len(rows):
            jet = int(np.searchsorted(self.offsets, rows[0], side="right")) - 1
            raise InputError(f"{self.source}: jet {jet}", "finite momenta with energies above 0",
                             ", ".join(f"{number:g}" for number in self.momenta[rows[0]]))  # fmt: skip
        if self.label is not None and not np.isin(self.label, (0, 1)).all():
            jet = int(np.flatnonzero(~np.isin(self.label, (0, 1)))[0])
            raise InputError(f"{self.source}: label of jet {jet}", "1 for signal or 0", str(self.label[jet]))
        return self


def read(path) -> Jets:
    """Read an HDF5 file in the field's layout, or a cache that impl.events prepared from ROOT files.

    Raises
    ------
    InputError      no such file, another layout, an empty jet, a number that is none
    """
    path = Path(path)
    if path.is_dir():
        from impl.events.cache import Cache

        return from_cache(Cache.open(path))
    return from_hdf5(path)


def from_hdf5(path) -> Jets:
    """The jets of an HDF5 file; see `read`."""
    try:
        import h5py
    except ImportError:
        raise PackageError("reading HDF5 files", "h5py", "", "pip install h5py") from None

    path = Path(path)
    if not path.is_file():
        raise InputError(path, "an HDF5 file of jets or a cache's folder", "no such file")
    try:
        with h5py.File(path) as file:
            if "constituents" not in file:
                found = ", ".join(sorted(file)) or "nothing"
                raise InputError(path, "a dataset 'constituents' (jets, N, 4)", found)
            padded = file["constituents"]
            if padded.ndim != 3 or padded.shape[2] != 4:
                raise InputError(f"{path}: constituents", "(jets, N, 4)", str(padded.shape))
            jets, most = padded.shape[:2]
            columns = {name: file[name][:] for name in ("count", "label", "weight") if name in file}
            for name, values in columns.items():
                if values.shape != (jets,):
                    raise InputError(f"{path}: {name}", f"({jets},)", str(values.shape))
            counts = columns["count"].astype(np.int64) if "count" in columns else np.full(jets, most)
            if jets and (counts.min() < 0 or counts.max() > most):
                raise InputError(f"{path}: count", f"0 to {most}", f"{counts.min()} to {counts.max()}")
            momenta = []
            for first in range(0, jets, RANGE):
                part = padded[first : first + RANGE].astype(np.float32)
                if "count" not in columns:
                    counts[first : first + RANGE] = (part[..., 0] != 0).sum(1)
                momenta.append(part[np.arange(most) < counts[first : first + RANGE, None]])
    except OSError as error:
        raise InputError(path, "an HDF5 file", str(error).splitlines()[0][:80]) from None
    label = columns["label"].astype(np.int64) if "label" in columns else None
    weight = columns.get("weight", np.ones(jets)).astype(np.float32)
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
    momenta = np.concatenate([np.empty((0, 4), np.float32), *momenta])
    return Jets(str(path), momenta, offsets, label, weight).checked()


def from_cache(cache) -> Jets:
    """The events of an impl.events cache as jets: each object is a constituent. The cache keeps unscaled GeV.

    Raises
    ------
    InputError      features without pt, eta, phi and energy; labels of more than two classes
    """
    names = list(cache.node_features)
    missing = [name for name in ("pt", "eta", "phi", "energy") if name not in names]
    if missing:
        raise InputError(cache.path, "features pt, eta, phi and energy", ", ".join(names))
    scaled = cache.manifest.get("identity", {}).get("schema", {}).get("scale")
    if scaled:
        raise InputError(cache.path, "features without [scale]", ", ".join(sorted(scaled)), "prepare it without")
    pt, eta, phi, energy = (cache.node_x[:, names.index(name)].astype(np.float64)
                            for name in ("pt", "eta", "phi", "energy"))  # fmt: skip
    momenta = np.stack([energy, pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], 1)
    offsets = np.array(cache.node_off)
    jet = np.repeat(np.arange(len(cache)), np.diff(offsets))
    order = np.lexsort([-pt, jet])
    label = None
    if len(cache.classes) != 1:  # one class: a constant, which says nothing
        label = np.array(cache.label)
        if label.ndim != 1 or (len(label) and label.max() > 1):
            raise InputError(cache.path, "labels of two classes", f"{len(cache.classes)}: {', '.join(cache.classes)}")
        label = label.astype(np.int64)
    return Jets(str(cache.path), momenta[order].astype(np.float32), offsets, label,
                np.array(cache.weight, np.float32)).checked()  # fmt: skip


# ------------------------------------------------------------------------------------------- ready for a network


@dataclass
class Batch:
    """Some jets, one behind the other; row k of `label`, `weight` belongs to jet index[k].

    Attributes
    ----------
    index : int64 (B,) numpy
    lengths : tuple of int          items of each jet
    momenta : (Σ lengths, 4)        in UNIT; E, px, py, pz, or light-cone components
    scalars : (Σ lengths, 3)        1, whether the item is the rest, log of the jet's constituents / 50
    label : int64 (B,)
    weight : float32 (B,)
    """

    index: np.ndarray
    lengths: tuple
    momenta: torch.Tensor
    scalars: torch.Tensor
    label: torch.Tensor
    weight: torch.Tensor

    def __len__(self) -> int:
        return len(self.index)

    def owner(self) -> torch.Tensor:
        """Position in the batch of each item's jet, int64 (Σ lengths,)."""
        lengths = torch.tensor(self.lengths)
        return torch.repeat_interleave(torch.arange(len(lengths)), lengths, output_size=len(self.momenta))


class Sample:
    """Jets as items: the `items` leading constituents and, where there are more, the sum of the rest as one more item.

    Nothing in it refers to a frame or to the beam, so a network that is Lorentz invariant stays so on the jets: which
    constituents lead was decided when the file was written.

    Parameters
    ----------
    jets : Jets
    items : int             0: all constituents
    lightcone : bool        each jet is turned until its momentum lies along z, and the components are those of
                            `slim.to_lightcone`; in float64
    dtype : torch.dtype
    """

    def __init__(self, jets: Jets, items: int = 0, lightcone: bool = False, dtype=torch.float32):
        counts = jets.counts
        rows = jets.momenta.astype(np.float64) / UNIT
        place = np.arange(len(rows)) - np.repeat(jets.offsets[:-1], counts)
        kept = place < items if items else np.ones(len(rows), bool)
        lengths = np.minimum(counts, items) if items else counts
        more = lengths < counts
        self.lengths = lengths + more
        self.offsets = np.concatenate([[0], self.lengths.cumsum()]).astype(np.int64)
        owner = np.repeat(np.arange(len(jets)), counts)
        momenta = np.zeros((self.offsets[-1], 4))
        scalars = np.zeros((self.offsets[-1], 3))
        momenta[(self.offsets[:-1][owner] + place)[kept]] = rows[kept]
        rest = self.offsets[1:][more] - 1
        sums = np.zeros((len(jets), 4))
        np.add.at(sums, owner[~kept], rows[~kept])
        momenta[rest] = sums[more]
        scalars[:, 0] = 1
        scalars[rest, 1] = 1
        scalars[:, 2] = np.log(np.repeat(counts, self.lengths) / 50)
        if lightcone:
            from impl.lgatr.slim import to_lightcone

            momenta = to_lightcone(torch.from_numpy(_along_z(momenta, self.offsets))).numpy()
        self.momenta, self.scalars = torch.from_numpy(momenta).to(dtype), torch.from_numpy(scalars).to(dtype)
        self.label, self.weight = jets.label, jets.weight

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, index, label=None, weight=None) -> Batch:
        """The jets `index` (int64 (B,)); label and weight of the whole sample replace its own."""
        index = np.asarray(index, np.int64)
        label = self.label if label is None else label
        weight = self.weight if weight is None else weight
        lengths = self.lengths[index]
        ends = lengths.cumsum()
        rows = torch.from_numpy(np.repeat(self.offsets[index] - ends + lengths, lengths) + np.arange(ends[-1]))
        label = np.zeros(len(index), np.int64) if label is None else label[index]
        return Batch(index, tuple(lengths.tolist()), self.momenta[rows], self.scalars[rows],
                     torch.from_numpy(label), torch.from_numpy(weight[index]))  # fmt: skip


def _along_z(momenta: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Every jet turned so that its summed momentum points along z; float64 (N, 4).

    A turn by half a circle about the bisector h of the jet's direction and z: p -> 2 (p·h) h - p.
    """
    total = np.add.reduceat(momenta[:, 1:], offsets[:-1])
    n = total / np.linalg.norm(total, axis=1, keepdims=True)
    h = n + [0, 0, 1]
    length = np.linalg.norm(h, axis=1, keepdims=True)
    h = np.where(length > 1e-12, h / np.maximum(length, 1e-300), [1.0, 0, 0])  # along -z: any axis across it
    h = np.repeat(h, np.diff(offsets), 0)
    turned = 2 * (momenta[:, 1:] * h).sum(1, keepdims=True) * h - momenta[:, 1:]
    return np.concatenate([momenta[:, :1], turned], 1)


def weights(jets: Jets, label: np.ndarray, balance: bool) -> np.ndarray:
    """Weights to train with, float32 (J,): mean 1, and with `balance` both classes weigh the same.

    Raises
    ------
    InputError      weights that are negative or sum to 0, or one class only
    """
    weight = jets.weight.astype(np.float64)
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise InputError(f"{jets.source}: weight", "numbers of at least 0 to train with", f"{weight.min():g}")
    for value, name in enumerate(CLASSES):
        share = weight[label == value].sum()
        if share == 0:
            raise InputError(jets.source, "jets of both classes with weights above 0", f"none of {name}")
        if balance:
            weight = np.where(label == value, weight / share, weight)
    return (weight / weight.mean()).astype(np.float32)
