"""report.md: the page for a pull request or an issue, in plain Markdown tables."""

import re

from harness.report import numbers, tables, words

#: what Markdown, its tables, its links or the HTML inside it could take for a command
_SPECIAL = re.compile(r"[\\`*\[\]<>#~|&$]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.|^[-+=](?=\s|$)|(?<=^\d)[.)](?=\s|$)")
#: a table of units longer than this shows its beginning and end
ROWS = 40


def escape(text) -> str:
    """Text that Markdown shows as it stands, on one line."""
    return _SPECIAL.sub(r"\\\g<0>", words.printable(" ".join(str(text).split())))


def code(text) -> str:
    """Text as inline code, which cannot end early: the fence is longer than any run of backticks in it."""
    text = words.printable(" ".join(str(text).split())).replace("|", "¦")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(text: str) -> list[str]:
    """Several lines as a code block, which cannot end early."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + "text", *text.splitlines(), fence]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table of cells that are Markdown already."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(cell or " " for cell in row) + " |" for row in rows),
        "",
    ]


def markdown(material: tables.Material) -> str:
    """The whole page."""
    summary = material.summary
    verdict = summary["verdict"]
    lines = [f"# {escape(words.title(summary))}", ""]
    lines += [f"**{verdict['word']}** — {escape(words.sentence(summary))}", "", f"{escape(verdict['reason'])}", ""]
    lines += table(["", ""], [[escape(label), escape(text)] for label, text in tables.facts(summary)])
    spoiled = words.spoiled(summary)
    if spoiled:
        lines += ["## What spoiled it", ""]
        lines += [f"- {escape(what)} {escape(advice)}" for what, advice in spoiled]
        lines.append("")
    alone = words.values_alone(summary)
    if alone:
        lines += _accuracy(summary)
    differences = tables.differences(summary)
    if differences:
        lines += ["## Where the outputs differ", "", *(f"- {escape(one)}" for one in differences), ""]
    notes = tables.notes(material)
    if notes:
        lines += ["## Notes of the record", "", *(f"- {escape(note)}" for note in notes), ""]
    rows = [] if alone else tables.units(material)
    if rows:
        lines += [f"## {words.unit_word(summary, True).capitalize()} in the order they ran", ""]
        lines += table(
            [words.unit_word(summary), "B/A", "order", "state", "other processes (cores)", "steal (cores)"],
            [_unit(row) for row in _ends(rows)],
        )
    if not alone:
        lines += ["## How it was decided, and checks of it", ""]
        lines += table(["", ""], [[escape(what), escape(found)] for what, found in tables.checks(summary)])
        beside = tables.beside(summary)
        if beside:
            lines += ["## Measured beside it", ""]
            lines += table(["", "A", "B", "B/A", "interval"], [[escape(text) for text in row] for row in beside])
    lines += ["## Arms", ""]
    lines += _side_by_side(tables.arms(material))
    if not alone:
        prints = [[code(key), code(a), code(b), found] for key, a, b, found in tables.fingerprints(material)]
        lines += [f"## Outputs: {escape(tables.outputs(summary))}", ""]
        lines += table(["", "A", "B", "agree"], prints) if prints else []
        lines += _accuracy(summary)
    for void in tables.voids(material):
        lines += [f"## Void in {void['arm']}, {words.unit_word(summary)} {void['unit']}: {escape(void['kind'])}", ""]
        lines += [escape(void["message"] + (f" ({void['details']})" if void["details"] else "")), ""]
        for text in (void["stderr"], void["stacks"]):
            if text:
                lines += [*block(text), ""]
    environment = tables.environment(summary)
    lines += ["## Environment", ""]
    if environment["differs"]:
        lines += table(["differs", "A", "B"], [[code(key), code(a), code(b)] for key, a, b in environment["differs"]])
    lines += table(["both arms", ""], [[code(key), code(value)] for key, value in environment["common"]])
    lines += ["## Repeat it", "", *block(tables.command_line(summary["command"])), ""]
    lines += [escape(tables.provenance(material)), ""]
    return "\n".join(lines)


def _accuracy(summary: dict) -> list[str]:
    """What the values say; nothing where none were compared."""
    rows = tables.accuracy(summary)
    if not rows:
        return []
    known = summary["accuracy"]
    lines = ["## Accuracy of B against A", ""]
    if not words.values_alone(summary):  # there they stand beside the verdict
        lines += table(["", ""], [[escape(what), escape(found)] for what, found in rows])
    lines += [escape(words.caveat(known)), ""]
    seeds = tables.seeds(summary)
    if seeds:
        lines += table([escape(name) for name in tables.seeds_head(summary)], [list(map(escape, row)) for row in seeds])
    return lines


def _ends(rows: list[dict]) -> list[dict | int]:
    if len(rows) <= ROWS:
        return rows
    return [*rows[: ROWS // 2], len(rows) - ROWS, *rows[-ROWS // 2 :]]


def _unit(row: dict | int) -> list[str]:
    if isinstance(row, int):
        return ["…", f"{numbers.count(row)} more", "", "", "", ""]
    state = row["state"] + (f": {row['why']}" if row["why"] else "")
    cells = [str(row["unit"]), numbers.ratio(row["ratio"]), row["order"], state]
    return [escape(cell) for cell in [*cells, numbers.cores(row["foreign"]), numbers.cores(row["steal"])]]


def _side_by_side(rows: list[tuple[str, str, str, bool]]) -> list[str]:
    return table(
        ["", "A", "B", ""], [[code(key), code(a), code(b), "differs" if differs else ""] for key, a, b, differs in rows]
    )
