"""Frames of every format: counts, masks, angles and times as the data have them; one sentence for what cannot be."""

import builtins
import bz2
import gzip
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import scans
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scans import fault

from impl.mapping import frames, goniometer
from impl.mapping.goniometer import Given, Motor, Positions
from impl.mapping.sources import FrameCache, SourceError, ruby

DATA = Path(__file__).resolve().parents[2] / "data" / "xray"
extras = pytest.mark.extras
OMEGA = [(10.0, 10.25), (10.25, 10.5), (10.5, 10.75)]


# Made scans


def test_a_made_frame_depends_on_the_seed_and_its_number_alone():
    made = {"frames": 5, "rows": 40, "columns": 50, "seed": 3}
    kept = {"shape": [40, 50]}
    scan = scans.job(input={"synthetic": made}, instrument=kept).open()
    again = scans.job(input={"synthetic": {**made, "frames": 900}}, instrument=kept).open()
    other = scans.job(input={"synthetic": {**made, "seed": 4}}, instrument=kept).open()
    assert isinstance(scan, frames.FrameStack)
    digests = [scan.read(k).digest for k in range(5)]
    assert [again.read(k).digest for k in (4, 3, 2, 1, 0)] == digests[::-1]
    assert len({*digests, other.read(0).digest}) == 6
    counts = scan.read(2).counts
    assert counts.dtype == np.int32
    assert counts.shape == (40, 50)
    assert counts.mean() == pytest.approx(5, abs=0.3)
    assert counts.var() == pytest.approx(5, abs=0.6)
    with pytest.raises(IndexError, match="expected 0 to 4, found 5"):
        scan.read(5)


def test_real_counts_have_sums_that_depend_on_their_order():
    made = {"frames": 1, "rows": 64, "columns": 64, "counts": "real"}
    frame = scans.job(input={"synthetic": made}, instrument={"shape": [64, 64]}).open().read(0)
    assert frame.counts.dtype == frame.variance.dtype == np.float64
    assert frame.counts.cumsum()[-1] != frame.counts[::-1].cumsum()[-1]
    assert (frame.variance > 0).all()
    whole = scans.job(input={"synthetic": {**made, "counts": "integer"}}, instrument={"shape": [64, 64]}).open().read(0)
    assert whole.counts.cumsum()[-1] == whole.counts[::-1].cumsum()[-1]


def test_marked_pixels_of_a_made_frame_are_masked():
    made = {"frames": 1, "rows": 100, "columns": 100, "masked": 0.1}
    frame = scans.job(input={"synthetic": made}, instrument={"shape": [100, 100]}).open().read(0)
    np.testing.assert_array_equal(frame.mask, frame.counts == -1)
    assert 0.07 < frame.mask.mean() < 0.13
    assert scans.job().open().read(0).mask is None


# The content hash


def test_the_content_hash_sees_every_value_the_dtype_and_the_shape():
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    digest = frames.content_digest(a)
    assert digest.startswith("xxh3-128:") or digest.startswith("blake2b-128:")
    assert frames.content_digest(a.copy()) == digest
    assert frames.content_digest(np.asfortranarray(a)) == digest
    changed = a.copy()
    changed[2, 3] += 1
    others = [frames.content_digest(x) for x in (changed, a.reshape(4, 3), a.astype(np.uint32), a.T)]
    assert len({digest, *others}) == 5
    assert frames.content_digest(np.zeros((0, 3))) != frames.content_digest(np.zeros((3, 0)))


def test_without_xxhash_the_content_hash_names_another_algorithm(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **keywords):
        if name == "xxhash":
            raise ImportError(name)
        return real(name, *args, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    assert frames.content_digest(np.arange(3)).startswith("blake2b-128:")


# Masks


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (np.array([[5, -1, -2, -3]], np.int32), {}, [0, 1, 1, 0]),
        (np.array([[5, 65535, 65534, 0]], np.uint16), {}, [0, 1, 0, 0]),
        (np.array([[5, 2**32 - 1, 2**32 - 2, 2**32 - 3]], np.uint32), {}, [0, 1, 1, 0]),
        (np.array([[5.0, np.nan, np.inf, -1.0]]), {}, [0, 1, 1, 0]),
        (np.array([[5, 9, 10, 11]], np.int16), {"saturation": 9.5}, [0, 0, 1, 1]),
        (np.array([[5, 9, 10, 11]], np.uint8), {"saturation": 10.0}, [0, 0, 1, 1]),
        (np.array([[5, 9, 10, 11]], np.uint8), {"saturation": 1e9}, None),
        (np.array([[5, 9, 10, 11]], np.uint8), {"saturation": -1e9}, [1, 1, 1, 1]),
        (np.array([[5.0, 9.5, 10.0, 11.0]]), {"saturation": 9.5}, [0, 1, 1, 1]),
        (np.array([[5, 9, 10, 11]], np.int32), {"least": 9}, [1, 0, 0, 0]),
        (np.array([[5, 9, 10, 11]], np.uint8), {"least": -3}, None),
        (np.array([[5, -1, -2, 7]], np.int32), {"sentinels": (7, 2**40)}, [0, 0, 0, 1]),
        (np.array([[5, -1, -2, 7]], np.int32), {"sentinels": ()}, None),
    ],
)
def test_pixels_that_were_not_measured_are_masked(values, options, expected):
    mask = frames.excluded(values, **options)
    if expected is None:
        assert mask is None
    else:
        np.testing.assert_array_equal(mask, np.array([expected], bool))


# Frame caches


def test_the_ruby_scan_opens_with_its_own_angles():
    from impl.mapping.job import Job

    job = Job.read(DATA / "jobs" / "ruby_ff1.toml")
    scan = job.open()
    try:
        assert (scan.frames, scan.shape, scan.concurrent) == (1440, (3888, 3072), True)
        assert scan.breaks == ()
        tile = ruby(DATA, "ff1", 48, 1, 3).tiles[0]
        np.testing.assert_allclose(scan.start[867:870], tile.start, rtol=0, atol=1e-15)
        np.testing.assert_allclose(scan.end[867:870], tile.end, rtol=0, atol=1e-15)
        np.testing.assert_allclose(job.origin(scan.start[867:870], scan.end[867:870]), tile.origin, rtol=0, atol=1e-15)
        frame = scan.read(868)
        r0, r1, c0, c1 = tile.rectangle
        np.testing.assert_array_equal(frame.counts[r0:r1, c0:c1], tile.counts[1])
        assert frame.counts.dtype == np.uint16
        np.testing.assert_array_equal(frame.mask, frame.counts >= 15800)
        assert frame.mask.sum() == 1
    finally:
        scan.close()


def test_the_two_wedges_of_zirconium_are_not_joined():
    motors = {"omega": {"axis": "omega", "sign": -1}}
    scan = scans.opened(DATA, "frame-cache", ["zirconium_ge2.npz"], goniometer=motors, instrument={"shape": [2048] * 2})
    low = np.degrees(-scan.start[:, 1])
    np.testing.assert_allclose(low, np.concatenate([np.arange(-115, -65), np.arange(65, 115)]), atol=1e-12)
    np.testing.assert_allclose(np.degrees(-scan.end[:, 1]), low + 1, atol=1e-12)
    assert scan.breaks == (50,)
    frame = scan.read(50)
    assert frame.counts.shape == (2048, 2048)
    assert frame.counts.dtype == np.uint16
    cache = FrameCache(DATA / "zirconium_ge2.npz")
    row, column, counts = cache.recorded(50)
    cache.close()
    np.testing.assert_array_equal(frame.counts[row, column], counts)
    assert np.count_nonzero(frame.counts) == np.count_nonzero(counts)
    scan.close()


def test_wedges_are_read_as_they_are(tmp_path):
    made = [scans.counts(k, np.uint16) for k in range(4)]
    omega = [(-66, -65.5), (-65.5, -65), (65, 65.5), (65.5, 66)]
    scans.write_cache(tmp_path / "a.npz", made, omega)
    scan = scans.opened(tmp_path, "frame-cache", ["a.npz"], goniometer={"omega": {"axis": "Omega", "sign": -1}})
    np.testing.assert_array_equal(scan.start[:, 1], -np.radians([a for a, _ in omega]))
    np.testing.assert_array_equal(scan.end[:, 1], -np.radians([b for _, b in omega]))
    assert not scan.start[:, [0, 2, 3]].any()
    assert scan.breaks == (2,)
    for k in range(4):
        np.testing.assert_array_equal(scan.read(k).counts, made[k])
    scan.close()


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([(0, 1), (1, 2), (2, 3)], ()),
        ([(0, 1), (1, 2), (7, 8), (8, 9)], (2,)),
        ([(1, 0), (0, -1), (-1, -2), (-9, -10)], (3,)),
        ([(0, 0.5), (1, 1.5), (2, 2.5)], ()),  # half of each step is not measured
        ([(0, 0), (1, 1), (2, 2), (3, 3)], ()),  # each frame stands still
        ([(5, 5), (5, 5), (5, 5), (6, 6), (6, 6)], (3,)),
        ([(0, 1), (1.0001, 2.0001), (1.9999, 3)], ()),
        ([(0, 1)], ()),
    ],
)
def test_a_wedge_begins_where_frames_lie_apart(bounds, expected):
    start, end = np.zeros((2, len(bounds), 4))
    start[:, 1], end[:, 1] = np.radians(bounds).T
    assert goniometer.breaks(start, end) == expected


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([(358, 359), (359, 360), (0, 1), (1, 2)], [(358, 359), (359, 360), (360, 361), (361, 362)]),
        ([(358, 359), (359, 0), (0, 1)], [(358, 359), (359, 360), (360, 361)]),  # the end itself fell to 0
        ([(-179, -180), (180, 179), (179, 178)], [(-179, -180), (-180, -181), (-181, -182)]),
        ([(-66, -65), (294, 295), (295, 296)], [(-66, -65), (294, 295), (295, 296)]),  # a wedge stays where it is
        ([(0, 360), (0, 360)], [(0, 360), (360, 720)]),  # whole turns in each exposure
        ([(0, 360)], [(0, 360)]),
        ([(89.9997, 89.9997)] * 3, [(89.9997, 89.9997)] * 3),
        ([(0, 1), (200, 201)], [(0, 1), (200, 201)]),
    ],
)
def test_a_motors_count_that_starts_again_is_no_jump(bounds, expected):
    positions = {"om": Positions(*np.array(bounds, float).T, "the data")}
    start, end, _ = goniometer.resolve("om", None, positions, len(bounds), "scan")
    np.testing.assert_array_equal(np.stack([start, end], axis=1), expected)


def test_centres_across_a_gap_have_no_middle(tmp_path):
    scans.write_cache(tmp_path / "a.npz", [scans.counts(k, np.uint16) for k in range(4)], [(0, 1)] * 4)
    angles = {"omega": {"centres_degrees": [-66.5, -65.5, 65.5, 66.5], "exposure": "midpoint", "invented": True}}
    text = fault(scans.opened, tmp_path, "frame-cache", ["a.npz"], angles=angles)
    assert text == (
        "job.toml: angles.omega: expected even steps of about 1 degrees for 'midpoint', found 131 degrees between "
        "frames 1 and 2; a gap has no middle; give bounds_degrees or a file with start and end"
    )


def test_faults_of_a_frame_cache_are_named(tmp_path):
    made = [scans.counts(0, np.uint16)]
    path = scans.write_cache(tmp_path / "a.npz", made, OMEGA[:1])
    text = fault(scans.opened, tmp_path, "frame-cache", ["b.npz"])
    assert text == f"{tmp_path}/b.npz: expected a frame cache (.npz), found No such file or directory; check the path"
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-30])
    (tmp_path / "text.npz").write_text("0.8 1.5e-4 1.2")
    for name in ("cut.npz", "text.npz"):
        assert fault(scans.opened, tmp_path, "frame-cache", [name]) == (
            f"{tmp_path}/{name}: expected a frame cache (.npz), found no archive, or one that ends early; check "
            "the file"
        )
    text = fault(frames.open_scan, frames.Input("mar345"))
    assert text == (
        "the job: input.format: expected one of cbf, tiff, edf, hdf5, frame-cache, synthetic, found 'mar345'"
    )
    text = fault(scans.opened, tmp_path, "frame-cache", ["a.npz", "a.npz"])
    assert text == "job.toml: input.files: expected one frame cache (.npz), found 2"
    text = fault(scans.opened, tmp_path, "frame-cache", ["a.npz"], instrument={"shape": [6, 7]})
    assert text == (
        f"{path}: expected frames of 6 x 7 pixels, as the instrument has, found 5 x 7; check [instrument], or the panel"
    )
    scans.write_cache(tmp_path / "odd.npz", made, OMEGA)
    text = fault(scans.opened, tmp_path, "frame-cache", ["odd.npz"])
    assert "expected a shape (rows, columns) and omega (frames, 2), found (5, 7) and (3, 2)" in text
    with np.load(path) as file:
        arrays = dict(file)
    arrays["0_row"] = arrays["0_row"] + 5
    np.savez(tmp_path / "outside.npz", **arrays)
    scan = scans.opened(tmp_path, "frame-cache", ["outside.npz"])
    assert fault(scan.read, 0) == f"{tmp_path}/outside.npz: frame 0: expected pixels within 5 x 7, found others"
    scan.close()
    np.savez(tmp_path / "text.npz", **{**arrays, "dtype": np.array(b"U9")})
    assert "expected a dtype of numbers, found <U9" in fault(scans.opened, tmp_path, "frame-cache", ["text.npz"])


# Angles


def test_a_motor_has_a_sign_and_an_offset():
    positions = {"om": Positions(np.array([1.0, 2.0]), np.array([2.0, 3.0]), "the data")}
    motors = {"omega": Motor("om", -1.0, 10.0), "phi": Motor("", 1.0, 5.0)}
    start, end, notes = goniometer.angles(motors, {}, positions, 2, "scan")
    np.testing.assert_allclose(np.degrees(start), [[0, 9, 0, 5], [0, 8, 0, 5]], atol=1e-12)
    np.testing.assert_allclose(np.degrees(end), [[0, 8, 0, 5], [0, 7, 0, 5]], atol=1e-12)
    assert notes == {"om": "the data"}


def test_an_angle_that_nobody_knows_is_refused():
    text = fault(goniometer.angles, {"omega": Motor("om")}, {}, {"chi": None}, 2, "scan")
    assert text == (
        "scan: expected positions of the axis 'om', found 'chi'; name another axis in the job's [goniometer] or give "
        "the positions in [angles.om]"
    )
    centres = {"om": Positions(None, None, "the data", np.array([1.0, 2.0]))}
    text = fault(goniometer.angles, {"omega": Motor("om")}, {}, centres, 2, "scan")
    assert text == (
        "scan: expected where each exposure starts and ends, found only one angle a frame; set exposure = 'midpoint' "
        "or 'stationary' for this axis in the job's [angles], or give bounds_degrees"
    )
    bad = {"om": Positions(np.array([1.0, np.nan]), np.array([2.0, 3.0]), "the data")}
    text = fault(goniometer.angles, {"omega": Motor("om")}, {}, bad, 2, "scan")
    assert text == "scan: expected finite positions of the axis 'om', found nan to 3.0 for frame 1"


@pytest.mark.parametrize(
    ("given", "start", "end"),
    [
        (Given(bounds=((1.0, 2.0), (5.0, 4.0), (5.0, 5.5))), [1, 5, 5], [2, 4, 5.5]),
        (Given(start=1.0, increment=-0.5), [1, 0.5, 0], [0.5, 0, -0.5]),
        (Given(centres=(1.0, 1.5, 2.0), exposure="midpoint"), [0.75, 1.25, 1.75], [1.25, 1.75, 2.25]),
        (Given(centres=(1.0, 1.5, 9.0), exposure="stationary"), [1, 1.5, 9], [1, 1.5, 9]),
        (Given(centres=(359.5, 0.5, 1.5), exposure="midpoint"), [359, 360, 361], [360, 361, 362]),
    ],
)
def test_positions_that_the_job_gives(given, start, end):
    low, high, source = goniometer.resolve("om", given, {}, 3, "scan")
    np.testing.assert_allclose(low, start, atol=1e-12)
    np.testing.assert_allclose(high, end, atol=1e-12)
    assert source == "given by the job"


def test_positions_from_a_file(tmp_path):
    (tmp_path / "two.txt").write_text("# start end\n1 2\n2 3\n")
    (tmp_path / "one.txt").write_text("1\n2\n")
    low, high, _ = goniometer.resolve("om", Given(file=tmp_path / "two.txt"), {}, 2, "scan")
    assert (low.tolist(), high.tolist()) == ([1, 2], [2, 3])
    low, high, _ = goniometer.resolve("om", Given(file=tmp_path / "one.txt", exposure="midpoint"), {}, 2, "scan")
    np.testing.assert_allclose([low, high], [[0.5, 1.5], [1.5, 2.5]])
    one = Given(file=tmp_path / "one.txt")
    assert "expected where each exposure starts and ends, found only one angle" in fault(
        goniometer.resolve, "om", one, {}, 2, "scan"
    )
    text = fault(goniometer.resolve, "om", one, {}, 3, "scan")
    assert text == f"{tmp_path}/one.txt: expected 3 lines of one or two numbers, found 2 lines of 1 numbers"
    text = fault(goniometer.resolve, "om", Given(file=tmp_path / "none.txt"), {}, 3, "scan")
    assert text.startswith(f"{tmp_path}/none.txt: expected a list of angles, found ")
    (tmp_path / "words.txt").write_text("one two\n")
    assert "expected one or two numbers a line, in degrees" in fault(
        goniometer.resolve, "om", Given(file=tmp_path / "words.txt"), {}, 1, "scan"
    )


def test_lists_of_another_length_are_refused():
    text = fault(goniometer.resolve, "om", Given(bounds=((1.0, 2.0),)), {}, 3, "scan", "job.toml")
    assert text == "job.toml: angles.om.bounds_degrees: expected 3 pairs, one a frame, found 1"
    text = fault(goniometer.resolve, "om", Given(centres=(1.0,), exposure="stationary"), {}, 3, "scan", "job.toml")
    assert text == "job.toml: angles.om.centres_degrees: expected 3 numbers, one a frame, found 1"


def test_angles_that_contradict_the_data_must_be_called_invented():
    read = {"om": Positions(np.array([90.0, 90.0]), np.array([90.0, 90.0]), "the headers")}
    text = fault(goniometer.resolve, "om", Given(start=0.0, increment=0.1), read, 2, "scan", "job.toml")
    assert text == (
        "job.toml: angles.om: expected positions that agree with the data, found 0 to 0.1 in the job and 90 to 90 in "
        "the data for frame 0; leave angles.om out, or set invented = true to say that these are not measured"
    )
    _, end, source = goniometer.resolve("om", Given(start=0.0, increment=0.1, invented=True), read, 2, "scan")
    assert source == "invented by the job, not measured (the headers: 90 to 90)"
    assert end.tolist() == [0.1, 0.2]
    assert goniometer.resolve("om", Given(start=90.0, increment=0.0), read, 2, "scan")[2] == "given by the job"
    assert goniometer.resolve("om", Given(start=-270.0, increment=0.0), read, 2, "scan")[2] == "given by the job"
    centres = {"om": Positions(None, None, "the headers", np.array([90.0, 91.0]))}
    assert goniometer.resolve("om", Given(start=89.5, increment=1.0), centres, 2, "scan")[2] == "given by the job"
    assert "found 90 to 91 in the job and 90 to 90 in the data for frame 0" in fault(
        goniometer.resolve, "om", Given(start=90.0, increment=1.0), centres, 2, "scan"
    )
    assert goniometer.resolve("om", None, read, 2, "scan")[2] == "the headers; the axis stood still"


# CBF


@extras
def test_cbf_frames_have_counts_masks_angles_and_times(tmp_path):
    import fabio

    for k in range(3):
        scans.write_cbf(tmp_path / f"a_{k + 8:02d}.cbf", scans.counts(k), *(10 + 0.25 * k, 0.25))
    raw = (tmp_path / "a_09.cbf").read_bytes()
    (tmp_path / "a_09.cbf").unlink()
    (tmp_path / "a_09.cbf.gz").write_bytes(gzip.compress(raw))
    files = ["a_08.cbf", "a_09.cbf.gz", "a_10.cbf"]
    scan = scans.opened(
        tmp_path, "cbf", files, monitors={"flux": {"header": "Flux"}}, input={"files": files, "saturation": 25}
    )
    assert scan.concurrent
    np.testing.assert_allclose(np.degrees(scan.start[:, 1]), [10, 10.25, 10.5], atol=1e-9)
    np.testing.assert_allclose(np.degrees(scan.end[:, 1]), [10.25, 10.5, 10.75], atol=1e-9)
    assert scan.notes == {"omega": "the headers"}
    np.testing.assert_array_equal(scan.exposure, [0.25] * 3)
    np.testing.assert_array_equal(scan.monitors["flux"], [1.0] * 3)
    for k in range(3):
        frame = scan.read(k)
        np.testing.assert_array_equal(frame.counts, scans.counts(k))
        np.testing.assert_array_equal(frame.mask, (frame.counts < 0) | (frame.counts >= 25))
    with fabio.open(str(tmp_path / "a_08.cbf")) as image:
        np.testing.assert_array_equal(image.data, scan.read(0).counts)


@extras
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "int64"])
def test_cbf_of_every_integer(tmp_path, dtype):
    data = scans.counts(0, dtype)
    data[0, :3] = np.iinfo(dtype).max // 2, 0, np.iinfo(dtype).max // 3
    scans.write_cbf(tmp_path / "a.cbf", data)
    scan = scans.opened(tmp_path, "cbf", ["a.cbf"])
    read = scan.read(0).counts
    assert read.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(read, data)


@extras
def test_an_axis_that_no_line_names_is_called_oscillation(tmp_path):
    # Something turned by 0.1 degrees, but chi, the one motor that has a line, did not: chi is not known then.
    scans.write_cbf(tmp_path / "a.cbf", scans.counts(0), 3.0, 0.1, axis="X.CW")
    assert "expected positions of the axis 'chi', found 'oscillation'" in fault(
        scans.opened, tmp_path, "cbf", ["a.cbf"], goniometer={"omega": None, "chi": {"axis": "chi"}}
    )
    scan = scans.opened(tmp_path, "cbf", ["a.cbf"], goniometer={"omega": {"axis": "oscillation"}})
    np.testing.assert_allclose(np.degrees([scan.start[0, 1], scan.end[0, 1]]), [3.0, 3.1])
    # Where the motor that turned has its own line, all lines hold.
    lines = scans.PILATUS + "# Phi 3.0000 deg.\n# Phi_increment 0.1000 deg.\n"
    scans.write_cbf(tmp_path / "b.cbf", scans.counts(0), 3.0, 0.1, axis="X.CW", lines=lines)
    motors = {"omega": None, "chi": {"axis": "chi"}, "phi": {"axis": "phi"}}
    scan = scans.opened(tmp_path, "cbf", ["b.cbf"], goniometer=motors)
    np.testing.assert_allclose(np.degrees(scan.end[0]), [0, 0, 12.5, 3.1])


IMGCIF = """
loop_
_diffrn_scan_axis.scan_id
_diffrn_scan_axis.axis_id
_diffrn_scan_axis.angle_start
_diffrn_scan_axis.angle_increment
_diffrn_scan_axis.displacement_start
SCAN1 GON_OMEGA 40.0 0.5 .
SCAN1 "GON_CHI" 45.0 0.0 . # a comment
SCAN1 DET_Z 0.0 0.0 291.47
loop_
_diffrn_scan_frame_axis.frame_id
_diffrn_scan_frame_axis.axis_id
_diffrn_scan_frame_axis.angle
FRAME1 GON_OMEGA {at}
loop_
_axis.id
_axis.type
_axis.depends_on
GON_OMEGA rotation .
GON_CHI rotation GON_OMEGA
DET_Z translation .
"""


@extras
def test_imgcif_axes_stand_where_their_frame_says(tmp_path):
    for k in range(2):
        extra = IMGCIF.replace("{at}", str(40 + 0.5 * k)).replace("\n", "\r\n")
        scans.write_cbf(tmp_path / f"a{k}.cbf", scans.counts(k), extra=extra)
    motors = {"omega": {"axis": "GON_OMEGA"}, "chi": {"axis": "gon_chi"}}
    scan = scans.opened(tmp_path, "cbf", ["a?.cbf"], goniometer=motors)
    np.testing.assert_allclose(np.degrees(scan.start[:, 1:3]), [[40, 45], [40.5, 45]])
    np.testing.assert_allclose(np.degrees(scan.end[:, 1:3]), [[40.5, 45], [41, 45]])
    assert scan.notes == {"gon_omega": "the headers", "gon_chi": "the headers; the axis stood still"}
    assert "'det_z'" in fault(scans.opened, tmp_path, "cbf", ["a0.cbf"], goniometer={"omega": {"axis": "DET_Z"}})


@extras
def test_faults_of_cbf_files_are_named(tmp_path):
    def one(data, **keywords):
        return scans.write_cbf(tmp_path / "a.cbf", data, **keywords)

    def opens(**tables):
        return scans.opened(tmp_path, "cbf", ["a.cbf"], **tables)

    path = tmp_path / "a.cbf"
    assert fault(opens) == f"{path}: expected a CBF file, found none; check the path"
    path.write_bytes(b"something else entirely")
    assert fault(opens) == f"{path}: expected a CBF file, found one without a binary section; check the file"
    raw = one(scans.counts(0)).read_bytes()
    start = raw.index(b"\x0c\x1a\x04\xd5")
    path.write_bytes(raw[: start - 40])
    assert re.fullmatch(
        rf"{path}: expected the start of the counts after the header, found \d+ bytes without it", fault(opens)
    )
    path.write_bytes(raw[: start + 20])
    assert fault(opens().read, 0) == (
        f"{path}: expected 35 bytes of counts, found 16; the file ends early; copy it again"
    )
    path.write_bytes(raw[: start + 9] + b"\x01" + raw[start + 10 :])
    assert re.fullmatch(
        rf"{path}: expected counts with MD5 \S+==, found others; the file is damaged; copy it again",
        fault(opens().read, 0),
    )
    # Without a checksum the number of pixels tells.
    plain = re.sub(rb"Content-MD5: \S+\r\n", b"", raw)
    at = plain.index(b"\x0c\x1a\x04\xd5") + 4
    path.write_bytes(plain[:at] + b"\x80\x01\x00" + plain[at + 3 :])
    assert fault(opens().read, 0) == (
        f"{path}: expected 35 pixels, found counts that end elsewhere; the file is damaged; copy it again"
    )
    path.write_bytes(raw.replace(b"x-CBF_BYTE_OFFSET", b"x-CBF_PACKED"))
    text = fault(opens().read, 0)
    assert text == f"{path}: expected compression x-CBF_BYTE_OFFSET or none, found x-CBF_PACKED; convert the file"
    path.write_bytes(raw.replace(b"signed 32-bit integer", b"signed 32-bit real"))
    assert fault(opens) == f"{path}: expected integers of 8 to 64 bits, found 'signed 32-bit real'"
    one(scans.counts(0), lines="# Start_angle soon\n# Angle_increment 1\n")
    assert fault(opens) == f"{path}: expected a number for start_angle, found 'soon'"
    one(scans.counts(0), lines="# Exposure_time 1 s\n")
    assert fault(opens) == (
        f"{path}: expected positions of the axis 'omega', found none; name another axis in the job's [goniometer] or "
        "give the positions in [angles.omega]"
    )
    one(scans.counts(0), wavelength=0.7)
    assert fault(opens) == (
        f"{path}: expected wavelength_angstrom 0.619921 as the job's instrument has, found 0.7 in the header; correct "
        "[instrument], or set input.overrule = ['wavelength_angstrom'] if the header is wrong"
    )
    assert opens(input={"overrule": ["wavelength_angstrom"]}).frames == 1
    one(scans.counts(0))
    text = fault(opens, instrument={"pixel_m": [2e-4, 1e-4]})
    assert "expected pixel_m 0.0002 x 0.0001 as the job's instrument has, found 0.0001 x 0.0002 in the header" in text
    assert "expected distance_m 0.3 as" in fault(opens, instrument={"distance_m": 0.3})
    text = fault(opens, instrument={"shape": [7, 5]})
    assert "expected frames of 7 x 5 pixels, as the instrument has, found 5 x 7" in text
    text = fault(opens, monitors={"diode": {"header": "diode"}})
    assert text == f"{path}: expected a number 'diode' in the header, found none"


@extras
def test_frames_of_one_scan_agree_with_each_other(tmp_path):
    scans.write_cbf(tmp_path / "a_1.cbf", scans.counts(0))
    scans.write_cbf(tmp_path / "a_2.cbf", scans.counts(1)[:, :6], 0.1)
    text = fault(scans.opened, tmp_path, "cbf", ["a_*.cbf"])
    assert text == f"{tmp_path}/a_2.cbf: expected 5 x 7 pixels as in a_1.cbf, found 5 x 6"
    scans.write_cbf(tmp_path / "a_2.cbf", scans.counts(1, np.int16), 0.1)
    text = fault(scans.opened, tmp_path, "cbf", ["a_*.cbf"])
    assert text == f"{tmp_path}/a_2.cbf: expected counts of int32 as in a_1.cbf, found int16"


def test_files_follow_each_other_by_number():
    from impl.mapping.images import check_numbers

    def paths(*names):
        return [Path("d") / name for name in names]

    check_numbers(paths("a_0009.cbf", "a_0010.cbf", "b_1.cbf", "b_2.cbf", "plain.cbf"), False, "job.toml")
    check_numbers(paths("a_1.cbf", "a_5.cbf"), True, "job.toml")
    text = fault(check_numbers, paths("a_0009.cbf", "a_0011.cbf"), False, "job.toml")
    assert text == (
        "job.toml: input.files: expected 'a_0010.cbf' after 'a_0009.cbf', found 'a_0011.cbf'; add the missing files, "
        "or set gaps = true"
    )
    text = fault(check_numbers, paths("a_2.cbf", "a_1.cbf"), True, "job.toml")
    assert text == "job.toml: input.files: expected numbers that rise, found 'a_1.cbf' after 'a_2.cbf'; sort the list"
    text = fault(check_numbers, paths("a_2.cbf", "a_2.cbf"), True, "job.toml")
    assert text == "job.toml: input.files: expected every file once, found 'd/a_2.cbf' twice"


def test_patterns_are_ordered_by_number(tmp_path):
    for name in ("s_10.x", "s_9.x", "s_100.x"):
        (tmp_path / name).touch()
    given = frames.Input("cbf", (tmp_path / "s_*.x",))
    assert [path.name for path in frames.expand(given)] == ["s_9.x", "s_10.x", "s_100.x"]
    text = fault(frames.expand, frames.Input("cbf", (tmp_path / "t_*.x",)))
    assert text == f"the job: input.files: expected files, found none for '{tmp_path}/t_*.x'; check the pattern"


# TIFF and EDF


@extras
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "float32"])
def test_tiff_frames(tmp_path, dtype):
    from fabio.tifimage import TifImage

    for k in range(2):
        TifImage(data=scans.counts(k, dtype)).write(str(tmp_path / f"a{k}.tif"))
    text = fault(scans.opened, tmp_path, "tiff", ["a*.tif"])
    assert "expected positions of the axis 'omega', found none" in text
    given = {"omega": {"start_degrees": 1.0, "increment_degrees": 0.5}}
    scan = scans.opened(tmp_path, "tiff", ["a*.tif"], angles=given)
    assert scan.notes == {"omega": "given by the job"}
    np.testing.assert_allclose(np.degrees(scan.end[:, 1]), [1.5, 2.0])
    for k in range(2):
        frame = scan.read(k)
        assert frame.counts.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(frame.counts, scans.counts(k, dtype))
        marked = np.dtype(dtype).kind == "i"
        assert (frame.mask is not None) == marked
        assert not marked or frame.mask.sum() == 2


@extras
def test_a_pilatus_tiff_has_the_angles_of_its_description(tmp_path):
    from fabio.TiffIO import TiffIO

    text = scans.PILATUS.format(start=3.0, step=0.5, axis="omega", wavelength=0.61992, flux=2.0)
    file = TiffIO(str(tmp_path / "a.tif"), mode="wb")
    file.writeImage(scans.counts(0), info={"imageDescription": text})
    file.close()
    description = TiffIO(str(tmp_path / "a.tif"), mode="rb")
    assert "Start_angle" in str(description.getInfo(0))
    description.close()
    scan = scans.opened(tmp_path, "tiff", ["a.tif"])
    np.testing.assert_allclose(np.degrees([scan.start[0, 1], scan.end[0, 1]]), [3.0, 3.5])
    assert scan.exposure.tolist() == [0.25]


@extras
def test_edf_motors_need_to_be_told_what_lies_around_them(tmp_path):
    from fabio.edfimage import EdfImage

    def header(k):
        return {"motor_mne": "om chi", "motor_pos": f"{1 + 0.5 * k} 4", "count_time": "0.2", "WaveLength": "6.1992e-11"}

    image = EdfImage(data=scans.counts(0, np.int32), header=header(0))
    image.append_frame(data=scans.counts(1, np.int32), header=header(1))
    image.write(str(tmp_path / "a.edf"))
    motors = {"omega": {"axis": "om"}, "chi": {"axis": "chi"}}
    still = {"exposure": "stationary"}
    text = fault(scans.opened, tmp_path, "edf", ["a.edf"], goniometer=motors, angles={"chi": still})
    assert "expected where each exposure starts and ends, found only one angle a frame" in text
    scan = scans.opened(
        tmp_path, "edf", ["a.edf"], goniometer=motors, angles={"om": {"exposure": "midpoint"}, "chi": still}
    )
    np.testing.assert_allclose(np.degrees(scan.start[:, 1:3]), [[0.75, 4], [1.25, 4]])
    np.testing.assert_allclose(np.degrees(scan.end[:, 1:3]), [[1.25, 4], [1.75, 4]])
    assert scan.notes["om"] == "centres from the headers, midpoint"
    assert scan.exposure.tolist() == [0.2, 0.2]
    for k in range(2):
        frame = scan.read(k)
        np.testing.assert_array_equal(frame.counts, scans.counts(k, np.int32))
        np.testing.assert_array_equal(frame.mask, frame.counts < 0)
    assert scan.place(1) == f"{tmp_path}/a.edf: frame 1"


@extras
def test_one_frame_a_file_is_that_files_frame(tmp_path):
    from fabio.edfimage import EdfImage

    # fabio's getframe(0) of a_3.edf opens a_0.edf.
    for k in range(4):
        EdfImage(data=scans.counts(k, np.uint16), header={"om": str(k), "om_increment": "1"}).write(
            str(tmp_path / f"a_{k}.edf")
        )
    scan = scans.opened(tmp_path, "edf", ["a_2.edf", "a_3.edf"], goniometer={"omega": {"axis": "om"}})
    np.testing.assert_allclose(np.degrees(scan.start[:, 1]), [2, 3])
    np.testing.assert_allclose(np.degrees(scan.end[:, 1]), [3, 4])
    for k in range(2):
        np.testing.assert_array_equal(scan.read(k).counts, scans.counts(k + 2, np.uint16))


@extras
def test_edf_and_tiff_that_end_early_are_named(tmp_path):
    from fabio.edfimage import EdfImage
    from fabio.tifimage import TifImage

    given = {"omega": {"start_degrees": 1.0, "increment_degrees": 0.5}}
    EdfImage(data=scans.counts(0)).write(str(tmp_path / "a.edf"))
    raw = (tmp_path / "a.edf").read_bytes()
    (tmp_path / "a.edf").write_bytes(raw[:-10])
    scan = scans.opened(tmp_path, "edf", ["a.edf"], angles=given)
    assert fault(scan.read, 0) == (
        f"{tmp_path}/a.edf: expected all counts of the frame, found a file that ends early; copy it again"
    )
    TifImage(data=scans.counts(0)).write(str(tmp_path / "a.tif"))
    raw = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(raw[:-10])
    scan = scans.opened(tmp_path, "tiff", ["a.tif"], angles=given)
    assert str(tmp_path / "a.tif") in fault(scan.read, 0)
    (tmp_path / "b.tif").write_bytes(b"no tiff at all")
    assert fault(scans.opened, tmp_path, "tiff", ["b.tif"], angles=given).startswith(
        f"{tmp_path}/b.tif: expected a TIFF file, found none ("
    )


# Exposure times and monitors


def test_monitors_come_from_lists_files_and_the_data(tmp_path):
    scans.write_cache(
        tmp_path / "a.npz", [scans.counts(k, np.uint16) for k in range(3)], OMEGA, diode=np.array([7.0, 8.0, 9.0])
    )
    (tmp_path / "i0.txt").write_text("10 1\n20 2\n30 3\n")
    monitors = {
        "diode": {"dataset": "diode"}, "i0": {"file": "i0.txt"}, "one": {"values": [5], "variances": [0.5]},
    }  # fmt: skip
    given = {"files": ["a.npz"], "exposure": {"values": [0.1, 0.2, 0.3]}}
    scan = scans.opened(tmp_path, "frame-cache", ["a.npz"], monitors=monitors, input=given)
    assert {name: values.tolist() for name, values in scan.monitors.items()} == {
        "diode": [7, 8, 9], "i0": [10, 20, 30], "one": [5, 5, 5],
    }  # fmt: skip
    assert {name: values.tolist() for name, values in scan.monitor_variances.items()} == {
        "i0": [1, 2, 3], "one": [0.5, 0.5, 0.5],
    }  # fmt: skip
    assert scan.exposure.tolist() == [0.1, 0.2, 0.3]
    assert scan.exposure_variance is None
    scan.close()
    text = fault(scans.opened, tmp_path, "frame-cache", ["a.npz"], monitors={"m": {"values": [1, 2]}})
    assert text == "job.toml: monitors.m: expected 3 values, one a frame, found 2"
    text = fault(scans.opened, tmp_path, "frame-cache", ["a.npz"], monitors={"m": {"dataset": "m"}})
    assert text == f"{tmp_path}/a.npz: expected a value 'm' for every frame, found none in the format 'frame-cache'"
    (tmp_path / "i0.txt").write_text("10 1 2\n")
    text = fault(scans.opened, tmp_path, "frame-cache", ["a.npz"], monitors={"m": {"file": "i0.txt"}})
    assert text == f"{tmp_path}/i0.txt: expected one or two numbers a line, found 3"


# One scan in every format


@extras
def test_one_scan_is_the_same_in_every_format(tmp_path):
    import h5py
    from fabio.edfimage import EdfImage
    from fabio.TiffIO import TiffIO

    omega = [(10 + 0.25 * k, 10.25 + 0.25 * k) for k in range(3)]
    made = [scans.counts(k) for k in range(3)]
    for k, (data, (low, high)) in enumerate(zip(made, omega)):
        scans.write_cbf(tmp_path / f"a_{k}.cbf", data, low, 0.25)
        text = scans.PILATUS.format(start=low, step=0.25, axis="omega", wavelength=0.61992, flux=2.0)
        file = TiffIO(str(tmp_path / f"a_{k}.tif"), mode="wb")
        file.writeImage(data, info={"imageDescription": text})
        file.close()
        header = {"omega": str(low), "omega_end": str(high), "exposure_time": "0.25"}
        EdfImage(data=data, header=header).write(str(tmp_path / f"a_{k}.edf"))
    scans.write_cache(tmp_path / "a.npz", made, omega, "int32")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["entry/data/data"], file["entry/instrument/detector/count_time"] = np.stack(made), 0.25
        for k, name in enumerate(("omega", "omega_end")):
            file[f"entry/sample/goniometer/{name}"] = np.array(omega)[:, k]
    found = {}
    for kind, files in (
        ("cbf", ["a_?.cbf"]), ("tiff", ["a_?.tif"]), ("edf", ["a_?.edf"]), ("frame-cache", ["a.npz"]),
        ("hdf5", ["a.h5"]),
    ):  # fmt: skip
        given = {"files": files, "saturation": 1000}
        if kind == "frame-cache":
            given["exposure"] = {"values": [0.25]}
        scan = scans.opened(tmp_path, kind, files, input=given)
        read = [scan.read(k) for k in range(scan.frames)]
        assert scan.exposure.tolist() == [0.25] * 3
        assert not any(frame.variance is not None for frame in read)
        angles = (np.degrees(scan.start).round(9).tolist(), np.degrees(scan.end).round(9).tolist())
        found[kind] = (angles, scan.breaks, [(frame.digest, frame.mask.tobytes()) for frame in read])
        scan.close()
    assert len(found) == 5
    assert all(one == found["cbf"] for one in found.values())
    np.testing.assert_array_equal(np.array(found["cbf"][0])[:, :, 1].T, omega)


# Threads, missing packages, damaged files


@extras
def test_frames_read_by_many_threads_are_the_same(tmp_path):
    h5py = pytest.importorskip("h5py")
    made = [scans.counts(k) for k in range(6)]
    for k, data in enumerate(made):
        scans.write_cbf(tmp_path / f"a_{k}.cbf", data, 0.1 * k)
    scans.write_cache(tmp_path / "a.npz", [m.clip(0) for m in made], [(k, k + 1) for k in range(6)], "int32")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("entry/data/data", data=np.stack(made), chunks=(4, 5, 7), compression="gzip")
    given = {"omega": {"start_degrees": 0.0, "increment_degrees": 1.0}}
    for scan in (
        scans.opened(tmp_path, "cbf", ["a_*.cbf"]),
        scans.opened(tmp_path, "frame-cache", ["a.npz"]),
        scans.opened(tmp_path, "hdf5", ["a.h5"], angles=given),
    ):
        expected = [scan.read(k).digest for k in range(6)]
        found, errors = {}, []

        def work(first, scan=scan, found=found, errors=errors):
            try:
                for k in range(60):
                    frame = (first + k) % 6
                    found.setdefault(frame, set()).add(scan.read(frame).digest)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        scan.close()
        assert not errors
        assert found == {k: {digest} for k, digest in enumerate(expected)}


@pytest.mark.parametrize(("kind", "package"), [("cbf", "fabio"), ("hdf5", "h5py")])
def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch, kind, package):
    real = builtins.__import__

    def without(name, *args, **keywords):
        if name.partition(".")[0] in ("fabio", "h5py", "hdf5plugin"):
            raise ImportError(name)
        return real(name, *args, **keywords)

    (tmp_path / "a").write_bytes(b"")
    monkeypatch.setattr(builtins, "__import__", without)
    text = fault(scans.opened, tmp_path, kind, ["a"])
    assert text == (
        f"job.toml: input.format = '{kind}': expected the package {package}, found none; "
        "pip install 'harness-ab[mapping]'"
    )


def made_files(folder):
    """One small good file of every format, as bytes."""
    import h5py
    from fabio.edfimage import EdfImage
    from fabio.tifimage import TifImage

    scans.write_cbf(folder / "a.cbf", scans.counts(0), extra=IMGCIF.replace("{at}", "1"))
    TifImage(data=scans.counts(0)).write(str(folder / "a.tiff"))
    EdfImage(data=scans.counts(0), header={"omega": "1.5", "omega_end": "2"}).write(str(folder / "a.edf"))
    scans.write_cache(folder / "a.frame-cache", [scans.counts(0, np.uint16)], OMEGA[:1])
    (folder / "a.frame-cache.npz").rename(folder / "a.frame-cache")
    with h5py.File(folder / "a.hdf5", "w") as file:
        file.create_dataset("entry/data/data", data=scans.counts(0)[None], chunks=(1, 5, 7), compression="gzip")
        file["entry/sample/goniometer/omega"], file["entry/sample/goniometer/omega_end"] = [1.0], [2.0]
        file["entry"].attrs["NX_class"] = "NXentry"
    return {kind: (folder / f"a.{kind}").read_bytes() for kind in ("cbf", "tiff", "edf", "frame-cache", "hdf5")}


@extras
@pytest.mark.parametrize("kind", ["cbf", "cbf.gz", "cbf.bz2", "tiff", "edf", "frame-cache", "hdf5"])
def test_a_damaged_file_gives_one_sentence_or_frames(tmp_path_factory, kind):
    folder = tmp_path_factory.mktemp(kind)
    kind, _, packed = kind.partition(".")
    raw = made_files(folder)[kind]
    if packed:
        raw = {"gz": gzip.compress(raw, mtime=0), "bz2": bz2.compress(raw)}[packed]
    name = f"damaged.{packed}"

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(
        cut=st.one_of(st.none(), st.integers(0, len(raw))),
        flipped=st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 7)), max_size=4),
    )
    def check(cut, flipped):
        data = bytearray(raw)
        for at, bit in flipped:
            data[at] ^= 1 << bit
        path = folder / name
        path.write_bytes(bytes(data[:cut]))
        angles = {"omega": {"start_degrees": 0.0, "increment_degrees": 1.0, "invented": True}}
        try:
            scan = scans.opened(folder, kind, [name], angles=angles)
            try:
                for k in range(min(scan.frames, 3)):
                    assert scan.read(k).counts.shape == scans.SHAPE
            finally:
                scan.close()
        except SourceError as error:
            text = str(error)
            assert "\n" not in text
            assert ": expected " in text
            assert ", found " in text

    check()
