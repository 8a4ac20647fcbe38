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
    files, schema : str         a pattern of ROOT files, prepared in the set-up by that schema, instead of a cache
    events, objects : int       made events, and objects of each; 0: from 4 to 24, evenly
    batch_events, batch_edges   budgets of a batch for predict and fit
    streaming : bool            predict: row by row to the file, with marks
    hidden, rounds, classes     the network
    drop : str                  features, by comma, replaced by a constant: a worse network on purpose
    seed : int                  of the made events, of the weights, of the shuffles and of which events are held out
    seeds : int                 trainings behind the values that accuracy is judged by: with seed, seed + 1, …
    epochs : int                of a training, for fit and for those values
    rate : float                learning rate of the first epoch
    threads : int
    device : str                of torch; 'fused' runs on the CPU only
    """

    name = "gnn"
    accepts = {
        "task": "train",
        "backend": "fused",
        "recompute": False,
        "compiled": False,
        "precision": "float32",
        "cache": "",
        "files": "",
        "schema": "",
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
        "seeds": 1,
        "epochs": 1,
        "rate": 2e-3,
        "threads": 1,
        "device": "cpu",
    }
    packages = ("numpy", "torch", "dgl")

    def __init__(self, parameters: dict):
        super().__init__(parameters)
        p = parameters
        worker.choice("task", p["task"], TASKS)
        worker.choice("backend", p["backend"], ("dgl", "dense", "fused"))
        worker.choice("precision", p["precision"], ("float32", "bfloat16"))
        for name, least in (("events", 1), ("objects", 0), ("batch_events", 1), ("batch_edges", 0), ("hidden", 1),
                            ("rounds", 1), ("classes", 2), ("epochs", 1), ("threads", 1), ("seed", 0),
                            ("seeds", 1)):  # fmt: skip
            if p[name] < least:
                raise worker.Fault(name, f"a whole number of at least {least}", str(p[name]), "")
        if p["cache"] and p["files"]:
            raise worker.Fault("cache and files", "one of them", "both", "")
        if bool(p["files"]) != bool(p["schema"]):
            raise worker.Fault("files and schema", "both or neither", "one", "name the schema of the ROOT files")
        if p["rate"] <= 0:
            raise worker.Fault("rate", "a number above 0", str(p["rate"]), "")
        if p["precision"] != "float32" and p["backend"] != "dense":
            raise worker.Fault("precision bfloat16", "the backend dense", p["backend"], "")
        if p["device"] != "cpu" and p["backend"] == "fused":
            raise worker.Fault("device", "cpu for the backend fused", p["device"], "use the backend dense there")
        self.folder = self.last = None

    def inputs(self) -> list[dict]:
        p = self.parameters
        if p["files"]:
            from impl.events import prepare
            from impl.events.errors import EventsError

            try:
                return [worker.file_input(path, Path(path).stem) for path, _ in prepare.expand([p["files"]])]
            except EventsError as error:
                raise worker.Fault(error.where, error.expected, error.found, error.next) from None
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

        return {"threads_torch": self.parameters["threads"], "isa": native.best_isa(),
                "device": self.parameters["device"]}  # fmt: skip

    def _cache(self):
        import numpy as np

        from impl.events.cache import Cache
        from impl.events.errors import EventsError
        from impl.gnn import sample

        p = self.parameters
        if p["cache"] or p["files"]:
            try:
                return Cache.open(p["cache"] or self._prepared())
            except EventsError as error:
                raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        if p["objects"]:
            sizes = np.full(p["events"], p["objects"])
        else:
            sizes = np.random.default_rng([p["seed"], 5]).integers(4, 25, p["events"])
        return sample.made(sizes, p["seed"], p["classes"])

    def _prepared(self) -> Path:
        """A cache of the files in the arm's own folder."""
        from impl.events import config, prepare

        folder = self.folder / "cache"
        prepare.prepare(config.Options(files=[self.parameters["files"]], schema=self.parameters["schema"],
                                       output=str(folder)))  # fmt: skip
        return folder

    def _options(self, epochs: int, place: int = 0):
        """How to train; `place` counts the seeds."""
        from impl.gnn.train import Options

        p = self.parameters
        return Options(
            epochs=epochs, seed=p["seed"] + place, events=p["batch_events"], edges=p["batch_edges"], rate=p["rate"],
            decay=0.75, drop=tuple(filter(None, p["drop"].split(","))), precision=p["precision"], allow_slow=True,
        )  # fmt: skip

    def setup(self) -> None:
        import copy

        import numpy as np
        import torch

        from impl.gnn import batches, train
        from impl.gnn.errors import GnnError

        p = self.parameters
        train.set_threads(p["threads"])
        try:
            torch.empty(1, device=p["device"])
        except (RuntimeError, AssertionError) as error:
            raise worker.Fault("device", "a device of this torch", str(error).splitlines()[0][:80], "") from None
        self.folder = Path(tempfile.mkdtemp(prefix="gnn-arm-"))
        self.cache = self._cache()
        try:
            self.net = train.network_for(self.cache, "", p["backend"], hidden=p["hidden"], rounds=p["rounds"],
                                         recompute=p["recompute"], compiled=p["compiled"])  # fmt: skip
            train.initialise(self.net, self.cache, np.arange(len(self.cache)), self._options(1))
        except GnnError as error:
            raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        self.net.to(p["device"])
        self.optimiser = torch.optim.Adam(self.net.parameters(), 1e-3, fused=True)
        if p["task"] in ("train", "inference"):
            self.batch = batches.Batch(self.cache.batch(np.arange(len(self.cache))), p["device"])
        if p["task"] == "train":
            weights = copy.deepcopy(self.net.state_dict())
            train.step(self.net, self.batch, self.optimiser, self._options(1))  # makes the optimiser's state
            self.start = weights, copy.deepcopy(self.optimiser.state_dict())
        elif p["task"] == "inference" and p["compiled"]:
            self.last = self._infer()  # compiles

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

        p, events = self.parameters, len(self.cache)
        result = {"units": events, "work": events}
        if p["task"] == "train":
            value, logits = train.step(self.net, self.batch, self.optimiser, self._options(1))
            self.last = logits.detach().float().cpu().numpy()
            norm = torch.stack([q.grad.norm() for q in self.net.parameters() if q.grad is not None]).norm()
            result["totals"] = {"loss": value, "gradient_norm": float(norm)}
        elif p["task"] == "inference":
            self.last = self._infer()
        elif p["task"] == "predict":
            file = self.folder / "scores.npy"
            predict.predict(self.net, self.cache, file, p["streaming"], None, p["batch_events"], p["batch_edges"],
                            p["precision"], allow_slow=True, device=p["device"])  # fmt: skip
            self.last = file
        else:
            run = train.train(self.cache, self.net, self._options(p["epochs"]), self.folder, device=p["device"])
            line = run.epochs[-1]
            result["totals"] = {name: line[name] for name in ("train_loss", "loss", "auc")}
            self.last = None
        if p["compiled"]:
            result["counters"] = {"compilations": self.net.backend.compilations()}
        return result

    def _infer(self):
        """Logits of the batch, float32 (B, C) numpy."""
        import torch

        from impl.gnn.precision import autocast

        with torch.inference_mode(), autocast(self.parameters["precision"], self.batch.node_x.device.type):
            return self.net(self.batch).float().cpu().numpy()

    def synchronise(self) -> None:
        """Wait for the device; a CPU has nothing to wait for."""
        if self.parameters["device"].startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.parameters["device"])

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
        """Train from each seed and write the held-out events of all trainings: score, label, weight, key, seed.

        Multiclass: score float32 (n, C), logits; key int64 (n,), the event's number in the cache. Multilabel: every
        event and label is an entry of its own, score float32 (n C,), log odds; key is event · C + label.
        """
        import numpy as np

        from impl.gnn import batches, metrics, predict, train

        p, task = self.parameters, self.net.config.task
        columns, found = [], []
        for place in range(p["seeds"]):
            options = self._options(p["epochs"], place)
            train.train(self.cache, self.net, options, self.folder, device=p["device"])
            _, held = batches.split(len(self.cache), options.seed, options.held_out)
            scores = predict.scores_of(self.net, self.cache, held, p["batch_events"], p["batch_edges"], p["precision"],
                                       p["device"])  # fmt: skip
            label, weight = self.cache.label[held], self.cache.weight[held]
            found.append(metrics.summary(scores, label, weight, task))
            key = held
            if task == "multilabel":
                labels = scores.shape[1]
                key = (held[:, None] * labels + np.arange(labels)).ravel()
                scores, label, weight = scores.ravel(), label.ravel(), np.repeat(weight, labels)
            columns.append((scores, label, weight, key, np.full(len(key), options.seed)))
        arrays = [np.concatenate(column) for column in zip(*columns)]
        np.savez(path, **dict(zip(("score", "label", "weight", "key", "seed"), arrays)))
        known = [one for one in found if None not in (one["auc"], one["accuracy"], one["loss"])]
        means = {name: float(np.mean([one[name] for one in known])) for name in ("auc", "accuracy", "loss") if known}
        return {"seeds": p["seeds"], "events": found[0]["events"], **means}

    def close(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    worker.serve(Gnn)
