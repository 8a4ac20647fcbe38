"""Recipes: one flat TOML file that says which network to train and how; `recipes/` has the ones that are known to work.

Keys are the fields of `tagger.Config` and `train.Options`, and those of RUNNING, which change no result but rounding.
"""

import difflib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from impl.events.config import parse_setting
from impl.events.errors import ConfigurationError
from impl.gnn.errors import InputError
from impl.lgatr.tagger import IMPLEMENTATIONS, Config
from impl.lgatr.train import Options

FOLDER = Path(__file__).parent / "recipes"
#: how it is run: default of each key
RUNNING = {"implementation": "paired", "compiled": False, "checkpoint_blocks": False, "threads": 1}
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class Recipe:
    """A network, its training, and how both are run (the keys of RUNNING but threads)."""

    config: Config
    options: Options
    kinds: dict
    threads: int


def names() -> list[str]:
    """Recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def defaults() -> dict:
    """Every key with its default."""
    found = {one.name: one.default for part in (Config, Options) for one in fields(part)}
    return found | RUNNING


def load(name: str | None = None, settings=()) -> Recipe:
    """A recipe by its name or path, then 'key=value' settings.

    Raises
    ------
    InputError      no such recipe, an unknown key, a wrong type, a value that cannot be
    """
    values = {}
    if name is not None:
        path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InputError(name, "a TOML file or one of " + ", ".join(names()), "none") from None
        except ValueError as error:
            raise InputError(path, "a TOML file", str(error).splitlines()[0]) from None
        values |= {key: _checked(path.name, key, value) for key, value in raw.items()}
    for text in settings:
        try:
            key, value = parse_setting(text)
        except ConfigurationError as error:
            raise InputError(error.where, error.expected, error.found, "write for instance -s epochs=10") from None
        values[key] = _checked(f"-s {text}", key, value)
    return of(values)


def of(values: dict) -> Recipe:
    """A recipe from keys with right types; those that are missing have their defaults."""
    values = RUNNING | values
    config, options = (part(**{one.name: values[one.name] for one in fields(part) if one.name in values})
                       for part in (Config, Options))  # fmt: skip
    if values["implementation"] not in IMPLEMENTATIONS:
        raise InputError("implementation", "one of " + ", ".join(IMPLEMENTATIONS), repr(values["implementation"]))
    return Recipe(config, options, {key: values[key] for key in RUNNING if key != "threads"}, values["threads"])


def _checked(where: str, key: str, value):
    known = defaults()
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        raise InputError(f"{where}: key", "one of " + ", ".join(known), f"'{key}'",
                         f"did you mean '{close[0]}'?" if close else "")  # fmt: skip
    kind = type(known[key])
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise InputError(f"{where}: {key}", _TYPES[kind], repr(value))
    return value
