"""Lorentz transformations of vectors and multivectors, and the test that a function commutes with them.

A transformation is a matrix L (4, 4) on (t, x, y, z); on a multivector it acts as the map that respects the product,
whose entries are minors of L. float64 throughout.
"""

import math

import torch

from . import algebra

PARITY = torch.diag(torch.tensor([1.0, -1.0, -1.0, -1.0], dtype=torch.float64))
TIME_REVERSAL = torch.diag(torch.tensor([-1.0, 1.0, 1.0, 1.0], dtype=torch.float64))


def boost(rapidity: float, axis: torch.Tensor) -> torch.Tensor:
    """Boost along a direction (3,), of any length but zero; the speed is tanh(rapidity)."""
    n = axis.double() / axis.double().norm()  # in float32 the matrix would keep masses to 1e-8 of the energy only
    out = torch.eye(4, dtype=torch.float64)
    out[0, 0] = math.cosh(rapidity)
    out[0, 1:] = out[1:, 0] = math.sinh(rapidity) * n
    out[1:, 1:] += (math.cosh(rapidity) - 1) * torch.outer(n, n)
    return out


def rotation(generator: torch.Generator) -> torch.Tensor:
    """A rotation of space, drawn evenly."""
    q, r = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    q = q * r.diagonal().sign()
    out = torch.eye(4, dtype=torch.float64)
    out[1:, 1:] = q if torch.det(q) > 0 else -q
    return out


def random_transformation(generator: torch.Generator, rapidity: float = 1.0) -> torch.Tensor:
    """Rotation, boost in a random direction with this rapidity, rotation."""
    axis = torch.randn(3, generator=generator, dtype=torch.float64)
    return rotation(generator) @ boost(rapidity, axis) @ rotation(generator)


def on_multivectors(transformation: torch.Tensor) -> torch.Tensor:
    """(4, 4) on vectors -> (16, 16) on multivectors: the minor of rows and columns named by two blades of a grade."""
    generators = [[g for g in range(4) if mask >> g & 1] for mask in algebra.BLADES]
    out = torch.zeros(16, 16, dtype=torch.float64)
    for i, rows in enumerate(generators):
        for j, columns in enumerate(generators):
            if len(rows) == len(columns):
                minor = transformation[rows][:, columns]
                out[i, j] = torch.linalg.det(minor) if rows else 1.0
    return out


def apply(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Transform the last axis of (…, 16) or (…, 4)."""
    return x @ matrix.T.to(x.dtype)


def deviation(function, multivectors: torch.Tensor, transformation: torch.Tensor, *others) -> float:
    """How far f(L x) is from L f(x), in units of the largest number in L f(x).

    function(multivectors, *others) returns multivectors or (multivectors, scalars or None). The last axis has 16 or 4
    components.
    """
    wide = on_multivectors(transformation) if multivectors.shape[-1] == 16 else transformation

    def pair(result):
        return result if isinstance(result, tuple) else (result, None)

    with torch.no_grad():
        mv, s = pair(function(multivectors, *others))
        moved_mv, moved_s = pair(function(apply(wide, multivectors), *others))
    expected = apply(wide, mv.double())
    worst = float((moved_mv.double() - expected).abs().max() / expected.abs().max())
    if s is not None and s.numel():
        worst = max(worst, float((moved_s - s).abs().max() / s.abs().max()))
    return worst


def assert_equivariant(function, multivectors, transformation, *others, tolerance: float = 1e-10) -> None:
    """AssertionError with the deviation when it is not within tolerance."""
    found = deviation(function, multivectors, transformation, *others)
    if not found <= tolerance:
        raise AssertionError(f"equivariance: expected a deviation of at most {tolerance:.0e}, found {found:.3e}")
