"""A reference becomes the command that was meant, or a sentence says why it cannot."""

import shutil
import sys

import pytest

from harness import arms
from harness.errors import ConfigurationError, UnfitError

SCENARIO = """\
# Is B faster?
[scenario]
name = "{name}"
workload = ["python", "-m", "work.arm"]
[parameters]
frames = 64
[arms.{a}]
group = 1
[arms.{b}]
group = 4
note = "two words"
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "grouping.toml").write_text(SCENARIO.format(name="grouping", a="per-frame", b="grouped"))
    (folder / "other.toml").write_text(SCENARIO.format(name="other", a="per-frame", b="tiled"))
    return tmp_path


def refusal(kind, *references, **options):
    with pytest.raises(kind) as caught:
        arms.resolve(*references, **options)
    return str(caught.value)


def test_scenario_arms_carry_their_parameters_as_toml(project):
    found = arms.resolve("grouping:per-frame", "grouping:grouped", start=project)
    assert found.b.command == [
        *(sys.executable, "-m", "work.arm", "--arm", "grouped"),
        *("--set", "frames=64", "--set", "group=4", "--set", 'note="two words"'),
    ]
    assert found.b.parameters == {"frames": 64, "group": 4, "note": "two words"}
    assert found.a.cwd == str(project)
    assert found.a.speaks_protocol
    assert found.root == project


def test_settings_of_an_arm_win_over_those_of_both(project):
    found = arms.resolve(
        "grouping:grouped", "grouping:grouped,group=8", start=project, parameters={"frames": 8, "group": 2}
    )
    assert found.a.parameters["group"] == 2
    assert found.b.parameters["group"] == 8
    assert found.a.parameters["frames"] == found.b.parameters["frames"] == 8


def test_a_bare_arm_is_taken_from_the_one_scenario_that_has_both(project):
    found = arms.resolve("per-frame", "grouped", start=project)
    assert found.scenario.name == "grouping"
    assert arms.resolve("per-frame", "tiled", start=project).scenario.name == "other"


def test_a_bare_arm_in_two_scenarios_is_not_guessed(project):
    assert refusal(ConfigurationError, "per-frame", "per-frame", start=project) == (
        "'per-frame' is an arm of more than one scenario; write one of 'grouping:per-frame', 'other:per-frame'"
    )


def test_an_arm_that_is_also_a_program_is_not_guessed(project):
    path = project / "scenarios" / "grouping.toml"
    path.write_text(path.read_text().replace("arms.grouped", "arms.cat"))
    cat = shutil.which("cat")
    assert refusal(ConfigurationError, "cat", "cat", start=project) == (
        f"'cat' can be read in two ways: arm 'grouping:cat' and the program {cat}; write one of them"
    )


def test_commands_are_split_as_a_shell_would(project):
    found = arms.resolve("cat 'a b' c", f"{shutil.which('cat')} d", start=project)
    assert found.a.command == [shutil.which("cat"), "a b", "c"]
    assert found.scenario.schedule.mode == "process"
    assert found.scenario.name.startswith("command-")
    assert not found.a.speaks_protocol
    assert found.scenario.name != arms.resolve("cat d", "cat 'a b' c", start=project).scenario.name


def test_a_shell_gets_commands_that_are_one_string(project):
    path = project / "scenarios" / "other.toml"
    runs = "[arms.{0}.run]\ncommand = {1}\n"
    path.write_text(
        '[scenario]\nname = "other"\n[schedule]\nmode = "process"\n'
        + runs.format("one", '"cat a | cat"')
        + runs.format("two", '["cat", "a | b"]')
    )
    found = arms.resolve("other:one", "other:two", start=project)
    assert found.a.command[1:] == ["a", "|", "cat"]
    assert found.b.command[1:] == ["a | b"]
    found = arms.resolve("other:one", "other:two", start=project, overrides={"scenario.shell": True})
    assert found.a.command == ["/bin/sh", "-c", "cat a | cat"]
    assert found.b.command[1:] == ["a | b"]
    assert not found.a.speaks_protocol


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("stdin", "scenarios/other.toml", "its commands come on standard input"),
        ("outputs", ["out/*"], "its fingerprint says what it made"),
    ],
)
def test_keys_for_commands_are_refused_where_an_arm_speaks_the_protocol(project, key, value, hint):
    overrides = {f"scenario.{key}": value}
    assert refusal(
        ConfigurationError, "grouping:grouped", "grouping:per-frame", start=project, overrides=overrides
    ) == (f"scenario.{key}: expected two arms that are commands, found one that speaks the worker protocol; {hint}")


def test_outputs_of_commands_are_compared_exactly(project):
    found = arms.resolve("cat a", "cat b", start=project, overrides={"scenario.outputs": ["out/*"]})
    assert found.scenario.scenario.fingerprint == "exact"
    assert found.scenario.work.minimum == 1


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        (
            "grouping:groupd",
            "grouping:grouped",
            "no arm 'groupd' in scenario 'grouping'; it has 'grouped', 'per-frame'; did you mean 'grouped'?",
        ),
        (
            "groping:grouped",
            "grouping:grouped",
            "'groping:grouped' and 'grouping:grouped' belong to two scenarios; a comparison asks one question: "
            "take both arms from one of them",
        ),
        ("groping:a", "groping:b", "no scenario 'groping'; there is 'grouping', 'other'; did you mean 'grouping'?"),
        (
            "grouped",
            "perframe",
            "no arm 'grouped' in a scenario that has both arms, and no program of that name; did you mean 'grouped'?",
        ),
        (
            "grouping:grouped",
            "cat x",
            "'grouping:grouped' is an arm of a scenario and 'cat x' is a command; compare like with like",
        ),
        ("cat 'x", "cat y", "command 'cat 'x': expected words as a shell splits them, found No closing quotation"),
        ("", "cat y", "arm: expected a reference or a command, found an empty string"),
    ],
)
def test_a_reference_that_cannot_be_read_says_why(project, a, b, sentence):
    assert refusal(ConfigurationError, a, b, start=project) == sentence


def test_a_missing_program_means_that_nothing_was_measured(project):
    assert refusal(UnfitError, "no-such-program x", "cat y", start=project) == (
        "nothing was measured: there is no program 'no-such-program' on PATH"
    )


def test_parameters_belong_to_scenarios(project):
    assert refusal(ConfigurationError, "cat x", "cat y", start=project, parameters={"depth": 1}) == (
        "-p: expected two arms of a scenario, found commands; write parameters into the commands themselves"
    )


def test_without_a_project_a_scenario_reference_says_where_to_go(tmp_path):
    assert refusal(ConfigurationError, "grouping:a", "grouping:b", start=tmp_path) == (
        "'grouping:a' names a scenario, but no folder 'scenarios' was found here or above; go into the project"
    )
