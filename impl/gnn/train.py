"""Training: epochs over a cache, seeded and repeatable to the last bit on one thread, resumable, fine-tunable.

A run's folder holds last.pt, best.pt (highest held-out AUC), epoch-N.pt of the last few epochs where asked,
metrics.jsonl (one object an epoch) and, after a loss that was no number, bad_batch.json.
"""

import json
import platform
import random
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from impl.gnn import batches, checkpoint, metrics
from impl.gnn.errors import InputError, LossError
from impl.gnn.model import Config, EventNet
from impl.gnn.precision import autocast, check_precision
from impl.gnn.predict import scores_of


@dataclass(frozen=True)
class Options:
    """How to train; part of every checkpoint, and what a resumed run must repeat (but epochs).

    Attributes
    ----------
    epochs, seed : int
    events, edges : int         budgets of a batch; edges 0: batches of `events` events whatever their size
    rate, decay : float         Adam's learning rate in epoch e is rate · decay^e: it does not depend on `epochs`
    clip : float                largest norm of all gradients together, 0 for none
    held_out : int              every held_out-th event of a seeded shuffle is not trained on
    drop : tuple                features replaced by a constant
    permute_labels : bool       labels shuffled among the events: nothing can be learnt (a check of the evaluation)
    freeze : bool               train the head and the decoder only
    precision : str             'float32', or 'bfloat16' in the forward pass of the dense backend
    """

    epochs: int = 10
    seed: int = 0
    events: int = 256
    edges: int = 0
    rate: float = 1e-3
    decay: float = 0.9
    clip: float = 0.0
    held_out: int = 5
    drop: tuple = ()
    permute_labels: bool = False
    freeze: bool = False
    precision: str = "float32"
    allow_slow: bool = False

    def __post_init__(self):
        object.__setattr__(self, "drop", tuple(self.drop))
        for name, least in (("epochs", 1), ("events", 1), ("edges", 0), ("held_out", 2)):
            if getattr(self, name) < least:
                raise InputError(f"train: {name}", f"a whole number of at least {least}", repr(getattr(self, name)))
        if not (self.rate > 0 and 0 < self.decay <= 1 and self.clip >= 0):
            raise InputError("train: rate, decay, clip", "rate > 0, 0 < decay <= 1, clip >= 0",
                             f"{self.rate}, {self.decay}, {self.clip}")  # fmt: skip


@dataclass
class Run:
    """What `train` did: the network, where its files are, one dict of metrics an epoch, the transfer's report."""

    net: EventNet
    folder: Path
    epochs: list = field(default_factory=list)
    transfer: dict | None = None


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch from one number; the shuffles take their own streams (batches.py)."""
    first, second, third = np.random.SeedSequence([seed, 2]).generate_state(3)
    random.seed(int(first))
    np.random.seed(int(second))  # libraries that use the global generator
    torch.manual_seed(int(third))


def loss_of(logits, batch, task: str, noun: str = "events"):
    """Weighted mean of the events' losses, sum(w l) / sum(w).

    Raises
    ------
    LossError       the result is no number (the events at fault are named), or the weights sum to 0
    """
    if task == "multilabel":
        each = binary_cross_entropy_with_logits(logits, batch.label.to(logits.dtype), reduction="none").mean(1)
    else:
        each = cross_entropy(logits, batch.label, reduction="none")
    total = batch.weight.sum()
    value = (each * batch.weight).sum() / total
    if not torch.isfinite(value):
        bad = ~torch.isfinite((each * batch.weight).detach()).cpu().numpy()
        events = batch.index[bad] if bad.any() else batch.index
        shown = ", ".join(map(str, events[:8])) + (f" and {len(events) - 8} more" if len(events) > 8 else "")
        if float(total) == 0 and not bad.any():
            raise LossError("loss", "weights that do not sum to 0", f"{noun} {shown}", "check the weights", events)
        raise LossError("loss", "a number", f"{value.item()} from {noun} {shown}",
                        f"look at these {noun}, or lower the learning rate", events)  # fmt: skip
    return value


def network_for(cache, task: str = "", backend: str = "fused", **config) -> EventNet:
    """A new network for a cache: its widths, its classes and its task.

    Raises
    ------
    InputError      a cache without events or without classes
    """
    if len(cache) == 0:
        raise InputError(cache.path, "at least one event", "none")
    multilabel = cache.label.ndim == 2
    if task and (task == "multilabel") != multilabel:
        raise InputError("task", "'multilabel' for flags and 'multiclass' for one label", f"'{task}'")
    classes = cache.label.shape[1] if multilabel else max(len(cache.classes), int(cache.label.max()) + 1)
    options = {key: config.pop(key) for key in ("recompute", "isa", "compiled") if key in config}
    task = "multilabel" if multilabel else "multiclass"
    return EventNet(
        Config(node=cache.node_x.shape[1], glob=cache.glob.shape[1], classes=classes, task=task, **config),
        backend,
        **options,
    )


def _check_features(cache, drop) -> None:
    known = (*cache.node_features, *cache.globals)
    for name in drop:
        if name not in known:
            raise InputError("--drop", "one of " + ", ".join(known), repr(name))


def _plan(order, cache, options, epoch):
    if not options.edges:
        return batches.fixed(order, options.events)
    plan = batches.by_edges(order, np.diff(cache.edge_off), options.edges, options.events)
    # batches of like size next to each other would train on small events first
    return [plan[k] for k in np.random.default_rng([options.seed, 3, epoch]).permutation(len(plan))]


def train(cache, net: EventNet, options: Options, folder, resume: bool | str | Path = False,
          source: dict | None = None, progress=None, report=None, writer=None, device="cpu",
          keep: int = 0) -> Run:  # fmt: skip
    """Train `net` on a cache and keep checkpoints in `folder`.

    Parameters
    ----------
    cache : impl.events.cache.Cache
    net : EventNet              from `network_for`; its weights are set here from the seed, the checkpoint or `source`
    options : Options
    folder : str or Path        made if it is not there
    resume : bool or path       go on from folder/last.pt, or from the checkpoint given
    source : dict               another task's checkpoint to fine-tune
    progress : callable(epoch, batch, batches, loss) or None
    report : callable(dict) or None         gets the line of each epoch
    writer : SummaryWriter or None
    device : str
    keep : int                  so many epochs' checkpoints stay as epoch-N.pt beside last.pt and best.pt

    Raises
    ------
    InputError      a checkpoint of another cache, network or other options; nothing to train on
    LossError       a loss that is no number
    """
    if keep < 0:
        raise InputError("train: keep", "a whole number of at least 0", repr(keep))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_precision(options.precision, net.backend.name, options.allow_slow, torch.device(device).type)
    training, held = batches.split(len(cache), options.seed, options.held_out)
    if len(training) == 0:
        raise InputError(cache.path, "at least two events", str(len(cache)))
    labels = cache.label
    if options.permute_labels:
        labels = labels[np.random.default_rng([options.seed, 4]).permutation(len(labels))]
    initialise(net, cache, training, options)
    run = Run(net, folder)
    if source is not None:
        run.transfer = checkpoint.transfer(net, source)
    net.to(device)
    if options.freeze:
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith(("head.", "decode.")))
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(trained, options.rate, fused=True)
    first, best = 0, None
    if resume:
        state = checkpoint.load(folder if resume is True else resume)
        _same_run(state, cache, net, options)
        net.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        first, best = state["epoch"], state["best"]
        run.epochs = _read_metrics(folder)[:first]
        net.to(device)
    log = folder / "metrics.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in run.epochs))
    for epoch in range(first, options.epochs):
        wall, cpu = time.perf_counter(), time.process_time()
        for group in optimiser.param_groups:
            group["lr"] = options.rate * options.decay**epoch
        plan = _plan(batches.shuffled(training, options.seed, epoch), cache, options, epoch)
        losses, weights = [], []
        net.train()
        for number, index in enumerate(plan):
            batch = batches.Batch(_relabelled(cache.batch(index), labels), device)
            try:
                value, _ = step(net, batch, optimiser, options)
            except LossError as error:
                (folder / "bad_batch.json").write_text(
                    json.dumps({"epoch": epoch, "batch": number, "events": np.asarray(error.events).tolist(),
                                "batch_events": index.tolist()}) + "\n"
                )  # fmt: skip
                raise
            losses.append(value)
            weights.append(float(batch.weight.sum()))
            if progress:
                progress(epoch, number + 1, len(plan), value)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        scores = scores_of(net, cache, held, options.events, options.edges, device=device)
        line = {
            "epoch": epoch + 1,
            "train_loss": float(np.average(losses, weights=weights)),
            **metrics.summary(scores, labels[held], cache.weight[held], net.config.task, cache.classes),
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "events_per_s": len(training) / seconds,
            "batches": len(plan),
            **({"compilations": net.backend.compilations()} if getattr(net.backend, "compiled", None) else {}),
        }
        run.epochs.append(line)
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if report:
            report(line)
        if writer:
            for key in ("train_loss", "loss", "accuracy", "auc"):
                if line[key] is not None:
                    writer.add_scalar(key, line[key], epoch + 1)
        better = best is None or (line["auc"] or 0) > best
        best = max(best or 0, line["auc"] or 0)
        state = _state(net, optimiser, options, cache, epoch + 1, best)
        checkpoint.save(folder / "last.pt", state)
        if better:
            checkpoint.save(folder / "best.pt", state)
        if keep:
            checkpoint.save(folder / f"epoch-{epoch + 1}.pt", state)
            _forget(folder, range(epoch + 2 - keep, epoch + 2))
    return run


def _forget(folder: Path, kept: range) -> None:
    """Remove the checkpoints of other epochs than these: older ones, and later ones of a run that was wound back."""
    for path in folder.glob("epoch-*.pt"):
        number = path.stem.removeprefix("epoch-")
        if number.isdigit() and int(number) not in kept:
            path.unlink()


def initialise(net, cache, training, options) -> None:
    """Weights from the seed, scaling of the features from (at most 20,000 of) the training events.

    The network comes to the CPU for it, whose generator makes them: the same weights whatever the device.
    """
    _check_features(cache, options.drop)
    net.cpu()
    seed_everything(options.seed)
    net.apply(_reset)
    events = cache.batch(training[:20000])
    net.scale_node.fit(events.node_x, cache.node_features, options.drop)
    net.scale_glob.fit(events.glob, cache.globals or [str(k) for k in range(cache.glob.shape[1])], options.drop)


def step(net, batch, optimiser, options):
    """One optimiser step on one batch; returns (loss, logits).

    Raises
    ------
    LossError       a loss that is no number; the weights stay as they were
    """
    optimiser.zero_grad(set_to_none=True)
    with autocast(options.precision, batch.node_x.device.type):
        logits = net(batch)
    value = loss_of(logits.float(), batch, net.config.task)
    value.backward()
    if options.clip:
        torch.nn.utils.clip_grad_norm_(net.parameters(), options.clip)
    optimiser.step()
    return float(value.detach()), logits


def _relabelled(events, labels):
    return replace(events, label=labels[events.index])


def _reset(module) -> None:
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


def _state(net, optimiser, options, cache, epoch, best) -> dict:
    return {
        "model": {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()},
        "config": net.config.as_dict(),
        "classes": [str(name) for name in cache.classes],
        "features": [*cache.node_features],
        "globals": [*cache.globals],
        "options": {**asdict(options), "drop": list(options.drop)},
        "optimiser": optimiser.state_dict(),
        "random": torch.get_rng_state(),
        "epoch": epoch,
        "best": best,
        "cache": cache.fingerprint,
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": str(np.__version__),
        },
        "threads": torch.get_num_threads(),
    }


def _same_run(state, cache, net, options) -> None:
    if state["cache"] != cache.fingerprint:
        raise InputError("resume", f"the cache {state['cache'][:12]}…", f"{cache.fingerprint[:12]}…",
                         "give the cache of the first run, or --from to fine-tune")  # fmt: skip
    if state["config"] != net.config.as_dict():
        raise InputError("resume", f"the network {state['config']}", f"{net.config.as_dict()}")
    given, kept = {**asdict(options), "drop": list(options.drop)}, state["options"]
    differ = [f"{key} {kept[key]}" for key in kept if key not in ("epochs", "allow_slow") and kept[key] != given[key]]
    if differ:
        raise InputError("resume", "the options of the first run, " + ", ".join(differ), "others")
    if state["epoch"] >= options.epochs:
        raise InputError("resume", f"more than {state['epoch']} epochs", str(options.epochs), "raise --epochs")


def _read_metrics(folder: Path) -> list[dict]:
    try:
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def set_threads(threads: int) -> None:
    """Threads of torch and of the fused step; 1 gives equal bits run after run."""
    if threads < 1:
        raise InputError("--threads", "a whole number of at least 1", repr(threads))
    torch.set_num_threads(threads)
    if threads == 1:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # a pass over every new tensor, for nothing here
