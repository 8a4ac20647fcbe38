"""Command line of impl.gnn: train, predict, evaluate; arguments in, exit code out.

Standard output holds JSON lines, standard error progress and complaints. Exit codes: 0 done, 2 bad option, cache or
checkpoint or a missing package, 3 a loss that is no number, 130 interrupted.
"""

import argparse
import json
import sys
import time
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.gnn", description="Trains and applies the event GNN.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train on a cache; one JSON object an epoch")
    train.add_argument("cache", help="folder made by `python -m impl.events prepare`")
    train.add_argument("--out", required=True, metavar="DIR", help="folder for checkpoints and metrics.jsonl")
    train.add_argument("--epochs", type=int, default=10)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--rate", type=float, default=2e-3, help="learning rate of the first epoch (default 0.002)")
    train.add_argument("--decay", type=float, default=0.75, help="factor of the rate per epoch (default 0.75)")
    train.add_argument("--clip", type=float, default=0.0, help="largest norm of the gradients, 0 for none")
    train.add_argument("--held-out", type=int, default=5, metavar="N", help="every N-th event is not trained on")
    train.add_argument("--hidden", type=int, default=64)
    train.add_argument("--rounds", type=int, default=4, help="message rounds")
    train.add_argument("--separate-weights", action="store_true", help="every round has weights of its own")
    train.add_argument("--task", default="", help="multiclass or multilabel; refused where the cache says otherwise")
    train.add_argument("--drop", default="", metavar="NAMES", help="features, by comma, replaced by a constant")
    train.add_argument("--permute-labels", action="store_true", help="shuffle the labels: nothing can be learnt")
    train.add_argument("--keep", type=int, default=3, metavar="K", help="the last K epochs' checkpoints (default 3)")
    train.add_argument("--resume", nargs="?", const=True, default=False, metavar="CHECKPOINT",
                       help="go on from last.pt in --out, or from this one")  # fmt: skip
    train.add_argument("--from", dest="source", metavar="CHECKPOINT", help="fine-tune: all but the head from there")
    train.add_argument("--freeze", action="store_true", help="train the decoder and the head only")
    train.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files to --out")
    _running(train)

    predict = commands.add_parser("predict", help="write the scores of every event, row k for event k")
    predict.add_argument("checkpoint")
    predict.add_argument("cache")
    predict.add_argument("--out", required=True, metavar="FILE", help="an .npy of float32 (events, classes)")
    predict.add_argument("--streaming", action="store_true", help="bounded memory; a killed run goes on where it was")
    _running(predict)

    evaluate = commands.add_parser("evaluate", help="print metrics as one JSON object; plots on request")
    evaluate.add_argument("checkpoint")
    evaluate.add_argument("cache")
    evaluate.add_argument("--events-of", choices=("held-out", "all"), default="held-out",
                          help="which events (default: those not trained on, in the training's cache)")  # fmt: skip
    evaluate.add_argument("--plots", metavar="DIR", help="write loss.svg, roc.svg and confusion.svg there")
    _running(evaluate)
    return parser


def _running(parser) -> None:
    parser.add_argument("--backend", default="fused", help="dgl, dense or fused (default fused)")
    parser.add_argument("--recompute", action="store_true", help="fused: less memory, activations computed again")
    parser.add_argument("--compile", action="store_true", help="dense: the edge update by torch.compile")
    parser.add_argument("--precision", default="float32", help="float32, or bfloat16 (dense)")
    parser.add_argument("--allow-slow", action="store_true", help="bfloat16 on a CPU without instructions for it")
    parser.add_argument("--batch-events", type=int, default=256, metavar="N", help="most events of a batch")
    parser.add_argument("--batch-edges", type=int, default=0, metavar="N",
                        help="most edges of a batch, events of like size together; 0: no such limit")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="1 gives equal bits run after run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


class Progress:
    """One line a second on standard error; overwritten where that is a terminal."""

    def __init__(self, quiet: bool):
        self.quiet, self.last = quiet, time.monotonic()

    def say(self, text: str) -> None:
        now = time.monotonic()
        if self.quiet or now - self.last < 1:
            return
        self.last = now
        print(text, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)

    def batch(self, epoch: int, number: int, total: int, loss: float) -> None:
        self.say(f"epoch {epoch + 1}, batch {number} of {total}, loss {loss:.4f}")

    def rows(self, done: int, total: int) -> None:
        self.say(f"{done} of {total} events")


def prepared(arguments):
    """Threads set, device checked, the backend's options."""
    import torch

    from impl.gnn.errors import InputError
    from impl.gnn.train import set_threads

    set_threads(arguments.threads)
    try:
        torch.empty(1, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        raise InputError("--device", "a device of this torch", str(error).splitlines()[0][:80]) from None
    if arguments.device != "cpu" and arguments.backend == "fused":
        raise InputError("--backend fused", "--device cpu", arguments.device, "use the backend 'dense' there")
    return {"recompute": arguments.recompute, "compiled": arguments.compile}


def _train(arguments) -> None:
    from impl.events.cache import Cache
    from impl.gnn import checkpoint
    from impl.gnn.train import Options, network_for, train

    backend = prepared(arguments)
    cache = Cache.open(arguments.cache)
    source = checkpoint.load(arguments.source) if arguments.source else None
    shape = {"hidden": arguments.hidden, "rounds": arguments.rounds, "share_weights": not arguments.separate_weights}
    if source:  # a transferred network keeps its shape
        shape = {key: source["config"][key] for key in shape}
    net = network_for(cache, arguments.task, arguments.backend, **shape, **backend)
    options = Options(
        epochs=arguments.epochs, seed=arguments.seed, events=arguments.batch_events, edges=arguments.batch_edges,
        rate=arguments.rate, decay=arguments.decay, clip=arguments.clip, held_out=arguments.held_out,
        drop=tuple(filter(None, arguments.drop.split(","))), permute_labels=arguments.permute_labels,
        freeze=arguments.freeze, precision=arguments.precision, allow_slow=arguments.allow_slow,
    )  # fmt: skip
    writer = _tensorboard(arguments.out) if arguments.tensorboard else None
    run = train(cache, net, options, arguments.out, resume=arguments.resume, source=source, writer=writer,
                progress=Progress(arguments.quiet).batch, device=arguments.device, keep=arguments.keep,
                report=lambda line: print(json.dumps(line), flush=True))  # fmt: skip
    if writer:
        writer.close()
    if run.transfer:
        counts = ", ".join(f"{len(names)} {what}" for what, names in run.transfer.items())
        print(f"tensors: {counts}; new: {', '.join(run.transfer['new'])}", file=sys.stderr)


def _tensorboard(folder: str):
    from impl.gnn.errors import PackageError

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise PackageError("--tensorboard", "tensorboard", "", "pip install tensorboard") from None
    return SummaryWriter(folder)


def _loaded(arguments):
    """The network, its checkpoint, the cache, checked against each other."""
    from impl.events.cache import Cache
    from impl.gnn import checkpoint
    from impl.gnn.errors import InputError

    backend = prepared(arguments)
    state = checkpoint.load(arguments.checkpoint)
    cache = Cache.open(arguments.cache)
    for what, trained, found in (("features", state["features"], cache.node_features),
                                 ("globals", state["globals"], cache.globals)):  # fmt: skip
        if list(trained) != list(found):
            raise InputError(arguments.cache, f"the {what} of the checkpoint, {', '.join(trained)}", ", ".join(found))
    net = checkpoint.network(state, arguments.backend, **backend).to(arguments.device)
    return net, state, cache


def _predict(arguments) -> None:
    from impl.events.cache import file_digest
    from impl.gnn.predict import predict

    net, _, cache = _loaded(arguments)
    path = Path(arguments.checkpoint)
    identity = {"checkpoint": file_digest(path / "last.pt" if path.is_dir() else path), "cache": cache.fingerprint}
    begin = time.perf_counter()
    facts = predict(net, cache, arguments.out, arguments.streaming, identity, arguments.batch_events,
                    arguments.batch_edges, arguments.precision, arguments.allow_slow, arguments.device,
                    Progress(arguments.quiet).rows)  # fmt: skip
    print(json.dumps({"out": arguments.out, **facts, "seconds": time.perf_counter() - begin}))


def _evaluate(arguments) -> None:
    import numpy as np

    from impl.gnn import batches, metrics, plots
    from impl.gnn.errors import InputError
    from impl.gnn.precision import check_precision
    from impl.gnn.predict import scores_of

    net, state, cache = _loaded(arguments)
    check_precision(arguments.precision, arguments.backend, arguments.allow_slow, net.head.weight.device.type)
    index = np.arange(len(cache))
    if arguments.events_of == "held-out":
        if state["cache"] != cache.fingerprint:
            raise InputError(arguments.cache, "the cache of the training, whose held-out events are known", "another",
                             "use --events-of all")  # fmt: skip
        _, index = batches.split(len(cache), state["options"]["seed"], state["options"]["held_out"])
    if (net.config.task == "multilabel") != (cache.label.ndim == 2):
        raise InputError(arguments.cache, f"labels for a {net.config.task} network", f"shape {cache.label.shape}")
    scores = scores_of(net, cache, index, arguments.batch_events, arguments.batch_edges, arguments.precision,
                       arguments.device)  # fmt: skip
    label, weight = cache.label[index], cache.weight[index]
    classes = state["classes"] or [str(number) for number in range(net.config.classes)]
    print(json.dumps({"events_of": arguments.events_of,
                      **metrics.summary(scores, label, weight, net.config.task, classes)}))  # fmt: skip
    if arguments.plots:
        folder = Path(arguments.plots)
        plots.roc(scores, label, weight, net.config.task, classes, folder / "roc.svg")
        if net.config.task == "multiclass":
            plots.confusion(scores, label, weight, classes, folder / "confusion.svg")
        path = Path(arguments.checkpoint)
        history = (path if path.is_dir() else path.parent) / "metrics.jsonl"
        if history.exists():
            plots.loss([json.loads(line) for line in history.read_text().splitlines()], folder / "loss.svg")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    from impl.gnn.errors import exit_code

    command = {"train": _train, "predict": _predict, "evaluate": _evaluate}[arguments.command]
    return exit_code(lambda: command(arguments))


if __name__ == "__main__":
    sys.exit(main())
