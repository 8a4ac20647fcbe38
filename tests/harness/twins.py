"""Broken twins: a function with one deliberate mistake in its source, put in the original's place."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import textwrap

import pytest


def _module(path: str):
    """The module that `path` begins with, in a package of its own or not, and the names that are left."""
    parts = path.split(".")
    module = importlib.import_module(f"harness.{parts.pop(0)}")
    while hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{parts[0]}"):
        module = importlib.import_module(f"{module.__name__}.{parts.pop(0)}")
    return module, parts


@contextlib.contextmanager
def broken(path: str, old: str, new: str):
    """Replace `old` by `new`, once, in the source of harness.<path>; restored at the end.

    Raises AssertionError when the source does not hold `old` exactly once: the twin would be the original.
    """
    module, rest = _module(path)
    *outer, name = rest
    owner = module
    for part in outer:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    function = original
    wrap = None
    if isinstance(original, functools.cached_property):
        function, wrap = original.func, functools.cached_property
    elif isinstance(original, property):
        function, wrap = original.fget, property
    function = inspect.unwrap(function)
    lines = textwrap.dedent(inspect.getsource(function)).splitlines(keepends=True)
    while lines[0].startswith("@"):  # decorators would wrap the twin a second time
        lines.pop(0)
    source = "".join(lines)
    assert source.count(old) == 1, f"{path} holds {old!r} {source.count(old)} times"
    namespace: dict = {}
    exec(compile(source.replace(old, new), f"<twin of {path}>", "exec"), module.__dict__, namespace)
    twin = namespace[name]
    if wrap is not None:
        twin = wrap(twin)
        if isinstance(twin, functools.cached_property):
            twin.__set_name__(owner, name)
    setattr(owner, name, twin)
    try:
        yield
    finally:
        setattr(owner, name, original)


def runs(test) -> list[dict]:
    """The sets of arguments with which pytest would call a test."""
    calls: list[dict] = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, values = mark.args[0], mark.args[1]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        rows = [(value,) if len(names) == 1 else value for value in values]
        calls = [call | dict(zip(names, row)) for call in calls for row in rows]
    return calls


def rejects(test) -> bool:
    """Whether a test fails, with any of its arguments."""
    for arguments in runs(test):
        try:
            test(**arguments)
        except (Exception, pytest.fail.Exception):
            return True
    return False
