"""Caches to and from the files of dgl.save_graphs: for interchange, not as the store.

A file holds one graph an event, node features in ndata["x"], edge features in edata["x"], and in its label dictionary
glob, label, weight, meta_NAME as tensors, and `header`, JSON as bytes: everything that a cache's manifest needs. DGL
keeps no unsigned integers but bytes, so integers are kept as int64, 64-bit unsigned ones by their bits. Needs torch
and dgl.
"""

import json
import os

import numpy as np

from impl.events import cache
from impl.events.errors import CacheError, PackageError


def need_dgl():
    """(dgl, torch), or a PackageError that says what to install."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import torch
    except ImportError:
        raise PackageError("DGL graphs", "torch and dgl", "", "install harness-ab[gnn]") from None
    try:
        import dgl
    except ImportError:
        raise PackageError("DGL graphs", "dgl", "", "install harness-ab[gnn]") from None
    return dgl, torch


def _storable(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint64:
        return array.view(np.int64)
    if array.dtype.kind in "uib" and array.dtype != np.uint8:
        return array.astype(np.int64)
    return array


def _restored(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.view(np.uint64) if np.dtype(dtype) == np.uint64 else array.astype(dtype)


def to_dgl(path, output) -> int:
    """Write the events of the cache at `path` as DGL graphs into the file `output`; returns how many.

    Raises
    ------
    CacheError      no cache there
    StorageError    the file cannot be written
    PackageError    no torch or dgl
    """
    dgl, torch = need_dgl()
    opened = cache.Cache.open(path)
    graphs = []
    for number in range(len(opened)):
        batch = opened.batch([number])
        src, dst = batch.edge_index()
        graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=len(batch.node_x))
        graph.ndata["x"], graph.edata["x"] = torch.from_numpy(batch.node_x), torch.from_numpy(batch.edge_x)
        graphs.append(graph)
    columns = {"glob": opened.glob, "label": opened.label, "weight": opened.weight}
    columns |= {f"meta_{name}": array for name, array in opened.meta.items()}
    keys = ("identity", "node_features", "globals", "classes", "self_loops", "report", "sources", "versions")
    header = {key: opened.manifest[key] for key in keys} | {"edge_features": opened.edge_x is not None}
    header["dtypes"] = {name: array.dtype.str for name, array in columns.items()}
    labels = {name: torch.from_numpy(_storable(np.array(array))) for name, array in columns.items()}
    labels["header"] = torch.from_numpy(np.frombuffer(cache.canonical(header), np.uint8).copy())
    try:
        with open(output, "ab"):  # DGL itself would end the process on a path that cannot be written
            pass
        dgl.save_graphs(str(output), graphs, labels)
    except OSError as error:
        raise cache.storage_error(output, error) from None
    return len(graphs)


def columns_of(graphs, labels) -> dict[str, np.ndarray]:
    """Cache columns, edge_x and src, dst included, of a list of DGL graphs and its label dictionary."""
    counts = np.array([graph.num_nodes() for graph in graphs], np.int64)
    columns = {"node_off": np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])}
    columns["node_x"] = np.concatenate([graph.ndata["x"].numpy() for graph in graphs])
    columns["edge_x"] = np.concatenate([graph.edata["x"].numpy() for graph in graphs])
    ends = [graph.edges(order="eid") for graph in graphs]
    for place, name in enumerate(("src", "dst")):
        columns[name] = np.concatenate([e[place].numpy() + o for e, o in zip(ends, columns["node_off"], strict=False)])
    return columns | {name: tensor.numpy() for name, tensor in labels.items() if name != "header"}


def from_dgl(path, output, overwrite: bool = False) -> cache.Cache:
    """Make a cache out of a file that `to_dgl` wrote; columns, fingerprint and content come back as they were.

    Raises
    ------
    CacheError      not such a file, or its edges are not those of fully connected events
    """
    dgl, _ = need_dgl()
    if not os.path.isfile(path):
        raise CacheError(path, "a file of dgl.save_graphs", "no such file", "check the path")
    try:
        graphs, labels = dgl.load_graphs(str(path))
        header = json.loads(labels["header"].numpy().tobytes())
    except Exception as error:  # DGLError, KeyError, JSON errors: whatever a foreign file gives
        raise CacheError(path, "a file written by `export`", f"{type(error).__name__}",
                         "only those carry the header that a cache needs") from None  # fmt: skip
    columns = columns_of(graphs, labels)
    src, dst, edge_x = columns.pop("src"), columns.pop("dst"), columns.pop("edge_x")
    expected = cache.kernel.edge_index(columns["node_off"], header["self_loops"])
    if not (np.array_equal(src, expected[0]) and np.array_equal(dst, expected[1])):
        raise CacheError(path, "fully connected events in source-major order", "other edges", "")
    eta, phi = header["node_features"].index("eta"), header["node_features"].index("phi")
    expected = cache.kernel.edge_features(columns["node_x"], columns["node_off"], eta, phi, header["self_loops"])
    if expected.tobytes() != edge_x.tobytes():
        raise CacheError(path, "the edge features of its nodes", "others", "")
    for name, dtype in header.pop("dtypes").items():
        columns[name] = _restored(columns[name], dtype)
    return cache.write(output, columns, overwrite=overwrite, **header)
