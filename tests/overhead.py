"""What the harness costs: python tests/overhead.py [--repetitions 31] [--lines .harness/overhead.jsonl].

Resumable: every repetition appends one line to a JSON-lines file, and only missing ones are measured. At the end the
medians of paired differences are printed with the range of their middle half, against the limits.

process   `true` as both arms, against the same number of bare posix_spawn and wait4 in between. `window` is what a slot
          has beyond a bare run, in CPU time (of the command itself) and wall time; `run` is all CPU of harness and
          arms beyond that of bare runs: launching, draining, load scans, record, statistics.
resident  the loop of impl/loop at 20 and at 120 pairs in a block: the difference of the harness's CPU time inside
          the pairs, and of the arms' outside their timed iterations, over the 200 iterations more. Start-up cancels.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import arms, comparison, records, runner  # noqa: E402

#: name -> (limit in seconds, what it is); wall time is told and not judged, since it is other programs' as well
LIMITS = {
    "window_cpu": (1e-3, "process: CPU inside the timed window"),
    "window_wall": (None, "process: wall time inside the timed window"),
    "run_cpu": (15e-3, "process: CPU a run in all"),
    "harness_cpu": (None, "resident: CPU an iteration, of the harness"),
    "arm_cpu": (None, "resident: CPU an iteration, of the arm around its own"),
    "iteration_cpu": (200e-6, "resident: CPU an iteration in all"),
}
RUNS = 16


def cpu(*who: int) -> float:
    """CPU seconds of this process, and of all children that were waited for."""
    return sum(sum(resource.getrusage(one)[:2]) for one in who or (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def bare(program: str) -> tuple[float, float]:
    """Wall and CPU seconds of one run of a program, started and waited for by the least that can be done."""
    begin = time.perf_counter()
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, stream) for stream in range(3)]
    pid = os.posix_spawn(program, [program], os.environ, file_actions=actions)
    _, _, usage = os.wait4(pid, 0)
    end = time.perf_counter()
    os.close(null)
    return end - begin, usage.ru_utime + usage.ru_stime


def compare(a: str, b: str, folder: str, **overrides) -> tuple[float, list[records.Slot]]:
    """One comparison without its pages; all CPU seconds that it took, and its slots."""
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    resolved = arms.resolve(a, b, start=ROOT, overrides=settings)
    begin = cpu()
    made = comparison.measure(resolved, command=["ab", a, b], reports=Path(folder), quiet=True)
    return cpu() - begin, records.of(records.read(made), records.Slot)


def process(folder: str) -> dict[str, float]:
    """One paired repetition of process mode."""
    once, first = compare("true", "true", folder, schedule__pairs=1)
    taken, slots = compare("true", "true", folder, schedule__pairs=RUNS)
    alone = [bare("/bin/true") for _ in slots]
    return {
        "window_wall": statistics.median(s.seconds - wall for s, (wall, _) in zip(slots, alone)),
        "window_cpu": statistics.median(s.cpu_seconds - used for s, (_, used) in zip(slots, alone)),
        # what opens and closes a comparison cancels
        "run_cpu": (taken - once) / (len(slots) - len(first)) - statistics.fmean(used for _, used in alone),
    }


def resident(folder: str) -> dict[str, float]:
    """One paired repetition of resident mode."""
    inside = [0.0]
    pair = runner.Runner._pair

    def timed(*arguments):
        begin = time.process_time()
        pair(*arguments)
        inside[0] += time.process_time() - begin

    ours, theirs, count = [], [], []
    runner.Runner._pair = timed
    try:
        for pairs in (20, 120):
            settings = {"schedule__blocks": 1, "schedule__pairs": pairs, "parameters__steps": 5000}
            inside[0], children = 0.0, cpu(resource.RUSAGE_CHILDREN)
            _, slots = compare("aa-python:a", "aa-python:b", folder, **settings)
            ours.append(inside[0])
            theirs.append(cpu(resource.RUSAGE_CHILDREN) - children - sum(slot.cpu_seconds for slot in slots))
            count.append(len(slots))
    finally:
        runner.Runner._pair = pair
    more = count[1] - count[0]
    found = {"harness_cpu": (ours[1] - ours[0]) / more, "arm_cpu": (theirs[1] - theirs[0]) / more}
    return found | {"iteration_cpu": sum(found.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=31)
    parser.add_argument("--lines", type=Path, default=ROOT / ".harness" / "overhead.jsonl")
    options = parser.parse_args()
    options.lines.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in options.lines.read_text().splitlines()] if options.lines.exists() else []
    with options.lines.open("a") as file, tempfile.TemporaryDirectory() as folder:
        compare("true", "true", folder, schedule__pairs=1)  # what is imported late, and the guard
        while len(done) < options.repetitions:
            done.append(process(folder) | resident(folder))
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
            print(f"{len(done)} of {options.repetitions}", file=sys.stderr)
    missed = False
    for name, (limit, what) in LIMITS.items():
        values = [one[name] for one in done]
        low, middle, high = statistics.quantiles(values, n=4)
        told = "" if limit is None else f", limit {limit * 1e6:.0f} µs"
        if limit is not None and middle > limit:
            missed, told = True, f"{told}: missed"
        print(f"{what}: {middle * 1e6:.0f} µs ({low * 1e6:.0f} to {high * 1e6:.0f}){told}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
