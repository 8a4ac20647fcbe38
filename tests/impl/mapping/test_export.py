"""A map written as NeXus holds every record at its coordinate, and its planes are drawn through the right voxel."""

import itertools
import json

import numpy as np
import pytest
import scans
from scans import fault

from impl.mapping import export, render
from impl.mapping.grid import Grid
from impl.mapping.records import Records

extras = pytest.mark.extras
GRIDS = [
    Grid((-1.0, -2.0, 0.5), (0.1, 0.2, 0.25), (13, 11, 9), (4, 5, 3)),
    Grid((-1.0, -2.0, 0.5), (0.1, 0.2, 0.25), (5, 6, 7), (64, 64, 64), "phi"),
    Grid((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (8, 4, 4), (4, 4, 4)),
]


def made(grid, share=0.2, seed=0):
    """Records of a random part of a grid's voxels, one without weight, and their voxels."""
    rng = np.random.default_rng(seed)
    voxels = np.argwhere(rng.random(grid.shape) < share)
    chunk, local = grid.keys(voxels)
    order = np.lexsort((local, chunk))
    voxels, chunk, local = voxels[order], chunk[order], local[order]
    count = len(chunk)
    weight = rng.uniform(0.1, 3, count)
    weight[count // 2] = 0.0
    records = Records(
        chunk, local, rng.uniform(0, 50, count), rng.uniform(0, 9, count), weight,
        rng.integers(1, 2**32 - 1, count, dtype=np.uint32),
    )  # fmt: skip
    return records, voxels


def windows(records, size):
    """Batches of about that many records, cut between chunks."""
    cuts = [0]
    for at in np.flatnonzero(np.diff(records.chunk.astype(int))) + 1:
        if at - cuts[-1] >= size:
            cuts.append(int(at))
    cuts.append(len(records))
    return lambda: [Records(*(c[a:b] for c in records.columns())) for a, b in itertools.pairwise(cuts)]


def dense(grid, records, voxels):
    """What the file must hold."""
    out = {
        "intensity": np.full(grid.shape, np.nan), "variance": np.full(grid.shape, np.nan),
        "weight": np.zeros(grid.shape), "contributors": np.zeros(grid.shape, np.uint32),
    }  # fmt: skip
    place = tuple(voxels.T)
    out["intensity"][place], out["variance"][place] = records.intensity(), records.variance()
    out["weight"][place], out["contributors"][place] = records.sum_weight, records.contributors
    return out


@extras
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("compression", ["gzip", "bitshuffle"])
def test_the_file_holds_every_record_at_its_coordinate(tmp_path, grid, compression):
    import h5py

    records, voxels = made(grid)
    path = tmp_path / "map.nxs"
    written = export.write_nexus(path, {"one": (grid, windows(records, 20))}, compression=compression)
    assert written == {"one": (len(records), int(records.contributors.sum(dtype=np.uint64)))}
    with h5py.File(path) as file:
        data = file[file.attrs["default"]][file["entry"].attrs["default"]]
        assert data.attrs["NX_class"] == "NXdata"
        assert data.attrs["records"] == len(records)
        for name, expected in dense(grid, records, voxels).items():
            assert data[name].dtype == expected.dtype
            np.testing.assert_array_equal(data[name][()], expected, err_msg=name)
        axes = [data[name][()] for name in data.attrs["axes"]]
        at = np.stack([axis[voxels[:, k]] for k, axis in enumerate(axes)], axis=1)
        np.testing.assert_allclose(at, grid.centres(voxels), rtol=0, atol=1e-12)
        assert list(data.attrs["axes"]) == (["h", "k", "l"] if grid.axes == "hkl" else ["q_x", "q_y", "q_z"])
        assert data["intensity"].chunks == tuple(min(a, b) for a, b in zip(grid.chunk, grid.shape))
    assert [p.name for p in tmp_path.iterdir()] == ["map.nxs"]


@extras
def test_a_nexus_reader_finds_the_default_plot(tmp_path):
    nxdata = pytest.importorskip("silx.io.nxdata")
    grid = GRIDS[0]
    records, voxels = made(grid)
    job = scans.job(tmp_path, grids={"hkl": {"minimum": [-1, -2, 0.5], "step": [0.1, 0.2, 0.25], "shape": [13, 11, 9]}})
    export.write_nexus(tmp_path / "a.nxs", {"hkl": (grid, windows(records, 50))}, job, {"hkl": {"frames": 4}})
    import h5py

    with h5py.File(tmp_path / "a.nxs") as file:
        found = nxdata.get_default(file, validate=True)
        assert found.is_valid
        assert found.signal.name == "/entry/hkl/intensity"
        assert [axis.name for axis in found.axes] == ["/entry/hkl/h", "/entry/hkl/k", "/entry/hkl/l"]
        assert found.axes_names == ["h / r.l.u.", "k / r.l.u.", "l / r.l.u."]
        others = [signal.name.rpartition("/")[2] for signal in found.auxiliary_signals]
        assert others == ["variance", "weight", "contributors"]
        np.testing.assert_array_equal(found.signal[()], dense(grid, records, voxels)["intensity"])
        entry = file["entry"]
        assert entry.attrs["job_digest"] == job.digest() == entry["process/job_digest"][()].decode()
        assert json.loads(entry["process/job"][()]) == json.loads(json.dumps(job.identity()))
        assert json.loads(entry["process/records"][()]) == {"hkl": {"frames": 4}}
        np.testing.assert_array_equal(entry["sample/ub_matrix"][()], job.ub)
        assert entry["instrument/beam/incident_wavelength"][()] == pytest.approx(12.398419843320026 / 20)


@extras
def test_equal_maps_make_equal_files_however_they_are_windowed(tmp_path):
    grid = GRIDS[0]
    records, _ = made(grid)
    for k, size in enumerate((1, 30, 10**6)):
        export.write_nexus(tmp_path / f"{k}.nxs", {"a": (grid, windows(records, size))})
    assert len({(tmp_path / f"{k}.nxs").read_bytes() for k in range(3)}) == 1


@extras
def test_chunks_without_a_record_take_no_room(tmp_path):
    import h5py

    grid = Grid((0, 0, 0), (1, 1, 1), (512, 512, 512))
    chunk, local = grid.keys(np.array([[500, 3, 200]]))
    one = Records(chunk, local, np.array([6.0]), np.array([4.0]), np.array([2.0]), np.array([3], np.uint32))
    export.write_nexus(tmp_path / "a.nxs", {"a": (grid, lambda: [one])})
    assert (tmp_path / "a.nxs").stat().st_size < 200_000
    with h5py.File(tmp_path / "a.nxs") as file:
        data = file["entry/a"]
        assert [data[name][500, 3, 200] for name in ("intensity", "variance", "weight", "contributors")] == [3, 1, 2, 3]
        assert np.isnan(data["intensity"][0, 0, 0])
        assert data["weight"][0, 0, 0] == 0
        assert data["intensity"].id.get_num_chunks() == 1


@extras
def test_a_failed_export_leaves_what_was_there(tmp_path):
    grid = GRIDS[0]
    records, _ = made(grid)
    path = tmp_path / "a.nxs"
    export.write_nexus(path, {"a": (grid, windows(records, 30))})
    before = path.read_bytes()

    def failing():
        yield from windows(records, 30)()[:2]
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError):
        export.write_nexus(path, {"a": (grid, failing)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.nxs"]
    text = fault(export.write_nexus, tmp_path / "a.nxs" / "b.nxs", {"a": (grid, windows(records, 30))})
    assert text == f"{path}/b.nxs: expected a file to write, found File exists; make room, or check the path"


@extras
def test_records_that_are_not_the_grids_are_refused(tmp_path):
    grid = GRIDS[0]
    records, _ = made(grid)
    batches = windows(records, 30)()
    with pytest.raises(ValueError, match=r"chunk: expected ids that ascend beyond \d+, found 0; sort the records"):
        export.write_nexus(tmp_path / "a.nxs", {"a": (grid, lambda: [*batches, batches[0]])})
    with pytest.raises(ValueError, match=r"chunk: expected ids below \d+, found \d+; is this the map's grid\?"):
        export.write_nexus(tmp_path / "a.nxs", {"a": (GRIDS[1], lambda: batches)})
    last = Records(*(column[-1:].copy() for column in records.columns()))
    last.local[:] = 59
    with pytest.raises(ValueError, match=r"local: expected voxels inside the grid, found others in chunk \d+"):
        export.write_nexus(tmp_path / "a.nxs", {"a": (grid, lambda: [last])})
    wide = Grid((0, 0, 0), (1, 1, 1), (2048, 2048, 1024), (1024, 1024, 512))
    assert fault(export.write_nexus, tmp_path / "a.nxs", {"a": (wide, lambda: [])}) == (
        "grid 'a': expected chunks below 4 GiB, found 1024 x 1024 x 512 voxels of 8 bytes; take a smaller chunk"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("grid", GRIDS)
def test_planes_go_through_the_strongest_voxel(grid):
    records, voxels = made(grid)
    full = dense(grid, records, voxels)["intensity"]
    voxel = export.strongest(windows(records, 25)(), grid)
    np.testing.assert_array_equal(voxel, np.unravel_index(np.nanargmax(full), full.shape))
    x, y, z = voxel
    expected = (full[x], full[:, y], full[:, :, z])
    for image, plane in zip(export.planes(windows(records, 25)(), grid, voxel), expected):
        np.testing.assert_array_equal(image, plane)
    assert export.strongest([], grid) is None


def test_slices_are_drawn_where_they_were_asked_for(tmp_path):
    grid = GRIDS[0]
    records, _ = made(grid)
    path = tmp_path / "a.png"
    at = export.slices_png(path, windows(records, 25), grid, title="made")
    assert path.read_bytes().startswith(b"\x89PNG")
    voxel = export.strongest([records], grid)
    np.testing.assert_allclose(at, grid.centres(voxel[None])[0])
    np.testing.assert_allclose(
        export.slices_png(path, windows(records, 25), grid, at=(-0.42, -1.9, 0.6)), (-0.45, -1.9, 0.625)
    )
    text = fault(export.slices_png, path, windows(records, 25), grid, at=(9, 0, 0))
    assert text.startswith(f"{path}: expected a coordinate from [-1.0, -2.0, 0.5] to [0.3")
    assert text.endswith("found [9, 0, 0]; choose another")
    assert fault(export.slices_png, path, lambda: [], grid) == (
        f"{path}: expected a map with intensity, found none; check the grid's range"
    )
    zero = Records(*(column.copy() for column in records.columns()))
    zero.sum_intensity[:] = 0
    assert fault(export.slices_png, path, lambda: [zero], grid) == (
        f"{path}: expected intensity above 0 in the planes, found none; choose another coordinate"
    )
    assert fault(export.slices_png, tmp_path / "no" / "a.png", windows(records, 25), grid).startswith(
        f"{tmp_path}/no/a.png: expected a file to write, found No such file"
    )


def test_a_plane_is_shown_the_right_way_round():
    from matplotlib.figure import Figure

    grid = GRIDS[0]
    image = np.arange(13.0 * 9).reshape(13, 9)
    axes = Figure().add_subplot()
    shown = render.panel(axes, image, grid, 1)
    assert axes.get_xlabel() == "h / r.l.u."
    assert axes.get_ylabel() == "l / r.l.u."
    np.testing.assert_allclose(shown.get_extent(), (-1.0, 0.3, 0.5, 2.75))
    np.testing.assert_array_equal(shown.get_array(), image.T)
    assert shown.origin == "lower"


@extras
def test_a_job_exports_its_maps_and_pictures(tmp_path):
    job = scans.job(
        tmp_path, job={"output": "out/made.nxs", "compression": "bitshuffle"},
        grids={"hkl": {"minimum": [-1, -2, 0.5], "step": [0.1, 0.2, 0.25], "shape": [13, 11, 9],
                       "chunk": [4, 5, 3]}},
    )  # fmt: skip
    records, _ = made(job.grids[0][1])
    files = export.export(job, {"hkl": windows(records, 30)})
    assert files == [tmp_path / "out/made.nxs", tmp_path / "out/made.hkl.png"]
    assert all(file.stat().st_size > 1000 for file in files)
    empty = export.export(job, {"hkl": lambda: []})
    assert empty == [tmp_path / "out/made.nxs"]
