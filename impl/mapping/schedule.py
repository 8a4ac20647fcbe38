"""Who does what when: the steps of work.py over the calls of a plan, one after the other or in pools of threads.

inline            the calling thread does everything, frame after frame
grouped           a pool reads and corrects single frames into the slots of a call, another maps whole calls
per-frame-pool    a pool reads, another corrects and maps; meant for one frame a call

Whatever the schedule, the router adds in the order of the frames, so all three give the same bytes for one plan. Memory
is bounded by the plan's number of calls in flight: their buffers are made once and handed on. Nothing waits with a
time-out: a run ends because its last task has reported. The first failure is kept; calls whose frames are all there are
still mapped, the rest is let go, then the failure is raised.
"""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait

from impl.mapping.checkpoint import Router
from impl.mapping.work import Work

SCHEDULES = ("inline", "grouped", "per-frame-pool")
#: seconds without an event after which the watchdog says where the run stands
WATCHDOG = 300.0


class Interrupted(Exception):
    """The run was asked to stop; `signal` is what asked."""

    def __init__(self, number: int):
        self.signal = number
        super().__init__(f"stopped by {signal.Signals(number).name}; what is written stays valid")


class Stop:
    """Turns SIGINT and SIGTERM into a request that the run meets between two steps; a second signal ends at once.

    Use it in a `with` statement, in the main thread. Nothing is raised inside a handler: an exception there could leave
    a lock taken, and the pools would wait for it for ever.
    """

    def __init__(self):
        self.signal: int | None = None
        self._tell = []

    def __enter__(self) -> "Stop":
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        self._wakeup = signal.set_wakeup_fd(self._write)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.write(self._write, b"\0")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _listen(self) -> None:
        while number := os.read(self._read, 1)[0]:
            if number not in self._handlers:
                continue
            if self.signal is not None:
                os._exit(128 + number)
            self.signal = number
            for tell in list(self._tell):
                tell()

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], None]):
        """Within it, tell() is called from another thread when a signal comes, at once if it came before."""
        self._tell.append(tell)
        try:
            if self.signal is not None:
                tell()
            yield
        finally:
            self._tell.remove(tell)

    def check(self) -> None:
        """Raise Interrupted once a signal has come."""
        if self.signal is not None:
            raise Interrupted(self.signal)


class Slots:
    """The frames of one call being filled in by several threads; every frame once, none left out.

    Attributes
    ----------
    call : int
    frames : tuple of int
    buffers : list of Corrected    one a frame
    """

    def __init__(self, call: int, frames, buffers):
        self.call, self.frames, self.buffers = call, tuple(frames), buffers
        self._claimed, self._facts = [False] * len(self.frames), [None] * len(self.frames)
        self._lock = threading.Lock()

    def claim(self, slot: int):
        """Take a slot; returns its frame and buffer. Raises ValueError where it was taken before."""
        with self._lock:
            if self._claimed[slot]:
                raise ValueError(f"call {self.call}, slot {slot}: expected it unclaimed, found it claimed")
            self._claimed[slot] = True
        return self.frames[slot], self.buffers[slot]

    def complete(self, slot: int, facts) -> None:
        """Say that a slot holds its frame. Raises ValueError where it was not claimed, or is complete already."""
        with self._lock:
            if not self._claimed[slot] or self._facts[slot] is not None:
                found = "completed twice" if self._claimed[slot] else "never claimed"
                raise ValueError(f"call {self.call}, slot {slot}: expected it claimed once, found it {found}")
            self._facts[slot] = facts

    def take(self) -> list:
        """What was said of every slot. Raises ValueError for one that is unfilled: it would map as what was before."""
        with self._lock:
            for slot, facts in enumerate(self._facts):
                if facts is None:
                    raise ValueError(
                        f"call {self.call}, slot {slot}: expected frame {self.frames[slot]}, found none filled in"
                    )
            return list(self._facts)


def run(
    work: Work, router: Router, schedule: str = "grouped", report=None, stop: Stop | None = None,
    watchdog: float = WATCHDOG, executors: tuple[Executor, Executor] | None = None,
) -> None:  # fmt: skip
    """Map every call that the router lacks.

    Parameters
    ----------
    report : callable or None    report(kind, facts): 'call' after every call, 'watchdog' when nothing happens
    watchdog : float             seconds; 0: none
    executors : (reading, mapping) or None    of threads; None: pools as the plan says. Given ones are left running.

    Raises
    ------
    the first failure of any step, after all others have ended; Interrupted
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: expected one of {', '.join(SCHEDULES)}, found '{schedule}'")
    report, stop = report or (lambda kind, facts: None), stop or Stop()
    if not router.todo:
        return
    if schedule == "inline":
        _inline(work, router, report, stop)
    else:
        _Pools(work, router, schedule == "grouped", report, stop, watchdog).run(executors)


def _inline(work: Work, router: Router, report, stop: Stop) -> None:
    kernels = work.kernels()
    buffers = [work.buffer() for _ in range(max(len(work.plan.calls[call]) for call in router.todo))]
    try:
        for call in router.todo:
            frames, facts = work.plan.calls[call], []
            for frame, buffer in zip(frames, buffers):
                stop.check()
                facts.append(work.correct(frame, work.read(frame), buffer))
            stop.check()
            batches = work.map(kernels, frames, buffers[: len(frames)], router.needed(call))
            router.insert(frames, batches, facts)
            report("call", {"frames": len(frames)})
    finally:
        kernels.close()


class _Pools:
    """Two pools and a coordinator, which is the calling thread; only it decides, only events move it."""

    def __init__(self, work: Work, router: Router, grouped: bool, report, stop: Stop, watchdog: float):
        self.work, self.router, self.grouped, self.report, self.stop = work, router, grouped, report, stop
        self.watchdog, self.plan = watchdog, work.plan
        self.events: queue.Queue = queue.Queue()
        self.failure: BaseException | None = None
        self.stopping = False  # asked to stop: nothing new begins
        self.outstanding: dict[Future, tuple[str, Slots]] = {}
        self.unfilled: dict[Slots, int] = {}
        self.lost: set[Slots] = set()
        self.last_event = time.monotonic()

    def run(self, executors) -> None:
        plan = self.plan
        self.kernels = queue.Queue()
        made = [self.work.kernels() for _ in range(plan.workers)]
        for kernels in made:
            self.kernels.put(kernels)
        longest = max(len(plan.calls[call]) for call in self.router.todo)
        free = [[self.work.buffer() for _ in range(longest)] for _ in range(min(plan.in_flight, len(self.router.todo)))]
        own = executors is None
        reading, mapping = executors or (
            ThreadPoolExecutor(plan.readers, "reader"), ThreadPoolExecutor(plan.workers, "mapper"),
        )  # fmt: skip
        ended = threading.Event()
        if self.watchdog > 0:
            threading.Thread(target=self._watch, args=(ended,), name="watchdog", daemon=True).start()
        try:
            with self.stop.telling(lambda: self.events.put(None)):
                self._coordinate(reading, mapping, free)
        finally:
            self.stopping = True
            if own:
                reading.shutdown(wait=True, cancel_futures=True)
                mapping.shutdown(wait=True, cancel_futures=True)
            else:
                wait(list(self.outstanding))  # no kernel is closed under a call
            ended.set()
            for kernels in made:
                kernels.close()
        if self.failure is not None:
            raise self.failure

    def _coordinate(self, reading: Executor, mapping: Executor, free) -> None:
        todo = iter(self.router.todo)
        waiting, started = next(todo, None), 0
        while True:
            while self._may_start(started) and free and waiting is not None:
                started += 1
                slots = Slots(waiting, self.plan.calls[waiting], free.pop())
                waiting = next(todo, None)
                self.unfilled[slots] = len(slots.frames)
                for slot in range(len(slots.frames)):
                    self._submit(reading, "fill", slots, self._fill, slots, slot)
            if not self.outstanding:
                return
            future = self.events.get()
            self.last_event = time.monotonic()
            if future is None:
                self.failure, self.stopping = self.failure or Interrupted(self.stop.signal), True
                for other in list(self.outstanding):
                    other.cancel()  # what runs ends by itself; what is cancelled reports like the rest
                continue
            kind, slots = self.outstanding.pop(future)
            error = CancelledCall() if future.cancelled() else future.exception()
            if error is not None:
                if self.stop.signal is not None:
                    error = Interrupted(self.stop.signal)
                self.failure = self.failure or error
                self.lost.add(slots)
            if kind == "fill":
                self.unfilled[slots] -= 1
                if self.unfilled[slots]:
                    continue
                del self.unfilled[slots]
                if slots not in self.lost and not self.stopping:
                    self._submit(mapping, "map", slots, self._map, slots)
                    continue
            elif error is None:
                self.report("call", {"frames": len(slots.frames)})
            free.append(slots.buffers)

    def _may_start(self, started: int) -> bool:
        """Whether one more call may begin: those whose records wait for an earlier one still take memory."""
        return self.failure is None and started - self.router.taken < self.plan.in_flight

    def _submit(self, executor: Executor, kind: str, slots: Slots, task, *arguments) -> None:
        future = Future()
        try:
            future = executor.submit(task, *arguments)
        except RuntimeError as error:  # a pool that is shut down or broken takes nothing more
            future.set_exception(error)
        self.outstanding[future] = kind, slots
        future.add_done_callback(self.events.put)

    # ------------------------------------------------------------------------------------------------ in the pools

    def _fill(self, slots: Slots, slot: int) -> None:
        if self.stopping or self.stop.signal is not None:
            raise CancelledCall
        index, buffer = slots.claim(slot)
        frame = self.work.read(index)
        if self.grouped:
            slots.complete(slot, self.work.correct(index, frame, buffer))
        else:
            slots.complete(slot, frame)

    def _map(self, slots: Slots) -> None:
        if self.stopping or self.stop.signal is not None:
            raise CancelledCall
        facts = slots.take()
        if not self.grouped:  # they are the frames as read
            facts = [self.work.correct(*given) for given in zip(slots.frames, facts, slots.buffers)]
        kernels = self.kernels.get()  # given pools may have more threads than there are kernels: each comes back
        try:
            needed = self.router.needed(slots.call)
            batches = self.work.map(kernels, slots.frames, slots.buffers[: len(slots.frames)], needed)
        finally:
            self.kernels.put(kernels)
        self.router.insert(slots.frames, batches, facts)

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(self.watchdog):
            quiet = time.monotonic() - self.last_event
            if quiet >= self.watchdog:
                tasks = list(self.outstanding.values())
                text = ", ".join(f"{kind} call {slots.call}" for kind, slots in tasks[:8])
                self.report("watchdog", {"seconds": round(quiet, 1), "outstanding": len(tasks), "tasks": text})


class CancelledCall(Exception):
    """A task that did not begin because the run was stopping."""
