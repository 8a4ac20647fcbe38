"""Networks that tell signal jets from background: L-GATr, L-GATr-slim, a plain transformer and the event network.

All take a `jets.Batch` and give logits (B, 2). The first two are Lorentz invariant unless a beam is given; `plain` sees
the same numbers without the symmetry; `gnn` is impl.gnn's network on the constituents' pt, eta, phi and energy.
"""

import contextlib
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from impl.gnn.errors import InputError
from impl.lgatr import embed, precision
from impl.lgatr.jets import UNIT

NETS = ("lgatr", "slim", "plain", "gnn")
PRECISIONS = ("float32", "amp", "naive-amp")
IMPLEMENTATIONS = ("paired", "sparse", "dense")
BEAMS = ("none", "xyplane", "lightlike", "spacelike", "timelike")


@dataclass(frozen=True)
class Config:
    """What determines the parameters and what they mean; part of every checkpoint.

    Attributes
    ----------
    net : str               lgatr, slim, plain or gnn
    blocks : int            blocks; message rounds of gnn
    mv, s, heads : int      multivector or vector channels, scalar channels, attention heads; plain and gnn are s wide
    items : int             leading constituents, the others are summed to one more item; 0: all
    beam : str              what tells the network where the beam is, and the rest frame; none: it is invariant
    lightcone : bool        slim: light-cone components along the jet
    """

    net: str = "lgatr"
    blocks: int = 2
    mv: int = 8
    s: int = 16
    heads: int = 4
    items: int = 16
    beam: str = "none"
    lightcone: bool = False

    def __post_init__(self):
        for name, allowed in (("net", NETS), ("beam", BEAMS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"model: {name}", "one of " + ", ".join(allowed), repr(getattr(self, name)))
        for name, least in (("blocks", 1), ("mv", 1), ("s", 1), ("heads", 1), ("items", 0)):
            if getattr(self, name) < least:
                raise InputError(f"model: {name}", f"a whole number of at least {least}", repr(getattr(self, name)))
        if self.net == "plain" and self.s % self.heads:
            raise InputError("model: s", "a multiple of heads", f"{self.s} and {self.heads} heads")
        if self.lightcone and self.net != "slim":
            raise InputError("model: lightcone", "the net slim", self.net)
        if self.lightcone and self.beam != "none":  # each jet is turned, the beam is not
            raise InputError("model: lightcone", "no beam", self.beam)
        if self.net in ("plain", "gnn") and self.beam != "none":
            raise InputError("model: beam", "the net lgatr or slim", self.net)
        if self.net == "slim" and self.beam == "xyplane":
            raise InputError("model: beam", "lightlike, spacelike, timelike or none for slim", "xyplane")

    def as_dict(self) -> dict:
        return asdict(self)


class Tagger(nn.Module):
    """A network of a `Config`.

    Parameters
    ----------
    config : Config
    implementation : str    of lgatr: paired, sparse, dense; the same function and parameters
    compiled : bool         lgatr, slim: by torch.compile; jets are padded to items + 1 then, for a graph is compiled
                            anew for every new list of lengths
    checkpoint_blocks : bool    lgatr, slim: less memory, one more forward pass
    """

    def __init__(self, config: Config, implementation: str = "paired", compiled: bool = False,
                 checkpoint_blocks: bool = False):  # fmt: skip
        super().__init__()
        self.config, self.padded = config, compiled
        spurions = None
        if config.beam != "none":
            spurions = embed.get_spurions(config.beam)
        self.register_buffer("spurions", spurions, persistent=False)
        channels = 1 + (0 if spurions is None else len(spurions))
        common = {"checkpoint_blocks": checkpoint_blocks, "compile": compiled}
        if config.net == "lgatr":
            from impl.lgatr.nets import LGATr

            self.net = LGATr(config.blocks, channels, 1, config.mv, 3, 2, config.s, {"num_heads": config.heads}, {},
                             {"implementation": implementation}, **common)  # fmt: skip
        elif config.net == "slim":
            from impl.lgatr.slim import LGATrSlim

            self.net = LGATrSlim(config.blocks, channels, 0, config.mv, 3, 2, config.s, config.heads,
                                 lightcone=config.lightcone, **common)  # fmt: skip
        elif config.net == "plain":
            self.net = Plain(config)
        else:
            self.net = Graphs(config)

    def forward(self, batch) -> torch.Tensor:
        """Logits (B, 2) of a `jets.Batch`: the mean over a jet's items."""
        if self.config.net in ("plain", "gnn"):
            return self.net(batch)
        momenta, scalars = batch.momenta.to(self.dtype), batch.scalars.to(self.dtype)
        vectors = momenta.unsqueeze(-2)
        if self.config.net == "lgatr":
            vectors = embed.jets(momenta, self.spurions)
        elif self.spurions is not None:
            spurions = embed.extract_vector(self.spurions).to(momenta).expand(len(momenta), -1, -1)
            vectors = torch.cat([vectors, spurions], -2)
        if self.padded:
            lengths, items = list(batch.lengths), self.config.items + 1 if self.config.items else None
            (vectors, mask), (scalars, _) = (embed.pad(lengths, rows, items) for rows in (vectors, scalars))
            out = self.net(vectors, scalars, attn_mask=embed.attention_mask(mask))[1][mask]
        else:
            _, out = self.net(vectors, scalars, lengths=batch.lengths)
        return mean(out.float() if out.dtype == torch.bfloat16 else out, batch)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


def mean(rows: torch.Tensor, batch) -> torch.Tensor:
    """Mean over the items of each jet: (Σ lengths, C) -> (B, C)."""
    lengths = torch.tensor(batch.lengths, dtype=rows.dtype).unsqueeze(1)
    return rows.new_zeros(len(batch), rows.shape[1]).index_add(0, batch.owner(), rows) / lengths


class Plain(nn.Module):
    """A transformer on the numbers themselves: sign(x) log(1 + |x|) of the four momenta, and the scalars."""

    def __init__(self, config: Config):
        super().__init__()
        self.first = nn.Linear(7, config.s)
        layer = nn.TransformerEncoderLayer(config.s, config.heads, 4 * config.s, 0.0, "gelu", batch_first=True,
                                           norm_first=True)  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, config.blocks, enable_nested_tensor=False)
        self.last = nn.Linear(config.s, 2)

    def forward(self, batch) -> torch.Tensor:
        dtype = self.first.weight.dtype
        momenta = batch.momenta.to(dtype)
        rows = torch.cat([momenta.sign() * momenta.abs().log1p(), batch.scalars.to(dtype)], 1)
        padded, mask = embed.pad(list(batch.lengths), self.first(rows))
        out = self.encoder(padded, src_key_padding_mask=~mask)
        return mean(self.last(out[mask]), batch).to(dtype)


class Graphs(nn.Module):
    """impl.gnn's event network on the items of a jet as nodes: pt, eta and phi from the jet's axis, energy."""

    FEATURES = ("pt", "eta", "phi", "energy")

    def __init__(self, config: Config):
        super().__init__()
        from impl.gnn.model import Config as EventConfig
        from impl.gnn.model import EventNet

        self.net = EventNet(EventConfig(node=4, edge=3, glob=2, hidden=config.s, rounds=config.blocks, classes=2))

    def forward(self, batch) -> torch.Tensor:
        return self.net(self.events(batch))

    def fit(self, batch) -> None:
        """Scale the features by those of these jets."""
        events = self.events(batch)
        self.net.scale_node.fit(events.node_x, self.FEATURES)
        self.net.scale_glob.fit(events.glob, ("pt", "constituents"))

    @staticmethod
    def events(batch):
        """The jets as events of impl.gnn; globals are the jet's pt and its constituents."""
        from impl.events import cache, kernel
        from impl.gnn import batches

        momenta = batch.momenta.double().numpy() * UNIT
        lengths = np.array(batch.lengths, np.int64)
        offsets = np.concatenate([[0], lengths.cumsum()])
        total = np.add.reduceat(momenta, offsets[:-1])

        def angles(p):
            pt = np.maximum(np.hypot(p[:, 1], p[:, 2]), 1e-12)
            return pt, np.arcsinh(p[:, 3] / pt), np.arctan2(p[:, 2], p[:, 1])

        pt, eta, phi = angles(momenta)
        jet_pt, jet_eta, jet_phi = angles(total)
        eta -= np.repeat(jet_eta, lengths)
        phi = (phi - np.repeat(jet_phi, lengths) + np.pi) % (2 * np.pi) - np.pi
        node_x = np.stack([pt, eta, phi, momenta[:, 0]], 1).astype(np.float32)
        edge_off = np.concatenate([[0], kernel.edge_counts(lengths, False).cumsum()])
        count = np.exp(batch.scalars[torch.from_numpy(offsets[:-1]), 2].double().numpy()) * 50
        events = cache.Batch(batch.index, offsets, edge_off, node_x, kernel.edge_features(node_x, offsets, 1, 2, False),
                             np.stack([jet_pt, count], 1).astype(np.float32), batch.label.numpy(),
                             batch.weight.numpy(), {}, False)  # fmt: skip
        return batches.Batch(events)


@contextlib.contextmanager
def running(name: str, device: str = "cpu"):
    """The context of a forward pass.

    float32; amp: bfloat16 products, what the metric enters in float32; naive-amp: bfloat16 there too.

    Raises
    ------
    InputError      another name
    """
    if name not in PRECISIONS:
        raise InputError("--precision", "one of " + ", ".join(PRECISIONS), repr(name))
    with contextlib.ExitStack() as stack:
        if name != "float32":
            stack.enter_context(torch.autocast(device, dtype=torch.bfloat16))
            stack.enter_context(precision.naive_amp(name == "naive-amp"))
        yield
