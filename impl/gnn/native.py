"""The C library of impl.gnn, loaded: which one it is and what this machine can do with it; needs no torch."""

import hashlib
from pathlib import Path

try:
    from impl.gnn import _native
except ImportError as error:
    raise ImportError(
        "impl.gnn: the C library is not built; run `python csrc/build.py gnn` or install the package"
    ) from error

ffi, lib = _native.ffi, _native.lib
#: instruction sets, by their number in gnn_step
ISAS = ("plain", "avx2", "avx512")


def best_isa() -> str:
    """The best instruction set that both this machine and the library have."""
    return ISAS[lib.gnn_best_isa()]


def path() -> str:
    """The shared library that was really loaded."""
    return _native.__file__


def source_digest() -> str:
    """Digest of the sources that the loaded library was built from."""
    return ffi.string(lib.gnn_source_digest()).decode()


def tree_digest() -> str | None:
    """The same digest of the csrc folder beside impl, or None where there is none (an installed package).

    Mirrors `source_digest` of csrc/build.py.
    """
    folder = Path(__file__).resolve().parents[2] / "csrc"
    digest = hashlib.sha256()
    try:
        for file in sorted(["gnn.c", "gnn.h", "gnn_step.h", "build.py"]):
            digest.update(file.encode() + b"\0" + (folder / file).read_bytes() + b"\0")
    except OSError:
        return None
    return digest.hexdigest()
