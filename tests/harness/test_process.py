"""One arm process: exchanges, ends, hangs, and that nothing of its tree is left."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import load, protocol
from harness import process as process_module
from harness.errors import ConfigurationError, UnfitError
from harness.process import ArmProcess, VoidSlot, patience

ROOT = Path(__file__).parents[2]


def arm(tmp_path, body, **options):
    """A protocol arm whose raw answers are written by hand: `say(line)` and `hear()` are at hand."""
    script = tmp_path / "arm.py"
    script.write_text(
        "import json, os, subprocess, sys, threading, time\n"
        "def say(line): sys.stdout.write(line if isinstance(line, str) else json.dumps(line) + '\\n');"
        " sys.stdout.flush()\n"
        'def hear(): return json.loads(sys.stdin.readline() or \'{"do": "end"}\')\n'
        "HEADER = {'kind': 'header', 'schema': 1, 'workload': 'w', 'clock': 'scripted'}\n"
        "STEADY = {'kind': 'iteration', 'phase': 'steady', 'index': 0, 'seconds': 1e-9, 'cpu_seconds': 1e-9}\n" + body
    )
    return ArmProcess([sys.executable, str(script)], cwd=tmp_path, environment={}, speaks_protocol=True, **options)


def command(words, **options):
    return ArmProcess(words, cwd="/", environment={}, speaks_protocol=False, **options)


def shell(text, **options):
    return command(["sh", "-c", text], **options)


def one_slot(process, seconds):
    process.header(60)
    process.ask(STEADY, seconds)


def fault(process, seconds=30):
    """The VoidSlot that one header and one steady iteration end with."""
    with process, pytest.raises(VoidSlot) as caught:
        one_slot(process, seconds)
    assert process.tree() == []
    return caught.value


STEADY = protocol.Iterate("steady")


def test_an_exchange_brings_the_answer_and_the_time_around_it(tmp_path):
    with arm(
        tmp_path, "say(HEADER)\nhear()\nsay(STEADY | {'seconds': 7.5, 'work': 1})\nhear()\nsay({'kind': 'closed'})"
    ) as process:
        assert process.header(30).workload == "w"
        assert process.startup_seconds > 0
        answer, outside = process.ask(STEADY, 30)
        assert (answer.seconds, answer.work) == (7.5, 1)
        assert 0 < outside < 30
        done = process.close(30)
    assert (done.exit_code, done.signal, done.left_behind) == (0, None, 0)
    assert done.cpu_seconds > 0
    assert done.peak_rss_bytes > 1 << 20
    assert 1 << 20 < done.counters["pss_bytes"] <= done.peak_rss_bytes


def test_a_library_that_prints_a_mebibyte_blocks_nothing(tmp_path):
    body = "say(HEADER)\nhear()\nsys.stderr.write('x' * (1 << 20) + 'the end')\nsys.stderr.flush()\nsay(STEADY)\nhear()"
    with arm(tmp_path, body) as process:
        process.header(30)
        process.ask(STEADY, 30)
        process._drain_quickly()
        assert process.stderr_tail().endswith("the end")
        assert len(process.stderr_tail()) <= 32 << 10


def test_bad_input_before_the_first_iteration_is_a_configuration_error(tmp_path):
    body = "say({'kind': 'error', 'where': 'depth', 'expected': '0 to 8', 'found': '9', 'next': 'try 8'})\nsys.exit(2)"
    with (
        arm(tmp_path, body) as process,
        pytest.raises(ConfigurationError, match=r"^depth: expected 0 to 8, found 9; try 8$"),
    ):
        process.header(30)
    assert process.tree() == []


def test_an_error_after_the_first_iteration_is_a_broken_protocol(tmp_path):
    body = (
        "say(HEADER)\nhear()\nsay(STEADY)\nhear()\nsay({'kind': 'error', 'where': 'w', 'expected': 'e', 'found': 'f'})"
    )
    with arm(tmp_path, body) as process:
        process.header(30)
        process.ask(STEADY, 30)
        with pytest.raises(VoidSlot, match="after the first iteration") as caught:
            process.ask(STEADY, 30)
    assert caught.value.reason == "protocol"


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        ("say('junk\\n')", "protocol", "expected one JSON object, found 'junk'"),
        ('say(\'{"kind": "itera\')', "protocol", 'after half a line, \'{"kind": "itera\''),
        ("say({'kind': 'closed'})", "protocol", "expected 'iteration' in answer to 'iterate', found 'closed'"),
        (
            "say(STEADY | {'phase': 'warmup'})",
            "protocol",
            "expected an iteration of phase 'steady', found phase 'warmup'",
        ),
        ("say(STEADY | {'seconds': None})", "protocol", "expected the fields of 'iteration'"),
        ("pass", "protocol", "found the end of the process, exit code 0"),
        ("print('no disk', file=sys.stderr); sys.exit(3)", "exit", "found exit code 3; it said: no disk"),
        ("os.abort()", "crash", "found a crash by SIGABRT"),
        ("os.kill(os.getpid(), 9)", "killed", "found the process killed by SIGKILL"),
        ("os.close(1); time.sleep(600)", "protocol", "found a closed pipe and a process that runs on"),
    ],
)
def test_whatever_is_no_answer_is_void_with_its_reason(tmp_path, answer, reason, message):
    found = fault(arm(tmp_path, f"say(HEADER)\nhear()\n{answer}"))
    assert found.reason == reason
    assert message in found.message


def test_speaking_without_being_asked_is_a_broken_protocol(tmp_path):
    body = "say(HEADER)\nhear()\nsay(json.dumps(STEADY) + '\\n' + json.dumps(STEADY) + '\\n')\nhear()"
    with arm(tmp_path, body) as process:
        process.header(30)
        process.ask(STEADY, 30)
        with pytest.raises(VoidSlot, match="expected silence before 'iterate'"):
            process.ask(STEADY, 30)


def test_a_header_of_another_schema_is_refused(tmp_path):
    found = fault(arm(tmp_path, "say(HEADER | {'schema': 2})"))
    assert found.reason == "protocol"
    assert "expected schema 1, found schema 2" in found.message


def test_an_arm_that_says_more_time_than_passed_is_void_unless_it_is_scripted(tmp_path):
    body = "say(HEADER | {'clock': 'wall'})\nhear()\nsay(STEADY | {'seconds': 1000})"
    found = fault(arm(tmp_path, body))
    assert found.reason == "time"
    assert "found 1000.000000 s said" in found.message


def test_a_hang_leaves_the_stacks_of_every_thread_and_no_process(tmp_path):
    body = (
        "def stuck_thread(): time.sleep(600)\n"
        "def stuck_main(): time.sleep(600)\n"
        "say(HEADER)\nhear()\nthreading.Thread(target=stuck_thread).start()\n"
        "subprocess.Popen(['sleep', '600'])\nstuck_main()"
    )
    found = fault(arm(tmp_path, body), 1.5)
    assert found.reason == "timeout"
    assert "expected an answer to 'iterate' within 1.5 s, found none" in found.message
    assert "stuck_thread" in found.stacks
    assert "stuck_main" in found.stacks
    assert "'sleep': state S" in found.stacks


NATIVE = "import ctypes\ndef stuck(): ctypes.CDLL(None).pause()\nsay(HEADER)\nhear()\nstuck()"


def test_a_hang_in_a_library_shows_its_native_frames(tmp_path):
    stacks = fault(arm(tmp_path, NATIVE), 1.0).stacks
    if "no stacks from py-spy" in stacks:
        pytest.skip("this machine does not let py-spy read stacks")
    assert re.search(r"^ +\S*pause.*\(libc", stacks, re.MULTILINE), stacks  # the frame that waits
    assert "stuck (" in stacks  # and the Python that called it


@pytest.mark.parametrize(
    ("refuses", "found"),
    [
        ("--native", "stuck ("),  # as on machines where native frames cannot be unwound
        ("dump", "no stacks from py-spy (refused); its threads as the kernel sees them"),
    ],
)
def test_stacks_fall_back_to_what_can_be_had(tmp_path, monkeypatch, refuses, found):
    real = process_module._py_spy()
    if real is None:
        pytest.skip("py-spy is not installed")
    stand_in = tmp_path / "py-spy"
    stand_in.write_text(f'#!/bin/sh\ncase "$*" in *{refuses}*) echo refused >&2; exit 1;; esac\nexec {real} "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(process_module, "_py_spy", lambda: str(stand_in))
    stacks = fault(arm(tmp_path, NATIVE), 1.0).stacks
    if refuses == "--native" and "no stacks from py-spy" in stacks:
        pytest.skip("this machine does not let py-spy read stacks")
    assert found in stacks
    assert "libc" not in stacks


def test_half_a_line_then_silence_is_a_hang_that_shows_it(tmp_path):
    found = fault(arm(tmp_path, "say(HEADER)\nhear()\nsay('{\"ki')\ntime.sleep(600)"), 0.7)
    assert found.reason == "timeout"
    assert "found none but half a line, '{\"ki'" in found.message


def test_an_arm_that_ignores_close_is_void_and_ended(tmp_path):
    body = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(HEADER)\nhear()\ntime.sleep(600)"
    with arm(tmp_path, body) as process:
        process.header(30)
        with pytest.raises(VoidSlot, match=r"expected an answer to 'close' within 0\.3 s") as caught:
            process.close(0.3)
    assert caught.value.reason == "timeout"
    assert process.tree() == []


def test_a_command_is_timed_from_spawn_to_exit_and_its_output_kept():
    with shell('echo \'{"kind": "fingerprint", "work": 3}\'; yes | head -c 5000000 >&2') as process:
        done = process.wait(60)
    assert done.exit_code == 0
    assert protocol.printed(done.output)[1].work == 3
    assert done.cpu_seconds > 0
    assert 0 < done.seconds < 60


def test_the_cpu_of_waited_for_children_is_the_commands_own():
    spin = "import time; e = time.process_time() + 0.15\nwhile time.process_time() < e: pass"
    with shell(f"{sys.executable} -c '{spin}'; {sys.executable} -c '{spin}'") as process:
        done = process.wait(60)
    assert done.cpu_seconds >= 0.3


def test_what_the_kernel_counted_comes_with_the_end(tmp_path):
    text = f"dd if=/dev/zero of={tmp_path / 'file'} bs=1M count=2 oflag=sync; sleep 0.01; sleep 0.01"
    with shell(text) as process:
        counters = process.wait(60).counters
    assert counters["minor_faults"] > 100
    assert counters["voluntary_switches"] >= 2
    assert counters["runq_wait_seconds"] >= 0
    assert set(counters) > {"major_faults", "involuntary_switches", "read_bytes", "written_bytes"}


@pytest.mark.parametrize(
    ("text", "reason"), [("exit 3", "exit"), ("kill -SEGV $$", "crash"), ("kill -KILL $$", "killed")]
)
def test_a_command_that_fails_is_void(text, reason):
    with shell(text) as process, pytest.raises(VoidSlot) as caught:
        process.wait(60)
    assert caught.value.reason == reason
    assert (caught.value.exit_code, caught.value.signal) == {
        "exit": (3, None),
        "crash": (None, "SIGSEGV"),
        "killed": (None, "SIGKILL"),
    }[reason]


@pytest.mark.parametrize(
    "text",
    [
        "sleep 600 &",
        "setsid sleep 600 &",
        "env -i setsid -f sleep 600",
        "trap '' TERM; sleep 600 & sleep 600 & setsid -f sh -c \"trap '' TERM; sleep 600; sleep 600\"",
        "sleep 600 & kill -STOP $!",
    ],
)
def test_what_a_command_leaves_behind_is_ended_however_it_was_detached(text):
    with shell(f"{text} exit 0" if text.endswith("&") else f"{text}; exit 0") as process:
        done = process.wait(60)
        assert done.exit_code == 0
        assert done.left_behind >= 1
        assert process.tree() == []


def test_a_tree_whose_middle_is_already_dead_is_found_by_its_mark():
    with shell("setsid -f env -i sh -c 'sleep 600 & sleep 600'; sleep 600") as process:
        while sum(p.name == "sleep" for pid in process.tree() if (p := load.read_process(pid))) < 3:
            time.sleep(0.01)
        others = [pid for pid in process.tree() if pid != process.pid]
    assert len(others) >= 3
    assert living(others) == []


def test_ending_one_arm_leaves_another_alone():
    with shell("sleep 600 & sleep 600") as first, shell("sleep 600 & sleep 600") as second:
        settled(first, sleepers=2)
        settled(second, sleepers=2)
        first.end()
        assert len(second.tree()) == 3
        assert first.tree() == []


def settled(process, sleepers):
    """The tree once so many of it sleep, and nothing that was needed to start them is left in it."""
    while True:
        tree = process.tree()
        names = [found.name for pid in tree if (found := load.read_process(pid))]
        if names.count("sleep") == sleepers and len(names) == len(tree) == sleepers + 1:
            return tree
        time.sleep(0.01)


def test_arms_that_two_threads_start_and_ask_at_once_are_kept_apart(tmp_path):
    def play(number, trees):
        with shell(f"sleep 600 & env -i setsid -f sleep 60{number}; sleep 600") as process:
            trees[number] = settled(process, sleepers=3)
        left[number] = process.tree()

    trees, left = {}, {}
    threads = [threading.Thread(target=play, args=(number, trees)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert left == {number: [] for number in range(4)}
    assert len({pid for tree in trees.values() for pid in tree}) == 16


def test_an_unmarked_tree_would_escape(monkeypatch):
    """The broken twin of the mark: by parent and session alone a daemon without environment gets away."""
    monkeypatch.setattr("harness.process._mark_of", lambda pid: None)
    with shell("env -i setsid -f sleep 600; exit 0") as process:
        assert process.wait(60).left_behind == 0
    monkeypatch.undo()
    (escaped,) = process.tree()
    os.kill(escaped, 9)
    os.waitpid(escaped, 0)


def test_a_program_that_is_not_there_is_a_sentence():
    with pytest.raises(UnfitError, match="program 'no-such-program': expected one that can be started"):
        command(["no-such-program"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stdin": "/no/such/file"}, "stdin: expected a readable file"),
        ({"pin": {4095}}, "pin: expected cores among"),
    ],
)
def test_what_cannot_be_had_is_a_configuration_error(options, message):
    with pytest.raises(ConfigurationError, match=message):
        command(["true"], **options)


def test_a_missing_folder_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="cwd: expected a folder, found '/no/such'"):
        ArmProcess(["true"], cwd="/no/such", environment={}, speaks_protocol=False)


def test_environment_stdin_cores_and_niceness_reach_the_command(tmp_path):
    (tmp_path / "in").write_text("from a file\n")
    core = min(os.sched_getaffinity(0))
    text = (
        "cat; echo $GIVEN ${HOME-none} ${HARNESS_PROTOCOL-none}; sleep 0.1; nice; grep allowed_list /proc/self/status"
    )
    process = ArmProcess(
        ["sh", "-c", text],
        cwd="/",
        environment={"GIVEN": "x", "HOME": None, "HARNESS_PROTOCOL": "1"},
        speaks_protocol=False,
        stdin=tmp_path / "in",
        nice=5,
        pin={core},
    )
    before = os.sched_getaffinity(0)
    with process:
        lines = process.wait(60).output.decode().splitlines()
    assert lines[:3] == ["from a file", "x none none", "5"]
    assert lines[3].split() == ["Cpus_allowed_list:", str(core)]
    assert os.sched_getaffinity(0) == before


def test_memory_beyond_the_limit_is_void_with_that_reason():
    grab = [sys.executable, "-c", "x = bytearray(256 << 20)"]
    with command(grab, memory_limit=100 << 20) as process, pytest.raises(VoidSlot) as caught:
        process.wait(60)
    assert caught.value.reason == "memory"
    assert "no memory left within the limit of 100 MiB" in caught.value.message
    with command(grab, memory_limit=1 << 30) as process:
        assert process.wait(60).exit_code == 0


def test_the_peak_memory_of_a_command_is_told_from_the_harnesss_own():
    held = bytearray(80 << 20)  # the harness's own size, which every process it starts would inherit as its peak
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    grab = [sys.executable, "-I", "-S", "-c", "x = b'x' * (40 << 20)"]
    with command(grab, measure_memory=True) as process:
        assert 40 << 20 < process.wait(60).peak_rss_bytes < 60 << 20
    with command(grab) as process:
        assert process.wait(60).peak_rss_bytes is None
    with shell("exit 3", measure_memory=True) as process, pytest.raises(VoidSlot, match="found exit code 3"):
        process.wait(60)
    with shell("kill -SEGV $$", measure_memory=True) as process, pytest.raises(VoidSlot, match="crash by SIGSEGV"):
        process.wait(60)
    with pytest.raises(UnfitError, match="program 'no-such-program'"):
        command(["no-such-program"], measure_memory=True)


def test_address_randomisation_can_be_switched_off():
    maps = ["sh", "-c", "grep stack /proc/$$/maps"]

    def places(**options):
        found = set()
        for _ in range(3):
            with command(maps, **options) as process:
                found.add(process.wait(60).output)
        return found

    assert len(places(fixed_layout=True)) == 1
    assert len(places()) > 1


def test_the_cpu_clock_of_an_idle_arm_counts_all_its_threads(tmp_path):
    body = (
        "def spin():\n    end = time.thread_time() + 0.2\n    while time.thread_time() < end: pass\n"
        "say(HEADER)\nhear()\nthreads = [threading.Thread(target=spin) for _ in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\nsay(STEADY)\nhear()\n"
    )
    with arm(tmp_path, body) as process:
        process.header(30)
        before = process.cpu_seconds()
        process.ask(STEADY, 30)
        assert process.cpu_seconds() - before >= 0.4


def test_a_worker_of_the_package_answers_the_protocol(tmp_path):
    script = tmp_path / "sorting.py"
    script.write_text(
        "from harness import worker\n"
        "class W(worker.Workload):\n"
        "    name = 'sums'\n    accepts = {'n': 10}\n"
        "    def iterate(self): print('noise'); self.s = sum(range(self.parameters['n'])); return {'units': 2}\n"
        "    def fingerprint(self): return {'work': 1, 'totals': {'sum': self.s}}\n"
        "worker.serve(W)\n"
    )
    words = [sys.executable, str(script), "--set", "n=4"]
    with ArmProcess(words, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}, speaks_protocol=True) as process:
        assert process.header(30).parameters == {"n": 4}
        assert process.ask(protocol.Setup(), 30)[0].name == "setup"
        answer, outside = process.ask(protocol.Iterate("warmup"), 30)
        assert (answer.units, answer.index) == (2, 0)
        assert answer.seconds <= outside
        assert process.ask(protocol.DescribeOutput(), 30)[0].totals == {"sum": 6}
        assert process.close(30).exit_code == 0


def zombies():
    return {p.pid for p in load.processes() if p.parent == os.getpid() and p.state == "Z"}


def test_nothing_dead_or_alive_is_left_of_a_tree_that_is_ended_while_it_forks():
    forks = "import os, time\nwhile os.fork(): time.sleep(0.001)\ntime.sleep(0.05)"
    before = zombies()
    for _ in range(3):
        with command([sys.executable, "-S", "-c", forks]) as process:
            while len(process.tree()) < 10:
                time.sleep(0.01)
        assert process.tree() == []
    assert zombies() <= before


# ------------------------------------------------------------------------------------------------- killed harness

HARNESS = """
import sys
from harness import load, process
if sys.argv[1] == 'unguarded':
    process._start_guard = lambda family: None
def start(text):
    return process.ArmProcess(['sh', '-c', text], cwd='/', environment={}, speaks_protocol=False)
arms = [start('sleep 600 & sleep 600'), start("env -i setsid -f sh -c 'trap : TERM; sleep 600; sleep 600'; sleep 600")]
def sleepers(arm):
    return [p.name for pid in arm.tree() if (p := load.read_process(pid))].count('sleep')
while sleepers(arms[0]) < 2 or sleepers(arms[1]) < 2 or len(arms[1].tree()) != 4: pass
print(*arms[0].tree(), *arms[1].tree(), flush=True)
sys.stdin.read()
"""


def living(pids):
    return [pid for pid in pids if (found := load.read_process(pid)) and found.state not in "ZX"]


def kill_a_harness(how):
    """Start a harness with two arms, kill it with SIGKILL; the pids of its arms' trees."""
    words = [sys.executable, "-c", HARNESS, how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        pids = [int(word) for word in running.stdout.readline().split()]
        assert len(pids) == 7
        assert living(pids) == pids
        running.kill()
    return pids


def test_a_killed_harness_leaves_no_process_behind():
    pids = kill_a_harness("guarded")
    for _ in range(500):
        if living(pids):
            time.sleep(0.02)
    assert living(pids) == []
    reap(pids)


def reap(pids):
    """The orphans of a killed harness came to this process, which started one of its own before."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


TEMPORARY = """
import sys
from harness import process
gone, kept, file, started = sys.argv[2:]
with process.temporary(gone): pass
with process.guarded():
    import subprocess
    build = subprocess.Popen(['sleep', '600'], start_new_session=True)
with process.temporary(kept, file):
    import os
    os.makedirs(kept + '/a/b'); open(kept + '/a/b/c', 'w').close(); open(file, 'w').close(); os.makedirs(gone)
    if sys.argv[1] == 'unguarded':
        process._tell_guard('-', (kept, file))
    print(build.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["guarded", "unguarded"])
def test_what_is_temporary_is_gone_after_a_kill_and_what_is_not_stays(tmp_path, how):
    """Unguarded is the broken twin: the guard is told that all is gone."""
    paths = [tmp_path / name for name in ("gone é\n", "kept", "file")]
    words = [sys.executable, "-c", TEMPORARY, how, *map(str, paths), ""]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        build = int(running.stdout.readline())
        assert all(path.exists() for path in paths)
        running.kill()
    expected = paths[:1] if how == "guarded" else paths
    for _ in range(250):
        if [path for path in paths if path.exists()] == expected and not living([build]):
            break
        time.sleep(0.02)
    assert [path for path in paths if path.exists()] == expected
    assert living([build]) == []
    reap([build])


def test_what_is_temporary_is_gone_in_the_end(tmp_path):
    paths = [tmp_path / name for name in ("folder", "file", "never made")]
    with process_module.temporary(*paths):
        (paths[0] / "below").mkdir(parents=True)
        paths[1].write_text("x")
    assert not any(path.exists() for path in paths)


def test_without_its_guard_a_killed_harness_would_leave_its_arms():
    """The broken twin of the guard."""
    pids = kill_a_harness("unguarded")
    time.sleep(1.0)
    left = living(pids)
    for pid in left:
        os.kill(pid, 9)
    reap(pids)
    assert left == pids


def test_a_harness_that_was_started_with_its_childrens_ends_ignored_still_learns_of_them():
    text = (
        "from harness.process import ArmProcess\n"
        "with ArmProcess(['sh', '-c', 'sleep 0.1'], cwd='/', environment={}, speaks_protocol=False) as p:\n"
        "    print(p.wait(30).exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_pilot_makes_a_hang_known_sooner():
    assert patience([], 600) == 600
    assert patience([2.0, 3.0, 1.0], 600) == 60
    assert patience([0.001], 600) == 10
    assert patience([100.0], 600) == 600
    assert patience([0.001], 5) == 5
