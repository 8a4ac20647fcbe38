"""Checks the tables of a TOML file: every key has a type, an unknown one is named with its nearest spelling."""

import difflib
import math
from pathlib import Path

from impl.mapping.sources import SourceError

#: the default of a key that must be there
NEEDED = object()


class Wrong(Exception):
    """A value is not what was expected; its text says what was."""


def nearest(word: str, allowed) -> str:
    """'did you mean …?' when something allowed is spelt nearly alike, else an empty string."""
    close = difflib.get_close_matches(str(word), list(allowed), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""


def shown(value) -> str:
    """A value as messages show it, on one line and not long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def check(raw, keys: dict, where: str, path: str = "") -> dict:
    """The values of a table, with defaults.

    Parameters
    ----------
    raw : dict         the table as tomllib gives it
    keys : dict        key -> (check, default); a check takes a value and returns it converted, or raises Wrong
    where : str        the file
    path : str         the table's name, '' for the whole file

    Raises SourceError for an unknown key, a missing one that is needed and a wrong value.
    """
    if not isinstance(raw, dict):
        raise SourceError(f"{where}: {path}", "a table", shown(raw))
    dotted = f"{path}." if path else ""
    for key in raw:
        if key not in keys:
            raise SourceError(f"{where}: {dotted}{key}", f"one of {', '.join(keys)}", f"'{key}'", nearest(key, keys))
    out = {}
    for key, (convert, default) in keys.items():
        if key not in raw:
            if default is NEEDED:
                raise SourceError(f"{where}: {dotted}{key}", wanted(convert), "nothing", "add it")
            out[key] = default
            continue
        try:
            out[key] = convert(raw[key])
        except Wrong as error:
            raise SourceError(f"{where}: {dotted}{key}", str(error), shown(raw[key])) from None
    return out


def wanted(convert) -> str:
    """What a check expects, in words."""
    try:
        convert(NEEDED)
    except Wrong as error:
        return str(error)
    return "a value"


def text(value):
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise Wrong("a string")
    return value


def flag(value):
    """true or false."""
    if not isinstance(value, bool):
        raise Wrong("true or false")
    return value


def table(value):
    """A table, checked by whoever reads it."""
    if not isinstance(value, dict):
        raise Wrong("a table")
    return value


def choice(*allowed):
    """One of the given words."""

    def convert(value):
        if value not in allowed or isinstance(value, bool):
            hint = nearest(value, allowed) if isinstance(value, str) else ""
            raise Wrong(" or ".join(f"'{word}'" for word in allowed) + (f" ({hint})" if hint else ""))
        return value

    return convert


def whole(low=None, high=None):
    """A whole number from low to high."""
    if low is None:
        words = "a whole number"
    else:
        words = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def convert(value):
        if type(value) is not int or (low is not None and value < low) or (high is not None and value > high):
            raise Wrong(words)
        return value

    return convert


def number(above=None, low=None, high=None, words="a finite number"):
    """A finite number above `above`, from low to high."""
    if above is not None:
        words = f"a finite number above {above:g}"
    elif low is not None and high is not None:
        words = f"a number from {low:g} to {high:g}"

    def convert(value):
        if type(value) not in (int, float):
            raise Wrong(words)
        try:
            value = float(value)
        except OverflowError:
            raise Wrong(words) from None
        if (
            not math.isfinite(value)
            or (above is not None and value <= above)
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            raise Wrong(words)
        return value

    return convert


def several(convert, count=None, least=0, words=""):
    """A list whose items pass a check, as a tuple."""

    def items(value):
        try:
            inner = wanted(convert)
            if not isinstance(value, list) or (count is not None and len(value) != count) or len(value) < least:
                raise Wrong("")
            return tuple(convert(item) for item in value)
        except Wrong:
            size = f"{count} times " if count is not None else ""
            raise Wrong(words or f"a list of {size}{inner}") from None

    return items


def path(folder):
    """A path; one that is relative lies beside the job's file."""

    def convert(value):
        if not isinstance(value, str) or not value or "\0" in value:
            raise Wrong("a path")
        return Path(folder) / value

    return convert


#: bytes of the words that a size may end with
SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZES |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size(value):
    """Bytes: a whole number, or a string such as '2 GiB'."""
    words = "a number of bytes of at least 1, or a string such as '2 GiB'"
    if type(value) is int and 1 <= value < 2**62:
        return value
    if isinstance(value, str):
        digits = value.rstrip("BKMGTi ").strip()
        unit = value[len(digits) :].strip() if value.startswith(digits) else ""
        try:
            amount = float(digits) * SIZES[unit]
        except (ValueError, KeyError):
            raise Wrong(words) from None
        if 1 <= amount < 2**62:
            return int(amount)
    raise Wrong(words)


def either(*checks, words):
    """The first of several checks that passes."""

    def convert(value):
        for one in checks:
            try:
                return one(value)
            except Wrong:
                continue
        raise Wrong(words)

    return convert
