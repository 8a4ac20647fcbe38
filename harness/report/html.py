"""report.html: one self-contained page without network or script, for screen, phone, print, grey and screen readers."""

import base64
import re
from functools import cache
from pathlib import Path

from harness.report import numbers, plots, tables, words

TEMPLATES = Path(__file__).parent / "templates"
#: a table of units longer than this shows its beginning and its end
ROWS = 400


@cache
def _environment():
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    environment.filters["together"] = lambda text: text.replace(" %", "\u00a0%")  # a number and its sign on one line
    environment.globals |= {"n": numbers, "printable": words.printable}
    return environment


def style() -> str:
    """The style sheet of every page."""
    return (TEMPLATES / "page.css").read_text(encoding="utf-8")


def render(template: str, **values) -> str:
    """A page from one template; `style` and the marks of the figures are always there."""
    import markupsafe

    page = _environment().get_template(template)
    text = page.render(style=markupsafe.Markup(style()), marks=markupsafe.Markup(plots.definitions()), **values)
    return re.sub(r"\n{2,}", "\n", text).lstrip()


def html(material: tables.Material) -> str:
    """The whole page."""
    import markupsafe

    summary = material.summary
    rows = tables.units(material)
    series = tables.iterations(material)
    metric = summary["metric"]

    def value(number: float) -> str:
        return words.value(metric, number)

    alone = words.values_alone(summary)
    figures = {
        "interval": interval_figure(summary),
        "units": units_figure(material, rows) if rows and not alone else "",
        "iterations": "" if alone else plots.iterations(series, value, iterations_label(series, summary)),
        "accuracy": accuracy_figure(summary),
        "distribution": plots.distribution(series, value, distribution_label(series, value)),
    }
    quantiles = {arm: tables.quantiles(data["values"]) for arm, data in series.items()}
    record = tables.record_gz(material.entries)
    return render(
        "report.html",
        summary=summary,
        title=words.title(summary),
        scenario=words.printable(summary["scenario"]),
        verdict=summary["verdict"],
        reason=words.printable(summary["verdict"]["reason"]),
        tone=words.TONES.get(summary["verdict"]["word"], "open"),
        meaning=words.VERDICTS.get(summary["verdict"]["word"], ""),
        exit_meaning=words.exit_meaning(summary["exit_code"]),
        sentence=words.sentence(summary),
        expect=words.printable(material.analysis.question.get("expect") or ""),
        facts=tables.facts(summary),
        spoiled=words.spoiled(summary),
        notes=tables.notes(material),
        figures={name: markupsafe.Markup(figure) for name, figure in figures.items()},
        margin=words.margin(summary),
        unit_word=words.unit_word(summary),
        metric=words.metric(summary),
        units=ends(rows),
        limit=material.analysis.limits.get("foreign_cores"),
        clocks=tables.clocks(summary),
        beside=tables.beside(summary),
        quantiles={
            arm: {name: value(number) for name, number in found.items()} for arm, found in quantiles.items() if found
        },
        counts={arm: numbers.count(len(data["values"])) for arm, data in series.items()},
        arms=tables.arms(material),
        names={arm: words.arm_name(summary, arm, 60) for arm in "ab"},
        fingerprints=tables.fingerprints(material),
        outputs=tables.outputs(summary),
        agree=(summary.get("fingerprints") or {}).get("agree"),
        differences=tables.differences(summary),
        alone=alone,
        accuracy=tables.accuracy(summary),
        accuracy_kind=(summary.get("accuracy") or {}).get("kind"),
        caveat=words.caveat(summary["accuracy"]) if summary.get("accuracy") else "",
        seeds=tables.seeds(summary),
        seeds_head=tables.seeds_head(summary),
        voids=tables.voids(material),
        void_shares=tables.void_shares(summary),
        checks=tables.checks(summary),
        load=tables.load(summary),
        inputs=tables.inputs(summary),
        environment=tables.environment(summary),
        command=tables.command_line(summary["command"]),
        provenance=tables.provenance(material),
        record_name=f"{re.sub(r'[^A-Za-z0-9.-]', '-', str(summary['run']))}.jsonl.gz",
        record_size=numbers.size(len(record)),
        record_data=base64.b64encode(record).decode(),
        entries=numbers.count(len(material.entries)),
    )


def ends(rows: list[dict]) -> list[dict]:
    """All rows, or the first and the last with a row between that says how many are left out."""
    if len(rows) <= ROWS:
        return rows
    return [*rows[: ROWS // 2], {"left_out": len(rows) - ROWS}, *rows[-ROWS // 2 :]]


def interval_figure(summary: dict) -> str:
    """The interval against the margin, with the other clock and the prediction beneath."""
    ratio = summary.get("ratio") or {}
    if not ratio.get("estimate") or not words.counts(summary):
        return ""
    name = words.metric(summary)
    short = numbers.shorten(words.METRICS.get(summary["metric"], name), 24)  # a phone has room for no more
    estimate, low, high = words.ratio_parts(summary)
    rows = [{"name": f"{short}: {_read(estimate, f'{low} to {high}')}", "kind": "main", **ratio}]
    for clock in tables.clocks(summary):
        if not clock["decides"] and clock["estimate"]:
            told = f"{clock['name']}: {_read(clock['ratio'], clock['interval'])}"
            rows.append({"kind": "side", "name": told, **{key: clock[key] for key in ("estimate", "low", "high")}})
    predict = summary.get("predict") or {}
    if predict.get("low") and predict.get("high"):
        outcome = {True: "met", False: "missed", None: "open"}[predict.get("met")]
        band = {"name": f"predicted before measuring: {outcome}", "kind": "band", "estimate": None}
        rows.append({**band, "low": predict["low"], "high": predict["high"]})
    label = f"B/A of {name}: {estimate}"
    if low != numbers.NOTHING:
        label += f", {words.level(summary)} interval {low} to {high}"
    label += f"; the margin is {words.margin(summary)} around 1."
    return plots.interval(rows, summary["margin"], label, words.ratio_senses(summary))


def accuracy_figure(summary: dict) -> str:
    """A map's pulls, or a model's differences over seeds; nothing without values."""
    known = summary.get("accuracy")
    if not known:
        return ""
    rows = dict(words.accuracy(known))
    if known["kind"] == "model":
        name = words.METRIC_NAMES[known["metric"]]
        label = f"{name} of B minus A for every seed, against plus or minus {known['tolerance']:g}. "
        return (
            plots.seeds(known, label + rows.get(name, "no difference could be told") + ".")
            if known["difference"]
            else ""
        )
    if not known["pull"]:
        return ""
    label = f"Distribution of the pulls by weight. {rows['pull']}; visible at {rows['visible at']}."
    return plots.pulls(known, label)


def _read(estimate: str, bounds: str) -> str:
    """An estimate with its interval, or alone where there is none."""
    return estimate if numbers.NOTHING in bounds else f"{estimate} ({bounds})"


def units_figure(material: tables.Material, rows: list[dict]) -> str:
    """Units in the order they ran, load beneath."""
    summary = material.summary
    many = words.unit_word(summary, True)
    counts = {state: sum(row["state"] == state for row in rows) for state in dict.fromkeys(r["state"] for r in rows)}
    told = ", ".join(f"{numbers.count(number)} {state}" for state, number in counts.items())
    label = f"B/A of {len(rows)} {many} in the order they ran ({told}), and the load beside them in cores."
    limit = material.analysis.limits.get("foreign_cores")
    return plots.units(rows, summary["margin"], (summary.get("ratio") or {}).get("estimate"), limit, label)


def iterations_label(series: dict, summary: dict) -> str:
    total = sum(len(unit) for data in series.values() for unit in data["units"])
    return f"{words.metric(summary)} of {numbers.count(total)} iterations of both arms in the order they ran."


def distribution_label(series: dict, value) -> str:
    parts = []
    for arm, data in series.items():
        found = tables.quantiles(data["values"])
        if found:
            parts.append(
                f"{arm.upper()}: median {value(found['median'])}, 90 % between {value(found['5 %'])} and "
                f"{value(found['95 %'])}"
            )
    return "Distribution of steady values. " + "; ".join(parts) + "."
