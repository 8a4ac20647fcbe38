"""Small jobs over made frames, and the same map by a slow way that shares nothing with the pipeline."""

import numpy as np

from impl.mapping import geometry
from impl.mapping.job import Job
from impl.mapping.parts import Part
from impl.mapping.reference import reference_map

TEXT = """
[job]
name = "made"
output = "made.nxs"
depth = {depth}
exposure = "{exposure}"
excluded = {excluded}
allow_empty = {allow_empty}
[input]
format = "synthetic"
[input.synthetic]
frames = {frames}
counts = "{counts}"
seed = {seed}
masked = {masked}
increment_degrees = 0.2
[instrument]
energy_keV = 20.0
shape = [{rows}, {columns}]
pixel_m = [344e-6, 344e-6]
poni_m = [0.0, 0.01]
distance_m = 0.15
[goniometer]
omega = {{ axis = "omega", sign = 1, offset_degrees = 17.2 }}
chi = {{ degrees = 2.9 }}
[crystal]
cell = [4, 4, 4, 90, 90, 90]
orientation = [0.31, -0.47, 0.83]
[grids.hkl]
minimum = [-4, -4, -4]
maximum = [4, 4, 4]
step = [{step}, {step}, {step}]
{grids}
[corrections]
polarisation = 0.99
exposure_time = true
monitors = ["i0"]
[monitors.i0]
dataset = "i0"
[run]
frames_per_call = {frames_per_call}
checkpoints = {checkpoints}
threads = {threads}
readers = {readers}
budget = "{budget}"
"""
LAB = '[grids.lab]\naxes = "lab"\nminimum = [-4, -4, -4]\nmaximum = [4, 4, 4]\nstep = [0.05, 0.05, 0.05]\n'
NOWHERE = '[grids.nowhere]\naxes = "lab"\nminimum = [90, 90, 90]\nmaximum = [91, 91, 91]\nstep = [0.5, 0.5, 0.5]\n'


def job_file(folder, name="job.toml", **changed):
    """Write a job's file; returns its path."""
    given = {
        "depth": 0, "exposure": "continuous", "excluded": [], "allow_empty": "false", "frames": 8, "counts": "real",
        "seed": 1, "masked": 0.0, "rows": 24, "columns": 20, "step": 0.02, "grids": "", "frames_per_call": 2,
        "checkpoints": 3, "threads": 2, "readers": 2, "budget": "1 GiB",
    }  # fmt: skip
    unknown = set(changed) - set(given)
    assert not unknown, unknown
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(TEXT.format(**given | changed))
    return path


def made_job(folder, **changed):
    """A job over made frames."""
    return Job.read(job_file(folder, **changed))


def files(folder, pattern="*.part"):
    """name -> bytes of the files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob(pattern))}


def records_of(path):
    """The records of a finalised map."""
    part = Part(path)
    part.verify()
    return part.read(0, part.rows)


def slow_map(job, grid_name="hkl"):
    """{key: [sumI, sumV, sumW, contributors]} of a job, frame by frame: corrections spelt out, the NumPy reference."""
    stack, out = job.open(), {}
    rows, columns = job.instrument.shape
    grid = dict(job.grids)[grid_name]
    ray = job.instrument.rays(np.arange(rows)[:, None], np.arange(columns)[None, :])
    cosine = np.abs(ray @ job.instrument.normal())
    f = job.corrections.polarisation
    polarisation = f * (1 - ray[..., 0] ** 2) + (1 - f) * (1 - ray[..., 2] ** 2)
    corners = job.instrument.corner_rays(0, rows, 0, columns)
    for index in range(stack.frames):
        if index in job.excluded:
            continue
        frame = stack.read(index)
        factor = 1 / cosine**3 / polarisation / stack.exposure[index] / stack.monitors["i0"][index]
        variance = np.maximum(frame.counts, 0) if frame.variance is None else frame.variance
        mask = np.zeros((rows, columns), bool) if frame.mask is None else frame.mask
        start, end = stack.start[index : index + 1], stack.end[index : index + 1]
        if job.exposure == "stationary":
            start = end = (start + end) / 2
        tables, still = geometry.exposure_tables(start, end, job.depth, job.wave_number, grid.axes, u=job.u, ub=job.ub)
        made = reference_map(
            grid, (frame.counts * factor)[None], (variance * factor**2)[None], corners, tables, still, job.depth,
            mask[None],
        )  # fmt: skip
        for key, *row in zip(made.key().tolist(), *(column.tolist() for column in made.columns()[2:])):
            old = out.setdefault(key, [0.0, 0.0, 0.0, 0])
            for k, value in enumerate(row):
                old[k] += value
    return out
