"""One thread for every test, and a cache of the simulated events."""

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "data" / "root"


@pytest.fixture(autouse=True)
def _one_thread():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pythia(tmp_path_factory):
    """Folder of a cache with 60,000 simulated events of four processes."""
    pytest.importorskip("uproot")
    from impl.events.__main__ import main

    folder = tmp_path_factory.mktemp("pythia") / "cache"
    files = [str(DATA / f"pythia_{name}.root") for name in ("ttbar", "wjets", "zjets", "dijet")]
    assert main(["prepare", *files, "--schema", "pythia", "--output", str(folder), "--quiet"]) in (0, None)
    return folder
