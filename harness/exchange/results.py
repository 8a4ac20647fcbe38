"""Files of other benchmark tools -> named results, one value for each process that they ran.

A process is the unit, as everywhere here: values that one process measured one after the other share its memory layout
and hash seed, so they become their median. A file of pytest-benchmark, asv or google-benchmark is one process; a folder
of such files, one a run, gives as many values as it has files.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import ConfigurationError, sentence

#: modules of this package, by the tool whose files they read; each has NAME, recognises(data) and read(data, source)
READERS = ("hyperfine", "pyperf", "pytest_benchmark", "asv", "google_benchmark")
TOOLS = "hyperfine, pyperf, pytest-benchmark, asv or google-benchmark"

#: values outside are no measurement, and their ratios would not be numbers
LEAST, LARGEST = 1e-100, 1e100


@dataclass(frozen=True)
class Result:
    """One benchmark of one side.

    Attributes
    ----------
    values : tuple of float    one for each process, above 0; seconds, bytes or what `quantity` says
    quantity : str             "seconds", "bytes" or the tool's own word
    inner : int                values that were measured in all, those inside a process counted
    failed : int               processes that failed; their times do not count
    """

    name: str
    tool: str
    values: tuple[float, ...]
    quantity: str = "seconds"
    inner: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Side:
    """All results of a file or folder, in its order; `dropped` are those that have no value (failed or skipped)."""

    source: str
    tool: str
    results: dict[str, Result]
    dropped: tuple[str, ...] = ()


def read(path: Path) -> Side:
    """The results of a file, or of all *.json in a folder, joined by name.

    Raises ConfigurationError for what cannot be read, is of no known tool, or does not belong together.
    """
    if not path.is_dir():
        return _file(path)
    files = sorted(path.glob("*.json"))
    if not files:
        raise ConfigurationError(sentence(str(path), "files *.json of a benchmark tool", "none"))
    sides = [_file(file) for file in files]
    first = sides[0]
    joined: dict[str, Result] = {}
    for side in sides:
        if side.tool != first.tool:
            raise ConfigurationError(
                sentence(side.source, f"a file of {first.tool} as {first.source}", f"one of {side.tool}")
            )
        for name, result in side.results.items():
            before = joined.get(name)
            if before is None:
                joined[name] = result
                continue
            same_quantity(before, result, side.source)
            joined[name] = replace(
                result,
                values=before.values + result.values,
                inner=before.inner + result.inner,
                failed=before.failed + result.failed,
            )
    dropped = tuple(dict.fromkeys(name for side in sides for name in side.dropped))
    return Side(str(path), first.tool, joined, dropped)


def same_quantity(a: Result, b: Result, source: str) -> None:
    """Raises ConfigurationError when two results measure different things."""
    if a.quantity != b.quantity:
        raise ConfigurationError(sentence(f"{source}: '{b.name}'", a.quantity, b.quantity))


def _file(path: Path) -> Side:
    import importlib

    source = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(sentence(source, f"a file of {TOOLS}", error.strerror or str(error))) from None
    except RecursionError:
        raise ConfigurationError(sentence(source, f"JSON of {TOOLS}", "brackets nested without end")) from None
    except ValueError as error:
        raise ConfigurationError(sentence(source, f"JSON of {TOOLS}", str(error))) from None
    for name in READERS:
        module = importlib.import_module(f"harness.exchange.{name}")
        if isinstance(data, dict) and module.recognises(data):
            try:
                found = list(module.read(data))
            except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
                missing = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise ConfigurationError(sentence(source, f"the layout of {module.NAME}", missing)) from None
            return _side(source, module.NAME, found)
    raise ConfigurationError(sentence(source, f"JSON of {TOOLS}", _keys(data)))


def _keys(data: Any) -> str:
    if not isinstance(data, dict):
        return f"a {type(data).__name__}"
    return f"the keys {', '.join(repr(key) for key in list(data)[:4])}" if data else "an empty object"


def _side(source: str, tool: str, found: list[Result]) -> Side:
    results: dict[str, Result] = {}
    dropped = []
    for result in found:
        result = replace(result, name=_printable(result.name), quantity=_printable(result.quantity))
        name, again = result.name, 2
        for value in result.values:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST < value < LARGEST:
                raise ConfigurationError(
                    sentence(f"{source}: '{name}'", f"numbers above 0 and below {LARGEST:g}", repr(value))
                )
        if not result.values and not result.failed:
            dropped.append(result.name)
            continue
        while name in results:
            name, again = f"{result.name} ({again})", again + 1
        results[name] = replace(result, name=name)
    if not results:
        raise ConfigurationError(sentence(source, "results with values", "none"))
    return Side(source, tool, results, tuple(dropped))


def _printable(text: Any) -> str:
    """A name from a file, without what could rewrite a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in str(text))


def middle(values: Iterable[float]) -> float:
    """One number for the values of a process: their median."""
    return float(statistics.median(values))
