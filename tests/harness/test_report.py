"""Every page from stored records: whole texts, to scale, harmless whatever the record holds, the same bytes again."""

import base64
import gzip
import importlib
import itertools
import json
import math
import os
import platform
import random
import re
import socket
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness import gate, records, report
from harness.report import numbers, plots, tables, words

DATA = Path(__file__).parents[1] / "data" / "records"
GOLDEN = DATA / "golden"
NAMES = sorted(path.stem for path in DATA.glob("*.jsonl"))
#: whole pages are kept for these; the others share every line of the template with them
PAGES = ("command", "different", "hostile", "improvement", "indistinguishable", "statistical", "voids", "wrong-result")
#: fields of summary.json, schema 1, that other programs may read
FIELDS = {
    *("schema", "run", "harness_version", "command", "scenario", "question", "arms", "metric", "unit", "mode", "clock"),
    *("margin", "alpha", "level", "ratio", "median", "won", "separated", "units", "pairs", "set_aside", "voids"),
    *("adjusted", "without_setting_aside", "verdict", "exit_code", "predict", "fingerprints", "accuracy", "clocks"),
    *("foreign", "mde", "seed", "inputs", "environment"),
}

# The package's functions have the names of these modules.
html_page = importlib.import_module("harness.report.html")
markdown = importlib.import_module("harness.report.markdown")
sys.path.insert(0, str(DATA))
import make  # noqa: E402


@pytest.fixture(scope="module")
def materials():
    return {name: report.Material(records.read(DATA / f"{name}.jsonl")) for name in NAMES}


def without_record(page):
    """A page without the compressed record, whose bytes depend on the version of zlib."""
    return re.sub(r"base64,[A-Za-z0-9+/=]*", "base64,", re.sub(r", [\d.,]+ (B|KiB|MiB) compressed", "", page))


def outputs(material):
    """Suffix -> text of everything that is written or printed."""
    return {
        "txt": report.terminal(material.summary),
        "md": report.markdown(material),
        "html": without_record(report.html(material)),
    }


def write_golden():
    GOLDEN.mkdir(exist_ok=True)
    for name in NAMES:
        for suffix, text in outputs(report.Material(records.read(DATA / f"{name}.jsonl"))).items():
            if suffix in ("txt", "md") or name in PAGES:
                (GOLDEN / f"{name}.{suffix}").write_text(text, encoding="utf-8", newline="\n")


# ---------------------------------------------------------------- whole texts


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*")), ids=lambda path: path.name)
def test_output_is_the_stored_text(path, materials):
    found = outputs(materials[path.stem])[path.suffix[1:]]
    assert found == path.read_text(encoding="utf-8"), "if this is meant: python tests/data/records/make.py --golden"


def test_every_stored_record_has_its_golden_texts():
    kept = {path.name for path in GOLDEN.glob("*")}
    wanted = {f"{name}.{suffix}" for name in NAMES for suffix in ("txt", "md")}
    assert kept == wanted | {f"{name}.html" for name in PAGES}


def test_every_verdict_word_and_every_void_kind_has_a_record(materials):
    assert {material.summary["verdict"]["word"] for material in materials.values()} == set(gate.EXIT_CODES)
    kinds = {entry.reason for material in materials.values() for entry in material.of(records.Void)}
    assert kinds == set(words.VOIDS)


@pytest.mark.parametrize("kind", list(words.VOIDS))
def test_each_void_kind_is_named_with_what_is_known_about_it(kind, materials):
    material = materials["voids"]
    void = next(entry for entry in material.of(records.Void) if entry.reason == kind)
    text, page = report.markdown(material), report.html(material)
    for part in (words.VOIDS[kind], void.message):
        assert markdown.escape(part) in text
        assert part.replace("'", "&#39;") in page


# ---------------------------------------------------------------- sentences


def summary(estimate=None, low=None, high=None, word="inconclusive", **more):
    """A summary with what the sentences need."""
    return {
        "arms": {arm: {"name": name, "reference": f"s:{name}"} for arm, name in (("a", "old"), ("b", "new"))},
        "metric": "cpu_seconds",
        "unit": "step",
        "mode": "resident",
        "direction": "lower",
        "margin": 0.02,
        "level": 0.95,
        "ratio": {"estimate": estimate, "low": low, "high": high},
        "voids": {"a": {}, "b": {}},
        "verdict": {"word": word, "reason": ""},
    } | more


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            summary(0.81, 0.8, 0.82, "improvement"),
            "B 'new' is faster: it takes 19.0 % less (between 18.0 % and 20.0 % less) CPU time than A 'old'.",
        ),
        (
            summary(0.5, 0.49, 0.52, "improvement"),
            "B 'new' is faster: it takes 50.0 % less (between 48.0 % and 51.0 % less) CPU time than A 'old'. "
            "It is 2.00 times as fast.",
        ),
        (
            summary(1.5, 1.4, 1.6, "regression", metric="seconds_per_unit"),
            "B 'new' is slower: it takes 50.0 % more (between 40.0 % and 60.0 % more) wall time per step than A 'old'. "
            "It takes 1.50 times as long.",
        ),
        (
            summary(0.81, 0.8, 0.82, "regression", voids={"a": {}, "b": {"crash": 5, "timeout": 1}}),
            "B 'new' fails where A 'old' does not: 6 runs gave no measurement.",
        ),
        (
            summary(1.1, 1.05, 1.2, "regression", metric="peak_rss_bytes"),
            "B 'new' is worse: it uses 10.0 % more (between 5.0 % and 20.0 % more) peak memory than A 'old'.",
        ),
        (
            summary(0.9, 0.85, 0.95, "regression", metric="events_per_second", direction="higher"),
            "B 'new' is worse: it has 10.0 % less (between 5.0 % and 15.0 % less) events_per_second than A 'old'.",
        ),
        (
            summary(1.0, 0.99, 1.01, "equivalent", margin=0.015),
            "B 'new' and A 'old' have the same CPU time to within the margin of 1.5 %.",
        ),
        (
            summary(0.99, 0.97, 1.01, "not-worse"),
            "B 'new' is not slower than A 'old' by the margin of 2 %; whether it is faster stays open.",
        ),
        (
            summary(1.02, 1.001, 1.04, "slower"),
            "B 'new' is slower than A 'old', but by how much is not settled: it takes 2.0 % more "
            "(between 0.1 % and 4.0 % more) CPU time than A 'old'.",
        ),
        (summary(word="inconclusive"), "Whether B 'new' is faster or slower than A 'old' stays open."),
        (
            summary(1.5, 1.4, 1.6, verdict={"word": "inconclusive", "reason": "arm A is a ceiling: it leaves …"}),
            "A 'old' leaves work out on purpose and shows a limit: B 'new' takes 50.0 % more (between 40.0 % and "
            "60.0 % more) CPU time than A 'old'. It takes 1.50 times as long.",
        ),
        (
            summary(0.9, 0.8, 0.95, verdict={"word": "inconclusive", "reason": "arm B is a ceiling: it leaves …"}),
            "B 'new' leaves work out on purpose and shows a limit: it takes 10.0 % less (between 5.0 % and 20.0 % "
            "less) CPU time than A 'old'.",
        ),
        (summary(word="unfit"), "This comparison says nothing about B 'new' and A 'old'."),
        (
            summary(
                6.3, 6.1, 6.5, verdict={"word": "inconclusive", "reason": "whether the values agree is undecided: …"}
            ),
            "Whether B 'new' gives the result of A 'old' is not settled, so its CPU time decides nothing.",
        ),
        (
            summary(0.5, 0.4, 0.6, "wrong-result"),
            "B 'new' and A 'old' do not produce the same result, so their times do not count.",
        ),
    ],
)
def test_verdict_is_a_sentence_that_a_person_would_say(known, said):
    assert words.sentence(known) == said


def test_arms_of_one_name_are_told_apart_by_their_references():
    known = summary()
    known["arms"] = {arm: {"name": "new", "reference": ref} for arm, ref in (("a", "s:new@main"), ("b", "s:new"))}
    assert words.quoted(known, "a") == "A 's:new@main'"


def test_a_command_is_told_by_its_words():
    known = summary(0.5, 0.49, 0.52, "improvement", metric="seconds")
    known["arms"] = {arm: {"name": arm.upper(), "reference": f"sleep {n}"} for arm, n in (("a", 2), ("b", 1))}
    assert words.sentence(known).startswith("B 'sleep 1' is faster: it takes ")
    assert words.quoted(known, "a") == "A 'sleep 2'"


def test_a_ratio_that_does_not_count_is_never_drawn_or_called_won(materials):
    for name, material in materials.items():
        known = material.summary
        counts = known["verdict"]["word"] not in ("wrong-result", "unfit")
        text = report.terminal(known)
        assert ("●" in text) == (counts and known["ratio"]["estimate"] is not None), name
        if not counts:
            assert "B won" not in text
            assert html_page.interval_figure(known) == ""


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (numbers.seconds(7.62e-6), "7.62 µs"),
        (numbers.seconds(0.0009999), "1.00 ms"),
        (numbers.seconds(0.25), "250 ms"),
        (numbers.seconds(59.96), "60.0 s"),
        (numbers.seconds(754), "12 min 34 s"),
        (numbers.seconds(7300), "2 h 01 min"),
        (numbers.seconds(0), "0 s"),
        (numbers.seconds(None), "—"),
        (numbers.size(61_000_000), "58.2 MiB"),
        (numbers.size(900), "900 B"),
        (numbers.significant(1234.6, 4), "1,235"),
        (numbers.significant(-0.000452), "−0.000452"),
        (numbers.significant(3.2e18), "3.20e18".replace("e18", "e+18")),
        (numbers.percent(0.0055), "0.55 %"),
        (numbers.percent(0.186), "19 %"),
        (numbers.percent(0.00001), "under 0.01 %"),
        (numbers.change(0.8091, 0.005), ("19.1 %", "less")),
        (numbers.change(1.0004, 0.0002), ("0.04 %", "more")),
        (numbers.interval(0.8067, 0.8118, numbers.ratio_decimals(0.0051)), "0.8067 to 0.8118"),
        (numbers.interval(0.8, None), "—"),
        (numbers.ratio(12.345), "12.35"),
        (numbers.ratio(0.012345), "0.0123"),
        (numbers.ratio(float("nan")), "—"),
        (numbers.bare("1.50 ms"), "1.5 ms"),
        (numbers.bare("2.00 s"), "2 s"),
        (numbers.bare("1,000 ms"), "1,000 ms"),
        (numbers.bare("0.000300"), "0.0003"),
        (numbers.given(0.005), "0.005"),
        (numbers.given(100 * 0.07), "7"),
        (numbers.given(-1234567.5), "−1,234,567.5"),
        (numbers.plural(1, "block"), "1 block"),
        (numbers.plural(1200, "pair"), "1,200 pairs"),
        (numbers.shorten("abcdefghij", 5), "ab…ij"),
        (numbers.probability(0.0004), "p < .001"),
    ],
)
def test_number_is_written_as_a_person_would(found, wanted):
    assert found == wanted


# ---------------------------------------------------------------- figures to scale


def positions(figure, style):
    """x (per cent) of the marks of one class."""
    found = []
    for tag in re.findall(rf'<(?:use|line|rect)[^>]*class="[^"]*\b{style}\b[^"]*"[^>]*>', figure):
        x = re.search(r'\bx1?="([\d.]+)%"', tag)
        width = re.search(r'\bwidth="([\d.]+)%"', tag)
        found.append((float(x[1]), float(x[1]) + float(width[1])) if width else float(x[1]))
    return found


def test_interval_stands_to_scale_against_the_margin():
    row = {"name": "CPU", "kind": "main", "estimate": 0.9, "low": 0.85, "high": 0.97}
    figure = plots.interval([row], 0.05, "label", ("less", "more"))
    (left, right) = positions(figure, "margin")[0]
    one = positions(figure, "one")[0]
    scale = (right - left) / (2 * math.log(1.05))  # per cent of the width for one unit of log ratio
    assert positions(figure, "estimate")[0] == pytest.approx(one + scale * math.log(0.9), abs=0.03)
    ends = sorted(positions(figure, "interval"))
    assert ends[0] == pytest.approx(one + scale * math.log(0.85), abs=0.03)
    assert ends[-1] == pytest.approx(one + scale * math.log(0.97), abs=0.03)


def test_text_interval_stands_to_scale_against_the_margin():
    known = summary(0.25, 0.125, 0.5, "improvement", margin=1.0, question="q", scenario="s")
    lines = report.terminal(known).splitlines()
    line, band = next(pair for pair in itertools.pairwise(lines) if "●" in pair[0])
    # Each is half of the next: equal steps on a logarithmic line.
    places = [line.index("├"), line.index("●"), line.index("┤"), band.index("│"), band.rindex("░")]
    steps = [b - a for a, b in itertools.pairwise(places)]
    assert max(steps) - min(steps) <= 1


def test_the_margin_is_seen_beneath_an_interval_that_covers_it():
    known = summary(1.01, 0.9, 1.2, margin=0.02, question="q", scenario="s")
    lines = report.terminal(known).splitlines()
    line, band = next(pair for pair in itertools.pairwise(lines) if "●" in pair[0])
    assert "░│░" in band
    assert line.index("├") < band.index("░") < band.rindex("░") < line.index("┤")


@pytest.mark.parametrize(
    ("first", "last", "log", "ticks"),
    [
        (0.78, 1.03, True, [0.8, 0.85, 0.9, 0.95, 1.0]),
        (0.1, 12, True, [0.1, 0.2, 0.5, 1, 2, 5, 10]),
        (0.0, 0.2, False, [0.0, 0.05, 0.1, 0.15, 0.2]),
        (7.41e-6, 7.9e-6, False, [7.6e-6, 7.8e-6]),
        (3.6e-5, 4.4e-5, False, [3.6e-5, 3.8e-5, 4e-5, 4.2e-5, 4.4e-5]),
    ],
)
def test_ticks_are_round(first, last, log, ticks):
    assert plots.Axis(first, last, log=log).ticks(7 if log else 5) == pytest.approx(ticks)


def test_an_axis_has_two_ticks_wherever_it_begins():
    for start in range(1, 400):
        for width in (0.3, 1, 2.2, 7, 9.9):
            for most in (3, 4, 5):
                assert 2 <= len(plots.Axis(start / 10, start / 10 + width).ticks(most)) <= 8


def test_a_figure_of_many_points_keeps_their_extremes():
    points = [(i / 1000, float(i % 7)) for i in range(100_000)]
    points[4321] = (4.321, -50.0)
    points[98765] = (98.765, 70.0)
    kept = plots.thin(points)
    assert len(kept) <= plots.POINTS
    assert {points[4321], points[98765]} <= set(kept)


# ---------------------------------------------------------------- harmless


class Inspector(HTMLParser):
    """Collects what a page must not have: scripts, handlers, addresses outside it, tags that do not close."""

    VOID = {"meta", "br", "use", "line", "rect", "circle", "path"}
    TAGS = {
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "main",
            "header",
            "nav",
            "section",
            "footer",
            "h1",
            "h2",
            "h3",
        ),
        *("p", "strong", "span", "i", "a", "code", "pre", "ul", "li", "dl", "dt", "dd", "div", "details", "summary"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"),
        *("svg", "defs", "g", "use", "line", "rect", "circle", "path", "text"),
    }

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.faults, self.counts, self.style = [], [], {}, False
        self.feed(page)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.TAGS:
            self.faults.append(f"<{tag}>")
        for name, value in attributes:
            value = value or ""
            if name.startswith("on") or name in ("src", "srcset", "style", "action", "xlink:href"):
                self.faults.append(f"{tag}.{name}")
            if name == "href" and not value.startswith(("#", "data:application/gzip;base64,")):
                self.faults.append(f"href {value}")
            if name == "http-equiv" and value.lower() == "refresh":
                self.faults.append("refresh")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in self.VOID or (tag == "rect" and tag not in self.open):
            return
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "style" and re.search(r"url\(|@import|expression\(", data):
            self.faults.append("style reaches outside")
        if any(not (c.isprintable() or c in "\n\u00a0") for c in data):
            self.faults.append(f"control character in {data[:40]!r}")

    def handle_comment(self, data):
        self.faults.append("comment")


@pytest.mark.parametrize("name", NAMES)
def test_page_has_no_script_no_address_and_closes_its_tags(name, materials):
    found = Inspector(report.html(materials[name]))
    assert found.faults == []
    assert found.counts["h1"] == found.counts["main"] == 1


def test_the_inspection_rejects_a_page_that_trusts_the_record(materials, monkeypatch):
    environment = html_page._environment()
    monkeypatch.setattr(environment, "autoescape", False)
    environment.cache.clear()
    try:
        found = Inspector(report.html(materials["hostile"]))
    finally:
        environment.cache.clear()
    assert "<script>" in found.faults


def test_every_label_of_a_figure_escapes_what_it_quotes():
    row = {"name": '"><script>', "kind": "main", "estimate": 1.0, "low": None, "high": None}
    figure = plots.interval([row], 0.02, '"><script>', ("<b>", "<i>"))
    assert Inspector(figure).faults == []


def test_no_control_or_direction_character_reaches_terminal_or_markdown(materials):
    material = materials["hostile"]
    for text in (report.terminal(material.summary), report.markdown(material)):
        assert [c for c in text if not c.isprintable() and c != "\n"] == []


def test_markdown_of_a_hostile_record_is_text_alone(materials):
    text = report.markdown(materials["hostile"])
    # Outside code, every bracket and angle is escaped; inside, nothing is interpreted.
    bare = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", text)
    bare = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", bare)
    assert re.search(r"(?<!\\)[<>\[\]]", bare) is None
    rows = [line for line in bare.splitlines() if line.startswith("|")]
    for line in rows:
        assert len(re.findall(r"(?<!\\)\|", line)) in (3, 4, 5, 6, 7)


# ---------------------------------------------------------------- terminal


@pytest.mark.parametrize("name", NAMES)
def test_terminal_keeps_to_80_columns_and_colour_adds_only_colour(name, materials):
    plain = report.terminal(materials[name].summary)
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in plain
    coloured = report.terminal(materials[name].summary, colour=True)
    assert coloured != plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


# ---------------------------------------------------------------- files


def test_write_makes_the_three_files_and_returns_the_summary(tmp_path, materials):
    entries = materials["improvement"].entries
    found = report.write(tmp_path / "new", entries)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["report.html", "report.md", "summary.json"]
    assert json.loads((tmp_path / "new" / "summary.json").read_text()) == found == materials["improvement"].summary
    first = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    report.write(tmp_path / "again", records.read(DATA / "improvement.jsonl"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first


@pytest.mark.parametrize("name", NAMES)
def test_summary_json_has_every_field_and_only_numbers_that_json_knows(name, tmp_path, materials):
    report.write(tmp_path, materials[name].entries)

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    found = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert set(found) >= FIELDS
    assert found["exit_code"] == gate.EXIT_CODES[found["verdict"]["word"]]


def test_a_file_is_replaced_whole_or_left_alone(tmp_path, monkeypatch):
    target = tmp_path / "report.md"
    target.write_text("before")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        report.replace(target, "after")
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_page_carries_the_record_that_it_was_made_from(tmp_path, materials):
    page = report.html(materials["voids"])
    data = re.search(r'href="data:application/gzip;base64,([^"]+)"', page)[1]
    (tmp_path / records.NAME).write_bytes(gzip.decompress(base64.b64decode(data)))
    assert report.html(report.Material(records.read(tmp_path))) == page


@pytest.mark.parametrize("name", ["improvement", "voids", "wrong-result", "command"])
def test_a_record_cut_anywhere_still_has_its_pages(name, materials):
    entries = materials[name].entries
    for length in (1, 2, 3, 5, 9, 17, 30, 60, 100, len(entries) - 1):
        material = report.Material(entries[:length])
        assert report.terminal(material.summary)
        assert report.markdown(material)
        assert Inspector(report.html(material)).faults == []


@pytest.mark.parametrize("name", ["different", "indistinguishable", "statistical", "undecided"])
def test_accuracy_is_shown_on_every_page_with_its_numbers(name, materials):
    material = materials[name]
    known = material.summary["accuracy"]
    page, text = report.html(material), report.markdown(material)
    assert "Accuracy of B against A" in page
    assert words.caveat(known) in page
    for label, found in words.accuracy(known):
        assert markdown.escape(label) in text
        assert markdown.escape(found) in text
        assert found.replace(" %", "\u00a0%") in page
    assert f"{known['word']}: " in report.terminal(material.summary)
    if known["kind"] == "model":
        for row in tables.seeds(material.summary):
            assert f"<td>{row[4]}</td>" in page
            assert f"| {row[4]} |" in text


@pytest.mark.parametrize("name", ["improvement", "command"])
def test_nothing_is_said_of_values_where_none_were_taken(name, materials):
    for text in outputs(materials[name]).values():
        assert "ccuracy" not in text


def test_page_of_400_pairs_stays_under_a_megabyte():
    maker = make.Maker("many", "Are 400 pairs too many?", blocks=40, pairs=10)
    assert len(report.html(report.Material(maker.blocks_of(0.9).end()))) < 1_000_000


def test_page_of_10000_pairs_is_thinned_and_whole():
    maker = make.Maker("most", "Are 10,000 pairs too many?", blocks=100, pairs=100)
    material = report.Material(maker.blocks_of(0.9).end())
    page = report.html(material)
    assert len(page) < 4_000_000
    assert Inspector(page).faults == []


def test_load_of_many_units_is_drawn_by_the_worst_of_neighbours():
    row = {"state": "kept", "ratio": 0.9, "pairs": [], "why": "", "title": ""}
    rows = [row | {"unit": n, "foreign": 0.1, "unattributed": 0, "steal": 0, "system": 0} for n in range(10_000)]
    rows[4321] |= {"foreign": 3.0}
    figure = plots.units(rows, 0.02, 0.9, None, "label")
    bars = re.search(r'<path d="([^"]*)" class="load-foreign"/>', figure)[1].split("Z")[:-1]
    assert len(bars) <= plots.POINTS / 2
    tops = [int(re.match(r"M\d+ (\d+)H", bar)[1]) for bar in bars]
    assert tops.index(min(tops)) == 4321 // 9  # nine units a bar
    assert len({*tops}) == 2


def test_a_long_table_shows_its_ends_and_says_how_many_rows_are_between():
    rows = [{"unit": number} for number in range(1000)]
    shown = html_page.ends(rows)
    assert [row["unit"] for row in shown if "unit" in row] == [*range(200), *range(800, 1000)]
    assert shown[200] == {"left_out": 600}


def test_environment_shows_what_differs_between_the_arms(materials):
    found = tables.environment(materials["improvement"].summary)
    assert found["differs"] == [("libraries.mapping.digest", "9c02aaaaaaa", "9c02bbbbbbb")]
    assert ("libraries.mapping.source_digest", "77aa01") in found["common"]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("8 blocks (95 %): a-b, c_d + 1.5", "8 blocks (95 %): a-b, c_d + 1.5"),
        (
            "<b> [x](http://y) `c` *d* _e_ f|g &amp; #1 $h$ ~i~ \\",
            r"\<b\> \[x\](http\://y) \`c\` \*d\* \_e\_ f\|g \&amp; \#1 \$h\$ \~i\~ " + "\\\\",
        ),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("0.81", "0.81"),
        ("www.x.org", r"www\.x.org"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_escapes_what_is_a_command_and_nothing_else(text, escaped):
    assert markdown.escape(text) == escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a", "`a`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a|b", "`a¦b`"), ("", "`  `"), ("a\nb", "`a b`")],
)
def test_inline_code_cannot_end_early(text, shown):
    assert markdown.code(text) == shown


def test_outputs_of_one_arm_alone_are_not_said_to_agree(materials):
    known = json.loads(json.dumps(materials["improvement"].summary))
    assert tables.outputs(known) == "agree (policy exact)"
    known["fingerprints"]["b"] = None
    assert tables.outputs(known) == "nothing to compare (policy exact)"
    known["fingerprints"]["agree"] = False
    assert tables.outputs(known) == "DIFFER (policy exact)"


def test_nobody_is_told_to_go_on_where_the_voids_decided(materials):
    told = [what for what, _ in words.spoiled(materials["void-regression"].summary)]
    assert told == ["Void in B: 6 × a crash."]
    known = materials["void-regression"].summary | {"units": {"planned": 8, "kept": 0, "run": 6}}
    assert [what for what, _ in words.spoiled(known | {"stopped": "voids"})] == told
    assert "Only 0 of 8 blocks count." in [what for what, _ in words.spoiled(known | {"stopped": "cap"})]


def test_outputs_that_differ_are_what_spoiled_it(materials):
    for name in ("wrong-result", "statistical"):
        assert ("The outputs differ.", "No time counts until they agree.") in words.spoiled(materials[name].summary)
    assert "Nothing in the record" not in report.html(materials["wrong-result"])


def test_a_void_says_once_how_it_ended(materials):
    for void in tables.voids(materials["voids"]):
        assert not void["details"] or void["details"] not in void["message"]
    assert [void["details"] for void in tables.voids(materials["voids"])][-1] == "SIGKILL"


@pytest.fixture
def sealed(monkeypatch):
    """Clock, processes, network, machine, environment and unseeded chance raise when they are reached."""

    def forbid(name):
        def refuse(*_, **__):
            raise AssertionError(f"{name} was reached")

        return refuse

    class Forbidden(dict):
        __getitem__ = get = __contains__ = __iter__ = forbid("the environment")

    for module, names in (
        (time, ("time", "time_ns", "monotonic", "perf_counter", "process_time", "localtime", "gmtime")),
        (os, ("cpu_count", "getpid", "getloadavg", "uname", "getcwd", "urandom", "sched_getaffinity")),
        (platform, ("node", "platform", "processor", "uname", "python_version")),
        (random, ("random", "randint", "choice", "shuffle", "gauss")),
        (subprocess, ("Popen", "run")),
        (socket, ("socket", "gethostname")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, forbid(f"{module.__name__}.{name}"))
    monkeypatch.setattr(os, "environ", Forbidden())


@pytest.mark.parametrize("name", PAGES)
def test_pages_reach_no_clock_process_machine_or_chance(name, materials, request):
    entries = materials[name].entries
    before = outputs(report.Material(entries))
    request.getfixturevalue("sealed")
    try:
        after = outputs(report.Material(entries))
    finally:
        request.getfixturevalue("monkeypatch").undo()
    assert after == before


@pytest.mark.parametrize("reach", [time.time, os.getpid, lambda: os.environ["HOME"], random.random, platform.node])
def test_the_seal_holds(reach, request):
    name = getattr(reach, "__name__", "")
    module = {"time": time, "getpid": os, "random": random, "node": platform}.get(name)
    request.getfixturevalue("sealed")
    try:
        with pytest.raises(AssertionError, match="was reached"):
            getattr(module, name)() if module else reach()
    finally:
        request.getfixturevalue("monkeypatch").undo()


@pytest.mark.parametrize(
    ("policy", "rtol", "total", "agreement"),
    [
        ("keys", 1e-3, 81.26, ["yes", "yes", "not compared", "within 0.001"]),
        ("keys", 1e-6, 81.26, ["yes", "yes", "not compared", "no"]),
        ("exact", 1e-3, 81.26, ["yes", "yes", "no", "no"]),
        ("exact", 1e-3, 81.25, ["yes", "yes", "no", "yes"]),
    ],
)
def test_fingerprints_are_judged_as_the_policy_does(policy, rtol, total, agreement):
    maker = make.Maker("totals", "Do totals agree?", fingerprint=policy)
    maker.entries[0].scenario["scenario"]["totals_rtol"] = rtol
    maker.block(0.8)
    for entry in maker.entries:
        if isinstance(entry, records.Fingerprint):
            entry.digests = {"keys": "c0ffee", "values": entry.arm}
            entry.totals = {"intensity": total if entry.arm == "b" else 81.25}
    rows = tables.fingerprints(report.Material(maker.end()))
    assert [row[0] for row in rows] == ["work", "digest keys", "digest values", "total intensity"]
    assert [row[3] for row in rows] == agreement
