"""The arm's half of the worker protocol: what a program needs to be measured by harness; standard library only.

A workload is a class with a few methods (see `Workload`); `serve(MyWorkload)` does the rest::

    from harness import worker

    class Sorting(worker.Workload):
        name = "sorting"
        accepts = {"n": 100_000, "algorithm": "timsort"}

        def setup(self):
            self.data = [(i * 7919) % self.parameters["n"] for i in range(self.parameters["n"])]

        def iterate(self):
            self.result = sorted(self.data)
            return {"units": len(self.data), "work": len(self.result)}

        def fingerprint(self):
            return {"work": len(self.result), "digests": {"order": worker.digest(repr(self.result).encode())}}

    if __name__ == "__main__":
        worker.serve(Sorting)

Under the harness (HARNESS_PROTOCOL=1) the program answers commands from standard input, as protocol.py specifies.
Run by hand it sets itself up, warms up, iterates and prints the same lines:
`python sorting.py --set n=1000 --warmup 1 --iterations 5`.

Standard output is moved aside first: prints of a library go to standard error and cannot corrupt a line.
"""

import argparse
import hashlib
import importlib.metadata
import json
import locale
import math
import os
import platform
import subprocess
import sys
import time
import tomllib
from pathlib import Path

PROTOCOL = 1
#: environment variables that change speed or results, by prefix
SPEED_VARIABLES = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "PYTHON",
    "TORCH",
    "DGL",
    "MALLOC_",
    "GLIBC_",
    "LD_",
    "KMP_",
)


class Fault(Exception):
    """Bad input: where it is, what was expected, what was found and what to do next; the harness exits with 2."""

    def __init__(self, where: str, expected: str, found: str, next: str = ""):
        self.where, self.expected, self.found, self.next = where, expected, found, next
        super().__init__(str(self))

    def __str__(self) -> str:
        hint = f"; {self.next}" if self.next else ""
        return f"{self.where}: expected {self.expected}, found {self.found}{hint}"


class Workload:
    """What a workload says and does; subclass it and override what applies.

    Attributes
    ----------
    name : str          the workload's name
    accepts : dict      parameter -> default; the default's type is the parameter's type
    packages : tuple    distributions whose versions belong into the record
    clock : str         "wall", or "scripted" when `iterate` itself returns seconds and cpu_seconds (test arms only)
    """

    name = "workload"
    accepts: dict = {}
    packages: tuple = ()
    clock = "wall"

    def __init__(self, parameters: dict):
        """Keep the effective parameters (defaults filled in); raise `Fault` for a value that cannot be."""
        self.parameters = parameters

    def inputs(self) -> list[dict]:
        """Files that the job reads, as made by `file_input`; arms that differ in them are refused."""
        return []

    def configuration(self) -> dict:
        """What determines the job beside its parameters and inputs; arms that differ in it are refused."""
        return {}

    def libraries(self) -> list[dict]:
        """Shared libraries really loaded, as made by `library`."""
        return []

    def environment(self) -> dict:
        """Anything else about the arm's environment that changes speed: threads, build flags, devices."""
        return {}

    def setup(self) -> None:
        """Everything that is done once: imports, reading inputs, allocating."""

    def prepare(self) -> None:
        """Put the state back before an iteration; not timed."""

    def iterate(self) -> dict:
        """Do one unit of work; timed.

        Returns a dict: units (int, what the time is divided by), work (int, how many records, rows, events… came
        out), and where they are cheap counters {name: number} and totals {name: float}.
        """
        raise NotImplementedError

    def synchronise(self) -> None:
        """Wait for work that runs asynchronously (a GPU); called before a clock is read."""

    def fingerprint(self) -> dict:
        """Describe the last iteration's output: work (int), digests {name: hex}, totals {name: float}; not timed."""
        raise NotImplementedError

    def values(self, path: str) -> dict:
        """Write an .npz for `harness accuracy` and the policy 'statistical'; returns facts about it, or None.

        A map: key, value, variance, weight, and contributors where known. A model: score, label, weight, key, seed.
        What each must be is in harness/protocol.py.
        """
        raise Fault(f"workload '{self.name}'", "a workload that can write values", "one that cannot", "")

    def close(self) -> None:
        """Release what `setup` took."""


# ---------------------------------------------------------------------------------------------------- helpers


def digest(*parts: bytes) -> str:
    """SHA-256 of the parts one after the other, as 32 hex digits (128 bits)."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()[:32]


def file_input(path: str | os.PathLike, name: str | None = None) -> dict:
    """Describe an input file: {name, bytes, digest}. Raises `Fault` when it cannot be read."""
    path = Path(path)
    state = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                state.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise Fault(str(path), "a readable file", error.strerror or str(error), "check the path") from None
    return {"name": name or path.name, "bytes": size, "digest": state.hexdigest()[:32]}


def _below(path: str | os.PathLike) -> str:
    """A path relative to the working directory where it lies below it, so that records do not depend on the place."""
    path = Path(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def library(name: str, path: str, source_digest: str, tree_digest: str | None) -> dict:
    """Describe a loaded shared library; tree_digest is what the sources beside the program give now, None without."""
    return {
        "name": name,
        "path": _below(path),
        "digest": file_input(path)["digest"],
        "source_digest": source_digest,
        "tree_digest": tree_digest,
    }


def parse_value(text: str):
    """A TOML value from a command line; a bare word that TOML does not know is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_settings(pairs: list[str]) -> dict:
    """['key=value', …] -> {key: TOML value}; raises `Fault` for one without '='."""
    settings = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise Fault(f"--set {pair}", "key=value", f"'{pair}'", "write for instance --set depth=2")
        settings[key.strip()] = parse_value(text)
    return settings


def nearest(word: str, allowed) -> str:
    """'; did you mean …?' when something allowed is spelt nearly alike, else an empty string."""
    import difflib

    close = difflib.get_close_matches(str(word), [str(name) for name in allowed], n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""


_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", list: "a list"}


def effective(name: str, accepts: dict, given: dict) -> dict:
    """Defaults overlaid with the given parameters; unknown names and wrong types are a `Fault`."""
    merged = dict(accepts)
    for key, value in given.items():
        if key not in accepts:
            allowed = ", ".join(sorted(accepts)) or "no parameter"
            raise Fault(f"workload '{name}': parameter", f"one of {allowed}", f"'{key}'", nearest(key, accepts))
        kind = type(accepts[key])
        if kind is float and type(value) is int:
            value = float(value)
        if accepts[key] is not None and type(value) is not kind:
            raise Fault(f"workload '{name}': {key}", _TYPES.get(kind, kind.__name__), repr(value), "")
        merged[key] = value
    return merged


def choice(where: str, value, allowed) -> None:
    """Raise a `Fault` unless value is one of allowed."""
    if value not in allowed:
        raise Fault(where, "one of " + ", ".join(map(str, allowed)), repr(value), nearest(value, allowed))


def _finite(value):
    """JSON has no NaN or Infinity: null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):  # numpy scalars
        return _finite(value.item())
    return value


def _git(folder: Path, *words: str) -> str | None:
    try:
        # no optional locks: an arm that is killed here must not leave a lock in the user's repository
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def revision(folder: Path) -> dict:
    """The commit that a folder is at, and whether tracked files differ from it; None for both outside git."""
    # Under callgrind git's own instructions would be counted as the arm's, and they vary from run to run.
    commit = None if os.environ.get("HARNESS_COUNTS_INSTRUCTIONS") else _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _versions(packages) -> dict:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _speed_variables() -> dict:
    """Environment variables that change speed; where a cache lies does not, and differs by arm on purpose."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(SPEED_VARIABLES) and not name.endswith("_CACHE_DIR")
    }


def _environment(workload: Workload) -> dict:
    source = Path(sys.modules[type(workload).__module__].__file__ or ".").resolve().parent
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": _below(sys.executable),
        "packages": _versions(workload.packages),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "locale": locale.setlocale(locale.LC_CTYPE),
        "variables": _speed_variables(),
        "revision": revision(source),
        "libraries": workload.libraries(),
        **workload.environment(),
    }


def _children_cpu() -> float:
    """CPU seconds of children already waited for; 0 where the system cannot say."""
    try:
        import resource
    except ImportError:
        return 0.0
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Served:
    """One workload in service: turns a command into the line that answers it."""

    def __init__(self, kind: type[Workload], given: dict, arm: str | None):
        parameters = effective(kind.name, kind.accepts, given)
        self.workload = kind(parameters)
        self.arm = arm
        self.counts = {"warmup": 0, "steady": 0}

    def header(self) -> dict:
        workload = self.workload
        configuration = json.dumps(_finite(workload.configuration()), sort_keys=True, separators=(",", ":"))
        return {
            "kind": "header",
            "schema": PROTOCOL,
            "workload": workload.name,
            "arm": self.arm,
            "parameters": workload.parameters,
            "accepts": workload.accepts,
            "inputs": workload.inputs(),
            "config_digest": digest(configuration.encode()),
            "clock": workload.clock,
            "environment": _environment(workload),
        }

    def _begin(self):
        """Start both clocks; returns a function that stops them: (seconds, cpu_seconds)."""
        self.workload.synchronise()
        children = _children_cpu()
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()

        def end() -> tuple[float, float]:
            self.workload.synchronise()
            seconds = (time.perf_counter_ns() - wall) * 1e-9
            return seconds, (time.process_time_ns() - cpu) * 1e-9 + (_children_cpu() - children)

        return end

    def begin_setup(self):
        """Start the clocks of a set-up; returns a function that makes its line when it is over."""
        end = self._begin()

        def line() -> dict:
            seconds, cpu_seconds = end()
            return {"kind": "phase", "name": "setup", "seconds": seconds, "cpu_seconds": cpu_seconds}

        return line

    def setup(self) -> dict:
        line = self.begin_setup()
        self.workload.setup()
        return line()

    def iterate(self, phase: str) -> dict:
        self.workload.prepare()
        end = self._begin()
        result = self.workload.iterate()
        seconds, cpu_seconds = end()
        index = self.counts[phase]
        self.counts[phase] += 1
        line = {"kind": "iteration", "phase": phase, "index": index, "seconds": seconds, "cpu_seconds": cpu_seconds}
        line |= {"units": 1, "work": 0, "counters": {}, "totals": {}}
        if self.workload.clock != "scripted":
            result = {key: value for key, value in result.items() if key not in ("seconds", "cpu_seconds")}
        return line | result

    def fingerprint(self) -> dict:
        return {"kind": "fingerprint", "work": 0, "digests": {}, "totals": {}} | self.workload.fingerprint()

    def values(self, path: str) -> dict:
        return {"kind": "values", "path": path} | (self.workload.values(path) or {})

    def close(self) -> dict:
        self.workload.close()
        return {"kind": "closed"}


def answer(served: _Served, command: dict) -> dict:
    """The line that answers a command. Raises Fault for a command that the protocol does not have."""
    do = command.get("do")
    if do == "setup":
        return served.setup()
    if do == "iterate":
        return served.iterate(command["phase"])
    if do == "fingerprint":
        return served.fingerprint()
    if do == "values":
        return served.values(command["path"])
    if do == "close":
        return served.close()
    raise Fault("worker protocol", "setup, iterate, fingerprint, values or close", repr(do), "")


def _answer_commands(served: _Served, commands, say) -> None:
    for text in commands:
        command = json.loads(text)
        say(answer(served, command))
        if command["do"] == "close":
            return
    # End of input without a close: the harness is gone, so this process ends too.


def _by_hand(served: _Served, options, say) -> None:
    say(served.setup())
    for _ in range(options.warmup):
        say(served.iterate("warmup"))
    for _ in range(options.iterations):
        say(served.iterate("steady"))
    say(served.fingerprint())
    if options.values:
        say(served.values(options.values))
    say(served.close())


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def lines():
    """Move standard output (and, under the harness, standard input) aside, so that no library can write or read there.

    Returns (say, commands): a function that writes one message, and the lines to answer, None when run by hand.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands = None
    if os.environ.get("HARNESS_PROTOCOL") == str(PROTOCOL):
        commands = os.fdopen(os.dup(0), encoding="utf-8")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    def say(line) -> None:
        try:
            text = _encode(line)
        except (TypeError, ValueError):  # NaN, infinity or a number of NumPy; looking for them first would cost more
            text = _encode(_finite(line))
        out.write(text + "\n")
        out.flush()

    return say, commands


def serve(kind: type[Workload], argv: list[str] | None = None) -> None:
    """Run a workload class as an arm: under the harness by commands, by hand to the end; never returns.

    Exit codes: 0 done, 2 bad input (one sentence on standard error, an `error` line under the harness).
    """
    parser = argparse.ArgumentParser(
        prog=f"{Path(sys.argv[0]).name}",
        description=f"The workload '{kind.name}'; parameters and defaults: "
        + ", ".join(f"{key}={value!r}" for key, value in kind.accepts.items()),
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a parameter (TOML value)")
    parser.add_argument("--arm", default=None, help="the arm's name, for the record")
    parser.add_argument("--warmup", type=int, default=1, help="warm-up iterations when run by hand (default 1)")
    parser.add_argument("--iterations", type=int, default=3, help="steady iterations when run by hand (default 3)")
    parser.add_argument("--values", default=None, metavar="FILE", help="also write values for accuracy (by hand)")
    options = parser.parse_args(argv)

    under_harness = os.environ.get("HARNESS_PROTOCOL") == str(PROTOCOL)
    say, commands = lines()
    try:
        served = _Served(kind, parse_settings(options.set), options.arm)
        say(served.header())
        if under_harness:
            _answer_commands(served, commands, say)
        else:
            _by_hand(served, options, say)
    except Fault as fault:
        if under_harness:
            say(
                {
                    "kind": "error",
                    "where": fault.where,
                    "expected": fault.expected,
                    "found": fault.found,
                    "next": fault.next,
                }
            )
        print(f"error: {fault}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the harness is gone
        os._exit(1)
    sys.exit(0)
