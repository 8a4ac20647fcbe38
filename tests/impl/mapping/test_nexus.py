"""HDF5 scans: EIGER masters, NXmx and plain stacks, with their masks, limits, angles and times."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scans
from scans import fault

pytestmark = pytest.mark.extras
GIVEN = {"omega": {"start_degrees": 0.0, "increment_degrees": 1.0}}


def stack(frames, dtype=np.uint32):
    """Counts (frames, 5, 7) with the largest two values of the dtype in two pixels of every frame."""
    out = np.stack([scans.counts(k, dtype) for k in range(frames)])
    out[:, 0, 0], out[:, 0, 1] = np.iinfo(dtype).max, np.iinfo(dtype).max - 1
    return out


def eiger(folder, data, per_file=2, skip=(), filters=True):
    """An EIGER master with linked data files."""
    import h5py
    import hdf5plugin

    options = dict(hdf5plugin.Bitshuffle(cname="lz4")) if filters else {}
    with h5py.File(folder / "x_master.h5", "w") as file:
        entry = file.create_group("entry")
        entry.attrs["NX_class"] = "NXentry"
        entry.create_group("data").attrs["NX_class"] = "NXdata"
        for number, first in enumerate(range(0, len(data), per_file), start=1):
            name = f"x_data_{number:06d}.h5"
            if number not in skip:
                with h5py.File(folder / name, "w") as part:
                    part.create_dataset(
                        "entry/data/data", data=data[first : first + per_file], chunks=(1, *data.shape[1:]), **options
                    )
            entry["data"][f"data_{number:06d}"] = h5py.ExternalLink(name, "/entry/data/data")
        detector = entry.create_group("instrument/detector")
        detector.attrs["NX_class"] = "NXdetector"
        detector["count_time"] = 0.5
        detector["x_pixel_size"], detector["y_pixel_size"] = 2e-4, 1e-4
        detector["detector_distance"] = 0.2
        special = detector.create_group("detectorSpecific")
        special["nimages"], special["ntrigger"] = len(data), 1
        special["countrate_correction_count_cutoff"] = 1000
        mask = np.zeros(data.shape[1:], np.uint32)
        mask[4, 6], mask[3, :2] = 1, 1 << 4
        special["pixel_mask"] = mask
        beam = entry.create_group("instrument/beam")
        beam.attrs["NX_class"] = "NXbeam"
        beam["incident_wavelength"] = 0.61992
        goniometer = entry.create_group("sample/goniometer")
        goniometer["omega"] = 10 + 0.25 * np.arange(len(data))
        goniometer["omega_end"] = 10 + 0.25 * np.arange(1, len(data) + 1)
        goniometer["chi"], goniometer["chi_range_average"] = np.full(len(data), 45.0), 0.0
    return folder / "x_master.h5"


def test_an_eiger_master_with_linked_files(tmp_path):
    data = stack(5)
    data[3, 2, 2] = 1000
    eiger(tmp_path, data)
    motors = {"omega": {"axis": "omega", "sign": -1}, "chi": {"axis": "chi"}}
    job = scans.job(tmp_path, input={"format": "hdf5", "files": ["x_master.h5"], "synthetic": None}, goniometer=motors)
    scan = job.open()
    assert (scan.frames, scan.shape, scan.concurrent) == (5, scans.SHAPE, False)
    np.testing.assert_allclose(np.degrees(scan.start[:, 1]), -(10 + 0.25 * np.arange(5)))
    np.testing.assert_allclose(np.degrees(scan.end[:, 1]), -(10 + 0.25 * np.arange(1, 6)))
    np.testing.assert_allclose(np.degrees(scan.start[:, 2]), [45] * 5)
    assert scan.breaks == ()
    assert scan.notes["omega"] == "/entry/sample/goniometer/omega and /entry/sample/goniometer/omega_end"
    assert scan.exposure.tolist() == [0.5] * 5
    job.digest()
    job.open().close()  # both open the same files and close them
    for k in range(5):
        frame = scan.read(k)
        np.testing.assert_array_equal(frame.counts, data[k])
        assert frame.counts.dtype == np.uint32
        expected = data[k] >= 1000  # the largest two values lie above it too
        expected[4, 6] = expected[3, :2] = True
        np.testing.assert_array_equal(frame.mask, expected)
    with pytest.raises(ValueError):
        scan.static_mask[0, 0] = True
    scan.close()
    # The digest knows the linked files, not the master alone.
    digest = job.digest()
    raw = bytearray((tmp_path / "x_data_000002.h5").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "x_data_000002.h5").write_bytes(bytes(raw))
    assert job.digest() != digest


def test_a_missing_filter_says_what_to_install(tmp_path):
    eiger(tmp_path, stack(2))
    (tmp_path / "hdf5plugin.py").write_text("raise ImportError('blocked')")
    code = (
        "import scans\n"
        "from impl.mapping.sources import SourceError\n"
        "try:\n    scans.opened('.', 'hdf5', ['x_master.h5'])\n"
        "except SourceError as error:\n    print(error)\n"
    )
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(tmp_path), str(here.parent), str(here.parents[3])])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path, "HDF5_PLUGIN_PATH": str(tmp_path)},
    )  # fmt: skip
    assert re.fullmatch(
        r"x_master\.h5: expected the HDF5 filter 32008 \(bitshuffle.*\) of /entry/data/data, found none; "
        r"pip install 'harness-ab\[mapping\]' for hdf5plugin\n",
        done.stdout,
    )


def test_missing_data_files_are_named(tmp_path):
    import h5py

    path = eiger(tmp_path, stack(6), skip=(2,))
    text = fault(scans.opened, tmp_path, "hdf5", ["x_master.h5"])
    assert text.startswith(f"{path}: expected the linked file 'x_data_000002.h5' with '/entry/data/data', found none (")
    assert text.endswith("; put it beside")
    with h5py.File(path, "a") as file:
        del file["entry/data/data_000002"]
    text = fault(scans.opened, tmp_path, "hdf5", ["x_master.h5"])
    assert text == (
        f"{path}: expected 'data_000002' after 'data_000001', found 'data_000003'; add the missing file, "
        "or set gaps = true"
    )
    with h5py.File(path, "a") as file:
        del file["entry/data/data_000003"]
    text = fault(scans.opened, tmp_path, "hdf5", ["x_master.h5"])
    assert text == (
        f"{path}: expected 6 frames, as nimages and ntrigger say, found 2; add the missing data "
        "files, or set gaps = true"
    )
    text = fault(scans.opened, tmp_path, "hdf5", ["x_master.h5"], input={"gaps": True})
    assert text == f"{path}: expected 2 values in /entry/sample/goniometer/omega, one a frame, found 6"


def test_linked_files_agree_with_each_other(tmp_path):
    import h5py

    path = eiger(tmp_path, stack(4))
    for made, expected in (
        (stack(2)[:, :4], "5 x 7 pixels as in /entry/data/data, found 4 x 7 in /entry/data/data"),
        (stack(2, np.uint16), "counts of uint32 as in /entry/data/data, found uint16 in /entry/data/data"),
    ):
        with h5py.File(tmp_path / "x_data_000002.h5", "w") as file:
            file["entry/data/data"] = made
        assert fault(scans.opened, tmp_path, "hdf5", ["x_master.h5"]) == f"{path}: expected {expected}"


def test_a_virtual_data_set_without_its_source_is_refused(tmp_path):
    import h5py

    data = stack(4)
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["raw"] = data
    layout = h5py.VirtualLayout(data.shape, data.dtype)
    layout[:] = h5py.VirtualSource("source.h5", "raw", data.shape)
    with h5py.File(tmp_path / "v.nxs", "w") as file:
        file.create_virtual_dataset("entry/data/data", layout, fillvalue=0)
    scan = scans.opened(tmp_path, "hdf5", ["v.nxs"], angles=GIVEN)
    np.testing.assert_array_equal(scan.read(3).counts, data[3])
    scan.close()
    (tmp_path / "source.h5").unlink()
    with h5py.File(tmp_path / "v.nxs") as file:
        assert not file["entry/data/data"][3].any()  # what h5py gives instead
    assert fault(scans.opened, tmp_path, "hdf5", ["v.nxs"], angles=GIVEN) == (
        f"{tmp_path}/v.nxs: expected the linked file '{tmp_path}/source.h5', found No such file or "
        "directory; put it beside"
    )


@pytest.mark.parametrize("chunks", [None, (1, 5, 7), (3, 5, 7), (4, 2, 7)])
def test_plain_stacks_of_any_chunks(tmp_path, chunks):
    import h5py

    data = stack(7, np.uint16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("scan/images", data=data, chunks=chunks)
    scan = scans.opened(tmp_path, "hdf5", ["a.h5"], angles=GIVEN)
    for k in (6, 0, 3, 4, 2, 6):
        frame = scan.read(k)
        np.testing.assert_array_equal(frame.counts, data[k])
        np.testing.assert_array_equal(frame.mask, data[k] == 65535)
        frame.counts[:] = 0  # a caller's copy: the next read is not touched
    scan.close()


def test_where_frames_are_looked_for(tmp_path):
    import h5py

    data = stack(3)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"], file["b"] = data, data + 1
    assert fault(scans.opened, tmp_path, "hdf5", ["a.h5"], angles=GIVEN) == (
        f"{path}: expected one data set of three dimensions, found '/a', '/b'; set input.dataset"
    )
    scan = scans.opened(tmp_path, "hdf5", ["a.h5"], angles=GIVEN, input={"dataset": "/b"})
    np.testing.assert_array_equal(scan.read(2).counts, data[2] + 1)
    scan.close()
    assert fault(scans.opened, tmp_path, "hdf5", ["a.h5"], angles=GIVEN, input={"dataset": "/c"}) == (
        f"{path}: expected a data set '/c', found '/a', '/b' at the top"
    )
    with h5py.File(path, "w") as file:
        file.attrs["default"] = "scan2"
        for number in (1, 2):
            group = file.create_group(f"scan{number}")
            group.attrs["NX_class"], group.attrs["default"] = "NXentry", "images"
            group.create_group("images").attrs["signal"] = "counts"
            group["images/counts"] = data + number
    scan = scans.opened(tmp_path, "hdf5", ["a.h5"], angles=GIVEN)
    np.testing.assert_array_equal(scan.read(0).counts, data[0] + 2)
    scan.close()
    with h5py.File(path, "w") as file:
        file["nothing"] = 1
    assert fault(scans.opened, tmp_path, "hdf5", ["a.h5"], angles=GIVEN) == (
        f"{path}: expected frames in /entry/data/data or /entry/data/data_000001, found '/nothing' at the top; "
        "set input.dataset"
    )
    with h5py.File(path, "w") as file:
        file["entry/data/data"] = np.full((2, 5, 7), b"x")
    assert "expected frames of numbers, found /entry/data/data of |S1" in fault(
        scans.opened, tmp_path, "hdf5", ["a.h5"], angles=GIVEN
    )
    with h5py.File(path, "w") as file:
        file["entry/data/data"] = np.zeros((2, 2, 5, 7))
    assert "expected frames in two or three dimensions, found /entry/data/data with (2, 2, 5, 7)" in fault(
        scans.opened, tmp_path, "hdf5", ["a.h5"], angles=GIVEN
    )


def nxmx(path, data, **axes):
    """An NXmx file with the given data sets in its transformations."""
    import h5py

    with h5py.File(path, "w") as file:
        entry = file.create_group("entry")
        entry.attrs["NX_class"] = "NXentry"
        entry["data/data"] = data
        group = entry.create_group("sample/transformations")
        group.attrs["NX_class"] = "NXtransformations"
        entry["sample"].attrs["NX_class"] = "NXsample"
        for name, (values, units) in axes.items():
            group[name] = values
            group[name].attrs["units"] = units
        detector = entry.create_group("instrument/detector")
        detector.attrs["NX_class"] = "NXdetector"
        detector["saturation_value"], detector["underload_value"] = 30, 11
        detector["count_time"] = np.arange(1, len(data) + 1) * 100
        detector["count_time"].attrs["units"] = "ms"
        detector["detector_distance"] = 200.0
        detector["detector_distance"].attrs["units"] = "mm"
    return path


def test_nxmx_axes_limits_and_units(tmp_path):
    data = stack(3, np.uint16)
    nxmx(
        tmp_path / "a.nxs",
        data,
        omega=(np.radians([1.0, 2.0, 3.0]), "rad"),
        omega_increment_set=(np.radians(0.5), "rad"),
        chi=(np.array(7.0), "deg"),
        phi=(np.array([1.0, 2.0, 3.0]), "deg"),
    )
    motors = {"omega": {"axis": "OMEGA"}, "chi": {"axis": "/entry/sample/transformations/chi"}}
    scan = scans.opened(tmp_path, "hdf5", ["a.nxs"], goniometer=motors)
    np.testing.assert_allclose(np.degrees(scan.start[:, 1:3]), [[1, 7], [2, 7], [3, 7]])
    np.testing.assert_allclose(np.degrees(scan.end[:, 1:3]), [[1.5, 7], [2.5, 7], [3.5, 7]])
    assert scan.breaks == ()
    np.testing.assert_allclose(scan.exposure, [0.1, 0.2, 0.3])
    for k in range(3):
        frame = scan.read(k)
        np.testing.assert_array_equal(frame.mask, (data[k] > 30) | (data[k] < 11))
    scan.close()
    phi = {"omega": None, "phi": {"axis": "phi"}}
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"], goniometer=phi)
    assert "expected where each exposure starts and ends, found only one angle a frame" in text
    scan = scans.opened(tmp_path, "hdf5", ["a.nxs"], goniometer=phi, angles={"phi": {"exposure": "midpoint"}})
    np.testing.assert_allclose(np.degrees(scan.end[:, 3]), [1.5, 2.5, 3.5])
    scan.close()
    assert "expected distance_m 0.25 as the job's instrument has, found 0.2" in fault(
        scans.opened, tmp_path, "hdf5", ["a.nxs"], goniometer=motors, instrument={"distance_m": 0.25}
    )


def test_faults_of_nexus_metadata_are_named(tmp_path):
    import h5py

    data = stack(3, np.uint16)
    path = nxmx(tmp_path / "a.nxs", data, omega=(np.arange(3.0), "furlong"))
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"])
    assert text.startswith(f"{path}: expected /entry/sample/transformations/omega in one of deg, ")
    assert text.endswith(", found units 'furlong'")
    nxmx(path, data, omega=(np.array(3.0), "deg"), omega_increment_set=(0.1, "deg"))
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"])
    assert text == (
        f"{path}: expected 3 values in /entry/sample/transformations/omega, one a frame, found one, and an increment; "
        "give [angles]"
    )
    nxmx(path, data, omega=(np.arange(3.0), "deg"), omega_end=(np.arange(2.0), "deg"))
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"])
    assert text == f"{path}: expected 3 values in /entry/sample/transformations/omega_end, one a frame, found 2"
    nxmx(path, data, omega=(np.full(3, b"x"), "deg"))
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"])
    assert text == f"{path}: expected numbers in /entry/sample/transformations/omega, found |S1"
    nxmx(path, data)
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"])
    assert text.startswith(f"{path}: expected positions of the axis 'omega', found none; name another axis")
    with h5py.File(path, "a") as file:
        file["entry/instrument/detector/pixel_mask"] = np.zeros((7, 5), np.uint8)[:, :4]
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"], angles=GIVEN)
    assert text == f"{path}: expected a mask of 5 x 7 pixels in /entry/instrument/detector/pixel_mask, found 7 x 4"
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"], angles=GIVEN, input={"mask_dataset": "/entry/no"})
    assert text == f"{path}: expected a data set '/entry/no', found '/entry' at the top"


def test_several_files_are_one_scan(tmp_path):
    data = stack(5, np.uint16)
    for k, part in enumerate((data[:2], data[2:])):
        angles = np.arange(len(part)) + 10.0 * k
        nxmx(tmp_path / f"a{k}.nxs", part, omega=(angles, "deg"), omega_end=(angles + 1, "deg"))
    scan = scans.opened(tmp_path, "hdf5", ["a?.nxs"])
    np.testing.assert_allclose(np.degrees(scan.start[:, 1]), [0, 1, 10, 11, 12])
    assert scan.breaks == (2,)
    np.testing.assert_allclose(scan.exposure, [0.1, 0.2, 0.1, 0.2, 0.3])
    assert scan.least(0) == 11
    assert 30 < scan.limit(0) < 30.001
    for k in range(5):
        np.testing.assert_array_equal(scan.read(k).counts, data[k])
    assert scan.place(3) == f"{tmp_path}/a1.nxs: /entry/data/data[1]"
    scan.close()
    nxmx(tmp_path / "a1.nxs", data[2:].astype(np.uint32), omega=(np.arange(3.0), "deg"))
    text = fault(scans.opened, tmp_path, "hdf5", ["a?.nxs"])
    assert text == f"{tmp_path}/a1.nxs: expected 5 x 7 pixels of uint16 as in the first, found 5 x 7 of uint32"


def test_monitors_lie_in_the_file(tmp_path):
    import h5py

    path = nxmx(tmp_path / "a.nxs", stack(3))
    with h5py.File(path, "a") as file:
        file["entry/ring/current"] = [100.0, 99.0, 98.0]
    scan = scans.opened(
        tmp_path, "hdf5", ["a.nxs"], angles=GIVEN, monitors={"ring": {"dataset": "/entry/ring/current"}}
    )
    assert scan.monitors["ring"].tolist() == [100, 99, 98]
    scan.close()
    text = fault(scans.opened, tmp_path, "hdf5", ["a.nxs"], angles=GIVEN, monitors={"m": {"dataset": "/m"}})
    assert text == f"{path}: expected a data set '/m', found none; check the path in the job"


def test_files_that_are_no_hdf5(tmp_path):
    assert fault(scans.opened, tmp_path, "hdf5", ["a.h5"], angles=GIVEN) == (
        f"{tmp_path}/a.h5: expected an HDF5 file, found No such file or directory; check the path"
    )
    nxmx(tmp_path / "cut.h5", stack(3))
    raw = (tmp_path / "cut.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(raw[: len(raw) // 2])
    text = fault(scans.opened, tmp_path, "hdf5", ["cut.h5"], angles=GIVEN)
    assert text.startswith(
        f"{tmp_path}/cut.h5: expected an HDF5 file, found none (Unable to synchronously open file (truncated"
    )
    assert text.endswith("); check the file")
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\nand no more")
    assert fault(scans.opened, tmp_path, "hdf5", ["a.h5"], angles=GIVEN).startswith(
        f"{tmp_path}/a.h5: expected an HDF5 file, found none ("
    )
