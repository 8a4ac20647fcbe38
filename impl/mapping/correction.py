"""Corrections of whole frames, before any tiling: counts in, intensity, variance and mask out.

The order is the contract: variance, background, mask and repair, static factor, scalar factors, finiteness. Every step
is elementwise in float64, so NumPy passes and the fused pass in C give the same bits.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from impl.mapping import kernel
from impl.mapping.geometry import rotation


@dataclass
class Corrected:
    """A corrected frame as Kernel.map_view takes it; every array (rows, columns), C-contiguous.

    Attributes
    ----------
    intensity, variance : float64
    mask : bool                      True excludes; every pixel that is not finite is excluded
    applied : dict                   what was done, for the provenance; plain values
    """

    intensity: np.ndarray
    variance: np.ndarray
    mask: np.ndarray
    applied: dict = field(default_factory=dict)

    @classmethod
    def empty(cls, shape) -> "Corrected":
        """Uninitialised arrays of that shape, to be given as `out`."""
        return cls(np.empty(shape), np.empty(shape), np.empty(shape, bool))


class Correction:
    """What is corrected alike in every frame of a job; `apply` may be called from several threads at once.

    Parameters
    ----------
    static : float64 (rows, columns) or None                 factor S of every pixel, see static_factor
    background : float64 (rows, columns) or None             subtracted from the counts
    background_variance : float64 (rows, columns) or None    None: the background is taken as exact
    mask : bool (rows, columns) or None                      True excludes in every frame
    repair : int                                             masked components of so many pixels at most are filled in
    fused : bool                                             one pass in C; False: NumPy, step after step
    instructions : str                                       of the fused pass, see kernel.Options

    Raises
    ------
    TypeError, ValueError    an array is not exactly of this dtype, shape and layout
    """

    def __init__(
        self,
        *,
        static=None,
        background=None,
        background_variance=None,
        mask=None,
        repair=0,
        fused=True,
        instructions="best",
    ):
        if background_variance is not None and background is None:
            raise ValueError("background_variance: expected a background with it, found none")
        if repair < 0:
            raise ValueError(f"repair: expected at least 0 pixels, found {repair}")
        given = {"static": static, "background": background, "background_variance": background_variance, "mask": mask}
        self.shape = next((a.shape for a in given.values() if isinstance(a, np.ndarray)), None)
        for name, array in given.items():
            if array is not None:
                kernel.exactly(name, array, np.bool_ if name == "mask" else np.float64, self.shape)
        self.static, self.background, self.background_variance, self.mask = given.values()
        # Squared once, here: the same bits whoever multiplies by it.
        self.static_squared = None if static is None else np.square(static)
        self.repair, self.fused, self.instructions = repair, fused, instructions

    def apply(self, counts, variance=None, mask=None, factors=(), out=None) -> Corrected:
        """Correct one frame.

        Parameters
        ----------
        counts : integers, float32 or float64 (rows, columns)    read as they are
        variance : float64 (rows, columns) or None               None: the counts, at least 0 (Poisson)
        mask : bool (rows, columns) or None                      of this frame alone
        factors : sequence of (c, c², variance of c or NaN)      see scalar_factors
        out : Corrected or None                                  overwritten and returned

        Raises
        ------
        TypeError, ValueError    an array is not exactly of this dtype, shape and layout, or `out` overlaps an input
        """
        if not isinstance(counts, np.ndarray) or counts.ndim != 2:
            raise TypeError("counts: expected a NumPy array (rows, columns)")
        if self.shape is not None and counts.shape != self.shape:
            raise ValueError(f"counts: expected shape {self.shape}, found {counts.shape}")
        if out is None:
            out = Corrected.empty(counts.shape)
        arrays = out.intensity, out.variance, out.mask
        for array in arrays:
            for name, given in (("counts", counts), ("variance", variance), ("mask", mask)):
                if given is not None and np.may_share_memory(array, given):
                    raise ValueError(f"out: expected memory of its own, found that it overlaps {name}")
        before = {
            "variance": variance, "mask": mask, "background": self.background,
            "background_variance": self.background_variance, "static_mask": self.mask,
        }  # fmt: skip
        static = {"factor": self.static, "factor_squared": self.static_squared, "scalars": factors}
        run = _fused(self.instructions) if self.fused else _passes
        if self.repair:
            from impl.mapping.repair import repair

            run(counts, arrays, **before)
            # Pixels that are not finite count as masked, so that they are filled in too.
            repaired = repair(*arrays, self.repair)
            run(repaired[0], arrays, variance=repaired[1], mask=repaired[2], **static)
        else:
            run(counts, arrays, **before, **static)
        out.applied = self.describe(variance is not None, factors)
        return out

    def describe(self, has_variance=False, factors=()) -> dict:
        """What `apply` does, in order, for the provenance: plain values."""
        propagated = "propagated" if self.background_variance is not None else "deterministic"
        return {
            "variance": "of the source" if has_variance else "Poisson of the clipped image",
            "background": None if self.background is None else propagated,
            "mask": self.mask is not None,
            "repair": self.repair,
            "static": self.static is not None,
            "factors": [[c, None if math.isnan(v) else v] for c, _, v in factors],
        }


def scale(intensity, variance, mask, static=None, static_squared=None, factors=(), fused=True) -> None:
    """Static and scalar factors on a frame in place; what cannot be changed in place is refused, never copied.

    Parameters
    ----------
    intensity, variance : float64 (rows, columns)
    mask : bool (rows, columns)                            pixels that are not finite afterwards are added
    static, static_squared : float64 (rows, columns) or None
    factors : sequence of (c, c², variance of c or NaN)    see scalar_factors

    Raises
    ------
    TypeError, ValueError    another dtype, shape or layout, or a read-only array
    """
    if (static is None) != (static_squared is None):
        raise ValueError("static, static_squared: expected both or neither, found one")
    shape = intensity.shape if isinstance(intensity, np.ndarray) else None
    out = intensity, variance, mask
    for name, array, dtype in zip(("intensity", "variance", "mask"), out, (np.float64, np.float64, np.bool_)):
        kernel.exactly(name, array, dtype, shape, written=True)
    run = _fused("best") if fused else _passes
    run(intensity, out, variance=variance, mask=mask, factor=static, factor_squared=static_squared, scalars=factors)


def _fused(instructions):
    def run(counts, out, **given):
        kernel.correct(counts, out, instructions=instructions, **given)

    return run


def _passes(counts, out, scalars=(), **inputs):
    """The steps one after the other; out may be counts, variance and mask themselves."""
    kernel.check_frame(counts, out, scalars=scalars, **inputs)
    variance, mask, static_mask = (inputs.get(name) for name in ("variance", "mask", "static_mask"))
    i, v, m = out
    with np.errstate(invalid="ignore", over="ignore"):
        if variance is None:
            np.maximum(counts, 0, out=v)
        elif v is not variance:
            v[:] = variance
        if i is not counts:
            i[:] = counts
        if (x := inputs.get("background")) is not None:
            i -= x
        if (x := inputs.get("background_variance")) is not None:
            v += x
        if m is not mask:
            m[:] = False if static_mask is None else static_mask
            if mask is not None:
                m |= mask
        if (x := inputs.get("factor")) is not None:
            i *= x
            v *= inputs["factor_squared"]
        for c, c2, spread in scalars:
            v *= c2
            if not math.isnan(spread):
                v += i * i * spread
            i *= c
        m |= ~(np.isfinite(i) & np.isfinite(v))


def scalar_factors(exposure=None, exposure_variance=None, monitors=(), variances=None, where="frame"):
    """Factors of one frame in the order of the contract: exposure time first, then the monitors as they come.

    Parameters
    ----------
    exposure : float or None             seconds, > 0
    exposure_variance : float or None    s²; None: taken as exact
    monitors : {name: float}             not 0
    variances : {name: float}            of monitors; a name that is absent is taken as exact
    where : str                          begins the sentence of an error, as 'frame 12'

    Returns
    -------
    list of (c, c², variance of c or NaN)    c = 1/value, its variance v/value⁴; NaN: the factor is exact

    Raises
    ------
    ValueError    a value that cannot be divided by, or a variance that is none
    """
    monitors, variances = dict(monitors), dict(variances or {})
    unknown = set(variances) - set(monitors)
    if unknown:
        raise ValueError(f"{where}: variances: expected names of monitors, found {', '.join(sorted(unknown))}")
    given = [] if exposure is None else [("exposure", exposure, exposure_variance, "a finite number above 0")]
    given += [
        (f"monitor '{name}'", value, variances.get(name), "a finite number other than 0")
        for name, value in monitors.items()
    ]
    out = []
    for name, value, variance, expected in given:
        value = float(value)
        if not math.isfinite(value) or value == 0 or (name == "exposure" and value < 0):
            raise ValueError(
                f"{where}: {name}: expected {expected}, found {value}; exclude the frame or leave the factor out"
            )
        if variance is not None and not (math.isfinite(variance) and variance >= 0):
            raise ValueError(
                f"{where}: variance of {name}: expected a finite number of at least 0, found {float(variance)}; leave "
                "it out where it is unknown"
            )
        try:
            c = 1 / value
            factor = c, c**2, math.nan if variance is None else float(variance) / value**4
        except (OverflowError, ZeroDivisionError):
            factor = math.inf, math.inf, math.inf
        if not math.isfinite(factor[1]) or math.isinf(factor[2]) or factor[1] == 0:
            raise ValueError(
                f"{where}: {name}: expected a value whose square and inverse are doubles, found {value}; use other "
                "units"
            )
        out.append(factor)
    return out


#: least |axis · (ray x beam)| / |ray x beam|: below, a reflection stays in the condition too long to be measured
LEAST_ZETA = 0.05


def static_factor(
    detector, solid_angle=True, polarisation=None, flat=None, axis=None, rectangle=None, origin=(0, 0, 0)
):
    """Factor of every pixel that is alike in all frames: 1 / solid angle / polarisation / flat field / Lorentz factor.

    Parameters
    ----------
    detector : detector.Detector
    solid_angle : bool                           divide by cos³ of the incidence, 1 where a ray meets the panel squarely
    polarisation : float or None                 fraction of the beam polarised along x, 0..1; divide by its factor
    flat : float64 (rows, columns) or None       efficiency of the whole panel's pixels; not above 0: pixel excluded
    axis : (3,) float or None                    rotation axis of the scan in the laboratory; divide by `lorentz`
    rectangle : (r0, r1, c0, c1) or None         None: the whole panel
    origin : (3,) float                          where the rays start, metres

    Returns
    -------
    float64 (rows, columns)    NaN excludes a pixel; any rectangle has the bits of the whole

    Raises
    ------
    ValueError                 polarisation outside 0..1, or a flat field of another shape
    """
    r0, r1, c0, c1 = rectangle or (0, detector.shape[0], 0, detector.shape[1])
    pixels = r0, r1, c0, c1, origin
    factor = np.ones((r1 - r0, c1 - c0))
    if solid_angle:
        factor /= detector.solid_angle(*pixels)
    if polarisation is not None:
        if not 0 <= polarisation <= 1:
            raise ValueError(f"polarisation: expected the fraction along x, from 0 to 1, found {polarisation}")
        factor /= detector.polarisation(*pixels, horizontal=polarisation)
    if flat is not None:
        if flat.shape != tuple(detector.shape):
            raise ValueError(f"flat: expected shape {tuple(detector.shape)}, found {flat.shape}")
        part = flat[r0:r1, c0:c1]
        factor /= np.where(part > 0, part, np.nan)
    if axis is not None:
        factor /= lorentz(detector.rays(np.arange(r0, r1)[:, None], np.arange(c0, c1)[None, :], origin), axis)
    return factor


def lorentz(rays, axis):
    """Lorentz factor of a rotation scan: 1 / |axis · (ray x beam)|, a point's time through the Ewald sphere.

    Parameters
    ----------
    rays : float64 (..., 3)    unit rays, laboratory
    axis : (3,) float          rotation axis, laboratory, of any length

    Returns
    -------
    float64 (...)              NaN where the axis lies so close to the plane of ray and beam that there is no such time

    For integrated intensities; a map of averages per voxel needs none. Source: Kabsch, J. Appl. Cryst. 21 (1988) 916;
    limit as MINIMUM_ZETA of XDS, Acta Cryst. D66 (2010) 125.
    """
    nx, _, nz = np.asarray(axis, float) / np.linalg.norm(axis)
    x, z = rays[..., 0], rays[..., 2]
    # ray x (0, 1, 0) = (-z, 0, x)
    across, size = np.abs(nz * x - nx * z), np.sqrt(x * x + z * z)
    with np.errstate(divide="ignore"):
        return np.where(across < LEAST_ZETA * size, np.nan, 1 / across)


def scan_axis(start, end):
    """The laboratory axis that all frames turn about, (3,) float64 of unit length.

    start, end : float64 (F, 4), alpha, omega, chi, phi at both ends of every exposure. Raises ValueError where nothing
    turns, or the axis changes in the scan (by more than 1e-6): then there is no static Lorentz factor.
    """
    start, end = np.asarray(start, float), np.asarray(end, float)
    alpha, omega, chi, _ = ((start + end) / 2).T
    turns = (end - start).T
    # Each axis as the rotations before it leave it; only omega turns the sample by its negative.
    inner = rotation("x", alpha)
    axes = [np.broadcast_to([1.0, 0.0, 0.0], (len(start), 3)), inner @ [0.0, 0.0, -1.0]]
    inner = inner @ rotation("z", -omega)
    axes.append(inner @ [0.0, 1.0, 0.0])
    inner = inner @ rotation("y", chi)
    axes.append(inner @ [1.0, 0.0, 0.0])
    total = sum(turn[:, None] * axis for turn, axis in zip(turns, axes))
    size = np.linalg.norm(total, axis=1)
    if not (size > 0).all():
        raise ValueError("scan axis: expected frames that turn, found stationary ones; leave the Lorentz factor out")
    total /= size[:, None]
    total *= np.where(total @ total[0] < 0, -1.0, 1.0)[:, None]
    if np.abs(total - total[0]).max() > 1e-6:
        raise ValueError("scan axis: expected one axis for all frames, found several; leave the Lorentz factor out")
    return total[0]
