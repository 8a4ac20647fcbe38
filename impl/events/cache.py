"""The graph cache on disk: a folder of plain .npy columns and a manifest; open, read in batches, write, verify.

::

    from impl.events.cache import Cache

    cache = Cache.open("hzz.cache")                  # memory-mapped, nothing is read yet
    len(cache), cache.node_features, cache.classes   # 2421, ("pt", "eta", …), ("zz",)
    batch = cache.batch([5, 0, 17])                  # any events in any order; row k belongs to index[k]
    batch.node_x, batch.edge_x, batch.glob           # float32 (N, F), (E, 3), (B, G)
    src, dst = batch.edge_index()                    # int64 (E,), rows of node_x

Layout of the folder (n events, N nodes, E edges in all)::

    manifest.json   what the columns are and where they come from; see `Cache.manifest`
    node_x.npy      float32 (N, F)      node features, nodes of an event one after the other
    node_off.npy    int64 (n + 1,)      event i owns the node rows node_off[i] … node_off[i+1]-1
    edge_x.npy      float32 (E, 3)      d_eta, d_phi, d_R; absent when edges are rebuilt on reading
    glob.npy        float32 (n, G)      global features
    label.npy       int64 (n,) class, or uint8 (n, K) flags of a multilabel task
    weight.npy      float32 (n,)        may be zero or negative
    meta_NAME.npy   any scalar (n,)     run, event number …, in the dtype of the file

Edges are not stored as indices: every event is fully connected, source-major (see graph.py), so offsets and indices
follow from node_off and `self_loops`. Angles in rad, energies in GeV unless the schema scales them.

Two digests identify a cache. `fingerprint` covers how it was asked for: schema, policies, source identities, version of
this format. `content` covers what came out: every column but edge_x, which `verify` recomputes instead.
"""

import concurrent.futures
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

from impl.events import kernel
from impl.events.errors import CacheError, StorageError

#: version of this layout; a loader refuses newer ones
FORMAT_VERSION = 1
#: columns of every cache, without edge_x and meta_*
COLUMNS = ("node_x", "node_off", "glob", "label", "weight")
_HEADER_BYTES = 128  # of an .npy file written here, whatever its shape: rows can be appended, then counted


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some events of a cache, ready for a model; row k of `glob`, `label`, `weight` and `meta` belongs to index[k].

    Attributes
    ----------
    index : int64 (B,)          events of the cache
    node_off : int64 (B + 1,)   event k owns the rows node_off[k] … node_off[k+1]-1; starts at 0
    edge_off : int64 (B + 1,)   the same for edges
    node_x : float32 (N, F)
    edge_x : float32 (E, 3)     source-major
    glob : float32 (B, G)
    label : int64 (B,) or uint8 (B, K)
    weight : float32 (B,)
    meta : dict                 name -> scalars (B,)
    self_loops : bool
    """

    index: np.ndarray
    node_off: np.ndarray
    edge_off: np.ndarray
    node_x: np.ndarray
    edge_x: np.ndarray
    glob: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    meta: dict
    self_loops: bool

    def __len__(self) -> int:
        return len(self.index)

    def edge_index(self) -> tuple[np.ndarray, np.ndarray]:
        """Source and destination of every edge as rows of node_x; int64 (E,), int64 (E,)."""
        return kernel.edge_index(self.node_off, self.self_loops)


class Cache:
    """An opened cache; columns are read-only memory maps until a batch copies rows out of them.

    Attributes
    ----------
    path : Path
    manifest : dict             format_version, fingerprint, content, identity {schema, policies, sources, format},
                                events, nodes, edges, node_features, globals, classes, self_loops, columns
                                {name: dtype, shape, sha256}, report, sources (paths), versions
    node_x, node_off, glob, label, weight : as in the module's docstring
    edge_x : float32 (E, 3) or None when edges are rebuilt on reading
    meta : dict                 name -> array (n,)
    node_counts : int64 (n,)    nodes of every event
    edge_off : int64 (n + 1,)   derived
    """

    def __init__(self, path: Path, manifest: dict, arrays: dict):
        self.path, self.manifest = path, manifest
        self.node_x, self.node_off = arrays["node_x"], arrays["node_off"]
        self.glob, self.label, self.weight = arrays["glob"], arrays["label"], arrays["weight"]
        self.edge_x = arrays.get("edge_x")
        self.meta = {name.removeprefix("meta_"): array for name, array in arrays.items() if name.startswith("meta_")}
        self.node_features = tuple(manifest["node_features"])
        self.globals = tuple(manifest["globals"])
        self.classes = tuple(manifest["classes"])
        self.self_loops = manifest["self_loops"]
        self.fingerprint, self.content = manifest["fingerprint"], manifest["content"]
        self._eta, self._phi = self.node_features.index("eta"), self.node_features.index("phi")
        self.node_counts = np.diff(self.node_off)
        self.edge_off = np.zeros(len(self.node_off), np.int64)
        np.cumsum(kernel.edge_counts(self.node_counts, self.self_loops), out=self.edge_off[1:])

    @classmethod
    def open(cls, path, expect: str | dict | None = None, mmap: bool = True) -> "Cache":
        """Open a cache and check that it is whole and, where asked, the expected one.

        Parameters
        ----------
        path : str or Path
        expect : str, dict or None      a fingerprint, or an identity {schema, policies, sources, format}: with the
                                        latter the refusal says which field differs
        mmap : bool                     False reads every column into memory

        Raises
        ------
        CacheError                      no cache there, damaged, written by a newer version, or another one
        """
        path = Path(path)
        manifest = read_manifest(path)
        _expected(path, manifest, expect)
        arrays = {}
        for name, column in manifest["columns"].items():
            file = path / f"{name}.npy"
            try:
                array = load_column(file, mmap)
            except (OSError, ValueError, EOFError) as error:
                found = f"{type(error).__name__}: {error}".splitlines()[0]
                raise CacheError(file, "a column of the cache", found, "prepare the cache again") from None
            if list(array.shape) != column["shape"] or array.dtype.str != column["dtype"]:
                raise CacheError(file, f"{column['dtype']} {column['shape']}", f"{array.dtype.str} {list(array.shape)}",
                                 "prepare the cache again")  # fmt: skip
            arrays[name] = array
        return cls(path, manifest, arrays)

    def __len__(self) -> int:
        return len(self.node_off) - 1

    def batch(self, index) -> Batch:
        """The events `index` (any order, repeats allowed; a slice or range too) copied out of the cache.

        Raises
        ------
        IndexError      an event that the cache does not have
        """
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        index = np.asarray(index, np.int64).reshape(-1)
        node_x = kernel.gather(self.node_x, self.node_off, index)
        node_off = np.zeros(len(index) + 1, np.int64)
        np.cumsum(self.node_counts[index], out=node_off[1:])
        edge_off = np.zeros(len(index) + 1, np.int64)
        np.cumsum(kernel.edge_counts(self.node_counts[index], self.self_loops), out=edge_off[1:])
        if self.edge_x is not None:
            edge_x = kernel.gather(self.edge_x, self.edge_off, index)
        else:
            edge_x = kernel.edge_features(node_x, node_off, self._eta, self._phi, self.self_loops)
        return Batch(
            index, node_off, edge_off, node_x, edge_x, self.glob[index], self.label[index], self.weight[index],
            {name: array[index] for name, array in self.meta.items()}, self.self_loops,
        )  # fmt: skip

    def all_edge_features(self) -> np.ndarray:
        """edge_x of the whole cache, read or rebuilt; float32 (E, 3)."""
        if self.edge_x is not None:
            return self.edge_x
        return kernel.edge_features(np.ascontiguousarray(self.node_x), self.node_off, self._eta, self._phi,
                                    self.self_loops)  # fmt: skip

    def verify(self) -> None:
        """Check every byte: digests of the columns, ascending offsets, edge features against the nodes.

        Raises
        ------
        CacheError      the first column that differs
        """
        for name, column in self.manifest["columns"].items():
            if column["sha256"] is not None and file_digest(self.path / f"{name}.npy") != column["sha256"]:
                raise CacheError(self.path / f"{name}.npy", f"content {column['sha256'][:12]}…", "another one",
                                 "prepare the cache again")  # fmt: skip
        if self.node_off[0] != 0 or self.node_off[-1] != len(self.node_x) or (self.node_counts < 0).any():
            raise CacheError(self.path / "node_off.npy", "offsets from 0 to the number of nodes", "others", "")
        if self.edge_x is None:
            return
        step = max(1, 1_000_000 * len(self) // max(len(self.edge_x), 1))
        for first in range(0, len(self), step):
            last = min(first + step, len(self))
            nodes = np.ascontiguousarray(self.node_x[self.node_off[first] : self.node_off[last]])
            offsets = self.node_off[first : last + 1] - self.node_off[first]
            edges = kernel.edge_features(nodes, offsets, self._eta, self._phi, self.self_loops)
            if edges.tobytes() != self.edge_x[self.edge_off[first] : self.edge_off[last]].tobytes():
                raise CacheError(self.path / "edge_x.npy", "the edge features of the nodes", "others",
                                 "prepare the cache again")  # fmt: skip


def load_column(path, mmap: bool = True) -> np.ndarray:
    """One .npy file, memory-mapped where it holds anything; raises OSError, ValueError or EOFError when damaged."""
    if mmap:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:  # an array without elements cannot be mapped; a damaged file fails again below
            pass
    return np.load(path, allow_pickle=False)


# ---------------------------------------------------------------------------------------------------- identity


def canonical(value) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def fingerprint_of(identity: dict) -> str:
    """SHA-256 over the canonical JSON of {schema, policies, sources, format}, 64 hex digits."""
    return hashlib.sha256(canonical(identity)).hexdigest()


def differing_fields(found, expected, where: str = "") -> list[str]:
    """Names of the fields in which two identities differ, as `policies.max_nodes`."""
    if isinstance(found, dict) and isinstance(expected, dict):
        names = []
        for key in sorted(found.keys() | expected.keys()):
            names += differing_fields(found.get(key), expected.get(key), f"{where}.{key}" if where else key)
        return names
    return [] if found == expected else [where]


def _expected(path: Path, manifest: dict, expect) -> None:
    if expect is None:
        return
    if isinstance(expect, dict):
        fields = differing_fields(manifest["identity"], expect)
        if fields:
            raise CacheError(path, "the cache of this configuration", f"one that differs in {', '.join(fields)}",
                             "prepare it again or correct the configuration")  # fmt: skip
    elif manifest["fingerprint"] != expect:
        raise CacheError(path, f"fingerprint {expect[:12]}…", f"{manifest['fingerprint'][:12]}…",
                         "prepare it again or correct the path")  # fmt: skip


def read_manifest(path: Path) -> dict:
    """The manifest of a cache; raises CacheError when there is none that this version understands."""
    file = Path(path) / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        version = int(manifest["format_version"])
    except FileNotFoundError:
        raise CacheError(path, "a cache (a folder with manifest.json)", "none",
                         "make one with `python -m impl.events prepare`") from None  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheError(file, "the manifest of a cache", f"{type(error).__name__}: {error}".splitlines()[0],
                         "prepare the cache again") from None  # fmt: skip
    if version > FORMAT_VERSION:
        raise CacheError(file, f"format_version {FORMAT_VERSION} or older", str(version), "update impl.events")
    if fingerprint_of(manifest["identity"]) != manifest["fingerprint"]:
        raise CacheError(file, "a fingerprint that fits its identity", "another one", "prepare the cache again")
    return manifest


def file_digest(path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------------- writing


_STORAGE_WORDS = {
    errno.ENOSPC: "a full disk",
    errno.EFBIG: "the file size limit",
    errno.EDQUOT: "a used up quota",
    errno.EACCES: "no permission",
}


def storage_error(path, error: OSError) -> StorageError:
    """An OSError of writing, in the words of this package."""
    found = _STORAGE_WORDS.get(error.errno, error.strerror or str(error))
    return StorageError(path, "room and permission to write the cache", found, "nothing was left behind")


def _header(dtype: np.dtype, shape: tuple) -> bytes:
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape!r}, }}"
    magic = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return magic + text.ljust(_HEADER_BYTES - 11).encode() + b"\n"


class ColumnWriter:
    """An .npy file that grows by rows; its header is written last, so an unfinished file does not open."""

    def __init__(self, path: Path):
        self.path, self.rows, self.dtype, self.tail = Path(path), 0, None, None
        self.file = open(self.path, "wb", buffering=0)  # noqa: SIM115 (closed by `close_all` or `abandon`)
        self.file.write(bytes(_HEADER_BYTES))

    def _fits(self, dtype, shape) -> None:
        if dtype != self.dtype or shape[1:] != self.tail:
            raise ValueError(f"{self.path.name}: expected rows of {self.dtype} {self.tail}, found {dtype} {shape[1:]}")

    def append(self, array: np.ndarray) -> None:
        """Write rows; dtype and the shape of a row must stay what the first call had."""
        if self.dtype is None:
            self.dtype, self.tail = array.dtype, array.shape[1:]
        self._fits(array.dtype, array.shape)
        self.rows += len(array)
        view = memoryview(np.ascontiguousarray(array)).cast("B") if array.size else b""
        while len(view):
            view = view[self.file.write(view) :]

    def finish(self) -> dict:
        """Write the header; returns {dtype, shape}. The file stays open for `close_all`."""
        shape = (self.rows, *self.tail)
        self.file.seek(0)
        self.file.write(_header(self.dtype, shape))
        return {"dtype": self.dtype.str, "shape": list(shape)}

    def abandon(self) -> None:
        self.file.close()


def close_all(writers, sync: bool = True) -> None:
    """Close finished columns and, with `sync`, bring them to the disk.

    All at once: the disk commits them together, 15 ms here instead of 15 ms a file.
    """
    writers = list(writers)
    if sync and writers:
        with concurrent.futures.ThreadPoolExecutor(len(writers)) as threads:
            for _ in threads.map(lambda writer: os.fsync(writer.file.fileno()), writers):
                pass
    for writer in writers:
        writer.file.close()


def finish_all(writers: dict) -> dict:
    """Finish, sync and close the columns of a cache; returns {name: {dtype, shape, sha256}}, edge_x without digest."""
    columns = {name: writer.finish() for name, writer in sorted(writers.items())}
    close_all(writers.values())
    for name, column in columns.items():
        column["sha256"] = None if name == "edge_x" else file_digest(writers[name].path)
    return columns


class Writing:
    """A cache in the making: a locked, temporary folder beside `path` that becomes the cache in one rename.

    A context manager; leaving it without `commit`, or with an exception, leaves no trace. A crash leaves a folder
    NAME.tmp-PID that no loader takes for a cache and that the next writer removes.

    Raises
    ------
    StorageError        no room, no permission, or another writer holds the lock
    CacheError          there is a cache already and `overwrite` is false
    """

    def __init__(self, path, overwrite: bool = False):
        self.path, self.overwrite = Path(path).absolute(), overwrite
        self.folder = self.path.with_name(f"{self.path.name}.tmp-{os.getpid()}")
        self._lock = self.path.with_name(f"{self.path.name}.lock")
        self._lock_file = None

    def __enter__(self) -> "Writing":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            if self.path.exists() and not self.overwrite:
                raise CacheError(self.path, "a path that does not exist", "one that does",
                                 "set overwrite=true or choose another output")  # fmt: skip
            if self.path.exists() and not (self.path / "manifest.json").exists():
                raise CacheError(self.path, "a cache to overwrite", "something else", "choose another output")
            stale = list(self.path.parent.glob(f"{self.path.name}.tmp-*"))
            if self.path.exists():  # else a writer died between its two renames
                stale += self.path.parent.glob(f"{self.path.name}.old-*")
            for folder in stale:
                shutil.rmtree(folder, ignore_errors=True)
            self.folder.mkdir()
        except OSError as error:
            self._release()
            raise storage_error(self.path, error) from None
        except BaseException:
            self._release()
            raise
        return self

    def _take_lock(self) -> None:
        while True:
            self._lock_file = open(self._lock, "w")  # noqa: SIM115 (held until `_release`)
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock_file.close()
                self._lock_file = None
                raise StorageError(self.path, "to be the only writer", "another one at work", "wait for it") from None
            try:  # the writer before us may have removed the name between our open and our lock
                if os.path.samestat(os.fstat(self._lock_file.fileno()), os.stat(self._lock)):
                    return
            except FileNotFoundError:
                pass
            self._lock_file.close()

    def _release(self) -> None:
        if self._lock_file is not None:
            self._lock.unlink(missing_ok=True)
            self._lock_file.close()
            self._lock_file = None

    def commit(self, manifest: dict) -> None:
        """Write the manifest and give the folder its final name."""
        try:
            with open(self.folder / "manifest.json", "w", encoding="utf-8") as file:
                json.dump(manifest, file, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(self.folder)
            if self.path.exists():
                old = self.path.with_name(f"{self.path.name}.old-{os.getpid()}")
                self.path.rename(old)
                self.folder.rename(self.path)
                shutil.rmtree(old)
            else:
                self.folder.rename(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise storage_error(self.path, error) from None

    def discard(self) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, kind, error, trace) -> None:
        self.discard()
        self._release()
        if isinstance(error, OSError):
            raise storage_error(self.path, error) from None


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def describe(columns: dict, identity: dict, *, node_features, globals, classes, self_loops, **more) -> dict:
    """The manifest of columns {name: {dtype, shape, sha256}}; `more` adds report, sources and versions."""
    content = {name: column for name, column in columns.items() if name != "edge_x"}
    return {
        "format_version": FORMAT_VERSION,
        "fingerprint": fingerprint_of(identity),
        "content": hashlib.sha256(canonical(content)).hexdigest(),
        "identity": identity,
        "events": columns["node_off"]["shape"][0] - 1,
        "nodes": columns["node_x"]["shape"][0],
        "edges": more.pop("edges"),
        "node_features": list(node_features),
        "globals": list(globals),
        "classes": list(classes),
        "self_loops": self_loops,
        "columns": columns,
        **more,
    }


def write(path, arrays: dict, *, node_features, globals=(), classes=(), self_loops=False, identity=None,
          edge_features=True, overwrite=False, report=None, sources=(), versions=None) -> Cache:  # fmt: skip
    """Write a cache from arrays in memory (conversions, tests); `prepare` is the way from ROOT files.

    Parameters
    ----------
    arrays : dict               node_x, node_off, glob, label, weight and any meta_NAME, as in the module's docstring
    node_features : names of the columns of node_x; `eta` and `phi` must be among them
    identity : dict, optional   what the fingerprint covers
    edge_features : bool        store edge_x; False: rebuilt on reading
    report, sources, versions   what the manifest says about the origin

    Raises
    ------
    ValueError                  a column missing or of another length
    """
    n = len(arrays["node_off"]) - 1
    for name, array in arrays.items():
        if name not in ("node_x", "node_off") and len(array) != n:
            raise ValueError(f"{name}: expected {n} rows, found {len(array)}")
    node_x, node_off = np.ascontiguousarray(arrays["node_x"], np.float32), np.asarray(arrays["node_off"], np.int64)
    eta, phi = list(node_features).index("eta"), list(node_features).index("phi")
    arrays = {name: arrays[name] for name in COLUMNS} | {k: v for k, v in arrays.items() if k.startswith("meta_")}
    arrays |= {"node_x": node_x, "node_off": node_off}
    if edge_features:
        arrays["edge_x"] = kernel.edge_features(node_x, node_off, eta, phi, self_loops)
    edges = int(kernel.edge_counts(np.diff(node_off), self_loops).sum())
    with Writing(path, overwrite) as writing:
        writers = {name: ColumnWriter(writing.folder / f"{name}.npy") for name in arrays}
        try:
            for name, writer in writers.items():
                writer.append(np.asarray(arrays[name]))
            columns = finish_all(writers)
        finally:
            for writer in writers.values():
                writer.abandon()
        writing.commit(describe(columns, identity or {"format": FORMAT_VERSION}, node_features=node_features,
                                globals=globals, classes=classes, self_loops=self_loops, edges=edges,
                                report=report or {}, sources=list(sources), versions=versions or {}))  # fmt: skip
    return Cache.open(path)
