"""The workload `jets` for harness: steps and whole trainings of jet taggers, and predictions of a sample.

Run by hand: `python -m impl.lgatr.train_arm --set net=slim --set precision=naive-amp`.
"""

import copy
import shutil
import tempfile
from pathlib import Path

from harness import worker

TASKS = ("step", "fit", "predict")


def _accepts() -> dict:
    from impl.lgatr import recipe

    own = {"task": "step", "file": "tests/data/jets/pythia_top_qcd.h5", "number": 0, "first": True}
    return own | recipe.defaults()


class Jets(worker.Workload):
    """One iteration: an optimiser step on one batch, a training from the seed, or the logits of the sample in a file.

    The counter work_bytes is by how much the work has raised the peak of resident memory since the jets were read.

    Parameters are the keys of a recipe (`impl.lgatr.recipe`), and
    task : str      step, fit (`epochs` epochs from the seed), predict
    file : str      jets; a relative path is looked for from the working directory
    number : int    the first jets of the file, 0: all
    first : bool    the set-up also does the first step, so that its time holds the compilation
    """

    name = "jets"
    accepts = _accepts()
    packages = ("numpy", "torch", "h5py")

    def __init__(self, parameters: dict):
        super().__init__(parameters)
        from impl.gnn.errors import GnnError
        from impl.lgatr import recipe

        p = parameters
        worker.choice("task", p["task"], TASKS)
        for name, least in (("number", 0), ("threads", 1)):
            if p[name] < least:
                raise worker.Fault(name, f"a whole number of at least {least}", str(p[name]), "")
        try:
            self.recipe = recipe.of({key: p[key] for key in recipe.defaults()})
        except GnnError as error:
            raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        self.folder = self.last = None

    def inputs(self) -> list[dict]:
        path = Path(self.parameters["file"])
        files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
        return [worker.file_input(file) for file in files]

    def libraries(self) -> list[dict]:
        from impl.lgatr import native

        if not native.available():
            return []
        return [worker.library("lgatr", native.path(), native.source_digest(), native.tree_digest())]

    def environment(self) -> dict:
        from impl.gnn.precision import cpu_has_bfloat16
        from impl.lgatr import native

        level = native.LEVELS[native.level()] if native.available() else None
        return {"threads_torch": self.parameters["threads"], "kernels": level, "bfloat16": cpu_has_bfloat16()}

    def setup(self) -> None:
        import numpy as np

        from impl.events.errors import EventsError
        from impl.gnn.errors import GnnError
        from impl.gnn.train import set_threads
        from impl.lgatr import bench, jets, train

        p, self.train = self.parameters, train
        set_threads(p["threads"])
        config, options = self.recipe.config, self.recipe.options
        try:
            found = jets.read(p["file"])
            self.jets = found.select(np.arange(min(p["number"] or len(found), len(found))))
            self.training, self.held = train.split(len(self.jets), options)
            self.label = train.labels(self.jets, options)
            self.weight = jets.weights(self.jets, self.label, options.balance)
            self.sample = jets.Sample(self.jets, config.items, config.lightcone)
            self.net = train.made(self.sample, config, self.training, options, **self.recipe.kinds)
        except (GnnError, EventsError) as error:
            raise worker.Fault(error.where, error.expected, error.found, error.next) from None
        self.folder = Path(tempfile.mkdtemp(prefix="jets-arm-"))
        bench.forget_peak()  # reading took more than a small network will
        self.before = bench.resident()[0]
        if p["task"] == "step":
            self.index = self.training[: options.jets]
            self.optimiser = train.optimiser_of(self.net, options)
            weights = copy.deepcopy(self.net.state_dict())
            if p["first"]:
                self._step()  # makes the optimiser's state
                self.net.load_state_dict(weights)
            self.start = weights, copy.deepcopy(self.optimiser.state_dict())

    def _step(self):
        return self.train.step(self.net, self.sample, self.index, self.label, self.weight, self.optimiser,
                               self.recipe.options)  # fmt: skip

    def prepare(self) -> None:
        """Every step starts from the same weights, so that all iterations do the same."""
        if self.parameters["task"] == "step":
            self.net.load_state_dict(self.start[0])
            self.optimiser.load_state_dict(copy.deepcopy(self.start[1]))

    def iterate(self) -> dict:
        import numpy as np
        import torch

        from impl.lgatr import bench

        options = self.recipe.options
        result: dict = {}
        if self.parameters["task"] == "step":
            value, logits = self._step()
            self.last = logits.float().numpy()
            norm = torch.stack([q.grad.norm() for q in self.net.parameters() if q.grad is not None]).norm()
            result |= {"units": len(self.index), "work": len(self.index)}
            result["totals"] = {"loss": value, "gradient_norm": float(norm)}
        elif self.parameters["task"] == "predict":
            self.last = self.train.scores_of(self.net, self.sample, np.arange(len(self.jets)), options.jets,
                                             options.precision)  # fmt: skip
            np.save(self.folder / "scores.npy", self.last)
            result |= {"units": len(self.last), "work": len(self.last)}
        else:
            run = self._fit()
            line = run.epochs[-1]
            self.last = None
            result |= {"units": options.epochs * len(self.training), "work": len(self.jets)}
            result["totals"] = {name: line[name] for name in ("train_loss", "loss", "auc")}
        # The harness itself can tell peak memory of a process only, which is mostly torch; here both arms stay alive.
        result["counters"] = {"work_bytes": max(bench.resident()[1] - self.before, 0)}
        return result

    def _fit(self):
        return self.train.train(self.jets, self.recipe.config, self.recipe.options, self.folder, **self.recipe.kinds)

    def fingerprint(self) -> dict:
        import numpy as np

        if self.last is None:
            return {"work": len(self.jets), "digests": {"jets": self.jets.fingerprint[:32]}, "totals": {}}
        return {
            "work": len(self.last),
            "digests": {"jets": self.jets.fingerprint[:32]},
            "totals": {"sum": float(np.abs(self.last).sum(dtype=np.float64))},
        }

    def values(self, path: str) -> dict:
        """Train `epochs` epochs from the seed and write the held-out jets: score, label, weight, key, seed.

        score float64 (n,) log odds of signal; label, weight; key int64 (n,) the jet's number in the file; seed int64.
        """
        import numpy as np

        from impl.lgatr import metrics

        run = self._fit()
        options = self.recipe.options
        scores = self.train.scores_of(run.net, self.sample, self.held, options.jets, options.precision)
        label, weight = self.label[self.held], self.jets.weight[self.held]
        np.savez(path, score=metrics.margin(scores), label=label, weight=weight, key=self.held,
                 seed=np.int64(options.seed))  # fmt: skip
        return metrics.plain(scores, label, weight) | {"seed": options.seed}

    def close(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    worker.serve(Jets)
