"""Every kind of page against axe-core in headless Chromium: no serious and no critical finding, light and dark."""

import importlib.util
import json
import os
import re
from html import unescape
from pathlib import Path

import pytest
from test_report_browser import CHROMIUM, browse

from harness import records, report

DATA = Path(__file__).parents[1] / "data" / "records"
pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(CHROMIUM is None and os.environ.get("CI") != "true", reason="no Chromium on this machine"),
]
RUN = """
axe.run(document, {resultTypes: ["violations"]}).then(found => {
  const told = found.violations.map(v => ({id: v.id, impact: v.impact, nodes: v.nodes.map(n => n.html.slice(0, 200))}));
  document.body.setAttribute("data-axe", JSON.stringify({violations: told, passes: found.passes.length}));
}, error => document.body.setAttribute("data-axe", JSON.stringify({error: String(error)})));
"""


def findings(page: Path, folder: Path, *options: str) -> list[dict]:
    """What axe-core finds on a page; the page's own policy would forbid the script that is put into it."""
    package = importlib.util.find_spec("axe_core_python")
    assert package is not None, "axe-core-python is among the tests' requirements"
    axe = (Path(package.origin).parent / "axe.min.js").read_text()
    text, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    assert count <= 1
    copy = folder / "with-axe.html"
    copy.write_text(text + f"<script>{axe}</script><script>{RUN}</script>")
    dom, _ = browse(copy, folder, "--virtual-time-budget=20000", *options)  # the last one counts
    said = re.search(r'data-axe="([^"]*)"', dom)
    assert said, "axe-core did not finish"
    found = json.loads(unescape(said[1]))
    assert "error" not in found, found
    assert found["passes"] > 10
    return [one for one in found["violations"] if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["improvement", "hostile", "voids", "statistical", "undecided"])
def test_a_report_has_no_serious_finding(name, dark, tmp_path):
    report.write(tmp_path, records.read(DATA / f"{name}.jsonl"))
    assert (
        findings(tmp_path / "report.html", tmp_path, *(["--blink-settings=preferredColorScheme=0"] if dark else []))
        == []
    )


def test_the_index_has_no_serious_finding(tmp_path):
    for name in ("improvement", "regression", "hostile", "different"):
        place = tmp_path / "reports" / name
        place.mkdir(parents=True)
        (place / records.NAME).write_bytes((DATA / f"{name}.jsonl").read_bytes())
    assert findings(report.write_index(tmp_path / "reports"), tmp_path) == []


def test_a_page_without_language_and_with_pale_text_is_found(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<!DOCTYPE html><html><body><main><h1 style='color:#ddd'>pale</h1><img src='data:,'></main></body></html>"
    )
    assert {one["id"] for one in findings(page, tmp_path)} >= {"html-has-lang", "color-contrast", "image-alt"}
