"""Every fault that an arm can have, at the level of one process: its reason, its sentence, and no process left."""

import os
import sys
from pathlib import Path

import pytest

from harness import load, protocol
from harness.errors import ConfigurationError
from harness.process import ArmProcess, VoidSlot

ARMS = Path(__file__).parents[1] / "arms"


def start(does, **parameters):
    words = [f"--set={key}={value}" for key, value in {"does": f"'{does}'", **parameters}.items()]
    return ArmProcess(
        [sys.executable, str(ARMS / "scripted.py"), *words],
        cwd=ARMS,
        environment={},
        speaks_protocol=True,
        memory_limit=512 << 20 if does == "memory" else None,
    )


def lives(pid):
    process = load.read_process(pid)
    return process is not None and process.state not in "ZX"


def play(process, timeout, seen):
    """Header, set-up, two iterations, a fingerprint, close; what was said and every process that was there."""
    process.header(30)
    process.ask(protocol.Setup(), 30)
    said = [process.ask(protocol.Iterate("warmup"), timeout)[0], process.ask(protocol.Iterate("steady"), timeout)[0]]
    said.append(process.ask(protocol.DescribeOutput(), 30)[0])
    seen.update(process.tree())
    said.append(process.close(timeout))
    return said


def run(does, timeout=30, **parameters):
    seen = set()
    with start(does, **parameters) as process:
        seen.add(process.pid)
        said = play(process, timeout, seen)
    assert [pid for pid in seen if lives(pid)] == []
    assert process.tree() == []
    return said


def fail(does, timeout=30, **parameters):
    with start(does, **parameters) as process, pytest.raises(VoidSlot) as caught:
        play(process, timeout, set())
    assert not lives(process.pid)
    assert process.tree() == []
    return caught.value


@pytest.mark.parametrize(
    ("does", "timeout", "reason", "sentence"),
    [
        (
            "hang",
            1.0,
            "timeout",
            "expected an answer to 'iterate' within 1 s, found none; its stacks are in the record",
        ),
        (
            "junk",
            30,
            "protocol",
            "expected one JSON object, found 'Warning: 3 frames skipped': "
            "JSON is malformed: invalid character (byte 0)",
        ),
        (
            "half",
            30,
            "protocol",
            "expected an answer to 'iterate' within 30 s, found the end of the process after half a line, "
            '\'{"kind":"iteration","phase":"st\', exit code 0',
        ),
        (
            "exit",
            30,
            "exit",
            "expected an answer to 'iterate' within 30 s, found exit code 3; it said: no space left on the detector",
        ),
        ("crash", 30, "crash", "expected an answer to 'iterate' within 30 s, found a crash by SIGABRT"),
        ("kill", 30, "killed", "expected an answer to 'iterate' within 30 s, found the process killed by SIGKILL"),
        (
            "close-pipe",
            30,
            "protocol",
            "expected an answer to 'iterate' within 30 s, found a closed pipe and a process that runs on",
        ),
        (
            "quit",
            30,
            "protocol",
            "expected an answer to 'iterate' within 30 s, found the end of the process, exit code 0",
        ),
        ("ignore-close", 1.5, "timeout", "expected an answer to 'close' within 1.5 s, found none; its stacks are"),
    ],
)
def test_a_fault_is_void_with_its_reason_and_sentence(does, timeout, reason, sentence):
    found = fail(does, timeout)
    assert found.reason == reason
    assert found.message.startswith(sentence)


def test_a_hang_shows_both_threads_where_they_wait():
    assert fail("hang", 1.0).stacks.count("wait_for_ever") >= 2


def test_an_arm_that_answers_twice_is_void():
    found = fail("talk")
    assert found.reason == "protocol"
    assert "expected" in found.message


def test_an_arm_that_takes_all_memory_is_void_by_its_limit():
    found = fail("memory")
    assert found.reason == "memory"
    assert found.message.startswith(
        "expected an answer to 'iterate' within 30 s, found no memory left within the limit of 512 MiB a process"
    )


def test_an_arm_that_says_more_than_the_walls_clock_is_void():
    found = fail("lie", seconds=1000.0)
    assert found.reason == "time"
    assert found.message.endswith("the harness's own time, found 1000.000000 s said")
    assert [type(message).__name__ for message in run("work", seconds=1000.0)][:2] == ["Iteration", "Iteration"]


def test_bad_input_is_a_configuration_error_and_no_void():
    with (
        start("error") as process,
        pytest.raises(ConfigurationError, match=r"^rows: expected at least 1, found 0; try"),
    ):
        process.header(30)
    assert process.tree() == []


def test_given_times_come_back_as_they_were_given():
    warm, steady, _, _ = run("work", seconds=0.25)
    assert (warm.seconds, steady.seconds, steady.cpu_seconds) == (0.25, 0.25, 0.25)
    noisy = [run("work", noise=0.1, seed=seed)[1].seconds for seed in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]


def test_a_position_effect_strikes_every_first_slot(tmp_path):
    state = f"'{tmp_path / 'launches'}'"
    slots = [slot.seconds for _ in range(2) for slot in run("work", seconds=0.2, first=0.03, state=state)[:2]]
    assert slots == [0.23, 0.2, 0.23, 0.2]


def test_no_work_a_wrong_output_and_a_moved_total_are_told_apart():
    right = run("work")[2]
    nothing = run("nothing", seconds=0.1)
    assert (nothing[1].work, nothing[1].seconds, nothing[2].work) == (0, 0.02, 0)
    wrong, off = run("wrong")[2], run("off")[2]
    assert wrong.digests != right.digests
    assert off.digests == right.digests
    assert off.totals["sum"] == pytest.approx(1.22 * right.totals["sum"])


def test_a_fault_can_strike_once_in_twenty():
    with start("wrong", at=1, every=20) as process:
        process.header(30)
        process.ask(protocol.Setup(), 30)
        digests = []
        for _ in range(40):
            process.ask(protocol.Iterate("steady"), 30)
            digests.append(process.ask(protocol.DescribeOutput(), 30)[0].digests["keys"])
    usual = digests[0]
    assert [number for number, digest in enumerate(digests) if digest != usual] == [1, 21]


def test_a_daemon_that_was_left_is_ended_and_counted():
    done = run("leave")[3]
    assert done.exit_code == 0
    assert done.left_behind == 2


def test_forked_workers_end_with_their_arm_and_their_cpu_is_its_own():
    done = run("fork", workers=2, burn=0.05)[3]
    assert (done.exit_code, done.left_behind) == (0, 0)
    assert done.cpu_seconds >= 0.2


def test_workers_of_a_killed_arm_are_ended():
    with start("fork") as process:
        process.header(30)
        process.ask(protocol.Setup(), 30)
        seen = process.tree()
        assert len(seen) >= 3
        os.kill(process.pid, 9)
        with pytest.raises(VoidSlot, match="killed by SIGKILL"):
            process.ask(protocol.Iterate("steady"), 30)
    assert [pid for pid in seen if lives(pid)] == []


@pytest.mark.parametrize(
    ("does", "content"), [("work", "1.000\n2.000\n3.000\n"), ("off", "1.220\n2.440\n3.660\n"), ("empty", "")]
)
def test_a_command_leaves_the_output_it_is_told_to(tmp_path, does, content):
    words = [sys.executable, str(ARMS / "command.py"), "--out", "out.txt", "--does", does]
    with ArmProcess(words, cwd=tmp_path, environment={}, speaks_protocol=False) as process:
        process.wait(30)
    assert (tmp_path / "out.txt").read_text() == content


def test_a_command_fails_in_the_run_it_is_told_to(tmp_path):
    words = [sys.executable, str(ARMS / "command.py"), "--state", "runs", "--every", "3", "--at", "1", "--does"]
    faults = []
    for does in ("exit", "exit", "exit", "crash", "crash", "hang"):
        with ArmProcess([*words, does], cwd=tmp_path, environment={}, speaks_protocol=False) as process:
            try:
                process.wait(30)
                faults.append(None)
            except VoidSlot as void:
                faults.append(void.reason)
    assert faults == [None, "exit", None, None, "crash", None]


def test_a_command_that_hangs_with_a_child_is_void_with_stacks_of_both(tmp_path):
    words = [sys.executable, str(ARMS / "command.py"), "--does", "hang"]
    with (
        ArmProcess(words, cwd=tmp_path, environment={}, speaks_protocol=False) as process,
        pytest.raises(VoidSlot) as caught,
    ):
        process.wait(1.0)
    assert caught.value.reason == "timeout"
    assert "wait_for_ever" in caught.value.stacks
    assert "'sleep': state S" in caught.value.stacks
    assert process.tree() == []
