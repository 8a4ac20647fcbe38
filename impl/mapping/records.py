"""Voxel records: the six columns that a mapping gives, and how batches of them merge."""

from dataclasses import dataclass

import numpy as np

COLUMNS = ("chunk", "local", "sum_intensity", "sum_variance", "sum_weight", "contributors")
DTYPES = (np.uint32, np.uint32, np.float64, np.float64, np.float64, np.uint32)


@dataclass
class Records:
    """Records ascending and unique in (chunk, local); every array (n,).

    Attributes
    ----------
    chunk, local : uint32           the voxel's storage chunk and its place inside
    sum_intensity : float64         Σ w I over the samples that reached the voxel
    sum_variance : float64          Σ w² V
    sum_weight : float64            Σ w, w the share of a sample's footprint
    contributors : uint32           samples that reached the voxel
    """

    chunk: np.ndarray
    local: np.ndarray
    sum_intensity: np.ndarray
    sum_variance: np.ndarray
    sum_weight: np.ndarray
    contributors: np.ndarray

    @classmethod
    def empty(cls, count: int = 0) -> "Records":
        """Uninitialised columns of that many records."""
        return cls(*(np.empty(count, dtype) for dtype in DTYPES))

    def __len__(self) -> int:
        return len(self.chunk)

    def columns(self) -> tuple[np.ndarray, ...]:
        """The six arrays in the order of COLUMNS."""
        return tuple(getattr(self, name) for name in COLUMNS)

    def key(self) -> np.ndarray:
        """chunk << 32 | local, uint64 (n,)."""
        return self.chunk.astype(np.uint64) << np.uint64(32) | self.local.astype(np.uint64)

    def intensity(self) -> np.ndarray:
        """Weighted mean intensity, float64 (n,); NaN where the weight is 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.sum_weight == 0, np.nan, self.sum_intensity / self.sum_weight)

    def variance(self) -> np.ndarray:
        """Variance of `intensity`, float64 (n,); NaN where the weight is 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.sum_weight == 0, np.nan, self.sum_variance / self.sum_weight / self.sum_weight)


def add(left: Records, right: Records) -> Records:
    """Merge two batches; where both have a voxel the sums are left + right. An empty batch gives the other itself."""
    from impl.mapping.kernel import add_records  # the only caller of the C library; it needs this module

    if not len(left) or not len(right):
        return right if not len(left) else left
    return add_records(left, right)


def merge(batches) -> Records:
    """Merge batches by a fixed tree over their order: neighbours first, so equal batches give equal bytes."""
    batches = list(batches)
    if not batches:
        return Records.empty()
    while len(batches) > 1:
        pairs = [add(batches[i], batches[i + 1]) for i in range(0, len(batches) - 1, 2)]
        batches = pairs + batches[len(pairs) * 2 :]
    return batches[0]
