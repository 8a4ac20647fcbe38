"""Every scripted arm ends as the rules of measuring say: with a verdict, a sentence, a complete record, no process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import analysis, comparison, records
from harness.errors import ConfigurationError, UnfitError

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = ROOT / "tests" / "arms" / "scripted.py"
COMMAND = ROOT / "tests" / "arms" / "command.py"

SCENARIO = f"""\
# Is B faster?
[scenario]
name = "scripted"
question = "Is B faster?"
workload = ["python", "{SCRIPTED}"]
metric = "seconds"
fingerprint = "exact"
timeout = 5.0

[arms.plain]
[arms.other]
[arms.bound]
[arms.bound.run]
kind = "ceiling"

[schedule]
blocks = 6
pairs = 2
warmup = 1
seed = 11

[work]
unit = "row"
minimum = 1
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "scripted.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(**parameters):
    return "".join(f",{key}={json.dumps(value)}" for key, value in parameters.items())


def ab(a="", b="", arms=("plain", "other"), keep_going=False, **overrides):
    """Compare scripted:plain<a> with scripted:other<b>; the folder, entries and summary."""
    folder = comparison.compare(
        f"scripted:{arms[0]}{a}",
        f"scripted:{arms[1]}{b}",
        parameters={},
        overrides={key.replace("__", "."): value for key, value in overrides.items()},
        command=["ab"],
        quiet=True,
        keep_going=keep_going,
    )
    entries = records.read(folder)
    return folder, entries, analysis.summarise(entries)


def scripted_processes():
    """Command lines of scripted arms, and of the daemon that one leaves behind, that still run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(SCRIPTED) in line or line.strip() == "sleep 600":
            found.append(line)
    return found


def check_nothing_is_left():
    deadline = time.monotonic() + 2
    while scripted_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert scripted_processes() == []


# ----------------------------------------------------------------------------------------------- what comes out


@pytest.mark.parametrize("mode", ["resident", "process"])
@pytest.mark.parametrize(
    ("seconds", "word", "code"), [(0.01, "equivalent", 0), (0.011, "regression", 1), (0.008, "improvement", 0)]
)
def test_given_times_give_the_verdict(project, mode, seconds, word, code):
    blocks = {"schedule__blocks": 6, "schedule__pairs": 2} if mode == "resident" else {"schedule__pairs": 6}
    _, entries, summary = ab(b=settings(seconds=seconds), schedule__mode=mode, **blocks)
    assert (summary["verdict"]["word"], summary["exit_code"]) == (word, code)
    assert summary["ratio"]["estimate"] == pytest.approx(seconds / 0.01)
    assert summary["units"] == {"planned": 6, "run": 6, "kept": 6, "wrong": 0, "set_aside": {}}
    assert summary["clock"] == "scripted"
    assert isinstance(entries[-1], records.End)
    assert entries[-1].state == "complete"
    check_nothing_is_left()


def test_order_follows_the_coins_and_both_orders_occur(project):
    _, entries, _ = ab(schedule__blocks=8, schedule__pairs=4)
    from harness import schedule

    for unit in range(8):
        steady = [slot for slot in records.of(entries, records.Slot) if slot.unit == unit and slot.phase == "steady"]
        letters = "".join(slot.arm.upper() for slot in steady)
        assert letters == "".join(schedule.plan_unit(11, unit, "resident", 4).pairs)
        launched = [launch.arm.upper() for launch in records.of(entries, records.Launch) if launch.unit == unit]
        assert "".join(launched) == schedule.plan_unit(11, unit, "resident", 4).launch
    everything = {slot.position: set() for slot in records.of(entries, records.Slot) if slot.pair is not None}
    for slot in records.of(entries, records.Slot):
        if slot.pair is not None:
            everything[slot.position].add(slot.arm)
    assert everything == {0: {"a", "b"}, 1: {"a", "b"}}


VOIDS = {
    "junk": "protocol",
    "half": "protocol",
    "exit": "exit",
    "crash": "crash",
    "kill": "killed",
    "quit": "protocol",
    "talk": "protocol",
    "lie": "time",
}


@pytest.mark.parametrize(("does", "reason"), VOIDS.items())
def test_a_fault_in_every_run_of_b_is_void_and_fails_b(project, does, reason):
    extra = {"seconds": 1000.0} if does == "lie" else {}
    _, entries, summary = ab(b=settings(does=does, at=1, **extra))
    voids = records.of(entries, records.Void)
    assert {void.reason for void in voids} == {reason}
    assert {void.arm for void in voids} == {"b"}
    assert len(voids) == 5  # 2^-5 < .05: more would only cost time
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("regression", 1)
    assert summary["voids"]["b"] == {reason: 5}
    assert all(void.message for void in voids)
    check_nothing_is_left()


def test_an_arm_over_its_memory_limit_is_void_with_that_reason_and_one_below_it_is_not(project):
    _, entries, summary = ab(b=settings(does="memory", at=1), scenario__memory_limit=400 << 20)
    voids = records.of(entries, records.Void)
    assert [(void.arm, void.reason) for void in voids] == [("b", "memory")] * 5
    assert "found no memory left within the limit of 400 MiB a process" in voids[0].message
    assert summary["voids"] == {"a": {}, "b": {"memory": 5}}
    assert summary["void_shares"]["b"]["low"] > 0.4
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("regression", 1)


def test_a_base_that_does_not_run_is_unfit(project):
    _, _, summary = ab(a=settings(does="exit"))
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("unfit", 4)


@pytest.mark.parametrize("does", ["hang", "close-pipe", "ignore-close"])
def test_one_hang_is_replaced_and_does_not_decide(project, does):
    state = settings(state=str(project / "launches"), launch=1, does=does, at=1 if does != "ignore-close" else 0)
    if does == "ignore-close":  # every launch ignores it: one arm that never closes
        state = settings(does=does)
    _, entries, summary = ab(b=state, scenario__timeout=1.0)
    voids = records.of(entries, records.Void)
    assert {void.reason for void in voids} <= {"timeout", "protocol"}
    if does == "ignore-close":
        assert summary["verdict"]["word"] == "regression"
    else:
        assert len(voids) == 1
        assert summary["units"] == {"planned": 6, "run": 7, "kept": 6, "wrong": 0, "set_aside": {}}
        assert summary["verdict"]["word"] == "equivalent"
    if does == "hang":
        assert "wait_for_ever" in voids[0].stacks or "its threads as the kernel sees them" in voids[0].stacks
    check_nothing_is_left()


@pytest.mark.parametrize(
    ("fault", "policy"),
    [
        ({"does": "wrong", "at": 2, "every": 20}, "exact"),
        ({"does": "wrong", "at": 2, "every": 20}, "keys"),
        ({"does": "off", "at": 2}, "exact"),
        ({"does": "off", "at": 2}, "keys"),
        ({"does": "nothing", "at": 2}, "exact"),
        ({"does": "nothing", "at": 2}, "none"),
        ({"rows": 999}, "exact"),
    ],
)
@pytest.mark.parametrize("arm", ["a", "b"])
def test_a_wrong_output_fails_whatever_the_times(project, fault, policy, arm):
    _, entries, summary = ab(**{arm: settings(seconds=0.005, **fault)}, scenario__fingerprint=policy)
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("wrong-result", 1)
    assert entries[-1].state == "stopped"
    assert summary["units"]["run"] == 1
    if policy != "none" and "rows" not in fault:
        reruns = [one.arm for one in records.of(entries, records.Fingerprint) if one.when == "rerun"]
        assert sorted(reruns) == ["a", "a", "a", "b", "b", "b"]
        assert summary["fingerprints"]["odd"] == arm
    check_nothing_is_left()


def test_keep_going_finishes_the_comparison_and_fails_all_the_same(project):
    fault = settings(state=str(project / "launches"), launch=2, does="wrong", at=2)
    _, entries, summary = ab(b=fault, keep_going=True)
    assert summary["verdict"]["word"] == "wrong-result"
    assert summary["units"]["run"] >= 6
    assert summary["units"]["wrong"] == 1
    assert entries[-1].state == "complete"


def test_totals_that_differ_within_the_tolerance_agree(project):
    tiny = settings(does="off", by=1e-13)
    assert ab(b=tiny, scenario__fingerprint="keys")[2]["verdict"]["word"] == "equivalent"
    assert ab(b=tiny, scenario__fingerprint="exact")[2]["verdict"]["word"] == "wrong-result"
    loose = ab(b=settings(does="off", by=1e-4), scenario__fingerprint="keys", scenario__totals_rtol=1e-3)
    assert loose[2]["verdict"]["word"] == "equivalent"


def test_a_ceiling_may_leave_work_out_but_never_wins(project):
    _, _, summary = ab(b=settings(seconds=0.005, rows=10), arms=("plain", "bound"))
    assert summary["verdict"]["word"] == "inconclusive"
    assert "ceiling" in summary["verdict"]["reason"]
    assert summary["ratio"]["estimate"] == pytest.approx(0.5)


@pytest.mark.parametrize("does", ["leave", "fork"])
def test_children_and_daemons_are_ended(project, does):
    _, _, summary = ab(b=settings(does=does), schedule__blocks=1)
    assert summary["verdict"]["word"] == "inconclusive"
    check_nothing_is_left()


@pytest.mark.parametrize("pairs", [3, 4, 5])
def test_too_few_units_are_inconclusive_however_large_the_effect(project, pairs):
    _, _, summary = ab(b=settings(seconds=0.1), schedule__mode="process", schedule__pairs=pairs)
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("inconclusive", 3)
    assert summary["ratio"]["low"] is None
    assert "6 units are needed" in summary["verdict"]["reason"]


def test_a_predicted_band_is_met_or_missed(project):
    assert ab(b=settings(seconds=0.009), scenario__predict__ratio=[0.85, 0.95])[2]["predict"]["met"] is True
    assert ab(b=settings(seconds=0.009), scenario__predict__ratio=[0.5, 0.6])[2]["predict"]["met"] is False


def test_where_more_is_better_a_larger_value_is_an_improvement(project):
    _, _, summary = ab(b=settings(seconds=0.02), scenario__direction="higher")
    assert summary["verdict"]["word"] == "improvement"


# --------------------------------------------------------------------------------------------- what is refused


def refusal(*arguments, kind=ConfigurationError, **options):
    with pytest.raises(kind) as caught:
        ab(*arguments, **options)
    return str(caught.value)


def test_an_arm_that_refuses_its_input_leaves_no_comparison_behind(project):
    text = refusal(b=settings(does="error"))
    assert text == "rows: expected at least 1, found 0; try 1000"
    assert list((project / "reports" / "scripted").iterdir()) == []
    check_nothing_is_left()


def test_an_unknown_parameter_is_refused_with_the_nearest_name(project):
    text = refusal(b=settings(secnds=1.0))
    assert text.startswith("workload 'scripted': parameter: expected one of at, burn, by, does")
    assert text.endswith("found 'secnds'; did you mean 'seconds'?")


def test_arms_that_read_different_inputs_are_refused(project):
    arm = project / "reads.py"
    arm.write_text(
        "from harness import worker\n"
        "class Reads(worker.Workload):\n"
        "    name, accepts = 'reads', {'seed': 0}\n"
        "    def inputs(self):\n"
        "        return [{'name': 'data', 'bytes': 1, 'digest': str(self.parameters['seed']) * 32}]\n"
        "worker.serve(Reads)\n"
    )
    scenario = project / "scenarios" / "scripted.toml"
    scenario.write_text(SCENARIO.replace(str(SCRIPTED), str(arm)))
    assert refusal(b=settings(seed=1)) == (
        "arms 'plain' and 'other' read different inputs (data 00000000, data 11111111); "
        "a comparison needs the same ones: check the parameters that name files"
    )


def test_arms_that_differ_in_an_undeclared_default_are_refused():
    from harness.arms import Arm
    from harness.runner import check_headers

    a = Arm("a", "s:a", "arm", ["a"], ".", {"depth": 1})
    b = Arm("b", "s:b", "arm", ["b"], ".", {"depth": 2})
    header = {"inputs": [], "config_digest": "0" * 32, "parameters": {"depth": 1, "frames": 4}}
    check_headers(a, b, header, {**header, "parameters": {"depth": 2, "frames": 4}})
    with pytest.raises(ConfigurationError) as caught:
        check_headers(a, b, header, {**header, "parameters": {"depth": 2, "frames": 8}})
    assert str(caught.value) == (
        "arms 'a' and 'b' differ in 'frames' (4 and 8), which the scenario does not declare as their difference; "
        "set it in [parameters]"
    )
    with pytest.raises(ConfigurationError, match="have different configurations beside their parameters"):
        check_headers(a, b, header, {**header, "config_digest": "1" * 32, "parameters": {"depth": 2, "frames": 4}})


def test_a_library_built_from_other_sources_than_the_tree_is_refused():
    from harness.arms import Arm
    from harness.runner import _check_libraries

    x = Arm("x", "s:x", "arm", ["x"], ".")
    library = {"name": "m", "path": "m.so", "source_digest": "a" * 64, "tree_digest": "a" * 64}
    _check_libraries(x, {"environment": {"libraries": [library]}})
    with pytest.raises(ConfigurationError, match=r"arm 'x' loaded m.so, which was built from other sources"):
        _check_libraries(x, {"environment": {"libraries": [{**library, "tree_digest": "b" * 64}]}})


# ---------------------------------------------------------------------------------------------------- commands


def commands(a="", b="", **overrides):
    """Compare two runs of the scripted command; the summary and entries."""
    base = f"{sys.executable} {COMMAND}"
    folder = comparison.compare(
        f"{base} {a}",
        f"{base} {b}",
        parameters={},
        overrides={"schedule.pairs": 6, **overrides},
        command=["ab"],
        quiet=True,
    )
    entries = records.read(folder)
    return analysis.summarise(entries), entries


def test_commands_are_timed_from_outside_and_their_outputs_compared(project):
    summary, entries = commands("--out out.txt", "--out out.txt --seconds 0.2", **{"scenario.outputs": ["out.txt"]})
    assert summary["fingerprints"]["agree"] is True
    assert summary["mode"] == "process"
    assert summary["values"]["b"]["median"] - summary["values"]["a"]["median"] > 0.1
    assert all(slot.process_seconds for slot in records.of(entries, records.Slot))


@pytest.mark.parametrize("does", ["empty", "missing", "wrong", "off"])
@pytest.mark.parametrize("arm", ["a", "b"])
def test_a_command_with_a_wrong_output_fails(project, does, arm):
    fault = f"--out out.txt --does {does} --every 20 --state runs --at 1"
    summary, _ = commands(
        **{"a": "--out out.txt", "b": "--out out.txt", arm: fault}, **{"scenario.outputs": ["out.txt"]}
    )
    assert (summary["verdict"]["word"], summary["exit_code"]) == ("wrong-result", 1)


def test_an_output_of_an_earlier_run_is_not_taken_for_this_one(project):
    (project / "out.txt").write_text("1.000\n2.000\n3.000\n")
    summary, _ = commands("--out out.txt", "--out out.txt --does missing", **{"scenario.outputs": ["out.txt"]})
    assert summary["verdict"]["word"] == "wrong-result"


def test_a_missing_program_means_that_nothing_was_measured(project, harness):
    done = harness("ab", "no-such-program x", "cat y", cwd=project)
    assert done.returncode == 4
    assert done.stderr == "harness: nothing was measured: there is no program 'no-such-program' on PATH\n"
    assert not (project / "reports").exists()
    with pytest.raises(UnfitError):
        commands_of_a_missing_interpreter()


def commands_of_a_missing_interpreter():
    comparison.compare("./gone/python x.py", "cat y", parameters={}, overrides={}, command=[], quiet=True)


# ------------------------------------------------------------------------------- the command line and resuming


def test_the_command_prints_the_summary_writes_the_pages_and_exits_with_the_code(project, harness):
    done = harness("ab", "scripted:plain", "scripted:other,seconds=0.02", cwd=project)
    assert done.returncode == 1, done.stderr
    assert "regression" in done.stdout
    folder = next((project / "reports" / "scripted").iterdir())
    assert f"report: {folder.relative_to(project) / 'report.html'}" in done.stdout
    assert {path.name for path in folder.iterdir()} == {"records.jsonl", "report.html", "report.md", "summary.json"}
    assert "block 5 complete, 6 of 6 done" in done.stderr


def test_a_report_from_a_copied_record_is_the_same_to_the_byte(project, harness, tmp_path):
    harness("ab", "scripted:plain", "scripted:other,seconds=0.02", cwd=project)
    folder = next((project / "reports" / "scripted").iterdir())
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "records.jsonl").write_bytes((folder / "records.jsonl").read_bytes())
    done = harness("report", "records.jsonl", cwd=empty)
    assert done.returncode == 1
    for name in ("report.html", "report.md", "summary.json"):
        assert (empty / name).read_bytes() == (folder / name).read_bytes()


def test_quiet_and_json_say_the_same_as_the_summary(project, harness):
    quiet = harness("ab", "scripted:plain", "scripted:other", "--quiet", cwd=project)
    assert (quiet.stdout.split(":")[0], quiet.stderr, quiet.returncode) == ("equivalent", "", 0)
    as_json = harness("ab", "scripted:plain", "scripted:other", "--json", "--seed", "3", cwd=project)
    summary = json.loads(as_json.stdout)
    assert summary["seed"] == 3
    assert summary["verdict"]["word"] == "equivalent"
    assert as_json.stderr == ""


def test_options_reach_the_plan(project, harness):
    done = harness(
        *("ab", "scripted:plain", "scripted:other", "--blocks", 7, "--pairs", 3, "--json"),
        *("-p", "rows=10", "-s", "gate.margin=0.2", "--strict"),
        cwd=project,
    )
    summary = json.loads(done.stdout)
    assert summary["units"]["planned"] == 7
    assert summary["pairs"] == 3
    assert summary["margin"] == 0.2
    assert summary["arms"]["a"]["parameters"] == {"rows": 10}
    entries = records.read(next((project / "reports" / "scripted").iterdir()))
    assert entries[0].scenario["gate"]["strict"] is True


def test_reports_go_where_they_are_asked_to_go(project, harness, tmp_path):
    harness("ab", "scripted:plain", "scripted:other", "--reports", tmp_path / "elsewhere", "--quiet", cwd=project)
    assert not (project / "reports").exists()
    assert len(list((tmp_path / "elsewhere" / "scripted").iterdir())) == 1
    listed = harness("list", "--reports", tmp_path / "elsewhere", cwd=project)
    assert "plain → other  equivalent  B/A 1.000" in listed.stdout
    assert "never run" in harness("list", cwd=project).stdout


def test_run_prints_an_arms_lines(project, harness):
    done = harness("run", "scripted:plain", "-p", "rows=7", "--warmup", 1, "--iterations", 2, cwd=project)
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert kinds == ["header", "phase", "iteration", "iteration", "iteration", "fingerprint", "exit"]
    failing = harness("run", "scripted:plain,does=exit", cwd=project)
    assert failing.returncode == 2
    assert "no space left on the detector" in failing.stdout + failing.stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_comparison_resumes_with_the_same_coins(project, harness, sent):
    arguments = ("ab", "scripted:plain", "scripted:other", "--blocks", "8", "--pairs", "6")
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        for line in process.stderr:
            if "block 1 complete" in line:
                break
        process.send_signal(sent)
        rest = process.stderr.read()
    assert process.returncode == (130 if sent == signal.SIGINT else -signal.SIGKILL), rest
    folder = next((project / "reports" / "scripted").iterdir())
    before = records.read(folder)
    if sent == signal.SIGINT:
        assert before[-1].state == "interrupted"
        assert f"what was measured is in reports/scripted/{folder.name}, --resume goes on with it" in rest
    done = harness(*arguments, "--resume", folder, cwd=project)
    assert done.returncode == 0, done.stderr
    entries = records.read(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["units"]["kept"] == 8
    from harness import schedule

    for unit in range(8):
        steady = [slot for slot in records.of(entries, records.Slot) if slot.unit == unit and slot.phase == "steady"]
        assert "".join(slot.arm.upper() for slot in steady) == "".join(
            schedule.plan_unit(11, unit, "resident", 6).pairs
        )
    again = harness(*arguments, "--resume", folder, cwd=project)
    assert again.returncode == 2
    assert "the comparison is complete; there is nothing to resume" in again.stderr
    other = harness(*arguments, "--resume", folder, "-s", "gate.margin=0.3", cwd=project)
    assert "its scenario differs from 'scripted' as it is now" in other.stderr
    check_nothing_is_left()


USAGE = [
    (
        ("ab", "scripted:plan", "scripted:other"),
        "no arm 'plan' in scenario 'scripted'; it has 'bound', 'other', 'plain'; did you mean 'plain'?",
    ),
    (
        ("ab", "scriptd:plain", "scriptd:other"),
        "no scenario 'scriptd'; there is 'scripted'; did you mean 'scripted'?",
    ),
    (
        ("ab", "scripted:plain", "scripted:other", "-s", "gate.margn=3"),
        "scenarios/scripted.toml: gate.margn: expected one of 'accept', 'alpha', 'arms', 'margin', 'strict', "
        "found 'margn'; "
        "did you mean 'margin'?",
    ),
    (("show", "nothing"), "no scenario 'nothing'; there is 'scripted'"),
    (
        ("report", "gone"),
        "gone: expected a record (records.jsonl or its folder), found No such file or directory; check the path",
    ),
    (
        ("ab", "scripted:plain", "scripted:other", "--resume", "gone"),
        "gone: expected a record (records.jsonl or its folder), found No such file or directory; check the path",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), USAGE)
def test_a_usage_error_is_one_sentence_and_exit_2(project, harness, arguments, sentence):
    done = harness(*arguments, cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"harness: {sentence}\n"
    assert not (project / "reports").exists()


def test_an_unknown_command_names_the_nearest(harness):
    done = harness("abb")
    assert done.returncode == 2
    assert done.stderr.startswith("harness: no command 'abb'; there is ab, ")
    assert done.stderr.endswith("; did you mean 'ab'?\n")
