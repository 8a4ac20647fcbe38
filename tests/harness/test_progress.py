"""What is shown while a comparison runs: a line rewritten on a terminal, a line a unit elsewhere, none if quiet."""

import io

from harness.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_a_line_a_unit_is_printed():
    stream = io.StringIO()
    progress = Progress("grouping", "block", 3, stream=stream)
    progress.step(0, 0, 0.5, 0, "pair 1 of 2")
    progress.unit_done(0, 1, "complete")
    progress.note("arm 'b', block 1: void (exit): expected exit code 0, found exit code 3")
    progress.unit_done(1, 1, "void")
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("grouping: block 0 complete, 1 of 3 done · about ")
    assert lines[1] == "arm 'b', block 1: void (exit): expected exit code 0, found exit code 3"
    assert lines[2].startswith("grouping: block 1 void, 1 of 3 done · about ")


def test_on_a_terminal_one_line_is_rewritten_and_cleared():
    stream = Terminal()
    progress = Progress("grouping", "block", 40, fixed=False, stream=stream)
    progress.step(4, 3, 0.5, 1, "pair 7 of 10")
    shown = stream.getvalue()
    assert shown.startswith("\rgrouping · block 4 (3 of at most 40 done), pair 7 of 10 · 1 void · at most ")
    assert "\n" not in shown
    progress.unit_done(4, 4, "complete")
    assert stream.getvalue() == shown
    progress.close()
    assert stream.getvalue().endswith("\r")


def test_quiet_says_nothing():
    stream = Terminal()
    progress = Progress("grouping", "block", 3, quiet=True, stream=stream)
    progress.step(0, 0, 0.5, 0, "launch")
    progress.note("something")
    progress.unit_done(0, 1, "complete")
    progress.close()
    assert stream.getvalue() == ""


def test_a_duration_is_said_as_a_person_would():
    assert [duration(x) for x in (0.2, 17.4, 125, 3780)] == ["0 s", "17 s", "2 min 5 s", "1 h 3 min"]
