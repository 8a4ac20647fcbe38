"""JUnit XML of one or many comparisons, as Jenkins, GitLab and others read it: one test case a comparison.

A comparison that fails is a failure, one that is unfit an error, one that is undecided skipped or, where the gate
says so, a failure. Sources of the form: the attributes that the JUnit plugin of Jenkins documents.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from harness.report import words


def outcome(summary: dict, undecided: str = "skipped") -> str:
    """passed, failure, error or what `undecided` ("skipped" or "failure") makes of exit code 3."""
    return {0: "passed", 1: "failure", 3: undecided, 4: "error"}[summary["exit_code"]]


def junit(summaries: Sequence[dict], undecided: str = "skipped", suite: str = "harness") -> str:
    """The whole file. Raises ValueError when `undecided` is neither "skipped" nor "failure"."""
    if undecided not in ("skipped", "failure"):
        raise ValueError(f"expected 'skipped' or 'failure', found {undecided!r}")
    outcomes = [outcome(summary, undecided) for summary in summaries]
    counts = {kind: outcomes.count(kind) for kind in ("failure", "error", "skipped")}
    totals = f'tests="{len(summaries)}" failures="{counts["failure"]}" errors="{counts["error"]}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites {totals}>",
        f'<testsuite name={_attribute(suite)} {totals} skipped="{counts["skipped"]}">',
    ]
    for summary, found in zip(summaries, outcomes):
        lines += _case(summary, found)
    lines += ["</testsuite>", "</testsuites>", ""]
    return "\n".join(lines)


def _case(summary: dict, found: str) -> list[str]:
    word, reason = summary["verdict"]["word"], summary["verdict"]["reason"]
    name = f"{words.arm_name(summary, 'b')} against {words.arm_name(summary, 'a')}"
    lines = [f"<testcase classname={_attribute('harness.' + str(summary['scenario']))} name={_attribute(name)}>"]
    text = escape(words.printable(f"{words.sentence(summary)} {reason}"))
    message = _attribute(f"{word}: {reason}")
    if found == "skipped":
        lines.append(f"<skipped message={message}/>")
    elif found != "passed":
        lines.append(f"<{found} type={_attribute(word)} message={message}>{text}</{found}>")
    lines.append(f"<system-out>{escape(_facts(summary))}</system-out>")
    lines.append("</testcase>")
    return lines


def _facts(summary: dict) -> str:
    from harness.report import tables

    rows = [("verdict", f"{summary['verdict']['word']}: {words.sentence(summary)}"), *tables.facts(summary)]
    rows += [("spoiled by", f"{what} {advice}") for what, advice in words.spoiled(summary)]
    return "\n".join(f"{label}: {words.printable(text)}" for label, text in rows)


def _attribute(text) -> str:
    return quoteattr(words.printable(text))
