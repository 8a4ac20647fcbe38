"""Detectors from files: a pyFAI PONI file, or one written into the job; HEXRD's instruments are read in sources.py."""

import json
from pathlib import Path

from impl.mapping.detector import PoniDetector
from impl.mapping.geometry import HC_KEV_ANGSTROM
from impl.mapping.sources import SourceError


def read_poni(path, shape=None, pixel_m=None, azimuth: float = 0.0) -> tuple[PoniDetector, float | None]:
    """The detector of a PONI file and the wavelength in Å, None where the file has none.

    shape, pixel_m : pairs, rows first, for files whose detector is known by its name alone; what the file says too must
    agree. azimuth is in radians.

    Raises SourceError. Source: pyFAI, versions 1 to 2.1 of the file (PixelSize1 and 2; Detector_config as JSON with
    pixel1, pixel2, max_shape and, since 2.1, an orientation, of which 3 is the one without flips).
    """
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise SourceError(path, "a PONI file", error.strerror or str(error), "check the path") from None
    except UnicodeDecodeError:
        raise SourceError(path, "a PONI file", "bytes that are no text") from None
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and not line.lstrip().startswith("#"):
            found[key.strip().lower()] = value.strip()  # the last entry of a file wins, as pyFAI reads it

    def number(key, default=None):
        if key not in found and default is not None:
            return default
        try:
            value = float(found[key])
        except (KeyError, ValueError):
            raise SourceError(path, f"a number '{key}'", repr(found.get(key, "nothing"))) from None
        if not abs(value) < float("inf"):
            raise SourceError(path, f"a finite number '{key}'", found[key])
        return value

    config = {}
    if found.get("detector_config"):
        try:
            config = json.loads(found["detector_config"])
        except ValueError:
            config = None
        if not isinstance(config, dict):
            raise SourceError(path, "Detector_config as JSON", found["detector_config"][:60])
    orientation = config.get("orientation", 3)
    if orientation not in (0, 3):
        raise SourceError(
            path,
            "orientation 3, which flips nothing",
            str(orientation),
            "rewrite the file with pyFAI for orientation 3",
        )
    pixels = [config.get(f"pixel{k}") for k in (1, 2)]
    if pixels == [None, None] and "pixelsize1" in found:
        pixels = [number("pixelsize1"), number("pixelsize2")]
    pixel = _agreed(path, "pixel_m", pixels if None not in pixels else None, pixel_m)
    size = _agreed(path, "shape", config.get("max_shape"), shape)
    try:
        pixel, size = tuple(float(x) for x in pixel), tuple(int(x) for x in size)
        if len(pixel) != 2 or len(size) != 2 or not min(pixel) > 0 or not max(pixel) < 1 or min(size) < 1:
            raise ValueError
    except (TypeError, ValueError):
        raise SourceError(path, "two pixel sizes in metres and two edges in pixels", f"{pixel} and {size}") from None
    distance = number("distance")
    poni = (number("poni1"), number("poni2"))
    rotations = tuple(number(f"rot{k}", 0.0) for k in (1, 2, 3))
    wavelength = number("wavelength", 0.0) * 1e10
    return PoniDetector(size, pixel, poni, distance, rotations, azimuth), wavelength or None


def _agreed(path, name: str, read, given):
    """What the file says and the job says; either may be silent, both must agree."""
    if read is None and given is None:
        raise SourceError(path, f"the detector's {name}", "nothing", f"give {name} in the job's [instrument]")
    if read is None or given is None:
        return given if read is None else read
    if not isinstance(read, list) or any(
        not isinstance(a, (int, float)) or abs(a - b) > 1e-6 * abs(b) for a, b in zip(read, given)
    ):
        raise SourceError(path, f"{name} {list(given)} as in the job's [instrument]", str(read))
    return given


def energy_of(wavelength_angstrom: float) -> float:
    """Photon energy in keV of a wavelength in Å."""
    return HC_KEV_ANGSTROM / wavelength_angstrom
