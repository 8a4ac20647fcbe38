"""Command line of impl.lgatr: train, predict, evaluate on jets; arguments in, exit code out.

Standard output holds JSON lines, standard error progress and complaints. Exit codes: 0 done, 2 bad option, jets or
checkpoint or a missing package, 3 a loss that is no number, 130 interrupted.
"""

import argparse
import json
import sys
import time
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.lgatr", description="Trains and applies jet taggers.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train on jets; one JSON object an epoch")
    train.add_argument("jets", help="HDF5 file of jets, or a folder made by `python -m impl.events prepare`")
    train.add_argument("--out", required=True, metavar="DIR", help="folder for last.pt and metrics.jsonl")
    train.add_argument("-c", "--recipe", metavar="NAME", help="lgatr, slim, plain, gnn, or a TOML file")
    train.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE", help="set a recipe's key")
    train.add_argument("--stop", type=int, default=0, metavar="N", help="leave off after N epochs; --resume goes on")
    train.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    train.add_argument("--quiet", action="store_true", help="no progress on standard error")

    predict = commands.add_parser("predict", help="write the logits of every jet, row k for jet k")
    evaluate = commands.add_parser("evaluate", help="print metrics with intervals as one JSON object; plots on request")
    for one in (predict, evaluate):
        one.add_argument("checkpoint", help="a run's folder or a file")
        one.add_argument("jets")
        one.add_argument("--batch-jets", type=int, default=256, metavar="N")
        one.add_argument("--precision", default="float32", help="float32, amp or naive-amp")
        one.add_argument("--implementation", default="paired", help="of lgatr: paired, sparse, dense")
        one.add_argument("--threads", type=int, default=1, help="1 gives equal bits run after run")
    predict.add_argument("--out", required=True, metavar="FILE", help="an .npy of float32 (jets, 2)")
    evaluate.add_argument("--jets-of", choices=("held-out", "all"), default="held-out",
                          help="which jets (default: those not trained on, in the training's file)")  # fmt: skip
    evaluate.add_argument("--level", type=float, default=0.95, help="of the intervals")
    evaluate.add_argument("--plots", metavar="DIR", help="write loss.svg, roc.svg and scores.svg there")
    return parser


def _train(arguments) -> None:
    from impl.gnn.__main__ import Progress
    from impl.gnn.train import set_threads
    from impl.lgatr import jets, recipe
    from impl.lgatr.train import train

    chosen = recipe.load(arguments.recipe, arguments.set)
    set_threads(chosen.threads)
    train(jets.read(arguments.jets), chosen.config, chosen.options, arguments.out, arguments.resume, arguments.stop,
          progress=Progress(arguments.quiet).batch, report=lambda line: print(json.dumps(line), flush=True),
          **chosen.kinds)  # fmt: skip


def _loaded(arguments):
    """The network, its checkpoint, the jets and their sample."""
    from impl.gnn.errors import InputError
    from impl.gnn.train import set_threads
    from impl.lgatr import jets
    from impl.lgatr.tagger import IMPLEMENTATIONS
    from impl.lgatr.train import load, restored

    set_threads(arguments.threads)
    if arguments.batch_jets < 1:
        raise InputError("--batch-jets", "a whole number of at least 1", str(arguments.batch_jets))
    if arguments.implementation not in IMPLEMENTATIONS:
        raise InputError("--implementation", "one of " + ", ".join(IMPLEMENTATIONS), repr(arguments.implementation))
    state = load(arguments.checkpoint)
    net, sample = restored(state, implementation=arguments.implementation), jets.read(arguments.jets)
    return net, state, sample


def _predict(arguments) -> None:
    import numpy as np

    from impl.gnn.predict import write
    from impl.lgatr.jets import Sample
    from impl.lgatr.train import scores_of

    net, _, jets = _loaded(arguments)
    begin = time.perf_counter()
    sample = Sample(jets, net.config.items, net.config.lightcone)
    scores = scores_of(net, sample, np.arange(len(jets)), arguments.batch_jets, arguments.precision)
    write(Path(arguments.out), scores)
    print(json.dumps({"out": arguments.out, "jets": len(jets), "seconds": time.perf_counter() - begin}))


def _evaluate(arguments) -> None:
    import numpy as np

    from impl.gnn.errors import InputError
    from impl.lgatr import metrics, plots
    from impl.lgatr.jets import Sample
    from impl.lgatr.train import Options, scores_of, split

    if not 0 < arguments.level < 1:
        raise InputError("--level", "a number between 0 and 1", str(arguments.level))
    net, state, jets = _loaded(arguments)
    label, index = jets.labelled(), np.arange(len(jets))
    if arguments.jets_of == "held-out":
        if state["jets"] != jets.fingerprint:
            raise InputError(arguments.jets, "the jets of the training, whose held-out ones are known", "others",
                             "use --jets-of all")  # fmt: skip
        _, index = split(len(jets), Options(**state["options"]))
    sample = Sample(jets, net.config.items, net.config.lightcone)
    scores = scores_of(net, sample, index, arguments.batch_jets, arguments.precision)
    label, weight = label[index], jets.weight[index]
    found = metrics.summary(scores, label, weight, arguments.level)
    print(json.dumps({"jets_of": arguments.jets_of, **found}))
    if arguments.plots:
        folder = Path(arguments.plots)
        plots.loss(state["epochs"], folder / "loss.svg")
        plots.roc({net.config.net: scores}, label, weight, folder / "roc.svg")
        plots.scores(scores, label, weight, folder / "scores.svg")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    from impl.gnn.errors import exit_code

    command = {"train": _train, "predict": _predict, "evaluate": _evaluate}[arguments.command]
    return exit_code(lambda: command(arguments))


if __name__ == "__main__":
    sys.exit(main())
