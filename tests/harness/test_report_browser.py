"""Pages in headless Chromium: no error on the console, no request, no dialog.

Skipped where there is no Chromium, but not in continuous integration, which installs it.
"""

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harness import records, report
from harness.report import index

DATA = Path(__file__).parents[1] / "data" / "records"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
#: pixels across a sheet of A4 upright and lying, between the browser's margins of 0.4 inches
SHEET = (716, 1045)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="no Chromium on this machine"
)
sys.path.insert(0, str(DATA))
import make  # noqa: E402

specification = importlib.util.spec_from_file_location(
    "make_reference", Path(__file__).parents[2] / "reports" / "reference" / "make.py"
)
make_reference = importlib.util.module_from_spec(specification)
specification.loader.exec_module(make_reference)


def browse(page, folder, *options):
    """The page as the browser has it after loading, and what it said on its console."""
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
            *("--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000"),
            *(*options, "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HOME": str(folder)},
    )
    assert done.returncode == 0
    return done.stdout, re.findall(r"CONSOLE.*?\] \"(.*)\", source", done.stderr)


def width(page, folder, available, printed=False):
    """How wide a page is where so many pixels are available, as a screen or as paper."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    if printed:
        text = text.replace("@media print", "@media all")
    inside, outside = folder / "inside.html", folder / "outside.html"
    inside.write_text(text + "<script>parent.postMessage(document.documentElement.scrollWidth, '*')</script>")
    outside.write_text(
        "<!DOCTYPE html><body><script>onmessage = told => document.body.setAttribute('data-width', told.data)</script>"
        f'<iframe src="inside.html" width="{available}" height="800" style="border: 0"></iframe>'
    )
    dom, _ = browse(outside, folder, "--hide-scrollbars", f"--window-size={max(600, available + 40)},900")
    return int(re.search(r'data-width="(\d+)"', dom)[1])


def indexed(folder, *names):
    """The index over some of the stored records."""
    for name in names:
        place = folder / "reports" / name
        place.mkdir(parents=True)
        (place / records.NAME).write_bytes((DATA / f"{name}.jsonl").read_bytes())
    return report.write_index(folder / "reports")


@pytest.mark.parametrize("name", ["compiled", "hostile", "voids", "wrong-result", "statistical", "different"])
def test_no_report_is_wider_than_a_phone_or_a_sheet(name, tmp_path):
    report.write(tmp_path, records.read(DATA / f"{name}.jsonl"))
    assert width(tmp_path / "report.html", tmp_path, 390) == 390
    assert width(tmp_path / "report.html", tmp_path, SHEET[0], printed=True) == SHEET[0]


def test_no_index_is_wider_than_a_phone_or_a_sheet(tmp_path):
    page = indexed(tmp_path, "improvement", "regression", "hostile", "different", "command")
    assert width(page, tmp_path, 390) == 390
    assert width(page, tmp_path, SHEET[1], printed=True) == SHEET[1]


def test_what_is_too_wide_is_seen(tmp_path):
    page = tmp_path / "wide.html"
    page.write_text("<!DOCTYPE html><style>@media print { p { width: 900px } }</style><pre>" + "x" * 100 + "</pre><p>y")
    assert 600 < width(page, tmp_path, 390) < 900
    assert width(page, tmp_path, 390, printed=True) >= 900


def test_hostile_page_is_quiet_and_whole(tmp_path):
    report.write(tmp_path, records.read(DATA / "hostile.jsonl"))
    dom, console = browse(tmp_path / "report.html", tmp_path)
    assert console == []
    assert dom.count("<script") == 0
    assert "Repeat it" in dom


@pytest.mark.parametrize(
    ("mode", "blocks", "pairs"),
    [("resident", 100, 100), pytest.param("process", 10_000, 1, marks=pytest.mark.slow)],
)
def test_a_page_of_10000_pairs_opens_and_grows_by_its_record_alone(mode, blocks, pairs, tmp_path):
    maker = make.Maker("most", "Are 10,000 pairs too many?", mode=mode, blocks=blocks, pairs=pairs)
    report.write(tmp_path, maker.blocks_of(0.9).end())
    page = tmp_path / "report.html"
    dom, console = browse(page, tmp_path)
    assert console == []
    planned = f"{blocks:,} of {blocks:,} planned are kept"
    for part in (planned, "B won", "more are in the record" if blocks > 400 else "order of pairs", "Repeat it"):
        assert part in dom, part
    assert dom.rstrip().endswith("</html>")
    record = len(re.search(r"base64,([A-Za-z0-9+/=]*)", dom)[1])
    # What is drawn is thinned: at most 8 series of 2,400 dots of 14 bytes, 4 stacks of 1,200 bars of 32, 400 rows of
    # 250; with style and words some 600,000 bytes, however many pairs. The record, compressed, has some 200 a pair.
    assert len(page.read_bytes()) - record < 600_000
    assert record < 300 * 10_000


def test_the_console_is_heard(tmp_path):
    page = tmp_path / "noisy.html"
    page.write_text("<!DOCTYPE html><script>console.error('heard')</script>")
    assert browse(page, tmp_path)[1] == ["heard"]


def test_picture_of_a_reference_is_taken(tmp_path, capsys):
    place = tmp_path / "grouping" / "one"
    place.mkdir(parents=True)
    (place / records.NAME).write_bytes((DATA / "improvement.jsonl").read_bytes())
    report.write(place, records.read(place))
    assert make_reference.main(["--picture", "grouping", "--folder", str(tmp_path)]) == 0
    head = (tmp_path / "report.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24]) == (1100, 1260)
    assert make_reference.main(["--picture", "nowhere", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"no comparison of 'nowhere' in {tmp_path}\n"


def test_index_script_runs_under_its_policy(tmp_path):
    dom, console = browse(indexed(tmp_path, "improvement", "regression", "hostile"), tmp_path)
    assert console == []
    assert "3 of 3" in dom
    assert dom.count('<button type="button">') == 13
    assert len(index.collect(tmp_path)) == 3
