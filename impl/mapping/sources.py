"""Scans to map: real ones from files, a synthetic one from a formula.

Units: angles in radians, energy in keV; intensities are counts.
"""

import lzma
import struct
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from impl.mapping.detector import FROM_HEXRD, Detector, HexrdPanel, PoniDetector
from impl.mapping.geometry import affine, b_matrix, exponential_map, rotation, wave_number
from impl.mapping.grid import Grid

#: ruby (corundum) lattice parameters in Å, hexagonal axes; NIST SRM 1990 gives a = 4.759, c = 12.992
RUBY_CELL = (4.759, 4.759, 12.992, np.pi / 2, np.pi / 2, 2 * np.pi / 3)
#: strong, unsaturated spots of the ruby scan as (frame, row, column)
RUBY_SPOTS = {
    "ff1": (
        (868, 2487, 1061), (367, 1653, 1814), (1428, 3231, 1011), (266, 3234, 1014),
        (1300, 2544, 768), (787, 1527, 1787), (470, 1259, 1700), (1110, 989, 1060),
    ),
    "ff2": (
        (992, 2645, 2085), (183, 2486, 2012), (1283, 1382, 2723), (1159, 2308, 1954),
        (787, 1758, 2460), (440, 988, 2016), (1180, 1137, 2467), (1008, 1509, 1588),
    ),
}  # fmt: skip


class SourceError(Exception):
    """A file cannot be used; where, expected, found, next."""

    def __init__(self, where, expected, found, next=""):
        self.where, self.expected, self.found, self.next = str(where), expected, found, next
        super().__init__(f"{where}: expected {expected}, found {found}" + (f"; {next}" if next else ""))


#: what numpy and zipfile raise for a damaged .npz
DAMAGED = (
    OSError, ValueError, KeyError, EOFError, IndexError, TypeError, SyntaxError, MemoryError, OverflowError,
    RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
)  # fmt: skip


class FrameCache:
    """A HEXRD frame cache: an .npz with `<i>_row`, `<i>_col`, `<i>_data` for every frame, `shape`, `nframes`, `omega`.

    A pixel that is absent is a measured zero.

    Attributes
    ----------
    shape : (int, int)                  rows and columns
    frames : int
    omega_degrees : float64 (frames, 2) start and stop of each exposure as the file has them
    omega : float64 (frames, 2)         the same in radians
    names : set of str                  the file's arrays
    """

    def __init__(self, path):
        self.path = Path(path)
        try:
            self._handle = self.path.open("rb")
        except OSError as error:
            raise SourceError(path, "a frame cache (.npz)", error.strerror or str(error), "check the path") from None
        self._file = None
        if not zipfile.is_zipfile(self._handle):
            self.close()
            raise SourceError(path, "a frame cache (.npz)", "no archive, or one that ends early", "check the file")
        self._handle.seek(0)
        try:
            self._file = np.load(self._handle, allow_pickle=False)
            self.names = set(self._file.files)
            self.shape = tuple(int(n) for n in self._file["shape"])
            self.frames = int(self._file["nframes"])
            self.omega_degrees = np.asarray(self._file["omega"], float)
            self.omega = np.radians(self.omega_degrees)
        except (*DAMAGED, AttributeError) as error:
            self.close()
            reason = " ".join(str(error).split()) or type(error).__name__
            raise SourceError(path, "a frame cache (.npz)", f"none ({reason})", "check the file") from None
        if len(self.shape) != 2 or self.omega.shape != (self.frames, 2):
            self.close()
            raise SourceError(
                path, "a shape (rows, columns) and omega (frames, 2)", f"{self.shape} and {self.omega.shape}"
            )

    def close(self) -> None:
        """Close the file."""
        if isinstance(self._file, np.lib.npyio.NpzFile):
            self._file.close()
        self._handle.close()

    def array(self, name: str):
        """One of the file's arrays."""
        try:
            return self._file[name]
        except DAMAGED as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise SourceError(self.path, f"an array '{name}'", f"no readable one ({reason})") from None

    def recorded(self, frame: int):
        """(row, column, count) of the recorded pixels of a frame: int64, int64 and the file's own dtype; one length."""
        try:
            row, column, data = (self._file[f"{frame}_{name}"] for name in ("row", "col", "data"))
            row, column = row.astype(np.int64), column.astype(np.int64)
        except DAMAGED as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise SourceError(self.path, f"frame {frame}", f"no readable one ({reason})") from None
        if not (row.ndim == 1 and row.shape == column.shape == data.shape) or data.dtype.kind not in "iuf":
            raise SourceError(
                self.path,
                f"frame {frame} with as many numbers as rows and columns",
                f"{row.shape} rows, {column.shape} columns, {data.shape} of {data.dtype}",
            )
        return row, column, data

    def sparse(self, frame: int):
        """(row, column, count) of the recorded pixels of a frame: int64, int64, float64."""
        row, column, data = self.recorded(frame)
        return row, column, data.astype(np.float64)

    def window(self, frame: int, r0: int, r1: int, c0: int, c1: int):
        """Counts of pixels [r0, r1) x [c0, c1) of a frame: float64 (rows, columns)."""
        row, column, data = self.sparse(frame)
        inside = (row >= r0) & (row < r1) & (column >= c0) & (column < c1)
        out = np.zeros((r1 - r0, c1 - c0))
        out[row[inside] - r0, column[inside] - c0] = data[inside]
        return out


@dataclass(frozen=True)
class Instrument:
    """What a HEXRD instrument file says.

    Attributes
    ----------
    wave_number : float              Å⁻¹
    panels : dict of HexrdPanel      as seen from where the stage holds the sample
    chi : float                      the stage's tilt, radians
    saturation : dict of float       counts from which on a panel's pixels are saturated, where the file says it
    """

    wave_number: float
    panels: dict[str, HexrdPanel]
    chi: float
    saturation: dict[str, float] = field(default_factory=dict)


def read_instrument(path) -> Instrument:
    """Read a HEXRD instrument (.yml)."""
    import yaml

    try:
        text = Path(path).read_text()
    except OSError as error:
        raise SourceError(path, "an instrument file", error.strerror or str(error), "check the path") from None
    try:
        raw = yaml.safe_load(text)
        panels, saturation = {}, {}
        stage = [float(x) for x in raw["oscillation_stage"].get("translation", (0, 0, 0))]
        direction = raw["beam"].get("vector", {"azimuth": 90.0, "polar_angle": 90.0})
        if any(abs(float(direction[name]) - 90) > 1e-9 for name in ("azimuth", "polar_angle")):
            raise SourceError(path, "a beam along -z (azimuth and polar angle 90)", f"{direction}", "turn the panels")
        for name, panel in raw["detectors"].items():
            if panel.get("distortion"):
                raise SourceError(path, "panels without distortion", f"one in '{name}'", "undistort the frames")
            if panel.get("detector_type", "planar") != "planar":
                raise SourceError(path, "planar panels", f"'{panel['detector_type']}' in '{name}'")
            pixels, transform = panel["pixels"], panel["transform"]
            # Only where a pixel lies as seen from the sample counts, so the stage's translation moves the panels back.
            translation = [float(x) - s for x, s in zip(transform["translation"], stage, strict=True)]
            panels[name] = HexrdPanel(
                (int(pixels["rows"]), int(pixels["columns"])),
                tuple(float(x) for x in pixels["size"]),
                tuple(float(x) for x in transform["tilt"]),
                tuple(translation),
            )
            if panel.get("saturation_level") is not None:
                saturation[name] = float(panel["saturation_level"])
        chi = float(raw["oscillation_stage"]["chi"])
        return Instrument(wave_number(float(raw["beam"]["energy"])), panels, chi, saturation)
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"one without it ({error})".replace("\n", " ")
        raise SourceError(path, "an instrument with beam, detectors and stage", found) from None


@dataclass(frozen=True)
class Grain:
    """A grain: orientation (exponential map, crystal to sample) and position in mm, both in HEXRD's axes."""

    orientation: tuple[float, float, float]
    position_mm: tuple[float, float, float]

    def ub(self, cell=RUBY_CELL):
        """U·B in our axes at omega = 0, 2π included, Å⁻¹: float64 (3, 3)."""
        return self.u() @ b_matrix(*cell)

    def u(self):
        """Orientation in our axes: float64 (3, 3)."""
        return FROM_HEXRD @ exponential_map(self.orientation)

    def origin(self, chi: float, omega: float):
        """Position in the laboratory, metres, our axes, with the stage at chi and omega (radians)."""
        stage = rotation("x", chi) @ rotation("y", omega)
        return FROM_HEXRD @ stage @ np.array(self.position_mm) * 1e-3


def read_grains(path) -> list[Grain]:
    """Read a HEXRD grains.out: one grain a line, orientation in columns 3-5, position in 6-8."""
    try:
        table = np.loadtxt(path, ndmin=2)
        if table.shape[1] < 9:
            raise ValueError(f"{table.shape[1]} columns")
    except OSError as error:
        raise SourceError(path, "a grains.out", getattr(error, "strerror", None) or str(error)) from None
    except ValueError as error:
        raise SourceError(path, "numbers in at least 9 columns", str(error)) from None
    return [Grain(tuple(line[3:6]), tuple(line[6:9])) for line in table]


def stage_angles(chi: float, omega):
    """Our four angles (alpha, omega, chi, phi) of HEXRD's stage: float64 (..., 4)."""
    omega = np.asarray(omega, float)
    out = np.zeros((*omega.shape, 4))
    out[..., 0] = chi
    out[..., 1] = -omega
    return out


@dataclass(frozen=True)
class Tile:
    """One call's input, before corrections: a rectangle of the detector over adjacent frames.

    Attributes
    ----------
    counts : float64 (F, rows, columns)
    rectangle : (r0, r1, c0, c1)
    start, end : float64 (F, 4)    angles at both ends of every exposure
    origin : float64 (3,)          where in the laboratory the rays start, metres
    """

    counts: np.ndarray
    rectangle: tuple[int, int, int, int]
    start: np.ndarray
    end: np.ndarray
    origin: np.ndarray


@dataclass(frozen=True)
class Scan:
    """Tiles with the geometry and the grid that they are mapped with."""

    detector: Detector
    wave_number: float
    ub: np.ndarray
    grid: Grid
    tiles: list[Tile]


def ruby_files(folder, panel: str) -> dict[str, Path]:
    """The files of the ruby scan in a folder."""
    folder = Path(folder)
    return {
        "frames": folder / f"ruby_{panel}.npz",
        "instrument": folder / "ruby_instrument.yml",
        "grains": folder / "ruby_grains.out",
    }


def around_middle(scan: Scan, voxels: int) -> Scan:
    """The scan with a grid of that many voxels an axis about the coordinate of the first tile's middle."""
    tile = scan.tiles[0]
    r0, r1, c0, c1 = tile.rectangle
    ray = scan.detector.rays((r0 + r1 - 1) / 2, (c0 + c1 - 1) / 2, tile.origin)
    angles = (tile.start[len(tile.start) // 2] + tile.end[len(tile.end) // 2]) / 2
    map_ = affine(angles, scan.wave_number, scan.grid.axes, ub=scan.ub)
    step = np.array(scan.grid.step)
    low = map_[:, :3] @ ray + map_[:, 3] - step * (voxels / 2)
    grid = Grid(tuple(low), scan.grid.step, (voxels,) * 3, scan.grid.chunk, scan.grid.axes)
    return replace(scan, grid=grid)


#: hkl of the ruby's grain, about two pixels a step near the spots
RUBY_GRID = Grid((-6.02, -6.52, -17.526), (0.004, 0.004, 0.012), (3010, 3260, 2921))


def ruby(folder, panel: str, tile: int, tiles: int, frames: int, grain: int = 0, grid: Grid = RUBY_GRID) -> Scan:
    """Tiles of the real ruby scan around its strong spots, `frames` frames about each.

    Raises SourceError for files that are missing or none, ValueError for a tile that leaves the panel or the scan.
    """
    files = ruby_files(folder, panel)
    instrument, grains = read_instrument(files["instrument"]), read_grains(files["grains"])
    if panel not in instrument.panels:
        raise SourceError(files["instrument"], f"a panel '{panel}'", ", ".join(instrument.panels))
    detector, one = instrument.panels[panel], grains[grain]
    cache = FrameCache(files["frames"])
    try:
        if cache.shape != detector.shape:
            raise SourceError(files["frames"], f"frames of {detector.shape} pixels", f"{cache.shape}")
        out = []
        for frame, row, column in RUBY_SPOTS[panel][:tiles]:
            r0, c0 = row - tile // 2, column - tile // 2
            f0 = min(max(frame - frames // 2, 0), cache.frames - frames)
            r0, c0 = min(max(r0, 0), cache.shape[0] - tile), min(max(c0, 0), cache.shape[1] - tile)
            if r0 < 0 or c0 < 0 or f0 < 0:
                raise ValueError(f"tile: expected at most {cache.shape} pixels and {cache.frames} frames")
            rectangle = (r0, r0 + tile, c0, c0 + tile)
            counts = np.stack([cache.window(f, *rectangle) for f in range(f0, f0 + frames)])
            omega = cache.omega[f0 : f0 + frames]
            # The rays of a call start from where the grain is in the middle of its frames.
            origin = one.origin(instrument.chi, float(omega.mean()))
            out.append(
                Tile(
                    counts,
                    rectangle,
                    stage_angles(instrument.chi, omega[:, 0]),
                    stage_angles(instrument.chi, omega[:, 1]),
                    origin,
                )
            )
    finally:
        cache.close()
    return Scan(detector, instrument.wave_number, one.ub(), grid, out)


def synthetic(tile: int, frames: int, tiles: int = 1, seed: int = 0) -> Scan:
    """A made scan of one square of the detector: 0.172 mm pixels at 0.5 m, 20 keV, a cubic 4 Å crystal, 0.1° a frame.

    Counts are Poisson(5). The square's centre lies 620 rows and 40 columns off the beam; frame 0 is at alpha 0, omega
    0.3, chi 0.05, phi 0.02; one voxel is about 0.6 pixel steps and 0.7 frames. Tile k holds frames k·frames and on.
    """
    pitch = 0.172e-3
    detector = PoniDetector((4096, 4096), (pitch, pitch), (1024 * pitch, 2048 * pitch), 0.5)
    r0, c0 = 1024 + 620 - tile // 2, 2048 + 40 - tile // 2
    if r0 < 0:
        raise ValueError(f"tile: expected at most {2 * 1644} pixels, found {tile}")
    u = rotation("x", 0.31) @ rotation("y", -0.47) @ rotation("z", 0.83)
    ub = u @ b_matrix(4.0, 4.0, 4.0, np.pi / 2, np.pi / 2, np.pi / 2)
    step = np.array([0.0038, 0.0031, 0.0034])
    grid = Grid(tuple(-1000 * step), tuple(step), (2000, 2000, 2000))
    edges = np.zeros((tiles * frames + 1, 4))
    edges[:] = (0.0, 0.3, 0.05, 0.02)
    edges[:, 1] += np.radians(0.1) * (np.arange(len(edges)) - 0.5)
    rng = np.random.default_rng(seed)
    rectangle = (r0, r0 + tile, c0, c0 + tile)
    made = []
    for first in range(0, tiles * frames, frames):
        counts = rng.poisson(5.0, (frames, tile, tile)).astype(float)
        one = slice(first, first + frames), slice(first + 1, first + frames + 1)
        made.append(Tile(counts, rectangle, edges[one[0]], edges[one[1]], np.zeros(3)))
    return Scan(detector, wave_number(20.0), ub, grid, made)
