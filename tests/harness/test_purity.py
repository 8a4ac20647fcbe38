"""After records.jsonl nothing reaches a clock, a process or the machine, and the same file gives the same bytes."""

import ast
import datetime
import json
import os
import platform
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import made
import numpy as np
import pytest

import harness
from harness import analysis, records

HOME = Path(harness.__file__).parent
PURE = [HOME / f"{name}.py" for name in ("stats", "schedule", "gate", "fingerprint", "checks", "analysis", "plan")]
PURE += sorted((HOME / "report").glob("*.py"))
FORBIDDEN_MODULES = {
    "asyncio",
    "concurrent",
    "ctypes",
    "getpass",
    "multiprocessing",
    "platform",
    "psutil",
    "random",
    "resource",
    "secrets",
    "select",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
FORBIDDEN_HARNESS = {
    "arms",
    "cli",
    "comparison",
    "load",
    "machine",
    "process",
    "progress",
    "protocol",
    "runner",
    "worker",
}
FORBIDDEN_CALLS = {"now", "today", "utcnow", "getenv", "environ", "getpid", "cpu_count", "uname", "default_rng"}

#: the name of the temporary file that is renamed into a page's place
ALLOWED = {"report/__init__.py": [".getpid"]}


def imported(tree) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return found


def faults(source: str) -> list[str]:
    """What in a module reaches out of its arguments."""
    tree = ast.parse(source)
    found = []
    for name in imported(tree):
        top, *rest = name.split(".")
        if (
            top in FORBIDDEN_MODULES
            or name.startswith(("urllib.request", "http."))
            or (top == "harness" and rest and rest[0] in FORBIDDEN_HARNESS)
        ):
            found.append(f"import {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_CALLS:
            found.append(f".{node.attr}")
        if isinstance(node, ast.Name) and node.id in ("__import__", "open", "input"):
            found.append(node.id)
    return sorted(set(found))


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_no_module_after_the_record_imports_a_clock_a_process_or_a_machine(path):
    allowed = ALLOWED.get(str(path.relative_to(HOME)), [])
    assert [fault for fault in faults(path.read_text()) if fault not in allowed] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", "import time"),
        ("def f():\n    from harness import load", "import harness.load"),
        ("import datetime\nx = datetime.datetime.now()", ".now"),
        ("import numpy as np\nr = np.random.default_rng()", ".default_rng"),
        ("import os\nx = os.environ['HOME']", ".environ"),
        ("x = open('y')", "open"),
    ],
)
def test_the_search_finds_each_of_them(source, found):
    assert found in faults(source)


@pytest.fixture
def sealed(monkeypatch):
    """Clock, processes, machine, network and unseeded chance raise when they are touched."""

    def forbidden(*_, **__):
        raise AssertionError("reached out of the record")

    for module, names in (
        (time, "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns sleep"),
        (os, "getpid getppid getenv cpu_count sched_getaffinity getloadavg uname times urandom fork listdir scandir"),
        (subprocess, "Popen run"),
        (socket, "socket gethostname"),
        (platform, "node machine processor platform uname"),
        (random, "random randrange getrandbits shuffle choice"),
        (secrets, "token_hex token_bytes randbits"),
        (threading, "Thread"),
        (np.random, "default_rng random normal rand randn shuffle permutation"),
    ):
        for name in names.split():
            monkeypatch.setattr(module, name, forbidden)


def whole_record():
    """Every kind of entry: blocks, a void, load, a wrong output, an interruption."""
    rng = random.Random(4)
    blocks = [
        made.unit(u, [rng.gauss(0.02, 0.03) for _ in range(4)], foreign=rng.random(), header={}) for u in range(9)
    ]
    blocks[2] = made.void(2, "b", "timeout")
    blocks.append(made.unit(9, [0.01], close=False))
    entries = made.record(blocks, limits={"foreign_cores": 0.9})
    return [*entries, records.Note(about="resumed", message="again"), records.End(state="complete")]


def test_nothing_is_reached_while_a_record_is_read(sealed):
    entries = whole_record()
    assert analysis.summarise(entries)["units"]["run"] == 9
    assert analysis.next_unit(entries) is None
    assert analysis.wrong(entries) == ()


def test_the_same_file_gives_the_same_bytes_anywhere(tmp_path):
    """In processes with other hash seeds, time zones, locales and directories."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(records.encode(entry) + b"\n" for entry in whole_record()))
    program = (
        "import json, sys; from harness import analysis, records; "
        "sys.stdout.write(json.dumps(analysis.summarise(records.read(sys.argv[1]))))"
    )
    found = set()
    for number, zone in ((0, "UTC"), (77, "Asia/Tokyo")):
        folder = tmp_path / str(number)
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": str(number), "TZ": zone, "COLUMNS": str(40 + number)}
        environment["PYTHONPATH"] = str(HOME.parent)
        command = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
    assert json.loads(found.pop()) == analysis.summarise(records.read(path))


def test_the_seal_holds(sealed):
    with pytest.raises(AssertionError, match="reached out"):
        time.time()
    assert datetime.datetime(2026, 1, 1).year == 2026
