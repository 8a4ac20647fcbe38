"""The workload 'mapping': detector tiles into a reciprocal-space grid, by the C kernel.

An iteration maps every tile once; inputs are read and corrected in set-up. Units are pixels x frames, work is records.
"""

import dataclasses
import os
from pathlib import Path

from harness import worker


def loaded_library():
    """The C library as a header names it. Raises Fault where it is not built."""
    try:
        from impl.mapping import kernel
    except ImportError as error:
        next_step = "build it: python csrc/build.py mapping"
        raise worker.Fault("impl.mapping", "the built C library", str(error), next_step) from None
    return worker.library("mapping", kernel.library_path(), kernel.library_digest(), kernel.tree_digest())


class Mapping(worker.Workload):
    """Tiles of the ruby scan (real) or of the synthetic one, mapped again and again.

    tiles = 0 takes all eight spots of the ruby scan, or one tile of the synthetic scan, whose further tiles are the
    same pixels over the frames that follow. frames_per_call = 0 takes all frames of a tile in one call. merge merges
    the calls' records within the iteration. layout: the tile is an array of its own, or lies in whole frames with a
    margin about it, copied out before a call or viewed in place. region = n maps into n voxels an axis about the first
    tile's middle alone.
    """

    name = "mapping"
    packages = ("numpy", "cffi")
    accepts = {
        "source": "ruby",
        "data": "tests/data/xray",
        "panel": "ff1",
        "frames": 3,
        "tile": 48,
        "tiles": 0,
        "exposure": "stationary",
        "depth": 4,
        "subdivision": "corner-passing",
        "threads": 1,
        "work_block": 0,
        "budget": 1 << 30,
        "precheck": "records",
        "filter": True,
        "accumulate": "auto",
        "instructions": "best",
        "order": "bricks",
        "reject": True,
        "count_blocks": False,
        "frames_per_call": 0,
        "merge": False,
        "layout": "own",
        "margin": 64,
        "region": 0,
        "seed": 0,
    }

    def __init__(self, parameters):
        super().__init__(parameters)
        where = "workload 'mapping': "
        worker.choice(where + "source", parameters["source"], ("ruby", "synthetic"))
        worker.choice(where + "panel", parameters["panel"], ("ff1", "ff2"))
        worker.choice(where + "exposure", parameters["exposure"], ("stationary", "continuous"))
        worker.choice(where + "subdivision", parameters["subdivision"], ("corner-passing", "corner-cache", "flat"))
        worker.choice(where + "precheck", parameters["precheck"], ("records", "leaves"))
        worker.choice(where + "accumulate", parameters["accumulate"], ("auto", "radix", "bitmap"))
        worker.choice(where + "instructions", parameters["instructions"], ("best", "plain", "avx2", "avx512"))
        worker.choice(where + "layout", parameters["layout"], ("own", "copy", "view"))
        worker.choice(where + "order", parameters["order"], ("bricks", "flat-runs"))
        limits = {
            "frames": (1, 1440 if parameters["source"] == "ruby" else 3600),
            "tile": (1, 3072),
            "tiles": (0, 8 if parameters["source"] == "ruby" else 1000),
            "depth": (0, 8),
            "threads": (1, 256),
            "work_block": (0, 2**62),
            "budget": (0, 2**62),
            "seed": (0, 2**62),
            "frames_per_call": (0, 3600),
            "margin": (0, 4096),
            "region": (0, 2**20),
        }
        for key, (low, high) in limits.items():
            if not low <= parameters[key] <= high:
                raise worker.Fault(where + key, f"a whole number from {low} to {high}", repr(parameters[key]))
        self.calls, self.batches, self.kernel = [], [], None

    def inputs(self):
        if self.parameters["source"] != "ruby":
            return []
        panel, folder = self.parameters["panel"], Path(self.parameters["data"])
        names = (f"ruby_{panel}.npz", "ruby_instrument.yml", "ruby_grains.out")
        return [worker.file_input(folder / name) for name in names]

    def libraries(self):
        return [loaded_library()]

    def environment(self):
        return {"threads": self.parameters["threads"], "cores": os.cpu_count()}

    def setup(self):
        from impl.mapping import sources
        from impl.mapping.kernel import Kernel, MappingError, Options
        from impl.mapping.pipeline import groups, prepare, within_frames

        p = self.parameters
        options = Options(**{field.name: p[field.name] for field in dataclasses.fields(Options)})
        try:
            if p["source"] == "ruby":
                scan = sources.ruby(p["data"], p["panel"], p["tile"], p["tiles"] or 8, p["frames"])
            else:
                scan = sources.synthetic(p["tile"], p["frames"], p["tiles"] or 1, p["seed"])
            if p["region"]:
                scan = sources.around_middle(scan, p["region"])
            for tile in scan.tiles:
                for group in groups(tile, p["frames_per_call"]):
                    self.calls += prepare(scan, group, p["depth"], p["exposure"], options)
            if p["layout"] != "own":
                self.calls = [within_frames(call, p["layout"], p["margin"]) for call in self.calls]
        except sources.SourceError as error:
            raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        except (MappingError, ValueError) as error:
            raise self._fault(error) from None
        self.kernel = Kernel(scan.grid, options)
        self.units = sum(call.samples for call in self.calls)

    @staticmethod
    def _fault(error):
        """A message 'where: expected …, found …; next' as the protocol's four fields."""
        where, _, rest = str(error).partition(": expected ")
        expected, _, rest = rest.partition(", found ")
        found, _, following = rest.partition("; ")
        return worker.Fault(f"workload 'mapping': {where}", expected, found, following)

    def iterate(self):
        from impl.mapping.kernel import MappingError
        from impl.mapping.pipeline import map_calls
        from impl.mapping.records import merge

        try:
            self.batches, counters = map_calls(self.kernel, self.calls)
            if self.parameters["merge"]:
                self.batches = [merge(self.batches)]
        except MappingError as error:
            raise self._fault(error) from None
        return {
            "units": self.units,
            "work": sum(map(len, self.batches)),
            "counters": counters,
            "totals": self._totals(),
        }

    def _totals(self):
        names = {"sumI": "sum_intensity", "sumV": "sum_variance", "sumW": "sum_weight"}
        return {
            name: float(sum(getattr(batch, column).sum() for batch in self.batches)) for name, column in names.items()
        }

    def fingerprint(self):
        from impl.mapping.records import COLUMNS

        # Sums depend on the order of the samples: policy 'keys' leaves out what is called "values".
        names = {name: f"values {name}" if name.startswith("sum") else name for name in COLUMNS}
        digests = {
            names[name]: worker.digest(*(getattr(batch, name).tobytes() for batch in self.batches)) for name in COLUMNS
        }
        return {"work": sum(map(len, self.batches)), "digests": digests, "totals": self._totals()}

    def values(self, path):
        import numpy as np

        from impl.mapping.records import merge

        records = merge(self.batches)
        np.savez(
            path,
            key=records.key(),
            value=records.intensity(),
            variance=records.variance(),
            weight=records.sum_weight,
            contributors=records.contributors,
        )
        return {"records": len(records)}

    def close(self):
        if self.kernel is not None:
            self.kernel.close()


if __name__ == "__main__":
    worker.serve(Mapping)
