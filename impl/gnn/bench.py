"""Throughput of training steps and inference on made events: `python -m impl.gnn.bench --iterations 50 --warmup 10`.

One JSON object a line: phase `setup` (with --compile also the first iteration, which compiles), then every `warmup` and
`steady` iteration, then a `summary` of the steady ones (median, p10, p90, min, mad of both clocks). Every line carries
what is needed to repeat it and to tell whether another line may be compared with it: input digest, machine, threads,
versions, allocator settings.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

SCHEMA = 1
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.gnn.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--task", choices=("train", "inference"), default="train")
    parser.add_argument("--backend", default="fused", help="dgl, dense or fused (default fused)")
    parser.add_argument("--recompute", action="store_true", help="fused: activations computed again")
    parser.add_argument("--compile", action="store_true", help="dense: the edge update by torch.compile")
    parser.add_argument("--events", type=int, default=64)
    parser.add_argument("--objects", type=int, default=32, help="objects of each event; 0: from 4 to 24, evenly")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda (backends dense and dgl)")
    parser.add_argument("--profile", metavar="FILE", nargs="?", const="gnn-profile.json",
                        help="also write torch's profile of 3 iterations, a Chrome trace")  # fmt: skip
    return parser


def _first(path: str, word: str) -> str | None:
    """The value of the first line of a colon-separated file that starts with a word."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(word):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    folder = Path(__file__).resolve().parent
    try:
        words = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine(device: str) -> dict:
    """What the figures depend on beside the program and its input."""
    import torch

    flags = (_first("/proc/cpuinfo", "flags") or "").split()
    return {
        "git": _revision(),
        "env": {k: v for k, v in sorted(os.environ.items()) if k in VARIABLES or k.startswith("MALLOC_")},
        "threads_torch": torch.get_num_threads(),
        "threads_interop": torch.get_num_interop_threads(),
        "versions": {"python": platform.python_version(), "kernel": platform.release(), "libc": platform.libc_ver()[1],
                     **{name: _version(name) for name in ("numpy", "torch", "dgl", "uproot", "awkward")}},
        "cpu_model": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cpu_flags": [flag for flag in flags if flag.startswith(("avx", "fma", "amx", "sse4", "bf16"))],
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "dtype": "float32",
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }  # fmt: skip


def _steal() -> int | None:
    """Clock ticks that the hypervisor gave to others."""
    line = _text("/proc/stat")
    fields = line.splitlines()[0].split() if line else []
    return int(fields[8]) if len(fields) > 8 else None


def _cpu() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def summary(values: list[float]) -> dict:
    """n, median, p10, p90, min, and mad (median distance from the median)."""
    import numpy as np

    array = np.asarray(values)
    middle = float(np.median(array))
    return {"n": len(values), "median": middle, "p10": float(np.percentile(array, 10)),
            "p90": float(np.percentile(array, 90)), "min": float(array.min()),
            "mad": float(np.median(np.abs(array - middle)))}  # fmt: skip


class Bench:
    """The job: made events in one batch, a network, a step or an inference."""

    def __init__(self, options):
        import numpy as np
        import torch

        from impl.gnn import batches, sample, train

        self.torch, self.options = torch, options
        sizes = np.random.default_rng([options.seed, 5]).integers(4, 25, options.events)
        if options.objects:
            sizes = np.full(options.events, options.objects)
        self.cache = sample.made(sizes, options.seed, classes=12)
        self.net = train.network_for(self.cache, "", options.backend, hidden=options.hidden, rounds=options.rounds,
                                     recompute=options.recompute, compiled=options.compile)  # fmt: skip
        self.settings = train.Options(seed=options.seed)
        train.initialise(self.net, self.cache, np.arange(len(self.cache)), self.settings)
        self.net.to(options.device)
        self.batch = batches.Batch(self.cache.batch(np.arange(len(self.cache))), options.device)
        self.optimiser = torch.optim.Adam(self.net.parameters(), 1e-4, fused=True)
        self.step = train.step

    def iterate(self):
        """One unit of work; returns the logits."""
        if self.options.task == "train":
            return self.step(self.net, self.batch, self.optimiser, self.settings)[1].detach()
        with self.torch.inference_mode():
            return self.net(self.batch)

    def synchronise(self) -> None:
        if self.options.device.startswith("cuda"):
            self.torch.cuda.synchronize(self.options.device)

    def counters(self) -> dict:
        """Graphs compiled so far, and the most bytes that the device held; only where there is something to count."""
        found = {}
        if self.options.compile:
            found["compilations"] = self.net.backend.compilations()
        if self.options.device.startswith("cuda"):
            found["peak_device_bytes"] = self.torch.cuda.max_memory_allocated(self.options.device)
        return found


def run(options, say) -> None:
    """Do the benchmark; `say` gets one dict a line."""
    wall, cpu = time.perf_counter(), _cpu()
    from impl.gnn import kernel, train

    train.set_threads(options.threads)
    steal, load = _steal(), os.getloadavg()
    bench = Bench(options)
    if options.compile:
        bench.iterate()
        bench.synchronise()
    layout = bench.batch.layout
    case = f"{options.backend}{'+recompute' if options.recompute else ''}{'+compiled' if options.compile else ''}"
    common = {
        "schema": SCHEMA,
        "bench": "gnn",
        "case": f"{options.task} {case} {options.events}x{options.objects or '4-24'}",
        "events": len(bench.batch),
        "nodes": layout.nodes,
        "edges": layout.edges,
        "seed": options.seed,
        "input_sha256": bench.cache.content,
        "argv": sys.argv[1:],
        **machine(options.device),
        "load_before": load[0],
    }

    def line(phase: str, seconds: float, cpu_seconds: float, **more) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        say({**common, "phase": phase, "seconds": seconds, "cpu_seconds": cpu_seconds,
             "events_per_s": len(bench.batch) / seconds, "edges_per_s": layout.edges / seconds, "peak_rss": peak,
             "load_after": os.getloadavg()[0], "steal": None if steal is None else _steal() - steal,
             "cache_hits": kernel.pool.hits, "cache_misses": kernel.pool.misses,
             "utc": datetime.now(UTC).isoformat(timespec="milliseconds"), **bench.counters(), **more})  # fmt: skip

    line("setup", time.perf_counter() - wall, _cpu() - cpu)
    kept: list[tuple[float, float]] = []
    checksum = None
    for phase, count in (("warmup", options.warmup), ("steady", options.iterations)):
        for number in range(count):
            bench.synchronise()
            wall, cpu = time.perf_counter(), _cpu()
            logits = bench.iterate()
            bench.synchronise()
            wall, cpu = time.perf_counter() - wall, _cpu() - cpu
            if phase == "steady":
                kept.append((wall, cpu))
            checksum = hashlib.sha256(logits.float().cpu().numpy().tobytes()).hexdigest()
            line(phase, wall, cpu, iteration=number, result_checksum=checksum)
    walls, cpus = [list(column) for column in zip(*kept)]
    middle = summary(walls)
    line("summary", middle["median"], summary(cpus)["median"], result_checksum=checksum, warmup=options.warmup,
         wall=middle, cpu=summary(cpus))  # fmt: skip
    if options.device == "cpu" and sum(walls) > 1.3 * sum(cpus) / options.threads:
        print("the machine was contended: wall time is over 1.3 times CPU time; compare CPU times", file=sys.stderr)
    if options.profile:
        _profile(bench, options.profile)


def _profile(bench, path: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if bench.options.device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for _ in range(3):
            bench.iterate()
        bench.synchronise()
    profiler.export_chrome_trace(path)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=12), file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code (2: bad option, one sentence on standard error)."""
    options = _parser().parse_args(argv)
    from impl.gnn.__main__ import prepared
    from impl.gnn.errors import GnnError, InputError

    try:
        for name, least in (("iterations", 1), ("warmup", 0), ("events", 1), ("objects", 0)):
            if getattr(options, name) < least:
                raise InputError(f"--{name}", f"a whole number of at least {least}", repr(getattr(options, name)))
        prepared(options)
        with contextlib.suppress(BrokenPipeError):
            run(options, lambda line: print(json.dumps(line), flush=True))
    except GnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
