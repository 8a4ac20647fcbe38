"""What a pixel costs: python -m impl.mapping.bench [--json] [--full] [--peers], on the synthetic scan, NumPy beside it.

Times are of Kernel.map with new output arrays; the median of several calls after a first one that is not counted.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time

import numpy as np

from impl.mapping import sources
from impl.mapping.kernel import Kernel, Options
from impl.mapping.pipeline import Prepared, prepare

#: (exposure, depth, tile); depth 0 does not depend on the exposure
CASES = (
    ("stationary", 0, 512),
    ("stationary", 1, 512),
    ("stationary", 2, 512),
    ("stationary", 3, 256),
    ("stationary", 4, 256),
    ("continuous", 1, 512),
    ("continuous", 2, 256),
    ("continuous", 3, 128),
)
FULL = (
    ("stationary", 0, 1024),
    ("stationary", 1, 1024),
    ("stationary", 2, 1024),
    ("stationary", 5, 256),
    ("continuous", 2, 512),
    ("continuous", 4, 64),
)
ARMS = {
    "corner-passing": {"subdivision": "corner-passing"},
    "flat, double": {"subdivision": "flat", "filter": False},
    "flat, filter": {"subdivision": "flat", "filter": True},
}


def clock(work, seconds: float) -> tuple[float, float, int]:
    """Median CPU and wall seconds of a call, and how many calls: at least three, until `seconds` are spent."""
    work()
    cpu, wall = [], []
    begin = time.perf_counter()
    while len(cpu) < 3 or time.perf_counter() - begin < seconds:
        w, c = time.perf_counter(), time.process_time()
        work()
        cpu.append(time.process_time() - c)
        wall.append(time.perf_counter() - w)
    return statistics.median(cpu), statistics.median(wall), len(cpu)


def numpy_map(call: Prepared, grid) -> int:
    """The depth 0 map in NumPy, sums of intensity and weight alone; returns the number of voxels."""
    r = call.rays
    centre = 0.5 * (0.5 * r[:-1, :-1] + 0.5 * r[1:, :-1]) + 0.5 * (0.5 * r[:-1, 1:] + 0.5 * r[1:, 1:])
    centre = centre.reshape(-1, 3)
    centre /= np.sqrt((centre * centre).sum(axis=1))[:, None]
    middle = call.tables[0, call.tables.shape[1] // 2]
    steps = np.floor((centre @ middle[:, :3].T + middle[:, 3] - np.array(grid.minimum)) / np.array(grid.step))
    inside = ((steps >= 0) & (steps < np.array(grid.shape))).all(axis=1)
    x, y, z = steps[inside].astype(np.int64).T
    keys, place = np.unique((x * grid.shape[1] + y) * grid.shape[2] + z, return_inverse=True)
    np.bincount(place, weights=call.intensity[0].reshape(-1)[inside])
    np.bincount(place)
    return len(keys)


def cases(full: bool):
    """(exposure, depth, tile, arm, threads) of a run."""
    for case in CASES + (FULL if full else ()):
        for arm in ARMS:
            if not (arm == "flat, double" and case[1] == 0):
                yield *case, arm, 1
        if case[:2] in (("stationary", 0), ("stationary", 2)):
            yield *case, "flat, filter", 2


def measure(full: bool, seconds: float):
    """One dictionary a case, as soon as it is measured."""
    scans = {}
    for exposure, depth, tile, arm, threads in cases(full):
        scan = scans.setdefault(tile, sources.synthetic(tile, 1))
        options = Options(depth=depth, threads=threads, **ARMS[arm])
        call = prepare(scan, scan.tiles[0], depth, exposure, options)[0]
        pixels = tile * tile
        with Kernel(scan.grid, options) as kernel:
            cpu, wall, calls = clock(lambda kernel=kernel, call=call: call.run(kernel), seconds)
            counters = kernel.counters()
        yield {
            "arm": arm,
            "exposure": exposure,
            "depth": depth,
            "tile": tile,
            "threads": threads,
            "cpu_ns_per_pixel": cpu / pixels * 1e9,
            "wall_ns_per_pixel": wall / pixels * 1e9,
            "evaluations_per_pixel": counters["evaluations"] / pixels,
            "records_per_pixel": counters["records"] / pixels,
            "calls": calls,
        }
        if depth == 0 and arm == "flat, filter" and threads == 1:
            found = numpy_map(call, scan.grid)
            cpu, wall, calls = clock(lambda call=call, scan=scan: numpy_map(call, scan.grid), seconds)
            yield {
                "arm": "numpy",
                "exposure": exposure,
                "depth": depth,
                "tile": tile,
                "threads": 1,
                "cpu_ns_per_pixel": cpu / pixels * 1e9,
                "wall_ns_per_pixel": wall / pixels * 1e9,
                "evaluations_per_pixel": 1.0,
                "records_per_pixel": found / pixels,
                "calls": calls,
            }


#: peers at depth 0: the name shown, the tile, parameters of the workload 'gridding'
PEERS = (
    ("kernel", 512, {"way": "kernel"}),
    ("Gridder3D", 512, {"way": "xrayutilities", "convert": False}),
    ("and QConversion", 512, {"way": "xrayutilities", "convert": True}),
)


def measure_peers(iterations: int):
    """One dictionary a peer, each measured in a process of its own (xrayutilities is GPL and is loaded there alone)."""
    for name, tile, parameters in PEERS:
        given = [f"--set={key}={json.dumps(value)}" for key, value in (parameters | {"tile": tile}).items()]
        command = [sys.executable, "-m", "impl.mapping.peer_arm", *given, "--iterations", str(iterations)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(done.returncode)  # the workload has said why
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        steady = [line for line in lines if line["kind"] == "iteration" and line["phase"] == "steady"]
        pixels = tile * tile
        yield {
            "arm": name,
            "exposure": "stationary",
            "depth": 0,
            "tile": tile,
            "threads": 1,
            "cpu_ns_per_pixel": statistics.median(line["cpu_seconds"] for line in steady) / pixels * 1e9,
            "wall_ns_per_pixel": statistics.median(line["seconds"] for line in steady) / pixels * 1e9,
            "evaluations_per_pixel": 1.0,
            "records_per_pixel": steady[-1]["work"] / pixels,
            "calls": len(steady),
        }


def main(argv=None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m impl.mapping.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--full", action="store_true", help="larger tiles and deeper subdivision too")
    parser.add_argument(
        "--peers", action="store_true", help="xrayutilities too (extra 'peers'), on the same coordinates"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="time for a case (default %(default)s)")
    options = parser.parse_args(argv)
    if not options.json:
        print("exposure   depth tile threads  arm               cpu ns/px   wall ns/px   evaluations/px  records/px")
    found = measure(options.full, options.seconds)
    if options.peers:
        found = itertools.chain(found, measure_peers(max(1, int(20 * options.seconds))))
    for case in found:
        if options.json:
            print(json.dumps(case), flush=True)
        else:
            print(
                f"{case['exposure']:10} {case['depth']:5} {case['tile']:4} {case['threads']:7}  {case['arm']:15} "
                f"{case['cpu_ns_per_pixel']:11.1f} {case['wall_ns_per_pixel']:12.1f} "
                f"{case['evaluations_per_pixel']:16.2f} {case['records_per_pixel']:11.4f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
