"""What is shown while a comparison runs: a line rewritten on a terminal, a line a unit elsewhere, none if quiet."""

import contextlib
import fcntl
import io
import os
import struct
import termios

import pytest

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
    assert shown.startswith("\rgro… · block 4 (3 of at most 40 done), pair 7 of 10 · 1 void · at most ")
    assert len(shown.removesuffix("\x1b[K")) == 80  # with the return; nobody says how wide it is
    assert "\n" not in shown
    progress.unit_done(4, 4, "complete")
    assert stream.getvalue() == shown
    progress.close()
    assert stream.getvalue() == f"{shown}\r\x1b[K"


def test_a_terminal_that_erases_nothing_gets_a_line_a_unit(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    progress = Progress("grouping", "block", 3, stream=stream)
    progress.step(0, 0, 0.5, 0, "pair 1 of 2")
    progress.unit_done(0, 1, "complete")
    assert stream.getvalue().startswith("grouping: block 0 complete, 1 of 3 done · about ")


@pytest.mark.parametrize("columns", [12, 40, 60, 79, 80, 81, 120])
def test_a_line_never_reaches_the_edge_of_its_terminal(columns):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(theirs, "w", encoding="utf-8") as stream:
        progress = Progress("grouping", "block", 40, fixed=False, stream=stream)
        for unit, what in ((0, "launch"), (10, "pair 10 of 10"), (11, "launch")):
            progress.step(unit, unit, 0.5, 1, what)
        progress.close()
    written = b""
    with open(ours, "rb", buffering=0) as screen, contextlib.suppress(OSError):  # EIO once all is read
        while piece := screen.read(10_000):
            written += piece
    lines = written.decode().split("\r")[1:]
    assert [line[-3:] for line in lines] == ["\x1b[K"] * 4
    assert max(len(line) - 3 for line in lines) < columns
    assert lines[1].startswith({12: "block 10 (", 40: "block 10 (", 120: "grouping · block 10 ("}.get(columns, ""))
    assert columns < 79 or lines[1].endswith("left\x1b[K")


def test_nothing_is_left_of_what_is_done():
    stream = io.StringIO()
    Progress("grouping", "block", 1, stream=stream).unit_done(0, 1, "complete")
    assert stream.getvalue() == "grouping: block 0 complete, 1 of 1 done\n"


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
