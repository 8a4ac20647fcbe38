"""Flat arrays of a range of events to the columns of the cache: nodes, globals, label, weight, metadata.

Everything is computed for the whole range at once, in float64, and stored as float32; each value depends on its own
event alone, so any cut into ranges gives the same bytes. What is done to bad values, full events and their order is a
policy (`Policies`), and everything that a policy touched is counted (`Report`).
"""

import dataclasses

import numpy as np

from impl.events import graph
from impl.events.errors import ConfigurationError, CountError, NotFiniteError, TooManyNodesError
from impl.events.root import Binding, Lists
from impl.events.schema import ENERGIES, Collection, Global, Schema

NOT_FINITE = ("error", "drop_event", "drop_object", "replace")
TOO_MANY = ("error", "truncate")


@dataclasses.dataclass(frozen=True)
class Policies:
    """What happens in the cases that a schema cannot foresee; part of the fingerprint.

    Attributes
    ----------
    not_finite : str        NaN, infinity, or |phi| > 2π: error, drop_event, drop_object (an event-level value drops the
                            event), replace
    replace_value : float   what `replace` writes
    max_nodes : int         0: no limit
    too_many : str          error, truncate (keep the first in node order)
    sort_by : str           '' keeps file order; a feature: largest first inside an event, ties in file order
    self_loops : bool       edges from a node to itself
    """

    not_finite: str = "error"
    replace_value: float = 0.0
    max_nodes: int = 0
    too_many: str = "error"
    sort_by: str = ""
    self_loops: bool = False


@dataclasses.dataclass
class Report:
    """Counts of what happened, summed over ranges; the same for every way of cutting."""

    events_read: int = 0
    events_dropped: int = 0
    objects_dropped: int = 0
    values_replaced: int = 0
    events_truncated: int = 0
    objects_truncated: int = 0
    not_finite: dict = dataclasses.field(default_factory=dict)

    def add(self, other: "Report") -> None:
        for field in dataclasses.fields(self):
            if field.name != "not_finite":
                setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        for name, count in other.not_finite.items():
            self.not_finite[name] = self.not_finite.get(name, 0) + count


class _Range:
    """One range of events on its way to columns; `where` names file and first event in messages."""

    def __init__(self, schema: Schema, bindings: dict[str, Binding], values: dict, events: int, path: str, start: int):
        self.schema, self.bindings, self.values, self.events = schema, bindings, values, events
        self.path, self.start = path, start

    def offsets(self, collection: Collection) -> np.ndarray:
        """Where each event's objects begin; raises CountError when the collection's branches disagree."""
        if collection.single:
            return np.arange(self.events + 1, dtype=np.int64)
        first = None
        for key in collection.values:
            value = self.values.get(f"{collection.name}.{key}")
            if value is None:
                continue
            if first is None:
                first, first_key = value, key
            elif value.offsets is not first.offsets and not np.array_equal(value.offsets, first.offsets):
                counts, others = np.diff(first.offsets), np.diff(value.offsets)
                bad = int(np.flatnonzero(counts != others)[0])
                one = self.bindings[f"{collection.name}.{first_key}"].branch
                other = self.bindings[f"{collection.name}.{key}"].branch
                where = f"{self.path}: branch '{other}': event {self.start + bad}"
                raise CountError(where, f"{counts[bad]} objects as in '{one}'", str(others[bad]), "check the file")
        return first.offsets

    def number(self, key: str, unit: float = 1.0):
        """A bound quantity as float64: an array, or one number for a constant."""
        if key not in self.values:
            return np.float64(self.bindings[key].constant) * unit
        value = self.values[key]
        array = (value.flat if isinstance(value, Lists) else value).astype(np.float64)
        if unit != 1.0:
            array *= unit
        return array

    def feature(self, collection: Collection, name: str):
        """One node feature of one collection, float64, before scaling."""
        if name == "type":
            return np.float64(collection.type)
        if name in collection.values:
            return self.number(f"{collection.name}.{name}", self.schema.unit if name in ENERGIES else 1.0)
        return derive(name, collection.coordinates, lambda key: self.feature(collection, key))


def derive(name: str, coordinates: tuple[str, ...], get):
    """A kinematic quantity from a coordinate set, float64.

    Parameters
    ----------
    name : str                  pt, eta, phi, mass, energy, px, py or pz
    coordinates : tuple         what is given: (px, py, pz, energy), (pt, eta, phi, mass) or (pt, eta, phi, energy)
    get : callable              quantity -> array or number, for anything in `coordinates`
    """
    cartesian = coordinates[0] == "px"
    if name == "pt":
        return np.hypot(get("px"), get("py"))
    if name == "eta":
        return np.arcsinh(get("pz") / np.hypot(get("px"), get("py")))
    if name == "phi":
        return np.arctan2(get("py"), get("px"))
    if name == "px":
        return get("pt") * np.cos(get("phi"))
    if name == "py":
        return get("pt") * np.sin(get("phi"))
    if name == "pz":
        return get("pt") * np.sinh(get("eta"))
    if name == "energy":
        momentum, mass = get("pt") * np.cosh(get("eta")), get("mass")
        return np.sqrt(momentum * momentum + mass * mass)
    if cartesian:
        squares = get("px") ** 2 + get("py") ** 2 + get("pz") ** 2
    else:
        squares = (get("pt") * np.cosh(get("eta"))) ** 2
    return np.sqrt(np.maximum(get("energy") ** 2 - squares, 0.0))  # rounding can make the square negative


def scaled(schema: Schema, name: str, value):
    """Apply the schema's scaling to a feature, float64."""
    scale = schema.scales.get(name)
    if scale is None:
        return value
    value = value * scale.factor
    return np.log1p(value) if scale.log else value


def global_value(spec: Global, numbers: list, unit: float):
    """A global that is not a count, float64, from its values; energies are in `unit` GeV."""
    if spec.kind == "pt":
        return np.hypot(*numbers) * unit
    if spec.kind == "phi":
        return np.arctan2(numbers[1], numbers[0])
    return numbers[0] * (unit if spec.energy else 1.0)


def columns(schema: Schema, bindings: dict[str, Binding], values: dict, events: int, policies: Policies,
            path: str, start: int, file_label: int | None) -> tuple[dict[str, np.ndarray], Report]:  # fmt: skip
    """The cache columns of a range of events.

    Parameters
    ----------
    values : dict               as `root.read_range` returns it
    events : int                events in the range
    path, start                 the file and its first event here, for messages
    file_label : int or None    the class, where it belongs to the file

    Returns
    -------
    dict        node_counts int64 (n,), node_x float32 (N, F), glob float32 (n, G), weight float32 (n,), label, meta_*
    Report

    Raises
    ------
    CountError, NotFiniteError, TooManyNodesError, BranchError, ConfigurationError
    """
    work = _Range(schema, bindings, values, events, path, start)
    report = Report(events_read=events)
    with np.errstate(all="ignore"):  # what comes out not finite is judged below
        node_x, node_counts, of_collection = _nodes(work)
        glob = _globals(work, of_collection)
        weight = np.empty(events, np.float32)
        weight[:] = work.number("weight")
    result = {"node_counts": node_counts, "node_x": node_x, "glob": glob, "weight": weight,
              "label": _label(work, file_label)}  # fmt: skip
    for name in schema.metadata:
        binding = bindings[f"meta.{name}"]
        result[f"meta_{name}"] = (np.full(events, binding.constant) if binding.branch is None
                                  else work.values[f"meta.{name}"])  # fmt: skip
    result["entry"] = np.arange(start, start + events)  # which event a row is, for messages
    _judge(work, result, of_collection, policies, report)
    if policies.sort_by:
        _sort(result, schema.features.index(policies.sort_by))
    if policies.max_nodes:
        _limit(work, result, policies, report)
    del result["entry"]
    return result, report


def _nodes(work: _Range):
    """Node features of all collections in node order; also {collection: its counts per event}."""
    schema = work.schema
    offsets = {collection.name: work.offsets(collection) for collection in schema.collections}
    of_collection = {name: np.diff(off) for name, off in offsets.items()}
    node_counts = sum(of_collection.values())
    node_x = np.empty((int(node_counts.sum()), len(schema.features)), np.float32)
    begin = np.zeros(work.events + 1, np.int64)
    np.cumsum(node_counts, out=begin[1:])
    begin = begin[:-1]
    for collection in schema.collections:
        off, counts = offsets[collection.name], of_collection[collection.name]
        if len(schema.collections) == 1:
            rows = slice(None)
        else:
            rows = np.repeat(begin - off[:-1], counts) + np.arange(off[-1])
            begin = begin + counts
        for column, name in enumerate(schema.features):
            node_x[rows, column] = scaled(schema, name, work.feature(collection, name))
    return node_x, node_counts, of_collection


def _globals(work: _Range, of_collection: dict) -> np.ndarray:
    glob = np.empty((work.events, len(work.schema.globals)), np.float32)
    for column, spec in enumerate(work.schema.globals):
        if spec.kind == "count":
            glob[:, column] = sum(of_collection[name] for name in spec.collections)
        else:
            numbers = [work.number(f"global.{spec.name}.{i}") for i in range(len(spec.values))]
            glob[:, column] = global_value(spec, numbers, work.schema.unit)
    return glob


def _label(work: _Range, file_label: int | None) -> np.ndarray:
    label = work.schema.label
    if file_label is not None:
        return np.full(work.events, file_label, np.int64)
    numbers = [np.broadcast_to(work.number(f"label.{i}"), (work.events,)) for i in range(len(label.values))]
    limit = 1 if label.kind == "flags" else max(len(label.classes) - 1, 0) or np.inf
    for i, array in enumerate(numbers):
        bad = np.flatnonzero(~((array >= 0) & (array <= limit) & (array == np.floor(array))))
        if len(bad):
            expected = "0 or 1" if label.kind == "flags" else f"a class from 0 to {limit}"
            where = f"{work.path}: event {work.start + bad[0]}: label {work.bindings[f'label.{i}'].branch}"
            raise ConfigurationError(where, expected, f"{array[bad[0]]:g}", "correct label in the schema")
    if label.kind == "flags":
        return np.stack(numbers, axis=1).astype(np.uint8)
    return numbers[0].astype(np.int64)


# ---------------------------------------------------------------------------------------------------- policies


def _judge(work: _Range, result: dict, of_collection: dict, policies: Policies, report: Report) -> None:
    """Find values that are not finite (or angles beyond 2π) and do what the policy says."""
    features = work.schema.features
    bad_nodes = ~np.isfinite(result["node_x"])
    bad_nodes[:, features.index("phi")] |= np.abs(result["node_x"][:, features.index("phi")]) > graph.TWO_PI
    bad_globals = ~np.isfinite(result["glob"])
    bad_weight = ~np.isfinite(result["weight"])
    if not (bad_nodes.any() or bad_globals.any() or bad_weight.any()):
        return
    event_of = np.repeat(np.arange(work.events), result["node_counts"])
    per_event = np.stack([of_collection[collection.name] for collection in work.schema.collections], axis=1)
    kinds = np.tile(np.arange(per_event.shape[1]), work.events).repeat(per_event.reshape(-1))  # collection of each node
    _count(work, bad_nodes, kinds, bad_globals, bad_weight, report)
    if policies.not_finite == "error":
        _complain(work, result, bad_nodes, event_of, kinds, bad_globals, bad_weight)
    if policies.not_finite == "replace":
        report.values_replaced += int(bad_nodes.sum() + bad_globals.sum() + bad_weight.sum())
        for name, bad in (("node_x", bad_nodes), ("glob", bad_globals), ("weight", bad_weight)):
            result[name][bad] = policies.replace_value
        return
    bad_node = bad_nodes.any(axis=1)
    bad_event = bad_globals.any(axis=1) | bad_weight
    if policies.not_finite == "drop_event":
        bad_event[event_of[bad_node]] = True
        bad_node[:] = False
    keep = ~bad_node & ~bad_event[event_of]
    report.objects_dropped += int((bad_node & ~bad_event[event_of]).sum())
    report.events_dropped += int(bad_event.sum())
    result["node_counts"] = np.bincount(event_of[keep], minlength=work.events)[~bad_event].astype(np.int64)
    result["node_x"] = result["node_x"][keep]
    for name in result.keys() - {"node_counts", "node_x"}:
        result[name] = result[name][~bad_event]


def _name(work: _Range, collection: Collection, feature: str) -> str:
    """'jet.pt (Jet_pt)', or 'jet.pt (derived)'."""
    binding = work.bindings.get(f"{collection.name}.{feature}")
    return f"{collection.name}.{feature} ({binding.branch if binding else 'derived'})"


def _count(work: _Range, bad_nodes, kinds, bad_globals, bad_weight, report: Report) -> None:
    for place, collection in enumerate(work.schema.collections):
        for column, feature in enumerate(work.schema.features):
            count = int(bad_nodes[kinds == place, column].sum())
            if count:
                report.not_finite[_name(work, collection, feature)] = count
    for column, spec in enumerate(work.schema.globals):
        if bad_globals[:, column].any():
            report.not_finite[f"global {spec.name}"] = int(bad_globals[:, column].sum())
    if bad_weight.any():
        report.not_finite["weight"] = int(bad_weight.sum())


def _complain(work: _Range, result: dict, bad_nodes, event_of, kinds, bad_globals, bad_weight) -> None:
    """Raise for the first bad value: the first event, its nodes before its globals before its weight."""
    found = []
    rows, column = np.nonzero(bad_nodes)
    if len(rows):
        name = _name(work, work.schema.collections[kinds[rows[0]]], work.schema.features[column[0]])
        found.append((int(event_of[rows[0]]), 0, name, float(result["node_x"][rows[0], column[0]])))
    rows, column = np.nonzero(bad_globals)
    if len(rows):
        name = f"global {work.schema.globals[column[0]].name}"
        found.append((int(rows[0]), 1, name, float(result["glob"][rows[0], column[0]])))
    rows = np.flatnonzero(bad_weight)
    if len(rows):
        found.append((int(rows[0]), 2, "weight", float(result["weight"][rows[0]])))
    event, _, name, value = min(found)
    raise NotFiniteError(f"{work.path}: event {work.start + event}: {name}",
                         "a finite number (angles within 2π)" if "phi" in name else "a finite number", f"{value:g}",
                         f"set not_finite to {', '.join(NOT_FINITE[1:])}")  # fmt: skip


def _sort(result: dict, column: int) -> None:
    event_of = np.repeat(np.arange(len(result["node_counts"])), result["node_counts"])
    order = np.lexsort((-result["node_x"][:, column], event_of))  # stable: ties stay in file order
    result["node_x"] = result["node_x"][order]


def _limit(work: _Range, result: dict, policies: Policies, report: Report) -> None:
    counts, limit = result["node_counts"], policies.max_nodes
    over = np.flatnonzero(counts > limit)
    if not len(over):
        return
    if policies.too_many == "error":
        where = f"{work.path}: event {result['entry'][over[0]]}"
        raise TooManyNodesError(where, f"at most {limit} objects (max_nodes)", str(int(counts[over[0]])),
                                'set too_many="truncate" or a larger max_nodes')  # fmt: skip
    begin = np.cumsum(counts) - counts
    place = np.arange(counts.sum()) - np.repeat(begin, counts)
    result["node_x"] = result["node_x"][place < limit]
    result["node_counts"] = np.minimum(counts, limit)
    report.events_truncated += len(over)
    report.objects_truncated += int((counts[over] - limit).sum())


def check_policies(policies: Policies, schema: Schema) -> None:
    """Raise ConfigurationError for a policy that cannot be."""
    for key, allowed in (("not_finite", NOT_FINITE), ("too_many", TOO_MANY)):
        value = getattr(policies, key)
        if value not in allowed:
            raise ConfigurationError(key, f"one of {', '.join(allowed)}", repr(value), "")
    if policies.max_nodes < 0:
        raise ConfigurationError("max_nodes", "a whole number of at least 0", str(policies.max_nodes), "")
    if policies.sort_by and policies.sort_by not in schema.features:
        raise ConfigurationError("sort_by", f"one of {', '.join(schema.features)}", repr(policies.sort_by), "")
    if not np.isfinite(policies.replace_value):
        raise ConfigurationError("replace_value", "a finite number", str(policies.replace_value), "")
