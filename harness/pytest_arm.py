"""One pytest-benchmark test as an arm: the test runs once, and inside it the harness asks for the iterations.

The `benchmark` fixture of pytest-benchmark hands the function to be measured over to the harness: where it would have
looped by itself, commands are read and answered until the harness closes; then the test goes on with the result, and
what it asserts about it decides whether the arm ends well. So a benchmark needs no change, and a wrong result is void.

The program is run by its path, in the tree of its arm, which may hold another version of harness: its own modules are
therefore loaded under a package name that nobody else has. `--collect PATH` prints the node ids of benchmarks instead.
"""

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _own_package():
    specification = importlib.util.spec_from_file_location(
        "_harness_of_this_arm", HERE / "__init__.py", submodule_search_locations=[str(HERE)]
    )
    package = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = package
    specification.loader.exec_module(package)
    return (importlib.import_module(f"{specification.name}.{name}") for name in ("callables", "worker"))


callables, worker = _own_package()


class Benchmark(worker.Workload):
    """The function that a benchmark hands over; `node` is pytest's id of the test."""

    name = "pytest-benchmark"
    accepts = {"node": ""}
    packages = ("pytest", "pytest-benchmark")

    def take(self, make_arguments, teardown, target, looped: bool) -> None:
        """Begin to serve: call once, see whether the result repeats, choose how many calls an iteration has."""
        self._make, self._teardown, self._target = make_arguments, teardown, target
        self._arguments = make_arguments()
        first = self._once()
        self.calls = callables.calls_for(self._once) if looped else 1
        again = self._fresh_once()
        self.compared = callables.reproducible(callables.fingerprint(first), callables.fingerprint(again))
        self.result = again

    def _once(self):
        args, kwargs = self._arguments
        return self._target(*args, **kwargs)

    def _fresh_once(self):
        self.prepare()
        return self._once()

    def prepare(self) -> None:
        if self._teardown is not None:
            args, kwargs = self._arguments
            self._teardown(*args, **kwargs)
        self._arguments = self._make()

    def iterate(self) -> dict:
        once = self._once
        for _ in range(self.calls):
            result = once()
        self.result = result
        return {"units": self.calls, "work": 1}

    def fingerprint(self) -> dict:
        if not self.compared:  # a result that differs from call to call says nothing; the test's assertions do
            return {"work": 1, "digests": {}, "totals": {}}
        return callables.fingerprint(self.result)


class _Plugin:
    """Puts the harness in the place of pytest-benchmark's own loops.

    `found` is called with the node ids of the benchmarks once they are collected; `over` with what went wrong (or
    nothing) once the test and all its fixtures have been torn down. Both end the process: what pytest and its plugins
    do at the end of a session is of no use here, and takes seconds.
    """

    def __init__(self, serve=None, over=None, found=None):
        self.serve, self.over, self.found = serve, over, found
        self.failures: list[str] = []

    def pytest_configure(self, config):
        from pytest_benchmark.fixture import BenchmarkFixture

        serve = self.serve

        def call(fixture, function, *args, **kwargs):
            return serve(fixture, lambda: (args, kwargs), None, function, True)

        def pedantic(fixture, target, args=(), kwargs=None, setup=None, teardown=None, **_):
            def make():
                return (setup() if setup is not None else None) or (args, kwargs or {})

            return serve(fixture, make, teardown, target, setup is None and teardown is None)

        BenchmarkFixture._raw, BenchmarkFixture._raw_pedantic = call, pedantic

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failures.append(f"{report.longreprtext}\n{report.nodeid}: {report.when} failed")
        elif report.skipped:
            self.failures.append(f"{report.nodeid}: skipped")
        if report.when == "teardown" and self.over is not None:
            self.over(self.failures)

    def pytest_collection_finish(self, session):
        if self.found is not None and not session.testsfailed:
            self.found([item.nodeid for item in session.items if "benchmark" in getattr(item, "fixturenames", ())])


def _pytest(words: list[str], plugin: _Plugin) -> int:
    import pytest

    sys.path.insert(0, os.getcwd())  # as `python -m pytest` does
    options = ["-q", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("pytest_timeout"):
        options += ["-o", "timeout=0"]  # a test now lasts as long as its comparison
    if importlib.util.find_spec("xdist"):
        options += ["-n", "0"]
    return int(pytest.main([*options, *words], plugins=[plugin]))


def collect(path: str) -> int:
    """Print the node ids of a path's benchmarks as one JSON line; comes back only with a failure's exit code."""
    say, _ = worker.lines()

    def found(nodes: list[str]):
        say(nodes)
        os._exit(0)

    return _pytest([path, "--collect-only"], _Plugin(found=found)) or 1


def serve(node: str, arm: str | None) -> int:
    """Run one benchmark under the harness; returns the exit code."""
    say, commands = worker.lines()
    served = worker._Served(Benchmark, {"node": node}, arm)
    say(served.header())
    if json.loads(next(commands, "{}")).get("do") != "setup":
        return 1
    taken = []

    def hand_over(fixture, make_arguments, teardown, target, looped):
        taken.append(node)
        stats = fixture._make_stats(1)
        served.workload.take(make_arguments, teardown, target, looped)
        say(ready())
        for text in commands:
            command = json.loads(text)
            if command.get("do") == "close":
                break
            answer = worker.answer(served, command)
            if answer["kind"] == "iteration":
                stats.update(answer["seconds"] / answer["units"])
            say(answer)
        return served.workload.result

    def over(failures: list[str]):
        if not failures and not taken:
            failures = [f"{node}: expected a test that uses the benchmark fixture, found one that does not"]
        if failures:
            print("", *failures, sep="\n", file=sys.stderr)  # pytest's dots end without a newline
        else:
            say(served.close())
        sys.stderr.flush()
        os._exit(1 if failures else 0)

    ready = served.begin_setup()
    return _pytest([node, "-s"], _Plugin(hand_over, over)) or 1  # comes back only when the test did not run at all


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve one pytest-benchmark test to harness, or list them.")
    parser.add_argument("--collect", metavar="PATH", help="print the node ids of the benchmarks in PATH")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="node=… is the test to serve")
    parser.add_argument("--arm", default=None, help="the arm's name, for the record")
    options = parser.parse_args()
    if options.collect is not None:
        sys.exit(collect(options.collect))
    sys.exit(serve(worker.parse_settings(options.set)["node"], options.arm))
