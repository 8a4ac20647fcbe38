"""`harness import`: results of another tool -> comparison summaries whose verdicts are model-based; pure.

The verdict is that of the one table (gate.py), from the unpaired interval. It is model-based because the other tool
chose the order: usually all of A, then all of B, so that a machine that drifts between them looks like a difference.
"""

import math
from typing import Any

from harness import __version__, analysis, gate, stats
from harness.errors import ConfigurationError, sentence
from harness.exchange import unpaired
from harness.exchange.results import Result, Side, middle, same_quantity

ALPHA = 0.05
BASIS = "model-based"
#: what every summary says of its data
WARNING = "the other tool chose the order of the runs, so drift of the machine between A and B counts as a difference"


def pairs(a: Side, b: Side | None, name_a: str | None, name_b: str | None) -> list[tuple[Result, Result]]:
    """Which results are compared: two of one file, the named ones, or all that two files have in common.

    Raises ConfigurationError when that is not clear, or when they measured different things.
    """
    if (name_a is None) != (name_b is None):
        given, missing = ("--a", "--b") if name_b is None else ("--b", "--a")
        raise ConfigurationError(sentence(given, f"{missing} too", "it alone", "name both results"))
    other = b or a
    if b is not None and a.tool != b.tool:
        raise ConfigurationError(sentence(b.source, f"a file of {a.tool} as {a.source}", f"one of {b.tool}"))
    if name_a is not None:
        found = [(_named(a, name_a, "--a"), _named(other, name_b, "--b"))]
    elif b is None:
        if len(a.results) != 2:
            raise ConfigurationError(
                sentence(a.source, "two results to compare", _listed(a), "choose with --a NAME --b NAME, or add a file")
            )
        found = [tuple(a.results.values())]
    else:
        found = [(result, b.results[name]) for name, result in a.results.items() if name in b.results]
        if not found and len(a.results) == len(b.results) == 1:
            found = [(next(iter(a.results.values())), next(iter(b.results.values())))]
        if not found:
            raise ConfigurationError(
                sentence(b.source, f"a result that {a.source} has too", _listed(b), "choose with --a NAME --b NAME")
            )
    for one, two in found:
        same_quantity(one, two, other.source)
    return found


def left_out(a: Side, b: Side | None, found: list[tuple[Result, Result]]) -> list[str]:
    """What the files hold and the comparison does not, in words: results without a value or without a partner."""
    told = []
    for side, place in ((a, 0), (b, 1)):
        if side is None:
            continue
        if side.dropped:
            told.append(f"{side.source}: no value of {', '.join(side.dropped)}")
        other = b if side is a else a
        alone = [name for name in side.results if other is not None and name not in other.results]
        alone = [name for name in alone if name not in {both[place].name for both in found}]
        if alone:
            told.append(f"only in {side.source}: {', '.join(alone)}")
    return told


def _named(side: Side, name: str, option: str) -> Result:
    from harness.worker import nearest

    if name not in side.results:
        hint = nearest(name, side.results)
        raise ConfigurationError(
            sentence(option, f"a result of {side.source}", f"'{name}'", f"it has {_listed(side)}; {hint}".rstrip("; "))
        )
    return side.results[name]


def _listed(side: Side, most: int = 8) -> str:
    names = [f"'{name}'" for name in side.results]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)}: {', '.join(names[:most])}{more}"


def summarise(found: list[tuple[Result, Result]], sources: tuple[str, str], margin: float) -> list[dict[str, Any]]:
    """A summary of each pair, regressions and improvements judged together by Holm's step-down."""
    judged = [_judge(a, b, margin) for a, b in found]
    adjusted = stats.holm([p for _, _, p in judged])
    summaries = []
    for (a, b), (interval, verdict, p), q in zip(found, judged, map(float, adjusted)):
        if len(found) > 1 and verdict.word in ("regression", "improvement") and q > ALPHA:
            verdict = gate.Verdict(
                "inconclusive",
                f"by itself it is {verdict.word} (p = {p:.2g} against the margin), but not among {len(found)} results "
                f"(p = {q:.2g} by Holm)",
            )
        summaries.append(_summary(a, b, sources, margin, interval, verdict))
    return summaries


def _judge(a: Result, b: Result, margin: float) -> tuple[gate.Interval, gate.Verdict, float]:
    """Interval, verdict, and how sure a claim of change is: two-sided p against the margin; 1 where none is made."""
    interval = unpaired.interval(a.values, b.values, margin)
    failed, p = _failures(a, b)
    if failed is not None:
        return interval, failed, p
    evidence = gate.Evidence(interval=interval, margin=margin, alpha=ALPHA, unit="values of each arm")
    verdict = gate.by_interval(interval, evidence)
    if interval.low is None:
        verdict = gate.Verdict(
            "inconclusive",
            f"{unpaired.LEAST} values of each arm are needed for a 95 % interval, and there are {len(a.values)} of A "
            f"and {len(b.values)} of B{_inside(a, b)}",
        )
    mu = math.log1p(margin)
    logs = [[math.log(value) for value in one.values] for one in (a, b)]
    if verdict.word == "regression":
        return interval, verdict, 2 * unpaired.tails(*logs, mu)[0]
    if verdict.word == "improvement":
        return interval, verdict, 2 * unpaired.tails(*logs, -mu)[1]
    return interval, verdict, 1.0


def _inside(a: Result, b: Result) -> str:
    """Why many measured values are few that count."""
    if a.inner > len(a.values) or b.inner > len(b.values):
        return f" (processes; the {a.inner} and {b.inner} values measured inside them are not independent)"
    return ""


def _failures(a: Result, b: Result) -> tuple[gate.Verdict | None, float]:
    """What failed runs decide, and their p: the chance that all of them fall to one arm if neither fails more."""
    if not a.failed and not b.failed:
        return None, 1.0
    runs = {one: len(one.values) + one.failed for one in (a, b)}
    told = f"{a.failed} of {runs[a]} runs of A and {b.failed} of {runs[b]} of B failed"
    if not (a.failed and b.failed):
        one = a if a.failed else b
        p = math.comb(runs[one], one.failed) / math.comb(sum(runs.values()), one.failed)
        if p < ALPHA and one is b:
            return gate.Verdict("regression", f"{told} (p = {p:.2g}): B does not run"), p
        if p < ALPHA:
            return gate.Verdict("unfit", f"{told} (p = {p:.2g}): the base does not run"), 1.0
    return gate.Verdict("inconclusive" if a.values and b.values else "unfit", f"{told}; mend them first"), 1.0


def _summary(
    a: Result, b: Result, sources: tuple[str, str], margin: float, interval: gate.Interval, verdict: gate.Verdict
) -> dict[str, Any]:
    """The fields of summary.json that such data can fill; all others are absent rather than guessed."""
    arms = {"a": (a, sources[0]), "b": (b, sources[1])}
    return {
        "schema": analysis.SUMMARY_SCHEMA,
        "harness_version": __version__,
        "scenario": b.name if a.name == b.name else f"{b.name} against {a.name}",
        "arms": {
            arm: {"name": one.name, "reference": source, "tool": one.tool, "source": source}
            for arm, (one, source) in arms.items()
        },
        "metric": a.quantity,
        "direction": "lower",
        "mode": "unpaired",
        "method": BASIS,
        "margin": margin,
        "alpha": ALPHA,
        "level": interval.level,
        "ratio": {
            key: None if (value := getattr(interval, key)) is None else math.exp(value)
            for key in ("estimate", "low", "high")
        },
        "median": middle(b.values) / middle(a.values) if a.values and b.values else None,
        "p": interval.p,
        "values": {
            arm: {
                "count": len(one.values),
                "measured": one.inner,
                "failed": one.failed,
                "median": middle(one.values) if one.values else None,
                "least": min(one.values, default=None),
            }
            for arm, (one, _) in arms.items()
        },
        "separated": max(b.values) < min(a.values) if a.values and b.values else None,
        "mde": None if interval.mde is None else math.expm1(interval.mde),
        "verdict": {"word": verdict.word, "basis": BASIS, "reason": f"{BASIS}: {verdict.reason}"},
        "exit_code": gate.exit_code(verdict.word),
        "notes": [WARNING],
    }


def told(summary: dict[str, Any]) -> list[str]:
    """What a person reads of one comparison."""
    from harness.report import words

    verdict, values = summary["verdict"], summary["values"]
    lines = [f"{words.printable(summary['scenario'])}", f"  {verdict['word']} ({BASIS}): {_said(summary)}"]
    lines.append(f"  {words.printable(verdict['reason'].removeprefix(f'{BASIS}: '))}")
    for arm in "ab":
        one = values[arm]
        inside = f" from {one['measured']} measured" if one["measured"] > one["count"] else ""
        median = f", median {words.value(summary['metric'], one['median'])}" if one["median"] is not None else ""
        lines.append(
            f"  {arm.upper()}  {one['count']} {'value' if one['count'] == 1 else 'values'}{inside}{median}  "
            f"{words.printable(summary['arms'][arm]['source'])}"
        )
    return lines


def _said(summary: dict[str, Any]) -> str:
    from harness.report import words

    if summary["verdict"]["word"] == "regression" and summary["values"]["b"]["failed"]:
        return "B fails where A does not."
    return words.sentence(summary)


def worst(summaries: list[dict[str, Any]]) -> int:
    """The exit code of all of them together."""
    return gate.worst(summary["exit_code"] for summary in summaries)
