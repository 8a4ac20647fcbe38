"""Do our networks tell top jets from light ones better than trees do, over seeds, and are they invariant?

`python reports/reference/jets.py` trains every recipe of impl/lgatr/recipes with 5 seeds on the jets of tests/data/jets
(every fifth held out), and L-GATr and L-GATr-slim with 3 seeds and permuted labels. Each training is one line of
jets.jsonl beside this file, with the held-out scores; a second start goes on where the first one ended. `--show` prints
the table and draws jets-roc.svg from the file alone. A training takes 10 to 60 s of one core.
"""

import argparse
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("jets.jsonl")
FILE = ROOT / "tests" / "data" / "jets" / "pythia_top_qcd.h5"
NETS = ("lgatr", "slim", "gnn", "plain")
SEEDS = range(5)
PLAN = [(net, seed, False) for seed in SEEDS for net in NETS]
PLAN += [(net, seed, True) for seed in range(3) for net in ("lgatr", "slim")]
#: gradient-boosted trees, tests/data/jets/SOURCES.md
TREES = 0.932


def measure(jets, net: str, seed: int, permuted: bool) -> dict:
    """One training; metrics of the held-out jets, and how much the scores change when all jets are boosted."""
    import torch

    from impl.gnn.train import set_threads
    from impl.lgatr import jets as samples
    from impl.lgatr import metrics, recipe, symmetry, train

    chosen = recipe.load(net, [f"seed={seed}", f"permute_labels={str(permuted).lower()}"])
    set_threads(1)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = train.train(jets, chosen.config, chosen.options, folder, **chosen.kinds)
    seconds = time.process_time() - start
    _, held = train.split(len(jets), chosen.options)
    label = train.labels(jets, chosen.options)[held]
    test = jets.select(held)
    scores = train.scores_of(run.net, samples.Sample(test, chosen.config.items), np.arange(len(held)))
    boost = symmetry.boost(1.0, torch.tensor([1.0, 2.0, 3.0]))
    rounding = dataclasses.replace(test, momenta=rounded(test.momenta))
    moved = {}
    for name, which in (("float32", test.transformed(boost)), ("rounding", rounding)):
        again = train.scores_of(run.net, samples.Sample(which, chosen.config.items), np.arange(len(held)))
        moved[name] = largest(metrics.margin(again) - metrics.margin(scores))
    if net != "gnn":
        run.net.double()
        one, two = (samples.Sample(which, chosen.config.items, dtype=torch.float64)
                    for which in (test, test.transformed(boost)))  # fmt: skip
        one, two = (metrics.margin(double(run.net, which)) for which in (one, two))
        moved["float64"] = largest(one - two)
    return {
        "net": net,
        "seed": seed,
        "permuted": permuted,
        "parameters": sum(p.numel() for p in run.net.parameters()),
        "cpu_seconds": round(seconds, 1),
        **metrics.summary(scores, label, test.weight),
        "boost": moved,
        "epochs": [{name: line[name] for name in ("epoch", "train_loss", "loss", "auc")} for line in run.epochs],
        "score": np.round(metrics.margin(scores), 3).tolist(),
    }


def rounded(momenta):
    """Momenta moved up or down by the last bit of a float32 each: what rounding alone can do."""
    up = np.random.default_rng(0).random(momenta.shape) < 0.5
    return np.nextafter(momenta, np.where(up, np.inf, -np.inf).astype(np.float32))


def largest(difference) -> dict:
    """Median and largest size of differences."""
    return {"median": float(np.median(np.abs(difference))), "max": float(np.abs(difference).max())}


def double(net, sample):
    """Logits float64 (n, 2); `scores_of` rounds to float32."""
    import torch

    net.eval()
    with torch.no_grad():
        return net(sample.batch(np.arange(len(sample)))).numpy()


def interval(values) -> tuple[float, float]:
    """95 % interval of the mean over seeds, Student's t: model-based, for it takes them for normal."""
    from scipy import stats

    values = np.asarray(values)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - half), float(values.mean() + half)


def middle(rejections) -> str:
    """Their median in words; None stands for no background left."""
    value = float(np.median([np.inf if one is None else one for one in rejections]))
    return f"{value:.0f}" if np.isfinite(value) else "no background left"


def show(lines: list[dict]) -> None:
    """The table in Markdown, and the ROC curves of the first seed."""
    from impl.lgatr import jets as samples
    from impl.lgatr import plots, train

    print("| net | parameters | CPU s | AUC over seeds | AUC, seed 0 over jets | rejection at 30 % | 50 % | accuracy "
          "| boost, float32 | last bit | boost, float64 |\n|---|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    first = {}
    for net in NETS:
        own = sorted((one for one in lines if one["net"] == net and not one["permuted"]), key=lambda one: one["seed"])
        if not own:
            continue
        aucs = [line["auc"]["value"] for line in own]
        low, high = interval(aucs) if len(aucs) > 1 else (float("nan"),) * 2
        one = own[0]
        first[net] = np.array(one["score"])
        rejections = [middle([line[f"rejection_{e}"]["value"] for line in own]) for e in (30, 50)]
        moved = {kind: [line["boost"].get(kind, {}).get("max", float("nan")) for line in own]
                 for kind in ("float32", "rounding", "float64")}  # fmt: skip
        print(f"| {net} | {one['parameters']} | {np.mean([line['cpu_seconds'] for line in own]):.0f} "
              f"| {np.mean(aucs):.4f} [{low:.4f}, {high:.4f}] ({len(own)}) "
              f"| {one['auc']['value']:.4f} [{one['auc']['low']:.4f}, {one['auc']['high']:.4f}] "
              f"| {rejections[0]} | {rejections[1]} "
              f"| {np.mean([line['accuracy']['value'] for line in own]):.4f} "
              + "".join(f"| {max(values):.1e} " for values in moved.values()) + "|")  # fmt: skip
    for line in lines:
        if line["permuted"]:
            print(f"\n{line['net']}, permuted labels: AUC {line['auc']['value']:.4f} "
                  f"[{line['auc']['low']:.4f}, {line['auc']['high']:.4f}]")  # fmt: skip
    jets = samples.read(FILE)
    _, held = train.split(len(jets), train.Options())
    plots.roc(first, jets.label[held], jets.weight[held], RECORD.with_name("jets-roc.svg"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--show", action="store_true", help="print the table and draw the curves")
    parser.add_argument("--only", action="append", choices=NETS, help="these recipes")
    parser.add_argument("--seed", action="append", type=int, choices=SEEDS, help="these seeds")
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
    if arguments.show:
        show(lines)
        return 0
    from impl.lgatr import jets as samples

    jets = samples.read(FILE)
    done = {(line["net"], line["seed"], line["permuted"]) for line in lines}
    for one in PLAN:
        net, seed, _ = one
        if (arguments.only and net not in arguments.only) or (arguments.seed and seed not in arguments.seed):
            continue
        if one in done:
            continue
        line = measure(jets, *one)
        with RECORD.open("ab", buffering=0) as file:  # one write: several processes may share the work
            file.write((json.dumps(line) + "\n").encode())
        print(*one, f"AUC {line['auc']['value']:.4f}", line["boost"], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
