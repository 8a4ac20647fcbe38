"""harness.compare(a, b): two functions or arms from a notebook or script, measured by the same engine.

Arms run in processes of their own. A function named as "package.module:name" is imported there; a function object goes
there by cloudpickle: one from a module by its name, one from a notebook (or a lambda) with what it refers to.
"""

import dataclasses
import hashlib
import html
import json
import os
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import analysis, arms, comparison, records, revision
from harness import report as reporting
from harness import scenario as scenarios
from harness.arms import Arm, Resolved
from harness.errors import ConfigurationError, sentence
from harness.report import words

#: what compare() may set beside its own arguments, and where it belongs in a scenario
SETTINGS = {
    "metric": "scenario",
    "direction": "scenario",
    "fingerprint": "scenario",
    "totals_rtol": "scenario",
    "question": "scenario",
    "expect": "scenario",
    "timeout": "scenario",
    "memory_limit": "scenario",
    "pin": "scenario",
    "nice": "scenario",
    "mode": "schedule",
    "blocks": "schedule",
    "pairs": "schedule",
    "warmup": "schedule",
    "seed": "schedule",
    "margin": "gate",
    "alpha": "gate",
}


@dataclasses.dataclass(frozen=True)
class Result:
    """What compare() found.

    Attributes
    ----------
    folder : Path          record, report.html, report.md and summary.json
    summary : dict         summary.json
    """

    folder: Path
    summary: dict[str, Any]

    @property
    def word(self) -> str:
        """The verdict: improvement, regression, equivalent, inconclusive, …"""
        return self.summary["verdict"]["word"]

    @property
    def reason(self) -> str:
        return self.summary["verdict"]["reason"]

    @property
    def ratio(self) -> float | None:
        """B/A of the metric; below 1: B is faster."""
        return self.summary["ratio"]["estimate"]

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Of the ratio, at `summary['level']`."""
        return self.summary["ratio"]["low"], self.summary["ratio"]["high"]

    @cached_property
    def entries(self) -> list:
        """The record."""
        return records.read(self.folder)

    @cached_property
    def frame(self):
        """A pandas frame with one line a pair: unit, pair, order, a, b (the metric), ratio, state of the unit."""
        import pandas

        found = analysis.Analysis(self.entries)
        lines = [
            {
                "unit": unit.unit,
                "pair": pair.index,
                "order": pair.order,
                "a": analysis.metric_value(pair.a, found.metric),
                "b": analysis.metric_value(pair.b, found.metric),
                "state": unit.state,
            }
            for unit in found.units
            for pair in unit.pairs
        ]
        frame = pandas.DataFrame(lines, columns=["unit", "pair", "order", "a", "b", "state"])
        frame.insert(5, "ratio", frame["b"] / frame["a"])
        return frame

    def __repr__(self) -> str:
        return f"{words.sentence(self.summary)} ({self.reason})"

    def _repr_html_(self) -> str:
        summary = self.summary
        low, high = self.interval
        facts = [("metric", words.metric(summary))]
        facts += [
            (words.quoted(summary, arm), words.value(summary["metric"], summary["values"][arm]["median"]))
            for arm in "ab"
            if summary["values"][arm]["median"] is not None
        ]
        if self.ratio is not None:
            shown = f"{self.ratio:.4g}"
            facts.append(("B/A", shown if low is None else f"{shown} [{low:.4g}, {high:.4g}]"))
        facts.append((words.unit_word(summary, True), f"{summary['units']['kept']} of {summary['units']['planned']}"))
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in facts
        )
        return (
            f"<div><p><strong>{html.escape(words.sentence(summary))}</strong><br>{html.escape(self.reason)}</p>"
            f"<table>{rows}</table><p>{html.escape(str(self.folder / 'report.html'))}</p></div>"
        )


def compare(
    a: Callable | str,
    b: Callable | str,
    *,
    setup: Callable | str | None = None,
    names: tuple[str, str] | None = None,
    reports: str | os.PathLike | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Measure whether `b` is faster than `a`, and whether it gives the same.

    Parameters
    ----------
    a, b : function, "package.module:name", or a reference of an arm as `harness ab` takes it
    setup : function        called once in each arm's process; both functions get what it returns as their argument
    names : (str, str)      of the two in the report; without: their own
    reports : path          folder for reports; without: reports/ of the project, or of the current folder
    quiet : bool            no progress on standard error
    settings                blocks, pairs, warmup, seed, mode, metric (default: seconds_per_unit, where a unit is a
                            call), margin, alpha, fingerprint ("exact", "keys" with totals_rtol, "none"), question, …

    Returns
    -------
    Result

    Raises
    ------
    harness.errors.ConfigurationError    an argument is wrong, or a function cannot be sent to another process
    """
    overrides = _overrides(settings)
    if isinstance(a, str) and isinstance(b, str) and not (_is_import_path(a) and _is_import_path(b)):
        if setup is not None or names is not None:
            raise ConfigurationError(sentence("setup, names", "two functions", f"the arms '{a}' and '{b}'"))
        resolved = arms.resolve(a, b, overrides=overrides)
    else:
        resolved = _resolve(a, b, setup, names, overrides)
    resolved = arms.built(resolved, (lambda _: None) if quiet else (lambda text: print(text, file=sys.stderr)))
    try:
        folder = comparison.measure(
            resolved,
            command=["ab", resolved.a.reference, resolved.b.reference],
            reports=None if reports is None else Path(reports).resolve(),
            quiet=quiet,
        )
    finally:
        revision.release()
    return Result(folder, reporting.write(folder, records.read(folder)))


def _overrides(settings: dict[str, Any]) -> dict[str, Any]:
    from harness.worker import nearest

    for name in settings:
        if name not in SETTINGS:
            raise ConfigurationError(
                sentence("compare()", f"one of {scenarios.quoted(SETTINGS)}", f"'{name}'", nearest(name, SETTINGS))
            )
    return {f"{SETTINGS[name]}.{name}": value for name, value in settings.items()}


def _is_import_path(text: str) -> bool:
    """Whether a text is package.module:name and no arm of a scenario of that name."""
    module, separator, name = text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not separator or not all(part.isidentifier() for part in parts):
        return False
    root = scenarios.project_root(Path.cwd())
    return root is None or module not in scenarios.names(root)


def _resolve(a, b, setup, names, overrides: dict[str, Any]) -> Resolved:
    base = Path.cwd()
    root = scenarios.project_root(base) or base
    labels = [_label(function) for function in (a, b)]
    names = names or (tuple(labels) if labels[0] != labels[1] else ("A", "B"))
    digest = hashlib.sha256("\0".join(labels).encode()).hexdigest()[:8]
    data: dict[str, Any] = {
        "scenario": {
            "name": f"function-{digest}",
            "question": f"Is {labels[1]} faster than {labels[0]}?",
            "metric": "seconds_per_unit",
            "workload": ["python", "-m", "harness.callables"],
        },
        "work": {"unit": "call", "minimum": 1},
    }
    scenarios.override(data, overrides)
    scenario = scenarios.parse(data, "compare()")
    ready = []
    for name, label, function in zip(names, labels, (a, b)):
        parameters = _parameters(function, setup, label, root)
        command = [sys.executable, "-m", "harness.callables", "--arm", name]
        for key, value in parameters.items():
            command += ["--set", f"{key}={json.dumps(value, ensure_ascii=False)}"]
        environment = _import_path()
        ready.append(Arm(name, label, "arm", command, str(base), parameters, environment))
    return Resolved(scenario, ready[0], ready[1], root, base)


def _label(function: Callable | str) -> str:
    if isinstance(function, str):
        return function
    if not callable(function):
        raise ConfigurationError(
            sentence("compare()", "functions, 'package.module:name' or references of arms", repr(function))
        )
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or '__main__'}:{name}"


def _parameters(function: Callable | str, setup: Callable | str | None, label: str, root: Path) -> dict[str, str]:
    """How the arm's process comes by the function: by import, or from a file below .harness."""
    parameters = {"function": label}
    if isinstance(function, str) and (setup is None or isinstance(setup, str)):
        return parameters | ({} if setup is None else {"setup": setup})
    import cloudpickle

    from harness.callables import imported

    both = [imported(one) if isinstance(one, str) else one for one in (function, setup)]
    try:
        data = cloudpickle.dumps(tuple(both))
    except Exception as error:  # whatever an object's __reduce__ raises
        raise ConfigurationError(
            sentence(label, "a function that can be sent to another process", str(error), "open files inside of it")
        ) from None
    folder = revision.home(root) / "functions"
    folder.mkdir(exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.pickle"
    path.write_bytes(data)
    return parameters | {"pickle": str(path)}


def _import_path() -> dict[str, str]:
    """Where this process looks for modules beyond what every Python does; '' is the working directory."""
    usual = (sys.prefix, sys.base_prefix)
    own = [entry for entry in sys.path if entry and not entry.startswith(usual)]
    return {"PYTHONPATH": os.pathsep.join(own)} if own else {}
