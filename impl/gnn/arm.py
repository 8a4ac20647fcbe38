"""The workload `gnn` for harness: training steps, inference, prediction and whole trainings of the event GNN.

Run by hand: `python -m impl.gnn.arm --set backend=dense --set objects=16`.
"""

import shutil
import tempfile
from pathlib import Path

from harness import worker

TASKS = ("train", "inference", "predict", "fit")


class Gnn(worker.Workload):
    """One iteration: an Adam step on one batch, its inference, the scores of the sample in a file, or a training.

    Parameters
    ----------
    task : str                  train (one step), inference (one batch), predict (the whole sample to a file),
                                fit (`epochs` epochs from the seed, held-out scores and checkpoints included)
    backend : str               dgl, dense, fused
    recompute, compiled : bool  of fused, of dense
    precision : str             float32, or bfloat16 (dense)
    cache : str                 folder of a prepared cache; empty: events made from the seed
    events, objects : int       made events, and objects of each; 0: from 4 to 24, evenly
    batch_events, batch_edges   budgets of a batch for predict and fit
    streaming : bool            predict: row by row to the file, with marks
    hidden, rounds, classes     the network
    drop : str                  features, by comma, replaced by a constant: a worse network on purpose
    seed, epochs, threads : int
    rate : float                learning rate of the first epoch
    """

    name = "gnn"
    accepts = {
        "task": "train",
        "backend": "fused",
        "recompute": False,
        "compiled": False,
        "precision": "float32",
        "cache": "",
        "events": 64,
        "objects": 32,
        "batch_events": 256,
        "batch_edges": 0,
        "streaming": False,
        "hidden": 64,
        "rounds": 4,
        "classes": 12,
        "drop": "",
        "seed": 1,
        "epochs": 1,
        "rate": 2e-3,
        "threads": 1,
    }
    packages = ("numpy", "torch", "dgl")

    def __init__(self, parameters: dict):
        super().__init__(parameters)
        p = parameters
        worker.choice("task", p["task"], TASKS)
        worker.choice("backend", p["backend"], ("dgl", "dense", "fused"))
        worker.choice("precision", p["precision"], ("float32", "bfloat16"))
        for name, least in (("events", 1), ("objects", 0), ("batch_events", 1), ("batch_edges", 0), ("hidden", 1),
                            ("rounds", 1), ("classes", 2), ("epochs", 1), ("threads", 1), ("seed", 0)):  # fmt: skip
            if p[name] < least:
                raise worker.Fault(name, f"a whole number of at least {least}", str(p[name]), "")
        if p["rate"] <= 0:
            raise worker.Fault("rate", "a number above 0", str(p["rate"]), "")
        if p["precision"] != "float32" and p["backend"] != "dense":
            raise worker.Fault("precision bfloat16", "the backend dense", p["backend"], "")
        self.folder = self.last = None

    def inputs(self) -> list[dict]:
        p = self.parameters
        if p["cache"]:
            folder = Path(p["cache"])
            return [worker.file_input(folder / f"{name}.npy", name) for name in ("node_x", "node_off", "label")]
        cache = self._cache()
        size = sum(array.nbytes for array in (cache.node_x, cache.node_off, cache.label))
        return [{"name": "events", "bytes": size, "digest": cache.content[:32]}]

    def libraries(self) -> list[dict]:
        from impl.gnn import native

        return [worker.library("gnn", native.path(), native.source_digest(), native.tree_digest())]

    def environment(self) -> dict:
        from impl.gnn import native

        return {"threads_torch": self.parameters["threads"], "isa": native.best_isa()}

    def _cache(self):
        import numpy as np

        from impl.events.cache import Cache
        from impl.events.errors import EventsError
        from impl.gnn import sample

        p = self.parameters
        if p["cache"]:
            try:
                return Cache.open(p["cache"])
            except EventsError as error:
                raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        if p["objects"]:
            sizes = np.full(p["events"], p["objects"])
        else:
            sizes = np.random.default_rng([p["seed"], 5]).integers(4, 25, p["events"])
        return sample.made(sizes, p["seed"], p["classes"])

    def _options(self, epochs: int):
        from impl.gnn.train import Options

        p = self.parameters
        return Options(
            epochs=epochs, seed=p["seed"], events=p["batch_events"], edges=p["batch_edges"], rate=p["rate"], decay=0.75,
            drop=tuple(filter(None, p["drop"].split(","))), precision=p["precision"], allow_slow=True,
        )  # fmt: skip

    def setup(self) -> None:
        import copy

        import numpy as np
        import torch

        from impl.gnn import batches, train
        from impl.gnn.errors import GnnError

        p = self.parameters
        train.set_threads(p["threads"])
        self.folder = Path(tempfile.mkdtemp(prefix="gnn-arm-"))
        self.cache = self._cache()
        try:
            self.net = train.network_for(self.cache, "", p["backend"], hidden=p["hidden"], rounds=p["rounds"],
                                         recompute=p["recompute"], compiled=p["compiled"])  # fmt: skip
            train.initialise(self.net, self.cache, np.arange(len(self.cache)), self._options(1))
        except GnnError as error:
            raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        self.optimiser = torch.optim.Adam(self.net.parameters(), 1e-3, fused=True)
        if p["task"] in ("train", "inference"):
            self.batch = batches.Batch(self.cache.batch(np.arange(len(self.cache))))
        if p["task"] == "train":
            weights = copy.deepcopy(self.net.state_dict())
            train.step(self.net, self.batch, self.optimiser, self._options(1))  # makes the optimiser's state
            self.start = weights, copy.deepcopy(self.optimiser.state_dict())

    def prepare(self) -> None:
        """Every step starts from the same weights, so that all iterations do the same."""
        import copy

        if self.parameters["task"] == "train":
            self.net.load_state_dict(self.start[0])
            self.optimiser.load_state_dict(copy.deepcopy(self.start[1]))
        for file in self.folder.glob("scores*"):
            file.unlink()

    def iterate(self) -> dict:
        import torch

        from impl.gnn import predict, train
        from impl.gnn.precision import autocast

        p, events = self.parameters, len(self.cache)
        result = {"units": events, "work": events}
        if p["task"] == "train":
            value, logits = train.step(self.net, self.batch, self.optimiser, self._options(1))
            self.last = logits.detach().float().numpy()
            norm = torch.stack([q.grad.norm() for q in self.net.parameters() if q.grad is not None]).norm()
            result["totals"] = {"loss": value, "gradient_norm": float(norm)}
        elif p["task"] == "inference":
            with torch.inference_mode(), autocast(p["precision"]):
                self.last = self.net(self.batch).float().numpy()
        elif p["task"] == "predict":
            file = self.folder / "scores.npy"
            predict.predict(self.net, self.cache, file, p["streaming"], None, p["batch_events"], p["batch_edges"],
                            p["precision"], allow_slow=True)  # fmt: skip
            self.last = file
        else:
            run = train.train(self.cache, self.net, self._options(p["epochs"]), self.folder)
            line = run.epochs[-1]
            result["totals"] = {name: line[name] for name in ("train_loss", "loss", "auc")}
            self.last = None
        return result

    def fingerprint(self) -> dict:
        import numpy as np

        events = len(self.cache)
        if self.parameters["task"] == "fit":
            return {"work": events, "digests": {"cache": self.cache.content[:32]}, "totals": {}}
        scores = np.load(self.last) if self.parameters["task"] == "predict" else self.last
        return {
            "work": len(scores),
            "digests": {"order": worker.digest(np.argmax(scores, 1).astype(np.int32).tobytes())},
            "totals": {"sum": float(np.abs(scores).sum(dtype=np.float64))},
        }

    def values(self, path: str) -> dict:
        """Train `epochs` epochs from the seed and write the held-out events: score, label, weight, key, seed.

        score float32 (n, C) logits; label, weight; key int64 (n,) the event's number in the cache; seed int64.
        """
        import numpy as np

        from impl.gnn import batches, metrics, predict, train

        p = self.parameters
        options = self._options(p["epochs"])
        train.train(self.cache, self.net, options, self.folder)
        _, held = batches.split(len(self.cache), options.seed, options.held_out)
        scores = predict.scores_of(self.net, self.cache, held, p["batch_events"], p["batch_edges"], p["precision"])
        label, weight = self.cache.label[held], self.cache.weight[held]
        np.savez(path, score=scores, label=label, weight=weight, key=held, seed=np.int64(p["seed"]))
        found = metrics.summary(scores, label, weight, self.net.config.task)
        return {name: found[name] for name in ("events", "auc", "accuracy", "loss")} | {"seed": p["seed"]}

    def close(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    worker.serve(Gnn)
