"""Corrections: NumPy passes and the fused pass to the last bit, against the definition, against pyFAI, and refusals."""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import kernel_twins as twins
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn_from
from hypothesis import strategies as st

from impl.mapping import geometry
from impl.mapping.correction import Corrected, Correction, lorentz, scalar_factors, scale, scan_axis, static_factor
from impl.mapping.detector import HexrdPanel, PoniDetector
from impl.mapping.kernel import COUNTS, INSTRUCTIONS, best_instructions
from impl.mapping.reference import correct
from impl.mapping.repair import repair

SETS = [name for name in INSTRUCTIONS if name != "best"][: 1 + ["plain", "avx2", "avx512"].index(best_instructions())]
DTYPES = [str(dtype) for dtype in COUNTS]


def same(a: Corrected, b: Corrected) -> bool:
    """All three arrays to the last bit; a NaN is a NaN."""

    def bits(array):
        return np.where(np.isnan(array), 0.0, array).tobytes()

    return (
        bits(a.intensity) == bits(b.intensity)
        and bits(a.variance) == bits(b.variance)
        and np.array_equal(np.isnan(a.intensity), np.isnan(b.intensity))
        and np.array_equal(np.isnan(a.variance), np.isnan(b.variance))
        and a.mask.tobytes() == b.mask.tobytes()
    )


def frame(seed, dtype="uint16", shape=(7, 113), odd=True):
    """Counts, and everything that can be given with them, with odd numbers among them."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        counts = (rng.normal(5, 6, shape) * 1.1).astype(dtype)
        if odd:
            flat = counts.reshape(-1)
            flat[rng.choice(flat.size, 6, replace=False)] = [np.nan, np.inf, -np.inf, -0.0, -1.5, 1e-310]
    else:
        information = np.iinfo(kind)
        counts = rng.poisson(5, shape).astype(dtype)
        extremes = information.min, information.max
        counts.reshape(-1)[:2] = extremes[: counts.size]
    mask = rng.random(shape) < 0.1
    given = {
        "static": rng.uniform(0.5, 3, shape),
        "background": rng.normal(1, 0.3, shape),
        "background_variance": rng.uniform(0, 1, shape),
        "mask": rng.random(shape) < 0.1,
    }
    if odd:
        given["static"].reshape(-1)[[3, 50]] = np.nan, np.inf
        given["background"].reshape(-1)[7] = np.inf
    return counts, rng.uniform(0, 9, shape), mask, given


FACTORS = scalar_factors(2.0, 0.25, {"ring": 1.7, "diode": -0.3}, {"diode": 0.01})


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_fused_pass_has_the_bits_of_numpy(dtype):
    counts, variance, mask, given = frame(3, dtype)
    for static in (given, {}, {"static": given["static"]}, {"background": given["background"]}):
        expected = Correction(**static, fused=False).apply(counts, factors=FACTORS)
        for instructions in SETS:
            fused = Correction(**static, instructions=instructions)
            assert same(fused.apply(counts, factors=FACTORS), expected), (instructions, list(static))
    everything = counts, variance, mask, FACTORS
    assert same(Correction(**given).apply(*everything), Correction(**given, fused=False).apply(*everything))


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@drawn_from(st.data())
def test_both_arms_are_what_the_definition_says(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.sampled_from([(1, 1), (3, 5), (2, 400)]))
    counts, variance, mask, given = frame(data.draw(st.integers(0, 2**32)), dtype, shape, odd=False)
    given = {name: array for name, array in given.items() if data.draw(st.booleans())}
    if "background" not in given:
        given.pop("background_variance", None)
    variance = variance if data.draw(st.booleans()) else None
    mask = mask if data.draw(st.booleans()) else None
    spread = st.one_of(st.none(), st.floats(0, 9))
    value = st.floats(0.01, 100)
    factors = scalar_factors(
        data.draw(value),
        data.draw(spread),
        {"m": data.draw(value)},
        {"m": v} if (v := data.draw(spread)) is not None else {},
    )
    renamed = {"static_mask" if name == "mask" else name: array for name, array in given.items()}
    expected = correct(counts, variance, mask, factors, **renamed)
    for fused in (True, False):
        found = Correction(**given, fused=fused).apply(counts, variance, mask, factors)
        assert np.array_equal(found.mask, expected.mask)
        assert found.intensity.tobytes() == expected.intensity.tobytes()
        assert found.variance.tobytes() == expected.variance.tobytes()


@pytest.mark.parametrize("fused", [True, False])
def test_worked_example(fused):
    # (10 ± √10 counts - background 2) in an exposure of 2 ± 0.5 s: V = 10/4 + 8² · 0.25/16 = 3.5, and 3.75 with V_B = 1
    factors = scalar_factors(2.0, 0.25)
    counts, two, one = np.array([[10.0, np.inf]]), np.full((1, 2), 2.0), np.ones((1, 2))
    done = Correction(background=two, background_variance=one, fused=fused).apply(counts, factors=factors)
    assert (done.intensity[0, 0], done.variance[0, 0]) == (4.0, 3.75)
    assert done.mask.tolist() == [[False, True]]
    exact = Correction(background=two, fused=fused).apply(counts, factors=factors)
    assert exact.variance[0, 0] == 3.5
    assert done.applied == {
        "variance": "Poisson of the clipped image", "background": "propagated", "mask": False, "repair": 0,
        "static": False, "factors": [[0.5, 0.015625]],
    }  # fmt: skip
    assert exact.applied["background"] == "deterministic"


TWINS = {
    "static after the factors": [
        ("value[i] *= f->factor[first + i];", "value[i] *= 1.0000000000000002 * f->factor[first + i];")
    ],
    "variance from the scaled intensity": [
        ("spread[i] += value[i] * value[i] * v;", "spread[i] += value[i] * value[i] * c * v;")
    ],
    "infinite pixels pass": [
        (
            "!(value[i] - value[i] == 0.0) | !(spread[i] - spread[i] == 0.0)",
            "(value[i] != value[i]) | (spread[i] != spread[i])",
        )
    ],
    "frame mask forgotten": [("k == 0 ? f->static_mask : f->mask", "k == 0 ? f->static_mask : NULL")],
    "negative counts have variance": [
        ("value[i] > 0.0 ? value[i] : value[i] != value[i] ? value[i] : 0.0", "value[i]")
    ],
}


@pytest.fixture(scope="module")
def twin_libraries(tmp_path_factory):
    """Every twin as a library of its own."""
    built = {}
    for name, changes in TWINS.items():
        folder = tmp_path_factory.mktemp("twin")
        built[name] = twins.build(folder, [("mapping_correct.inc", old, new) for old, new in changes])
    folder = tmp_path_factory.mktemp("contracted")
    built["contraction on"] = twins.build(folder, flags=["-O2", "-ffp-contract=fast", "-mfma"])
    return built


@pytest.mark.parametrize("name", [*TWINS, "contraction on"])
def test_a_broken_pass_is_seen(name, twin_libraries, monkeypatch):
    if name == "contraction on" and len(SETS) < 2:
        pytest.skip("this machine has no fused multiply-add to contract to")
    counts, _, mask, given = frame(5, "float64")
    expected = Correction(**given, fused=False).apply(counts, mask=mask, factors=FACTORS)
    assert same(Correction(**given, instructions="plain").apply(counts, mask=mask, factors=FACTORS), expected)
    twins.use(monkeypatch, twin_libraries[name])
    assert not same(Correction(**given, instructions="plain").apply(counts, mask=mask, factors=FACTORS), expected)


# ---------------------------------------------------------------------------------------------- buffers and refusals


@pytest.mark.parametrize("fused", [True, False])
def test_buffers_are_used_again_and_scaling_happens_in_place(fused):
    counts, variance, mask, given = frame(1, "int32")
    correction = Correction(**given, fused=fused)
    fresh = correction.apply(counts, variance, mask, FACTORS)
    buffer = Corrected.empty(counts.shape)
    places = [a.ctypes.data for a in (buffer.intensity, buffer.variance, buffer.mask)]
    for array in (buffer.intensity, buffer.variance):
        array[:] = np.nan
    buffer.mask[:] = True
    assert correction.apply(counts, variance, mask, FACTORS, out=buffer) is buffer
    assert same(buffer, fresh)
    assert places == [a.ctypes.data for a in (buffer.intensity, buffer.variance, buffer.mask)]

    before = {name: given[name] for name in ("background", "background_variance", "mask")}
    begun = Correction(**before, fused=fused).apply(counts, variance, mask)
    scale(begun.intensity, begun.variance, begun.mask, given["static"], given["static"] ** 2, FACTORS, fused=fused)
    assert same(begun, fresh)
    two = np.array([[2.0]]), np.array([[1.0]]), np.array([[False]])
    scale(*two, static=np.array([[3.0]]), static_squared=np.array([[9.0]]), fused=fused)
    assert (two[0][0, 0], two[1][0, 0]) == (6.0, 9.0)


@pytest.mark.parametrize("fused", [True, False])
def test_repair_comes_after_the_background_and_before_the_factors(fused):
    counts, variance, _, given = frame(4, "uint16", odd=False)
    before = {name: given[name] for name in ("background", "background_variance", "mask")}
    whole = Correction(**given, repair=3, fused=fused)
    done = whole.apply(counts, variance, factors=FACTORS)
    step = Correction(**before, fused=fused).apply(counts, variance)
    arrays = repair(step.intensity, step.variance, step.mask, 3)
    scale(*arrays, given["static"], given["static"] ** 2, FACTORS, fused=fused)
    assert same(done, Corrected(*arrays))
    assert done.mask.sum() < given["mask"].sum()
    assert done.applied["repair"] == 3
    scaled = Correction(**given, fused=fused).apply(counts, variance, factors=FACTORS)
    late = repair(scaled.intensity, scaled.variance, scaled.mask, 3)
    assert not same(done, Corrected(*late))  # another order is seen


def test_threads_may_share_a_correction():
    counts, variance, mask, given = frame(6, "int32", (300, 200))
    correction = Correction(**given)
    expected = correction.apply(counts, variance, mask, FACTORS)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: correction.apply(counts, variance, mask, FACTORS), range(16)))
    assert all(same(one, expected) for one in found)


@pytest.mark.parametrize("fused", [True, False])
def test_what_cannot_be_changed_in_place_is_refused_and_stays(fused):
    right = [np.full((4, 6), 2.0), np.ones((4, 6)), np.zeros((4, 6), bool)]
    fixed = np.full((4, 6), 2.0)
    fixed.setflags(write=False)
    odd = np.zeros(24 * 8 + 1, np.uint8)[1:].view(np.float64).reshape(4, 6)
    bad = {
        "float64": (0, right[0].astype(np.float32)),
        "C-contiguous": (0, np.asfortranarray(right[0])),
        "strides": (1, np.ones((4, 12))[:, ::2]),
        "read-only": (0, fixed),
        "aligned": (1, odd),
        "bool": (2, np.zeros((4, 6), np.uint8)),
        "shape": (1, np.ones((6, 4))),
        "NumPy": (1, right[1].tolist()),
    }
    for words, (place, array) in bad.items():
        arrays = list(right)
        arrays[place] = array
        before = [np.array(a).tobytes() for a in arrays]
        with pytest.raises((TypeError, ValueError), match=words):
            scale(*arrays, factors=FACTORS, fused=fused)
        with pytest.raises((TypeError, ValueError), match=words):
            Correction(fused=fused).apply(np.ones((4, 6)), factors=FACTORS, out=Corrected(*arrays))
        assert before == [np.array(a).tobytes() for a in arrays]
    for words, given in {
        "float64": {"static": np.ones((4, 6), np.float32), "static_squared": np.ones((4, 6))},
        "both or neither": {"static": np.ones((4, 6))},
        "expected shape": {"static": np.ones((4, 5)), "static_squared": np.ones((4, 5))},
    }.items():
        with pytest.raises((TypeError, ValueError), match=words):
            scale(*right, **given, fused=fused)


@pytest.mark.parametrize("fused", [True, False])
def test_inputs_are_refused_with_a_sentence(fused):
    ones = np.ones((4, 6))
    for given, words in (
        ({"static": ones.astype(np.float32)}, "static: expected float64, found float32"),
        ({"static": ones, "background": np.ones((4, 5))}, r"background: expected shape \(4, 6\), found \(4, 5\)"),
        ({"background_variance": ones}, "expected a background with it"),
        ({"mask": ones}, "mask: expected bool, found float64"),
        ({"repair": -1}, "expected at least 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            Correction(**given, fused=fused)
    correction = Correction(static=ones, fused=fused)
    counts = np.ones((4, 6), np.uint16)
    buffer = Corrected.empty((4, 6))
    for arguments, words in (
        ({"counts": counts[:, :5]}, "counts: expected shape"),
        ({"counts": counts.tolist()}, "counts: expected a NumPy array"),
        ({"counts": counts.reshape(-1)}, "counts: expected a NumPy array"),
        ({"counts": counts.astype(">u2")}, "counts: expected one of"),
        ({"counts": counts.astype(complex)}, "counts: expected one of"),
        ({"counts": np.repeat(counts, 2, axis=1)[:, ::2]}, "counts: expected an aligned, C-contiguous"),
        ({"counts": counts, "variance": ones.astype(np.float32)}, "variance: expected float64"),
        ({"counts": counts, "mask": ones}, "mask: expected bool"),
        ({"counts": buffer.intensity, "out": buffer}, "overlaps counts"),
        ({"counts": counts, "variance": buffer.intensity, "out": buffer}, "overlaps variance"),
        ({"counts": counts, "mask": buffer.mask, "out": buffer}, "overlaps mask"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            correction.apply(**arguments)


# ---------------------------------------------------------------------------------------------- scalar factors


def test_scalar_factors_stand_in_the_order_of_the_contract():
    found = scalar_factors(2.0, None, {"b": 4.0, "a": -0.5}, {"a": 0.25})
    assert [factor[:2] for factor in found] == [(0.5, 0.25), (0.25, 0.0625), (-2.0, 4.0)]
    assert math.isnan(found[0][2])
    assert math.isnan(found[1][2])
    assert found[2][2] == 0.25 / 0.5**4
    assert scalar_factors() == []
    assert scalar_factors(monitors={"m": 3.0})[0][1] == (1 / 3.0) ** 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"exposure": 0}, "frame 7: exposure: expected a finite number above 0, found 0.0; exclude the frame"),
        ({"exposure": -1.0}, "above 0, found -1.0"),
        ({"exposure": math.nan}, "above 0, found nan"),
        ({"exposure": math.inf}, "above 0, found inf"),
        ({"exposure": 1e-200}, "square and inverse are doubles, found 1e-200"),
        ({"exposure": 5e-324}, "square and inverse are doubles"),
        ({"exposure": 1e200}, "square and inverse are doubles"),
        ({"monitors": {"diode": 0.0}}, "frame 7: monitor 'diode': expected a finite number other than 0, found 0.0"),
        ({"monitors": {"diode": -math.inf}}, "other than 0, found -inf"),
        ({"exposure": 1.0, "exposure_variance": -1}, "variance of exposure: expected a finite number of at least 0"),
        ({"exposure": 1.0, "exposure_variance": math.nan}, "found nan; leave it out"),
        ({"monitors": {"m": 1.0}, "variances": {"m": math.inf}}, "variance of monitor 'm'"),
        ({"monitors": {"m": 1.0}, "variances": {"n": 1.0}}, "expected names of monitors, found n"),
        ({"monitors": {"m": 1e-90}, "variances": {"m": 1.0}}, "square and inverse are doubles"),
    ],
)
def test_a_value_that_cannot_be_divided_by_is_refused(given, words):
    with pytest.raises(ValueError, match=words) as error:
        scalar_factors(**given, where="frame 7")
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- static factors


def test_static_factors_are_each_optional_and_do_not_depend_on_the_rectangle():
    detector = PoniDetector((40, 50), (1e-3, 1.2e-3), (0.01, 0.05), 0.1, (0.2, -0.1, 0.4), 0.3)
    rng = np.random.default_rng(0)
    flat = rng.uniform(0.8, 1.2, (40, 50))
    flat[3, 4], flat[5, 6] = 0.0, -1.0
    axis = (0.1, 0.0, 1.0)
    whole = static_factor(detector, True, 0.9, flat, axis)
    assert np.isnan(whole[[3, 5], [4, 6]]).all()
    part = static_factor(detector, True, 0.9, flat, axis, (3, 30, 7, 44))
    assert part.tobytes() == whole[3:30, 7:44].tobytes()
    assert (static_factor(detector, False) == 1).all()
    alone = [
        static_factor(detector, True),
        static_factor(detector, False, 0.9),
        static_factor(detector, False, flat=flat),
        static_factor(detector, False, axis=axis),
    ]
    np.testing.assert_allclose(whole, np.prod(alone, axis=0), rtol=1e-14)
    np.testing.assert_array_equal(detector.static_factor(0, 40, 0, 50, 0.9), static_factor(detector, True, 0.9))
    for given, words in (({"polarisation": 1.5}, "from 0 to 1, found 1.5"), ({"flat": flat[:3]}, "expected shape")):
        with pytest.raises(ValueError, match=words):
            static_factor(detector, **given)


@pytest.mark.parametrize("which", range(4))
def test_the_lorentz_factor_is_the_time_through_the_ewald_sphere(which):
    rng = np.random.default_rng(which)
    middle, rate = rng.uniform(-1, 1, 4), np.zeros(4)
    rate[which] = rng.uniform(0.5, 2) * rng.choice([-1, 1])
    axis = scan_axis([middle - rate * 1e-3] * 2, [middle + rate * 1e-3] * 2)
    k = 7.0
    rays = rng.normal(size=(50, 3))
    rays /= np.linalg.norm(rays, axis=1)[:, None]
    q = k * (rays - [0, 1, 0])
    step = 1e-5
    # the crystal vector that is at q now, a moment before and after
    crystal = q @ geometry.chain(middle, "phi").T

    def excess(moment):
        at = crystal @ geometry.chain(middle + rate * moment, "phi")  # the inverse rotation
        return np.linalg.norm(at + [0, k, 0], axis=1) - k

    speed = np.abs(excess(step) - excess(-step)) / (2 * step) / abs(rate[which]) / k
    found = lorentz(rays, axis)
    seen = np.isfinite(found)
    assert seen.sum() > 40
    np.testing.assert_allclose(1 / found[seen], speed[seen], rtol=1e-6)


def test_the_axis_of_a_scan_must_be_one():
    steps = np.linspace(0, 1, 6)[:, None] * [0, 1.0, 0, 0] + [0.2, 0.1, 0.3, 0.4]
    np.testing.assert_allclose(scan_axis(steps[:-1], steps[1:]), [0, math.sin(0.2), -math.cos(0.2)], atol=1e-15)
    back = np.array(steps)[::-1]
    mixed = np.concatenate([steps[:-1], back[:-1]]), np.concatenate([steps[1:], back[1:]])
    np.testing.assert_allclose(scan_axis(*mixed), scan_axis(steps[:-1], steps[1:]))
    with pytest.raises(ValueError, match="found stationary ones"):
        scan_axis(steps, steps)
    moving = np.array(steps)
    moving[:, 0] = np.linspace(0, 0.5, 6)
    with pytest.raises(ValueError, match="found several"):
        scan_axis(moving[:-1], moving[1:])
    assert np.isnan(lorentz(np.array([0.0, 0.6, 0.8]), (0, 0, 1)))


@pytest.mark.extras
@pytest.mark.parametrize("azimuth", [0.0, math.pi / 2, 0.7])
def test_factors_of_pyfai(azimuth):
    pytest.importorskip("pyFAI")
    from pyFAI.detectors import Detector
    from pyFAI.geometry import Geometry

    shape, pitch, poni, distance, turns = (60, 80), (1.1e-3, 0.9e-3), (0.02, 0.05), 0.15, (0.15, -0.2, 0.3)
    peer = Geometry(distance, *poni, *turns, detector=Detector(*pitch, max_shape=shape))
    ours = PoniDetector(shape, pitch, poni, distance, turns, azimuth)
    # pyFAI keeps both in single precision: 2.3e-8 measured here, 4.1e-8 in the polarisation
    np.testing.assert_allclose(ours.solid_angle(0, 60, 0, 80), peer.solidAngleArray(shape), rtol=1e-7)
    for fraction in (1.0, 0.99, 0.5, 0.1):
        # the degree from the fraction, and the axis offset that makes our x horizontal
        other = peer.polarization(shape, factor=2 * fraction - 1, axis_offset=azimuth - math.pi / 2)
        found = ours.polarisation(0, 60, 0, 80, horizontal=fraction)
        np.testing.assert_allclose(found, other, rtol=3e-7)
        if fraction != 0.5:
            turned = peer.polarization(shape, factor=2 * fraction - 1, axis_offset=azimuth)
            assert np.abs(turned / found - 1).max() > 0.05  # forgetting the azimuth is seen
        assert np.abs(peer.polarization(shape, factor=0.75, axis_offset=0.1) / found - 1).max() > 0.01


def test_a_hexrd_panel_has_the_factors_of_its_geometry():
    panel = HexrdPanel((60, 80), (0.2, 0.2), (0.0, 0.0, 0.0), (3.0, -4.0, -90.0))
    middle = panel.solid_angle(0, 60, 0, 80)
    x = 0.2 * (np.arange(80) - 39.5) + 3.0
    y = 0.2 * (29.5 - np.arange(60)) - 4.0
    np.testing.assert_allclose(middle, (90 / np.sqrt(x[None] ** 2 + y[:, None] ** 2 + 90**2)) ** 3, rtol=1e-13)


def test_the_definition_itself_is_exact_where_numbers_are_dyadic():
    counts = np.array([[12, 0, 3]], np.uint16)
    static = np.array([[0.5, 2.0, 4.0]])
    found = correct(counts, None, None, [(0.5, 0.25, 0.125)], static=static)
    for n, (count, s) in enumerate(zip(counts[0], static[0])):
        i, v = Fraction(int(count)) * Fraction(s), Fraction(int(count)) * Fraction(s) ** 2
        v = v / 4 + i * i / 8
        assert (found.intensity[0, n], found.variance[0, n]) == (i / 2, v)
