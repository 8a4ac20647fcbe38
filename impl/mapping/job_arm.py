"""The workload 'mapping-job': a whole job an iteration, from reading frames to the final map on disk.

Every iteration starts on an empty scratch folder: read, correct, map, checkpoint, add up. Units are pixels x frames,
work is records of the final map.
"""

import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path

from harness import worker
from impl.mapping.arm import loaded_library


class MappingJob(worker.Workload):
    """A made scan as a job, or the job of a file.

    job : path of a job's file; '' is a made scan of frames x rows x columns pixels. Of a file's job `every` > 1 keeps
    each every-th frame, and depth = -1 keeps its depth. schedule, frames_per_call, threads, readers, budget as in a
    job, correction 'numpy' or 'fused', layout 'copy' or 'view', subdivision as in kernel.Options. fault puts one of
    faults.FAULTS into every iteration; allow_empty lets an empty map pass.
    """

    name = "mapping-job"
    packages = ("numpy", "cffi", "xxhash")
    accepts = {
        "job": "",
        "every": 1,
        "frames": 8,
        "rows": 128,
        "columns": 128,
        "seed": 1,
        "counts": "real",
        "step": 0.02,
        "depth": 0,
        "exposure": "continuous",
        "schedule": "grouped",
        "frames_per_call": 4,
        "correction": "fused",
        "layout": "view",
        "subdivision": "flat",
        "threads": 1,
        "readers": 1,
        "budget": 1 << 30,
        "checkpoints": 4,
        "allow_empty": False,
        "fault": "",
    }

    def __init__(self, parameters):
        super().__init__(parameters)
        where = "workload 'mapping-job': "
        for name, allowed in (
            ("counts", ("integer", "real")),
            ("exposure", ("continuous", "stationary")),
            ("schedule", ("inline", "grouped", "per-frame-pool")),
            ("correction", ("numpy", "fused")),
            ("layout", ("copy", "view")),
            ("subdivision", ("corner-passing", "corner-cache", "flat")),
        ):
            worker.choice(where + name, parameters[name], allowed)
        from impl.mapping.faults import FAULTS

        worker.choice(where + "fault", parameters["fault"], ("", *FAULTS))
        limits = {
            "every": (1, 10**6), "frames": (1, 10**5), "rows": (1, 1 << 14), "columns": (1, 1 << 14),
            "seed": (0, 2**62), "depth": (-1 if parameters["job"] else 0, 8), "frames_per_call": (1, 1024),
            "threads": (1, 256), "readers": (1, 64), "budget": (1, 2**62), "checkpoints": (1, 9999),
        }  # fmt: skip
        for key, (low, high) in limits.items():
            if not low <= parameters[key] <= high:
                raise worker.Fault(where + key, f"a whole number from {low} to {high}", repr(parameters[key]))
        if not 0 < parameters["step"] < 10:
            raise worker.Fault(where + "step", "a number above 0 and below 10", repr(parameters["step"]))
        self.folder, self.footers = None, {}

    def inputs(self):
        if not self.parameters["job"]:
            return []
        from impl.mapping.frames import expand

        job = self._job()
        return [worker.file_input(path) for path in (self.parameters["job"], *expand(job.input))]

    def libraries(self):
        return [loaded_library()]

    def environment(self):
        return {"threads": self.parameters["threads"], "readers": self.parameters["readers"], "cores": os.cpu_count()}

    def _job(self):
        """The job as the parameters want it."""
        from impl.mapping import job as jobs
        from impl.mapping.sources import SourceError

        p = self.parameters
        try:
            if p["job"]:
                job = jobs.Job.read(p["job"])
                if p["every"] > 1:
                    stack = job.open()
                    kept = set(range(0, stack.frames, p["every"]))
                    stack.close()
                    excluded = tuple(sorted(set(range(stack.frames)) - kept | set(job.excluded)))
                    job = dataclasses.replace(job, excluded=excluded)
                if p["depth"] >= 0:
                    job = dataclasses.replace(job, depth=p["depth"])
            else:
                job = jobs.parse(_made(p), "the made scan", Path.cwd())
        except SourceError as error:
            raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        return dataclasses.replace(
            job, frames_per_call=p["frames_per_call"], threads=p["threads"], readers=p["readers"], budget=p["budget"],
            checkpoints=p["checkpoints"], allow_empty=p["allow_empty"] or job.allow_empty,
        )  # fmt: skip

    def setup(self):
        from impl.mapping import run

        scratch = Path.cwd() / ".harness" / "mapping"
        scratch.mkdir(parents=True, exist_ok=True)
        _clear(scratch)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=scratch))
        self.job = dataclasses.replace(self._job(), scratch=self.folder / "scratch", output=self.folder / "map.nxs")
        stack = self.job.open()
        frames = len(run.included(self.job, stack))
        stack.close()
        rows, columns = self.job.instrument.shape
        self.units = frames * rows * columns

    def prepare(self):
        shutil.rmtree(self.job.scratch, ignore_errors=True)

    def iterate(self):
        from impl.mapping import faults, run
        from impl.mapping.checkpoint import EmptyMap
        from impl.mapping.kernel import MappingError
        from impl.mapping.sources import SourceError

        p = self.parameters
        try:
            with faults.injected(p["fault"]):
                done = run.map_job(
                    self.job, schedule=p["schedule"], fused=p["correction"] == "fused", layout=p["layout"],
                    subdivision=p["subdivision"], say=self._say,
                )  # fmt: skip
                self.footers = run.finalise(self.job)
        except (SourceError, MappingError, EmptyMap, ValueError) as error:
            # A failed iteration is a crash of this arm, whose last words the harness keeps.
            sys.exit(f"error: {error}")
        counters = {f"records_entered_{name}": count for name, count in done.entered.items()}
        return {
            "units": self.units,
            "work": sum(footer["rows"] for footer in self.footers.values()),
            "counters": counters | {"peak_rss_bytes": done.peak_rss_bytes},
            "totals": self._totals(),
        }

    @staticmethod
    def _say(text):
        print(text, file=sys.stderr)

    def _totals(self):
        totals = {}
        for name, footer in self.footers.items():
            totals |= {f"{total} {name}": footer[total] for total in ("sumI", "sumV", "sumW")}
        applied = 0.0
        for fact in next(iter(self.footers.values()))["frames"]:
            factor = 1.0
            for c, _, _ in fact["factors"]:
                factor *= c
            applied += factor
        return totals | {"applied factors": applied}

    def fingerprint(self):
        digests = {}
        for name, footer in self.footers.items():
            # Sums depend on the order of the samples: policy 'keys' leaves out what is called "values".
            for column, digest in footer["columns"].items():
                digests[f"{'values ' if column.startswith('sum') else ''}{column} {name}"] = digest
            digests[f"fingerprint {name}"] = footer["fingerprint"]
        frames = [f"{fact['frame']} {fact['digest']} {fact['valid']}" for fact in footer["frames"]]
        digests["frames"] = worker.digest("\n".join(frames).encode())
        work = sum(footer["rows"] for footer in self.footers.values())
        return {"work": work, "digests": digests, "totals": self._totals()}

    def values(self, path):
        from impl.mapping import run

        return run.values(self.job, self.job.grids[0][0], path)

    def close(self):
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _clear(scratch: Path) -> None:
    """Delete what arms left that were killed: folders of processes that are no more."""
    for folder in scratch.iterdir():
        owner = folder.name.partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _made(p: dict) -> dict:
    """The job of a made scan: a detector beside the beam, 0.2° a frame, about a pixel a voxel where step is 0.02."""
    pitch = 172e-6 * 1024 / max(p["rows"], p["columns"])
    return {
        "job": {"name": "made", "output": "made.nxs", "depth": p["depth"], "exposure": p["exposure"]},
        "input": {
            "format": "synthetic",
            "synthetic": {
                "frames": p["frames"], "seed": p["seed"], "counts": p["counts"], "increment_degrees": 0.2,
            },
        },
        "instrument": {
            "energy_keV": 20.0, "shape": [p["rows"], p["columns"]], "pixel_m": [pitch, pitch], "poni_m": [0.0, 0.03],
            "distance_m": 0.3,
        },
        "goniometer": {
            "omega": {"axis": "omega", "offset_degrees": 17.2}, "chi": {"degrees": 2.9}, "phi": {"degrees": 1.1},
        },
        "crystal": {"cell": [4, 4, 4, 90, 90, 90], "orientation": [0.31, -0.47, 0.83]},
        "grids": {"hkl": {"minimum": [-5, -5, -5], "maximum": [5, 5, 5], "step": [p["step"]] * 3}},
        "corrections": {"polarisation": 0.99, "exposure_time": True, "monitors": ["i0"]},
        "monitors": {"i0": {"dataset": "i0"}},
    }  # fmt: skip


if __name__ == "__main__":
    worker.serve(MappingJob)
