"""What a person sees while a comparison runs: one line on standard error, rewritten between slots, never inside one."""

import os
import sys
import time
from typing import TextIO

ERASE = "\x1b[K"  # what is right of the cursor


class Progress:
    """Shows how far a comparison is and about how long it will still take.

    On a terminal one line is rewritten; elsewhere one line a unit is printed. The ratio is not shown: whoever watches
    it is tempted to stop when it looks right.
    """

    def __init__(
        self,
        name: str,
        unit_word: str,
        planned: int,
        *,
        fixed: bool = True,
        quiet: bool = False,
        stream: TextIO | None = None,
    ):
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._name, self._word, self._planned = name, unit_word, planned
        self._started = time.monotonic()
        self._most = "" if fixed else "at most "  # it stops as soon as the units decide
        self._finished = 0  # units of this run, void ones too; what the estimate rests on
        self._shown = False

    def _left(self, remaining: float, fraction: float = 0.0) -> str:
        done = self._finished + fraction
        if done <= 0 or remaining <= 0:
            return ""
        seconds = (time.monotonic() - self._started) / done * remaining
        return f" · {self._most or 'about '}{duration(seconds)} left"

    def step(self, unit: int, kept: int, fraction: float, voids: int, what: str) -> None:
        """Between slots: the unit that runs, how much of it is done, and what comes next."""
        if not self._live:
            return
        left = self._left(max(0.0, self._planned - kept - fraction), fraction)
        void = f" · {voids} void" if voids else ""
        self._line(f"{self._word} {unit} ({kept} of {self._most}{self._planned} done), {what}{void}{left}")

    def unit_done(self, unit: int, kept: int, state: str) -> None:
        """One unit is over."""
        self._finished += 1
        if self._quiet or self._live:
            return
        left = self._left(max(0, self._planned - kept))
        print(
            f"{self._name}: {self._word} {unit} {state}, {kept} of {self._most}{self._planned} done{left}",
            file=self._stream,
        )

    def note(self, message: str) -> None:
        """Something happened that the user should see at once, a void for instance."""
        if self._quiet:
            return
        self._clear()
        print(message, file=self._stream)

    def close(self) -> None:
        self._clear()

    def _line(self, text: str) -> None:
        columns = self._columns() - 1  # a line that reaches the edge would not be rewritten, but left behind
        room = columns - len(text) - len(" · ")
        name = self._name if len(self._name) <= room else f"{self._name[: room - 1]}…" if room > 3 else ""
        text = f"{name} · {text}" if name else text if len(text) <= columns else f"{text[: columns - 1]}…"
        self._stream.write(f"\r{text}{ERASE}")
        self._stream.flush()
        self._shown = True

    def _columns(self) -> int:
        """How wide the terminal is now; 80 where it does not say."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _clear(self) -> None:
        if self._shown:
            self._stream.write(f"\r{ERASE}")
            self._stream.flush()
            self._shown = False


def duration(seconds: float) -> str:
    """17 s, 2 min 5 s, 1 h 3 min."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
