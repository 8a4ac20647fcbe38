"""Any program is an arm: what it prints and writes is taken, whatever it does is survived, nothing is left behind."""

import hashlib
import itertools
import json
import shlex
import sys

import pytest
from measured import compare, left_behind

from harness import arms, records
from harness.errors import ConfigurationError

ITERATION = {"kind": "iteration", "phase": "steady", "index": 0, "seconds": 0.0, "cpu_seconds": 0.0}
FINGERPRINT = {"kind": "fingerprint", "work": 5}


@pytest.fixture
def program(tmp_path):
    return make_program(tmp_path)


def make_program(tmp_path):
    """Write a Python program and return the command that runs it."""

    def write(name, body):
        path = tmp_path / f"{name}.py"
        path.write_text("import json, os, signal, subprocess, sys, time\n" + body)
        return f"{shlex.quote(sys.executable)} -S {shlex.quote(str(path))}"

    return write


def printing(*lines):
    return "".join(f"print({json.dumps(json.dumps(line))})\n" for line in lines)


# ------------------------------------------------------------------------------------------- what it says


def test_lines_of_the_protocol_become_metrics_and_fingerprint(tmp_path, program):
    told = [
        "one moment, please",
        {**ITERATION, "phase": "warmup", "units": 99, "counters": {"rows": 99}},
        {**ITERATION, "units": 10, "work": 3, "counters": {"rows": 4, "once": 1}},
        {**ITERATION, "index": 1, "units": 30, "work": 4, "counters": {"rows": 6}, "totals": {"sum": 1.5}},
        {**FINGERPRINT, "digests": {"rows": "abcd"}, "totals": {"sum": 1.5}},
        '{"kind": "iteration", "but": "broken"}',
    ]
    body = "".join(f"print({line!r})\n" if isinstance(line, str) else printing(line) for line in told)
    found = compare(tmp_path, program("a", body), program("b", body), scenario__metric="rows")
    slot = found.of(records.Slot, "b")[0]
    assert (slot.units, slot.work, slot.totals) == (40, 5, {"sum": 1.5})
    own = {"rows": 5, "iteration_seconds": 0, "iteration_cpu_seconds": 0}
    assert slot.counters.items() >= own.items()
    assert "once" not in slot.counters  # an iteration that lacks it has no mean
    assert slot.seconds == slot.process_seconds > 0  # a command's slot is spawn to exit, whatever it says
    printed = found.of(records.Fingerprint, "b")[0]
    assert (printed.work, printed.digests, printed.totals) == (5, {"rows": "abcd"}, {"sum": 1.5})
    assert found.summary["values"]["b"]["median"] == 5
    assert found.summary["fingerprints"]["agree"] is True


def test_printed_fingerprints_that_differ_are_a_wrong_result(tmp_path, program):
    one, other = (printing({**FINGERPRINT, "digests": {"rows": text}}) for text in ("aa", "bb"))
    found = compare(tmp_path, program("a", one), program("b", other))
    assert found.word == "wrong-result"
    assert found.summary["exit_code"] == 1


def test_an_arm_that_prints_no_fingerprint_beside_one_that_does_is_wrong(tmp_path, program):
    found = compare(tmp_path, program("a", printing(FINGERPRINT)), program("b", "pass"))
    assert found.word == "wrong-result"


def test_commands_that_print_nothing_have_nothing_to_compare(tmp_path):
    found = compare(tmp_path, "true", "true")
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]  # and nothing else is written
    assert found.summary["fingerprints"]["agree"] is None
    assert found.word == "inconclusive"


def test_more_time_than_the_process_took_is_void(tmp_path, program):
    found = compare(tmp_path, "true", program("b", printing({**ITERATION, "seconds": 99.0})))
    assert {void.reason for void in found.of(records.Void)} == {"time"}


# ------------------------------------------------------------------------------------------- what it writes


def counted(folder, wrong):
    """A program that writes out/rows; `wrong` maps the number of a run to what it writes instead."""
    return f"""
folder = {str(folder)!r}
os.makedirs(folder + "/out", exist_ok=True)
count = os.path.join(folder, os.path.basename(__file__) + ".count")
number = int(open(count).read()) if os.path.exists(count) else 0
open(count, "w").write(str(number + 1))
open(folder + "/out/rows", "w").write({wrong!r}.get(number, "the right rows"))
"""


def test_empty_and_different_files_are_wrong_however_fast(tmp_path, program):
    wrong = {2: "", 7: "the wrong rows"}  # runs 3 to 5 are those that name the odd arm after the first fault
    found = compare(
        tmp_path,
        program("a", counted(tmp_path, {})),
        program("b", counted(tmp_path, wrong)),
        keep_going=True,
        scenario__outputs=["out/*"],
        schedule__pairs=8,
    )
    assert found.word == "wrong-result"
    assert found.summary["exit_code"] == 1
    assert found.summary["units"]["wrong"] == 2
    assert found.summary["fingerprints"]["odd"] == "b"
    assert {one["unit"] for one in found.summary["fingerprints"]["differences"]} == {2, 4}
    assert found.summary["voids"] == {"a": {}, "b": {}}
    assert found.summary["units"]["kept"] == 6  # the times of the wrong ones do not count


def test_the_reference_is_what_the_majority_wrote_not_what_came_first(tmp_path, program):
    found = compare(
        tmp_path,
        program("a", counted(tmp_path, {0: "the wrong rows"})),
        program("b", counted(tmp_path, {})),
        scenario__outputs=["out/*"],
        schedule__pairs=8,
    )
    assert found.word == "wrong-result"
    assert found.summary["fingerprints"]["odd"] == "a"
    size, digest = len("the right rows"), hashlib.sha256(b"the right rows").hexdigest()[:32]
    assert found.summary["fingerprints"]["b"]["digests"] == {"out/rows": f"{size}:{digest}"}
    assert len(found.of(records.Fingerprint)) == 2 + 6  # one pair, then three re-runs of each arm


@pytest.mark.parametrize("body", ["pass", "open('rows', 'w').close()"])
def test_a_missing_or_empty_file_is_no_work(tmp_path, program, body):
    found = compare(tmp_path, program("a", body), program("b", body), scenario__outputs=["rows"])
    assert found.word == "wrong-result"
    assert "work of at least 1 expected, found 0" in found.summary["verdict"]["reason"]


def test_an_old_file_is_not_this_runs_output(tmp_path, program):
    (tmp_path / "rows").write_text("of yesterday")
    found = compare(tmp_path, program("a", "open('rows', 'w').write('x')"), "true", scenario__outputs=["rows"])
    assert found.word == "wrong-result"
    assert {one.work for one in found.of(records.Slot, "b")} == {0}


# ------------------------------------------------------------------------------------------- how it is run


def test_hooks_run_for_both_arms_alike_and_are_not_timed(tmp_path, program):
    log = tmp_path / "log"
    hooks = {
        f"scenario__{name}": f"echo {name} >> {shlex.quote(str(log))}; sleep {0.2 if name == 'prepare' else 0}"
        for name in ("setup", "prepare", "cleanup")
    }
    body = f"open({str(log)!r}, 'a').write('run\\n')"
    found = compare(tmp_path, program("a", body), program("b", body), scenario__shell=True, schedule__pairs=2, **hooks)
    assert log.read_text().split() == ["setup"] * 2 + ["prepare", "run"] * 4 + ["cleanup"] * 2
    slots = found.of(records.Slot)
    gaps = [later.at - earlier.at - earlier.seconds for earlier, later in itertools.pairwise(slots)]
    assert min(gaps) > 0.2  # between the slots, not inside them


@pytest.mark.parametrize("hook", ["setup", "prepare"])
def test_a_hook_that_fails_means_that_nothing_was_measured(tmp_path, hook):
    hooks = {f"scenario__{hook}": "sh -c 'echo no disk >&2; exit 3'", "scenario__cleanup": "touch x"}
    found = compare(tmp_path, "true", "true", **hooks)
    assert found.word == "unfit"
    assert found.summary["exit_code"] == 4
    assert f"nothing was measured: {hook} of arm " in found.summary["verdict"]["reason"]
    assert "exit code 3; it said: no disk" in found.summary["verdict"]["reason"]
    assert (tmp_path / "x").exists()
    assert found.entries[-1].state == "stopped"


def test_a_cleanup_that_fails_is_told_and_changes_no_verdict(tmp_path):
    found = compare(tmp_path, "true", "true", scenario__cleanup="false")
    assert [note.arm for note in found.of(records.Note) if note.about == "cleanup"] == ["a", "b"]
    assert found.entries[-1].state == "complete"


def test_a_shell_is_used_only_when_it_is_asked_for(tmp_path):
    (tmp_path / "data").write_text("3\n1\n2\n")
    found = compare(
        tmp_path, "sort data | head -1 > out", "sort data > out", scenario__shell=True, scenario__outputs=["out"]
    )
    assert found.word == "wrong-result"  # 1 against 1 2 3
    words = arms.resolve("echo $HOME | cat", "true", start=tmp_path).a.command[1:]
    assert words == ["$HOME", "|", "cat"]


def test_standard_input_folder_and_arguments_arrive_as_given(tmp_path, program):
    (tmp_path / "input").write_bytes(b"two\nlines\xff")
    (tmp_path / "below").mkdir()
    arguments = ["it's", 'a "quoted" word', "two\nlines", "", "$HOME;*", "ü"]
    body = "got = json.dumps([sys.argv[1:], sys.stdin.buffer.read().hex(), os.getcwd()])\nopen('got', 'w').write(got)\n"
    command = program("a", body) + " " + shlex.join(arguments)
    found = compare(
        tmp_path, command, command, scenario__stdin="input", scenario__cwd="below", scenario__outputs=["got"]
    )
    assert found.word == "inconclusive"
    got = json.loads((tmp_path / "below" / "got").read_text())
    assert got == [arguments, b"two\nlines\xff".hex(), str(tmp_path / "below")]
    assert found.entries[0].arms["a"]["command"][-len(arguments) :] == arguments


def test_a_standard_input_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        compare(tmp_path, "cat", "cat", scenario__stdin="nothing")
    assert str(caught.value) == f"scenario.stdin: expected a file below {tmp_path}, found 'nothing'"


# ------------------------------------------------------------------------------------------- hostile ones

LOUD = """
chunk = b"x" * (1 << 20)
for _ in range(200):
    os.write(1, chunk)
    os.write(2, chunk)
os.write(1, b"\\n" + sys.argv[1].encode())
"""
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


def test_two_hundred_megabytes_on_both_streams_without_a_newline(tmp_path, program):
    said = shlex.quote(json.dumps(FINGERPRINT))
    found = compare(tmp_path, f"echo {said}", program("b", LOUD) + f" {said}")
    assert found.word == "inconclusive"  # not void, and the fingerprint at the very end was heard
    assert found.summary["fingerprints"]["agree"] is True
    assert (found.folder / records.NAME).stat().st_size < 100_000


def test_bytes_that_are_no_text_are_survived(tmp_path, program):
    body = "os.write(1, b'\\xff\\xfe{\\x00\\n' + sys.argv[1].encode() + b'\\n\\xc3')\nos.write(2, b'\\xff' * 9)"
    said = shlex.quote(json.dumps(FINGERPRINT))
    found = compare(tmp_path, f"echo {said}", program("b", body) + f" {said}")
    assert found.summary["fingerprints"]["agree"] is True


def test_a_program_that_reads_standard_input_finds_its_end(tmp_path):
    assert compare(tmp_path, "cat", "cat").word == "inconclusive"


def test_a_daemon_is_ended_and_told(tmp_path, program):
    found = compare(tmp_path, "true", program("b", DAEMON))
    assert found.summary["voids"] == {"a": {}, "b": {}}
    [note] = [note for note in found.of(records.Note) if note.about == "left-behind"]
    assert note.message.startswith("arm 'B' left 1 process running when it ended")
    assert left_behind(tmp_path) == []


def test_a_program_that_ignores_sigterm_and_never_ends_is_ended(tmp_path, program):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(1000)"
    found = compare(tmp_path, "true", program("b", body), scenario__timeout=1.0)
    voids = found.of(records.Void)
    assert {(void.arm, void.reason) for void in voids} == {("b", "timeout")}
    assert "sleep" in voids[0].stacks
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "reason", "fields"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash", (None, "SIGSEGV")),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", (None, "SIGKILL")),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 2)", "crash", (None, "signal 36")),
        ("print('gone', file=sys.stderr); sys.exit(137)", "exit", (137, None)),
    ],
)
def test_signals_and_exit_codes_are_reported_as_they_were(tmp_path, program, body, reason, fields):
    found = compare(tmp_path, "true", program("b", body))
    void = found.of(records.Void)[0]
    assert (void.reason, (void.exit_code, void.signal)) == (reason, fields)
    assert found.summary["voids"]["a"] == {}


def test_five_deaths_in_b_alone_are_a_regression_and_in_a_alone_unfit(tmp_path):
    assert compare(tmp_path, "true", "false", schedule__pairs=8).word == "regression"
    assert compare(tmp_path, "false", "true", schedule__pairs=8).word == "unfit"


# ------------------------------------------------------------------------------------------- the command line


def test_the_options_for_commands_reach_the_scenario(tmp_path, harness):
    (tmp_path / "input").write_text("b\na\n")
    done = harness(
        *("ab", "cat > out", "cat input - > out", "--pairs", "1", "--quiet", "--shell", "--stdin", "input"),
        *("--outputs", "out", "--setup", "echo setup >> log", "--prepare", "echo prepare >> log"),
        *("--cleanup", "echo cleanup >> log"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("wrong-result: ")
    assert (tmp_path / "log").read_text().split()[:3] == ["setup", "setup", "prepare"]
    assert (tmp_path / "log").read_text().split()[-2:] == ["cleanup", "cleanup"]
    assert not (tmp_path / "below").exists()
    assert harness("ab", "true", "true", "--cwd", "below", "--pairs", "1", cwd=tmp_path).returncode == 2


def test_run_shows_what_a_command_prints_between_its_hooks(tmp_path, harness):
    settings = ("-s", "scenario.setup='touch made'", "-s", "scenario.cleanup='mv made gone'")
    done = harness("run", "ls", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "made\n" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["exit_code"] == 0
    assert (tmp_path / "gone").exists()


def test_a_missing_interpreter_is_unfit(tmp_path, harness):
    done = harness("ab", "python9.99 old.py", "python3 new.py", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr == "harness: nothing was measured: there is no program 'python9.99' on PATH\n"
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = harness("ab", "./script", "true", "--quiet", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stdout.startswith("unfit: nothing was measured: program ")
