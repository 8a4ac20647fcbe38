"""A job: everything that a map depends on, frozen; its digest, its words, its frames and images.

jobfile.py reads one from TOML.
"""

import hashlib
import json
import math
import os
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path

import numpy as np

from impl.mapping.detector import Detector
from impl.mapping.frames import FrameStack, Input, data_files, open_scan
from impl.mapping.geometry import chain
from impl.mapping.goniometer import ANGLES, Motor
from impl.mapping.grid import Grid
from impl.mapping.instrument import energy_of
from impl.mapping.sources import SourceError


@dataclass(frozen=True)
class Corrections:
    """What is applied to every frame, and in which order: mapping's contract, see correction.py.

    Attributes
    ----------
    solid_angle : bool
    polarisation : float or None       fraction of the beam's intensity polarised along x; None: no correction
    flat : str                         file of the detector's response, divided out; '' none
    background, background_variance : str
    mask : str                         file; what is not 0 is excluded
    exposure_time : bool               divide by the exposure time of each frame
    monitors : tuple of str            divide by these, in this order
    lorentz : bool
    repair : int                       largest masked component, in pixels, that is filled in; 0: none
    """

    solid_angle: bool = True
    polarisation: float | None = None
    flat: str = ""
    background: str = ""
    background_variance: str = ""
    mask: str = ""
    exposure_time: bool = False
    monitors: tuple[str, ...] = ()
    lorentz: bool = False
    repair: int = 0


#: what of a job can change no voxel, so that changing it keeps what is already mapped
WITHOUT_EFFECT = ("name", "source", "threads", "readers", "budget", "output", "scratch", "compression", "allow_empty")
#: what the plan of a mapping settles; its identity is the plan's
IN_PLAN = ("frames_per_call", "checkpoints")


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a map depends on.

    Attributes
    ----------
    name, source : str                 the job's name and the file that it was read from
    input : Input
    instrument : Detector
    wave_number : float                K = 2π/λ in Å⁻¹
    ub, u : float64 (3, 3)             Å⁻¹ with 2π, and the rotation in it, in the axes phi; None where not given
    position : float64 (3,)            where the diffracting volume lies at angles 0, metres, axes phi
    grids : tuple of (name, Grid)
    depth : int
    exposure : str                     'continuous' or 'stationary' (every frame at its middle)
    corrections : Corrections
    frames_per_call : int              0: chosen by timing
    threads, readers : int             0: chosen by the machine
    budget : int                       bytes
    allow_empty : bool
    output, scratch : Path
    compression : str                  of the output: 'gzip', which every HDF5 reads, or 'bitshuffle' (LZ4)
    checkpoints : int                  at least so many ranges
    excluded : tuple of int            frames that are left out
    """

    name: str
    source: str
    input: Input
    instrument: Detector
    wave_number: float
    ub: np.ndarray | None
    u: np.ndarray | None
    position: np.ndarray
    grids: tuple[tuple[str, Grid], ...]
    output: Path
    scratch: Path
    compression: str = "gzip"
    depth: int = 2
    exposure: str = "continuous"
    corrections: Corrections = field(default_factory=Corrections)
    frames_per_call: int = 0
    threads: int = 0
    readers: int = 0
    budget: int = 2 << 30
    allow_empty: bool = False
    checkpoints: int = 10
    excluded: tuple[int, ...] = ()

    def __post_init__(self):
        for array in (self.ub, self.u, self.position):
            if array is not None:
                array.setflags(write=False)

    @classmethod
    def read(cls, path) -> "Job":
        """The job of a TOML file. Raises SourceError with the key, what was expected and what was found."""
        path = Path(path)
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SourceError(path, "a job (.toml)", error.strerror or str(error), "check the path") from None
        except UnicodeDecodeError:
            raise SourceError(path, "a job (.toml)", "bytes that are no UTF-8") from None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise SourceError(path, "TOML", " ".join(str(error).split())) from None
        return parse(raw, str(path), path.parent)

    def open(self) -> FrameStack:
        """The scan's frames."""
        return open_scan(self.input)

    def origin(self, start, end):
        """Where the rays of some frames start: float64 (3,), metres, laboratory.

        start, end : float64 (4,) or (F, 4), radians. The diffracting volume turns with the sample; the place in the
        middle of the frames stands for all of them, see `origin_drift` for how far they are from it.
        """
        if not self.position.any():
            return np.zeros(3)
        middle = (np.atleast_2d(start).mean(axis=0) + np.atleast_2d(end).mean(axis=0)) / 2
        return chain(middle, "phi").T @ self.position

    def origin_drift(self, start, end) -> float:
        """Largest distance in metres between `origin` of some frames and where they begin and end."""
        if not self.position.any():
            return 0.0
        ends = np.concatenate([np.atleast_2d(start), np.atleast_2d(end)])
        places = np.einsum("nji,j->ni", chain(ends, "phi"), self.position)
        return float(np.sqrt(((places - self.origin(start, end)) ** 2).sum(axis=1).max()))

    @property
    def fixed_origin(self) -> bool:
        """Whether the rays of every frame start at the laboratory's origin."""
        return not self.position.any()

    def image(self, name: str):
        """One of the corrections' images ('mask', 'flat', 'background', 'background_variance'), None without one.

        bool (rows, columns) for the mask, float64 otherwise. Raises SourceError for a file that is none or of another
        shape.
        """
        from impl.mapping.pictures import read_picture

        given = getattr(self.corrections, name)
        if not given:
            return None
        picture = read_picture(given)
        if picture.shape != tuple(self.instrument.shape):
            rows, columns = self.instrument.shape
            found = " x ".join(map(str, picture.shape))
            raise SourceError(given, f"{rows} x {columns} pixels, as the instrument has", found)
        return picture != 0 if name == "mask" else np.ascontiguousarray(picture, np.float64)

    def identity(self) -> dict:
        """What determines the map, as JSON takes it: files by name, size and a sample of bytes."""
        left_out = (*WITHOUT_EFFECT, *IN_PLAN, "input", "corrections")
        out = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in left_out}
        given = {f.name: plain(getattr(self.input, f.name)) for f in fields(self.input)}
        del given["job"]
        given["files"] = [sampled(path) for path in data_files(self.input)]
        for table in (given["given"], given["monitors"]):
            for name, entry in table.items():
                if entry.get("file"):
                    source = self.input.given if table is given["given"] else self.input.monitors
                    entry["file"] = sampled(source[name].file)
        corrections = plain(self.corrections)
        for name in ("flat", "background", "background_variance", "mask"):
            if corrections[name]:
                corrections[name] = sampled(corrections[name].partition("::")[0]) + [
                    corrections[name].partition("::")[2]
                ]
        return {**out, "input": given, "corrections": corrections, "schema": 1}

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of `identity`, in hexadecimal.

        Equal digests mean equal maps up to the plan (frames per call, checkpoint ranges). Where the output lies, how
        many threads map and how much memory they take is not in it. Data are known by each file's size and its first
        and last 64 KiB; what lies between is known by the frames' own content hashes.
        """
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def describe(self) -> str:
        """The job in words, several lines; opens no data."""
        rows, columns = self.instrument.shape
        lines = [
            f"job {self.name} ({self.source})",
            f"input: {self.input.format}, " + (files_in_words(self.input.files) or "made by formula"),
            f"instrument: {rows} x {columns} pixels, K = {self.wave_number:.9g} per angstrom "
            f"({energy_of(2 * math.pi / self.wave_number):.6g} keV)",
            f"exposure: {self.exposure}, depth {self.depth}",
        ]
        if not self.fixed_origin:
            lines.append(f"sample: {' '.join(f'{1e3 * x:.6g}' for x in self.position)} mm off the axes")
        for angle in ANGLES:
            motor = self.input.motors.get(angle, Motor())
            words = f"{motor.offset_degrees:.6g} degrees"
            if motor.axis:
                sign = "-" if motor.sign < 0 else ""
                words = f"{sign}{motor.axis}" + (f" + {words}" if motor.offset_degrees else "")
                given = self.input.given.get(motor.axis)
                if given is not None and given.has_values:
                    words += ", invented by the job, not measured" if given.invented else ", given by the job"
                if given is not None and given.exposure:
                    words += f", one angle a frame taken as {given.exposure}"
            lines.append(f"{angle} = {words}")
        for name, grid in self.grids:
            lines.append(
                f"grid {name}: {grid.axes}, {' x '.join(map(str, grid.shape))} voxels of "
                f"{' x '.join(f'{s:.6g}' for s in grid.step)} from {' '.join(f'{m:.6g}' for m in grid.minimum)}"
            )
        c = self.corrections
        applied = [
            name
            for name, there in (
                ("solid angle", c.solid_angle), (f"polarisation {c.polarisation}", c.polarisation is not None),
                ("flat field", c.flat), ("background", c.background), ("mask", c.mask), ("Lorentz factor", c.lorentz),
                (f"repair up to {c.repair} pixels", c.repair), ("exposure time", c.exposure_time),
            ) if there
        ]  # fmt: skip
        lines.append(f"corrections: {', '.join((*applied, *c.monitors)) or 'none'}")
        if self.excluded:
            lines.append(f"left out: {len(self.excluded)} frames")
        lines.append(f"output: {self.output}")
        return "\n".join(lines)


def files_in_words(files) -> str:
    """One or many files on one line."""
    if not files:
        return ""
    return str(files[0]) if len(files) == 1 else f"{len(files)} files from {files[0]} to {files[-1]}"


def plain(value):
    """A value as JSON takes it; arrays and tuples become lists, paths their names."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{f.name: plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value.name if isinstance(value, Path) else value


def sampled(path) -> list:
    """[name, bytes, SHA-256 of the first and last 64 KiB] of a file: what a job's digest knows of its data."""
    window = 1 << 16
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(window)
            file.seek(max(len(head), size - window))
            tail = file.read(window)
    except OSError as error:
        raise SourceError(path, "a readable file", error.strerror or str(error), "check the path") from None
    return [Path(path).name, size, hashlib.sha256(head + tail).hexdigest()]


def parse(raw: dict, where: str, folder) -> Job:
    """A Job from a parsed TOML document; `where` names it in messages, relative paths lie in `folder`.

    Raises SourceError.
    """
    from impl.mapping import jobfile

    return jobfile.parse(raw, where, folder)
