"""The workload 'gridding': one frame at depth 0 into the grid, by our kernel or by xrayutilities in this process.

Units are pixels, work is voxels that were hit. xrayutilities is GPL: nothing else imports it, and this program only
where an arm asks for it.
"""

from harness import worker
from impl.mapping.arm import loaded_library


class Gridding(worker.Workload):
    """A tile of the synthetic scan, stationary.

    way : 'kernel' (rays to records of intensity, variance, weight, contributors) or 'xrayutilities' (its Gridder3D,
    dense, intensity and how many points, over the box of the tile; iterations add to one another, as frames of a scan
    do, for clearing would cost twice the gridding). convert adds its QConversion.area to an iteration, which is what
    turns pixels into coordinates there; the gridder is always given the kernel's own coordinates, since the middle of
    four corner rays and the ray of the middle differ by some 1e-5 voxels, which would move a few points to another.
    """

    name = "gridding"
    packages = ("numpy", "cffi", "xrayutilities")
    accepts = {"way": "kernel", "tile": 512, "convert": True, "seed": 0}

    def __init__(self, parameters):
        super().__init__(parameters)
        where = "workload 'gridding': "
        worker.choice(where + "way", parameters["way"], ("kernel", "xrayutilities"))
        if not 1 <= parameters["tile"] <= 1024:
            raise worker.Fault(where + "tile", "a whole number from 1 to 1024", repr(parameters["tile"]))
        self.kernel = None

    def libraries(self):
        return [loaded_library()]

    def setup(self):
        import numpy as np

        from impl.mapping.kernel import Kernel, Options
        from impl.mapping.pipeline import prepare
        from impl.mapping.sources import synthetic

        self.scan = synthetic(self.parameters["tile"], 1, 1, self.parameters["seed"])
        options = Options(depth=0, subdivision="flat")
        self.call = prepare(self.scan, self.scan.tiles[0], 0, "stationary", options)[0]
        self.kernel = Kernel(self.scan.grid, options)
        r, table = self.call.rays, self.call.tables[0, 1]
        ray = 0.5 * (0.5 * r[:-1, :-1] + 0.5 * r[1:, :-1]) + 0.5 * (0.5 * r[:-1, 1:] + 0.5 * r[1:, 1:])
        ray /= np.sqrt((ray * ray).sum(axis=-1))[..., None]
        self.coordinates = [
            ((a * ray[..., 0] + b * ray[..., 1]) + c * ray[..., 2]) + d for a, b, c, d in table
        ]  # fmt: skip
        inside, _ = self.scan.grid.voxels(np.stack([x.reshape(-1) for x in self.coordinates], axis=-1))
        # A voxel more on every side: the gridder leaves out what lies beyond the middle of its outermost.
        self.first = inside.min(axis=0) - 1
        self.extent = inside.max(axis=0) + 2 - self.first
        if self.parameters["way"] == "xrayutilities":
            # Looking through the whole dense grid for what was hit would cost more than the gridding.
            self.expected = np.unique(np.ravel_multi_index((inside - self.first).T, self.extent))
            self._peer_setup()

    def _peer_setup(self):
        import numpy as np

        try:
            import xrayutilities
        except ImportError as error:
            raise worker.Fault("xrayutilities", "the package", str(error), "install the extra 'peers'") from None
        grid, tile = self.scan.grid, self.scan.tiles[0]
        low, high = grid.centres(self.first), grid.centres(self.first + self.extent - 1)
        self.gridder = xrayutilities.Gridder3D(*(int(n) for n in self.extent))
        self.gridder.KeepData(True)
        self.passes = 0
        self.gridder.dataRange(low[0], high[0], low[1], high[1], low[2], high[2], fixed=True)
        detector, (r0, r1, c0, c1) = self.scan.detector, tile.rectangle
        conversion = xrayutilities.experiment.QConversion(["x+", "z-", "y+", "x+"], ["x+"], [0, 1, 0], en=20e3)
        middle = [poni / pitch - 0.5 - first for poni, pitch, first in zip(detector.poni, detector.pitch, (r0, c0))]
        widths = dict(zip(("pwidth1", "pwidth2"), detector.pitch))
        conversion.init_area("x+", "z+", *middle, r1 - r0, c1 - c0, distance=detector.distance, **widths)
        angles = (tile.start[0] + tile.end[0]) / 2
        self.area = lambda: conversion.area(
            *angles, 0.0, deg=False, wl=2 * np.pi / self.scan.wave_number, UB=self.scan.ub
        )

    def iterate(self):
        import numpy as np

        units = self.parameters["tile"] ** 2
        if self.parameters["way"] == "kernel":
            self.records = self.call.run(self.kernel)
            return {"units": units, "work": len(self.records)}
        if self.parameters["convert"]:
            self.converted = self.area()
        self.gridder(*self.coordinates, self.call.intensity[0])
        self.passes += 1
        return {"units": units, "work": int(np.count_nonzero(self.gridder._gnorm.reshape(-1)[self.expected]))}

    def found(self):
        """Voxels (n, 3) ascending, contributors and summed intensity of the last iteration."""
        import numpy as np

        if self.parameters["way"] == "kernel":
            voxels = self.scan.grid.indices(self.records.chunk, self.records.local)
            counts, sums = self.records.contributors.astype(np.int64), self.records.sum_intensity
            order = np.lexsort(voxels.T[::-1])
            return voxels[order], counts[order], sums[order]
        at = np.argwhere(self.gridder._gnorm > 0)
        index = tuple(at.T)
        counts, sums = self.gridder._gnorm[index] / self.passes, self.gridder._gdata[index] / self.passes
        return at + self.first, counts.astype(np.int64), sums

    def fingerprint(self):
        import numpy as np

        voxels, counts, sums = self.found()
        digests = {
            "voxels": worker.digest(np.ascontiguousarray(voxels, np.int64).tobytes()),
            "contributors": worker.digest(np.ascontiguousarray(counts).tobytes()),
        }
        return {"work": len(voxels), "digests": digests, "totals": {"sumI": float(sums.sum())}}

    def close(self):
        if self.kernel is not None:
            self.kernel.close()


if __name__ == "__main__":
    worker.serve(Gridding)
