"""Prediction: row k is event k, streamed bytes are the bytes in memory, also after a kill."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from impl.gnn import predict, sample, train  # noqa: E402
from impl.gnn.errors import InputError  # noqa: E402

#: three ranges, the last of them short
EVENTS = 2 * predict.RANGE + 700


def network(cache, backend="fused"):
    net = train.network_for(cache, "", backend, hidden=16, rounds=2)
    train.initialise(net, cache, np.arange(min(len(cache), 300)), train.Options())
    return net


def made(events=EVENTS):
    return sample.made(np.random.default_rng(3).integers(0, 5, events), seed=4)


@pytest.fixture(scope="module")
def cache():
    return made()


@pytest.fixture(scope="module")
def in_memory(cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("memory") / "scores.npy"
    assert predict.predict(network(cache), cache, out) == {"events": EVENTS, "classes": 4, "started": 0}
    return out.read_bytes()


def test_streamed_bytes_equal_those_in_memory(cache, in_memory, tmp_path):
    marks = []
    predict.predict(network(cache), cache, tmp_path / "s.npy", streaming=True,
                    progress=lambda done, _: marks.append((done, (tmp_path / "s.npy").exists())))  # fmt: skip
    assert (tmp_path / "s.npy").read_bytes() == in_memory
    assert marks == [(4096, False), (8192, False), (EVENTS, False)], "the file appears only when it is whole"
    assert os.listdir(tmp_path) == ["s.npy"]


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
import test_predict
from impl.gnn import predict
cache = test_predict.made()
def stop(done, events):
    if done > predict.RANGE:
        os.kill(os.getpid(), signal.SIGKILL)
predict.predict(test_predict.network(cache), cache, sys.argv[2], streaming=True, progress=stop)
"""


def test_a_killed_prediction_goes_on_where_it_was(cache, in_memory, tmp_path):
    out = tmp_path / "s.npy"
    here = os.path.dirname(__file__)
    child = subprocess.run([sys.executable, "-c", CHILD, here, str(out)], capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": os.getcwd()}, timeout=120)  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert not out.exists()
    assert json.loads((tmp_path / "s.npy.mark").read_text())["done"] == 2 * predict.RANGE
    facts = predict.predict(network(cache), cache, out, streaming=True)
    assert facts["started"] == 2 * predict.RANGE
    assert out.read_bytes() == in_memory


def interrupted(cache, out, identity=None):
    def stop(done, _):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict.predict(network(cache), cache, out, streaming=True, identity=identity, progress=stop)


def test_a_restart_trusts_no_row_behind_the_mark(cache, in_memory, tmp_path):
    out = tmp_path / "s.npy"
    interrupted(cache, out)
    rows = np.lib.format.open_memmap(out.with_name("s.npy.partial"), "r+")
    rows[predict.RANGE + 5] = 1e9  # written, perhaps in part, before the mark was
    rows.flush()
    predict.predict(network(cache), cache, out, streaming=True)
    assert out.read_bytes() == in_memory


def test_the_comparison_sees_a_row_changed_before_the_mark(cache, in_memory, tmp_path):
    """A broken twin: were the finished range computed again, this row would be repaired."""
    out = tmp_path / "s.npy"
    interrupted(cache, out)
    rows = np.lib.format.open_memmap(out.with_name("s.npy.partial"), "r+")
    rows[5] = 1e9
    rows.flush()
    predict.predict(network(cache), cache, out, streaming=True)
    assert out.read_bytes() != in_memory


def test_the_mark_of_another_prediction_is_refused(cache, tmp_path):
    out = tmp_path / "s.npy"
    interrupted(cache, out, {"checkpoint": "one"})
    with pytest.raises(InputError, match=r"differs in checkpoint; remove it and s\.npy\.partial to start anew"):
        predict.predict(network(cache), cache, out, streaming=True, identity={"checkpoint": "two"})
    (tmp_path / "s.npy.mark").write_text("{")
    with pytest.raises(InputError, match="the mark of a prediction"):
        predict.predict(network(cache), cache, out, streaming=True)


@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_size_aware_batches_give_each_event_its_scores(backend):
    cache = sample.made(np.random.default_rng(1).integers(0, 40, 150), seed=2)
    net = network(cache, backend)
    index = np.random.default_rng(0).permutation(150)[:120]
    fixed = predict.scores_of(net, cache, index, events=16)
    for edges in (1, 3000, 100_000):
        aware = predict.scores_of(net, cache, index, events=64, edges=edges)
        assert np.abs(fixed - aware).max() < 1e-5
    assert np.abs(fixed - aware[::-1]).max() > 1e-2, "another order would be seen"


def test_the_edge_budget_bounds_memory():
    from impl.gnn import kernel

    cache = sample.made(np.random.default_rng(1).integers(0, 40, 300), seed=2)
    net = network(cache)
    peaks = []
    for edges in (0, 4000):
        kernel.pool.clear()
        kernel.pool.peak_bytes = kernel.pool.used_bytes
        predict.scores_of(net, cache, np.arange(300), events=300, edges=edges)
        peaks.append(kernel.pool.peak_bytes)
    assert peaks[0] > cache.edge_off[-1] * 16 * 4
    assert peaks[1] < 4000 * 16 * 4 * 1.2


def test_an_empty_cache_has_no_rows(cache, tmp_path):
    for streaming in (False, True):
        predict.predict(network(cache), made(0), tmp_path / "s.npy", streaming=streaming)
        assert np.load(tmp_path / "s.npy").shape == (0, 4)


def test_a_file_that_cannot_be_written_is_said(cache, tmp_path):
    with pytest.raises(InputError, match="room and permission for the scores"):
        predict.predict(network(cache), made(3), tmp_path / "no" / "s.npy")
