"""The page over many comparisons and the course of a scenario."""

import base64
import hashlib
import importlib
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import records, report
from harness.cli import cli
from harness.errors import ConfigurationError
from harness.report import claims, index, tables

DATA = Path(__file__).parents[1] / "data" / "records"
sys.path.insert(0, str(DATA))
make = importlib.import_module("make")


def comparison(folder, day, base=7.6e-6, ratio=0.8, **changed):
    """Store one comparison of October 2026."""
    maker = make.Maker("grouping", "Does it help?", blocks=6, pairs=2)
    maker.random.seed(day)
    opening = maker.entries[0]
    opening.run, opening.created = f"2026-10-{day:02d}", f"2026-10-{day:02d}T10:00:00+00:00"
    for key, value in changed.items():
        setattr(opening, key, value)
    place = folder / "grouping" / opening.run
    place.mkdir(parents=True)
    entries = maker.blocks_of(ratio, base=base).end()
    (place / records.NAME).write_bytes(b"".join(records.encode(entry) + b"\n" for entry in entries))


@pytest.fixture
def course(tmp_path):
    """Twelve comparisons; both levels rise by 20 % at the eighth, the ratio does not."""
    for day in range(1, 13):
        comparison(tmp_path, day, base=7.6e-6 * (1.2 if day >= 8 else 1))
    return tmp_path


def test_rows_are_in_the_order_of_time_whatever_the_folders_are_called(tmp_path):
    for day, name in ((3, "a"), (1, "b"), (2, "c")):
        comparison(tmp_path / name, day)
    rows = index.collect(tmp_path)
    assert [row["place"] for row in rows] == ["b/grouping/2026-10-01", "c/grouping/2026-10-02", "a/grouping/2026-10-03"]


def test_a_record_that_cannot_be_read_is_a_row_that_says_so(tmp_path):
    comparison(tmp_path, 1)
    broken = tmp_path / "grouping" / "broken"
    broken.mkdir()
    (broken / records.NAME).write_text("{}\n")
    rows = index.collect(tmp_path)
    assert [row["fault"] is not None for row in rows] == [True, False]
    assert "line 1" in rows[0]["fault"]
    assert "cannot be read" in index.index(rows)


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"expected a folder with comparisons \(records.jsonl\), found none"):
        index.collect(tmp_path)


def test_levels_that_move_together_are_told_and_the_ratio_is_not(course):
    (series,) = index.histories(index.collect(course))
    assert series["levels"] == {"a": [7], "b": [7]}
    assert len(series["points"]) == 12


@pytest.mark.parametrize("changed", ["machine", "inputs", "parameters"])
def test_series_never_reach_across_machines_inputs_or_parameters(tmp_path, changed):
    comparison(tmp_path, 1)
    comparison(tmp_path, 2)
    if changed == "machine":
        comparison(tmp_path, 3, machine=make.MACHINE | {"hostname_hash": "other"})
    else:
        comparison(tmp_path, 3)
        path = tmp_path / "grouping" / "2026-10-03" / records.NAME
        old, new = {
            "inputs": ("b1946ac92492d2347c6235b4d2611184", "0000000000"),
            "parameters": (
                '"parameters":{"frames_per_group":4},"command"',
                '"parameters":{"frames_per_group":8},"command"',
            ),
        }[changed]
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    assert sorted(len(one["points"]) for one in index.histories(index.collect(tmp_path))) == [1, 2]


def variant(folder, day, laid, arms="ab", **changed):
    """A comparison with parameters laid over those of its scenario."""
    comparison(folder, day, **changed)
    path = folder / "grouping" / f"2026-10-{day:02d}" / records.NAME
    opening, *entries = records.read(path)
    for arm in arms:
        opening.arms[arm]["parameters"] = {**opening.arms[arm]["parameters"], **laid}
    path.write_bytes(b"".join(records.encode(entry) + b"\n" for entry in (opening, *entries)))


def test_variants_of_a_comparison_are_named_by_what_was_laid_over_and_share_no_history(tmp_path):
    comparison(tmp_path, 1)
    variant(tmp_path, 2, {"gradient": False})
    variant(tmp_path, 3, {"gradient": False, "jets": 64})
    variant(tmp_path, 4, {"kind": "<b>"}, "b")
    comparison(tmp_path, 5)
    variant(tmp_path, 6, {"gradient": False})
    rows = index.collect(tmp_path)
    forward = "gradient=false"
    assert [row["variant"] for row in rows] == ["", forward, f"{forward}, jets=64", 'B kind="<b>"', "", forward]
    series = index.histories(rows)
    assert [(one["variant"], [row["created"][:10] for row in one["points"]]) for one in series] == [
        ("", ["2026-10-01", "2026-10-05"]),
        ('B kind="<b>"', ["2026-10-04"]),
        (forward, ["2026-10-02", "2026-10-06"]),
        (f"{forward}, jets=64", ["2026-10-03"]),
    ]
    page = index.index(rows)
    assert f">grouping, {forward}, jets=64</a>" in page
    assert f"<h2>grouping, {forward}: grouped against per-frame</h2>" in page
    assert "<b>" not in page
    told = index.history(rows, "grouping")
    assert f"grouping, {forward}: grouped (B) against per-frame (A), CPU time per pixel\n" in told


@pytest.mark.parametrize(
    ("given", "arms", "told"),
    [
        ({}, "ab", None),
        ({"gradient": False, "jets": 64}, "ab", "gradient=false, jets=64"),
        ({"jets": 64}, "b", "B jets=64"),
    ],
)
def test_every_page_tells_the_parameters_laid_over(tmp_path, given, arms, told):
    variant(tmp_path, 1, given, arms)
    material = report.Material(records.read(next(tmp_path.glob("*/*/*.jsonl"))))
    assert dict(tables.facts(material.summary)).get("parameters") == told
    if told:
        assert f"parameters  {told}\n" in report.terminal(material.summary)
        assert f"| parameters | {told} |" in report.markdown(material)
        assert told in report.html(material).split("Blocks in the order")[0].split("</svg>")[-1]


def test_a_lone_variant_is_named(tmp_path):
    variant(tmp_path, 1, {"gradient": False})
    assert [row["variant"] for row in index.collect(tmp_path)] == ["gradient=false"]


def test_what_a_scenario_changed_since_tells_variants_apart_too(tmp_path):
    comparison(tmp_path, 1)
    comparison(tmp_path, 2)
    path = tmp_path / "grouping" / "2026-10-02" / records.NAME
    opening, *entries = records.read(path)
    opening.scenario["parameters"]["jets"] = 64
    for arm in "ab":
        opening.arms[arm]["parameters"] = {**opening.arms[arm]["parameters"], "jets": 64}
    path.write_bytes(b"".join(records.encode(entry) + b"\n" for entry in (opening, *entries)))
    assert [row["variant"] for row in index.collect(tmp_path)] == ["", "jets=64"]


def test_a_claim_is_not_set_beside_another_variant(tmp_path):
    comparison(tmp_path, 1, ratio=0.8)
    variant(tmp_path, 2, {"gradient": False}, ratio=0.6)
    variant(tmp_path, 3, {"gradient": False}, "b", ratio=0.5)
    rows = index.collect(tmp_path)
    found = claims.beside([CLAIM, *(CLAIM | {"parameters": {"gradient": value}} for value in (False, True))], rows)
    assert [one["row"] and one["row"]["run"] for one in found] == ["2026-10-01", "2026-10-02", None]


@pytest.mark.parametrize(
    ("means", "shown"),
    [
        ([0.5, 0.75], "0.50 to 0.75"),
        ([0.01, 0.999], "below 1.00"),
        ([1.001, 100], "above 1.00"),
        (None, ""),
    ],
)
def test_a_claim_of_a_direction_alone_is_shown_as_one(means, shown):
    claim = CLAIM | ({"ratio": means} if means else {})
    assert claims.beside([claim], [])[0]["means"] == shown


def test_a_claim_says_where_else_it_is_shown_and_that_what_was_measured_does_not_count(tmp_path):
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / records.NAME).write_bytes((DATA / "wrong-result.jsonl").read_bytes())
    (row,) = rows = index.collect(tmp_path)
    wrong = CLAIM | {"scenario": row["scenario"], **row["names"], "ratio": [0.5, 0.7]}
    elsewhere = {key: CLAIM[key] for key in ("what", "published", "source")} | {"elsewhere": "a test"}
    found = claims.beside([wrong, elsewhere], rows)
    assert [(one["row"], one["outcome"]) for one in found] == [
        (None, "wrong-result: does not count"),
        (None, "see a test"),
    ]
    assert "see a test" in index.index(rows, [wrong, elsewhere])


def test_a_comparison_that_does_not_count_is_listed_but_in_no_series(tmp_path):
    comparison(tmp_path, 1)
    wrong = tmp_path / "fused"
    wrong.mkdir()
    (wrong / records.NAME).write_bytes((DATA / "wrong-result.jsonl").read_bytes())
    rows = index.collect(tmp_path)
    assert {row["word"] for row in rows} == {"improvement", "wrong-result"}
    assert [one["scenario"] for one in index.histories(rows)] == ["grouping"]
    assert "does not count" in index.index(rows)


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ([1.0] * 20, []),
        ([1.0, 1.001, 0.999, 1.002] * 2 + [1.3, 1.301, 1.299, 1.302] * 2, [8]),
        ([1.0] * 4 + [2.0] * 3, []),  # too short
        ([1.0] * 6 + [None] + [2.0] * 6, []),
    ],
)
def test_a_level_has_change_points_where_it_moved_and_only_there(levels, found):
    assert index.changes(levels) == found


def test_page_runs_only_its_own_script_and_links_to_the_reports(course):
    page = index.index(index.collect(course))
    script = re.search(r"<script>(.*)</script>", page, re.S)[1]
    allowed = re.search(r"script-src 'sha256-([^']+)'", page)[1]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == allowed.replace("&#43;", "+")
    assert 'href="grouping/2026-10-01/report.html"' in page
    assert page.count("<script") == 1
    assert "http://" not in page
    assert "https://" not in page


def test_page_of_a_hostile_record_holds_no_script_but_its_own(tmp_path):
    place = tmp_path / '"><script>'
    place.mkdir()
    (place / records.NAME).write_bytes((DATA / "hostile.jsonl").read_bytes())
    page = index.index(index.collect(tmp_path))
    assert page.count("<script") == 1
    assert "<img" not in page
    assert 'href="%22%3E%3Cscript%3E/report.html"' in page


def test_same_records_give_the_same_page(course):
    assert index.index(index.collect(course)) == index.index(index.collect(course))


def test_history_on_the_terminal_is_the_stored_text(course):
    text = index.history(index.collect(course), "grouping").splitlines()
    assert len(text) == 2 + 12
    assert [*text[:3], text[9]] == HISTORY.strip("\n").splitlines()


HISTORY = """
grouping: grouped (B) against per-frame (A), CPU time per pixel
  AMD EPYC 7B13 5d41402abc4b
  2026-10-01T10:00    0.800  0.795 to 0.806     improvement  A 7.62 µs   B 6.07 µs   8727eed0c1
  2026-10-08T10:00   0.8002  0.7949 to 0.8038   improvement  A 9.12 µs   B 7.31 µs   8727eed0c1 * level of A and B moved
"""


def test_history_of_an_unknown_scenario_names_those_that_there_are(course):
    with pytest.raises(ConfigurationError, match="expected one of grouping, found 'groping'"):
        index.history(index.collect(course), "groping")


def test_write_leaves_an_index_beside_the_comparisons(course):
    path = report.write_index(course)
    assert path == course / "index.html"
    assert path.read_text(encoding="utf-8") == index.index(index.collect(course))


def test_command_line_writes_the_index_and_tells_the_course(course):
    run = CliRunner().invoke
    done = run(cli, ["report", "--index", str(course)])
    assert (done.exit_code, done.output) == (0, f"index: {course / 'index.html'}\n")
    done = run(cli, ["history", "grouping", "--reports", str(course)])
    assert (done.exit_code, done.output) == (0, index.history(index.collect(course), "grouping"))
    done = run(cli, ["history", "groping", "--reports", str(course)])
    assert (done.exit_code, done.output) == (2, "harness: history: expected one of grouping, found 'groping'\n")
    done = run(cli, ["report"])
    assert done.exit_code == 2
    assert (
        done.output == "harness: harness report: expected a RUN or --index DIR, found neither; see harness report -h\n"
    )


CLAIM = {"what": "w", "published": "p", "source": "s", "scenario": "grouping", "a": "per-frame", "b": "grouped"}


@pytest.mark.parametrize(
    ("claimed", "low", "high", "outcome"),
    [
        ([0.7, 0.9], 0.75, 0.8, "holds here"),
        ([0.7, 0.9], 0.5, 0.6, "more than claimed"),
        ([0.7, 0.9], 0.95, 1.0, "less than claimed"),
        ([0.7, 0.9], 0.85, 0.95, "open"),
        ([0.7, 0.9], None, None, "open"),
        (None, 0.75, 0.8, "open"),
    ],
)
def test_a_claim_holds_when_the_whole_interval_is_what_it_says(claimed, low, high, outcome):
    assert claims.outcome(claimed, {"low": low, "high": high}) == outcome


def test_a_claim_stands_beside_the_newest_comparison_of_its_arms(course):
    comparison(course, 28, ratio=0.6)
    rows = index.collect(course)
    other = CLAIM | {"scenario": "nowhere", "what": "never"}
    first, second = claims.beside([CLAIM | {"ratio": [0.5, 0.7]}, other], rows)
    assert (first["row"]["run"], first["outcome"]) == ("2026-10-28", "holds here")
    assert (second["row"], second["outcome"]) == (None, "not measured here")
    (course / claims.NAME).write_text(
        "[[claim]]\n" + "".join(f"{key} = '{value}'\n" for key, value in CLAIM.items()) + "ratio = [0.5, 0.7]\n"
    )
    page = report.write_index(course).read_text(encoding="utf-8")
    assert "Published claims beside what was measured here" in page
    assert "holds here" in page


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[claim]\n", "expected a TOML file, found"),
        ("[[claims]]\n", r"expected \[\[claim\]\] tables alone, found 'claims'"),
        ("[[claim]]\nwhat = 'w'\n", "claim 1: expected the key 'published', found none"),
        ("[[claim]]\nwhat = 1\n", "claim 1: what: expected a string, found 1"),
        ("[[claim]]\nelsewhere = 1\n", "claim 1: elsewhere: expected a string, found 1"),
        ("[[claim]]\nelsewhere = 'e'\nwhat = 'w'\n", "claim 1: expected the key 'published', found none"),
        (
            "[[claim]]\nelsewhere = 'e'\nwhat = 'w'\npublished = 'p'\nsource = 's'\na = 'a'\n",
            "claim 1: expected 'elsewhere' or arms that show it, found 'a' too",
        ),
        ("[[claim]]\nparameters = 1\n", "claim 1: parameters: expected a table, found 1"),
        ("[[claim]]\nsorce = 's'\n", "found 'sorce'; did you mean 'source'"),
        ("[[claim]]\nratio = [0.9, 0.7]\n", r"ratio: expected two numbers, the lower first, found \[0.9, 0.7\]"),
    ],
)
def test_a_bad_claim_is_refused_with_its_place(tmp_path, text, complaint):
    (tmp_path / claims.NAME).write_text(text)
    with pytest.raises(ConfigurationError, match=complaint):
        claims.read(tmp_path)
