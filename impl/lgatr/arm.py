"""The workload `lgatr` for harness: a step of a network, a layer or the bare matrix products (bench.py has the cases).

Run by hand: `python -m impl.lgatr.arm --set code=lgatr --set gradient=false`.
"""

import resource
import time
from dataclasses import asdict

from harness import worker
from impl.lgatr import bench


class Lgatr(worker.Workload):
    """One iteration: one step of a `bench.Case`; units and work are particles.

    Counters: resident_peak_bytes, the largest memory of the process so far, and first_step_seconds, wall time of the
    first step, which holds the compilation (0 without `first`).

    Parameters are the fields of `bench.Case`, and
    steps : int      steps an iteration
    first : bool     the set-up also does the first step, so that its time holds the compilation
    """

    name = "lgatr"
    accepts = {**asdict(bench.Case()), "steps": 1, "first": True}
    packages = ("torch", "lgatr", "numpy")

    def __init__(self, parameters: dict):
        super().__init__(parameters)
        fields = {name: value for name, value in parameters.items() if name not in ("steps", "first")}
        self.case = bench.Case(**fields)
        fault = bench.check(self.case)
        if fault:
            raise worker.Fault(*fault, "")
        if parameters["steps"] < 1:
            raise worker.Fault("steps", "a whole number of at least 1", str(parameters["steps"]), "")

    def libraries(self) -> list[dict]:
        from impl.lgatr import native

        if not native.available():
            return []
        return [worker.library("lgatr", native.path(), native.source_digest(), native.tree_digest())]

    def environment(self) -> dict:
        from impl.lgatr import native

        level = native.LEVELS[native.level()] if native.available() else None
        return {"threads_torch": self.parameters["threads"], "kernels": level}

    def setup(self) -> None:
        try:
            self.job = bench.Job(self.case)
        except ModuleNotFoundError as error:
            raise worker.Fault("code lgatr", "the package lgatr", str(error), "pip install lgatr==2.0.0") from None
        self.first_step = 0.0
        if self.parameters["first"]:
            start = time.perf_counter()
            self.job.step()
            self.first_step = time.perf_counter() - start

    def iterate(self) -> dict:
        steps = self.parameters["steps"]
        for _ in range(steps):
            self.job.step()
        particles = self.job.particles * steps
        # The harness itself can tell peak memory of a process only; here both arms stay alive.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "units": particles,
            "work": particles,
            "counters": {"resident_peak_bytes": peak, "first_step_seconds": self.first_step},
        }

    def fingerprint(self) -> dict:
        shape = ",".join(map(str, (self.job.particles, *self.job.lengths)))
        return {
            "work": self.job.particles * self.parameters["steps"],
            "digests": {"particles": worker.digest(shape.encode())},
            "totals": self.job.totals(),
        }


if __name__ == "__main__":
    worker.serve(Lgatr)
