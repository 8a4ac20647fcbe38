"""What GitHub Actions shows of a gate: annotations on standard output, and a comment that can be found again.

Source of the form: "Workflow commands for GitHub Actions", GitHub documentation: `::level title=…::message`, where
per cent, carriage return and line feed are escaped in the message, colon and comma in a property as well.
"""

from collections.abc import Sequence

from harness.report import words
from harness.report.markdown import escape, table

#: begins the comment, so that the next run finds and replaces it
MARKER = "<!-- harness gate -->"
LEVELS = {0: "notice", 1: "error", 3: "warning", 4: "error"}


def annotations(summaries: Sequence[dict], deleted: Sequence[str] = ()) -> str:
    """One line a comparison, and one for each gated scenario that was deleted."""
    lines = []
    for summary in summaries:
        level = LEVELS[summary["exit_code"]]
        title = f"{summary['scenario']}: {summary['verdict']['word']}"
        message = f"{words.sentence(summary)} ({summary['verdict']['reason']})"
        lines.append(f"::{level} title={_property(words.printable(title))}::{_message(words.printable(message))}")
    for name in deleted:
        title = _property(words.printable(f"{name}: deleted"))
        lines.append(f"::warning title={title}::this gated scenario exists at the base only")
    return "".join(f"{line}\n" for line in lines)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def comment(summaries: Sequence[dict], exit_code: int) -> str:
    """The job summary or comment: every comparison in a table, the failing ones first and in words."""
    order = {1: 0, 4: 1, 3: 2, 0: 3}
    ranked = sorted(summaries, key=lambda summary: order[summary["exit_code"]])
    lines = [MARKER, f"## harness gate: {words.exit_meaning(exit_code)}", ""]
    for summary in ranked:
        if summary["exit_code"] in (1, 4):
            lines += [
                f"**{escape(summary['scenario'])}: {summary['verdict']['word']}** — {escape(words.sentence(summary))}",
                "",
                escape(summary["verdict"]["reason"]),
                "",
            ]
    rows = []
    for summary in ranked:
        estimate, low, high = words.ratio_parts(summary)
        counts = words.counts(summary)
        rows.append(
            [
                escape(summary["scenario"]),
                escape(f"{words.arm_name(summary, 'b')} against {words.arm_name(summary, 'a')}"),
                summary["verdict"]["word"],
                escape(estimate) if counts else "does not count",
                escape(f"{low} to {high}") if counts and summary["ratio"].get("low") is not None else "",
                escape(words.metric(summary)),
                f"{summary['units']['kept']} of {summary['units']['planned']}",
            ]
        )
    lines += table(["scenario", "arms", "verdict", "B/A", "interval", "of", "units kept"], rows)
    return "\n".join(lines)
