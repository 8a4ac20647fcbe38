"""What every test starts from: caches inside the clone, one thread, and a way to run the command line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

for variable, value in {
    "DGLBACKEND": "pytorch",
    "MPLCONFIGDIR": str(ROOT / ".harness" / "matplotlib"),
    "TORCHINDUCTOR_CACHE_DIR": str(ROOT / ".harness" / "inductor"),
    "OMP_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(variable, value)

# A shell's background job ignores interrupts, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def harness():
    """Run `harness` with arguments: harness("ab", a, b, cwd=…) -> CompletedProcess with text."""

    def run(*arguments, cwd=ROOT, timeout=300, **environment):
        return subprocess.run(
            [sys.executable, "-m", "harness", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
