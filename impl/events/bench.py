"""Times the whole way from a ROOT file to a cache on a made-up sample; one JSON object a line.

Three phases are timed apart: `setup` (imports, writing the sample), `warmup` (discarded), `steady`. Every line carries
what is needed to repeat it; `compare` refuses two records that are not comparable. A summary line closes each case.
"""

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCHEMA = 1
#: records that differ in one of these say nothing about each other
SAME = ("schema", "bench", "cpu_model", "cores", "affinity", "governor", "input_sha256", "malloc", "threads",
        "result_checksum")  # fmt: skip
CASES = ("vectorised", "per-event")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu() -> tuple[str | None, list[str]]:
    """Model name and the flags that change results or speed."""
    text = _read("/proc/cpuinfo") or ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    wanted = ("avx", "avx2", "fma", "sha_ni", "amx")
    flags = fields.get("flags", fields.get("Features", "")).split()
    return fields.get("model name"), sorted(f for f in flags if f in wanted or f.startswith(("avx512", "amx")))


def _steal() -> int | None:
    """Clock ticks that the hypervisor gave to others, all processors together, since boot."""
    line = (_read("/proc/stat") or "").splitlines()[:1]
    return int(line[0].split()[8]) if line and len(line[0].split()) > 8 else None


def _git() -> dict:
    found = {}
    for key, words in (("commit", ["rev-parse", "HEAD"]), ("dirty", ["status", "--porcelain", "--untracked-files=no"])):
        try:
            done = subprocess.run(["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True)
        except OSError:
            return {"commit": None, "dirty": None}
        found[key] = done.stdout.strip() if done.returncode == 0 else None
    return {"commit": found["commit"], "dirty": bool(found["dirty"])}


def _versions() -> dict:
    import importlib.metadata

    found = {"python": platform.python_version(), "kernel": platform.release(), "libc": "-".join(platform.libc_ver())}
    for package in ("numpy", "uproot", "awkward", "torch", "dgl"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _cpu_seconds() -> float:
    """CPU of this process and of the children that it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_rss() -> int:
    """The largest resident memory of this process or one of its children, bytes."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def header(arguments, input_sha256: str) -> dict:
    """The fields that all lines of one run share."""
    model, flags = _cpu()
    wanted = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MALLOC_")
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(wanted)}
    torch = sys.modules.get("torch")
    return {
        "schema": SCHEMA, "bench": "events", "seed": arguments.seed, "input_sha256": input_sha256,
        "git": _git(), "argv": sys.argv[1:], "env": variables,
        "malloc": {name: value for name, value in variables.items() if name.startswith("MALLOC_")},
        "threads": variables.get("OMP_NUM_THREADS"),
        "threads_torch": torch.get_num_threads() if torch else None,
        "threads_interop": torch.get_num_interop_threads() if torch else None,
        "versions": _versions(), "cpu_model": model, "cpu_flags": flags, "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "device": "cpu", "device_name": model, "dtype": "float32", "deterministic": True,
    }  # fmt: skip


class _Case:
    """One way to prepare the sample."""

    def __init__(self, name: str, workers: int, edge_features: bool, source: Path, folder: Path):
        self.name, self.workers, self.edge_features = name, workers, edge_features
        self.source, self.folder = source, folder

    def clear(self) -> None:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        (self.folder / "graphs.bin").unlink(missing_ok=True)

    def run(self) -> None:
        if self.name == "per-event":
            from impl.events import perevent, root, schema

            chosen = schema.load("sample")
            with root.Reader(str(self.source), chosen.tree) as reader:
                perevent.graphs(chosen, root.bind(chosen, [reader]), reader, self.folder / "graphs.bin")
            return
        from impl.events.config import Options
        from impl.events.prepare import prepare

        prepare(Options(files=(str(self.source),), schema="sample", output=str(self.folder / "cache"),
                        num_workers=self.workers, edge_features=self.edge_features))  # fmt: skip

    def result(self) -> dict:
        """events, nodes, edges and a checksum over nodes, globals, labels and weights of the last run."""
        if self.name == "per-event":
            import dgl

            from impl.events.export import columns_of

            columns = columns_of(*dgl.load_graphs(str(self.folder / "graphs.bin")))
            edges = len(columns["edge_x"])
        else:
            from impl.events.cache import Cache

            cache = Cache.open(self.folder / "cache")
            columns = {name: getattr(cache, name) for name in ("node_x", "node_off", "glob", "label", "weight")}
            edges = cache.manifest["edges"]
        state = hashlib.sha256()
        for name in ("node_off", "node_x", "glob", "label", "weight"):
            state.update(columns[name].tobytes())
        return {"events": len(columns["weight"]), "nodes": len(columns["node_x"]), "edges": edges,
                "result_checksum": state.hexdigest()}  # fmt: skip


def _timed(work) -> dict:
    load, steal = os.getloadavg()[0], _steal()
    cpu, wall = _cpu_seconds(), time.perf_counter()
    work()
    wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
    return {"seconds": wall, "cpu_seconds": cpu, "load_before": load, "load_after": os.getloadavg()[0],
            "steal": None if steal is None else _steal() - steal, "contended": wall > 1.3 * cpu,
            "peak_rss": _peak_rss(), "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip


def summary(values: list[float]) -> dict:
    """n, median, p10, p90, min and mad (median absolute deviation) of some seconds."""
    ordered = sorted(values)
    middle = statistics.median(ordered)

    def quantile(q: float) -> float:
        place = q * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    return {"n": len(ordered), "median": middle, "p10": quantile(0.1), "p90": quantile(0.9), "min": ordered[0],
            "mad": statistics.median(abs(value - middle) for value in ordered)}  # fmt: skip


def differences(one: dict, other: dict) -> list[str]:
    """Fields that forbid comparing two lines; empty when they may be compared."""
    return [name for name in SAME if one.get(name) != other.get(name)]


def bench(arguments, say) -> None:
    """Run one case and `say` its lines."""
    scratch = Path.cwd() / ".harness" / "events"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        source = folder / "sample.root"
        few = arguments.nodes if arguments.fixed else arguments.nodes // 4
        nodes = (few, 2 * arguments.nodes - few)

        def set_up():
            from impl.events import prepare, sample  # noqa: F401 (imports are part of the set-up)

            if arguments.case == "per-event":
                from impl.events.export import need_dgl

                need_dgl()
            sample.write(source, arguments.events, nodes, arguments.seed, arguments.compression)

        first = _timed(set_up)
        from impl.events import sample

        common = header(arguments, sample.digest(arguments.events, nodes, arguments.seed)[0])
        common |= {"case": arguments.case, "workers": arguments.workers, "edge_features": arguments.edge_features}
        say(common | {"phase": "setup", "iteration": 0, "events": arguments.events} | first)
        case = _Case(arguments.case, arguments.workers, arguments.edge_features, source, folder)
        steady, cpu = [], []
        for phase, count in (("warmup", arguments.warmup), ("steady", arguments.iterations)):
            for iteration in range(count):
                case.clear()
                times = _timed(case.run)
                result = case.result()
                say(common | {"phase": phase, "iteration": iteration, "units": result["events"],
                              "work": result["events"], **result, "cache_hits": None, "cache_misses": None,
                              "events_per_s": result["events"] / times["seconds"],
                              "edges_per_s": result["edges"] / times["seconds"], **times})  # fmt: skip
                if phase == "steady":
                    steady.append(times["seconds"])
                    cpu.append(times["cpu_seconds"])
        middle = statistics.median(steady)
        say(common | {"phase": "summary", **result, "seconds": middle, "wall": summary(steady), "cpu": summary(cpu),
                      "warmup_iterations": arguments.warmup, "cpu_seconds": statistics.median(cpu),
                      "us_per_event": statistics.median(cpu) / result["events"] * 1e6,
                      "events_per_s": result["events"] / middle, "edges_per_s": result["edges"] / middle,
                      "contended": middle > 1.3 * statistics.median(cpu), "peak_rss": _peak_rss()})  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(paths: list[str]) -> list[str]:
    """Ratios of the summary lines of two files, B/A; raises ConfigurationError when they are not comparable."""
    from impl.events.errors import ConfigurationError

    found = []
    for path in paths:
        try:
            lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise ConfigurationError(path, "lines of this benchmark", str(error), "") from None
        found += [[line for line in lines if line.get("phase") == "summary"][-1:]]
        if not found[-1]:
            raise ConfigurationError(path, "a summary line", "none", "let the benchmark finish")
    (one,), (other,) = found
    different = differences(one, other)
    if different:
        raise ConfigurationError(f"{paths[0]} and {paths[1]}", "comparable records",
                                 f"different {', '.join(different)}", "measure both alike")  # fmt: skip
    return [f"{clock}: B/A {other[key] / one[key]:.4g} ({one[key]:.4g} s, {other[key]:.4g} s)"
            for clock, key in (("CPU", "cpu_seconds"), ("wall", "seconds"))]  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.events.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=256, help="events of the sample (256)")
    parser.add_argument("--nodes", type=int, default=32, help="mean objects an event, from a quarter of it (32)")
    parser.add_argument("--fixed", action="store_true", help="exactly --nodes objects in every event")
    parser.add_argument("--workers", type=int, default=0, help="worker processes (0)")
    parser.add_argument("--case", choices=CASES, default="vectorised", help="per-event needs torch and dgl")
    parser.add_argument("--no-edges", dest="edge_features", action="store_false", help="do not store edge features")
    parser.add_argument("--compression", choices=("none", "zlib", "lz4", "zstd"), default="zlib")
    parser.add_argument("--warmup", type=int, default=2, help="iterations that are discarded (2)")
    parser.add_argument("--iterations", type=int, default=7, help="iterations that count (7)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="ratio of two files of lines instead of a run")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    from impl.events.errors import ConfigurationError, EventsError

    arguments = _parser().parse_args(argv)
    try:
        for name, least in (("events", 1), ("nodes", 1), ("workers", 0), ("warmup", 0), ("iterations", 1)):
            if getattr(arguments, name) < least:
                raise ConfigurationError(f"--{name}", f"at least {least}", str(getattr(arguments, name)), "")
        if arguments.compare:
            print("\n".join(compare(arguments.compare)))
            return 0
        bench(arguments, lambda line: print(json.dumps(line), flush=True))
    except EventsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
