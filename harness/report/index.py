"""Many comparisons on one page, and the course of a scenario: ratios and absolute levels, never a gate.

Levels are compared only on one machine, with the same inputs, parameters and metric; a change point says where the
level moved, as a hint where to look.
"""

import base64
import collections
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from harness import analysis, records, stats
from harness.errors import ConfigurationError, sentence
from harness.report import claims, numbers, plots, tables, words
from harness.report.html import TEMPLATES, render

#: a series of levels shorter than this has no change points
SERIES = 8


def collect(folder: Path) -> list[dict]:
    """One row for every record below `folder`, oldest first; a record that cannot be read is a row with its `fault`.

    Raises ConfigurationError when there is no record at all.
    """
    folder = Path(folder)
    rows = [_row(folder, path) for path in sorted(folder.rglob(records.NAME))]
    _name_variants([row for row in rows if not row["fault"]])
    if not rows:
        raise ConfigurationError(
            sentence(str(folder), f"a folder with comparisons ({records.NAME})", "none", "run harness ab first")
        )
    return sorted(rows, key=lambda row: (row["created"], row["run"]))


def _row(folder: Path, path: Path) -> dict:
    place = path.parent.relative_to(folder).as_posix()
    base = {
        "place": place,
        "href": "/".join(quote(part) for part in place.split("/")),
        "run": path.parent.name,
        "created": "",
        "fault": None,
    }
    try:
        material = tables.Material(records.read(path))
    except ConfigurationError as error:
        return base | {"fault": words.printable(error), "scenario": path.parent.parent.name}
    summary, opening = material.summary, material.analysis.comparison
    machine = opening.machine or {}
    estimate, low, high = words.ratio_parts(summary)
    return base | {
        "run": words.printable(opening.run),
        "created": words.printable(opening.created),
        "opening": opening,
        "scenario": words.printable(summary["scenario"]),
        "question": words.printable(summary.get("question") or ""),
        "names": {arm: words.arm_name(summary, arm) for arm in "ab"},
        "arms": [summary["arms"][arm].get("reference") for arm in "ab"],
        "word": summary["verdict"]["word"],
        "reason": words.printable(summary["verdict"]["reason"]),
        "sentence": words.sentence(summary),
        "counts": words.counts(summary),
        "ratio": summary["ratio"],
        "shown": estimate,
        "interval": f"{low} to {high}" if low != numbers.NOTHING else "no interval",
        "metric": summary["metric"],
        "quantity": words.metric(summary),
        "values": summary.get("values") or {},
        "units": f"{numbers.count(summary['units']['kept'])} of {numbers.count(summary['units']['planned'])}",
        "load": (summary.get("foreign") or {}).get("median_cores"),
        "predicted": words.prediction(summary),
        "machine": words.printable(" ".join(str(machine[key]) for key in ("cpu", "hostname_hash") if machine.get(key))),
        "revision": ((opening.revision or {}).get("commit") or "")[:10],
        "dirty": bool((opening.revision or {}).get("dirty")),
        "inputs": _digest(
            [summary.get("inputs"), summary["metric"], *(summary["arms"][arm].get("parameters") for arm in "ab")]
        ),
    }


def _name_variants(rows: list[dict]) -> None:
    """Give every row its `variant`: the parameters that tell it from others of its scenario and arms, in words.

    These are the ones laid over the scenario's own, and those that differ because the scenario itself has changed.
    """
    alike: dict[tuple, list[dict]] = {}
    for row in rows:
        alike.setdefault((row["scenario"], row["names"]["a"], row["names"]["b"]), []).append(row)
    for group in alike.values():
        given = [{arm: _settings(row["opening"].arms[arm].get("parameters") or {}) for arm in "ab"} for row in group]
        seen = collections.Counter((arm, text) for mine in given for arm in "ab" for text in mine[arm].values())
        for row, mine in zip(group, given):
            over = {arm: analysis.laid(row["opening"], arm) for arm in "ab"}
            told = [
                ", ".join(text for key, text in mine[arm].items() if key in over[arm] or seen[arm, text] < len(group))
                for arm in "ab"
            ]
            row["variant"] = words.of_both(*told)


def _settings(parameters: dict) -> dict[str, str]:
    return dict(zip(parameters, words.settings(parameters)))


def _titled(one: dict) -> dict:
    """A row or a series whose scenario is called by its variant too."""
    return one | {"scenario": f"{one['scenario']}, {one['variant']}"} if one.get("variant") else one


def _digest(known) -> str:
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:12]


def histories(rows: list[dict]) -> list[dict]:
    """Series of comparisons that may be set beside each other, in the order of scenario and time.

    One series is one scenario, pair of arms, machine, inputs, parameters and metric: {scenario, variant, names,
    machine, quantity, metric, points, levels: {arm: [change point positions]}}.
    """
    series: dict[tuple, dict] = {}
    for row in rows:
        if row["fault"] or not row["counts"] or not row["ratio"].get("estimate"):
            continue
        key = (row["scenario"], row["names"]["a"], row["names"]["b"], row["variant"], row["machine"], row["inputs"])
        shared = ("scenario", "variant", "names", "machine", "quantity", "metric")
        known = series.setdefault(key, {name: row[name] for name in shared} | {"points": []})
        known["points"].append(row)
    found = [series[key] for key in sorted(series)]
    for one in found:
        one["levels"] = {arm: changes([_median(row, arm) for row in one["points"]]) for arm in "ab"}
    return found


def _median(row: dict, arm: str) -> float | None:
    return (row["values"].get(arm) or {}).get("median")


def changes(levels: list[float | None]) -> list[int]:
    """Positions in a series of levels at which it moved; none in a short or incomplete one."""
    if len(levels) < SERIES or any(level is None or level <= 0 for level in levels):
        return []
    # Relative to the first and around 1, so that the floor of .05 % of `change_points` is one of the level.
    series = [1 + math.log(level / levels[0]) for level in levels]
    return [start for start in stats.change_points(series) if start > 0]


def index(rows: list[dict], published: Sequence[dict] = ()) -> str:
    """The page over many comparisons: a table to sort and filter, published claims, the course of every scenario."""
    import markupsafe

    script = (TEMPLATES / "index.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    words_seen = sorted({row["word"] for row in rows if not row["fault"]})
    return render(
        "index.html",
        rows=[_titled(row) for row in rows],
        claims=claims.beside(published, rows),
        verdicts=words_seen,
        scenarios=sorted({row["scenario"] for row in rows}),
        counts={word: sum(row.get("word") == word for row in rows) for word in words_seen},
        tones=words.TONES,
        histories=[_figures(_titled(one)) for one in histories(rows)],
        script=markupsafe.Markup(script),
        script_digest=digest,
    )


def _figures(one: dict) -> dict:
    """A series with its figures: the ratio, and each arm's level with its change points."""
    import markupsafe

    points = one["points"]
    ratio = plots.history(
        [
            {
                "value": row["ratio"]["estimate"],
                "low": row["ratio"].get("low"),
                "high": row["ratio"].get("high"),
                "title": f"{row['created']}: {row['shown']} ({row['interval']}), {row['word']}",
            }
            for row in points
        ],
        f"B/A of {one['quantity']} in {numbers.plural(len(points), 'comparison')}, oldest first.",
        lambda value: numbers.significant(value, 3),
    )
    levels = []
    for arm in "ab":
        values = [_median(row, arm) for row in points]
        if None in values:
            continue
        moved = one["levels"][arm]
        told = f"; it moved at {', '.join(points[start]['created'] for start in moved)}" if moved else ""
        figure = plots.history(
            [
                {
                    "value": value,
                    "title": f"{row['created']}: {words.value(one['metric'], value)}",
                    "change": position in moved,
                }
                for position, (row, value) in enumerate(zip(points, values))
            ],
            f"Median {one['quantity']} of {arm.upper()}, oldest first{told}.",
            lambda value: words.value(one["metric"], value),
            log=False,
        )
        levels.append(
            {"arm": arm.upper(), "name": one["names"][arm], "figure": markupsafe.Markup(figure), "told": told}
        )
    return one | {"ratio_figure": markupsafe.Markup(ratio), "level_figures": levels}


def history(rows: list[dict], scenario: str | None = None) -> str:
    """The course of scenarios for the terminal: one line a comparison, a star where a level moved.

    Raises ConfigurationError when nothing of that name was measured.
    """
    series = [one for one in histories(rows) if scenario in (None, one["scenario"])]
    if not series:
        known = sorted({row["scenario"] for row in rows if not row["fault"]})
        raise ConfigurationError(
            sentence("history", f"one of {', '.join(known) or 'no scenario'}", f"'{scenario}'", "")
            if scenario
            else "history: no comparison has a ratio yet"
        )
    lines = []
    for one in series:
        names = one["names"]
        lines += [f"{_titled(one)['scenario']}: {names['b']} (B) against {names['a']} (A), {one['quantity']}"]
        lines += [f"  {one['machine']}"] if one["machine"] else []
        for position, row in enumerate(one["points"]):
            a, b = (words.value(one["metric"], _median(row, arm)) for arm in "ab")
            arms = [arm.upper() for arm in "ab" if position in one["levels"][arm]]
            moved = f" * level of {' and '.join(arms)} moved" if arms else ""
            lines.append(
                f"  {row['created'][:16]:<16}  {row['shown']:>7}  {row['interval']:<18} {row['word']:<12} "
                f"A {a:<9} B {b:<9} {row['revision']}{'+' if row['dirty'] else ''}{moved}".rstrip()
            )
        lines.append("")
    return "\n".join(lines)
