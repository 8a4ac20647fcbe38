"""Faults that a whole job can have, put in on purpose from outside: what a comparison must find, and name.

name            what happens                                                     what must find it
nan-frames      every frame but the first arrives without a number               the job itself; where it allows empty
                                                                                 frames, the comparison's digests
other-frame     the last frame arrives with the pixels of the one before it      digest 'frames', totals
monitor         the monitor of every frame reads 22 % low                        totals: intensity is 22 % up
early-return    the first native call gives half of its records                  digests of keys and contributors
hang            the run never ends after its last checkpoint                     the time limit: void
full-disk       the first part cannot be written                                 the job ends with a sentence: void
sigterm         the run is asked to stop half way                                the process is gone: void
"""

import contextlib
import os
import signal
import threading
from pathlib import Path


def _nan_frames():
    from impl.mapping import work

    real = work.Work.read

    def read(self, frame):
        found = real(self, frame)
        if frame != self.plan.frames[0]:
            found.counts[...] = float("nan")
        return found

    return work.Work, "read", read


def _other_frame():
    from impl.mapping import work

    real = work.Work.read

    def read(self, frame):
        return real(self, frame - 1 if frame == self.plan.frames[-1] and frame else frame)

    return work.Work, "read", read


def _monitor():
    from impl.mapping import work

    real = work.Work._scalars

    def scalars(self, frame):
        stack = self.stack
        if not getattr(stack, "monitors_are_off", False):
            stack.monitors = {name: values / 1.22 for name, values in stack.monitors.items()}
            stack.monitors_are_off = True
        return real(self, frame)

    return work.Work, "_scalars", scalars


def _early_return():
    from impl.mapping import kernel
    from impl.mapping.records import Records

    real, calls = kernel.Kernel.map_view, []

    def map_view(self, *arguments, **named):
        calls.append(1)
        records = real(self, *arguments, **named)
        if len(calls) > 1:
            return records
        return Records(*(column[: len(records) // 2].copy() for column in records.columns()))

    return kernel.Kernel, "map_view", map_view


def _hang():
    from impl.mapping import checkpoint

    real = checkpoint.Router.finish

    def finish(self):
        real(self)
        threading.Event().wait()

    return checkpoint.Router, "finish", finish


def _full_disk():
    from impl.mapping import parts

    return parts, "open_new", lambda path: Path("/dev/full").open("wb", buffering=0)


def _sigterm():
    from impl.mapping import work

    real = work.Work.map

    def map_(self, kernels, frames, *more):
        if len(self.plan.frames) // 2 in [self.plan.frames.index(frame) for frame in frames]:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, kernels, frames, *more)

    return work.Work, "map", map_


#: name -> what gives (owner, attribute, its broken replacement)
FAULTS = {
    "nan-frames": _nan_frames,
    "other-frame": _other_frame,
    "monitor": _monitor,
    "early-return": _early_return,
    "hang": _hang,
    "full-disk": _full_disk,
    "sigterm": _sigterm,
}


@contextlib.contextmanager
def injected(name: str):
    """Within it a job has the fault of that name; '' is none. Raises ValueError for a name that is none."""
    if not name:
        yield
        return
    if name not in FAULTS:
        raise ValueError(f"fault: expected one of {', '.join(FAULTS)}, found '{name}'")
    owner, attribute, broken = FAULTS[name]()
    original = getattr(owner, attribute)
    setattr(owner, attribute, broken)
    try:
        yield
    finally:
        setattr(owner, attribute, original)
