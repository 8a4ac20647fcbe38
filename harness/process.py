"""One arm process: start it, ask it, time it, dump its stacks when it hangs, and end its whole tree.

Every arm gets a session of its own, and everything that descends from it carries its *mark*: an otherwise unused
resource limit (RLIMIT_LOCKS has had no effect since Linux 2.4.25) that fork and exec hand down and that no change of
session, parent or environment takes away. The harness makes itself a subreaper, so that orphans come back to it.
So the tree can be found and ended although parts of it were daemonised; and should the harness itself be killed, a
small guard process (guard.py) that waits for just this ends whatever carries one of its marks, and removes what was
temporary.

Nothing runs beside the wait for an answer: no thread, no timer. Pipes are drained by the same poll that waits.

Costs, measured on a 2-vCPU virtual machine: an exchange adds 30 µs to an iteration; starting and collecting a process
adds 0.2 ms to its time beyond a bare posix_spawn and wait (0.80 against 0.65 ms for `true`).
"""

import atexit
import contextlib
import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import load, protocol
from harness.errors import ConfigurationError, UnfitError, sentence

#: bytes of each stream that are kept, from its end
#: bytes by which the own high-water mark may be read too low: the kernel counts pages in batches on each core
_RSS_SLACK = 4 << 20
STDERR_KEPT = 32 << 10
STDOUT_KEPT = 1 << 20
#: seconds between SIGTERM and SIGKILL; and until a process that even SIGKILL does not end is left to the guard
GRACE, RESIGNATION = 0.5, 30.0
#: seconds that py-spy may take for one process, and for all of an arm; bytes of stacks that are kept
STACK_PATIENCE, STACKS_PATIENCE, STACKS_KEPT = 15.0, 45.0, 256 << 10
#: a time-out from a pilot: so many times the longest time seen, but never under so many seconds
PATIENCE_FACTOR, PATIENCE_LEAST = 20.0, 10.0
_RLIMIT_LOCKS = 10  # asm-generic; not in Python's resource module
_PR_SET_CHILD_SUBREAPER = 36
_ADDR_NO_RANDOMIZE = 0x0040000
_LINUX = sys.platform == "linux"
_ON_MEMORY = (b"MemoryError", b"bad_alloc", b"Cannot allocate memory", b"ut of memory", b"ENOMEM")


class VoidSlot(Exception):
    """A slot that gave no measurement; its fields are those of records.Void.

    Attributes
    ----------
    reason : str              crash, exit, killed, timeout, protocol, time or memory
    message : str             one sentence: what was expected, what was found
    exit_code : int | None    of a process that ended by itself
    signal : str | None       name of the signal that ended it
    stderr : str              the end of its standard error
    stacks : str              of every thread, on a hang
    """

    def __init__(
        self,
        reason: str,
        message: str,
        exit_code: int | None = None,
        signal: str | None = None,
        stderr: str = "",
        stacks: str = "",
    ):
        self.reason, self.message = reason, message
        self.exit_code, self.signal = exit_code, signal
        self.stderr, self.stacks = stderr, stacks
        super().__init__(message)

    def fields(self) -> dict:
        """The fields by name, for a records.Void."""
        names = ("reason", "message", "exit_code", "signal", "stderr", "stacks")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Exit:
    """How a process ended.

    Attributes
    ----------
    exit_code : int | None          None when a signal ended it
    signal : str | None             the signal's name
    seconds : float                 from just before the spawn to just after the exit
    cpu_seconds : float             the process and all descendants that were waited for or collected
    counters : dict                 page faults, context switches, bytes read and written of the tree, the time its
                                    first thread waited for a processor, and pss_bytes at close (protocol arms)
    peak_rss_bytes : float | None   largest resident set of any process in the tree; None where it cannot be told
                                    from the harness's own (a new process inherits that high-water mark)
    output : bytes                  the end of standard output (commands only)
    left_behind : int               descendants that still ran after the exit and were ended
    """

    exit_code: int | None
    signal: str | None
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: float | None
    counters: dict[str, float] = field(default_factory=dict)
    output: bytes = b""
    left_behind: int = 0


class _Tail:
    """The last bytes of a stream."""

    def __init__(self, kept: int):
        self._kept = kept
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        self._bytes += chunk
        if len(self._bytes) > 2 * self._kept:
            del self._bytes[: -self._kept]

    def bytes(self) -> bytes:
        return bytes(self._bytes[-self._kept :])

    def text(self) -> str:
        return self.bytes().decode("utf-8", "replace")


def patience(seen: Iterable[float], timeout: float) -> float:
    """How long to wait for an answer, seconds: a pilot's times make a hang known sooner than the scenario's time-out.

    Parameters
    ----------
    seen : s          outside times of like exchanges so far; none: the time-out alone decides
    timeout : s       the scenario's, never exceeded
    """
    longest = max(seen, default=None)
    return timeout if longest is None else min(timeout, max(PATIENCE_LEAST, PATIENCE_FACTOR * longest))


# ------------------------------------------------------------------------------------------------- marks, trees

_marks = itertools.count(1)
_family: tuple[int, int] | None = None  # (pid of the harness, what the marks of all its arms begin with)
_starting = threading.Lock()  # a resource limit is the whole process's: two threads must not start arms at once
_guard: tuple[int, int] | None = None  # its pid, and the end of a pipe that only this process holds; closing wakes it


def _become_parent() -> None:
    """Once a process: orphans of the arms come back to it, not to init, and a guard ends them should it be killed."""
    global _family, _guard
    if _family is not None and _family[0] == os.getpid():
        return
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited from a careless parent; exits would be lost
    _family = (os.getpid(), 1 << 62 | int.from_bytes(os.urandom(5), "big") << 22)
    if not _LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _guard = _start_guard(_family[1])
    atexit.register(_dismiss_guard)


def _dismiss_guard() -> None:
    """At an orderly end: let the guard look once more, and go."""
    if _guard is not None and _family[0] == os.getpid():
        pid, watched = _guard
        os.close(watched)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _start_guard(family: int) -> tuple[int, int]:
    """Start guard.py and wait until it watches; its pid, and the pipe that keeps it waiting."""
    told, watched = os.pipe()
    hears, says = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    program = str(Path(__file__).with_name("guard.py"))
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", program, str(family)],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, old, new) for old, new in ((told, 0), (says, 1), (null, 2))],
            setsid=True,
        )
    finally:
        for handle in (told, says, null):
            os.close(handle)
    os.read(hears, 1)
    os.close(hears)
    return pid, watched


@contextlib.contextmanager
def guarded():
    """What is started inside, and all that descends from it, is ended should the harness be killed."""
    with _starting:
        _become_parent()
        with _inherited(_new_mark(), None, False):
            yield


@contextlib.contextmanager
def temporary(*paths: str | os.PathLike):
    """Files or folders that are gone at the end, even should the harness be killed meanwhile.

    They may be made inside, or be there already; named from the root of the file system.
    """
    with _starting:
        _become_parent()
    _tell_guard("+", paths)
    try:
        yield
    finally:
        for path in map(Path, paths):
            try:
                path.unlink()
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
        _tell_guard("-", paths)


def _tell_guard(sign: str, paths: Iterable[str | os.PathLike]) -> None:
    if _guard is not None:
        for path in paths:
            with contextlib.suppress(BrokenPipeError):  # somebody ended it
                os.write(_guard[1], sign.encode() + os.fsencode(path) + b"\0")


def _new_mark() -> int:
    """A number that no other arm of any harness on this machine carries."""
    return _family[1] | (next(_marks) & 0x3FFFFF)


@contextlib.contextmanager
def _inherited(mark: int, pin: Iterable[int] | None, fixed_layout: bool):
    """What a child started inside takes over; the harness itself has its own back at once."""
    import resource

    personality = None
    if fixed_layout and _LINUX:
        import ctypes

        change = ctypes.CDLL(None).personality
        personality = change(0xFFFFFFFF)
        change(personality | _ADDR_NO_RANDOMIZE)

    before = resource.getrlimit(_RLIMIT_LOCKS) if _LINUX else None
    cores = os.sched_getaffinity(0) if pin is not None and hasattr(os, "sched_getaffinity") else None
    try:
        if before is not None:
            resource.setrlimit(_RLIMIT_LOCKS, (mark, before[1]))
        if cores is not None:
            os.sched_setaffinity(0, pin)
        yield
    finally:
        if personality is not None:
            change(personality)
        if before is not None:
            resource.setrlimit(_RLIMIT_LOCKS, before)
        if cores is not None:
            os.sched_setaffinity(0, cores)


def _mark_of(pid: int) -> int | None:
    """The mark that a process carries, or None."""
    try:
        text = Path(f"/proc/{pid}/limits").read_bytes()
    except OSError:
        return None
    start = text.find(b"Max file locks")
    value = text[start + 14 : text.find(b"\n", start)].split()[:1] if start >= 0 else []
    return int(value[0]) if value and value[0].isdigit() else None


# ------------------------------------------------------------------------------------------------- one process


class ArmProcess:
    """A started arm. Use it as a context manager, or call `end` in a `finally`.

    Parameters
    ----------
    command : list of str      program and arguments
    cwd : path                 its working directory
    environment : dict         laid over the harness's own environment; None takes a variable away
    speaks_protocol : bool     whether it answers commands (protocol.py); else it is timed from outside
    stdin : path or None       a file for a command's standard input; None: empty
    memory_limit : int | None  bytes of private memory (RLIMIT_DATA) that each process of the tree may have
    nice : int | None          niceness
    pin : set of int | None    cores
    fixed_layout : bool        without address randomisation
    measure_memory : bool      start a command through launcher.py, about 15 ms, so that its peak memory can be told
                               from the harness's own; commands only

    Attributes
    ----------
    pid : int                      its process and session id
    started : float, s             time.perf_counter() just before the spawn
    startup_seconds : float | None spawn to header
    accepted : protocol.Header | None

    Raises
    ------
    UnfitError                 the program cannot be started
    ConfigurationError         cwd, stdin, pin or nice cannot be had
    """

    def __init__(
        self,
        command: list[str],
        *,
        cwd: str | os.PathLike,
        environment: Mapping[str, str | None],
        speaks_protocol: bool,
        stdin: str | os.PathLike | None = None,
        memory_limit: int | None = None,
        nice: int | None = None,
        pin: Iterable[int] | None = None,
        fixed_layout: bool = False,
        measure_memory: bool = False,
    ):
        with _starting:
            _become_parent()
        self.command = list(command)
        self.speaks_protocol = speaks_protocol
        self.accepted: protocol.Header | None = None
        self.startup_seconds: float | None = None
        self._iterated = False
        self._exit: Exit | None = None
        self._ended = False
        self._collected_cpu = 0.0
        self._memory_limit = memory_limit
        self._peak_rss: float | None = None
        self._pss: float | None = None
        self._lines = bytearray()
        self._stderr = _Tail(STDERR_KEPT)
        self._stdout = _Tail(STDOUT_KEPT)
        self._pidfd: int | None = None
        self._streams: dict[int, str] = {}
        self._poll = select.poll()
        self._mark = _new_mark()
        self._own_peak = _own_peak_rss()
        self._told_memory: int | None = None  # a pipe from launcher.py
        self._inheritance = {"mark": self._mark, "pin": pin, "fixed_layout": fixed_layout}
        self._start(cwd, _environment(environment, speaks_protocol), stdin, memory_limit, nice, pin, measure_memory)

    def _start(self, cwd, environment, stdin, memory_limit, nice, pin, measure_memory) -> None:
        if not Path(cwd).is_dir():
            raise ConfigurationError(sentence("cwd", "a folder", f"'{cwd}'", "check the path"))
        if pin is not None:
            _check_cores(pin)
        with contextlib.ExitStack() as stack:
            if self.speaks_protocol:
                given = subprocess.PIPE
            else:
                given = stack.enter_context(_opened(stdin))
            command, handles = self.command, ()
            if measure_memory and not self.speaks_protocol:
                _check_program(command, cwd, environment)
                self._told_memory, handle = os.pipe()
                stack.callback(os.close, handle)
                handles = (handle,)
                launcher = str(Path(__file__).with_name("launcher.py"))
                command = [sys.executable, "-I", "-S", launcher, str(handle), *command]
            with _starting, _inherited(**self._inheritance):
                self.started = time.perf_counter()
                try:
                    # start_new_session and no preexec_fn: subprocess uses vfork, whatever the harness's own size
                    self._popen = subprocess.Popen(
                        command,
                        cwd=cwd,
                        env=environment,
                        stdin=given,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        bufsize=0,
                        start_new_session=True,
                        pass_fds=handles,
                    )
                except OSError as error:
                    self._forget_memory()
                    program = self.command[0] if self.command else ""
                    raise UnfitError(
                        sentence(f"program '{program}'", "one that can be started", _found(error), "check the command")
                    ) from None
        self.pid = self._popen.pid
        try:
            self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
            for stream, name in ((self._popen.stdout, "stdout"), (self._popen.stderr, "stderr")):
                os.set_blocking(stream.fileno(), False)
                self._streams[stream.fileno()] = name
                self._poll.register(stream.fileno(), select.POLLIN)
            self._limit(memory_limit, nice)
        except BaseException:
            self.end()
            raise

    def _limit(self, memory_limit: int | None, nice: int | None) -> None:
        """Memory and niceness, set from outside some 50 µs after the start: long before any arm allocates."""
        try:
            if memory_limit is not None and _LINUX:
                import resource

                resource.prlimit(self.pid, resource.RLIMIT_DATA, (memory_limit, memory_limit))
            if nice is not None:
                os.setpriority(os.PRIO_PROCESS, self.pid, nice)
        except ProcessLookupError:
            pass  # it is over already
        except PermissionError:
            raise ConfigurationError(
                sentence("nice", "a niceness that this user may set", str(nice), "only root may go below 0")
            ) from None

    # ---------------------------------------------------------------------------------------- the exchange

    def header(self, timeout: float) -> protocol.Header:
        """The arm's first line.

        Raises
        ------
        ConfigurationError   the arm says that its input is wrong
        VoidSlot             it ended, hung or said something else; its tree is ended
        """
        line = self._line(time.perf_counter() + timeout, f"a header within {timeout:g} s")
        self.startup_seconds = time.perf_counter() - self.started
        try:
            message = protocol.opening(line)
        except protocol.ProtocolError as error:
            self._fail("protocol", str(error))
        self._raise_error(message)
        self.accepted = message
        return message

    def ask(self, command: protocol.Command, timeout: float) -> tuple[protocol.Message, float]:
        """Send a command, wait for its answer.

        Returns
        -------
        (message, outside_seconds)   the answer, and the harness's own time around the exchange

        Raises
        ------
        ConfigurationError   the arm says, before its first iteration or asked for values, that its input is wrong
        VoidSlot             anything else that is no answer; the arm's tree is ended
        """
        return self.answer(command, self.send(command), timeout)

    def send(self, command: protocol.Command) -> float:
        """The first half of `ask`: send a command; when, by time.perf_counter()."""
        name = protocol.kind(command)
        if self._lines:
            self._fail(
                "protocol", f"expected silence before '{name}', found {protocol.shown(bytes(self._lines))} unasked"
            )
        text = protocol.encode(command)
        begin = time.perf_counter()
        try:
            self._popen.stdin.write(text)
        except OSError:
            self._fail_at_end_of_output(f"an arm that reads '{name}'")
        return begin

    def answer(self, command: protocol.Command, begin: float, timeout: float) -> tuple[protocol.Message, float]:
        """The second half of `ask`: the answer to a command that was sent at `begin`."""
        line = self._line(begin + timeout, f"an answer to '{protocol.kind(command)}' within {timeout:g} s")
        outside = time.perf_counter() - begin
        try:
            message = protocol.answer(command, line)
        except protocol.ProtocolError as error:
            self._fail("protocol", str(error))
        self._raise_error(message, timed=not isinstance(command, protocol.WriteValues))
        self._check_time(message, outside)
        if isinstance(message, protocol.Iteration):
            self._iterated = True
        return message, outside

    def move(self, cores: Iterable[int]) -> None:
        """Pin every thread of the arm's own process to `cores`; threads that it starts later inherit them."""
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)

    def _check_time(self, message: protocol.Message, outside: float) -> None:
        if self.accepted is not None and self.accepted.clock == "scripted":
            return
        if isinstance(message, protocol.Iteration | protocol.Phase) and message.seconds > outside:
            self._fail(
                "time", f"expected at most {outside:.6f} s, the harness's own time, found {message.seconds:.6f} s said"
            )

    def _raise_error(self, message: protocol.Message, timed: bool = True) -> None:
        if not isinstance(message, protocol.Error):
            return
        text = sentence(message.where, message.expected, message.found, message.next)
        if timed and self._iterated:
            self._fail("protocol", f"expected an answer, found an error after the first iteration: {text}")
        self.end()
        raise ConfigurationError(text)

    def _line(self, deadline: float, wanted: str) -> bytes:
        """The next line on standard output, without its newline."""
        searched = 0
        while True:
            end = self._lines.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._lines[:end])
                del self._lines[: end + 1]
                return line
            searched = len(self._lines)
            if searched > protocol.LONGEST_LINE:
                self._fail("protocol", f"expected a line of at most {protocol.LONGEST_LINE} bytes, found a longer one")
            if "stdout" not in self._streams.values():
                self._fail_at_end_of_output(wanted)
            left = deadline - time.perf_counter()
            if left <= 0:
                self._hang(wanted)
            self._drain(left, self._lines.extend)

    def _drain(self, seconds: float, on_output) -> list[int]:
        """Wait for something to read and read it; the descriptors that were ready."""
        ready = [fd for fd, _ in self._poll.poll(max(0.0, seconds) * 1000)]
        for fd in ready:
            name = self._streams.get(fd)
            if name is None:
                continue
            try:
                chunk = os.read(fd, 1 << 16)
            except BlockingIOError:
                continue
            if not chunk:
                self._poll.unregister(fd)
                del self._streams[fd]
            elif name == "stdout":
                on_output(chunk)
            else:
                self._stderr.add(chunk)
        return ready

    # ---------------------------------------------------------------------------------------- the end

    def wait(self, timeout: float) -> Exit:
        """Wait for the process to end by itself, draining what it prints; then end whatever it left behind.

        Raises VoidSlot when it hangs, ends with another code than 0 or is killed.
        """
        deadline = self.started + timeout if not self.speaks_protocol else time.perf_counter() + timeout
        on_output = self._lines.extend if self.speaks_protocol else self._stdout.add
        if not self._await_exit(deadline, on_output):
            self._hang(f"an end within {timeout:g} s")
        done = self._exit
        if done.exit_code != 0:
            self._fail(*self._fault_of_exit("exit code 0"))
        return done

    def close(self, timeout: float) -> Exit:
        """Tell a protocol arm to end, and see that it does; then end whatever it left behind.

        Raises VoidSlot as `ask` and `wait` do.
        """
        self._read_memory()
        self.ask(protocol.Close(), timeout)
        return self.wait(timeout)

    def _await_exit(self, deadline: float, on_output) -> bool:
        """Wait for the exit; True when it happened, with `_exit` set and the tree ended."""
        if self._exit is not None:
            return True
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)
        try:
            while True:
                left = deadline - time.perf_counter()
                if left <= 0:
                    return False
                # without pidfds the exit is looked for every 2 ms
                ready = self._drain(left if self._pidfd is not None else min(left, 0.002), on_output)
                if self._pidfd is None or self._pidfd in ready:
                    now = time.perf_counter()
                    if self._collect(now):
                        break
        finally:
            if self._pidfd is not None:
                self._poll.unregister(self._pidfd)
        while self._drain(-1, on_output):
            if not self._streams or time.perf_counter() > now + 1:
                break
        self.end()
        return True

    def _collect(self, now: float) -> bool:
        """Reap the arm's own process; False when it still runs."""
        waited = load.read(f"/proc/{self.pid}/schedstat")
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return False
        code = os.waitstatus_to_exitcode(status)
        self._popen.returncode = code
        peak = usage.ru_maxrss * (1024 if _LINUX else 1)
        if self._told_memory is not None:
            peak = int(os.read(self._told_memory, 32) or 0) or None
            self._forget_memory()
        elif peak <= self._own_peak + _RSS_SLACK:
            peak = self._peak_rss
        self._exit = Exit(
            exit_code=code if code >= 0 else None,
            signal=_signal_name(-code) if code < 0 else None,
            seconds=now - self.started,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_rss_bytes=peak,
            counters=_counters(usage, waited) | ({} if self._pss is None else {"pss_bytes": self._pss}),
        )
        return True

    def _forget_memory(self) -> None:
        if self._told_memory is not None:
            os.close(self._told_memory)
            self._told_memory = None

    def _read_memory(self) -> None:
        """What can only be read while the tree lives: the high-water mark of its first process, and all its PSS."""
        peak = _kilobytes(f"/proc/{self.pid}/status", b"VmHWM:")
        if peak is not None:
            self._peak_rss = peak * 1024.0
        shares = [_kilobytes(f"/proc/{pid}/smaps_rollup", b"Pss:") for pid in self.tree()]
        if shares and None not in shares:
            self._pss = sum(shares) * 1024.0

    def peak_rss_bytes(self) -> float | None:
        """The largest high-water mark of a living process of the tree; None where it cannot be told."""
        marks = [_kilobytes(f"/proc/{pid}/status", b"VmHWM:") for pid in self.tree()]
        return max((mark * 1024.0 for mark in marks if mark is not None), default=None)

    def end(self) -> None:
        """End the whole tree: SIGTERM, after a grace SIGKILL, until nothing of it is left. May be called again."""
        if self._ended:
            return
        self._ended = True
        left = self._end_tree()
        if self._exit is not None:
            self._exit = replace(
                self._exit,
                cpu_seconds=self._exit.cpu_seconds + self._collected_cpu,
                output=self._stdout.bytes(),
                left_behind=left,
            )
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._streams.clear()
        self._forget_memory()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _end_tree(self) -> int:
        """Signal and reap until nothing of the tree is left; how many living descendants there were."""
        begin = time.perf_counter()
        known: set[tuple[int, int]] = set()
        descendants: set[int] = set()
        signalled: set[int] = set()
        pause = 0.0005
        while True:
            found = self._reap_dead(self._tree(known))
            known.update((process.pid, process.start) for process in found)
            alive = [process.pid for process in found if process.state not in "ZX"]
            descendants.update(pid for pid in alive if pid != self.pid)
            passed = time.perf_counter() - begin
            # the dead that are left are still their parent's to reap, and come to the harness when it has died too
            if not found or passed > RESIGNATION:
                return len(descendants)
            for pid in alive:
                if passed > GRACE or pid not in signalled:
                    signalled.add(pid)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL if passed > GRACE else signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)  # a stopped process takes its SIGTERM only when continued
            self._drain_quickly()
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _reap_dead(self, found: list[load.Process]) -> list[load.Process]:
        """Reap the dead that are the harness's to reap; the other processes."""
        left = []
        for process in found:
            if process.state in "ZX" and process.parent == os.getpid():
                self._reap(process.pid)
            else:
                left.append(process)
        return left

    def _reap(self, pid: int) -> None:
        if pid == self.pid:
            if self._exit is None:
                self._collect(time.perf_counter())
            return
        with contextlib.suppress(ChildProcessError):
            reaped, _, usage = os.wait4(pid, os.WNOHANG)
            if reaped:
                self._collected_cpu += usage.ru_utime + usage.ru_stime

    def tree(self) -> list[int]:
        """Every process of the arm's tree, daemonised ones and zombies included."""
        return [process.pid for process in self._tree(set())]

    def _tree(self, known: set[tuple[int, int]]) -> list[load.Process]:
        if not _LINUX:
            return _tree_by_psutil(self.pid)
        found = load.processes()
        roots = {p.pid for p in found if p.pid == self.pid or (p.pid, p.start) in known}
        # an orphan's parent is the harness, or init where it could not become a subreaper
        roots |= {p.pid for p in found if p.parent in (os.getpid(), 1) and _mark_of(p.pid) == self._mark}
        reached = load.descendants(found, roots)
        return [process for process in found if process.pid in reached]

    def cpu_seconds(self) -> float:
        """CPU of the arm's own process until now, all its threads, ended ones included; O(1), about 2 µs.

        Descendants do not count. Raises VoidSlot when the process is gone.
        """
        try:
            return (
                time.clock_gettime_ns((~self.pid << 3) | 2) * 1e-9
            )  # CPUCLOCK_SCHED of a process, see clock_getres(2)
        except OSError:
            self._fail_at_end_of_output("a process that runs")

    # ---------------------------------------------------------------------------------------- faults

    def _fail(self, reason: str, message: str, stacks: str = "") -> None:
        """End the tree and raise."""
        self._drain_quickly()
        gone = self._exit
        self.end()
        raise VoidSlot(
            reason,
            message,
            exit_code=gone.exit_code if gone else None,
            signal=gone.signal if gone else None,
            stderr=self._stderr.text(),
            stacks=stacks,
        )

    def _drain_quickly(self) -> None:
        for _ in range(64):
            if not self._drain(-1, self._lines.extend if self.speaks_protocol else self._stdout.add):
                return

    def _fail_at_end_of_output(self, wanted: str) -> None:
        """The arm closed its standard output or does not read: say whether it ended, and how."""
        half = f" after half a line, {protocol.shown(bytes(self._lines))}" if self._lines else ""
        if not self._await_exit(time.perf_counter() + 1.0, self._lines.extend):
            self._fail("protocol", f"expected {wanted}, found a closed pipe{half} and a process that runs on")
        if self._exit.exit_code == 0:
            self._fail("protocol", f"expected {wanted}, found the end of the process{half}, exit code 0")
        self._fail(*self._fault_of_exit(wanted))

    def _fault_of_exit(self, wanted: str) -> tuple[str, str]:
        """Reason and sentence for a process that ended wrongly."""
        done = self._exit
        last = self._stderr.text().strip().splitlines()[-1:] or [""]
        said = f"; it said: {last[0][:200]}" if last[0] else ""
        if self._memory_limit is not None and any(word in self._stderr.bytes() for word in _ON_MEMORY):
            limit = f"{self._memory_limit / 2**20:.0f} MiB"
            return "memory", f"expected {wanted}, found no memory left within the limit of {limit} a process{said}"
        if done.signal is None:
            return "exit", f"expected {wanted}, found exit code {done.exit_code}{said}"
        if done.signal in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"):
            return "killed", f"expected {wanted}, found the process killed by {done.signal}{said}"
        return "crash", f"expected {wanted}, found a crash by {done.signal}{said}"

    def _hang(self, wanted: str) -> None:
        half = f" but half a line, {protocol.shown(bytes(self._lines))}" if self._lines and self.speaks_protocol else ""
        stacks = self.stacks()
        self._fail("timeout", f"expected {wanted}, found none{half}; its stacks are in the record", stacks)

    def stacks(self) -> str:
        """The stacks of every thread of every process of the tree, by py-spy where it can."""
        end = time.perf_counter() + STACKS_PATIENCE
        text = "\n".join(_stacks_of(pid, end) for pid in self.tree())
        return text if len(text) <= STACKS_KEPT else text[:STACKS_KEPT] + "\n… (shortened)\n"

    def stderr_tail(self) -> str:
        """The end of what the arm wrote on standard error so far."""
        return self._stderr.text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


# ------------------------------------------------------------------------------------------------- helpers


def _kilobytes(path: str, name: bytes) -> int | None:
    """A field of a file such as /proc/PID/status."""
    text = load.read(path) or b""
    start = text.find(name)
    return int(text[start + len(name) :].split(None, 1)[0]) if start >= 0 else None


def _environment(overlay: Mapping[str, str | None], speaks_protocol: bool) -> dict[str, str]:
    environment = {**os.environ, **{name: value for name, value in overlay.items() if value is not None}}
    for name in [name for name, value in overlay.items() if value is None]:
        environment.pop(name, None)
    environment.pop("HARNESS_PROTOCOL", None)
    if speaks_protocol:
        environment["HARNESS_PROTOCOL"] = str(protocol.VERSION)
    return environment


def _opened(path: str | os.PathLike | None):
    try:
        return open(path if path is not None else os.devnull, "rb")
    except OSError as error:
        raise ConfigurationError(sentence("stdin", "a readable file", _found(error), "check the path")) from None


def _check_program(command: list[str], cwd: str | os.PathLike, environment: Mapping[str, str]) -> None:
    """Raise UnfitError for a program that is not there; the launcher could only say it later."""
    program = command[0] if command else ""
    found = Path(cwd, program).is_file() if os.sep in program else shutil.which(program, path=environment.get("PATH"))
    if not found:
        raise UnfitError(
            sentence(f"program '{program}'", "one that can be started", "no such file", "check the command")
        )


def _found(error: OSError) -> str:
    return (error.strerror or str(error)).lower() + (f" ({error.filename})" if error.filename else "")


def _check_cores(pin: Iterable[int]) -> None:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not set(pin) or not set(pin) <= allowed:
        raise ConfigurationError(
            sentence("pin", f"cores among {sorted(allowed)}", str(sorted(pin)), "choose cores of this machine")
        )


def _own_peak_rss() -> float:
    """The harness's own high-water mark, which every new process's ru_maxrss starts from (exec keeps it), bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024.0 if _LINUX else 1.0)


def _tree_by_psutil(pid: int) -> list[load.Process]:
    import psutil

    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
        return [
            load.Process(p.pid, 0, p.ppid(), "Z" if p.status() == "zombie" else "R", p.name(), False, 0, 0, 0)
            for p in tree
        ]
    except psutil.NoSuchProcess:
        return []


def _counters(usage, schedstat: bytes | None) -> dict[str, float]:
    """What the kernel counted of a finished tree, by the names that a scenario's metric may use."""
    found = {
        "minor_faults": float(usage.ru_minflt),
        "major_faults": float(usage.ru_majflt),
        "voluntary_switches": float(usage.ru_nvcsw),
        "involuntary_switches": float(usage.ru_nivcsw),
        "read_bytes": usage.ru_inblock * 512.0,  # from and to the device; what the page cache serves is not in it
        "written_bytes": usage.ru_oublock * 512.0,
    }
    fields = (schedstat or b"").split()
    if len(fields) >= 2:
        found["runq_wait_seconds"] = int(fields[1]) * 1e-9
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stacks_of(pid: int, end: float) -> str:
    """Stacks of one process: py-spy with native frames, py-spy without, else a sentence and the kernel's view.

    `end` is when to stop asking py-spy, on the performance counter.
    """
    program = _py_spy()
    said = "py-spy is not installed"
    if program is not None:
        for words in (["--native"], []):
            left = end - time.perf_counter()
            if left <= 0:
                said = "no time was left for it"
                break
            try:
                done = subprocess.run(
                    [program, "dump", *words, "--pid", str(pid)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=min(STACK_PATIENCE, left),
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                said = str(error)
                continue
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.decode("utf-8", "replace").rstrip() + "\n"
            said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[0]
    return f"Process {pid}: no stacks from py-spy ({said}); its threads as the kernel sees them:\n" + _threads_of(pid)


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _threads_of(pid: int) -> str:
    """Name, state and wait channel of every thread."""
    lines = []
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return f"  process {pid} is gone\n"
    for thread in threads:
        folder = Path(f"/proc/{pid}/task/{thread}")
        with contextlib.suppress(OSError):
            stat = folder.joinpath("stat").read_bytes()
            name = stat[stat.find(b"(") + 1 : stat.rfind(b")")].decode("utf-8", "replace")
            state = stat[stat.rfind(b")") + 2 :][:1].decode()
            try:
                channel = folder.joinpath("wchan").read_text().strip()
            except OSError:
                channel = "?"
            lines.append(f"  thread {thread} '{name}': state {state}, waits in {channel or '?'}")
    return "\n".join(lines) + "\n"
