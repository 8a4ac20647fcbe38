"""Training of a tagger: seeded, repeatable to the last bit on one thread, resumable.

A run's folder holds last.pt, metrics.jsonl (one object an epoch) and, after a loss that was no number, bad_batch.json.
No epoch is chosen by its held-out score: the result is the last one's moving average.
"""

import json
import math
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from impl.gnn import batches, checkpoint
from impl.gnn.errors import InputError, LossError
from impl.gnn.train import loss_of, seed_everything
from impl.lgatr import metrics
from impl.lgatr.jets import Jets, Sample, weights
from impl.lgatr.tagger import PRECISIONS, Config, Tagger, running


@dataclass(frozen=True)
class Options:
    """How to train; part of every checkpoint, and what a resumed run must repeat.

    Attributes
    ----------
    epochs, seed : int
    jets : int                  of a batch; the last batch of an epoch may be smaller
    accumulate : int            parts that a batch is computed in, one behind the other, for less memory
    rate, warmup : float        AdamW's highest learning rate, reached linearly within this share of all steps
    decay : float               weight decay, of matrices only
    clip : float                largest norm of all gradients together, 0 for none
    average : float             of the moving average of the weights per step, 0 for none; smaller in the first steps
    held_out, fold : int        jets whose number leaves `fold` when divided by held_out are not trained on
    permute_labels : bool       labels shuffled among all jets: nothing can be learnt (a check of the evaluation)
    balance : bool              both classes weigh the same
    precision : str             float32, amp or naive-amp
    """

    epochs: int = 20
    seed: int = 0
    jets: int = 128
    accumulate: int = 1
    rate: float = 3e-3
    warmup: float = 0.05
    decay: float = 0.01
    clip: float = 1.0
    average: float = 0.99
    held_out: int = 5
    fold: int = 0
    permute_labels: bool = False
    balance: bool = True
    precision: str = "float32"

    def __post_init__(self):
        for name, least in (("epochs", 1), ("seed", 0), ("jets", 1), ("accumulate", 1), ("held_out", 2), ("fold", 0)):
            if getattr(self, name) < least:
                raise InputError(f"train: {name}", f"a whole number of at least {least}", repr(getattr(self, name)))
        if self.fold >= self.held_out:
            raise InputError("train: fold", f"a whole number below held_out, {self.held_out}", str(self.fold))
        shares = 0 <= self.warmup < 1 and 0 <= self.average < 1
        if not (self.rate > 0 and self.decay >= 0 and self.clip >= 0 and shares):
            raise InputError("train: rate, warmup, decay, clip, average",
                             "rate > 0, 0 <= warmup < 1, decay >= 0, clip >= 0, 0 <= average < 1",
                             f"{self.rate}, {self.warmup}, {self.decay}, {self.clip}, {self.average}")  # fmt: skip
        if self.precision not in PRECISIONS:
            raise InputError("train: precision", "one of " + ", ".join(PRECISIONS), repr(self.precision))


@dataclass
class Run:
    """What `train` did: the network with averaged weights, where its files are, one dict of metrics an epoch."""

    net: Tagger
    folder: Path
    epochs: list = field(default_factory=list)


def split(jets: int, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out jets, both ascending; they do not depend on the seed."""
    number = np.arange(jets)
    held = number % options.held_out == options.fold
    return number[~held], number[held]


def labels(jets: Jets, options: Options) -> np.ndarray:
    """The jets' labels, shuffled where the options say so; InputError without any."""
    label = jets.labelled()
    if options.permute_labels:
        label = label[np.random.default_rng([options.seed, 4]).permutation(len(label))]
    return label


def rate_at(step: int, steps: int, options: Options) -> float:
    """Learning rate of a step: linear to its highest value, then half a cosine to 0.

    Source: Loshchilov & Hutter, ICLR 2017, without restarts.
    """
    warm = max(1, round(options.warmup * steps))
    if step < warm:
        return options.rate * (step + 1) / warm
    return options.rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


class Average:
    """Moving average of a network's parameters, which `applied` puts in their place for a while."""

    def __init__(self, net: torch.nn.Module, decay: float):
        self.decay, self.parameters = decay, list(net.parameters())
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step number `step`, from 0; early steps count more, so that few are enough."""
        kept = min(self.decay, (1 + step) / (10 + step)) if self.decay else 0.0
        torch._foreach_lerp_(self.values, [parameter.detach() for parameter in self.parameters], 1 - kept)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their averages."""
        for value, parameter in zip(self.values, self.parameters):
            kept = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(kept)


def optimiser_of(net: torch.nn.Module, options: Options) -> torch.optim.Optimizer:
    """AdamW; biases and the gains of norms do not decay.

    Source: Loshchilov & Hutter, ICLR 2019.
    """
    groups = [{"params": [], "weight_decay": decay} for decay in (options.decay, 0.0)]
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            groups[name.endswith("bias") or "norm" in name]["params"].append(parameter)
    return torch.optim.AdamW(groups, options.rate, fused=True)


def step(net: Tagger, sample: Sample, index, label, weight, optimiser, options: Options) -> tuple[float, torch.Tensor]:
    """One optimiser step on the jets `index`, in `accumulate` parts; returns the loss and the logits (B, 2).

    The loss is the weighted mean over all jets of the batch, whatever the parts.

    Raises
    ------
    LossError       a loss that is no number, with the jets at fault; the weights stay as they were
    """
    optimiser.zero_grad(set_to_none=True)
    whole = float(weight[index].sum(dtype=np.float64))
    value, logits = 0.0, []
    for part in np.array_split(index, min(options.accumulate, len(index))):
        batch = sample.batch(part, label, weight)
        with running(options.precision):
            out = net(batch)
        share = float(batch.weight.sum(dtype=torch.float64)) / whole if whole else 1.0
        one = loss_of(out.float() if out.dtype != torch.float64 else out, batch, "multiclass", "jets") * share
        one.backward()
        value += float(one.detach())
        logits.append(out.detach())
    if options.clip:
        torch.nn.utils.clip_grad_norm_(net.parameters(), options.clip)
    optimiser.step()
    return value, torch.cat(logits)


def train(jets: Jets, config: Config, options: Options, folder, resume: bool = False, stop: int = 0, progress=None,
          report=None, **kinds) -> Run:  # fmt: skip
    """Train a network on a sample and keep its checkpoint in `folder`.

    Parameters
    ----------
    jets : Jets                 with labels
    config, options
    folder : str or Path        made if it is not there
    resume : bool               go on from folder/last.pt
    stop : int                  leave off after this many epochs, 0: go to the end
    progress : callable(epoch, batch, batches, loss) or None
    report : callable(dict) or None         gets the line of each epoch
    **kinds                     of `Tagger`: implementation, compiled, checkpoint_blocks

    Raises
    ------
    InputError      no labels; a checkpoint of other jets, another network or other options; nothing to train on
    LossError       a loss that is no number
    """
    if stop < 0:
        raise InputError("--stop", "a whole number of at least 0", str(stop))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    label = labels(jets, options)
    weight = weights(jets, label, options.balance)
    training, held = split(len(jets), options)
    training = training[weight[training] > 0]
    sample = Sample(jets, config.items, config.lightcone)
    net = made(sample, config, training, options, **kinds)
    optimiser, average = optimiser_of(net, options), Average(net, options.average)
    run, first = Run(net, folder), 0
    if resume:
        state = load(folder)
        _same_run(state, jets, config, options)
        net.load_state_dict(state["weights"])
        optimiser.load_state_dict(state["optimiser"])
        average.values = [state["model"][name].clone() for name, _ in net.named_parameters()]
        torch.set_rng_state(state["random"])
        first = state["epoch"]
        run.epochs = state["epochs"]
    log = folder / "metrics.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in run.epochs))
    plans = -(-len(training) // options.jets)
    last = min(options.epochs, stop) if stop else options.epochs
    for epoch in range(first, last):
        wall, cpu = time.perf_counter(), time.process_time()
        losses, shares = [], []
        net.train()
        order = batches.shuffled(training, options.seed, epoch)
        for number, index in enumerate(batches.fixed(order, options.jets)):
            done = epoch * plans + number
            for group in optimiser.param_groups:
                group["lr"] = rate_at(done, options.epochs * plans, options)
            try:
                value, _ = step(net, sample, index, label, weight, optimiser, options)
            except LossError as error:
                (folder / "bad_batch.json").write_text(
                    json.dumps({"epoch": epoch, "batch": number, "jets": np.asarray(error.events).tolist(),
                                "batch_jets": index.tolist()}) + "\n"
                )  # fmt: skip
                raise
            average.update(done)
            losses.append(value)
            shares.append(float(weight[index].sum(dtype=np.float64)))
            if progress:
                progress(epoch, number + 1, plans, value)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        current = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
        average.swap()
        scores = scores_of(net, sample, held, options.jets, options.precision)
        line = {
            "epoch": epoch + 1,
            "train_loss": float(np.average(losses, weights=shares)),
            **metrics.plain(scores, label[held], jets.weight[held]),
            "rate": optimiser.param_groups[0]["lr"],
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "jets_per_s": len(training) / seconds,
        }
        run.epochs.append(line)
        state = _state(net, current, optimiser, config, options, jets, run.epochs)
        average.swap()
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        checkpoint.save(folder / "last.pt", state)
        if report:
            report(line)
    average.swap()
    return run


def made(sample: Sample, config: Config, training, options: Options, **kinds) -> Tagger:
    """A new network with weights from the seed, and for gnn the scaling of its features from the training jets."""
    if len(training) == 0:
        raise InputError("train", "at least two jets", str(len(sample)))
    seed_everything(options.seed)
    if config.net == "gnn" and options.precision != "float32":
        raise InputError("train: precision", "float32 for the net gnn", options.precision)
    net = Tagger(config, **kinds)
    if config.net == "gnn":
        net.net.fit(sample.batch(training[:20000]))
    return net


def scores_of(net: Tagger, sample: Sample, index, jets: int = 256, precision: str = "float32") -> np.ndarray:
    """Logits float32 (n, 2) of the jets `index`, in that order; batches of `jets` jets."""
    index = np.asarray(index, np.int64)
    out = np.empty((len(index), 2), np.float32)
    net.eval()
    with torch.no_grad(), running(precision):
        for rows in batches.fixed(np.arange(len(index)), jets):
            out[rows] = net(sample.batch(index[rows])).float().numpy()
    return out


# ------------------------------------------------------------------------------------------- checkpoints


def load(path) -> dict:
    """A tagger's checkpoint; raises InputError for none, and for one of another program."""
    state = checkpoint.load(path)
    if state.get("kind") != "jets":
        raise InputError(path, "a checkpoint of `python -m impl.lgatr train`", "one of another program")
    return state


def restored(state: dict, **kinds) -> Tagger:
    """The network of a checkpoint, with averaged weights."""
    net = Tagger(Config(**state["config"]), **kinds)
    net.load_state_dict(state["model"])
    return net


def _state(net, current, optimiser, config, options, jets, epochs) -> dict:
    return {
        "kind": "jets",
        "model": {name: tensor.detach().clone() for name, tensor in net.state_dict().items()},
        "weights": current,
        "config": config.as_dict(),
        "options": asdict(options),
        "optimiser": optimiser.state_dict(),
        "random": torch.get_rng_state(),
        "epoch": epochs[-1]["epoch"],
        "epochs": epochs,
        "jets": jets.fingerprint,
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": str(np.__version__),
        },
        "threads": torch.get_num_threads(),
    }


def _same_run(state, jets: Jets, config: Config, options: Options) -> None:
    if state["jets"] != jets.fingerprint:
        raise InputError("resume", f"the jets {state['jets'][:12]}…", f"{jets.fingerprint[:12]}…",
                         "give the file of the first run")  # fmt: skip
    for what, kept, given in (("network", state["config"], config.as_dict()),
                              ("options", state["options"], asdict(options))):  # fmt: skip
        differ = [name for name in kept if kept[name] != given[name]]
        if differ:
            raise InputError("resume", f"the {what} of the first run, " + ", ".join(f"{n} {kept[n]}" for n in differ),
                             ", ".join(f"{n} {given[n]}" for n in differ))  # fmt: skip
    if state["epoch"] >= options.epochs:
        raise InputError("resume", f"more than {state['epoch']} epochs", str(options.epochs), "it is trained")
