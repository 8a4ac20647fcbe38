"""What the README shows is what happens: its commands run, its example arm is measured, its words are the harness's."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [re.sub(r"\s+#.*", "", line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def test_the_make_targets_exist():
    targets = [line.split()[1] for line in commands() if line.startswith("make ")]
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert f"\n{target}: " in makefile


@pytest.mark.parametrize("command", ["list", "show subdivision"])
def test_a_looking_command_runs_as_printed(harness, command):
    assert f".venv/bin/harness {command}" in commands()
    done = harness(*shlex.split(command))
    assert done.returncode == 0, done.stderr
    assert "corner-passing" in done.stdout


def test_two_commands_are_compared_as_printed(harness, tmp_path):
    command = next(line for line in commands() if "sleep" in line)
    done = harness(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "report: reports/command-" in done.stdout


def test_every_command_and_option_of_the_readme_exists(harness):
    known = harness("--help").stdout
    for command in re.findall(r"`harness (\w+)", README):
        assert re.search(rf"^  {command} ", known, re.MULTILINE), command
    assert "--dry-run" in harness("gate", "--help").stdout
    assert "--strict" in harness("ab", "--help").stdout


def test_the_verdicts_are_those_of_the_harness():
    from harness import gate

    rows = re.findall(r"^\| `([\w-]+)` \|.*\| (\d) \|$", README, re.MULTILINE)
    assert {word: int(code) for word, code in rows} == gate.EXIT_CODES


def test_the_example_scenario_and_arm_are_measured(harness, tmp_path):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "bench").mkdir()
    (tmp_path / "scenarios" / "parser.toml").write_text(
        next(block for block in blocks("toml") if "[scenario]" in block)
    )
    (tmp_path / "bench" / "parser_arm.py").write_text(blocks("python")[0])
    done = harness(
        "ab", "parser:old", "parser:new,rows=1000", "-p", "rows=1000", "--blocks", 6, "--pairs", 2, cwd=tmp_path
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert "outputs     agree (policy exact)" in done.stdout
    by_hand = harness("run", "parser:new", "-p", "rows=10", cwd=tmp_path)
    assert by_hand.returncode == 0, by_hand.stderr
    assert '"work":10' in by_hand.stdout
