"""A job says everything that a map depends on: each key is typed, each fault one sentence, the digest sees what counts."""

# ruff: noqa: E501 (whole sentences)

import copy
import dataclasses
import math
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scans
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scans import fault

from impl.mapping import geometry, sources
from impl.mapping.detector import FROM_HEXRD
from impl.mapping.instrument import read_poni
from impl.mapping.job import Job, parse

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data" / "xray"
README = (ROOT / "impl" / "mapping" / "README.md").read_text()
extras = pytest.mark.extras


def ruby():
    return Job.read(DATA / "jobs" / "ruby_ff1.toml")


# What a job is


def test_the_ruby_job_is_the_geometry_of_its_files():
    job = ruby()
    instrument = sources.read_instrument(DATA / "ruby_instrument.yml")
    grain = sources.read_grains(DATA / "ruby_grains.out")[0]
    assert job.wave_number == pytest.approx(instrument.wave_number, rel=1e-15)
    assert job.instrument == instrument.panels["ff1"]
    np.testing.assert_allclose(job.ub, grain.ub(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(job.u, grain.u(), rtol=0, atol=1e-15)
    assert job.grids[0][1].shape == (241, 261, 701)
    assert job.grids[0][1].minimum == (-6.025, -6.525, -17.525)
    for omega in (0.0, 1.2, -2.5):
        angles = sources.stage_angles(instrument.chi, np.array([omega]))
        np.testing.assert_allclose(job.origin(angles, angles), grain.origin(instrument.chi, omega), atol=1e-18)
    assert not job.fixed_origin
    # a quarter of a degree moves a grain 0.092 mm off the axis by less than half a micrometre
    ends = sources.stage_angles(instrument.chi, np.radians([0.0, 0.25]))
    drift = job.origin_drift(ends[:1], ends[1:])
    assert drift == pytest.approx(math.hypot(0.0620164, 0.0686229) * 1e-3 * math.radians(0.125), rel=1e-4)
    assert scans.job().origin_drift(ends[:1], ends[1:]) == 0.0
    assert scans.job().fixed_origin


def test_a_job_is_frozen():
    job = scans.job()
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.depth = 3
    with pytest.raises(ValueError, match="read-only"):
        job.ub[0, 0] = 1


def test_the_description_says_what_the_job_does():
    text = ruby().describe()
    assert text.splitlines()[0] == f"job ruby-ff1 ({DATA}/jobs/ruby_ff1.toml)"
    assert text.splitlines()[2:-1] == [
        "instrument: 3888 x 3072 pixels, K = 21.2797053 per angstrom (41.9906 keV)",
        "exposure: stationary, depth 0",
        "sample: 0.0620164 0.0686229 -0.000353581 mm off the axes",
        "alpha = 0.0431736 degrees",
        "omega = -omega",
        "chi = 0 degrees",
        "phi = 0 degrees",
        "grid hkl: hkl, 241 x 261 x 701 voxels of 0.05 x 0.05 x 0.05 from -6.025 -6.525 -17.525",
        "corrections: solid angle, polarisation 0.99",
    ]
    invented = scans.job(angles={"omega": {"start_degrees": 0, "increment_degrees": 1, "invented": True}})
    assert "omega = omega, invented by the job, not measured" in invented.describe()
    middles = scans.job(angles={"omega": {"exposure": "midpoint"}})
    assert "omega = omega, one angle a frame taken as midpoint" in middles.describe()
    assert "left out: 3 frames" in scans.job(job={"excluded": [7, "1-2"]}).describe()


def test_the_example_of_the_readme_is_a_job_and_every_key_is_documented():
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    job = parse(tomllib.loads(example), "README.md", ".")
    assert job.excluded == (17, 40, 41, 42, 43, 44)
    assert (job.depth, job.budget, job.scratch.name) == (2, 2 << 30, "made.scratch")
    frame = job.open().read(63)
    assert frame.mask is not None
    source = (ROOT / "impl" / "mapping" / "jobfile.py").read_text()
    keys = set(re.findall(r'"(\w+)": \(', source[source.index("def parse(") :]))
    assert len(keys) > 60
    assert not [key for key in keys if not re.search(rf"\b{key}\b", README)]


def test_presets_and_ranges():
    assert scans.job(job={"depth": "very_high"}).depth == 4
    assert scans.job(job={"depth": 8}).depth == 8
    assert scans.job(job={"excluded": ["3-5", 4, 0]}).excluded == (0, 3, 4, 5)
    assert scans.job("/d").output == Path("/d/made.nxs")
    assert scans.job("/d").scratch == Path("/d/made.nxs.scratch")
    assert scans.job("/d", job={"output": "/e/x.nxs", "scratch": "s"}).scratch == Path("/d/s")
    assert [scans.job(run={"budget": b}).budget for b in (5, "3 GiB", "1.5MB", "7B")] == [5, 3 << 30, 1_500_000, 7]


# Instruments


PONI = """# Detector calibration file
poni_version: 2.1
Detector: Detector
Detector_config: {"pixel1": 1e-4, "pixel2": 2e-4, "max_shape": [50, 70], "orientation": 3}
Distance: 0.25
Poni1: 0.002
Poni2: 0.003
Rot1: 0.1
Rot2: -0.2
Rot3: 0.3
Wavelength: 6.2e-11
"""


def test_a_poni_file_is_the_detector(tmp_path):
    (tmp_path / "a.poni").write_text(PONI)
    detector, wavelength = read_poni(tmp_path / "a.poni", azimuth=0.5)
    assert wavelength == pytest.approx(0.62)
    assert detector.shape == (50, 70)
    assert (detector.pitch, detector.poni, detector.distance) == ((1e-4, 2e-4), (0.002, 0.003), 0.25)
    assert (detector.rotations, detector.azimuth) == ((0.1, -0.2, 0.3), 0.5)
    # version 1 wrote the pixels beside the rest, and its detectors have no shape
    old = re.sub("poni_version.*|Detector.*", "", PONI) + "PixelSize1: 1e-4\nPixelSize2: 2e-4\n"
    (tmp_path / "old.poni").write_text(old)
    again, _ = read_poni(tmp_path / "old.poni", shape=(50, 70), azimuth=0.5)
    assert again == detector


@extras
def test_a_poni_file_that_pyfai_writes_is_read_as_pyfai_reads_it(tmp_path):
    geometry_of = pytest.importorskip("pyFAI.geometry")
    detectors = pytest.importorskip("pyFAI.detectors")
    peer = geometry_of.Geometry(
        0.3, 0.02, 0.03, 0.1, -0.2, 0.3, detector=detectors.Detector(1e-4, 2e-4, max_shape=(50, 70), orientation=3),
        wavelength=0.8e-10,
    )  # fmt: skip
    peer.save(str(tmp_path / "a.poni"))
    detector, wavelength = read_poni(tmp_path / "a.poni")
    assert wavelength == pytest.approx(0.8)
    d1, d2 = np.array([3.0, 40.0]), np.array([60.0, 5.0])
    t3, t1, t2 = peer.calc_pos_zyx(d1=d1, d2=d2)
    position = detector.position(d1, d2)
    np.testing.assert_allclose(position, np.stack([t1, t3, t2], axis=1), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (("Distance: 0.25", ""), {}, "expected a number 'distance', found 'nothing'"),
        (("Rot2: -0.2", "Rot2: east"), {}, "expected a number 'rot2', found 'east'"),
        (("Poni1: 0.002", "Poni1: inf"), {}, "expected a finite number 'poni1', found inf"),
        (('"orientation": 3', '"orientation": 2'), {}, "expected orientation 3, which flips nothing, found 2; "),
        (('"max_shape": [50, 70],', ""), {}, "expected the detector's shape, found nothing; give shape in the job's"),
        (('"pixel1": 1e-4,', ""), {}, "expected the detector's pixel_m, found nothing; give pixel_m in the job's"),
        (("{", "["), {}, "expected Detector_config as JSON, found "),
        (
            ("[50, 70]", "[50]"),
            {},
            "expected two pixel sizes in metres and two edges in pixels, found (0.0001, 0.0002)",
        ),
        (("[50, 70]", '"many"'), {}, "expected two pixel sizes in metres and two edges in pixels, found "),
        (("", ""), {"shape": (50, 71)}, "expected shape [50, 71] as in the job's [instrument], found [50, 70]"),
        (("", ""), {"pixel_m": (1e-4, 1e-4)}, "expected pixel_m [0.0001, 0.0001] as in the job's [instrument], found "),
    ],
)
def test_faults_of_poni_files_are_named(tmp_path, change, options, expected):
    (tmp_path / "a.poni").write_text(PONI.replace(*change, 1))
    assert fault(read_poni, tmp_path / "a.poni", **options).startswith(f"{tmp_path}/a.poni: {expected}")


def test_missing_instruments_are_named(tmp_path):
    text = fault(read_poni, tmp_path / "b.poni")
    assert text == f"{tmp_path}/b.poni: expected a PONI file, found No such file or directory; check the path"
    (tmp_path / "b.poni").write_bytes(b"\xff\xfe\x00")
    assert (
        fault(read_poni, tmp_path / "b.poni")
        == f"{tmp_path}/b.poni: expected a PONI file, found bytes that are no text"
    )


def instrument(**keys):
    """JOB with only these keys in [instrument]."""
    out = copy.deepcopy(scans.JOB)
    out["instrument"] = keys
    return out


def test_an_instrument_from_a_file_needs_no_more(tmp_path):
    (tmp_path / "a.poni").write_text(PONI)
    job = parse(instrument(poni="a.poni", azimuth_degrees=90), "job.toml", tmp_path)
    assert job.wave_number == pytest.approx(2 * math.pi / 0.62)
    assert job.instrument.azimuth == pytest.approx(math.pi / 2)
    assert job.input.expected == {
        "wavelength_angstrom": pytest.approx(0.62), "pixel_m": (1e-4, 2e-4), "distance_m": 0.25,
    }  # fmt: skip
    text = fault(parse, instrument(poni="a.poni", wavelength_angstrom=0.63), "job.toml", tmp_path)
    assert text == (
        "job.toml: instrument.wavelength_angstrom: expected the 0.62 angstrom (19.9974514 keV) of the instrument's file, "
        "found 0.63; leave one of them out"
    )
    shutil.copy(DATA / "ruby_instrument.yml", tmp_path)
    text = fault(parse, instrument(hexrd="ruby_instrument.yml", panel="ff3"), "job.toml", tmp_path)
    assert text == "job.toml: instrument.panel: expected one of ff1, ff2, found 'ff3'; did you mean 'ff2'?"
    text = fault(parse, instrument(hexrd="ruby_instrument.yml"), "job.toml", tmp_path)
    assert text == "job.toml: instrument.panel: expected one of ff1, ff2, found nothing"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("azimuth: 90.0", "azimuth: 89.0", "expected a beam along -z (azimuth and polar angle 90), found {'azimuth': 89.0, "
         "'polar_angle': 90.0}; turn the panels"),
        ("saturation_level: 15800.0", "distortion: {function_name: GE_41RT}", "expected panels without distortion, found one "
         "in 'ff1'; undistort the frames"),
        ("saturation_level: 15800.0", "detector_type: cylindrical", "expected planar panels, found 'cylindrical' in 'ff1'"),
        ("energy:", "enrgy:", "expected an instrument with beam, detectors and stage, found one without it ('energy')"),
        ("  translation:\n  - 0.0", "  translation:\n  - left", "expected an instrument with beam, detectors and stage, found "
         "one without it (could not convert string to float: 'left')"),
    ],
)  # fmt: skip
def test_hexrd_instruments_that_this_geometry_cannot_hold_are_refused(tmp_path, old, new, expected):
    text = (DATA / "ruby_instrument.yml").read_text()
    assert old in text
    (tmp_path / "a.yml").write_text(text.replace(old, new))
    assert fault(sources.read_instrument, tmp_path / "a.yml") == f"{tmp_path}/a.yml: {expected}"


def test_a_stage_that_is_moved_sees_the_panels_move_back(tmp_path):
    text = (DATA / "ruby_instrument.yml").read_text()
    stage = "  translation:\n  - 0.0\n  - 0.0\n  - 0.0"
    assert text.rstrip().endswith(stage)
    (tmp_path / "a.yml").write_text(text.replace(stage, "  translation:\n  - 1.0\n  - -2.0\n  - 3.0"))
    before = sources.read_instrument(DATA / "ruby_instrument.yml").panels["ff1"]
    after = sources.read_instrument(tmp_path / "a.yml").panels["ff1"]
    stage_lab = FROM_HEXRD @ np.array([1.0, -2.0, 3.0]) * 1e-3
    np.testing.assert_allclose(after.rays(10, 20), before.rays(10, 20, stage_lab), rtol=0, atol=1e-15)


def test_the_instruments_saturation_holds_unless_the_job_has_its_own():
    raw = tomllib.loads((DATA / "jobs" / "ruby_ff1.toml").read_text())
    del raw["input"]["saturation"]
    job = parse(raw, "job.toml", DATA / "jobs")
    assert job.input.saturation == 15800
    assert job.digest() == ruby().digest()
    raw["input"]["saturation"] = 100
    assert parse(raw, "job.toml", DATA / "jobs").input.saturation == 100


# Crystals


def crystal(**keys):
    """The job with only these keys in [crystal]."""
    out = copy.deepcopy(scans.JOB)
    out["crystal"] = keys
    return parse(out, "job.toml", ".")


def test_ub_by_every_way():
    cell, vector = [3.0, 4.0, 5.0, 80, 95, 100], [0.3, -0.4, 0.5]
    u = geometry.exponential_map(vector)
    b = geometry.b_matrix(3, 4, 5, *np.radians([80, 95, 100]))
    ub = u @ b
    ways = [
        {"cell": cell, "orientation": vector},
        {"cell": cell, "orientation": u.tolist()},
        {"ub": ub.tolist()},
        {"ub": (ub / (2 * np.pi)).tolist(), "two_pi": False},
        {"ub": ub.tolist(), "cell": cell},
        {"ub": (FROM_HEXRD.T @ ub).tolist(), "axes": "hexrd"},
        {"cell": cell, "orientation": (FROM_HEXRD.T @ u).tolist(), "axes": "hexrd"},
    ]
    for way in ways:
        job = crystal(**way)
        np.testing.assert_allclose(job.ub, ub, rtol=0, atol=1e-14)
        assert (job.u is None) == (list(way) in (["ub"], ["ub", "two_pi"], ["ub", "axes"]))
        if job.u is not None:
            np.testing.assert_allclose(job.u, u, rtol=0, atol=1e-14)
    moved = crystal(ub=ub.tolist(), position_mm=[1.0, 2.0, 3.0], axes="hexrd")
    np.testing.assert_allclose(moved.position, [1e-3, -3e-3, 2e-3])


# Faults


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("jobs", {}, "job.toml: jobs: expected one of job, input, instrument, goniometer, angles, crystal, grids, "
         "corrections, monitors, run, found 'jobs'; did you mean 'job'?"),
        ("job", None, "job.toml: job: expected a table, found nothing; add it"),
        ("job", 3, "job.toml: job: expected a table, found 3"),
        ("job.name", None, "job.toml: job.name: expected a string, found nothing; add it"),
        ("job.name", 7, "job.toml: job.name: expected a string, found 7"),
        ("job.deptht", 1, "job.toml: job.deptht: expected one of name, output, scratch, depth, exposure, excluded, "
         "allow_empty, compression, found 'deptht'; did you mean 'depth'?"),
        ("job.depth", 9, "job.toml: job.depth: expected a whole number from 0 to 8, or one of center, low, balanced, high, "
         "very_high, maximum, found 9"),
        ("job.depth", True, "job.toml: job.depth: expected a whole number from 0 to 8, or one of center, low, balanced, "
         "high, very_high, maximum, found True"),
        ("job.exposure", "continous", "job.toml: job.exposure: expected 'continuous' or 'stationary' (did you mean "
         "'continuous'?), found 'continous'"),
        ("job.excluded", ["9-3"], "job.toml: job.excluded: expected a list of frame numbers and ranges such as '10-20', "
         "found ['9-3']"),
        ("job.output", 3, "job.toml: job.output: expected a path, found 3"),
        ("job.compression", "zip", "job.toml: job.compression: expected 'gzip' or 'bitshuffle' (did you mean 'gzip'?), "
         "found 'zip'"),
        ("run.threads", -1, "job.toml: run.threads: expected a whole number from 0 to 256, found -1"),
        ("run.threads", 1.0, "job.toml: run.threads: expected a whole number from 0 to 256, found 1.0"),
        ("run.budget", "2 gigs", "job.toml: run.budget: expected a number of bytes of at least 1, or a string such as "
         "'2 GiB', found '2 gigs'"),
        ("input.format", "tif", "job.toml: input.format: expected 'cbf' or 'tiff' or 'edf' or 'hdf5' or 'frame-cache' or "
         "'synthetic' (did you mean 'tiff'?), found 'tif'"),
        ("input.files", ["a"], "job.toml: input.files: expected nothing for a synthetic scan, found ['a']"),
        ("input.dataset", "/a", "job.toml: input.dataset: expected nothing for the format 'synthetic', found '/a'"),
        ("input.saturation", math.nan, "job.toml: input.saturation: expected a finite number, found nan"),
        ("input.overrule", ["pixels"], "job.toml: input.overrule: expected a list of 'wavelength_angstrom' or 'pixel_m' or "
         "'distance_m', found ['pixels']"),
        ("input.synthetic.frames", 0, "job.toml: input.synthetic.frames: expected a whole number from 1 to 10000000, "
         "found 0"),
        ("input.exposure", {}, "job.toml: input.exposure: expected exactly one of values, file, header, dataset, found "
         "none"),
        ("instrument.energy_keV", None, "job.toml: instrument: expected exactly one of energy_keV, wavelength_angstrom, "
         "found none"),
        ("instrument.wavelength_angstrom", 1.0, "job.toml: instrument: expected exactly one of energy_keV, "
         "wavelength_angstrom, found 'energy_keV' and 'wavelength_angstrom'"),
        ("instrument.energy_keV", 0, "job.toml: instrument.energy_keV: expected a finite number above 0, found 0"),
        ("instrument.distance_m", None, "job.toml: instrument: expected exactly one of hexrd, poni, distance_m, found none"),
        ("instrument.poni", "a.poni", "job.toml: instrument: expected exactly one of hexrd, poni, distance_m, found 'poni' "
         "and 'distance_m'"),
        ("instrument.panel", "ff1", "job.toml: instrument.panel: expected nothing without 'hexrd', found 'ff1'"),
        ("instrument.shape", [5], "job.toml: instrument.shape: expected two whole numbers from 1 to 1048576, rows first, "
         "found [5]"),
        ("instrument.poni_m", None, "job.toml: instrument.poni_m: expected two numbers, rows first, found nothing; add it"),
        ("goniometer.omega", {"axis": "a", "degrees": 1}, "job.toml: goniometer.omega: expected either axis or degrees, "
         "found both"),
        ("goniometer.omega", {}, "job.toml: goniometer.omega: expected either axis or degrees, found neither"),
        ("goniometer.omega", {"axis": "a", "sign": 2}, "job.toml: goniometer.omega.sign: expected '1' or '-1', found 2"),
        ("goniometer.omega", {"degrees": 1, "sign": -1}, "job.toml: goniometer.omega.sign: expected nothing beside "
         "degrees, found -1"),
        ("goniometer.convention", "hexrd", "job.toml: goniometer.omega: expected nothing beside convention = 'hexrd', "
         "found {'axis': 'omega'}"),
        ("goniometer.omga", {}, "job.toml: goniometer.omga: expected one of convention, alpha, omega, chi, phi, found "
         "'omga'; did you mean 'omega'?"),
        ("angles.omga", {"start_degrees": 0, "increment_degrees": 1}, "job.toml: angles.omga: expected an axis that "
         "[goniometer] names (omega), found 'omga'; did you mean 'omega'?"),
        ("angles.omega", {}, "job.toml: angles.omega: expected exactly one of bounds_degrees, centres_degrees, "
         "start_degrees, file, found none"),
        ("angles.omega", {"start_degrees": 1}, "job.toml: angles.omega.increment_degrees: expected a finite number, found "
         "nothing; add it"),
        ("angles.omega", {"increment_degrees": 1, "exposure": "midpoint"}, "job.toml: angles.omega.start_degrees: expected "
         "a finite number, found nothing; add it"),
        ("angles.omega", {"centres_degrees": [1]}, "job.toml: angles.omega.exposure: expected 'midpoint' or 'stationary', "
         "found nothing; add it"),
        ("angles.omega", {"bounds_degrees": [[1, 2]], "exposure": "midpoint"}, "job.toml: angles.omega.exposure: expected "
         "nothing beside bounds_degrees, found 'midpoint'"),
        ("angles.omega", {"bounds_degrees": [[1, 2, 3]]}, "job.toml: angles.omega.bounds_degrees: expected a list of "
         "[start, end], found [[1, 2, 3]]"),
        ("crystal", {}, "job.toml: crystal: expected ub, or a cell with an orientation for the grid 'hkl' in hkl, found "
         "none"),
        ("crystal.cell", None, "job.toml: crystal.cell: expected a cell beside 'orientation', found nothing; add it"),
        ("crystal.cell", [1, 1, 1, 90, 90, 180], "job.toml: crystal.cell: expected a cell with a volume, found [1.0, 1.0, "
         "1.0, 90.0, 90.0, 180.0]"),
        ("crystal.orientation", [[1, 0, 0], [0, 1, 0], [0, 0, -1]], "job.toml: crystal.orientation: expected a rotation "
         "(orthogonal to 1e-6, determinant 1), found ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, -1.0))"),
        ("crystal.orientation", [1, 2], "job.toml: crystal.orientation: expected an exponential map (three radians) or a "
         "rotation matrix, found [1, 2]"),
        ("crystal.two_pi", False, "job.toml: crystal.two_pi: expected nothing without 'ub', found False"),
        ("crystal.grain", 1, "job.toml: crystal.grain: expected nothing without 'grains', found 1"),
        ("crystal", {"ub": [[1, 2, 3], [2, 4, 6], [0, 0, 1]]}, "job.toml: crystal.ub: expected an invertible matrix, found "
         "((1.0, 2.0, 3.0), (2.0, 4.0, 6.0), (0.0, 0.0, 1.0))"),
        ("crystal", {"ub": [[1, 0, 0], [0, 2, 0], [0, 0, 3]], "cell": [4, 4, 4, 90, 90, 90]}, "job.toml: crystal.cell: "
         "expected the cell of ub, so that U is a rotation to 1e-3, found (4.0, 4.0, 4.0, 90.0, 90.0, 90.0)"),
        ("grids", {}, "job.toml: grids: expected at least one table [grids.NAME], found none"),
        ("grids", {"a b": {}}, "job.toml: grids: expected names of letters, digits, - and _, found 'a b'"),
        ("grids.hkl.axes", "hlk", "job.toml: grids.hkl.axes: expected one of lab, alpha, omega, chi, phi, crystal, hkl, "
         "found 'hlk'; did you mean 'hkl'?"),
        ("grids.hkl.step", [0.1, 0, 1], "job.toml: grids.hkl.step: expected three finite numbers above 0, found [0.1, 0, 1]"),
        ("grids.hkl.shape", [1, 1, 1], "job.toml: grids.hkl: expected exactly one of maximum, shape, found 'maximum' and "
         "'shape'"),
        ("grids.hkl.maximum", [1, 1, -2], "job.toml: grids.hkl.maximum: expected numbers above those of minimum, found [1.0, 1.0, -2.0]"),
        ("grids.hkl.step", [1e-12, 1e-12, 1e-12], None),
        ("corrections.polarisation", 1.5, "job.toml: corrections.polarisation: expected a number from 0 to 1, found 1.5"),
        ("corrections.polarization", 0.5, "job.toml: corrections.polarization: expected one of solid_angle, polarisation, "
         "flat, background, background_variance, mask, exposure_time, monitors, lorentz, repair, found 'polarization'; did "
         "you mean 'polarisation'?"),
        ("corrections.monitors", ["i1"], "job.toml: corrections.monitors: expected one of the tables [monitors.NAME] "
         "(none), found 'i1'"),
        ("corrections.background_variance", "b.npy", "job.toml: corrections.background_variance: expected a background "
         "beside it, found none"),
        ("corrections.mask", 1, "job.toml: corrections.mask: expected a path, found 1"),
        ("monitors.exposure", {"values": [1]}, "job.toml: monitors.exposure: expected another name, found 'exposure'; use "
         "[input.exposure]"),
        ("monitors.i0", {"values": [1], "file": "a"}, "job.toml: monitors.i0: expected exactly one of values, file, "
         "header, dataset, found 'values' and 'file'"),
        ("monitors.i0", {"values": [1, 2], "variances": [1]}, "job.toml: monitors.i0.variances: expected one number of at "
         "least 0 beside each of values, found [1.0]"),
    ],
)  # fmt: skip
def test_each_fault_of_a_job_is_one_sentence(place, value, expected):
    raw = copy.deepcopy(scans.JOB)
    table, keys = raw, place.split(".")
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    if value is None:
        del table[keys[-1]]
    else:
        table[keys[-1]] = value
    text = fault(parse, raw, "job.toml", ".")
    if expected is None:
        assert "take a larger step" in text
    else:
        assert text == expected


def test_a_file_that_is_no_job_is_named(tmp_path):
    path = tmp_path / "job.toml"
    assert fault(Job.read, path) == f"{path}: expected a job (.toml), found No such file or directory; check the path"
    path.write_bytes(b"\xff\xfe")
    assert fault(Job.read, path) == f"{path}: expected a job (.toml), found bytes that are no UTF-8"
    path.write_text("[job\n")
    assert fault(Job.read, path).startswith(f"{path}: expected TOML, found Expected ']'")
    assert fault(Job.read, tmp_path) == f"{tmp_path}: expected a job (.toml), found Is a directory; check the path"


def test_a_missing_key_that_is_misspelt_is_found_by_its_spelling():
    raw = copy.deepcopy(scans.JOB)
    raw["job"]["nmae"] = raw["job"].pop("name")
    assert fault(parse, raw, "job.toml", ".").endswith("found 'nmae'; did you mean 'name'?")


# The digest


def ruby_raw():
    return tomllib.loads((DATA / "jobs" / "ruby_ff1.toml").read_text())


def test_moving_data_or_taking_more_threads_keeps_the_digest(tmp_path):
    before = ruby().digest()
    assert re.fullmatch("[0-9a-f]{64}", before)
    for name in ("ruby_ff1.npz", "ruby_instrument.yml", "ruby_grains.out"):
        shutil.copyfile(DATA / name, tmp_path / name)
    (tmp_path / "jobs").mkdir()
    raw = ruby_raw()
    raw["job"] |= {"name": "other", "output": "x.nxs", "scratch": "s", "allow_empty": True, "compression": "bitshuffle"}
    raw["run"] = {"threads": 3, "readers": 2, "budget": "1 GiB", "frames_per_call": 4, "checkpoints": 3}
    moved = parse(raw, "elsewhere.toml", tmp_path / "jobs")
    assert moved.digest() == before
    data = bytearray((tmp_path / "ruby_ff1.npz").read_bytes())
    data[100] ^= 1
    (tmp_path / "ruby_ff1.npz").write_bytes(bytes(data))
    assert moved.digest() != before


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("job.depth", 3),
        ("job.exposure", "stationary"),
        ("job.excluded", [1]),
        ("input.saturation", 900),
        ("input.sentinels", [7]),
        ("input.gaps", True),
        ("input.overrule", ["pixel_m"]),
        ("input.synthetic.seed", 1),
        ("input.exposure", {"values": [2]}),
        ("instrument.energy_keV", 20.000001),
        ("instrument.poni_m", [2e-4, 3.0001e-4]),
        ("instrument.rotations_radians", [0, 1e-9, 0]),
        ("instrument.azimuth_degrees", 1e-9),
        ("goniometer.omega", {"axis": "omega", "sign": -1}),
        ("goniometer.omega", {"axis": "omega", "offset_degrees": 1e-9}),
        ("goniometer.chi", {"degrees": 1e-9}),
        ("angles.omega", {"start_degrees": 0, "increment_degrees": 0.1}),
        ("crystal.cell", [4, 4, 4.0000001, 90, 90, 90]),
        ("crystal.position_mm", [0, 0, 1e-6]),
        ("grids.hkl.step", [0.1, 0.1, 0.1000001]),
        ("grids.hkl.chunk", [32, 64, 64]),
        ("grids.second", {"minimum": [-1, -1, -1], "maximum": [1, 1, 1], "step": [0.1, 0.1, 0.1]}),
        ("corrections.solid_angle", False),
        ("corrections.polarisation", 0.5),
        ("corrections.exposure_time", True),
        ("corrections.lorentz", True),
        ("corrections.repair", 1),
        ("monitors.m", {"values": [2]}),
    ],
)
def test_whatever_changes_a_voxel_changes_the_digest(place, value):
    raw = copy.deepcopy(scans.JOB)
    table, keys = raw, place.split(".")
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    table[keys[-1]] = value
    assert parse(raw, "job.toml", ".").digest() != scans.job().digest()
    assert parse(copy.deepcopy(raw), "job.toml", ".").digest() == parse(raw, "job.toml", ".").digest()


def test_files_of_corrections_and_angles_are_in_the_digest(tmp_path):
    np.save(tmp_path / "mask.npy", np.zeros(scans.SHAPE, bool))
    (tmp_path / "omega.txt").write_text("0 1\n1 2\n2 3\n3 4\n")
    (tmp_path / "i0.txt").write_text("1\n1\n1\n1\n")
    tables = {
        "corrections": {"mask": "mask.npy"}, "monitors": {"m": {"file": "i0.txt"}},
        "angles": {"omega": {"file": "omega.txt", "invented": True}},
    }  # fmt: skip
    job = scans.job(tmp_path, **tables)
    before = job.digest()
    for name, change in (
        ("mask.npy", lambda path: np.save(path, np.ones(scans.SHAPE, bool))),
        ("omega.txt", lambda path: path.write_text("0 1\n1 2\n2 3\n3 5\n")),
        ("i0.txt", lambda path: path.write_text("1\n1\n1\n2\n")),
    ):
        kept = (tmp_path / name).read_bytes()
        change(tmp_path / name)
        assert job.digest() != before, name
        (tmp_path / name).write_bytes(kept)
        assert job.digest() == before
    (tmp_path / "i0.txt").unlink()
    text = fault(job.digest)
    assert text == f"{tmp_path}/i0.txt: expected a readable file, found No such file or directory; check the path"


# Images of corrections


@extras
def test_images_of_every_kind(tmp_path):
    import h5py
    from fabio.edfimage import EdfImage
    from fabio.tifimage import TifImage

    picture = np.arange(35, dtype=np.int32).reshape(scans.SHAPE)
    np.save(tmp_path / "a.npy", picture)
    TifImage(data=picture).write(str(tmp_path / "a.tif"))
    EdfImage(data=picture).write(str(tmp_path / "a.edf"))
    scans.write_cbf(tmp_path / "a.cbf", picture)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x/y"] = picture[None]
    for name in ("a.npy", "a.tif", "a.edf", "a.cbf", "a.h5::/x/y"):
        job = scans.job(tmp_path, corrections={"flat": name, "mask": name})
        flat = job.image("flat")
        assert flat.dtype == np.float64
        np.testing.assert_array_equal(flat, picture)
        np.testing.assert_array_equal(job.image("mask"), picture != 0)
        assert job.image("background") is None

    def image(name):
        return fault(scans.job(tmp_path, corrections={"mask": name}).image, "mask")

    np.save(tmp_path / "small.npy", picture[:4])
    assert image("small.npy") == f"{tmp_path}/small.npy: expected 5 x 7 pixels, as the instrument has, found 4 x 7"
    assert image("a.h5") == (
        f"{tmp_path}/a.h5: expected '::' and the path of a data set after the file, found nothing; write "
        f"{tmp_path}/a.h5::/path"
    )
    assert image("a.h5::/x") == f"{tmp_path}/a.h5: expected a data set '/x', found none; check the path"
    assert image("a.npy::/x") == f"{tmp_path}/a.npy: expected '::' after an HDF5 file alone, found '::/x'"
    assert (
        image("none.npy") == f"{tmp_path}/none.npy: expected an image, found No such file or directory; check the path"
    )
    (tmp_path / "a.jpg").touch()
    assert image("a.jpg").endswith("found '.jpg'; convert the file")
    np.save(tmp_path / "text.npy", np.full(scans.SHAPE, "x"))
    assert image("text.npy") == f"{tmp_path}/text.npy: expected numbers in two dimensions, found <U1 (5, 7)"
    (tmp_path / "broken.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-9])
    assert image("broken.npy").startswith(f"{tmp_path}/broken.npy: expected an array (.npy), found none (")


# Whatever stands in the file


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
        st.sampled_from(["hkl", "omega", "stationary", "hexrd", "a.npy", "1-3", [0, 0, 0], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["axis", "step", "x"]), inner)),
    max_leaves=6,
)  # fmt: skip


def places(table, path=()):
    """Every key of a table and of those in it."""
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_any_value_anywhere_is_a_job_or_one_sentence(data):
    raw = copy.deepcopy(scans.JOB)
    raw |= {
        "corrections": {"polarisation": 0.5, "monitors": [], "mask": "m.npy", "repair": 1}, "run": {"budget": "1 GiB"},
        "angles": {"omega": {"start_degrees": 0, "increment_degrees": 1}}, "monitors": {"m": {"values": [1]}},
    }  # fmt: skip
    for place in data.draw(st.lists(st.sampled_from(sorted(places(raw))), min_size=1, max_size=2)):
        table = raw
        for key in place[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            value = data.draw(VALUES)
            if value is None:
                table.pop(place[-1], None)
            else:
                table[place[-1]] = value
    try:
        job = parse(raw, "job.toml", ".")
        job.describe()
    except sources.SourceError as error:
        text = str(error)
        assert re.fullmatch(r"job\.toml: .+: expected .+, found .+|.*: expected a .+, found No such file.*", text)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=3),
    cut=st.one_of(st.none(), st.integers(0, 2000)),
)
def test_a_damaged_job_is_a_job_or_one_sentence(tmp_path_factory, flips, cut):
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    raw = bytearray(example.encode())
    for at, bit in flips:
        raw[at % len(raw)] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    path.write_bytes(bytes(raw[:cut]))
    try:
        Job.read(path).describe()
    except sources.SourceError as error:
        text = str(error)
        assert "\n" not in text
        assert ": expected " in text
        assert ", found " in text
