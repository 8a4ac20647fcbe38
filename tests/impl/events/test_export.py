"""Caches to DGL files and back, torch tensors of the topology cache, and the per-event path that writes DGL graphs."""

import json
import os

import numpy as np
import pytest
from event_files import DATA, tiny, tree_bytes

pytestmark = pytest.mark.extras
pytest.importorskip("uproot")
torch = pytest.importorskip("torch")
os.environ.setdefault("DGLBACKEND", "pytorch")
dgl = pytest.importorskip("dgl")

from impl.events import config, export, graph, perevent, root, schema, topology  # noqa: E402
from impl.events.__main__ import main  # noqa: E402
from impl.events.cache import Cache  # noqa: E402
from impl.events.errors import CacheError, StorageError  # noqa: E402
from impl.events.prepare import prepare  # noqa: E402


def cache_of(output, *files, schema="sample", **options):
    prepare(config.load(files=[str(file) for file in files], schema=schema, output=str(output), **options))
    return Cache.open(output)


@pytest.mark.parametrize("edge_features", [True, False])
def test_a_round_trip_through_dgl_gives_every_byte_back(tmp_path, edge_features):
    data = str(DATA / "nanoaod_ttbar_2015.root")
    cache_of(tmp_path / "a", data, schema="nanoaod", edge_features=edge_features)
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "a.bin")]) == 0
    assert main(["import", str(tmp_path / "a.bin"), str(tmp_path / "b")]) == 0
    assert tree_bytes(tmp_path / "a") == tree_bytes(tmp_path / "b")


def test_exported_graphs_are_the_events(tmp_path):
    numbers = np.array([2**64 - 1, 2**53 + 1, 0, 5], np.uint64)
    cache = cache_of(tmp_path / "a", tiny(tmp_path / "t.root", event=numbers))
    export.to_dgl(tmp_path / "a", tmp_path / "a.bin")
    graphs, labels = dgl.load_graphs(str(tmp_path / "a.bin"))
    assert [g.num_nodes() for g in graphs] == [2, 0, 1, 3]
    src, dst = graphs[3].edges(order="eid")
    assert [src.tolist(), dst.tolist()] == [e.tolist() for e in graph.edge_index(3)]
    assert graphs[3].ndata["x"].numpy().tobytes() == cache.batch([3]).node_x.tobytes()
    assert graphs[3].edata["x"].numpy().tobytes() == cache.batch([3]).edge_x.tobytes()
    assert labels["meta_event"].numpy().view(np.uint64).tolist() == numbers.tolist()
    assert json.loads(labels["header"].numpy().tobytes())["dtypes"]["meta_event"] == "<u8"


def test_a_foreign_or_changed_file_is_refused(tmp_path):
    cache_of(tmp_path / "a", tiny(tmp_path / "t.root"))
    export.to_dgl(tmp_path / "a", tmp_path / "a.bin")
    graphs, labels = dgl.load_graphs(str(tmp_path / "a.bin"))
    graphs[3].edata["x"][0, 0] += 1
    dgl.save_graphs(str(tmp_path / "changed.bin"), graphs, labels)
    with pytest.raises(CacheError, match="the edge features of its nodes"):
        export.from_dgl(tmp_path / "changed.bin", tmp_path / "b")
    with pytest.raises(CacheError):
        Cache.open(tmp_path / "b")
    dgl.save_graphs(str(tmp_path / "foreign.bin"), graphs)
    with pytest.raises(CacheError, match="only those carry the header"):
        export.from_dgl(tmp_path / "foreign.bin", tmp_path / "b")
    other = dgl.graph(([0, 0], [1, 2]), num_nodes=3)
    other.ndata["x"], other.edata["x"] = graphs[3].ndata["x"], graphs[3].edata["x"][:2]
    dgl.save_graphs(str(tmp_path / "sparse.bin"), [*graphs[:3], other], labels)
    with pytest.raises(CacheError, match="fully connected events in source-major order"):
        export.from_dgl(tmp_path / "sparse.bin", tmp_path / "b")
    with pytest.raises(CacheError, match="no such file"):
        export.from_dgl(tmp_path / "nowhere.bin", tmp_path / "b")
    with pytest.raises(StorageError):
        export.to_dgl(tmp_path / "a", "/proc/nowhere.bin")


def test_the_per_event_path_writes_the_same_numbers(tmp_path):
    file = tiny(tmp_path / "t.root", counts=(2, 0, 1, 9))
    cache = cache_of(tmp_path / "a", file)
    chosen = schema.load("sample")
    with root.Reader(str(file), chosen.tree) as reader:
        assert perevent.graphs(chosen, root.bind(chosen, [reader]), reader, tmp_path / "g.bin") == 4
    columns = export.columns_of(*dgl.load_graphs(str(tmp_path / "g.bin")))
    for name in ("node_x", "node_off", "edge_x", "glob", "label", "weight"):
        assert columns[name].tobytes() == getattr(cache, name).tobytes(), name
    assert columns["meta_event"].view(np.uint64).tolist() == cache.meta["event"].tolist()


def test_torch_entries_equal_numpy_ones_and_do_not_collide_with_them():
    cache = topology.TopologyCache()
    for device in (None, "cpu", torch.device("cpu")):
        src, dst = cache.get(5, True, device)
        assert [src.tolist(), dst.tolist()] == [e.tolist() for e in graph.edge_index(5, True)]
    assert (len(cache), cache.counters.hits) == (2, 1)
    assert cache.get(5, True, "meta")[0].device.type == "meta"  # another device, without needing one
    src, _ = cache.get(5, True, "cpu")
    assert (src.dtype, src.is_contiguous(), str(src.device)) == (torch.int64, True, "cpu")


def test_gradients_are_the_same_with_and_without_the_cache():
    found = []
    for cache in (topology.TopologyCache(), topology.TopologyCache(max_entries=0)):
        x = torch.arange(12, dtype=torch.float64).reshape(6, 2).requires_grad_()
        for _ in range(2):
            src, dst = cache.get(6, False, "cpu")
            (x[src] * x[dst] ** 2).sum().backward()
        found.append(x.grad.clone())
    assert torch.equal(*found)


def test_somebody_who_writes_into_a_shared_pair_is_found():
    cache = topology.TopologyCache()
    src, _ = cache.get(4, False, "cpu")
    cache.get(4)
    cache.verify()
    src[2] = 9
    with pytest.raises(RuntimeError, match="entry of 4 nodes was written into"):
        cache.verify()
