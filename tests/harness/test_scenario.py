"""A scenario file is read with every default filled in, or refused with a sentence that names the place."""

import pytest

from harness import scenario
from harness.errors import ConfigurationError

GOOD = """\
[scenario]
name = "grouping"
question = "Is one call faster than four?"
workload = ["python", "-m", "impl.mapping.arm"]
metric = "cpu_seconds_per_unit"
fingerprint = "keys"
predict.ratio = [0.75, 0.95]

[parameters]
frames = 64

[arms.per-frame]
frames_per_group = 1
[arms.grouped]
frames_per_group = 4
[arms.grouped.run]
env = { OMP_NUM_THREADS = "1" }

[schedule]
blocks = 6
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "grouping.toml").write_text(GOOD)
    return tmp_path


def edit(project, old, new):
    path = project / "scenarios" / "grouping.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def refusal(project, overrides=None, name="grouping"):
    with pytest.raises(ConfigurationError) as caught:
        scenario.load(project, name, overrides)
    return str(caught.value)


def test_a_file_becomes_a_scenario_with_every_default(project):
    loaded = scenario.load(project, "grouping")
    assert loaded.name == "grouping"
    assert loaded.schedule.mode == "resident"
    assert (loaded.schedule.fixed_units, loaded.schedule.pairs_in_block, loaded.schedule.warmup) == (6, 10, 2)
    assert loaded.gate.margin == 0.02
    assert loaded.gate.alpha == 0.05
    assert loaded.scenario.predict.ratio == [0.75, 0.95]
    assert loaded.arms["grouped"].parameters == {"frames_per_group": 4}
    assert loaded.arms["grouped"].run.env == {"OMP_NUM_THREADS": "1"}
    assert loaded.as_dict()["scenario"]["timeout"] == 600.0


def test_process_mode_counts_pairs(project):
    loaded = scenario.load(project, "grouping", {"schedule.mode": "process"})
    assert loaded.schedule.fixed_units is None  # it looks at its pairs, and stops when they decide
    three = scenario.load(project, "grouping", {"schedule.mode": "process", "schedule.pairs": 3})
    assert (three.schedule.fixed_units, three.schedule.pairs_in_block) == (3, 1)


def test_an_override_reaches_any_key(project):
    loaded = scenario.load(project, "grouping", {"gate.margin": 0.1, "scenario.predict.ratio": [0.5, 0.6]})
    assert loaded.gate.margin == 0.1
    assert loaded.scenario.predict.ratio == [0.5, 0.6]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "blocks = 6",
            "blocks = 'eight'",
            "scenarios/grouping.toml: schedule.blocks: expected a whole number of at least 1, found 'eight'; try 8",
        ),
        (
            "blocks = 6",
            "blocks = 0",
            "scenarios/grouping.toml: schedule.blocks: expected a whole number of at least 1, found 0; try 8",
        ),
        (
            "blocks = 6",
            "block = 6",
            "scenarios/grouping.toml: schedule.block: expected one of 'anytime', 'blocks', 'control', 'mode', 'pairs', "
            "'pilot', 'quads', 'seed', 'time_budget', 'warmup', found 'block'; did you mean 'blocks'?",
        ),
        (
            "[schedule]",
            "[shedule]",
            "scenarios/grouping.toml: shedule: expected one of 'accuracy', 'arms', 'gate', 'limits', "
            "'parameters', 'scenario', 'schedule', 'work', found 'shedule'; did you mean 'schedule'?",
        ),
        (
            'fingerprint = "keys"',
            'fingerprint = "key"',
            "scenarios/grouping.toml: scenario.fingerprint: expected 'exact', 'keys', 'statistical' or 'none', "
            "found 'key'; "
            'try "exact"',
        ),
        (GOOD, "[arms.a]", "scenarios/grouping.toml: scenario: expected a table [scenario], found nothing; add it"),
        ('name = "grouping"', "", "scenarios/grouping.toml: scenario.name: expected a string, found nothing; add it"),
        (
            'name = "grouping"',
            'name = "groups"',
            "scenarios/grouping.toml: scenario.name: expected 'grouping', found 'groups'",
        ),
        (
            "predict.ratio = [0.75, 0.95]",
            "predict.ratio = [0.95, 0.75]",
            "scenarios/grouping.toml: scenario.predict.ratio: expected two numbers above 0, the lower first, "
            "found [0.95, 0.75]; try [0.8, 0.9]",
        ),
        (
            "predict.ratio = [0.75, 0.95]",
            'predict.ratio = [0.75, 0.95]\npredict.arms = ["grouped", "groupd"]',
            "scenarios/grouping.toml: scenario.predict.arms: expected two of 'grouped', 'per-frame', A first, "
            "found ['grouped', 'groupd']",
        ),
        (
            "[arms.grouped]\nframes_per_group = 4",
            "[arms.grouped]\nframes_per_group = {a = 1}",
            "scenarios/grouping.toml: arms.grouped.frames_per_group: expected a number, a string, true, false or a "
            "list, found {'a': 1}",
        ),
        (
            'workload = ["python", "-m", "impl.mapping.arm"]',
            "",
            "scenarios/grouping.toml: arms.per-frame: expected a command to run, "
            "found neither scenario.workload nor run.command",
        ),
        (
            'env = { OMP_NUM_THREADS = "1" }',
            "env = 3",
            "scenarios/grouping.toml: arms.grouped.run.env: expected a table of strings, found 3",
        ),
    ],
)
def test_a_fault_is_one_sentence_with_its_place(project, old, new, sentence):
    edit(project, old, new)
    assert refusal(project) == sentence


def test_an_unknown_scenario_gets_the_nearest_name(project):
    assert refusal(project, name="groping") == "no scenario 'groping'; there is 'grouping'; did you mean 'grouping'?"


def test_broken_toml_names_the_line(project):
    edit(project, "[schedule]", "[schedule")
    assert refusal(project).startswith("scenarios/grouping.toml: expected TOML, found ")
    assert "line 19" in refusal(project)


def test_an_override_needs_its_table(project):
    assert refusal(project, {"blocks": 3}) == (
        "-s blocks: expected table.key=value, found 'blocks'; "
        "the tables are scenario, parameters, schedule, gate, work, limits, accuracy"
    )
    assert refusal(project, {"scenario.name.x": 3}) == (
        "-s scenario.name.x: expected a path of tables, found a value at 'name'"
    )


def test_the_project_is_found_from_a_folder_below(project, tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert scenario.project_root(below) == tmp_path
    assert scenario.project_root(tmp_path.parent) is None


def test_every_scenario_of_the_repository_can_be_read_and_opens_with_its_question():
    from pathlib import Path

    root = Path(__file__).parents[2]
    for name in scenario.names(root):
        loaded = scenario.load(root, name)
        first = (root / "scenarios" / f"{name}.toml").read_text().splitlines()[0]
        assert first == f"# {loaded.scenario.question}"
        assert loaded.scenario.question.endswith("?")
        # one arm is enough for a gate, which compares it with itself at the base revision
        assert len(loaded.arms) >= (1 if name in scenario.gated(root) else 2)
