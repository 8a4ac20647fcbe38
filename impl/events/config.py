"""Everything that `prepare` can be told: one dataclass, filled from a TOML file and key=value overrides."""

import dataclasses
import tomllib
from pathlib import Path

from impl.events.errors import ConfigurationError
from impl.events.schema import did_you_mean


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of one preparation.

    Attributes
    ----------
    files : tuple           paths, globs (sorted bytewise) or FILE:TREE, in source order
    schema : str            name of a schema, or path of a TOML file
    output : str            folder of the cache
    tree : str              '' takes the schema's
    label : int or tuple    overrides the schema's label: one class, or one a file
    num_workers : int or 'auto'     0: in this process; auto: from a measured probe
    edge_features : bool    store edge_x; false: rebuilt on reading, 0.06 of the disk at 32 objects an event
    not_finite, replace_value, max_nodes, too_many, sort_by, self_loops : as in nodes.Policies
    damaged : str           error, skip_file
    allow_empty : bool      a cache of no events is not an error
    identity : str          of the sources: sha256, or stat (path, size and time of change: for huge files)
    step_events : int       events read at once: bounds the memory, changes nothing else
    overwrite : bool        replace a cache that is there
    """

    files: tuple = ()
    schema: str = ""
    output: str = ""
    tree: str = ""
    label: int | tuple | None = None
    num_workers: int | str = 0
    edge_features: bool = True
    not_finite: str = "error"
    replace_value: float = 0.0
    max_nodes: int = 0
    too_many: str = "error"
    sort_by: str = ""
    self_loops: bool = False
    damaged: str = "error"
    allow_empty: bool = False
    identity: str = "sha256"
    step_events: int = 25_000
    overwrite: bool = False


_FIELDS = {field.name: field for field in dataclasses.fields(Options)}
_CHOICES = {"damaged": ("error", "skip_file"), "identity": ("sha256", "stat")}


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _checked(where: str, key: str, value):
    if key not in _FIELDS:
        raise ConfigurationError(f"{where}: {key}", f"one of {', '.join(_FIELDS)}", f"'{key}'",
                                 did_you_mean(key, _FIELDS))  # fmt: skip
    default = _FIELDS[key].default
    if key == "files":
        value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else None
        expected, ok = "a list of paths", value is not None and all(isinstance(item, str) for item in value)
    elif key == "label":
        value = tuple(value) if isinstance(value, list) else value
        expected = "a class (0, 1, …) or a list of them, one a file"
        ok = value is None or _is_count(value) or (isinstance(value, tuple) and all(map(_is_count, value)))
    elif key == "num_workers":
        expected, ok = '0, 1, 2, … or "auto"', value == "auto" or _is_count(value)
    elif key in _CHOICES:
        expected, ok = f"one of {', '.join(_CHOICES[key])}", value in _CHOICES[key]
    elif isinstance(default, bool):
        expected, ok = "true or false", isinstance(value, bool)
    elif isinstance(default, int):
        least = 1 if key == "step_events" else 0
        expected, ok = f"a whole number of at least {least}", _is_count(value) and value >= least
    elif isinstance(default, float):
        expected, ok = "a number", isinstance(value, (int, float)) and not isinstance(value, bool)
        value = float(value) if ok else value
    else:
        expected, ok = "a text", isinstance(value, str)
    if not ok:
        raise ConfigurationError(f"{where}: {key}", expected, repr(value), "")
    return value


def parse_setting(text: str) -> tuple[str, object]:
    """'num_workers=4' -> ('num_workers', 4); a value that is no TOML is a text."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigurationError(f"-s {text}", "key=value", f"'{text}'", "write for instance -s num_workers=4")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def load(path: str | None = None, settings=(), **given) -> Options:
    """Options from a TOML file, then from 'key=value' settings, then from keywords that are not None.

    Raises
    ------
    ConfigurationError      unknown key, wrong type; names file or setting, and the nearest spelling
    """
    values = {}
    if path is not None:
        try:
            raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(path, "a configuration file", error.strerror or str(error), "") from None
        except ValueError as error:
            raise ConfigurationError(path, "a TOML file", str(error).splitlines()[0], "") from None
        values |= {key: _checked(path, key, value) for key, value in raw.items()}
    for text in settings:
        key, value = parse_setting(text)
        values[key] = _checked(f"-s {text}", key, value)
    for key, value in given.items():
        if value is not None:
            values[key] = _checked("options", key, value)
    options = Options(**values)
    for key, hint in (("schema", "set --schema NAME"), ("output", "set --output DIR")):
        if not getattr(options, key):
            raise ConfigurationError(key, "a value", "none", hint)
    return options
