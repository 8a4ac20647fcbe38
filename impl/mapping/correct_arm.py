"""The workload 'correction': whole frames of counts corrected, and mapped if asked, as a job does before its tiles.

An iteration corrects every frame once into a buffer of its own. Units are pixels x frames, work is pixels not excluded.
"""

import os

from harness import worker
from impl.mapping.arm import loaded_library


class Correct(worker.Workload):
    """Made frames with gaps, background, static factor and scalar factors.

    way : 'numpy' makes one pass a step, 'fused' one pass in all; 'ceiling' only turns counts into intensity, variance
    and mask, which bounds what a faster correction could ever gain. background: 'none', 'exact' or 'uncertain' (with a
    variance). monitors divide the frames beside the exposure time; uncertain gives all of them a variance. map maps
    each corrected frame at depth 0 within the iteration.
    """

    name = "correction"
    packages = ("numpy", "cffi")
    accepts = {
        "rows": 1024,
        "columns": 1024,
        "frames": 4,
        "dtype": "int32",
        "way": "fused",
        "instructions": "best",
        "background": "uncertain",
        "static": True,
        "monitors": 1,
        "uncertain": True,
        "map": False,
        "seed": 0,
    }

    def __init__(self, parameters):
        super().__init__(parameters)
        where = "workload 'correction': "
        worker.choice(where + "way", parameters["way"], ("numpy", "fused", "ceiling"))
        worker.choice(where + "instructions", parameters["instructions"], ("best", "plain", "avx2", "avx512"))
        worker.choice(where + "background", parameters["background"], ("none", "exact", "uncertain"))
        kinds = ("uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")
        worker.choice(where + "dtype", parameters["dtype"], kinds)
        limits = {"rows": (1, 3072), "columns": (1, 3072), "frames": (1, 100), "monitors": (0, 8), "seed": (0, 2**62)}
        for key, (low, high) in limits.items():
            if not low <= parameters[key] <= high:
                raise worker.Fault(where + key, f"a whole number from {low} to {high}", repr(parameters[key]))
        self.kernel, self.batches = None, []

    def libraries(self):
        return [loaded_library()]

    def environment(self):
        return {"cores": os.cpu_count()}

    def setup(self):
        import numpy as np

        from impl.mapping import geometry
        from impl.mapping.correction import Corrected, Correction, scalar_factors, static_factor
        from impl.mapping.kernel import Kernel, MappingError, Options
        from impl.mapping.sources import synthetic

        p = self.parameters
        rng, shape = np.random.default_rng(p["seed"]), (p["rows"], p["columns"])
        rows, columns = shape
        self.counts = [rng.poisson(5.0, shape).astype(p["dtype"]) for _ in range(p["frames"])]
        for counts in self.counts:  # pixels that count by themselves
            counts.reshape(-1)[rng.integers(0, counts.size, counts.size // 1000 + 1)] = 100
        self.masks = [counts == 100 for counts in self.counts]
        gaps = np.zeros(shape, bool)
        gaps[::195] = True  # as between the modules of a large detector
        gaps[:, ::487] = True
        scan = synthetic(1, p["frames"])
        place = 1024, 1024 + rows, 1024, 1024 + columns
        given = {"mask": gaps}
        if p["static"]:
            given["static"] = static_factor(scan.detector, True, 0.99, rectangle=place)
        if p["background"] != "none":
            given["background"] = rng.normal(0.7, 0.1, shape)
        if p["background"] == "uncertain":
            given["background_variance"] = rng.uniform(0.005, 0.015, shape)
        self.factors = []
        for frame in range(p["frames"]):
            values = {f"monitor {k}": 1 + 0.01 * rng.standard_normal() for k in range(p["monitors"])}
            spread = dict.fromkeys(values, 1e-6) if p["uncertain"] else {}
            self.factors.append(scalar_factors(0.1, 1e-8 if p["uncertain"] else None, values, spread, f"frame {frame}"))
        if p["way"] == "ceiling":
            given, self.factors = {"mask": gaps}, [()] * p["frames"]
        try:
            self.correction = Correction(**given, fused=p["way"] != "numpy", instructions=p["instructions"])
            self.buffers = [Corrected.empty(shape) for _ in self.counts]
            self._correct()
        except MappingError as error:
            raise worker.Fault("workload 'correction': instructions", "what this machine has", str(error)) from None
        if p["map"]:
            tile = scan.tiles[0]
            rays = scan.detector.corner_rays(*place)
            tables, still = geometry.exposure_tables(tile.start, tile.end, 0, scan.wave_number, "hkl", ub=scan.ub)
            self.calls = [(rays, tables[f : f + 1].copy(), still[f : f + 1].copy()) for f in range(p["frames"])]
            self.kernel = Kernel(scan.grid, Options(depth=0, subdivision="flat"))

    def _correct(self):
        for counts, mask, factors, buffer in zip(self.counts, self.masks, self.factors, self.buffers):
            self.correction.apply(counts, mask=mask, factors=factors, out=buffer)

    def iterate(self):
        import numpy as np

        self._correct()
        if self.kernel is not None:
            whole = (0, self.parameters["rows"], 0, self.parameters["columns"])
            self.batches = [
                self.kernel.map_view([b.intensity], [b.variance], *call, whole, mask=[b.mask])
                for b, call in zip(self.buffers, self.calls)
            ]
        excluded = sum(int(np.count_nonzero(buffer.mask)) for buffer in self.buffers)
        units = sum(counts.size for counts in self.counts)
        return {"units": units, "work": units - excluded}

    def fingerprint(self):
        import numpy as np

        from impl.mapping.records import COLUMNS

        digests = {
            name: worker.digest(*(getattr(buffer, name).tobytes() for buffer in self.buffers))
            for name in ("intensity", "variance", "mask")
        }
        for name in COLUMNS if self.batches else ():
            digests[f"records {name}"] = worker.digest(*(getattr(batch, name).tobytes() for batch in self.batches))
        totals = {
            name: float(sum(np.sum(getattr(b, name), where=~b.mask) for b in self.buffers))
            for name in ("intensity", "variance")
        }
        excluded = sum(int(np.count_nonzero(buffer.mask)) for buffer in self.buffers)
        return {"work": sum(c.size for c in self.counts) - excluded, "digests": digests, "totals": totals}

    def close(self):
        if self.kernel is not None:
            self.kernel.close()


if __name__ == "__main__":
    worker.serve(Correct)
