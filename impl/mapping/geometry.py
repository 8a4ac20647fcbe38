"""From a laboratory ray to a coordinate: rotations, the chain of axes, exposure positions and their affine maps.

Axes of the laboratory: x in the plane across the beam, y along the beam, z up. Angles in radians, wave vectors in
Å⁻¹ with K = 2π/λ, a B matrix carries 2π. Scattering vector q = K (ray - (0, 1, 0)).
"""

import math

import numpy as np

#: the chain from the laboratory to the crystal; a mapping stops at one of them
AXES = ("lab", "alpha", "omega", "chi", "phi", "crystal", "hkl")
#: hc in keV Å, exact since 2019: h c / e
HC_KEV_ANGSTROM = 12.398419843320026


def wave_number(energy_keV: float) -> float:
    """K = 2π/λ in Å⁻¹ of a photon energy in keV."""
    return 2 * math.pi * energy_keV / HC_KEV_ANGSTROM


def rotation(axis: str, angle):
    """Right-handed rotation matrices about x, y or z: float64 (..., 3, 3) for angles (...)."""
    angle = np.asarray(angle, float)
    c, s = np.cos(angle), np.sin(angle)
    i = "xyz".index(axis)
    j, k = (i + 1) % 3, (i + 2) % 3
    out = np.zeros((*angle.shape, 3, 3))
    out[..., i, i] = 1.0
    out[..., j, j] = out[..., k, k] = c
    out[..., j, k] = -s
    out[..., k, j] = s
    return out


def exponential_map(vector):
    """Rotation matrix of an exponential map: axis times angle in radians, float64 (3,) -> (3, 3).

    Source: Rodrigues' rotation formula.
    """
    vector = np.asarray(vector, float)
    angle = float(np.linalg.norm(vector))
    if angle == 0.0:
        return np.eye(3)
    x, y, z = vector / angle
    k = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + math.sin(angle) * k + (1.0 - math.cos(angle)) * (k @ k)


def b_matrix(a, b, c, alpha, beta, gamma):
    """B of a unit cell, 2π included: columns are the reciprocal axes in Å⁻¹; a lies along x, b in the xy plane.

    Parameters: cell lengths in Å, angles in radians. Raises ValueError for a cell without volume.

    Trap: Busing & Levy, Acta Cryst. 22 (1967) 457, put a* along x and leave 2π out.
    Source: International Tables for Crystallography B (2006), 1.1.
    """
    ca, cb, cg, sg = math.cos(alpha), math.cos(beta), math.cos(gamma), math.sin(gamma)
    squared = 1 - ca * ca - cb * cb - cg * cg + 2 * ca * cb * cg
    if min(a, b, c) <= 0 or squared <= 0:
        raise ValueError(f"cell: expected positive lengths and a volume, found {(a, b, c, alpha, beta, gamma)}")
    direct = np.array(
        [
            [a, b * cg, c * cb],
            [0.0, b * sg, c * (ca - cb * cg) / sg],
            [0.0, 0.0, c * math.sqrt(squared) / sg],
        ]
    )
    return 2 * math.pi * np.linalg.inv(direct).T


def chain(angles, axes: str, u=None, ub=None):
    """Matrices that take q of the laboratory to the given axes.

    Parameters
    ----------
    angles : float64 (..., 4)    alpha, omega, chi, phi
    axes : str                   one of AXES; a leading 'q_' is allowed
    u, ub : float64 (3, 3)       orientation and U·B, needed for crystal and hkl

    Returns
    -------
    float64 (..., 3, 3)

    Raises
    ------
    ValueError                   unknown axes, or u or ub missing or singular

    q_alpha = Rx(-alpha) q, q_omega = Rz(+omega) q_alpha, q_chi = Ry(-chi) q_omega, q_phi = Rx(-phi) q_chi: only omega
    enters with a plus sign.
    """
    axes = axes.removeprefix("q_")
    if axes not in AXES:
        raise ValueError(f"axes: expected one of {', '.join(AXES)}, found '{axes}'")
    angles = np.asarray(angles, float)
    alpha, omega, chi, phi = (angles[..., k] for k in range(4))
    steps = [
        ("alpha", rotation("x", -alpha)),
        ("omega", rotation("z", omega)),
        ("chi", rotation("y", -chi)),
        ("phi", rotation("x", -phi)),
    ]
    matrix = np.broadcast_to(np.eye(3), (*angles.shape[:-1], 3, 3))
    for name, step in steps:
        if AXES.index(axes) >= AXES.index(name):
            matrix = step @ matrix
    if axes in ("crystal", "hkl"):
        given, name = (u, "u") if axes == "crystal" else (ub, "ub")
        if given is None:
            raise ValueError(f"axes '{axes}': expected {name}, found none")
        try:
            matrix = np.linalg.inv(np.asarray(given, float)) @ matrix
        except np.linalg.LinAlgError:
            raise ValueError(f"{name}: expected an invertible matrix, found {given}") from None
    return matrix


def affine(angles, wave_number: float, axes: str, u=None, ub=None):
    """Affine maps from a unit ray to a coordinate: float64 (..., 3, 4), rows (a0, a1, a2, b), for angles (..., 4).

    coordinate = A ray + b with A = K·chain and b = chain (0, -K, 0).
    """
    a = wave_number * chain(angles, axes, u, ub)
    return np.ascontiguousarray(np.concatenate([a, -a[..., 1:2]], axis=-1))


def exposure_tables(start, end, depth: int, wave_number: float, axes: str, u=None, ub=None):
    """Affine maps at the 2^(depth+1)+1 positions of every frame's exposure.

    Parameters
    ----------
    start, end : float64 (F, 4)    angles at both ends of the exposure; a frame is stationary iff all four are equal
    depth : int                    subdivision depth, 0..8

    Returns
    -------
    float64 (F, 2^(depth+1)+1, 3, 4), bool (F,)    tables and which frames are stationary

    Angles are interpolated, not matrices, so every position is an exact rotation. Raises ValueError for angles that are
    not finite.
    """
    start, end = np.asarray(start, float), np.asarray(end, float)
    if start.ndim != 2 or start.shape[1] != 4 or start.shape != end.shape:
        raise ValueError(f"angles: expected two arrays (frames, 4), found {start.shape} and {end.shape}")
    if not (np.isfinite(start).all() and np.isfinite(end).all()):
        raise ValueError("angles: expected finite numbers, found NaN or Inf")
    t = np.arange(2 ** (depth + 1) + 1) / 2.0 ** (depth + 1)
    angles = start[:, None, :] + t[None, :, None] * (end - start)[:, None, :]
    return affine(angles, wave_number, axes, u, ub), (start == end).all(axis=1)


def exposure_bounds(centres, kind: str = "midpoint"):
    """Start and end angles of frames of which only the centres are known.

    Parameters
    ----------
    centres : float64 (F, 4)
    kind : str    'stationary': start = end = centre; 'midpoint': edges half way between neighbours, the outer two
                  extrapolated by half a step, a single frame stationary

    Returns
    -------
    float64 (F, 4), float64 (F, 4)
    """
    centres = np.asarray(centres, float)
    if kind not in ("stationary", "midpoint"):
        raise ValueError(f"exposure bounds: expected 'stationary' or 'midpoint', found '{kind}'")
    if kind == "stationary" or len(centres) == 1:
        return centres.copy(), centres.copy()
    centres = np.unwrap(centres, axis=0)
    inner = (centres[1:] + centres[:-1]) / 2
    first = centres[:1] - (centres[1:2] - centres[:1]) / 2
    last = centres[-1:] + (centres[-1:] - centres[-2:-1]) / 2
    edges = np.concatenate([first, inner, last])
    return edges[:-1], edges[1:]
