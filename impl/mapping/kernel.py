"""The only caller of the C library: checks what goes in without ever copying it, words what comes back."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from impl.mapping import _native
from impl.mapping.grid import Grid
from impl.mapping.records import COLUMNS, DTYPES, Records

_ffi, _lib = _native.ffi, _native.lib

SUBDIVISIONS = {
    "corner-passing": _lib.MAPPING_CORNER_PASSING,
    "corner-cache": _lib.MAPPING_CORNER_CACHE,
    "flat": _lib.MAPPING_FLAT,
}
ACCUMULATES = {"auto": _lib.MAPPING_ACCUMULATE_AUTO, "radix": _lib.MAPPING_RADIX, "bitmap": _lib.MAPPING_BITMAP}
INSTRUCTIONS = {
    "best": _lib.MAPPING_BEST,
    "plain": _lib.MAPPING_PLAIN,
    "avx2": _lib.MAPPING_AVX2,
    "avx512": _lib.MAPPING_AVX512,
}
ORDERS = {"bricks": _lib.MAPPING_BRICKS, "flat-runs": _lib.MAPPING_FLAT_RUNS}
PRECHECKS = {"records": _lib.MAPPING_PRECHECK_RECORDS, "leaves": _lib.MAPPING_PRECHECK_LEAVES}
COUNTERS = (
    "samples", "valid", "evaluations", "leaves", "leaves_max", "skipped", "fallbacks", "boxes_missed", "events",
    "records", "blocks", "block_records", "pages", "bitmap", "bytes",
)  # fmt: skip
#: dtypes of counts that are read as they are
COUNTS = {
    np.dtype(name): getattr(_lib, f"MAPPING_{name.upper()}")
    for name in (
        "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64",
    )
}  # fmt: skip
MAX_DEPTH = 8


class MappingError(Exception):
    """The library refused a job or ran out of something; the message says where, expected, found and next."""


@dataclass(frozen=True)
class Options:
    """How to map; only `depth` changes what comes out, and `order` the last bits of the sums.

    Attributes
    ----------
    depth : int          subdivision depth, 0..8
    subdivision : str    'corner-passing', 'corner-cache' or 'flat': how a cell comes by its corners
    threads : int        1..256
    work_block : int     samples that a thread claims at once; 0: a brick of 64 x 64 pixels x the frames
    budget : int         bytes of working memory
    precheck : str       'records' (reserves 4 records a sample) or 'leaves' (the worst case)
    filter : bool        flat: decide voxels in float where that is certain
    accumulate : str     'radix' sorts events by voxel, 'bitmap' finds records by counting bits, 'auto' chooses
    instructions : str   'best' of what this machine has, or 'plain', 'avx2', 'avx512'
    reject : bool        do not subdivide pixels and cells that cannot reach the grid
    order : str          'bricks', or 'flat-runs': frame, row, column over the whole tile
    count_blocks : bool  count block_records: distinct (work unit, voxel) pairs
    """

    depth: int = 2
    subdivision: str = "corner-passing"
    threads: int = 1
    work_block: int = 0
    budget: int = 1 << 30
    precheck: str = "records"
    filter: bool = True
    accumulate: str = "auto"
    instructions: str = "best"
    order: str = "bricks"
    reject: bool = True
    count_blocks: bool = False

    def __post_init__(self):
        choices = {
            "subdivision": SUBDIVISIONS,
            "precheck": PRECHECKS,
            "accumulate": ACCUMULATES,
            "instructions": INSTRUCTIONS,
            "order": ORDERS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, found '{getattr(self, name)}'")
        for name, low, high in (
            ("depth", 0, MAX_DEPTH),
            ("threads", 1, 256),
            ("work_block", 0, 2**63 - 1),
            ("budget", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: expected {low} to {high}, found {value}")


def bytes_per_sample(depth: int, continuous: bool, precheck: str = "records") -> int:
    """Bytes that the library reserves for one sample before it starts."""
    return _lib.mapping_bytes_per_sample(depth, int(continuous), PRECHECKS[precheck])


def exactly(name: str, array, dtype, shape, written: bool = False) -> np.ndarray:
    """The array itself if it is what the library reads (or writes); a copy would be silent and is never made."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, found {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name}: expected {np.dtype(dtype)}, found {array.dtype}; convert it first")
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, found {array.shape}")
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(
            f"{name}: expected an aligned, C-contiguous array, found strides {array.strides}; np.ascontiguousarray "
            "makes one"
        )
    if written and not array.flags.writeable:
        raise ValueError(f"{name}: expected an array that can be written to, found a read-only one; copy it first")
    return array


def check_frame(
    counts, out, variance=None, mask=None, background=None, background_variance=None, static_mask=None, factor=None,
    factor_squared=None, scalars=(),
) -> None:  # fmt: skip
    """Refuse whatever `correct` cannot read or write as it lies: TypeError or ValueError, each a sentence."""
    if not isinstance(counts, np.ndarray) or counts.dtype not in COUNTS:
        found = counts.dtype if isinstance(counts, np.ndarray) else type(counts).__name__
        raise TypeError(f"counts: expected one of {', '.join(map(str, COUNTS))}, found {found}; convert them first")
    shape = counts.shape
    exactly("counts", counts, counts.dtype, shape)
    for name, array, dtype in zip(("intensity", "variance", "mask"), out, (np.float64, np.float64, np.bool_)):
        exactly(name, array, dtype, shape, written=True)
    inputs = {
        "variance": variance, "background": background, "background_variance": background_variance, "factor": factor,
        "factor_squared": factor_squared, "mask": mask, "static_mask": static_mask,
    }  # fmt: skip
    for name, array in inputs.items():
        if array is not None:
            exactly(name, array, np.bool_ if "mask" in name else np.float64, shape)


def correct(counts, out, instructions="best", **inputs) -> None:
    """One frame's corrections in one pass (csrc/mapping.h, mapping_correct), without the interpreter lock.

    Parameters
    ----------
    counts : one of COUNTS (rows, columns)
    out : intensity float64, variance float64, mask bool    overwritten; may be `counts`, `variance` and `mask`
    inputs : see check_frame; all (rows, columns) or None
        variance, background, background_variance, factor, factor_squared : float64
        mask, static_mask : bool                            True excludes
        scalars : sequence of (c, c², variance of c or NaN)

    Raises
    ------
    TypeError, ValueError    an array is not exactly of this dtype, shape and layout
    """
    check_frame(counts, out, **inputs)
    scalars = inputs.pop("scalars", ())
    names = ("variance", "background", "background_variance", "factor", "factor_squared")

    def pointer(kind, array):
        return _ffi.NULL if array is None else _ffi.cast(f"{kind} *", array.ctypes.data)

    c, c2, v = (_ffi.new("double[]", [float(scalar[k]) for scalar in scalars]) for k in range(3))
    frame = _ffi.new(
        "mapping_frame *",
        {
            "pixels": counts.size,
            "kind": COUNTS[counts.dtype],
            "scalars": len(scalars),
            "counts": pointer("char", counts),
            "c": c,
            "c2": c2,
            "v": v,
            "intensity": pointer("double", out[0]),
            "out_variance": pointer("double", out[1]),
            "out_mask": pointer("unsigned char", out[2]),
        }
        | {name: pointer("double", inputs.get(name)) for name in names}
        | {name: pointer("unsigned char", inputs.get(name)) for name in ("mask", "static_mask")},
    )
    status = _lib.mapping_correct(frame, INSTRUCTIONS[instructions])
    if status != _lib.MAPPING_OK:
        raise MappingError(f"corrections: expected arguments as in csrc/mapping.h, found status {status}")


def add_records(left: Records, right: Records) -> Records:
    """Merge two batches (csrc/mapping.h, mapping_add), without the interpreter lock; see records.add."""
    out = Records.empty(len(left) + len(right))

    def columns(side, records):
        arrays = [exactly(f"{side}: {n}", a, d, (len(records),)) for n, a, d in zip(COLUMNS, records.columns(), DTYPES)]
        kinds = ("uint32_t", "uint32_t", "double", "double", "double", "uint32_t")
        pointers = (_ffi.cast(f"{kind} *", a.ctypes.data) for kind, a in zip(kinds, arrays))
        return _ffi.new("mapping_records *", {"count": len(records)} | dict(zip(COLUMNS, pointers)))

    target = columns("out", out)
    status = _lib.mapping_add(columns("left", left), columns("right", right), target)
    if status != _lib.MAPPING_OK:
        raise MappingError(f"records: expected batches as in csrc/mapping.h, found status {status}")
    for column in out.columns():
        # The rest was never written to, so no memory stands behind it.
        column.resize(target.count, refcheck=False)
    return out


class Kernel:
    """A context of the C library: its working memory and threads, kept between calls. Use it in a `with` statement.

    One call at a time; the interpreter lock is released while a call runs.
    """

    def __init__(self, grid: Grid, options: Options):
        self.grid, self.options = grid, options
        handle = _ffi.new("mapping_context **")
        self._check(_lib.mapping_create(handle), "a context")
        self._context = handle[0]
        self._options = _ffi.new(
            "mapping_options *",
            {
                "depth": options.depth,
                "subdivision": SUBDIVISIONS[options.subdivision],
                "threads": options.threads,
                "precheck": PRECHECKS[options.precheck],
                "work_block": options.work_block,
                "budget": options.budget,
                "filter": int(options.filter),
                "accumulate": ACCUMULATES[options.accumulate],
                "instructions": INSTRUCTIONS[options.instructions],
                "order": ORDERS[options.order],
                "reject": int(options.reject),
                "count_blocks": int(options.count_blocks),
            },
        )
        self._grid = _ffi.new(
            "mapping_grid *",
            {
                "minimum": list(grid.minimum),
                "step": list(grid.step),
                "shape": list(grid.shape),
                "chunk": list(grid.chunk),
            },
        )

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and free the memory; further calls raise."""
        if self._context is not None:
            _lib.mapping_destroy(self._context)
            self._context = None

    def map(self, intensity, variance, rays, tables, stationary, mask=None, place=(0, 0)) -> Records:
        """Map a stack of tiles.

        Parameters
        ----------
        intensity, variance : float64 (F, rows, columns)    corrected counts and their variances
        rays : float64 (rows + 1, columns + 1, 3)           unit rays of the pixel corners
        tables : float64 (F, 2^(depth+1)+1, 3, 4)           affine maps over the exposure (geometry.exposure_tables)
        stationary : bool (F,)
        mask : bool (F, rows, columns) or None              True excludes
        place : (int, int)                                  the tile's first pixel on the detector

        Returns
        -------
        Records

        Raises
        ------
        TypeError, ValueError    an array is not exactly of this dtype, shape and layout
        MappingError             budget, memory, grid
        """
        if not isinstance(intensity, np.ndarray) or intensity.ndim != 3:
            raise TypeError("intensity: expected a NumPy array (frames, rows, columns)")
        rows, columns = intensity.shape[1:]
        intensity = exactly("intensity", intensity, np.float64, intensity.shape)
        variance = exactly("variance", variance, np.float64, intensity.shape)
        if mask is not None:
            mask = exactly("mask", mask, np.bool_, intensity.shape)
        return self._run(intensity, variance, mask, rays, tables, stationary, place, (rows, columns), columns, 0)

    def map_view(self, intensity, variance, rays, tables, stationary, rectangle, mask=None) -> Records:
        """Map the rectangle (r0, r1, c0, c1) of whole frames in place: the same bytes as `map` of a copied tile.

        intensity, variance (and mask) are lists of arrays (rows, columns) of equal shape, one a frame; rays are those
        of the rectangle.
        """
        r0, r1, c0, c1 = rectangle
        if not intensity:
            raise ValueError("intensity: expected at least one frame, found none")
        shape = intensity[0].shape
        if len(shape) != 2 or not (0 <= r0 < r1 <= shape[0] and 0 <= c0 < c1 <= shape[1]):
            raise ValueError(f"rectangle: expected 0 <= r0 < r1 and c0 < c1 inside {shape}, found {rectangle}")
        lists = {"intensity": intensity, "variance": variance} | ({} if mask is None else {"mask": mask})
        for name, frames in lists.items():
            if len(frames) != len(intensity):
                raise ValueError(f"{name}: expected {len(intensity)} frames, found {len(frames)}")
            for frame in frames:
                exactly(name, frame, np.bool_ if name == "mask" else np.float64, shape)
        return self._run(
            intensity,
            variance,
            mask,
            rays,
            tables,
            stationary,
            (r0, c0),
            (r1 - r0, c1 - c0),
            shape[1],
            r0 * shape[1] + c0,
        )

    def _run(self, intensity, variance, mask, rays, tables, stationary, place, shape, stride, offset) -> Records:
        if self._context is None:
            raise ValueError("kernel: expected an open kernel, found a closed one")
        frames, (rows, columns) = len(intensity), shape
        rays = exactly("rays", rays, np.float64, (rows + 1, columns + 1, 3))
        positions = 2 ** (self.options.depth + 1) + 1
        tables = exactly("tables", tables, np.float64, (frames, positions, 3, 4))
        stationary = exactly("stationary", stationary, np.bool_, (frames,))

        def pointers(arrays, kind):
            if arrays is None:
                return _ffi.NULL
            size = arrays[0].itemsize
            return _ffi.new(f"{kind} *[]", [_ffi.cast(f"{kind} *", a.ctypes.data + offset * size) for a in arrays])

        keep = (
            pointers(intensity, "double"),
            pointers(variance, "double"),
            pointers(mask, "unsigned char"),
        )
        job = _ffi.new(
            "mapping_job *",
            {
                "frames": frames,
                "rows": rows,
                "columns": columns,
                "row": place[0],
                "column": place[1],
                "stride": stride,
                "intensity": keep[0],
                "variance": keep[1],
                "mask": keep[2],
                "rays": _ffi.cast("double *", rays.ctypes.data),
                "tables": _ffi.cast("double *", tables.ctypes.data),
                "stationary": _ffi.cast("unsigned char *", stationary.ctypes.data),
            },
        )
        count = _ffi.new("int64_t *")
        what = f"a tile of {rows} x {columns} pixels and {frames} frames at depth {self.options.depth}"
        self._check(
            _lib.mapping_run(self._context, self._options, self._grid, job, count),
            what,
            samples=frames * rows * columns,
            continuous=not bool(stationary.all()),
        )
        out = Records.empty(count[0])
        kinds = ("uint32_t", "uint32_t", "double", "double", "double", "uint32_t")
        columns_out = [_ffi.cast(f"{kind} *", a.ctypes.data) for kind, a in zip(kinds, out.columns())]
        self._check(_lib.mapping_fetch(self._context, *columns_out), what)
        return out

    def counters(self) -> dict[str, int]:
        """What the last call did: samples, valid, evaluations, leaves, leaves_max, events, records, bytes."""
        counters = _ffi.new("mapping_counters *")
        _lib.mapping_count(self._context, counters)
        return {name: getattr(counters, name) for name in COUNTERS}

    def _check(self, status: int, what: str, samples: int = 0, continuous: bool = False) -> None:
        if status == _lib.MAPPING_OK:
            return
        if status == _lib.MAPPING_OVER_BUDGET:
            need = samples * bytes_per_sample(self.options.depth, continuous, self.options.precheck)
            budget = self.options.budget
            if need > budget:
                raise MappingError(
                    f"{what}: expected a budget of at least {need} bytes, found {budget}; take a smaller tile, fewer "
                    "frames, a lower depth or a larger budget"
                )
            raise MappingError(
                f"{what}: expected its events to fit the budget of {budget} bytes, found that they do not; take a "
                "smaller tile or a larger budget"
            )
        words = {
            _lib.MAPPING_NO_MEMORY: f"{what}: expected enough memory, found none left; take a smaller tile",
            _lib.MAPPING_BAD_ARGUMENT: f"{what}: expected arguments as in csrc/mapping.h, found one outside",
            _lib.MAPPING_GRID_TOO_LARGE: f"grid: expected ids of at most 32 and 63 bits, found {self.grid.shape} "
            f"voxels in chunks of {self.grid.chunk}; take a larger step or another chunk",
            _lib.MAPPING_NO_THREAD: f"{what}: expected {self.options.threads} threads, found that one did not start; "
            "take fewer threads",
            _lib.MAPPING_NO_RESULT: f"{what}: expected a finished run, found none",
        }
        raise MappingError(words.get(status, f"{what}: expected a known status, found {status}"))


def best_instructions() -> str:
    """The instruction set that 'best' stands for on this machine."""
    best = _lib.mapping_best_instructions()
    return next(name for name, value in INSTRUCTIONS.items() if value == best)


def library_path() -> str:
    """Path of the shared library that is really loaded."""
    return _native.__file__


def library_digest() -> str:
    """Digest of the sources that the loaded library was built from."""
    return _ffi.string(_lib.mapping_source_digest()).decode()


def tree_digest() -> str | None:
    """The same digest of the sources beside this package now; None where there are none."""
    script = Path(__file__).resolve().parents[2] / "csrc" / "build.py"
    if not script.exists():
        return None
    specification = importlib.util.spec_from_file_location("harness_csrc_build", script)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.source_digest("mapping")
