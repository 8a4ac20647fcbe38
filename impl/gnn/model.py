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
        z = torch.relu(self.second(torch.relu(z)))
        return self.norm(z.float() if z.dtype == torch.bfloat16 else z)  # norms and what follows stay in float32


class Round(nn.Module):
    """The three updates of one message round; columns of the first layers in the order of the arguments."""

    def __init__(self, hidden: int):
        super().__init__()
        self.edge = Mlp(4 * hidden, hidden)  # edge, source, destination, global
        self.node = Mlp(3 * hidden, hidden)  # node, sum of incoming edges, global
        self.glob = Mlp(3 * hidden, hidden)  # global, mean of nodes, mean of edges


class Scaling(nn.Module):
    """Features to numbers near 1: log1p where the feature is an energy, then (x - shift) · scale; identity when new.

    Kept as buffers, so a checkpoint carries the scaling that its weights were trained with.
    """

    #: features that spread over decades, by name
    ENERGIES = ("pt", "energy", "mass", "met")

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("logarithmic", torch.zeros(width, dtype=torch.bool))
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def fit(self, rows, names, dropped=()) -> None:
        """Take mean and deviation of rows (n, width); a feature in `dropped` becomes a constant 0.

        Raises
        ------
        InputError      rows of another width, or a number that is not finite
        """
        if rows.shape[1] != len(self.scale) or len(names) != len(self.scale):
            raise InputError("cache", f"{len(self.scale)} features", f"{rows.shape[1]}: {', '.join(names)}")
        rows = torch.as_tensor(rows, dtype=torch.float64)
        bad = [name for name, fine in zip(names, torch.isfinite(rows).all(0).tolist()) if not fine]
        if bad:
            raise InputError("cache", "finite features", f"NaN or infinity in {', '.join(bad)}",
                             "prepare it with a policy for them")  # fmt: skip
        self.logarithmic.copy_(torch.tensor([name in self.ENERGIES for name in names]))
        self.logarithmic &= (rows >= 0).all(0)
        rows = torch.where(self.logarithmic, rows.clamp(min=0).log1p(), rows)
        deviation = rows.std(0, correction=0) if len(rows) else torch.ones(rows.shape[1])
        self.shift.copy_(rows.mean(0) if len(rows) else torch.zeros(rows.shape[1]))
        self.scale.copy_(torch.where(deviation > 1e-6, 1 / deviation.clamp(min=1e-6), 1.0))
        self.scale[[name in dropped for name in names]] = 0

    def forward(self, x):
        x = torch.where(self.logarithmic, x.clamp(min=0).log1p(), x)
        return (x - self.shift) * self.scale


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
        self.scale_node, self.scale_glob = Scaling(config.node), Scaling(config.glob)
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

    def encode(self, batch):
        """Nodes and globals as (N, H) and (B, H)."""
        return self.encode_node(self.scale_node(batch.node_x)), self.encode_glob(self.scale_glob(batch.glob))

    def forward(self, batch) -> torch.Tensor:
        """Logits float (B, C) of a `batches.Batch`."""
        return self.head(self.decode(self.backend(self, batch)))
