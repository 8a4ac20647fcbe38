"""The event network: encoders, message rounds and decoder; its parameters are the same for every backend.

Symbols: B events, N nodes, E directed edges, H hidden, K rounds, C classes. Edge (i, j) has source i, destination j.
"""

from dataclasses import asdict, dataclass

import torch
from torch import nn

from impl.gnn import message
from impl.gnn.errors import InputError


@dataclass(frozen=True)
class Config:
    """What determines the parameters' shapes; part of every checkpoint.

    Attributes
    ----------
    node, edge, glob : int      features of a node, an edge and an event
    hidden, rounds : int        H and K
    classes : int               C: one logit a class (multiclass) or a label (multilabel)
    share_weights : bool        one set of update weights for all rounds
    task : str                  'multiclass': integer labels; 'multilabel': C zeros and ones
    """

    node: int = 7
    edge: int = 3
    glob: int = 4
    hidden: int = 64
    rounds: int = 4
    classes: int = 12
    share_weights: bool = True
    task: str = "multiclass"

    def __post_init__(self):
        for name in ("node", "edge", "glob", "hidden", "rounds", "classes"):
            if getattr(self, name) < 1:
                raise InputError(f"model: {name}", "a whole number of at least 1", repr(getattr(self, name)))
        if self.task not in ("multiclass", "multilabel"):
            raise InputError("model: task", "'multiclass' or 'multilabel'", repr(self.task))

    def as_dict(self) -> dict:
        return asdict(self)


class Mlp(nn.Module):
    """Linear, ReLU, Linear, ReLU, LayerNorm."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        return self.finish(self.first(x))

    def finish(self, z):
        """What follows the first linear layer, given its output."""
        return self.norm(torch.relu(self.second(torch.relu(z))))


class Round(nn.Module):
    """The three updates of one message round; columns of the first layers in the order of the arguments."""

    def __init__(self, hidden: int):
        super().__init__()
        self.edge = Mlp(4 * hidden, hidden)  # edge, source, destination, global
        self.node = Mlp(3 * hidden, hidden)  # node, sum of incoming edges, global
        self.glob = Mlp(3 * hidden, hidden)  # global, mean of nodes, mean of edges


class EventNet(nn.Module):
    """Events to logits.

    Parameters
    ----------
    config : Config
    backend : str           'dgl', 'dense' or 'fused'; changes the order of operations, never the function
    **options               of the backend: recompute=True for 'fused'
    """

    def __init__(self, config: Config, backend: str = "fused", **options):
        super().__init__()
        self.config = config
        hidden = config.hidden
        self.encode_node = Mlp(config.node, hidden)
        self.encode_edge = Mlp(config.edge, hidden)
        self.encode_glob = Mlp(config.glob, hidden)
        self.updates = nn.ModuleList(Round(hidden) for _ in range(1 if config.share_weights else config.rounds))
        self.decode = Mlp(hidden, hidden)
        self.head = nn.Linear(hidden, config.classes)
        self.backend = message.backend(backend, config, **options)

    def rounds(self):
        """The K updates in order."""
        return [self.updates[k % len(self.updates)] for k in range(self.config.rounds)]

    def forward(self, batch) -> torch.Tensor:
        """Logits float (B, C) of a `batches.Batch`."""
        return self.head(self.decode(self.backend(self, batch)))
