"""Made files for the tests of frames and jobs: the same counts in every format that a job can name."""

import copy
from pathlib import Path

import numpy as np
import pytest

from impl.mapping.job import parse
from impl.mapping.sources import SourceError

SHAPE = (5, 7)
#: the job around a made scan, as TOML gives it
JOB = {
    "job": {"name": "made", "output": "made.nxs"},
    "input": {"format": "synthetic", "synthetic": {"frames": 4}},
    "instrument": {
        "energy_keV": 20.0, "shape": list(SHAPE), "pixel_m": [1e-4, 2e-4], "poni_m": [2e-4, 3e-4], "distance_m": 0.2,
    },
    "goniometer": {"omega": {"axis": "omega"}},
    "crystal": {"cell": [4, 4, 4, 90, 90, 90], "orientation": [0.3, -0.4, 0.5]},
    "grids": {"hkl": {"minimum": [-1, -1, -1], "maximum": [1, 1, 1], "step": [0.1, 0.1, 0.1]}},
}  # fmt: skip
PILATUS = """# Detector: PILATUS 300K
# Pixel_size 200e-6 m x 100e-6 m
# Exposure_time 0.25 s
# Count_cutoff 1000 counts
# Wavelength {wavelength} A
# Detector_distance 0.20000 m
# Flux {flux}
# Start_angle {start:.4f} deg.
# Angle_increment {step:.4f} deg.
# Chi 12.5000 deg.
# Chi_increment 0.0000 deg.
# Oscillation_axis {axis}
"""


def fault(call, *args, **keywords):
    """The one sentence that a call raises."""
    with pytest.raises(SourceError) as error:
        call(*args, **keywords)
    text = str(error.value)
    assert "\n" not in text
    assert ": expected " in text
    assert ", found " in text
    return text


def changed(**tables):
    """JOB with tables laid over it; a key given None is left out."""
    out = copy.deepcopy(JOB)
    for name, table in tables.items():
        if table is None or not isinstance(table, dict) or name not in out:
            out[name] = table
        else:
            out[name] = {k: v for k, v in {**out[name], **table}.items() if v is not None}
    return {name: table for name, table in out.items() if table is not None}


def job(folder=".", **tables):
    """The Job of `changed`."""
    return parse(changed(**tables), "job.toml", Path(folder))


def opened(folder, kind, files, **tables):
    """The frames of a job over some files; tables go over JOB."""
    given = {"format": kind, "files": files, "synthetic": None, **tables.pop("input", {})}
    return job(folder, input=given, **tables).open()


def counts(frame, dtype=np.int32):
    """Counts of a frame, with one masked pixel and one gap where the dtype has a sign."""
    out = np.random.default_rng(frame).poisson(20, SHAPE).astype(dtype)
    if np.dtype(dtype).kind == "i":
        out[1, 2], out[3, 4] = -1, -2
    return out


def write_cbf(path, data, start=0.0, step=0.1, axis="omega", extra="", wavelength=0.61992, flux=1.0, lines=None):
    """A CBF file by fabio, with PILATUS lines in its header."""
    from fabio.cbfimage import CbfImage

    CbfImage(data=data).write(str(path))
    text = PILATUS if lines is None else lines
    text = text.format(start=start, step=step, axis=axis, wavelength=wavelength, flux=flux)
    head = f'_array_data.header_convention "PILATUS_1.2"\r\n_array_data.header_contents\r\n;\r\n{text}\r\n;\r\n{extra}'
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"_array_data.data", head.encode() + b"\r\n_array_data.data", 1))
    return path


def write_cache(path, frames, omega, dtype="uint16", **extra):
    """A HEXRD frame cache of dense frames; zeros are left out."""
    arrays = {"shape": np.array(frames[0].shape), "nframes": np.array(len(frames)), "dtype": np.array(dtype.encode())}
    arrays["omega"] = np.array(omega, float)
    for k, frame in enumerate(frames):
        row, column = np.nonzero(frame)
        arrays |= {f"{k}_row": row, f"{k}_col": column, f"{k}_data": frame[row, column].astype(dtype)}
    np.savez_compressed(path, **arrays, **extra)
    return path
