"""The few lines that a person reads at the end of a comparison: 80 columns, colour only if asked."""

import math
import textwrap

from harness.report import numbers, tables, words

WIDTH = 80
LABEL = 12
DIFFERENCES = 4
_CODES = {"good": "32", "bad": "31", "open": "33", "bold": "1", "faint": "2"}


def terminal(summary: dict, colour: bool = False) -> str:
    """Verdict, interval against margin to scale, both clocks, units, load, outputs and what spoiled it."""

    def paint(text: str, style: str) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if colour else text

    verdict = summary["verdict"]
    tone = words.TONES.get(verdict["word"], "open")
    lines = []
    title = numbers.shorten(words.title(summary), 156)
    lines += [paint(line, "bold") for line in textwrap.wrap(title, WIDTH)]
    lines.append("")
    head = f"{verdict['word']}: "
    sentence = textwrap.wrap(head + words.sentence(summary), WIDTH)
    sentence[0] = paint(head.rstrip(), tone) + sentence[0][len(head.rstrip()) :]
    lines += sentence
    lines += textwrap.wrap(f"({words.printable(verdict['reason'])})", WIDTH)
    scale = _scale(summary)
    if scale:
        lines += ["", *scale]
    lines.append("")
    for label, text in tables.facts(summary):
        lines += textwrap.wrap(text, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL)
    differences = tables.differences(summary)
    for difference in differences[:DIFFERENCES]:
        lines += textwrap.wrap(difference, WIDTH, initial_indent="  ", subsequent_indent="    ")
    if len(differences) > DIFFERENCES:
        lines.append(f"  and {len(differences) - DIFFERENCES} more in the report")
    spoiled = words.spoiled(summary)
    if spoiled:
        lines.append("")
        for what, advice in spoiled:
            lines += textwrap.wrap(f"{what} {advice}", WIDTH, initial_indent="! ", subsequent_indent="  ")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _scale(summary: dict) -> list[str]:
    """The interval of B/A against the margin on a line of text, to scale (logarithmic)."""
    ratio = summary.get("ratio") or {}
    estimate, low, high = ratio.get("estimate"), ratio.get("low"), ratio.get("high")
    margin = summary.get("margin") or 0
    if not estimate or estimate <= 0 or not words.counts(summary):
        return []
    ends = [x for x in (estimate, low, high, 1 / (1 + margin), 1 + margin, 1.0) if x and 0 < x < math.inf]
    first, last = math.log(min(ends)), math.log(max(ends))
    pad = 0.05 * (last - first) or 0.01
    first, last = first - pad, last + pad
    columns = WIDTH - 2

    def column(x: float) -> int:
        return min(columns - 1, max(0, round((math.log(x) - first) / (last - first) * (columns - 1))))

    line, band = [" "] * columns, [" "] * columns  # apart, for an interval may cover the whole margin
    for place in range(column(1 / (1 + margin)), column(1 + margin) + 1):
        band[place] = "░"
    band[column(1)] = "│"
    if low and high:
        for place in range(column(low), column(high) + 1):
            line[place] = "─"
        line[column(low)], line[column(high)] = "├", "┤"
    line[column(estimate)] = "●"
    marks = [" "] * columns
    labels = [(1.0, "1"), (estimate, words.ratio_parts(summary)[0])]
    if low and high:
        labels += [(low, words.ratio_parts(summary)[1]), (high, words.ratio_parts(summary)[2])]
    labels += [(1 + margin, f"+{100 * margin:.3g} %"), (1 / (1 + margin), f"{numbers.MINUS}{100 * margin:.3g} %")]
    taken = [False] * columns
    for value, text in labels:
        start = min(columns - len(text), max(0, column(value) - len(text) // 2))
        around = range(max(0, start - 1), min(columns, start + len(text) + 1))
        if any(taken[place] for place in around):
            continue
        for offset, character in enumerate(text):
            marks[start + offset] = character
            taken[start + offset] = True
    low_sense, high_sense = words.ratio_senses(summary)
    senses = f"◂ {low_sense}".ljust(columns - len(high_sense) - 2) + f"{high_sense} ▸"
    return [" " + senses, *(" " + "".join(row).rstrip() for row in (line, band, marks))]
