"""Makes event_files importable under --import-mode=importlib; a pool of workers for all tests here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def pool():
    """Two spawned workers, started once."""
    pytest.importorskip("uproot")
    from impl.events.prepare import default_executor

    with default_executor(2) as executor:
        yield executor
