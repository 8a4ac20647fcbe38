"""An opened scan: frames read one by one, with the angles of their exposures, whatever file they lie in.

Angles are in radians, exposure times in seconds. A mask is True where a pixel is excluded. A stack never guesses an
angle: what neither the data nor the job says is an error.
"""

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from impl.mapping.goniometer import Given, Motor, Positions, angles, breaks
from impl.mapping.sources import FrameCache, SourceError

FORMATS = ("cbf", "tiff", "edf", "hdf5", "frame-cache", "synthetic")
#: marks of pixels that were not measured: PILATUS and EIGER write -1 in gaps and -2 in bad pixels
SIGNED_SENTINELS = (-1, -2)


@dataclass(frozen=True)
class Monitor:
    """Where a value for every frame comes from; exactly one of values, file, header, dataset is given.

    Attributes
    ----------
    values, variances : tuple of float    one a frame, or one for all
    file : Path                           one line a frame: value, or value and its variance
    header : str                          key of the frames' headers
    dataset : str                         path in the HDF5 file, or array in the frame cache
    """

    values: tuple[float, ...] = ()
    variances: tuple[float, ...] = ()
    file: Path | None = None
    header: str = ""
    dataset: str = ""


@dataclass(frozen=True)
class Input:
    """What a job says about its frames; see README.md for the keys.

    Attributes
    ----------
    format : str                          one of FORMATS
    files : tuple of Path                 in the frames' order; patterns are expanded when the scan is opened
    motors, given : dict                  see goniometer.angles
    job : str                             names the job in messages
    shape : (int, int) or None            rows and columns that the instrument has
    expected : dict                       wavelength_angstrom, distance_m, pixel_m of the instrument, where known
    saturation : float or None            counts at least this are excluded
    sentinels : tuple of int or None      counts that mean 'not measured'; None: by dtype
    overrule : tuple of str               of `expected`, what headers may say otherwise
    gaps : bool                           numbers may be missing in the files' names
    dataset, mask_dataset : str           paths in an HDF5 file; '' looks for the usual ones
    monitors : dict of Monitor            by name; 'exposure' is the exposure time in seconds
    synthetic : dict                      what a made scan is made of
    """

    format: str
    files: tuple[Path, ...] = ()
    motors: dict[str, Motor] = field(default_factory=dict)
    given: dict[str, Given] = field(default_factory=dict)
    job: str = "the job"
    shape: tuple[int, int] | None = None
    expected: dict[str, object] = field(default_factory=dict)
    saturation: float | None = None
    sentinels: tuple[int, ...] | None = None
    overrule: tuple[str, ...] = ()
    gaps: bool = False
    dataset: str = ""
    mask_dataset: str = ""
    monitors: dict[str, Monitor] = field(default_factory=dict)
    synthetic: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Frame:
    """One detector image as it was recorded.

    Attributes
    ----------
    counts : (rows, columns)               the dtype of the file, C-contiguous
    mask : bool (rows, columns) or None    True excludes: sentinels, gaps, saturation of this frame
    variance : float64 (rows, columns) or None
    digest : str                           content hash of the counts with their dtype and shape
    """

    counts: np.ndarray
    mask: np.ndarray | None
    variance: np.ndarray | None
    digest: str


@runtime_checkable
class FrameStack(Protocol):
    """An opened scan.

    Attributes
    ----------
    shape : (int, int)                      rows and columns
    frames : int
    start, end : float64 (frames, 4)        alpha, omega, chi, phi at both ends of each exposure, radians
    breaks : tuple of int                   frames with which a wedge begins, see goniometer.breaks
    exposure : float64 (frames,) or None    seconds; exposure_variance beside it
    monitors : dict of float64 (frames,)    monitor_variances beside it, for those that have one
    notes : dict of str                     axis -> where its positions come from
    concurrent : bool                       several threads may read at once; any number may call, others wait
    """

    shape: tuple[int, int]
    frames: int
    start: np.ndarray
    end: np.ndarray
    breaks: tuple[int, ...]
    exposure: np.ndarray | None
    exposure_variance: np.ndarray | None
    monitors: dict[str, np.ndarray]
    monitor_variances: dict[str, np.ndarray]
    notes: dict[str, str]
    concurrent: bool

    def read(self, frame: int) -> Frame:
        """The frame of that index. Raises SourceError for one that cannot be read, IndexError for one that is none."""

    def close(self) -> None:
        """Close the files."""


def content_digest(counts) -> str:
    """Hash of an array's dtype, shape and bytes: 'xxh3-128:…', or 'blake2b-128:…' where xxhash is not installed."""
    counts = np.ascontiguousarray(counts)
    head = f"{counts.dtype.str} {counts.shape} ".encode()
    try:
        import xxhash
    except ImportError:
        made, name = hashlib.blake2b(head, digest_size=16), "blake2b-128"
    else:
        made, name = xxhash.xxh3_128(head), "xxh3-128"
    made.update(memoryview(counts).cast("B") if counts.size else b"")
    return f"{name}:{made.hexdigest()}"


def excluded(counts, sentinels=None, saturation=None, least=None):
    """Pixels that were not measured: bool (rows, columns), or None where there are none.

    sentinels None means: -1 and -2 of signed integers, the largest value of unsigned ones (of 32 bits or more the
    largest two). What is not finite, below `least` or at least `saturation` is excluded too.
    """
    kind = counts.dtype.kind
    mask = None
    if sentinels is None:
        if kind == "i":
            sentinels = SIGNED_SENTINELS
        elif kind == "u":
            top = int(np.iinfo(counts.dtype).max)
            sentinels = (top, top - 1) if counts.dtype.itemsize >= 4 else (top,)
        else:
            sentinels = ()
    limits = np.iinfo(counts.dtype) if kind in "iu" else None
    for value in sentinels:
        if limits is None or limits.min <= value <= limits.max:
            found = counts == value
            mask = found if mask is None else mask | found
    if kind == "f":
        found = ~np.isfinite(counts)
        mask = found if mask is None else mask | found
    if saturation is not None:
        # Against a whole number integers compare in their own dtype, without a copy as floats.
        found = counts >= (
            saturation if limits is None else min(max(math.ceil(saturation), limits.min), limits.max + 1)
        )
        mask = found if mask is None else mask | found
    if least is not None:
        found = counts < (least if limits is None else min(max(math.ceil(least), limits.min), limits.max))
        mask = found if mask is None else mask | found
    return mask if mask is not None and mask.any() else None


def _per_frame(name: str, monitor: Monitor, frames: int, job: str, read) -> tuple[np.ndarray, np.ndarray | None]:
    """Value and variance (or None) of a monitor, float64 (frames,); read(monitor) gives what lies in the data."""
    place = f"{job}: {'input.exposure' if name == 'exposure' else f'monitors.{name}'}"
    variances = None
    if monitor.values:
        values = np.array(monitor.values, float)
        variances = np.array(monitor.variances, float) if monitor.variances else None
    elif monitor.file is not None:
        try:
            table = np.loadtxt(monitor.file, ndmin=2)
        except OSError as error:
            raise SourceError(
                monitor.file, "a list of values", getattr(error, "strerror", None) or str(error)
            ) from None
        except (ValueError, UnicodeDecodeError) as error:
            raise SourceError(monitor.file, "one or two numbers a line", str(error)) from None
        if table.shape[1] not in (1, 2):
            raise SourceError(monitor.file, "one or two numbers a line", str(table.shape[1]))
        place, values = str(monitor.file), table[:, 0]
        variances = table[:, 1] if table.shape[1] == 2 else None
    else:
        values = np.asarray(read(monitor), float)
    out = []
    for array in (values, variances):
        if array is not None and array.ndim == 1 and len(array) == 1:
            array = np.repeat(array, frames)
        if array is not None and array.shape != (frames,):
            raise SourceError(place, f"{frames} values, one a frame", str(array.shape[0] if array.ndim else 1))
        out.append(array)
    return out[0], out[1]


class Stack:
    """What every stack shares: angles, monitors, the checks and the mask; a subclass reads counts.

    A subclass sets `where`, `shape`, `frames`, gives `positions()` (axis -> Positions), `counts(frame)` and, if it has
    them, `quantity(monitor)`, `static_mask` (bool, rows x columns) and `limit(frame)`.
    """

    concurrent = True
    static_mask = None

    def _prepare(self, given: Input) -> None:
        self.input = given
        if given.shape is not None and tuple(given.shape) != tuple(self.shape):
            raise SourceError(
                self.where,
                f"frames of {given.shape[0]} x {given.shape[1]} pixels, as the instrument has",
                f"{self.shape[0]} x {self.shape[1]}",
                "check [instrument], or the panel",
            )
        if self.frames < 1:
            raise SourceError(self.where, "at least one frame", "none")
        self.start, self.end, self.notes = angles(
            given.motors, given.given, self.positions(), self.frames, self.where, given.job
        )
        for array in (self.start, self.end):
            array.setflags(write=False)
        self.breaks = breaks(self.start, self.end)
        self.exposure = self.exposure_variance = None
        self.monitors, self.monitor_variances = {}, {}
        wanted = dict(given.monitors)
        if "exposure" not in wanted and (seconds := self.exposure_times()) is not None:
            wanted["exposure"] = Monitor(values=tuple(seconds))
        for name, monitor in wanted.items():
            values, variances = _per_frame(name, monitor, self.frames, given.job, self.quantity)
            if name == "exposure":
                self.exposure, self.exposure_variance = values, variances
            else:
                self.monitors[name] = values
                if variances is not None:
                    self.monitor_variances[name] = variances

    def positions(self) -> dict[str, Positions]:
        """Axes that the data have."""
        return {}

    def exposure_times(self):
        """Seconds of every frame, where the data say it; None otherwise."""
        return None

    def quantity(self, monitor: Monitor):
        """Values of a monitor that lies in the data, float64 (frames,)."""
        name = monitor.header or monitor.dataset
        raise SourceError(self.where, f"a value '{name}' for every frame", f"none in the format '{self.input.format}'")

    def limit(self, frame: int) -> float | None:
        """Counts of at least this are saturated, as the data say it."""

    def least(self, frame: int) -> float | None:
        """Counts below this are none, as the data say it."""

    def counts(self, frame: int):
        """Counts of a frame as they lie in the file, and its variance or None."""
        raise NotImplementedError

    def check_index(self, frame: int) -> None:
        """Raise IndexError for a frame that is none."""
        if not 0 <= frame < self.frames:
            raise IndexError(f"frame: expected 0 to {self.frames - 1}, found {frame}")

    def read(self, frame: int) -> Frame:
        """The frame of that index."""
        self.check_index(frame)
        counts, variance = self.counts(frame)
        counts = np.ascontiguousarray(counts)
        if counts.shape != tuple(self.shape):
            raise SourceError(
                self.place(frame),
                f"{self.shape[0]} x {self.shape[1]} pixels as in the first frame",
                " x ".join(map(str, counts.shape)),
            )
        if counts.dtype.byteorder not in "=|":
            counts = counts.astype(counts.dtype.newbyteorder("="))
        limits = [limit for limit in (self.input.saturation, self.limit(frame)) if limit is not None]
        saturation = min(limits) if limits else None
        mask = excluded(counts, self.input.sentinels, saturation, self.least(frame))
        if self.static_mask is not None:
            mask = self.static_mask if mask is None else mask | self.static_mask
        return Frame(counts, mask, variance, content_digest(counts))

    def place(self, frame: int) -> str:
        """Names a frame in messages."""
        return f"{self.where}: frame {frame}"

    def close(self) -> None:
        """Close the files."""


class CacheStack(Stack):
    """A HEXRD frame cache: sparse frames whose absent pixels are measured zeros; omega is read from its table."""

    def __init__(self, given: Input):
        if len(given.files) != 1:
            raise SourceError(f"{given.job}: input.files", "one frame cache (.npz)", str(len(given.files)))
        self.where = str(given.files[0])
        self._cache = FrameCache(given.files[0])
        try:
            self.shape, self.frames = self._cache.shape, self._cache.frames
            if min(self.shape) < 1 or self.shape[0] * self.shape[1] > 2**31:
                raise SourceError(self.where, "a shape of 1 to 2^31 pixels", f"{self.shape}")
            self.dtype = self._dtype()
            self._prepare(given)
        except BaseException:
            self.close()
            raise

    def _dtype(self) -> np.dtype:
        name = self._cache.array("dtype") if "dtype" in self._cache.names else b"uint16"
        try:
            dtype = np.dtype(bytes(name).decode().strip("\0") if isinstance(name, np.ndarray) else bytes(name).decode())
        except (TypeError, ValueError, UnicodeDecodeError):
            raise SourceError(self.where, "a dtype", repr(name)) from None
        if dtype.kind not in "iuf":
            raise SourceError(self.where, "a dtype of numbers", str(dtype))
        return dtype

    def positions(self):
        start, end = self._cache.omega_degrees.T
        return {"omega": Positions(start, end, "the table 'omega'")}

    def quantity(self, monitor):
        if not monitor.dataset or monitor.dataset not in self._cache.names:
            return super().quantity(monitor)
        return self._cache.array(monitor.dataset)

    def counts(self, frame):
        rows, columns, values = self._cache.recorded(frame)
        if len(rows) and (
            rows.min() < 0 or rows.max() >= self.shape[0] or columns.min() < 0 or columns.max() >= self.shape[1]
        ):
            raise SourceError(self.place(frame), f"pixels within {self.shape[0]} x {self.shape[1]}", "others")
        out = np.zeros(self.shape, self.dtype)
        out[rows, columns] = values
        return out, None

    def close(self):
        self._cache.close()


#: values of a Poisson(5) count at 256 even quantiles: one byte of the generator makes one pixel
_LEVELS = 256


def _poisson_table(mean: float, levels: int = _LEVELS) -> np.ndarray:
    total, k, out, term = 0.0, 0, [], np.exp(-mean)
    for quantile in (np.arange(levels) + 0.5) / levels:
        while total + term < quantile and k < 10_000:
            total += term
            k += 1
            term *= mean / k
        out.append(k)
    return np.array(out)


class SyntheticStack(Stack):
    """A made scan of any size: frame i depends on the seed and i alone, so that any part of it can be made again.

    Keys of `synthetic`: frames, rows, columns, seed, counts ('integer': int32, Poisson of the mean, or 'real': float64
    that no sum keeps exactly, with a variance of its own), mean, masked (share of pixels marked -1, integers alone),
    start_degrees and increment_degrees of the axis 'omega'. It has exposure times of 0.1 s and a monitor 'i0'.
    """

    where = "the synthetic scan"

    def __init__(self, given: Input):
        made = given.synthetic
        self.frames, self.shape = int(made["frames"]), (int(made["rows"]), int(made["columns"]))
        self.real, self.masked, self.seed = made["counts"] == "real", float(made["masked"]), int(made["seed"])
        self._levels = _poisson_table(float(made["mean"]))
        self._prepare(given)

    def positions(self):
        made = self.input.synthetic
        edges = float(made["start_degrees"]) + float(made["increment_degrees"]) * np.arange(self.frames + 1)
        return {"omega": Positions(edges[:-1], edges[1:], "the synthetic scan")}

    def exposure_times(self):
        return np.full(self.frames, 0.1)

    def quantity(self, monitor):
        if "i0" not in (monitor.header, monitor.dataset):
            return super().quantity(monitor)
        return 1e6 * (1 + 0.1 * np.sin(np.arange(self.frames)))

    def counts(self, frame):
        rng = np.random.Generator(np.random.SFC64([self.seed, frame]))
        size = self.shape[0] * self.shape[1]
        picks = np.frombuffer(rng.bytes(size), np.uint8)
        if self.real:
            # Irrational factors: a sum of these depends on its order in the last bits, as real corrections make it.
            weights = 1 + np.arange(_LEVELS) / (np.pi * _LEVELS)
            values = (self._levels * weights + 1 / 7)[picks].reshape(self.shape)
            return values, (self._levels * weights**2 / np.sqrt(3) + 1 / 11)[picks].reshape(self.shape)
        values = self._levels.astype(np.int32)[picks]
        if self.masked > 0:
            values[np.frombuffer(rng.bytes(2 * size), np.uint16) < self.masked * 65536] = -1
        return values.reshape(self.shape), None


def expand(given: Input) -> tuple[Path, ...]:
    """The files of an input with patterns expanded, in the order of the numbers in their names.

    Raises SourceError for a pattern that nothing matches.
    """
    out = []
    for path in given.files:
        if not any(sign in path.name for sign in "*?["):
            out.append(path)
            continue
        found = sorted(path.parent.glob(path.name), key=lambda p: natural(p.name))
        if not found:
            raise SourceError(f"{given.job}: input.files", "files", f"none for '{path}'", "check the pattern")
        out += found
    return tuple(out)


def data_files(given: Input) -> list[Path]:
    """Every file that the frames come from, those that HDF5 files link to included."""
    paths = list(expand(given))
    if given.format == "hdf5":
        from impl.mapping.nexus import linked_files

        paths += linked_files(given, paths)
    return paths


def natural(name: str) -> list:
    """Sorting key that puts frame_9 before frame_10."""
    import re

    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def open_scan(given: Input) -> FrameStack:
    """Open the frames of a job.

    Raises SourceError: files that are missing or none, angles that nobody knows, an instrument that contradicts the
    data, a library that is not installed.
    """
    if given.format == "synthetic":
        return SyntheticStack(given)
    if given.format == "frame-cache":
        return CacheStack(given)
    if given.format in ("cbf", "tiff", "edf"):
        from impl.mapping.images import ImageStack

        return ImageStack(given, expand(given))
    if given.format == "hdf5":
        from impl.mapping.nexus import NexusStack

        return NexusStack(given, expand(given))
    raise SourceError(f"{given.job}: input.format", "one of " + ", ".join(FORMATS), f"'{given.format}'")
