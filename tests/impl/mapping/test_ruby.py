"""The real ruby scan through the kernel's geometry: its intensity must lie on the lattice that its authors fitted."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from impl.mapping import geometry, render, sources

DATA = Path(__file__).resolve().parents[2] / "data" / "xray"
#: share of the recorded intensity within 0.05 of integer h, k, l, by grain
SHARES = {"ff1": (0.238, 0.207, 0.241), "ff2": (0.210, 0.190, 0.225)}
SHARES_AT_ZERO = {"ff1": (0.238, 0.207, 0.240), "ff2": (0.210, 0.190, 0.223)}


@pytest.fixture(scope="module")
def instrument():
    return sources.read_instrument(DATA / "ruby_instrument.yml")


@pytest.fixture(scope="module")
def grains():
    return sources.read_grains(DATA / "ruby_grains.out")


@pytest.fixture(scope="module")
def recorded():
    """panel -> frame, row, column, count of every recorded pixel, and omega of the frames' middles."""
    out = {}
    for panel in SHARES:
        cache = sources.FrameCache(DATA / f"ruby_{panel}.npz")
        parts = [cache.sparse(f) for f in range(cache.frames)]
        frame = np.repeat(np.arange(cache.frames), [len(p[0]) for p in parts])
        out[panel] = (frame, *(np.concatenate(c) for c in zip(*parts)), cache.omega.mean(axis=1))
        cache.close()
    return out


def coordinates(recorded, instrument, panel, grain, at_zero=False, omega_sign=1, beam_sign=1, flip=""):
    """hkl of every recorded pixel by the kernel's chain: detector rays, stage angles, affine maps."""
    frame, row, column, _, omega = recorded[panel]
    detector = instrument.panels[panel]
    if "rows" in flip:
        row = detector.shape[0] - 1 - row
    if "columns" in flip:
        column = detector.shape[1] - 1 - column
    origins = np.zeros((len(omega), 3))
    if not at_zero:
        origins = np.stack([grain.origin(instrument.chi, omega_sign * o) for o in omega])
    angles = sources.stage_angles(instrument.chi, omega_sign * omega)
    tables = geometry.affine(angles, instrument.wave_number, "hkl", ub=grain.ub())[frame]
    rays = detector.rays(row, column, origins[frame])
    return np.einsum("nij,nj->ni", tables[:, :, :3], rays) + beam_sign * tables[:, :, 3]


def share(recorded, panel, hkl):
    count = recorded[panel][3]
    near = (np.abs(hkl - np.round(hkl)) < 0.05).all(axis=1)
    return count[near].sum() / count.sum()


@pytest.mark.parametrize("panel", SHARES)
@pytest.mark.parametrize("grain", range(3))
@pytest.mark.parametrize("at_zero", [False, True])
def test_the_intensity_lies_on_the_lattice(recorded, instrument, grains, panel, grain, at_zero):
    hkl = coordinates(recorded, instrument, panel, grains[grain], at_zero)
    expected = (SHARES_AT_ZERO if at_zero else SHARES)[panel][grain]
    assert share(recorded, panel, hkl) == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize("panel", SHARES)
@pytest.mark.parametrize("swap", ["omega", "beam", "rows", "columns", "x", "y", "orientation"])
def test_each_sign_matters(recorded, instrument, grains, panel, swap):
    grain, extra = grains[0], {}
    if swap == "omega":
        extra["omega_sign"] = -1
    elif swap == "beam":
        extra["beam_sign"] = -1
    elif swap in ("rows", "columns"):
        extra["flip"] = swap
    elif swap == "orientation":
        grain = dataclasses.replace(grain, orientation=tuple(-x for x in grain.orientation))
    else:
        panels = dict(instrument.panels)
        moved = list(panels[panel].translation_mm)
        moved["xy".index(swap)] *= -1
        panels[panel] = dataclasses.replace(panels[panel], translation_mm=tuple(moved))
        instrument = dataclasses.replace(instrument, panels=panels)
    assert share(recorded, panel, coordinates(recorded, instrument, panel, grain, **extra)) < 0.01


def formula(recorded, instrument, panel, grain, chi=None, tilt=None):
    """hkl by HEXRD's own conventions, in its axes: beam along -z, stage Rx(chi) Ry(omega)."""
    from scipy.spatial.transform import Rotation

    frame, row, column, _, omega = recorded[panel]
    detector = instrument.panels[panel]
    rows, columns = detector.shape
    size = detector.pixel_mm[0]
    flat = np.stack([size * (column - (columns - 1) / 2), size * ((rows - 1) / 2 - row), 0.0 * row], axis=1)
    turned = Rotation.from_rotvec(detector.tilt if tilt is None else tilt).as_matrix()
    pixel = flat @ turned.T + np.array(detector.translation_mm)
    stage = (
        Rotation.from_euler("x", instrument.chi if chi is None else chi).as_matrix()
        @ Rotation.from_euler("y", omega[:, None]).as_matrix()
    )
    vector = pixel - (stage @ np.array(grain.position_mm))[frame]
    k = vector / np.linalg.norm(vector, axis=1, keepdims=True)
    wavelength = 2 * np.pi / instrument.wave_number
    g = (k - np.array([0, 0, -1.0])) / wavelength
    a, c = 4.759, 12.992
    direct = np.array([[a, 0, 0], [-a / 2, a * np.sqrt(3) / 2, 0], [0, 0, c]])  # rows
    to_sample = np.swapaxes(stage, 1, 2)[frame]
    crystal = Rotation.from_rotvec(grain.orientation).as_matrix().T
    return np.einsum("ij,nj->ni", direct @ crystal, np.einsum("nij,nj->ni", to_sample, g))


@pytest.mark.parametrize("panel", SHARES)
def test_chi_and_tilts_agree_with_the_formula(recorded, instrument, grains, panel):
    hkl = coordinates(recorded, instrument, panel, grains[1])
    np.testing.assert_allclose(hkl, formula(recorded, instrument, panel, grains[1]), rtol=0, atol=1e-12)
    # and the check would see either of them missing or reversed
    for wrong in ({"chi": 0.0}, {"chi": -instrument.chi}, {"tilt": [-x for x in instrument.panels[panel].tilt]}):
        assert np.abs(hkl - formula(recorded, instrument, panel, grains[1], **wrong)).max() > 1e-4


def test_a_plane_is_drawn_with_its_peaks_on_the_lattice(tmp_path, capsys):
    out = tmp_path / "plane.png"
    assert render.main(["--data", str(DATA), "--axis", "l", "--at", "4", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert out.stat().st_size > 10_000
    records = render.map_recorded(DATA, "ff1")
    image = render.plane(records, render.WHOLE, 2, 4.0)
    strongest = np.argsort(image, axis=None)[::-1][:20]
    place = np.stack(np.unravel_index(strongest, image.shape), axis=1)
    hk = np.array(render.WHOLE.minimum[:2]) + (place + 0.5) * 0.05
    near = (np.abs(hk - np.round(hk)) < 0.06).all(axis=1)
    assert near.mean() > 0.8  # by chance 0.06
    assert len(np.unique(np.round(hk[near]), axis=0)) >= 10
    # pixel by pixel 0.241 of the scan's intensity lies within 0.075 of integer hkl
    hkl = render.WHOLE.centres(render.WHOLE.indices(records.chunk, records.local))
    on = (np.abs(hkl - np.round(hkl)) < 0.075).all(axis=1)
    assert records.sum_intensity[on].sum() / records.sum_intensity.sum() == pytest.approx(0.241, abs=0.003)
    assert not render.plane(records, render.WHOLE, 2, 90.0).any()
    assert render.main(["--data", str(tmp_path), "--out", str(out)]) == 2
    assert "expected an instrument file, found No such file" in capsys.readouterr().err


def test_files_that_are_none_are_named(tmp_path):
    def fault(read, path):
        with pytest.raises(sources.SourceError) as error:
            read(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        return str(error.value)

    missing = tmp_path / "missing"
    assert "No such file" in fault(sources.FrameCache, missing)
    assert "No such file" in fault(sources.read_instrument, missing)
    assert fault(sources.read_grains, missing)
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"PK\x03\x04 and then nothing of the kind")
    for read in (sources.FrameCache, sources.read_instrument, sources.read_grains):
        assert fault(read, junk)
    cut = tmp_path / "cut.npz"
    cut.write_bytes((DATA / "ruby_ff1.npz").read_bytes()[:5000])
    assert fault(sources.FrameCache, cut)
    other = tmp_path / "other.npz"
    np.savez(other, shape=[2, 2])
    assert fault(sources.FrameCache, other)
