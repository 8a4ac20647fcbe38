"""Records on disk: six columns in blocks, a chunk index and a checksummed footer; written whole or not at all.

    magic | block, block, … | index: chunk ids (uint32), rows of each (uint64) | footer (JSON) |
    footer's length (uint64) | footer's xxh3_128 (16 bytes) | magic

A block is the six columns of some rows, one after the other, little-endian. The footer says the rows of every block,
one xxh3_128 a column (over the column's bytes, however they are cut into blocks) and whatever the writer was told.

Why no HDF5 and no .npy: a final map is longer than memory, so its length is unknown until its last row, which .npy
writes first; and mapping must not need h5py. Columns are not compressed: a part lives as long as its job.
Reading goes through plain reads, not a memory map, whose pages would count as the job's memory.
"""

import contextlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import xxhash

from impl.mapping.records import COLUMNS, DTYPES, Records, merge
from impl.mapping.sources import SourceError

MAGIC = b"MAPREC01"
#: rows of a block at most: 18 MB
BLOCK_ROWS = 1 << 19
ROW_BYTES = sum(np.dtype(kind).itemsize for kind in DTYPES)
_TAIL = struct.Struct(f"<Q16s{len(MAGIC)}s")


class StorageError(SourceError):
    """A file could not be written, or holds something else than was written; where, expected, found, next."""


def canonical(value) -> bytes:
    """JSON with sorted keys and without spaces: equal values have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file beside its place, force it to disk, rename it: it is old or new, never in between."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritten(path, error) from None


def _sync_folder(folder: Path) -> None:
    """Force a rename to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritten(path, error: OSError) -> StorageError:
    what = error.strerror or str(error)
    return StorageError(path, "room to write", what, "make room; what is written stays valid, then resume")


def splitmix64(value):
    """Mix uint64 (n,) so that every input bit moves every output bit. Source: Steele, Lea & Flood, OOPSLA 2014."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


class Summary:
    """What records amount to, independent of their order and of how they are cut into parts.

    fingerprint : two sums over the records of mix(key) · contributors modulo 2^64, mixed in two ways, as 32 hex digits.
    A sum of a hash that is affine in the key would not see two contributors that move in opposite directions.
    """

    def __init__(self):
        self.rows = self.contributors = 0
        self._sums = [0, 0]
        self.sum_weight = self.sum_intensity = self.sum_variance = 0.0

    def add(self, records: Records) -> None:
        """Count records in."""
        self.rows += len(records)
        for first in range(0, len(records), BLOCK_ROWS):
            cut = slice(first, first + BLOCK_ROWS)
            key = records.chunk[cut].astype(np.uint64) << np.uint64(32) | records.local[cut]
            count = records.contributors[cut].astype(np.uint64)
            self.contributors += int(count.sum())
            mixed = splitmix64(key)
            again = splitmix64(mixed ^ np.uint64(0xD1B54A32D192ED03))
            for k, value in enumerate((mixed, again)):
                self._sums[k] = (self._sums[k] + int((value * count).sum(dtype=np.uint64))) % 2**64
            self.sum_weight += float(records.sum_weight[cut].sum())
            self.sum_intensity += float(records.sum_intensity[cut].sum())
            self.sum_variance += float(records.sum_variance[cut].sum())

    @property
    def fingerprint(self) -> str:
        """Two sums of 64 bits as 32 hex digits."""
        return "".join(f"{value:016x}" for value in self._sums)

    def include(self, facts: dict) -> None:
        """Add the summary that another one gave."""
        self.rows += facts["rows"]
        self.contributors += facts["contributors"]
        for k in (0, 1):
            self._sums[k] = (self._sums[k] + int(facts["fingerprint"][16 * k : 16 * k + 16], 16)) % 2**64
        self.sum_weight += facts["sumW"]
        self.sum_intensity += facts["sumI"]
        self.sum_variance += facts["sumV"]

    def facts(self) -> dict:
        """rows, contributors, fingerprint, sumW, sumI, sumV."""
        return {
            "rows": self.rows,
            "contributors": self.contributors,
            "fingerprint": self.fingerprint,
            "sumW": self.sum_weight,
            "sumI": self.sum_intensity,
            "sumV": self.sum_variance,
        }


class Writer:
    """Writes records to a file that appears under its name only when it is whole. Use it in a `with` statement."""

    def __init__(self, path):
        self.path = Path(path)
        self._temporary = self.path.with_name(self.path.name + ".tmp")
        self._blocks, self._hashes = [], [xxhash.xxh3_128() for _ in COLUMNS]
        self._ids, self._counts, self._last = [], [], -1
        self.summary, self._file = Summary(), None
        try:
            self._file = open_new(self._temporary)
            self._file.write(MAGIC)
        except OSError as error:
            if self._file is not None:
                self._abandon()
            raise _unwritten(self.path, error) from None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_) -> None:
        if self._file is not None:
            self._abandon()

    def _abandon(self) -> None:
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            file.close()  # what is still buffered is written now, and may fail again
        self._temporary.unlink(missing_ok=True)

    def append(self, records: Records) -> None:
        """Write further records; their keys are above those already written. Raises StorageError."""
        if not len(records):
            return
        first = int(records.chunk[0]) << 32 | int(records.local[0])
        if first <= self._last:
            raise ValueError(f"{self.path}: expected keys above {self._last}, found {first}")
        self._last = int(records.chunk[-1]) << 32 | int(records.local[-1])
        begins = np.flatnonzero(np.concatenate([[True], records.chunk[1:] != records.chunk[:-1]]))
        counts = np.diff(np.append(begins, len(records)))
        ids = records.chunk[begins]
        if self._ids and self._ids[-1][-1] == ids[0]:
            self._counts[-1][-1] += counts[0]
            ids, counts = ids[1:], counts[1:]
        if len(ids):
            self._ids.append(ids.astype("<u4"))
            self._counts.append(counts.astype("<u8"))
        try:
            for begin in range(0, len(records), BLOCK_ROWS):
                end = min(begin + BLOCK_ROWS, len(records))
                for column, kind, state in zip(records.columns(), DTYPES, self._hashes):
                    data = np.ascontiguousarray(column[begin:end], np.dtype(kind).newbyteorder("<")).data
                    state.update(data)
                    self._file.write(data)
                self._blocks.append(end - begin)
        except OSError as error:
            self._abandon()
            raise _unwritten(self.path, error) from None
        self.summary.add(records)

    def finish(self, facts: dict) -> dict:
        """Write index and footer, force all to disk, name the file; returns the footer. Raises StorageError."""
        footer = dict(facts) | self.summary.facts()
        footer |= {"blocks": self._blocks, "chunks": sum(map(len, self._ids)), "zero_records": not self.summary.rows}
        footer["columns"] = {name: state.hexdigest() for name, state in zip(COLUMNS, self._hashes)}
        index = b"".join([*(a.tobytes() for a in self._ids), *(a.tobytes() for a in self._counts)])
        footer["index"] = xxhash.xxh3_128(index).hexdigest()
        text = canonical(footer)
        try:
            self._file.write(index + text + _TAIL.pack(len(text), xxhash.xxh3_128(text).digest(), MAGIC))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._temporary.replace(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            if self._file is not None:
                self._abandon()
            self._temporary.unlink(missing_ok=True)
            raise _unwritten(self.path, error) from None
        return footer


def open_new(path: Path):
    """Open a file for writing; every part and map is opened here."""
    return path.open("wb", buffering=1 << 20)


class Part:
    """A file that Writer finished, read by rows.

    Attributes
    ----------
    footer : dict    what was said when it was written, with rows, contributors, fingerprint, sumW, sumI, sumV
    rows : int
    """

    def __init__(self, path):
        """Read and check everything but the columns; raises StorageError for a file that is not whole."""
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                if size < len(MAGIC) + _TAIL.size:
                    raise self._broken(f"{size} bytes")
                file.seek(size - _TAIL.size)
                length, digest, magic = _TAIL.unpack(file.read(_TAIL.size))
                if magic != MAGIC or length > size - _TAIL.size - len(MAGIC):
                    raise self._broken("another ending")
                file.seek(size - _TAIL.size - length)
                text = file.read(length)
                if xxhash.xxh3_128(text).digest() != digest:
                    raise self._broken("a footer that differs from its checksum")
                self.footer = json.loads(text)
                self.rows, self._blocks = self.footer["rows"], self.footer["blocks"]
                chunks = self.footer["chunks"]
                file.seek(len(MAGIC) + self.rows * ROW_BYTES)
                index = file.read(12 * chunks)
                if xxhash.xxh3_128(index).hexdigest() != self.footer["index"] or file.tell() + len(text) != (
                    size - _TAIL.size
                ):
                    raise self._broken("an index that differs from its checksum")
        except OSError as error:
            raise StorageError(path, "a part", error.strerror or str(error), "map again") from None
        self.ids = np.frombuffer(index, "<u4", chunks).astype(np.uint32)
        counts = np.frombuffer(index, "<u8", chunks, 4 * chunks).astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self._begins = np.concatenate([[0], np.cumsum(np.array(self._blocks, np.int64))])

    def _broken(self, found: str) -> StorageError:
        return StorageError(self.path, "a whole file of records", found, "delete it and map its frames again")

    def read(self, first: int, last: int) -> Records:
        """Rows [first, last)."""
        out = Records.empty(max(0, last - first))
        if last <= first:
            return out
        block = int(np.searchsorted(self._begins, first, side="right")) - 1
        with self.path.open("rb", buffering=0) as file:
            done = 0
            while first + done < last:
                begin, rows = int(self._begins[block]), self._blocks[block]
                low = first + done - begin
                high = min(last - begin, rows)
                place = len(MAGIC) + begin * ROW_BYTES
                for column in out.columns():
                    width = column.itemsize
                    file.seek(place + low * width)
                    target = memoryview(column[done : done + high - low]).cast("B")
                    if file.readinto(target) != len(target):
                        raise self._broken("fewer rows than it says")
                    place += rows * width
                done += high - low
                block += 1
        return out

    def verify(self) -> None:
        """Read every column against its checksum; raises StorageError."""
        hashes = [xxhash.xxh3_128() for _ in COLUMNS]
        for begin, rows in zip(self._begins, self._blocks):
            for state, column in zip(hashes, self.read(int(begin), int(begin) + rows).columns()):
                state.update(column.data)
        for name, state in zip(COLUMNS, hashes):
            if state.hexdigest() != self.footer["columns"][name]:
                raise self._broken(f"a column '{name}' that differs from its checksum")


def merged(parts: list[Part], rows: int = 1 << 20):
    """Records of all parts added up, ascending, in whole chunks of about `rows` rows: yields Records.

    Equal keys add in the parts' order by the tree of records.merge, wherever the cuts fall.
    """
    parts = [part for part in parts if part.rows]
    if not parts:
        return
    ids = np.unique(np.concatenate([part.ids for part in parts]))
    places = [part.starts[np.searchsorted(part.ids, np.append(ids, 2**32))] for part in parts]
    total = np.sum(places, axis=0)  # rows below each chunk, over all parts
    first = 0
    while first < len(ids):
        last = max(first + 1, int(np.searchsorted(total, total[first] + rows, side="right")) - 1)
        yield merge([part.read(int(place[first]), int(place[last])) for part, place in zip(parts, places)])
        first = last
