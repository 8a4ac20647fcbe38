"""The workload `events` for harness: prepare, load, or batch graphs from a made-up sample, each in several ways.

Run by hand: `python -m impl.events.arm --set task='"prepare"' --set path='"per-event"' --set events=256`.
"""

import contextlib
import hashlib
import mmap
import os
import shutil
import tempfile
from pathlib import Path

from harness import worker

TASKS = ("prepare", "load", "topology")


class Events(worker.Workload):
    """One iteration: the whole sample prepared (ROOT file to cache), loaded (cache to memory) or made into one batch.

    Parameters
    ----------
    task : str              prepare, load, topology
    path : str              prepare: vectorised (columns), per-event (DGL graphs)
    workers : int           prepare, vectorised: processes
    edge_features : bool    prepare, vectorised: stored in the cache
    format : str            load: columns (mapped, every page touched), columns-read (copied into memory),
                            columns-index (mapped, edge indices built too), dgl (a list of graphs)
    cached : bool           topology: edge indices from the bounded cache
    graphs : str            topology: dgl (one graph an event, then dgl.batch), numpy (concatenated indices)
    events, nodes_min, nodes_max, seed, compression, rntuple    the sample
    """

    name = "events"
    accepts = {
        "task": "prepare",
        "path": "vectorised",
        "workers": 0,
        "edge_features": True,
        "format": "columns",
        "cached": True,
        "graphs": "dgl",
        "events": 2000,
        "nodes_min": 8,
        "nodes_max": 56,
        "seed": 1,
        "compression": "zlib",
        "rntuple": False,
    }
    packages = ("numpy", "uproot", "awkward", "torch", "dgl")

    def __init__(self, parameters: dict):
        super().__init__(parameters)
        p = parameters
        worker.choice("task", p["task"], TASKS)
        worker.choice("path", p["path"], ("vectorised", "per-event"))
        worker.choice("format", p["format"], ("columns", "columns-read", "columns-index", "dgl"))
        worker.choice("graphs", p["graphs"], ("dgl", "numpy"))
        worker.choice("compression", p["compression"], ("none", "zlib", "lz4", "zstd"))
        if p["events"] < 1 or p["workers"] < 0 or not 0 <= p["nodes_min"] <= p["nodes_max"]:
            raise worker.Fault("events, workers, nodes_min, nodes_max", "at least 1, at least 0, an ascending pair",
                               f"{p['events']}, {p['workers']}, {p['nodes_min']}, {p['nodes_max']}", "")  # fmt: skip
        self.nodes = (p["nodes_min"], p["nodes_max"])
        self.folder = None

    def inputs(self) -> list[dict]:
        """The values of the sample; its file also holds the time when it was made."""
        from impl.events import sample

        p = self.parameters
        self.digest, size = sample.digest(p["events"], self.nodes, p["seed"])
        return [{"name": "sample", "bytes": size, "digest": self.digest[:32]}]

    def libraries(self) -> list[dict]:
        from impl.events import kernel

        return [worker.library("events", kernel.path(), kernel.source_digest(), kernel.tree_digest())]

    def environment(self) -> dict:
        if self._needs_dgl():
            with _faults():
                from impl.events.export import need_dgl

                _, torch = need_dgl()
            return {"torch_threads": torch.get_num_threads(), "torch_interop_threads": torch.get_num_interop_threads()}
        return {}

    def _needs_dgl(self) -> bool:
        p = self.parameters
        chosen = {"prepare": p["path"] == "per-event", "load": p["format"] == "dgl", "topology": p["graphs"] == "dgl"}
        return chosen[p["task"]]

    def setup(self) -> None:
        p = self.parameters
        self.scratch = Path.cwd() / ".harness" / "events"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(dir=self.scratch))
        if self._needs_dgl():
            from impl.events.export import need_dgl

            self.dgl, self.torch = need_dgl()
        getattr(self, f"_setup_{p['task']}")()

    def _write_sample(self) -> None:
        """Write the sample, or take the one that an earlier launch left: 400,000 events take 20 s to write."""
        from impl.events import sample

        p = self.parameters
        form = "rntuple" if p["rntuple"] else "ttree"
        self.source = self.scratch / f"sample-{self.digest[:16]}-{p['compression']}-{form}.root"
        if not self.source.exists():
            made = sample.write(self.folder / "sample.root", p["events"], self.nodes, p["seed"], p["compression"],
                                p["rntuple"])  # fmt: skip
            os.replace(made, self.source)

    def _options(self, output: Path, **more):
        from impl.events.config import Options

        return Options(files=(str(self.source),), schema="sample", output=str(output), **more)

    def prepare(self) -> None:
        if self.parameters["task"] == "prepare":
            shutil.rmtree(self.folder / "cache", ignore_errors=True)
            (self.folder / "graphs.bin").unlink(missing_ok=True)
        self.result = None  # frees the last iteration's memory outside the clock

    def iterate(self) -> dict:
        with _faults():
            return getattr(self, f"_iterate_{self.parameters['task']}")()

    def fingerprint(self) -> dict:
        columns = getattr(self, f"_columns_{self.parameters['task']}")()
        digests = {name: hashlib.sha256(array.tobytes()).hexdigest()[:32] for name, array in sorted(columns.items())}
        return {"work": self.parameters["events"], "digests": digests}

    def close(self) -> None:
        self.result = None
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------ prepare

    def _setup_prepare(self) -> None:
        from impl.events import prepare  # noqa: F401 (imported before the clock runs)

        self._write_sample()

    def _iterate_prepare(self) -> dict:
        if self.parameters["path"] == "per-event":
            return self._prepare_per_event()
        from impl.events.prepare import prepare

        options = self._options(self.folder / "cache", num_workers=self.parameters["workers"],
                                edge_features=self.parameters["edge_features"])  # fmt: skip
        manifest = prepare(options).manifest
        return _counts(manifest["events"], manifest["nodes"], manifest["edges"])

    def _prepare_per_event(self) -> dict:
        from impl.events import perevent, root, schema

        chosen = schema.load("sample")
        with root.Reader(str(self.source), chosen.tree) as reader:
            bindings = root.bind(chosen, [reader])
            made = perevent.graphs(chosen, bindings, reader, self.folder / "graphs.bin")
        return {"units": made, "work": made}

    def _columns_prepare(self) -> dict:
        if self.parameters["path"] == "per-event":
            from impl.events.export import columns_of

            columns = columns_of(*self.dgl.load_graphs(str(self.folder / "graphs.bin")))
            del columns["src"], columns["dst"]
            columns["meta_event"] = columns["meta_event"].view("uint64")
            return columns
        from impl.events.cache import Cache

        return _columns(Cache.open(self.folder / "cache"))

    # ------------------------------------------------------------------------------------------------ load

    def _setup_load(self) -> None:
        from impl.events import export
        from impl.events.prepare import prepare

        self._write_sample()
        prepare(self._options(self.folder / "cache"))
        if self.parameters["format"] == "dgl":
            export.to_dgl(self.folder / "cache", self.folder / "graphs.bin")

    def _iterate_load(self) -> dict:
        if self.parameters["format"] == "dgl":
            graphs, labels = self.result = self.dgl.load_graphs(str(self.folder / "graphs.bin"))
            return {"units": len(graphs), "work": len(labels["label"])}
        from impl.events import kernel
        from impl.events.cache import Cache

        cache = Cache.open(self.folder / "cache", mmap=self.parameters["format"] != "columns-read")
        for array in _columns(cache).values():
            array.reshape(-1).view("u1")[:: mmap.PAGESIZE].max()  # brings every page of the map into the process
        index = kernel.edge_index(cache.node_off) if self.parameters["format"] == "columns-index" else None
        self.result = cache, index
        return _counts(len(cache), len(cache.node_x), len(cache.edge_x))

    def _columns_load(self) -> dict:
        if self.parameters["format"] == "dgl":
            from impl.events.export import columns_of

            columns = columns_of(*self.result)
            columns["meta_event"] = columns["meta_event"].view("uint64")
            del columns["src"], columns["dst"]
            return columns
        return _columns(self.result[0])

    # ------------------------------------------------------------------------------------------------ topology

    def _setup_topology(self) -> None:
        from impl.events import sample, topology

        p = self.parameters
        self.counts = [int(count) for count in sample.columns(p["events"], self.nodes, p["seed"])[0]]
        self.cache = topology.TopologyCache() if p["cached"] else topology.TopologyCache(max_entries=0)

    def _iterate_topology(self) -> dict:
        import numpy as np

        if self.parameters["graphs"] == "dgl":
            made = []
            for count in self.counts:
                made.append(self.dgl.graph(self.cache.get(count, False, "cpu"), num_nodes=count))
            self.result = self.dgl.batch(made)
            edges = self.result.num_edges()
        else:
            begin, sources, destinations = 0, [], []
            for count in self.counts:
                src, dst = self.cache.get(count)
                sources.append(src + begin)
                destinations.append(dst + begin)
                begin += count
            self.result = np.concatenate(sources), np.concatenate(destinations)
            edges = len(self.result[0])
        counters = self.cache.counters
        return _counts(len(self.counts), sum(self.counts), edges) | {
            "counters": {"nodes": sum(self.counts), "edges": edges, "hits": counters.hits, "misses": counters.misses}
        }

    def _columns_topology(self) -> dict:
        src, dst = self.result if self.parameters["graphs"] == "numpy" else (
            end.numpy() for end in self.result.edges(order="eid"))  # fmt: skip
        return {"src": src, "dst": dst}


def _counts(events: int, nodes: int, edges: int) -> dict:
    return {"units": events, "work": events, "counters": {"nodes": nodes, "edges": edges}}


def _columns(cache) -> dict:
    """Every stored column; edge features that are rebuilt on reading follow from the nodes."""
    columns = {"node_x": cache.node_x, "node_off": cache.node_off, "glob": cache.glob, "label": cache.label,
               "weight": cache.weight}  # fmt: skip
    if cache.edge_x is not None:
        columns["edge_x"] = cache.edge_x
    return columns | {f"meta_{name}": array for name, array in cache.meta.items()}


@contextlib.contextmanager
def _faults():
    """An error of impl.events as the fault that the protocol knows."""
    from impl.events.errors import EventsError

    try:
        yield
    except EventsError as error:
        raise worker.Fault(error.where, error.expected, error.found, error.next) from None


if __name__ == "__main__":
    os.environ.setdefault("DGLBACKEND", "pytorch")
    worker.serve(Events)
