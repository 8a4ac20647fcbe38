"""Raw bytes through the C interface: whatever they say, a status comes back, and all variants agree on the bytes."""

import os
import time

import numpy as np
import pytest

from impl.mapping import _native
from impl.mapping.records import Records

ffi, lib = _native.ffi, _native.lib
#: doubles that break arithmetic, beside those that random bits give
ODD = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, 5e-324, -5e-324, 1.7976931348623157e308, -1e308, 1e-300,
     2.0**31, -(2.0**31), 2.0**53, 1 / 3, 1e-9, 4.0, 64.0]
)  # fmt: skip


class Bytes:
    """Takes decisions from a run of bytes; zeros when they are used up."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def number(self, low: int, high: int) -> int:
        part = self.data[self.at : self.at + 4].ljust(4, b"\0")
        self.at += 4
        return low + int.from_bytes(part, "little") % (high - low + 1)

    def doubles(self, count: int, tame: float) -> np.ndarray:
        """Numbers about `tame`, with odd ones among them, or bits as they come."""
        rng = np.random.default_rng(self.number(0, 2**31))
        kind = self.number(0, 9)
        values = tame * rng.uniform(-1, 1, count)
        if kind == 0:
            values = rng.integers(0, 2**64, count, np.uint64).view(np.float64)
        if kind in (1, 2):
            where = rng.random(count) < 0.2
            values[where] = rng.choice(ODD, int(where.sum()))
        if kind == 3:
            values = np.round(values)
        return np.ascontiguousarray(values)


def rays(source: Bytes, rows: int, columns: int) -> np.ndarray:
    if source.number(0, 3) == 0:
        return source.doubles((rows + 1) * (columns + 1) * 3, 1.0)
    pixel = 10.0 ** -source.number(0, 4)
    y, x = np.meshgrid(np.arange(rows + 1) * pixel, np.arange(columns + 1) * pixel, indexing="ij")
    flat = np.stack([x, np.ones_like(x), y], axis=-1)
    out = (flat / np.linalg.norm(flat, axis=-1, keepdims=True)).reshape(-1)
    if source.number(0, 3) == 0:
        out[source.number(0, len(out) - 1)] = ODD[source.number(0, len(ODD) - 1)]
    return np.ascontiguousarray(out)


def call(data: bytes) -> str:
    """Run the interface on what the bytes say; returns what happened, for the count."""
    source = Bytes(data)
    depth = source.number(0, 3) if source.number(0, 9) else source.number(-2, 10)
    rows, columns, frames = source.number(1, 6), source.number(1, 70), source.number(1, 3)
    if depth > 2:  # an unresolved pixel has 4^depth or 8^depth leaves
        rows, columns, frames = 1, source.number(1, 3), 1
    positions = 2 ** (min(max(depth, 0), 8) + 1) + 1
    samples = rows * columns * frames
    scale = 10.0 ** source.number(-2, 4)
    tables = source.doubles(frames * positions * 12, scale)
    if source.number(0, 3):  # the same map at every position: most pixels resolve
        tables = np.ascontiguousarray(np.tile(tables[:12], frames * positions))
    arrays = {
        "intensity": source.doubles(samples, 10.0),
        "variance": np.abs(source.doubles(samples, 10.0)),
        "mask": np.frombuffer(data.ljust(samples, b"\0")[:samples], np.uint8) > 250,
        "rays": rays(source, rows, columns),
        "tables": tables,
        "stationary": np.array([depth > 4 or source.number(0, 1) for _ in range(frames)], np.uint8),
    }
    grid = {
        "minimum": list(source.doubles(3, scale)),
        "step": [abs(s) for s in source.doubles(3, 2.0)] if source.number(0, 4) else list(source.doubles(3, 2.0)),
        "shape": [source.number(0, 2 ** source.number(0, 31)) for _ in range(3)],
        "chunk": [source.number(0, 2 ** source.number(0, 20)) for _ in range(3)],
    }
    if source.number(0, 3):  # a grid that can be mapped into
        grid["chunk"] = [2 ** source.number(0, 6) for _ in range(3)]
        grid["shape"] = [source.number(1, 3000) for _ in range(3)]
    job = {
        "frames": frames, "rows": rows, "columns": columns, "row": source.number(0, 200),
        "column": source.number(0, 200), "stride": columns,
    }  # fmt: skip
    if source.number(0, 19) == 0:
        job[list(job)[source.number(0, 5)]] = (-1, 0, -(2**62), 2**62)[source.number(0, 3)]

    def pointers(array, kind):
        step = rows * columns * array.itemsize
        return ffi.new(f"{kind} *[]", [ffi.cast(f"{kind} *", array.ctypes.data + f * step) for f in range(frames)])

    keep = [pointers(arrays["intensity"], "double"), pointers(arrays["variance"], "double")]
    keep.append(pointers(arrays["mask"], "unsigned char") if source.number(0, 1) else ffi.NULL)
    job |= dict(zip(("intensity", "variance", "mask"), keep))
    job |= {name: ffi.cast("double *", arrays[name].ctypes.data) for name in ("rays", "tables")}
    job["stationary"] = ffi.cast("unsigned char *", arrays["stationary"].ctypes.data)
    c_job, c_grid = ffi.new("mapping_job *", job), ffi.new("mapping_grid *", grid)
    assert lib.mapping_check_grid(c_grid) in range(lib.MAPPING_NO_RESULT + 1)

    results = []
    best = lib.mapping_best_instructions()
    for subdivision, instructions, accumulate, threads, filtered in (
        (lib.MAPPING_CORNER_PASSING, 0, lib.MAPPING_RADIX, 1, 0),
        (lib.MAPPING_FLAT, 0, lib.MAPPING_BITMAP, 1, 1),
        (lib.MAPPING_FLAT, lib.MAPPING_PLAIN, lib.MAPPING_ACCUMULATE_AUTO, 2, 0),
        (lib.MAPPING_FLAT, min(best, lib.MAPPING_AVX2), lib.MAPPING_RADIX, 1, 1),
    ):
        options = ffi.new(
            "mapping_options *",
            {
                "depth": depth, "subdivision": subdivision, "threads": threads, "budget": 1 << 24, "filter": filtered,
                "accumulate": accumulate, "instructions": instructions, "reject": filtered,
                "work_block": (0, 0, 1, 100)[len(results)], "count_blocks": threads - 1,
            },
        )  # fmt: skip
        handle, count = ffi.new("mapping_context **"), ffi.new("int64_t *")
        assert lib.mapping_create(handle) == lib.MAPPING_OK
        status = lib.mapping_run(handle[0], options, c_grid, c_job, count)
        assert status in range(lib.MAPPING_NO_RESULT + 1)
        out = Records.empty(count[0])
        kinds = ("uint32_t", "uint32_t", "double", "double", "double", "uint32_t")
        columns_out = [ffi.cast(f"{kind} *", a.ctypes.data) for kind, a in zip(kinds, out.columns())]
        fetched = lib.mapping_fetch(handle[0], *columns_out)
        assert fetched == (lib.MAPPING_OK if status == lib.MAPPING_OK else lib.MAPPING_NO_RESULT)
        lib.mapping_destroy(handle[0])
        results.append((status, [column.tobytes() for column in out.columns()]))
    first = results[0]
    # a tiny budget is divided among threads, so only there may one way end where another does not
    if lib.MAPPING_OVER_BUDGET not in [status for status, _ in results]:
        assert all(result == first for result in results[1:])
    return f"status {first[0]}" + (" with records" if first[1][0] else "")


def correct(data: bytes) -> str:
    """Correct a frame that the bytes describe: every instruction set gives the bytes of the first, or a status."""
    source = Bytes(data)
    pixels, kind, scalars = (
        source.number(0, 300),
        source.number(lib.MAPPING_UINT8, lib.MAPPING_FLOAT64),
        source.number(0, 3),
    )
    size = {lib.MAPPING_UINT8: 1, lib.MAPPING_INT8: 1, lib.MAPPING_UINT16: 2, lib.MAPPING_INT16: 2}.get(kind, 8)
    size = 4 if kind in (lib.MAPPING_UINT32, lib.MAPPING_INT32, lib.MAPPING_FLOAT32) else size
    rng = np.random.default_rng(source.number(0, 2**31))
    raw = rng.integers(0, 256, pixels * size, np.uint8)  # exactly as long as it may be read
    fields = {"counts": ffi.cast("void *", raw.ctypes.data)}
    keep = [raw]
    for name in ("variance", "background", "background_variance", "factor", "factor_squared"):
        if source.number(0, 1):
            keep.append(source.doubles(pixels, 10.0))
            fields[name] = ffi.cast("double *", keep[-1].ctypes.data)
    for name in ("mask", "static_mask"):
        if source.number(0, 1):
            keep.append(rng.integers(0, 3, pixels, np.uint8))
            fields[name] = ffi.cast("unsigned char *", keep[-1].ctypes.data)
    for name in ("c", "c2", "v"):
        keep.append(source.doubles(scalars, 1.0))
        fields[name] = ffi.cast("double *", keep[-1].ctypes.data)
    if source.number(0, 9) == 0:
        fields[("counts", "c", "v")[source.number(0, 2)]] = ffi.NULL
    if source.number(0, 9) == 0:
        bad = (-1, scalars, pixels), (kind, -1, pixels), (kind, scalars, -1)
        kind, scalars, pixels = bad[source.number(0, 2)]
    results = []
    for instructions in range(lib.MAPPING_PLAIN, lib.mapping_best_instructions() + 1):
        out = np.zeros(max(pixels, 0)), np.zeros(max(pixels, 0)), np.zeros(max(pixels, 0), np.uint8)
        for name, kind_of, array in zip(
            ("intensity", "out_variance", "out_mask"), ("double",) * 2 + ("unsigned char",), out
        ):
            fields[name] = ffi.cast(f"{kind_of} *", array.ctypes.data)
        frame = ffi.new("mapping_frame *", {"pixels": pixels, "kind": kind, "scalars": scalars} | fields)
        status = lib.mapping_correct(frame, instructions)
        assert status in (lib.MAPPING_OK, lib.MAPPING_BAD_ARGUMENT)
        if status == lib.MAPPING_OK:
            finite = np.isfinite(out[0]) & np.isfinite(out[1])
            assert (out[2][~finite] == 1).all()
            assert set(out[2].tolist()) <= {0, 1}
        results.append((status, [np.where(np.isnan(a), 0, a).tobytes() for a in out]))
    assert all(result == results[0] for result in results)
    return f"correct: status {results[0][0]}"


def add(data: bytes) -> str:
    """Merge two batches that the bytes describe; whatever they hold, nothing beyond the arrays is touched."""
    source = Bytes(data)
    rng = np.random.default_rng(source.number(0, 2**31))
    sides, keep = [], []
    kinds = ("uint32_t", "uint32_t", "double", "double", "double", "uint32_t")
    names = ("chunk", "local", "sum_intensity", "sum_variance", "sum_weight", "contributors")
    ordered = source.number(0, 3) > 0
    counts = [source.number(0, 60), source.number(0, 60)]
    room = counts[0] + counts[1] - (source.number(0, 9) == 0)
    for count in (*counts, max(room, 0)):
        key = rng.integers(0, 2 ** source.number(1, 63), count, np.uint64)
        key = np.sort(key) if ordered else key
        columns = [(key >> np.uint64(32)).astype(np.uint32), key.astype(np.uint32)]
        columns += [source.doubles(count, 3.0) for _ in range(3)] + [rng.integers(0, 2**32, count, np.uint32)]
        keep.append(columns)
        pointers = {n: ffi.cast(f"{k} *", c.ctypes.data) for n, k, c in zip(names, kinds, columns)}
        sides.append(ffi.new("mapping_records *", {"count": count} | pointers))
    if source.number(0, 9) == 0:
        sides[source.number(0, 2)].count = (-1, -(2**62))[source.number(0, 1)]
    status = lib.mapping_add(*sides)
    assert status in (lib.MAPPING_OK, lib.MAPPING_BAD_ARGUMENT)
    if status == lib.MAPPING_OK:
        assert max(counts) <= sides[2].count <= sum(counts) or not ordered
        assert sides[2].count <= sum(counts)
    return f"add: status {status}"


def run(seed: int, seconds: float, least: int) -> dict[str, int]:
    """Calls on random bytes; what happened how often. A failure names the bytes."""
    rng = np.random.default_rng(seed)
    found: dict[str, int] = {}
    begin, n = time.monotonic(), 0
    while n < least or time.monotonic() - begin < seconds:
        data = rng.bytes(400)
        for interface in (call, correct, add):
            try:
                what = interface(data)
            except AssertionError as error:
                raise AssertionError(f"{interface.__name__}({data!r})") from error
            found[what] = found.get(what, 0) + 1
        n += 1
    return found


def test_random_bytes_give_a_status_and_equal_maps():
    found = run(0, 0, 400)
    assert found["status 0 with records"] > 20
    assert sum(count for what, count in found.items() if what.startswith("status 2")) > 5
    assert min(found[f"{name}: status {status}"] for name in ("correct", "add") for status in (0, 2)) > 20


def test_a_stride_that_no_memory_has_is_refused():
    job, grid, options = ffi.new("mapping_job *"), ffi.new("mapping_grid *"), ffi.new("mapping_options *")
    for name, value in {"step": [1.0] * 3, "shape": [9] * 3, "chunk": [4] * 3}.items():
        setattr(grid, name, value)
    options.threads, options.budget = 1, 1 << 30
    numbers, flags = np.ones(3 * 17 * 9), np.ones(9, np.uint8)
    pointer = ffi.cast("double *", numbers.ctypes.data)
    frames = ffi.new("double *[]", [pointer])
    job.frames, job.rows, job.columns, job.intensity, job.variance = 1, 2, 3, frames, frames
    job.rays, job.tables, job.stationary = pointer, pointer, ffi.cast("unsigned char *", flags.ctypes.data)
    handle, count = ffi.new("mapping_context **"), ffi.new("int64_t *")
    assert lib.mapping_create(handle) == lib.MAPPING_OK
    for stride, status in ((3, lib.MAPPING_OK), (2**60, lib.MAPPING_BAD_ARGUMENT), (2**62, lib.MAPPING_BAD_ARGUMENT)):
        job.stride = stride
        assert lib.mapping_run(handle[0], options, grid, job, count) == status
    lib.mapping_destroy(handle[0])


@pytest.mark.slow
def test_ten_minutes_of_random_bytes():
    seconds = float(os.environ.get("MAPPING_FUZZ_SECONDS", "600"))
    found = run(int(os.environ.get("MAPPING_FUZZ_SEED", "1")), seconds, 1)
    print(found)
    assert found["status 0 with records"] > 10
