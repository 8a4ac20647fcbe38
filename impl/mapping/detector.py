"""Detectors: the unit ray from the sample to any point of a panel, and the factors that depend on it alone.

A pixel's integer index is its centre; its corners lie at index -/+ 0.5. Rays are in the laboratory axes of geometry.py.
"""

from dataclasses import dataclass

import numpy as np

from impl.mapping.geometry import exponential_map, rotation

#: from the axes of HEXRD (beam along -z, y up) to ours (beam along +y, z up)
FROM_HEXRD = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])


def _turn(matrix, x, y, z):
    """Matrix times (x, y, z), element by element: a BLAS product's last bits would depend on the tile."""
    m = np.asarray(matrix)
    return np.stack(np.broadcast_arrays(*(m[k, 0] * x + m[k, 1] * y + m[k, 2] * z for k in range(3))), axis=-1)


class Detector:
    """A flat panel; a subclass gives `position` and `normal`.

    Attributes
    ----------
    shape : (int, int)    rows and columns
    """

    shape: tuple[int, int]

    def position(self, rows, columns):
        """Laboratory position, metres, float64 (..., 3), of pixel indices that may be fractional."""
        raise NotImplementedError

    def normal(self):
        """Unit vector across the panel, float64 (3,)."""
        raise NotImplementedError

    def rays(self, rows, columns, origin=(0.0, 0.0, 0.0)):
        """Unit rays from the origin (metres) to pixel indices."""
        vector = self.position(rows, columns) - np.asarray(origin, float)
        x, y, z = vector[..., 0], vector[..., 1], vector[..., 2]
        return vector / np.sqrt(x * x + y * y + z * z)[..., None]

    def corner_rays(self, r0: int, r1: int, c0: int, c1: int, origin=(0.0, 0.0, 0.0)):
        """Rays of the corners of pixels [r0, r1) x [c0, c1): float64 (rows + 1, columns + 1, 3), C order.

        Any two tiles have the same bits in the corners that they share.
        """
        rows, columns = np.arange(r0, r1 + 1) - 0.5, np.arange(c0, c1 + 1) - 0.5
        return np.ascontiguousarray(self.rays(rows[:, None], columns[None, :], origin))

    def solid_angle(self, r0: int, r1: int, c0: int, c1: int, origin=(0.0, 0.0, 0.0)):
        """Solid angle of pixels [r0, r1) x [c0, c1), 1 where a ray meets the panel squarely: float64 (rows, columns).

        cos³ of the incidence. Source: Kieffer & Karkoulis, J. Phys. Conf. Ser. 425 (2013) 202012.
        """
        ray, n = self.rays(np.arange(r0, r1)[:, None], np.arange(c0, c1)[None, :], origin), self.normal()
        return np.abs(ray[..., 0] * n[0] + ray[..., 1] * n[1] + ray[..., 2] * n[2]) ** 3

    def polarisation(self, r0: int, r1: int, c0: int, c1: int, origin=(0.0, 0.0, 0.0), horizontal: float = 0.99):
        """Polarisation factor of the pixels: float64 (rows, columns).

        horizontal is the fraction f of the beam's intensity that is polarised along x: f (1 - x²) + (1 - f)(1 - z²) of
        the unit ray. Source: Als-Nielsen & McMorrow, Elements of Modern X-ray Physics, 1.2.
        """
        ray = self.rays(np.arange(r0, r1)[:, None], np.arange(c0, c1)[None, :], origin)
        return horizontal * (1 - ray[..., 0] ** 2) + (1 - horizontal) * (1 - ray[..., 2] ** 2)

    def static_factor(self, r0: int, r1: int, c0: int, c1: int, horizontal: float = 0.99, origin=(0.0, 0.0, 0.0)):
        """1 / solid angle / polarisation of the pixels' centres: float64 (rows, columns)."""
        solid_angle = self.solid_angle(r0, r1, c0, c1, origin)
        return 1 / solid_angle / self.polarisation(r0, r1, c0, c1, origin, horizontal)


@dataclass(frozen=True)
class PoniDetector(Detector):
    """A panel described as by pyFAI: the foot of the perpendicular from the sample, a distance and three rotations.

    Attributes
    ----------
    shape : (int, int)
    pitch : (float, float)       metres along rows' index and columns' index
    poni : (float, float)        metres
    distance : float             metres
    rotations : (3,) float       radians
    azimuth : float              radians: turns the panel's azimuth into the diffractometer's

    Right beyond 2θ = 90°, where going through a pair of angles gives the antipodal ray.
    """

    shape: tuple[int, int]
    pitch: tuple[float, float]
    poni: tuple[float, float]
    distance: float
    rotations: tuple[float, float, float] = (0.0, 0.0, 0.0)
    azimuth: float = 0.0

    def _matrix(self):
        """From the panel's own axes (rows, columns, outwards) to the laboratory."""
        r1, r2, r3 = self.rotations
        c, s = np.cos(self.azimuth), np.sin(self.azimuth)
        # pyFAI's axes are (t1, t2 across the beam, t3 along it).
        to_lab = np.array([[c, s, 0.0], [0.0, 0.0, 1.0], [-s, c, 0.0]])
        return to_lab @ rotation("z", r3) @ rotation("y", -r2) @ rotation("x", -r1)

    def position(self, rows, columns):
        p1 = self.pitch[0] * (np.asarray(rows, float) + 0.5) - self.poni[0]
        p2 = self.pitch[1] * (np.asarray(columns, float) + 0.5) - self.poni[1]
        return _turn(self._matrix(), p1, p2, self.distance)

    def normal(self):
        return self._matrix()[:, 2]


@dataclass(frozen=True)
class HexrdPanel(Detector):
    """A panel described as by HEXRD: tilt (exponential map) and translation in its axes, lengths in millimetres."""

    shape: tuple[int, int]
    pixel_mm: tuple[float, float]
    tilt: tuple[float, float, float]
    translation_mm: tuple[float, float, float]

    def position(self, rows, columns):
        x = self.pixel_mm[1] * (np.asarray(columns, float) - (self.shape[1] - 1) / 2)
        y = self.pixel_mm[0] * ((self.shape[0] - 1) / 2 - np.asarray(rows, float))
        tx, ty, tz = FROM_HEXRD @ np.array(self.translation_mm)
        turned = _turn(FROM_HEXRD @ exponential_map(self.tilt), x, y, 0.0)
        return (turned + np.array([tx, ty, tz])) * 1e-3

    def normal(self):
        return FROM_HEXRD @ exponential_map(self.tilt)[:, 2]
