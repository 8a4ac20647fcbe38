"""The cache on disk: what is written comes back, what is damaged or another one is refused, a crash leaves nothing."""

import errno
import json
import os
import shutil

import numpy as np
import pytest

from impl.events import cache as caches
from impl.events import kernel
from impl.events.cache import Cache, Writing
from impl.events.errors import CacheError, StorageError

FEATURES = ["pt", "eta", "phi"]


def arrays(n=20, seed=0, smallest=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(smallest, 9, n)
    total = int(counts.sum())
    node_x = np.stack([rng.exponential(50, total), rng.normal(size=total), rng.uniform(-3, 3, total)], axis=1)
    return {
        "node_x": node_x.astype(np.float32),
        "node_off": np.concatenate([[0], np.cumsum(counts)]),
        "glob": rng.normal(size=(n, 2)).astype(np.float32),
        "label": rng.integers(0, 3, n),
        "weight": rng.normal(size=n).astype(np.float32),
        "meta_event": np.arange(n, dtype=np.uint64) + np.uint64(2**63),
        "meta_run": np.arange(n, dtype=np.uint32),
    }


def write(path, data=None, **more):
    return caches.write(path, data or arrays(), node_features=FEATURES, globals=["met", "met_phi"], **more)


def test_columns_come_back_bit_for_bit_in_their_dtypes(tmp_path):
    data = arrays()
    write(tmp_path / "c", data)
    opened = Cache.open(tmp_path / "c")
    opened.verify()
    for name in ("node_x", "node_off", "glob", "label", "weight"):
        assert getattr(opened, name).tobytes() == data[name].tobytes()
    assert {name: array.dtype for name, array in opened.meta.items()} == {"event": np.uint64, "run": np.uint32}
    assert int(opened.meta["event"][7]) == 2**63 + 7
    assert not opened.node_x.flags.writeable
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_every_column_is_a_plain_npy_file(tmp_path):
    write(tmp_path / "c")
    for name, column in Cache.open(tmp_path / "c").manifest["columns"].items():
        array = np.load(tmp_path / "c" / f"{name}.npy", allow_pickle=False)
        assert (array.dtype.str, list(array.shape)) == (column["dtype"], column["shape"])


@pytest.mark.parametrize("self_loops", [False, True])
def test_a_batch_is_its_events_in_the_order_asked_for(tmp_path, self_loops):
    data = arrays()
    stored = write(tmp_path / "stored", data, self_loops=self_loops)
    rebuilt = write(tmp_path / "rebuilt", data, self_loops=self_loops, edge_features=False)
    assert not (tmp_path / "rebuilt" / "edge_x.npy").exists()
    index = [11, 3, 3, 19, 0]
    for opened in (stored, rebuilt):
        batch = opened.batch(index)
        off = data["node_off"]
        nodes = np.concatenate([data["node_x"][off[i] : off[i + 1]] for i in index])
        assert batch.node_x.tobytes() == nodes.tobytes()
        assert batch.edge_x.tobytes() == kernel.edge_features(nodes, batch.node_off, 1, 2, self_loops).tobytes()
        src, dst = batch.edge_index()
        assert len(src) == len(dst) == len(batch.edge_x) == batch.edge_off[-1]
        for k, i in enumerate(index):
            assert (batch.label[k], batch.weight[k]) == (data["label"][i], data["weight"][i])
            assert batch.glob[k].tolist() == data["glob"][i].tolist()
            assert batch.meta["event"][k] == data["meta_event"][i]
            edges = slice(batch.edge_off[k], batch.edge_off[k + 1])
            inside = (src[edges] >= batch.node_off[k]) & (src[edges] < batch.node_off[k + 1])
            assert inside.all()
    assert stored.all_edge_features().tobytes() == rebuilt.all_edge_features().tobytes()


def test_slices_empty_batches_and_events_that_are_not_there(tmp_path):
    opened = write(tmp_path / "c")
    assert opened.batch(slice(3, 6)).index.tolist() == [3, 4, 5]
    assert len(opened.batch([])) == 0
    with pytest.raises(IndexError):
        opened.batch([20])
    with pytest.raises(IndexError):
        opened.batch([-1])


def test_a_cache_without_events_or_globals_opens(tmp_path):
    data = {name: array[:0] for name, array in arrays().items()} | {"node_off": np.zeros(1, np.int64)}
    data["glob"] = np.zeros((0, 0), np.float32)
    opened = caches.write(tmp_path / "c", data, node_features=FEATURES)
    opened.verify()
    assert len(opened) == 0


@pytest.mark.parametrize("column", ["node_x", "node_off", "edge_x", "label", "meta_event"])
def test_verify_finds_one_changed_byte_in_any_column(tmp_path, column):
    write(tmp_path / "c")
    path = tmp_path / "c" / f"{column}.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CacheError, match=column):
        Cache.open(tmp_path / "c").verify()


def test_a_missing_a_cut_and_a_foreign_column_are_refused(tmp_path):
    write(tmp_path / "c")
    path = tmp_path / "c" / "weight.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with pytest.raises(CacheError, match=r"weight\.npy: expected a column of the cache"):
        Cache.open(tmp_path / "c")
    np.save(path, np.zeros(20))
    with pytest.raises(CacheError, match=r"expected <f4 \[20\], found <f8 \[20\]"):
        Cache.open(tmp_path / "c")
    path.unlink()
    with pytest.raises(CacheError, match="FileNotFoundError"):
        Cache.open(tmp_path / "c")


def test_another_fingerprint_and_a_newer_format_are_refused(tmp_path):
    identity = {"schema": {"a": 1}, "policies": {"max_nodes": 0, "not_finite": "error"}, "sources": [], "format": 1}
    opened = write(tmp_path / "c", identity=identity)
    Cache.open(tmp_path / "c", expect=opened.fingerprint)
    Cache.open(tmp_path / "c", expect=identity)
    with pytest.raises(CacheError, match="expected fingerprint 0000"):
        Cache.open(tmp_path / "c", expect="0" * 64)
    wanted = identity | {"policies": {"max_nodes": 3, "not_finite": "error"}, "sources": [1]}
    with pytest.raises(CacheError, match=r"differs in policies\.max_nodes, sources;"):
        Cache.open(tmp_path / "c", expect=wanted)
    file = tmp_path / "c" / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {"format_version": 2}))
    with pytest.raises(CacheError, match="expected format_version 1 or older, found 2"):
        Cache.open(tmp_path / "c")
    file.write_text(json.dumps(manifest | {"identity": wanted}))
    with pytest.raises(CacheError, match="fingerprint that fits its identity"):
        Cache.open(tmp_path / "c")
    file.write_text("{")
    with pytest.raises(CacheError, match="the manifest of a cache"):
        Cache.open(tmp_path / "c")
    with pytest.raises(CacheError, match="expected a cache"):
        Cache.open(tmp_path / "nowhere")


def test_content_ignores_the_identity_and_sees_the_values(tmp_path):
    a = write(tmp_path / "a", identity={"format": 1, "x": 1})
    b = write(tmp_path / "b", identity={"format": 1, "x": 2})
    c = write(tmp_path / "c", arrays(seed=1))
    assert a.content == b.content != c.content
    assert a.fingerprint != b.fingerprint


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def fail():
        with Writing(tmp_path / "c") as writing:
            (writing.folder / "node_x.npy").write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(StorageError) as caught, Writing(tmp_path / "c"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "found a full disk; nothing was left behind" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    with Writing(tmp_path / "c") as first:
        with pytest.raises(StorageError, match="another one at work"), Writing(tmp_path / "c"):
            pass
        assert first.folder.exists()
    write(tmp_path / "c")


def test_the_leftover_of_a_crash_is_no_cache_and_the_next_writer_removes_it(tmp_path):
    made = write(tmp_path / "c")
    crashed = tmp_path / "c.tmp-99999999"
    shutil.copytree(made.path, crashed)
    (crashed / "manifest.json").unlink()
    shutil.rmtree(made.path)
    with pytest.raises(CacheError):
        Cache.open(crashed)
    write(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_an_existing_cache_is_replaced_only_when_asked_and_nothing_else_is(tmp_path):
    first = write(tmp_path / "c")
    with pytest.raises(CacheError, match="overwrite=true"):
        write(tmp_path / "c", arrays(seed=1))
    assert Cache.open(tmp_path / "c").content == first.content
    assert write(tmp_path / "c", arrays(seed=1), overwrite=True).content != first.content
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").touch()
    with pytest.raises(CacheError, match="expected a cache to overwrite"):
        write(tmp_path / "folder", overwrite=True)
    assert (tmp_path / "folder" / "thesis.tex").exists()
