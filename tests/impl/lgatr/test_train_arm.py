"""The workload `jets`: what it does in each task, that a worse network is worse, and its faults."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")
pytest.importorskip("h5py")

from harness import accuracy, worker  # noqa: E402
from impl.lgatr.train_arm import Jets  # noqa: E402

FILE = str(Path(__file__).resolve().parents[2] / "data" / "jets" / "pythia_top_qcd.h5")
SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
SMALL = {"file": FILE, "number": 300, "net": "slim", "blocks": 1, "mv": 4, "s": 8, "heads": 2, "items": 6, "jets": 64,
         "epochs": 2, "rate": 0.01}  # fmt: skip


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


def arm(**parameters):
    made = Jets(worker.effective("jets", Jets.accepts, SMALL | parameters))
    made.setup()
    return made


def test_every_step_starts_from_the_same_weights():
    job = arm()
    seen = []
    for _ in range(3):
        job.prepare()
        seen.append(job.iterate()["totals"])
    assert seen[0] == seen[1] == seen[2]
    assert job.fingerprint()["work"] == 64
    job.close()
    assert not job.folder.exists()


def test_the_counter_sees_the_memory_of_the_work():
    """Fifteen times the jets in a batch need more; what the set-up took does not count."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc")
    found = []
    for batch in (16, 240):
        job = arm(net="plain", s=64, items=0, jets=batch)
        found.append(job.iterate()["counters"]["work_bytes"])
        job.close()
    assert 0 < found[0] + (1 << 20) < found[1] < 400 << 20


def test_networks_of_one_function_agree_in_their_totals():
    totals = []
    for implementation in ("paired", "sparse"):
        job = arm(net="lgatr", implementation=implementation)
        job.prepare()
        totals.append(job.iterate()["totals"])
        job.close()
    assert totals[0] == pytest.approx(totals[1], rel=1e-4)


def test_a_prediction_scores_every_jet_and_writes_them():
    job = arm(task="predict")
    assert job.iterate()["work"] == 300
    assert np.array_equal(np.load(job.folder / "scores.npy"), job.last)
    job.close()


def test_a_training_repeats_its_totals():
    job = arm(task="fit")
    one, two = job.iterate(), job.iterate()
    assert one["totals"] == two["totals"]
    assert one["units"] == 2 * 240
    assert job.fingerprint()["work"] == 300
    job.close()


def test_values_are_the_held_out_jets_of_a_training(tmp_path):
    job = arm(seed=3)
    facts = job.values(str(tmp_path / "v.npz"))
    values, _ = accuracy.load(tmp_path / "v.npz", "here")
    assert isinstance(values, accuracy.Model)
    assert set(values.seed) == {3}
    assert values.key.tolist() == list(range(0, 300, 5))
    assert values.label.tolist() == job.jets.label[::5].tolist()
    assert facts["jets"] == 60
    assert facts["seed"] == 3
    job.close()


def scenario_arm(name, arm):
    """Parameters of an arm of a scenario's file."""
    table = tomllib.loads((SCENARIOS / f"{name}.toml").read_text())
    own = {key: value for key, value in table["arms"][arm].items() if key != "run"}
    return {**table["parameters"], **own, "file": FILE}, table["accuracy"]


def judged(tmp_path, a, b, seeds, **changed):
    """What `harness accuracy` says of two arms of slim-precision, trained here."""
    reduced = []
    for seed in seeds:
        read = []
        for name in (a, b):
            parameters, settings = scenario_arm("slim-precision", name)
            job = Jets(worker.effective("jets", Jets.accepts, parameters | changed | {"seed": seed}))
            job.setup()
            job.values(str(tmp_path / "v.npz"))
            job.close()
            read.append(accuracy.load(tmp_path / "v.npz", name)[0])
        reduced.append(accuracy.reduce(*read, (a, b)))
    return accuracy.judge(reduced, settings)


def test_a_planted_worse_network_is_different_and_itself_is_not(tmp_path):
    found = judged(tmp_path, "float32", "worse", range(3), number=500, epochs=3)
    assert found["word"] == "different"
    assert found["reason"].endswith("B is worse")
    assert found["difference"]["high"] < -found["tolerance"]
    same = judged(tmp_path, "float32", "float32", range(2), number=300, epochs=1)
    assert same["word"] == "indistinguishable"
    assert same["moved"]["largest"] == 0


@pytest.mark.slow
def test_a_faster_worse_network_is_no_improvement(harness, tmp_path):
    """The whole way: the worse arm takes a third of the time, and the comparison fails."""
    arms = [f"slim-precision:{name}" for name in ("float32", "worse")]
    done = harness("ab", *arms, "--blocks", 6, "--keep-going", "--json", "--reports", tmp_path, "-p", "number=500",
                   "-p", "epochs=3", "-s", "accuracy.seeds=4", "-s", "schedule.pairs=3", timeout=590)  # fmt: skip
    summary = json.loads(done.stdout)
    assert summary["ratio"]["high"] < 0.9, "it is faster"
    assert summary["verdict"]["word"] == "wrong-result"
    assert summary["accuracy"]["word"] == "different"
    assert done.returncode == 1


@pytest.mark.parametrize("name", ["lgatr-precision", "slim-precision", "lgatr-train-compile", "tagging"])
def test_every_arm_of_the_scenarios_can_be(name):
    table = tomllib.loads((SCENARIOS / f"{name}.toml").read_text())
    for arm in table["arms"].values():
        own = {key: value for key, value in arm.items() if key != "run"}
        Jets(worker.effective("jets", Jets.accepts, table["parameters"] | own))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"task": "learn"}, "task: expected one of step, fit, predict, found 'learn'"),
        ({"number": -1}, "number: expected a whole number of at least 0, found -1"),
        ({"net": "cnn"}, "model: net: expected one of lgatr, slim, plain, gnn, found 'cnn'"),
        ({"threads": 0}, "threads: expected a whole number of at least 1, found 0"),
        ({"epochs": 0}, "train: epochs: expected a whole number of at least 1, found 0"),
    ],
)
def test_a_parameter_that_cannot_be_is_one_sentence(parameters, sentence):
    with pytest.raises(worker.Fault) as caught:
        Jets(worker.effective("jets", Jets.accepts, SMALL | parameters))
    assert str(caught.value) == sentence


def test_jets_that_are_not_there_are_one_sentence(tmp_path):
    job = Jets(worker.effective("jets", Jets.accepts, SMALL | {"file": str(tmp_path / "no.h5")}))
    with pytest.raises(worker.Fault, match="expected an HDF5 file of jets or a cache's folder, found no such file"):
        job.setup()
