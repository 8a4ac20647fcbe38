"""Three projects of other people, gated by the scenarios that docs/ci/README.md shows, word by word.

What is planted costs several times the margin, or is counted in instructions: no noise can hide it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = {
    tomllib.loads(block)["scenario"]["name"]: block
    for block in re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "ci" / "README.md").read_text(), re.DOTALL)
}
SIMULATE = """\
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    double x = 0, v = 1;
    long steps = atol(words[1]);
    for (long i = 0; i < steps; i++) { v -= 1e-3 * x; x += 1e-3 * v; }
    /* planted */
    FILE *file = fopen("energy.txt", "w");
    fprintf(file, "%.9f\\n", x * x + v * v);
    return fclose(file);
}
"""
PARSING = """\
def parse(text):
    return [int(word) for word in text.split(",")]
"""
BENCH = """\
from parsing import parse

def test_parsing(benchmark):
    assert sum(benchmark(parse, ",".join(map(str, range(500))))) == 124750
"""
WORDS = """\
# The most frequent words of a file.
count() { tr -s ' ' '\\n' < "$1" | sort | uniq -c | sort -rn; }
count "$1" > counts.txt
"""
PROJECTS = {
    "simulate": (
        {"simulate.c": SIMULATE, "Makefile": "simulate: simulate.c\n\t$(CC) -O1 -o $@ $<\n"},
        ("simulate.c", "/* planted */", "for (volatile long i = 0; i < steps / 5; i++) {}"),
    ),
    "parsing": (
        {"parsing.py": PARSING, "bench/test_parsing.py": BENCH},
        ("parsing.py", "    return [", "    sorted(text.split(',') * 9)\n    return ["),
    ),
    "words": (
        {"words.sh": WORDS, "text.txt": "the quick brown fox jumps over the lazy dog\n" * 200},
        ("words.sh", 'count "$1" >', 'for again in 1 2 3 4 5 6; do count "$1" > /dev/null; done; count "$1" >'),
    ),
}


def git(folder, *words):
    identity = ["-c", "user.name=Stranger", "-c", "user.email=s@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", list(PROJECTS))
def test_a_strangers_project_is_gated_by_the_scenario_of_the_manual(name, tmp_path):
    needed = {"simulate": ("make", "cc", "valgrind")}.get(name, ())
    missing = [program for program in needed if shutil.which(program) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"{', '.join(missing)} not installed")
    scenario = SHOWN[name]
    assert len(scenario.splitlines()) < 25
    files, (changed, old, new) = PROJECTS[name]
    for path, text in {**files, f"scenarios/{name}.toml": scenario, ".gitignore": "reports/\n"}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "base")
    text = (tmp_path / changed).read_text()
    assert text.count(old) == 1
    (tmp_path / changed).write_text(text.replace(old, new))
    git(tmp_path, "commit", "-q", "-a", "-m", "slower")
    words = [sys.executable, "-m", "harness", "gate", "--json", "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr + done.stdout
    (found,) = json.loads(done.stdout)["scenarios"]
    assert (found["scenario"], found["verdict"]["word"]) == (name, "regression")
    assert found["fingerprints"]["agree"] is not False
    status = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert status.stdout == ""
