"""Rays, rotations, exposures and detectors against formulas written another way."""

import math

import numpy as np
import pytest

from impl.mapping import geometry
from impl.mapping.detector import HexrdPanel, PoniDetector
from impl.mapping.pipeline import prepare
from impl.mapping.sources import synthetic


def pyfai_position(d1, d2, pitch, poni, distance, rotations):
    """pyFAI's three coordinates, written out."""
    r1, r2, r3 = rotations
    s, c = math.sin, math.cos
    p1, p2 = pitch[0] * (d1 + 0.5) - poni[0], pitch[1] * (d2 + 0.5) - poni[1]
    t1 = (
        p1 * c(r2) * c(r3)
        + p2 * (c(r3) * s(r1) * s(r2) - c(r1) * s(r3))
        - distance * (c(r1) * c(r3) * s(r2) + s(r1) * s(r3))
    )
    t2 = (
        p1 * c(r2) * s(r3)
        + p2 * (c(r1) * c(r3) + s(r1) * s(r2) * s(r3))
        - distance * (-c(r3) * s(r1) + c(r1) * s(r2) * s(r3))
    )
    t3 = p1 * s(r2) - p2 * c(r2) * s(r1) + distance * c(r1) * c(r2)
    return t1, t2, t3


def angle_pair_ray(t1, t2, t3, delta):
    """The ray through two diffractometer angles; right below 2θ = 90° only."""
    tth, az = math.atan2(math.hypot(t1, t2), t3), math.atan2(t1, t2) + delta
    d = math.atan2(math.sin(tth) * math.sin(az), math.cos(tth))
    g = math.atan2(math.sin(tth) * math.cos(az) * math.cos(d), math.cos(tth))
    return np.array([math.sin(d) * math.cos(g), math.cos(d) * math.cos(g), math.sin(g)])


@pytest.mark.parametrize("seed", range(20))
def test_rays_of_a_poni_detector(seed):
    rng = np.random.default_rng(seed)
    pitch, poni, distance = rng.uniform(1e-4, 2e-4, 2), rng.uniform(-0.1, 0.1, 2), rng.uniform(0.1, 1)
    turns, delta = rng.uniform(-3, 3, 3), rng.uniform(0, 6)
    detector = PoniDetector((100, 100), tuple(pitch), tuple(poni), distance, tuple(turns), delta)
    d1, d2 = rng.uniform(0, 100, 2)
    t1, t2, t3 = pyfai_position(d1, d2, pitch, poni, distance, turns)
    expected = np.array(
        [
            t1 * math.cos(delta) + t2 * math.sin(delta),
            t3,
            t2 * math.cos(delta) - t1 * math.sin(delta),
        ]
    )
    expected /= np.linalg.norm(expected)
    ray = detector.rays(d1, d2)
    np.testing.assert_allclose(ray, expected, atol=1e-14)
    pair = angle_pair_ray(t1, t2, t3, delta)
    # beyond 90° the pair of angles gives the opposite ray; the vector form does not
    np.testing.assert_allclose(ray, pair if t3 > 0 else -pair, atol=1e-13)


def test_a_ray_beyond_90_degrees_points_backwards():
    # 2θ = 120°, azimuth 0.4: three coordinates of a point there
    tth, az = math.radians(120), 0.4
    t = math.sin(tth) * math.sin(az), math.sin(tth) * math.cos(az), math.cos(tth)
    assert angle_pair_ray(*t, 0.0) == pytest.approx((-0.337, 0.500, -0.798), abs=1e-3)
    # a panel whose middle looks at it: tilt by r2, then r1
    r1, r2 = math.asin(t[1]), math.atan2(-t[0], t[2])
    ray = PoniDetector((1, 1), (1.0, 1.0), (0.5, 0.5), 1.0, (r1, r2, 0.0)).rays(0, 0)
    assert ray == pytest.approx((0.337, -0.500, 0.798), abs=1e-3)


@pytest.mark.parametrize(
    "detector",
    [
        PoniDetector((60, 80), (1e-4, 1.3e-4), (0.01, -0.02), 0.3, (0.3, -0.2, 0.7), 1.5),
        HexrdPanel((60, 80), (0.07, 0.08), (0.01, -0.3, 0.1), (20.0, 3.0, -600.0)),
    ],
)
def test_tiles_share_the_bits_of_their_corners(detector):
    whole = detector.corner_rays(0, 60, 0, 80)
    assert np.abs(np.linalg.norm(whole, axis=-1) - 1).max() < 4e-16
    for r0, r1, c0, c1 in ((0, 1, 0, 1), (7, 33, 5, 6), (59, 60, 0, 80)):
        tile = detector.corner_rays(r0, r1, c0, c1)
        assert tile.tobytes() == np.ascontiguousarray(whole[r0 : r1 + 1, c0 : c1 + 1]).tobytes()
    centre = detector.rays(10, 20)
    corners = whole[10:12, 20:22].reshape(4, 3).mean(axis=0)
    np.testing.assert_allclose(centre, corners / np.linalg.norm(corners), atol=1e-6)


def test_the_chain_turns_as_its_definition_says():
    angles, rng = (0.1, 0.2, 0.3, 0.4), np.random.default_rng(1)
    q, ub = rng.normal(size=3), rng.normal(size=(3, 3))
    u = np.linalg.qr(ub)[0]

    def turn(v, i, j, angle):  # from axis i towards axis j
        v = v.copy()
        v[i], v[j] = v[i] * math.cos(angle) - v[j] * math.sin(angle), v[i] * math.sin(angle) + v[j] * math.cos(angle)
        return v

    expected = {"lab": q}
    expected["alpha"] = turn(q, 1, 2, -0.1)
    expected["omega"] = turn(expected["alpha"], 0, 1, 0.2)
    expected["chi"] = turn(expected["omega"], 2, 0, -0.3)
    expected["phi"] = turn(expected["chi"], 1, 2, -0.4)
    expected["crystal"] = np.linalg.solve(u, expected["phi"])
    expected["hkl"] = np.linalg.solve(ub, expected["phi"])
    for axes, value in expected.items():
        np.testing.assert_allclose(geometry.chain(angles, axes, u, ub) @ q, value, rtol=1e-12, atol=1e-13)
        assert (geometry.chain(angles, "q_" + axes, u, ub) == geometry.chain(angles, axes, u, ub)).all()
    with pytest.raises(ValueError, match="expected one of"):
        geometry.chain(angles, "qlab")
    with pytest.raises(ValueError, match="found none"):
        geometry.chain(angles, "hkl")
    with pytest.raises(ValueError, match="invertible"):
        geometry.chain(angles, "hkl", ub=np.zeros((3, 3)))


def test_a_coordinate_is_affine_in_the_ray():
    rng = np.random.default_rng(2)
    angles, ub = rng.uniform(-1, 1, 4), rng.normal(size=(3, 3))
    ray = rng.normal(size=3)
    ray /= np.linalg.norm(ray)
    q = 7.0 * (ray - np.array([0, 1, 0]))
    table = geometry.affine(angles, 7.0, "hkl", ub=ub)
    np.testing.assert_allclose(table[:, :3] @ ray + table[:, 3], geometry.chain(angles, "hkl", ub=ub) @ q, atol=1e-12)


def test_exposure_positions_are_exact_rotations_between_the_ends():
    start, end = np.array([[0, 0.1, 0, 0], [0, 0.2, 0, 0]]), np.array([[0, 0.3, 0, 0], [0, 0.2, 0, 0]])
    tables, still = geometry.exposure_tables(start, end, 2, 5.0, "omega")
    assert tables.shape == (2, 9, 3, 4)
    assert still.tolist() == [False, True]
    np.testing.assert_array_equal(tables[0, 0], geometry.affine(start[0], 5.0, "omega"))
    np.testing.assert_array_equal(tables[0, 8], geometry.affine(start[0] + 1.0 * (end[0] - start[0]), 5.0, "omega"))
    np.testing.assert_allclose(tables[0, 3], geometry.affine([0, 0.1 + 0.2 * 3 / 8, 0, 0], 5.0, "omega"), atol=1e-15)
    assert (tables[1] == tables[1, :1]).all()
    with pytest.raises(ValueError, match="finite"):
        geometry.exposure_tables(start * np.nan, end, 2, 5.0, "omega")


def test_bounds_from_centres():
    centres = np.zeros((4, 4))
    centres[:, 1] = [3.0, 3.1, -3.0831853, -2.9831853]  # passes ±π
    start, end = geometry.exposure_bounds(centres)
    np.testing.assert_allclose((end - start)[:, 1], 0.1, atol=1e-7)
    np.testing.assert_allclose(start[0, 1], 2.95)
    np.testing.assert_array_equal(start[1:], end[:-1])
    for a, b in (geometry.exposure_bounds(centres, "stationary"), geometry.exposure_bounds(centres[:1])):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="midpoint"):
        geometry.exposure_bounds(centres, "both")


def test_b_matrix_of_a_triclinic_cell():
    cell = (4.0, 5.0, 6.0, 1.4, 1.5, 1.7)
    b = geometry.b_matrix(*cell)
    metric = np.linalg.inv(b.T @ b / (2 * np.pi) ** 2)  # of the direct axes
    np.testing.assert_allclose(np.sqrt(np.diag(metric)), cell[:3])
    assert metric[0, 1] == pytest.approx(4 * 5 * math.cos(1.7))
    assert metric[0, 2] == pytest.approx(4 * 6 * math.cos(1.5))
    assert metric[1, 2] == pytest.approx(5 * 6 * math.cos(1.4))
    with pytest.raises(ValueError, match="volume"):
        geometry.b_matrix(1, 1, 1, 0.1, 1, 3)


def test_static_factor():
    detector = PoniDetector((50, 60), (1e-3, 1e-3), (0.025, 0.03), 0.1, azimuth=np.pi / 2)
    factor = detector.static_factor(0, 50, 0, 60, horizontal=0.9)
    x, z = (np.arange(60) + 0.5) * 1e-3 - 0.03, -((np.arange(50) + 0.5) * 1e-3 - 0.025)
    tth = np.arctan2(np.hypot(x[None], z[:, None]), 0.1)
    azimuth = np.arctan2(z[:, None], x[None])  # from the horizontal
    degree = 2 * 0.9 - 1
    polarisation = 0.5 * (1 + np.cos(tth) ** 2 - degree * np.cos(2 * azimuth) * np.sin(tth) ** 2)
    np.testing.assert_allclose(factor, 1 / np.cos(tth) ** 3 / polarisation, rtol=1e-12)
    tile = synthetic(4, 1).tiles[0]
    call = prepare(synthetic(4, 1), tile, 0, "stationary")[0]
    factor = synthetic(4, 1).detector.static_factor(*tile.rectangle)
    np.testing.assert_array_equal(call.intensity[0], tile.counts[0] * factor)
    np.testing.assert_array_equal(call.variance[0], tile.counts[0] * factor**2)
