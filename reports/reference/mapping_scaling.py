"""How do time and memory of a map grow with pixels, frames, voxels, depth and threads?

`python reports/reference/mapping_scaling.py` measures the kernel alone (flat, with filter) and the whole job (read,
correct, map, checkpoint, add up; inline) on one made scan, along five axes around 8 frames of 256 x 256 pixels, a grid
of 1000 x 1000 x 1000 voxels, depth 2, stationary, one thread; along depth the tile is 128 x 128 and the frames are 4.
The pitch is fixed, so a larger tile covers more of the sphere and the same pixels meet the same voxels; a pixel is 0.6
voxel edges there. Both codes map four frames a call. Each point is a process of its own and one line of
mapping-scaling.jsonl beside this file; a second start goes on where the first one ended. Shown are the least CPU and
wall time of the repetitions, per pixel and frame, and by how much the first one raised the process's peak resident
memory. Wall time is that of a machine with whatever else runs on it. Continuous frames end at depth 4, which takes
78 µs a pixel, since the kernel's flat lattice ends at 3 for them; depth 5 takes minutes. `--show` draws
mapping-scaling.svg and prints the table from the file alone.
"""

import shutil
import tempfile
from pathlib import Path

from scaling import ROOT, Scaling, clock, machine, rise

RECORD = Path(__file__).with_name("mapping-scaling.jsonl")
#: what is varied -> its values
AXES = {
    "tile": (64, 128, 256, 512, 1024),
    "frames": (1, 4, 16, 64),
    "edge": (46, 100, 215, 464, 1000),
    "stationary": (0, 1, 2, 3, 4, 5),
    "continuous": (0, 1, 2, 3, 4),
    "threads": (1, 2),
}
CODES = ("kernel", "job")
BASE = {"tile": 256, "frames": 8, "edge": 1000, "depth": 2, "exposure": "stationary", "threads": 1}
#: half of the grid's extent, r.l.u.: the largest tile reaches 6.3
REACH = 6.5
LEAST, MOST, SECONDS = 3, 15, 0.6
FRAMES_PER_CALL = 4


def job_of(case: dict, folder: Path):
    """The made scan of a case as a job that writes below `folder`."""
    from impl.mapping import job as jobs

    tile = case["tile"]
    raw = {
        "job": {"name": "made", "output": "made.nxs", "depth": case["depth"], "exposure": case["exposure"]},
        "input": {
            "format": "synthetic",
            "synthetic": {"frames": case["frames"], "seed": 1, "counts": "real", "increment_degrees": 0.2},
        },
        "instrument": {
            "energy_keV": 20.0, "shape": [tile, tile], "pixel_m": [344e-6, 344e-6], "poni_m": [0.0, 0.03],
            "distance_m": 0.3,
        },
        "goniometer": {
            "omega": {"axis": "omega", "offset_degrees": 17.2}, "chi": {"degrees": 2.9}, "phi": {"degrees": 1.1},
        },
        "crystal": {"cell": [4, 4, 4, 90, 90, 90], "orientation": [0.31, -0.47, 0.83]},
        "grids": {
            "hkl": {"minimum": [-REACH] * 3, "shape": [case["edge"]] * 3, "step": [2 * REACH / case["edge"]] * 3}
        },
        "corrections": {"polarisation": 0.99, "exposure_time": True, "monitors": ["i0"]},
        "monitors": {"i0": {"dataset": "i0"}},
        "run": {
            "threads": case["threads"], "readers": 1, "budget": "1 GiB", "frames_per_call": FRAMES_PER_CALL,
            "checkpoints": 4,
        },
    }  # fmt: skip
    return jobs.parse(raw, "the made scan", folder)


class KernelWork:
    """Kernel.map over calls that are ready: corrected, tabulated and cut to the budget."""

    def __init__(self, case: dict, folder: Path):
        import numpy as np

        from impl.mapping.kernel import Kernel, Options
        from impl.mapping.pipeline import groups, prepare
        from impl.mapping.sources import Scan, Tile

        job = job_of(case, folder)
        stack = job.open()
        counts = np.stack([stack.read(frame).counts for frame in range(stack.frames)])
        tile = Tile(counts, (0, case["tile"], 0, case["tile"]), stack.start, stack.end, np.zeros(3))
        stack.close()
        scan = Scan(job.instrument, job.wave_number, job.ub, job.grids[0][1], [tile])
        options = Options(depth=job.depth, threads=job.threads, subdivision="flat", filter=True, budget=job.budget)
        self.calls = []
        for group in groups(tile, FRAMES_PER_CALL):
            self.calls += prepare(scan, group, job.depth, job.exposure, options)
        self.kernel, self.batches = Kernel(scan.grid, options), []

    def clear(self) -> None:
        """Nothing is left by a run but its records."""
        self.batches = []

    def run(self) -> None:
        from impl.mapping.pipeline import map_calls

        self.batches = map_calls(self.kernel, self.calls)[0]

    def facts(self) -> dict:
        from impl.mapping.records import merge

        whole = merge(self.batches)
        return {"records": len(whole), "contributors": int(whole.contributors.sum())}

    def close(self) -> None:
        self.kernel.close()


class JobWork:
    """The whole job on an empty scratch folder, one step after the other, up to the final map on disk."""

    def __init__(self, case: dict, folder: Path):
        self.job, self.footers = job_of(case, folder), {}

    def clear(self) -> None:
        """Delete what a run left."""
        shutil.rmtree(self.job.scratch, ignore_errors=True)

    def run(self) -> None:
        from impl.mapping import run

        run.map_job(self.job, schedule="inline")
        self.footers = run.finalise(self.job)

    def facts(self) -> dict:
        footer = self.footers["hkl"]
        return {"records": footer["rows"], "contributors": footer["contributors"]}

    def close(self) -> None:
        self.clear()


WORKS = {"kernel": KernelWork, "job": JobWork}
#: what a process takes once (libraries, caches of the file system) is no part of the point
SMALL = {"tile": 16, "frames": 2, "edge": 46, "depth": 1, "exposure": "stationary"}


def point(case: dict) -> dict:
    """Time and memory of one case, in this process; in a folder of its own below .harness."""
    (ROOT / ".harness").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scaling-", dir=ROOT / ".harness") as folder:
        first = WORKS[case["code"]](case | SMALL, Path(folder) / "small")
        first.run()
        first.close()
        work = WORKS[case["code"]](case, Path(folder) / "point")
        memory = rise(work.run)
        facts = work.facts()
        times = clock(work.run, SECONDS, LEAST, MOST, before=work.clear)
        if work.facts() != facts:
            raise RuntimeError(f"expected {facts} of every repetition, found {work.facts()}")
        work.close()
    return {"samples": case["frames"] * case["tile"] ** 2, **facts, **times, "bytes": memory, **machine()}


def plan() -> list[tuple[str, int, str]]:
    return [(axis, value, code) for axis, values in AXES.items() for value in values for code in CODES]


def case_of(axis: str, value: int, code: str) -> dict:
    if axis in ("stationary", "continuous"):
        return BASE | {"tile": 128, "frames": 4, "exposure": axis, "depth": value, "code": code}
    return BASE | {axis: value, "code": code}


def words(line: dict) -> str:
    per = 1e9 / line["samples"]
    return (f"{per * line['seconds']:.1f} ns of CPU, {per * line['wall_seconds']:.1f} ns, "
            f"{line['bytes'] / 1e6:.1f} MB, {line['steps']} times")  # fmt: skip


#: panels: axes in them, words, what stands at a value, scale
PANELS = (
    (("tile",), "pixels a frame", lambda value: value**2, "log"),
    (("frames",), "frames", lambda value: value, "log"),
    (("edge",), "voxels of the grid", lambda value: value**3, "log"),
    (("stationary", "continuous"), "depth", lambda value: value, "linear"),
    (("threads",), "threads", lambda value: value, "linear"),
)
#: rows: field, words, factor, whether it is a pixel and frame's
ROWS = (
    ("seconds", "CPU, ns a pixel and frame", 1e9, True),
    ("wall_seconds", "wall, ns a pixel and frame", 1e9, True),
    ("bytes", "peak memory, MB", 1e-6, False),
)
#: in grey too: the code by line and filling, the exposure by mark and shade
LINES = {"kernel": {"linestyle": "-"}, "job": {"linestyle": "--", "markerfacecolor": "white"}}
MARKS = {"continuous": {"marker": "s", "color": "0.5"}}


def show(lines: list[dict]) -> None:
    """The figure, and a table in Markdown."""
    import matplotlib
    from matplotlib.figure import Figure

    at = {(line["axis"], line["value"], line["code"]): line for line in lines}
    figure = Figure(figsize=(13, 8), layout="constrained")
    panels = figure.subplots(len(ROWS), len(PANELS), sharex="col", sharey="row", squeeze=False)
    for column, (names, label, place, scale) in enumerate(PANELS):
        for row, (field, _, factor, per_sample) in enumerate(ROWS):
            axes = panels[row][column]
            for name in names:
                for code, style in LINES.items():
                    known = [at[name, value, code] for value in AXES[name] if (name, value, code) in at]
                    axes.plot(
                        [place(line["value"]) for line in known],
                        [factor * line[field] / (line["samples"] if per_sample else 1) for line in known],
                        label=code + (f", {name}" if len(names) > 1 else ""),
                        **({"marker": "o", "color": "black"} | style | MARKS.get(name, {})),
                    )
            axes.set_yscale("log")
            axes.margins(x=0.1)
            axes.grid(alpha=0.3)
            if scale == "log":
                axes.set_xscale("log", base=2 if label == "frames" else 10)
            if scale == "linear" or label == "frames":
                axes.set_xticks(AXES[names[0]], [str(value) for value in AXES[names[0]]])
                axes.minorticks_off()
        panels[-1][column].set_xlabel(label)
    for row, (_, label, _, _) in enumerate(ROWS):
        panels[row][0].set_ylabel(label)
    panels[0][0].legend(fontsize="small")
    panels[0][3].legend(fontsize="small")
    figure.suptitle(
        "Mapping: 8 frames of 256 x 256, 10⁹ voxels, depth 2, stationary, one thread, unless the axis says otherwise "
        "(depth: 4 frames of 128 x 128)"
    )
    with matplotlib.rc_context({"svg.hashsalt": "mapping"}):  # the same bytes from the same file
        figure.savefig(RECORD.with_suffix(".svg"), metadata={"Date": None})
    table(at)


def table(at: dict) -> None:
    """Every point as a row in Markdown."""
    print(
        "| axis | value | CPU, ns a pixel and frame: kernel | job | wall: kernel | job | MB: kernel | job | records |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for axis, values in AXES.items():
        for value in values:
            both = [at.get((axis, value, code)) for code in CODES]
            if all(both):
                cells = [
                    f"{factor * line[field] / (line['samples'] if per_sample else 1):.4g}"
                    for field, _, factor, per_sample in ROWS
                    for line in both
                ]
                print(f"| {axis} | {value} | " + " | ".join(cells) + f" | {both[0]['records']} |")


SCALING = Scaling(__file__, RECORD, plan(), case_of, point, words, show, {"OMP_NUM_THREADS": "1"})

if __name__ == "__main__":
    raise SystemExit(SCALING.main(__doc__))
