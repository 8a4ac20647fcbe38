"""A finished map as a NeXus file, chunk by chunk, and as a picture of three planes.

The map comes as windows: batches of records in ascending order, each of whole chunks. Memory holds one window and one
chunk.

    /entry (NXentry)           title; default: the first grid
      /<grid> (NXdata)         intensity, variance, weight, contributors over the three axes (voxel centres)
      /sample (NXsample)       ub_matrix, orientation_matrix: Å⁻¹ with 2π, axes phi
      /instrument/beam         incident_wavelength
      /process (NXprocess)     program, version, job_digest; what determined the map and what is known of its records

Where no sample reached a voxel, intensity and variance are NaN, weight and contributors 0. Chunks without a record are
not stored. Source: NeXus, NXdata 2024.02.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import numpy as np

from impl.mapping import render
from impl.mapping.grid import Grid
from impl.mapping.nexus import need_h5py
from impl.mapping.records import Records
from impl.mapping.sources import SourceError

#: data sets of a grid: what stands where there is no record
FIELDS = {"intensity": np.nan, "variance": np.nan, "weight": 0.0, "contributors": 0}
Windows = Callable[[], Iterable[Records]]


def _chunks(windows: Iterable[Records], grid: Grid):
    """(chunk id, Records) of every chunk that has records, ascending.

    Raises ValueError for windows that do not ascend or cut a chunk, and for records outside the grid.
    """
    last = -1
    number = int(np.prod(grid.chunks))
    for window in windows:
        if not len(window):
            continue
        ids, first = np.unique(window.chunk, return_index=True)
        if int(ids[0]) <= last or (np.diff(window.chunk.astype(np.int64)) < 0).any():
            raise ValueError(f"chunk: expected ids that ascend beyond {last}, found {int(ids[0])}; sort the records")
        if int(ids[-1]) >= number:
            raise ValueError(f"chunk: expected ids below {number}, found {int(ids[-1])}; is this the map's grid?")
        last = int(ids[-1])
        bounds = [*first.tolist(), len(window)]
        columns = window.columns()
        for chunk, (low, high) in zip(ids.tolist(), itertools.pairwise(bounds)):
            yield chunk, Records(*(column[low:high] for column in columns))


def _filters(compression: str) -> dict:
    if compression == "gzip":
        return {"compression": "gzip", "compression_opts": 4, "shuffle": True}
    if compression != "bitshuffle":
        raise ValueError(f"compression: expected 'gzip' or 'bitshuffle', found '{compression}'")
    try:
        import hdf5plugin
    except ImportError:
        raise SourceError(
            "compression 'bitshuffle'", "the package hdf5plugin", "none", "pip install 'harness-ab[mapping]'"
        ) from None
    return dict(hdf5plugin.Bitshuffle(cname="lz4"))


def _write_grid(entry, name: str, grid: Grid, windows: Iterable[Records], compression: str) -> tuple[int, int]:
    """Write one grid as NXdata; returns its records and contributors."""
    group = entry.create_group(name)
    names, unit = render.axis_names(grid)
    group.attrs.update({
        "NX_class": "NXdata", "signal": "intensity", "auxiliary_signals": ["variance", "weight", "contributors"],
        "axes": list(names), "title": f"{name}: {grid.axes}", "minimum": grid.minimum, "step": grid.step,
    })  # fmt: skip
    for k, axis in enumerate(names):
        group.attrs[f"{axis}_indices"] = k
        centres = grid.minimum[k] + (np.arange(grid.shape[k]) + 0.5) * grid.step[k]
        group[axis] = centres
        group[axis].attrs["units"] = "" if grid.axes == "hkl" else "1/angstrom"
        group[axis].attrs["long_name"] = f"{axis} / {unit}"
    # HDF5 allows no chunk beyond the data; where the grid's is larger there is one chunk along that axis anyway.
    size = tuple(min(c, n) for c, n in zip(grid.chunk, grid.shape))
    if int(np.prod(size, dtype=object)) * 8 >= 1 << 32:
        found = f"{' x '.join(map(str, size))} voxels of 8 bytes"
        raise SourceError(f"grid '{name}'", "chunks below 4 GiB", found, "take a smaller chunk")
    stored = {
        field: group.create_dataset(
            field, grid.shape, np.uint32 if field == "contributors" else np.float64, chunks=size, fillvalue=fill,
            **_filters(compression),
        )
        for field, fill in FIELDS.items()
    }  # fmt: skip
    long = {"intensity": "mean intensity", "variance": "variance of the mean", "weight": "summed share of samples"}
    for field, text in long.items():
        stored[field].attrs["long_name"] = text
    rows = contributors = 0
    for chunk, records in _chunks(windows, grid):
        corner = np.array(np.unravel_index(chunk, grid.chunks)) * np.array(grid.chunk)
        place = grid.indices(records.chunk, records.local) - corner
        shape = np.minimum(np.array(grid.shape) - corner, grid.chunk)
        if (place >= shape).any():
            raise ValueError(f"local: expected voxels inside the grid, found others in chunk {chunk}")
        values = {
            "intensity": records.intensity(), "variance": records.variance(),
            "weight": records.sum_weight, "contributors": records.contributors,
        }  # fmt: skip
        where = tuple(slice(int(c), int(c + s)) for c, s in zip(corner, shape))
        for field, fill in FIELDS.items():
            block = np.full(shape, fill, stored[field].dtype)
            block[tuple(place.T)] = values[field]
            stored[field][where] = block
        rows += len(records)
        contributors += int(records.contributors.sum(dtype=np.uint64))
    group.attrs["records"], group.attrs["contributors_total"] = rows, contributors
    return rows, contributors


def write_nexus(path, grids: dict[str, tuple[Grid, Windows]], job=None, facts: dict | None = None, compression=None):
    """Write maps into one file, which appears under its name when it is whole.

    Parameters
    ----------
    path : path                              replaced if it is there
    grids : {name: (Grid, windows)}          windows() gives the map's records, see the module
    job : Job or None                        says where the map came from; its compression is the default
    facts : dict or None                     what else is known, JSON values, by grid; kept as it is
    compression : str or None                'gzip' or 'bitshuffle'

    Returns
    -------
    {name: (records, contributors)}

    Raises
    ------
    SourceError    h5py or hdf5plugin is missing, the file cannot be written
    ValueError     windows that do not ascend, records outside the grid
    """
    h5py = need_h5py(path)
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    compression = compression or (job.compression if job is not None else "gzip")
    _filters(compression)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(temporary, "w") as file:
            file.attrs["default"] = "entry"
            entry = file.create_group("entry")
            entry.attrs["NX_class"], entry.attrs["default"] = "NXentry", next(iter(grids))
            _write_origin(entry, job, facts or {})
            written = {
                name: _write_grid(entry, name, grid, windows(), compression) for name, (grid, windows) in grids.items()
            }
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SourceError(
            path, "a file to write", error.strerror or str(error), "make room, or check the path"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return written


def _write_origin(entry, job, facts: dict) -> None:
    process = entry.create_group("process")
    process.attrs["NX_class"] = "NXprocess"
    process["program"] = "harness-ab impl.mapping"
    with contextlib.suppress(metadata.PackageNotFoundError):
        process["version"] = metadata.version("harness-ab")
    if facts:
        process["records"] = json.dumps(facts, sort_keys=True)
    if job is None:
        return
    entry["title"] = job.name
    process["job_digest"], process["job"] = job.digest(), json.dumps(job.identity(), sort_keys=True)
    process["description"] = job.describe()
    entry.attrs["job_digest"] = job.digest()
    beam = entry.create_group("instrument/beam")
    entry["instrument"].attrs["NX_class"], beam.attrs["NX_class"] = "NXinstrument", "NXbeam"
    beam["incident_wavelength"] = 2 * np.pi / job.wave_number
    beam["incident_wavelength"].attrs["units"] = "angstrom"
    sample = entry.create_group("sample")
    sample.attrs["NX_class"] = "NXsample"
    sample["name"] = job.name
    for name, matrix in (("ub_matrix", job.ub), ("orientation_matrix", job.u)):
        if matrix is not None:
            sample[name] = matrix
    if job.ub is not None:
        sample["ub_matrix"].attrs["units"] = "1/angstrom"


def strongest(windows: Iterable[Records], grid: Grid):
    """Voxel (x, y, z) with the largest mean intensity, the first of several, or None of an empty map."""
    best, where = -np.inf, None
    for records in windows:
        intensity = records.intensity()
        if len(records) and np.isfinite(intensity).any():
            place = int(np.nanargmax(np.where(np.isfinite(intensity), intensity, np.nan)))
            if intensity[place] > best:
                best, where = intensity[place], grid.indices(records.chunk[[place]], records.local[[place]])[0]
    return where


def planes(windows: Iterable[Records], grid: Grid, voxel) -> list[np.ndarray]:
    """The three planes through a voxel, across x, y and z: float64, NaN where nothing was measured."""
    voxel = np.asarray(voxel)
    others = [[k for k in range(3) if k != axis] for axis in range(3)]
    out = [np.full((grid.shape[a], grid.shape[b]), np.nan) for a, b in others]
    for records in windows:
        place, intensity = grid.indices(records.chunk, records.local), records.intensity()
        for axis, (a, b) in enumerate(others):
            on = place[:, axis] == voxel[axis]
            out[axis][place[on, a], place[on, b]] = intensity[on]
    return out


def slices_png(path, windows: Windows, grid: Grid, at=None, title: str = "") -> tuple[float, float, float]:
    """Draw three planes of a map, logarithmic: through the coordinate `at`, or through the strongest voxel.

    Returns the coordinate of the voxel. Raises SourceError where the map has nothing to draw or `at` lies outside.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    if at is None:
        voxel = strongest(windows(), grid)
        if voxel is None:
            raise SourceError(path, "a map with intensity", "none", "check the grid's range")
    else:
        voxels, inside = grid.voxels(np.array([at], float))
        if not inside[0]:
            high = np.array(grid.minimum) + np.array(grid.step) * np.array(grid.shape)
            raise SourceError(
                path, f"a coordinate from {list(grid.minimum)} to {high.tolist()}", str(list(at)), "choose another"
            )
        voxel = voxels[0]
    centre = grid.centres(voxel[None, :])[0]
    images = planes(windows(), grid, voxel)
    known = np.concatenate([image[image > 0] for image in images])
    if not len(known):
        raise SourceError(path, "intensity above 0 in the planes", "none", "choose another coordinate")
    names, unit = render.axis_names(grid)
    norm = LogNorm(float(known.min()), max(float(known.max()), float(known.min()) * 1.001))
    figure = Figure(figsize=(15, 5), layout="constrained")
    panels = figure.subplots(1, 3)
    for axis, (axes, image) in enumerate(zip(panels, images)):
        axes.set_facecolor("0.92")  # not measured; white is measured and near 0
        with np.errstate(invalid="ignore"):
            shown = np.where(np.isnan(image), np.nan, np.maximum(image, norm.vmin))
        drawn = render.panel(axes, shown, grid, axis, cmap="Greys", norm=norm)
        first, second = (k for k in range(3) if k != axis)
        axes.axvline(centre[first], linewidth=0.3)
        axes.axhline(centre[second], linewidth=0.3)
        place = round(centre[axis] / grid.step[axis], 6) * grid.step[axis]  # no 3.6e-15 for 0
        axes.set_title(f"{names[axis]} = {place:.6g} {unit}")
    figure.colorbar(drawn, ax=panels, label="mean intensity")
    if title:
        figure.suptitle(title)
    try:
        with open(path, "wb") as file:
            FigureCanvasAgg(figure).print_png(file)
    except OSError as error:
        raise SourceError(path, "a file to write", error.strerror or str(error), "check the path") from None
    return tuple(float(x) for x in centre)


def export(job, maps: dict[str, Windows], facts: dict | None = None) -> list[Path]:
    """Write a job's maps to its output, and three planes of each beside it; returns the files.

    maps : {grid: windows}    of every grid of the job that has records
    facts : dict or None      see write_nexus

    Raises SourceError.
    """
    grids = {name: (grid, maps[name]) for name, grid in job.grids if name in maps}
    write_nexus(job.output, grids, job, facts)
    files = [job.output]
    for name, (grid, windows) in grids.items():
        voxel = strongest(windows(), grid)
        if voxel is not None:
            picture = job.output.with_name(f"{job.output.stem}.{name}.png")
            slices_png(picture, windows, grid, at=grid.centres(voxel), title=f"{job.name}, {name}")
            files.append(picture)
    return files
