"""An interrupt (Ctrl-C) that Python drops, where it strikes a finaliser or a callback, is kept for the next look."""

import signal
import threading

_seen = False


def watch() -> None:
    """Keep interrupts of this process from now on; only where Python's own handler stands."""
    own = threading.current_thread() is threading.main_thread()
    if own and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _strike)


def _strike(number, frame) -> None:
    global _seen
    _seen = True
    raise KeyboardInterrupt


def check() -> None:
    """Raise KeyboardInterrupt for one that was dropped since the last `forget`."""
    if _seen:
        raise KeyboardInterrupt


def forget() -> None:
    """The interrupt was honoured."""
    global _seen
    _seen = False
