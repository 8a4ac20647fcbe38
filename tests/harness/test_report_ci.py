"""What a CI job shows of comparisons: JUnit XML, GitHub annotations, a comment in Markdown."""

import importlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from lxml import etree

from harness import records, report
from harness.report import github, words

junit = importlib.import_module("harness.report.junit")
DATA = Path(__file__).parents[1] / "data" / "records"
NAMES = sorted(path.stem for path in DATA.glob("*.jsonl"))
SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parents[1] / "data" / "junit" / "junit-10.xsd"))


@pytest.fixture(scope="module")
def summaries():
    return {name: report.Material(records.read(DATA / f"{name}.jsonl")).summary for name in NAMES}


@pytest.mark.parametrize("undecided", ["skipped", "failure"])
def test_junit_counts_what_it_holds_and_meets_the_schema_of_jenkins(undecided, summaries):
    chosen = list(summaries.values())
    text = junit.junit(chosen, undecided)
    SCHEMA.assertValid(etree.fromstring(text.encode()))
    root = ElementTree.fromstring(text)
    suite = root.find("testsuite")
    codes = [summary["exit_code"] for summary in chosen]
    fails = codes.count(1) + (codes.count(3) if undecided == "failure" else 0)
    for element in (root, suite):
        assert element.get("tests") == str(len(chosen)) == str(len(suite.findall("testcase")))
        assert element.get("failures") == str(fails) == str(len(suite.findall("testcase/failure")))
        assert element.get("errors") == str(codes.count(4)) == str(len(suite.findall("testcase/error")))
    assert suite.get("skipped") == str(codes.count(3) if undecided == "skipped" else 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<testcase classname=", "<testcase class="),
        (' name="grouped against per-frame"', ""),
        ("<failure ", "<failed "),
        ("</failure>", "</failure><verdict/>"),
        ('<testsuite name="harness" tests="1"', '<testsuite name="harness"'),
    ],
)
def test_the_schema_refuses_what_jenkins_would(old, new, summaries):
    text = junit.junit([summaries["regression"]])
    assert text.count(old) == 1
    broken = text.replace(old, new).replace("</failure>", "</failed>" if "<failed" in new else "</failure>")
    assert SCHEMA.validate(etree.fromstring(text.encode()))
    assert not SCHEMA.validate(etree.fromstring(broken.encode()))


def test_junit_of_a_failure_is_the_stored_text(summaries):
    assert junit.junit([summaries["wrong-result"]]) == (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<testsuites tests="1" failures="1" errors="0">\n'
        '<testsuite name="harness" tests="1" failures="1" errors="0" skipped="0">\n'
        '<testcase classname="harness.fused" name="fused against separate">\n'
        '<failure type="wrong-result" message="wrong-result: arm B \'fused\', block 0, warm: digest map d00d1e differs '
        "from 3f1a9e (and 3 more)\">B 'fused' and A 'separate' do not produce the same result, so their times do not "
        "count. arm B 'fused', block 0, warm: digest map d00d1e differs from 3f1a9e (and 3 more)</failure>\n"
        "<system-out>verdict: wrong-result: B 'fused' and A 'separate' do not produce the same result, so their times "
        "do not count.\nblocks: 1 of 8 planned are kept, 4 pairs in each\n"
        "B/A: 0.701, no interval (CPU time per pixel); it does not count\n"
        "wall time: 0.701, no interval; it does not count\nmedians: A 7.43 µs, B 5.21 µs\n"
        "peak memory: A 58.2 MiB, B 58.2 MiB\n"
        "other load: 0.05 cores in the median, 0.05 in the worst block (proc+children)\n"
        "outputs: DIFFER (policy exact)\n"
        "spoiled by: The outputs differ. No time counts until they agree.</system-out>\n"
        "</testcase>\n</testsuite>\n</testsuites>\n"
    )


def test_junit_of_a_hostile_record_is_well_formed(summaries):
    root = ElementTree.fromstring(junit.junit([summaries["hostile"]]))
    assert root.find("testsuite/testcase").get("classname") == 'harness."><script>alert(1)</script>'


def test_junit_refuses_an_unknown_policy():
    with pytest.raises(ValueError, match="expected 'skipped' or 'failure', found 'pass'"):
        junit.junit([], "pass")


def test_annotations_have_the_documented_form_on_one_line_each(summaries):
    text = github.annotations(list(summaries.values()))
    lines = text.splitlines()
    assert len(lines) == len(summaries)
    for line, summary in zip(lines, summaries.values()):
        level, title, message = re.fullmatch(r"::(notice|warning|error) title=([^,:]*)::(.*)", line).groups()
        assert level == {0: "notice", 3: "warning"}.get(summary["exit_code"], "error")
        assert title.endswith(f"%3A {summary['verdict']['word']}")
        assert re.search(r"%(?!25|0A|0D)", message) is None


def read(line):
    """(level, title, message) of a workflow command, as GitHub's runner takes it apart."""
    assert line.startswith("::")
    head, _, message = line[2:].partition("::")
    level, _, rest = head.partition(" ")
    properties = dict(one.split("=", 1) for one in rest.split(","))

    def plain(text, *more):
        for code, character in (("%0D", "\r"), ("%0A", "\n"), *more, ("%25", "%")):  # per cent last
            text = text.replace(code, character)
        return text

    assert set(properties) == {"title"}
    return level, plain(properties["title"], ("%3A", ":"), ("%2C", ",")), plain(message)


def awkward(summary):
    """A summary full of what has a meaning in a workflow command, and what should be read of its annotation."""
    name, reason = "50%,title=x::%0A%2525\n::error::", "half of %25 and %0A"
    summary = {**summary, "scenario": name, "verdict": {"word": "regression", "reason": reason}}
    shown = name.replace("\n", "\ufffd")
    return summary, ("error", f"{shown}: regression", f"{words.sentence(summary)} ({reason})")


def test_annotations_are_read_back_as_they_were_meant(summaries):
    summary, meant = awkward(summaries["regression"])
    (line,) = github.annotations([summary]).splitlines()
    assert read(line) == meant


@pytest.mark.parametrize("escape", ["_property", "_message"])
def test_annotations_without_their_escapes_are_not(escape, summaries, monkeypatch):
    summary, meant = awkward(summaries["regression"])
    monkeypatch.setattr(github, escape, lambda text: text)
    try:
        found = read(github.annotations([summary]).rstrip("\n"))
    except ValueError:
        found = None
    assert found != meant


def test_a_deleted_scenario_is_annotated():
    assert github.annotations([], ["a, b"]) == (
        "::warning title=a%2C b%3A deleted::this gated scenario exists at the base only\n"
    )


def test_annotation_of_a_regression_is_the_stored_text(summaries):
    assert github.annotations([summaries["regression"]]) == (
        "::error title=grouping%3A regression::B 'grouped' is slower: it takes 11.8 %25 more (between 11.4 %25 and "
        "12.3 %25 more) CPU time per pixel than A 'per-frame'. (B/A = 1.1179, between 1.1137 and 1.1225 (95 %25): all "
        "of it above the margin at 1.02)\n"
    )


def test_comment_begins_with_its_marker_and_the_failures(summaries):
    text = github.comment([summaries["improvement"], summaries["unfit"], summaries["regression"]], 1)
    lines = text.splitlines()
    assert lines[:3] == [github.MARKER, "## harness gate: fail", ""]
    assert lines[3].startswith("**grouping: regression** — B 'grouped' is slower")
    assert lines[7].startswith("**grouping: unfit** — This comparison says nothing")
    rows = [line.split(" | ")[2:4] for line in lines if line.startswith("| grouping")]
    assert rows == [["regression", "1.1179"], ["unfit", "does not count"], ["improvement", "0.8091"]]
    assert text.count("<") == 1
