"""A schema says in TOML which branches make the nodes, globals, label, weight and metadata of an event graph.

::

    [schema]
    name = "hzz"
    tree = "events"                      # TTree or RNTuple
    energy_unit = "GeV"                  # or "MeV", "keV", "TeV": what the file uses; the cache always holds GeV
    features = ["pt", "eta", "phi", "energy", "btag", "charge", "type"]

    [collections.jet]                    # collections in node order
    type = 0                             # the code in feature `type`
    px = "Jet_Px"                        # one of the coordinate sets  px py pz energy | pt eta phi mass |
    py = "Jet_Py"                        #                             pt eta phi energy
    pz = "Jet_Pz"
    energy = "Jet_E"
    btag = "Jet_btag"                    # any other feature by its name
    charge = 0                           # a number is a constant

    [globals]                            # in column order
    met = { pt = ["MET_px", "MET_py"] }              # length of a transverse vector, energy unit
    met_phi = { phi = ["MET_px", "MET_py"] }         # its azimuth
    n_jets = { count = ["jet"] }                     # objects of collections, before anything is dropped
    rho = "fixedGridRho"                             # a scalar branch; { branch = "…", energy = true } converts it

    [label]                              # one of
    value = 0                            #   a constant class
    # branch = "process"                 #   an integer branch
    # flags = ["isSignal", "isTight"]    #   several, each 0 or 1: a multilabel task
    # files = ["*ttbar*", "*wjets*"]     #   the class is the place of the pattern that the file's name matches
    classes = ["zz"]                     # their names, optional

    [weight]
    branch = "EventWeight"

    [metadata]                           # scalars in their own dtype
    event = { branch = ["event", "eventNumber"], missing = -1 }

    [scale.pt]                           # what is done to a feature before it is stored; not for eta and phi
    factor = 0.01
    log = true                           # log(1 + factor · x)

Wherever a branch is named, one may write "name", ["first choice", "second choice"], or a table with `branch`,
`missing` (the value when no file has it: without it that is an error) and `index` (an element of a list branch).
A kinematic feature that a collection does not name is derived. `single = true` in a collection says that its branches
are scalars: one object an event, such as the missing momentum as a node.
"""

import dataclasses
import difflib
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from impl.events.errors import ConfigurationError

FOLDER = Path(__file__).parent / "schemas"
UNITS = {"keV": 1e-6, "MeV": 1e-3, "GeV": 1.0, "TeV": 1e3}
KINEMATICS = ("pt", "eta", "phi", "mass", "energy", "px", "py", "pz")
COORDINATES = (("px", "py", "pz", "energy"), ("pt", "eta", "phi", "mass"), ("pt", "eta", "phi", "energy"))
#: quantities that carry the unit of energy
ENERGIES = ("pt", "mass", "energy", "px", "py", "pz")


def nearest(word: str, allowed, count: int = 1) -> list[str]:
    """The allowed words spelt most alike, best first."""
    return difflib.get_close_matches(word, [str(name) for name in allowed], n=count, cutoff=0.5)


def did_you_mean(word: str, allowed) -> str:
    close = nearest(word, allowed)
    return f"did you mean '{close[0]}'?" if close else ""


@dataclasses.dataclass(frozen=True)
class Value:
    """Where a number comes from: the first of `branches` that the files have, or `missing`, or a constant."""

    branches: tuple[str, ...] = ()
    constant: float | int | None = None
    missing: float | int | None = None
    index: int | None = None


@dataclasses.dataclass(frozen=True)
class Collection:
    """One kind of object: its type code, coordinate set and further features."""

    name: str
    type: float
    values: dict[str, Value]
    coordinates: tuple[str, ...]
    single: bool


@dataclasses.dataclass(frozen=True)
class Global:
    """One global column: `kind` is branch, pt, phi or count."""

    name: str
    kind: str
    values: tuple[Value, ...] = ()
    energy: bool = False
    collections: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Label:
    """How the label comes about: `kind` is value, branch, flags or files."""

    kind: str
    value: int = 0
    values: tuple[Value, ...] = ()
    patterns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Scale:
    factor: float = 1.0
    log: bool = False


@dataclasses.dataclass(frozen=True)
class Schema:
    """A checked schema; `raw` is what the file says and what the fingerprint of a cache covers."""

    name: str
    tree: str
    unit: float
    features: tuple[str, ...]
    collections: tuple[Collection, ...]
    globals: tuple[Global, ...]
    label: Label
    weight: Value
    metadata: dict[str, Value]
    scales: dict[str, Scale]
    raw: dict

    def list_values(self) -> dict[str, Value]:
        """Every value that comes as a list of objects: 'jet.pt' -> Value."""
        return {f"{c.name}.{k}": v for c in self.collections if not c.single for k, v in c.values.items()}

    def scalar_values(self) -> dict[str, Value]:
        """Every value that comes once an event: 'global.met.0', 'label.0', 'weight', 'meta.run' -> Value."""
        values = {f"{c.name}.{k}": v for c in self.collections if c.single for k, v in c.values.items()}
        values |= {f"global.{g.name}.{i}": v for g in self.globals for i, v in enumerate(g.values)}
        values |= {f"label.{i}": v for i, v in enumerate(self.label.values)}
        values |= {f"meta.{name}": v for name, v in self.metadata.items()}
        return values | {"weight": self.weight}

    def class_of(self, path: str) -> int:
        """The class of a file by the schema's patterns; raises ConfigurationError when not exactly one matches."""
        found = [i for i, pattern in enumerate(self.label.patterns) if fnmatch(Path(path).name, pattern)]
        if len(found) != 1:
            raise ConfigurationError(
                path, f"a name that matches one of {', '.join(self.label.patterns)}", f"{len(found)} matches",
                "set the label with label=0 (a class) or label=[0, 1, …] (one a file)",
            )  # fmt: skip
        return found[0]


def names() -> list[str]:
    """Names of the schemas that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Schema:
    """A schema by its name or by the path of a TOML file; raises ConfigurationError."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        allowed = ", ".join(names())
        raise ConfigurationError(f"schema '{name}'", f"a TOML file or one of {allowed}", "neither",
                                 did_you_mean(name, names()))  # fmt: skip
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(path, "a TOML file", str(error).splitlines()[0], "") from None
    return parse(raw, str(path) if name.endswith(".toml") else f"schema '{name}'")


# ---------------------------------------------------------------------------------------------------- parsing


def _table(where: str, raw: dict, allowed) -> dict:
    if not isinstance(raw, dict):
        raise ConfigurationError(where, "a table", repr(raw), "")
    for key in raw:
        if key not in allowed:
            raise ConfigurationError(f"{where}.{key}", f"one of {', '.join(allowed)}", f"'{key}'",
                                     did_you_mean(key, allowed))  # fmt: skip
    return raw


def _number(where: str, raw):
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise ConfigurationError(where, "a number", repr(raw), "")
    return raw


def _names(where: str, raw) -> tuple[str, ...]:
    words = (raw,) if isinstance(raw, str) else raw
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) and word for word in words):
        raise ConfigurationError(where, "a name or a list of names", repr(raw), "")
    return tuple(words)


def _value(where: str, raw) -> Value:
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return Value(constant=raw)
    if not isinstance(raw, dict):
        return Value(branches=_names(where, raw))
    _table(where, raw, ("branch", "missing", "index", "energy"))
    if "branch" not in raw:
        raise ConfigurationError(where, "the key branch", "none", 'write { branch = "NAME" }')
    index = raw.get("index")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        raise ConfigurationError(f"{where}.index", "a whole number of at least 0", repr(index), "")
    missing = None if "missing" not in raw else _number(f"{where}.missing", raw["missing"])
    return Value(branches=_names(f"{where}.branch", raw["branch"]), missing=missing, index=index)


def _collection(where: str, name: str, raw: dict, features: tuple[str, ...]) -> Collection:
    extras = [feature for feature in features if feature not in (*KINEMATICS, "type")]
    _table(where, raw, ("type", "single", *KINEMATICS, *extras))
    values = {key: _value(f"{where}.{key}", item) for key, item in raw.items() if key not in ("type", "single")}
    if name in ("global", "label", "meta", "weight") or "." in name:
        raise ConfigurationError(where, "another name for a collection", f"'{name}'", "")
    given = [key for key in KINEMATICS if key in values]
    sets = [coordinates for coordinates in COORDINATES if all(key in values for key in coordinates)]
    if not sets:
        choices = " or ".join(" ".join(coordinates) for coordinates in COORDINATES)
        raise ConfigurationError(where, f"the coordinates {choices}", " ".join(given) or "none", "")
    for key in extras:
        if key not in values:
            raise ConfigurationError(
                f"{where}.{key}", "a branch or a constant", "nothing", f"write {key} = 0 if these objects have none"
            )
    for key, value in values.items():
        if value.index is not None:
            raise ConfigurationError(f"{where}.{key}.index", "no index: objects are whole lists", str(value.index), "")
    if all(value.constant is not None for value in values.values()):
        raise ConfigurationError(where, "at least one branch", "constants only", "")
    return Collection(name, float(_number(f"{where}.type", raw.get("type", 0))), values, sets[0],
                      _flag(f"{where}.single", raw.get("single", False)))  # fmt: skip


def _flag(where: str, raw) -> bool:
    if not isinstance(raw, bool):
        raise ConfigurationError(where, "true or false", repr(raw), "")
    return raw


def _global(where: str, name: str, raw, collections: list[str]) -> Global:
    if isinstance(raw, dict) and "branch" not in raw:
        _table(where, raw, ("pt", "phi", "count", "branch"))
        if len(raw) != 1:
            raise ConfigurationError(where, "one of pt, phi, count, branch", ", ".join(raw) or "nothing", "")
        ((kind, item),) = raw.items()
        if kind == "count":
            wanted = _names(f"{where}.count", item)
            for word in wanted:
                if word not in collections:
                    raise ConfigurationError(f"{where}.count", f"collections of {', '.join(collections)}", f"'{word}'",
                                             did_you_mean(word, collections))  # fmt: skip
            return Global(name, "count", collections=wanted)
        if not isinstance(item, list) or len(item) != 2:
            raise ConfigurationError(f"{where}.{kind}", "two branches, x and y", repr(item), "")
        values = tuple(_value(f"{where}.{kind}", part) for part in item)
        return Global(name, kind, values, energy=kind == "pt")
    energy = _flag(f"{where}.energy", raw.get("energy", False)) if isinstance(raw, dict) else False
    return Global(name, "branch", (_value(where, raw),), energy=energy)


def _label(where: str, raw: dict) -> Label:
    kinds = ("value", "branch", "flags", "files")
    _table(where, raw, (*kinds, "classes", "missing", "index"))
    chosen = [kind for kind in kinds if kind in raw]
    if len(chosen) != 1:
        raise ConfigurationError(where, f"one of {', '.join(kinds)}", ", ".join(chosen) or "none", "")
    kind = chosen[0]
    classes = _names(f"{where}.classes", raw["classes"]) if raw.get("classes") else ()
    if kind == "value":
        value = raw["value"]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigurationError(f"{where}.value", "a whole number of at least 0", repr(value), "")
        return Label(kind, value=value, classes=classes)
    if kind == "branch":
        return Label(kind, values=(_value(where, {k: v for k, v in raw.items() if k != "classes"}),), classes=classes)
    if kind == "flags":
        flags = raw["flags"]
        if not isinstance(flags, list) or not flags:
            raise ConfigurationError(f"{where}.flags", "a list of branches", repr(flags), "")
        return Label(kind, values=tuple(_value(f"{where}.flags", item) for item in flags), classes=classes)
    patterns = _names(f"{where}.files", raw["files"])
    if classes and len(classes) != len(patterns):
        raise ConfigurationError(f"{where}.classes", f"{len(patterns)} names, one a pattern", str(len(classes)), "")
    return Label(kind, patterns=patterns, classes=classes)


def parse(raw: dict, where: str = "schema") -> Schema:
    """Check the content of a schema file; raises ConfigurationError that names the key."""
    _table(where, raw, ("schema", "collections", "globals", "label", "weight", "metadata", "scale"))
    head = _table(f"{where}: schema", raw.get("schema", {}), ("name", "tree", "energy_unit", "features"))
    for key in ("name", "tree"):
        if not isinstance(head.get(key), str) or not head[key]:
            raise ConfigurationError(f"{where}: schema.{key}", "a name", repr(head.get(key)), "")
    unit = head.get("energy_unit", "GeV")
    if unit not in UNITS:
        raise ConfigurationError(f"{where}: schema.energy_unit", f"one of {', '.join(UNITS)}", repr(unit), "")
    features = _names(f"{where}: schema.features", head.get("features", ()))
    if len(set(features)) != len(features) or not {"eta", "phi"} <= set(features):
        raise ConfigurationError(f"{where}: schema.features", "eta, phi and other names, each once",
                                 ", ".join(features), "edge features come from eta and phi")  # fmt: skip
    tables = _table(f"{where}: collections", raw.get("collections", {}), raw.get("collections", {}))
    if not tables:
        raise ConfigurationError(f"{where}: collections", "at least one", "none", "")
    collections = tuple(_collection(f"{where}: collections.{n}", n, t, features) for n, t in tables.items())
    known = [collection.name for collection in collections]
    table = raw.get("globals", {})
    globals_ = tuple(_global(f"{where}: globals.{name}", name, item, known) for name, item in table.items())
    weight = _value(f"{where}: weight", raw["weight"]) if "weight" in raw else Value(constant=1.0)
    if "weight" in raw and isinstance(raw["weight"], dict) and "energy" in raw["weight"]:
        raise ConfigurationError(f"{where}: weight.energy", "branch, missing, index", "energy", "")
    metadata = {name: _value(f"{where}: metadata.{name}", item) for name, item in raw.get("metadata", {}).items()}
    for name in metadata:
        if not name.replace("_", "").isalnum():
            raise ConfigurationError(f"{where}: metadata.{name}", "letters, digits and _", f"'{name}'", "")
    scales = {}
    for name, item in raw.get("scale", {}).items():
        _table(f"{where}: scale.{name}", item, ("factor", "log"))
        if name not in features or name in ("eta", "phi"):
            raise ConfigurationError(f"{where}: scale.{name}", "a feature other than eta and phi", f"'{name}'",
                                     did_you_mean(name, features))  # fmt: skip
        scales[name] = Scale(float(_number(f"{where}: scale.{name}.factor", item.get("factor", 1.0))),
                             _flag(f"{where}: scale.{name}.log", item.get("log", False)))  # fmt: skip
    return Schema(head["name"], head["tree"], UNITS[unit], features, collections, globals_,
                  _label(f"{where}: label", raw.get("label", {"value": 0})), weight, metadata, scales, raw)  # fmt: skip
