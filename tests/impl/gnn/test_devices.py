"""Nothing stays on the CPU when a batch and a network are elsewhere; checked without such a device.

torch's FakeTensorMode runs every operation on shapes alone and refuses operands on different devices, as a GPU does.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from impl.gnn import batches, message, sample, train  # noqa: E402
from impl.gnn.model import Config, EventNet  # noqa: E402

#: a device without memory: its tensors have shapes only
ELSEWHERE = "meta"


def network(**config):
    with torch.device(ELSEWHERE):
        return EventNet(Config(classes=3, hidden=16, rounds=2, **config), "dense")


def batch_of(sizes, **options):
    return batches.Batch(sample.made(sizes, seed=1, classes=3, **options).batch(np.arange(len(sizes))), ELSEWHERE)


@pytest.fixture(autouse=True)
def _without_data(monkeypatch):
    monkeypatch.setattr(torch, "isfinite", lambda _: True)  # loss_of asks, and there are no numbers here
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def step(net, batch):
    loss = train.loss_of(net(batch), batch, net.config.task)
    return loss, torch.autograd.grad(loss, list(net.parameters()))


@pytest.mark.parametrize("sizes", [[0, 1, 5, 9], [4, 4, 4]], ids=["ragged", "equal"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_stays_on_its_device(sizes, compiled):
    net = network()
    net.backend.compiled = message._edge_step if compiled else None
    loss, gradients = step(net, batch_of(sizes))
    assert {tensor.device.type for tensor in (loss, *gradients)} == {ELSEWHERE}


def test_so_does_one_of_a_multilabel_network_with_self_loops():
    loss, _ = step(network(task="multilabel"), batch_of([0, 1, 5], multilabel=True, self_loops=True))
    assert loss.device.type == ELSEWHERE


@pytest.mark.parametrize("twin", ["edge_index", "event", "inverse"])
def test_the_check_sees_a_part_that_stays_on_the_cpu(twin):
    """Broken twins: an index or a count that was made on the CPU."""
    batch, makers = batch_of([0, 1, 5, 9]), {"edge_index": batch_edges, "event": events_of, "inverse": counts_of}
    batch._derived[twin] = makers[twin](batch)
    with pytest.raises(Exception, match="to be on the same device"):
        step(network(), batch)


def batch_edges(batch):
    return tuple(torch.zeros(batch.layout.edges, dtype=torch.int64) for _ in range(2))


def events_of(batch):
    return torch.zeros(batch.layout.nodes, dtype=torch.int64)


def counts_of(batch):
    return torch.ones(len(batch), 1), torch.ones(len(batch), 1)
