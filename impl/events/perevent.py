"""Preparation one event at a time: what vectorised preparation is measured and checked against.

Each event is indexed out of the awkward arrays, its features and edges are built with small NumPy arrays, and it
becomes one DGL graph; all graphs go into one file by dgl.save_graphs. That is the common way and a slow one. It gives
the same numbers as nodes.py to the last bit, in file order, and has no policies: values are not judged. `graphs` needs
torch and dgl; `events` does not.
"""

import numpy as np

from impl.events import graph, nodes
from impl.events.root import Binding, Reader
from impl.events.schema import ENERGIES, Collection, Schema


def _number(arrays, bindings: dict[str, Binding], key: str, unit: float = 1.0):
    binding = bindings[key]
    if binding.branch is None:
        return np.float64(binding.constant) * unit
    value = arrays[binding.branch] if binding.index is None else arrays[binding.branch][binding.index]
    return np.asarray(value, np.float64) * unit


def _feature(schema: Schema, collection: Collection, arrays, bindings, name: str):
    if name == "type":
        return np.float64(collection.type)
    if name in collection.values:
        unit = schema.unit if name in ENERGIES else 1.0
        return _number(arrays, bindings, f"{collection.name}.{name}", unit)
    return nodes.derive(name, collection.coordinates, lambda key: _feature(schema, collection, arrays, bindings, key))


def _objects(collection: Collection, arrays, bindings) -> int:
    if collection.single:
        return 1
    branch = next(bindings[f"{collection.name}.{key}"].branch for key in collection.values
                  if bindings[f"{collection.name}.{key}"].branch is not None)  # fmt: skip
    return len(arrays[branch])


def events(schema: Schema, bindings: dict[str, Binding], reader: Reader, file_label: int | None = None,
           self_loops: bool = False, stop: int | None = None):  # fmt: skip
    """Dicts of the events before `stop`: node_x (n, F), src, dst, edge_x (E, 3), glob (G,), label, weight, meta_*."""
    branches = sorted({binding.branch for binding in bindings.values() if binding.branch is not None})
    stop = reader.entries if stop is None else stop
    tree = reader.awkward(branches, 0, stop)
    eta, phi = schema.features.index("eta"), schema.features.index("phi")
    for number in range(stop):
        arrays = {branch: tree[branch][number] for branch in branches}
        counts = {collection.name: _objects(collection, arrays, bindings) for collection in schema.collections}
        parts = []
        for collection in schema.collections:
            part = np.empty((counts[collection.name], len(schema.features)), np.float32)
            for column, name in enumerate(schema.features):
                value = _feature(schema, collection, arrays, bindings, name)
                part[:, column] = nodes.scaled(schema, name, value)
            parts.append(part)
        node_x = np.concatenate(parts)
        glob = np.empty(len(schema.globals), np.float32)
        for column, spec in enumerate(schema.globals):
            if spec.kind == "count":
                glob[column] = sum(counts[name] for name in spec.collections)
            else:
                numbers = [_number(arrays, bindings, f"global.{spec.name}.{i}") for i in range(len(spec.values))]
                glob[column] = nodes.global_value(spec, numbers, schema.unit)
        label = file_label
        if label is None:
            flags = [int(_number(arrays, bindings, f"label.{i}")) for i in range(len(schema.label.values))]
            label = flags if schema.label.kind == "flags" else flags[0]
        src, dst = graph.edge_index(len(node_x), self_loops)
        event = {"node_x": node_x, "src": src, "dst": dst, "glob": glob, "label": label,
                 "edge_x": graph.edge_features(node_x[:, eta], node_x[:, phi], src, dst),
                 "weight": np.float32(_number(arrays, bindings, "weight"))}  # fmt: skip
        for name in schema.metadata:
            binding = bindings[f"meta.{name}"]
            value = arrays[binding.branch] if binding.branch is not None else binding.constant
            event[f"meta_{name}"] = value if binding.index is None else value[binding.index]
        yield event


def graphs(schema: Schema, bindings: dict[str, Binding], reader: Reader, path, file_label: int | None = None,
           self_loops: bool = False) -> int:  # fmt: skip
    """Write one DGL graph an event with dgl.save_graphs; returns how many. Needs torch and dgl."""
    from impl.events.export import need_dgl

    dgl, torch = need_dgl()
    made, columns = [], {}
    for event in events(schema, bindings, reader, file_label, self_loops):
        one = dgl.graph((torch.from_numpy(event.pop("src")), torch.from_numpy(event.pop("dst"))),
                        num_nodes=len(event["node_x"]))  # fmt: skip
        one.ndata["x"] = torch.from_numpy(event.pop("node_x"))
        one.edata["x"] = torch.from_numpy(event.pop("edge_x"))
        made.append(one)
        for name, value in event.items():
            columns.setdefault(name, []).append(value)
    labels = {}
    for name, values in columns.items():
        array = np.asarray(values)
        if name == "label":
            array = array.astype(np.uint8 if array.ndim == 2 else np.int64)
        labels[name] = torch.from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array)
    dgl.save_graphs(str(path), made, labels)
    return len(made)
