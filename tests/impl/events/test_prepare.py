"""ROOT files to caches: every layout, every way of cutting the work, every edge case with its policy."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from event_files import DATA, FILES, tiny, tree_bytes

pytestmark = pytest.mark.extras
uproot = pytest.importorskip("uproot")

from impl.events import config, nodes, perevent, root, sample, schema  # noqa: E402
from impl.events import prepare as preparation  # noqa: E402
from impl.events.cache import Cache  # noqa: E402
from impl.events.errors import (  # noqa: E402
    BranchError,
    CacheError,
    ConfigurationError,
    CountError,
    NoEventsError,
    NotFiniteError,
    SourceError,
    TooManyNodesError,
    WorkerError,
)


def run(output, *files, schema="sample", executor=None, **options):
    """Prepare into `output`; returns the opened cache."""
    made = config.load(files=[str(file) for file in files], schema=schema, output=str(output), **options)
    preparation.prepare(made, executor=executor)
    opened = Cache.open(output)
    opened.verify()
    return opened


def run_file(output, name, **options):
    return run(output, DATA / f"{name}.root", schema=FILES[name][0], **options)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Caches of real files, made once each: real("hzz")."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = run_file(tmp_path_factory.mktemp(name) / "cache", name)
        return made[name]

    return get


# ------------------------------------------------------------------------------------------------ layouts


@pytest.mark.parametrize("name", FILES)
def test_every_real_file_prepares(real, name):
    _, events, nodes_, edges = FILES[name]
    cache = real(name)
    assert len(cache) == events
    if nodes_ is not None:
        assert (cache.manifest["nodes"], cache.manifest["edges"]) == (nodes_, edges)
    assert cache.node_features == ("pt", "eta", "phi", "energy", "btag", "charge", "type")
    assert np.isfinite(cache.node_x).all()


def test_the_same_events_in_other_baskets_give_the_same_columns(real):
    one, other = real("hzz"), real("hzz_zstd")
    assert one.content == other.content
    assert one.fingerprint != other.fingerprint
    columns, others = tree_bytes(one.path), tree_bytes(other.path)
    del columns["manifest.json"], others["manifest.json"]
    assert columns == others


def test_events_without_objects_and_with_one_are_kept(real):
    assert [(real("hzz").node_counts == n).sum() for n in (0, 1)] == [5, 199]
    assert [(real("nanoaod_ttbar_2015").node_counts == n).sum() for n in (0, 1)] == [12, 17]
    assert (real("muons_rntuple").node_counts == 0).sum() == 23
    cache = real("hzz")
    alone = cache.batch(np.flatnonzero(cache.node_counts <= 1))
    assert len(alone.edge_x) == 0
    assert len(alone.label) == len(alone.weight) == 204


@pytest.mark.parametrize("name", ["hzz", "nanoaod_ttbar_2015", "physlite", "muons_rntuple", "delphes"])
def test_whole_columns_equal_one_event_at_a_time_to_the_last_bit(real, name):
    cache, chosen = real(name), schema.load(FILES[name][0])
    with root.Reader(str(DATA / f"{name}.root"), chosen.tree) as reader:
        stop = min(reader.entries, 120)
        events = list(perevent.events(chosen, root.bind(chosen, [reader]), reader, 0, stop=stop))
    batch = cache.batch(range(stop))
    assert np.concatenate([e["node_x"] for e in events]).tobytes() == batch.node_x.tobytes()
    assert np.concatenate([e["edge_x"] for e in events]).tobytes() == batch.edge_x.tobytes()
    assert np.stack([e["glob"] for e in events]).tobytes() == batch.glob.tobytes()
    assert np.array([e["weight"] for e in events]).tobytes() == batch.weight.tobytes()
    offsets = np.repeat(batch.node_off[:-1], np.diff(batch.edge_off))
    assert np.concatenate([e["src"] for e in events]).tolist() == (batch.edge_index()[0] - offsets).tolist()
    for column in batch.meta:
        assert [int(e[f"meta_{column}"]) for e in events] == batch.meta[column].tolist()


@pytest.mark.parametrize("name", ["hzz", "nanoaod_dy", "physlite", "muons_rntuple", "delphes", "pythia_wjets"])
def test_reading_by_ranges_equals_reading_the_whole(name):
    chosen = schema.load(FILES[name][0])
    with root.Reader(str(DATA / f"{name}.root"), chosen.tree) as reader:
        bindings = root.bind(chosen, [reader])
        whole = root.read_range(reader, bindings, 0, reader.entries)
        marks = [0, 1, reader.entries // 3, reader.entries // 2 + 1, reader.entries]
        parts = [root.read_range(reader, bindings, a, b) for a, b in itertools.pairwise(marks)]
    for key, value in whole.items():
        if isinstance(value, root.Lists):
            assert np.concatenate([p[key].flat for p in parts]).tobytes() == value.flat.tobytes()
            counts = np.concatenate([np.diff(p[key].offsets) for p in parts])
            assert counts.tolist() == np.diff(value.offsets).tolist()
        else:
            assert np.concatenate([p[key] for p in parts]).tobytes() == value.tobytes()


def test_an_rntuple_and_a_ttree_of_the_same_values_give_the_same_content(tmp_path):
    tree = run(tmp_path / "a", tiny(tmp_path / "tree.root"))
    ntuple = run(tmp_path / "b", tiny(tmp_path / "ntuple.root", rntuple=True))
    with uproot.open(tmp_path / "ntuple.root") as file:
        assert file["Events"].classname == "ROOT::RNTuple"
    assert tree.content == ntuple.content


def test_names_with_dots_slashes_and_colons_are_whole_names(tmp_path):
    path = tmp_path / "odd.root"
    ak = pytest.importorskip("awkward")
    values = ak.Array([[1.0, 2.0], [], [3.0]])
    names = ["a.pt", "a/eta", "a:phi", "a-mass*2"]
    with uproot.recreate(path) as file:
        tree = file.mktree("T", dict.fromkeys(names, "var * float64") | {"a": "int32", "pt": "int32"})
        tree.extend({name: values * 0.1 * (i + 1) for i, name in enumerate(names)}
                    | {"a": np.arange(3, dtype=np.int32), "pt": np.arange(3, dtype=np.int32)})  # fmt: skip
    text = '[schema]\nname="odd"\ntree="T"\nfeatures=["pt","eta","phi","mass"]\n[collections.a]\n'
    (tmp_path / "odd.toml").write_text(text + 'pt="a.pt"\neta="a/eta"\nphi="a:phi"\nmass="a-mass*2"\n')
    cache = run(tmp_path / "c", path, schema=str(tmp_path / "odd.toml"))
    np.testing.assert_allclose(cache.node_x[:, 0] * 4, cache.node_x[:, 3], rtol=1e-6)
    np.testing.assert_allclose(cache.node_x[:, 1], [0.2, 0.4, 0.6], rtol=1e-6)


# ------------------------------------------------------------------------------------------------ workers


@pytest.fixture(scope="module")
def four_files(tmp_path_factory):
    """The four processes prepared without workers."""
    return run(tmp_path_factory.mktemp("pythia") / "cache", *PYTHIA, schema="pythia")


PYTHIA = [DATA / f"pythia_{name}.root" for name in ("wjets", "ttbar", "dijet", "zjets")]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_any_number_of_workers_gives_the_same_bytes(real, four_files, tmp_path, pool, workers):
    run_file(tmp_path / "hzz", "hzz", num_workers=workers, executor=pool)
    assert tree_bytes(tmp_path / "hzz") == tree_bytes(real("hzz").path)
    run(tmp_path / "four", *PYTHIA, schema="pythia", num_workers=workers, step_events=4321, executor=pool)
    assert tree_bytes(tmp_path / "four") == tree_bytes(four_files.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["four", "hzz"]


def test_more_workers_than_events_give_the_same_bytes(tmp_path, pool):
    file = tiny(tmp_path / "t.root")
    plain = run(tmp_path / "a", file)
    assert tree_bytes(run(tmp_path / "b", file, num_workers=9, executor=pool).path) == tree_bytes(plain.path)


def test_steps_change_no_byte(real, tmp_path):
    assert tree_bytes(run_file(tmp_path / "c", "hzz", step_events=77).path) == tree_bytes(real("hzz").path)


def test_the_comparison_of_bytes_rejects_shares_merged_in_another_order(real, tmp_path, pool, monkeypatch):
    shares = preparation._Plan.shares

    def swapped(self, workers, folder):
        a, b = shares(self, workers, folder)
        return [dataclasses.replace(a, ranges=b.ranges), dataclasses.replace(b, ranges=a.ranges)]

    monkeypatch.setattr(preparation._Plan, "shares", swapped)
    cache = run_file(tmp_path / "c", "hzz", num_workers=2, executor=pool)
    assert tree_bytes(cache.path) != tree_bytes(real("hzz").path)
    assert sorted(cache.node_counts) == sorted(real("hzz").node_counts)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_are_contiguous_and_cover_every_event_once(workers, tmp_path):
    options = config.load(files=[str(p) for p in PYTHIA], schema="pythia", output=str(tmp_path / "c"))
    with contextlib.ExitStack() as stack:
        plan = preparation._Plan(options, preparation.expand(options.files), stack)
        shares = plan.shares(workers, tmp_path)
    assert len(shares) == workers
    ranges = [r for share in shares for r in share.ranges]
    seen = [(source, event) for source, start, stop in ranges for event in range(start, stop)]
    assert seen == [(source, event) for source in range(4) for event in range(15000)]


def test_shares_are_cut_where_baskets_begin_when_that_is_near(tmp_path):
    sample.write(tmp_path / "s.root", 100, nodes=(1, 3), basket=26)
    options = config.load(files=[str(tmp_path / "s.root")], schema="sample", output=str(tmp_path / "c"))
    with contextlib.ExitStack() as stack:
        plan = preparation._Plan(options, preparation.expand(options.files), stack)
        cuts = {workers: [s.ranges[0][1] for s in plan.shares(workers, tmp_path)] for workers in (2, 3)}
    assert cuts == {2: [0, 52], 3: [0, 33, 66]}


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_ends_with_all_events(tmp_path, pool, workers):
    told = []
    options = config.load(files=[str(DATA / "hzz.root")], schema="hzz", output=str(tmp_path / "c"), step_events=500,
                          num_workers=workers)  # fmt: skip
    preparation.prepare(options, executor=pool if workers else None, progress=lambda *counts: told.append(counts))
    assert told[-1] == (2421, 2421)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    if not workers:
        assert [done for done, _ in told] == [500, 1000, 1500, 2000, 2421]


def test_many_files_are_not_open_at_once(tmp_path, monkeypatch, pool):
    files = [tiny(tmp_path / f"{k}.root", event=np.arange(4, dtype=np.uint64) + 10 * k) for k in range(9)]
    plain = run(tmp_path / "a", *files)
    monkeypatch.setattr(preparation, "_OPEN_READERS", 2)
    opened = set()
    init, close = root.Reader.__init__, root.Reader.close
    most = []

    def counting(self, *arguments):
        init(self, *arguments)
        opened.add(self)
        most.append(len(opened))

    monkeypatch.setattr(root.Reader, "__init__", counting)
    monkeypatch.setattr(root.Reader, "close", lambda self: (opened.discard(self), close(self)))
    assert tree_bytes(run(tmp_path / "b", *files).path) == tree_bytes(plain.path)
    assert max(most) == 3
    assert opened == set()
    assert tree_bytes(run(tmp_path / "c", *files, num_workers=3, executor=pool).path) == tree_bytes(plain.path)
    assert plain.meta["event"].tolist() == [10 * k + i for k in range(9) for i in range(4)]


class Faulty:
    """An executor whose workers' answers or folders are tampered with after they are done."""

    def __init__(self, pool, tamper):
        self.pool, self.tamper = pool, tamper

    def submit(self, function, job, share):
        future = self.pool.submit(function, job, share)
        self.tamper(future.result(), share)
        return future


def lose_event(result, share):
    result.events -= 1


def lose_column(result, share):
    path = Path(share.folder) / "weight.npy"
    path.write_bytes(path.read_bytes()[:-4])


def lose_input(result, share):
    result.report.events_read -= 1


@pytest.mark.parametrize("tamper", [lose_event, lose_column, lose_input])
def test_a_share_that_is_not_whole_fails_the_run(tmp_path, pool, tamper):
    with pytest.raises(WorkerError, match="nothing was kept"):
        run_file(tmp_path / "c", "hzz", num_workers=2, executor=Faulty(pool, tamper))
    assert list(tmp_path.iterdir()) == []


def test_auto_measures_and_gives_the_same_bytes(real, tmp_path):
    options = config.load(files=[str(DATA / "hzz.root")], schema="hzz", output=str(tmp_path / "c"), num_workers="auto")
    done = preparation.prepare(options)
    assert done.reason.startswith("2421 events at ")
    assert tree_bytes(tmp_path / "c") == tree_bytes(real("hzz").path)


def test_the_estimate_takes_workers_only_where_they_pay(monkeypatch):
    monkeypatch.setattr(preparation.Estimate, "_cores", staticmethod(lambda: 4))
    small = preparation.Estimate(2_000, 20e-6, 5e-6, 0.6)
    large = preparation.Estimate(1_000_000, 20e-6, 5e-6, 0.6)
    merging = preparation.Estimate(1_000_000, 1e-6, 25e-6, 0.6)
    assert (small.best(), large.best(), merging.best()) == (0, 4, 0)
    assert large.seconds(4) == pytest.approx(0.6 + 5 + 5)
    assert "about 10.60 s with 4, 25.00 s with 0" in large.words()


# ------------------------------------------------------------------------------------------------ physics


def test_energies_are_in_GeV_whatever_the_unit_of_the_file(real):
    for name, branch, factor in (("physlite", "AnalysisJetsAuxDyn.pt", 1e-3), ("nanoaod_dy", "Jet_pt", 1.0)):
        cache, chosen = real(name), schema.load(FILES[name][0])
        with uproot.open(DATA / f"{name}.root") as file:
            raw = file[chosen.tree][branch].array(library="ak").to_list()
        jets = cache.node_x[cache.node_x[:, 6] == 0]
        np.testing.assert_allclose(jets[:, 0], np.concatenate(raw) * factor, rtol=1e-6)
    muons = real("physlite").node_x[real("physlite").node_x[:, 6] == 2].astype(float)
    mass = np.sqrt(np.maximum(muons[:, 3] ** 2 - (muons[:, 0] * np.cosh(muons[:, 1])) ** 2, 0))
    assert np.median(mass[muons[:, 3] < 20]) == pytest.approx(0.1057, rel=0.02)


def test_cartesian_momenta_become_pt_eta_phi(real):
    with uproot.open(DATA / "hzz.root") as file:
        raw = file["events"].arrays(["Jet_Px", "Jet_Py", "Jet_Pz", "Jet_E"], library="ak")
    px, py, pz, e = (np.concatenate(raw[name].to_list()) for name in raw.fields)
    x = real("hzz").node_x
    jets = x[x[:, 6] == 0].astype(float)
    np.testing.assert_allclose(jets[:, 0] * np.cos(jets[:, 2]), px, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(jets[:, 0] * np.sin(jets[:, 2]), py, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(jets[:, 0] * np.sinh(jets[:, 1]), pz, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(jets[:, 3], e, rtol=1e-6)


def test_coordinates_survive_a_round_trip():
    rng = np.random.default_rng(4)
    p4 = {"px": rng.normal(0, 30, 50), "py": rng.normal(0, 30, 50), "pz": rng.normal(0, 60, 50)}
    p4["energy"] = np.sqrt(sum(v**2 for v in p4.values()) + 25.0)
    polar = {name: nodes.derive(name, schema.COORDINATES[0], p4.get) for name in ("pt", "eta", "phi", "mass")}
    for name in ("px", "py", "pz", "energy"):
        np.testing.assert_allclose(nodes.derive(name, schema.COORDINATES[1], polar.get), p4[name], rtol=1e-9)
    polar["energy"] = p4["energy"]
    np.testing.assert_allclose(nodes.derive("mass", schema.COORDINATES[2], polar.get), 5.0, rtol=1e-6)
    np.testing.assert_allclose(polar["mass"], 5.0, rtol=1e-6)


def test_objects_stand_in_collection_order_and_file_order_inside(real):
    cache = real("nanoaod_v5_sim")
    with uproot.open(DATA / "nanoaod_v5_sim.root") as file:
        raw = file["Events"].arrays([f"{n}_pt" for n in ("Jet", "Electron", "Muon", "Photon")], library="ak")
    for event in (0, 17, 999):
        rows = cache.batch([event]).node_x
        expected = [(code, pt) for code, name in enumerate(raw.fields) for pt in raw[name][event].to_list()]
        assert [(row[6], row[0]) for row in rows.tolist()] == expected


def test_globals_are_met_its_azimuth_and_the_counts(real):
    cache = real("nanoaod_dy")
    with uproot.open(DATA / "nanoaod_dy.root") as file:
        raw = file["Events"].arrays(["MET_pt", "MET_phi", "nJet", "nMuon", "nElectron", "nPhoton"], library="np")
    assert cache.globals == ("met", "met_phi", "n_jets", "n_leptons_photons")
    leptons = raw["nMuon"] + raw["nElectron"] + raw["nPhoton"]
    expected = np.stack([raw["MET_pt"], raw["MET_phi"], raw["nJet"], leptons], axis=1)
    assert cache.glob.tolist() == expected.astype(np.float32).tolist()


def test_event_numbers_of_64_bits_are_exact_and_keep_their_dtype(tmp_path, real):
    numbers = np.array([2**64 - 1, 2**53 + 1, 0, 2**63 + 1], np.uint64)
    cache = run(tmp_path / "c", tiny(tmp_path / "t.root", event=numbers))
    assert cache.meta["event"].dtype == np.uint64
    assert cache.meta["event"].tolist() == numbers.tolist()
    with uproot.open(DATA / "nanoaod_data_2018.root") as file:
        expected = file["Events"]["event"].array(library="np")
    assert real("nanoaod_data_2018").meta["event"].tolist() == expected.tolist()
    assert {n: a.dtype.str for n, a in real("nanoaod_dy").meta.items()} == {
        "run": "<u4", "luminosityBlock": "<u4", "event": "<u8"}  # fmt: skip


def test_zero_and_negative_weights_are_kept(tmp_path, real):
    weights = np.array([0.0, -2.5, 1.0, -0.0], np.float32)
    cache = run(tmp_path / "c", tiny(tmp_path / "t.root", weight=weights))
    assert cache.weight.tobytes() == weights.tobytes()
    assert [(real(name).weight == 0).sum() for name in ("hzz", "nanoaod_dy")] == [10, 0]
    assert (real("nanoaod_dy").weight < 0).sum() == 9
    assert set(real("nanoaod_data_2018").weight.tolist()) == {1.0}


def test_sentinels_are_numbers_and_pass_through(real):
    jets = real("hzz").node_x[real("hzz").node_x[:, 6] == 0]
    assert (jets[:, 4] == -1).sum() > 1000
    assert real("hzz").manifest["report"]["not_finite"] == {}


# ------------------------------------------------------------------------------------------------ schemas at work


def own_schema(tmp_path, *changes):
    """The sample's schema with lines replaced: (old, new)."""
    text = (schema.FOLDER / "sample.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"own{len(list(tmp_path.iterdir()))}.toml"
    path.write_text(text)
    return str(path)


def test_scaling_is_applied_and_is_in_the_fingerprint(tmp_path):
    file = tiny(tmp_path / "t.root")
    plain = run(tmp_path / "a", file)
    own = own_schema(tmp_path, ("[globals]", "[scale.pt]\nfactor = 0.01\nlog = true\n[globals]"))
    scaled = run(tmp_path / "b", file, schema=own)
    np.testing.assert_allclose(scaled.node_x[:, 0], np.log1p(plain.node_x[:, 0].astype(float) / 100), rtol=1e-6)
    assert scaled.node_x[:, 1:].tobytes() == plain.node_x[:, 1:].tobytes()
    assert scaled.fingerprint != plain.fingerprint


def test_the_missing_momentum_can_be_a_node(tmp_path):
    node = '[collections.met]\ntype = 9\nsingle = true\npt = "MET_pt"\neta = 0\nphi = "MET_phi"\nmass = 0\n'
    node += "btag = 0\ncharge = 0\n"
    file = tiny(tmp_path / "t.root")
    cache = run(tmp_path / "c", file, schema=own_schema(tmp_path, ("[globals]", node + "[globals]")))
    assert cache.node_counts.tolist() == [3, 1, 2, 4]
    last = cache.node_x[cache.node_off[1:] - 1]
    assert last[:, [0, 3, 6]].tolist() == [[30, 30, 9]] * 4
    np.testing.assert_allclose(last[:, 2], cache.glob[:, 1])


def test_labels_come_from_a_branch_flags_a_value_or_the_file(tmp_path):
    file = tiny(tmp_path / "t.root")
    assert run(tmp_path / "a", file).label.tolist() == [0, 1, 0, 1]
    assert run(tmp_path / "b", file, label=1).label.tolist() == [1] * 4
    flags = own_schema(tmp_path, ('branch = "label"', 'flags = ["label", { branch = "label" }]'))
    multi = run(tmp_path / "d", file, schema=flags)
    assert (multi.label.dtype, multi.label.tolist()) == (np.uint8, [[0, 0], [1, 1], [0, 0], [1, 1]])
    both = run(tmp_path / "e", file, tiny(tmp_path / "u.root"), label=[1, 0])
    assert both.label.tolist() == [1] * 4 + [0] * 4
    with pytest.raises(ConfigurationError, match="expected one class a file, 1, found 2"):
        run(tmp_path / "f", file, label=[1, 0])
    with pytest.raises(ConfigurationError, match=r"expected a class below 2 \(background, signal\), found 2"):
        run(tmp_path / "f", file, label=2)
    bad = tiny(tmp_path / "v.root", label=np.array([0, 1, 2, 1], np.int32))
    with pytest.raises(ConfigurationError, match=r"event 2: label label: expected a class from 0 to 1, found 2"):
        run(tmp_path / "f", bad)


def test_the_class_of_the_generator_files_is_their_process(four_files):
    assert four_files.classes == ("ttbar", "wjets", "zjets", "dijet")
    assert four_files.label.reshape(4, 15000).tolist() == [[c] * 15000 for c in (1, 0, 3, 2)]


def test_files_and_trees_stay_in_the_order_given_and_patterns_are_sorted(tmp_path):
    for name in ("b.root", "a.root", "Z.root"):
        tiny(tmp_path / name)
    found = preparation.expand([str(tmp_path / "b.root:Events"), str(tmp_path / "[aZ].root")])
    assert [(Path(path).name, tree) for path, tree in found] == [("b.root", "Events"), ("Z.root", ""), ("a.root", "")]
    with pytest.raises(ConfigurationError, match="expected each file once"):
        preparation.expand([str(tmp_path / "a.root"), str(tmp_path / "*.root")])
    with pytest.raises(NoEventsError, match="files that fit the pattern"):
        preparation.expand([str(tmp_path / "x*.root")])


# ------------------------------------------------------------------------------------------------ edge cases

NAN = np.float32("nan")
PT = np.array([1, NAN, 3, 4, 5, 6], np.float32)  # events of 2, 0, 1, 3 objects: the bad one is in event 0


def test_nan_is_an_error_that_names_file_event_and_branch(tmp_path):
    file = tiny(tmp_path / "t.root", pt=PT)
    with pytest.raises(NotFiniteError) as caught:
        run(tmp_path / "c", file)
    assert str(caught.value) == (f"{file}: event 0: object.pt (Object_pt): expected a finite number, found nan; "
                                 "set not_finite to drop_event, drop_object, replace")  # fmt: skip
    assert not (tmp_path / "c").exists()


def test_the_message_names_the_same_event_whatever_the_cut(tmp_path, pool):
    pt = np.where(np.arange(60) == 41, np.inf, 1).astype(np.float32)
    file = tiny(tmp_path / "t.root", counts=[3] * 20, pt=pt)
    said = set()
    for options in ({}, {"step_events": 4}, {"num_workers": 3, "executor": pool}):
        with pytest.raises(NotFiniteError) as caught:
            run(tmp_path / "c", file, **options)
        said.add(str(caught.value).split("; ")[0])
    assert said == {f"{file}: event 13: object.pt (Object_pt): expected a finite number, found inf"}


@pytest.mark.parametrize(
    ("policy", "counts", "pts", "report"),
    [
        ("drop_event", [0, 1, 3], [3, 4, 5, 6], {"events_dropped": 1}),
        ("drop_object", [1, 0, 1, 3], [1, 3, 4, 5, 6], {"objects_dropped": 1}),
        ("replace", [2, 0, 1, 3], [1, -7, 3, 4, 5, 6], {"values_replaced": 2}),
    ],
)
def test_each_policy_for_nan_does_what_it_says_and_counts(tmp_path, policy, counts, pts, report):
    cache = run(tmp_path / "c", tiny(tmp_path / "t.root", pt=PT), not_finite=policy, replace_value=-7)
    assert cache.node_counts.tolist() == counts
    assert cache.node_x[:, 0].tolist() == pts
    assert cache.meta["event"].tolist() == [2**60 + k for k in range(4 - len(counts), 4)]
    found = cache.manifest["report"]
    assert {k: v for k, v in found.items() if isinstance(v, int) and v and k != "events_read"} == report
    assert found["not_finite"] == {"object.pt (Object_pt)": 1, "object.energy (derived)": 1}


def test_a_bad_event_level_value_drops_the_event_under_both_drop_policies(tmp_path):
    file = tiny(tmp_path / "t.root", MET_pt=np.array([1, np.inf, 3, 4], np.float32),
                weight=np.array([1, 2, NAN, 4], np.float32))  # fmt: skip
    for policy in ("drop_event", "drop_object"):
        cache = run(tmp_path / policy, file, not_finite=policy)
        assert cache.weight.tolist() == [1, 4]
        assert cache.manifest["report"]["not_finite"] == {"global met": 1, "weight": 1}
    with pytest.raises(NotFiniteError, match="event 1: global met: expected a finite number, found inf"):
        run(tmp_path / "c", file)


def test_an_angle_beyond_two_pi_is_treated_like_nan(tmp_path):
    file = tiny(tmp_path / "t.root", phi=np.array([0, 1, 2, -999, 3, -3], np.float32))
    with pytest.raises(NotFiniteError, match=r"event 3: object.phi \(Object_phi\): expected .*within 2π.*found -999"):
        run(tmp_path / "c", file)
    assert run(tmp_path / "c", file, not_finite="drop_object").node_counts.tolist() == [2, 0, 1, 2]


def test_too_many_objects_are_an_error_or_cut_in_order(tmp_path):
    file = tiny(tmp_path / "t.root", pt=np.array([1, 2, 3, 4, 6, 5], np.float32))
    with pytest.raises(TooManyNodesError, match=r"event 3: expected at most 2 objects \(max_nodes\), found 3"):
        run(tmp_path / "c", file, max_nodes=2)
    cut = run(tmp_path / "c", file, max_nodes=2, too_many="truncate")
    assert cut.node_counts.tolist() == [2, 0, 1, 2]
    assert cut.node_x[:, 0].tolist() == [1, 2, 3, 4, 6]
    report = cut.manifest["report"]
    assert (report["events_truncated"], report["objects_truncated"]) == (1, 1)
    kept = run(tmp_path / "d", file, max_nodes=2, too_many="truncate", sort_by="pt")
    assert kept.node_x[:, 0].tolist() == [2, 1, 3, 6, 5]


def test_the_event_named_for_too_many_objects_is_right_after_drops(tmp_path):
    file = tiny(tmp_path / "t.root", pt=PT)
    with pytest.raises(TooManyNodesError, match="event 3:"):
        run(tmp_path / "c", file, max_nodes=2, not_finite="drop_event")


def test_sorting_changes_rows_and_fingerprint_only_when_configured(tmp_path):
    file = tiny(tmp_path / "t.root", pt=np.array([1, 2, 3, 4, 6, 4], np.float32),
                charge=np.array([0, 0, 0, 1, 0, -1], np.int32))  # fmt: skip
    plain, by_pt = run(tmp_path / "a", file), run(tmp_path / "b", file, sort_by="pt")
    assert plain.node_x[:, 0].tolist() == [1, 2, 3, 4, 6, 4]
    assert by_pt.node_x[:, [0, 5]].tolist() == [[2, 0], [1, 0], [3, 0], [6, 0], [4, 1], [4, -1]]
    assert plain.fingerprint != by_pt.fingerprint
    with pytest.raises(ConfigurationError, match="sort_by: expected one of pt, eta"):
        run(tmp_path / "c", file, sort_by="ptt")


def test_self_loops_add_an_edge_a_node(tmp_path):
    cache = run(tmp_path / "c", tiny(tmp_path / "t.root"), self_loops=True)
    assert (cache.manifest["edges"], len(cache.edge_x)) == (4 + 0 + 1 + 9, 14)
    src, dst = cache.batch(range(4)).edge_index()
    assert (cache.edge_x[src == dst] == 0).all()
    assert (src == dst).sum() == 6


def test_unequal_counts_name_file_branch_and_event(tmp_path):
    file = tiny(tmp_path / "t.root", counts_of={"btag": [2, 0, 2, 2]})
    with pytest.raises(CountError) as caught:
        run(tmp_path / "c", file)
    said = f"{file}: branch 'Object_btag': event 2: expected 1 objects as in 'Object_pt', found 2; check the file"
    assert str(caught.value) == said


def test_a_missing_branch_lists_the_nearest_names(tmp_path):
    file = tiny(tmp_path / "t.root")
    own = own_schema(tmp_path, ('"Object_btag"', '"Object_btga"'))
    with pytest.raises(BranchError) as caught:
        run(tmp_path / "c", file, schema=own)
    said = f"{file}: branch for object.btag: expected 'Object_btga', found none of that name; nearest: Object_btag, "
    assert str(caught.value).startswith(said)


def test_a_default_is_decided_for_the_whole_set_of_files(tmp_path):
    with_it, without = tiny(tmp_path / "a.root"), tiny(tmp_path / "b.root", without=["weight"])
    own = own_schema(tmp_path, ('branch = "weight"', 'branch = "weight"\nmissing = 3'))
    assert set(run(tmp_path / "c", without, schema=own).weight.tolist()) == {3.0}
    assert set(run(tmp_path / "d", with_it, schema=own).weight.tolist()) == {1.0}
    with pytest.raises(BranchError, match=rf"'weight' in every file, found it in 1 of 2 files, not in {without}"):
        run(tmp_path / "e", with_it, without, schema=own)


def test_the_first_name_that_every_file_has_is_taken(tmp_path):
    one, other = tiny(tmp_path / "a.root"), tiny(tmp_path / "b.root", without=["weight"])
    own = own_schema(tmp_path, ('branch = "weight"', 'branch = ["weight", "MET_pt"]'))
    cache = run(tmp_path / "c", one, other, schema=own)
    assert cache.manifest["report"]["branches"]["weight"] == "MET_pt"
    assert set(cache.weight.tolist()) == {30.0}


def test_files_whose_branches_differ_in_type_are_refused(tmp_path):
    one = tiny(tmp_path / "a.root")
    other = tiny(tmp_path / "b.root", event=np.arange(4, dtype=np.int64))
    with pytest.raises(BranchError, match=r"b.root: branch 'event': expected a scalar of uint64 as in .*int64"):
        run(tmp_path / "c", one, other)


def test_a_list_where_a_number_is_wanted_asks_for_an_index(tmp_path):
    file = tiny(tmp_path / "t.root", counts=(2, 1, 1, 3))
    own = own_schema(tmp_path, ('branch = "weight"', 'branch = "Object_pt"'))
    with pytest.raises(BranchError, match="expected a scalar of numbers, found a list; give an index"):
        run(tmp_path / "c", file, schema=own)
    own = own_schema(tmp_path, ('branch = "weight"', 'branch = "Object_pt"\nindex = 0'))
    cache = run(tmp_path / "c", file, schema=own)
    assert cache.weight.tolist() == cache.node_x[cache.node_off[:-1], 0].tolist()
    with pytest.raises(CountError, match="event 1: expected at least 1 elements, found 0"):
        run(tmp_path / "d", tiny(tmp_path / "u.root"), schema=own)


def test_no_events_are_an_error_unless_allowed(tmp_path):
    empty = tiny(tmp_path / "t.root", counts=())
    with pytest.raises(NoEventsError, match="expected events, found none; set allow_empty=true"):
        run(tmp_path / "c", empty)
    assert len(run(tmp_path / "c", empty, allow_empty=True)) == 0
    nan = tiny(tmp_path / "u.root", weight=np.full(4, NAN))
    with pytest.raises(NoEventsError, match="expected at least one event, found none left of 4"):
        run(tmp_path / "d", nan, not_finite="drop_event")
    cache = run(tmp_path / "d", nan, not_finite="drop_event", allow_empty=True)
    assert (len(cache), cache.manifest["report"]["events_dropped"]) == (0, 4)
    with pytest.raises(NoEventsError, match="name the ROOT files"):
        run(tmp_path / "e")


def test_an_empty_file_among_others_changes_nothing(tmp_path):
    file, empty = tiny(tmp_path / "a.root"), tiny(tmp_path / "b.root", counts=())
    assert run(tmp_path / "d", empty, file).content == run(tmp_path / "e", file).content


def broken_basket(path):
    """hzz.root with the middle of the file overwritten: opens, and fails while it is read."""
    content = bytearray((DATA / "hzz.root").read_bytes())
    content[60_000:120_000] = b"\xff" * 60_000
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_an_error_or_skipped_whole(real, tmp_path, pool, workers):
    bad = broken_basket(tmp_path / "bad.root")
    cut = tmp_path / "cut.root"
    cut.write_bytes((DATA / "hzz.root").read_bytes()[:150_000])
    options = {"schema": "hzz", "num_workers": workers, "executor": pool if workers else None}
    with pytest.raises(SourceError, match=r"bad.root: expected a whole ROOT file, found \w+"):
        run(tmp_path / "c", DATA / "hzz.root", bad, **options)
    with pytest.raises(SourceError, match=r"cut.root: expected 217945 bytes as its header says, found 150000"):
        run(tmp_path / "c", cut, **options)
    with pytest.raises(SourceError, match=r"damaged.root: expected a tree of events, found none"):
        run(tmp_path / "c", DATA / "damaged.root", **options)
    files = [cut, DATA / "damaged.root", DATA / "hzz.root", bad]
    cache = run(tmp_path / "d", *files, damaged="skip_file", label=[5, 6, 0, 7], **options)
    assert cache.content == real("hzz").content
    assert [s["path"] for s in cache.manifest["report"]["skipped_files"]] == [str(cut), str(files[1]), str(bad)]
    with pytest.raises(NoEventsError, match="expected at least one whole file, found none"):
        run(tmp_path / "e", bad, damaged="skip_file", **options)
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "e").exists()


def test_a_tree_of_another_name_lists_those_there(tmp_path):
    with pytest.raises(BranchError, match=r'tree: expected \'events\', found Events, Runs; set tree="Events"'):
        run(tmp_path / "c", DATA / "nanoaod_dy.root", schema="hzz")
    file = shutil.copy(DATA / "hzz.root", tmp_path)
    own = tmp_path / "own.toml"
    own.write_text((schema.FOLDER / "hzz.toml").read_text().replace('tree = "events"', 'tree = "Events"'))
    assert len(run(tmp_path / "c", f"{file}:events", schema=str(own))) == 2421
    assert len(run(tmp_path / "d", file, schema=str(own), tree="events")) == 2421
    with pytest.raises(BranchError, match='set tree="events"'):
        run(tmp_path / "e", file, schema=str(own))


def test_the_fingerprint_covers_schema_policies_and_sources(tmp_path):
    file = tiny(tmp_path / "t.root")
    base = run(tmp_path / "a", file)
    options = {"files": [str(file)], "schema": "sample", "output": "x"}
    expected = preparation.identity_for(config.load(**options))
    Cache.open(tmp_path / "a", expect=expected)
    moved = shutil.copy(file, tmp_path / "elsewhere.root")
    assert run(tmp_path / "b", moved).fingerprint == base.fingerprint
    for more, field in (
        ({"max_nodes": 9}, "policies.max_nodes"),
        ({"label": 1}, "sources"),
        ({"schema": own_schema(tmp_path, ("type = 0", "type = 4"))}, "schema.collections.object.type"),
        ({"identity": "stat"}, "sources"),
    ):
        with pytest.raises(CacheError, match=f"differs in {field}"):
            Cache.open(tmp_path / "a", expect=preparation.identity_for(config.load(**(options | more))))
    file.write_bytes(tiny(tmp_path / "u.root", pt=np.arange(6, dtype=np.float32)).read_bytes())
    with pytest.raises(CacheError, match="differs in sources"):
        Cache.open(tmp_path / "a", expect=preparation.identity_for(config.load(**options)))


def test_rebuilt_edges_equal_stored_ones(real, tmp_path):
    rebuilt = run_file(tmp_path / "c", "hzz", edge_features=False)
    assert rebuilt.edge_x is None
    assert rebuilt.content == real("hzz").content
    assert rebuilt.all_edge_features().tobytes() == real("hzz").edge_x.tobytes()


def test_an_event_larger_than_the_edge_buffer_is_written_whole(tmp_path):
    cache = run(tmp_path / "c", tiny(tmp_path / "t.root", counts=(2, 300, 1)))
    assert cache.manifest["edges"] == 2 + 300 * 299


def test_any_executor_does(real, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        cache = run_file(tmp_path / "c", "hzz", num_workers=3, executor=threads)
    assert tree_bytes(cache.path) == tree_bytes(real("hzz").path)
