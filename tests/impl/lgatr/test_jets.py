"""Jets from HDF5 and from ROOT, what is refused, and jets as items of a network."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")

from impl.gnn.errors import InputError  # noqa: E402
from impl.lgatr import jets, slim  # noqa: E402

FILE = Path(__file__).resolve().parents[2] / "data" / "jets" / "pythia_top_qcd.h5"


@pytest.fixture(scope="module")
def sample():
    return jets.read(FILE)


def write(path, leave=(), **replaced):
    """A small file in the field's layout; columns left out or replaced."""
    with h5py.File(FILE) as file:
        columns = {name: file[name][:6] for name in ("constituents", "count", "label")}
    with h5py.File(path, "w") as file:
        for name, values in (columns | replaced).items():
            if name not in leave:
                file[name] = values
    return path


def test_constituents_sum_to_the_jet_that_the_file_gives(sample):
    """The file's own `jet` is the reference; only jets cut at 80 constituents may lack some."""
    with h5py.File(FILE) as file:
        jet, label = file["jet"][:], file["label"][:]
    sums = np.add.reduceat(sample.momenta.astype(np.float64), sample.offsets[:-1])
    whole = sample.counts < 80
    np.testing.assert_allclose(sums[whole], jet[whole], rtol=1e-4, atol=1e-2)
    assert whole.mean() > 0.85
    assert (sample.label == label).all()
    assert len(sample) == 6000
    assert sample.label.sum() == 3000


def test_constituents_fall_in_pt(sample):
    pt = np.hypot(sample.momenta[:, 1], sample.momenta[:, 2])
    falls = np.diff(pt) <= 0
    falls[sample.offsets[1:-1] - 1] = True
    assert falls.all()


def test_without_counts_padding_is_what_has_no_energy(tmp_path):
    one, two = jets.read(write(tmp_path / "a.h5")), jets.read(write(tmp_path / "b.h5", leave=("count",)))
    assert one.fingerprint == two.fingerprint


def test_ranges_of_a_file_make_the_whole(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", leave=("count",))
    whole = jets.read(path)
    monkeypatch.setattr(jets, "RANGE", 4)
    assert jets.read(path).fingerprint == whole.fingerprint


def test_selected_jets_are_those_of_a_loop(sample):
    index = np.array([5, 0, 17, 5])
    chosen = sample.select(index)
    rows = [sample.momenta[sample.offsets[k] : sample.offsets[k + 1]] for k in index]
    assert np.array_equal(chosen.momenta, np.concatenate(rows))
    assert np.array_equal(chosen.label, sample.label[index])
    assert chosen.counts.tolist() == [len(row) for row in rows]


SCHEMA = """
[schema]
name = "made"
tree = "jets"
energy_unit = "GeV"
features = ["pt", "eta", "phi", "energy"]
[collections.constituent]
px = "part_px"
py = "part_py"
pz = "part_pz"
energy = "part_energy"
[globals]
constituents = { count = ["constituent"] }
[label]
branch = "is_top"
classes = ["background", "signal"]
[weight]
branch = "weight"
"""


def test_the_same_jets_come_from_root(sample, tmp_path):
    uproot = pytest.importorskip("uproot")
    ak = pytest.importorskip("awkward")
    from impl.events.__main__ import main

    some = sample.select(np.arange(40))
    random = np.random.default_rng(0)
    jets_rows = zip(some.offsets, some.offsets[1:])
    shuffled = np.concatenate([random.permutation(np.arange(first, last)) for first, last in jets_rows])
    lists = {name: ak.unflatten(some.momenta[shuffled, column], some.counts)
             for column, name in enumerate(("energy", "px", "py", "pz"))}  # fmt: skip
    with uproot.recreate(tmp_path / "jets.root") as file:
        tree = {f"part_{name}": values for name, values in lists.items()}
        file["jets"] = tree | {"is_top": some.label.astype(np.int32), "weight": np.full(40, 0.5, np.float32)}
    (tmp_path / "made.toml").write_text(SCHEMA)
    assert main(["prepare", str(tmp_path / "jets.root"), "--schema", str(tmp_path / "made.toml"), "--output",
                 str(tmp_path / "cache"), "--quiet"]) in (0, None)  # fmt: skip
    found = jets.read(tmp_path / "cache")
    assert np.array_equal(found.offsets, some.offsets)
    assert np.array_equal(found.label, some.label)
    assert (found.weight == 0.5).all()
    # pt, eta and phi are float32 there, and close ones may change places
    sums = [np.add.reduceat(one.momenta.astype(np.float64), one.offsets[:-1]) for one in (found, some)]
    np.testing.assert_allclose(*sums, rtol=1e-5, atol=1e-3)
    leading = [one.momenta[one.offsets[:-1]] for one in (found, some)]
    np.testing.assert_allclose(*leading, rtol=1e-5, atol=1e-4)
    (tmp_path / "scaled.toml").write_text(SCHEMA + "[scale.pt]\nfactor = 0.01\n")
    assert main(["prepare", str(tmp_path / "jets.root"), "--schema", str(tmp_path / "scaled.toml"), "--output",
                 str(tmp_path / "scaled"), "--quiet"]) in (0, None)  # fmt: skip
    with pytest.raises(InputError) as caught:
        jets.read(tmp_path / "scaled")
    assert str(caught.value) == (
        f"{tmp_path / 'scaled'}: expected features without [scale], found pt; prepare it without"
    )


def faults(tmp_path):
    """(path, sentence without the folder) of every file that is refused."""
    with h5py.File(FILE) as file:
        rows = file["constituents"][:6]
    broken = rows.copy()
    broken[2, 1] = np.nan
    (tmp_path / "text.h5").write_text("no")
    return {
        "none.h5": "expected an HDF5 file of jets or a cache's folder, found no such file",
        "text.h5": "expected an HDF5 file, found Unable to synchronously open file (file signature not found)",
        write(tmp_path / "other.h5", leave=("constituents",)).name: (
            "expected a dataset 'constituents' (jets, N, 4), found count, label"
        ),
        write(tmp_path / "flat.h5", constituents=rows[0]).name: "constituents: expected (jets, N, 4), found (80, 4)",
        write(tmp_path / "short.h5", label=np.ones(5)).name: "label: expected (6,), found (5,)",
        write(tmp_path / "many.h5", count=np.full(6, 81)).name: "count: expected 0 to 80, found 81 to 81",
        write(tmp_path / "empty.h5", count=np.array([5, 5, 5, 0, 5, 0])).name: (
            "jet 3: expected at least one constituent, found none, as in 2 of 6 jets; leave empty jets out"
        ),
        write(tmp_path / "nan.h5", constituents=broken).name: (
            "jet 2: expected finite momenta with energies above 0, found nan, nan, nan, nan"
        ),
        write(tmp_path / "class.h5", label=np.array([0, 1, 0, 1, 7, 1])).name: (
            "label of jet 4: expected 1 for signal or 0, found 7"
        ),
        write(tmp_path / "nothing.h5", constituents=rows[:0], count=[], label=[]).name: (
            "expected at least one jet, found none"
        ),
    }


def test_a_file_that_is_no_sample_of_jets_is_one_sentence(tmp_path):
    for name, sentence in faults(tmp_path).items():
        with pytest.raises(InputError) as caught:
            jets.read(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: {sentence}", name


def test_a_file_without_labels_can_be_read_but_not_be_trained_on(tmp_path):
    unknown = jets.read(write(tmp_path / "unknown.h5", leave=("label",)))
    assert unknown.label is None
    with pytest.raises(InputError) as caught:
        unknown.labelled()
    assert str(caught.value) == (
        f"{tmp_path / 'unknown.h5'}: expected a dataset 'label' (1 signal, 0 background), found none; "
        "training and evaluation need labels, `predict` does not"
    )


def test_balanced_classes_weigh_the_same(sample):
    tops, light = (np.flatnonzero(sample.label == label) for label in (1, 0))
    some = sample.select(np.concatenate([tops[:10], light[:30]]))
    some.weight = np.linspace(1, 2, 40).astype(np.float32)
    balanced, as_given = (jets.weights(some, some.label, balance) for balance in (True, False))
    assert balanced[some.label == 1].sum() == pytest.approx(balanced[some.label == 0].sum(), rel=1e-6)
    assert as_given[some.label == 1].sum() < 0.5 * as_given[some.label == 0].sum()
    assert balanced.mean() == pytest.approx(1, rel=1e-6)
    with pytest.raises(InputError, match="expected jets of both classes with weights above 0, found none of signal"):
        jets.weights(some, np.zeros(40, np.int64), True)


# ------------------------------------------------------------------------------------------- items


def test_items_keep_the_leading_constituents_and_the_sum_of_all(sample):
    some = sample.select(np.arange(50))
    made = jets.Sample(some, items=10, dtype=torch.float64)
    batch = made.batch(np.array([7, 3]))
    assert batch.lengths == tuple(min(count, 10) + (count > 10) for count in some.counts[[7, 3]])
    first = some.offsets[7]
    np.testing.assert_allclose(batch.momenta[:10].numpy() * jets.UNIT, some.momenta[first : first + 10], rtol=1e-7)
    sums = torch.zeros(2, 4).double().index_add(0, batch.owner(), batch.momenta).numpy() * jets.UNIT
    expected = [some.momenta[some.offsets[k] : some.offsets[k + 1]].astype(np.float64).sum(0) for k in (7, 3)]
    np.testing.assert_allclose(sums, expected, rtol=1e-10)
    assert batch.scalars[:, 1].sum() == sum(count > 10 for count in some.counts[[7, 3]])
    np.testing.assert_allclose(np.exp(batch.scalars[0, 2].item()) * 50, some.counts[7])


def test_all_constituents_make_no_rest(sample):
    some = sample.select(np.arange(20))
    made = jets.Sample(some)
    assert made.lengths.tolist() == some.counts.tolist()
    assert made.scalars[:, 1].sum() == 0


def test_light_cone_components_lie_along_the_jet_and_keep_the_mass(sample):
    """The jet itself has no x and y, and plus times minus less x² + y² is the mass: by the plain components here."""
    some = sample.select(np.arange(30))
    plain, cone = (jets.Sample(some, 8, on, torch.float64) for on in (False, True))
    p, q = plain.momenta.numpy(), cone.momenta.numpy()
    np.testing.assert_allclose(2 * q[:, 0] * q[:, 3] - q[:, 1] ** 2 - q[:, 2] ** 2,
                               p[:, 0] ** 2 - (p[:, 1:] ** 2).sum(1), atol=1e-9 * float((p**2).max()))  # fmt: skip
    total = np.add.reduceat(q, cone.offsets[:-1])
    assert np.abs(total[:, 1:3]).max() < 1e-9 * np.abs(total).max()
    assert (total[:, 3] < 0.2 * total[:, 0]).all()


def test_the_light_cone_s_metric_is_the_usual_one():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    usual = a[:, 0] * b[:, 0] - (a[:, 1:] * b[:, 1:]).sum(1)
    a, b = slim.to_lightcone(a), slim.to_lightcone(b)
    ours = (a * slim._signed(b[..., None], True)[..., 0]).sum(1)
    torch.testing.assert_close(ours, usual)
    assert not torch.allclose((a * slim._signed(b[..., None])[..., 0]).sum(1), usual)  # a broken twin: the other metric
